"""Collectives of several ranks matched by group, step and order, and the clocks of their hosts brought together.

All ranks leave a collective together, whenever they entered it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.attribution import Bool, Float
from ipyprof.ranks.collectives import END, EXPOSED, JOINED, KIND, READY, START, STEP, CollectiveKind
from ipyprof.ranks.summary import RankSummary
from ipyprof.trace.model import Int64

UNRELATED_NS = 10**14
"""Bases further apart than this, a day, are not of one run: some files do not say when they began."""
OTHER_HOST_NS = 1_000_000  # clocks of one host agree better than this; hosts may share a name
REFINEMENTS = 4
COLUMNS = [READY, START, END, JOINED, EXPOSED]
Steps = dict[int, dict[int, list[tuple[int, ...]]]]
"""Number of a step → position of a rank → its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMatch:
    """The collectives of one process group, in order. Arrays are (c, r) over the ranks of ``columns``.

    Attributes:
        columns: (r,) positions of its ranks among the summaries.
        kinds: (c,) what each one is.
        step: (c,) number of its step.
        ready_ns, start_ns, end_ns: float since the earliest base; NaN where a rank lacks it.
        joined: the rank's own work waited for its end.
        exposed_ns: float.
    """

    columns: Int64
    kinds: tuple[CollectiveKind, ...]
    step: Int64
    ready_ns: Float
    start_ns: Float
    end_ns: Float
    joined: Bool
    exposed_ns: Float


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


def match(summaries: Sequence[RankSummary]) -> tuple[tuple[GroupMatch, ...], int]:
    """(the collectives that two ranks or more have in common, by group; how many of a rank have no partner)."""
    groups: dict[tuple[str, tuple[int, ...] | None], Steps] = {}
    for at, one in enumerate(summaries):
        steps = [groups.setdefault((kind.group, kind.members), {}) for kind in one.kinds]
        for row in one.rows:
            steps[row[KIND]].setdefault(row[STEP], {}).setdefault(at, []).append(row)
    by_name = sorted(groups.items(), key=lambda item: item[0][0])
    found = [_group(steps, summaries, _bases(summaries)) for _, steps in by_name]
    return tuple(group for group, _ in found if group is not None), sum(lost for _, lost in found)


def clocks_of(groups: Sequence[GroupMatch], summaries: Sequence[RankSummary]) -> Clocks:
    """Offsets from the ends of those collectives that nobody can leave early; of all where there are no such."""
    strict = any(kind.leaves_together for group in groups for kind in group.kinds)
    ends = []
    for group in groups:
        fit = np.array([kind.leaves_together or not strict for kind in group.kinds], bool)
        wide = np.full((int(fit.sum()), len(summaries)), np.nan)
        wide[:, group.columns] = group.end_ns[fit]
        ends.append(wide)
    related = _related(summaries)
    return align(np.concatenate(ends), [one.host if related and one.base_ns else None for one in summaries])


def on_one_clock(group: GroupMatch, clocks: Clocks) -> GroupMatch:
    """The group with all its times on the first rank's clock; NaN where a rank's clock is not known."""
    offset = clocks.offset_ns[group.columns]
    return replace(
        group, ready_ns=group.ready_ns - offset, start_ns=group.start_ns - offset, end_ns=group.end_ns - offset
    )


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


def median_over(values: Float) -> Float:
    """(k,) median over the first axis without NaNs; NaN where there is nothing else."""
    result = np.full(values.shape[1], np.nan)
    filled = ~np.isnan(values).all(axis=0)
    if filled.any():
        result[filled] = np.nanmedian(values[:, filled], axis=0)
    return result


def _offsets(end_ns: Float, seen: Bool) -> Float:
    """(r,) offsets against the first rank, from rank to rank over the collectives that they share."""
    offset = np.full(end_ns.shape[1], np.nan)
    first = int(np.argmax(seen.any(axis=0)))
    offset[first] = 0.0
    while True:
        middle = median_over((end_ns - offset).T)
        reached = seen[~np.isnan(middle)].any(axis=0) & np.isnan(offset)
        if not reached.any():
            break
        offset[reached] = median_over(end_ns[:, reached] - middle[:, np.newaxis])
    for _ in range(REFINEMENTS):
        better = median_over(end_ns - median_over((end_ns - offset).T)[:, np.newaxis])
        offset = np.where(np.isnan(offset), np.nan, better - better[first])
    return offset


def _spread(values: Float) -> float:
    """The 90th percentile of last − first over the rows that have two or more."""
    rows = values[(~np.isnan(values)).sum(axis=1) >= 2]
    if len(rows) == 0:
        return 0.0
    return float(np.percentile(np.nanmax(rows, axis=1) - np.nanmin(rows, axis=1), 90))


def _related(summaries: Sequence[RankSummary]) -> bool:
    bases = [one.base_ns for one in summaries]
    return max(bases, default=0) - min(bases, default=0) <= UNRELATED_NS


def _bases(summaries: Sequence[RankSummary]) -> list[int]:
    """ns to add to each rank's times so that they count from the earliest base; 0 for all where a base is unknown."""
    first = min((one.base_ns for one in summaries), default=0)
    return [one.base_ns - first if _related(summaries) else 0 for one in summaries]


def _group(steps: Steps, summaries: Sequence[RankSummary], bases: Sequence[int]) -> tuple[GroupMatch | None, int]:
    """(one group's collectives, how many have no partner)."""
    columns = np.array(sorted({at for ranks in steps.values() for at in ranks}), np.int64)
    blocks: list[np.ndarray[tuple[int, int, int], np.dtype[np.float64]]] = []
    kinds: list[CollectiveKind] = []
    numbers: list[int] = []
    unmatched = 0
    for step, ranks in sorted(steps.items()):
        names = {at: tuple(summaries[at].kinds[row[KIND]].name for row in rows) for at, rows in ranks.items()}
        usual = Counter(names.values()).most_common(1)[0][0]
        block = np.full((len(usual), len(columns), len(COLUMNS)), np.nan)
        for at, rows in ranks.items():
            place = _place(names[at], usual) if len(ranks) > 1 else None
            if place is None:
                unmatched += len(rows)
                continue
            times = np.array(rows, np.float64)[:, COLUMNS]
            times[:, :3] += float(bases[at])
            block[place : place + len(rows), np.searchsorted(columns, at)] = times
        if len(ranks) > 1:
            whole = next(at for at, name in names.items() if name == usual)
            blocks.append(block)
            kinds += [summaries[whole].kinds[row[KIND]] for row in ranks[whole]]
            numbers += [step] * len(block)
    if not blocks:
        return None, unmatched
    every = np.concatenate(blocks)
    return GroupMatch(
        columns=columns,
        kinds=tuple(kinds),
        step=np.asarray(numbers, np.int64),
        ready_ns=every[:, :, 0],
        start_ns=every[:, :, 1],
        end_ns=every[:, :, 2],
        joined=every[:, :, 3] > 0,
        exposed_ns=every[:, :, 4],
    ), unmatched


def _place(own: tuple[str, ...], usual: tuple[str, ...]) -> int | None:
    """Where a rank's sequence of collectives begins within the usual one: it may lack the first or the last ones."""
    places = (0, len(usual) - len(own))
    return next((at for at in places if at >= 0 and usual[at : at + len(own)] == own), None)
