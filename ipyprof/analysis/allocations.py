"""The blocks of one device's memory: when each was allocated and freed, and what ran then."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.attribution import NODE_PREFIX, innermost, parents
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import LINE_PREFIX, Kind, Role
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

Bool = npt.NDArray[np.bool_]
OPTIMIZER_PREFIX = "Optimizer.step#"
NEVER = 1 << 62
_BARE_ALLOCATIONS = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::resize_", "aten::new_empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Blocks of one device, (b,), in the order of their birth, and the records that they come from, (m,).

    A block is there from record ``born`` on and not any more from record ``died`` on.

    Attributes:
        time_ns: (m,) int64 of the records, sorted; allocated_bytes: (m + 1,) int64 totals, the first before them all.
        born: record that allocated it, -1 = before the recording; died: record that freed it, ``NEVER`` = still there.
        address, size: int64.
        operator: index of the operator around its birth (not a bare allocation, where one is around that), -1 = none.
        line: the cell's line that ran at its birth, 0 = none.
        step: the recorded step of its birth, -1 = before or between.
        in_backward: born in a node of the backward pass; dies_in_backward: freed in one.
        in_optimizer: born in an optimizer's step.
    """

    time_ns: Int64
    allocated_bytes: Int64
    born: Int64
    died: Int64
    address: Int64
    size: Int64
    operator: Int64
    line: Int64
    step: Int64
    in_backward: Bool
    dies_in_backward: Bool
    in_optimizer: Bool

    def alive(self, record: int) -> Bool:
        """(b,) bool: there right after this record; -1 = before the first."""
        return (self.born <= record) & (self.died > record)

    def total(self, record: int) -> int:
        """Bytes allocated right after this record."""
        return int(self.allocated_bytes[record + 1])


def lifetimes(
    trace: Trace, steps: Steps, live: LiveRecord | None, device: int, marks_ns: Int64 | None = None
) -> Lifetimes | None:
    """The blocks of a device; ``None`` where the file has no addresses.

    Records that are missing are bridged: an address that is allocated twice was freed in between, one that is freed
    twice was allocated in between.

    Args:
        marks_ns: sorted instants at which steps begin, where they are others than the whole steps' marks.
    """
    records = trace.memory
    mine = np.flatnonzero(records.device == device)
    if len(mine) == 0 or not records.address[mine].any():
        return None
    time, delta, address = records.time_ns[mine], records.delta_bytes[mine], records.address[mine]
    totals = np.concatenate(([records.allocated_bytes[mine[0]] - delta[0]], records.allocated_bytes[mine]))
    order = np.lexsort((np.arange(len(mine)), address))
    same = np.append(address[order][1:] == address[order][:-1], False)
    gives = delta[order] > 0
    following = np.append(order[1:], -1)
    born_here = np.flatnonzero(gives)
    old = np.flatnonzero(~gives & ~np.concatenate(([False], same[:-1] & gives[:-1])))
    # An address that was freed before was allocated unseen since; else the block is older than the recording.
    freed_before = np.concatenate(([False], same[:-1]))[old]
    born = np.concatenate((order[born_here], np.where(freed_before, order[np.maximum(old - 1, 0)], -1)))
    died = np.concatenate((np.where(same[born_here], following[born_here], NEVER), order[old]))
    source = np.concatenate((order[born_here], order[old]))
    known = np.concatenate((np.ones(len(born_here), bool), np.zeros(len(old), bool)))
    sequence = np.argsort(born, kind="stable")
    born, died, source, known = born[sequence], died[sequence], source[sequence], known[sequence]

    at, thread = time[source], records.tid[mine][source]
    freed = np.where(died < NEVER, died, 0)
    freed_at, freed_thread = time[freed], records.tid[mine][freed]
    nodes = _named(trace, Kind.OPERATOR, NODE_PREFIX)
    optimizers = _named(trace, Kind.ANNOTATION, OPTIMIZER_PREFIX)
    marks = steps.marks_ns if marks_ns is None else marks_ns
    step = np.searchsorted(marks, at, side="right") - 1
    return Lifetimes(
        time_ns=time,
        allocated_bytes=totals.astype(np.int64),
        born=born.astype(np.int64),
        died=died.astype(np.int64),
        address=address[source],
        size=np.abs(delta[source]),
        operator=np.where(known, operators_at(trace, at, thread), -1),
        line=np.where(known, lines_at(trace, steps, live, at), 0),
        step=np.where(known & (step < len(marks) - 1), step, -1),
        in_backward=known & (_inside(trace, nodes, at, thread) >= 0),
        dies_in_backward=(died < NEVER) & (_inside(trace, nodes, freed_at, freed_thread) >= 0),
        in_optimizer=known & (_inside(trace, optimizers, at, thread) >= 0),
    )


def operators_at(trace: Trace, at: Int64, thread: Int64) -> Int64:
    """(k,) int64 index of the innermost operator around each instant that does more than allocate, -1 = none."""
    events = trace.select(Kind.OPERATOR)
    if len(events) == 0:
        return np.full(len(at), -1, np.int64)
    start, end, tid = trace.start_ns[events], trace.end_ns[events], trace.tid[events]
    parent = parents(start, end, tid)
    found = innermost(start, end, tid, at, thread, parent)
    bare = np.array([name.split(".")[0] in _BARE_ALLOCATIONS for name in trace.names], bool)[trace.name[events]]
    node = np.array([name.startswith(NODE_PREFIX) for name in trace.names], bool)[trace.name[events]]
    for _ in range(4):
        around = np.where(found >= 0, parent[np.maximum(found, 0)], -1)
        better = (found >= 0) & bare[np.maximum(found, 0)] & (around >= 0) & ~node[np.maximum(around, 0)]
        if not better.any():
            break
        found = np.where(better, around, found)
    return np.where(found >= 0, events[np.maximum(found, 0)], -1)


