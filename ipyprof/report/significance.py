"""Whether two sets of step times differ, from few samples that may follow each other closely.

Steps are not independent: a slow moment of the machine lasts over several. So the samples are first put together into
blocks as long as their correlation, and the blocks are what is compared: by the exact permutation test on ranks
(Mann-Whitney's, with ties). Too few blocks to be sure by ranks alone must not overlap and lie further apart than they
are wide; or there are many samples behind them, and between all samples of one side and all of the other lies a gap:
a run that wanders slowly leaves three blocks, and still never comes near the other.

False alarms on 1,500 pairs of series from one source (first-order autoregressive, normal), and power on 300 pairs that
are six standard deviations apart:

| samples | correlation 0 | 0.3 | 0.6 | 0.8 | 0.9 | power at 0 |
| --- | --- | --- | --- | --- | --- | --- |
| 3 and 3 | 1 % | 2 % | 6 % | 17 % | 31 % | 81 % |
| 5 and 5 | 0 % | 1 % | 6 % | 19 % | 36 % | 100 % |
| 10 and 10 | 1 % | 2 % | 4 % | 7 % | 15 % | 100 % |
| 15 and 15 | 2 % | 2 % | 1 % | 3 % | 9 % | 100 % |
| 20 and 20 | 1 % | 3 % | 3 % | 2 % | 7 % | 100 % |

The gap adds at most 0.7 % to these. A host with two speeds, 1.6 apart, that stays 2, 5, 10, 30 or 100 steps at one:
2, 2, 5, 20 and 37 % of pairs of 23 steps, none of them by the gap. The last two are not told from a change by any rule
that sees two single runs: each run may be all of one speed.

Three samples cannot show that they are correlated, so strongly correlated ones mislead; what differs by less than
``SMALLEST_SHARE`` is called no change whatever the samples say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.results import Number, Record
from ipyprof.formatting import percent_whole, plural

Floats = npt.NDArray[np.float64]

FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "no significant change", "cannot tell"

# The medians of interleaved runs of one loop differ by 1 to 3 % on an H200 (see diagnosis/thresholds.py, FOUND_SHARE).
SMALLEST_SHARE = 0.03
# An interval of the ratio that reaches further from 1 than this does not show that nothing changed.
CLEAR_SHARE = 0.10
LEVEL = 0.02  # of the rank test; below 5 %, because the correlation is estimated from few samples
LEVEL_FEW = 0.05
LEAST_SAMPLES = 3
MANY_BLOCKS = 8
FEW_BLOCKS = 4  # up to here, three against three can reach no level: twice as far apart as wide
MOST_BLOCKS = 30
MANY_SAMPLES = 15  # from here on a gap between the ranges counts, however few blocks are left
GAP_SHARE = 0.25  # of the wider range: ranges of wandering series lie apart by chance, seldom by this
MOST_SAMPLES = 2_000  # the last ones
RESAMPLES = 2_000
SEED = 20_240_229


class Significance(Record, frozen=True):
    """The answer and what it rests on.

    Attributes:
        answer: ``faster``, ``slower``, ``no significant change`` or ``cannot tell``.
        ratio: median before / median after; ``None`` without samples.
        low, high: its 95 % interval, by a block bootstrap with a fixed seed.
        p: of the permutation test on ranks, two-sided.
        counts: samples before and after.
        block: samples put together as one, because they follow each other closely.
        text: why, in a sentence.
    """

    answer: str
    ratio: Number | None = None
    low: Number | None = None
    high: Number | None = None
    p: Number | None = None
    counts: tuple[int, int] = (0, 0)
    block: int = 1
    text: str = ""


def compare_samples(before: Sequence[float], after: Sequence[float]) -> Significance:
    """Whether ``after`` differs from ``before``: times of single steps, in order, in one unit, all above 0."""
    one, other = (np.asarray(samples, np.float64)[-MOST_SAMPLES:] for samples in (before, after))
    counts = (len(one), len(other))
    if min(counts) < LEAST_SAMPLES:
        few = f"{plural(counts[0], 'sample')} before and {counts[1]:,} after"
        ratio = float(np.median(one) / np.median(other)) if min(counts) else None
        return Significance(
            answer=UNKNOWN, ratio=ratio, counts=counts, text=f"{few}: at least {LEAST_SAMPLES} of each are needed"
        )
    ratio = float(np.median(one) / np.median(other))
    block = block_length(one, other)
    first, second = _blocks(one, block), _blocks(other, block)
    p = rank_test(first, second)
    low, high = _interval(one, other, block)
    apart = bool(one.min() > other.max() or other.min() > one.max())
    differs = blocks_differ(first, second, p) or _gap(one, other)
    small = abs(ratio - 1) < SMALLEST_SHARE
    clear = max(1 - low, high - 1) <= CLEAR_SHARE
    if differs and not small:
        answer = FASTER if ratio > 1 else SLOWER
    else:
        answer = SAME if clear or (differs and small) else UNKNOWN
    return Significance(
        answer=answer,
        ratio=ratio,
        low=low,
        high=high,
        p=p,
        counts=counts,
        block=block,
        text=_reason(answer, counts, p, differs=differs, apart=apart, faster=ratio > 1),
    )


def block_length(before: Floats, after: Floats) -> int:
    """How many neighbouring samples count as one: (1 + r) / (1 − r) of their correlation r, taken rather too large.

    At least three blocks are left on each side. Fewer than eight samples show no correlation, so they stay single.
    """
    fewest, most = min(len(before), len(after)), max(len(before), len(after))
    if fewest < MANY_BLOCKS:
        return 1
    together = distance = 0.0
    for samples in (before, after):
        off = samples - samples.mean()
        together += float(off[1:] @ off[:-1])
        distance += float(off @ off)
    if distance == 0:
        return max(1, math.ceil(most / MOST_BLOCKS))
    count = (len(before) + len(after)) / 2
    r = together / distance
    r += (1 + 3 * r) / count  # the estimate from few samples is too small by about this
    r += 0.5 / math.sqrt(2 * count)  # half its standard error
    r = min(max(r, 0.0), 0.9)
    length = max(round((1 + r) / (1 - r)), math.ceil(most / MOST_BLOCKS))
    return min(length, fewest // 3)


def rank_test(before: Floats, after: Floats) -> float:
    """The exact two-sided p of the rank sum over all ways to deal the values to the two sides; ties share ranks."""
    values = np.concatenate([before, after])
    ordered = np.sort(values)
    # Twice the mean rank of each value: a whole number, with ties too.
    ranks = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1
    size = len(before)
    ways = np.zeros((size + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in ranks.tolist():
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    share = ways[size] / ways[size].sum()
    middle = size * (len(values) + 1)
    far = np.abs(np.arange(len(share)) - middle) >= abs(int(ranks[:size].sum()) - middle)
    return float(min(share[far].sum(), 1.0))


def blocks_differ(before: Floats, after: Floats, p: float) -> bool:
    """Whether two sets of independent values, at least three each, differ; ``p`` is of ``rank_test``."""
    fewest = min(len(before), len(after))
    if fewest >= MANY_BLOCKS:
        return p <= LEVEL
    # The smallest p there can be: 0.1 of three against three.
    least = 2 / math.comb(len(before) + len(after), len(before))
    if p > max(LEVEL_FEW, least) * (1 + 1e-9):
        return False
    apart = bool(before.min() > after.max() or after.min() > before.max())
    wide = max(_spread(before), _spread(after)) * (2 if fewest <= FEW_BLOCKS else 1)
    return apart and abs(float(np.median(before) - np.median(after))) > wide


def _gap(before: Floats, after: Floats) -> bool:
    """Whether many samples of either side leave a gap between the two, wide against either range."""
    if min(len(before), len(after)) < MANY_SAMPLES:
        return False
    gap = max(before.min() - after.max(), after.min() - before.max())
    return bool(gap > GAP_SHARE * max(np.ptp(before), np.ptp(after)) and gap > 0)


def _spread(samples: Floats) -> float:
    if len(samples) < MANY_BLOCKS:
        return float(np.ptp(samples))
    tenth, ninetieth = np.quantile(samples, (0.1, 0.9))
    return float(ninetieth - tenth)


def _blocks(samples: Floats, length: int) -> Floats:
    return np.asarray([part.mean() for part in np.array_split(samples, max(len(samples) // length, 1))])


def _interval(before: Floats, after: Floats, block: int) -> tuple[float, float]:
    dice = np.random.default_rng(SEED)
    medians = [_resampled(samples, min(block, len(samples)), dice) for samples in (before, after)]
    low, high = np.quantile(medians[0] / medians[1], (0.025, 0.975))
    return float(low), float(high)


def _resampled(samples: Floats, block: int, dice: np.random.Generator) -> Floats:
    """(``RESAMPLES``,) medians of samples drawn in runs of ``block`` neighbours."""
    count = len(samples)
    runs = math.ceil(count / block)
    start = dice.integers(0, count - block + 1, (RESAMPLES, runs))
    drawn = (start[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]
    return np.asarray(np.median(samples[drawn], axis=1), np.float64)


def _reason(answer: str, counts: tuple[int, int], p: float, *, differs: bool, apart: bool, faster: bool) -> str:
    many = f"{counts[0]:,} against {counts[1]:,}"
    if answer in (FASTER, SLOWER):
        if apart:
            return f"every step after the change was {answer} than every step before it ({many}, ranges do not overlap)"
        return f"steps after the change are {answer} ({many}, p = {p:.2g})"
    if differs or (apart and answer != UNKNOWN):
        word = FASTER if faster else SLOWER
        least = percent_whole(SMALLEST_SHARE)
        return f"the samples are {word} ({many}), but by less than the {least} that two runs of one loop differ"
    if answer == UNKNOWN and apart:
        return f"the ranges do not overlap, but they are too wide for so few samples ({many})"
    if answer == UNKNOWN:
        return f"the steps vary too much to tell ({many})"
    return f"steps differ as much within one run ({many}, p = {p:.2g})"
