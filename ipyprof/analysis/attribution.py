"""What the recording shows of each call and what it launched: how its device work started, what the call waited for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.intervals import distinct_columns
from ipyprof.analysis.steps import Steps
from ipyprof.trace.columns import nested_order
from ipyprof.trace.kinds import DEVICE_KINDS, Kind, Role, copy_direction
from ipyprof.trace.model import Int64, Trace

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
LAUNCH_TO_START_NS = 5_000  # a kernel starts this long after its call began, at the earliest
IDLE_LATENCY_NS = 15_000  # a record that starts within this of its call was held up by the call alone
GAP_CAP_NS = 20_000  # a longer pause of a stream that has work waits for something the file does not name
DEPENDENCY_NS = 10_000  # a record that starts this close behind another stream's end waited for it
STAGED_BYTES = 65_536  # pageable copies to the device up to this size return before they are done (CUDA's manual)
CLOCK_JITTER_NS = 20_000  # host and device clocks agree this well at least
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Device records by launching item, then by start. All but ``ready`` are (m,).

    Attributes:
        event: index in the trace; item: host item that launched it; stream: key 0..streams-1.
        start, end: recorded ns; launch_start: when its call handed it over.
        idle, latency, pause, depends: as in ``Program``.
        ready: (streams,) float ns at which each stream is done with what came before the window, -inf = nothing.
    """

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


