"""Operators by name: every piece of device work in exactly one row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipyprof.analysis.operators import GRAPH_ROW, UNOWNED_ROW, OperatorTable, operator_rows, shape_text
from ipyprof.analysis.results import Operator
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.kinds import DEVICE_KINDS
from ipyprof.trace.model import Trace
from ipyprof.trace.reader import read_trace
from tests.builder import TraceBuilder

RECORDED = sorted((Path(__file__).parents[3] / "shared" / "traces" / "nccl-h200").glob("*.gz"))


def table_of(trace: Trace) -> OperatorTable:
    return operator_rows(trace, find_steps(trace))


def by_name(table: OperatorTable) -> dict[str, Operator]:
    return {row.name: row for row in table.rows}


def device_ns(trace: Trace) -> int:
    return int(trace.dur_ns[trace.select(*DEVICE_KINDS)].sum())


@pytest.fixture
def wrapped() -> Trace:
    """C4: aten::to over aten::_to_copy over aten::copy_ with one copy, inside a user annotation."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.annotation("my block", 5, 300)
    builder.line(2, 8, 290)
    builder.op("aten::to", 10, 110)
    builder.op("aten::_to_copy", 20, 100)
    builder.op("aten::copy_", 40, 90)
    builder.copy(50, 10, "HtoD", 200, 70, 4096)
    builder.gpu_annotation("my block", 200, 270)
    return builder.trace()


def test_work_is_the_innermost_operators_own_and_in_the_total_of_all_around(wrapped: Trace) -> None:
    rows = by_name(table_of(wrapped))

    assert {name: (row.self_device_ms, row.total_device_ms) for name, row in rows.items()} == {
        "aten::to": (0, 0.07),
        "aten::_to_copy": (0, 0.07),
        "aten::copy_": (0.07, 0.07),
    }


def test_host_self_time_leaves_out_the_operators_inside(wrapped: Trace) -> None:
    rows = by_name(table_of(wrapped))

    assert {name: (row.self_host_ms, row.total_host_ms) for name, row in rows.items()} == {
        "aten::to": (0.02, 0.1),
        "aten::_to_copy": (0.03, 0.08),
        "aten::copy_": (0.05, 0.05),
    }


def test_copies_make_an_operator_copy_bound(wrapped: Trace) -> None:
    row = by_name(table_of(wrapped))["aten::copy_"]

    assert (row.bound, row.tensor_core) == ("copy", "n/a")


def test_a_collective_is_counted_once() -> None:
    """C4, C2: operator, host span, kernel and the device's copy of the span."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("c10d::allreduce_", 10, 60)
    builder.annotation("nccl:all_reduce", 15, 50)
    builder.launch(20, 5, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", kernel_at=100, kernel_dur=80)
    builder.gpu_annotation("nccl:all_reduce", 100, 180)

    table = table_of(builder.trace())

    assert [(row.name, row.self_device_ms) for row in table.rows] == [("c10d::allreduce_", 0.08)]


def test_a_name_inside_itself_counts_once() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("f", 10, 200)
    builder.op("g", 20, 180)
    builder.op("f", 30, 170)
    builder.launch(40, 5, "kernel", kernel_at=300, kernel_dur=90)

    row = by_name(table_of(builder.trace()))["f"]

    assert (row.calls, row.self_device_ms, row.total_device_ms) == (1, 0.09, 0.09)
    assert (row.self_host_ms, row.total_host_ms) == (0.17, 0.19)


def test_work_of_other_threads_has_its_row() -> None:
    """A14: kernels and launches are seen, operators are not."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("aten::mm", 10, 50)
    builder.launch(20, 5, "gemm", kernel_at=30, kernel_dur=100)
    for index in range(100):
        for thread in (11, 12):
            builder.launch(100 + 5 * index, 2, "add", 110 + 5 * index, 3, stream=thread, tid=thread)
    trace = builder.trace()

    table = table_of(trace)

    row = by_name(table)[UNOWNED_ROW]
    assert (row.calls, row.self_device_ms, row.total_device_ms) == (200, 0.6, 0.6)
    assert table.self_device_ns.sum() == device_ns(trace) == 700_000


