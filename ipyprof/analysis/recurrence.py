"""Passes of a program over one host, its launch queue and the device's streams, without a step for every item.

Host and streams only wait: each is where it would be alone, or behind what it waited for, whichever is later. While
nothing waits, the host's times are a running sum, and a stream's are a running sum and a running maximum over its
launches. So the host's times are kept as those without any waiting and a *delay* that only grows. What is left to be
done one by one are *meetings*: synchronisations, blocking copies, and records that wait for another stream's. A full
launch queue is one more delay, known a queue's length ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.attribution import LAUNCH_TO_START_NS, Act, Bool, Float
from ipyprof.analysis.program import Program
from ipyprof.trace.model import Int64

BETWEEN_RECORDS_NS = 1_000.0  # a record that found its stream idle starts this long after the one before it
NEVER = -np.inf
GRAIN = 1024.0  # to the ns: sums of such times are exact for two hours, so that what changes nothing changes no bit

_RUN = 6  # beside the acts: rows of one lane between two meetings

Meeting = tuple[int, int, int, int, float, float, float, float, int, float]
"""What the host or a stream comes to, in order: (what, stream, first, last, at, latency, pause, length, other, after).

``what`` is an ``Act`` from ``SYNC_DEVICE`` on for a host item: ``first`` is the item, ``last`` the record that it waits
for or copies, -1 = none; ``at`` is float ns from the pass's begin to its call if the host never waits; the next three
are the record's. Or ``_RUN``: ``first`` is the record of the first row, ``last`` that of the last row if something
waits for it; ``at`` is when the rows are done if their stream is free and the host never waits, ``latency`` how long
they take from the first one's start, ``length`` from when the stream is done with what comes before; the first one
starts ``after`` ns behind the record ``other``, -1 = none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one stream runs in a pass, (r,) in order of launch.

    Attributes:
        stream: its key.
        record: index of each; item: host item that launched it.
        arrival: float ns from the pass's begin to its earliest start if the host never waits.
        length: float ns; pause: float ns behind the record before it.
        busy: (r + 1,) float ns that the records before each take if the stream is never free.
        waits: rows whose record depends on another one; cuts: rows behind a meeting, the first one included.
    """

    stream: int
    record: Int64
    item: Int64
    arrival: Float
    length: Float
    pause: Float
    busy: Float
    waits: Int64
    cuts: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Host items [begin, end) with no more launches than the queue holds: where it is full is known before.

    Attributes:
        launches: (first, last) of the pass's launches.
        rows: (number of the lane, first, last row) of each lane that runs something.
        edges: offsets from ``begin`` of the stretches between the host's meetings: where each begins, then the end.
        meetings: in order.
    """

    begin: int
    end: int
    launches: tuple[int, int]
    rows: tuple[tuple[int, int, int], ...]
    edges: tuple[int, ...]
    meetings: tuple[Meeting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A program with its costs, ready for passes.

    Attributes:
        call, end: (k,) float ns from the pass's begin to each item's call and to its end if the host never waits.
        stretch: (k,) number of the host's meetings before each item.
        launch_item, launch_record, launch_call: (l,) item of each launch, its first record, its ``call``.
        queue: launches that fit in the queue, 0 = unlimited.
    """

    call: Float
    end: Float
    stretch: Int64
    launch_item: Int64
    launch_record: Int64
    launch_call: Float
    lanes: tuple[Lane, ...]
    blocks: tuple[Block, ...]
    queue: int


@dataclass(slots=True, kw_only=True)
class State:
    """Where host and device are between two passes, and what the last one left.

    Attributes:
        host: float ns; ready: float ns per stream.
        recent: (queue,) float ns, start of the first record of the launches before, the oldest first.
        start: (m,) float ns of each record, -inf = it never ran.
        ended: ends of the records that something waits for.
        delays: for each block the delay before it, and behind each of its items or behind all of them.
    """

    host: float
    ready: list[float]
    recent: Float
    start: Float
    ended: dict[int, float]
    delays: list[tuple[float, Float | float]]


def exact(times: Float) -> Float:
    """Float ns, rounded to the grain."""
    return np.rint(times * GRAIN) / GRAIN


def opening(program: Program) -> State:
    """The recorded initial state."""
    begin = float(program.begin)
    return State(
        host=begin,
        ready=[max(at, begin) if at > NEVER else NEVER for at in program.ready.tolist()],
        recent=np.full(program.queue, NEVER),
        start=np.full(len(program.dur), NEVER),
        ended={},
        delays=[],
    )


def advance(prepared: Prepared, state: State) -> None:
    """One pass from this state; it is where the pass ends then."""
    delay = state.host
    delays: list[tuple[float, Float | float]] = []
    for block in prepared.blocks:
        full = _queue_delays(prepared, block, state, delay)
        levels, late = _meet(prepared, block, state, delay, full) if block.meetings else ([delay], {})
        by_item: Float | None = None
        behind: Float | None = None
        if full is not None or len(levels) > 1:
            stretch = prepared.stretch[block.begin : block.end]
            by_item = np.asarray(levels)[stretch - stretch[0]]
            if full is not None:
                by_item = np.maximum(by_item, full)
            behind = by_item.copy()
            # The delay of a meeting is behind it.
            behind[np.asarray(block.edges[1 : len(levels)], np.int64) - 1] = levels[1:]
        delays.append((delay, delay if behind is None else behind))
        for number, first, last in block.rows:
            lane = prepared.lanes[number]
            arrival = lane.arrival[first:last]
            arrival = arrival + (delay if by_item is None else by_item[lane.item[first:last] - block.begin])
            _run_lane(lane, first, last, arrival, state, late)
        if behind is not None:
            delay = float(behind[-1])
        if prepared.queue:
            first, last = block.launches
            fresh = state.start[prepared.launch_record[first:last]]
            state.recent = np.concatenate((state.recent[len(fresh) :], fresh))
    state.delays = delays
    if len(prepared.end):
        state.host = float(prepared.end[-1]) + delay


def host_times(prepared: Prepared, state: State) -> tuple[Float, Float, Float]:
    """(k,) each: when in the last pass the gap before each item began, its call began, its call ended."""
    behind = np.empty(len(prepared.call))
    before = np.empty(len(prepared.call))
    for block, (delay, delays) in zip(prepared.blocks, state.delays, strict=True):
        behind[block.begin : block.end] = delays
        before[block.begin] = delay
        before[block.begin + 1 : block.end] = behind[block.begin : block.end - 1]
    gap_begin = np.concatenate((np.zeros(min(len(before), 1)), prepared.end[:-1])) + before
    return gap_begin, prepared.call + before, prepared.end + behind


def _queue_delays(prepared: Prepared, block: Block, state: State, delay: float) -> Float | None:
    """(items,) the least delay at each item by the queue, counted from the host's last meeting; ``None`` = it has room.

    A launch waits for the start of the one that is a queue's length before it.
    """
    first, last = block.launches
    if not prepared.queue or first == last:
        return None
    free = state.recent[: last - first] - prepared.launch_call[first:last]
    if float(free.max()) <= delay:
        return None
    least = np.full(block.end - block.begin, NEVER)
    least[prepared.launch_item[first:last] - block.begin] = free
    for begin, end in zip(block.edges[:-1], block.edges[1:], strict=True):
        np.maximum.accumulate(least[begin:end], out=least[begin:end])
    return least


def _meet(
    prepared: Prepared, block: Block, state: State, delay: float, full: Float | None
) -> tuple[list[float], dict[int, float]]:
    """The host's delay in each stretch of the block, and when each record that depends on another one may begin."""
    ready, ended = list(state.ready), state.ended
    floors = {} if full is None else _done_by_queue(prepared, block, full)
    levels: list[float] = [delay]
    late: dict[int, float] = {}
    for what, stream, first, last, at, latency, pause, length, other, after in block.meetings:
        if what == _RUN:
            before = ready[stream]
            done = before + length
            if at + delay > done:
                done = at + delay
            if full is not None and floors[first] > done:
                done = floors[first]
            if other >= 0:
                late[first] = begin = ended.get(other, NEVER) + after
                if begin + latency > done:
                    done = begin + latency
            if last >= 0:
                ended[last] = done
            if done > before:
                ready[stream] = done
            continue
        if full is not None:
            delay = max(delay, float(full[first - block.begin]))
        if what == Act.SYNC_DEVICE:
            awaited = max(ready)
        elif what == Act.SYNC_STREAM:
            awaited = ready[stream]
        elif what == Act.SYNC_RECORD:
            awaited = ended.get(last, NEVER)
        else:
            awaited = max(at + delay + latency, ready[stream] + pause) + length
            ended[last] = awaited
            ready[stream] = max(ready[stream], awaited)
        delay = max(delay, awaited - at)
        levels.append(delay)
    return levels, late


def _done_by_queue(prepared: Prepared, block: Block, full: Float) -> dict[int, float]:
    """When the rows behind each meeting are done by the queue's delays, by the record of the first one."""
    floors: dict[int, float] = {}
    for number, first, last in block.rows:
        lane = prepared.lanes[number]
        cuts = lane.cuts[np.searchsorted(lane.cuts, first) : np.searchsorted(lane.cuts, last)]
        done = lane.arrival[first:last] + full[lane.item[first:last] - block.begin] + lane.length[first:last]
        latest = np.maximum.reduceat(done - lane.busy[first + 1 : last + 1], cuts - first)
        latest += lane.busy[np.append(cuts[1:], last)]
        floors.update(zip(lane.record[cuts].tolist(), latest.tolist(), strict=True))
    return floors


def _run_lane(lane: Lane, first: int, last: int, arrival: Float, state: State, late: dict[int, float]) -> None:
    """When each of these rows starts, and when the stream is ready then."""
    if late:
        waits = lane.waits[np.searchsorted(lane.waits, first) : np.searchsorted(lane.waits, last)]
        behind = [late[record] for record in lane.record[waits].tolist()]
        arrival[waits - first] = np.maximum(arrival[waits - first], behind)
    # Without what the stream was busy for, it is ready at the latest of all ends so far.
    latest = np.empty(last - first + 1)
    latest[0] = state.ready[lane.stream] - lane.busy[first]
    np.add(arrival, lane.length[first:last] - lane.busy[first + 1 : last + 1], out=latest[1:])
    np.maximum.accumulate(latest, out=latest)
    state.ready[lane.stream] = float(latest[-1] + lane.busy[last])
    behind_it = latest[:-1] + (lane.busy[first:last] + lane.pause[first:last])
    state.start[lane.record[first:last]] = np.maximum(arrival, behind_it)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """(r,) all records that a pass runs, in order of launch, with their launches and the stretches these are in."""

    record: Int64
    item: Int64
    stream: Int64
    at: Float
    latency: Float
    pause: Float
    length: Float
    depends: Int64
    after: Float
    copied: Bool
    block: Int64
    stretch: Int64


def prepare(program: Program, gap: Float, own: Float, *, deflated: bool) -> Prepared:
    """The program with these gaps and own call times, ready for passes.

    Args:
        gap, own: (k,) float ns; deflated: they are without what recording cost, and pauses within graphs with them.
    """
    count = len(gap)
    total = np.empty(2 * count)
    total[0::2], total[1::2] = exact(gap), exact(own)
    np.cumsum(total, out=total)
    call, end = total[0::2].copy(), total[1::2].copy()
    launching, meeting = program.act == Act.LAUNCH, program.act >= Act.SYNC_DEVICE
    stretch: Int64 = np.cumsum(meeting) - meeting
    launch_item = np.flatnonzero(launching)
    block_of = np.zeros(count, np.int64)
    if program.queue and len(launch_item) > program.queue:
        block_of = np.minimum(np.cumsum(launching) - launching, len(launch_item) - 1) // program.queue
    rows = _rows(program, call, end, block_of, stretch, deflated=deflated)
    lanes, runs = _lanes(rows, _awaited(program, rows))
    meetings: list[Meeting] = []
    at_item = np.empty(0, np.int64)
    if meeting.any() or any(len(lane.waits) for lane in lanes):
        meetings, at_item = _in_order([*runs, _host_meetings(program, rows, call)])
    begins = np.searchsorted(block_of, np.arange(int(block_of[-1]) + 2 if count else 1))
    own_meetings = np.searchsorted(at_item, begins).tolist()
    launches = np.searchsorted(launch_item, begins).tolist()
    host = np.flatnonzero(meeting) + 1
    host_bounds = np.searchsorted(host - 1, begins).tolist()
    lane_bounds = [np.searchsorted(lane.item, begins).tolist() for lane in lanes]
    blocks: list[Block] = []
    for at, (first, last) in enumerate(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)):
        here = meetings[own_meetings[at] : own_meetings[at + 1]]
        while here and here[-1][0] == _RUN and here[-1][8] < 0 and here[-1][3] < 0:  # nobody waits for them
            here.pop()
        bounds = ((number, bound[at], bound[at + 1]) for number, bound in enumerate(lane_bounds))
        edges = (host[host_bounds[at] : host_bounds[at + 1]] - first).tolist()
        blocks.append(
            Block(
                begin=first,
                end=last,
                launches=(launches[at], launches[at + 1]),
                rows=tuple(bound for bound in bounds if bound[1] < bound[2]),
                edges=(0, *edges, last - first),
                meetings=tuple(here),
            )
        )
    return Prepared(
        call=call,
        end=end,
        stretch=stretch,
        launch_item=launch_item,
        launch_record=program.first[launch_item],
        launch_call=call[launch_item],
        lanes=lanes,
        blocks=tuple(blocks),
        queue=program.queue,
    )


