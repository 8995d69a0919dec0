"""A trace file's bytes: opened, unpacked, repaired where that is cheap, or refused in one sentence."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ipyprof.errors import TraceError
from ipyprof.trace.kineto import ANY, EVENT, FILE, NOTHING, RAW_FILE, TOP, Event, File

ALLOWED = "ipyprof reads the JSON that torch.profiler exports, plain or gz"
EXPORT = "write the file with prof.export_chrome_trace() and give that one"

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SMALL_BYTES = 1 << 16
HEAD_BYTES = 1 << 18
TAIL_BYTES = 1 << 14

_SPACES = bytes(byte if byte >= 0x20 else 0x20 for byte in range(256))
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])( *)(?:[-+]?(?:inf(?:inity)?|nan(?:\([a-z]*\))?))(?= *[,\]}])", re.IGNORECASE)

_END_OF_LIST = re.compile(rb'\]\s*,\s*(?=")')

_SOMETHING = re.compile(rb"[^ \t\r\n\0]")

# Key at the top of a file that is no trace -> what the file is.
_KNOWN_OTHERS = (
    ("rocprofiler-sdk-tool", "rocprof's results"),
    ("nodes", "an execution trace or a profile of another tool, without traceEvents"),
    ("segments", "a memory snapshot"),
    ("cells", "a notebook"),
)


def read_bytes(path: Path) -> bytes:
    """The file's JSON, unpacked if its content says gzip.

    Raises:
        TraceError: the file cannot be opened, is empty, or its gzip is broken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise TraceError(f"{path} cannot be opened ({reason})", ALLOWED, "check the path") from error
    return unpack(data, str(path))


def unpack(data: bytes, path: str) -> bytes:
    """``data``, unpacked if it begins as gzip does, without a byte order mark. Raises ``TraceError``."""
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise TraceError(f"{path} is a broken gzip file ({error})", ALLOWED, "copy or export it again") from error
    data = data.removeprefix(BYTE_ORDER_MARK)
    # Regular expressions and slices, not strip(): that would copy the whole file.
    if _SOMETHING.search(data) is None:
        raise TraceError(f"{path} is empty", ALLOWED, "export it again")
    return data


def decode(data: bytes, path: str) -> tuple[File, dict[str, msgspec.Raw], dict[str, int]]:
    """The typed file, its top-level keys as far as known, and what was damaged, by reason.

    Raises:
        TraceError: not JSON, or JSON of something else.
    """
    damage: dict[str, int] = {}
    try:
        try:
            file = _decode_file(data, path, damage)
        except msgspec.DecodeError as error:
            repaired = _repair(data)
            if repaired == data:
                raise _not_json(data, path, error) from error
            data = repaired
            try:
                file = _decode_file(data, path, damage)
            except msgspec.DecodeError as second:
                raise _not_json(data, path, second) from second
            damage["text that is not valid JSON, repaired"] = 1
    except RecursionError as error:
        raise TraceError(f"{path} is JSON nested too deeply for a trace", ALLOWED, EXPORT) from error
    return file, _top_keys(file, data), damage


def _decode_file(data: bytes, path: str, damage: dict[str, int]) -> File:
    if _first(data) == b"[":
        # The array form: the events and nothing else.
        data = b'{"traceEvents":' + data + b"}"
    try:
        return FILE.decode(data)
    except msgspec.ValidationError:
        pass
    try:
        raws = RAW_FILE.decode(data).traceEvents
    except msgspec.ValidationError:
        raise _not_a_trace(data, path) from None
    events: list[Event] = []
    unfit = 0
    for raw in raws:
        try:
            events.append(EVENT.decode(raw))
        except msgspec.ValidationError:
            unfit += 1
    if unfit == len(raws) and raws:
        raise TraceError(f"{path} is a list of {len(raws):,} records that are no events", ALLOWED, EXPORT)
    if unfit:
        damage["events with a value of the wrong type"] = unfit
    top = TOP.decode(data)
    file = File(traceEvents=events)
    for key, raw in top.items():
        if key == "baseTimeNanoseconds":
            base = ANY.decode(raw)
            file.baseTimeNanoseconds = base if isinstance(base, int) else 0
        elif key != "traceEvents" and key in File.__struct_fields__:
            setattr(file, key, raw)
    return file


def _top_keys(file: File, data: bytes) -> dict[str, msgspec.Raw]:
    # Keys stand before and after the events: closing the head and opening the tail spares a second pass over all.
    found: dict[str, msgspec.Raw] = {}
    if _first(data) == b"{":
        at = data.find(b'"traceEvents"', 0, HEAD_BYTES)
        found = _keys_of(data[: max(at, 0)] + b'"traceEvents":0}') if at > 0 else {}
        tail = data[-TAIL_BYTES:]
        # Only from the top level does the rest of the file close exactly the brace that is put before it.
        for end in _END_OF_LIST.finditer(tail):
            after = _keys_of(b"{" + tail[end.end() :])
            if after:
                found.update(after)
                break
    for key in File.__struct_fields__:
        value = getattr(file, key)
        if isinstance(value, msgspec.Raw) and value is not NOTHING:
            found[key] = value
    return found


def _keys_of(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return TOP.decode(text)
    except msgspec.DecodeError:
        return {}


def small_values(raws: Mapping[str, msgspec.Raw], without: frozenset[str]) -> dict[str, Any]:
    """The decoded values of the small keys, without those named."""
    return {
        key: ANY.decode(raw)
        for key, raw in raws.items()
        if key not in without and memoryview(raw).nbytes <= SMALL_BYTES
    }


def _first(data: bytes) -> bytes:
    """The first byte that is no space."""
    found = _SOMETHING.search(data)
    return b"" if found is None else found.group()


def _repair(data: bytes) -> bytes:
    """``data`` with control characters, broken UTF-8 and bare inf or nan replaced; nothing else is touched."""
    text = data.translate(_SPACES).decode("utf-8", "replace").encode()
    return _NOT_A_NUMBER.sub(rb'\1"nan"', text)


def _not_json(data: bytes, path: str, error: Exception) -> TraceError:
    if _first(data) not in (b"{", b"["):
        shown = data[:12].decode("ascii", "backslashreplace").strip()
        return TraceError(f"{path} is no JSON: it begins with {shown!r}", ALLOWED, EXPORT)
    if "truncated" in str(error):
        return TraceError(f"{path} is cut off after {len(data):,} bytes", ALLOWED, "copy or export it again")
    return TraceError(f"{path} is broken JSON ({error})", ALLOWED, "copy or export it again")


def _not_a_trace(data: bytes, path: str) -> TraceError:
    try:
        keys = list(TOP.decode(data))
    except msgspec.ValidationError:
        return TraceError(f"{path} is JSON, but no object", ALLOWED, EXPORT)
    for key, what in _KNOWN_OTHERS:
        if key in keys:
            return TraceError(f"{path} is {what} (key {key!r})", ALLOWED, EXPORT)
    if "traceEvents" in keys:
        return TraceError(f"{path} has a key 'traceEvents' that is no list", ALLOWED, EXPORT)
    shown = ", ".join(repr(key[:40]) for key in keys[:5]) or "none"
    return TraceError(f"{path} is JSON without the key 'traceEvents' (its keys: {shown})", ALLOWED, EXPORT)
