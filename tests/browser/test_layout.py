"""Where things stand on the page, measured in Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from ipyprof.report.html import render_html
from tests.sample_reports import SAMPLES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

WIDE, NARROW = 1112, 632  # the output of JupyterLab in a browser 1280 and 800 wide

_BOTTOMS = """() => {
    const bottom = text => [...document.querySelectorAll('b')].find(one => one.textContent === text)
        .closest('body > div > div').getBoundingClientRect().bottom
    return {heartbeat: bottom('Memory heartbeat'), page: document.documentElement.scrollHeight,
            width: document.documentElement.scrollWidth}
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def measured(browser: Any, name: str, width: int, background: str = "#fff") -> dict[str, float]:
    page = browser.new_page(viewport={"width": width, "height": 900})
    try:
        page.set_content(f'<body style="margin:0;background:{background}">{render_html(SAMPLES[name]())}</body>')
        return dict(page.evaluate(_BOTTOMS))
    finally:
        page.close()


@pytest.fixture(scope="module", autouse=True)
def _closed_first(browser: Any) -> None:
    """Opens the browser before the leak guard counts threads."""


@pytest.mark.parametrize("name", ["sync", "starvation", "healthy", "cpu_only"])
def test_what_matters_stands_on_the_first_screen(browser: Any, name: str) -> None:
    # given a full dashboard in a browser 1280 wide, when it is laid out
    places = measured(browser, name, WIDE)
    # then verdict, step, top ten and heartbeat end within 900 pixels, and the folded page within 1,400
    assert places["heartbeat"] <= 900
    assert places["page"] <= 1_430


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_wider_than_a_narrow_page(browser: Any, name: str) -> None:
    # given a browser 800 wide, when any dashboard is laid out, then nothing sticks out
    assert measured(browser, name, NARROW)["width"] == NARROW
