"""A session in JupyterLab, as a user has it: run, look, compare, hand the trace over, reopen without its kernel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="needs JupyterLab"),
]

LOOP = "for i in range(12):\n    for k in range(30):\n        x = torch.tanh(x @ x)\n"
CELLS = (
    "%load_ext ipyprof\nimport torch, time\ntorch.set_num_threads(1)\nx = torch.ones(150, 150) / 150",
    f"%%gpuprofile --name before --items 8 --unit img\n{LOOP}    time.sleep(0.05)",
    f"%%gpuprofile --name after --items 8 --unit img\n{LOOP}",
    "%gpuprofile --compare before after",
    "%gpuprofile --explain launch_bound",
)
PERFETTO = """<!DOCTYPE html><title>fake</title><script>
window.got = null;
window.addEventListener("message", event => {
    if (event.data === "PING") event.source.postMessage("PONG", event.origin);
    else window.got = {title: event.data.perfetto.title, size: event.data.perfetto.buffer.byteLength};
});
</script>"""
READY = """() => {
    const current = window.jupyterapp?.shell?.currentWidget;
    const kernel = current?.sessionContext?.session?.kernel;
    return current?.context?.isReady && current.content?.widgets?.length > 0 && !!kernel;
}"""
READY_WITHOUT = "() => window.jupyterapp?.shell?.currentWidget?.context?.isReady"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder, with one notebook."""
    folder = tmp_path_factory.mktemp("lab")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "session.ipynb")
    return folder


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab of its own, with settings of its own."""
    home = tmp_path_factory.mktemp("home")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    package = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": package, "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "jupyter")}
    options = (
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        f"--ServerApp.root_dir={root}",
        "--IdentityProvider.token=",
    )
    command = [sys.executable, "-m", "jupyterlab", *options, "--LabApp.expose_app_in_browser=True"]
    address = f"http://127.0.0.1:{port}"
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{address}/api", timeout=2).close()
                    break
                except OSError:
                    time.sleep(0.5)
            yield address
        finally:
            # The server may wait for its kernels for longer than a test should.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.fixture(scope="module")
def context(server: str) -> Iterator[Any]:
    """A browser 1280 wide in which our own page stands in Perfetto's place."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_context(viewport={"width": 1280, "height": 1000})
        opened.route("https://ui.perfetto.dev/**", lambda one: one.fulfill(content_type="text/html", body=PERFETTO))
        yield opened
        browser.close()


@pytest.fixture(scope="module")
def session(context: Any, server: str) -> Any:
    """The notebook, all its cells run and saved."""
    page = context.new_page()
    page.goto(f"{server}/lab/tree/session.ipynb")
    page.wait_for_function(READY, timeout=90_000)
    page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector("text=How to see that it worked", timeout=150_000)
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(1_000)
    return page


@pytest.fixture(scope="module", autouse=True)
def _started_first(session: Any) -> None:
    """Starts server and browser before the leak guard counts threads."""


@pytest.fixture
def panel(session: Any) -> Any:
    """The panel of the second run."""
    return session.locator(".jupyter-widgets.widget-tab").last


def open_tab(panel: Any, name: str) -> None:
    panel.locator(".lm-TabBar-tab", has_text=name).click()


def test_each_run_shows_dashboard_and_panel(session: Any) -> None:
    # given two runs, when the page is read, then each has its dashboard and its panel
    assert session.locator("text=Memory heartbeat").count() == 2
    assert session.locator(".jupyter-widgets.widget-tab").count() == 2


def test_the_card_and_the_explanation_are_there(session: Any) -> None:
    # given the comparison and the explanation, when the page is read, then both are drawn as rich output
    assert session.locator("text=both bars on the same scale").count() == 1
    assert session.locator('img[alt^="Step of "]').count() >= 4
    assert session.locator("h3", has_text="shorter than their launch").count() == 1


def test_slider_and_filter_change_the_table(session: Any, panel: Any) -> None:
    # given the panel, when a part of a name is typed
    open_tab(panel, "Steps and operators")
    panel.locator('input[placeholder="part of a name"]').fill("tanh")
    panel.locator("text=1 row of").or_(panel.locator("b", has_text="1 row")).first.wait_for(timeout=10_000)
    # then one row is left; and the slider shows a recorded step
    assert panel.locator("text=aten::tanh").count() == 1
    panel.locator('input[placeholder="part of a name"]').fill("")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    panel.locator("text=one recorded step").wait_for(timeout=10_000)


def test_another_run_is_compared_in_the_panel(session: Any, panel: Any) -> None:
    # given the panel of the second run, when the first is chosen, then the card is there
    open_tab(panel, "Compare")
    panel.locator("select:visible").select_option(label="1: before")
    panel.locator("text=both bars on the same scale").wait_for(timeout=10_000)


def test_one_click_hands_the_trace_to_perfetto(session: Any, context: Any, panel: Any) -> None:
    # given the tab for saving, when the button is clicked, then Perfetto's page gets the trace with its name
    open_tab(panel, "Save, Perfetto")
    with context.expect_page() as opened:
        panel.locator("button", has_text="Open in Perfetto").click()
    opened.value.wait_for_function("window.got", timeout=20_000)
    got = opened.value.evaluate("window.got")
    assert got["title"] == "ipyprof: after"
    assert got["size"] > 1_000
    opened.value.close()


def test_files_are_saved_beside_the_notebook(session: Any, panel: Any, root: Path) -> None:
    # given the tab for saving, when each button is clicked, then the files are there
    open_tab(panel, "Save, Perfetto")
    for label in ("Save trace", "Save page", "Save JSON"):
        panel.locator("button", has_text=label).click()
        panel.locator("text=Saved after").wait_for(timeout=10_000)
        session.wait_for_timeout(300)
    assert {"after.json.gz", "after.html", "after.json"} <= {path.name for path in root.iterdir()}


def test_the_saved_notebook_holds_no_trace(session: Any, root: Path) -> None:
    # given the notebook as it was saved, when it is read, then it is valid, small, and holds no script
    text = (root / "session.ipynb").read_text()
    nbformat.validate(nbformat.reads(text, as_version=4))
    assert "ui.perfetto.dev" not in text and "postMessage" not in text
    assert len(text) < 1_000_000


def test_reopened_without_state_it_still_reads(session: Any, context: Any, server: str) -> None:
    # given the saved notebook, when it is opened again and its kernel is gone
    session.evaluate("window.jupyterapp.commands.execute('kernelmenu:shutdown')")
    page = context.new_page()
    page.set_viewport_size({"width": 1280, "height": 8_000})  # JupyterLab draws only what is in view
    page.goto(f"{server}/lab/workspaces/again/tree/session.ipynb")
    page.wait_for_function(READY_WITHOUT, timeout=60_000)
    # then both dashboards and the card are readable
    page.locator("text=both bars on the same scale").wait_for(timeout=20_000)
    assert page.locator("text=Memory heartbeat").count() == 2
    assert page.locator("text=both bars on the same scale").count() == 1
    page.close()
