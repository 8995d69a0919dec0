"""What each line of the cell costs in one step: device time that it launched, host time, waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.backward import forward_times
from ipyprof.analysis.host_time import host_scale
from ipyprof.analysis.program import Act, Program
from ipyprof.analysis.replay import Replayed
from ipyprof.analysis.steps import Steps
from ipyprof.trace.model import Int64, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCost:
    """One line, per step. ``line`` 0 collects what no line of the cell was running for."""

    line: int
    device_ns: float
    host_ns: float
    sync_count: float


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


def line_costs(
    trace: Trace, steps: Steps, program: Program, replayed: Replayed, step_ns: float
) -> tuple[LineCost, ...]:
    """Costs by line, sorted by line; device time as in ``record_lines``.

    Host time is that of the replayed, deflated step and includes waiting in calls; all lines together take the host's
    step, at most ``step_ns``. Empty where the trace has no lines.
    """
    lines = np.unique(np.concatenate((program.gap_line, program.call_line)))
    if not np.any(lines > 0):
        return ()
    gap_ns = replayed.call_begin - replayed.gap_begin
    call_ns = replayed.call_end - replayed.call_begin
    waits = np.isin(program.act, (Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD, Act.BLOCKING_COPY))
    scale = host_scale(program, replayed, step_ns)
    device_ns, launching_line = trace.dur_ns[program.record], record_lines(trace, steps, program)
    return tuple(
        LineCost(
            line=int(line),
            device_ns=float(device_ns[launching_line == line].sum()) / program.steps,
            host_ns=float(gap_ns[program.gap_line == line].sum() + call_ns[program.call_line == line].sum()) * scale,
            sync_count=float((waits & (program.call_line == line)).sum()) / program.steps,
        )
        for line in lines.tolist()
    )
