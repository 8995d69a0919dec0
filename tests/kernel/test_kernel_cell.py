"""The cell runner in a real kernel: errors stop "Run all", workers end, an interrupt leaves all as it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.colours import without_colours

ROOT = Path(__file__).parents[2]

SETUP = """
import builtins, multiprocessing, time, torch
import torch.optim.optimizer as optimizer_module
from torch.utils.data import DataLoader, dataloader
from IPython.core.magic import output_can_be_silenced
from ipyprof.capture.cell import compile_cell, run_cell
from ipyprof.options import Options
from tests.capture.fake_session import FakeSession, detector_for

sessions = []

@output_can_be_silenced
def profiled(line, cell=None):
    __tracebackhide__ = "__ipython_bottom__"
    sessions.append(FakeSession(record=range(3, 6)))
    compiled = compile_cell(get_ipython(), line if cell is None else cell, line_form=cell is None)
    return run_cell(get_ipython(), compiled, detector=detector_for(compiled, Options(), sessions[-1]))

profiled.no_var_expand = True
get_ipython().register_magic_function(profiled, "line_cell", "profiled")

def state():
    return (
        [name for name in vars(builtins) if name.startswith("@")],
        len(optimizer_module._global_optimizer_post_hooks),
        "_num_yielded" in vars(dataloader._BaseDataLoaderIter),
        len(multiprocessing.active_children()),
    )

class Numbers(torch.utils.data.Dataset):
    def __init__(self, bad=None): self.bad = bad
    def __len__(self): return 24
    def __getitem__(self, index):
        if index == self.bad: raise LookupError("item of a worker")
        return torch.full((3,), float(index))
"""
CLEAN = "([], 0, False, 0)"


def execute(*cells: str, **options: Any) -> Any:
    """The executed notebook: the set-up, then the cells. nbclient raises at the first error unless it is allowed."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)]
    options = {"timeout": 120, "kernel_name": "python3"} | options
    client = NotebookClient(notebook, resources={"metadata": {"path": str(ROOT)}}, **options)
    try:
        client.execute()
    except CellExecutionError:
        if not options.get("allow_errors", True):
            raise
    return notebook


def text_of(cell: Any) -> str:
    """The value that a cell shows."""
    return "".join(
        output["data"]["text/plain"]
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    )


def errors_of(cell: Any) -> list[Any]:
    return [output for output in cell.outputs if output.output_type == "error"]


def test_values_magics_and_lines_are_those_of_the_cell() -> None:
    notebook = execute(
        "%%profiled\nx = 20\nx + 1",
        "%%profiled\n!echo from the shell\nx;",
        "_",
        "%profiled x * 2",
        "%%profiled\nclass Kept:\n    def own(self): return 1\nimport pickle\n"
        "pickle.loads(pickle.dumps(Kept())).__class__ is Kept",
        "%%profiled\nfor i in range(6):\n    print(i, end=' ')\nsessions[-1].log",
        "import inspect\nprint(inspect.getsource(Kept.own))",
    )
    shown = [text_of(cell) for cell in notebook.cells[1:6]]
    assert shown == ["21", "", "21", "40", "True"]
    assert "from the shell" in notebook.cells[2].outputs[0]["text"]
    assert notebook.cells[6].outputs[0]["text"] == "0 1 2 3 4 5 "
    assert text_of(notebook.cells[6]) == str(["plan 5 1", *["mark 2"] * 5, "close 2"])
    assert notebook.cells[7].outputs[0]["text"].startswith("    def own(self): return 1")


def test_an_error_stops_run_all_and_is_shown_once() -> None:
    notebook = execute(
        "%%profiled\nfor i in range(9):\n    x = i\n    if i == 4:\n        raise ValueError('here')", "after = 1"
    )
    failed, after = notebook.cells[1:]
    (error,) = errors_of(failed)
    assert (error["ename"], error["evalue"]) == ("ValueError", "here")
    trace = without_colours("\n".join(error["traceback"]))
    assert len(re.findall(r"^ValueError\b", trace, re.MULTILINE)) <= 2
    assert "line 5" in trace.rpartition("Cell")[2]
    assert f"In[{failed.execution_count}]" in trace.rpartition("Cell")[2]
    assert after.execution_count is None


def test_nbclient_raises_what_the_cell_raised() -> None:
    with pytest.raises(CellExecutionError, match="in the middle of step 4"):
        execute(
            "%%profiled\nfor i in range(9):\n    if i == 4:\n        raise ValueError('in the middle of step 4')",
            allow_errors=False,
        )


@pytest.mark.parametrize(
    ("cell", "name", "text"),
    [
        (
            "%%profiled\nw = torch.ones(3, requires_grad=True)\nfor i in range(9):\n    (w * 2).backward()",
            "RuntimeError",
            "scalar",
        ),
        (
            "%%profiled\nfor x in DataLoader(Numbers(bad=17), batch_size=3, num_workers=2):\n    x + 1",
            "LookupError",
            "worker",
        ),
        ("%%profiled\nx = 1\nawait something()", "UsageError", "ipyprof.profile()"),
        ("%%profiled\nx = = 1", "SyntaxError", "invalid syntax"),
    ],
)
def test_an_error_of_any_kind_is_the_cells_own(cell: str, name: str, text: str) -> None:
    notebook = execute(cell, "state()[:3]", allow_errors=True)
    errors = errors_of(notebook.cells[1])
    streams = "".join(output["text"] for output in notebook.cells[1].outputs if output.output_type == "stream")
    if name == "UsageError":  # shown in one line on stderr, as the shell does
        assert text in streams + "".join(error["evalue"] for error in errors)
    else:
        (error,) = errors
        assert error["ename"] == name
        assert text in "\n".join(error["traceback"])
    assert text_of(notebook.cells[2]) == "([], 0, False)"


@pytest.mark.parametrize(("context", "persistent"), [("fork", False), ("fork", True), ("spawn", False)])
def test_worker_processes_run_twice_and_end(context: str, persistent: bool) -> None:
    loader = (
        "def run():\n    return DataLoader(data, batch_size=3, num_workers=2, "
        f"persistent_workers={persistent}, multiprocessing_context={context!r})"
    )
    cell = "%%profiled\nfor x in run():\n    total += float(x.sum())"
    data = "data = [torch.ones(3)] * 24\ntotal = 0\n"
    notebook = execute(data + loader, cell, cell, "import gc; gc.collect()\ntotal, [s.log for s in sessions], state()")
    log = ["plan 7 1", *["mark 2"] * 7, "close 2"]
    assert text_of(notebook.cells[4]).replace("\n", "").replace(" ", "") == str(
        (144.0, [log, log], ([], 0, False, 0))
    ).replace(" ", "")


def test_an_interrupt_ends_the_cell_and_leaves_nothing() -> None:
    cell = "%%profiled\nfor x in DataLoader(Numbers(), batch_size=1, num_workers=2):\n    time.sleep(1.5)"
    notebook = execute(
        cell,
        "del x\nimport gc; gc.collect()\nstate()",
        "%%profiled\nfor i in range(3):\n    pass\nlen(sessions)",
        timeout=6,
        interrupt_on_timeout=True,
        allow_errors=True,
        startup_timeout=120,
    )
    (error,) = errors_of(notebook.cells[1])
    assert error["ename"] == "KeyboardInterrupt"
    assert "line 3" in "\n".join(error["traceback"]).rpartition("Cell")[2]
    assert text_of(notebook.cells[2]) == CLEAN
    assert text_of(notebook.cells[3]) == "2"
