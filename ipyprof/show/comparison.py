"""A comparison in words: what its HTML and its text both say."""

from __future__ import annotations

import math

from ipyprof.diagnosis.thresholds import BUSY_SHARE
from ipyprof.formatting import (
    NOT_MEASURED,
    percent_short,
    plural,
    rate_text,
    size_text,
    speedup_text,
    time_cell,
    time_text,
)
from ipyprof.report.comparison import Comparison, Pair, Row
from ipyprof.report.significance import LEAST_SAMPLES, SAME, UNKNOWN
from ipyprof.show.words import BY_NAME, Fact, cause_name

ARROW = " → "
NOTHING = "≈ 0"
NEARLY = 0.02  # a ratio within this of 1 is "≈ 1×"
HOST_SPEEDS = 1.9  # a shared host has two: 5,000 small operators on the CPU took 15 or 29 ms on that of an H200
RECORDED_HOST = "Host times are as recorded, longer than without the profiler: they do not add up to the step."
HOW = (
    "Steps follow each other closely, so neighbours count as one where they are correlated; an exact permutation test "
    "on ranks then says how often chance alone gives such a difference, and a bootstrap gives the interval of the "
    "ratio of the medians. It compares these two recordings: what changes between two runs, such as another load on "
    "the machine, it cannot see. Loops that wait for the host repeat within 30 % on a shared machine, and within a "
    "factor of 1.9 where its host has two speeds; loops that keep the GPU busy within 3 %. Where the difference is of "
    "that size, record each twice. Fifteen steps or more on either side also count as different where a gap lies "
    "between all of one side and all of the other."
)
"""What the answer rests on and what it cannot see, for the folded text."""


def comparison_facts(found: Comparison) -> tuple[Fact, ...]:
    """The numbers under the headline."""
    facts = [
        Fact(name=pair.name, value=pair_arrow(pair), measured=None not in (pair.before, pair.after))
        for pair in found.numbers
        if pair.name in ("step", "throughput", "GPU computes")
    ]
    cause = found.after.cause
    now = {"compute_bound": "nothing: healthy", "inconclusive": "could not tell"}.get(cause, cause_name(cause))
    return (*facts, Fact(name="now holding it back", value=now))


def brief(found: Comparison) -> str:
    """Both labels, the answer and the step of both: ``before → after: faster, 57.0 → 15.1 ms``."""
    labels = f"{found.before.label}{ARROW}{found.after.label}"
    return f"{labels}: {found.significance.answer}, {pair_arrow(found.numbers[0])}"


def table_numbers(found: Comparison) -> tuple[Pair, ...]:
    """The numbers of the table; the step stands in the bars."""
    return tuple(pair for pair in found.numbers if pair.name != "step")


def pair_arrow(pair: Pair) -> str:
    """Both values with one unit where they share it: ``257 → 31.6 ms``, ``5.9 → 48 %``."""
    before, after, _ = pair_texts(pair)
    first, _, unit = before.rpartition(" ")
    if unit and after.endswith(f" {unit}") and pair.before is not None and pair.after is not None:
        before = first
    return f"{before}{ARROW}{after}"


def pair_texts(pair: Pair) -> tuple[str, str, str]:
    """Before, after and their ratio, such as ``("249 img/s", "2,025 img/s", "8.1×")``."""
    before, after = (_value_text(pair.unit, value) for value in (pair.before, pair.after))
    return before, after, ratio_text(pair.ratio)


def ratio_text(ratio: float | None) -> str:
    """``8.1×``, ``0.18×``, ``≈ 1×``; empty where there is none."""
    if ratio is None:
        return ""
    if abs(ratio - 1) < NEARLY:
        return "≈ 1×"
    return speedup_text(ratio)


def interval_text(found: Comparison) -> str:
    """Such as ``8.1× (95 %: 7.9 to 8.4)``; empty where the samples give none."""
    judged = found.significance
    if judged.ratio is None or judged.low is None or judged.high is None:
        return ""
    low, high = (speedup_text(one).rstrip("×") for one in (judged.low, judged.high))
    return f"{speedup_text(judged.ratio)} (95 %: {low} to {high})"


def row_name(row: Row) -> str:
    """The part's name in words, or the operator's."""
    return BY_NAME[row.name].label if row.name in BY_NAME else row.name


