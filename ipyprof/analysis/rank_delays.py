"""How late each rank is in each step.

A rank is late when its own work for a collective is done after the others'. In a stretch of collectives that nothing
waits for (the buckets of one backward pass) the same delay is seen again and again, and counts once: the largest. When
all ranks have waited for a collective they go on together, and what comes later is a new delay. A step's delay is the
sum over its stretches.
"""

from __future__ import annotations

import numpy as np

from ipyprof.analysis.launched import Bool, Float
from ipyprof.analysis.rank_clocks import Clocks
from ipyprof.analysis.rank_matching import GroupMatch
from ipyprof.trace.model import Int64

WAITED_SHARE = 0.25  # of the ranks that show that they waited: a late rank itself shows nothing
SKEW_TIMES = 3.0  # the first collective of a recording is the profiler's start when it is so many times the others
RESET_NS = 100_000  # work that is ready this little before the end of a collective may still have waited for it


def delays_of(group: GroupMatch, clocks: Clocks, numbers: Int64) -> tuple[Float, tuple[int, float] | None]:
    """((steps, r) float ns of delay of each rank in each step, NaN = not seen; the profiler's start, if it shows)."""
    offset = clocks.offset_ns[group.columns]
    ready, end = group.ready_ns - offset, group.end_ns - offset
    lag = _behind_the_others(ready)
    begins = _stretches(group, ready, end)
    blocks, step_of = _blocks(group, lag, begins)
    start = _start_skew(lag, blocks)
    if start is not None:
        lag[0] = np.nan
        blocks, step_of = _blocks(group, lag, begins)
    delays = np.full((len(numbers), len(group.columns)), np.nan)
    for row, number in enumerate(numbers.tolist()):
        mine = blocks[step_of == number]
        if len(mine) and not np.isnan(mine).all():
            delays[row] = np.where(np.isnan(mine).all(axis=0), np.nan, np.nansum(mine, axis=0))
    return delays, start


def _behind_the_others(ready: Float) -> Float:
    """(c, r) how much later than the median of the others each rank is ready."""
    count = ready.shape[1]
    lag = np.full_like(ready, np.nan)
    if count > 16:
        # One more or less does not move the median of many.
        return ready - median_over(ready.T)[:, np.newaxis]
    for at in range(count):
        lag[:, at] = ready[:, at] - median_over(np.delete(ready, at, axis=1).T)
    return lag


def _stretches(group: GroupMatch, ready: Float, end: Float) -> Bool:
    """(c,) whether a new stretch begins with this collective: all have waited for the one before it.

    All are ready for it only after that one has ended, and it is another step's (a step ends with the optimizer, which
    needs the gradients), or enough ranks show that they waited.
    """
    begins = np.ones(len(ready), bool)
    if len(ready) < 2:
        return begins
    there = ~np.isnan(end)
    waited = (group.joined & there).sum(axis=1) >= WAITED_SHARE * np.maximum(there.sum(axis=1), 1)
    after = ready[1:] >= end[:-1] - RESET_NS
    known = there[:-1] & ~np.isnan(ready[1:])
    begins[1:] = (after | ~known).all(axis=1) & (waited[:-1] | (group.step[1:] != group.step[:-1]))
    return begins


def _blocks(group: GroupMatch, lag: Float, begins: Bool) -> tuple[Float, Int64]:
    """((b, r) delay that is new in each stretch of one step, (b,) its step)."""
    edges = begins.copy()
    edges[1:] |= group.step[1:] != group.step[:-1]
    first = np.flatnonzero(edges)
    blocks = np.full((len(first), lag.shape[1]), np.nan)
    last = np.append(first[1:], len(lag))
    carried = np.zeros(lag.shape[1])
    for row, (begin, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        part = lag[begin:stop]
        seen = ~np.isnan(part).all(axis=0)
        most = np.full(lag.shape[1], np.nan)
        most[seen] = np.nanmax(part[:, seen], axis=0)
        blocks[row] = most - (0.0 if begins[begin] else carried)
        carried = np.nan_to_num(part[-1])
    return blocks, group.step[first]


def _start_skew(lag: Float, blocks: Float) -> tuple[int, float] | None:
    """(column, ns) where one rank entered the first collective of the recording far later than any one afterwards."""
    if len(lag) < 2 or len(blocks) < 2 or np.isnan(lag[0]).all():
        return None
    late = int(np.nanargmax(lag[0]))
    rest = max(float(np.nanmax(np.nan_to_num(lag[1:]))), float(np.nanmax(np.nan_to_num(blocks[1:]))), 0.0)
    ns = float(lag[0, late])
    return (late, ns) if ns > SKEW_TIMES * rest and ns > 2 * RESET_NS else None


def median_over(values: Float) -> Float:
    """(k,) median over the first axis without NaNs; NaN where there is nothing else."""
    result = np.full(values.shape[1], np.nan)
    filled = ~np.isnan(values).all(axis=0)
    if filled.any():
        result[filled] = np.nanmedian(values[:, filled], axis=0)
    return result
