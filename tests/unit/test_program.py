"""What a recording becomes before it is replayed: items, gaps, waits, and what edits take out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.profile import analyse
from ipyprof.analysis.program import Act, Host, Program, build_program, loader_spans, without_marks
from ipyprof.analysis.replay import replay
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace
from ipyprof.trace.reader import ENDS_EARLY
from tests.builder import TraceBuilder
from tests.machine import Machine, live


def program_of(trace: Trace, record: LiveRecord | None = None) -> Program:
    return build_program(trace, find_steps(trace), record)


def calls(program: Program) -> list[tuple[Act, float]]:
    """(act, own us) of the API calls."""
    real = program.event >= 0
    return [(Act(what), own / 1000) for what, own in zip(program.act[real], program.own[real], strict=True)]


# Items and gaps.


def test_gaps_and_calls_together_are_the_window() -> None:
    machine = Machine()
    with machine.step():
        machine.python(30)
        machine.launch(100, own=4)
        machine.python(6)
        machine.call("cudaMalloc", 60)
    program = program_of(machine.trace())

    assert program.gap.sum() + program.own.sum() == 100_000.0
    assert (program.begin, program.stop, program.steps) == (0, 100_000, 1)
    assert calls(program) == [(Act.LAUNCH, 4.0), (Act.PLAIN, 60.0)]


def test_gap_inside_operators_is_told_from_python() -> None:
    machine = Machine()
    with machine.step():
        machine.python(30)
        with machine.op("aten::mm"):
            machine.python(20)
            machine.launch(100)
    program = program_of(machine.trace())

    launch = int(np.flatnonzero(program.act == Act.LAUNCH)[0])
    assert (program.gap[launch], program.gap_operator[launch]) == (50_000.0, 20_000.0)


def test_driver_call_inside_a_runtime_call_is_one_item() -> None:
    """A runtime call and the driver call in it share the correlation of one kernel."""
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    correlation = builder.launch(10, 20, "gemm", 35, 40)
    builder.call("cuLaunchKernel", 15, 10)
    builder.events[-1]["args"]["correlation"] = correlation
    program = program_of(builder.trace())

    assert calls(program) == [(Act.LAUNCH, 20.0)]
    assert len(program.record) == 1


def test_outer_call_that_says_nothing_takes_the_meaning_of_the_inner_one() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.call("cudaSomethingNew", 10, 60)
    builder.call("cuMemAlloc_v2", 15, 50)
    program = program_of(builder.trace())

    assert [Host(what) for what in program.call_host[program.event >= 0]] == [Host.ALLOCATOR]


def test_calls_of_threads_that_launch_nothing_are_left_out() -> None:
    """The pin-memory thread's calls overlap the main thread."""
    machine = Machine()
    with machine.step():
        machine.launch(50)
        machine.builder.call("cudaHostAlloc", 2, 400, tid=9)
        machine.python(20)
    program = program_of(machine.trace())

    assert calls(program) == [(Act.LAUNCH, 5.0)]
    assert program.threads == (1,)


def test_same_stream_number_on_two_devices_is_two_streams() -> None:
    """C1: kernels on four devices with stream 7 each run beside each other."""
    machine = Machine()
    with machine.step():
        for device in range(4):
            machine.launch(1_000, device=device)
    program = program_of(machine.trace())

    assert sorted(program.stream.tolist()) == [0, 1, 2, 3]
    assert replay(program, once=True).first_pass_ns == machine.end * 1000 == 1_020_000.0


# Waits.


def test_wait_is_taken_out_of_a_synchronisation() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(500)
        machine.sync(tail=3)
    program = program_of(machine.trace())

    assert calls(program) == [(Act.LAUNCH, 5.0), (Act.SYNC_DEVICE, 3.0)]


def test_synchronisation_of_an_idle_device_is_its_own_time() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(10)
        machine.python(100)
        machine.sync(tail=8)
    program = program_of(machine.trace())

    assert calls(program)[1] == (Act.SYNC_DEVICE, 8.0)


