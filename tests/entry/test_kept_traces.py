"""``--logdir``, and the trace that is kept for the panel."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import ipyprof
from ipyprof import history
from ipyprof import run as kept
from ipyprof.errors import OptionError
from ipyprof.show import output as surface

LOOP = "for i in range(9):\n    x = torch.tanh(x @ x)\n"


def run(shell: InteractiveShell, cell: str) -> None:
    shell.run_cell(cell).raise_error()


# -- the folder of TensorBoard --


def test_logdir_gets_a_file_that_tensorboard_looks_for(shell: InteractiveShell) -> None:
    # given a folder that is not there yet
    run(shell, f"%%gpuprofile -q --name trial -o report --logdir runs/first\n{LOOP}")
    # when the cell ran, then one file is in it, named as torch names it, and it is the run's trace
    (name,) = os.listdir("runs/first")
    worker = re.escape(f"{socket.gethostname()}_{os.getpid()}")
    assert re.fullmatch(rf"{worker}\.\d{{19}}\.pt\.trace\.json\.gz", name)
    again = ipyprof.load(Path("runs/first") / name)
    assert again.source.name == "trial"
    assert again.steps == shell.user_ns["report"].steps
    # and the next run adds one
    run(shell, f"%%gpuprofile -q --logdir runs/first\n{LOOP}")
    assert len(os.listdir("runs/first")) == 2


def test_the_status_line_ends_with_what_to_do(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a front end that takes rich output, when a run has written both
    with capture_output() as shown:
        run(shell, f"%%gpuprofile --static --logdir runs --trace step.json.gz\n{LOOP}")
    # then the line has the command for one and the link for the other
    lines = [output.data["text/html"] for output in shown.outputs if "ipyprof: " in output.data.get("text/html", "")]
    assert "tensorboard --logdir runs" in lines[-1]
    assert 'trace: step.json.gz (opens in <a href="https://ui.perfetto.dev"' in lines[-1]


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_runs(shell: InteractiveShell) -> None:
    # given a file, and a path below it, when asked for as a folder, then it is refused and nothing ran
    Path("taken").touch()
    for folder in ("taken", "taken/below"):
        error = shell.run_cell(f"%%gpuprofile --logdir {folder}\nran = True").error_in_exec
        assert isinstance(error, UsageError)
        assert "is no folder" in str(error)
    assert "ran" not in shell.user_ns
    with pytest.raises(OptionError, match="is no folder"):
        ipyprof.profile(logdir="taken")


# -- the trace for the panel --


@pytest.fixture
def panelled(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """A shell whose runs show their panel."""

    def notebook(_shell: Any, *, quiet: bool, static: bool) -> surface.Surface:
        return surface.Notebook(panel=not static)

    monkeypatch.setattr("ipyprof.magic.surface_for", notebook)
    return shell


def shown(shell: InteractiveShell, cell: str) -> None:
    with capture_output():
        run(shell, cell)


def kept_path() -> Path | None:
    report = history.last()
    trace = None if report is None else history.trace_of(report)
    return None if trace is None else trace._path


def test_the_newest_run_keeps_its_trace(panelled: InteractiveShell) -> None:
    # given two runs with panels, when the second was shown
    shown(panelled, f"%%gpuprofile --name one\n{LOOP}")
    first = kept_path()
    shown(panelled, f"%%gpuprofile --name two\n{LOOP}")
    second = kept_path()
    # then only its trace is there, and it has the run's title
    assert first is not None and second is not None
    assert not first.exists() and second.exists()
    last = history.last()
    assert last is not None
    trace = history.trace_of(last)
    assert trace is not None
    trace.write(Path("saved.json.gz"))
    assert ipyprof.load("saved.json.gz").source.name == "two"
    # and letting all reports go removes it
    history.forget()
    assert not second.exists()


@pytest.mark.parametrize(
    ("cell", "most_bytes"),
    [(f"--static\n{LOOP}", None), (f"\n{LOOP}", 10), ("\nfor i in range(9):\n    missing(i)\n", None)],
    ids=["without a panel", "too large", "nothing recorded"],
)
def test_no_trace_is_kept_without_need(
    panelled: InteractiveShell, monkeypatch: pytest.MonkeyPatch, cell: str, most_bytes: int | None
) -> None:
    if most_bytes is not None:
        monkeypatch.setattr(kept, "MOST_BYTES", most_bytes)
    with capture_output():
        panelled.run_cell(f"%%gpuprofile {cell}")
    assert kept_path() is None
