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
    address: int = field(default=0, name="Addr")
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


class Device(Struct):
    """One element of ``deviceProperties``."""

    id: int = 0
    name: str = ""
    numSms: int | None = None
    computeMajor: int | None = None
    computeMinor: int | None = None
    totalGlobalMem: int | None = None


EVENTS = msgspec.json.Decoder(list[Event], strict=False)
EVENT = msgspec.json.Decoder(Event, strict=False)
RAW = msgspec.json.Decoder(Raw)
RAW_LIST = msgspec.json.Decoder(list[Raw])
DEVICES = msgspec.json.Decoder(list[Device], strict=False)
TOP = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()


def value_of(raw: Raw) -> Any:
    """The decoded value; broken UTF-8 in its texts is replaced, and what is no JSON at all is ``None``.

    Text that was only skipped while the file was read was not looked at: this is where such damage shows.
    """
    try:
        return _ANY.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _ANY.decode(bytes(raw).decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
