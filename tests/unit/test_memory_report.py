"""The memory part of the report: its values, its HTML and its text, from built recordings."""

from __future__ import annotations

import json
from html import unescape
from typing import Any

import pytest
from msgspec.structs import replace

from ipyprof.analysis.memory import PROCESS_REST
from ipyprof.analysis.results import FailedRequest, Holder
from ipyprof.diagnosis.memory import FAILED_REST, failure_headline
from ipyprof.report import build
from ipyprof.report.report import Report, Source
from ipyprof.show.html import render_html
from ipyprof.show.memory import detail_of, failure_text, room_text
from ipyprof.show.panel import memory_tab
from ipyprof.show.text import render_text, runs_text
from ipyprof.show.words import bound_word, subject
from ipyprof.trace.live import AllocatorState, LiveRecord, OutOfMemory, Owner
from ipyprof.trace.model import Trace, no_events
from tests.heap import Heap
from tests.unit.test_holders import MB, Training, owner

FAILED = OutOfMemory(
    line=5, tried_bytes=2_000 * MB, capacity_bytes=8_000 * MB, free_bytes=250 * MB, allocated_bytes=4_000 * MB,
    unused_bytes=1_900 * MB, text="CUDA out of memory.",
)  # fmt: skip


def report_of(trace: Trace, live: LiveRecord) -> Report:
    return build.report_of(trace, Source(kind="live"), live)


def trained(*, steps: int = 3, **live: Any) -> tuple[Training, LiveRecord]:
    """A training that keeps its losses with their graphs, and what its live record says."""
    training = Training()
    training.builder.device()
    weight = training.heap.older(50 * MB)
    owners = [owner(weight, 50 * MB, "model.h.0.weight", "parameter")]
    for number in range(steps):
        at = 1_000 * number
        training.builder.launch(at + 115, 5, "gemm", at + 125, 60)
        found = training.step(keep_graph=True)
        training.end_step(found, loss=False)
        owners.append(owner(found["loss"], 512, f"losses[{number}]", "tensor"))
        owners.append(owner(found["saved"], 40 * MB, f"graph of losses[{number}]", "graph"))
    record = LiveRecord(source="%%gpuprofile\n" * 7, owners=tuple(owners), cuda=True, **live)
    return training, record


def test_the_report_names_who_holds_the_peak() -> None:
    training, live = trained()

    memory = report_of(training.builder.trace(), live).memory

    assert memory is not None
    assert {holder.name: (holder.bytes, holder.line) for holder in memory.holders}["graph kept by losses"] == (
        80 * MB,
        4,
    )
    assert sum(holder.bytes for holder in memory.holders) == memory.peak_bytes


def test_the_leak_is_told_with_what_to_do() -> None:
    """E15: growth per step, and that the peak is not yet reached."""
    training, live = trained()

    report = report_of(training.builder.trace(), live)

    assert report.to_dict()["views"]["memory"]["growing"] == [
        {"name": "losses", "bytes": 40 * MB + 512, "line": 4, "role": "graphs"}
    ]
    told = "losses keeps 40.0 MB more after each step (line 4)"
    assert told in " ".join(render_text(report, 100).split())
    assert told in render_html(report)


def test_a_report_with_memory_survives_json() -> None:
    training, live = trained(out_of_memory=FAILED)
    report = report_of(training.builder.trace(), live)

    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


def test_a_request_that_failed_heads_the_dashboard_and_the_text() -> None:
    training, live = trained(
        out_of_memory=FAILED,
        allocator=(AllocatorState(device=0, allocated_bytes=1, reserved_bytes=2, largest_free_bytes=90 * MB),),
    )
    training.builder.annotation("unfinished step 3", 3_100, 3_900)
    training.builder.line(4, 3_100, 3_900)
    training.heap.alloc(3_200, 700 * MB)

    report = report_of(training.builder.trace(), live)

    # The page keeps some words together.
    text, page = " ".join(render_text(report, 100).split()), " ".join(unescape(render_html(report)).split())
    for told in (
        "Line 5 asked for 2,000 MB; 250 MB of 8,000 MB were free.",
        "held 1,900 MB more, free (reserved 5,900 MB), the largest free piece 90.0 MB.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "Line 5 ran out of memory: it asked for 2,000 MB with 250 MB free; largest holder: activations of line 4,",
    ):
        assert told in text
        assert told in page
    assert page.index("out of memory") < page.index("One step")
    failed = report.failed_request
    assert failed is not None
    assert [holder.name for holder in failed.holders[:3]] == [
        "activations of line 4",
        "graph kept by losses",
        "allocated before recording, not reachable from the notebook",
    ]


