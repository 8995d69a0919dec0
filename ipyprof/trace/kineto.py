"""Kineto's JSON as typed structs: only the fields that a column or an analysis needs are decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from ipyprof.trace.model import Details, Int64, UInt8

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
RAW_LIST = msgspec.json.Decoder(list[Raw])
DEVICES = msgspec.json.Decoder(list[Device], strict=False)
TOP = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()


def value_of(raw: Raw) -> Any:
    """The decoded value; broken UTF-8 in its texts is replaced, and what is no JSON at all is ``None``.

    Text that was only skipped while the file was read was not looked at: this is where such damage shows.
    """
    for text in (raw, bytes(raw).decode("utf-8", "replace")):
        try:
            return _ANY.decode(text)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None


UNKNOWN_NS = np.iinfo(np.int64).min
"""The time of an event whose text is missing or no time."""
LATEST_NS = 1 << 62
"""Times beyond this, in the year 2116, are damage."""
_MOST_DIGITS = 15
_SEPARATOR = ord(",")
_DOT = ord(".")
_ZERO = ord("0")


def joined_times(texts: list[Raw]) -> bytes:
    """The texts, without quotes, each with a comma behind it: what ``nanoseconds`` takes."""
    joined = b",".join([*texts, b""])
    if joined.count(b",") != len(texts):  # a list or an object in place of a time
        joined = b",".join([b"" if b"," in bytes(text) else text for text in texts] + [b""])
    return joined.replace(b'"', b"") if b'"' in joined else joined


def nanoseconds(joined: bytes) -> Int64:
    """(n,) int64 ns of times in microseconds as the file writes them; ``UNKNOWN_NS`` where a text is no time.

    A float would not do: at today's Unix time in microseconds a float64 has steps of 250 ns.

    Args:
        joined: n texts, each with a comma behind it.
    """
    characters = np.frombuffer(joined, np.uint8)
    digits = characters - _ZERO
    marks = np.flatnonzero(digits > 9)
    mark = characters[marks]
    ends = marks[mark == _SEPARATOR]
    starts = np.append(0, ends + 1)[:-1]
    lengths = ends - starts
    dots = marks[mark == _DOT]
    # Nearly always each text has its dot; the search is for files of whole microseconds among others.
    each = len(dots) == len(ends) and bool(np.all((starts <= dots) & (dots < ends)))
    owners = np.arange(len(ends)) if each else np.searchsorted(ends, dots)
    wholes = lengths.copy()
    wholes[owners] = dots - starts[owners]
    fractions = np.maximum(lengths - wholes - 1, 0)
    odd = (wholes < 1) | (wholes > _MOST_DIGITS + 1) | (fractions > _MOST_DIGITS)
    if not each:
        odd[owners[1:][owners[1:] == owners[:-1]]] = True  # two dots
    odd[np.searchsorted(ends, marks[(mark != _SEPARATOR) & (mark != _DOT)])] = True
    times = np.empty(len(ends), np.int64)
    times[odd] = [_by_decimal(joined[starts[row] : ends[row]]) for row in np.flatnonzero(odd).tolist()]
    # A file has few layouts: characters before the dot and in all.
    layouts = np.where(odd, 0, wholes * 64 + lengths)
    for layout in np.flatnonzero(np.bincount(layouts, minlength=1))[int(odd.any()) :].tolist():
        whole, length = divmod(layout, 64)
        rows = np.flatnonzero(layouts == layout)
        if len(rows) == len(times):
            return _by_digits(digits.reshape(-1, length + 1).T, whole, length)
        times[rows] = _by_digits(digits[starts[rows] + np.arange(length)[:, np.newaxis]], whole, length)
    return times


def _by_digits(columns: UInt8, whole: int, length: int) -> Int64:
    """(k,) ns of texts of one layout: ``whole`` digits, and when ``length`` is larger a dot and more digits.

    ``columns`` is (length or more, k): one row per place, one column per text.
    """
    value = np.zeros(columns.shape[1], np.int64)
    for place in range(whole):
        value *= 10
        value += columns[place]
    fraction = np.zeros(columns.shape[1], np.int64)
    for place in range(whole + 1, length):
        fraction *= 10
        fraction += columns[place]
    decimals = max(length - whole - 1, 0)
    if decimals > 3:
        scale = 10 ** (decimals - 3)
        fraction = (fraction + scale // 2) // scale
    else:
        fraction *= 10 ** (3 - decimals)
    return value * 1000 + fraction


def _by_decimal(text: bytes) -> int:
    try:
        time = Decimal(text.decode("ascii", "replace").strip()) * 1000
    except InvalidOperation:
        return UNKNOWN_NS
    if not time.is_finite() or abs(time) >= LATEST_NS:
        return UNKNOWN_NS
    return int(time.to_integral_value())


def packed(values: Sequence[float], code: str) -> bytes:
    """The values as an array's bytes; ``code`` is their type as ``struct`` and numpy call it, such as ``q`` for int64.

    ``struct`` takes two thirds of what ``array`` and ``np.array`` take for the same list. Integers beyond 64 bits
    wrap around, one to one for all unsigned 64-bit ones.

    Raises:
        struct.error: a value is no number.
    """
    try:
        return struct.pack(f"{len(values)}{code}", *values)
    except struct.error:
        return struct.pack(f"{len(values)}{code}", *[wrapped(cast("int", value)) for value in values])


def wrapped(value: int) -> int:
    """``value`` as a signed 64-bit number."""
    try:
        return (value + (1 << 63)) % (1 << 64) - (1 << 63)
    except TypeError:
        raise struct.error("no number") from None


COLLECTIVE_KEYS = {
    "Collective name": "collective",
    "dtype": "dtype",
    "In msg nelems": "in_elements",
    "Out msg nelems": "out_elements",
    "Group size": "group_size",
    "Process Group Name": "group_name",
    "Process Group Ranks": "group_ranks",
}
"""Key of ``Details.collective`` → attribute of ``Arguments``."""
LARGEST_SIZE = 1 << 62
"""No tensor has more elements along a dimension; sizes are multiplied, and their product must stay a number."""
_Size = Annotated[int, msgspec.Meta(ge=-LARGEST_SIZE, le=LARGEST_SIZE)]

# Dims and strides: a list per tensor, a list of lists per list of tensors.
_SHAPES = msgspec.json.Decoder(tuple[tuple[_Size | tuple[_Size, ...], ...], ...])
_TEXTS = msgspec.json.Decoder(tuple[str, ...])

# No JSON text holds this byte, so joined texts stay distinct.
_join = b"\0".join


class DetailStore:
    """Details of events by number, each distinct one decoded once."""

    def __init__(self) -> None:
        self._device_numbers: dict[Hashable, int] = {}
        self._host_numbers: dict[Hashable, int] = {None: -1}
        self._details: list[Details] = []
        self._known: dict[bytes, tuple[Any, ...] | None] = {}

    def details(self) -> tuple[Details, ...]:
        """The distinct details by their number."""
        return tuple(self._details)

    def of_device(self, work: list[Arguments]) -> list[int]:
        """The number of the details of each piece of device work: grid, block, occupancy, bytes, collective."""
        # Keys are text and numbers wherever they can be: a tuple takes longer to make and to compare.
        keys: list[Hashable] = [
            (_join((args.grid, args.block, args.occupancy)), args.bytes, _collective_key(args))
            if args.collective is not NOTHING or (args.bytes >= 0 and args.grid is not NOTHING)
            else args.bytes
            if args.grid is NOTHING
            else _join((args.grid, args.block, args.occupancy))
            for args in work
        ]
        return self._numbers(work, keys, self._device_numbers, _device_details)

    def of_host(self, ranges: list[Arguments]) -> list[int]:
        """The number of the details of each operator or annotation, -1 = none: shapes, types, inputs, collective."""
        keys: list[Hashable] = [
            _join((args.shapes, args.dtypes, args.strides, args.concrete))
            if args.collective is NOTHING and args.shapes is not NOTHING
            else None
            if args.collective is NOTHING and args.old_shapes is NOTHING
            else (
                _join((args.shapes, args.old_shapes, args.dtypes, args.strides, args.concrete)),
                _collective_key(args),
            )
            for args in ranges
        ]
        return self._numbers(ranges, keys, self._host_numbers, self._host_details)

    def _numbers(
        self,
        arguments: list[Arguments],
        keys: list[Hashable],
        numbers: dict[Hashable, int],
        decoded: Callable[[Arguments], Details],
    ) -> list[int]:
        """The number of each event's details; new ones are decoded from the first event that has them."""
        found = list(map(numbers.get, keys))
        if None in found:
            for key, args in zip(keys, arguments, strict=True):
                if key not in numbers:
                    numbers[key] = len(self._details)
                    self._details.append(decoded(args))
            found = list(map(numbers.get, keys))
        return cast("list[int]", found)

    def _host_details(self, args: Arguments) -> Details:
        dtypes = self._decoded(args.dtypes, _TEXTS)
        return Details(
            shapes=self._decoded(args.shapes if args.shapes is not NOTHING else args.old_shapes, _SHAPES),
            strides=self._decoded(args.strides, _SHAPES),
            dtypes=None if dtypes is None else tuple(map(str, dtypes)),
            concrete=self._decoded(args.concrete, _TEXTS),
            collective=_collective(args),
        )

    def _decoded(self, raw: Raw, expected: msgspec.json.Decoder[Any]) -> tuple[Any, ...] | None:
        """The list as tuples. Each text is decoded once: most events share them."""
        if raw is NOTHING:
            return None
        text = bytes(raw)
        if text not in self._known:
            try:
                value = expected.decode(text)
            except (msgspec.DecodeError, RecursionError):
                value = _frozen(value_of(raw))
            self._known[text] = value if isinstance(value, tuple) else None
        return self._known[text]


