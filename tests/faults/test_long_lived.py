"""Faults that need a process of their own, or a long life: fifty runs, a restart, a real disk that is full, SIGINT."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from ipyprof.capture.probes import process_bytes
from tests.faults.interrupts import interrupt
from tests.faults.live_kernel import Kernel, started_kernel

ROOT = Path(__file__).resolve().parents[2]
RUNS = 50
# What ten reports, their figures' caches and the allocator may still move by; fifty reports that were kept are 20 MB.
MOST_GROWTH_BYTES = 8_000_000
CELL = "%%gpuprofile --static --no-memory\nfor i in range(12):\n    y = x.exp()"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with started_kernel() as started:
        yield started


def test_ten_interrupts_of_a_real_kernel(kernel: Kernel) -> None:
    """Ten of the two hundred of ``python -m tests.faults.interrupts``, one for every kind of cell; 15 s for that."""
    # given a kernel whose profiled cells get a SIGINT at a random moment
    outcome = interrupt(kernel, 10, seed=0)
    # then it lives, nothing is left on, and every next profile is right
    assert outcome.times == 10
    assert outcome.wrong == []


def test_a_kernel_that_restarts_in_a_recording(kernel: Kernel) -> None:
    # given a kernel in the middle of a profiled cell that would go on for a minute
    kernel.send("%%gpuprofile -q\nfor i in range(6000):\n    time.sleep(0.01)")
    time.sleep(0.3)
    # when it is killed and started again
    kernel.restart()
    # then the new one is well
    assert kernel.wrong() == []


def test_fifty_runs_hold_no_more_and_take_no_longer(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fifty runs with their dashboards take 6 s: growth of a run is seen in the sum of many."""

    def held() -> tuple[int, int]:
        gc.collect()
        files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        return files, threading.active_count()

    taken: list[float] = []

    def run(times: int) -> None:
        for _ in range(times):
            begun = time.process_time()
            shell.run_cell(CELL).raise_error()
            taken.append(time.process_time() - begun)
            capsys.readouterr()

    # given a process with as many reports as are kept
    run(15)
    before, memory, objects = held(), process_bytes() or 0, len(gc.get_objects())
    # when the cell has run fifty times more
    run(RUNS)
    # then there are as many files and threads as before, hardly more memory, and each run takes as long
    assert held() == before
    assert len(gc.get_objects()) < 1.02 * objects
    assert (process_bytes() or 0) - memory < MOST_GROWTH_BYTES
    assert statistics.median(taken[-10:]) < 1.5 * statistics.median(taken[15:25])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB; skipped where this process may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this system lets nobody mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_is_full(shell: InteractiveShell, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a folder for temporary files that has no room for a trace; torch says nothing when it cannot write
    said: list[str] = []
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    monkeypatch.setattr("ipyprof.show.output.Silent.say", lambda _self, text: said.append(text))
    # when a cell is profiled
    cell = "%%gpuprofile -q -o report\nfor i in range(12):\n    for k in range(80): y = torch.tanh(x @ x)\ni"
    result = shell.run_cell(cell)
    # then it ran, one sentence says what to do, its steps were timed, and the disk is empty again
    assert result.result == 11
    assert len(said) == 1
    assert "torch wrote no trace; 0.0 MB are free in" in said[0]
    assert "set TMPDIR to a folder on another disk" in said[0]
    assert shell.user_ns["report"].verdict.cause == "inconclusive"
    assert list(small_disk.iterdir()) == []
    # and with room again the next run is right
    monkeypatch.setattr("tempfile.tempdir", None)
    shell.run_cell(cell).raise_error()
    assert shell.user_ns["report"].steps.count == 3
    assert len(said) == 1
