"""The heartbeat: totals per device, the peak and what ran then, growth, thinning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.allocations import line_number
from ipyprof.analysis.memory import (
    ALLOCATED,
    FREED,
    MOST_POINTS,
    RETRIED,
    DeviceMemory,
    MemorySummary,
    memory_view,
    thin,
)
from ipyprof.analysis.results import Refused
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.live import LiveRecord, OutOfMemory
from tests.builder import TraceBuilder

STEADY = settings(deadline=None)  # the machine may be busy
MB = 1_000_000


def view_of(builder: TraceBuilder) -> MemorySummary:
    trace = builder.trace()
    return memory_view(trace, find_steps(trace))


def only(builder: TraceBuilder) -> DeviceMemory:
    (device,) = view_of(builder).devices
    return device


@pytest.fixture
def builder() -> TraceBuilder:
    """Two steps: 0-100 us and 100-200 us."""
    builder = TraceBuilder()
    builder.op("before", -50, -40)
    builder.step(0, at=0, end=100)
    builder.step(1, at=100, end=200)
    return builder


def test_the_curve_is_the_total(builder: TraceBuilder) -> None:
    builder.memory(10, 4 * MB, 14 * MB, 20 * MB)
    builder.memory(50, -4 * MB, 10 * MB, 20 * MB)

    view = only(builder)

    assert view.heartbeat.time_ms == (0.0, 0.01, 0.05)
    assert view.heartbeat.allocated == (10 * MB, 14 * MB, 10 * MB)
    assert view.heartbeat.reserved == (20 * MB,) * 3
    assert (view.memory.peak_bytes, view.peak.unused_bytes) == (14 * MB, 6 * MB)


def test_frees_of_what_was_made_before_do_not_go_below_zero(builder: TraceBuilder) -> None:
    """C11: tensors made before the capture and freed in it."""
    builder.memory(10, -30 * MB, 5 * MB, 40 * MB)

    view = only(builder)

    assert view.heartbeat.allocated == (35 * MB, 5 * MB)
    assert (view.memory.peak_bytes, view.memory.peak_at_ms) == (35 * MB, 0.0)


def test_the_total_before_the_first_mark_is_the_baseline(builder: TraceBuilder) -> None:
    builder.memory(-30, 90 * MB, 99 * MB, 100 * MB)
    builder.memory(-20, -80 * MB, 19 * MB, 100 * MB)
    builder.memory(10, 1 * MB, 20 * MB, 100 * MB)

    view = only(builder)

    assert view.heartbeat.allocated == (19 * MB, 20 * MB)
    assert view.memory.peak_bytes == 20 * MB


def test_records_after_the_last_mark_are_left_out(builder: TraceBuilder) -> None:
    builder.memory(10, 1 * MB, 20 * MB, 30 * MB)
    builder.memory(250, 50 * MB, 70 * MB, 80 * MB)

    view = only(builder)

    assert (view.memory.peak_bytes, view.memory.reserved_peak_bytes) == (20 * MB, 30 * MB)


def test_devices_and_the_cpu_are_not_mixed(builder: TraceBuilder) -> None:
    """C11: CPU and two GPUs, unsorted."""
    builder.memory(30, 8, 900 * MB, 0, device=-1)
    builder.memory(20, 5 * MB, 65 * MB, 80 * MB, device=1)
    builder.memory(10, 2 * MB, 12 * MB, 20 * MB, device=0)

    view = view_of(builder)

    assert [(device.device, device.memory.peak_bytes) for device in view.devices] == [(0, 12 * MB), (1, 65 * MB)]


def test_the_device_with_most_work_is_shown_and_without_work_the_highest_peak(builder: TraceBuilder) -> None:
    builder.memory(10, 2 * MB, 12 * MB, 20 * MB, device=0)
    builder.memory(20, 5 * MB, 65 * MB, 80 * MB, device=1)
    assert view_of(builder).busiest == 1

    builder.launch(10, 5, "gemm", 20, 50, device=0)
    assert view_of(builder).busiest == 0


def test_the_peak_names_its_operator_its_line_its_range_and_its_step(builder: TraceBuilder) -> None:
    builder.line(3, 110, 160)
    builder.annotation("encoder", 112, 155)
    builder.annotation("encoder.attention", 114, 152)
    builder.op("aten::linear", 115, 150)
    builder.op("aten::addmm", 120, 140)
    builder.memory(130, 9 * MB, 19 * MB, 20 * MB)
    builder.memory(155, -9 * MB, 10 * MB, 20 * MB)

    view = only(builder)

    assert (view.memory.peak_bytes, view.memory.peak_at_ms) == (19 * MB, 0.13)
    assert (view.memory.peak_operator, view.memory.peak_line) == ("aten::addmm", 3)
    assert (view.peak.range, view.peak.step) == ("encoder.attention", 2)


def test_the_peak_in_backward_names_its_operator_and_the_lines(builder: TraceBuilder) -> None:
    """The operator runs on autograd's thread while the line waits on its own."""
    builder.line(4, 110, 190)
    builder.op("MmBackward0", 120, 180, tid=2)
    builder.memory(130, 9 * MB, 19 * MB, 20 * MB)

    view = only(builder)

    assert (view.memory.peak_operator, view.memory.peak_line) == ("MmBackward0", 4)


