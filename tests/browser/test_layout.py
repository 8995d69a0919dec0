"""Where things stand on the page, measured in Chromium."""

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

_BOTTOMS = """() => {
    const bottom = text => [...document.querySelectorAll('b')].find(one => one.textContent === text)
        .closest('body > div > div').getBoundingClientRect().bottom
    const cut = [...document.querySelectorAll('div')].filter(one =>
        getComputedStyle(one).overflow === 'auto' && one.scrollWidth > one.clientWidth + 1)
    return {heartbeat: bottom('Memory heartbeat'), page: document.documentElement.scrollHeight,
            width: document.documentElement.scrollWidth, cut: cut.length}
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def measured(browser: Any, report: Report, width: int, *, opened: bool = False) -> dict[str, float]:
    """Where things end, in pixels, and how many tables are wider than their place; ``opened``: no part is folded."""
    content = render_html(report)
    if opened:
        content = content.replace("<details", "<details open")
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.set_content(f'<body style="margin:0;background:#fff">{content}</body>')
        return dict(page.evaluate(_BOTTOMS))
    finally:
        page.close()


@pytest.fixture(scope="module", autouse=True)
def _closed_first(browser: Any) -> None:
    """Opens the browser before the leak guard counts threads."""


@pytest.mark.parametrize("name", ["sync", "starvation", "healthy", "cpu_only"])
def test_what_matters_stands_on_the_first_screen(browser: Any, name: str) -> None:
    # given a full dashboard in a browser 1280 wide, when it is laid out
    places = measured(browser, SAMPLES[name](), WIDE)
    # then verdict, step, top ten and heartbeat end within 900 pixels, and the folded page within 1,400
    assert places["heartbeat"] <= 900
    assert places["page"] <= 1_430


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_of_a_gpu_stand_on_the_first_screen(browser: Any, name: str) -> None:
    # given the report of an H200's trace, when it is laid out at both widths, with all parts open
    report = load(FIXTURES / f"{name}.json.gz")
    places = measured(browser, report, WIDE)
    # then the same holds, and no table is cut off
    assert places["heartbeat"] <= 900
    assert places["page"] <= 1_430
    assert measured(browser, report, WIDE, opened=True)["cut"] == 0
    narrow = measured(browser, report, NARROW, opened=True)
    assert (narrow["width"], narrow["cut"]) == (NARROW, 0)


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_wider_than_a_narrow_page(browser: Any, name: str) -> None:
    # given a browser 800 wide, when any dashboard is laid out with all parts open, then nothing sticks out
    assert measured(browser, SAMPLES[name](), NARROW, opened=True)["width"] == NARROW


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_wider_than_the_page(browser: Any, name: str) -> None:
    # given a report in which everything has one odd name, when it is laid out, then nothing sticks out
    report = Report.from_dict(renamed(SAMPLES["starvation"]().to_dict(), NAMES[name]))
    assert measured(browser, report, NARROW, opened=True)["width"] == NARROW
