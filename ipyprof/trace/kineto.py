"""Kineto's JSON as typed structs: only the fields that a column or an analysis needs are decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from ipyprof.trace.model import Details, Int32, Int64, UInt8

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


UNKNOWN_NS = np.iinfo(np.int64).min
"""The time of an event whose text is missing or no time."""
LATEST_NS = 1 << 62
"""Times beyond this, in the year 2116, are damage."""
_MOST_DIGITS = 15
_SEPARATOR = ord(",")
_DOT = ord(".")
_ZERO = ord("0")


def nanoseconds(texts: list[msgspec.Raw]) -> Int64:
    """(n,) int64 ns of times in microseconds as the file writes them; ``UNKNOWN_NS`` where a text is no time.

    A float would not do: at today's Unix time in microseconds a float64 has steps of 250 ns.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b",".join([*texts, b""])
    characters = np.frombuffer(joined, np.uint8)
    digits = characters - _ZERO
    width = joined.index(b",") + 1
    if len(joined) == width * len(texts):
        times = _of_one_layout(characters.reshape(-1, width).T, digits.reshape(-1, width).T)
        if times is not None:
            return times
    marks = np.flatnonzero(digits > 9)
    is_dot = characters[marks] == _DOT
    ends = marks[~is_dot]
    if len(ends) != len(texts) or not np.all(characters[ends] == _SEPARATOR):
        return np.fromiter([_by_decimal(bytes(text)) for text in texts], np.int64, len(texts))
    starts = np.append(0, ends[:-1] + 1)[: len(texts)]
    dots = marks[is_dot]
    owners = np.searchsorted(ends, dots)
    lengths = ends - starts
    wholes = lengths.copy()
    wholes[owners] = dots - starts[owners]
    # A file has few layouts: characters before the dot and in all.
    layouts = wholes * 1024 + np.minimum(lengths, 1023)
    times = np.full(len(texts), UNKNOWN_NS, np.int64)
    for layout in np.flatnonzero(np.bincount(layouts)).tolist():
        whole, length = divmod(layout, 1024)
        rows = np.flatnonzero(layouts == layout)
        if 0 < whole <= _MOST_DIGITS + 1 and length - whole - 1 <= _MOST_DIGITS:
            if len(rows) == len(texts):
                columns = digits.reshape(-1, length + 1).T
            else:
                columns = digits[starts[rows] + np.arange(length)[:, np.newaxis]]
            times[rows] = _by_digits(columns, whole, length)
        else:
            times[rows] = [_by_decimal(bytes(texts[row])) for row in rows.tolist()]
    return times


def _of_one_layout(characters: UInt8, digits: UInt8) -> Int64 | None:
    """(k,) ns of texts that have dot and end where the first has them, or ``None`` where they are not so alike.

    Both arrays are (length + 1, k): one row per place, the last one for the separator.
    """
    length = len(characters) - 1
    found = np.flatnonzero(characters[:, 0] == _DOT)
    whole = int(found[0]) if len(found) else length
    if not 0 < whole <= _MOST_DIGITS + 1 or length - whole - 1 > _MOST_DIGITS:
        return None
    wrong = digits > 9
    wrong[whole] = characters[whole] != (_DOT if whole < length else _SEPARATOR)
    wrong[length] = characters[length] != _SEPARATOR
    return None if wrong.any() else _by_digits(digits, whole, length)


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
        time = Decimal(text.decode("ascii", "replace").strip('" ')) * 1000
    except InvalidOperation:
        return UNKNOWN_NS
    if not time.is_finite() or abs(time) >= LATEST_NS:
        return UNKNOWN_NS
    return int(time.to_integral_value())


