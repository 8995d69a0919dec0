"""The runs of a session as a table: text and HTML."""

from __future__ import annotations

from collections.abc import Sequence

from ipyprof.formatting import percent_short, rate_text, shorten, time_text
from ipyprof.report.failed import failed_request
from ipyprof.report.markup import card, cell, escape, note, row, table, title
from ipyprof.report.report import Report
from ipyprof.report.text import padded
from ipyprof.report.words import steps_text

_TITLES = ("number", "name", "step", "throughput", "GPU computes", "holds it back", "steps")
EMPTY = "No run of this session is kept yet."
_HINT = "Compare two of them by name or number, such as %gpuprofile --compare {} {}."


def runs_bundle(runs: Sequence[tuple[int, Report]]) -> dict[str, str]:
    """``text/plain`` and ``text/html`` of the runs with their numbers, in the given order."""
    return {"text/plain": runs_text(runs), "text/html": _runs_html(runs)}


def runs_text(runs: Sequence[tuple[int, Report]]) -> str:
    """One line per run, with a head; a sentence where there is none."""
    if not runs:
        return EMPTY + "\n"
    rows = [_TITLES, *(_cells(number, report) for number, report in runs)]
    widths = [min(max(len(one[at]) for one in rows), 24) for at in range(len(_TITLES))]
    lines = ["  ".join(padded(text, width) for text, width in zip(one, widths, strict=True)).rstrip() for one in rows]
    return "\n".join([*lines, *([_hint(runs)] if len(runs) > 1 else [])]) + "\n"


def _runs_html(runs: Sequence[tuple[int, Report]]) -> str:
    head = title("Runs of this session", "the last ten" if len(runs) == 10 else "")
    if not runs:
        return card(head + note(escape(EMPTY), 0))
    titles = row(*(cell(name, header=True) for name in _TITLES))
    body = ""
    for number, report in runs:
        *short, steps = _cells(number, report)
        body += row(*(cell(escape(text), style="white-space:nowrap") for text in short), cell(escape(steps)))
    return card(head + table(titles, body) + (note(escape(_hint(runs))) if len(runs) > 1 else ""))


def _cells(number: int, report: Report) -> tuple[str, ...]:
    rate = report.steps.throughput
    return (
        str(number),
        shorten(report.source.name or "·", 24),
        time_text(report.steps.step_ms),
        "·" if rate is None else rate_text(rate.value, rate.unit),
        percent_short(report.utilization.kernel_busy),
        "out of memory" if failed_request(report) is not None else report.verdict.cause,
        steps_text(report),
    )


def _hint(runs: Sequence[tuple[int, Report]]) -> str:
    return _HINT.format(*(str(number) for number, _ in runs[-2:]))
