"""Two reports side by side: what changed, whether it did, and what the first one promised."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from ipyprof.analysis.results import Breakdown, Ms, Number, Operator, Record
from ipyprof.diagnosis.causes import cause_of
from ipyprof.formatting import NOT_MEASURED, rate_text, speedup_text, time_text, times_text
from ipyprof.report.report import Report, plain_values
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

SCHEMA = 1
PARTS = {
    "kernel": ("kernel",),
    "copies": ("memcpy", "memset"),
    "communication": ("communication",),
    "cpu": ("cpu",),
    "runtime": ("runtime",),
    "data_loading": ("data_loading",),
    "unlike_steps": ("unlike_steps",),
    "other": ("other",),
}
"""Parts of the step that are compared → keys of the breakdown, in the order of every bar."""
GPU_WORK = ("kernel", "copies", "communication")
# A row that differs by less, of itself or of the shorter step, is the same: GPU clocks move by as much between runs.
ROW_SHARE = 0.02
STEP_SHARE = 0.005
ITEMS_SHARE = 1e-3  # items differ when they differ by more than rounding


class Run(Record, frozen=True):
    """One side. ``samples_ms`` are what is compared, per step or per item; ``clock``: ``unprofiled``, ``recorded`` or
    ``none``; ``items``: work in one step."""

    label: str
    device: str | None
    torch: str | None
    how: str
    step_ms: Ms | None
    samples_ms: tuple[Ms, ...]
    clock: str
    breakdown: Breakdown
    items: Number | None
    cause: str
    headline: str
    confidence: str


class Pair(Record, frozen=True):
    """One number of both sides; ``unit`` is ``ms``, ``share``, ``bytes`` or a rate such as ``samples/s``."""

    name: str
    unit: str
    before: Number | None
    after: Number | None

    @property
    def ratio(self) -> float | None:
        """after / before, or ``None``."""
        return None if self.before is None or self.after is None or self.before <= 0 else self.after / self.before


class Row(Record, frozen=True):
    """One part of the step or one operator, ms per step. ``state``: changed, same, appeared, vanished, unknown (not
    measured) or unjudged (too few recorded steps to tell). What is not there takes no time in ``change_ms``."""

    name: str
    before_ms: Ms | None
    after_ms: Ms | None
    state: str
    change_ms: Ms | None


class Promise(Record, frozen=True):
    """What the first report said its cure would gain. ``kind`` is ``at most`` or ``at least``; ``recovered`` is the
    share of the promised time that is gone. ``exceeded``: what was reached is beyond an ``at most`` by a tenth
    and by more than the steps vary."""

    cause: str
    kind: str
    bound: Number
    reached: Number
    recovered: Number | None
    exceeded: bool


class Comparison(Record, frozen=True):
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
    speedup: Number | None
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
        plain = plain_values(self)
        return {"schema": plain.pop("schema"), **plain}

    def __repr__(self) -> str:
        """Such as ``<Comparison before → after: faster, 57.0 → 15.1 ms>``."""
        return f"<Comparison {RENDERERS['brief'](self) if RENDERERS else self.significance.answer}>"

    def __str__(self) -> str:
        """What a terminal shows."""
        return RENDERERS["text/plain"](self).rstrip("\n") if RENDERERS else repr(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The text and the card, for the notebook's display system."""
        return {name: render(self) for name, render in RENDERERS.items() if "/" in name}


RENDERERS: dict[str, Callable[[Comparison], str]] = {}
"""How a comparison shows itself, as ``RENDERERS`` of a report: MIME type (or ``brief``) → renderer."""


def compare_reports(before: Report, after: Report) -> Comparison:
    """What changed from ``before`` to ``after``. Nothing is refused: what does not fit is a warning."""
    items = [_items(report) for report in (before, after)]
    same_unit = _rate_unit(before) == _rate_unit(after)
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
    on_device = all(any(row.self_device_ms is not None for row in report.operators) for report in (before, after))
    rows = _operator_rows(before, after, on_device=on_device)
    moved = [row for row in rows if row.state not in ("same", "unjudged")]
    found = Comparison(
        headline="",
        before=one,
        after=other,
        significance=significance,
        speedup=speedup,
        per_item=per_item,
        promise=_promise(before, one, other, speedup, significance),
        numbers=_number_pairs(before, after),
        parts=_part_rows(before, after),
        operators=tuple(sorted(moved, key=lambda row: (-abs(row.change_ms or 0.0), row.name))),
        same_operators=sum(row.state == "same" for row in rows),
        unjudged_operators=sum(row.state == "unjudged" for row in rows),
        on_device=on_device,
        code=code_changes(before.source.cell, after.source.cell),
        warnings=tuple(_warnings(before, after, one, other)),
    )
    return structs.replace(found, headline=_headline(found))


def run_label(report: Report, otherwise: str) -> str:
    """The run's title, else its file's name, else ``otherwise``."""
    if report.source.name:
        return report.source.name
    return os.path.basename(report.source.path) if report.source.path else otherwise


def _run(report: Report, otherwise: str, samples: tuple[float, ...], weight: float, clock: str) -> Run:
    return Run(
        label=run_label(report, otherwise),
        device=None if report.device is None else report.device.name,
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


def _rate_unit(report: Report) -> str | None:
    return None if report.steps.throughput is None else report.steps.throughput.unit


def _items(report: Report) -> float | None:
    """Work in one step, as the throughput knows it."""
    rate, step = report.steps.throughput, report.steps.step_ms
    return None if rate is None or not step else rate.value * step / 1000


def _samples(before: Report, after: Report) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], str]:
    """The samples of both on one clock: unprofiled steps, or recorded ones where neither has any unprofiled."""
    unprofiled = (_positive(before.steps.per_step_ms), _positive(after.steps.per_step_ms))
    recorded = (_recorded_samples(before), _recorded_samples(after))
    if not any(unprofiled) and all(recorded):
        return recorded, "recorded"
    return unprofiled, "unprofiled"


