"""Traces of any length, tiled from a real one: each tile is the whole recording again, later, with its own ids."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

GAP_US = 100.0
SHIFTED_ARGUMENTS = ("External id", "external id", "correlation", "Python id", "Python parent id", "Python module id")
SHIFTED_SEQUENCE = "Sequence number"
_STEP = re.compile(r"(ProfilerStep#)(\d+)")


def tiled(source: Path, events: int, target: Path) -> int:
    """The number of events written to ``target``: whole tiles of ``source``, at least ``events``.

    Times, correlations, external ids, sequence numbers, flows and step numbers go up from tile to tile, so that nothing
    in one tile belongs to another.
    """
    data = source.read_bytes()
    file = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    rows = [row for row in file.pop("traceEvents") if row.get("ph") != "M"]
    named = [row for row in rows if isinstance(row.get("ts"), (int, float))]
    begin = min(row["ts"] for row in named)
    # The whole recording's own spans (category Trace) would cover the next tile.
    named = [row for row in named if row.get("cat") not in ("Trace", "trace", "overhead")]
    length = max(row["ts"] + row.get("dur", 0) for row in named) - begin + GAP_US
    strides = _strides(named)
    with target.open("wb") as out:
        head = msgspec.json.encode({key: value for key, value in file.items() if key != "traceName"})
        out.write(head[:-1] + (b"," if len(head) > 2 else b"") + b'"traceEvents":[\n')
        written = 0
        tile = 0
        while written < events:
            written += _write(out, _shifted(named, tile, length * tile, strides), first=written == 0)
            tile += 1
        out.write(b"\n]}\n")
    return written


def _strides(rows: list[dict[str, Any]]) -> dict[str, int]:
    """For each kind of id how far it must move for a tile to have ids of its own."""
    largest: dict[str, int] = {"id": 0, "step": 0, SHIFTED_SEQUENCE: 0, **dict.fromkeys(SHIFTED_ARGUMENTS, 0)}
    for row in rows:
        if isinstance(row.get("id"), int):
            largest["id"] = max(largest["id"], row["id"])
        found = _STEP.fullmatch(row.get("name", ""))
        if found:
            largest["step"] = max(largest["step"], int(found.group(2)))
        arguments = row.get("args") or {}
        for key in (*SHIFTED_ARGUMENTS, SHIFTED_SEQUENCE):
            value = arguments.get(key)
            if isinstance(value, int) and value < 1 << 40:
                largest[key] = max(largest[key], value)
    # These three name the same things.
    ids = max(largest[key] for key in ("External id", "external id", "correlation"))
    return {**{key: value + 1 for key, value in largest.items()}, **dict.fromkeys(SHIFTED_ARGUMENTS[:3], ids + 1)}


def _shifted(
    rows: list[dict[str, Any]], tile: int, later_us: float, strides: dict[str, int]
) -> Iterator[dict[str, Any]]:
    for row in rows:
        new = {**row, "ts": _time(row["ts"] + later_us)}
        if isinstance(row.get("dur"), (int, float)):
            new["dur"] = _time(row["dur"])
        if isinstance(row.get("id"), int):
            new["id"] = row["id"] + tile * strides["id"]
        name = row.get("name", "")
        if tile and name.startswith("ProfilerStep#"):
            new["name"] = _STEP.sub(
                lambda found: found.group(1) + str(int(found.group(2)) + tile * strides["step"]), name
            )
        arguments = row.get("args")
        if arguments:
            moved = {
                key: value + tile * strides[key]
                for key, value in arguments.items()
                if key in strides and isinstance(value, int) and 0 < value < 1 << 40
            }
            new["args"] = {**arguments, **moved}
        yield new


def _time(microseconds: float) -> msgspec.Raw:
    """As Kineto writes times: always three decimals."""
    return msgspec.Raw(f"{microseconds:.3f}")


def _write(out: BinaryIO, rows: Iterator[dict[str, Any]], *, first: bool) -> int:
    """The number of rows written, each on a line, spaced as Kineto spaces them."""
    lines = [msgspec.json.format(msgspec.json.encode(row), indent=0) for row in rows]
    out.write((b"" if first else b",\n") + b",\n".join(lines))
    return len(lines)
