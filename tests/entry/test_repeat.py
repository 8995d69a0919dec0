"""``--repeat`` from the line to the report, the files and back."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import ipyprof
from ipyprof.capture import baseline
from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.report.report import Report
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Trace
from ipyprof.trace.reader import read_trace

LOOP = "for i in range(40):\n    y = torch.tanh(x @ x)"


def _first_step(trace: Trace) -> str:
    return next(trace.names[trace.name[at]] for at in trace.select(Kind.STEP))


@pytest.fixture(autouse=True)
def _short_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "MOST_STEPS", 5)


def test_cell_gets_one_report_of_all_recordings(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # given a cell that is to be recorded three times
    # when it has run
    shell.run_cell(
        f"%%gpuprofile --repeat 3 -o report --trace one.json.gz --logdir log --html page.html\n{LOOP}"
    ).raise_error()
    report = shell.user_ns["report"]
    # then its report holds the recordings, and shows the row
    assert report.repeats is not None
    assert len(report.repeats.recordings) == 3
    assert report.steps.how == "loop at line 2"
    shown = report.repeats.recordings[report.repeats.shown - 1]
    assert report.steps.step_ms == shown.step_ms
    assert report.verdict.cause == shown.cause
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "3 recordings: step " in said
    assert "3 recordings: step " in (tmp_path / "page.html").read_text()
    # and the trace is that of the shown one and tells all again, while TensorBoard gets every one
    again = ipyprof.load("one.json.gz")
    assert again.repeats == report.repeats
    assert again.verdict == report.verdict
    written = [read_trace(path) for path in (tmp_path / "log").iterdir()]
    assert sorted(_first_step(trace) for trace in written) == ["ProfilerStep#15", "ProfilerStep#26", "ProfilerStep#4"]


def test_block_gets_one_report_of_all_recordings() -> None:
    import torch

    x = torch.ones(8, 8)
    # given a block of steps whose number is not known
    with ipyprof.profile(quiet=True, repeat=2) as run:
        for _ in range(40):
            x = torch.tanh(x @ x)
            run.step()
    # then there are two recordings
    assert run.report is not None
    assert run.report.repeats is not None
    assert len(run.report.repeats.recordings) == 2
    assert run.report.steps.count == 3


def _repeat_notes(report: Report | None) -> list[str]:
    return [] if report is None else [check.text for check in report.trust if check.check == "repeat"]


def test_memory_that_runs_out_in_a_recording_is_shown_by_that_recording(shell: InteractiveShell) -> None:
    # given a cell that is out of memory in the middle step of its second recording
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB."
    result = shell.run_cell(
        "%%gpuprofile --repeat 3 -q -o report --trace one.json.gz\nfor i in range(60):\n    y = x @ x\n"
        f"    if i == 16:\n        raise torch.OutOfMemoryError({message!r})"
    )
    assert result.error_in_exec is not None
    report = shell.user_ns["report"]
    # then the request is told as of the recording, and the recording counts neither as made nor in the verdict
    assert report.source.partial == "OutOfMemoryError in step 2 of 3"
    assert report.verdict.headline.startswith("Line 5 ran out of memory")
    assert not report.views.memory.out_of_memory.later
    assert len(report.repeats.recordings) == 1
    assert report.repeats.shown == 2
    assert not any("disagree" in reason for reason in report.verdict.reasons)
    assert _repeat_notes(report)[0] == "--repeat 3: 1 recording was made: OutOfMemoryError in step 2 of 3"
    assert _repeat_notes(report)[1].endswith("; number 2, which ran out of memory, is shown")
    # and the saved trace and the report's JSON tell all of it again
    again = ipyprof.load("one.json.gz")
    assert (again.repeats, again.verdict) == (report.repeats, report.verdict)
    assert Report.from_dict(report.to_dict()) == report


def test_report_comes_while_the_loop_goes_on(shell: InteractiveShell) -> None:
    shell.run_cell(
        "%%gpuprofile --repeat 2 -q\nimport ipyprof\nseen = []\n"
        "for i in range(40):\n    y = x @ x\n    seen.append(ipyprof.last_report() is not None)"
    ).raise_error()
    seen = shell.user_ns["seen"]
    assert not seen[20]
    assert seen[-1]


def test_cell_that_is_the_step_runs_for_every_recording(shell: InteractiveShell) -> None:
    shell.run_cell("count = 0")
    shell.run_cell("%%gpuprofile --step cell --repeat 2 -q -o report\ncount += 1\ny = x @ x").raise_error()
    assert shell.user_ns["count"] == 14
    assert len(shell.user_ns["report"].repeats.recordings) == 2


def test_failing_cell_keeps_the_recordings_that_were_made(shell: InteractiveShell) -> None:
    # given a cell that fails behind its second recording of three
    result = shell.run_cell(
        "%%gpuprofile --repeat 3 -q -o report\n"
        "for i in range(60):\n    y = x @ x\n    if i == 26:\n        raise KeyError(7)"
    )
    # then the error is the cell's, and two recordings are told
    assert isinstance(result.error_in_exec, KeyError)
    report = shell.user_ns["report"]
    assert len(report.repeats.recordings) == 2
    note = "--repeat 3: 2 recordings were made: KeyError in step 1 of 3"
    assert note in [check.text for check in report.trust]


def test_ranks_make_one_recording_each() -> None:
    with pytest.raises(OptionError, match="one recording of every rank is compared"):
        Options(repeat=2, ranks="auto")


@pytest.mark.parametrize(
    ("steps", "fails", "told"),
    [
        (0, False, "repeat=3: the block ran once; call run.step() at the end of each step"),
        (0, True, "repeat=3: 1 recording was made: RuntimeError in the cell"),
        (3, False, "repeat=3: no recording was made: the cell ended before recording began"),
    ],
)
def test_block_that_cannot_repeat_is_told_why(steps: int, fails: bool, told: str) -> None:
    # given a block that asks for three recordings and has no steps, fails, or ends too early, when it has run
    import torch

    run = ipyprof.profile(quiet=True, repeat=3)
    with suppress(RuntimeError), run:
        torch.ones(8, 8) @ torch.ones(8, 8)
        if fails:
            raise RuntimeError
        for _ in range(steps):
            run.step()
    # then one note says what a block can do about it
    (note,) = _repeat_notes(run.report)
    assert note.startswith(told)
