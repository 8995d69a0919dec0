"""What front ends get from one session: notebooks as files, exports without widget state, batch runs, no widgets."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

nbconvert = pytest.importorskip("nbconvert")

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
MOST_BYTES = 300_000
LOOP = "for i in range(12):\n    x = torch.tanh(x @ x)\n"
CELLS = (
    "%load_ext ipyprof\nimport sys, torch\nx = torch.ones(64, 64) / 64",
    f"%%gpuprofile --name live -o report\n{LOOP}",
    f"%gpuprofile --load '{FIXTURES / 'gpt2_training_slow.json.gz'}' -o recorded",
    "report.verdict.headline, recorded.verdict.headline",
    "sys.modules['ipywidgets'] = None  # as where it is not installed",
    f"%%gpuprofile\n{LOOP}",
)
LIVE, RECORDED, HEADLINES, WITHOUT = 1, 2, 3, 5


@pytest.fixture(scope="module")
def executed() -> Any:
    """The notebook, executed, with the state of its widgets."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    return notebook


def stateless(notebook: Any) -> Any:
    """The notebook as most tools save it."""
    bare = copy.deepcopy(notebook)
    bare.metadata.pop("widgets")
    return bare


def displays(notebook: Any, number: int) -> list[dict[str, Any]]:
    """What a cell's outputs hold, by type."""
    return [output["data"] for output in notebook.cells[number].outputs if "data" in output]


def models_of(state: dict[str, Any], model: str) -> set[str]:
    """A widget's model and all that it refers to."""
    seen: set[str] = set()
    open_ = [model]
    while open_:
        one = open_.pop()
        if one not in seen:
            seen.add(one)
            open_ += re.findall(r"IPY_MODEL_(\w+)", json.dumps(state[one]["state"]))
    return seen


def words(page: str) -> str:
    """A page's text, its elements and line breaks as single spaces."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


# -- the notebook as a file --


def test_the_notebook_is_valid_with_state_and_without(executed: Any) -> None:
    # given a run notebook, when it is read with its widgets' state and without, then it is valid, and where widgets
    # are named in its metadata their state is there: GitHub shows nothing of a file without it
    for notebook in (executed, stateless(executed)):
        nbformat.validate(nbformat.reads(nbformat.writes(notebook), as_version=4))
    assert set(executed.metadata.widgets[STATE]) >= {"state"}


@pytest.mark.parametrize("number", [LIVE, RECORDED])
def test_output_of_a_run_is_small(executed: Any, number: int) -> None:
    # given a run and a large recording of an H200, each with dashboard and panel
    state = executed.metadata.widgets[STATE]["state"]
    (panel,) = (data[WIDGET]["model_id"] for data in displays(executed, number) if WIDGET in data)
    # when all that the notebook saves of it is counted, widget state included
    size = len(json.dumps(executed.cells[number].outputs))
    size += sum(len(json.dumps(state[model])) for model in models_of(state, panel))
    # then it is under 300 kB
    assert 50_000 < size < MOST_BYTES


def test_messages_hold_what_every_front_end_knows(executed: Any) -> None:
    # given all outputs of the session, when their types are listed, then there is text, HTML and the widget's view
    kinds = {kind for number in (LIVE, RECORDED, WITHOUT) for data in displays(executed, number) for kind in data}
    assert kinds == {"text/plain", "text/html", WIDGET}
    # and the view is its own output, so that a front end without widgets loses nothing
    for number in (LIVE, RECORDED):
        for data in displays(executed, number):
            assert WIDGET not in data or "text/html" not in data
    # and all its models are of the core packages, which Colab shows without being asked
    state = executed.metadata.widgets[STATE]["state"]
    modules = {model["model_module"] for model in state.values()}
    assert modules == {"@jupyter-widgets/base", "@jupyter-widgets/controls"}


def test_without_widgets_the_report_is_whole(executed: Any) -> None:
    # given a kernel without ipywidgets, when a cell is profiled, then status and dashboard are there, and no panel
    status, dashboard = displays(executed, WITHOUT)
    assert status["text/plain"].startswith("ipyprof: ")
    assert "Top operators" in dashboard["text/html"]
    assert "Top operators" in dashboard["text/plain"]
    assert [output["output_type"] for output in executed.cells[WITHOUT].outputs] == ["display_data"] * 2


# -- exports --


@pytest.fixture(scope="module", params=["HTML", "Markdown"])
def exported(executed: Any, request: pytest.FixtureRequest) -> str:
    """The notebook without the widgets' state, converted."""
    exporter = nbconvert.get_exporter(request.param.lower())()
    body, _ = exporter.from_notebook_node(stateless(executed))
    return str(body)


def test_an_export_without_state_shows_verdict_table_and_plots(executed: Any, exported: str) -> None:
    # given two runs, when they are exported without widget state, then both headlines and their tables are there
    shown = words(exported)
    for headline in re.findall(r"""(['"])(.+?)\1""", displays(executed, HEADLINES)[0]["text/plain"]):
        start = headline[1].split("'")[0].split('"')[0][:40]
        assert start in shown
    assert shown.count("Top operators on the") >= 2
    assert "aten::mm" in shown
    # and the plots, whole: a ring and a heartbeat for each run, and the lanes of the recorded one
    pictures = re.findall(r"<img\b[^>]*>", exported)
    for alt, least in (("Step of ", 3), ("Memory ", 2), ("One recorded step of ", 1)):
        assert sum(f'alt="{alt}' in picture for picture in pictures) >= least
    assert all('src="data:image/png;base64,iVBOR' in picture for picture in pictures)


# -- batch runs --


def test_papermill_runs_a_notebook(tmp_path: Path) -> None:
    # given a notebook with a parameter and the magic
    papermill = pytest.importorskip("papermill")
    parameters = nbformat.v4.new_code_cell("rounds = 1", metadata={"tags": ["parameters"]})
    profiled = nbformat.v4.new_code_cell("%%gpuprofile -o report\n" + LOOP.replace("12", "rounds"))
    cells = [nbformat.v4.new_code_cell(CELLS[0]), parameters, profiled, nbformat.v4.new_code_cell("report.steps.count")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "in.ipynb")
    # when papermill runs it with another value
    papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"rounds": 12}, cwd=str(ROOT), progress_bar=False
    )
    # then the output notebook holds the dashboard, and the run's steps
    done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert any("Top operators" in data.get("text/html", "") for data in displays(done, 3))
    assert displays(done, 4)[0]["text/plain"] == "3"
