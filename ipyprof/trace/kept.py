"""The recorded trace of the newest run, kept as its file so that it can still be saved or handed on."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ipyprof.errors import TraceError
from ipyprof.trace.model import LiveRecord
from ipyprof.trace.writer import write_trace

MOST_BYTES = 200_000_000
"""A larger recording is not kept on disk behind the user's back; ``--trace`` writes any."""


class KeptTrace:
    """Owns the file until it is let go.

    Args:
        path: Kineto's JSON.
        live: what the run knows beside it.
        release: removes the file; called once.
    """

    def __init__(self, path: Path, live: LiveRecord, release: Callable[[], None]) -> None:
        self._path = path
        self._live = live
        self._release: Callable[[], None] | None = release

    @property
    def is_there(self) -> bool:
        """Whether the file can still be read."""
        return self._release is not None and self._path.is_file()

    def write(self, target: Path) -> None:
        """The trace with its live record, to a ``.json`` or ``.json.gz`` file.

        Raises:
            OSError, TraceError: it cannot be read any more, or ``target`` cannot be written.
        """
        if not self.is_there:
            raise TraceError("the trace of this run is gone", "only that of the newest run is kept", "use --trace FILE")
        write_trace(self._path, self._live, target)

    def packed(self) -> bytes:
        """The trace with its live record, as gzip."""
        with tempfile.TemporaryDirectory(prefix="ipyprof-") as folder:
            target = Path(folder) / "trace.json.gz"
            self.write(target)
            return target.read_bytes()

    def let_go(self) -> None:
        """Remove the file. Calling it again does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()


def tensorboard_name() -> str:
    """A new file name as ``torch.profiler.tensorboard_trace_handler`` makes it: host, process, nanoseconds; packed."""
    return f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json.gz"
