"""Which interval encloses which on one host thread, and which one holds an instant."""

from __future__ import annotations

import numpy as np

from ipyprof.trace.model import Int64, Trace
from ipyprof.trace.ordering import nested_order

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
