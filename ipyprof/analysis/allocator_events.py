"""What happened to the allocator: its calls to the driver, requests that failed, and what ran then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.lifetimes import line_number, lines_at, operators_at
from ipyprof.analysis.nesting import innermost
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind, Role
from ipyprof.trace.model import Int64, LiveRecord, Trace

TOGETHER_NS = 200_000  # calls of the allocator closer than this are one: empty_cache frees many segments in a row

ALLOCATED = "memory taken from the driver"
FREED = "cache given back"
RETRIED = "cache given back, then memory taken: a retry"
_WORDS = (ALLOCATED, FREED, RETRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCall:
    """Calls in a row with which the allocator went to the driver, in the recorded steps of all devices.

    ``at_ns`` is ns since the first mark, ``in_step_ns`` since the mark that began its step, ``dur_ns`` the time in the
    calls, ``what`` one of the constants above, ``step`` the recorded step, from 0.
    """

    at_ns: int
    in_step_ns: int
    dur_ns: int
    count: int
    what: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Requests that the allocator could not serve and after which the cell went on, all of one place and size.

    Attributes:
        device: index, -1 = the CPU.
        at_ns: ns since the first mark, of the first of them; step: its recorded step, from 0.
        asked_bytes: of one request; allocated_bytes: what was given out at the first.
        operator, line: that ran then, ``None`` = none.
    """

    device: int
    at_ns: int
    step: int
    count: int
    asked_bytes: int
    allocated_bytes: int
    operator: str | None
    line: int | None


def allocator_calls(trace: Trace, marks_ns: Int64) -> tuple[AllocatorCall, ...]:
    """The calls between the first and the last mark with which the allocator went to the driver, in time order."""
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.role[calls], (Role.ALLOC, Role.FREE))]
    calls = calls[(trace.start_ns[calls] >= marks_ns[0]) & (trace.start_ns[calls] < marks_ns[-1])]
    if len(calls) == 0:
        return ()
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    step = np.searchsorted(marks_ns, start, side="right") - 1
    what = _what(trace, calls)
    apart = start[1:] - np.maximum.accumulate(end)[:-1] > TOGETHER_NS
    breaks = np.flatnonzero(apart | (np.diff(step) != 0) | (what[1:] != what[:-1])) + 1
    return tuple(
        AllocatorCall(
            at_ns=int(start[group[0]] - marks_ns[0]),
            in_step_ns=int(start[group[0]] - marks_ns[step[group[0]]]),
            dur_ns=int(trace.dur_ns[calls[group]].sum()),
            count=len(group),
            what=_WORDS[what[group[0]]],
            step=int(step[group[0]]),
        )
        for group in np.split(np.arange(len(calls)), breaks)
    )


def _what(trace: Trace, calls: Int64) -> Int64:
    """(n,) int64 index into ``_WORDS``: in one operator, both kinds of calls are a retry.

    Without operators around them, as in a flush by the program itself, each is what it is.
    """
    events = trace.select(Kind.OPERATOR)
    around = innermost(
        trace.start_ns[events], trace.end_ns[events], trace.tid[events], trace.start_ns[calls], trace.tid[calls]
    )
    frees = trace.role[calls] == Role.FREE
    both = np.intersect1d(around[frees], around[~frees])
    retried = (around >= 0) & np.isin(around, both)
    return np.where(retried, 2, frees.astype(np.int64))


def refused_requests(trace: Trace, steps: Steps, live: LiveRecord | None, marks_ns: Int64) -> tuple[Refused, ...]:
    """The requests between the first and the last mark that failed and were caught, in time order.

    Where the cell ended with one while it was recorded, that is the last of all and is left out.

    Args:
        marks_ns: (k,) int64, sorted, at least two.
    """
    records = trace.refused
    mine = np.flatnonzero((records.time_ns >= marks_ns[0]) & (records.time_ns < marks_ns[-1]))
    if ended_in_recording(live):
        mine = mine[mine < len(records.time_ns) - 1]
    if len(mine) == 0:
        return ()  # most recordings have none: the operators around them need not be looked for
    at = records.time_ns[mine]
    lines = lines_at(trace, steps, live, at).tolist()
    operators = operators_at(trace, at, records.tid[mine]).tolist()
    found: dict[tuple[int, int, str | None, int | None], list[int]] = {}
    for record, line, operator in zip(mine.tolist(), lines, operators, strict=True):
        name = None if operator < 0 else trace.names[trace.name[operator]]
        key = int(records.device[record]), int(records.delta_bytes[record]), name, line or None
        found.setdefault(key, []).append(record)
    return tuple(
        Refused(
            device=device,
            at_ns=int(records.time_ns[mine[0]] - marks_ns[0]),
            step=int(np.searchsorted(marks_ns, records.time_ns[mine[0]], side="right")) - 1,
            count=len(mine),
            asked_bytes=asked,
            allocated_bytes=int(records.allocated_bytes[mine[0]]),
            operator=operator,
            line=line,
        )
        for (device, asked, operator, line), mine in found.items()
    )


def running_at(trace: Trace, at: int) -> tuple[str | None, int | None]:
    """(operator, line) that ran at an instant: on each thread the innermost, of these the one that began last."""
    operator = latest(trace, Kind.OPERATOR, at)
    line = latest(trace, Kind.LINE, at)
    name = None if operator < 0 else trace.names[trace.name[operator]]
    return name, None if line < 0 else line_number(trace.names[trace.name[line]])


def latest(trace: Trace, kind: Kind, at: int) -> int:
    """Index of the event of a kind that holds an instant and began last, -1 = none."""
    events = trace.select(kind)
    around = events[(trace.start_ns[events] <= at) & (trace.end_ns[events] > at)]
    return int(around[-1]) if len(around) else -1


def ended_in_recording(live: LiveRecord | None) -> bool:
    """Whether a request for memory failed that ended the cell while it was recorded."""
    return live is not None and live.out_of_memory is not None and not live.out_of_memory.later
