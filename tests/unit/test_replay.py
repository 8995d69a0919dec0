"""The replay reproduces what was recorded, and its steady state is the slower of host and GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.breakdown import PARTS, break_down, recorded_parts
from ipyprof.analysis.program import Act, Program, build_program
from ipyprof.analysis.replay import (
    COST_LIMIT_NS,
    DEVICE_FOLLOWS,
    HOST_FOLLOWS,
    KEPT_SHARE,
    deflated,
    device_share,
    fold,
    follow,
    replay,
    solve_cost,
)
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.model import Trace
from tests.machine import Machine

Run = Callable[[Machine], object]


def recorded(machine: Machine) -> tuple[Trace, Program]:
    trace = machine.trace()
    return trace, build_program(trace, find_steps(trace), None)


def stepped(body: Run, count: int = 3) -> Machine:
    machine = Machine()
    for _ in range(count):
        with machine.step():
            body(machine)
    return machine


# The recorded window, once.


def gpu_bound(machine: Machine) -> None:
    for _ in range(4):
        machine.launch(400)


def host_bound(machine: Machine) -> None:
    for _ in range(4):
        machine.python(60)
        machine.launch(20)


def reading(machine: Machine) -> None:
    machine.launch(300)
    machine.item()
    machine.python(50)
    machine.launch(100)


def two_streams(machine: Machine) -> None:
    machine.launch(300, stream=7)
    machine.launch(200, stream=20)
    machine.wait_event(7, on=20)
    machine.launch(50, stream=7)
    machine.launch(90, stream=20)
    machine.wait_event(20, on=7)
    machine.launch(10, stream=20)
    machine.sync()


def pageable(machine: Machine) -> None:
    machine.launch(500)
    machine.blocking_copy(900, 8_000_000)
    machine.launch(100)
    machine.blocking_copy(300, 8_000_000, direction="DtoH pageable")


def graphs(machine: Machine) -> None:
    machine.python(30)
    machine.graph(20, 4)
    machine.graph(5, 40)
    machine.stream_sync()


def allocating(machine: Machine) -> None:
    machine.launch(200)
    machine.free()
    machine.call("cudaMalloc", 120)
    machine.launch(200)


def autograd(machine: Machine) -> None:
    machine.launch(100)
    with machine.thread(2), machine.op("autograd::engine::evaluate_function: MmBackward0"):
        machine.python(10)
        machine.launch(150)
    machine.event_sync()


BODIES: list[Run] = [gpu_bound, host_bound, reading, two_streams, pageable, graphs, allocating, autograd]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_recorded_window_is_reproduced_to_the_nanosecond(body: Run) -> None:
    machine = stepped(body)
    _, program = recorded(machine)

    once = replay(program, once=True)

    assert once.first_pass_ns == pytest.approx(machine.end * 1000, abs=1)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_each_record_and_each_call_is_where_it_was_recorded(body: Run) -> None:
    trace, program = recorded(stepped(body))

    once = replay(program, once=True)

    np.testing.assert_allclose(once.record_start, trace.start_ns[program.record], atol=1)
    np.testing.assert_allclose(once.call_begin, program.call_from, atol=1)
    np.testing.assert_allclose(once.call_end, program.call_to, atol=1)


def test_work_from_before_the_window_delays_the_first_kernel() -> None:
    """Carried-over records are the initial state of the replay."""
    machine = Machine()
    machine.builder.kernel("earlier", 0, 700)
    machine.ready[0, 7] = 700.0
    with machine.step():
        machine.launch(100)
    trace, program = recorded(machine)

    once = replay(program, once=True)

    assert once.record_start.tolist() == [701_000.0]
    assert trace.start_ns[program.record].tolist() == [701_000]


# The steady state.


def test_steady_step_is_the_devices_where_the_host_runs_ahead() -> None:
    """C5: 20 us of launches for 4 x 401 us of kernels."""
    _, program = recorded(stepped(gpu_bound))

    result = replay(program)

    assert (result.step_ns, result.host_step_ns, result.device_step_ns) == (1_604_000.0, 20_000.0, 1_604_000.0)
    assert result.converged


def test_steady_step_is_the_hosts_where_the_kernels_are_short() -> None:
    _, program = recorded(stepped(host_bound))

    result = replay(program)

    assert (result.step_ns, result.device_step_ns) == (260_000.0, 260_000.0)


def test_steady_step_with_a_read_is_host_and_device_in_turn() -> None:
    """300 us kernel at +5, copy 1 us later for 1 us, tail 2; then 50 of Python; the last kernel runs into the next."""
    machine = stepped(reading, 6)
    _, program = recorded(machine)

    result = replay(program)

    assert result.step_ns == pytest.approx((machine.marks[5] - machine.marks[4]) * 1000)


def test_stream_that_falls_behind_sets_the_step_while_another_is_still_ahead() -> None:
    """Two kernels of 210 us on stream 7: 422. The other stream, at the host's pace of 415, ends later at first."""

    def body(machine: Machine) -> None:
        machine.launch(210, stream=7)
        machine.launch(210, stream=7)
        machine.python(400)
        machine.launch(300, stream=20)

    _, program = recorded(stepped(body))

    result = replay(program)

    assert (result.step_ns, result.host_step_ns) == (422_000.0, 415_000.0)


