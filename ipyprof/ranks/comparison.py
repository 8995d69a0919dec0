"""Who enters the collectives last, how often, by how much, and what of its own work that rank has more of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ipyprof.analysis.attribution import Float
from ipyprof.ranks.clocks import Clocks, GroupMatch, align, delays_of, match, median_over, relative_bases
from ipyprof.ranks.summary import PHASES, RankSummary
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


CAUSES = ("loader", "compute", "copies", "runtime", "host")
EXPLAINED = 0.5  # the part must account for this share of the delay
SAME_WORK = 0.02  # kernel counts that differ by less are the same work
SLOWER = 1.05  # the same kernels that take so many times as long run on a slower GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What the late rank has more of, per step, in ns.

    Attributes:
        cause: one of ``CAUSES``, ``slow_gpu`` (the same kernels take longer), or empty: the recording does not show it.
        own_ns, others_ns: what the late rank takes for it, and the median of the others.
        excess_ns: how much more of it lies where nothing hides it.
        phase: ``loader``, ``forward``, ``backward`` or ``optimizer``, or empty.
        more_kernels: kernels (operators without a GPU) that the late rank runs more, per step.
        clock: what the GPUs' clocks say, or empty.
    """

    cause: str
    own_ns: float = 0.0
    others_ns: float = 0.0
    excess_ns: float = 0.0
    phase: str = ""
    more_kernels: float = 0.0
    clock: str = ""


def why_late(late: RankSummary, others: Sequence[RankSummary], late_ns: float) -> Why:
    """What explains most of the delay, or a ``Why`` without a cause where nothing explains half of it."""
    known = [one for one in others if one.parts]
    if not late.parts or not known:
        return Why(cause="")
    excess = {name: late.parts[name] - median(one.parts[name] for one in known) for name in CAUSES}
    cause = max(excess, key=lambda name: excess[name])
    if excess[cause] < EXPLAINED * late_ns:
        return Why(cause="", excess_ns=excess[cause], clock=_clock(late, known))
    kind = late.totals if cause in late.totals else late.parts
    own = kind[cause]
    usual = float(median((one.totals if cause in one.totals else one.parts)[cause] for one in known))
    kernels = float(median(one.kernels for one in known))
    more = late.kernels - kernels
    named = cause
    if cause == "compute" and late.has_gpu and abs(more) <= SAME_WORK * max(kernels, 1.0) and own > SLOWER * usual:
        named = "slow_gpu"
    return Why(
        cause=named,
        own_ns=own,
        others_ns=usual,
        excess_ns=excess[cause],
        phase="loader"
        if cause == "loader"
        else _phase(late, known, "host" if cause in ("host", "runtime") else "compute"),
        more_kernels=more if cause == "compute" else 0.0,
        clock=_clock(late, known),
    )


def _phase(late: RankSummary, others: Sequence[RankSummary], what: str) -> str:
    """The phase in which the late rank has most more of it, or empty where none is known."""
    if not all(name in one.phases for one in (late, *others) for name in PHASES):
        return ""
    more = {name: late.phases[name][what] - median(one.phases[name][what] for one in others) for name in PHASES}
    return max(more, key=lambda name: more[name])


def _clock(late: RankSummary, others: Sequence[RankSummary]) -> str:
    """Such as ``1,200 MHz, the others 1,980 MHz (thermal slowdown)``; empty unless its clock is lower."""
    clocks = [one.facts.clock_mhz for one in others if one.facts.clock_mhz is not None]
    own = late.facts.clock_mhz
    if own is None or not clocks or own * SLOWER > median(clocks):
        return ""
    reasons = f" ({', '.join(late.facts.throttle)})" if late.facts.throttle else ""
    return f"{own:,} MHz, the others {median(clocks):,.0f} MHz{reasons}"


LATE_SHARE = 0.05  # of the step; the same share as every finding's (diagnosis/thresholds.py)
VARYING_SHARE = 0.10  # of the step; the latest of several ranks is late by chance, more so the more there are
RESIDUALS = 2.0  # a delay must also be over this many times what the clocks are off
MOSTLY = 0.5  # of the compared steps

