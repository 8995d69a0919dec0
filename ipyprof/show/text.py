"""The report as plain text, for terminals and ``text/plain``."""

from __future__ import annotations

from collections.abc import Sequence

from ipyprof.formatting import GLUE, NOT_MEASURED, percent_rung, printable, shorten, time_text
from ipyprof.report.repeats import repeats_text
from ipyprof.report.report import Report
from ipyprof.show.memory import failure_lines, terminal_lines
from ipyprof.show.ranks import rank_lines
from ipyprof.show.table import wrapped
from ipyprof.show.tables import checks_table, lines_table, operators_table, runs_table, scope_tables, step_tables
from ipyprof.show.words import (
    TRUST,
    Rung,
    bound_word,
    culprit_of,
    device_state_text,
    device_text,
    facts,
    limit_words,
    more_facts,
    now_text,
    rungs,
    step_parts,
    steps_text,
    subject,
    unmeasured_text,
)

NARROWEST = 60


def render_text(report: Report, width: int = 80) -> str:
    """The report in lines of at most ``width`` columns (60 at least), the verdict first."""
    width = max(width, NARROWEST)
    parts = [
        _verdict(report, width),
        [line for text in failure_lines(report) for line in wrapped(text, width)],
        rank_lines(report, width),
        _step(report, width),
        operators_table(report).text(width),
        terminal_lines(report, width),
        lines_table(report).text(width),
        *(table.text(width) for table in scope_tables(report)),
        checks_table(report).text(width),
        _trust(report, width),
    ]
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)
    return printable(text) + "\n"


def runs_text(runs: Sequence[tuple[int, Report]]) -> str:
    """One line per run of the session with its number, with a head; a sentence where there is none."""
    table = runs_table(runs)
    return "\n".join((*table.text(200), *table.notes)) + "\n"


def _verdict(report: Report, width: int) -> list[str]:
    verdict = report.verdict
    eyebrow = [
        "".join(subject(report)),
        bound_word(report),
        f"confidence {verdict.confidence}",
        device_text(report),
        steps_text(report),
        report.source.name or "",
    ]
    texts = [
        " · ".join(part for part in eyebrow if part),
        verdict.headline,
        f"! partial: {report.source.partial}" if report.source.partial else "",
        " · ".join(f"{fact.name} {fact.value}".replace(" ", GLUE) for fact in facts(report)),
        *more_facts(report),
        repeats_text(report),
        verdict.advice,
    ]
    lines = [line for text in texts for line in wrapped(text, width)]
    if verdict.change is not None:
        for sign, text in zip("-+", verdict.change, strict=True):
            lines += [f"  {sign} {shorten(line.expandtabs(4), width - 4)}" for line in text.splitlines()]
    if verdict.next_text:
        lines += wrapped(verdict.next_text[0].upper() + verdict.next_text[1:] + ".", width)
    if verdict.confidence != "high" and verdict.reasons:
        why = "; ".join(reason.rstrip(".") for reason in verdict.reasons)
        lines += wrapped(f"Why {verdict.confidence} confidence: {why}.", width)
    return lines


def _step(report: Report, width: int) -> list[str]:
    step_ms, culprit = report.steps.step_ms, culprit_of(report.verdict.cause)
    parts = step_parts(report.breakdown, culprit)
    if step_ms is None or not parts:
        return [f"One step: {NOT_MEASURED}."]
    lines = [f"One step   {time_text(step_ms)}   ({now_text(report)})"]
    for at, table in enumerate(step_tables(report, parts, culprit)):
        lines += table.text(width)[0 if at == 0 else 1 :]
    lines += wrapped(unmeasured_text(report), width)
    if report.views.without is not None and report.verdict.predicted_step_ms is not None:
        lines.append(f"  recoverable: {limit_words(report)} {time_text(report.verdict.recoverable_ms)}")
    ladder = rungs(report)
    if any(rung.share is not None for rung in ladder):
        lines += wrapped("GPU used: " + " · ".join(map(_rung, ladder)), width)
    return lines + wrapped(device_state_text(report), width)


def _rung(rung: Rung) -> str:
    why = f" ({rung.words})" if rung.share is None and rung.words else ""
    return f"{rung.name} {percent_rung(rung.share)}{why}"


def _trust(report: Report, width: int) -> list[str]:
    checks = sorted(report.trust, key=lambda one: one.status == "ok")
    told = "  ".join(f"{TRUST.get(one.status, '?')} {one.text}" for one in checks)
    return wrapped(f"Trust: {report.verdict.confidence}. {told}", width)
