"""The same collective on several ranks: matched by process group, step and order, never by an id of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.collective_kinds import CollectiveKind
from ipyprof.analysis.launched import Bool, Float
from ipyprof.analysis.rank_summary import RankSummary
from ipyprof.trace.model import Int64

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
