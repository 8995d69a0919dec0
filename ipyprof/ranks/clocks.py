"""Clocks of several hosts brought together: all ranks leave a collective together, whenever they entered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.attribution import Bool, Float
from ipyprof.ranks.collectives import CollectiveKind
from ipyprof.ranks.summary import RankSummary
from ipyprof.trace.model import Int64

REFINEMENTS = 4
OTHER_HOST_NS = 1_000_000  # clocks of one host agree better than this; hosts may share a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Offsets to take off each rank's times.

    Attributes:
        offset_ns: (r,) float; NaN where a rank shares no collective with the first ones.
        residual_ns: half of how far apart the ends of a collective still lie, 90th percentile; ``None`` = not measured.
        common: the ranks share one clock, and no offset was taken off.
        ends: collectives whose ends were used.
    """

    offset_ns: Float
    residual_ns: float | None
    common: bool
    ends: int


def align(end_ns: Float, hosts: Sequence[str | None]) -> Clocks:
    """The offsets that bring the ends of collectives together.

    With all ranks on one host their clock is the same, so that nothing is taken off; ends then only give the residual.

    Args:
        end_ns: (c, r) float, NaN where a rank took no part.
        hosts: (r,) names of the machines.
    """
    count = end_ns.shape[1]
    seen = ~np.isnan(end_ns)
    useful = seen.sum(axis=1) >= 2
    end_ns, seen = end_ns[useful], seen[useful]
    one_host = len(set(hosts)) == 1 and hosts[0] is not None
    if len(end_ns) == 0:
        offset = np.zeros(count) if one_host else np.full(count, np.nan)
        return Clocks(offset_ns=offset, residual_ns=None, common=one_host, ends=0)
    offset = _offsets(end_ns, seen)
    aligned, together = _spread(end_ns - offset), _spread(end_ns)
    if one_host and not (together > OTHER_HOST_NS and together > 10 * (aligned or 1.0)):
        return Clocks(offset_ns=np.zeros(count), residual_ns=together / 2, common=True, ends=len(end_ns))
    return Clocks(offset_ns=offset, residual_ns=aligned / 2, common=False, ends=len(end_ns))


def _offsets(end_ns: Float, seen: Bool) -> Float:
    """(r,) offsets against the first rank, from rank to rank over the collectives that they share."""
    count = end_ns.shape[1]
    offset = np.full(count, np.nan)
    first = int(np.argmax(seen.any(axis=0)))
    offset[first] = 0.0
    while True:
        known = ~np.isnan(offset)
        middle = _middle(end_ns - offset)
        reached = seen[~np.isnan(middle)].any(axis=0) & ~known
        if not reached.any():
            break
        offset[reached] = _middle((end_ns[:, reached] - middle[:, np.newaxis]).T)
    for _ in range(REFINEMENTS):
        middle = _middle(end_ns - offset)
        known = ~np.isnan(offset)
        better = _middle((end_ns - middle[:, np.newaxis]).T)
        offset[known] = better[known] - better[first]
    return offset


def _middle(values: Float) -> Float:
    """(k,) median of each row without its NaNs; NaN for a row of nothing else."""
    result = np.full(len(values), np.nan)
    filled = ~np.isnan(values).all(axis=1)
    if filled.any():
        result[filled] = np.nanmedian(values[filled], axis=1)
    return result


def _spread(values: Float) -> float:
    """The 90th percentile of last − first over the rows that have two or more."""
    rows = values[(~np.isnan(values)).sum(axis=1) >= 2]
    if len(rows) == 0:
        return 0.0
    return float(np.percentile(np.nanmax(rows, axis=1) - np.nanmin(rows, axis=1), 90))


KIND, STEP, READY, START, END, JOINED, EXPOSED = range(7)
UNRELATED_NS = 10**14
"""Bases further apart than this, a day, are not of one run: some files do not say when they began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMatch:
    """The collectives of one process group, in order. Arrays are (c, r) over the ranks of ``columns``.

    Attributes:
        group: the group's name; columns: (r,) positions of its ranks among the summaries.
        kinds: (c,) what each one is.
        step: (c,) number of its step.
        ready_ns, start_ns, end_ns: float on each rank's own clock since the earliest base; NaN where a rank lacks it.
        joined: the rank's own work waited for its end.
        exposed_ns: float.
    """

    group: str
    columns: Int64
    kinds: tuple[CollectiveKind, ...]
    step: Int64
    ready_ns: Float
    start_ns: Float
    end_ns: Float
    joined: Bool
    exposed_ns: Float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All groups, and how many collectives of a rank have no partner (``unmatched``)."""

    groups: tuple[GroupMatch, ...]
    unmatched: int


