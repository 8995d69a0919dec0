"""Real traces from a folder beside the repository; tests that need one skip where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipyprof.trace.model import Trace
from ipyprof.trace.reader import read_trace

FOLDER = Path(os.environ.get("IPYPROF_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))


def shared_trace(name: str) -> Trace:
    """The trace of this name; skips the test where there is none."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    return read_trace(path)