def test_a_single_step_is_replayed_once() -> None:
    machine = stepped(gpu_bound, 1)
    _, program = recorded(machine)

    result = replay(program, once=True)

    assert result.step_ns == machine.end * 1000 == 1_608_000.0


def test_program_without_device_work_takes_its_host_time() -> None:
    _, program = recorded(stepped(lambda machine: machine.python(100)))

    result = replay(program)

    assert (result.step_ns, len(result.record_start)) == (100_000.0, 0)


def test_full_queue_holds_the_host() -> None:
    """Launch 1,025 of a step waits until the first one has started."""
    machine = Machine()
    with machine.step():
        for _ in range(1100):
            machine.launch(50)
    _, program = recorded(machine)

    once = replay(program, once=True)

    waited = once.call_end[1024] - once.call_begin[1024]
    assert waited == pytest.approx(5_000, abs=1)  # its own time: the first kernel started long ago
    late = replay(program)
    assert late.host_step_ns == pytest.approx(late.device_step_ns, rel=1e-3)


# Deflation.


def test_deflation_takes_the_cost_of_each_event_and_never_all_of_the_time() -> None:
    """A gap with one operator inside counts one event; a launch counts one; 15 % stay however high the cost."""

    def body(machine: Machine) -> None:
        with machine.op("aten::mm"):
            machine.python(20)
            machine.launch(10, own=10)

    _, program = recorded(stepped(body, 2))

    gap, own = deflated(program, 2_000)
    least_gap, least_own = deflated(program, 1e9)

    launches = program.act == Act.LAUNCH
    assert own[launches].tolist() == [8_000.0, 8_000.0]
    assert gap.sum() == program.gap.sum() - 2_000 * program.gap_events.sum()
    assert least_own[launches].tolist() == [KEPT_SHARE * 10_000] * 2
    assert least_gap.sum() == pytest.approx(KEPT_SHARE * program.gap.sum())


def test_solved_cost_makes_the_steady_step_the_baseline() -> None:
    def body(machine: Machine) -> None:
        for _ in range(20):
            with machine.op("aten::add"):
                machine.python(20)
                machine.launch(2, own=10)

    _, program = recorded(stepped(body))
    assert replay(program).step_ns == 600_000.0

    cost = solve_cost(program, 500_000.0)

    assert replay(program, cost).step_ns == pytest.approx(500_000, rel=2e-3)
    assert 0 < cost < COST_LIMIT_NS


def test_no_cost_where_the_recording_was_no_slower() -> None:
    _, program = recorded(stepped(gpu_bound))

    assert solve_cost(program, 1_700_000.0) == 0.0