def _rows(program: Program, call: Float, end: Float, block_of: Int64, stretch: Int64, *, deflated: bool) -> _Rows:
    launched = np.where(program.act == Act.LAUNCH, program.last - program.first, program.act == Act.BLOCKING_COPY)
    item = np.repeat(np.arange(len(launched)), launched)
    record = program.first[item] + np.arange(len(item)) - np.repeat(np.cumsum(launched) - launched, launched)
    copied = program.act[item] == Act.BLOCKING_COPY
    depends = program.depends[record]
    alone = depends < 0
    idle = program.idle[record] & alone
    after = program.pause[record]
    pause = np.where(idle, BETWEEN_RECORDS_NS, after)
    if deflated:
        pause = np.where(program.graph[record], np.minimum(pause, 0.0), pause)
    return _Rows(
        record=record,
        item=item,
        stream=program.stream[record],
        at=np.where(program.at_end[item] & ~copied, end[item], call[item]),
        latency=np.where(idle, program.latency[record], float(LAUNCH_TO_START_NS)),
        pause=np.where(alone, pause, BETWEEN_RECORDS_NS),
        length=exact(program.dur[record]),
        depends=np.where(copied, -1, depends),
        after=after,
        copied=copied,
        block=block_of[item],
        stretch=stretch[item],
    )


