"""What collectives cost over all ranks, and when each rank was ready for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.launched import Float
from ipyprof.analysis.rank_clocks import Clocks
from ipyprof.analysis.rank_matching import GroupMatch
from ipyprof.analysis.rank_summary import RankSummary
from ipyprof.trace.model import Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """One kind of collective over all ranks. Times in ns.

    Attributes:
        name, group, size, message_bytes, algorithm: as in ``CollectiveKind``.
        calls: per step.
        latency_ns: median of the shortest duration over the ranks: what it takes when nobody waits.
        waiting_ns: mean over the ranks of what lies beyond that, per call.
        exposed_ns: mean over the ranks of what no other work hides, per call.
        bus_bytes_per_s: at that latency, or ``None``.
        spread_ns: median of last − first to be ready.
        last: rank → share of the calls that it was the last one ready for, the largest first, at most five.
    """

    name: str
    group: str
    size: int | None
    message_bytes: int | None
    algorithm: str | None
    calls: float
    latency_ns: float
    waiting_ns: float
    exposed_ns: float
    bus_bytes_per_s: float | None
    spread_ns: float
    last: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """When each rank was ready for one collective, in ns since the first: (rank, ns), in rank order."""

    name: str
    step: int
    arrivals: tuple[tuple[int, float], ...]


def cost_of(
    groups: Sequence[GroupMatch], clocks: Clocks, summaries: Sequence[RankSummary]
) -> tuple[tuple[CollectiveCost, ...], dict[int, float], dict[int, float]]:
    """(by kind; rank → share of collectives it was last for; rank → ns of waiting per step)."""
    costs = []
    last_count, in_count = np.zeros(len(summaries)), np.zeros(len(summaries))
    waiting = np.zeros(len(summaries))
    for group in groups:
        duration = group.end_ns - group.start_ns
        shared = (~np.isnan(duration)).sum(axis=1) > 1
        ready = group.ready_ns - clocks.offset_ns[group.columns]
        shared &= ~np.isnan(ready).all(axis=1)
        if not shared.any():
            continue
        latency = np.full(len(duration), np.nan)
        latency[shared] = np.nanmin(duration[shared], axis=1)
        wait = duration - latency[:, np.newaxis]
        waiting[group.columns] += np.nansum(wait, axis=0) / max(len(np.unique(group.step)), 1)
        last = np.full(len(duration), -1)
        last[shared] = np.nanargmax(np.where(np.isnan(ready[shared]), -np.inf, ready[shared]), axis=1)
        np.add.at(last_count, group.columns[last[shared]], 1.0)
        in_count[group.columns] += (~np.isnan(duration[shared])).sum(axis=0)
        spread = np.full(len(duration), np.nan)
        spread[shared] = np.nanmax(ready[shared], axis=1) - np.nanmin(ready[shared], axis=1)
        for kind in dict.fromkeys(group.kinds):
            mine = np.array([other == kind for other in group.kinds], bool) & shared
            if not mine.any():
                continue
            usual = float(np.median(latency[mine]))
            places, counts = np.unique(group.columns[last[mine]], return_counts=True)
            ranked = sorted(zip(counts.tolist(), places.tolist(), strict=True), key=lambda one: (-one[0], one[1]))
            costs.append(
                CollectiveCost(
                    name=kind.name,
                    group=kind.group,
                    size=kind.size,
                    message_bytes=kind.message_bytes,
                    algorithm=kind.algorithm,
                    calls=float(mine.sum()) / max(len(np.unique(group.step)), 1),
                    latency_ns=usual,
                    waiting_ns=float(np.nanmean(wait[mine])),
                    exposed_ns=float(np.nanmean(group.exposed_ns[mine])),
                    bus_bytes_per_s=kind.bus_bytes_per_s(usual),
                    spread_ns=float(np.median(spread[mine])),
                    last=tuple((summaries[at].rank, count / int(mine.sum())) for count, at in ranked[:5]),
                )
            )
    costs.sort(key=lambda cost: -cost.calls * (cost.latency_ns + cost.waiting_ns))
    shares = {one.rank: float(last_count[at] / in_count[at]) for at, one in enumerate(summaries) if in_count[at] > 0}
    return tuple(costs), shares, {one.rank: float(waiting[at]) for at, one in enumerate(summaries)}


def entries_of(
    groups: Sequence[GroupMatch],
    clocks: Clocks,
    ranks: Int64,
    numbers: Int64,
    late: Float,
) -> tuple[tuple[Entry, ...], int | None, dict[int, tuple[tuple[float, float], ...]]]:
    """(entries, step, lanes) of the step with the largest delay, of the widest group: entries of at most 12."""
    group = max(groups, key=lambda one: (len(one.columns), len(one.kinds)))
    step = int(numbers[int(np.argmax(np.nanmax(late, axis=1)))]) if len(late) == len(numbers) else int(numbers[-1])
    rows = np.flatnonzero(group.step == step)
    ready = group.ready_ns - clocks.offset_ns[group.columns]
    found = []
    for row in rows[:: max(len(rows) // 12, 1)][:12].tolist():
        known = np.flatnonzero(~np.isnan(ready[row]))
        if len(known) > 1:
            begin = float(ready[row, known].min())
            arrivals = [(int(ranks[group.columns[at]]), float(ready[row, at]) - begin) for at in known.tolist()]
            found.append(Entry(name=group.kinds[row].name, step=step, arrivals=tuple(sorted(arrivals))))
    start, end = (at - clocks.offset_ns[group.columns] for at in (group.start_ns[rows], group.end_ns[rows]))
    if not found or np.isnan(start).all():
        return (), None, {}
    origin = float(np.nanmin(start))
    before = group.end_ns[rows[0] - 1] - clocks.offset_ns[group.columns] if rows[0] > 0 else start[0]
    if not np.isnan(before).all():
        origin = min(origin, float(np.nanmax(before)))
    lanes = {
        int(ranks[column]): tuple(
            (first - origin, last - origin)
            for first, last in zip(start[:, at].tolist(), end[:, at].tolist(), strict=True)
            if first == first and last == last
        )
        for at, column in enumerate(group.columns.tolist())
    }
    return tuple(found), step, {rank: spans for rank, spans in lanes.items() if spans}
