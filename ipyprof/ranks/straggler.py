"""Who is ready for the collectives last, how often, by how much, and what of its own work that rank has more of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from msgspec import structs

from ipyprof.analysis.attribution import Bool, Float
from ipyprof.ranks.clocks import Clocks, GroupMatch, clocks_of, match, median_over, on_one_clock
from ipyprof.ranks.summary import MS, PHASES, RankSummary
from ipyprof.report.report import CollectiveCost, Entry, Ranks, Straggler
from ipyprof.trace.model import Int64

CAUSES = ("loader", "compute", "copies", "runtime", "host")
EXPLAINED = 0.5  # the part must account for this share of the delay
SAME_WORK = 0.02  # kernel counts that differ by less are the same work
SLOWER = 1.05  # the same kernels that take so many times as long run on a slower GPU

LATE_SHARE = 0.05  # of the step; the same share as every finding's (diagnosis/thresholds.py)
VARYING_SHARE = 0.10  # of the step; the latest of several ranks is late by chance, more so the more there are
RESIDUALS = 2.0  # a delay must also be over this many times what the clocks are off
MOSTLY = 0.5  # of the compared steps
# Of the largest delays of all steps together. By chance one of two ranks has half of them, and 58 % were seen in a job
# whose hosts changed their speed (two H200s); a planted straggler has all of them.
ITS_OWN = 0.75

WAITED_SHARE = 0.25  # of the ranks that show that they waited: a late rank itself shows nothing
SKEW_TIMES = 3.0  # the first collective of a recording is the profiler's start when it is so many times the others
RESET_NS = 100_000  # work that is ready this little before the end of a collective may still have waited for it

MOST_KINDS, MOST_ENTRIES, MOST_LANES, MOST_SPANS = 20, 12, 8, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What several ranks say together.

    Attributes:
        ranks: for the report, without who is missing and the sentence. Its ``state`` is ``straggler``, ``balanced``,
            ``varying`` (late ranks change from step to step) or ``unknown``.
        reason: why it is unknown, or empty.
        gpu: the ranks have device work.
        recorded_ms: one recorded step, of which the delays are: the longest of the ranks.
        usual_ms: the largest delay of a step, the median over the steps; worst_ms: the largest of all.
        clocks: how the clocks were brought together; apart: ranks that share no collective with the others.
        skipped_start: rank that entered the first collective late because the profiler started, and ms; or ``None``.
        unmatched: collectives without a partner.
    """

    ranks: Ranks
    reason: str = ""
    gpu: bool = False
    recorded_ms: float = 0.0
    usual_ms: float = 0.0
    worst_ms: float = 0.0
    clocks: Clocks | None = None
    apart: tuple[int, ...] = ()
    skipped_start: tuple[int, float] | None = None
    unmatched: int = 0


def compare(summaries: Sequence[RankSummary]) -> Comparison:
    """Who is late among these ranks, each of which stands here once."""
    matched, unmatched = match(summaries)
    groups = [group for group in matched if len(group.columns) > 1]
    ranks = Ranks(
        count=len(summaries),
        state="unknown",
        step_ms=_step_ms(summaries),
        per_rank=tuple(one.row() for one in summaries),
    )
    gpu = any(one.has_gpu for one in summaries)
    found = Comparison(ranks=ranks, reason=_why_nothing(summaries), gpu=gpu, unmatched=unmatched)
    if not groups:
        return found
    clocks = clocks_of(groups, summaries)
    groups = [on_one_clock(group, clocks) for group in groups]
    numbers, late, skipped = _delays(groups, len(summaries))
    if len(late) == 0:
        return replace(found, reason="no step was compared")
    # Delays are those of recorded steps, which are longer than the others.
    recorded = max([ranks.step_ms or 0.0, *(one.step_ms or 0.0 for one in summaries)])
    # Where the clock is one, ends that lie apart are no error of it.
    off = 0.0 if clocks.common else (clocks.residual_ns or 0.0) / MS
    least = max(LATE_SHARE * recorded, RESIDUALS * off)
    state = _state(late, least, VARYING_SHARE * recorded)
    costs, last_share, waiting = _costs(groups, summaries)
    rows = [structs.replace(row, waiting_ms=waiting[at]) for at, row in enumerate(ranks.per_rank)]
    ranks = structs.replace(ranks, state=state, per_rank=tuple(rows), collectives=costs)
    found = replace(
        found,
        ranks=ranks,
        reason=f"the ranks' clocks agree within {off:.1f} ms only" if state == "unknown" else "",
        recorded_ms=recorded,
        clocks=clocks,
        apart=tuple(summaries[at].rank for at in np.flatnonzero(np.isnan(clocks.offset_ns)).tolist()),
        skipped_start=None if skipped is None else (summaries[skipped[0]].rank, skipped[1] / MS),
    )
    if state == "unknown":
        return found  # what the collectives cost, and nothing of who was late
    typical, largest = median_over(late), np.fmax.reduce(late, axis=1)
    latest = np.argmax(np.nan_to_num(late, nan=-np.inf), axis=1)
    rows = [
        structs.replace(
            row,
            late_ms=None if np.isnan(typical[at]) else float(typical[at]),
            steps_late=int((latest == at).sum()),
            last_share=last_share[at],
        )
        for at, row in enumerate(rows)
    ]
    widest = max(groups, key=lambda one: (len(one.columns), len(one.kinds)))
    worst = int(numbers[int(np.argmax(largest))])
    ranks = structs.replace(
        ranks,
        straggler=_straggler(late, summaries, least, ranks.step_ms) if state == "straggler" else None,
        per_rank=tuple(rows),
        steps=len(late),
        entries=_entries(widest, summaries, worst),
        lanes=_lanes(widest, summaries, worst, typical),
    )
    return replace(found, ranks=ranks, usual_ms=float(np.median(largest)), worst_ms=float(largest.max()))


