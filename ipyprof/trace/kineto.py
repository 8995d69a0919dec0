"""Kineto's JSON as typed structs: only the fields that a column or an analysis needs are decoded."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

ABSENT = -(1 << 62)
"""Device or stream of an event whose arguments do not name one."""

NOTHING = Raw(b"")
"""The default of arguments that stay undecoded until they are seen to be new."""


class Arguments(Struct, gc=False):
    """The arguments of one event. ``Raw`` ones are decoded once per distinct text."""

    external: int = field(default=0, name="External id")
    sequence: int = field(default=-1, name="Sequence number")
    correlation: int = 0
    device: int = ABSENT
    stream: int | str = ABSENT
    grid: Raw = NOTHING
    block: Raw = NOTHING
    occupancy: Raw = field(default=NOTHING, name="est. achieved occupancy %")
    bytes: int = -1
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    dtypes: Raw = field(default=NOTHING, name="Input type")
    strides: Raw = field(default=NOTHING, name="Input Strides")
    shapes: Raw = field(default=NOTHING, name="Input Dims")
    old_shapes: Raw = field(default=NOTHING, name="Input dims")
    old_external: int = field(default=0, name="external id")
    collective: Raw = field(default=NOTHING, name="Collective name")
    dtype: Raw = NOTHING
    in_elements: Raw = field(default=NOTHING, name="In msg nelems")
    out_elements: Raw = field(default=NOTHING, name="Out msg nelems")
    group_size: Raw = field(default=NOTHING, name="Group size")
    group_name: Raw = field(default=NOTHING, name="Process Group Name")
    group_description: Raw = field(default=NOTHING, name="Process Group Description")
    group_ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    label: Any = field(default=None, name="name")
    delta: int = field(default=0, name="Bytes")
    device_type: int = field(default=0, name="Device Type")
    device_id: int = field(default=-1, name="Device Id")
    allocated: int = field(default=0, name="Total Allocated")
    reserved: int = field(default=0, name="Total Reserved")


class Event(Struct, gc=False):
    """One element of ``traceEvents``. Times are microseconds; ``ts`` keeps its digits, ``dur`` is NaN if missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = 0
    tid: int | str | None = 0
    ts: Raw = NOTHING
    dur: float = float("nan")
    args: Arguments | None = None
    id: int | str = 0


class File(Struct):
    """The file; the top-level keys that may follow the events by name, all others come from the head."""

    traceEvents: list[Event]
    baseTimeNanoseconds: int = 0
    deviceProperties: Raw = NOTHING
    distributedInfo: Raw = NOTHING
    displayTimeUnit: Raw = NOTHING
    schemaVersion: Raw = NOTHING
    traceName: Raw = NOTHING
    record_shapes: Raw = NOTHING
    profile_memory: Raw = NOTHING
    with_stack: Raw = NOTHING
    with_flops: Raw = NOTHING
    with_modules: Raw = NOTHING
    ipyprof: Raw = NOTHING


class RawFile(Struct):
    """The file with events undecoded, for a file in which some do not fit ``Event``."""

    traceEvents: list[Raw]


class Device(Struct):
    """One element of ``deviceProperties``."""

    id: int = 0
    name: str = ""
    numSms: int | None = None
    computeMajor: int | None = None
    computeMinor: int | None = None
    totalGlobalMem: int | None = None


FILE = msgspec.json.Decoder(File, strict=False)
RAW_FILE = msgspec.json.Decoder(RawFile, strict=False)
EVENT = msgspec.json.Decoder(Event, strict=False)
DEVICES = msgspec.json.Decoder(list[Device], strict=False)
TOP = msgspec.json.Decoder(dict[str, Raw])
ANY = msgspec.json.Decoder()
