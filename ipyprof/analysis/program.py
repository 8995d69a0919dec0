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
import numpy.typing as npt

from ipyprof.analysis.intervals import coverage_before, inside, union
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import DEVICE_KINDS, LINE_PREFIX, Kind, Role, copy_direction
from ipyprof.trace.model import Int64, LiveRecord, Trace

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LAUNCH_TO_START_NS = 5_000  # a kernel starts this long after its call began, at the earliest
IDLE_LATENCY_NS = 15_000  # a record that starts within this of its call was held up by the call alone
GAP_CAP_NS = 20_000  # a longer pause of a stream that has work waits for something the file does not name
DEPENDENCY_NS = 10_000  # a record that starts this close behind another stream's end waited for it
STAGED_BYTES = 65_536  # pageable copies to the device up to this size return before they are done (CUDA's manual)
CLOCK_JITTER_NS = 20_000  # host and device clocks agree this well at least
MARK_EVENTS = 5  # a mark of a live run takes 15 to 50 us on either side of the range's edge, an event 2 to 6 us
QUEUE_DEPTH = 1024  # launches that fit in the driver's queue
PASSIVE_CALL_FACTOR = 10  # a launch call so many times the median, on a full queue, is waiting


class Act(enum.IntEnum):
    """What an item does when it is replayed."""

    PLAIN = 0
    LAUNCH = 1
    SYNC_DEVICE = 2
    SYNC_STREAM = 3
    SYNC_RECORD = 4
    BLOCKING_COPY = 5


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
        gap_events: recorded events in the gap; call_events: recorded events of the call (1, 0 for boundaries).
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
        cut_start, cut_end: disjoint union of the recorded ns that cuts took out.
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
    threads: tuple[int, ...]
    line_from: Int64
    line_number: Int64
    cut_start: Int64
    cut_end: Int64

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
        removed, in_operators = gone[0] - before[0], gone[1] - before[1]
        hit = inside(start, end, self.call_from) & (self.event >= 0)
        edges = self.edges[~inside(start, end + 1, self.edges)]  # an operator's own end is the end of its interval
        return replace(
            self,
            gap=np.maximum(self.gap - removed, 0.0),
            gap_operator=np.maximum(self.gap_operator - in_operators, 0.0),
            gap_events=np.minimum(_events(edges, self.gap_from, self.gap_to), self.gap_events),
            own=np.where(hit, 0.0, self.own),
            call_events=np.where(hit, 0.0, self.call_events),
            act=np.where(hit & ((self.act != Act.LAUNCH) | records), Act.PLAIN, self.act),
            last=np.where(hit & records, self.first, self.last),
            edges=edges,
            cut_start=cut[0],
            cut_end=cut[1],
        )

    def _within(self, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """((k,) recorded ns of each gap, (k,) of its operators) that lie in these disjoint, sorted intervals."""
        gaps = self.gap_from, self.gap_to
        whole, operators = _overlap(start, end, *gaps), _overlap(self.operator_start, self.operator_end, *gaps)
        either = union(np.concatenate((start, self.operator_start)), np.concatenate((end, self.operator_end)))
        return whole, operators + whole - _overlap(*either, *gaps)

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

    records = _records(trace, steps, outer, owner, calls, event)
    count = len(event)
    first = np.searchsorted(records.item, np.arange(count), side="left")
    last = np.searchsorted(records.item, np.arange(count), side="right")
    act, target, wait = _acts(trace, role, event, start, end, first, last, records)
    own = np.maximum((call_to - call_from) - wait, 0.0).astype(np.float64)
    own = _without_queueing(own, act, records, first)
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
        gap_events=_events(edges, gap_from, gap_to),
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
        threads=tuple(int(thread) for thread in threads),
        line_from=line_at,
        line_number=line_number,
        cut_start=np.empty(0, np.int64),
        cut_end=np.empty(0, np.int64),
    )


def without_marks(program: Program, steps: Steps) -> Program:
    """The program without what our own marks take: from the end of one step's range to the start of the next."""
    return program.cut(steps.ends_ns[:-1], steps.marks_ns[1:-1], records=False)