def test_stream_synchronisation_waits_for_the_stream_that_ended_with_it() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(500, stream=7)
        machine.launch(100, stream=20)
        machine.stream_sync(20)
    program = program_of(machine.trace())

    sync = int(np.flatnonzero(program.act == Act.SYNC_STREAM)[0])
    assert program.stream[1] == program.target[sync]
    assert replay(program, once=True).call_end[sync] == machine.host * 1000


def test_pageable_copy_blocks_and_keeps_its_tail() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(100)
        machine.blocking_copy(400, 4_000_000, tail=7)
    program = program_of(machine.trace())

    assert calls(program)[1] == (Act.BLOCKING_COPY, 7.0)


def test_small_pageable_copy_to_the_device_is_staged() -> None:
    """CUDA returns before a copy of up to 64 kB is done, even where by chance it lies inside its call."""
    machine = Machine()
    with machine.step():
        machine.blocking_copy(3, 65_536)
    program = program_of(machine.trace())

    assert calls(program)[0][0] == Act.LAUNCH


def test_asynchronous_free_waits_for_nothing() -> None:
    """``cudaFreeAsync`` returns at once while the device works."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(1_000)
            machine.call("cudaFreeAsync", 4)
    program = program_of(machine.trace())

    assert (Act.SYNC_DEVICE, 0.0) not in calls(program)
    assert calls(program)[1] == (Act.PLAIN, 4.0)
    assert replay(program, once=True).first_pass_ns == machine.end * 1000


def test_synchronisation_of_another_device_waits_for_nothing_here() -> None:
    """A wait that returned while this device worked was not for this device."""
    machine = Machine()
    with machine.step():
        machine.launch(1_000, device=0)
        machine.launch(30, device=1)
        machine._wait(machine.ready[1, 7], 2, "cudaDeviceSynchronize")
        machine.python(10)
    program = program_of(machine.trace())

    once = replay(program, once=True)

    sync = int(np.flatnonzero(program.call_host == Host.SYNC)[0])
    assert once.call_end[sync] == pytest.approx(program.call_to[sync], abs=1)


def test_device_records_without_any_call_make_an_empty_program() -> None:
    """B14: a file with GPU work only."""
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.kernel("gemm", 10, 50)
    trace = builder.trace()

    profile = analyse(trace)

    assert profile.program is not None
    assert len(profile.program.record) == 0
    assert profile.steps.carried.tolist() == [1]


def test_sync_records_of_the_device_rows_are_no_gpu_work() -> None:
    """C7: ``cuda_sync`` events lie on device rows."""
    machine = Machine()
    with machine.step():
        machine.launch(100)
        machine.builder.cuda_sync("Stream Sync", 0, 5_000)
        machine.builder.gpu_annotation("ProfilerStep#0", 0, 5_000)
        machine.sync()
    program = program_of(machine.trace())

    assert len(program.record) == 1
    assert replay(program, once=True).first_pass_ns == machine.end * 1000


def test_graph_launch_counts_one_event_per_node_and_is_handed_over_at_its_end() -> None:
    """A15: one call, twenty kernels."""
    machine = Machine()
    with machine.step():
        machine.graph(20, 4, own=30)
    program = program_of(machine.trace())

    graph = int(np.flatnonzero(program.event >= 0)[0])
    assert (program.act[graph], program.call_events[graph]) == (Act.LAUNCH, 20.0)
    assert (program.first[graph], program.last[graph]) == (0, 20)
    assert program.at_end[graph]
    assert program.graph.all()
    assert program.latency[0] == 5_000.0


def test_stream_wait_makes_a_record_depend_on_another_stream() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(300, stream=7)
        machine.wait_event(20, on=7)
        machine.launch(50, stream=20)
        machine.sync()
    program = program_of(machine.trace())

    assert program.depends.tolist() == [-1, 0]
    assert program.pause[1] == 0.0


# Loader and lines.


@pytest.mark.parametrize("category", ["Operator", "cpu_op", "user_annotation"])
@pytest.mark.parametrize("iterator", ["_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"])
def test_loader_is_found_by_name_in_any_category(category: str, iterator: str) -> None:
    """C6."""
    machine = Machine()
    with machine.step():
        machine.launch(10)
        machine.loader(700, name=f"{iterator}.__next__")
        machine.builder.events[-1]["cat"] = category
    trace = machine.trace()
    program = program_of(trace)

    assert program.gap[program.gap_host == Host.DATA_LOADING].sum() == 700_000.0
    spans = loader_spans(trace, find_steps(trace), None, np.array([1], np.int64))
    assert [at.tolist() for at in spans] == [[5_000], [705_000]]


def test_fetch_across_a_step_mark_is_loading_on_both_sides() -> None:
    """C6: the span is cut at the mark, and counted once."""
    machine = Machine()
    with machine.step():
        machine.launch(10)
        machine.python(95)
    with machine.step():
        machine.python(100)
    machine.builder.loader(60, 150)
    program = program_of(machine.trace())

    assert program.gap[program.gap_host == Host.DATA_LOADING].tolist() == [40_000.0, 50_000.0]


def test_fetch_of_the_marked_loop_is_loading_whatever_the_iterator_is() -> None:
    """A custom generator has no span: the time from the last statement of the body to the mark."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            with machine.line(3):
                machine.launch(10)
            machine.python(400)
    trace = machine.trace()

    program = program_of(trace, live("", 405, loop_is_for=True))
    of_a_while = program_of(trace, live("", 405, loop_is_for=False))

    assert program.gap[program.gap_host == Host.DATA_LOADING].sum() == 800_000.0
    assert of_a_while.gap[of_a_while.gap_host == Host.DATA_LOADING].sum() == 0.0


