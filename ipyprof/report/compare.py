"""Two reports side by side: what changed, whether it is real, and what the first one had promised."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from ipyprof.diagnosis.words import AT_LEAST
from ipyprof.formatting import NOT_MEASURED, rate_text, speedup_text, time_text
from ipyprof.report.compare_rows import code_changes, number_pairs, operator_rows, part_rows, rate_unit
from ipyprof.report.compare_warnings import comparison_warnings
from ipyprof.report.comparison import Comparison, Promise, Run
from ipyprof.report.report import Report
from ipyprof.report.significance import (
    CLEAR_SHARE,
    FASTER,
    LEAST_SAMPLES,
    SAME,
    SLOWER,
    UNKNOWN,
    Significance,
    compare_samples,
)
from ipyprof.report.words import device_text

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
