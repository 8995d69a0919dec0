"""The columns of a trace, and what a live run knows beside them. No logic lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ipyprof.trace.live import LiveRecord

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one event that some analysis needs. Unknown is ``None`` (or empty).

    ``grid`` and ``block`` are (x, y, z); ``occupancy`` is the estimated achieved occupancy as a share 0..1,
    ``None`` where the file says 0 (cuBLAS ``nvjet`` kernels); shapes, strides and dtypes are per input.
    """

    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    occupancy: float | None = None
    moved_bytes: int | None = None
    shapes: tuple[Any, ...] | None = None
    strides: tuple[Any, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    concrete: tuple[Any, ...] | None = None
    collective: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device as the file describes it; sizes in bytes, unknown is ``None``."""

    index: int
    name: str
    sm_count: int | None
    compute_capability: tuple[int, int] | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecords:
    """The ``[memory]`` records, sorted by time. All arrays are (m,).

    ``device`` is -1 for the CPU. ``allocated_bytes`` and ``reserved_bytes`` are the totals after the record;
    ``address`` is the block's, 0 = not in the file; ``tid`` is the thread that asked.
    """

    time_ns: Int64
    device: Int32
    delta_bytes: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    address: Int64
    tid: Int64

    @classmethod
    def none(cls) -> MemoryRecords:
        """No records."""
        no = np.empty(0, np.int64)
        return cls(
            time_ns=no,
            device=no.astype(np.int32),
            delta_bytes=no,
            allocated_bytes=no,
            reserved_bytes=no,
            address=no,
            tid=no,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Complete events as columns, sorted by (start, -duration). Every array is (n,) and aligned.

    Attributes:
        start_ns: int64 ns since ``base_ns`` + ``origin_ns`` (small numbers: the first event is near 0).
        dur_ns: int64 ns, never negative.
        kind: uint8, a ``Kind``.
        role: uint8, a ``Role``; ``Role.OTHER`` where the event is no API call.
        name: int32 index into ``names``.
        pid, tid: int64; text ids are interned as negative numbers.
        device: int32, -1 where the event is not on a device.
        stream: int64, -1 where the event is not on a stream.
        correlation: int64, links a device record to the API call that launched it; 0 = none.
        external_id: int64, links records to operators; 0 = none.
        sequence: int64, autograd's sequence number; -1 = none.
        detail: int32 index into ``details``; -1 = none.
        names: distinct names, decoded once.
        details: decoded arguments.
        origin_ns: what was subtracted from every time; ``base_ns + origin_ns`` is Unix time where the file has a base.
        base_ns: ``baseTimeNanoseconds`` of the file, or 0.
        memory: the allocator's records; empty arrays where there are none.
        refused: requests that it could not serve (``[OutOfMemory]``): ``delta_bytes`` is what was asked for, the totals
            are those of that moment, there is no address.
        devices: what the file says of its devices.
        metadata: the file's other top-level keys (small ones), such as ``record_shapes``, ``distributedInfo``.
        damage: what was skipped, by reason, with its count. Empty for a sound file.
        live: what a live run saved beside the trace (key ``ipyprof``), or ``None``.
        path: where it came from, for messages.
    """

    start_ns: Int64
    dur_ns: Int64
    kind: UInt8
    role: UInt8
    name: Int32
    pid: Int64
    tid: Int64
    device: Int32
    stream: Int64
    correlation: Int64
    external_id: Int64
    sequence: Int64
    detail: Int32
    names: tuple[str, ...]
    details: tuple[Details, ...]
    memory: MemoryRecords
    origin_ns: int = 0
    base_ns: int = 0
    devices: tuple[DeviceInfo, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    damage: Mapping[str, int] = field(default_factory=dict)
    live: LiveRecord | None = None
    path: str = ""
    refused: MemoryRecords = field(default_factory=MemoryRecords.none)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64:
        """(n,) int64 ends."""
        return self.start_ns + self.dur_ns

    def select(self, *kinds: int) -> Int64:
        """(k,) int64 indices of the events of these kinds, in time order."""
        chosen = np.zeros(len(self), np.bool_)
        for kind in kinds:
            chosen |= self.kind == kind
        return np.flatnonzero(chosen)

    def detail_of(self, index: int) -> Details | None:
        """The arguments of event ``index``, or ``None``."""
        at = int(self.detail[index])
        return None if at < 0 else self.details[at]


def no_events() -> Trace:
    """The trace of a run that recorded nothing."""
    wide, narrow, kinds = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.uint8)
    return Trace(
        start_ns=wide,
        dur_ns=wide,
        kind=kinds,
        role=kinds,
        name=narrow,
        pid=wide,
        tid=wide,
        device=narrow,
        stream=wide,
        correlation=wide,
        external_id=wide,
        sequence=wide,
        detail=narrow,
        names=(),
        details=(),
        memory=MemoryRecords.none(),
        path="nothing recorded",
    )
