"""A session in JupyterLab, as a user has it: run, look, compare, hand the trace over, reopen without its kernel.

The notebook is reopened trusted and untrusted, and run in Notebook 7 where that is installed.
"""

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
TRUSTED = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
    .filter(cell => cell.type === 'code').map(cell => cell.trusted)"""
PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output img')]
    .map(one => [one.alt, one.complete && one.naturalWidth > 0])"""
TALL = {"width": 1280, "height": 8_000}  # JupyterLab draws only what is in view


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder, with one notebook."""
    folder = tmp_path_factory.mktemp("lab")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), folder / "session.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=cells[:2], metadata=kernel), folder / "seven.ipynb")
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
    shown = ("--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True")
    command = [sys.executable, "-m", "jupyterlab", *options, *shown]
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
    assert session.locator(".jp-OutputArea-output >> text=Memory heartbeat").count() == 2
    assert session.locator(".jupyter-widgets.widget-tab").count() == 2


def test_the_card_and_the_explanation_are_there(session: Any) -> None:
    # given the comparison and the explanation, when the page is read, then both are drawn as rich output
    assert session.locator(".jp-OutputArea-output >> text=both bars on the same scale").count() == 1
    assert session.locator('img[alt^="Step of "]').count() >= 4
    assert session.locator("h3", has_text="shorter than their launch").count() == 1


def test_slider_and_filter_change_the_table(session: Any, panel: Any) -> None:
    # given the panel, when a part of a name is typed
    open_tab(panel, "Operators")
    panel.locator('input[placeholder="part of a name"]').fill("tanh")
    panel.locator("text=1 row of").or_(panel.locator("b", has_text="1 row")).first.wait_for(timeout=10_000)
    # then one row is left; and the slider shows a recorded step
    assert panel.locator("text=aten::tanh").count() == 1
    panel.locator('input[placeholder="part of a name"]').fill("")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    panel.locator("text=one recorded step").wait_for(timeout=10_000)


def test_rows_are_sorted_and_grouped(session: Any, panel: Any) -> None:
    # given the table of operators, when it is sorted by name
    open_tab(panel, "Operators")
    group, sort, _ = (panel.locator("select:visible").nth(number) for number in range(3))
    sort.select_option(label="name")
    # then the names stand in that order; and grouped by line, the cell's loop is there
    panel.locator("td", has_text="aten::").first.wait_for(timeout=10_000)
    session.wait_for_timeout(500)
    names = [name.lower() for name in panel.locator("td", has_text="aten::").all_inner_texts()]
    assert len(names) >= 2 and names == sorted(names)
    group.select_option(label="line of the cell")
    panel.locator("td", has_text="torch.tanh(x @ x)").wait_for(timeout=10_000)
    group.select_option(label="operator")
    sort.select_option(label="host time")


def test_memory_and_timeline_are_drawn(session: Any, panel: Any) -> None:
    # given the other tabs, when each is opened, then its picture is there with what stands under the cursor
    for name, alt, words in (("Memory", "Memory ", "of the peak"), ("Timeline", "One recorded step of ", "")):
        open_tab(panel, name)
        panel.locator(f'img[alt^="{alt}"]').wait_for(timeout=10_000)
        assert words in panel.inner_text()


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


@pytest.fixture(scope="module")
def saved(session: Any, root: Path) -> Any:
    """The notebook as it was saved, without the widgets' state; its kernel is gone."""
    session.evaluate("window.jupyterapp.commands.execute('kernelmenu:shutdown')")
    notebook = nbformat.read(root / "session.ipynb", as_version=4)
    assert "widgets" not in notebook.metadata
    return notebook


def reads(page: Any) -> None:
    """Both dashboards and the card stand there: verdict, table and plots."""
    page.locator(".jp-OutputArea-output >> text=both bars on the same scale").wait_for(timeout=20_000)
    assert page.locator(".jp-OutputArea-output >> text=both bars on the same scale").count() == 1
    for words in ("Memory heartbeat", "Top operators on the host"):
        assert page.locator(".jp-OutputArea-output h4", has_text=words).count() == 2
    assert page.locator("div", has_text="holds this step back").count() > 0
    drawn = page.evaluate(PICTURES)
    assert all(whole for _, whole in drawn)
    assert sum(alt.startswith("Step of ") for alt, _ in drawn) == 4
    assert sum(alt.startswith("Memory ") for alt, _ in drawn) == 2


def test_reopened_without_state_it_still_reads(saved: Any, context: Any, server: str) -> None:
    # given the saved notebook, when it is opened again without kernel and widget state, trusted as this server wrote it
    page = context.new_page()
    page.set_viewport_size(TALL)
    page.goto(f"{server}/lab/workspaces/again/tree/session.ipynb")
    page.wait_for_function(READY_WITHOUT, timeout=60_000)
    # then both dashboards and the card are readable; what is lost is the panel, and only that
    reads(page)
    assert page.evaluate(TRUSTED) == [True] * len(CELLS)
    assert page.locator(".jupyter-widgets").count() == 0
    page.close()


def test_reopened_untrusted_it_still_reads(saved: Any, context: Any, server: str, root: Path) -> None:
    # given the notebook as another person gets it: its signature is not of this server
    saved.metadata["from"] = "elsewhere"
    saved.cells[1].outputs[1]["data"]["text/html"] += "<script>window.ran = true</script>"
    nbformat.write(saved, root / "untrusted.ipynb")
    # when it is opened
    page = context.new_page()
    page.set_viewport_size(TALL)
    page.goto(f"{server}/lab/workspaces/other/tree/untrusted.ipynb")
    page.wait_for_function(READY_WITHOUT, timeout=60_000)
    # then the outputs are sanitised, and readable all the same, in the same places
    reads(page)
    assert page.evaluate(TRUSTED) == [False] * len(CELLS)
    assert page.evaluate("window.ran") is None
    beat = "document.querySelector('img[alt^=\"Memory \"]')"
    assert page.evaluate(f"getComputedStyle({beat}.parentElement.parentElement.parentElement).display") == "flex"
    assert page.evaluate(f"getComputedStyle({beat}.nextElementSibling).position") == "absolute"
    page.close()


@pytest.mark.skipif(importlib.util.find_spec("notebook") is None, reason="needs Notebook 7")
def test_notebook_7_shows_dashboard_and_panel(session: Any, context: Any, server: str) -> None:
    # given a notebook in Notebook 7, when its cells are run
    page = context.new_page()
    page.goto(f"{server}/notebooks/seven.ipynb")
    page.wait_for_function(READY, timeout=60_000)
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    # then the dashboard and the panel are there, and the panel answers
    page.locator(".jp-OutputArea-output h4", has_text="Memory heartbeat").wait_for(timeout=90_000)
    panel = page.locator(".jupyter-widgets.widget-tab")
    panel.wait_for(timeout=10_000)
    panel.locator('input[placeholder="part of a name"]').fill("tanh")
    panel.locator("b", has_text="1 row").wait_for(timeout=10_000)
    assert page.locator('img[alt^="Step of "]').count() == 1
    page.close()
