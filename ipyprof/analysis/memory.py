"""The allocator's totals over the recorded steps: the heartbeat, its peak, its growth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import LINE_PREFIX, Kind
from ipyprof.trace.model import Int64, Trace

MOST_POINTS = 2_000
CPU = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device's memory between the first and the last recorded mark.

    Attributes:
        device: index, -1 = the CPU.
        time_ns: (k,) int64 ns since the first mark, sorted; the first point is the mark itself. At most 2,000 points.
        allocated_bytes, reserved_bytes: (k,) int64 totals from each instant on.
        peak_bytes: most allocated; held already at the first mark when ``peak_at_ns`` is 0.
        peak_at_ns: ns since the first mark, the first time the peak is reached.
        peak_operator: innermost operator that ran when the peak was reached, ``None`` = none, or reached before.
        peak_line: the cell's line that ran then, ``None`` likewise.
        reserved_peak_bytes: most reserved from the device.
        growth_bytes_per_step: median change from mark to mark; ``None`` under two steps.
        unexplained: records whose total did not change by their own size: others are missing, the curve may be
            incomplete (pytorch/pytorch#192290).
    """

    device: int
    time_ns: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    peak_bytes: int
    peak_at_ns: int
    peak_operator: str | None
    peak_line: int | None
    reserved_peak_bytes: int
    growth_bytes_per_step: int | None
    unexplained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Memory by device, in order of index. ``busiest`` is the index in ``devices`` to show first, ``None`` = no device.

    ``cpu`` holds the CPU's own records, never mixed with a device's; ``None`` = none.
    """

    devices: tuple[DeviceMemory, ...]
    busiest: int | None
    cpu: DeviceMemory | None


def memory_view(trace: Trace, steps: Steps) -> MemorySummary:
    """The memory of each device that has records, from the allocator's totals and never from summed changes.

    The device to show first is the one with the most device time in the recorded steps; without any, the one with
    the highest peak.
    """
    if steps.count < 1:
        return MemorySummary(devices=(), busiest=None, cpu=None)
    found = {int(device): _of_device(trace, steps, int(device)) for device in np.unique(trace.memory.device)}
    devices = tuple(view for device, view in found.items() if device != CPU)
    work = np.flatnonzero(steps.step >= 0)
    busy = {view.device: int(trace.dur_ns[work[trace.device[work] == view.device]].sum()) for view in devices}
    ranked = sorted(range(len(devices)), key=lambda at: (-busy[devices[at].device], -devices[at].peak_bytes))
    return MemorySummary(devices=devices, busiest=ranked[0] if ranked else None, cpu=found.get(CPU))


def thin(time: Int64, value: Int64, limit: int) -> Int64:
    """(k,) int64 indices, sorted, of at most ``limit`` points that draw the same curve.

    The first and last point and the lowest and highest of each stretch of time are kept, so the peak is too, exactly.

    Args:
        time: (n,) int64, sorted.
        value: (n,) int64.
        limit: at least 4.
    """
    if len(time) <= limit:
        return np.arange(len(time))
    stretches = (limit - 2) // 2
    span = int(time[-1] - time[0]) + 1
    stretch = ((time - time[0]) * (stretches / span)).astype(np.int64)
    begin = np.flatnonzero(np.concatenate(([True], np.diff(stretch) > 0)))
    place = np.repeat(np.arange(len(begin)), np.diff(np.append(begin, len(time))))
    kept = [np.array([0, len(time) - 1])]
    for extreme in (np.minimum.reduceat(value, begin), np.maximum.reduceat(value, begin)):
        hit = np.flatnonzero(value == extreme[place])
        kept.append(hit[np.unique(place[hit], return_index=True)[1]])
    return np.unique(np.concatenate(kept))


def _of_device(trace: Trace, steps: Steps, device: int) -> DeviceMemory:
    records = trace.memory
    mine = np.flatnonzero(records.device == device)
    time, allocated, reserved = records.time_ns[mine], records.allocated_bytes[mine], records.reserved_bytes[mine]
    begin, stop = int(steps.marks_ns[0]), int(steps.marks_ns[-1])
    first = int(np.searchsorted(time, begin, side="right"))
    last = int(np.searchsorted(time, stop, side="right"))
    # What was held at the first mark: the total before it, else what the first record says was there before itself.
    baseline = int(allocated[first - 1]) if first else int(allocated[0] - records.delta_bytes[mine[0]])
    reserved_then = int(reserved[max(first - 1, 0)])
    at_mark = np.searchsorted(time, steps.marks_ns, side="right")
    held = np.where(at_mark > 0, allocated[np.maximum(at_mark - 1, 0)], baseline)
    changes = np.diff(np.concatenate(([baseline], allocated[first:last])))
    time = np.concatenate(([0], time[first:last] - begin)).astype(np.int64)
    allocated = np.concatenate(([baseline], allocated[first:last])).astype(np.int64)
    reserved = np.concatenate(([reserved_then], reserved[first:last])).astype(np.int64)
    peak = int(np.argmax(allocated))
    operator, line = (None, None) if peak == 0 else running_at(trace, int(time[peak]) + begin)
    half = MOST_POINTS // 2
    drawn = np.arange(len(time))
    if len(time) > MOST_POINTS:
        drawn = np.union1d(thin(time, allocated, half), thin(time, reserved, half))
    return DeviceMemory(
        device=device,
        time_ns=time[drawn],
        allocated_bytes=allocated[drawn],
        reserved_bytes=reserved[drawn],
        peak_bytes=int(allocated[peak]),
        peak_at_ns=int(time[peak]),
        peak_operator=operator,
        peak_line=line,
        reserved_peak_bytes=int(reserved.max()),
        growth_bytes_per_step=int(np.median(np.diff(held))) if steps.count >= 2 else None,
        unexplained=int((changes != records.delta_bytes[mine[first:last]]).sum()),
    )


def running_at(trace: Trace, at: int) -> tuple[str | None, int | None]:
    """(operator, line) that ran at an instant: on each thread the innermost, of these the one that began last."""
    operator = _latest(trace, Kind.OPERATOR, at)
    line = _latest(trace, Kind.LINE, at)
    name = None if operator < 0 else trace.names[trace.name[operator]]
    return name, None if line < 0 else line_number(trace.names[trace.name[line]])


def line_number(name: str) -> int | None:
    """The line that one of our own ranges stands for, ``None`` for any other name."""
    number = name.removeprefix(LINE_PREFIX).split(maxsplit=1)
    return int(number[0]) if name.startswith(LINE_PREFIX) and number and number[0].isdecimal() else None


def _latest(trace: Trace, kind: Kind, at: int) -> int:
    """Index of the event of a kind that holds an instant and began last, -1 = none."""
    events = trace.select(kind)
    around = events[(trace.start_ns[events] <= at) & (trace.end_ns[events] > at)]
    return int(around[-1]) if len(around) else -1
