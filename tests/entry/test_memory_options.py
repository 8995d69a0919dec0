"""Memory through the magic: who holds it, the request that failed, the allocator's snapshot."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from ipyprof import profile
from ipyprof.capture import memory as memory_snapshot
from ipyprof.errors import OptionError
from ipyprof.report.report import Report
from ipyprof.show.text import render_text

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free."
)
CELL = f"""%%gpuprofile -q -o report --wait 1 --warmup 1 --active 2
kept = [torch.zeros(50_000)]
def forward(step):
    hidden = torch.zeros(70_000)
    if step == FAIL:
        raise torch.OutOfMemoryError({MESSAGE!r})
for step in range(60):
    forward(step)
"""


def failed(shell: InteractiveShell, cell: str) -> BaseException:
    """The error of a cell that fails."""
    error = shell.run_cell(cell).error_in_exec
    assert error is not None
    return error


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_cell_that_runs_out_of_memory_has_a_report_of_it(shell: InteractiveShell, step: int) -> None:
    # given a request that fails before, in the warm-up of, and in the recording, when the cell runs
    error = failed(shell, CELL.replace("FAIL", str(step)))

    # then its error goes on unchanged and the report names the line, the request and the holders
    report: Report = shell.user_ns["report"]
    told = report.views.memory.out_of_memory
    assert type(error) is torch.OutOfMemoryError
    assert error.args == (MESSAGE,)
    assert (told.line, told.tried_bytes, told.free_bytes) == (6, 2**31, 2**30)
    text = " ".join(render_text(report, 200).split())
    assert "Line 6 asked for 2,147 MB; 1,074 MB of 8,590 MB were free." in text


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_without_memory_a_failed_request_heads_the_verdict_all_the_same(shell: InteractiveShell, step: int) -> None:
    # given a cell without recorded allocations whose request fails, when it runs
    failed(shell, CELL.replace(" -q", " -q --no-memory").replace("FAIL", str(step)))

    # then the verdict and the report tell the line, the request and who holds most, by name
    report: Report = shell.user_ns["report"]
    assert report.verdict.headline.startswith("Line 6 ran out of memory: it asked for 2,147 MB with 1,074 MB free")
    assert report.views.memory.out_of_memory.tried_bytes == 2**31


def test_other_errors_tell_nothing_of_memory(shell: InteractiveShell) -> None:
    # given a cell that fails otherwise, when it runs
    failed(shell, "%%gpuprofile -q -o report\nfor step in range(9):\n    1 / (step - 5)\n")

    # then its report has no such part
    assert shell.user_ns["report"].failed_request is None


def test_on_the_cpu_names_stand_for_the_process_memory(shell: InteractiveShell) -> None:
    # given a cell on the CPU, when it runs
    shell.run_cell(
        "%%gpuprofile -q -o report\nweights = [torch.zeros(2_000_000)]\nfor step in range(9):\n    weights[0].add_(1)\n"
    ).raise_error()

    # then the process's memory is split into what names reach and the rest
    memory = shell.user_ns["report"].memory
    assert memory is not None
    assert ("weights", 8_000_000) in [(holder.name, holder.bytes) for holder in memory.holders]
    assert sum(holder.bytes for holder in memory.holders) == memory.peak_bytes


def test_without_cuda_a_memory_snapshot_is_refused_before_anything_runs(shell: InteractiveShell) -> None:
    # given no CUDA, when a snapshot is asked for
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    shell.run_cell("%%gpuprofile --memory-snapshot memory.pickle\nran = True\n")

    # then the cell does not run
    assert "ran" not in shell.user_ns
    with pytest.raises(OptionError, match="only the CUDA allocator keeps a history"):
        profile(memory_snapshot="memory.pickle")


class FakeHistory:
    """``torch.cuda.memory`` as far as a history goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, on: bool = False, fails: bool = False) -> None:
        self.calls: list[Any] = []
        self._fails = fails
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(memory_snapshot, "history_on", lambda: on)
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self._record, raising=False)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", self._dump, raising=False)

    def _record(self, enabled: str | None = "all", **settings: Any) -> None:
        self.calls.append(enabled)

    def _dump(self, path: str) -> None:
        self.calls.append("dump")
        Path(path).write_bytes(b"snapshot")
        if self._fails:
            raise OSError("no room")


def test_a_snapshot_that_cannot_be_written_is_one_line_and_leaves_no_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeHistory(monkeypatch, fails=True)
    said: list[str] = []

    with memory_snapshot.MemoryHistory(tmp_path / "memory.pickle", said.append):
        pass

    assert said == ["ipyprof could not write the memory snapshot: OSError: no room"]
    assert (list(tmp_path.iterdir()), fake.calls[-1]) == ([], None)


def test_a_run_keeps_no_tensor_alive(shell: InteractiveShell) -> None:
    # given a profiled function with a tensor of its own, and one of the notebook's
    cell = """%%gpuprofile -q
    import weakref
    own = []
    def train(step):
        batch = torch.zeros(1000)
        own.append(weakref.ref(batch))
        return step
    held = torch.zeros(2000)
    watched = weakref.ref(held)
    for step in range(9):
        train(step)
    """.replace("\n    ", "\n")

    # when it has run and the notebook lets go
    shell.run_cell(cell).raise_error()
    shell.run_cell("del held").raise_error()

    # then nothing is left of either, without the collector's help
    assert shell.user_ns["watched"]() is None
    assert {one() for one in shell.user_ns["own"]} == {None}


@pytest.mark.parametrize("options", ["", " --no-memory"])
def test_a_failure_behind_the_report_is_told_in_lines(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    # given a loop whose report was shown long before its memory runs out, when it does, then lines say so beneath it
    failed(shell, CELL.replace(" -q", options).replace("FAIL", "58"))
    assert "Line 6 asked for 2,147 MB" in capsys.readouterr().out


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("on", "calls"), [(False, ["all", "dump", None]), (True, ["dump"])])
def test_the_history_is_on_for_the_run_only_unless_it_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: bool, calls: list[Any], fails: bool
) -> None:
    # given a history that is off, or on by the user's hand, when a run ends or fails
    fake = FakeHistory(monkeypatch, on=on)
    with suppress(ValueError), memory_snapshot.MemoryHistory(tmp_path / "memory.pickle", print):
        assert fake.calls == ([] if on else ["all"])
        if fails:
            raise ValueError
    # then it was written, and is as before
    assert fake.calls == calls
    assert [file.name for file in tmp_path.iterdir()] == ["memory.pickle"]