def test_a_graphs_kernels_are_its_launchs() -> None:
    """A15: 20 kernels without a launch of their own, replayed in 6 steps."""
    builder = TraceBuilder()
    for step in range(6):
        at = 1000 * step
        builder.step(step, at=at, end=at + 1000)
        builder.op("run graph", at + 5, at + 60)
        builder.graph(at + 10, 40, [(f"kernel {index}", at + 100 + 3 * index, 2) for index in range(20)])
    trace = builder.trace()

    rows = by_name(table_of(trace))

    assert (rows[GRAPH_ROW].calls, rows[GRAPH_ROW].self_device_ms) == (1, 0.04)
    assert (rows["run graph"].self_device_ms, rows["run graph"].total_device_ms) == (0, 0.04)
    assert rows[GRAPH_ROW].bound == "unknown"  # one launch for 20 kernels: not launch-bound


def test_small_inversions_do_not_change_the_owner() -> None:
    """B10: launches that begin 0.3 us before their operator, without ids."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("before", 0, 99.9)
    builder.op("mm", 100, 130)
    builder.launch(99.7, 5, "gemm", kernel_at=98, kernel_dur=20)

    table = table_of(builder.trace())

    assert {row.name: row.self_device_ms for row in table.rows} == {"mm": 0.02, "before": 0}


@pytest.mark.parametrize(
    ("launch_at", "named", "other"),
    [
        pytest.param(98.5, "mm", ("before", 0, 99.9), id="B10: a launch 1.5 us before its operator"),
        pytest.param(110, "item", ("item", 500, 530), id="param's resnet: an operator that ran long after the call"),
    ],
)
def test_an_id_overrules_the_clock_unless_it_names_a_later_operator(
    launch_at: float, named: str, other: tuple[str, float, float]
) -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("mm", 100, 130)
    builder.op(*other)
    builder.launch(launch_at, 1, "gemm", kernel_at=120, kernel_dur=20)
    trace = builder.trace()
    ids = trace.external_id.copy()
    ids[trace.correlation > 0] = ids[[trace.names[name] for name in trace.name.tolist()].index(named)]

    table = table_of(replace(trace, external_id=ids))

    assert by_name(table)["mm"].self_device_ms == 0.02


def test_only_recorded_steps_count() -> None:
    builder = TraceBuilder()
    builder.step(0, at=100, end=200)
    for at in (10, 110, 250):
        builder.op("mm", at, at + 30)
        builder.launch(at + 5, 5, "gemm", kernel_at=at + 300, kernel_dur=20)
    builder.kernel("carried over", at=50, dur=40)

    row = by_name(table_of(builder.trace()))

    assert list(row) == ["mm"]
    assert (row["mm"].calls, row["mm"].self_device_ms, row["mm"].total_host_ms) == (1, 0.02, 0.03)


def test_an_operator_that_began_before_the_steps_keeps_its_total() -> None:
    """A12: a step ends in the middle of the optimizer's step; its work after the mark is the next step's."""
    builder = TraceBuilder()
    builder.step(0, at=100, end=200)
    builder.op("Optimizer.step", 50, 150)
    builder.op("add_", 110, 130)
    builder.launch(115, 5, "add", kernel_at=300, kernel_dur=20)

    rows = by_name(table_of(builder.trace()))

    assert (rows["add_"].calls, rows["add_"].total_device_ms) == (1, 0.02)
    assert (rows["Optimizer.step"].calls, rows["Optimizer.step"].total_device_ms) == (0, 0.02)


def test_each_step_has_its_own_rows() -> None:
    builder = TraceBuilder()
    for step, name in enumerate(("mm", "add")):
        at = 100 * step
        builder.step(step, at=at, end=at + 100)
        builder.op(name, at + 10, at + 40)
        builder.launch(at + 15, 5, "kernel", kernel_at=at + 500, kernel_dur=20 + step)

    table = table_of(builder.trace())

    assert [(row.name, row.self_device_ms) for row in table.per_step(0)] == [("mm", 0.02)]
    assert [(row.name, row.self_device_ms) for row in table.per_step(1)] == [("add", 0.021)]


def test_the_steps_rows_add_up_to_the_whole() -> None:
    builder = TraceBuilder()
    for step in range(3):
        at = 100 * step
        builder.step(step, at=at, end=at + 100)
        for index in range(step + 1):
            builder.op("mm", at + 20 * index, at + 20 * index + 15)
            builder.launch(at + 20 * index + 5, 5, "kernel", kernel_at=500 + at + 25 * index, kernel_dur=7)

    table = table_of(builder.trace())

    assert sum(row.calls for step in range(3) for row in table.per_step(step)) == 6
    assert table.self_device_ns.sum() == 42_000
    assert (table.rows[0].calls, table.rows[0].self_device_ms) == (2, 0.014)


def test_many_short_kernels_beside_a_few_that_take_the_time_are_not_launch_bound() -> None:
    """Casts: ten of 2 us and two of 400, each launched in 6."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=400)
    for index in range(12):
        builder.op("aten::copy_", 20 * index, 20 * index + 15)
        builder.launch(20 * index + 5, 6, "cast", kernel_at=300 + 410 * index, kernel_dur=400 if index > 9 else 2)

    row = by_name(table_of(builder.trace()))["aten::copy_"]

    assert row.bound == "unknown"