def _collective_key(args: Arguments) -> bytes:
    return _join([getattr(args, attribute) for attribute in COLLECTIVE_KEYS.values()])


def _device_details(args: Arguments) -> Details:
    occupancy = None if args.occupancy is NOTHING else value_of(args.occupancy)
    return Details(
        grid=_dimensions(args.grid),
        block=_dimensions(args.block),
        # 0 is what cuBLAS's nvjet kernels get: not measured.
        occupancy=occupancy / 100 if isinstance(occupancy, (int, float)) and 0 < occupancy <= 100 else None,
        moved_bytes=args.bytes if args.bytes >= 0 else None,
        collective=_collective(args),
    )


def _collective(args: Arguments) -> dict[str, Any] | None:
    if args.collective is NOTHING:
        return None
    values = {key: getattr(args, attribute) for key, attribute in COLLECTIVE_KEYS.items()}
    return {key: _frozen(value_of(raw)) for key, raw in values.items() if raw is not NOTHING}


def _dimensions(raw: Raw) -> tuple[int, ...] | None:
    if raw is NOTHING:
        return None
    value = value_of(raw)
    sound = isinstance(value, list) and all(isinstance(size, int) and abs(size) <= LARGEST_SIZE for size in value)
    return tuple(value) if sound else None


def _frozen(value: Any) -> Any:
    """Lists as tuples; a number that no size has is ``None``."""
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return None if isinstance(value, (int, float)) and not abs(value) <= LARGEST_SIZE else value
