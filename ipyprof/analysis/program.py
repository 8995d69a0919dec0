"""The recorded steps as a program that can be replayed: host items in time order, and the device records they launch.

A *host item* is an outermost API call of a launching thread, or a boundary without length (a step mark, the edge of a
loader span or of a line range). Before each item lies a *gap*: host time between calls, inside operators or outside
(Python, loaders, sleeps).

Recording makes the host slower by a cost per recorded event (operator, range, API call, memory record), not by a
factor: a sleeping loader is not inflated. Every gap and call therefore carries the number of events recorded in it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.attribution import (
    LAUNCH_TO_START_NS,
    QUEUE_DEPTH,
    Act,
    Bool,
    Float,
    acts,
    launched_records,
    without_queueing,
)
from ipyprof.analysis.intervals import coverage_before, inside, intersection, union
from ipyprof.analysis.steps import Steps, ends_early
from ipyprof.trace.kinds import LINE_PREFIX, Kind, Role
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

MARK_NS = 100_000  # a mark of a marked loop takes up to 92 us beside the step's range (H200, torch 2.11)
OPENING_NS = 2_000_000  # before the body's first statement: the first range of a process takes 0.7 ms (torch 2.13)
MARK_BESIDE_NS = 25_000  # where the mark timed itself: leaving the last statement's range, and calling the mark
MARK_EVENTS = 5  # a mark of a live run takes 15 to 50 us on either side of the range's edge, an event 2 to 6 us


class Host(enum.IntEnum):
    """What the host does in a stretch of time."""

    DATA_LOADING = 0
    LAUNCH = 1
    SYNC = 2
    ALLOCATOR = 3
    OTHER_CALL = 4
    CPU = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Replayable columns: (k,) per host item, (m,) per device record. Times in ns on the recorded clock.

    Attributes:
        gap_from, gap_to: the recorded gap before the item; call_from, call_to: the item's recorded call.
        gap: float ns of it that are replayed; gap_operator: how much of it lies inside operators.
        gap_events: recorded events in the gap; call_events: recorded events of the call (1; the nodes of a
            graph for its launch; 0 for boundaries).
        own: float ns of the call that are work, not waiting.
        act: an ``Act``; target: stream key or record index that ``act`` waits for, -1 = none.
        gap_host, call_host: a ``Host`` for the gap and for the call.
        gap_line, call_line: the cell's line, 0 = none.
        event: index of the call in the trace, -1 for boundaries.
        first, last: the item's device records are ``records[first:last]``.
        record: (m,) index in the trace; stream: key 0..streams-1; dur: float ns.
        idle: the stream was idle when the record was launched; then ``latency`` after the call's start is its start,
            else ``pause`` after the record before it.
        depends: record of another stream that it waited for, -1 = none; ``pause`` then counts from that record's end.
        graph: the record is a node of a CUDA graph; CUPTI takes nodes apart, so the pauses between them are not real.
        at_end: (k,) what the item launches is handed over when the call ends, not when it begins.
        ready: (streams,) float ns, when each stream is free at the start.
        begin, stop: the recorded window; steps: whole steps in it.
        queue: launches that fit in the queue, 0 = unlimited.
        operator_start, operator_end: disjoint union of operators on launching threads.
        line_from, line_number: (l,) instants at which the running line changes, and the line from then on.
        edges: (e,) sorted starts and ends of the recorded host events on launching threads.
        edge_from, edge_to: how many edges lie before each gap begins and before it ends.
        cut_start, cut_end: disjoint union of the recorded ns that cuts took out.
        slowed: host time, gaps and own, is this many times the recorded one; stretch: (k,) so are the gaps besides.
    """

    gap_from: Int64
    gap_to: Int64
    call_from: Int64
    call_to: Int64
    gap: Float
    gap_operator: Float
    gap_events: Float
    own: Float
    call_events: Float
    act: Int64
    target: Int64
    gap_host: Int64
    call_host: Int64
    gap_line: Int64
    call_line: Int64
    event: Int64
    first: Int64
    last: Int64
    record: Int64
    stream: Int64
    dur: Float
    idle: Bool
    latency: Float
    pause: Float
    depends: Int64
    graph: Bool
    at_end: Bool
    ready: Float
    begin: int
    stop: int
    steps: int
    queue: int
    operator_start: Int64
    operator_end: Int64
    edges: Int64
    edge_from: Int64
    edge_to: Int64
    threads: tuple[int, ...]
    line_from: Int64
    line_number: Int64
    cut_start: Int64
    cut_end: Int64
    slowed: float = 1.0
    stretch: Float | float = 1.0

    @property
    def events(self) -> float:
        """Recorded host events in the window."""
        return float(self.gap_events.sum() + self.call_events.sum())

    def cut(self, start: Int64, end: Int64, *, records: bool) -> Program:
        """The program without the host work in these recorded intervals; with ``records`` without what it launched.

        Args:
            start, end: (n,) int64 recorded ns, any order, may overlap.
        """
        start, end = union(start, end)
        if len(start) == 0:
            return self
        # What an earlier cut took out is not there to be taken again.
        cut = union(np.concatenate((start, self.cut_start)), np.concatenate((end, self.cut_end)))
        gone, before = self._within(*cut), self._within(self.cut_start, self.cut_end)
        slowed = self.slowed * self.stretch
        removed, in_operators = (gone[0] - before[0]) * slowed, (gone[1] - before[1]) * slowed
        hit = inside(start, end, self.call_from) & (self.event >= 0)
        kept = ~inside(start, end + 1, self.edges)  # an operator's own end is the end of its interval
        edges_before: Int64 = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)))
        edge_from, edge_to = edges_before[self.edge_from], edges_before[self.edge_to]
        return replace(
            self,
            gap=np.maximum(self.gap - removed, 0.0),
            gap_operator=np.maximum(self.gap_operator - in_operators, 0.0),
            gap_events=np.minimum((edge_to - edge_from) / 2 * self.slowed, self.gap_events),
            own=np.where(hit, 0.0, self.own),
            call_events=np.where(hit, 0.0, self.call_events),
            act=np.where(hit & ((self.act != Act.LAUNCH) | records), Act.PLAIN, self.act),
            last=np.where(hit & records, self.first, self.last),
            edges=self.edges[kept],
            edge_from=edge_from,
            edge_to=edge_to,
            cut_start=cut[0],
            cut_end=cut[1],
        )

    def _within(self, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """((k,) recorded ns of each gap, (k,) of its operators) that lie in these disjoint, sorted intervals."""
        gaps = self.gap_from, self.gap_to
        if len(start) == 0:
            nothing = np.zeros(len(self.gap_from), np.int64)
            return nothing, nothing
        in_operators = intersection(start, end, self.operator_start, self.operator_end)
        return _overlap(start, end, *gaps), _overlap(*in_operators, *gaps)

    def lines_at(self, when: Int64) -> Int64:
        """(m,) int64: the cell's line that ran at each recorded instant, 0 = none."""
        return _lookup(self.line_from, self.line_number, when)

    def without_calls(self, items: Bool) -> Program:
        """The program in which these items' calls take no time and wait for nothing; what they launch stays."""
        launches = items & (self.last > self.first)
        act = np.where(items, np.where(launches, Act.LAUNCH, Act.PLAIN), self.act)
        return replace(
            self, own=np.where(items, 0.0, self.own), call_events=np.where(items, 0.0, self.call_events), act=act
        )


def build_program(trace: Trace, steps: Steps, live: LiveRecord | None) -> Program:
    """The replayable program of the recorded window, the time that marks take included."""
    begin, stop = int(steps.marks_ns[0]), int(steps.marks_ns[-1])
    calls, threads = _launching(trace, steps, begin, stop)
    operators = trace.select(Kind.OPERATOR)
    operators = operators[np.isin(trace.tid[operators], threads)]
    operator_start, operator_end = union(trace.start_ns[operators], trace.end_ns[operators])
    outer, role, owner = _outermost(trace, calls)
    loader = loader_spans(trace, steps, live, threads)
    line_at, line_number = _line_changes(trace, steps, live)
    bounds = np.concatenate((*loader, line_at, steps.marks_ns[1:]))
    bounds = np.unique(bounds[(bounds >= begin) & (bounds <= stop)])
    edges = _edges(trace, threads, marks=live is not None)

    event = np.concatenate((outer, np.full(len(bounds), -1, np.int64)))
    start = np.concatenate((trace.start_ns[outer], bounds))
    end = np.concatenate((trace.end_ns[outer], bounds))
    role = np.concatenate((role, np.zeros(len(bounds), np.int64)))
    # A boundary sorts before a call that starts with it, so that the call lies inside the new stretch.
    order = np.lexsort((event, start))
    event, start, end, role = event[order], start[order], end[order], role[order]
    reach = np.maximum.accumulate(np.concatenate(([begin], end)))[:-1]
    gap_from, gap_to = reach, np.maximum(start, reach)
    call_from, call_to = gap_to, np.maximum(end, gap_to)
    gap_operator = _overlap(operator_start, operator_end, gap_from, gap_to)
    edge_from, edge_to = np.searchsorted(edges, gap_from), np.searchsorted(edges, gap_to)

    records = launched_records(trace, steps, owner, calls, event)
    count = len(event)
    first = np.searchsorted(records.item, np.arange(count), side="left")
    last = np.searchsorted(records.item, np.arange(count), side="right")
    act, target, wait = acts(trace, role, event, start, end, first, last, records)
    own = np.maximum((call_to - call_from) - wait, 0.0).astype(np.float64)
    own = without_queueing(own, act, records, first)
    call_host = np.full(count, Host.OTHER_CALL, np.int64)
    call_host[np.isin(role, (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.MEMSET))] = Host.LAUNCH
    waits = np.isin(role, (Role.SYNC_DEVICE, Role.SYNC_STREAM, Role.SYNC_EVENT)) | (act == Act.BLOCKING_COPY)
    call_host[waits] = Host.SYNC
    call_host[np.isin(role, (Role.ALLOC, Role.FREE, Role.HOST_ALLOC))] = Host.ALLOCATOR
    return Program(
        gap_from=gap_from,
        gap_to=gap_to,
        call_from=call_from,
        call_to=call_to,
        gap=(gap_to - gap_from).astype(np.float64),
        gap_operator=gap_operator.astype(np.float64),
        gap_events=(edge_to - edge_from) / 2,  # an event has two edges
        own=own,
        call_events=np.where(role == Role.GRAPH_LAUNCH, np.maximum(last - first, 1), event >= 0).astype(np.float64),
        act=act,
        target=target,
        gap_host=np.where(inside(*loader, gap_from), Host.DATA_LOADING, Host.CPU).astype(np.int64),
        call_host=call_host,
        gap_line=_lookup(line_at, line_number, gap_from),
        call_line=_lookup(line_at, line_number, call_from),
        event=event,
        first=first,
        last=last,
        record=records.event,
        stream=records.stream,
        dur=trace.dur_ns[records.event].astype(np.float64),
        idle=records.idle,
        latency=records.latency,
        pause=records.pause,
        depends=records.depends,
        graph=role[records.item] == Role.GRAPH_LAUNCH,
        at_end=role == Role.GRAPH_LAUNCH,
        ready=records.ready,
        begin=begin,
        stop=stop,
        steps=max(steps.count, 1),
        queue=QUEUE_DEPTH,
        operator_start=operator_start,
        operator_end=operator_end,
        edges=edges,
        edge_from=edge_from,
        edge_to=edge_to,
        threads=tuple(int(thread) for thread in threads),
        line_from=line_at,
        line_number=line_number,
        cut_start=np.empty(0, np.int64),
        cut_end=np.empty(0, np.int64),
    )


def without_marks(program: Program, trace: Trace, steps: Steps, live: LiveRecord) -> Program:
    """The program without what our own marks take: between two steps' ranges, and beside them in a marked loop."""
    called, beside = _marks_called(steps, live)
    start, end = [steps.ends_ns[:-1], called], [steps.marks_ns[1:-1], steps.ends_ns]
    if live.loop_is_for and steps.count:
        first, last, known = _body(trace, steps)
        before, behind = known & (first - steps.marks_ns[:-1] < OPENING_NS), known & (called - last < beside)
        start += [steps.marks_ns[:-1][before], last[behind]]
        end += [first[before], called[behind]]
    return program.cut(np.concatenate(start), np.concatenate(end), records=False)


def with_waits(program: Program, wait_ns: float) -> tuple[Program, float]:
    """(the program whose steps wait ``wait_ns`` for their batches, ns that the recorded ones waited).

    A program that fetches nothing stays as it is.
    """
    fetches = program.gap_host == Host.DATA_LOADING
    recorded = float(program.gap[fetches].sum())
    if recorded <= 0:
        return program, 0.0
    stretch = np.where(fetches, wait_ns * program.steps / recorded, 1.0)
    events = np.where(fetches, 0.0, program.gap_events)
    return replace(program, gap=program.gap * stretch, gap_events=events, stretch=stretch), recorded / program.steps


def _marks_called(steps: Steps, live: LiveRecord) -> tuple[Int64, int]:
    """(steps,) when the mark that ended each step was called, and how long before that is still its own doing.

    Where the marks did not time themselves that is the step's end, and ``MARK_NS``.
    """
    if len(live.closing_ns) != steps.count:
        return steps.ends_ns, MARK_NS
    return np.maximum(steps.ends_ns - np.asarray(live.closing_ns, np.int64), steps.marks_ns[:-1]), MARK_BESIDE_NS


def loader_spans(trace: Trace, steps: Steps, live: LiveRecord | None, threads: Int64) -> tuple[Int64, Int64]:
    """Disjoint (start, end) of the time in which the marking threads fetch a batch.

    DataLoader spans by name; in a live run also the marked ``for`` loop's own fetch, whatever the iterator is: the time
    from the end of the last statement of the body to the mark that ends the step (see `_marks_called`). Not so in the
    last step of a file that ends early: its later statements may be missing.
    """
    spans = trace.select(Kind.LOADER)
    spans = spans[np.isin(trace.tid[spans], threads)]
    start, end = trace.start_ns[spans], trace.end_ns[spans]
    if live is not None and live.loop_is_for and steps.count:
        _, last, known = _body(trace, steps)
        called, beside = _marks_called(steps, live)
        known &= called - last >= beside
        if ends_early(trace):
            known[-1] = False
        start, end = np.concatenate((start, last[known])), np.concatenate((end, called[known]))
    return union(start, end)


def _body(trace: Trace, steps: Steps) -> tuple[Int64, Int64, Bool]:
    """(first start, last end, known), each (steps,): where the statements of each step's body begin and end."""
    lines = trace.select(Kind.LINE)
    lines = lines[trace.tid[lines] == steps.thread]
    if len(lines) == 0:
        return steps.marks_ns[:-1], steps.ends_ns, np.zeros(steps.count, bool)
    starts, ends = np.sort(trace.start_ns[lines]), np.sort(trace.end_ns[lines])
    first = np.searchsorted(starts, steps.marks_ns[:-1])
    last = np.searchsorted(ends, steps.ends_ns, side="right") - 1
    first_start, last_end = starts[np.minimum(first, len(starts) - 1)], ends[np.maximum(last, 0)]
    known = (first < len(starts)) & (last >= 0) & (first_start >= steps.marks_ns[:-1]) & (last_end <= steps.ends_ns)
    return first_start, last_end, known & (first_start <= last_end)


def _overlap(start: Int64, end: Int64, begin: Int64, stop: Int64) -> Int64:
    return coverage_before(start, end, stop) - coverage_before(start, end, begin)


def _edges(trace: Trace, threads: Int64, *, marks: bool) -> Int64:
    """Sorted starts and ends of what recording had to write down on these threads.

    With ``marks`` the step ranges are our own, and what a mark does beside its range counts as ``MARK_EVENTS``.
    """
    spans = trace.select(Kind.OPERATOR, Kind.LINE, Kind.STEP, Kind.ANNOTATION, Kind.LOADER)
    spans = spans[np.isin(trace.tid[spans], threads)]
    steps = np.empty(0, np.int64)
    if marks:
        steps = np.repeat(trace.select(Kind.STEP), 2 * MARK_EVENTS)
    written = trace.memory.time_ns
    every = (trace.start_ns[spans], trace.end_ns[spans], trace.start_ns[steps], trace.end_ns[steps], written, written)
    return np.sort(np.concatenate(every))


def _lookup(at: Int64, value: Int64, when: Int64) -> Int64:
    if len(at) == 0:
        return np.zeros(len(when), np.int64)
    index = np.searchsorted(at, when, side="right") - 1
    return np.where(index >= 0, value[np.maximum(index, 0)], 0)


def _launching(trace: Trace, steps: Steps, begin: int, stop: int) -> tuple[Int64, Int64]:
    """API calls of the window on the threads that launch device work, and those threads.

    Threads that launch nothing (pin-memory) are left out: their calls overlap the main thread.
    """
    calls = trace.select(Kind.CALL)
    calls = calls[(trace.start_ns[calls] >= begin) & (trace.start_ns[calls] < stop)]
    launching = np.zeros(len(trace), bool)
    launching[steps.launch[steps.launch >= 0]] = True
    threads = np.unique(np.append(trace.tid[calls[launching[calls]]], steps.thread))
    return calls[np.isin(trace.tid[calls], threads)], threads


def _outermost(trace: Trace, calls: Int64) -> tuple[Int64, Int64, Int64]:
    """Outermost calls, their roles, and for each of ``calls`` the position of its outermost one."""
    order = np.lexsort((trace.start_ns[calls], trace.tid[calls]))
    sorted_calls = calls[order]
    thread = np.unique(trace.tid[sorted_calls], return_inverse=True)[1].astype(np.int64)
    span = int(trace.end_ns[calls].max()) + 1 if len(calls) else 1
    end = trace.end_ns[sorted_calls] + thread * span
    reach = np.concatenate(([-1], np.maximum.accumulate(end)[:-1])) if len(end) else end
    outer = (end > reach) if len(end) else np.zeros(0, bool)
    position = np.cumsum(outer) - 1
    role = trace.role[sorted_calls].astype(np.int64)
    outer_role = role[outer]
    # An outer call that means nothing takes the meaning of what it calls.
    inner = np.flatnonzero(~outer & (role != Role.OTHER))
    vague = inner[outer_role[position[inner]] == Role.OTHER]
    outer_role[position[vague]] = role[vague]
    owner = np.full(len(trace), -1, np.int64)
    owner[sorted_calls] = sorted_calls[outer][position] if len(position) else position
    return sorted_calls[outer], outer_role, owner


def _line_changes(trace: Trace, steps: Steps, live: LiveRecord | None) -> tuple[Int64, Int64]:
    """Instants at which the running line of the cell changes, and the line from then on (0 = none)."""
    lines = trace.select(Kind.LINE)
    lines = lines[trace.tid[lines] == steps.thread]
    default = (live.current_line or 0) if live is not None else 0
    between = (live.loop_line or default) if live is not None and live.mark == "loop" else default
    if len(lines) == 0:
        return np.array([steps.marks_ns[0]], np.int64), np.array([between], np.int64)
    number_of = {
        name: int(text[len(LINE_PREFIX) :].split()[0])
        for name in np.unique(trace.name[lines]).tolist()
        if (text := trace.names[name])[len(LINE_PREFIX) :].split()[0].isdigit()
    }
    at: list[int] = [int(steps.marks_ns[0])]
    running: list[int] = [between]
    stack: list[tuple[int, int]] = []
    for start, end, name in zip(
        trace.start_ns[lines].tolist(), trace.end_ns[lines].tolist(), trace.name[lines].tolist(), strict=True
    ):
        while stack and stack[-1][0] <= start:
            at.append(stack.pop()[0])
            running.append(stack[-1][1] if stack else between)
        stack.append((end, number_of.get(name, 0)))
        at.append(start)
        running.append(stack[-1][1])
    while stack:
        at.append(stack.pop()[0])
        running.append(stack[-1][1] if stack else between)
    return np.asarray(at, np.int64), np.asarray(running, np.int64)


__all__ = [
    "LAUNCH_TO_START_NS",
    "Act",
    "Bool",
    "Float",
    "Host",
    "Program",
    "build_program",
    "loader_spans",
    "with_waits",
    "without_marks",
]
