"""The rows of a comparison: numbers, parts of the step, operators, lines of the cell."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipyprof.report.categories import CATEGORIES, Category, step_parts
from ipyprof.report.comparison import Pair, Row
from ipyprof.report.report import Operator, Report
from ipyprof.report.significance import LEAST_SAMPLES, blocks_differ, rank_test

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