def test_least_cost_where_the_device_alone_is_slower_than_the_baseline() -> None:
    _, program = recorded(stepped(gpu_bound))

    assert solve_cost(program, 1_000_000.0) == 0.0


def test_sleep_is_not_deflated() -> None:
    """A loader that sleeps holds no events."""

    def body(machine: Machine) -> None:
        machine.loader(8_000)
        machine.launch(10)

    _, program = recorded(stepped(body))

    gap, _ = deflated(program, 3_000)

    assert gap.sum() >= program.gap.sum() - 3_000 * 2 * 3  # the span itself and the mark: two events a step


# Unprofiled steps that ran slower than the recorded ones.


def test_slower_unprofiled_step_of_a_busy_device_makes_the_device_slower() -> None:
    """4 kernels of 400 us and pauses of 1: 1,764 us are kernels of 440."""
    _, program = recorded(stepped(gpu_bound))

    slower, replayed, factor = follow(program, 0.0, 1_764_000.0)

    assert factor == pytest.approx(1.1, rel=2e-3)
    assert replayed.step_ns == pytest.approx(1_764_000, rel=1e-3)
    np.testing.assert_allclose(slower.dur, program.dur * factor)
    assert (slower.gap is program.gap, slower.own is program.own, slower.slowed) == (True, True, 1.0)


def test_slower_unprofiled_step_of_a_waiting_device_makes_the_host_slower() -> None:
    """4 times 60 us of Python and a launch of 5, 1.25 times as long: 325 us."""
    _, program = recorded(stepped(host_bound))

    slower, replayed, factor = follow(program, 0.0, 325_000.0)

    assert factor == pytest.approx(1.25, rel=2e-3)
    assert replayed.step_ns == pytest.approx(325_000, rel=1e-3)
    np.testing.assert_allclose(slower.gap, program.gap * factor)
    np.testing.assert_allclose(slower.own, program.own * factor)
    assert (slower.dur is program.dur, slower.slowed) == (True, factor)


def test_host_follows_where_host_and_device_take_turns() -> None:
    """The kernels fill three quarters of the step: 61 us of 411 are the host's."""
    _, program = recorded(stepped(reading, 6))
    before = replay(program)
    assert device_share(program, before) < 0.9

    slower, replayed, factor = follow(program, 0.0, before.step_ns * 1.05)

    assert replayed.step_ns == pytest.approx(before.step_ns * 1.05, rel=1e-3)
    assert factor > 1.2
    assert slower.dur is program.dur


def test_every_stretch_of_a_slower_host_is_slower_by_the_same_factor_without_its_recording() -> None:
    def body(machine: Machine) -> None:
        machine.python(100)
        for _ in range(10):
            with machine.op("aten::add"):
                machine.python(20)
                machine.launch(2, own=10)

    _, program = recorded(stepped(body))

    slower, _, factor = follow(program, 2_000.0, 1.3 * replay(program, 2_000.0).step_ns)

    for after, before in zip(deflated(slower, 2_000.0), deflated(program, 2_000.0), strict=True):
        np.testing.assert_allclose(after, before * factor)


@pytest.mark.parametrize("body", [gpu_bound, host_bound])
@pytest.mark.parametrize("times", [3.0, 0.3])
def test_step_that_neither_host_nor_device_can_give_is_not_followed(body: Run, times: float) -> None:
    _, program = recorded(stepped(body))
    recorded_ns = replay(program).step_ns

    unchanged, replayed, factor = follow(program, 0.0, times * recorded_ns)

    assert factor == 1.0
    assert unchanged is program
    assert replayed.step_ns == recorded_ns


def test_faster_host_is_followed_and_the_device_left_alone() -> None:
    _, program = recorded(stepped(host_bound))
    recorded_ns = replay(program).step_ns

    faster, replayed, factor = follow(program, 0.0, 0.8 * recorded_ns)

    assert replayed.step_ns == pytest.approx(0.8 * recorded_ns, rel=1e-3)
    assert 1 / HOST_FOLLOWS <= factor < 1.0
    assert faster.dur is program.dur