def _awaited(program: Program, rows: _Rows) -> Bool:
    """(r,) whether another record or the host waits for this one."""
    awaited = np.zeros(len(program.dur) + 1, bool)
    awaited[rows.depends] = True
    awaited[program.target[program.act == Act.SYNC_RECORD]] = True
    awaited[-1] = False
    return awaited[rows.record]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """(j,) meetings of one sort; ``place`` is twice the number of rows before them, and one more for rows."""

    place: Int64
    item: Int64
    columns: tuple[npt.NDArray[Any] | float, ...]


def _lanes(rows: _Rows, awaited: Bool) -> tuple[tuple[Lane, ...], list[_Table]]:
    """Each stream's rows, and the runs of them between meetings."""
    order = np.argsort(rows.stream, kind="stable")
    streams, begins = np.unique(rows.stream[order], return_index=True)
    lanes: list[Lane] = []
    runs: list[_Table] = []
    for stream, mine in zip(streams.tolist(), np.split(order, begins[1:]), strict=False):
        length, pause, record, item = rows.length[mine], rows.pause[mine], rows.record[mine], rows.item[mine]
        depends, target, copied = rows.depends[mine], awaited[mine], rows.copied[mine]
        taken = pause + length
        busy = np.concatenate(([0.0], np.cumsum(np.maximum(taken, 0.0))))
        arrival = rows.at[mine] + rows.latency[mine]
        # A record that ends before the one in front of it is not when the stream is ready: it stands alone.
        alone = copied | (target & (taken < 0))
        cut = (np.diff(rows.stretch[mine]) != 0) | (np.diff(rows.block[mine]) != 0)
        cut |= alone[1:] | alone[:-1] | target[:-1] | (depends[1:] >= 0)
        first = np.concatenate(([0], np.flatnonzero(cut) + 1))
        last = np.append(first[1:], len(mine))
        lanes.append(
            Lane(
                stream=stream,
                record=record,
                item=item,
                arrival=arrival,
                length=length,
                pause=pause,
                busy=busy,
                waits=np.flatnonzero(depends >= 0),
                cuts=first,
            )
        )
        done = np.maximum.reduceat(arrival + length - busy[1:], first) + busy[last]
        whole = np.where(last - first == 1, taken[first], busy[last] - busy[first])
        from_first = length[first] + (busy[last] - busy[first + 1])
        saved = np.where(target[last - 1], record[last - 1], -1)
        columns = (
            _RUN,
            stream,
            record[first],
            saved,
            done,
            from_first,
            0.0,
            whole,
            depends[first],
            rows.after[mine[first]],
        )
        kept = ~copied[first]
        runs.append(
            _Table(
                place=2 * mine[first[kept]] + 1,
                item=item[first[kept]],
                columns=tuple(column[kept] if isinstance(column, np.ndarray) else column for column in columns),
            )
        )
    return tuple(lanes), runs


