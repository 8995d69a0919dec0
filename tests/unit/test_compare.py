"""Two reports side by side: exact numbers on built reports, each answer, each warning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from ipyprof.analysis.results import Breakdown
from ipyprof.report.comparison import Comparison, Row, code_changes, compare_reports
from ipyprof.report.report import Device, Report, Throughput, Views
from ipyprof.report.significance import FASTER, SAME, SLOWER, UNKNOWN
from tests.sample_comparisons import fast, named, slow, timed
from tests.sample_reports import cpu_only, healthy, sync, with_views


def part(found: Comparison, name: str) -> Row:
    return next(row for row in found.parts if row.name == name)


def with_steps(report: Report, **changes: Any) -> Report:
    return structs.replace(report, steps=structs.replace(report.steps, **changes))


def without_view(report: Report, key: str) -> Report:
    return with_views(report, **{key: Views().__getattribute__(key) or ()})


# -- the answer --


def test_cured_starvation_reaches_its_promise() -> None:
    # given the loop before and after its cure, when they are compared
    found = compare_reports(slow(), fast())
    # then the sentence has the promise, what was reached, and both steps
    assert found.headline == "Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms."
    assert found.speedup == pytest.approx(257.0 / 31.6)
    assert found.significance.answer == FASTER
    assert found.promise is not None
    assert (found.promise.cause, found.promise.kind) == ("data_loading", "at most")
    assert found.promise.bound == slow().verdict.speedup_bound
    assert found.promise.recovered == pytest.approx((257.0 - 31.6) / 225.4)
    assert found.warnings == ()
    assert (found.before.label, found.after.label) == ("before", "after")


def test_the_way_back_is_slower_than_predicted() -> None:
    # given the two in the wrong order, where the first promised nothing
    found = compare_reports(fast(), slow())
    # when compared, then it is slower, by the same factor
    assert found.significance.answer == SLOWER
    assert found.headline == "8.1× slower: a step takes 257 ms instead of 31.6 ms."


def test_slower_against_a_promise_says_both() -> None:
    # given a change that made the step slower, when compared, then the sentence has the promise and the fact
    found = compare_reports(sync(), timed(sync(), 7.5, 7.6, 7.7))
    assert found.headline == "Predicted at most 1.5× faster, but 2.0× slower: a step takes 7.60 ms instead of 3.80 ms."


def test_no_change_names_what_was_predicted() -> None:
    found = compare_reports(sync(), timed(sync(), 3.78, 3.81, 3.82))
    assert found.significance.answer == SAME
    assert found.headline == (
        "No significant change: a step takes 3.81 ms instead of 3.80 ms; predicted was at most 1.5×."
    )


def test_too_few_samples_cannot_tell() -> None:
    # given one unprofiled step after the change, when compared, then nothing is claimed
    found = compare_reports(sync(), timed(sync(), 2.5))
    assert found.significance.answer == UNKNOWN
    assert found.headline == (
        "Cannot tell whether it changed: a step takes 2.50 ms instead of 3.80 ms, from too few samples."
    )


def test_a_step_that_was_not_measured_cannot_be_compared() -> None:
    found = compare_reports(with_steps(named(sync(), "first"), step_ms=None, per_step_ms=()), sync())
    assert found.headline == "Cannot compare: the step of first was not measured."
    assert found.speedup is None


def test_a_healthy_first_run_promised_nothing() -> None:
    found = compare_reports(healthy(), timed(healthy(), 10.0, 10.1, 10.2))
    assert found.promise is None
    assert found.headline == "2.0× faster: a step takes 10.1 ms instead of 20.6 ms."


# -- other work per step --


def test_other_items_are_compared_per_item() -> None:
    # given twice the images in a step that takes 1.25 times as long
    before = with_steps(timed(sync(), 4.0, 4.0, 4.0), throughput=Throughput(value=16_000, unit="img/s"))
    after = with_steps(timed(sync(), 5.0, 5.0, 5.0), throughput=Throughput(value=25_600, unit="img/s"))
    # when compared, then the time per image counts, and it is said
    found = compare_reports(before, after)
    assert found.per_item
    assert found.speedup == pytest.approx(1.6)
    assert found.before.samples_ms == pytest.approx((4.0 / 64,) * 3)
    assert found.after.samples_ms == pytest.approx((5.0 / 128,) * 3)
    assert "Predicted at most 1.5×, reached 1.6×: 25,600 img/s instead of 16,000 img/s." in found.headline


def test_other_units_are_not_compared_per_item() -> None:
    before = with_steps(sync(), throughput=Throughput(value=100, unit="img/s"))
    after = with_steps(sync(), throughput=Throughput(value=100, unit="tokens/s"))
    found = compare_reports(before, after)
    assert not found.per_item


# -- what makes two runs hard to compare --


@pytest.mark.parametrize(
    ("after", "warning"),
    [
        (
            structs.replace(sync(), device=Device(name="NVIDIA A100", index=0)),
            "other device: NVIDIA H200 before, NVIDIA A100 after",
        ),
        (
            structs.replace(sync(), environment={**sync().environment, "torch": "2.13.0"}),
            "other torch: 2.11.0+cu130 before, 2.13.0 after",
        ),
        (
            structs.replace(sync(), environment={**sync().environment, "cuda": "12.8"}),
            "other cuda: 13.0 before, 12.8 after",
        ),
        (
            with_steps(sync(), how="optimizer steps"),
            "the steps may not be the same work: loop at line 2 before, optimizer steps after",
        ),
        (with_steps(sync(), cycle=4), "other cycles of the optimizer: 1 before, 4 after"),
        (
            with_steps(sync(), per_step_ms=(), baseline="none"),
            "after: no step was timed without the profiler, so its step is an estimate",
        ),
        (
            with_steps(sync(), baseline="after_first"),
            "after: the only unprofiled step came right behind the recording",
        ),
        (
            structs.replace(sync(), source=structs.replace(sync().source, partial="KeyError in step 2")),
            "after: KeyError in step 2",
        ),
    ],
)
def test_what_differs_beside_the_code_is_a_warning(after: Report, warning: str) -> None:
    # given a run that differs in one thing that is not the change, when compared, then exactly that is said
    assert compare_reports(sync(), after).warnings == (warning,)


def test_an_edit_that_moves_the_loop_is_no_warning() -> None:
    assert compare_reports(sync(), with_steps(sync(), how="loop at line 5")).warnings == ()


def test_one_report_twice_is_said() -> None:
    assert "both are the same report" in compare_reports(sync(), sync()).warnings


def test_with_and_without_a_gpu_is_a_warning_and_no_device_times() -> None:
    # given a GPU run and a CPU run, when compared, then host times are compared and it is said
    found = compare_reports(sync(), cpu_only())
    assert not found.on_device
    assert any(text.startswith("other device: NVIDIA H200 before, no GPU") for text in found.warnings)
    assert part(found, "kernel").state == "unknown"
    assert part(found, "kernel").change_ms is None


# -- from files --


def test_two_files_are_judged_by_their_recorded_steps() -> None:
    # given two reports of plain traces: no unprofiled samples, but recorded steps in the views
    before = with_steps(sync(), per_step_ms=(), profiled_per_step_ms=(), baseline="none")
    views = [{**step, "step_ms": step["step_ms"] / 2} for step in before.to_dict()["views"]["per_step"]]
    after = with_views(before, per_step=views)
    # when compared, then those are the samples, and it is said
    found = compare_reports(before, after)
    assert found.before.clock == found.after.clock == "recorded"
    assert found.significance.ratio == pytest.approx(2.0)
    assert "recorded steps are compared: what recording costs is in them" in found.warnings


def test_one_side_without_samples_is_not_mixed_with_recorded_ones() -> None:
    # given unprofiled samples on one side only, when compared, then it cannot be told
    found = compare_reports(sync(), with_steps(sync(), per_step_ms=(), step_ms=2.5))
    assert found.significance.answer == UNKNOWN
    assert (found.before.clock, found.after.clock) == ("unprofiled", "none")


def test_a_file_is_called_by_its_name() -> None:
    source = structs.replace(sync().source, name=None, path="/runs/first.json.gz")
    found = compare_reports(structs.replace(sync(), source=source), named(sync(), None))
    assert (found.before.label, found.after.label) == ("first.json.gz", "after")


def test_samples_of_no_length_are_left_out() -> None:
    # given a report from elsewhere with steps of no length, when compared, then the others count
    found = compare_reports(sync(), timed(sync(), 2.0, 0.0, 2.0, 2.0))
    assert found.after.samples_ms == (2.0, 2.0, 2.0)
    assert found.significance.answer == FASTER


# -- what moved --


def test_parts_in_bar_order_with_their_change() -> None:
    # given the cured loop, when compared
    found = compare_reports(slow(), fast())
    # then each part has both times; what moved less than 2 % is the same
    rows = [(row.name, row.before_ms, row.after_ms, row.state) for row in found.parts]
    assert rows == [
        ("kernel", 15.2, 15.2, "same"),
        ("copies", 5.6, 0.8, "changed"),
        ("cpu", 8.8, 12.9, "changed"),
        ("runtime", 2.0, 2.7, "changed"),
        ("data_loading", 225.4, 0.0, "vanished"),
    ]
    assert part(found, "data_loading").change_ms == pytest.approx(-225.4)
    # and the changes add up to that of the step
    assert sum(row.change_ms or 0.0 for row in found.parts) == pytest.approx(31.6 - 257.0)


def test_operators_that_moved_come_largest_first() -> None:
    # given one operator that is gone, one that is new, one that is faster and one that is the same
    base = slow().operators[0]

    def rows(**times: float) -> Report:
        operators = tuple(structs.replace(base, name=name, self_device_ms=ms) for name, ms in times.items())
        return structs.replace(without_view(slow(), "per_step"), operators=operators)

    before, after = rows(bmm=40.0, softmax=30.0, add=20.0), rows(bmm=15.0, attention=10.0, add=20.1)
    # when compared, then they are ranked by what they changed
    found = compare_reports(before, after)
    assert [(row.name, row.state, row.change_ms) for row in found.operators] == [
        ("softmax", "vanished", -30.0),
        ("bmm", "changed", -25.0),
        ("attention", "appeared", 10.0),
    ]
    assert found.same_operators == 1


def test_an_operator_whose_recorded_steps_overlap_did_not_move() -> None:
    # given an operator 10 % slower in the mean, whose single steps lie over each other
    base = slow().operators[0]

    def run(ms: float, *steps: float) -> Report:
        views = [
            {"step": at, "step_ms": 1.0, "breakdown": {}, "operators": [plain_row("mm", self_device_ms=one)]}
            for at, one in enumerate(steps)
        ]
        row = structs.replace(base, name="mm", self_device_ms=ms)
        return with_views(structs.replace(slow(), operators=(row,)), per_step=views)

    # when compared, then it is the same; apart, it moved
    assert compare_reports(run(20.0, 19, 20, 21), run(22.0, 20.5, 22, 23)).same_operators == 1
    assert compare_reports(run(20.0, 19, 20, 21), run(22.0, 21.5, 22, 23)).same_operators == 0


def plain_row(name: str, **known: float) -> dict[str, Any]:
    blank = dict.fromkeys(("self_device_ms", "total_device_ms", "share")) | {"self_host_ms": 0.0, "total_host_ms": 0.0}
    return {"name": name, "calls": 1, **blank, **known}


def on_host(*steps: float, calls: int = 1) -> Report:
    """A report of the CPU with one operator: its host time in each recorded step."""
    row = structs.replace(cpu_only().operators[0], name="aten::mul_", self_host_ms=sum(steps) / len(steps))
    views = [
        {"step": at, "step_ms": 4.0, "breakdown": {}, "operators": [plain_row("aten::mul_", self_host_ms=one)]}
        for at, one in enumerate(steps)
    ]
    return with_views(structs.replace(timed(cpu_only(), 2.3, 2.3, 2.4), operators=(row,)), per_step=views)


def test_a_step_without_its_core_moves_no_host_operator() -> None:
    # given one loop twice, where another process had the core in one recorded step: 2.76 ms in the mean, then 0.07
    found = compare_reports(on_host(0.07, 8.14, 0.07), on_host(0.07, 0.08, 0.07))
    # when compared, then nothing moved
    assert not found.on_device
    assert found.operators == ()
    assert (found.same_operators, found.unjudged_operators) == (1, 0)


def test_a_host_operator_beyond_its_spread_moved() -> None:
    # given an operator whose recorded steps lie further apart than twice what they spread, when compared, then it moved
    found = compare_reports(on_host(2.7, 2.8, 2.9), on_host(1.3, 1.4, 1.5))
    assert [(row.name, row.state) for row in found.operators] == [("aten::mul_", "changed")]
    assert found.operators[0].change_ms == pytest.approx(-1.4)
    # and closer than that, it did not
    assert compare_reports(on_host(2.7, 2.8, 2.9), on_host(2.4, 2.5, 2.6)).same_operators == 1


def test_few_recorded_steps_do_not_judge_a_host_operator() -> None:
    # given two recorded steps on one side, when compared, then the operator is not judged
    found = compare_reports(on_host(2.7, 2.8, 2.9), on_host(1.3, 1.4))
    assert found.operators == ()
    assert (found.same_operators, found.unjudged_operators) == (0, 1)


def test_a_host_operator_that_is_gone_needs_no_spread() -> None:
    # given an operator of one side only, when compared, then it vanished, whatever its steps spread
    after = structs.replace(on_host(1.0), operators=())
    assert [row.state for row in compare_reports(on_host(0.5, 8.0, 0.5), after).operators] == ["vanished"]


def test_more_than_the_promise_is_no_contradiction() -> None:
    # given a bound of 1.5× and steps four times as fast, when compared, then the sentence says why it is exceeded
    found = compare_reports(sync(), timed(sync(), 0.94, 0.95, 0.96))
    assert found.promise is not None and found.promise.exceeded
    assert found.headline == (
        "Predicted at most 1.5×, reached 4.0×, so more than the cause changed: a step takes 0.95 ms instead of 3.80 ms."
    )


def test_a_promise_exceeded_within_the_spread_is_reached() -> None:
    # given steps a little faster than promised, but no surely, when compared, then nothing more is claimed
    found = compare_reports(sync(), timed(sync(), 2.2, 2.25, 2.6, 2.2, 2.7))
    assert found.promise is not None and found.promise.reached > found.promise.bound
    assert not found.promise.exceeded
    assert "so more than" not in found.headline


def test_numbers_of_both_sides() -> None:
    # given the cured loop, when compared, then throughput, use and memory stand side by side
    numbers = {pair.name: (pair.before, pair.after) for pair in compare_reports(slow(), fast()).numbers}
    assert numbers["step"] == (257.0, 31.6)
    assert numbers["throughput"] == pytest.approx((64 / 0.257, 64 / 0.0316))
    assert numbers["GPU computes"] == (0.059, 0.481)
    assert numbers["MFU"] == (0.006, 0.05)
    assert numbers["peak memory"] == (3_215_000_000, 3_215_000_000)


def test_what_was_measured_on_no_side_is_left_out() -> None:
    names = [pair.name for pair in compare_reports(cpu_only(), cpu_only()).numbers]
    assert "MFU" not in names and "GPU computes" not in names


def test_lines_of_the_cell_that_differ() -> None:
    # given an edited cell under another magic line, when compared, then only the edited line is there, twice
    after = fast()
    cell = ("%%gpuprofile --name after", *after.source.cell[1:])
    found = compare_reports(slow(), structs.replace(after, source=structs.replace(after.source, cell=cell)))
    assert found.code == (("-", "for x, y in train_loader:"), ("+", "for x, y in fast_loader:"))


def test_json_of_a_comparison() -> None:
    # given a comparison, when its plain values go through JSON, then they are whole and finite
    plain = compare_reports(slow(), fast()).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert next(iter(plain)) == "schema" and plain["schema"] == 1
    assert plain["operators"] == [
        {"name": "aten::copy_", "before_ms": 5.93, "after_ms": 1.06, "state": "changed", "change_ms": 1.06 - 5.93}
    ]


def test_an_empty_breakdown_is_compared_all_the_same() -> None:
    nothing = Breakdown(**dict.fromkeys(Breakdown.__struct_fields__))
    found = compare_reports(structs.replace(sync(), breakdown=nothing), sync())
    assert all(row.state == "unknown" for row in found.parts)


def test_what_went_stands_before_what_came() -> None:
    # given two cells that share one line, when they are compared, then old lines stand first
    before = ("%%gpuprofile", "for i in range(3):", "    a()", "    b()", "", "done()")
    after = ("%%gpuprofile --name x", "for x in loader:", "    c(x)", "    d(x)", "    e(x)", "done()")
    assert [sign for sign, _ in code_changes(before, after)] == ["-"] * 3 + ["+"] * 4
    assert code_changes(before, before) == ()
