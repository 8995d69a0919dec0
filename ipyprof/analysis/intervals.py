"""Sets of time intervals. Ends are exclusive; every array is int64 ns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipyprof.trace.model import Int64


def union(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Disjoint, sorted (starts, ends) that cover the same instants.

    Args:
        start, end: (n,) int64, any order, may overlap; intervals with end <= start cover nothing.
    """
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(fresh)
    return start[first], reach[np.concatenate((first[1:] - 1, [len(reach) - 1]))]


def covered(start: Int64, end: Int64) -> int:
    """Length of the union in ns."""
    first, last = union(start, end)
    return int((last - first).sum())


def coverage_before(start: Int64, end: Int64, at: Int64) -> Int64:
    """(m,) int64: ns of the union that lie before each instant of ``at``.

    Args:
        start, end: (n,) int64, disjoint and sorted, as ``union`` returns them.
        at: (m,) int64, any order.
    """
    if len(start) == 0:
        return np.zeros(len(at), np.int64)
    before = np.concatenate(([0], np.cumsum(end - start)))
    index = begun(start, at)
    last = np.maximum(index - 1, 0)
    inside = np.where(index > 0, np.minimum(at, end[last]) - start[last], 0)
    return before[last] + inside


def inside(start: Int64, end: Int64, at: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(m,) bool: whether each instant of ``at`` lies in the disjoint, sorted intervals."""
    if len(start) == 0:
        return np.zeros(len(at), bool)
    if _few_in_order(start, at):
        bounds = np.searchsorted(at, np.stack((start, end), axis=1).reshape(-1))
        return np.repeat(np.arange(len(bounds) + 1) % 2 == 1, np.diff(bounds, prepend=0, append=len(at)))
    last = begun(start, at) - 1
    return (last >= 0) & (at < end[np.maximum(last, 0)])


def intersection(start: Int64, end: Int64, other_start: Int64, other_end: Int64) -> tuple[Int64, Int64]:
    """Disjoint, sorted (starts, ends) of the instants that lie in both.

    Args:
        start, end: (n,) int64, disjoint and sorted, as ``union`` returns them; other_start, other_end: (m,), so too.
    """
    first = np.searchsorted(other_end, start, side="right")
    meeting = np.maximum(np.searchsorted(other_start, end) - first, 0)
    mine = np.repeat(np.arange(len(start)), meeting)
    other = np.arange(len(mine)) + np.repeat(first - np.cumsum(meeting) + meeting, meeting)
    return np.maximum(start[mine], other_start[other]), np.minimum(end[mine], other_end[other])


def begun(start: Int64, at: Int64) -> Int64:
    """(m,) int64: how many starts are not after each instant.

    Args:
        start: (n,) int64, sorted.
        at: (m,) int64, any order.
    """
    if not _few_in_order(start, at):
        return np.searchsorted(start, at, side="right")
    return np.repeat(np.arange(len(start) + 1), np.diff(np.searchsorted(at, start), prepend=0, append=len(at)))


def _few_in_order(start: Int64, at: Int64) -> bool:
    """Whether these are few starts between many sorted instants: then each start is looked up, not each instant."""
    return len(start) < len(at) and not np.any(at[1:] < at[:-1])


def sweep(layers: Sequence[tuple[Int64, Int64]], begin: int, stop: int) -> list[int]:
    """ns that each layer owns in [begin, stop), then the ns that no layer covers: they add up to stop - begin exactly.

    An instant belongs to the first layer that covers it.

    Args:
        layers: (start, end) pairs of (n,) int64 arrays, any order, may overlap.
    """
    owned: list[int] = sweep_windows(layers, np.array([begin, stop], np.int64))[:, 0].tolist()
    return owned


def sweep_windows(layers: Sequence[tuple[Int64, Int64]], marks: Int64) -> Int64:
    """(layers + 1, windows) int64: as ``sweep``, for each window between two neighbouring marks, in one pass.

    Args:
        marks: (windows + 1,) int64, sorted.
    """
    owned = np.empty((len(layers) + 1, len(marks) - 1), np.int64)
    seen_start, seen_end = np.empty(0, np.int64), np.empty(0, np.int64)
    seen = np.zeros(len(marks) - 1, np.int64)
    for row, (start, end) in enumerate(layers):
        # Clipped, for times far outside would not fit into a sum.
        start, end = np.clip(start, marks[0], marks[-1]), np.clip(end, marks[0], marks[-1])
        seen_start, seen_end = union(np.concatenate((seen_start, start)), np.concatenate((seen_end, end)))
        total = np.diff(coverage_before(seen_start, seen_end, marks))
        owned[row] = total - seen
        seen = total
    owned[-1] = np.diff(marks) - seen
    return owned


MOST_COMBINATIONS = 1 << 62


def distinct_columns(*columns: Int64) -> tuple[Int64, Int64]:
    """((columns, d), (n,)) int64: the distinct combinations in lexicographic order, and which one each place has.

    Args:
        columns: one or more (n,) int64 of the same length.
    """
    whole = np.zeros(len(columns[0]), np.int64)
    spread = 1
    for column in columns:
        # Ranks, not values: ids of streams may be addresses.
        values, ranks = _ranked(column)
        spread *= max(len(values), 1)
        if spread > MOST_COMBINATIONS:
            table, place = np.unique(np.stack(columns), axis=1, return_inverse=True)
            return table.astype(np.int64), place.reshape(-1).astype(np.int64)
        whole = whole * len(values) + ranks
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns]).astype(np.int64), place.astype(np.int64)


def _ranked(column: Int64) -> tuple[Int64, Int64]:
    """Values from the least to the largest (where that is far, those that occur), and the rank of each."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    if high - low <= 4 * len(column) + 1024:
        return np.arange(low, high + 1), column - low
    values, ranks = np.unique(column, return_inverse=True)
    return values, ranks.astype(np.int64)
