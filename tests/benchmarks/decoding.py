"""The measure of the goals: msgspec decoding a trace's JSON into typed structs, and nothing else."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct, field

NONE = Raw(b"")


class Arguments(Struct, gc=False):
    """What a column or an analysis needs of an event's arguments; lists stay text."""

    external: int = field(default=0, name="External id")
    sequence: int = field(default=-1, name="Sequence number")
    correlation: int = 0
    device: int = -1
    stream: int | str = -1
    bytes: int = -1
    grid: Raw = NONE
    block: Raw = NONE
    occupancy: Raw = field(default=NONE, name="est. achieved occupancy %")
    shapes: Raw = field(default=NONE, name="Input Dims")
    strides: Raw = field(default=NONE, name="Input Strides")
    dtypes: Raw = field(default=NONE, name="Input type")
    concrete: Raw = field(default=NONE, name="Concrete Inputs")


class Event(Struct, gc=False):
    """One event; times as plain floats."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = 0
    tid: int | str | None = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


class File(Struct):
    """The events and nothing else."""

    traceEvents: list[Event]


decode = msgspec.json.Decoder(File, strict=False).decode
