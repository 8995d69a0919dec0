"""Replay a program on a model of one host, its launch queue and the device's streams, to its steady state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.intervals import union
from ipyprof.analysis.program import Act, Float, Program
from ipyprof.analysis.recurrence import advance, exact, host_times, opening, prepare
from ipyprof.trace.model import Int64

STEADY = 1e-4  # two passes that advance equally within this share are the steady state
ITEM_BUDGET = 600_000  # items replayed at most for one answer
DEVICE_LIMIT = 0.9  # with the device busy for this share of the step it is the limit
FOLLOW_LEAST = 0.01  # interleaved medians of the same step differ by this much
DEVICE_FOLLOWS = 1.2  # an H200 under full load falls from 1,980 to 1,700 MHz
HOST_FOLLOWS = 2.0  # 280 tiny kernels took 2.0 to 4.3 ms within a minute on one machine (tests/gpu/RESULTS.md)
KEPT_SHARE = 0.15  # of a gap or call, at least, however many events were recorded in it
COST_LIMIT_NS = 8_000.0  # the costs solved on an H200 (tests/gpu/RESULTS.md) lie between 0.7 and 6.5 us


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One steady pass.

    Attributes:
        step_ns: steady time of one step: the slower of host and device.
        host_step_ns, device_step_ns: how far each advances per step.
        first_pass_ns: length of the first pass from the recorded initial state to its last host or device end.
        gap_begin, call_begin, call_end: (k,) float ns of each host item in the last pass.
        record_start, record_end: (m,) float ns of each device record in the last pass.
        converged: two passes advanced equally.
    """

    step_ns: float
    host_step_ns: float
    device_step_ns: float
    first_pass_ns: float
    gap_begin: Float
    call_begin: Float
    call_end: Float
    record_start: Float
    record_end: Float
    converged: bool


def deflated(program: Program, cost_ns: float) -> tuple[Float, Float]:
    """(k,) gaps and (k,) own call times in ns without what recording cost: ``cost_ns`` for each recorded event."""
    gap = np.maximum(program.gap - cost_ns * program.gap_events, KEPT_SHARE * program.gap)
    own = np.maximum(program.own - cost_ns * program.call_events, KEPT_SHARE * program.own)
    return gap, own


def replay(program: Program, cost_ns: float = 0.0, *, once: bool = False) -> Replayed:
    """The steady state of the program when recording an event costs ``cost_ns`` of host time.

    With ``once`` the window is replayed a single time from its recorded initial state: a step that does not repeat.
    """
    gap, own = deflated(program, cost_ns)
    prepared = prepare(program, gap, own, deflated=cost_ns > 0)
    state = opening(program)
    items, records = len(gap), len(program.dur)
    last_host, last_ready = state.host, [max(at, state.host) for at in state.ready]
    host_advance = device_advance = -1.0
    first_pass = 0.0
    converged = False
    passes = 0
    while True:
        advance(prepared, state)
        passes += 1
        host, ready = state.host, state.ready
        device = max(ready) if records else host
        if passes == 1:
            first_pass = max(host, device) - program.begin
        fresh_host = host - last_host
        # The stream that falls behind sets the pace, also while another one is still ahead of it.
        fresh_device = max((at - since for at, since in zip(ready, last_ready, strict=True) if at > since), default=0.0)
        if not records:
            fresh_device = fresh_host
        scale = max(fresh_host, fresh_device, 1.0)
        converged = (
            passes > 2
            and abs(fresh_host - host_advance) <= STEADY * scale
            and abs(fresh_device - device_advance) <= STEADY * scale
        )
        host_advance, device_advance = fresh_host, fresh_device
        last_host, last_ready = host, list(ready)
        if once or converged or ((passes + 1) * max(items, 1) > ITEM_BUDGET and passes >= 4):
            break
    if once:
        host_advance = device_advance = first_pass
    gap_begin, call_begin, call_end = host_times(prepared, state)
    return Replayed(
        step_ns=max(host_advance, device_advance) / program.steps,
        host_step_ns=host_advance / program.steps,
        device_step_ns=device_advance / program.steps,
        first_pass_ns=first_pass,
        gap_begin=gap_begin,
        call_begin=call_begin,
        call_end=call_end,
        record_start=state.start,
        record_end=state.start + exact(program.dur),
        converged=converged,
    )


def solve_cost(program: Program, step_ns: float, *, from_idle: bool = False) -> float:
    """ns per recorded event that make the unedited steady state take ``step_ns``.

    0 where the recording is no slower than that; where the device alone takes longer, the least cost that adds nothing.

    Args:
        from_idle: the step was timed from an idle device to its end, so that it holds the filling of the queue as well.
    """

    def length(cost_ns: float) -> float:
        result = replay(program, cost_ns)
        return result.first_pass_ns - (program.steps - 1) * result.step_ns if from_idle else result.step_ns

    recorded = length(0.0)
    if recorded <= step_ns:
        return 0.0
    least = length(COST_LIMIT_NS)
    goal = max(step_ns, least * 1.002)
    if recorded <= goal:
        return 0.0
    low, high, at_low, at_high = 0.0, COST_LIMIT_NS, recorded, least
    for turn in range(16):
        if at_low - at_high <= 1e-3 * goal:
            break
        share = (at_low - goal) / (at_low - at_high)
        middle = low + (high - low) * (min(max(share, 0.02), 0.98) if turn % 3 else 0.3)
        value = length(middle)
        if abs(value - goal) <= 1e-3 * goal:
            return middle
        if value > goal:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return high