def operators_rest(found: Comparison) -> tuple[str, ...]:
    """What became of the operators that are not listed, a phrase each."""
    told = []
    if found.same_operators:
        told.append(f"{plural(found.same_operators, 'operator')} with {SAME}")
    if found.unjudged_operators:
        few = f"fewer than {LEAST_SAMPLES} recorded steps know them"
        told.append(f"{plural(found.unjudged_operators, 'operator')} not judged ({few})")
    return tuple(told)


def row_texts(row: Row, total: float) -> tuple[str, str, str, str]:
    """Before, after, the change with its sign, and a word: in a column whose largest is ``total``."""
    before, after = (
        time_cell(0.0 if value is None and row.state != "unknown" else value, total)
        for value in (row.before_ms, row.after_ms)
    )
    if row.change_ms is None:
        return before, after, "", "cannot tell"
    if row.state == "same":
        return before, after, NOTHING, SAME
    change = time_cell(row.change_ms, total)
    sign = "+" if row.change_ms > 0 else ""
    return before, after, f"{sign}{change}", row.state if row.state in ("appeared", "vanished") else ""


def lessons(found: Comparison) -> tuple[str, ...]:
    """What this comparison teaches, a sentence each: the promise, what did not move, what comes next."""
    told = []
    promise, answer = found.promise, found.significance.answer
    if promise is not None and answer not in (SAME, UNKNOWN) and found.speedup is not None and found.speedup > 1:
        bound = speedup_text(promise.bound)
        if promise.exceeded:
            told.append(
                f"The bound of {bound} holds for removing {cause_name(promise.cause)} alone: the change did more than "
                "that, or another cause went with it."
            )
        elif promise.kind == "at most" and promise.reached > promise.bound * (1 + NEARLY):
            told.append(f"Beyond the bound of {bound} by no more than runs of one loop or their steps differ.")
        elif promise.kind == "at most" and promise.recovered is not None:
            share = percent_short(min(promise.recovered, 1.0))
            told.append(f"The change gained {share} of what removing {cause_name(promise.cause)} can give.")
    kernel = next((row for row in found.parts if row.name == "kernel"), None)
    if kernel is not None and kernel.state == "same" and answer not in (SAME, UNKNOWN):
        told.append("The GPU computes as long as before: the gain is waiting that is gone.")
    if found.after.cause == found.before.cause and found.after.cause not in ("compute_bound", "inconclusive"):
        told.append(f"What holds the step back is still the same: {cause_name(found.after.cause)}.")
    if _may_be_the_machine(found):
        told.append(
            "The slower run waits for the host, whose speed alone can change a step by up to "
            f"{speedup_text(HOST_SPEEDS)} from run to run on a shared machine: record both again to be sure."
        )
    told.append(f"Now: {found.after.headline}")
    return tuple(told)


def _may_be_the_machine(found: Comparison) -> bool:
    """Whether the two differ by no more than runs of one loop do that is held back by the host."""
    if found.significance.answer in (SAME, UNKNOWN) or not found.speedup:
        return False
    slower = found.after if found.speedup < 1 else found.before
    busy = (slower.breakdown.kernel or 0.0) / (slower.step_ms or math.inf)
    return max(found.speedup, 1 / found.speedup) <= HOST_SPEEDS and busy < BUSY_SHARE


def samples_text(found: Comparison) -> tuple[str, str]:
    """The range of each side's samples with the step, such as ``257 ms (254–261)``."""
    texts = []
    for run in (found.before, found.after):
        text = time_text(run.step_ms)
        if run.clock == "unprofiled" and len(run.samples_ms) > 1 and not found.per_item:
            low, high = (time_text(one) for one in (min(run.samples_ms), max(run.samples_ms)))
            unit = text.rpartition(" ")[2]
            if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
                low, high = low[: -len(unit) - 1], high[: -len(unit) - 1]
            text += f"  ({low}–{high})"
        texts.append(text)
    return texts[0], texts[1]


def _value_text(unit: str, value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    if unit == "ms":
        return time_text(value)
    if unit == "share":
        return percent_short(value)
    if unit == "bytes":
        return size_text(value)
    return rate_text(value, unit)
