"""Runs the cases of ``recorded_memory.py`` in a process of their own: their totals start at an empty allocator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("recorded_memory.py")


def test_memory_of_real_recordings() -> None:
    # given a process in which no other test has left tensors, when the cases run there, then all hold
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CASES.parents[2])
    assert done.returncode == 0, done.stdout
