"""The public functions, in scripts: the block, the step, loading."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ipyprof
from ipyprof import history
from ipyprof.errors import IpyprofError, OptionError
from ipyprof.options import Options
from ipyprof.run import Run
from ipyprof.show.output import Silent
from tests import sample_reports

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_history() -> Any:
    history.forget()
    yield
    history.forget()


def work(count: int, run: Any | None = None) -> None:
    """Steps of one product, each said to end."""
    import torch

    x = torch.ones(64, 64) / 64
    for _ in range(count):
        x = torch.tanh(x @ x)
        if run is not None:
            run.step()


# -- the block --


@pytest.mark.parametrize("by_module", [False, True])
def test_block_records_the_steps_that_are_called(by_module: bool) -> None:
    # given a block that says where its steps end, by its run or by the module's function
    with ipyprof.profile(quiet=True, items=8, unit="rows") as run:
        work(12, ipyprof if by_module else run)
    # when it is over, then the report is there, and it is the last one
    assert run.report is not None
    assert run.report.steps.count == 3
    assert run.report.steps.how == "ipyprof.step()"
    assert run.report.steps.throughput is not None
    assert run.report.steps.throughput.unit == "rows/s"
    assert run.report.source.cell == ()
    assert ipyprof.last_report() is run.report


def test_optimizer_steps_are_found_without_calls() -> None:
    # given a block with an optimizer and no calls
    import torch

    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with ipyprof.profile(quiet=True) as run:
        for _ in range(14):
            optimizer.zero_grad()
            layer(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    # when it is over, then its steps were the steps
    assert run.report is not None
    assert run.report.steps.how == "optimizer steps"
    assert run.report.steps.count == 3


def test_block_without_steps_is_one_step() -> None:
    # given a block without a call, an optimizer or a loader, when it is over, then it is the step, once
    with ipyprof.profile(quiet=True) as run:
        work(3)
    assert run.report is not None
    assert run.report.steps.count == 1
    assert run.report.verdict.cause == "inconclusive"


def test_error_in_the_block_goes_on_after_a_partial_report() -> None:
    # given a block that fails while it is recorded
    def work_and_fail(run: ipyprof.profile) -> None:
        with run:
            work(6, run)
            raise KeyError("mine")

    run = ipyprof.profile(quiet=True)
    with pytest.raises(KeyError, match="mine"):
        work_and_fail(run)
    # when it is over, then the steps so far are reported and marked
    assert run.report is not None
    assert "KeyError" in run.report.source.partial


def test_block_inside_a_block_is_not_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    # given a block inside another one, entered often
    with ipyprof.profile(quiet=True) as outer:
        for _ in range(12):
            with ipyprof.profile() as inner:
                work(1)
            outer.step()
    # when they are over, then the outer one is whole and it was said once
    assert inner.report is None
    assert outer.report is not None
    assert outer.report.steps.count == 3
    assert capsys.readouterr().out.count("a profile is already running") == 1


def test_block_runs_once() -> None:
    # given a run that is over
    run = ipyprof.profile(quiet=True)
    with run:
        work(1)
    # when it is entered again, then it refuses
    with pytest.raises(IpyprofError, match="used before"), run:
        pass


def test_step_outside_of_a_run_does_nothing() -> None:
    # given no run, when steps are said, then nothing happens
    run = ipyprof.profile(quiet=True)
    run.step()
    ipyprof.step()
    assert run.report is None
    assert ipyprof.last_report() is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"frames": 3}, r"profile\(frames=...\); the options are wait, warmup"),
        ({"output": "r"}, r"profile\(output=...\)"),
        ({"active": 0}, "active=0; active is a whole number of at least 1"),
        ({"limit": -1}, r"limit=-1; limit is a finite number above 0; give such a number\.$"),
        ({"repeat": 21}, "repeat=21; repeat is at most 20, because each recording is kept in a file until all are"),
        ({"repeat": 0}, r"repeat=0; repeat is a whole number of at least 1; give 1 or more\.$"),
        ({"step": "sideways"}, r"profile\(step='sideways'\); .* the step is auto, call, optimizer or loader"),
        ({"logdir": "/dev/null/x"}, "logdir=/dev/null/x; /dev/null is no folder"),
        ({"step": "loop"}, "the loops of a block are not known"),
        ({"loop": 3}, "the loops of a block are not known"),
        ({"html": "missing/page.html"}, "^html=missing/page.html; there is no folder missing"),
        ({"items": "3"}, "items='3'; items is a finite number above 0"),
        ({"items": True}, "items=True; items is a finite number above 0"),
        ({"limit": "30"}, "limit='30'; limit is a finite number above 0"),
        ({"limit": None}, "limit=None; limit is a finite number above 0"),
        ({"trace": 3}, "trace=3; trace is the path of a file"),
        ({"html": b"x"}, "html=b'x'; html is the path of a file"),
        ({"shapes": "no"}, "shapes='no'; shapes is True or False"),
        ({"unit": 3}, "unit=3; unit is the name of an item"),
        ({"unit": ""}, "unit=''; unit is the name of an item"),
        ({"name": 4}, "name=4; name is a text"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], told: str) -> None:
    # given a wrong option, when the run is made, then one sentence says so
    with pytest.raises(OptionError, match=told):
        ipyprof.profile(**options)


def test_paths_are_plain_text_in_the_options() -> None:
    # given a file, when the options are written down, then its path is plain
    assert Options(html=Path("a/page.html"), active=5).as_text() == "active=5 html='a/page.html'"


def test_one_of_several_threads_gets_the_run() -> None:
    # given threads that ask for a run at the same time and keep it until all have asked
    ready, asked = threading.Barrier(8), threading.Barrier(8)
    got: list[bool] = []
    said: list[str] = []

    class Surface(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    def ask() -> None:
        ready.wait(10)
        with Run(Options(), Surface(), filename="threads", block=True) as detector:
            got.append(detector is not None)
            asked.wait(10)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # when all are done, then one had it, and it was said once
    assert sorted(got) == [False] * 7 + [True]
    assert len(said) == 1


def test_script_prints_text_and_writes_files(tmp_path: Path) -> None:
    # given a script
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, ipyprof\n"
        "x = torch.ones(64, 64) / 64\n"
        "with ipyprof.profile(html='page.html', trace='step.json') as run:\n"
        "    for i in range(12):\n"
        "        x = torch.tanh(x @ x)\n"
        "        run.step()\n"
        "print('HEADLINE', run.report.verdict.headline)\n"
    )
    # when it runs
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment()
    )
    # then the text of the report is printed, and the files are whole
    text, headline = " ".join(done.stdout.split()).split(" HEADLINE ")
    assert headline in text
    assert "Top operators" in text
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert "traceEvents" in json.loads((tmp_path / "step.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "step.json", "train.py"]


def environment() -> dict[str, str]:
    """This process's environment, with the package to be found."""
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


