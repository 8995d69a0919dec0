"""What a run comes to, in the units of a report's JSON: ms, bytes, shares 0..1; ``None`` = not measured.

One type per concept: analysis computes these, diagnosis looks at them, the report holds them, the renderers draw them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

# A saved report comes from anywhere: a number that no counter could have given, or that is not finite, is refused.
Ms = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Number = Annotated[float, msgspec.Meta(ge=-1e19, le=1e19)]
Bytes = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

Segment = tuple[Ms, Ms, str, str]
"""(start ms, end ms, a breakdown key, label) of a lane."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data of a report. Copies with changes: ``msgspec.structs.replace``."""


class Breakdown(Record, frozen=True):
    """Disjoint parts of one step in ms; the parts that are not ``None`` add up to the step exactly.

    ``unlike_steps`` is what steps unlike the typical one add to it.
    """

    kernel: Ms | None = None
    memcpy: Ms | None = None
    memset: Ms | None = None
    communication: Ms | None = None
    data_loading: Ms | None = None
    runtime: Ms | None = None
    cpu: Ms | None = None
    other: Ms | None = None
    unlike_steps: Ms | None = None


class RuntimeDetail(Record, frozen=True):
    """``Breakdown.runtime`` apart: launches, synchronisation, allocation, the rest."""

    launch: Ms | None = None
    sync: Ms | None = None
    allocator: Ms | None = None
    other: Ms | None = None


class Utilization(Record, frozen=True):
    """Shares of the step, from what ``nvidia-smi`` counts down to arithmetic."""

    nvml: Number | None = None
    kernel_busy: Number | None = None
    sm_coverage: Number | None = None
    mfu: Number | None = None
    tensor_core: Number | None = None


class Operator(Record, frozen=True):
    """One row per operator name, per step. ``share`` is of device time, ``amdahl_share`` of the step."""

    name: str
    calls: Number
    self_device_ms: Ms | None
    total_device_ms: Ms | None
    self_host_ms: Ms
    total_host_ms: Ms
    share: Number | None
    shapes: str = ""
    bound: str = "unknown"  # compute, memory, launch, copy or unknown
    tensor_core: str = "unknown"  # yes, no, unknown or n/a
    amdahl_share: Number | None = None


class Kernel(Record, frozen=True):
    """One row per kernel name, per step."""

    name: str
    calls: Number
    device_ms: Ms
    tensor_core: str = "unknown"
    bound: str = "unknown"
    est_occupancy: Number | None = None


class Line(Record, frozen=True):
    """One line of the cell, per step; line 1 is the magic line."""

    line: int
    source: str
    device_ms: Ms | None
    host_ms: Ms | None
    sync_count: Number | None
    peak_bytes: Bytes | None = None


class ScopeRow(Record, frozen=True):
    """A phase, range, module or module class, per step.

    ``within`` are the names of what is around it, the outermost first. ``device_ms`` and ``host_ms`` are its own,
    without those inside it: they add up to the operators' time.
    """

    name: str
    within: tuple[str, ...] = ()
    calls: Number | None = None
    device_ms: Ms | None = None
    total_device_ms: Ms | None = None
    host_ms: Ms | None = None
    total_host_ms: Ms | None = None


class Holder(Record, frozen=True):
    """Who holds memory: a notebook name, or the line that allocated it; ``role`` such as ``activations``."""

    name: str
    bytes: Bytes
    line: int | None = None
    role: str = ""


class Memory(Record, frozen=True):
    """Allocated memory of one device at its peak; ``peak_at_ms`` counts from the first recorded mark."""

    peak_bytes: Bytes
    peak_at_ms: Ms | None
    peak_operator: str | None = None
    peak_line: int | None = None
    reserved_peak_bytes: Bytes | None = None
    growth_bytes_per_step: Bytes | None = None
    holders: tuple[Holder, ...] = ()


class Heartbeat(Record, frozen=True):
    """Memory over the recorded steps of one device; without a GPU ``process`` stands in for ``allocated``.

    All curves are as long as ``time_ms``, which rises from the first recorded mark, or empty. ``calls_ms`` are where
    the allocator went to the driver. At most 2,000 points.
    """

    time_ms: tuple[Ms, ...] = ()
    allocated: tuple[Bytes, ...] = ()
    reserved: tuple[Bytes, ...] = ()
    process: tuple[Bytes, ...] = ()
    marks_ms: tuple[Ms, ...] = ()
    calls_ms: tuple[Ms, ...] = ()
    device: int = 0

    def __post_init__(self) -> None:
        if not {len(self.allocated), len(self.reserved), len(self.process)} <= {0, len(self.time_ms)}:
            raise ValueError("curves of different lengths")
        if any(one > other for one, other in pairwise(self.time_ms)):
            raise ValueError("times that do not rise")


