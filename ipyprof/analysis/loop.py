"""The loop's own pace: what all unprofiled steps took, typical and unlike ones, and what the unlike ones did.

A step's time is what the host took from mark to mark. It is told apart into the wait for batches and the rest. Where
the loop waits for its loader the typical step is the mean of both, for workers that make four batches at once let one
step of four wait; elsewhere it is what the device's clock gives. Steps that a queue served which filled in a pause of
ours are not the loop's pace: there the rate at which workers made batches while all of them were busy is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.program import Float
from ipyprof.analysis.results import Account, UnlikeSteps
from ipyprof.trace.live import LiveRecord, LoopStep, Sample, WholeLoop

UNLIKE = 1.5  # a step is unlike the typical one from so many times its length on ...
UNLIKE_LEAST_NS = 1_000_000  # ... and if it takes so much longer
SPREADS = 5  # ... and lies so many times the spread of the others above them
SLOWER = 1.05  # workers that take so many times as long for a batch as the step set the pace
LEAST_MADE = 8  # batches whose making gives a pace
LEAST_STEPS = 3
WAITS_SHARE = 0.02  # of the step: a loop that waits less for its batches is not paced by them
LEAST_SHARE = 0.01  # of the pace: what unlike steps of one kind add is told from here on
MS = 1e6


_Place = tuple[
    int | None, tuple[str, ...], str, int
]  # the cell's line, what it calls, the innermost function, its line


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The loop's own pace, in ns a step.

    Attributes:
        step_ns: all unprofiled steps divided by their number.
        typical_ns: a step that is like most.
        wait_ns: of it, what batches are waited for on the host; ``None`` where the loop does not wait for a loader.
        unlike: what the other steps did, the largest first; they are ``step_ns - typical_ns`` together.
        steps: how many steps it speaks of.
        served: the steps were served by a queue that had filled in a pause of ours, so that the workers' rate is the
            pace.
    """

    step_ns: float
    typical_ns: float
    wait_ns: float | None
    unlike: tuple[UnlikeSteps, ...]
    steps: int
    served: bool


def pace_of(live: LiveRecord | None, timed_ns: float | None) -> Pace | None:
    """The loop's own pace; ``None`` where too few steps were seen.

    Args:
        timed_ns: the typical step by the device's clock, where that was taken. The host's clock is right in the mean
            only: a host that runs ahead makes some steps short and pays in the one that waits for the device.
    """
    loop = None if live is None else live.loop
    if loop is None:
        return None
    chosen = _chosen(loop)
    if len(chosen) < LEAST_STEPS:
        return None
    steps = [loop.steps[at] for at in chosen]
    ns = np.array([step.ns for step in steps], np.float64)
    waits = np.array([step.waited_ns for step in steps], np.float64)
    starts = np.array([step.epoch_start for step in steps], bool)
    usual = float(waits[~starts].mean()) if not starts.all() else 0.0
    made_ns = _made_ns(loop, chosen)
    rest = ns - waits
    typical_rest = max(float(np.median(rest)), 1.0)
    if made_ns is not None and made_ns < SLOWER * float(ns[~starts].mean() if not starts.all() else ns.mean()):
        made_ns = None
    paced = made_ns is not None or usual > WAITS_SHARE * float(np.median(ns))
    base = typical_rest if paced or timed_ns is None else max(typical_rest, timed_ns)
    late = _unlike(rest, base)
    scatter = float(rest[~late].mean()) if not late.all() else typical_rest
    if paced:
        seen = max(scatter + usual, timed_ns or 0.0)
        typical = max(seen, made_ns or 0.0)
        served = typical > seen
        wait: float | None = max(typical - scatter, usual) if served else usual
    else:
        typical, wait, served = scatter if timed_ns is None else timed_ns, None, False
    # At the start of an epoch the wait is for the workers' start: what is beyond a usual one is no loading.
    beyond = np.where(starts, np.maximum(waits - max(usual, wait or 0.0), 0.0), 0.0)
    extra = np.where(late, np.maximum(rest - base, 0.0), 0.0) + beyond
    more = float(extra.sum()) / len(steps)
    if more and not served:
        # All steps together hold what the host was ahead by; a queue that was empty at first only makes them shorter.
        together = float(ns.mean()) - typical
        more = min(more, together) if together > 0 else 0.0
        extra *= more * len(steps) / float(extra.sum())
    unlike = _named(loop, chosen, steps, extra, starts & (2 * beyond >= extra))  # by what takes most of it
    more += sum(_rate(one, len(steps)) - one.ms * MS / len(steps) for one in unlike)
    if loop.more_steps:
        more = max(_mean_of_all(loop) - typical, 0.0)
    return Pace(
        step_ns=typical + more,
        typical_ns=typical,
        wait_ns=wait,
        unlike=unlike,
        steps=len(steps) + loop.more_steps,
        served=served,
    )


