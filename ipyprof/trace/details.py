"""Arguments of events as ``Details``, decoded once per distinct text."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from ipyprof.trace.intern import interned
from ipyprof.trace.kineto import ANY, NOTHING, Arguments
from ipyprof.trace.model import Details, Int32, Int64

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

# Dims and strides: a list per tensor, a list of lists per list of tensors.
_SHAPES = msgspec.json.Decoder(tuple[tuple[int | tuple[int, ...], ...], ...])
_TEXTS = msgspec.json.Decoder(tuple[str, ...])

# No JSON text holds this byte, so joined texts stay distinct.
_BETWEEN = b"\0"


def collect_details(arguments: Sequence[Arguments], device: Int64, host: Int64) -> tuple[Int32, tuple[Details, ...]]:
    """(n,) index of each event's details, -1 = none, and the distinct details.

    Args:
        arguments: of all n events.
        device: (d,) indices of the device work: grid, block, occupancy, bytes, collective.
        host: (h,) indices of the operators and annotations: shapes, strides, types, concrete inputs, collective.
    """
    column = np.full(len(arguments), -1, np.int32)
    join = _BETWEEN.join
    work = [arguments[index] for index in device.tolist()]
    # Keys are text and numbers wherever they can be: a tuple per event would keep the garbage collector busy.
    keys: list[Hashable] = [
        (join((args.grid, args.block, args.occupancy)), args.bytes, _collective_key(args))
        if args.collective is not NOTHING or (args.bytes >= 0 and args.grid is not NOTHING)
        else args.bytes
        if args.grid is NOTHING
        else join((args.grid, args.block, args.occupancy))
        for args in work
    ]
    column[device], device_details = _distinct(work, keys, _device_details)

    ranges = [arguments[index] for index in host.tolist()]
    told = [
        args.shapes is not NOTHING or args.collective is not NOTHING or args.old_shapes is not NOTHING
        for args in ranges
    ]
    host = host[np.fromiter(told, np.bool_, len(told))]
    described = list(compress(ranges, told))
    keys = [
        join((args.shapes, args.dtypes, args.strides, args.concrete))
        if args.collective is NOTHING and args.old_shapes is NOTHING
        else (join((args.shapes, args.old_shapes, args.dtypes, args.strides, args.concrete)), _collective_key(args))
        for args in described
    ]
    numbers, host_details = _distinct(described, keys, _Decoder().host_details)
    column[host] = numbers + len(device_details)
    return column, (*device_details, *host_details)


def _distinct(
    arguments: Sequence[Arguments], keys: list[Hashable], decoded: Callable[[Arguments], Details]
) -> tuple[Int32, tuple[Details, ...]]:
    """(n,) index of each event's details, and the details of the first event of each key."""
    numbers, distinct = interned(keys)
    first = np.empty(len(distinct), np.int64)
    first[numbers[::-1]] = np.arange(len(keys))[::-1]
    return numbers, tuple(decoded(arguments[index]) for index in first.tolist())


def _collective_key(args: Arguments) -> bytes:
    return _BETWEEN.join([getattr(args, attribute) for _, attribute in COLLECTIVE_KEYS])


def _device_details(args: Arguments) -> Details:
    occupancy = None if args.occupancy is NOTHING else ANY.decode(args.occupancy)
    return Details(
        grid=_dimensions(args.grid),
        block=_dimensions(args.block),
        # 0 is what cuBLAS's nvjet kernels get: not measured.
        occupancy=occupancy / 100 if isinstance(occupancy, (int, float)) and occupancy > 0 else None,
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
        except msgspec.ValidationError:
            value = _frozen(ANY.decode(text))
        self._known[text] = value if isinstance(value, tuple) else None
        return self._known[text]


def _collective(args: Arguments) -> dict[str, Any] | None:
    if args.collective is NOTHING:
        return None
    values = {key: getattr(args, attribute) for key, attribute in COLLECTIVE_KEYS}
    return {key: _frozen(ANY.decode(raw)) for key, raw in values.items() if raw is not NOTHING}


def _dimensions(raw: msgspec.Raw) -> tuple[int, ...] | None:
    if raw is NOTHING:
        return None
    value = ANY.decode(raw)
    return tuple(value) if isinstance(value, list) and all(isinstance(size, int) for size in value) else None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