# Of the largest delays of all steps together. By chance one of two ranks has half of them, and 58 % were seen in a job
# whose hosts changed their speed (two H200s); a planted straggler has all of them.
ITS_OWN = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The late rank.

    Attributes:
        late_ns: median over the steps of how much later than the median of the others it is ready.
        recoverable_ns: how much of that would be gained: the next late rank is late as well.
        steps_late: steps in which no rank is later.
        why: what it has more of than the median of the others.
    """

    rank: int
    late_ns: float
    recoverable_ns: float
    steps_late: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What several ranks say together.

    Attributes:
        state: ``straggler``, ``balanced``, ``varying`` (late ranks change from step to step), or ``unknown``.
        reason: why it is unknown, or empty.
        straggler: the late rank, or ``None``; others: further ranks that are late, the latest first.
        late_ns: rank → median over the steps of its delay; negative = early.
        steps_late: rank → steps in which it was the latest.
        last_share: rank → share of the collectives that it was the last one ready for.
        steps: steps that were compared.
        step_ns: one step: the median over the ranks, unprofiled where it was timed.
        recorded_step_ns: one recorded step, of which the delays are: the longest of the ranks.
        usual_ns: the largest delay of a step, the median over the steps; worst_ns: the largest of all.
        waiting_ns: rank → time per step in collectives beyond their latency.
        clocks: how the clocks were brought together; apart: ranks that share no collective with the others.
        costs: by kind, the longest first.
        entries: of the step with the largest delay, at most 12.
        entries_step: that step's number.
        lanes: rank → (start, end) in ns of its collectives in that step, since the first rank was free.
        skipped_start: rank that entered the first collective late because the profiler started, and ns; or ``None``.
        unmatched: collectives without a partner.
    """

    state: str
    reason: str
    straggler: Straggler | None
    others: tuple[int, ...]
    late_ns: Mapping[int, float]
    steps_late: Mapping[int, int]
    last_share: Mapping[int, float]
    steps: int
    step_ns: float | None
    recorded_step_ns: float
    usual_ns: float
    worst_ns: float
    waiting_ns: Mapping[int, float]
    clocks: Clocks | None
    apart: tuple[int, ...]
    costs: tuple[CollectiveCost, ...]
    entries: tuple[Entry, ...]
    entries_step: int | None
    lanes: Mapping[int, tuple[tuple[float, float], ...]]
    skipped_start: tuple[int, float] | None
    unmatched: int


def compare(summaries: Sequence[RankSummary]) -> Comparison:
    """Who is late among these ranks, each of which stands here once."""
    found = match(summaries)
    groups = [group for group in found.groups if len(group.columns) > 1]
    step_ns = _step(summaries)
    if not groups:
        return _unknown(_why_nothing(summaries), step_ns, found.unmatched)
    clocks = _clocks(groups, summaries)
    ranks = np.array([one.rank for one in summaries], np.int64)
    numbers = np.unique(np.concatenate([group.step for group in groups]))
    late = np.full((len(numbers), len(summaries)), np.nan)
    skipped: tuple[int, float] | None = None
    for group in groups:
        own, start = delays_of(group, clocks, numbers)
        if start is not None:
            at = int(group.columns[start[0]])
            skipped = max(skipped or (-1, 0.0), (int(ranks[at]), start[1]), key=lambda one: one[1])
        # A delay that is seen in two groups is one delay: the largest counts.
        seen = late[:, group.columns]
        late[:, group.columns] = np.where(np.isnan(seen) | (own > seen), own, seen)
    late = late[~np.isnan(late).all(axis=1)]
    if len(late) == 0:
        return _unknown("no step was compared", step_ns, found.unmatched)
    typical = median_over(late)
    latest = np.nanargmax(np.where(np.isnan(late), -np.inf, late), axis=1)
    counts = np.bincount(latest, minlength=len(summaries))
    largest = np.nanmax(late, axis=1)
    # Where the clock is one, ends that lie apart are no error of it.
    off = 0.0 if clocks.common else clocks.residual_ns or 0.0
    # Delays are those of recorded steps, which are longer than the others.
    recorded_ns = max([step_ns or 0.0, *(one.recorded_step_ns or 0.0 for one in summaries)])
    least = max(LATE_SHARE * recorded_ns, RESIDUALS * off)
    order = np.argsort(-np.where(np.isnan(typical), -np.inf, typical), kind="stable")
    first = int(order[0])
    # Two late ranks may take turns at being the latest.
    over = [int(at) for at in order.tolist() if typical[at] > least]
    often = (late[:, first] > least).mean() > MOSTLY
    # Whose delays the steps' largest ones are: a rank that is late, not one that was.
    its_own = float(np.fmax(late[:, first], 0.0).sum()) >= ITS_OWN * float(np.fmax(largest, 0.0).sum())
    state, reason, straggler = "balanced", "", None
    if over and often and its_own:
        state = "straggler"
        following = max(float(typical[order[1]]), 0.0) if len(order) > 1 and not np.isnan(typical[order[1]]) else 0.0
        straggler = Straggler(
            rank=int(ranks[first]),
            late_ns=float(typical[first]),
            recoverable_ns=min(float(typical[first]) - following, 0.999 * (step_ns or np.inf)),
            steps_late=int((late[:, first] > least).sum()),
            why=why_late(summaries[first], [one for at, one in enumerate(summaries) if at != first], typical[first]),
        )
    elif (largest > max(VARYING_SHARE * recorded_ns, least)).mean() > MOSTLY:
        state = "varying"
    elif (largest > VARYING_SHARE * recorded_ns).mean() > MOSTLY:
        # Delays that the clocks could have made up: they are neither seen nor ruled out.
        state, reason = "unknown", f"the ranks' clocks agree within {off / 1e6:.1f} ms only"
    costs, shares, waiting = cost_of(groups, clocks, summaries)
    entries, entries_step, lanes = entries_of(groups, clocks, ranks, numbers, late)
    compared = Comparison(
        state=state,
        reason=reason,
        straggler=straggler,
        others=tuple(int(ranks[at]) for at in over if at != first) if straggler else (),
        late_ns={int(ranks[at]): float(ns) for at, ns in enumerate(typical.tolist()) if not np.isnan(ns)},
        steps_late={int(ranks[at]): int(count) for at, count in enumerate(counts.tolist())},
        last_share=shares,
        steps=len(late),
        step_ns=step_ns,
        recorded_step_ns=recorded_ns,
        usual_ns=float(np.median(largest)),
        worst_ns=float(largest.max()),
        waiting_ns=waiting,
        clocks=clocks,
        apart=tuple(int(ranks[at]) for at in np.flatnonzero(np.isnan(clocks.offset_ns)).tolist()),
        costs=costs,
        entries=entries,
        entries_step=entries_step,
        lanes=lanes,
        skipped_start=skipped,
        unmatched=found.unmatched,
    )
    return compared if state != "unknown" else _without_delays(compared)


