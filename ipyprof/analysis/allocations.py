"""The blocks of one device's memory: when each was allocated and freed, and what ran then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.attribution import NODE_PREFIX, innermost, parents
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import LINE_PREFIX, Kind
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
