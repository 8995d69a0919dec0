"""Why a text is no trace, in one sentence that says what was found."""

from __future__ import annotations

import msgspec

from ipyprof.errors import TraceError
from ipyprof.trace.kineto import TOP
from ipyprof.trace.source import ALLOWED, EXPORT, first_byte

TRUNCATED = "truncated"
"""The word in msgspec's error for text that ends too soon."""

# Key at the top of a file that is no trace -> what the file is.
_KNOWN_OTHERS = (
    ("rocprofiler-sdk-tool", "rocprof's results"),
    ("nodes", "an execution trace or a profile of another tool, without traceEvents"),
    ("segments", "a memory snapshot"),
    ("cells", "a notebook"),
)


def refusal(data: bytes, path: str, error: Exception | None) -> TraceError:
    """Why the text is no trace, in one sentence; ``error`` is what decoding it raised."""
    try:
        keys = list(TOP.decode(data)) if first_byte(data) != b"[" else ["traceEvents"]
    except msgspec.ValidationError:
        return TraceError(f"{path} is JSON, but no object", ALLOWED, EXPORT)
    except msgspec.DecodeError as broken:
        return _not_json(data, path, error or broken)
    for key, what in _KNOWN_OTHERS:
        if key in keys and "traceEvents" not in keys:
            return TraceError(f"{path} is {what} (key {key!r})", ALLOWED, EXPORT)
    if "traceEvents" in keys:
        if error is not None and not isinstance(error, msgspec.ValidationError):
            return _not_json(data, path, error)
        return TraceError(f"{path} has a key 'traceEvents' that is no list", ALLOWED, EXPORT)
    shown = ", ".join(repr(key[:40]) for key in keys[:5]) or "none"
    return TraceError(f"{path} is JSON without the key 'traceEvents' (its keys: {shown})", ALLOWED, EXPORT)


def _not_json(data: bytes, path: str, error: Exception) -> TraceError:
    if first_byte(data) not in (b"{", b"["):
        shown = data[:12].decode("ascii", "backslashreplace").strip()
        return TraceError(f"{path} is no JSON: it begins with {shown!r}", ALLOWED, EXPORT)
    if TRUNCATED in str(error):
        return TraceError(f"{path} is cut off after {len(data):,} bytes", ALLOWED, "copy or export it again")
    return TraceError(f"{path} is broken JSON ({error})", ALLOWED, "copy or export it again")