def test_each_line_has_the_most_that_was_allocated_while_it_ran(builder: TraceBuilder) -> None:
    builder.line(3, 110, 150)
    builder.line(4, 150, 190)
    builder.memory(120, 9 * MB, 19 * MB, 20 * MB)
    builder.memory(130, -5 * MB, 14 * MB, 20 * MB)
    builder.memory(160, -4 * MB, 10 * MB, 20 * MB)

    assert only(builder).line_peaks == {3: 19 * MB, 4: 10 * MB}


def test_a_peak_between_operators_names_none(builder: TraceBuilder) -> None:
    builder.op("aten::mm", 110, 120)
    builder.memory(130, 9 * MB, 19 * MB, 20 * MB)

    view = only(builder)

    assert (view.memory.peak_operator, view.memory.peak_line) == (None, None)


def test_growth_is_the_change_from_mark_to_mark() -> None:
    """E15: 7 MB more in each step, whatever happens inside."""
    builder = TraceBuilder()
    held = 100 * MB
    for step in range(10):
        at = 100 * step
        builder.step(step, at=at, end=at + 100)
        builder.memory(at + 10, 57 * MB, held + 57 * MB, 300 * MB)
        builder.memory(at + 60, -50 * MB, held + 7 * MB, 300 * MB)
        held += 7 * MB

    assert only(builder).memory.growth_bytes_per_step == 7 * MB


@pytest.mark.parametrize(("steps", "growth"), [(5, 0), (1, None)])
def test_one_odd_step_is_no_growth_and_one_alone_says_nothing_of_it(steps: int, growth: int | None) -> None:
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, at=100 * step, end=100 * step + 100)
    builder.memory(10, 5 * MB, 15 * MB, 20 * MB)

    assert only(builder).memory.growth_bytes_per_step == growth


def test_totals_that_their_records_do_not_explain_are_counted(builder: TraceBuilder) -> None:
    """A14: another thread's records are missing."""
    builder.memory(10, 5 * MB, 15 * MB, 20 * MB)
    builder.memory(20, 5 * MB, 20 * MB, 20 * MB)
    builder.memory(30, 1 * MB, 90 * MB, 95 * MB)

    assert only(builder).unexplained == 1


def test_no_records_give_no_view(builder: TraceBuilder) -> None:
    assert view_of(builder) == MemorySummary()