def test_what_is_missing_in_the_last_step_of_a_cut_file_is_no_fetch() -> None:
    """Its statements behind the first were cut off; the step before keeps its fetch of 400 us."""
    # given
    machine = Machine()
    for _ in range(2):
        with machine.step():
            with machine.line(3):
                machine.launch(10)
            machine.python(400)
    whole = machine.trace()
    cut = replace(whole, damage={ENDS_EARLY: len(whole)})
    # when
    spans = [
        loader_spans(trace, find_steps(trace), live("", 405, loop_is_for=True), np.array([1], np.int64))
        for trace in (whole, cut)
    ]
    # then
    assert [at.tolist() for at in spans[0]] == [[5_000, 410_000], [405_000, 810_000]]
    assert [at.tolist() for at in spans[1]] == [[5_000], [405_000]]


def test_what_a_mark_takes_in_a_marked_loop_is_neither_loading_nor_the_bodys_time() -> None:
    """40 us before the body's first statement and 60 behind its last are our own calls."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(40)
            with machine.line(3):
                machine.python(70)
                machine.launch(10)
            machine.python(60)
    trace, record = machine.trace(), live("", 75, loop_is_for=True)

    program = without_marks(program_of(trace, record), trace, find_steps(trace), record)

    assert not (program.gap_host == Host.DATA_LOADING).any()
    assert program.gap.sum() == 3 * 70_000.0


def test_collective_that_finds_no_room_keeps_its_delay_behind_what_it_waited_for() -> None:
    """DDP: told to wait for the gradient's kernel, done at 120; the kernels behind that fill the GPU until 620."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.launch(10, 5, "gradient", 20, 100)
    builder.call("cudaStreamWaitEvent", 20, 2)
    builder.launch(30, 5, "ncclDevKernel_AllReduce", 620, 50, stream=9)
    builder.launch(40, 5, "next", 121, 502)

    program = program_of(builder.trace())

    gradient, collective = 0, 1
    assert (program.depends[collective], program.pause[collective]) == (gradient, 500_000.0)
    assert replay(program, once=True).record_start[collective] == 620_000.0


def test_work_launched_behind_the_end_of_what_it_was_told_to_wait_for_is_late_by_itself() -> None:
    """Python for 18 ms between the wait and the launch."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=20_000)
    builder.launch(10, 5, "one", 20, 100)
    builder.call("cudaStreamWaitEvent", 20, 2)
    builder.launch(18_000, 5, "other", 18_030, 50, stream=9)

    assert program_of(builder.trace()).depends.tolist() == [-1, -1]


def test_late_work_that_was_told_to_wait_for_nothing_depends_on_nothing() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.launch(10, 5, "one", 20, 100)
    builder.launch(30, 5, "other", 620, 50, stream=9)

    assert program_of(builder.trace()).depends.tolist() == [-1, -1]


def test_work_from_before_that_outlasts_the_hosts_window_comes_first() -> None:
    """The host leaves the step at 100, the device begins with its work at 451."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.kernel("before", 0, 140)
    builder.kernel("before", 150, 300)
    builder.launch(10, 5, "own", 451, 20)

    program = program_of(builder.trace())

    assert program.ready.tolist() == [450_000.0]
    assert replay(program, once=True).record_start.tolist() == [451_000.0]