def match(summaries: Sequence[RankSummary]) -> Matching:
    """The collectives that two ranks or more have in common, by group."""
    tables = [np.asarray(one.rows, np.int64).reshape(-1, 7) for one in summaries]
    bases = relative_bases(summaries)
    names: dict[str, int] = {}
    buckets: dict[tuple[str, tuple[int, ...] | None], dict[int, dict[int, Int64]]] = {}
    signatures: list[Int64] = []
    for at, (one, table) in enumerate(zip(summaries, tables, strict=True)):
        keys = [(kind.group, kind.members) for kind in one.kinds]
        name = np.array([names.setdefault(kind.name, len(names)) for kind in one.kinds], np.int64)
        signatures.append(name[table[:, KIND]] if len(table) else table[:, KIND])
        for key in set(keys):
            mine = np.array([other == key for other in keys], bool)[table[:, KIND]]
            for step in np.unique(table[mine, STEP]).tolist():
                rows = np.flatnonzero(mine & (table[:, STEP] == step))
                buckets.setdefault(key, {}).setdefault(step, {})[at] = rows
    groups, unmatched = [], 0
    for (group, _), steps in sorted(buckets.items(), key=lambda item: item[0][0]):
        found, lost = _group(group, steps, tables, signatures, summaries, bases)
        unmatched += lost
        if found is not None:
            groups.append(found)
    return Matching(groups=tuple(groups), unmatched=unmatched)


def relative_bases(summaries: Sequence[RankSummary]) -> tuple[int, ...]:
    """ns to add to each rank's times so that they count from the earliest base; 0 for all where a base is unknown."""
    bases = [one.base_ns for one in summaries]
    if not bases or max(bases) - min(bases) > UNRELATED_NS:
        return (0,) * len(bases)
    return tuple(base - min(bases) for base in bases)


def _group(
    group: str,
    steps: dict[int, dict[int, Int64]],
    tables: Sequence[Int64],
    signatures: Sequence[Int64],
    summaries: Sequence[RankSummary],
    bases: Sequence[int],
) -> tuple[GroupMatch | None, int]:
    columns = np.array(sorted({at for ranks in steps.values() for at in ranks}), np.int64)
    position = {at: index for index, at in enumerate(columns.tolist())}
    blocks: list[np.ndarray[tuple[int, int, int], np.dtype[np.float64]]] = []
    kinds: list[CollectiveKind] = []
    numbers: list[int] = []
    unmatched = 0
    for step in sorted(steps):
        ranks = steps[step]
        texts = {at: signatures[at][rows].tobytes() for at, rows in ranks.items()}
        usual = Counter(texts.values()).most_common(1)[0][0]
        length = len(usual) // 8
        block = np.full((length, len(columns), 5), np.nan)
        taken = False
        for at, rows in ranks.items():
            place = _place(texts[at], usual)
            if place is None or len(ranks) < 2:
                unmatched += len(rows)
                continue
            table = tables[at][rows]
            times = np.array(table[:, [READY, START, END, JOINED, EXPOSED]], np.float64)
            times[:, :3] += float(bases[at])
            block[place : place + len(rows), position[at]] = times
            if not taken and len(rows) == length:
                kinds += [summaries[at].kinds[kind] for kind in table[:, KIND].tolist()]
                taken = True
        if taken:
            blocks.append(block)
            numbers += [step] * length
    if not blocks:
        return None, unmatched
    whole = np.concatenate(blocks)
    return GroupMatch(
        group=group,
        columns=columns,
        kinds=tuple(kinds),
        step=np.asarray(numbers, np.int64),
        ready_ns=whole[:, :, 0],
        start_ns=whole[:, :, 1],
        end_ns=whole[:, :, 2],
        joined=whole[:, :, 3] > 0,
        exposed_ns=whole[:, :, 4],
    ), unmatched


def _place(own: bytes, usual: bytes) -> int | None:
    """Where a rank's sequence of collectives begins within the usual one: it may lack the first or the last ones."""
    if own == usual:
        return 0
    if len(own) > len(usual):
        return None
    for place in {0, len(usual) - len(own)}:
        if usual[place : place + len(own)] == own:
            return place // 8
    return None


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
