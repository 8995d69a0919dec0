"""A trace for the user: Kineto's JSON with what the live run knows beside it."""

from __future__ import annotations

import gzip
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ipyprof import files
from ipyprof.errors import TraceError
from ipyprof.trace import reader as source
from ipyprof.trace.live import LiveRecord

# 4 is a third of the time of the default 9 and 10 % larger.
GZIP_LEVEL = 4


def write_trace(trace_json: bytes | Path, live: LiveRecord, target: Path) -> None:
    """Write Kineto's JSON, plain or gz, with ``live`` under the key ``ipyprof``, to ``target``.

    ``target`` is gz where its name ends so. It is there whole or not at all: what was there before stays until the
    new one is complete. A link stays, and the file behind it is written.

    Raises:
        TraceError: ``trace_json`` cannot be read or is no JSON object.
        OSError: ``target`` cannot be written.
    """
    data = source.read_bytes(trace_json) if isinstance(trace_json, Path) else source.unpack(trace_json, "the trace")
    at = data.find(b"{", 0, 4096) + 1
    if at == 0 or data[: at - 1].strip():
        raise TraceError("the trace is no JSON object", source.ALLOWED, source.EXPORT)
    rest = memoryview(data)[at:]
    comma = b"" if data[at : at + 4096].lstrip()[:1] == b"}" else b","
    head = b'{"ipyprof":' + msgspec.json.encode(live) + comma
    with files.whole_file(target) as file:
        if target.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as packed:
                packed.write(head)
                packed.write(rest)
        else:
            file.write(head)
            file.write(rest)


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