def launched_records(trace: Trace, steps: Steps, owner: Int64, calls: Int64, event: Int64) -> Records:
    """Device records launched in the window, by launching item, with how each one started.

    Args:
        owner: (n,) for each event its outermost call, -1 = none; calls: the window's API calls, in time order.
        event: (k,) the call of each host item, -1 for boundaries.
    """
    device = trace.select(*DEVICE_KINDS)
    launch = steps.launch[device]
    mine = np.isin(launch, calls) & (launch >= 0)
    keys, stream_all = distinct_columns(trace.device[device].astype(np.int64), trace.stream[device])
    streams = max(keys.shape[1], 1)
    before = _end_before(stream_all, trace.start_ns[device], trace.end_ns[device])
    ready = np.full(streams, -np.inf)
    opening = trace.start_ns[calls[0]] if len(calls) else steps.marks_ns[0]
    for key in range(keys.shape[1]):
        here = stream_all == key
        # Work that no call of the file launched was there before if the window's own work comes behind it: the host may
        # have left the window long before the device gets to it.
        own_start = trace.start_ns[device[here & mine]]
        until = own_start.min() if len(own_start) else steps.marks_ns[-1]
        carried = (launch < 0) & (trace.start_ns[device] < until)
        early = here & ~mine & (carried | ((launch >= 0) & (trace.start_ns[np.maximum(launch, 0)] < opening)))
        early &= trace.start_ns[device] < max(until, steps.marks_ns[-1])
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
        late = start - np.where(idle, call_start, previous) > DEPENDENCY_NS
        waits = trace.start_ns[calls[trace.role[calls] == Role.STREAM_WAIT]]
        told = _told_to_wait(item[keep], call_start, waits)
        depends = _dependencies(start, end, call_start, stream_all[keep], item[keep], late=late, told=told)
        waited = depends >= 0
        pause[waited] = (start[waited] - end[depends[waited]]).astype(np.float64)
    return Records(
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


def _told_to_wait(item: Int64, launch_start: Int64, waits: Int64) -> Bool:
    """(m,) whether a ``cudaStreamWaitEvent`` was called since the launch before it, of any stream.

    Args:
        item: (m,) launching items, in order; waits: (w,) int64 starts of those calls, in time order.
    """
    # Records of one item are launched together: the launch before is that of the item before.
    first = np.searchsorted(item, item, side="left")
    since = np.where(first > 0, launch_start[np.maximum(first - 1, 0)], np.iinfo(np.int64).min)
    return np.searchsorted(waits, launch_start) > np.searchsorted(waits, since)


def _dependencies(
    start: Int64, end: Int64, launch_start: Int64, stream: Int64, item: Int64, *, late: Bool, told: Bool
) -> Int64:
    """(m,) int64: the record of another stream whose end each late record waited for, -1 = none.

    The file does not name the event of a ``cudaStreamWaitEvent``; a record that starts late, right behind the end of
    another stream's record that was launched earlier, waited for it. A record that was told to wait and starts behind
    nothing of the kind waits for what was launched last before it and was not done when its own launch began; what lies
    between is kept as a pause: a collective gets no place on the GPU while the kernels behind that record fill it.
    """
    depends = np.full(len(start), -1, np.int64)
    by_end = np.argsort(end, kind="stable")
    asking = np.flatnonzero(late)
    begin = start[asking]
    stops = np.searchsorted(end, begin, side="right", sorter=by_end).tolist()
    near = np.searchsorted(end, begin - DEPENDENCY_NS, sorter=by_end).tolist()
    undone = np.searchsorted(end, launch_start[asking], side="right", sorter=by_end).tolist()
    for index, close, since, stop in zip(asking.tolist(), near, undone, stops, strict=True):
        others = by_end[close:stop]
        others = others[(stream[others] != stream[index]) & (item[others] < item[index])]
        if len(others):
            depends[index] = others[-1]
        elif told[index]:
            others = by_end[since:stop]
            others = others[(stream[others] != stream[index]) & (item[others] < item[index])]
            depends[index] = others.max(initial=-1)
    return depends


def acts(
    trace: Trace,
    role: Int64,
    event: Int64,
    start: Int64,
    end: Int64,
    first: Int64,
    last: Int64,
    records: Records,
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
    asking = np.flatnonzero((role == Role.SYNC_STREAM) | partly)
    per_stream = _latest_ends(records, first[asking], far)
    for index, ends in zip(asking, per_stream, strict=True):
        possible = np.where(ends <= end[index] + 2_000, ends, far)
        key = int(np.argmax(possible))
        if possible[key] == far or (partly[index] and possible[key] <= start[index]):
            continue
        act[index], target[index] = Act.SYNC_STREAM, key
        wait[index] = min(max(int(possible[key]) - int(start[index]), 0), int(end[index] - start[index]))
    by_end = np.argsort(records.end, kind="stable")
    ends = records.end[by_end]
    for index in np.flatnonzero(role == Role.SYNC_EVENT):
        # The records that end during the call: few, however long the recording.
        begin, stop = np.searchsorted(ends, (start[index], end[index] + 2_000), side="right").tolist()
        waited = by_end[begin:stop]
        waited = waited[waited < first[index]]
        if len(waited) == 0:
            continue
        target[index] = int(waited[records.end[waited] == records.end[waited[-1]]].min())
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


def _latest_ends(records: Records, first: Int64, far: int) -> Int64:
    """(k, streams) int64 ns: the latest end on each stream of the records before each of ``first``, ``far`` = none."""
    found = np.full((len(first), len(records.ready)), far, np.int64)
    for key in np.unique(records.stream).tolist() if len(first) else ():
        mine = np.flatnonzero(records.stream == key)
        latest = np.concatenate(([far], np.maximum.accumulate(records.end[mine])))
        found[:, key] = latest[np.searchsorted(mine, first)]
    return found


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


def without_queueing(own: Float, act: Int64, records: Records, first: Int64) -> Float:
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


# The clocks of operators and API calls differ by some hundred ns, so that a child can begin before its parent
# (pytorch/kineto PR 991, PR 1082; pytorch/pytorch PR 188956).
SLACK_NS = 500
MOST_SETTLING = 4
MOST_LAYERS = 24


def parents(start: Int64, end: Int64, thread: Int64, slack_ns: int = SLACK_NS) -> Int64:
    """(n,) int64 index of the innermost interval that holds each interval's begin on its thread, -1 = none.

    Of two spans that cross, the later one is the child of the earlier one, unless they overlap by less than
    ``slack_ns``: then they are neighbours. A child that begins less than ``slack_ns`` before its parent stays a child.

    Args:
        start, end: (n,) int64 ns, any order, may nest and cross; end >= start.
        thread: (n,) int64.
        slack_ns: inversions up to this long are the clock's fault.
    """
    parent = np.full(len(start), -1, np.int64)
    if len(start) == 0:
        return parent
    start, end = _apart(start, end, thread)
    start, order = _settled(start, end, slack_ns)
    ends, probes = end[order], probe(start[order], end[order], slack_ns)
    found = np.full(len(order), -1, np.int64)
    remaining = np.arange(len(order))
    # Take off the outermost layer, again and again: each interval's last enclosing layer is its parent.
    for _ in range(MOST_LAYERS):
        reach = np.maximum.accumulate(ends[remaining])
        outer = np.concatenate(([True], probes[remaining[1:]] >= reach[:-1]))
        covering = remaining[outer][np.cumsum(outer) - 1][~outer]
        remaining = remaining[~outer]
        held = ends[covering] > probes[remaining]
        found[remaining[held]] = covering[held]
        if len(remaining) == 0:
            break
    else:
        _sweep_deep(ends, probes, remaining, found)
    parent[order] = np.where(found >= 0, order[np.maximum(found, 0)], -1)
    return parent


def innermost(
    start: Int64, end: Int64, thread: Int64, at: Int64, at_thread: Int64, parent: Int64 | None = None
) -> Int64:
    """(m,) int64 index of the innermost interval that holds each instant on its thread, -1 = none.

    Args:
        start, end, thread: (n,) int64 as for ``parents``.
        at, at_thread: (m,) int64 instants and their threads, any order.
        parent: (n,) what ``parents`` gave for the same intervals, to save its time.
    """
    found = np.full(len(at), -1, np.int64)
    if len(start) == 0 or len(at) == 0:
        return found
    if parent is None:
        parent = parents(start, end, thread)
    for name in np.unique(thread):
        mine, points = np.flatnonzero(thread == name), np.flatnonzero(at_thread == name)
        order = mine[nested_order(start[mine], end[mine] - start[mine])]
        place = np.searchsorted(start[order], at[points], side="right") - 1
        found[points] = np.where(place >= 0, order[np.maximum(place, 0)], -1)
    # The last one to begin may be over: then one of its ancestors holds the instant, or nothing does.
    open_points = np.flatnonzero(found >= 0)
    while len(open_points):
        current = found[open_points]
        open_points = open_points[(end[current] <= at[open_points]) | (start[current] > at[open_points])]
        found[open_points] = parent[found[open_points]]
        open_points = open_points[found[open_points] >= 0]
    return found


def probe(start: Int64, end: Int64, slack_ns: int = SLACK_NS) -> Int64:
    """(n,) int64 instant that decides where an interval lies: its begin, later by the slack but within its first half.

    Args:
        start, end: (n,) int64 ns.
    """
    instant: Int64 = start + np.minimum(slack_ns, (end - start) // 2)
    return instant


def around(trace: Trace, events: Int64, inner: Int64) -> Int64:
    """(k,) int64: position in ``events`` of the innermost one around each event of ``inner`` on its thread, -1 = none.

    Args:
        events, inner: indices of events of the trace.
    """
    start, inner_start = trace.start_ns[events], trace.start_ns[inner]
    return innermost(
        start,
        start + trace.dur_ns[events],
        trace.tid[events],
        probe(inner_start, inner_start + trace.dur_ns[inner]),
        trace.tid[inner],
    )


def _apart(start: Int64, end: Int64, thread: Int64) -> tuple[Int64, Int64]:
    """The same intervals with each thread's moved behind the thread before, so that threads never meet."""
    rank = np.searchsorted(np.unique(thread), thread).astype(np.int64)
    begin = int(start.min())
    shift = rank * (int(end.max()) - begin + 1) - begin
    return start + shift, end + shift


def _settled(start: Int64, end: Int64, slack_ns: int) -> tuple[Int64, Int64]:
    """(starts, order): starts with small inversions undone (such a child begins with its parent), and their order."""
    order = nested_order(start, end - start)
    for _ in range(MOST_SETTLING if slack_ns > 0 else 0):
        first, last = start[order], end[order]
        gap = np.diff(first)
        inverted = (gap > 0) & (gap <= slack_ns) & (first[1:] < last[:-1]) & (last[1:] > last[:-1])
        if not inverted.any():
            break
        start = start.copy()
        start[order[:-1][inverted]] = first[1:][inverted]
        order = nested_order(start, end - start)
    return start, order


def _sweep_deep(ends: Int64, probes: Int64, remaining: Int64, found: Int64) -> None:
    """Fill ``found`` for what is nested deeper than the layers go, one by one: linear in time for any shape."""
    end, at = ends[remaining].tolist(), probes[remaining].tolist()
    open_spans: list[int] = []
    for place, position in enumerate(remaining.tolist()):
        while open_spans and end[open_spans[-1]] <= at[place]:
            open_spans.pop()
        if open_spans:
            found[position] = remaining[open_spans[-1]]
        open_spans.append(place)


NODE_PREFIX = "autograd::engine::evaluate_function"


def forward_times(trace: Trace, steps: Steps, calls: Int64) -> Int64:
    """(c,) int64: for each API call made in a backward node, the start of the forward operator that made the node.

    -1 as in ``forward_operators``.
    """
    made = forward_operators(trace, steps, calls)[1]
    return np.where(made >= 0, trace.start_ns[np.maximum(made, 0)], -1)


def forward_operators(trace: Trace, steps: Steps, calls: Int64) -> tuple[Int64, Int64]:
    """((c,) the backward node around each API call, (c,) the forward operator that made it): indices of events.

    -1 where the call is in no backward node, or the node has no forward operator in the file. Of nested nodes the
    outermost counts: a backward pass inside a node, such as a reentrant checkpoint's, is of what made that node.

    Args:
        calls: (c,) indices of API calls.
    """
    nodes = backward_nodes(trace)
    if len(nodes) == 0 or len(calls) == 0:
        return np.full(len(calls), -1, np.int64), np.full(len(calls), -1, np.int64)
    node_of = around(trace, nodes, calls)
    outer = parents(trace.start_ns[nodes], trace.end_ns[nodes], trace.tid[nodes])
    outermost = np.where(outer >= 0, outer, np.arange(len(nodes)))
    while (further := outermost[outermost] != outermost).any():
        outermost[further] = outermost[outermost[further]]
    made = makers(trace, steps, nodes)
    known, place = node_of >= 0, outermost[np.maximum(node_of, 0)]
    return np.where(known, nodes[place], -1), np.where(known, made[place], -1)


def backward_nodes(trace: Trace) -> Int64:
    """(k,) indices of the nodes that autograd ran, in time order."""
    operators = trace.select(Kind.OPERATOR)
    return operators[_is_node(trace, operators)]


def makers(trace: Trace, steps: Steps, nodes: Int64) -> Int64:
    """(k,) int64: the forward operator that made each backward node, -1 = none (AccumulateGrad has none).

    Nodes and operators share autograd's sequence number, which counts per thread: the forward operator is the last
    one started with that number on the forward thread, before the node ran.

    Args:
        nodes: (k,) all of ``backward_nodes``.
    """
    forward = trace.select(Kind.OPERATOR)
    forward = forward[~_is_node(trace, forward) & (trace.sequence[forward] >= 0)]
    forward = forward[around(trace, nodes, forward) < 0]
    forward = forward[trace.tid[forward] == _forward_thread(trace, steps, nodes, forward)]
    if len(forward) == 0:
        return np.full(len(nodes), -1, np.int64)
    return _last_before(trace, forward, nodes)


def _is_node(trace: Trace, operators: Int64) -> npt.NDArray[np.bool_]:
    """(k,) whether each operator is a node that autograd ran."""
    return np.array([name.startswith(NODE_PREFIX) for name in trace.names], bool)[trace.name[operators]]


def _forward_thread(trace: Trace, steps: Steps, nodes: Int64, forward: Int64) -> int:
    """The thread whose operators share most sequence numbers with the nodes; ties go to the marking thread."""
    numbers = np.unique(trace.sequence[nodes])
    shared = forward[np.isin(trace.sequence[forward], numbers)]
    threads, counts = np.unique(trace.tid[shared], return_counts=True)
    if len(threads) == 0:
        return steps.thread
    best = counts == counts.max()
    return steps.thread if steps.thread in threads[best] else int(threads[best][0])


def _last_before(trace: Trace, forward: Int64, nodes: Int64) -> Int64:
    """(nodes,) int64: for each node the last-started forward operator with its number that began before it, or -1."""
    order = forward[np.lexsort((trace.start_ns[forward], trace.sequence[forward]))]
    # One sorted key for (number, start): numbers are dense ranks, starts are below the trace's length.
    numbers, rank = np.unique(trace.sequence[order], return_inverse=True)
    span = int(trace.start_ns.max()) + 1
    key = rank.astype(np.int64) * span + trace.start_ns[order]
    at = np.searchsorted(numbers, trace.sequence[nodes])
    known = (at < len(numbers)) & (numbers[np.minimum(at, len(numbers) - 1)] == trace.sequence[nodes])
    place = np.searchsorted(key, at * span + trace.start_ns[nodes]) - 1
    known &= (place >= 0) & (rank[np.maximum(place, 0)] == at)
    return np.where(known, order[np.maximum(place, 0)], -1)
