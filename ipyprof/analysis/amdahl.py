"""What the step would gain at most if one operator took no time at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.operators import OperatorTable
from ipyprof.analysis.program import Program
from ipyprof.analysis.replay import Replayed, replay
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Trace


def amdahl_shares(
    trace: Trace, program: Program, replayed: Replayed, cost_ns: float, table: OperatorTable, count: int, *, once: bool
) -> tuple[float, ...]:
    """(count,) shares 0..1 of the step, for the first ``count`` rows: by replay without the work and calls of each.

    Less than the row's share of device time where that work runs beside the host's, more where the host waits for it;
    0 where the recorded steps have no length.
    """
    if replayed.step_ns <= 0:
        return (0.0,) * len(table.rows[:count])
    shares: list[float] = []
    row_of = table.row[program.record]
    events = trace.select(Kind.OPERATOR)
    for index, row in enumerate(table.rows[:count]):
        edited = replace(program, dur=np.where(row_of == index, 0.0, program.dur))
        mine = events[np.isin(trace.name[events], [at for at, name in enumerate(trace.names) if name == row.name])]
        edited = edited.cut(trace.start_ns[mine], trace.end_ns[mine], records=False)
        gained = replayed.step_ns - replay(edited, cost_ns, once=once).step_ns
        shares.append(min(max(gained / replayed.step_ns, 0.0), 1.0))
    return tuple(shares)
