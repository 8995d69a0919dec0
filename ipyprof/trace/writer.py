"""A trace for the user: Kineto's JSON with what the live run knows beside it."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

from ipyprof import files
from ipyprof.errors import TraceError
from ipyprof.trace import source
from ipyprof.trace.model import LiveRecord

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