def _host_meetings(program: Program, rows: _Rows, call: Float) -> _Table:
    item = np.flatnonzero(program.act >= Act.SYNC_DEVICE)
    act = program.act[item]
    row = np.searchsorted(rows.item, item)
    copies = act == Act.BLOCKING_COPY
    stream = np.where(act == Act.SYNC_STREAM, program.target[item], -1)
    record = np.where(act == Act.SYNC_RECORD, program.target[item], -1)
    latency, pause, length = np.zeros(len(item)), np.zeros(len(item)), np.zeros(len(item))
    copy = row[copies]
    stream[copies], record[copies] = rows.stream[copy], rows.record[copy]
    latency[copies], pause[copies], length[copies] = rows.latency[copy], rows.pause[copy], rows.length[copy]
    return _Table(
        place=2 * row,
        item=item,
        columns=(act, stream, item, record, call[item], latency, pause, length, -1, 0.0),
    )


def _in_order(tables: list[_Table]) -> tuple[list[Meeting], Int64]:
    """All meetings in the order in which they happen, and the host item of each."""
    item = np.concatenate([table.item for table in tables])
    order = np.lexsort((item, np.concatenate([table.place for table in tables])))
    columns = [
        np.concatenate([np.broadcast_to(column, len(table.item)) for column, table in zip(one, tables, strict=True)])
        for one in zip(*(table.columns for table in tables), strict=True)
    ]
    what, stream, first, last, at, latency, pause, length, other, after = (column[order].tolist() for column in columns)
    return list(zip(what, stream, first, last, at, latency, pause, length, other, after, strict=True)), item[order]
