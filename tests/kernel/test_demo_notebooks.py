"""The demo notebooks run on a CPU, say what is not measured there, and hold nothing of the machine that ran them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from demo_notebooks.build import LESSONS as TEXTS
from demo_notebooks.build import notebook, stems, with_outputs
from tests.gpu.notebooks import (
    LESSONS,
    MOST_REPORT_BYTES,
    NOTEBOOKS,
    Lesson,
    execute,
    output_failures,
    private_words,
    size_failures,
    small,
    verdict_failures,
)
from tests.sample_reports import starvation

IDS = [lesson.stem for lesson in LESSONS]


def printed(notebook: Any) -> str:
    """All that the cells of a notebook printed."""
    streams = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "stream"
    ]
    return "".join(streams)


@pytest.mark.parametrize("lesson", LESSONS, ids=IDS)
def test_notebook_runs_on_a_cpu(lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a kernel without a GPU, and no recorded report beside the notebook
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # when all cells run
    done = execute(lesson, recordings=tmp_path / "none")
    # then none fails, and there is a report for each profiled cell that has a name
    assert done.error == ""
    assert list(done.reports) == list(lesson.expected)
    # and it says that there is no GPU and no recorded report, and answers every question
    text = printed(done.notebook)
    assert "No GPU here" in text
    assert f"There is no recorded/{lesson.stem}.json beside this notebook" in text
    questions = re.findall(r"^(\d)\. ", done.notebook.cells[-3].source, re.MULTILINE)
    answered = re.findall(r"^(\d)\. ", printed_by(done.notebook.cells[-2]), re.MULTILINE)
    assert answered == questions and len(questions) in (3, 4)
    # and nobody sees where it ran, or a panel that is dead; it stays small
    assert output_failures(done.notebook, private_words()) == []
    assert "widget-view" not in nbformat.writes(done.notebook)
    assert size_failures(done.notebook) == []


def printed_by(cell: Any) -> str:
    """What one cell printed."""
    return "".join(output["text"] for output in cell.outputs if output["output_type"] == "stream")


def test_recorded_report_is_shown_where_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given recorded reports of a GPU beside a notebook, and no GPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lesson = LESSONS[1]
    report = starvation()
    for part in lesson.recorded:
        (tmp_path / f"{lesson.stem}{part}.json").write_bytes(small(report.to_dict()))
    # when it runs
    done = execute(lesson, recordings=tmp_path)
    # then the recorded dashboard is shown beside its own, and the answers are given for both
    assert done.error == ""
    shown = [
        output["data"]["text/plain"]
        for cell in done.notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert any(report.verdict.headline[:40] in text for text in shown)
    assert "for the reports from the H200" in printed(done.notebook)


@pytest.mark.parametrize("lesson", LESSONS, ids=IDS)
def test_committed_notebook_is_what_its_text_builds(lesson: Lesson) -> None:
    # given a committed notebook, executed or not
    path = NOTEBOOKS / f"{lesson.stem}.ipynb"
    committed = nbformat.read(path, as_version=4)
    # when its text is built, then the cells are the same, and the file is valid and small
    built = notebook(lesson.stem)["cells"]
    assert [(cell.cell_type, cell.source) for cell in committed.cells] == [
        (cell["cell_type"], "".join(cell["source"])) for cell in built
    ]
    nbformat.validate(committed)
    assert size_failures(committed) == []
    assert output_failures(committed) == []


def test_outputs_stay_where_the_code_is_the_same() -> None:
    # given a notebook that was executed, and its text with another sentence
    executed = notebook(IDS[0])
    code = [cell for cell in executed["cells"] if cell["cell_type"] == "code"]
    code[1] |= {"execution_count": 2, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["seen"]}]}
    # when it is built again, then the outputs stay; with other code nothing of them does
    kept = with_outputs(notebook(IDS[0]), executed)
    assert [cell for cell in kept["cells"] if cell["cell_type"] == "code"] == code
    code[-1]["source"] = ["1 / 0"]
    assert with_outputs(notebook(IDS[0]), executed) == notebook(IDS[0])


def test_every_text_is_a_lesson() -> None:
    # given the texts, when they are compared with the table of lessons, then there is one entry for each
    assert stems() == IDS
    assert sorted(path.name for path in TEXTS.iterdir()) == [f"{stem}.md" for stem in IDS]


def test_recorded_reports_are_small_and_of_a_gpu() -> None:
    # given the reports that were recorded, when they are read, then each is a lesson's, small, and of a GPU
    names = {f"{lesson.stem}{part}.json" for lesson in LESSONS for part in lesson.recorded}
    for path in sorted((NOTEBOOKS / "recorded").glob("*")):
        assert path.name in names
        data = path.read_bytes()
        assert len(data) < MOST_REPORT_BYTES
        assert json.loads(data)["device"] is not None


def report(cause: str, **statuses: str) -> Mapping[str, Any]:
    """A report's dictionary, as far as verdicts are judged."""
    found = [{"cause": name, "status": status} for name, status in statuses.items()]
    return {"verdict": {"cause": cause}, "findings": found}


@pytest.mark.parametrize(
    ("expected", "given", "words"),
    [
        ("host_sync", report("host_sync"), []),
        ("host_sync", report("launch_bound"), ["a is called launch_bound, expected host_sync"]),
        ("not host_sync", report("compute_bound"), []),
        ("not host_sync", report("host_sync"), ["a is called host_sync, expected not host_sync"]),
        ("host_sync cleared", report("compute_bound", host_sync="cleared"), []),
        (
            "host_sync cleared",
            report("host_sync", host_sync="found"),
            ["a is called host_sync with host_sync found, expected host_sync cleared"],
        ),
    ],
)
def test_verdicts_are_judged(expected: str, given: Mapping[str, Any], words: list[str]) -> None:
    # given an expectation and a report, when it is judged, then what is wrong is said
    lesson = Lesson(stem="x", expected={"a": expected}, shown=())
    assert verdict_failures(lesson, {"a": given}) == words
    assert verdict_failures(lesson, {}) == ["no report a"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("saved in /tmp/ipykernel_7/x.py", ["cell 0 shows '/tmp/ipykernel_7/x.py'"]),
        ('<td title="/home/someone/a b">', ["cell 0 shows '/home/someone/a'"]),
        ("on big-host-3, line 4", ["cell 0 shows 'big-host-3'"]),
        ("tokens/s, <b>1/2</b>, https://example.org/home/page, </var/x", []),
        ("data:image/png;base64,AAAA/tmp/AAAA==", []),
    ],
)
def test_private_output_is_seen(text: str, found: list[str]) -> None:
    # given an output, when it is looked through, then absolute paths and the host's name are found, links are not
    output = nbformat.v4.new_output("stream", text=text)
    given = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output])])
    assert output_failures(given, ["big-host-3"]) == found


def test_large_report_loses_what_only_a_panel_needs() -> None:
    # given a report with a view that is too large
    plain = starvation().to_dict()
    plain["views"]["per_step"] = ["x" * MOST_REPORT_BYTES]
    # when it is made small, then that view is gone and the dashboard's are there
    kept = json.loads(small(plain))
    assert len(json.dumps(kept)) < MOST_REPORT_BYTES
    assert "per_step" not in kept["views"]
    assert "heartbeat" in kept["views"]