def lines_at(trace: Trace, steps: Steps, live: LiveRecord | None, at: Int64) -> Int64:
    """(k,) int64: the cell's line that ran on the marking thread at each instant, 0 = none."""
    lines = trace.select(Kind.LINE)
    lines = lines[trace.tid[lines] == steps.thread]
    numbers = np.array([line_number(name) or 0 for name in trace.names] or [0], np.int64)
    thread = np.full(len(at), steps.thread, np.int64)
    found = innermost(trace.start_ns[lines], trace.end_ns[lines], trace.tid[lines], at, thread)
    default = 0 if live is None else live.current_line or 0
    if len(lines) == 0:
        return np.full(len(at), default, np.int64)
    return np.where(found >= 0, numbers[trace.name[lines[np.maximum(found, 0)]]], default)


def line_number(name: str) -> int | None:
    """The line that one of our own ranges stands for, ``None`` for any other name."""
    number = name.removeprefix(LINE_PREFIX).split(maxsplit=1)
    known = name.startswith(LINE_PREFIX) and number and number[0].isdecimal() and len(number[0]) < 8
    return int(number[0]) if known else None


def _named(trace: Trace, kind: Kind, prefix: str) -> Int64:
    events = trace.select(kind)
    named: Int64 = events[np.array([name.startswith(prefix) for name in trace.names], bool)[trace.name[events]]]
    return named


def _inside(trace: Trace, events: Int64, at: Int64, thread: Int64) -> Int64:
    return innermost(trace.start_ns[events], trace.end_ns[events], trace.tid[events], at, thread)


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


Place = tuple[int, str]


def growth_of(
    blocks: Lifetimes, group: Int64, places: Sequence[Place], marks: Sequence[int]
) -> list[tuple[int, int, Int64]]:
    """(group, bytes from mark to mark, its blocks that are there at the last mark) of each group that grows.

    A group grows that holds more at every mark. The newest blocks are often held by another name than those before:
    ``loss`` is not in the list yet when the look is taken, ``x`` is the newest of what a cache keeps. Where all memory
    grows, they count for the group that kept what came from their place in the steps before.

    Args:
        group: (b,) int64 from 0.
        places: (b,) line and operator of each block's birth.
        marks: at least three records.
    """
    count = int(group.max(initial=-1)) + 1
    found = _grown(blocks, group, count, marks)
    total = np.diff([blocks.total(mark) for mark in marks])
    if total[-1] > 0 and np.median(total) > 0:
        found |= _grown(blocks, _carried_on(blocks, group, places, marks), count, marks)
    return [(at, size, mine) for at, (size, mine) in sorted(found.items())]


def _grown(blocks: Lifetimes, group: Int64, count: int, marks: Sequence[int]) -> dict[int, tuple[int, Int64]]:
    """Group to (median change, its blocks at the last mark), of those that grow from each mark to the next."""
    held = [np.bincount(group[alive], blocks.size[alive], count) for alive in map(blocks.alive, marks)]
    change = np.diff(np.array(held).astype(np.int64), axis=0)
    alive = blocks.alive(marks[-1])
    return {
        at: (int(np.median(change[:, at])), np.flatnonzero((group == at) & alive))
        for at in np.flatnonzero((change > 0).all(axis=0)).tolist()
    }


def _carried_on(blocks: Lifetimes, group: Int64, places: Sequence[Place], marks: Sequence[int]) -> Int64:
    """(b,) the groups, where blocks of the last interval go with what is still there of their place's earlier ones.

    Blocks of the same size come first; where none is of the same size, as with lengths that vary, any size will do.
    """
    there = np.flatnonzero(blocks.alive(marks[-1]) & (blocks.born > marks[0]))
    earlier: dict[tuple[Place, int], Counter[int]] = {}
    newest: dict[Place, list[int]] = {}
    for at in there.tolist():
        place = places[at]
        if not any(place):
            continue
        if blocks.born[at] > marks[-2]:
            newest.setdefault(place, []).append(at)
            continue
        for size in (int(blocks.size[at]), 0):
            earlier.setdefault((place, size), Counter())[int(group[at])] += 1
    found: Int64 = group.copy()
    for place, mine in newest.items():
        same = [at for at in mine if (place, int(blocks.size[at])) in earlier]
        for at in same or mine:
            known = earlier.get((place, int(blocks.size[at]) if same else 0))
            if known is not None:
                found[at] = known.most_common(1)[0][0]
    return found


# CUDACachingAllocator.cpp, kMinBlockSize and kSmallSize: a remainder of at most so much stays with a block that is
# larger than the second, of less than the first with a smaller one.
GRAIN_BYTES = 512
SMALL_BYTES = 1 << 20


def matched(blocks: Sequence[int], sizes: Sequence[int], asked: Sequence[int]) -> list[tuple[int, int]]:
    """(block, bytes asked for) of the blocks that can be for one of these requests, each request once.

    From the largest block down, each takes the largest request that is left and fits, so that all find theirs where
    there is one for each.
    """
    left = sorted(asked)
    found = []
    for size, block in sorted(zip(sizes, blocks, strict=True), reverse=True):
        at = bisect_right(left, size) - 1
        if at >= 0:
            rounded = -(-left[at] // GRAIN_BYTES) * GRAIN_BYTES
            if size - rounded <= (SMALL_BYTES if rounded > SMALL_BYTES else 0):
                found.append((block, left.pop(at)))
    return found
