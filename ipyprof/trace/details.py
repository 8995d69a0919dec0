"""Arguments of events as ``Details``, decoded once per distinct text."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any, cast

import msgspec

from ipyprof.trace.kineto import NOTHING, Arguments, value_of
from ipyprof.trace.model import Details, Int32
from ipyprof.trace.packed import packed

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
