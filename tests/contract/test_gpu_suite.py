"""The GPU suite's own judgement, checked without a GPU: it must see what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.stepped import Marks, compile_stepped, run_stepped
from tests.gpu.suite import judge
from tests.gpu.workloads import ALLOCATOR, GPT, ITEM, LOADER, PAIRS, WORKLOADS, Workload


def report(cause: str, *, line: int | None = None, step: float = 10.0, parts: tuple[float, ...] = (6, 4)) -> Any:
    """A report's dictionary with one found cause, as far as the suite reads it."""
    kernel, cpu = parts
    found = [] if cause == "compute_bound" else [{"cause": cause, "status": "found", "where": {"line": line}}]
    return {
        "steps": {"step_ms": step, "overhead": 1.2},
        "breakdown": {"kernel": kernel, "memcpy": None, "cpu": cpu},
        "verdict": {"cause": cause, "headline": "", "recoverable_ms": 3.0, "confidence": "high"},
        "findings": found,
    }


def failures(workload: Workload, form: str, *reports: Any, hand_ms: float = 10.0) -> tuple[str, ...]:
    """What the suite says of these reports."""
    return judge(workload, form, hand_ms=[hand_ms], block_ms=[hand_ms], reports=reports).failures


@pytest.mark.parametrize(
    ("workload", "form", "given"),
    [
        (ITEM, "slow", report("host_sync", line=6)),
        (ITEM, "fixed", report("compute_bound")),
        (ITEM, "fixed", report("launch_bound")),
        (LOADER, "slow", report("data_loading", line=2)),
        (GPT, "slow", report("compute_bound")),
        (GPT, "fixed", report("memory_bound")),
    ],
)
def test_right_verdict_holds(workload: Workload, form: str, given: Any) -> None:
    # given a report with the planted verdict and the hand-timed step, when it is judged, then nothing is wrong
    assert failures(workload, form, given) == ()


@pytest.mark.parametrize(
    ("workload", "form", "given", "words"),
    [
        (ITEM, "slow", report("launch_bound", line=6), "called launch_bound, expected host_sync"),
        (ITEM, "slow", report("host_sync", line=5), "names line 5, expected 6"),
        (ITEM, "slow", report("host_sync"), "names line None, expected 6"),
        (ALLOCATOR, "fixed", report("allocator", line=3), "still called allocator"),
        (GPT, "slow", report("launch_bound", line=3), "called launch_bound, expected not waiting"),
        (GPT, "slow", report("inconclusive"), "called inconclusive, expected not waiting"),
        (GPT, "slow", report("compute_bound", parts=(6, 3.9)), "breakdown is off by 0.1 ms"),
        (GPT, "slow", report("compute_bound", parts=(11, -1)), "breakdown is off by inf ms"),
    ],
)
def test_wrong_report_is_seen(workload: Workload, form: str, given: Any, words: str) -> None:
    # given a report that is wrong in one way, when it is judged, then that is said
    assert failures(workload, form, given) == (f"run 1: {words}",)


@pytest.mark.parametrize(("hand_ms", "held"), [(10.5, True), (10.6, False), (9.6, True), (9.5, False)])
def test_step_holds_within_five_percent_of_the_hand_timing(hand_ms: float, held: bool) -> None:
    # given a reported step of 10 ms, when the hand timing is near or far, then it holds up to 5 % of the hand timing
    assert (failures(GPT, "slow", report("compute_bound"), hand_ms=hand_ms) == ()) is held


def test_no_report_does_not_hold() -> None:
    # given a notebook that gave no report, when it is judged, then it does not hold
    assert failures(GPT, "slow") == ("no report",)


@pytest.mark.parametrize("workload", WORKLOADS, ids=[workload.name for workload in WORKLOADS])
def test_loop_cell_is_marked_once_per_step(workload: Workload) -> None:
    # given a planted loop, when its stepped form is compiled, then it compiles
    for form, loop in workload.forms().items():
        assert compile_stepped(loop, f"<{workload.name} {form}>").co_filename == f"<{workload.name} {form}>"


def test_planted_lines_hold_the_cause() -> None:
    # given the pairs whose verdict must name a line
    text = {one.name: ("%%gpuprofile\n" + one.slow).splitlines() for one in PAIRS}
    # when those lines are read, then they hold the planted cause
    assert ".item()" in text["item_between_kernels"][6 - 1]
    assert "empty_cache()" in text["empty_cache"][5 - 1]
    assert ".to(device)" in text["pageable_copies"][3 - 1]
    assert "in loader:" in text["sleeping_loader"][2 - 1]


def test_stepped_loop_marks_each_step() -> None:
    # given a loop of four steps, when it runs with marks
    seen: list[int] = []
    namespace: dict[str, Any] = {"done": seen}
    marks = Marks()
    run_stepped(compile_stepped("for k in range(4):\n    done.append(k)\n", "<loop>"), namespace, marks)
    # then every step ran once, there is a mark per step and a closing one, and no name is left behind
    assert seen == [0, 1, 2, 3]
    assert len(marks.wall_s) == 5
    assert len(marks.steps_ms()) == 4
    assert "__mark" not in namespace


def paced(*steps: float) -> list[Any]:
    """Reports of a loop that is not waiting, with these steps."""
    return [report("compute_bound", step=step, parts=(step - 1, 1)) for step in steps]


def test_medians_are_compared_on_a_host_of_one_speed() -> None:
    # given a step that is longer under the magic in two of three runs, on a host that kept its speed
    outcome = judge(
        GPT, "slow", hand_ms=[10, 10, 10], block_ms=[10], host_ms=[15, 16, 15], reports=paced(10.0, 13.0, 13.0)
    )
    # when it is judged, then it does not hold, though the fastest runs agree
    assert outcome.failures == ("step 13.000 ms, by hand 10.000 ms",)


def test_fastest_runs_are_compared_where_the_host_changed_its_speed() -> None:
    # given the same on a host that was slower for a while, when it is judged, then the fastest runs decide
    reports = paced(10.0, 13.0, 13.0)
    outcome = judge(GPT, "slow", hand_ms=[10, 10, 10], block_ms=[10], host_ms=[15, 29, 15], reports=reports)
    assert (outcome.compared, outcome.failures) == ("fastest", ())


def test_a_changing_host_excuses_no_step_that_is_always_longer() -> None:
    # given a step that is never as short as by hand, when it is judged, then it does not hold
    outcome = judge(GPT, "slow", hand_ms=[10, 13], block_ms=[10], host_ms=[15, 29], reports=paced(13.0, 13.0))
    assert outcome.failures == ("step 13.000 ms, by hand 11.500 ms",)