@pytest.mark.parametrize("step_us", [800, 1_604, 1_620])
def test_step_that_is_no_longer_or_by_less_than_a_hundredth_is_not_followed(step_us: float) -> None:
    _, program = recorded(stepped(gpu_bound))

    same, replayed, factor = follow(program, 0.0, step_us * 1000)

    assert same is program
    assert (replayed.step_ns, factor) == (1_604_000.0, 1.0)


def test_cut_of_a_slower_host_takes_all_of_the_interval() -> None:
    """Fetch 800, launch 5, 1.2 times as long; without the fetch only the launch is left."""

    def body(machine: Machine) -> None:
        machine.loader(800)
        machine.launch(2)

    machine = stepped(body)
    _, program = recorded(machine)
    slower, _, factor = follow(program, 0.0, 966_000.0)
    fetch = np.asarray(machine.marks, np.int64) * 1000

    without = slower.cut(fetch, fetch + 800_000, records=False)

    assert factor == pytest.approx(1.2, rel=2e-3)
    assert without.gap.sum() == pytest.approx(0, abs=1e-6)
    assert without.own.sum() == pytest.approx(3 * 5_000 * factor)


# Folding.


def test_fold_lays_what_passes_the_end_at_the_beginning() -> None:
    start, end = fold(np.array([10.0, 90.0, -np.inf]), np.array([30.0, 130.0, -np.inf]), 0.0, 100)

    assert (start.tolist(), end.tolist()) == ([10, 90, 0], [30, 100, 30])


def test_fold_of_a_record_longer_than_the_period_covers_all_of_it() -> None:
    start, end = fold(np.array([40.0]), np.array([400.0]), 0.0, 100)

    assert (start.tolist(), end.tolist()) == ([40, 0], [100, 40])


# Any program.

times = st.integers(min_value=1, max_value=600)
streams = st.sampled_from([7, 20])
actions = st.one_of(
    st.tuples(st.just("python"), times, streams),
    st.tuples(st.just("loader"), times, streams),
    st.tuples(st.just("launch"), times, streams),
    st.tuples(st.just("operator"), times, streams),
    st.tuples(st.just("backward"), times, streams),
    st.tuples(st.just("sync"), times, streams),
    st.tuples(st.just("item"), times, streams),
    st.tuples(st.just("free"), times, streams),
    st.tuples(st.just("malloc"), times, streams),
    st.tuples(st.just("graph"), st.integers(1, 30), streams),
    st.tuples(st.just("pageable"), times, streams),
    st.tuples(st.just("pinned"), times, streams),
)


