"""Every string of a report may be anything: another script, markup, mathematics, 900 characters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from ipyprof.formatting import columns
from ipyprof.report.comparison import compare_reports
from ipyprof.report.report import Report
from ipyprof.show.comparison import comparison_text, render_comparison
from ipyprof.show.html import render_html
from ipyprof.show.panel import build_panel, close_panel
from ipyprof.show.text import render_text
from tests.outline import Outline
from tests.sample_reports import starvation

NAMES = {
    "chinese": "前向传播",
    "arabic": "الانتشار الأمامي",
    "emoji": "🔥👩‍🚀 step",
    "mathematics": r"$\frac{x_1}{2}$ & $",
    "markup": '<b>bold</b><script>alert("1")</script>"\'>',
    "long": "void kernel<" + "T_" * 444 + ">",
}
# What the program itself compares: these are no names.
_WORDS = {"cause", "status", "confidence", "bound", "tensor_core", "kind", "baseline", "next"}


def renamed(value: Any, name: str, key: str = "") -> Any:
    """``value`` with ``name`` in place of every string that is not one of the program's own words."""
    if isinstance(value, dict):
        return {field: renamed(one, name, field) for field, one in value.items()}
    if key == "segments":
        return [[start, end, category, name] for start, end, category, _ in value]
    if isinstance(value, list):
        return [renamed(one, name, key) for one in value]
    return name if isinstance(value, str) and key not in _WORDS else value


def values_of(widget: Any) -> Iterator[str]:
    """The HTML of a widget and of all in it."""
    if type(widget).__name__ == "HTML":
        yield widget.value
    for child in getattr(widget, "children", ()):
        yield from values_of(child)


@pytest.fixture(params=NAMES)
def named(request: pytest.FixtureRequest) -> tuple[str, Report]:
    """A name, and a report in which everything is called so."""
    name = NAMES[request.param]
    return name, Report.from_dict(renamed(starvation().to_dict(), name))


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    """matplotlib warns of each character that its font lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def text_of(page: str) -> str:
    outline = Outline(page)
    assert outline.open == []
    assert outline.tags <= {
        "div", "span", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "img", "h3", "h4", "details", "summary"
    }  # fmt: skip
    assert outline.attributes <= {"style", "title", "align", "colspan", "src", "alt", "width", "aria-label"}
    return outline.text


def test_the_dashboard_shows_it_as_text(named: tuple[str, Report]) -> None:
    # given a report full of the name, when the dashboard is drawn, then it is whole, small, and holds the name as text
    name, report = named
    page = render_html(report)
    assert " ".join(name[:40].split()) in text_of(page)
    assert len(page) < 300_000


def test_the_text_stays_in_its_lines(named: tuple[str, Report]) -> None:
    # given the same, when it is text for a terminal, then no line is wider than that
    name, report = named
    text = render_text(report)
    assert name[:20] in text
    assert max(columns(line) for line in text.splitlines()) <= 80


def test_the_comparison_shows_it_as_text(named: tuple[str, Report]) -> None:
    # given two such reports, when they are compared, then the card is whole and the lines hold
    name, report = named
    found = compare_reports(report, report)
    assert " ".join(name[:20].split()) in text_of(render_comparison(found))
    assert max(columns(line) for line in comparison_text(found).splitlines()) <= 80


def test_the_panel_shows_it_as_text(named: tuple[str, Report]) -> None:
    # given the panel of such a report, when every tab is opened, then all its HTML is whole
    name, report = named
    panel = build_panel(report, earlier=lambda: [(1, report)])
    assert panel is not None
    shown = [text_of(value) for value in values_of(panel)]
    for number in range(1, len(panel.children)):
        panel.selected_index = number
        shown += [text_of(value) for value in values_of(panel)]
    assert any(" ".join(name[:40].split()) in text for text in shown)
    close_panel(panel)
