"""Renderers: pure functions of a report. What a report and a comparison show of themselves is registered here."""

from __future__ import annotations

from ipyprof.report import comparison as _comparison
from ipyprof.report import report as _report
from ipyprof.report.comparison import Comparison
from ipyprof.report.report import Report


def _text(report: Report) -> str:
    from ipyprof.show.text import render_text  # the pictures' sizes come with it, and so matplotlib

    return render_text(report)


def _html(report: Report) -> str:
    from ipyprof.show.html import render_html

    return render_html(report)


def _brief(report: Report) -> str:
    from ipyprof.show.words import brief

    return brief(report)


def _comparison_text(found: Comparison) -> str:
    from ipyprof.show.comparison import comparison_text

    return comparison_text(found)


def _comparison_html(found: Comparison) -> str:
    from ipyprof.show.comparison import render_comparison

    return render_comparison(found)


def _comparison_brief(found: Comparison) -> str:
    from ipyprof.show.comparison import brief

    return brief(found)


_report.RENDERERS.update({"brief": _brief, "text/plain": _text, "text/html": _html})
_comparison.RENDERERS.update(
    {"brief": _comparison_brief, "text/plain": _comparison_text, "text/html": _comparison_html}
)
