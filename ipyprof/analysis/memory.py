"""The allocator's totals over the recorded steps: the heartbeat, its peak, its growth, and who holds what then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ipyprof.analysis.allocations import (
    AllocatorCall,
    Lifetimes,
    Refused,
    allocator_calls,
    ended_in_recording,
    latest,
    lifetimes,
    lines_at,
    refused_requests,
    running_at,
)
from ipyprof.analysis.holders import Holding, Moments, Ownership
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

MOST_POINTS = 2_000
MOST_CALLS = 200
MOMENT_NAMES = 14
CPU = -1
CUT_OFF = "unfinished step "  # what the export calls the range of a step that was cut off


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
        peak_range: innermost ``record_function`` range then, the optimizer's among them, ``None`` likewise.
        peak_step: the recorded step that it lies in, from 0; one more than the whole ones for a step that was cut off.
        peak_unused_bytes: reserved and not given out at the peak: what fragments of free memory it could not use.
        reserved_peak_bytes: most reserved from the device.
        growth_bytes_per_step: median change from mark to mark; ``None`` under two steps.
        unexplained: records whose total did not change by their own size: others are missing, the curve may be
            incomplete (pytorch/pytorch#192290).
        holders: who holds the peak's bytes, the largest first; they add up to it. Where a request failed: who held
            memory at the last one that did not, before the error let go of some. Empty where there are no addresses.
        holders_at_ns: ns since the first mark of that instant.
        growing: who holds more after every step, with bytes per step.
        line_peaks: the most that was allocated while each line of the cell ran and changed it.
        moments: the holders over time, on the trace's clock less the first mark; ``None`` likewise.
    """

    device: int
    time_ns: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    peak_bytes: int
    peak_at_ns: int
    peak_operator: str | None
    peak_line: int | None
    peak_range: str | None
    peak_step: int
    peak_unused_bytes: int
    reserved_peak_bytes: int
    growth_bytes_per_step: int | None
    unexplained: int
    holders: tuple[Holding, ...] = ()
    holders_at_ns: int | None = None
    growing: tuple[Holding, ...] = ()
    moments: Moments | None = None
    line_peaks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Memory by device, in order of index. ``busiest`` is the index in ``devices`` to show first, ``None`` = no device.

    ``cpu`` holds the CPU's own records, never mixed with a device's; ``None`` = none. ``calls`` are those with which
    the allocator went to the driver, at most 200, the longest; ``call_count`` and ``call_ns`` are of all of them.
    ``refused`` are requests that failed without ending the cell, in time order.
    """

    devices: tuple[DeviceMemory, ...]
    busiest: int | None
    cpu: DeviceMemory | None
    calls: tuple[AllocatorCall, ...] = ()
    call_count: int = 0
    call_ns: int = 0
    refused: tuple[Refused, ...] = ()


def memory_view(trace: Trace, steps: Steps, live: LiveRecord | None = None) -> MemorySummary:
    """The memory of each device that has records, from the allocator's totals and never from summed changes.

    The device to show first is the one with the most device time in the recorded steps; without any, the one with
    the highest peak. Where a request for memory failed in the recording, the step that it ended counts too.
    """
    marks = _marks(trace, steps, live)
    if len(marks) < 2:
        return MemorySummary(devices=(), busiest=None, cpu=None)
    found = {int(one): _of_device(trace, steps, live, marks, int(one)) for one in np.unique(trace.memory.device)}
    devices = tuple(view for device, view in found.items() if device != CPU)
    work = np.flatnonzero(steps.step >= 0)
    busy = {view.device: int(trace.dur_ns[work[trace.device[work] == view.device]].sum()) for view in devices}
    ranked = sorted(range(len(devices)), key=lambda at: (-busy[devices[at].device], -devices[at].peak_bytes))
    calls = allocator_calls(trace, marks)
    return MemorySummary(
        devices=devices,
        busiest=ranked[0] if ranked else None,
        cpu=found.get(CPU),
        calls=tuple(sorted(sorted(calls, key=lambda call: -call.dur_ns)[:MOST_CALLS], key=lambda call: call.at_ns)),
        call_count=sum(call.count for call in calls),
        call_ns=sum(call.dur_ns for call in calls),
        refused=refused_requests(trace, steps, live, marks),
    )


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


def _marks(trace: Trace, steps: Steps, live: LiveRecord | None) -> Int64:
    """The instants at which steps begin and the last one ends, also one that ran out of memory in its middle."""
    end = int(trace.memory.time_ns.max(initial=-1))
    if not ended_in_recording(live) or len(steps.marks_ns) == 0 or end <= steps.marks_ns[-1]:
        return steps.marks_ns
    return np.append(steps.marks_ns, end + 1)


def _of_device(trace: Trace, steps: Steps, live: LiveRecord | None, marks: Int64, device: int) -> DeviceMemory:
    records = trace.memory
    mine = np.flatnonzero(records.device == device)
    time, allocated, reserved = records.time_ns[mine], records.allocated_bytes[mine], records.reserved_bytes[mine]
    begin, stop = int(marks[0]), int(marks[-1])
    first = int(np.searchsorted(time, begin, side="right"))
    last = int(np.searchsorted(time, stop, side="right"))
    # What was held at the first mark: the total before it, else what the first record says was there before itself.
    baseline = int(allocated[first - 1]) if first else int(allocated[0] - records.delta_bytes[mine[0]])
    reserved_then = int(reserved[max(first - 1, 0)])
    at_mark = np.searchsorted(time, steps.marks_ns, side="right")
    held = np.where(at_mark > 0, allocated[np.maximum(at_mark - 1, 0)], baseline)
    blocks = None if device == CPU else lifetimes(trace, steps, live, device, marks)
    changes = np.diff(np.concatenate(([baseline], allocated[first:last])))
    time = np.concatenate(([0], time[first:last] - begin)).astype(np.int64)
    allocated = np.concatenate(([baseline], allocated[first:last])).astype(np.int64)
    reserved = np.concatenate(([reserved_then], reserved[first:last])).astype(np.int64)
    peak = int(np.argmax(allocated))
    at_peak = int(time[peak]) + begin
    operator, line = (None, None) if peak == 0 else running_at(trace, at_peak)
    scope = None if peak == 0 else _range_at(trace, at_peak)
    lines = lines_at(trace, steps, live, records.time_ns[mine[first:last]])
    asked = peak
    if len(marks) > len(steps.marks_ns):
        given = np.flatnonzero(np.diff(allocated) > 0) + 1
        asked = int(given[-1]) if len(given) else peak
    half = MOST_POINTS // 2 - 1
    drawn = np.arange(len(time))
    if len(time) > MOST_POINTS:
        drawn = np.union1d(np.union1d(thin(time, allocated, half), thin(time, reserved, half)), [asked])
    holders, growing, moments = _whose(
        trace, steps, live, marks, blocks, device, (first - 1 + asked, first - 1 + drawn)
    )
    return DeviceMemory(
        device=device,
        time_ns=time[drawn],
        allocated_bytes=allocated[drawn],
        reserved_bytes=reserved[drawn],
        peak_bytes=int(allocated[peak]),
        peak_at_ns=int(time[peak]),
        peak_operator=operator,
        peak_line=line,
        peak_range=scope,
        peak_step=max(int(np.searchsorted(marks, at_peak, side="right")) - 1, 0),
        peak_unused_bytes=max(int(reserved[peak] - allocated[peak]), 0),
        reserved_peak_bytes=int(reserved.max()),
        growth_bytes_per_step=_growth(held, 1 if live is None else live.cycle),
        unexplained=int((changes != records.delta_bytes[mine[first:last]]).sum()),
        holders=holders,
        holders_at_ns=int(time[asked]),
        growing=growing,
        moments=moments,
        line_peaks={int(line): int(allocated[1:][lines == line].max()) for line in np.unique(lines[lines > 0])},
    )


def _growth(held: Int64, cycle: int) -> int | None:
    """The median change from mark to mark, over whole accumulation cycles; ``None`` under two steps.

    What grew and then stayed, a cache that has filled, is no growth.
    """
    if len(held) < 3:
        return None
    whole = held[::cycle] if len(held) > 2 * cycle else held
    change = np.diff(whole)
    typical = int(np.median(change)) // (cycle if whole is not held else 1)
    return 0 if typical > 0 and change[-1] <= 0 else typical


def _whose(
    trace: Trace,
    steps: Steps,
    live: LiveRecord | None,
    marks: Int64,
    blocks: Lifetimes | None,
    device: int,
    at: tuple[int, Int64],
) -> tuple[tuple[Holding, ...], tuple[Holding, ...], Moments | None]:
    """(holders at the peak, what grows, holders over time). ``at``: the peak's record, and those that are drawn."""
    if blocks is None:
        return (), (), None
    looked = live is not None and live.owners is not None
    owners = [owner for owner in live.owners or () if owner.device == device] if live is not None else []
    failed_step = len(marks) - 2 if len(marks) > len(steps.marks_ns) else None
    whose = Ownership(trace, blocks, owners if looked else None, failed_step=failed_step)
    peak, shown = at
    begin = int(marks[0])
    # The first of them is the first mark itself, whatever came before it.
    time = np.append(begin, blocks.time_ns[shown[1:]])
    if len(shown) > whose.most_moments():
        kept = thin(time, blocks.allocated_bytes[shown + 1], max(whose.most_moments() - 1, 4))
        kept = np.union1d(kept, np.searchsorted(shown, [peak]))
        shown, time = shown[kept], time[kept]
    step = np.searchsorted(marks, time, side="right") - 1
    moments = whose.moments(shown, step, time - begin, MOMENT_NAMES)
    at_marks = np.searchsorted(blocks.time_ns, steps.marks_ns, side="right") - 1
    cycle = live.cycle if live is not None and steps.count > 2 * live.cycle else 1
    peak_step = int(step[np.flatnonzero(shown == peak)[0]])
    return whose.at(peak, peak_step), whose.growing(at_marks[::cycle].tolist(), cycle), moments


def _range_at(trace: Trace, at: int) -> str | None:
    """The innermost range of the user's at an instant; what our own cut-off steps are called is none."""
    event = latest(trace, Kind.ANNOTATION, at)
    name = None if event < 0 else trace.names[trace.name[event]]
    return None if name is None or name.startswith(CUT_OFF) else name
