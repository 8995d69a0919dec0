"""A trace file's bytes: opened, unpacked within bounds, or refused in one sentence."""

from __future__ import annotations

import re
import stat
import zlib
from pathlib import Path

from ipyprof.errors import TraceError

ALLOWED = "ipyprof reads the JSON that torch.profiler exports, plain or gz"
EXPORT = "write the file with prof.export_chrome_trace() and give that one"

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MOST_RATIO = 200
"""A trace packs to between a tenth and a fortieth; gzip itself can reach a thousandth with nothing but repetition."""

FREE_BYTES = 64 << 20
"""What any file may unpack to, whatever its ratio."""

MOST_BYTES = 4 << 30
"""What no packed file may exceed: more than this does not fit into the memory of most machines five times."""

_FEED_BYTES = 1 << 16
_GZIP_WINDOW = 31  # zlib's way to say: with gzip's header and checksum

_SOMETHING = re.compile(rb"[^ \t\r\n\0]")


def read_bytes(path: Path) -> bytes:
    """The file's JSON, unpacked if its content says gzip.

    Raises:
        TraceError: the file cannot be opened, is no file, is empty, or its gzip is broken or unpacks to too much.
    """
    name = shown(path)
    try:
        mode = path.stat().st_mode
        # A device may have no end; a pipe has one.
        odd = not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode))
        data = b"" if odd else path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise TraceError(f"{name} cannot be opened ({reason})", ALLOWED, "check the path") from None
    if odd:
        raise TraceError(f"{name} is no regular file", ALLOWED, "check the path")
    return unpack(data, name)


def shown(path: Path | str) -> str:
    """The path for messages: a file's name may hold line breaks and what a terminal takes for commands."""
    return "".join(character if character.isprintable() else "�" for character in str(path))


def unpack(data: bytes, path: str) -> bytes:
    """``data``, unpacked if it begins as gzip does, without a byte order mark. Raises ``TraceError``.

    A packed file that was cut off is unpacked up to the cut.
    """
    if data.startswith(GZIP_MAGIC):
        try:
            data = _inflated(data, path)
        except zlib.error as error:
            raise TraceError(f"{path} is a broken gzip file ({error})", ALLOWED, "copy or export it again") from None
    data = data.removeprefix(BYTE_ORDER_MARK)
    # A regular expression, not strip(): that would copy the whole file.
    if _SOMETHING.search(data) is None:
        raise TraceError(f"{path} is empty", ALLOWED, "export it again")
    return data


def first_byte(data: bytes) -> bytes:
    """The first byte that is no space."""
    found = _SOMETHING.search(data)
    return b"" if found is None else found.group()


def _inflated(packed: bytes, path: str) -> bytes:
    """All members of a gzip file as one; bounded before anything too large is there."""
    most = min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * len(packed)))
    view = memoryview(packed)
    parts: list[bytes] = []
    size = 0
    at = 0
    member = zlib.decompressobj(_GZIP_WINDOW)
    fresh = True
    while at < len(view):
        chunk = bytes(view[at : at + _FEED_BYTES])
        at += len(chunk)
        while chunk:
            if fresh and parts:
                chunk = chunk.lstrip(b"\0")  # some writers pad with zeros
                if not chunk:
                    break
            # One byte more than allowed tells that there is too much.
            part = member.decompress(chunk, most - size + 1)
            fresh = False
            size += len(part)
            if size > most:
                raise _too_large(path, len(packed), most)
            parts.append(part)
            chunk = member.unconsumed_tail
            if member.eof:
                chunk = member.unused_data
                member, fresh = zlib.decompressobj(_GZIP_WINDOW), True
    return b"".join(parts)


def _too_large(path: str, packed: int, most: int) -> TraceError:
    times = f", over {MOST_RATIO} times its size," if most < MOST_BYTES else ""
    return TraceError(
        f"{path} has {packed:,} bytes and unpacks to more than {most:,}{times} as no trace does",
        "ipyprof unpacks up to 4 GiB and 200 times the size",
        "if you trust the file, unpack it with gunzip and give the JSON",
    )
