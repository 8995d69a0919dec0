"""What the planted suite's numbers say: one row per form, and whether what the suite promises holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.gpu.planted import PLANTED
from tests.gpu.stepped import fixed_step_ms
from tests.gpu.workloads import NOT_WAITING, WAITING, Workload

AT_MOST = 1.10
MEDIAN_ERROR = 0.10
FROM_FILE_RIGHT = 0.80
CLASSIC = "classic_attention_or_loader"
CLASSIC_GAIN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One form of one loop. Times in ms, NaN where there is none.

    ``same_speed``: the fixed step was timed while the host ran as fast as when the slow one was recorded.
    ``failures`` says in words what does not hold; ``file_right`` is ``None`` where a file has no right answer.
    """

    name: str
    form: str
    held_out: bool
    expected: str
    verdict: str = "-"
    confidence: str = "-"
    line: str = "-"
    hand_ms: float = math.nan
    step_ms: float = math.nan
    predicted_ms: float = math.nan
    fixed_ms: float = math.nan
    same_speed: bool = False
    edit_is_fix: bool = False
    second: str = ""
    file_verdict: str = "-"
    file_confidence: str = "-"
    file_right: bool | None = None
    headline: str = ""
    failures: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """|predicted − fixed| / fixed."""
        return abs(self.predicted_ms - self.fixed_ms) / self.fixed_ms


