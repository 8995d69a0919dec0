"""The magic in a real kernel, as a notebook sees it."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SETUP = "%load_ext ipyprof\nimport torch\nx = torch.ones(64, 64) / 64"
LOOP = "for i in range({count}):\n    x = torch.tanh(x @ x)\n    {more}\n"


class Notebook:
    """An executed notebook."""

    def __init__(self, *cells: str) -> None:
        self.node: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)])
        self._client = NotebookClient(self.node, timeout=240, kernel_name="python3")

    def run(self) -> Notebook:
        """Run all cells; the first error stops it."""
        self._client.execute()
        return self

    def outputs(self, number: int) -> list[Any]:
        """The outputs of a cell; 0 is the first one behind the setup."""
        return list(self.node.cells[number + 1].outputs)

    def data(self, number: int, mime: str) -> list[str]:
        """What a cell's outputs hold of one type, in order."""
        return [output["data"][mime] for output in self.outputs(number) if mime in output.get("data", {})]

    def printed(self, number: int) -> str:
        """What a cell printed."""
        return "".join(output["text"] for output in self.outputs(number) if output["output_type"] == "stream")


def test_cell_shows_status_dashboard_and_panel() -> None:
    # given a notebook with one profiled loop
    notebook = Notebook("%%gpuprofile -o report\n" + LOOP.format(count=12, more="pass"), "report.verdict.headline")
    # when it ran
    notebook.run()
    # then the first output is the verdict in one line, the second the dashboard with its text, the third the panel
    headline = notebook.data(1, "text/plain")[0].strip("'\"")
    status, dashboard, panel = notebook.outputs(0)
    assert status["data"]["text/plain"] == f"ipyprof: {headline}"
    assert "Top operators" in dashboard["data"]["text/html"]
    assert headline[:30] in dashboard["data"]["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in panel["data"]
    assert "VBox" not in panel["data"]["text/plain"]
    # and nothing is written to the streams by us
    assert "ipyprof" not in notebook.printed(0)
    # and loading the extension showed nothing
    assert notebook.outputs(-1) == []


def test_static_leaves_the_panel_out_and_quiet_everything() -> None:
    # given the two options and the lasting default
    loop = LOOP.format(count=12, more="pass")
    notebook = Notebook(
        f"%%gpuprofile --static\n{loop}",
        f"%%gpuprofile -q --no-memory\n{loop}",
        "%config GpuProfile.static = True",
        f"%%gpuprofile --no-memory\n{loop}",
    )
    # when they ran, then there are status and dashboard, nothing, and again status and dashboard
    notebook.run()
    assert [len(notebook.data(number, "text/html")) for number in (0, 1, 3)] == [2, 0, 2]
    for number in (0, 1, 3):
        assert notebook.data(number, "application/vnd.jupyter.widget-view+json") == []
    assert notebook.outputs(1) == []


def test_value_prints_and_report_keep_their_order() -> None:
    # given a long loop that prints, and a last expression
    more = "print('iteration', i) if i in (0, 49) else __import__('time').sleep(0.02)"
    notebook = Notebook("%%gpuprofile --static --no-memory\n" + LOOP.format(count=50, more=more) + "'value'", "_")
    # when it ran, then the report stands between the prints, and the value comes last and is in _
    notebook.run()
    kinds = [
        "report" if "Top operators" in str(output.get("data", {}).get("text/html")) else output["output_type"]
        for output in notebook.outputs(0)
    ]
    assert kinds.index("report") < len(kinds) - 2
    assert kinds[-2:] == ["stream", "execute_result"]
    assert notebook.printed(0) == "iteration 0\niteration 49\n"
    assert notebook.data(1, "text/plain") == ["'value'"]


def test_failing_cell_stops_the_notebook_after_its_partial_report() -> None:
    # given a loop that fails while it is recorded, and a cell behind it
    more = "if i == 6: raise KeyError('mine')"
    notebook = Notebook("%%gpuprofile --static\n" + LOOP.format(count=20, more=more), "after = 1")
    # when all cells run
    with pytest.raises(CellExecutionError, match="mine"):
        notebook.run()
    # then the report of the steps so far is there, marked, before the one error; the next cell did not run
    outputs = notebook.outputs(0)
    assert [output["output_type"] for output in outputs].count("error") == 1
    assert outputs[-1]["ename"] == "KeyError"
    assert any("partial" in text for text in notebook.data(0, "text/html"))
    assert notebook.node.cells[2].execution_count is None


def test_wrong_option_stops_the_notebook() -> None:
    # given a wrong option, when all cells run, then the notebook stops there
    notebook = Notebook("%%gpuprofile --wait -1\nran = True", "after = 1")
    with pytest.raises(CellExecutionError):
        notebook.run()
    assert "wait is a whole number of at least 0" in notebook.printed(0)


def test_figures_and_settings_of_matplotlib_are_untouched() -> None:
    # given the user's own settings, and a figure that is open while the report is drawn
    settings = "dict(plt.rcParams), plt.get_backend(), plt.isinteractive()"
    notebook = Notebook(
        # the first figure chooses the backend, which sets the interactive mode
        "import matplotlib.pyplot as plt\nplt.figure()\nplt.ioff()\nplt.rcParams['lines.linewidth'] = 7\n"
        f"before = {settings}",
        "%%gpuprofile\nfigure = plt.figure()\n" + LOOP.format(count=50, more="pass") + "plt.get_fignums()",
        f"({settings}) == before",
    )
    # when the cell ran, then its figure is the only one, and the settings are the same
    notebook.run()
    assert notebook.data(1, "text/plain")[-1] == "[1]"
    assert notebook.data(2, "text/plain") == ["True"]


def test_ten_runs_in_one_kernel() -> None:
    # given ten profiled cells, and the names before and after
    cells = [f"%%gpuprofile --static -o report{n}\n" + LOOP.format(count=12, more="pass") for n in range(10)]
    names = "sorted(name for name in globals() if not name.startswith('_'))"
    counts = "[globals()[f'report{n}'].steps.count for n in range(10)]"
    notebook = Notebook(*cells, counts, names)
    # when they ran, then each has its dashboard and its three steps, and no other name is there
    notebook.run()
    for number in range(10):
        assert len(notebook.data(number, "text/html")) == 2
    assert notebook.data(10, "text/plain") == [str([3] * 10)]
    ours = [f"report{n}" for n in range(10)]
    assert notebook.data(11, "text/plain")[0].replace("\n", "") == str(
        sorted(["In", "Out", "exit", "get_ipython", "i", "open", "quit", "torch", "x", *ours])
    )


def test_block_in_an_awaiting_cell() -> None:
    # given a cell that awaits inside a profiled block
    cell = (
        "import asyncio, ipyprof\n"
        "with ipyprof.profile(static=True) as run:\n"
        "    for i in range(12):\n"
        "        x = torch.tanh(x @ x)\n"
        "        await asyncio.sleep(0.001)\n"
        "        run.step()\n"
    )
    notebook = Notebook(cell, "run.report.steps.count, run.report.steps.how")
    # when it ran, then its report is shown and the calls were its steps
    notebook.run()
    assert any("Top operators" in text for text in notebook.data(0, "text/html"))
    assert notebook.data(1, "text/plain") == ["(3, 'ipyprof.step()')"]


def test_await_in_a_profiled_cell_is_one_line() -> None:
    # given a cell that awaits at its top level, when it runs, then one line points to the block
    notebook = Notebook("%%gpuprofile\nimport asyncio\nawait asyncio.sleep(0)")
    with pytest.raises(CellExecutionError):
        notebook.run()
    assert "with ipyprof.profile():" in notebook.printed(0)
    assert len(notebook.printed(0).strip().splitlines()) == 1
