"""One rank's step in parts that can be compared: they add up, hidden work counts once, phases are told apart."""

from __future__ import annotations

import pytest

from ipyprof.analysis.program import build_program
from ipyprof.analysis.steps import find_steps
from ipyprof.ranks.collectives import collectives_of
from ipyprof.ranks.summary import RankParts, rank_parts
from tests.builder import TraceBuilder
from tests.machine import Machine

US = 1_000


def parts_of(source: Machine | TraceBuilder) -> RankParts:
    trace = source.trace()
    steps = find_steps(trace)
    return rank_parts(trace, steps, build_program(trace, steps, None), None)


def test_parts_of_a_step_with_a_gpu_add_up() -> None:
    """A fetch of 300 and Python of 100 before a kernel of 500, then a collective of 200."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            machine.loader(300)
            machine.python(100)
            machine.launch(500)
            machine.launch(200, stream=20, name="ncclDevKernel_AllReduce(x)")
            machine.sync()

    found = parts_of(machine)

    assert sum(found.parts.values()) == pytest.approx(found.step_ns)
    assert found.parts["loader"] == 300 * US
    assert found.parts["compute"] == 500 * US
    assert found.parts["communication"] == 0  # it runs beside the kernel, which is longer
    assert found.totals["communication"] == 200 * US
    assert found.totals["compute"] == 500 * US
    assert found.kernels == 1


def test_work_of_earlier_steps_is_not_of_these() -> None:
    """The host runs ahead: until 1,000 the device is busy with what was launched before the recording."""
    builder = TraceBuilder()
    builder.device()
    builder.kernel("gemm", 0, 1_000)
    builder.step(5, at=10, end=50)
    builder.launch(at=20, dur=5, kernel_name="gemm", kernel_at=1_001, kernel_dur=900)

    found = parts_of(builder)

    assert found.step_ns == 901 * US
    assert found.parts["compute"] == 900 * US


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
    found = parts_of(builder)
    # then each phase has its kernel
    assert {name: one["compute"] for name, one in found.phases.items()} == {
        "forward": 40 * US,
        "backward": 60 * US,
        "optimizer": 20 * US,
    }
    assert sum(one["host"] for one in found.phases.values()) == pytest.approx(found.parts["host"])


def test_without_a_gpu_operators_are_the_compute() -> None:
    """A fetch of 300, operators of 500, Gloo for 400 of which 100 are hidden by an operator, the rest is Python."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=2_000)
    builder.loader(0, 300)
    builder.op("aten::mm", at=300, end=700)
    builder.op("c10d::allreduce_", at=600, end=610)
    builder.annotation("gloo:all_reduce", 600, 1_000, tid=9, **{"Input Dims": [[4]], "Input type": ["float"]})
    builder.op("aten::add", at=1_100, end=1_200)

    found = parts_of(builder)

    assert found.parts == {
        "compute": 500 * US,
        "copies": 0,
        "communication": 300 * US,
        "loader": 300 * US,
        "runtime": 0,
        "host": 900 * US,
        "other": 0,
    }
    assert found.totals["communication"] == 400 * US
    assert sum(found.parts.values()) == found.step_ns == 2_000 * US


def test_hidden_communication_is_told_from_exposed_and_waits_are_no_work() -> None:
    """C7: a collective of 100, half of it beside a kernel; records of synchronisations on the device's rows."""
    builder = TraceBuilder()
    builder.device()
    builder.step(0, at=0, end=200)
    builder.launch(at=2, dur=5, kernel_name="gemm", kernel_at=10, kernel_dur=100)
    builder.launch(at=8, dur=5, kernel_name="ncclDevKernel_Generic_4(x)", kernel_at=60, kernel_dur=100, stream=20)
    builder.cuda_sync("Stream Sync", 0, 190)
    builder.gpu_annotation("nccl:all_reduce", 60, 160, stream=20)

    found = parts_of(builder)

    assert found.parts["compute"] == 100 * US
    assert found.parts["communication"] == 50 * US
    assert found.totals["communication"] == 100 * US
    assert sum(found.parts.values()) == found.step_ns
    trace = builder.trace()
    collectives = collectives_of(trace, find_steps(trace))
    assert (len(collectives), collectives.exposed_ns.tolist()) == (1, [50 * US])