def _step_ms(summaries: Sequence[RankSummary]) -> float | None:
    """One step: all ranks have the same; of a file the recorded one, since a replay does not know who waits."""
    timed = [one.unprofiled_ms for one in summaries if one.unprofiled_ms]
    chosen = timed or [one.step_ms for one in summaries if one.step_ms]
    return float(np.median(chosen)) if chosen else None


def _why_nothing(summaries: Sequence[RankSummary]) -> str:
    if len(summaries) < 2:
        return "one rank alone cannot tell who is late"
    if not any(one.rows for one in summaries):
        return "no collective in the recorded steps"
    if not set.intersection(*(set(one.steps) for one in summaries)):
        return "the ranks recorded different steps"
    return "no collective is in the recordings of two ranks"


def _state(late: Float, least: float, varying: float) -> str:
    """``state`` of the comparison.

    Args:
        late: (steps, r) ms of delay, NaN = not seen.
        least: ms that a delay must exceed, which the clocks cannot have made up; varying: for ``varying``.
    """
    largest, first = np.fmax.reduce(late, axis=1), _by_delay(late)[0]
    own = late[:, first]
    # Two late ranks may take turns at being the latest.
    often = median_over(late)[first] > least and (own > least).mean() > MOSTLY
    # Whose delays the steps' largest ones are: a rank that is late, not one that was.
    its_own = float(np.fmax(own, 0.0).sum()) >= ITS_OWN * float(np.fmax(largest, 0.0).sum())
    if often and its_own:
        return "straggler"
    if (largest > max(varying, least)).mean() > MOSTLY:
        return "varying"
    # Delays that the clocks could have made up are neither seen nor ruled out.
    return "unknown" if (largest > varying).mean() > MOSTLY else "balanced"


def _by_delay(late: Float) -> list[int]:
    """Positions of the ranks, the latest first."""
    order: list[int] = np.argsort(-np.nan_to_num(median_over(late), nan=-np.inf), kind="stable").tolist()
    return order


def _straggler(late: Float, summaries: Sequence[RankSummary], least_ms: float, step_ms: float | None) -> Straggler:
    """The latest rank with what explains its delay; ``late`` as in ``_state``."""
    typical, (first, *rest) = median_over(late), _by_delay(late)
    own = float(typical[first])
    following = max(float(np.nan_to_num(typical[rest[0]])), 0.0)
    found = Straggler(
        rank=summaries[first].rank,
        phase=None,
        late_ms=own,
        # The next late rank is late as well.
        recoverable_ms=min(own - following, 0.999 * (step_ms or np.inf)),
        steps_late=int((late[:, first] > least_ms).sum()),
        others=tuple(summaries[at].rank for at in rest if typical[at] > least_ms),
    )
    return _explained(found, summaries[first], [one for at, one in enumerate(summaries) if at != first])


def _explained(found: Straggler, late: RankSummary, others: Sequence[RankSummary]) -> Straggler:
    """``found`` with what accounts for most of its delay; without a cause where nothing accounts for half of it."""
    breakdown, known = late.breakdown, [one for one in others if one.breakdown]
    if not breakdown or not known:
        return found
    found = structs.replace(found, clock=_clock(late, known))
    excess = {name: breakdown[name] - median((one.breakdown or {})[name] for one in known) for name in CAUSES}
    cause = max(excess, key=lambda name: excess[name])
    if excess[cause] < EXPLAINED * found.late_ms:
        return found
    own, usual = _spent(late, cause), float(median(_spent(one, cause) for one in known))
    kernels = float(median(one.kernels for one in known))
    more = late.kernels - kernels
    same_work = abs(more) <= SAME_WORK * max(kernels, 1.0)
    slow = cause == "compute" and late.has_gpu and same_work and own > SLOWER * usual
    return structs.replace(
        found,
        cause="slow_gpu" if slow else cause,
        phase="loader" if cause == "loader" else _phase(late, known, cause),
        own_ms=own,
        others_ms=usual,
        more_kernels=more if cause == "compute" else 0.0,
    )


