"""The dashboard: one HTML fragment that stands alone, with style attributes only.

No script, no ``<style>``, no SVG: untrusted notebooks and GitHub remove them. Without any style it still reads, from
the verdict down.
"""

from __future__ import annotations

from ipyprof.report.report import Report
from ipyprof.show.markup import card, columns_row, details, escape_attribute, section, title
from ipyprof.show.memory import failure_height, failure_section, holders_height, holders_section
from ipyprof.show.sections import (
    memory_section,
    ranks_height,
    ranks_section,
    step_section,
    timeline_section,
    timeline_subtitle,
    verdict_section,
)
from ipyprof.show.tables import (
    TOP,
    checks_table,
    explanations,
    ladder,
    lines_height,
    lines_section,
    operators_table,
    scopes_section,
    trust_section,
)
from ipyprof.show.text import render_text
from ipyprof.show.words import check_rows, check_summary, views_of

TALLEST = 1400  # pixels; beyond this, timeline, checks and trust fold
_TIMELINE_HEIGHT = 290
_EXPLANATIONS_HEIGHT = 60
_FOLD_HEIGHT = 38


def render_html(report: Report) -> str:
    """The dashboard of ``report``: safe to show untrusted, in dark and light themes, under 300 kB."""
    parts = [
        verdict_section(report),
        *(section(part) for part in (failure_section(report), ranks_section(report)) if part),
        section(step_section(report)),
        section(columns_row(operators_table(report), ladder(report), reverse=True)),
        section(memory_section(report) + holders_section(report)),
    ]
    lines = lines_section(report)
    lanes = timeline_section(report)
    if lines:
        parts.append(section(lines))
    heights = {
        "timeline": _TIMELINE_HEIGHT if lanes else 0,
        "checks": 60 + 18 * len(check_rows(report)),
        "trust": 38 + 17 * (sum(len(check.text) + 5 for check in report.trust) // 160),
    }
    above = _upper_height(report) + failure_height(report) + holders_height(report) + ranks_height(report)
    above += lines_height(report) if lines else 0
    model = scopes_section(report)
    if model:
        parts.append(section(model))
        above += _FOLD_HEIGHT
    folded = _folds(above + _EXPLANATIONS_HEIGHT, heights)
    if lanes:
        subtitle = timeline_subtitle(report)
        parts.append(_foldable("One step on the clock", subtitle, lanes, folded="timeline" in folded))
    checks = checks_table(report)
    parts.append(_foldable("What was checked", check_summary(report), checks, folded="checks" in folded))
    parts.append(section(explanations(report), first=True))
    parts.append(section(trust_section(report, folded="trust" in folded)))
    return card("".join(parts))


def render_page(report: Report) -> str:
    """A whole HTML document around the dashboard, for a file."""
    return whole_page(report.verdict.headline, render_html(report))


def whole_page(headline: str, content: str) -> str:
    """An HTML document around ``content``, which is HTML; it follows the reader's dark or light setting."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape_attribute(f'ipyprof: {headline}')}</title>\n</head>\n"
        f'<body style="margin:16px 20px">\n{content}\n</body>\n</html>\n'
    )


def _upper_height(report: Report) -> int:
    """About how many pixels verdict, step, top operators and heartbeat take on a page 1280 wide."""
    verdict = 105 + 25 * (len(report.verdict.headline) // 95) + (46 if report.verdict.change else 0)
    verdict += 22 if report.repeats is not None else 0
    step = 215 + (51 if views_of(report).get("without") else 0)
    operators = max(70 + 18 * min(len(report.operators), TOP + 2), 216)
    return verdict + step + operators + (157 if report.memory is not None or views_of(report).get("heartbeat") else 55)


def _folds(height: int, heights: dict[str, int]) -> set[str]:
    """Which parts fold, the first of ``heights`` first, until the page of ``height`` more pixels is short enough."""
    total = height + sum(heights.values())
    folded: set[str] = set()
    for name, own in heights.items():
        if total > TALLEST and own > _FOLD_HEIGHT:
            folded.add(name)
            total -= own - _FOLD_HEIGHT
    return folded


def _foldable(name: str, more: str, content: str, *, folded: bool) -> str:
    return section(details(name, content, more=more) if folded else title(name, more) + content)


def bundle(report: Report) -> dict[str, str]:
    """``{"text/plain": ..., "text/html": ...}``: each stands alone, so a front end that drops one loses nothing."""
    return {"text/plain": render_text(report), "text/html": render_html(report)}
