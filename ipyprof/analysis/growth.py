"""Which holders hold more after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ipyprof.analysis.lifetimes import Lifetimes
from ipyprof.trace.model import Int64

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