def follow(program: Program, cost_ns: float, step_ns: float) -> tuple[Program, Replayed, float]:
    """(program, its replay, factor) where all host time or all device time takes ``factor`` times as long.

    For an unprofiled step that the cost of recording does not explain: between the two the GPU's clock changed, or the
    host's speed. Where the device is busy for ``DEVICE_LIMIT`` of the step it follows, else the host; the other one
    where that cannot give the step, within ``HOST_FOLLOWS`` and ``DEVICE_FOLLOWS``. 1 where neither can, or where
    replay and step differ by less than ``FOLLOW_LEAST``.
    """
    replayed = replay(program, cost_ns)
    if abs(replayed.step_ns - step_ns) <= step_ns * FOLLOW_LEAST:
        return program, replayed, 1.0
    by_device = device_share(program, replayed) >= DEVICE_LIMIT
    for device in (by_device, not by_device):
        found = _followed(program, cost_ns, step_ns, replayed.step_ns, device=device)
        if found is not None:
            return found
    return program, replayed, 1.0


def _followed(
    program: Program, cost_ns: float, step_ns: float, at_one: float, *, device: bool
) -> tuple[Program, Replayed, float] | None:
    """What ``follow`` returns for one side, ``None`` where no factor within the limits gives the step."""
    limit = DEVICE_FOLLOWS if device else HOST_FOLLOWS
    factor = limit if at_one < step_ns else 1 / limit
    changed = _paced(program, factor, device=device)
    replayed = replay(changed, cost_ns)
    low, high = sorted(((1.0, at_one), (factor, replayed.step_ns)))
    if not low[1] <= step_ns <= high[1]:
        return None
    # In a step that host and device fill in turn the step changes far less than the factor.
    for turn in range(10):
        if abs(replayed.step_ns - step_ns) <= 1e-3 * step_ns:
            break
        share = (step_ns - low[1]) / (high[1] - low[1])
        factor = low[0] + (high[0] - low[0]) * (0.5 if turn % 3 == 2 else share)
        changed = _paced(program, factor, device=device)
        replayed = replay(changed, cost_ns)
        if replayed.step_ns > step_ns:
            high = (factor, replayed.step_ns)
        else:
            low = (factor, replayed.step_ns)
    return changed, replayed, factor


def device_work_ns(program: Program) -> float:
    """ns per step for which the busiest stream works: no step is shorter."""
    launched = np.zeros(len(program.record) + 1, np.int64)
    np.add.at(launched, program.first, 1)
    np.add.at(launched, program.last, -1)
    kept = np.cumsum(launched[:-1]) > 0  # an edit that takes work out leaves its records in the columns
    work = np.bincount(program.stream[kept], program.dur[kept]) / program.steps
    return float(work.max()) if len(work) else 0.0


def device_share(program: Program, replayed: Replayed) -> float:
    """Share 0..1 of the replayed step in which some stream works.

    Streams that wait for each other, as collectives and the kernels around them, keep the device busy together.
    """
    period = round(replayed.step_ns * program.steps)
    if period <= 0:
        return 0.0
    start, end = union(*fold(replayed.record_start, replayed.record_end, 0.0, period))
    return float((end - start).sum()) / period


def _paced(program: Program, factor: float, *, device: bool) -> Program:
    if device:
        return replace(program, dur=program.dur * factor)
    # The recording's own cost with it, so that what remains of every stretch without it takes ``factor`` times as long.
    return replace(
        program,
        gap=program.gap * factor,
        gap_operator=program.gap_operator * factor,
        gap_events=program.gap_events * factor,
        own=program.own * factor,
        call_events=program.call_events * factor,
        slowed=program.slowed * factor,
    )


def fold(start: Float, end: Float, origin: float, period_ns: int) -> tuple[Int64, Int64]:
    """Intervals of one steady pass laid into [0, period): what lies beyond the pass comes round again.

    Returns disjoint-or-overlapping (start, end) int64 ns in [0, period].
    """
    ran = np.isfinite(start)  # records that an edit took out never ran
    start, end = start[ran], end[ran]
    begin = np.rint(start - origin).astype(np.int64)
    length = np.minimum(np.rint(end - start).astype(np.int64), period_ns)
    begin %= max(period_ns, 1)
    stop = begin + length
    wraps = stop > period_ns
    return (
        np.concatenate((begin, np.zeros(int(wraps.sum()), np.int64))),
        np.concatenate((np.minimum(stop, period_ns), stop[wraps] - period_ns)),
    )


__all__ = ["Act", "Replayed", "deflated", "fold", "replay", "solve_cost"]