def act(machine: Machine, what: str, us: int, stream: int) -> None:
    if what == "python":
        machine.python(us)
    elif what == "loader":
        machine.loader(us)
    elif what == "launch":
        machine.launch(us, stream=stream)
    elif what == "operator":
        with machine.op("aten::mm"):
            machine.python(7)
            machine.launch(us, stream=stream)
            machine.python(3)
    elif what == "backward":
        with machine.thread(2), machine.op("aten::mul"):
            machine.launch(us, stream=stream)
    elif what == "sync":
        machine.sync()
    elif what == "item":
        machine.item()
    elif what == "free":
        machine.free(tail=us)
    elif what == "malloc":
        machine.call("cudaMalloc", us)
    elif what == "graph":
        machine.graph(us, 3, stream=stream)
    elif what == "pageable":
        machine.blocking_copy(us, 4_000_000, stream=stream)
    else:
        machine.copy(us, 4_000_000, stream=stream)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to four steps of the same or of different bodies."""
    machine = Machine()
    body = draw(st.lists(actions, max_size=12))
    same = draw(st.booleans())
    for _ in range(draw(st.integers(1, 4))):
        with machine.step():
            for action in body if same else draw(st.lists(actions, max_size=8)):
                act(machine, *action)
            machine.python(1)
    return machine


SLACK_NS = 2_000  # `build_program` takes a stream whose end lies this close behind a wait for the one awaited


@settings(max_examples=200, deadline=None)
@given(machines())
def test_any_recorded_window_is_reproduced(machine: Machine) -> None:
    _, program = recorded(machine)

    once = replay(program, once=True)

    waits = int(np.isin(program.act, (Act.SYNC_STREAM, Act.SYNC_RECORD)).sum())
    assert abs(once.first_pass_ns - machine.end * 1000) <= 1 + SLACK_NS * waits
    assert len(once.record_start) == len(program.record)


@settings(max_examples=200, deadline=None)
@given(machines(), st.floats(0, 8_000), st.floats(0.2, 3.0))
def test_parts_of_any_program_add_up_and_none_is_negative(machine: Machine, cost: float, factor: float) -> None:
    trace, program = recorded(machine)
    replayed = replay(program, cost)
    step = replayed.step_ns * factor

    whole = break_down(trace, program, replayed, step)

    assert tuple(whole.parts) == PARTS
    assert sum(whole.parts.values()) == pytest.approx(step, rel=1e-12)
    assert min(whole.parts.values()) >= 0.0


@settings(max_examples=100, deadline=None)
@given(machines())
def test_recorded_parts_of_any_step_add_up_to_the_nanosecond(machine: Machine) -> None:
    trace, program = recorded(machine)

    for begin, stop in pairwise(find_steps(trace).marks_ns.tolist()):
        parts = recorded_parts(trace, program, 0, begin, stop)
        assert sum(parts.values()) == stop - begin
        assert min(parts.values()) >= 0


@settings(max_examples=100, deadline=None)
@given(machines())
def test_no_edit_makes_a_step_longer(machine: Machine) -> None:
    _, program = recorded(machine)
    before = replay(program, once=True).first_pass_ns

    for edited in (
        program.cut(np.array([0], np.int64), np.array([machine.host * 1000], np.int64), records=False),
        program.without_calls(program.event >= 0),
    ):
        assert replay(edited, once=True).first_pass_ns <= before + 1


@settings(max_examples=60, deadline=None)
@given(machines(), st.floats(0, 4_000), st.floats(0.5, 3.0))
def test_any_program_follows_no_further_than_asked(machine: Machine, cost: float, factor: float) -> None:
    _, program = recorded(machine)
    before = replay(program, cost).step_ns
    asked = before * factor

    slower, replayed, found = follow(program, cost, asked)

    limit = max(HOST_FOLLOWS, DEVICE_FOLLOWS)
    assert 1 / limit <= found <= limit
    assert replayed.step_ns == replay(slower, cost).step_ns
    assert min(asked, before) * (1 - 2e-3) - 1 <= replayed.step_ns <= max(asked, before) * (1 + 2e-3) + 1


def lasting(body: list[tuple[str, int, int]], count: int) -> tuple[Machine, list[float]]:
    """The machine after ``count`` steps, and when each step's work had ended."""
    machine, ends = Machine(), []
    for _ in range(count):
        with machine.step():
            for action in body:
                act(machine, *action)
            machine.python(1)
        ends.append(machine.end)
    return machine, ends


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=10))
def test_steady_state_of_three_recorded_steps_is_that_of_a_long_run(body: list[tuple[str, int, int]]) -> None:
    """Whatever the host does in its steps: after forty of them, a step takes what the replay of three says."""
    _, program = recorded(lasting(body, 3)[0])
    _, ends = lasting(body, 40)

    step = replay(program).step_ns / 1000

    # Whether a pause of 1 us lies between two records depends on which of host and stream came first there.
    assert step == pytest.approx((ends[39] - ends[19]) / 20, abs=1 + 0.01 * step + len(body))


@settings(max_examples=100, deadline=None)
@given(machines(), st.floats(0, 6_000), st.floats(0, 6_000))
def test_a_higher_cost_of_recording_never_makes_the_step_longer(machine: Machine, first: float, second: float) -> None:
    _, program = recorded(machine)
    low, high = sorted((first, second))

    assert replay(program, high).step_ns <= replay(program, low).step_ns * (1 + 2e-4) + 1