def test_kernels_shorter_than_their_launch_are_launch_bound() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    for index in range(3):
        builder.op("tiny", 20 * index, 20 * index + 18)
        builder.launch(20 * index + 5, 6, "add", kernel_at=30 + 20 * index, kernel_dur=2)
        builder.op("large", 200 + 20 * index, 200 + 20 * index + 18)
        builder.launch(200 + 20 * index + 5, 6, "gemm", kernel_at=300 + 100 * index, kernel_dur=90)

    rows = by_name(table_of(builder.trace()))

    assert (rows["tiny"].bound, rows["large"].bound) == ("launch", "unknown")


def test_shapes_are_those_of_most_calls() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    for index, rows in enumerate((64, 32, 64, 16)):
        builder.op("aten::mm", 20 * index, 20 * index + 10, shapes=[[rows, 512], [512, 512], []])

    assert table_of(builder.trace()).rows[0].shapes == "[64, 512] × [512, 512] +2 more"


def test_lists_of_tensors_are_counted() -> None:
    assert shape_text(([[16], [4, 4]], [8], [], "")) == "(2 tensors) × [8]"


def test_one_device_can_be_asked_for() -> None:
    """C1: the same stream number on two devices."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    builder.op("mm", 10, 50)
    builder.launch(15, 5, "gemm", 30, 100, device=0)
    builder.launch(25, 5, "gemm", 30, 60, device=1)
    trace = builder.trace()

    table = operator_rows(trace, find_steps(trace), device=1)

    assert [row.self_device_ms for row in table.rows] == [0.06]


def test_owner_and_row_point_to_the_operator(wrapped: Trace) -> None:
    table = table_of(wrapped)

    (copy,) = wrapped.select(*DEVICE_KINDS).tolist()

    assert wrapped.names[wrapped.name[table.owner[copy]]] == "aten::copy_"
    assert table.rows[table.row[copy]].name == "aten::copy_"
    assert np.flatnonzero(table.row >= 0).tolist() == [copy]


def test_an_empty_trace_has_no_rows() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=10)

    assert table_of(builder.trace()).rows == ()


@pytest.mark.skipif(not RECORDED, reason="the recorded traces are not here")
def test_rows_of_real_recordings_add_up_to_the_device_time() -> None:
    for path in RECORDED:
        trace = read_trace(path)
        steps = find_steps(trace)

        table = operator_rows(trace, steps)

        expected = [int(trace.dur_ns[steps.step == step].sum()) for step in range(steps.count)]
        assert table.self_device_ns.sum(axis=1).tolist() == expected
        assert sum(row.self_device_ms or 0.0 for row in table.rows) * 1e6 * steps.count == pytest.approx(sum(expected))
        assert sum(expected) > 0