class MemoryPeak(Record, frozen=True):
    """More of the peak: its recorded ``step`` from 1, the range it lies in, and what was reserved beyond it."""

    step: int
    range: str | None = None
    unused_bytes: Bytes | None = None
    largest_free_bytes: Bytes | None = None


class AllocatorCall(Record, frozen=True, array_like=True):
    """``count`` neighbouring calls to the driver; ``what`` is the call; ``step`` counts from 1."""

    at_ms: Ms
    dur_ms: Ms
    count: int
    what: str
    step: int
    in_step_ms: Ms


class Refused(Record, frozen=True):
    """A request for memory that failed and that the cell caught."""

    device: int
    at_ms: Ms
    step: int
    count: int
    asked_bytes: Bytes
    allocated_bytes: Bytes
    operator: str | None = None
    line: int | None = None


class FailedRequest(Record, frozen=True):
    """The request that ended the cell, with who held memory then and what would make room.

    ``later``: it failed after the recording was over.
    """

    line: int | None = None
    device: int | None = None
    tried_bytes: Bytes | None = None
    capacity_bytes: Bytes | None = None
    free_bytes: Bytes | None = None
    allocated_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    unused_bytes: Bytes | None = None
    largest_free_bytes: Bytes | None = None
    later: bool = False
    text: str = ""
    holders: tuple[Holder, ...] = ()
    advice: tuple[str, ...] = ()


class MemoryDetail(Record, frozen=True):
    """What stands beside the heartbeat.

    ``parts``: holder → (layer, bytes) pairs; ``growing``: holders with bytes per step; ``advice``: sentences;
    ``devices``: heartbeats of the devices beside the busiest; ``incomplete``: not all names were looked at.
    """

    peak: MemoryPeak | None = None
    parts: dict[str, tuple[tuple[str, Bytes], ...]] = {}
    growing: tuple[Holder, ...] = ()
    advice: tuple[str, ...] = ()
    devices: tuple[Heartbeat, ...] = ()
    calls: tuple[AllocatorCall, ...] = ()
    call_count: int = 0
    call_ms: Ms = 0.0
    refused: tuple[Refused, ...] = ()
    out_of_memory: FailedRequest | None = None
    other_processes: Bytes = 0
    incomplete: bool = False


class RecordedStep(Record, frozen=True):
    """One recorded step on the recorded clock; ``step`` counts from 1."""

    step: int
    step_ms: Ms
    breakdown: Breakdown
    operators: tuple[Operator, ...] = ()


class Lane(Record, frozen=True):
    """A host thread or a stream over one recorded step; ``kind`` is ``host`` or ``device``."""

    name: str
    kind: str
    segments: tuple[Segment, ...] = ()


class Bubble(Record, frozen=True):
    """The longest time without GPU work, and what the host does then."""

    lane: str
    start_ms: Ms
    end_ms: Ms
    text: str


class Timeline(Record, frozen=True):
    """One recorded step on the recorded clock, from its mark."""

    start_ms: Ms
    end_ms: Ms
    lanes: tuple[Lane, ...] = ()
    bubble: Bubble | None = None


class UnlikeSteps(Record, frozen=True):
    """Steps unlike the typical one: what they did, on which line, every how many steps (``period``), how many, and
    what they took beyond typical steps, in all."""

    what: str
    line: int | None = None
    period: Number | None = None
    count: int = 0
    ms: Ms = 0.0


class Account(Record, frozen=True):
    """Where the cell's wall time went; the parts add up to ``cell_ms``.

    ``ours_ms`` are our own pauses; ``between_ms`` lies between and behind the loops.
    """

    cell_ms: Ms
    before_ms: Ms = 0.0
    typical_ms: Ms = 0.0
    typical_steps: int = 0
    unlike: tuple[UnlikeSteps, ...] = ()
    between_ms: Ms = 0.0
    ours_ms: Ms = 0.0