def packed(values: Sequence[float], code: str) -> npt.NDArray[Any]:
    """(n,) array of the values; ``code`` is their type as ``struct`` and ``numpy`` call it, such as ``q`` for int64.

    ``struct`` takes two thirds of what ``array`` and ``np.array`` take for the same list.

    Raises:
        struct.error: a value does not fit the type, or is no number.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{code}", *values), code)


COLLECTIVE_KEYS = (
    ("Collective name", "collective"),
    ("dtype", "dtype"),
    ("In msg nelems", "in_elements"),
    ("Out msg nelems", "out_elements"),
    ("Group size", "group_size"),
    ("Process Group Name", "group_name"),
    ("Process Group Description", "group_description"),
    ("Process Group Ranks", "group_ranks"),
)
LARGEST_SIZE = 1 << 62
"""No tensor has more elements along a dimension; sizes are multiplied, and their product must stay a number."""
_Size = Annotated[int, msgspec.Meta(ge=-LARGEST_SIZE, le=LARGEST_SIZE)]

# Dims and strides: a list per tensor, a list of lists per list of tensors.
_SHAPES = msgspec.json.Decoder(tuple[tuple[_Size | tuple[_Size, ...], ...], ...])
_TEXTS = msgspec.json.Decoder(tuple[str, ...])

# No JSON text holds this byte, so joined texts stay distinct.
_BETWEEN = b"\0"


class DetailStore:
    """Details of events by number, each distinct one decoded once."""

    def __init__(self) -> None:
        self._device_numbers: dict[Hashable, int] = {}
        self._host_numbers: dict[Hashable, int] = {}
        self._details: list[Details] = []
        self._decoder = _Decoder()

    def details(self) -> tuple[Details, ...]:
        """The distinct details by their number."""
        return tuple(self._details)

    def device_column(self, work: Sequence[Arguments]) -> Int32:
        """(d,) number of the details of device work: grid, block, occupancy, bytes, collective."""
        join = _BETWEEN.join
        # Keys are text and numbers wherever they can be: a tuple takes longer to make and to compare.
        keys: list[Hashable] = [
            (join((args.grid, args.block, args.occupancy)), args.bytes, _collective_key(args))
            if args.collective is not NOTHING or (args.bytes >= 0 and args.grid is not NOTHING)
            else args.bytes
            if args.grid is NOTHING
            else join((args.grid, args.block, args.occupancy))
            for args in work
        ]
        return self._column(work, keys, self._device_numbers, _device_details)

    def host_column(self, ranges: Sequence[Arguments]) -> Int32:
        """(h,) number of the details of operators and annotations, -1 = none: shapes, types, inputs, collective."""
        join = _BETWEEN.join
        keys: list[Hashable] = [
            (
                join((args.shapes, args.dtypes, args.strides, args.concrete))
                if args.collective is NOTHING
                else (join((args.shapes, args.dtypes, args.strides, args.concrete)), _collective_key(args))
            )
            if args.shapes is not NOTHING
            else None
            if args.collective is NOTHING and args.old_shapes is NOTHING
            else (join((args.old_shapes, args.dtypes, args.strides, args.concrete)), _collective_key(args))
            for args in ranges
        ]
        return self._column(ranges, keys, self._host_numbers, self._decoder.host_details)

    def _column(
        self,
        arguments: Sequence[Arguments],
        keys: list[Hashable],
        numbers: dict[Hashable, int],
        decoded: Callable[[Arguments], Details],
    ) -> Int32:
        """(n,) number of each event's details; new ones are decoded from the first event that has them."""
        numbers.setdefault(None, -1)
        found = list(map(numbers.get, keys))
        if None in found:
            for index, number in enumerate(found):
                if number is not None:
                    continue
                key = keys[index]
                known = numbers.get(key)
                if known is None:
                    known = numbers[key] = len(self._details)
                    self._details.append(decoded(arguments[index]))
                found[index] = known
        return packed(cast("list[int]", found), "i")


def _collective_key(args: Arguments) -> bytes:
    return _BETWEEN.join([getattr(args, attribute) for _, attribute in COLLECTIVE_KEYS])


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


class _Decoder:
    """Decodes each text of shapes, types and inputs once: most events share them."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, ...] | None] = {}

    def host_details(self, args: Arguments) -> Details:
        """The details of an operator or annotation."""
        dtypes = self._decoded(args.dtypes, _TEXTS)
        return Details(
            shapes=self._decoded(args.shapes if args.shapes is not NOTHING else args.old_shapes, _SHAPES),
            strides=self._decoded(args.strides, _SHAPES),
            dtypes=None if dtypes is None else tuple(map(str, dtypes)),
            concrete=self._decoded(args.concrete, _TEXTS),
            collective=_collective(args),
        )

    def _decoded(self, raw: msgspec.Raw, expected: msgspec.json.Decoder[Any]) -> tuple[Any, ...] | None:
        if raw is NOTHING:
            return None
        text = bytes(raw)
        try:
            return self._known[text]
        except KeyError:
            pass
        try:
            value = expected.decode(text)
        except (msgspec.DecodeError, RecursionError):
            value = _frozen(value_of(raw))
        self._known[text] = value if isinstance(value, tuple) else None
        return self._known[text]


def _collective(args: Arguments) -> dict[str, Any] | None:
    if args.collective is NOTHING:
        return None
    values = {key: getattr(args, attribute) for key, attribute in COLLECTIVE_KEYS}
    return {key: _frozen(value_of(raw)) for key, raw in values.items() if raw is not NOTHING}


def _dimensions(raw: msgspec.Raw) -> tuple[int, ...] | None:
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