def test_work_behind_the_windows_own_was_not_there_before() -> None:
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.launch(10, 5, "own", 50, 20)
    builder.kernel("after", 80, 300)

    assert program_of(builder.trace()).ready.tolist() == [float("-inf")]


def test_first_range_of_a_process_is_not_the_loops_time() -> None:
    """703 us before the first statement of the first step, 20 before the others."""
    machine = Machine()
    for opening in (703, 20, 20):
        with machine.step():
            machine.python(opening)
            with machine.line(3):
                machine.python(70)
                machine.launch(10)
    trace, record = machine.trace(), live("", 75, loop_is_for=True)

    program = without_marks(program_of(trace, record), trace, find_steps(trace), record)

    assert program.gap.sum() == 3 * 70_000.0


def test_fetch_ends_where_a_mark_that_timed_itself_was_called() -> None:
    """Behind the body 60 us of fetching and 130 of the mark."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            with machine.line(3):
                machine.python(70)
                machine.launch(10)
            machine.python(60 + 130)
    trace, record = machine.trace(), live("", 135, loop_is_for=True, closing_ns=(130_000,) * 3)

    program = without_marks(program_of(trace, record), trace, find_steps(trace), record)

    assert program.gap[program.gap_host == Host.DATA_LOADING].sum() == 3 * 60_000.0
    assert program.gap.sum() == 3 * (70_000.0 + 60_000.0)


def test_what_lies_right_before_a_mark_that_timed_itself_is_its_own() -> None:
    """20 us to leave the last statement and to call the mark, 150 of the mark: no fetch."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            with machine.line(3):
                machine.launch(10)
            machine.python(20 + 150)
    trace, record = machine.trace(), live("", 5, loop_is_for=True, closing_ns=(150_000,) * 3)

    program = without_marks(program_of(trace, record), trace, find_steps(trace), record)

    assert not (program.gap_host == Host.DATA_LOADING).any()
    assert program.gap.sum() == 0.0


