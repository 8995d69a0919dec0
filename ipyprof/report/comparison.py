"""What a comparison of two reports is made of: plain data. ``compare.py`` makes it."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from ipyprof.diagnosis.thresholds import BUSY_SHARE
from ipyprof.diagnosis.words import AT_LEAST
from ipyprof.formatting import (
    NOT_MEASURED,
    percent_short,
    plural,
    rate_text,
    size_text,
    speedup_text,
    time_cell,
    time_text,
    times_text,
)
from ipyprof.report.report import Breakdown, Operator, Report
from ipyprof.report.significance import (
    CLEAR_SHARE,
    FASTER,
    LEAST_SAMPLES,
    SAME,
    SLOWER,
    UNKNOWN,
    Significance,
    blocks_differ,
    compare_samples,
    rank_test,
)
from ipyprof.show.words import BY_NAME, CATEGORIES, Category, Fact, cause_name, device_text, step_parts

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One side. ``samples_ms`` are what is compared, per step or per item; ``clock``: ``unprofiled``, ``recorded`` or
    ``none``."""

    label: str
    device: str
    torch: str | None
    how: str
    step_ms: float | None
    samples_ms: tuple[float, ...]
    clock: str
    breakdown: Breakdown
    items: float | None
    cause: str
    headline: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One number of both sides; ``unit`` is ``ms``, ``share``, ``bytes`` or a rate such as ``samples/s``."""

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """after / before, or ``None``."""
        if self.before is None or self.after is None or self.before <= 0:
            return None
        return self.after / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One part of the step or one operator, ms per step. ``state``: changed, same, appeared, vanished, unknown (not
    measured) or unjudged (too few recorded steps to tell)."""

    name: str
    before_ms: float | None
    after_ms: float | None
    state: str

    @property
    def change_ms(self) -> float | None:
        """after − before; what is not there takes no time."""
        if self.state == "unknown":
            return None
        return (self.after_ms or 0.0) - (self.before_ms or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the first report said its cure would gain. ``kind`` is ``at most`` or ``at least``; ``recovered`` is the
    share of the promised time that is gone. ``exceeded``: what was reached is beyond an ``at most`` by a tenth
    and by more than the steps vary."""

    cause: str
    kind: str
    bound: float
    reached: float
    recovered: float | None
    exceeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Before and after. Make it with ``ipyprof.compare``.

    Attributes:
        per_item: both did a known, different amount of work, so that times are compared per item.
        speedup: before / after of the step, or of the time per item; ``None`` where a step was not measured.
        parts: of the step, in the order of every bar.
        operators: all that differ, the largest change first.
        same_operators: how many do not differ.
        unjudged_operators: how many differ in the mean, with too few recorded steps to tell.
        on_device: operators are compared by device self time, else by host self time; of recorded steps both.
        code: the lines of the cell that differ, each ``(sign, text)``.
        warnings: why the two may not be comparable, each a sentence.
    """

    headline: str
    before: Run
    after: Run
    significance: Significance
    speedup: float | None
    per_item: bool
    promise: Promise | None
    numbers: tuple[Pair, ...]
    parts: tuple[Row, ...]
    operators: tuple[Row, ...]
    same_operators: int
    unjudged_operators: int
    on_device: bool
    code: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``: the fields of the class, ``schema`` first."""
        from ipyprof.report.report import encode

        plain: dict[str, Any] = encode(self)
        for rows in (plain["parts"], plain["operators"]):
            for row in rows:
                row["change_ms"] = Row(**row).change_ms
        return {"schema": plain.pop("schema"), **plain}

    def __repr__(self) -> str:
        """Such as ``<Comparison before → after: faster, 57.0 → 15.1 ms>``."""

        return f"<Comparison {self.before.label}{ARROW}{self.after.label}: {change_text(self)}>"

    def __str__(self) -> str:
        """What a terminal shows."""
        from ipyprof.show.compare_text import comparison_text

        return comparison_text(self).rstrip("\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The text and the card, for the notebook's display system."""
        from ipyprof.show.compare_html import render_comparison
        from ipyprof.show.compare_text import comparison_text

        return {"text/plain": comparison_text(self), "text/html": render_comparison(self)}


# A row that differs by less, of itself or of the shorter step, is "≈ 0": GPU clocks move by as much between two runs.
ROW_SHARE = 0.02
STEP_SHARE = 0.005


def rate_unit(report: Report) -> str | None:
    """The unit of the throughput, or ``None`` without one."""
    return None if report.steps.throughput is None else report.steps.throughput.unit


def number_pairs(before: Report, after: Report) -> tuple[Pair, ...]:
    """The step, and what was measured on either side of throughput, use of the GPU and memory."""
    units = {unit for unit in (rate_unit(before), rate_unit(after)) if unit is not None}
    found = [Pair(name="step", unit="ms", before=before.steps.step_ms, after=after.steps.step_ms)]
    if len(units) == 1:
        found.append(Pair(name="throughput", unit=units.pop(), before=_rate(before), after=_rate(after)))
    one, other = before.utilization, after.utilization
    found += [
        Pair(name="GPU computes", unit="share", before=one.kernel_busy, after=other.kernel_busy),
        Pair(name="MFU", unit="share", before=one.mfu, after=other.mfu),
        Pair(name="peak memory", unit="bytes", before=_peak(before), after=_peak(after)),
    ]
    return tuple(pair for pair in found if pair.name == "step" or (pair.before, pair.after) != (None, None))


def _rate(report: Report) -> float | None:
    return None if report.steps.throughput is None else report.steps.throughput.value


def _peak(report: Report) -> float | None:
    return None if report.memory is None else report.memory.peak_bytes


def part_rows(before: Report, after: Report) -> tuple[Row, ...]:
    """The parts of the step that take time on either side, in the order of every bar."""
    parts = [{part.category.name: part.ms for part in step_parts(report.breakdown)} for report in (before, after)]
    steps = [_recorded_parts(report) for report in (before, after)]
    shorter = min(report.steps.step_ms or 0.0 for report in (before, after))
    rows = []
    for category in CATEGORIES:
        values = [side.get(category.name) for side in parts]
        if values == [None, None] or not any(values):
            continue
        samples = [_category_samples(side, category) if category.works else () for side in steps]
        rows.append(_row(category.name, values[0], values[1], samples, shorter, known=None not in values))
    return tuple(rows)


def _recorded_parts(report: Report) -> Sequence[Mapping[str, Any]]:
    return [step.get("breakdown") or {} for step in report.views.get("per_step") or ()]


def _category_samples(steps: Sequence[Mapping[str, Any]], category: Category) -> tuple[float, ...]:
    return tuple(sum(step.get(key) or 0.0 for key in category.keys) for step in steps)


def operator_rows(before: Report, after: Report, *, on_device: bool) -> list[Row]:
    """Every operator of either side by its self time in a recorded step: of the device, or of the host."""

    def own(operator: Operator) -> float:
        return (operator.self_device_ms or 0.0) if on_device else operator.self_host_ms

    sides = [{row.name: own(row) for row in report.operators if own(row) > 0} for report in (before, after)]
    samples = [
        _operator_samples(report, "self_device_ms" if on_device else "self_host_ms") for report in (before, after)
    ]
    shorter = min(report.steps.step_ms or 0.0 for report in (before, after))
    return [
        _row(
            name,
            sides[0].get(name),
            sides[1].get(name),
            [side.get(name, ()) for side in samples],
            shorter,
            on_host=not on_device,
        )
        for name in dict.fromkeys((*sides[0], *sides[1]))
    ]


def _operator_samples(report: Report, field: str) -> dict[str, tuple[float, ...]]:
    """Self time in each recorded step that knows the operator, by operator."""
    found: dict[str, list[float]] = {}
    for step in report.views.get("per_step") or ():
        for row in step.get("operators") or ():
            found.setdefault(row["name"], []).append(row.get(field) or 0.0)
    return {name: tuple(values) for name, values in found.items()}


def _row(
    name: str,
    before: float | None,
    after: float | None,
    samples: Sequence[Sequence[float]],
    shorter_ms: float,
    *,
    known: bool = True,
    on_host: bool = False,
) -> Row:
    """A row and its state.

    ``on_host`` the single steps decide: one in which the core was taken away moves the mean. Work of the GPU repeats,
    and is compared by its mean where there are no single steps.
    """
    change = abs((after or 0.0) - (before or 0.0))
    within = change <= ROW_SHARE * max(before or 0.0, after or 0.0) or change <= STEP_SHARE * shorter_ms
    if on_host and not within and before and after:
        state = _host_state(samples)
    else:
        state = "same" if within or _overlap(samples) else "changed"
    if state == "changed" and not before:
        state = "appeared"
    elif state == "changed" and not after:
        state = "vanished"
    return Row(name=name, before_ms=before, after_ms=after, state=state if known else "unknown")


def _host_state(samples: Sequence[Sequence[float]]) -> str:
    if min(len(side) for side in samples) < LEAST_SAMPLES:
        return "unjudged"
    one, other = (np.asarray(side, np.float64) for side in samples)
    return "changed" if blocks_differ(one, other, rank_test(one, other)) else "same"


def _overlap(samples: Sequence[Sequence[float]]) -> bool:
    """Whether both sides have samples enough to see that their ranges overlap."""
    if any(len(side) < LEAST_SAMPLES for side in samples):
        return False
    return min(samples[0]) <= max(samples[1]) and min(samples[1]) <= max(samples[0])


def code_changes(before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Lines of the cell that differ, without the magic line; what went stands before what came in its place."""
    if not before or not after:
        return ()
    old, new = before[1:], after[1:]
    found: list[tuple[str, str]] = []
    for what, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if what != "equal":
            found += [("-", line) for line in old[old_from:old_to]]
            found += [("+", line) for line in new[new_from:new_to]]
    return tuple((sign, line) for sign, line in found if line.strip())


# The same work on the same device: its times differ by the GPU's clock, by up to 17 % (thresholds.DRIFT_SHARE).
CLOCK_SHARES = (0.03, 0.20)
CLOCK_LEAST_ROWS = 5


def comparison_warnings(
    before: Report,
    after: Report,
    one: Run,
    other: Run,
    items: tuple[float | None, float | None],
    *,
    per_item: bool,
) -> Iterable[str]:
    if before is after or before == after:
        yield "both are the same report"
    if one.device != other.device:
        yield f"other device: {one.device} before, {other.device} after"
    for key in ("torch", "cuda"):
        versions = (before.environment.get(key), after.environment.get(key))
        if versions[0] != versions[1] and None not in versions:
            yield f"other {key}: {versions[0]} before, {versions[1]} after"
    if items[0] is not None and items[1] is not None:
        if rate_unit(before) != rate_unit(after):
            yield f"other items: {rate_unit(before)} before, {rate_unit(after)} after"
        elif per_item:
            yield f"other work per step: {items[0]:,.6g} items before, {items[1]:,.6g} after; compared per item"
    kinds = [_kind(run.how) for run in (one, other)]
    if kinds[0] != kinds[1]:
        yield f"the steps may not be the same work: {one.how} before, {other.how} after"
    if before.steps.cycle != after.steps.cycle:
        yield f"other cycles of the optimizer: {before.steps.cycle} before, {after.steps.cycle} after"
    for run, report in ((one, before), (other, after)):
        if not report.steps.per_step_ms:
            yield f"{run.label}: no step was timed without the profiler, so its step is an estimate"
        elif report.steps.baseline == "after_first":
            yield f"{run.label}: the only unprofiled step came right behind the recording"
        if report.source.partial:
            yield f"{run.label}: {report.source.partial}"
        yield from _recordings(run, report, after if report is before else before)
    if one.clock == "recorded":
        yield "recorded steps are compared: what recording costs is in them"
    clock = _clock_ratio(before, after)
    if clock is not None and one.device == other.device:
        word = "longer" if clock > 1 else "shorter"
        yield (
            f"the same operators take {percent_short(abs(clock - 1))} {word} after: the GPU's clock, or what shares "
            "the GPU, may have changed"
        )


def _recordings(run: Run, report: Report, against: Report) -> Iterable[str]:
    """That the steps of several recordings of one loop differ by more than the two runs do."""
    recordings = report.repeats.recordings if report.repeats is not None else ()
    steps = [one.step_ms for one in recordings if one.step_ms is not None]
    if len(steps) > 1 and against.steps.step_ms is not None and min(steps) <= against.steps.step_ms <= max(steps):
        yield f"{run.label}: the steps of its recordings, {times_text(steps)}, reach as far as the other run's"


def _kind(how: str) -> str:
    """What a step is, without its line: the line moves when the cell is edited."""
    return how.split(" at line")[0].split(",")[0]


def _clock_ratio(before: Report, after: Report) -> float | None:
    """By how much the typical unchanged operator (same calls, same shapes) takes longer; ``None`` where that is not
    the clock: too few of them, too little or too much."""
    sides = [
        {(row.name, round(row.calls, 3), row.shapes): row.self_device_ms for row in report.operators}
        for report in (before, after)
    ]
    ratios = [
        there / here
        for key, here in sides[0].items()
        if here and (there := sides[1].get(key)) is not None and there > 0
    ]
    if len(ratios) < CLOCK_LEAST_ROWS:
        return None
    typical = median(ratios)
    return typical if CLOCK_SHARES[0] <= abs(typical - 1) <= CLOCK_SHARES[1] else None


ITEMS_SHARE = 1e-3  # items differ when they differ by more than rounding


def compare_reports(before: Report, after: Report) -> Comparison:
    """What changed from ``before`` to ``after``. Nothing is refused: what does not fit is a warning."""
    items = (_items(before), _items(after))
    same_unit = rate_unit(before) == rate_unit(after)
    per_item, weights = False, (1.0, 1.0)
    if items[0] is not None and items[1] is not None and same_unit and abs(items[0] / items[1] - 1) > ITEMS_SHARE:
        per_item, weights = True, (items[0], items[1])
    samples, clock = _samples(before, after)
    one = _run(before, "before", samples[0], weights[0], clock)
    other = _run(after, "after", samples[1], weights[1], clock)
    significance = compare_samples(one.samples_ms, other.samples_ms)
    speedup = None
    if one.step_ms and other.step_ms:
        speedup = (one.step_ms / weights[0]) / (other.step_ms / weights[1])
    promise = _promise(before, one, other, speedup, significance)
    on_device = all(any(row.self_device_ms is not None for row in report.operators) for report in (before, after))
    rows = operator_rows(before, after, on_device=on_device)
    moved = [row for row in rows if row.state not in ("same", "unknown", "unjudged")]
    moved.sort(key=lambda row: (-abs(row.change_ms or 0.0), row.name))
    found = Comparison(
        headline="",
        before=one,
        after=other,
        significance=significance,
        speedup=speedup,
        per_item=per_item,
        promise=promise,
        numbers=number_pairs(before, after),
        parts=part_rows(before, after),
        operators=tuple(moved),
        same_operators=sum(row.state == "same" for row in rows),
        unjudged_operators=sum(row.state == "unjudged" for row in rows),
        on_device=on_device,
        code=code_changes(before.source.cell, after.source.cell),
        warnings=tuple(comparison_warnings(before, after, one, other, items, per_item=per_item)),
    )
    return replace(found, headline=_headline(found))


def run_label(report: Report, otherwise: str) -> str:
    """The run's title, else its file's name, else ``otherwise``."""
    if report.source.name:
        return report.source.name
    return os.path.basename(report.source.path) if report.source.path else otherwise


def _run(report: Report, otherwise: str, samples: tuple[float, ...], weight: float, clock: str) -> Run:
    return Run(
        label=run_label(report, otherwise),
        device=device_text(report),
        torch=report.environment.get("torch"),
        how=report.steps.how,
        step_ms=report.steps.step_ms,
        samples_ms=tuple(ms / weight for ms in samples),
        clock=clock if samples else "none",
        breakdown=report.breakdown,
        items=_items(report),
        cause=report.verdict.cause,
        headline=report.verdict.headline,
        confidence=report.verdict.confidence,
    )


def _samples(before: Report, after: Report) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], str]:
    """The samples of both on one clock: unprofiled steps, or recorded ones where neither has any unprofiled."""
    unprofiled = (_positive(before.steps.per_step_ms), _positive(after.steps.per_step_ms))
    recorded = (_recorded_samples(before), _recorded_samples(after))
    if not any(unprofiled) and all(recorded):
        return recorded, "recorded"
    return unprofiled, "unprofiled"


def _recorded_samples(report: Report) -> tuple[float, ...]:
    if report.steps.profiled_per_step_ms:
        return _positive(report.steps.profiled_per_step_ms)
    return _positive(step.get("step_ms") for step in report.views.get("per_step") or ())


def _positive(samples: Iterable[float | None]) -> tuple[float, ...]:
    """The samples that took any time: a report from elsewhere may hold others."""
    return tuple(float(ms) for ms in samples if ms is not None and ms > 0)


def _items(report: Report) -> float | None:
    """Work in one step, as the throughput knows it."""
    rate, step = report.steps.throughput, report.steps.step_ms
    return None if rate is None or not step else rate.value * step / 1000


def _promise(before: Report, one: Run, other: Run, speedup: float | None, judged: Significance) -> Promise | None:
    verdict = before.verdict
    if verdict.speedup_bound is None or speedup is None or verdict.cause in ("compute_bound", "inconclusive"):
        return None
    recovered = None
    if verdict.recoverable_ms and one.step_ms is not None and other.step_ms is not None:
        recovered = one.step_ms * (1 - 1 / speedup) / verdict.recoverable_ms
    kind, bound = "at least" if verdict.cause in AT_LEAST else "at most", verdict.speedup_bound
    beyond = speedup > bound * (1 + CLEAR_SHARE) and (judged.low is None or judged.low > bound)
    return Promise(
        cause=verdict.cause,
        kind=kind,
        bound=bound,
        reached=speedup,
        recovered=recovered,
        exceeded=kind == "at most" and judged.answer == FASTER and beyond,
    )


def _headline(found: Comparison) -> str:
    speedup, promise, answer = found.speedup, found.promise, found.significance.answer
    if speedup is None:
        missing = [run.label for run in (found.before, found.after) if not run.step_ms]
        return f"Cannot compare: the step of {' and '.join(missing)} was {NOT_MEASURED}."
    took = _took(found)
    if answer == SAME:
        tail = f"; predicted was {promise.kind} {speedup_text(promise.bound)}" if promise is not None else ""
        return f"No significant change: {took}{tail}."
    if answer == UNKNOWN:
        few = min(found.significance.counts) < LEAST_SAMPLES
        why = "from too few samples" if few else "but steps vary too much"
        return f"Cannot tell whether it changed: {took}, {why}."
    if answer == SLOWER:
        head = f"{speedup_text(1 / speedup)} slower"
        if promise is not None:
            return f"Predicted {promise.kind} {speedup_text(promise.bound)} faster, but {head}: {took}."
        return f"{head[0].upper()}{head[1:]}: {took}."
    if promise is not None:
        more = ", so more than the cause changed" if promise.exceeded else ""
        return f"Predicted {promise.kind} {speedup_text(promise.bound)}, reached {speedup_text(speedup)}{more}: {took}."
    return f"{speedup_text(speedup)} {FASTER}: {took}."


def _took(found: Comparison) -> str:
    rate = next((one for one in found.numbers if one.name == "throughput"), None)
    if found.per_item and rate is not None and rate.before is not None and rate.after is not None:
        return f"{rate_text(rate.after, rate.unit)} instead of {rate_text(rate.before, rate.unit)}"
    return f"a step takes {time_text(found.after.step_ms)} instead of {time_text(found.before.step_ms)}"


ARROW = " → "
NOTHING = "≈ 0"
NEARLY = 0.02  # a ratio within this of 1 is "≈ 1×"
HOST_SPEEDS = 1.9  # a shared host has two: 5,000 small operators on the CPU took 15 or 29 ms on that of an H200
RECORDED_HOST = "Host times are as recorded, longer than without the profiler: they do not add up to the step."
_HOW = (
    "Steps follow each other closely, so neighbours count as one where they are correlated; an exact permutation test "
    "on ranks then says how often chance alone gives such a difference, and a bootstrap gives the interval of the "
    "ratio of the medians. It compares these two recordings: what changes between two runs, such as another load on "
    "the machine, it cannot see. Loops that wait for the host repeat within 30 % on a shared machine, and within a "
    "factor of 1.9 where its host has two speeds; loops that keep the GPU busy within 3 %. Where the difference is of "
    "that size, record each twice. Fifteen steps or more on either side also count as different where a gap lies "
    "between all of one side and all of the other."
)
"""How the answer was found, for the folded text."""


def how_text() -> str:
    """What the answer rests on and what it cannot see."""
    return _HOW


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


def change_text(found: Comparison) -> str:
    """The answer and the step of both: ``faster, 57.0 → 15.1 ms``."""
    step = next((pair for pair in found.numbers if pair.name == "step"), None)
    return found.significance.answer + (f", {pair_arrow(step)}" if step is not None else "")


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