def _without_delays(compared: Comparison) -> Comparison:
    """What the collectives cost, and nothing of who was late: the clocks cannot tell."""
    return replace(
        compared, late_ns={}, steps_late={}, last_share={}, steps=0, usual_ns=0.0, worst_ns=0.0, entries=(),
        entries_step=None, lanes={},
    )  # fmt: skip


def _step(summaries: Sequence[RankSummary]) -> float | None:
    """ns of one step: all ranks have the same; of a file the recorded one, since a replay does not know who waits."""
    timed = [one.step_ns for one in summaries if one.unprofiled and one.step_ns]
    recorded = [one.recorded_step_ns for one in summaries if one.recorded_step_ns]
    chosen = timed or recorded
    return float(np.median(chosen)) if chosen else None


def _why_nothing(summaries: Sequence[RankSummary]) -> str:
    if len(summaries) < 2:
        return "one rank alone cannot tell who is late"
    if not any(one.rows for one in summaries):
        return "no collective in the recorded steps"
    first = set(summaries[0].steps)
    if not set.intersection(first, *(set(one.steps) for one in summaries[1:])):
        return "the ranks recorded different steps"
    return "no collective is in the recordings of two ranks"


def _unknown(reason: str, step_ns: float | None, unmatched: int) -> Comparison:
    return Comparison(
        state="unknown", reason=reason, straggler=None, others=(), late_ns={}, steps_late={}, last_share={}, steps=0,
        step_ns=step_ns, recorded_step_ns=0.0, usual_ns=0.0, worst_ns=0.0, waiting_ns={}, clocks=None, apart=(),
        costs=(), entries=(), entries_step=None, lanes={}, skipped_start=None, unmatched=unmatched,
    )  # fmt: skip


def _clocks(groups: Sequence[GroupMatch], summaries: Sequence[RankSummary]) -> Clocks:
    """Offsets from the ends of those collectives that nobody can leave early; of all where there are no such."""
    rows = []
    for strict in (True, False):
        for group in groups:
            fit = np.array([kind.leaves_together or not strict for kind in group.kinds], bool)
            wide = np.full((int(fit.sum()), len(summaries)), np.nan)
            wide[:, group.columns] = group.end_ns[fit]
            rows.append(wide)
        if sum(len(wide) for wide in rows):
            break
    related = len(summaries) == 1 or any(relative_bases(summaries)) or len({one.base_ns for one in summaries}) == 1
    hosts = [one.facts.host if related and one.base_ns else None for one in summaries]
    return align(np.concatenate(rows), hosts)
