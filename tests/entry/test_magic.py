"""The magic in a shell without a front end: options, what it runs, what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from ipyprof import history
from ipyprof import run as delivery
from ipyprof.magic import GpuProfile, split_line
from ipyprof.report.report import Report
from tests.colours import without_colours

FAILING = "for i in range(20):\n    x = torch.tanh(x @ x)\n    if i == 6: raise {}\n"
LOOP = "for i in range(9):\n    x = torch.tanh(x @ x)\n"


def run(shell: InteractiveShell, cell: str) -> object:
    """The value of a cell that must succeed."""
    result = shell.run_cell(cell)
    result.raise_error()
    return result.result


# -- the line --


@pytest.mark.parametrize(
    ("line", "words", "rest"),
    [
        ("", [], ""),
        ("-q --wait 1", ["-q", "--wait", "1"], ""),
        ("--wait=1 f(x)", ["--wait=1"], "f(x)"),
        ('-o r f("a  b", -1)', ["-o", "r"], 'f("a  b", -1)'),
        ("--no-shapes -oreport x -y", ["--no-shapes", "-oreport"], "x -y"),
        ('--trace "a b.json" f()', ["--trace", "a b.json"], "f()"),
        ("--html='a b.html'", ["--html=a b.html"], ""),
        ("--wait -1", ["--wait", "-1"], ""),
        ("--sta -q", ["--sta", "-q"], ""),
        ("--act 2 f()", ["--act", "2"], "f()"),
        ("-q -- -x", ["-q"], "-x"),
    ],
)
def test_line_is_split_into_options_and_raw_rest(line: str, words: list[str], rest: str) -> None:
    # given the text behind the magic's name, when it is split
    found = split_line(line, GpuProfile.gpuprofile.parser)
    # then the options are words without quotes and the rest is as typed
    assert found == (words, rest)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--wait -1", "wait=-1; wait is a whole number of at least 0"),
        ("--wait two", "argument --wait: invalid int value: 'two'"),
        ("--frames", "unrecognized arguments: --frames"),
        ('--trace "a b', "a quote is not closed"),
        ("--step never", "argument --step: invalid choice: 'never'"),
        ("--step call --loop 2", "loop=2 together with step='call'"),
        ("--loop 2", "--loop 2: no loop of the cell begins on that line"),
        ("--limit 0", "limit=0.0; limit is a finite number above 0"),
        ("--limit inf", "limit=inf; limit is a finite number above 0"),
        ("--step cell --repeat 1000000", "repeat=1000000; repeat is at most 20"),
        ("--unit ''", "unit=''; unit is the name of an item"),
        ("-o 2x", "-o takes a Python name"),
        ("-o class", "-o takes a Python name"),
        ("-o None", "-o takes a Python name"),
        ("--html /dev/full", "that is no regular file"),
        ("--trace a.json --html a.json", "that is one file"),
        ("--trace step.txt", "a trace file ends in .json or .json.gz"),
        ("--trace missing/step.json", "there is no folder missing"),
        ("--html missing/step.html", "there is no folder missing"),
        ("--html .", "that is a folder"),
        ("f(x)", "'f(x)' is no option of %%gpuprofile"),
    ],
)
def test_wrong_option_is_one_line_and_nothing_runs(
    shell: InteractiveShell, capfd: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    # given a cell with a wrong option
    result = shell.run_cell(f"%%gpuprofile {line}\nran = True\nfor i in range(9): pass\n")
    # when it was refused, then one line says why, and the cell did not run
    assert isinstance(result.error_in_exec, UsageError)
    shown = capfd.readouterr().err.strip().splitlines()
    assert len(shown) == 1
    assert told in shown[0]
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize("code", ["%gpuprofile", "%gpuprofile -q", "%%gpuprofile\n\n"])
def test_nothing_to_run_is_a_usage_error(shell: InteractiveShell, code: str) -> None:
    # given a magic without code, when it runs, then it is refused
    assert isinstance(shell.run_cell(code).error_in_exec, UsageError)


def test_help_shows_every_option_and_examples() -> None:
    # given the magic's help
    shown = GpuProfile.gpuprofile.__doc__ or ""
    # when it is read, then each option and the examples are there
    options = "--wait --warmup --active --repeat --step --loop --limit --at-end --no-shapes --no-memory --stack --items"
    for option in [*options.split(), "--unit", "-o NAME", "-q", "--static", "--trace", "--html", "--name"]:
        assert option in shown
    assert "%%gpuprofile --loop 3 --trace step.json.gz --html step.html" in shown


def test_loading_prints_nothing_and_imports_no_torch() -> None:
    # given a fresh shell
    code = (
        "import sys, tempfile\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(ipython_dir=tempfile.mkdtemp())\n"
        "shell.run_cell('%load_ext ipyprof').raise_error()\n"
        "print(sorted({'torch', 'matplotlib', 'ipywidgets'} & set(sys.modules)))\n"
    )
    # when the extension is loaded
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    # then nothing is printed and torch is not there
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_lasting_default_of_static(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the lasting default
    run(shell, "%config GpuProfile.static = True")
    magic = shell.magics_manager.registry["GpuProfile"]
    try:
        # when lines are read, then it holds unless the line says otherwise
        assert magic._asked("", "1")[0].static is True
        assert magic._asked("--no-static", "1")[0].static is False
        # and loading the extension again keeps it
        run(shell, "%reload_ext ipyprof")
        assert shell.magics_manager.registry["GpuProfile"].static is True
    finally:
        run(shell, "%config GpuProfile.static = False")


# -- the run --


def test_cell_form_reports_and_returns_the_value(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given a loop and a last expression
    value = run(shell, f"%%gpuprofile -o report --name trial\n{LOOP}x.shape[0]")
    # when it ran, then its value is the cell's, the report is text and kept under the name
    report = shell.user_ns["report"]
    assert value == 64
    assert isinstance(report, Report)
    assert report.verdict.headline[:40] in " ".join(capsys.readouterr().out.split())
    assert report.steps.how == "loop at line 2"
    assert report.source.kind == "live"
    assert report.source.name == "trial"
    assert report.source.cell == ("%%gpuprofile -o report --name trial", *LOOP.splitlines(), "x.shape[0]")
    assert history.last() is report


def test_quiet_shows_nothing(shell: InteractiveShell, capfd: pytest.CaptureFixture[str]) -> None:
    # given -q, when a loop ran, then nothing was shown by us, no file was written, and one name is new
    before = set(shell.user_ns)
    run(shell, f"%%gpuprofile -q -o report --no-memory\n{LOOP}")
    assert set(shell.user_ns) - before == {"report", "i"}
    assert os.listdir() == []
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "ipyprof" not in shown.err
    assert shell.user_ns["report"].steps.count == 3


def test_files_are_written_where_asked_even_if_the_cell_moves(shell: InteractiveShell, tmp_path: Path) -> None:
    # given files by relative name, and a cell that changes the working directory
    (tmp_path / "elsewhere").mkdir()
    run(
        shell,
        f"%%gpuprofile -q -o report --trace step.json.gz --html step.html\n{LOOP}import os\nos.chdir('elsewhere')",
    )
    # when it ran, then the two files are there, and nothing beside them
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "step.html", "step.json.gz"]
    assert os.listdir(tmp_path / "elsewhere") == []


def test_saved_trace_gives_the_live_report_again(shell: InteractiveShell, tmp_path: Path) -> None:
    # given the trace of a run
    run(shell, f"%%gpuprofile -q -o report --trace step.json.gz\n{LOOP}")
    live = shell.user_ns["report"].to_dict()
    # when it is loaded
    run(shell, "import ipyprof\nagain = ipyprof.load('step.json.gz')")
    again = shell.user_ns["again"].to_dict()
    # then every number is the same
    for key in ("steps", "breakdown", "operators", "lines", "memory", "findings", "verdict", "environment"):
        assert json.dumps(again[key]) == json.dumps(live[key])


# -- errors --


def test_exception_goes_on_once_after_the_report(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given a loop that fails while it is recorded
    cell = f"%%gpuprofile -o report\n{FAILING.format('KeyError(7)')}"
    # when it ran
    result = shell.run_cell(cell)
    # then the report is marked partial and comes first, and the traceback comes once and names the cell's line
    shown = without_colours(capsys.readouterr().out)
    assert isinstance(result.error_in_exec, KeyError)
    assert "KeyError in step" in shell.user_ns["report"].source.partial
    assert shown.count("KeyError: 7") == 1
    assert shown.index("partial") < shown.index("Traceback")
    assert "line 4" in shown


@pytest.mark.parametrize(
    "error", ["KeyboardInterrupt", "torch.OutOfMemoryError('full')", "StopIteration(3)", "SystemExit"]
)
def test_other_ends_go_on_unchanged(shell: InteractiveShell, error: str) -> None:
    # given a loop that ends in the middle of its recording
    result = shell.run_cell(f"%%gpuprofile -q -o report\n{FAILING.format(error)}")
    # when it ran, then what it raised is the cell's result, and the steps so far are reported
    name = error.split("(")[0].split(".")[-1]
    assert type(result.error_in_exec).__name__ == name
    assert f"{name} in step" in shell.user_ns["report"].source.partial
    assert shell.user_ns["report"].steps.count == 2


def test_error_before_any_step_is_one_line(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given a loop that fails in its first iteration
    result = shell.run_cell("%%gpuprofile -o report\nfor i in range(20):\n    missing(i)\n")
    # when it ran, then one line says that nothing was recorded, and there is no report
    assert isinstance(result.error_in_exec, NameError)
    assert "ipyprof: nothing was recorded: NameError before recording began" in capsys.readouterr().out
    assert shell.user_ns["report"] is None


def test_failure_of_ours_is_one_line_and_keeps_the_trace(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given an analysis that fails
    def fail(*_arguments: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(delivery, "report_of", fail)
    # when a cell ran
    value = run(shell, f"%%gpuprofile -o report\n{LOOP}5")
    # then its value is there, one line tells the failure, and the trace is kept
    lines = [line for line in capsys.readouterr().out.splitlines() if "ipyprof" in line]
    assert value == 5
    assert len(lines) == 1
    assert lines[0].startswith("ipyprof could not read its recording: RuntimeError: two lines; the trace is kept in ")
    assert Path(lines[0].split(" kept in ")[1]).is_file()
    assert shell.user_ns["report"] is None


def test_interrupt_of_the_report_keeps_the_trace(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given an analysis that the user interrupts, at the end of the cell
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(delivery, "report_of", interrupt)
    # when a cell ran
    result = shell.run_cell(f"%%gpuprofile --at-end -o report\n{LOOP}")
    error = shell.run_cell(f"%%gpuprofile -q\n{FAILING.format('KeyError(7)')}").error_in_exec
    # then one line says where its trace is, and the deep frames of ours are not shown
    shown = without_colours(capsys.readouterr().out)
    (line,) = [line for line in shown.splitlines() if line.startswith("ipyprof: ")]
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert line.startswith("ipyprof: interrupted while reading the recording; the trace is kept in ")
    assert Path(line.split(" kept in ")[1]).is_file()
    assert shell.user_ns["report"] is None
    assert "in interrupt" not in shown
    # and where the cell has an error of its own, that one is the result
    assert isinstance(error, KeyError)


def test_interrupt_while_the_loop_goes_on_still_gives_the_report(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an analysis that is interrupted the first time, in the middle of a long loop
    report_of, calls = delivery.report_of, []

    def interrupt_once(*arguments: Any) -> Report:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return report_of(*arguments)

    monkeypatch.setattr(delivery, "report_of", interrupt_once)
    # when the cell ran
    cell = "for i in range(80):\n    x = torch.tanh(x @ x)\n    __import__('time').sleep(0.02)\n"
    result = shell.run_cell(f"%%gpuprofile -q -o report\n{cell}")
    # then the loop has ended there, and its steps are reported
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert shell.user_ns["i"] < 79
    assert shell.user_ns["report"].steps.count == 3


def test_syntax_error_shows_none_of_the_compilers_frames(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a cell that does not compile, when it is profiled, then its line is shown and our compiler is not
    result = shell.run_cell("%%gpuprofile -q\nx = = 1")
    shown = without_colours(capsys.readouterr().out)
    assert isinstance(result.error_in_exec, SyntaxError)
    assert "x = = 1" in shown
    assert "compile_cell" not in shown
    assert "ast_parse" not in shown


def test_file_that_cannot_be_written_is_one_line(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a disk that fails
    def fail(*_arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(delivery, "write_page", fail)
    # when a cell with --html ran, then the report is there and one line tells the failure
    run(shell, f"%%gpuprofile -o report --html page.html\n{LOOP}")
    assert "ipyprof could not write a file: OSError: no space left" in capsys.readouterr().out
    assert shell.user_ns["report"] is not None


# -- what stays --


def test_history_keeps_ten(shell: InteractiveShell) -> None:
    # given twelve runs
    for number in range(12):
        run(shell, f"%%gpuprofile -q --name n{number}\ntorch.tanh(x);")
    # when the history is read, then the last ten are there
    assert [report.source.name for report in history.reports()] == [f"n{number}" for number in range(2, 12)]


def test_report_appears_while_the_loop_goes_on(shell: InteractiveShell) -> None:
    # given a long loop that looks at the history
    cell = (
        "%%gpuprofile -q\nimport ipyprof, time\nseen = None\n"
        "for i in range(60):\n    x = torch.tanh(x @ x)\n    time.sleep(0.02)\n    {}\n"
    )
    look = "seen = i if seen is None and ipyprof.last_report() is not None else seen"
    # when it ran, then the report was there before its end; with --at-end it was not
    run(shell, cell.format(look))
    assert shell.user_ns["seen"] is not None
    assert shell.user_ns["seen"] < 59
    history.forget()
    run(shell, cell.format(look).replace("-q", "-q --at-end"))
    assert shell.user_ns["seen"] is None
    assert history.last() is not None


@pytest.mark.parametrize(
    ("code", "value"),
    [("%%gpuprofile -q\nx.shape[0];", None), ("%gpuprofile -q --no-memory len('a  b')", 4)],
    ids=["a semicolon hides the value", "the line form takes the raw statement"],
)
def test_value_of_the_cell(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], code: str, value: object
) -> None:
    assert run(shell, code) == value
    assert "64" not in capsys.readouterr().out


def test_magic_inside_a_profiled_cell_runs_its_code(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a loop with the line form inside
    cell = "n = 0\nfor i in range(9):\n    %gpuprofile -o inner n += 1\n    x = torch.tanh(x @ x)\n"
    run(shell, f"%%gpuprofile -o outer\n{cell}")
    # when it ran, then the inner statements ran without a profile of their own, which was said once
    assert shell.user_ns["n"] == 9
    assert shell.user_ns["inner"] is None
    assert capsys.readouterr().out.count("a profile is already running") == 1
    assert shell.user_ns["outer"].steps.count == 3
