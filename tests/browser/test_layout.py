"""How the page is laid out, in Chromium and with whatever fonts are there: nothing overlaps, sticks out or is cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipyprof import load
from ipyprof.report.report import Report
from ipyprof.show.html import render_html
from tests.sample_reports import SAMPLES
from tests.unit.test_names_of_any_kind import NAMES, renamed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = ("gpt2_training_slow", "item_between_kernels_slow", "sleeping_loader_slow", "tiny_kernels_slow")
WIDE, NARROW = 1112, 632  # the output of JupyterLab in a browser 1280 and 800 wide

# A table is cut where its place scrolls. Two neighbours overlap where the boxes of two children of one element, neither
# taken out of the flow, share more than a pixel both ways. ``first`` is where the heartbeat ends, the last of what a
# reader must see.
_MEASURED = """() => {
    const all = [...document.querySelectorAll('body *')]
    const cut = all.filter(one => getComputedStyle(one).overflowX === 'auto' && one.scrollWidth > one.clientWidth + 1)
    const flows = one => getComputedStyle(one).position === 'static' && getComputedStyle(one).display !== 'inline'
    const share = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1
    const overlapping = all.filter(parent => {
        const boxes = [...parent.children].filter(flows).map(one => one.getBoundingClientRect())
        return boxes.some((one, at) => boxes.slice(at + 1).some(other => share(one, other)))
    })
    const card = [...document.querySelectorAll('b')].find(one => one.textContent === 'Memory heartbeat')
    return {width: document.documentElement.scrollWidth, tall: document.documentElement.scrollHeight,
            first: card ? card.closest('body > div > div').getBoundingClientRect().bottom : 0,
            cut: cut.length, overlapping: overlapping.length}
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", autouse=True)
def _closed_first(browser: Any) -> None:
    """Opens the browser before the leak guard counts threads."""


def measured(browser: Any, report: Report, width: int, *, opened: bool = False) -> dict[str, float]:
    """Pixels and counts of ``_MEASURED`` at this width; ``opened``: no part is folded."""
    content = render_html(report)
    if opened:
        content = content.replace("<details", "<details open")
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.set_content(f'<body style="margin:0;background:#fff">{content}</body>')
        return dict(page.evaluate(_MEASURED))
    finally:
        page.close()


def holds(places: dict[str, float], width: int) -> bool:
    """Whether nothing sticks out and nothing lies on its neighbour."""
    return places["width"] == width and places["overlapping"] == 0


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_nothing_sticks_out_or_overlaps(browser: Any, name: str, width: int) -> None:
    # given any dashboard with all parts open, when it is laid out, then it fits
    assert holds(measured(browser, SAMPLES[name](), width, opened=True), width)


@pytest.mark.parametrize("name", RECORDED)
def test_no_table_of_a_recording_is_cut(browser: Any, name: str) -> None:
    # given the report of an H200's trace, when it is laid out at both widths with all parts open, then it is whole
    report = load(FIXTURES / f"{name}.json.gz")
    for width in (WIDE, NARROW):
        places = measured(browser, report, width, opened=True)
        assert holds(places, width)
        assert places["cut"] == 0


@pytest.mark.parametrize("name", ["sync", "starvation", "healthy", "cpu_only"])
def test_what_matters_comes_first(browser: Any, name: str) -> None:
    # given a full dashboard, when it is laid out folded and with all parts open
    folded, opened = (measured(browser, SAMPLES[name](), WIDE, opened=way) for way in (False, True))
    # then verdict, step, operators and heartbeat are the upper part of a page that folding makes shorter
    assert 0 < folded["first"] < 0.75 * folded["tall"]
    assert folded["tall"] < opened["tall"]
    # and it is at most as tall as two screens of its width's usual shape
    assert folded["tall"] < 2 * WIDE


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_wider_than_the_page(browser: Any, name: str) -> None:
    # given a report in which everything has one odd name, when it is laid out, then nothing sticks out
    report = Report.from_dict(renamed(SAMPLES["starvation"]().to_dict(), NAMES[name]))
    assert measured(browser, report, NARROW, opened=True)["width"] == NARROW