def test_a_long_recording_keeps_both_peaks() -> None:
    """D8: the curve is thinned, its peaks are exact."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=10_000)
    for index in range(5_000):
        spike = 50 * MB * (index == 3_333)
        builder.memory(1 + index, MB, 10 * MB + index % 7 + spike, 100 * MB + 9 * MB * (index == 1_234))

    view = only(builder)

    assert len(view.heartbeat.time_ms) <= MOST_POINTS
    assert max(view.heartbeat.allocated) == view.memory.peak_bytes == 60 * MB + 3_333 % 7
    assert max(view.heartbeat.reserved) == view.memory.reserved_peak_bytes == 109 * MB


@STEADY
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-50, 50)), min_size=1, max_size=60),
    st.integers(4, 24),
)
def test_thinning_keeps_ends_and_extremes(points: list[tuple[int, int]], limit: int) -> None:
    table = np.array(sorted(points), np.int64)
    time, value = table[:, 0], table[:, 1]

    kept = thin(time, value, limit)

    assert len(kept) <= limit
    assert (np.diff(kept) > 0).all()
    assert {0, len(time) - 1} <= set(kept.tolist())
    assert (value[kept].min(), value[kept].max()) == (value.min(), value.max())


def test_thinning_keeps_the_extremes_of_each_stretch() -> None:
    time = np.arange(100, dtype=np.int64)
    value = (time * 37) % 100

    kept = thin(time, value, 22)

    for begin in range(0, 100, 10):
        stretch = value[begin : begin + 10]
        drawn = value[kept[(kept >= begin) & (kept < begin + 10)]]
        assert (drawn.min(), drawn.max()) == (stretch.min(), stretch.max())


def test_calls_to_the_driver_are_marks_with_their_time_in_the_step() -> None:
    """E8: empty_cache in every step, a retry, and what a growing cache takes."""
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, at=1_000 * step, end=1_000 * step + 1_000)
    builder.call("cudaMalloc", 100, 40)
    for number in range(3):
        builder.call("cudaFree", 1_300 + 50 * number, 30)
    builder.op("aten::empty", 2_190, 2_290)
    builder.call("cudaMalloc", 2_195, 2)
    builder.call("cudaFree", 2_200, 20)
    builder.call("cudaMalloc", 2_230, 50)
    builder.call("cudaMalloc", 5_000, 50)

    view = view_of(builder)

    assert [(call.at_ms, call.in_step_ms, call.dur_ms, call.count, call.what, call.step) for call in view.calls] == [
        (0.1, 0.1, 0.04, 1, ALLOCATED, 1),
        (1.3, 0.3, 0.09, 3, FREED, 2),
        (2.195, 0.195, 0.072, 3, RETRIED, 3),
    ]
    assert view.call_count == 7
    assert view.call_ms == pytest.approx(0.202)


def test_a_flush_between_two_steps_is_no_retry() -> None:
    """E8: empty_cache at the end of each step, with nothing but calls in between."""
    builder = TraceBuilder()
    for step in range(2):
        at = 1_000 * step
        builder.step(step, at=at, end=at + 1_000)
        for number in range(4):
            builder.op("aten::empty", at + 100 * number, at + 100 * number + 90)
            builder.call("cudaMalloc", at + 100 * number, 80)
        for number in range(4):
            builder.call("cudaFree", at + 500 + 100 * number, 90)

    assert [(call.step, call.count, call.what) for call in view_of(builder).calls] == [
        (1, 4, ALLOCATED),
        (1, 4, FREED),
        (2, 4, ALLOCATED),
        (2, 4, FREED),
    ]


def refuse(builder: TraceBuilder, at: float, asked: int, allocated: int, device: int = 0) -> None:
    builder.memory(at, asked, allocated, allocated, device, address=0, name="[OutOfMemory]")


def test_requests_that_failed_and_were_caught_are_told_by_place(builder: TraceBuilder) -> None:
    for at in (10, 110):
        builder.line(5, at, at + 20)
        builder.op("aten::empty", at + 1, at + 10)
        refuse(builder, at + 5, 900 * MB, 30 * MB)
    refuse(builder, 160, 7 * MB, 40 * MB, device=1)
    refuse(builder, 250, 8 * MB, 40 * MB)

    found = view_of(builder)

    assert found.refused == (
        Refused(
            device=0, at_ms=0.015, step=1, count=2, asked_bytes=900 * MB, allocated_bytes=30 * MB,
            operator="aten::empty", line=5,
        ),
        Refused(
            device=1, at_ms=0.16, step=2, count=1, asked_bytes=7 * MB, allocated_bytes=40 * MB, operator=None,
            line=None,
        ),
    )  # fmt: skip


def test_requests_that_failed_are_no_part_of_the_curve(builder: TraceBuilder) -> None:
    builder.memory(10, 4 * MB, 14 * MB, 20 * MB)
    refuse(builder, 20, 900 * MB, 14 * MB)

    view = only(builder)

    assert (view.memory.peak_bytes, view.unexplained, view.heartbeat.allocated) == (14 * MB, 0, (10 * MB, 14 * MB))


@pytest.mark.parametrize(("later", "count"), [(False, 1), (True, 2)])
def test_the_request_that_ended_the_cell_is_not_among_the_caught(
    builder: TraceBuilder, later: bool, count: int
) -> None:
    refuse(builder, 20, 900 * MB, 14 * MB)
    refuse(builder, 120, 800 * MB, 14 * MB)
    builder.memory(130, 4 * MB, 14 * MB, 20 * MB)
    trace = builder.trace()

    found = memory_view(trace, find_steps(trace), LiveRecord(out_of_memory=OutOfMemory(later=later)))

    assert sum(one.count for one in found.refused) == count


def test_pinned_host_memory_is_no_call_of_the_allocator(builder: TraceBuilder) -> None:
    builder.call("cudaHostAlloc", 10, 40)
    builder.memory(20, 1 * MB, 20 * MB, 30 * MB)

    assert view_of(builder).calls == ()


@pytest.mark.parametrize(
    ("name", "line"),
    [("## line 12", 12), ("## line 3 loss", 3), ("## line", None), ("aten::mm", None), ("## line x", None)],
)
def test_our_ranges_name_their_line(name: str, line: int | None) -> None:
    assert line_number(name) == line
