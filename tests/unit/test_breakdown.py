"""Where a step's time goes: exact parts of built steps."""

from __future__ import annotations

import pytest

from ipyprof.analysis.breakdown import PARTS, Breakdown, break_down, recorded_parts
from ipyprof.analysis.program import build_program
from ipyprof.analysis.replay import replay
from ipyprof.analysis.steps import find_steps
from tests.machine import Machine


def broken_down(machine: Machine, step_us: float | None = None) -> Breakdown:
    trace = machine.trace()
    program = build_program(trace, find_steps(trace), None)
    replayed = replay(program)
    return break_down(trace, program, replayed, replayed.step_ns if step_us is None else step_us * 1000)


def parts(whole: Breakdown) -> dict[str, float]:
    """Parts that are not zero, in us."""
    return {part: round(ns / 1000, 6) for part, ns in whole.parts.items() if abs(ns) > 1e-3}


def test_waiting_gpu_shows_what_the_host_does() -> None:
    """A step: fetch 600, Python 40, launch 5, then 10 of Python; the kernel starts with the launch's end: 5 + 100."""
    machine = Machine()
    for _ in range(4):
        with machine.step():
            machine.loader(600)
            machine.python(40)
            machine.launch(100)
            machine.python(10)
            machine.sync(tail=3)

    whole = broken_down(machine)

    assert whole.step_ns == 748_000.0
    assert parts(whole) == {"kernel": 100.0, "data_loading": 600.0, "launch": 5.0, "sync": 3.0, "cpu": 40.0}
    assert sum(whole.parts[part] for part in ("launch", "sync", "allocator", "call")) == pytest.approx(8_000)
    assert sum(whole.parts[part] for part in PARTS[4:]) == pytest.approx(648_000)


def test_busy_gpu_hides_the_host() -> None:
    """Two kernels of 500 us with 1 us between; the host's 600 us of fetching lie beside them."""
    machine = Machine()
    for _ in range(4):
        with machine.step():
            machine.launch(500)
            machine.launch(500)
            machine.loader(600)

    whole = broken_down(machine)

    assert whole.step_ns == 1_002_000.0
    assert whole.parts["kernel"] == pytest.approx(1_000_000)
    assert sum(whole.parts[part] for part in PARTS[4:]) == pytest.approx(2_000)


def test_overlapping_streams_are_counted_once() -> None:
    """C1: two streams of 1,000 us side by side are 1,000 us of kernels, not 2,000."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(1_000, stream=7)
            machine.launch(1_000, stream=20)
            machine.sync(tail=5)

    whole = broken_down(machine)

    assert whole.parts["kernel"] == pytest.approx(1_005_000)  # the second starts 5 us later
    assert whole.device_busy_ns == {0: pytest.approx(1_005_000)}
    assert whole.parts["kernel"] <= whole.step_ns


def test_same_stream_on_four_devices_is_no_share_above_one() -> None:
    """C1: each device by itself; the breakdown is the busiest one's."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            for device, us in enumerate((100, 200, 400, 300)):
                machine.launch(us, device=device)
            machine.sync(tail=5)

    whole = broken_down(machine)

    assert whole.device == 2
    assert whole.parts["kernel"] == pytest.approx(400_000)
    assert whole.device_busy_ns == {device: pytest.approx(us * 1000) for device, us in enumerate((100, 200, 400, 300))}


def test_communication_total_and_exposed_are_two_numbers() -> None:
    """C7, C2: a collective of 400 us of which a kernel covers the first half."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(205, stream=7, name="gemm")
            machine.launch(400, stream=20, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL()")
            machine.sync(tail=5)

    whole = broken_down(machine)

    assert whole.communication_total_ns == pytest.approx(400_000)
    assert whole.parts["communication"] == pytest.approx(200_000)
    assert whole.parts["kernel"] == pytest.approx(205_000)


def test_copies_beside_kernels_are_hidden_and_blocking_ones_are_not() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(300, stream=7)
            machine.copy(100, 4_000_000, stream=20)
            machine.sync(tail=5)
            machine.blocking_copy(250, 4_000_000)

    whole = broken_down(machine)

    assert whole.parts["memcpy"] == pytest.approx(250_000)
    assert whole.parts["kernel"] == pytest.approx(300_000)


def test_slow_copy_is_no_loading() -> None:
    """C6."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.loader(50)
            machine.blocking_copy(900, 64_000_000)
            machine.launch(10)

    whole = broken_down(machine)

    assert whole.parts["data_loading"] == pytest.approx(40_000)  # 10 us of it beside the last step's kernel
    assert whole.parts["memcpy"] == pytest.approx(900_000)


def test_graph_nodes_are_kernels_and_one_launch() -> None:
    """A15."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.graph(20, 10, own=30)
            machine.sync(tail=5)

    whole = broken_down(machine)

    assert whole.parts["kernel"] == pytest.approx(200_000)
    assert whole.parts["launch"] == pytest.approx(30_000)


def test_allocation_is_apart() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.call("cudaMalloc", 120)
            machine.launch(100)
            machine.free(tail=50)

    whole = broken_down(machine)

    assert whole.parts["allocator"] == pytest.approx(170_000)
    assert whole.step_ns == pytest.approx(275_000 + 5_000 - 5_000)


def test_step_longer_than_the_replay_leaves_the_difference_in_other() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(95)
            machine.launch(10)

    whole = broken_down(machine, step_us=300)

    assert whole.step_ns == 300_000.0
    assert whole.parts["other"] == pytest.approx(200_000)
    assert whole.parts["kernel"] == pytest.approx(10_000)


def test_step_near_the_replay_scales_the_parts() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(95)
            machine.launch(10)

    whole = broken_down(machine, step_us=102)

    assert whole.parts["other"] == pytest.approx(0, abs=1e-6)
    assert whole.parts["kernel"] == pytest.approx(10_200)


def test_without_a_device_the_parts_are_the_hosts() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.loader(30)
            machine.python(70)

    whole = broken_down(machine)

    assert parts(whole) == {"data_loading": 30.0, "cpu": 70.0}
    assert (whole.device, whole.device_busy_ns) == (-1, {})


def test_recorded_parts_are_on_the_recorded_clock() -> None:
    """One step as it was recorded: the kernel of the step before reaches 20 us into it."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            machine.python(95)
            machine.launch(20)
    trace = machine.trace()
    program = build_program(trace, find_steps(trace), None)

    found = recorded_parts(trace, program, 0, 100_000, 200_000)

    assert {part: ns for part, ns in found.items() if ns} == {"kernel": 20_000.0, "launch": 5_000.0, "cpu": 75_000.0}