def test_the_verdict_says_which_request_failed_where_and_who_holds_most() -> None:
    training, live = trained(out_of_memory=FAILED)
    training.builder.line(4, 3_100, 3_900)
    training.heap.alloc(3_200, 700 * MB)

    report = report_of(training.builder.trace(), live)

    before = report_of(training.builder.trace(), replace(live, out_of_memory=None))
    assert report.verdict.headline == (
        "Line 5 ran out of memory: it asked for 2,000 MB with 250 MB free; largest holder: activations of line 4, "
        "700 MB."
    )
    assert report.verdict.advice.startswith("1,900 MB are reserved and free, but in pieces; start Python with")
    assert report.verdict.cause == before.verdict.cause
    assert report.verdict.recoverable_ms == before.verdict.recoverable_ms
    if report.verdict.cause != "inconclusive":
        assert report.verdict.advice.endswith(before.verdict.headline)


def test_a_request_that_failed_goes_before_what_holds_the_step_back() -> None:
    # given a training whose recording ended in a request, and one without it
    training, live = trained(out_of_memory=FAILED)
    failed = report_of(training.builder.trace(), live)
    other = report_of(training.builder.trace(), replace(live, out_of_memory=None))
    # when both are shown
    heads = [render_text(one, 200).splitlines()[0] for one in (failed, other)]
    # then only without it the first line tells the cause and what bounds the step
    assert heads[0].startswith("! Out of memory · confidence")
    assert "<b>! Out of memory</b>&nbsp;" in render_html(failed)
    assert "<b>! Out of memory</b>&nbsp;" not in render_html(other)
    assert subject(other)[0] == heads[1].split(" · ")[0].removesuffix(subject(other)[1])
    assert bound_word(failed) == ""
    assert "out of memory" in runs_text([(1, failed)])
    assert other.verdict.cause in runs_text([(1, other)])


def test_advice_to_record_more_is_not_given_where_memory_ran_out() -> None:
    # given a cell that failed before it was recorded, with nothing that could make room
    live = LiveRecord(out_of_memory=OutOfMemory(device=-1, line=2, tried_bytes=2**52, capacity_bytes=16_000 * MB))
    # when it is judged
    verdict = report_of(no_events(), live).verdict
    # then the advice is about the request
    assert verdict.headline == "Line 2 ran out of host memory: it asked for 4,504 TB."
    assert verdict.advice.startswith("The request alone is 281,475× all that this machine has (16.0 GB)")


@pytest.mark.parametrize("line", [None, 7])
@pytest.mark.parametrize("tried", [None, 3 * MB])
@pytest.mark.parametrize("free", [None, 0])
@pytest.mark.parametrize("name", ["x", "kept by no line of the cell (aten::convolution)", "a " * 30])
@pytest.mark.parametrize("device", [0, -1])
def test_the_sentence_of_a_failure_has_at_most_25_words(
    line: int | None, tried: int | None, free: int | None, name: str, device: int
) -> None:
    holder = Holder(name=name, role="tensors", bytes=5 * MB, line=None)

    text = failure_headline(OutOfMemory(line=line, tried_bytes=tried, free_bytes=free, device=device), (holder,))

    assert len(text.split()) <= 25
    assert "ran out of" in text
    assert tried is None or "asked for 3.0 MB" in text


def test_who_has_no_name_is_not_the_largest_holder_of_the_sentence() -> None:
    rest = Holder(name="not reachable from the notebook", role="rest", bytes=9 * MB, line=None)

    text = failure_headline(OutOfMemory(line=2), (rest, Holder(name="x", role="tensors", bytes=MB, line=None)))

    assert text == "Line 2 ran out of memory; largest holder: x, 1.0 MB."


def test_a_request_that_failed_and_was_caught_is_told_and_no_verdict() -> None:
    training, live = trained()
    training.builder.line(5, 1_300, 1_390)
    training.builder.memory(1_350, 900 * MB, 300 * MB, 400 * MB, address=0, name="[OutOfMemory]")

    report = report_of(training.builder.trace(), live)

    told = "! A request for 900 MB failed in step 2 (line 5), and the cell went on; 300 MB were given out then."
    assert told in " ".join(render_text(report, 100).split())
    assert told in render_html(report)
    assert "ran out of memory" not in report.verdict.headline
    assert [(one.status, one.text) for one in report.trust if one.check == "out of memory"] == [
        ("warn", "1 request for memory failed in the recorded steps, and the cell went on")
    ]