# -- loading --


def test_trace_of_a_run_keeps_items_and_unit(tmp_path: Path) -> None:
    # given the trace of a run with items, when it is loaded, then the report has their throughput and says them
    with ipyprof.profile(quiet=True, items=8, unit="rows", trace=tmp_path / "step.json") as run:
        work(12, run)
    report = ipyprof.load(tmp_path / "step.json")
    assert report.source.options == "items=8.0 unit='rows'"
    assert run.report is not None
    assert report.steps.throughput == run.report.steps.throughput


def test_list_of_reports_is_refused_by_load(tmp_path: Path) -> None:
    # given the JSON of two reports, when it is loaded as one, then the error says how to see both
    path = tmp_path / "two.json"
    path.write_text(json.dumps([sample_reports.sync().to_dict()] * 2))
    with pytest.raises(IpyprofError, match="holds 2 reports; load\\(\\) gives one report"):
        ipyprof.load(path)


@pytest.mark.parametrize("packed", [False, True])
def test_saved_report_is_told_by_its_content(tmp_path: Path, packed: bool) -> None:
    # given a report's JSON under any name, plain or gz
    report = sample_reports.sync()
    text = json.dumps(report.to_dict()).encode()
    path = tmp_path / "anything.txt"
    path.write_bytes(gzip.compress(text) if packed else text)
    # when it is loaded, then it is the same report
    assert ipyprof.load(path).to_dict() == report.to_dict()


def test_trace_of_plain_torch_is_a_report_from_a_file(tmp_path: Path) -> None:
    # given a trace that torch's own profiler wrote
    import torch

    path = tmp_path / "plain.json"
    with torch.profiler.profile() as theirs:
        work(3)
    theirs.export_chrome_trace(str(path))
    # when it is loaded, then the report says where it came from
    report = ipyprof.load(str(path))
    assert report.source.kind == "file"
    assert report.source.path == str(path)
    assert report.steps.per_step_ms == ()
    assert report.steps.overhead is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be opened"),
        (b"hello", "is no JSON"),
        (b"{}", "without the key 'traceEvents'"),
        (b'{"cells": []}', "a notebook"),
        (b'{"schema": 9, "verdict": {}, "breakdown": {}}', "a report with schema 9"),
        (b'{"schema": 1, "verdict": {}, "breakdown": {}}', "a report that does not fit"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes | None, told: str) -> None:
    # given a file that is neither a trace nor a report
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    # when it is loaded, then the error says what was found
    with pytest.raises(IpyprofError, match=told):
        ipyprof.load(path)


def test_folders_and_lists_without_a_trace_are_refused(tmp_path: Path) -> None:
    # given several files at once and none of them a trace, when they are loaded, then one sentence says so
    with pytest.raises(IpyprofError, match=r"is a folder without \.json or \.json\.gz files"):
        ipyprof.load(tmp_path)
    with pytest.raises(IpyprofError, match="none of 2 files is a trace"):
        ipyprof.load(["a.json", "b.json"])
    with pytest.raises(IpyprofError, match="a list of int"):
        ipyprof.load([1, 2])  # type: ignore[list-item]
