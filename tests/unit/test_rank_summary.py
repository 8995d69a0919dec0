"""One rank's step in parts that can be compared: they add up, hidden work counts once, phases are told apart."""

from __future__ import annotations

import msgspec
import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.ranks import summary
from ipyprof.ranks.summary import UNKNOWN_RANK, RankSummary, summarise
from tests.builder import TraceBuilder
from tests.machine import Machine
from tests.simulated_ranks import Job, simulate


def summary_of(source: Machine | TraceBuilder) -> RankSummary:
    """Its parts, a fifth of a us near, add up to its step."""
    return summarise(analyse(source.trace()))


def us(parts: dict[str, float] | None) -> dict[str, int]:
    return {name: round(ms * 1e3) for name, ms in (parts or {}).items()}


def test_parts_of_a_step_with_a_gpu() -> None:
    """A fetch of 300 and Python of 100 before a kernel of 500, then a collective of 200 beside the kernel."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            machine.loader(300)
            machine.python(100)
            machine.launch(500)
            machine.launch(200, stream=20, name="ncclDevKernel_AllReduce(x)")
            machine.sync()

    found = summary_of(machine)

    parts = us(found.breakdown)
    assert (parts["loader"], parts["compute"], parts["communication"]) == (300, 500, 0)
    assert us(found.busy_ms) == {"compute": 500, "copies": 0, "loader": 300}
    assert found.kernels == 1


def test_work_of_earlier_steps_is_not_of_these() -> None:
    """The host runs ahead: until 1,000 the device is busy with what was launched before the recording."""
    builder = TraceBuilder()
    builder.device()
    builder.kernel("gemm", 0, 1_000)
    builder.step(5, at=10, end=50)
    builder.launch(at=20, dur=5, kernel_name="gemm", kernel_at=1_001, kernel_dur=900)

    parts = us(summary_of(builder).breakdown)

    assert (parts["compute"], sum(parts.values())) == (900, 901)


def test_phases_of_kernels_and_of_python() -> None:
    # given a forward kernel, a backward one launched by autograd's thread, an optimizer's, and Python in each
    builder = TraceBuilder()
    builder.device()
    builder.step(0, at=0, end=1_000)
    builder.launch(at=100, dur=5, kernel_name="forward", kernel_at=106, kernel_dur=40)
    builder.op("autograd::engine::evaluate_function: MmBackward0", at=300, end=600, tid=2)
    builder.launch(at=310, dur=5, kernel_name="backward", kernel_at=316, kernel_dur=60, tid=2)
    builder.annotation("Optimizer.step#SGD.step", 700, 900)
    builder.launch(at=710, dur=5, kernel_name="step", kernel_at=716, kernel_dur=20)
    # when the parts are taken
    found = summary_of(builder)
    # then each phase has its kernel
    computes = {name: one["compute"] for name, one in found.phases_ms.items()}
    assert us(computes) == {"forward": 40, "backward": 60, "optimizer": 20}
    assert sum(one["host"] for one in found.phases_ms.values()) == pytest.approx((found.breakdown or {})["host"])


def test_without_a_gpu_operators_are_the_compute() -> None:
    """A fetch of 300, operators of 500, Gloo for 400 of which 100 are hidden by an operator, the rest is Python."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=2_000)
    builder.loader(0, 300)
    builder.op("aten::mm", at=300, end=700)
    builder.op("c10d::allreduce_", at=600, end=610)
    builder.annotation("gloo:all_reduce", 600, 1_000, tid=9, **{"Input Dims": [[4]], "Input type": ["float"]})
    builder.op("aten::add", at=1_100, end=1_200)

    parts = us(summary_of(builder).breakdown)

    assert parts == {
        "compute": 500, "copies": 0, "communication": 300, "loader": 300, "runtime": 0, "host": 900, "other": 0,
    }  # fmt: skip


def test_hidden_communication_is_told_from_exposed_and_waits_are_no_work() -> None:
    """C7: a collective of 100, half of it beside a kernel; records of synchronisations on the device's rows."""
    builder = TraceBuilder()
    builder.device()
    builder.step(0, at=0, end=200)
    builder.launch(at=2, dur=5, kernel_name="gemm", kernel_at=10, kernel_dur=100)
    builder.launch(at=8, dur=5, kernel_name="ncclDevKernel_Generic_4(x)", kernel_at=60, kernel_dur=100, stream=20)
    builder.cuda_sync("Stream Sync", 0, 190)
    builder.gpu_annotation("nccl:all_reduce", 60, 160, stream=20)

    found = summary_of(builder)

    parts = us(found.breakdown)
    assert (parts["compute"], parts["communication"]) == (100, 50)
    ((*_, exposed_ns),) = found.rows
    assert exposed_ns == 50_000


def test_too_many_collectives_leave_whole_steps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # given three steps of two collectives, and room for five
    monkeypatch.setattr(summary, "MOST_COLLECTIVES", 5)
    machine = Machine()
    for _ in range(3):
        with machine.step():
            for _ in range(2):
                machine.launch(200, stream=20, name="ncclDevKernel_AllReduce(x)")
            machine.sync()
    # when it is summarised, then two steps are whole, and the rest is said
    found = summary_of(machine)
    assert [row[1] for row in found.rows] == [0, 0, 1, 1]
    assert found.error == "2 of 6 collectives left out of the summary"


def test_a_summary_survives_json_and_is_small() -> None:
    one = simulate(Job(ranks=8, buckets=20))[3]
    text = msgspec.json.encode(one)

    assert msgspec.json.decode(text, type=RankSummary) == one
    assert len(text) < 5_000


def test_who_a_file_is_of() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=200)
    builder.metadata(distributedInfo={"rank": 3, "world_size": 8}, host_name="node0")
    found = summary_of(builder)

    assert (found.rank, found.world_size, found.host) == (3, 8, "node0")
    builder.metadata(distributedInfo={"rank": True, "world_size": "8"}, host_name=5)
    found = summary_of(builder)
    assert (found.rank, found.world_size, found.host) == (UNKNOWN_RANK, None, None)
