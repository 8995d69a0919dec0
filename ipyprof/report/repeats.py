"""One report of several recordings of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipyprof.diagnosis.repeats import check, choose, judged, sentence
from ipyprof.report.failed import failed_while_recorded
from ipyprof.report.report import Report, TrustCheck
from ipyprof.trace.model import Repeat, Repeats


def put_together(reports: Sequence[Report]) -> Repeats:
    """What the recordings said, and which of them is to be shown.

    The steps behind a recording are its own; those before it are the earlier one's and counted there. A last one that
    ran out of memory is shown and says nothing of the steps, as long as there are others.

    Args:
        reports: of the single recordings, in order.
    """
    whole = reports[:-1] if len(reports) > 1 and failed_while_recorded(reports[-1]) else reports
    recordings = tuple(
        Repeat(
            step_ms=report.steps.step_ms if at == 0 or report.steps.baseline.startswith("after") else None,
            cause=report.verdict.cause,
        )
        for at, report in enumerate(whole)
    )
    shown = choose(recordings, [not report.source.partial for report in whole]) if len(whole) == len(reports) else -1
    return Repeats(shown=shown % len(reports) + 1, recordings=recordings)


def with_repeats(report: Report, repeats: Repeats) -> Report:
    """The report of the shown recording with what all of them say."""
    said = check(repeats)
    return replace(
        report,
        repeats=repeats,
        verdict=judged(report.verdict, repeats),
        trust=(*report.trust, TrustCheck(check=said.check, status=said.status, text=said.text)),
    )


def repeats_text(report: Report) -> str:
    """One line of what several recordings said; empty for a single one."""
    return "" if report.repeats is None else f"{sentence(report.repeats)}."