def test_time_of_the_mark_is_taken_out_of_a_while_loop_too() -> None:
    """70 of the body, 40 of its test, 130 of the mark."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            with machine.line(3):
                machine.python(70)
                machine.launch(10)
            machine.python(40 + 130)
    trace, record = machine.trace(), live("", 115, loop_is_for=False, closing_ns=(130_000,) * 3)

    program = without_marks(program_of(trace, record), trace, find_steps(trace), record)

    assert program.gap.sum() == 3 * (70_000.0 + 40_000.0)


def test_loader_by_hand_without_a_span_is_python() -> None:
    """C6: not attributed."""
    machine = Machine()
    with machine.step():
        machine.launch(10)
        machine.python(40)
    program = program_of(machine.trace())

    assert program.gap[program.gap_host == Host.CPU].sum() == 40_000.0


def test_time_belongs_to_the_innermost_line_and_to_the_loop_between_statements() -> None:
    machine = Machine()
    with machine.step():
        with machine.line(3):
            machine.python(10)
            with machine.line(4):
                machine.python(20)
            machine.python(5)
        machine.python(7)
    program = program_of(machine.trace(), live("", 42))

    spent = {int(line): program.gap[program.gap_line == line].sum() / 1000 for line in np.unique(program.gap_line)}
    assert spent == {2: 7.0, 3: 15.0, 4: 20.0}


def test_crossing_spans_of_step_and_optimizer_are_each_counted_once() -> None:
    """A12: the mark lies in the middle of ``Optimizer.step``."""
    machine = Machine()
    with machine.step():
        machine.python(50)
        machine.launch(20)
    with machine.step():
        machine.python(45)
        machine.launch(20)
    machine.builder.annotation("Optimizer.step#SGD.step", 30, 80)
    program = program_of(machine.trace())

    assert program.steps == 2
    assert program.gap.sum() + program.own.sum() == 105_000.0


# Edits.


def three_operators() -> Machine:
    """10 us of Python, then three operators of 20 us that launch 5 us before their end."""
    machine = Machine()
    with machine.step():
        machine.python(10)
        for name in ("a", "b", "c"):
            with machine.op(name):
                machine.python(15)
                machine.launch(50)
            machine.python(1)
    return machine


def test_cut_takes_host_time_and_leaves_what_was_launched() -> None:
    program = program_of(three_operators().trace())

    cut = program.cut(np.array([31_000]), np.array([51_000]), records=False)

    assert program.gap.sum() + program.own.sum() - cut.gap.sum() - cut.own.sum() == 20_000.0
    assert (cut.act == Act.LAUNCH).sum() == 3
    assert cut.gap_operator.sum() == 30_000.0
    assert program.events - cut.events == 2.0  # the operator and its launch


def test_cut_with_records_takes_the_kernels_too() -> None:
    program = program_of(three_operators().trace())

    cut = program.cut(np.array([31_000]), np.array([51_000]), records=True)

    assert (cut.act == Act.LAUNCH).sum() == 2
    assert replay(program).device_step_ns - replay(cut).device_step_ns == 51_000.0


def test_two_cuts_are_the_same_as_one_of_both() -> None:
    """Also where they overlap: what is gone cannot be taken again."""
    program = program_of(three_operators().trace())

    once = program.cut(np.array([5_000, 12_000]), np.array([14_000, 36_000]), records=False)
    twice = program.cut(np.array([5_000]), np.array([14_000]), records=False).cut(
        np.array([12_000]), np.array([36_000]), records=False
    )

    assert twice.gap.tolist() == once.gap.tolist()
    assert twice.gap_operator.tolist() == once.gap_operator.tolist()
    assert twice.gap_events.tolist() == once.gap_events.tolist()


def test_cut_of_nothing_changes_nothing() -> None:
    program = program_of(three_operators().trace())

    assert program.cut(np.empty(0, np.int64), np.empty(0, np.int64), records=True) is program


def test_calls_without_time_still_launch() -> None:
    machine = Machine()
    with machine.step():
        machine.blocking_copy(100, 4_000_000)
        machine.sync()
    program = program_of(machine.trace())

    edited = program.without_calls(program.event >= 0)

    assert calls(edited) == [(Act.LAUNCH, 0.0), (Act.PLAIN, 0.0)]


def test_what_a_mark_takes_is_not_the_users_time() -> None:
    """Live: the next step's range begins 30 us after the last one ended."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(70)
            machine.launch(20)
        machine.python(30)
    trace = machine.trace()

    whole = program_of(trace)
    program = without_marks(whole, trace, find_steps(trace), live("", 75, loop_is_for=False))

    assert (program.gap.sum(), whole.gap.sum()) == (210_000.0, 270_000.0)
    assert replay(program).step_ns == 75_000.0


def overlaid(program: Program) -> list[list[float]]:
    return [program.gap.tolist(), program.gap_operator.tolist(), program.gap_events.tolist(), program.own.tolist()]


spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 80)), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(first=spans, second=spans, records=st.booleans())
def test_cuts_in_any_order_take_the_same(
    first: list[tuple[int, int]], second: list[tuple[int, int]], records: bool
) -> None:
    machine = Machine()
    for _ in range(2):
        with machine.step():
            machine.python(9)
            for us in (10, 40):
                with machine.op("outer"):
                    machine.python(5)
                    with machine.op("inner"):
                        machine.launch(us)
                        machine.python(20)
                    machine.call("cudaMalloc", 11)
            machine.sync()
    program = program_of(machine.trace())

    def cut(from_program: Program, some: list[tuple[int, int]]) -> Program:
        start = np.array([at * 1000 for at, _ in some], np.int64)
        return from_program.cut(start, start + np.array([us * 1000 for _, us in some], np.int64), records=records)

    both = overlaid(cut(program, first + second))
    assert overlaid(cut(cut(program, first), second)) == both
    assert overlaid(cut(cut(program, second), first)) == both
    assert min(map(min, both)) >= 0
