"""The planted suite's results as markdown, and the results of several shards put together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.planted import PLANTED, half_of
from tests.gpu.planted.judge import Row, classic, rows_of, summary
from tests.gpu.results import put

HEAD = (
    "| loop | form | expected | verdict | line | step by hand ms | step ms | predicted ms | fixed ms | error | "
    "next found ms | from the file | holds |\n"
    "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- |"
)


def read_results(folders: Iterable[Path]) -> dict[str, Any]:
    """``{"machine": {...}, "seconds": s, "loops": {name: ...}}`` of the ``results.json`` in these folders, together.

    A loop that is in several keeps its last.

    Raises:
        FileNotFoundError: a folder has no ``results.json``.
    """
    merged: dict[str, Any] = {"machine": {}, "seconds": 0.0, "loops": {}}
    for folder in folders:
        one = json.loads((folder / "results.json").read_text())
        merged["machine"] = merged["machine"] or one["machine"]
        merged["seconds"] += one["seconds"]
        merged["loops"] |= one["loops"]
    return merged


def page(results: Mapping[str, Any], title: str) -> str:
    """One section of markdown: what holds, the table, what does not hold, the headlines."""
    rows = rows_of(results["loops"])
    machine = results["machine"]
    lines = [
        f"## {title}",
        "",
        f"`python -m tests.gpu.planted` on {machine.get('date', '-')}: {machine.get('device', '-')}, torch "
        f"{machine.get('torch', '-')}, Python {machine.get('python', '-')}, {results['seconds']:.0f} s.",
        "",
        *_counts(rows),
        "",
        HEAD,
        *(_line(row) for row in rows),
    ]
    told, wrong = classic(results["loops"])
    if told:
        lines += ["", "### The classic case: faster attention or a mended loader", "", *(f"- {text}" for text in told)]
    failures = [f"- {row.name}, {row.form}: {text}" for row in rows for text in row.failures]
    failures += [f"- classic case: {text}" for text in wrong]
    if failures:
        lines += ["", "### What does not hold", "", *failures]
    headlines = [f"- {row.name}, {row.form}: {row.headline}" for row in rows if row.headline]
    if headlines:
        lines += ["", "### Headlines", "", *headlines]
    return "\n".join(lines) + "\n"


def both_halves(folders: Iterable[Path]) -> str:
    """Both halves' pages, tuning first, then the later pairs', from the shards' folders."""
    results = read_results(folders)
    parts = []
    for half, title in (
        ("tuning", "Planted suite: the half used for tuning"),
        ("held-out", "Planted suite: the half kept aside"),
        ("later", "Planted suite: pairs written after both halves had been run"),
    ):
        names = {one.name for one in PLANTED if half_of(one) == half} & results["loops"].keys()
        if names:
            some = {**results, "loops": {name: one for name, one in results["loops"].items() if name in names}}
            some["seconds"] = sum(float(one.get("seconds", 0.0)) for one in some["loops"].values())
            parts.append(page(some, title))
    return "\n".join(parts)


def write_results(folders: Iterable[Path], target: Path) -> None:
    """Puts both halves' pages into ``target``, in place of those of an earlier run; the rest of the file stays."""
    put(target, "planted suite", both_halves(folders))


def _counts(rows: Sequence[Row]) -> list[str]:
    got = summary(rows)
    error = "-" if math.isnan(got.median_error) else f"{100 * got.median_error:.1f} %"
    return [
        f"- {'Holds' if got.held else 'Does not hold'}: verdict of the slow form right in {got.slow_right} of "
        f"{got.pairs}, fixed form no longer called so in {got.fixed_right} of {got.pairs}.",
        f"- Where the fix is the edit: predicted step at most 1.10 × the fixed step in {got.predictions_held} of "
        f"{got.predictions}, median absolute error {error}.",
        f"- Healthy loops without a waiting cause: {got.healthy_right} of {got.healthy}.",
        f"- From the trace alone, without our key: right in {got.files_right} of {got.files}; wrong with high "
        f"confidence: {got.files_sure_and_wrong}.",
        "- Fixed: the median of the hand timings that were taken while the host ran as fast as when the slow form was "
        "recorded (see tests/gpu/stepped.py); with * there was none, and it is the median of all.",
    ]


def _line(row: Row) -> str:
    def number(value: float, text: str = "{:.3f}") -> str:
        return "-" if math.isnan(value) else text.format(value)

    error = number(100 * row.error, "{:.1f} %")
    if error != "-" and not row.edit_is_fix:
        error = f"({error})"
    cells = [
        row.name,
        row.form,
        row.expected,
        f"{row.verdict} ({row.confidence})",
        row.line,
        number(row.hand_ms),
        number(row.step_ms),
        number(row.predicted_ms),
        number(row.fixed_ms) + (" *" if row.fixed_ms > 0 and not row.same_speed else ""),
        error,
        row.second or "-",
        f"{row.file_verdict} ({row.file_confidence})",
        "**no**" if row.failures else "yes",
    ]
    return "| " + " | ".join(cells) + " |"
