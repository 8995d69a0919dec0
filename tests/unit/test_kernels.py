"""Kernels by name, their occupancy and how much of the device they cover."""

from __future__ import annotations

import pytest

from ipyprof.analysis.operators import KernelTable, kernel_rows
from ipyprof.analysis.steps import find_steps
from tests.builder import TraceBuilder


def table_of(builder: TraceBuilder) -> KernelTable:
    trace = builder.trace()
    return kernel_rows(trace, find_steps(trace))


@pytest.fixture
def builder() -> TraceBuilder:
    builder = TraceBuilder()
    builder.step(0, at=0, end=1000)
    return builder


def test_rows_are_by_device_time(builder: TraceBuilder) -> None:
    builder.launch(10, 5, "add", 30, 10)
    builder.launch(20, 5, "gemm", 40, 100)
    builder.launch(30, 5, "add", 140, 20)

    table = table_of(builder)

    assert [(row.name, row.calls, row.device_ms) for row in table.rows] == [("gemm", 1, 0.1), ("add", 2, 0.03)]


def test_occupancy_is_weighted_by_time(builder: TraceBuilder) -> None:
    builder.launch(10, 5, "add", 30, 10, occupancy=80)
    builder.launch(20, 5, "add", 40, 30, occupancy=40)

    assert table_of(builder).rows[0].est_occupancy == pytest.approx(0.5)


def test_records_without_occupancy_do_not_lower_it(builder: TraceBuilder) -> None:
    """cuBLAS kernels on Hopper say 0: unknown, not none."""
    builder.launch(10, 5, "add", 30, 10, occupancy=80)
    builder.launch(20, 5, "add", 40, 30, occupancy=0)
    builder.launch(30, 5, "nvjet_tst", 80, 30, occupancy=0)

    assert {row.name: row.est_occupancy for row in table_of(builder).rows} == {"add": 0.8, "nvjet_tst": None}


def test_coverage_is_the_share_of_filled_sms(builder: TraceBuilder) -> None:
    builder.device(sms=132)
    builder.launch(10, 5, "half", 30, 10, grid=(33, 2, 1))
    builder.launch(20, 5, "full", 40, 30, grid=(4096, 1, 1))

    assert table_of(builder).covered_sm_ns == pytest.approx(5_000 + 30_000)


def test_coverage_without_the_number_of_sms_is_unknown(builder: TraceBuilder) -> None:
    builder.launch(10, 5, "add", 30, 10)

    assert table_of(builder).covered_sm_ns is None


def test_coverage_without_a_grid_is_unknown(builder: TraceBuilder) -> None:
    builder.device(sms=132)
    builder.launch(10, 5, "add", 30, 10)
    correlation = builder.call("cudaLaunchKernel", 20, 5)
    builder.kernel("bare", 50, 10, correlation=correlation, grid=(0, 0, 0))

    assert table_of(builder).covered_sm_ns is None


def test_copies_are_copy_bound_and_use_no_tensor_cores(builder: TraceBuilder) -> None:
    builder.copy(10, 5, "DtoH", 30, 10, 4096)
    builder.fill(20, 5, 50, 5, 4096)

    rows = table_of(builder).rows

    assert [(row.bound, row.tensor_core) for row in rows] == [("copy", "n/a")] * 2


def test_short_kernels_are_launch_bound(builder: TraceBuilder) -> None:
    builder.launch(10, 5, "tiny", 30, 2)
    builder.launch(20, 5, "large", 40, 50)

    assert {row.name: row.bound for row in table_of(builder).rows} == {"tiny": "launch", "large": "unknown"}


def test_a_graphs_kernels_have_no_launch_to_compare_with(builder: TraceBuilder) -> None:
    """A15."""
    builder.graph(10, 40, [("tiny", 100 + 3 * index, 2) for index in range(20)])

    (row,) = table_of(builder).rows

    assert (row.calls, row.bound) == (20, "unknown")


def test_work_carried_over_is_in_no_row(builder: TraceBuilder) -> None:
    builder.kernel("carried over", 5, 90)
    builder.launch(10, 5, "add", 100, 10)

    assert [row.name for row in table_of(builder).rows] == ["add"]


def test_steps_without_device_work_have_no_rows(builder: TraceBuilder) -> None:
    builder.device(sms=132)
    builder.op("aten::mm", 10, 20)

    assert table_of(builder) == KernelTable(rows=(), covered_sm_ns=None)