def _spent(one: RankSummary, cause: str) -> float:
    """ms per step, whether something hides them or not where that is known."""
    return one.busy_ms[cause] if cause in one.busy_ms else (one.breakdown or {})[cause]


def _phase(late: RankSummary, others: Sequence[RankSummary], cause: str) -> str | None:
    """The phase in which the late rank has most more of it, or ``None`` where none is known."""
    if not all(name in one.phases_ms for one in (late, *others) for name in PHASES):
        return None
    what = "host" if cause in ("host", "runtime") else "compute"
    more = {name: late.phases_ms[name][what] - median(one.phases_ms[name][what] for one in others) for name in PHASES}
    return max(more, key=lambda name: more[name])


def _clock(late: RankSummary, others: Sequence[RankSummary]) -> str:
    """Such as ``1,200 MHz, the others 1,980 MHz (thermal slowdown)``; empty unless its clock is lower."""
    clocks = [one.clock_mhz for one in others if one.clock_mhz is not None]
    own = late.clock_mhz
    if own is None or not clocks or own * SLOWER > median(clocks):
        return ""
    reasons = f" ({', '.join(late.throttle)})" if late.throttle else ""
    return f"{own:,.0f} MHz, the others {median(clocks):,.0f} MHz{reasons}"


def _delays(groups: Sequence[GroupMatch], count: int) -> tuple[Int64, Float, tuple[int, float] | None]:
    """((s,) numbers of the steps, (s, count) ms of delay in each, NaN = not seen, the profiler's start if it shows).

    The profiler's start: (position of the rank, ns) of the latest one.
    """
    numbers = np.unique(np.concatenate([group.step for group in groups]))
    late = np.full((len(numbers), count), np.nan)
    skipped: tuple[int, float] | None = None
    for group in groups:
        own, start = _group_delays(group, numbers)
        if start is not None:
            at = int(group.columns[start[0]])
            skipped = max(skipped or (-1, 0.0), (at, start[1]), key=lambda one: one[1])
        # A delay that is seen in two groups is one delay: the largest counts.
        late[:, group.columns] = np.fmax(late[:, group.columns], own)
    seen = ~np.isnan(late).all(axis=1)
    return numbers[seen], late[seen] / MS, skipped


def _group_delays(group: GroupMatch, numbers: Int64) -> tuple[Float, tuple[int, float] | None]:
    """((s, r) float ns of delay of each rank in each step, NaN = not seen; (column, ns) of the profiler's start)."""
    lag = _behind_the_others(group.ready_ns)
    begins = _stretches(group)
    blocks, step_of = _blocks(group, lag, begins)
    start = _start_skew(lag, blocks)
    if start is not None:
        lag[0] = np.nan
        blocks, step_of = _blocks(group, lag, begins)
    delays = np.full((len(numbers), len(group.columns)), np.nan)
    for row, number in enumerate(numbers.tolist()):
        mine = blocks[step_of == number]
        delays[row] = np.where(np.isnan(mine).all(axis=0), np.nan, np.nansum(mine, axis=0))
    return delays, start


def _behind_the_others(ready: Float) -> Float:
    """(c, r) how much later than the median of the others each rank is ready."""
    if ready.shape[1] > 16:
        # One more or less does not move the median of many.
        return ready - median_over(ready.T)[:, np.newaxis]
    columns = (ready[:, at] - median_over(np.delete(ready, at, axis=1).T) for at in range(ready.shape[1]))
    return np.stack(list(columns), axis=1)


def _stretches(group: GroupMatch) -> Bool:
    """(c,) whether a new stretch begins with this collective: all have waited for the one before it.

    All are ready for it only after that one has ended, and it is another step's (a step ends with the optimizer, which
    needs the gradients), or enough ranks show that they waited.
    """
    begins = np.ones(len(group.kinds), bool)
    there = ~np.isnan(group.end_ns)
    waited = (group.joined & there).sum(axis=1) >= WAITED_SHARE * np.maximum(there.sum(axis=1), 1)
    after = group.ready_ns[1:] >= group.end_ns[:-1] - RESET_NS
    known = there[:-1] & ~np.isnan(group.ready_ns[1:])
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
        blocks[row] = np.fmax.reduce(lag[begin:stop]) - (0.0 if begins[begin] else carried)
        carried = np.nan_to_num(lag[stop - 1])
    return blocks, group.step[first]