def loader_spans(trace: Trace, steps: Steps, live: LiveRecord | None, threads: Int64) -> tuple[Int64, Int64]:
    """Disjoint (start, end) of the time in which the marking threads fetch a batch.

    DataLoader spans by name; in a live run also the marked ``for`` loop's own fetch, whatever the iterator is: the time
    from the end of the last statement of the body to the end of the step.
    """
    spans = trace.select(Kind.LOADER)
    spans = spans[np.isin(trace.tid[spans], threads)]
    start, end = trace.start_ns[spans], trace.end_ns[spans]
    if live is not None and live.loop_is_for and steps.count:
        lines = trace.select(Kind.LINE)
        lines = lines[trace.tid[lines] == steps.thread]
        line_end = np.sort(trace.end_ns[lines])
        at = np.searchsorted(line_end, steps.ends_ns, side="right") - 1
        body_end = line_end[np.maximum(at, 0)] if len(line_end) else steps.marks_ns[:-1]
        known = (at >= 0) & (body_end >= steps.marks_ns[:-1]) if len(line_end) else np.zeros(steps.count, bool)
        start = np.concatenate((start, body_end[known]))
        end = np.concatenate((end, steps.ends_ns[known]))
    return union(start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    event: Int64
    item: Int64
    stream: Int64
    start: Int64
    end: Int64
    idle: Bool
    latency: Float
    pause: Float
    depends: Int64
    ready: Float
    launch_start: Int64


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


def _events(edges: Int64, begin: Int64, stop: Int64) -> Float:
    """(k,) float: recorded events in each stretch; an event has two edges."""
    return (np.searchsorted(edges, stop) - np.searchsorted(edges, begin)).astype(np.float64) / 2


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


def _records(trace: Trace, steps: Steps, outer: Int64, owner: Int64, calls: Int64, event: Int64) -> _Records:
    """Device records launched in the window, by launching item, with how each one started."""
    device = trace.select(*DEVICE_KINDS)
    launch = steps.launch[device]
    mine = np.isin(launch, calls) & (launch >= 0)
    keys, stream_all = np.unique(
        np.stack((trace.device[device].astype(np.int64), trace.stream[device])), axis=1, return_inverse=True
    )
    stream_all = np.asarray(stream_all).reshape(-1).astype(np.int64)
    streams = max(keys.shape[1], 1)
    before = _end_before(stream_all, trace.start_ns[device], trace.end_ns[device])
    ready = np.full(streams, -np.inf)
    opening = trace.start_ns[calls[0]] if len(calls) else steps.marks_ns[0]
    for key in range(keys.shape[1]):
        early = (stream_all == key) & ~mine & ((launch < 0) | (trace.start_ns[np.maximum(launch, 0)] < opening))
        early &= trace.start_ns[device] < steps.marks_ns[-1]
        if mine.any() and early.any():
            ready[key] = float(trace.end_ns[device[early]].max())
    item_of = np.full(len(trace), -1, np.int64)
    item_of[event[event >= 0]] = np.flatnonzero(event >= 0)
    item = item_of[owner[np.maximum(launch, 0)]]
    keep = np.flatnonzero(mine & (item >= 0))
    keep = keep[np.lexsort((trace.start_ns[device[keep]], item[keep]))]
    chosen = device[keep]
    start, end = trace.start_ns[chosen], trace.end_ns[chosen]
    call_start = trace.start_ns[event[item[keep]]] if len(keep) else start
    if len(keep):
        # A graph is handed over at the end of its call, whose length CUPTI multiplies.
        graph = trace.role[event[item[keep]]] == Role.GRAPH_LAUNCH
        call_start = np.where(graph, trace.end_ns[event[item[keep]]], call_start)
    previous = before[keep]
    # A stream that ran dry before a launch can arrive is as good as idle: the launch, not the stream, set the start.
    idle = (previous <= call_start + LAUNCH_TO_START_NS) & (start <= call_start + IDLE_LATENCY_NS)
    idle |= previous <= call_start
    latency = np.maximum(start - call_start, 0).astype(np.float64)
    pause = np.clip(start - previous, -GAP_CAP_NS, GAP_CAP_NS).astype(np.float64)
    depends = np.full(len(keep), -1, np.int64)
    if streams > 1 and bool((trace.role == Role.STREAM_WAIT).any()):
        depends = _dependencies(start, end, stream_all[keep], np.where(idle, call_start, previous), item[keep])
        waited = depends >= 0
        pause[waited] = (start[waited] - end[depends[waited]]).astype(np.float64)
    return _Records(
        event=chosen,
        item=item[keep],
        stream=stream_all[keep],
        start=start,
        end=end,
        idle=idle,
        latency=latency,
        pause=pause,
        depends=depends,
        ready=ready,
        launch_start=call_start,
    )


def _end_before(stream: Int64, start: Int64, end: Int64) -> Int64:
    """(m,) int64: when the stream became free before each record, in the recording; far in the past for the first."""
    order = np.lexsort((start, stream))
    result = np.full(len(stream), np.iinfo(np.int64).min // 2, np.int64)
    if len(order) == 0:
        return result
    span = int(end.max()) - int(start.min()) + 1
    base = int(start.min())
    shifted = end[order] - base + stream[order] * span
    reach = np.maximum.accumulate(shifted)
    same = np.concatenate(([False], stream[order][1:] == stream[order][:-1]))
    previous = np.concatenate(([0], reach[:-1])) - stream[order] * span + base
    result[order[same]] = previous[same]
    return result


def _dependencies(start: Int64, end: Int64, stream: Int64, could: Int64, item: Int64) -> Int64:
    """(m,) int64: the record of another stream whose end each late record waited for, -1 = none.

    The file does not name the event of a ``cudaStreamWaitEvent``; a record that starts late, right behind the end of
    another stream's record that was launched earlier, waited for it.
    """
    depends = np.full(len(start), -1, np.int64)
    by_end = np.argsort(end, kind="stable")
    for index in np.flatnonzero(start - could > DEPENDENCY_NS):
        at = int(np.searchsorted(end[by_end], start[index], side="right")) - 1
        while at >= 0 and start[index] - end[by_end[at]] <= DEPENDENCY_NS:
            other = int(by_end[at])
            if stream[other] != stream[index] and item[other] < item[index]:
                depends[index] = other
                break
            at -= 1
    return depends


def _acts(
    trace: Trace,
    role: Int64,
    event: Int64,
    start: Int64,
    end: Int64,
    first: Int64,
    last: Int64,
    records: _Records,
) -> tuple[Int64, Int64, Float]:
    """What each item does, what it waits for, and how long it waited in the recording."""
    count = len(role)
    act = np.where(last > first, Act.LAUNCH, Act.PLAIN).astype(np.int64)
    target = np.full(count, -1, np.int64)
    wait = np.zeros(count)
    far = np.iinfo(np.int64).min // 2
    latest = np.concatenate(([far], np.maximum.accumulate(records.end))) if len(records.end) else np.array([far])
    partly = np.zeros(count, bool)
    for index in np.flatnonzero(np.isin(role, (Role.SYNC_DEVICE, Role.FREE))):
        if latest[first[index]] > end[index] + CLOCK_JITTER_NS:
            # Work outlasted the call: it was for another device, or (cudaFreeAsync) waits for nothing.
            partly[index] = True
            continue
        act[index] = Act.SYNC_DEVICE
        wait[index] = min(max(int(latest[first[index]]) - int(start[index]), 0), int(end[index] - start[index]))
    streams = len(records.ready)
    per_stream = np.full((streams, len(records.end) + 1), far, np.int64)
    for key in range(streams):
        per_stream[key, 1:] = np.where(records.stream == key, records.end, far)
    per_stream = np.maximum.accumulate(per_stream, axis=1)
    for index in np.flatnonzero((role == Role.SYNC_STREAM) | partly):
        ends = per_stream[:, first[index]]
        possible = np.where(ends <= end[index] + 2_000, ends, far)
        key = int(np.argmax(possible))
        if possible[key] == far or (partly[index] and possible[key] <= start[index]):
            continue
        act[index], target[index] = Act.SYNC_STREAM, key
        wait[index] = min(max(int(possible[key]) - int(start[index]), 0), int(end[index] - start[index]))
    for index in np.flatnonzero(role == Role.SYNC_EVENT):
        launched = records.end[: first[index]]
        waited = np.flatnonzero((launched > start[index]) & (launched <= end[index] + 2_000))
        if len(waited) == 0:
            continue
        target[index] = int(waited[np.argmax(launched[waited])])
        act[index] = Act.SYNC_RECORD
        wait[index] = min(max(int(records.end[target[index]]) - int(start[index]), 0), int(end[index] - start[index]))
    for index in np.flatnonzero((role == Role.COPY) & (last == first + 1)):
        record = int(first[index])
        within = records.start[record] >= start[index] - 1_000 and records.end[record] <= end[index] + 1_000
        if within and _blocks(trace, int(records.event[record]), int(event[index])):
            act[index] = Act.BLOCKING_COPY
            # Own time of a blocking copy is its tail; the way to its start is the record's latency or pause.
            wait[index] = max(int(records.end[record]) - int(start[index]), 0)
    return act, target, wait


def _blocks(trace: Trace, record: int, call: int) -> bool:
    """Whether a copy holds its call until it is done.

    Small host to device copies from pageable memory are staged in the call and run later, although by chance one may
    lie inside it.
    """
    if not trace.names[trace.name[call]].endswith("Async"):
        return True
    direction, pageable = copy_direction(trace.names[trace.name[record]])
    if pageable is False or direction == "DtoD":
        return False
    detail = trace.detail_of(record)
    moved = detail.moved_bytes if detail is not None else None
    return direction == "DtoH" or moved is None or moved > STAGED_BYTES


def _without_queueing(own: Float, act: Int64, records: _Records, first: Int64) -> Float:
    """``own`` with the waiting of launch calls on a full queue taken out."""
    launches = act == Act.LAUNCH
    if not launches.any() or len(records.start) < QUEUE_DEPTH // 2:
        return own
    median = float(np.median(own[launches]))
    started = np.searchsorted(np.sort(records.start), records.launch_start, side="right")
    outstanding = np.arange(len(records.start)) - started
    full = np.zeros(len(own), bool)
    has = np.flatnonzero(launches & (first < len(records.start)))
    full[has] = outstanding[first[has]] >= 0.8 * QUEUE_DEPTH
    return np.where(launches & full & (own > PASSIVE_CALL_FACTOR * median), median, own)


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
