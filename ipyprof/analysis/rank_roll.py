"""Which rank each summary is: from the file, its name, or its place in the list. Nothing is assumed silently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ipyprof.analysis.rank_summary import RankSummary

UNKNOWN_RANK = -1
_IN_NAME = re.compile(r"rank[-_ .]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """The ranks that are there.

    Attributes:
        ranks: one summary for each rank, by rank, all comparable; a CPU-only rank among GPU ranks is not in it.
        missing: ranks of the world without a summary.
        duplicates: (rank, path that is used, paths that are left out).
        cpu_only: summaries without device work among others with it.
        by_order: paths whose rank is only their place in the list.
        world_size: as the files say, or ``None``.
        disagree: the files name several world sizes.
    """

    ranks: tuple[RankSummary, ...]
    missing: tuple[int, ...]
    duplicates: tuple[tuple[int, str, tuple[str, ...]], ...]
    cpu_only: tuple[RankSummary, ...]
    by_order: tuple[str, ...]
    world_size: int | None
    disagree: bool


def call_the_roll(summaries: Sequence[RankSummary]) -> Roll:
    """Every summary with its rank. Of two files of one rank the first, by the order given, is used."""
    numbered = [_by_name(one) for one in summaries]
    taken = {one.rank for one in numbered}
    free = (number for number in range(len(taken) + len(numbered) + 1) if number not in taken)
    numbered = [
        replace(one, rank=next(free), rank_from="order") if one.rank == UNKNOWN_RANK else one for one in numbered
    ]
    by_rank: dict[int, list[RankSummary]] = {}
    for one in numbered:
        by_rank.setdefault(one.rank, []).append(one)
    chosen = [by_rank[rank][0] for rank in sorted(by_rank)]
    duplicates = tuple(
        (rank, same[0].path, tuple(one.path for one in same[1:])) for rank, same in sorted(by_rank.items()) if same[1:]
    )
    any_gpu = any(one.has_gpu for one in chosen)
    sizes = {one.world_size for one in chosen if one.world_size}
    world = max(sizes) if sizes else None
    expected = max([world or 0, *(rank + 1 for rank in by_rank)])
    return Roll(
        ranks=tuple(one for one in chosen if one.has_gpu or not any_gpu),
        missing=tuple(rank for rank in range(expected) if rank not in by_rank),
        duplicates=duplicates,
        cpu_only=tuple(one for one in chosen if any_gpu and not one.has_gpu),
        by_order=tuple(one.path for one in numbered if one.rank_from == "order"),
        world_size=world,
        disagree=len(sizes) > 1,
    )


def _by_name(one: RankSummary) -> RankSummary:
    if one.rank != UNKNOWN_RANK:
        return one
    found = _IN_NAME.findall(re.split(r"[\\/]", one.path)[-1])
    return replace(one, rank=int(found[-1]), rank_from="file name") if found else one
