"""The hand-over to Perfetto in Chromium, with a page of our own in Perfetto's place: no request leaves the machine."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from ipyprof.show.perfetto import ORIGIN, handover

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

TRACE = gzip.compress(b'{"traceEvents": []}' * 2_000)
# It is not ready at once, as the real page; and it remembers what it was sent.
FAKE = """<!DOCTYPE html><title>fake</title><script>
window.pings = 0; window.got = null; window.late = 0;
setTimeout(() => window.addEventListener("message", event => {
    if (event.data === "PING") { window.pings++; %s }
    else if (window.got) window.late++;
    else window.got = {
        title: event.data.perfetto.title, file: event.data.perfetto.fileName,
        bytes: [...new Uint8Array(event.data.perfetto.buffer)], from: event.origin,
    };
}), 400);
</script>"""
ANSWERING = FAKE % 'event.source.postMessage("PONG", event.origin === "null" ? "*" : event.origin);'
SILENT = FAKE % ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", autouse=True)
def _closed_first(browser: Any) -> None:
    """Opens the browser before the leak guard counts threads."""


@pytest.fixture
def notebook(browser: Any) -> Iterator[Any]:
    """A page that stands for the notebook: a click puts HTML into it and runs its scripts, as JupyterLab does."""
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    context.route("http://notebook.test/**", lambda route: route.fulfill(content_type="text/html", body=NOTEBOOK))
    page = context.new_page()
    page.goto("http://notebook.test/")
    page.asked = asked
    yield page
    context.close()


NOTEBOOK = """<!DOCTYPE html><button id="open">Open in Perfetto</button><div id="output"></div><script>
document.getElementById("open").onclick = () => {
    const output = document.getElementById("output");
    output.innerHTML = window.given;
    for (const old of output.querySelectorAll("script")) {
        const made = document.createElement("script");
        made.textContent = old.textContent;
        old.replaceWith(made);
    }
};
</script>"""


def serve(page: Any, body: str) -> None:
    page.context.route(f"{ORIGIN}/**", lambda route: route.fulfill(content_type="text/html", body=body))


def test_one_click_hands_the_trace_over(notebook: Any) -> None:
    # given a notebook with the button, and a page in Perfetto's place that takes a moment
    serve(notebook, ANSWERING)
    notebook.evaluate("html => { window.given = html }", handover(TRACE, "ipyprof: <trial>"))
    # when it is clicked
    with notebook.context.expect_page() as opened:
        notebook.click("#open")
    page = opened.value
    page.wait_for_function("window.got")
    # then that page got the bytes, title and name, once, after it had answered
    got = page.evaluate("window.got")
    assert bytes(got["bytes"]) == TRACE
    assert (got["title"], got["file"]) == ("ipyprof: <trial>", "trace.json.gz")
    assert got["from"] == "http://notebook.test"
    notebook.wait_for_function("document.getElementById('output').textContent.includes('in Perfetto')")
    pings = page.evaluate("window.pings")
    page.wait_for_timeout(400)
    assert page.evaluate("[window.pings, window.late]") == [pings, 0]


def test_nothing_is_asked_of_perfetto_before_the_click(notebook: Any) -> None:
    # given a notebook with the button, when it is left alone, then no request went to Perfetto
    serve(notebook, ANSWERING)
    notebook.evaluate("html => { window.given = html }", handover(TRACE, "t"))
    notebook.wait_for_timeout(300)
    assert [url for url in notebook.asked if ORIGIN in url] == []
    assert notebook.asked == ["http://notebook.test/"]


def test_the_trace_waits_for_the_answer(notebook: Any) -> None:
    # given a page that does not answer, when the button is clicked, then it gets pings and no trace
    serve(notebook, SILENT)
    notebook.evaluate("html => { window.given = html }", handover(TRACE, "t"))
    with notebook.context.expect_page() as opened:
        notebook.click("#open")
    opened.value.wait_for_function("window.pings > 3")
    assert opened.value.evaluate("window.got") is None


def test_a_stranger_gets_nothing(notebook: Any) -> None:
    # given the page open and silent, when the notebook itself sends PONG, then no trace goes anywhere
    serve(notebook, SILENT)
    notebook.evaluate("html => { window.given = html }", handover(TRACE, "t"))
    with notebook.context.expect_page() as opened:
        notebook.click("#open")
    opened.value.wait_for_function("window.pings > 1")
    notebook.evaluate("window.postMessage('PONG', '*')")
    notebook.wait_for_timeout(300)
    assert opened.value.evaluate("window.got") is None


def test_a_blocked_tab_leaves_a_button(notebook: Any) -> None:
    # given a browser that blocks the tab, as after a slow kernel
    serve(notebook, ANSWERING)
    notebook.evaluate(
        "html => { window.given = html; window.real = window.open; window.open = () => null }", handover(TRACE, "t")
    )
    notebook.click("#open")
    assert "blocked the new tab" in notebook.inner_text("#output")
    # when it is allowed and the button that stands there is clicked, then the trace goes over
    notebook.evaluate("() => { window.open = window.real }")
    with notebook.context.expect_page() as opened:
        notebook.click("#output button")
    opened.value.wait_for_function("window.got")
    assert bytes(opened.value.evaluate("window.got.bytes")) == TRACE