def rows_of(results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The rows of all loops in ``results`` (name → what the worker wrote), in the suite's order."""
    rows: list[Row] = []
    for workload in PLANTED:
        if workload.name in results:
            rows += _rows(workload, results[workload.name])
    return rows


def _rows(workload: Workload, found: Mapping[str, Any]) -> list[Row]:
    failed = found.get("error") or found.get("skipped")
    if failed:
        return [
            Row(
                name=workload.name,
                form="slow",
                held_out=workload.held_out,
                expected=workload.slow_cause or "-",
                failures=(_first_line(failed),),
            )
        ]
    fixed = found["forms"].get("fixed", {})
    return [_row(workload, form, one, fixed) for form, one in found["forms"].items()]


def _row(workload: Workload, form: str, one: Mapping[str, Any], fixed: Mapping[str, Any]) -> Row:
    planted = workload.slow_cause or "-"
    healthy = planted == NOT_WAITING
    expected = planted if form != "fixed" else f"not {planted}"
    report = one.get("report")
    if report is None:
        failure = _first_line(one.get("error", "no report"))
        return Row(
            name=workload.name, form=form, held_out=workload.held_out, expected=expected, failures=(failure,),
            hand_ms=one.get("step_ms", math.nan),
        )  # fmt: skip
    verdict, findings = report["verdict"], report["findings"]
    failures: list[str] = []
    predicted = math.nan
    if form == "fixed":
        if verdict["cause"] == planted:
            failures.append(f"still called {planted}")
    elif healthy:
        if wrong := _waiting(verdict, findings):
            failures.append(f"called {', '.join(wrong)}, expected not waiting")
    else:
        if verdict["cause"] != planted:
            failures.append(f"called {verdict['cause']}, expected {planted}")
        predicted = _predicted(findings, planted)
    fixed_ms, same_speed = fixed_step_ms(one, fixed) if form == "slow" and not healthy else (math.nan, False)
    if form == "slow" and workload.edit_is_fix and not predicted <= AT_MOST * fixed_ms:
        failures.append(f"predicted {predicted:.3f} ms, fixed {fixed_ms:.3f} ms: {predicted / fixed_ms:.2f} × of it")
    others = [one for one in findings if one["status"] == "found" and one["cause"] != planted]
    second = max(others, key=lambda one: one["recoverable_ms"] or 0.0, default=None)
    file = one.get("file") or {}
    file_verdict = file.get("verdict") or {"cause": file.get("error", "-"), "confidence": "-"}
    right, from_file = _file(workload, form, file)
    return Row(
        name=workload.name,
        form=form,
        held_out=workload.held_out,
        expected=expected,
        verdict=verdict["cause"],
        confidence=verdict["confidence"],
        line=_line(findings, verdict["cause"], workload.expected_lines if form == "slow" else ()),
        hand_ms=one["step_ms"],
        step_ms=math.nan if report["steps"]["step_ms"] is None else report["steps"]["step_ms"],
        predicted_ms=predicted,
        fixed_ms=fixed_ms,
        same_speed=same_speed,
        edit_is_fix=workload.edit_is_fix,
        second="" if second is None else f"{second['cause']} {second['recoverable_ms'] or 0.0:.2f}",
        file_verdict=file_verdict["cause"],
        file_confidence=file_verdict["confidence"],
        file_right=right,
        headline=verdict["headline"],
        failures=(*failures, *from_file),
    )


def _first_line(text: str) -> str:
    return " ".join(text.split("\n", 1)[0].split())[:200]


def _predicted(findings: Sequence[Mapping[str, Any]], cause: str) -> float:
    """The step without this cause, as its finding says; NaN where it was not measured."""
    for finding in findings:
        if finding["cause"] == cause and finding["predicted_step_ms"] is not None:
            return float(finding["predicted_step_ms"])
    return math.nan


def _waiting(verdict: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The waiting causes that a report of a healthy loop names."""
    found = {str(finding["cause"]) for finding in findings if finding["status"] == "found"}
    return sorted(({str(verdict["cause"])} | found) & (WAITING | {"inconclusive"}))


def _line(findings: Sequence[Mapping[str, Any]], cause: str, expected: Sequence[int]) -> str:
    """The line that the verdict's finding names; where it is not an expected one, both."""
    line = next((((one.get("where") or {}).get("line")) for one in findings if one["cause"] == cause), None)
    named = "-" if line is None else str(line)
    wanted = " or ".join(map(str, expected))
    return named if not expected or line in expected else f"{named}, not {wanted}"


def _file(workload: Workload, form: str, file: Mapping[str, Any]) -> tuple[bool | None, list[str]]:
    """(whether the file alone gives the right answer, what is wrong with high confidence)."""
    if "verdict" not in file:
        return (False, ["its trace could not be loaded"]) if file else (None, [])
    verdict = file["verdict"]
    cause, sure = verdict["cause"], verdict["confidence"] == "high"
    if form == "fixed":
        wrong = cause == workload.slow_cause
        return None, [f"from the file still {cause}, with high confidence"] if wrong and sure else []
    if workload.slow_cause == NOT_WAITING:
        right = cause not in WAITING | {"inconclusive"}
    else:
        right = cause == workload.slow_cause
    wrong_and_sure = not right and sure and cause != "inconclusive"
    return right, [f"from the file {cause}, with high confidence"] if wrong_and_sure else []


def classic(results: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """(what the classic case gave, in sentences; what of it does not hold)."""
    every = results.get(CLASSIC, {}).get("forms", {})
    if not all((every.get(form) or {}).get("report") for form in ("slow", "attention", "fixed")):
        return [], ["the classic case did not run"] if CLASSIC in results else []
    slow, attention, fixed = (every[form] for form in ("slow", "attention", "fixed"))
    rows = [one for one in slow["report"]["operators"] if "attention" in one["name"]]
    bound = sum(one["amdahl_share"] or 0.0 for one in rows)
    before, after = _attention_ms(slow), _attention_ms(attention)
    gain = 1.0 - attention["step_ms"] / slow["step_ms"]
    times = before / after if after else math.nan
    allowed = bound * (1.0 - 1.0 / times) if times > 0 else math.nan
    speedup = slow["step_ms"] / fixed["step_ms"]
    told = [
        f"Step by hand {slow['step_ms']:.1f} ms, of it attention {before:.1f} ms on the GPU.",
        f"Attention {times:.2f} × faster ({after:.1f} ms): the step is {attention['step_ms']:.1f} ms, "
        f"{100 * gain:.1f} % less. The report's Amdahl figures for attention in no time at all: {100 * bound:.1f} % "
        f"of the step, so {100 * allowed:.1f} % for this.",
        f"Loader mended: {fixed['step_ms']:.1f} ms, {speedup:.1f} × faster.",
    ]
    wrong = []
    if not speedup >= CLASSIC_GAIN:
        wrong.append(f"mending the loader gives {speedup:.1f} ×, under {CLASSIC_GAIN:.0f} ×")
    if not abs(gain - allowed) <= 0.02:
        wrong.append(f"faster attention gains {100 * gain:.1f} %, the report's figure allows {100 * allowed:.1f} %")
    return told, wrong


def _attention_ms(form: Mapping[str, Any]) -> float:
    rows = [one for one in form["report"]["operators"] if "attention" in one["name"]]
    return float(sum(one["self_device_ms"] or 0.0 for one in rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The counts that the suite promises, over some rows; ``held`` is whether all of it holds."""

    pairs: int
    slow_right: int
    fixed_right: int
    predictions: int
    predictions_held: int
    median_error: float
    healthy: int
    healthy_right: int
    files: int
    files_right: int
    files_sure_and_wrong: int

    @property
    def held(self) -> bool:
        return (
            self.slow_right == self.fixed_right == self.pairs
            and self.predictions_held == self.predictions
            and not self.median_error > MEDIAN_ERROR
            and self.healthy_right == self.healthy
            and self.files_right >= FROM_FILE_RIGHT * self.files
            and self.files_sure_and_wrong == 0
        )


def summary(rows: Sequence[Row]) -> Summary:
    """The counts over these rows; rows of variants count only for their files."""
    slow = [row for row in rows if row.form == "slow" and row.expected != NOT_WAITING]
    fixed = {row.name: row for row in rows if row.form == "fixed"}
    healthy = [row for row in rows if row.expected == NOT_WAITING]
    predicted = [row for row in slow if row.edit_is_fix]
    errors = [row.error for row in predicted if not math.isnan(row.error)]
    files = [row for row in rows if row.file_right is not None and row.form == "slow"]
    return Summary(
        pairs=len(slow),
        slow_right=sum(row.verdict == row.expected for row in slow),
        fixed_right=sum(row.name in fixed and fixed[row.name].verdict not in ("-", row.expected) for row in slow),
        predictions=len(predicted),
        predictions_held=sum(row.predicted_ms <= AT_MOST * row.fixed_ms for row in predicted),
        median_error=median(errors) if errors else math.nan,
        healthy=len(healthy),
        healthy_right=sum(row.verdict != "-" and not any("called" in text for text in row.failures) for row in healthy),
        files=len(files),
        files_right=sum(bool(row.file_right) for row in files),
        files_sure_and_wrong=sum(any("high confidence" in text for text in row.failures) for row in rows),
    )
