"""What to do about memory, from holders that are given."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ipyprof.analysis.holders import (
    ACTIVATIONS,
    GRAPHS,
    OPTIMIZER,
    PARAMETERS,
    REST,
    RESULTS,
    TEMPORARIES,
    TENSORS,
)
from ipyprof.analysis.results import Holder
from ipyprof.diagnosis.memory import (
    batch_share,
    checkpoint_advice,
    error_advice,
    failure_advice,
    fragmentation_advice,
    growth_advice,
)
from ipyprof.trace.live import AllocatorState, OutOfMemory

MB = 1_000_000


def holder(name: str, role: str, size: int, line: int | None = None) -> Holder:
    return Holder(name=name, role=role, bytes=size * MB, line=line)


HELD = (
    holder("activations of line 4", ACTIVATIONS, 600, 4),
    holder("parameters of model", PARAMETERS, 200),
    holder("cache", TENSORS, 100),
    holder("temporaries of aten::mm", TEMPORARIES, 100, 5),
)


def test_the_line_with_most_activations_is_to_be_checkpointed() -> None:
    (text,) = checkpoint_advice(HELD)

    assert text.startswith("Line 4 keeps 600 MB of activations for the backward pass, 60 % of the peak")
    assert "saves at most that" in text


@pytest.mark.parametrize("activations", [(99, 4), (500, None)])
def test_small_activations_and_those_without_a_line_are_not(activations: tuple[int, int | None]) -> None:
    size, line = activations

    assert checkpoint_advice((holder("activations", ACTIVATIONS, size, line), holder("rest", REST, 901))) == ()


LATER = "The peak is not reached yet."


@pytest.mark.parametrize(
    ("grown", "begin", "end"),
    [
        (
            holder("losses", GRAPHS, 40, 4),
            "losses keeps 40.0 MB more after each step (line 4): keep loss.item()",
            LATER,
        ),
        (holder("history", TENSORS, 40, 4), "history keeps 40.0 MB more after each step (line 4): let go of", LATER),
        (holder("Out", TENSORS, 40), "Out keeps 40.0 MB more after each step", "or empty it with %reset out."),
        (
            holder("kept by line 3 (aten::zeros)", RESULTS, 40, 3),
            f"Kept by line 3 (aten::zeros): 40.0 MB more after each step. {LATER}",
            "",
        ),
    ],
)
def test_what_grows_is_told_with_what_to_keep_instead(grown: Holder, begin: str, end: str) -> None:
    little = Holder(name="few", role=TENSORS, bytes=512, line=4)

    (text,) = growth_advice((grown, little))

    assert text.startswith(begin)
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("expandable", "end"),
    [
        (False, "start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
        (True, "expandable_segments is on already."),
    ],
)
def test_a_request_that_would_have_fitted_in_one_piece_is_told_of_segments(expandable: bool, end: str) -> None:
    failed = OutOfMemory(tried_bytes=500 * MB, free_bytes=10 * MB, unused_bytes=600 * MB)
    state = AllocatorState(
        device=0, allocated_bytes=0, reserved_bytes=0, largest_free_bytes=90 * MB, expandable=expandable
    )

    advice = failure_advice(failed, HELD, state, None)

    assert advice[0] == f"600 MB are reserved and free, but in pieces, the largest piece 90.0 MB; {end}"


def test_a_request_without_room_is_not_told_of_segments() -> None:
    failed = OutOfMemory(tried_bytes=500 * MB, free_bytes=10 * MB, unused_bytes=20 * MB)

    assert not any("expandable" in text for text in failure_advice(failed, HELD, None, None))


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        (
            OutOfMemory(device=-1, line=3, tried_bytes=4_503_599_627_370_496, capacity_bytes=16_000 * MB),
            "The request alone is 281,475× all that this machine has (16.0 GB), so nothing makes room for it: look at "
            "the shape that is asked for on line 3.",
        ),
        (
            OutOfMemory(device=1, tried_bytes=500 * MB, capacity_bytes=1_000 * MB),
            "The request is 50 % of all that GPU 1 has (1,000 MB): ask for less at once, a smaller shape or dtype.",
        ),
        (
            OutOfMemory(line=3, tried_bytes=500 * MB),
            "Ask for less than 500 MB at once on line 3: a smaller shape or dtype.",
        ),
        (OutOfMemory(line=3), "How much was asked for is not known: ask for less on line 3."),
    ],
)
def test_where_nothing_makes_room_the_request_is_the_advice(failed: OutOfMemory, text: str) -> None:
    assert failure_advice(failed, (holder("parameters of model", PARAMETERS, 1),), None, None) == (text,)


FULL = AllocatorState(
    device=0, allocated_bytes=0, reserved_bytes=0, device_free_bytes=90 * MB, device_total_bytes=1_000 * MB
)


@pytest.mark.parametrize(("state", "retried"), [(None, True), (FULL, False)])
def test_what_is_not_given_out_at_the_peak_is_told_where_memory_is_short(
    state: AllocatorState | None, retried: bool
) -> None:
    (text,) = fragmentation_advice(600 * MB, 400 * MB, state, retried=retried)

    assert text.startswith("At the peak 400 MB of the 1,000 MB reserved were not given out (40 %)")
    assert text.endswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")


@pytest.mark.parametrize(
    ("peak", "unused", "retried"), [(600 * MB, 400 * MB, False), (970 * MB, 30 * MB, True), (0, 0, True)]
)
def test_a_cache_that_is_in_nobodys_way_is_not_told(peak: int, unused: int, retried: bool) -> None:
    assert fragmentation_advice(peak, unused, replace(FULL, device_free_bytes=200 * MB), retried=retried) == ()


def test_what_the_last_errors_traceback_keeps_is_no_variable_to_let_go_of() -> None:
    held = (*HELD, holder("hidden (in forward, last error)", TENSORS, 500))

    advice = failure_advice(OutOfMemory(line=5), held, None, None)

    assert advice[:2] == (
        "The traceback of the last error keeps 500 MB of its functions' variables: another error takes its place, such "
        "as a cell with 1/0.",
        "cache holds 100 MB: let go of it before line 5 if it is not needed.",
    )
    assert error_advice(HELD) == ()


def test_the_holder_to_drop_is_the_largest_that_is_no_part_of_the_model() -> None:
    held = (*HELD, holder("graph kept by losses", GRAPHS, 90), holder("state of opt", OPTIMIZER, 10))

    advice = failure_advice(OutOfMemory(line=5), held, None, None)

    assert advice[0] == "cache holds 100 MB: let go of it before line 5 if it is not needed."


def test_what_is_small_beside_the_request_is_not_to_be_dropped() -> None:
    failed = OutOfMemory(line=5, tried_bytes=10_000 * MB)

    assert not any("let go of it" in text for text in failure_advice(failed, HELD, None, None))


def test_a_smaller_batch_comes_with_its_share() -> None:
    # 300 MB asked for, 50 free, 10 unused: 240 are lacking; 300 + 600 + 100 follow the batch.
    failed = OutOfMemory(tried_bytes=300 * MB, free_bytes=50 * MB, unused_bytes=10 * MB)

    assert batch_share(failed, HELD) == pytest.approx(0.24)
    assert any("A batch smaller by at least 24 %" in text for text in failure_advice(failed, HELD, None, None))


@pytest.mark.parametrize(
    "failed",
    [
        OutOfMemory(),
        OutOfMemory(tried_bytes=300 * MB),
        OutOfMemory(tried_bytes=300 * MB, free_bytes=400 * MB),
    ],
)
def test_a_share_that_is_not_known_is_not_told(failed: OutOfMemory) -> None:
    assert batch_share(failed, HELD) is None


def test_large_optimizer_state_and_other_processes_are_told() -> None:
    held = (holder("state of opt", OPTIMIZER, 700), holder("parameters of model", PARAMETERS, 300))

    advice = failure_advice(OutOfMemory(tried_bytes=100 * MB), held, None, 900 * MB)

    assert advice[0].startswith("Optimizer state is 70 % of what was held")
    assert advice[1] == "Other processes hold 900 MB of this GPU."
