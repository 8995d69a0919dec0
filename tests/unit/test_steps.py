"""Where steps begin and end, and whose step a piece of device work is."""

from __future__ import annotations

from ipyprof.analysis.steps import find_steps, launching_calls
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Trace
from tests.builder import TraceBuilder


def named(trace: Trace, name: str) -> list[int]:
    return [index for index, at in enumerate(trace.name.tolist()) if trace.names[at] == name]


def test_marks_are_the_starts_and_the_last_end() -> None:
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, at=100 * step, end=100 * step + 95)

    steps = find_steps(builder.trace())

    assert (steps.marks_ns.tolist(), steps.count) == ([0, 100_000, 200_000, 295_000], 3)


def test_step_ends_that_overlap_the_next_start_lose_no_step() -> None:
    """B8: ends some microseconds after the next start."""
    builder = TraceBuilder()
    for step in range(4):
        builder.step(step, at=100 * step, end=100 * step + 107)

    steps = find_steps(builder.trace())

    assert steps.marks_ns.tolist() == [0, 100_000, 200_000, 300_000, 407_000]


def test_backward_work_of_another_thread_is_in_its_step() -> None:
    """C13: the device's own mark covers the first kernel only; 20 ms of backward follow."""
    builder = TraceBuilder()
    builder.step(22, at=0, end=30_000)
    builder.step(23, at=30_000, end=60_000)
    builder.launch(10, 5, "forward", 20, 100)
    builder.gpu_annotation("ProfilerStep#22", 20, 120)
    for index in range(20):
        builder.launch(200 + index, 1, "backward", 1_000 + 1_000 * index, 1_000, tid=2)
    trace = builder.trace()

    steps = find_steps(trace)

    assert steps.marks_ns.tolist() == [0, 30_000_000, 60_000_000]
    assert steps.step[named(trace, "backward")].tolist() == [0] * 20


def test_work_that_ends_in_a_later_step_is_its_launchs() -> None:
    """C5: the host runs ahead."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.step(1, at=100, end=200)
    builder.launch(10, 5, "late", 500, 100)
    builder.launch(110, 5, "later", 600, 100)
    trace = builder.trace()

    steps = find_steps(trace)

    assert (steps.step[named(trace, "late")].tolist(), steps.step[named(trace, "later")].tolist()) == ([0], [1])


def test_work_without_a_launch_is_carried_over() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.kernel("warmup", 10, 50)
    trace = builder.trace()

    steps = find_steps(trace)

    assert steps.carried.tolist() == named(trace, "warmup")
    assert steps.step[steps.carried].tolist() == [-1]


def joined_by_external_id() -> TraceBuilder:
    """An older ROCm file: kernels have no correlation, and the external id of their launch."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    event = {"ph": "X", "pid": 1, "tid": 1}
    builder.events += [
        {**event, "cat": "cuda_runtime", "name": "hipGetDevicePropertiesR0600", "ts": 5, "dur": 1}
        | {"args": {"External id": 24}},
        {**event, "cat": "cuda_runtime", "name": "hipExtModuleLaunchKernel", "ts": 7, "dur": 1}
        | {"args": {"External id": 24}},
        {**event, "cat": "kernel", "name": "Cijk", "ts": 10, "dur": 80, "pid": 0, "tid": 7}
        | {"args": {"External id": 24}},
    ]
    return builder


def test_without_correlations_the_external_id_names_the_launch() -> None:
    trace = joined_by_external_id().trace()

    steps = find_steps(trace)

    assert steps.launch[named(trace, "Cijk")].tolist() == named(trace, "hipExtModuleLaunchKernel")
    assert len(steps.carried) == 0


def test_work_launched_outside_the_marks_is_in_no_step() -> None:
    builder = TraceBuilder()
    builder.step(0, at=100, end=200)
    builder.launch(10, 5, "before", 120, 10)
    builder.launch(210, 5, "after", 220, 10)
    trace = builder.trace()

    steps = find_steps(trace)

    assert steps.step[named(trace, "before") + named(trace, "after")].tolist() == [-1, -1]
    assert len(steps.carried) == 0


def test_a_kernel_before_its_launch_keeps_it() -> None:
    """B10: 2 us, then 40 ms too early: by id, not by time."""
    builder = TraceBuilder()
    builder.step(0, at=50_000, end=60_000)
    builder.launch(50_100, 5, "early", 50_098, 10)
    builder.launch(50_200, 5, "much too early", 10_200, 10)
    trace = builder.trace()

    steps = find_steps(trace)

    assert steps.step[named(trace, "early") + named(trace, "much too early")].tolist() == [0, 0]


def test_a_runtime_call_goes_before_the_driver_call_inside() -> None:
    builder = TraceBuilder()
    correlation = builder.launch(10, 20, "kernel", 50, 10)
    builder.call("cuLaunchKernel", 15, 10)
    trace = builder.trace()
    trace.correlation[named(trace, "cuLaunchKernel")] = correlation

    launch = launching_calls(trace)

    assert launch[named(trace, "kernel")].tolist() == named(trace, "cudaLaunchKernel")


def test_a_file_without_marks_is_one_step() -> None:
    builder = TraceBuilder()
    builder.op("mm", 0, 40)
    builder.launch(10, 5, "gemm", 50, 100)

    steps = find_steps(builder.trace())

    assert (steps.count, steps.how, steps.marks_ns.tolist()) == (1, "no step marks", [0, 150_000])


def test_instants_know_their_step() -> None:
    builder = TraceBuilder()
    builder.op("first", 0, 1)
    builder.step(0, at=100, end=200)
    builder.step(1, at=200, end=300)
    steps = find_steps(builder.trace())

    found = steps.of_time(steps.marks_ns[[0, 0, 1, 2]] + [-1, 0, 0, 0])

    assert found.tolist() == [-1, 0, 1, -1]


def test_the_marking_thread_is_known() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=100, tid=5)
    builder.launch(10, 5, "kernel", 50, 10, tid=6)

    assert find_steps(builder.trace()).thread == 5


def test_a_trace_without_steps_or_work_counts_none() -> None:
    builder = TraceBuilder()
    builder.gpu_annotation("block", 0, 10)
    trace = builder.trace()

    assert trace.select(Kind.GPU_ANNOTATION).tolist() == [0]
    assert find_steps(trace).count == 0