def _recorded_samples(report: Report) -> tuple[float, ...]:
    return _positive(report.steps.profiled_per_step_ms or (step.step_ms for step in report.views.per_step))


def _positive(samples: Iterable[float]) -> tuple[float, ...]:
    """The samples that took any time: a report from elsewhere may hold others."""
    return tuple(ms for ms in samples if ms > 0)


def _number_pairs(before: Report, after: Report) -> tuple[Pair, ...]:
    """The step, and what was measured on either side of throughput, use of the GPU and memory."""
    reports = (before, after)
    units = {unit for unit in map(_rate_unit, reports) if unit is not None}
    rates = [None if one.steps.throughput is None else one.steps.throughput.value for one in reports]
    peaks = [None if one.memory is None else one.memory.peak_bytes for one in reports]
    one, other = before.utilization, after.utilization
    found = [
        Pair(name="throughput", unit=units.pop() if len(units) == 1 else "", before=rates[0], after=rates[1]),
        Pair(name="GPU computes", unit="share", before=one.kernel_busy, after=other.kernel_busy),
        Pair(name="MFU", unit="share", before=one.mfu, after=other.mfu),
        Pair(name="peak memory", unit="bytes", before=peaks[0], after=peaks[1]),
    ]
    step = Pair(name="step", unit="ms", before=before.steps.step_ms, after=after.steps.step_ms)
    return (step, *(pair for pair in found if pair.unit and (pair.before, pair.after) != (None, None)))


def _part_rows(before: Report, after: Report) -> tuple[Row, ...]:
    """The parts of the step that take time on either side."""
    shorter = min(report.steps.step_ms or 0.0 for report in (before, after))
    rows = []
    for name, keys in PARTS.items():
        values = [_part(report.breakdown, keys) for report in (before, after)]
        if any(values):
            samples = [
                [_part(step.breakdown, keys) or 0.0 for step in report.views.per_step] if name in GPU_WORK else []
                for report in (before, after)
            ]
            rows.append(_row(name, values[0], values[1], samples, shorter, known=None not in values))
    return tuple(rows)


def _part(breakdown: Breakdown, keys: Sequence[str]) -> float | None:
    values = [getattr(breakdown, key) for key in keys]
    return sum(value or 0.0 for value in values) if values.count(None) < len(values) else None


def _operator_rows(before: Report, after: Report, *, on_device: bool) -> list[Row]:
    """Every operator of either side by its self time in a recorded step: of the device, or of the host."""

    def own(operator: Operator) -> float:
        return (operator.self_device_ms or 0.0) if on_device else operator.self_host_ms

    def by_step(report: Report) -> Mapping[str, list[float]]:
        found: dict[str, list[float]] = {}
        for step in report.views.per_step:
            for row in step.operators:
                found.setdefault(row.name, []).append(own(row))
        return found

    one, other = ({row.name: own(row) for row in report.operators if own(row) > 0} for report in (before, after))
    samples = [by_step(report) for report in (before, after)]
    shorter = min(report.steps.step_ms or 0.0 for report in (before, after))
    return [
        _row(
            name,
            one.get(name),
            other.get(name),
            [side.get(name, ()) for side in samples],
            shorter,
            on_host=not on_device,
        )
        for name in dict.fromkeys((*one, *other))
    ]


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
    return Row(
        name=name,
        before_ms=before,
        after_ms=after,
        state=state if known else "unknown",
        change_ms=(after or 0.0) - (before or 0.0) if known else None,
    )


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


def _warnings(before: Report, after: Report, one: Run, other: Run) -> Iterable[str]:
    if before is after or before == after:
        yield "both are the same report"
    if one.device != other.device:
        yield f"other device: {one.device or 'no GPU'} before, {other.device or 'no GPU'} after"
    for key in ("torch", "cuda"):
        versions = (before.environment.get(key), after.environment.get(key))
        if versions[0] != versions[1] and None not in versions:
            yield f"other {key}: {versions[0]} before, {versions[1]} after"
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


def _recordings(run: Run, report: Report, against: Report) -> Iterable[str]:
    """That the steps of several recordings of one loop differ by more than the two runs do."""
    recordings = report.repeats.recordings if report.repeats is not None else ()
    steps = [one.step_ms for one in recordings if one.step_ms is not None]
    if len(steps) > 1 and against.steps.step_ms is not None and min(steps) <= against.steps.step_ms <= max(steps):
        yield f"{run.label}: the steps of its recordings, {times_text(steps)}, reach as far as the other run's"


def _kind(how: str) -> str:
    """What a step is, without its line: the line moves when the cell is edited."""
    return how.split(" at line")[0].split(",")[0]


def _promise(before: Report, one: Run, other: Run, speedup: float | None, judged: Significance) -> Promise | None:
    verdict = before.verdict
    if verdict.speedup_bound is None or speedup is None or verdict.cause in ("compute_bound", "inconclusive"):
        return None
    recovered = None
    if verdict.recoverable_ms and one.step_ms is not None and other.step_ms is not None:
        recovered = one.step_ms * (1 - 1 / speedup) / verdict.recoverable_ms
    kind, bound = "at least" if cause_of(verdict.cause).at_least else "at most", verdict.speedup_bound
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
