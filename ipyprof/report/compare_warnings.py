"""Why two reports may not be comparable, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ipyprof.formatting import percent_short, times_text
from ipyprof.report.compare_rows import rate_unit
from ipyprof.report.comparison import Run
from ipyprof.report.report import Report

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