@pytest.mark.parametrize(("last", "settled"), [(1, True), (2, False)])
def test_a_cache_that_grew_and_settled_is_told_to_have(last: int, settled: bool) -> None:
    """E8: the driver is called in the first steps only."""
    training, live = trained()
    for step in range(last + 1):
        training.builder.call("cudaMalloc", 1_000 * step + 20, 40)

    text = " ".join(render_text(report_of(training.builder.trace(), live), 100).split())

    assert ("None after step 2: the cache has settled." in text) == settled


def test_each_device_has_its_heartbeat() -> None:
    training, live = trained()
    other = Heap(training.builder, held=7 * MB, device=1)
    training.builder.launch(150, 5, "gemm", 160, 10, device=1)
    training.builder.line(4, 1_100, 1_300)
    other.alloc(1_200, 11 * MB)

    report = report_of(training.builder.trace(), live)

    (curve,) = detail_of(report).devices
    assert (curve.device, curve.allocated) == (1, (7 * MB, 18 * MB))
    assert "GPU 1: at most 18.0 MB allocated at 1.20 ms, line 4" in " ".join(render_text(report, 100).split())
    assert "Heartbeats of the other GPUs" in render_html(report)
    tab = memory_tab(report)
    assert tab is not None
    choice, shown = tab.children
    assert [label for label, _ in choice.options] == ["GPU 0", "GPU 1"]
    assert "step 1, 0.00 ms: 150 MB allocated, 47 % of the peak" in shown.children[0].children[1].value
    choice.value = 1
    slider, cursor = shown.children[0].children
    slider.value = slider.max
    assert "18.0 MB allocated, 100 % of the peak" in cursor.value


def test_a_request_that_failed_before_anything_was_recorded_is_told_by_name() -> None:
    live = LiveRecord(
        cuda=True,
        owners=(owner(1, 600 * MB, "model.weight", "parameter"), owner(2, 900 * MB, "cache", "tensor")),
        out_of_memory=FAILED,
    )

    report = report_of(no_events(), live)

    assert report.failed_request is not None
    assert [(one.name, one.bytes) for one in report.failed_request.holders] == [
        (FAILED_REST, 2_500 * MB),
        ("cache", 900 * MB),
        ("parameters of model", 600 * MB),
    ]
    assert report.memory is not None
    assert report.memory.peak_bytes == 4_000 * MB
    assert "Line 5 asked for 2,000 MB" in " ".join(render_text(report, 100).split())
    assert "of the process" not in render_text(report, 100)


def test_a_request_that_failed_behind_the_recording_has_its_own_holders() -> None:
    late = OutOfMemory(
        tried_bytes=10 * MB, allocated_bytes=80 * MB, later=True, owners=(owner(9, 80 * MB, "hoard", "tensor"),)
    )
    training, live = trained(out_of_memory=late)

    told = report_of(training.builder.trace(), live).failed_request

    assert told is not None
    assert told.holders == (Holder(name="hoard", bytes=80 * MB, role="tensors"),)


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        (FailedRequest(), "The cell asked for more memory than there was."),
        (FailedRequest(line=3, tried_bytes=2 * MB), "Line 3 asked for 2.0 MB."),
        (FailedRequest(tried_bytes=2 * MB, capacity_bytes=9 * MB), "The cell asked for 2.0 MB; the device has 9.0 MB."),
    ],
)
def test_what_is_not_known_of_a_request_is_left_out(failed: FailedRequest, text: str) -> None:
    assert failure_text(failed) == text
    assert room_text(failed) == "What the allocator held then was not measured."


def test_the_process_is_split_into_names_and_the_rest() -> None:
    on_cpu = Owner(address=1, device=-1, bytes=30 * MB, name="x", role="tensor", variable="x")
    live = LiveRecord(owners=(on_cpu,), process_memory=((0, 90 * MB), (5, 100 * MB)))

    memory = report_of(no_events(), live).memory

    assert memory is not None
    assert [(holder.name, holder.bytes) for holder in memory.holders] == [(PROCESS_REST, 70 * MB), ("x", 30 * MB)]


def test_hostile_names_are_escaped() -> None:
    training, live = trained()
    assert live.owners is not None
    evil = replace(live.owners[0], name="<b>x</b>", role="tensor", variable="<b>x</b>")

    page = render_html(report_of(training.builder.trace(), replace(live, owners=(evil,))))

    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
