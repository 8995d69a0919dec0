"""What a profile may leave on in a process, against a moment before it."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from ipyprof import history
from ipyprof import run as running
from ipyprof.capture import torch_doors as doors
from tests.conftest import _torch_state

_OWN_THREADS = "ipyprof"
PATIENCE_S = 3.0


class Before:
    """The state when this was made.

    Worker processes are not part of it: an interrupted loop holds its loader in the traceback, profiled or not.
    """

    def __init__(self) -> None:
        self._state = _state()
        self._files = _files()

    def left(self) -> list[str]:
        """What is not as it was, in words; workers and files that are ending have some seconds to end."""
        end = time.monotonic() + PATIENCE_S
        while (found := self._differences()) and time.monotonic() < end:
            gc.collect()
            time.sleep(0.05)
        return found

    def _differences(self) -> list[str]:
        now = _state()
        found = [
            f"{name}: {self._state[name]!r} became {now[name]!r}" for name in now if now[name] != self._state[name]
        ]
        if doors.profiler_open():
            found.append("a profiler is open")
        if extra := _files() - self._files:
            found.append(f"files: {sorted(extra)}")
        return found


def _state() -> dict[str, Any]:
    torch_state = {
        name: sorted(value) if isinstance(value, dict) else repr(value) for name, value in _torch_state().items()
    }
    return {
        **torch_state,
        "names": sorted(name for name in vars(builtins) if name.startswith("@")),
        "filters": (type(warnings.filters).__name__, len(warnings.filters)),
        "showwarning": warnings.showwarning.__qualname__,
        "runs": len(running._runs),
        "log level": os.environ.get("KINETO_LOG_LEVEL"),
        "handlers": [repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "threads of ours": sorted(t.name for t in threading.enumerate() if t.name.startswith(_OWN_THREADS)),
    }


def _files() -> set[str]:
    """Our temporary folders, but for those that a message tells the user of and the one of the newest panel."""
    kept = {trace._path.parent for _, trace in history._traces}
    found = set(Path(tempfile.gettempdir()).glob("ipyprof-*")) - kept
    return {path.name for path in found if not path.name.startswith("ipyprof-kept-")}