def account_of(live: LiveRecord | None, pace: Pace | None) -> Account | None:
    """Where the cell's wall time went; the parts add up to it."""
    loop = None if live is None else live.loop
    if loop is None or pace is None:
        return None
    looped = sum(step.ns for step in loop.steps) + loop.more_ns + loop.profiled_ns
    count = len(loop.steps) + loop.more_steps + loop.profiled_steps
    unlike_ms = sum(one.ms for one in pace.unlike)
    ours = loop.ours_ns / MS
    between = (loop.cell_ns - loop.before_ns - looped) / MS - ours
    return Account(
        cell_ms=loop.cell_ns / MS,
        before_ms=loop.before_ns / MS,
        typical_ms=looped / MS - unlike_ms,
        typical_steps=count - sum(one.count for one in pace.unlike),
        unlike=pace.unlike,
        between_ms=max(between, 0.0),
        ours_ms=ours + min(between, 0.0),
    )


def _chosen(loop: WholeLoop) -> list[int]:
    """Indices of the steps that speak of the pace: those behind the recording, else the warm ones before it."""
    after = [at for at in range(loop.first_after, len(loop.steps)) if not loop.steps[at].behind_pause]
    if len(after) >= LEAST_STEPS:
        return after
    return [at for at in range(2, len(loop.steps)) if not loop.steps[at].behind_pause] or after


def _made_ns(loop: WholeLoop, chosen: Sequence[int]) -> float | None:
    """ns in which the workers make a batch, for a step, where all of them were busy; ``None`` where that is not known.

    A batch on its way between two queues may be missed at one step and seen at the next: differences below zero count.
    Workers that have to wait until there is room in the queue make no more than the loop takes: this is then its step.
    """
    made = ns = 0
    for at in chosen:
        before, step = loop.steps[max(at - 1, 0)], loop.steps[at]
        if at and before.all_busy and step.all_busy and not step.epoch_start and min(step.made, before.made) >= 0:
            made += step.made - before.made
            ns += step.ns
    return ns / made if made >= LEAST_MADE else None


def _unlike(rest: Float, typical: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    spread = float(np.percentile(np.abs(rest - np.median(rest)), 75))
    limit = max(UNLIKE * typical, typical + UNLIKE_LEAST_NS, typical + SPREADS * spread)
    late: np.ndarray[tuple[int], np.dtype[np.bool_]] = rest > limit
    return late


def _rate(one: UnlikeSteps, steps: int) -> float:
    """ns that they add to a step: by their period where they keep one, since a window seldom holds whole periods."""
    if one.period and one.count > 1 and abs(steps / one.period - one.count) <= 1:
        return one.ms * MS / one.count / one.period
    return one.ms * MS / steps


def _mean_of_all(loop: WholeLoop) -> float:
    """ns of a step where not all were kept one by one."""
    kept = [step.ns for step in loop.steps[loop.first_after :]]
    return (sum(kept) + loop.more_ns) / (len(kept) + loop.more_steps)


def _named(
    loop: WholeLoop,
    chosen: Sequence[int],
    steps: Sequence[LoopStep],
    extra: Float,
    starts: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> tuple[UnlikeSteps, ...]:
    """The unlike steps by what they did."""
    seen: dict[int, list[Sample]] = {}
    for at, sample in loop.samples:
        seen.setdefault(at, []).append(sample)
    late = {at for place, at in enumerate(chosen) if extra[place] > 0}
    usual = Counter(_place(one) for at in chosen if at not in late for one in seen.get(at, ()))
    groups: dict[tuple[str, int | None], list[int]] = {}
    for place, at in enumerate(chosen):
        if extra[place] > 0:
            groups.setdefault(_what(seen.get(at, ()), usual, bool(starts[place])), []).append(place)
    total = float(sum(step.ns for step in steps)) or 1.0
    found = []
    for (what, line), places in groups.items():
        ns = float(extra[places].sum())
        if ns < LEAST_SHARE * total:
            continue
        apart = np.diff(places)
        found.append(
            UnlikeSteps(
                what=what,
                line=line,
                period=float(np.median(apart)) if len(apart) else None,
                count=len(places),
                ms=ns / MS,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.ms))


def _place(sample: Sample) -> _Place:
    return sample.line, sample.calls, sample.function, sample.at


def _what(samples: Sequence[Sample], usual: Counter[_Place], starts: bool) -> tuple[str, int | None]:
    """What a step unlike the others did, and on which line of the cell: where it was seen and usual steps were not."""
    if starts:
        return "the start of an epoch", None
    collected = [one for one in samples if one.ns]
    if collected and len(samples) - len(collected) <= 1:
        return "garbage collection", max(collected, key=lambda one: one.ns).line
    counts = Counter(_place(one) for one in samples if not one.ns)
    if not counts:
        return "something too short to be seen", None
    line, calls, function, at = max(counts, key=lambda one: (counts[one] / (1 + usual[one]), counts[one]))
    name = _unusual_call(line, calls, usual) or ("" if function.startswith("<") else f"{function}, line {at}")
    return name or f"line {line or at}", line


def _unusual_call(line: int | None, calls: tuple[str, ...], usual: Counter[_Place]) -> str:
    """The outermost function below the cell's line that usual steps were not seen in, or an empty text."""
    seen = [other for other_line, other, *_ in usual if other_line == line]
    for depth, name in enumerate(calls):
        if not name.startswith("<") and not any(other[: depth + 1] == calls[: depth + 1] for other in seen):
            return name
    return ""
