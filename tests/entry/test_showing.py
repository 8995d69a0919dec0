"""``--compare``, ``--list`` and ``--explain``: what is shown without running anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from ipyprof import history
from ipyprof.report.comparison import Comparison
from tests.sample_comparisons import fast, named, slow


@pytest.fixture
def kept(shell: InteractiveShell) -> InteractiveShell:
    """A shell whose session has run ``before`` and ``after``."""
    history.remember(slow())
    history.remember(fast())
    return shell


def run(shell: InteractiveShell, cell: str) -> None:
    shell.run_cell(cell).raise_error()


def refused(shell: InteractiveShell, cell: str) -> str:
    """The one line that refuses a cell."""
    error = shell.run_cell(cell).error_in_exec
    assert isinstance(error, UsageError)
    assert "\n" not in str(error)
    return str(error)


# -- the list --


def test_list_numbers_the_runs(kept: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given two runs, when they are listed, then each has its number, name, step and cause
    run(kept, "%gpuprofile --list")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:4] == ["1", "before", "257", "ms"] and "data_loading" in rows[1]
    assert rows[2][:4] == ["2", "after", "31.6", "ms"] and "launch_bound" in rows[2]
    assert "%gpuprofile --compare 1 2" in " ".join(rows[3])


def test_empty_list_says_so(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "%gpuprofile --list")
    assert capsys.readouterr().out == "No run of this session is kept yet.\n"


def test_numbers_stay_when_the_oldest_is_forgotten(shell: InteractiveShell) -> None:
    # given twelve runs of which ten are kept
    for number in range(1, 13):
        history.remember(named(slow(), f"run {number}"))
    # when they are asked for, then the first two are gone and the others have their numbers
    assert [number for number, _ in history.numbered()] == list(range(3, 13))
    assert history.find("2") is None
    found = history.find("12")
    assert found is not None and found.source.name == "run 12"


def test_the_newest_of_one_name_is_found(shell: InteractiveShell) -> None:
    # given two runs of one name, and one that is called like a number
    history.remember(slow())
    history.remember(named(fast(), "before"))
    history.remember(named(fast(), "1"))
    # when asked for, then the newest counts, and a name goes before a number
    assert history.find("before") is history.reports()[1]
    assert history.find("1") is history.reports()[2]
    assert history.find("2") is history.reports()[1]


# -- the comparison --


@pytest.mark.parametrize("names", ["", "before after", "1 2", "'before' \"after\"", "before", "-- before after"])
def test_two_runs_are_compared(kept: InteractiveShell, capsys: pytest.CaptureFixture[str], names: str) -> None:
    # given two runs, when compared by default, by name, by number, or one with the last
    run(kept, f"%gpuprofile --compare {names}")
    # then the card is text in a terminal
    assert "Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms." in capsys.readouterr().out


def test_options_may_stand_behind_the_names(kept: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given names before the options, when compared, then page and name are there, and nothing is shown
    run(kept, "%gpuprofile --compare before after -q -o found --html card.html")
    assert capsys.readouterr().out == ""
    assert isinstance(kept.user_ns["found"], Comparison)
    assert os.listdir() == ["card.html"]
    assert Path("card.html").read_text().endswith("</html>\n")


def test_a_file_is_compared_with_the_last_run(kept: InteractiveShell, tmp_path: Path) -> None:
    # given a saved report, when compared with the last run, then it is the first of the two
    (tmp_path / "first run.json").write_text(json.dumps(slow().to_dict()))
    run(kept, "%gpuprofile --compare 'first run.json' -q -o found")
    assert kept.user_ns["found"].before.label == "before"
    assert kept.user_ns["found"].after.label == "after"


def test_a_notebook_gets_the_card(kept: InteractiveShell) -> None:
    # given a front end that takes rich output, when compared, then the bundle has text and HTML
    with capture_output() as shown:
        run(kept, "%gpuprofile --compare")
    assert [set(output.data) for output in shown.outputs] == [{"text/plain", "text/html"}]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--compare before nothing", "--compare nothing; the kept runs are 1 (before), 2 (after)"),
        ("--compare a b c", "--compare a b c; it takes two runs"),
        ("--compare 'before", "a quote is not closed"),
        ("--compare --wait 3", "--compare runs nothing and does not take --wait"),
        ("--compare -o 2x", "-o takes a Python name"),
        ("--compare --html missing/card.html", "there is no folder missing"),
        ("--list before", "--list runs nothing and does not take 'before'"),
        ("--list -q", "--list runs nothing and does not take --quiet"),
        ("--explain nothing", "--explain nothing; it takes one of data_loading, host_sync,"),
        ("--explain", "--explain; it takes one of data_loading, host_sync,"),
    ],
)
def test_a_mistake_is_one_line(kept: InteractiveShell, line: str, told: str) -> None:
    assert told in refused(kept, f"%gpuprofile {line}")


def test_without_two_runs_it_says_what_to_do(shell: InteractiveShell) -> None:
    assert "no run of this session is kept; profile two runs first" in refused(shell, "%gpuprofile --compare")
    history.remember(slow())
    assert "one run of this session is kept" in refused(shell, "%gpuprofile --compare")


@pytest.mark.parametrize("line", ["--compare", "--list", "--explain host_sync"])
def test_a_cell_below_is_refused_and_not_run(kept: InteractiveShell, line: str) -> None:
    assert "does not take a cell" in refused(kept, f"%%gpuprofile {line}\nran = True")
    assert "ran" not in kept.user_ns


def test_profiled_names_reach_the_comparison(shell: InteractiveShell) -> None:
    # given two profiled loops with titles and work, the first saved
    loop = "for i in range(9):\n    x = torch.tanh(x @ x)\n"
    run(shell, f"%%gpuprofile -q --name 'one worker' --items 8 --trace one.json.gz\n{loop}")
    run(shell, f"%%gpuprofile -q --name two --items 8\n{loop}")
    # when compared by name, and the first from its file
    run(shell, "%gpuprofile --compare 'one worker' two -q -o live")
    run(shell, "%gpuprofile --compare one.json.gz two -q -o saved")
    # then the title came through the file, and the numbers are the same
    assert shell.user_ns["saved"].before.label == "one worker"
    assert shell.user_ns["saved"].speedup == shell.user_ns["live"].speedup


# -- the explanation --


def test_explanation_is_text_in_a_terminal(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "%gpuprofile --explain host_sync")
    assert capsys.readouterr().out.startswith("The host waits for the GPU, and then the GPU waits for the host\n")


def test_explanation_is_markdown_in_a_notebook(shell: InteractiveShell) -> None:
    # given a front end that takes rich output, when a topic is explained, then it is Markdown with its text
    with capture_output() as shown:
        run(shell, "%gpuprofile --explain profiler")
    (data,) = (output.data for output in shown.outputs)
    assert data["text/markdown"].startswith("### How the profiler works")
    assert "Amdahl" in data["text/plain"]


def test_nothing_is_imported_for_a_list(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a session, when runs are listed, then the profiler's room is not entered
    def fail(*_arguments: Any) -> None:
        raise AssertionError("a run began")

    monkeypatch.setattr("ipyprof.magic._run", fail)
    run(shell, "%gpuprofile --list")