def _start_skew(lag: Float, blocks: Float) -> tuple[int, float] | None:
    """(column, ns) where one rank entered the first collective of the recording far later than any one afterwards."""
    if len(lag) < 2 or len(blocks) < 2 or np.isnan(lag[0]).all():
        return None
    late = int(np.nanargmax(lag[0]))
    rest = max(float(np.nan_to_num(lag[1:]).max()), float(np.nan_to_num(blocks[1:]).max()), 0.0)
    ns = float(lag[0, late])
    return (late, ns) if ns > SKEW_TIMES * rest and ns > 2 * RESET_NS else None


def _costs(
    groups: Sequence[GroupMatch], summaries: Sequence[RankSummary]
) -> tuple[tuple[CollectiveCost, ...], list[float | None], list[float]]:
    """(by kind, the longest first; of each rank the share of collectives it was last for; its ms of waiting per step).

    A collective's latency is the shortest duration over the ranks: what it takes when nobody waits.
    """
    costs: list[CollectiveCost] = []
    last_count, in_count, waiting = (np.zeros(len(summaries)) for _ in range(3))
    for group in groups:
        duration = group.end_ns - group.start_ns
        shared = (~np.isnan(duration)).sum(axis=1) > 1
        if not shared.any():
            continue
        steps = len(np.unique(group.step))
        duration, ready, exposed = (ns[shared] / MS for ns in (duration, group.ready_ns, group.exposed_ns))
        latency = np.nanmin(duration, axis=1)
        wait = duration - latency[:, np.newaxis]
        waiting[group.columns] += np.nansum(wait, axis=0) / steps
        np.add.at(last_count, group.columns[np.nanargmax(ready, axis=1)], 1.0)
        in_count[group.columns] += (~np.isnan(duration)).sum(axis=0)
        kinds = [kind for kind, used in zip(group.kinds, shared.tolist(), strict=True) if used]
        for kind in dict.fromkeys(kinds):
            mine = np.array([other == kind for other in kinds], bool)
            cost = CollectiveCost(
                name=kind.name,
                group=kind.group,
                size=kind.size,
                message_bytes=kind.message_bytes,
                calls=float(mine.sum()) / steps,
                latency_ms=float(np.median(latency[mine])),
                waiting_ms=float(np.nanmean(wait[mine])),
                exposed_ms=float(np.nanmean(exposed[mine])),
            )
            costs.append(cost)
    costs.sort(key=lambda cost: -cost.calls * (cost.latency_ms + (cost.waiting_ms or 0.0)))
    shares = [float(last_count[at] / in_count[at]) if in_count[at] else None for at in range(len(summaries))]
    return tuple(costs[:MOST_KINDS]), shares, waiting.tolist()


def _entries(group: GroupMatch, summaries: Sequence[RankSummary], step: int) -> tuple[Entry, ...]:
    """When each rank was ready for the collectives of that step, evenly chosen of many."""
    rows = np.flatnonzero(group.step == step)
    found = []
    for row in rows[:: max(len(rows) // MOST_ENTRIES, 1)][:MOST_ENTRIES].tolist():
        ready = (group.ready_ns[row] - np.fmin.reduce(group.ready_ns[row])) / MS
        known = [(summaries[at].rank, ms) for at, ms in zip(group.columns.tolist(), ready.tolist(), strict=True)]
        known = [one for one in known if not np.isnan(one[1])]
        if len(known) > 1:
            found.append(Entry(name=group.kinds[row].name, step=step, arrivals_ms=tuple(known)))
    return tuple(found)


def _lanes(
    group: GroupMatch, summaries: Sequence[RankSummary], step: int, typical: Float
) -> dict[str, tuple[tuple[float, float], ...]]:
    """Rank → (start, end) in ms of its collectives in that step, since all ranks were free; of a few ranks."""
    rows = np.flatnonzero(group.step == step)
    start, end = group.start_ns[rows], group.end_ns[rows]
    if np.isnan(start).all():
        return {}
    before = group.end_ns[rows[0] - 1] if rows[0] > 0 else start[0]
    origin = float(np.fmin(np.nanmin(start), np.fmax.reduce(before)))
    late = np.nan_to_num(typical[group.columns])
    order = [at for at in np.argsort(-late, kind="stable").tolist() if not np.isnan(start[:, at]).all()]
    # The latest two, the first one, the earliest two.
    chosen = [at for at in dict.fromkeys((*order[:2], 0, *order[-2:], *order)) if at in order][:MOST_LANES]
    return {
        str(summaries[group.columns[at]].rank): tuple(
            ((first - origin) / MS, (last - origin) / MS)
            for first, last in zip(start[:, at].tolist(), end[:, at].tolist(), strict=True)
            if not np.isnan(first) and not np.isnan(last)
        )[:MOST_SPANS]
        for at in sorted(chosen)
    }
