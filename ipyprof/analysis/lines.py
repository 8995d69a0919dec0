"""What each line of the cell costs in one step: device time that it launched, host time, waits."""

from __future__ import annotations

import numpy as np

from ipyprof.analysis.attribution import forward_times
from ipyprof.analysis.intervals import coverage_before
from ipyprof.analysis.program import Act, Float, Program
from ipyprof.analysis.replay import KEPT_SHARE, Replayed
from ipyprof.analysis.results import Line
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import DEVICE_KINDS
from ipyprof.trace.model import Int64, Trace

MS = 1e6  # ns


def host_scale(program: Program, replayed: Replayed, step_ns: float) -> float:
    """What a replayed ns of the window is of one step: all host time together is the host's step, at most ``step_ns``.

    Where the recording was slower than deflation explains, the host's time is still that of the unprofiled step.
    """
    return min(step_ns / replayed.host_step_ns, 1.0) / program.steps if replayed.host_step_ns > 0 else 0.0


def host_by_label(
    program: Program, replayed: Replayed, cost_ns: float, step_ns: float, at: Int64, label: Int64, labels: int
) -> Float:
    """(labels,) float ns of one step in which the host was at each label, waiting in calls included.

    A gap of the program that a change divides is divided as it was recorded, without what recording cost in each part.

    Args:
        at: (c,) int64 recorded ns, sorted, the first not after the window's begin: where the label changes.
        label: (c,) int64 below ``labels``, from each change on.
    """
    gap = np.arange(len(program.gap_from))
    of_change = np.searchsorted(program.gap_from, at, side="right") - 1
    divides = of_change >= 0
    divides[divides] = (at > program.gap_from[of_change])[divides] & (at < program.gap_to[of_change])[divides]
    owner = np.concatenate((gap, of_change[divides]))
    start = np.concatenate((program.gap_from, at[divides]))
    order = np.lexsort((start, owner))
    owner, start = owner[order], start[order]
    end = program.gap_to[owner]
    same = owner[1:] == owner[:-1]
    end[:-1][same] = start[1:][same]
    cut = coverage_before(program.cut_start, program.cut_end, end)
    length = (end - start - cut + coverage_before(program.cut_start, program.cut_end, start)).astype(np.float64)
    events = (np.searchsorted(program.edges, end) - np.searchsorted(program.edges, start)) / 2
    weight = np.maximum(length - cost_ns * events, KEPT_SHARE * length)
    whole = np.bincount(owner, weight, len(gap))[owner]
    share = np.divide(weight, whole, out=1 / np.bincount(owner)[owner], where=whole > 0)
    gap_ns = (replayed.call_begin - replayed.gap_begin)[owner] * share
    call_ns = replayed.call_end - replayed.call_begin

    def labelled(when: Int64) -> Int64:
        return label[np.maximum(np.searchsorted(at, when, side="right") - 1, 0)]

    where = np.concatenate((labelled(start), labelled(program.call_from)))
    spent = np.bincount(where, np.concatenate((gap_ns, call_ns)), labels).astype(np.float64)
    return spent * host_scale(program, replayed, step_ns)


def record_lines(trace: Trace, steps: Steps, program: Program) -> Int64:
    """(m,) int64: the line that each device record of the program belongs to, 0 = none.

    The line that launched it; for backward work the line whose forward operator made the node.
    """
    launch = steps.launch[program.record]
    lines = program.lines_at(trace.start_ns[launch])
    forward = forward_times(trace, steps, launch)
    known = forward >= program.begin
    made = program.lines_at(forward)
    return np.where(known & (made > 0), made, lines)


def line_costs(trace: Trace, steps: Steps, program: Program, replayed: Replayed, step_ns: float) -> tuple[Line, ...]:
    """Costs by line, sorted by line; line 0 collects what no line of the cell was running for.

    Device time is as in ``record_lines``. Host time is that of the replayed, deflated step and includes waiting in
    calls; all lines together take the host's step, at most ``step_ns``. Empty where the trace has no lines.
    """
    lines = np.unique(np.concatenate((program.gap_line, program.call_line)))
    if not np.any(lines > 0):
        return ()
    gpu = len(trace.select(*DEVICE_KINDS)) > 0
    gap_ns = replayed.call_begin - replayed.gap_begin
    call_ns = replayed.call_end - replayed.call_begin
    waits = np.isin(program.act, (Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD, Act.BLOCKING_COPY))
    scale = host_scale(program, replayed, step_ns)
    device_ns, launching_line = trace.dur_ns[program.record], record_lines(trace, steps, program)
    return tuple(
        Line(
            line=line,
            source="",
            device_ms=float(device_ns[launching_line == line].sum()) / program.steps / MS if gpu else None,
            host_ms=float(gap_ns[program.gap_line == line].sum() + call_ns[program.call_line == line].sum())
            * scale
            / MS,
            sync_count=float((waits & (program.call_line == line)).sum()) / program.steps if gpu else None,
        )
        for line in lines.tolist()
    )
