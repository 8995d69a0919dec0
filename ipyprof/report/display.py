"""One display bundle per report: text for terminals, the dashboard for notebooks."""

from __future__ import annotations

from ipyprof.report.html import render_html
from ipyprof.report.report import Report
from ipyprof.report.text import render_text


def bundle(report: Report) -> dict[str, str]:
    """``{"text/plain": ..., "text/html": ...}``: each stands alone, so a front end that drops one loses nothing."""
    return {"text/plain": render_text(report), "text/html": render_html(report)}
