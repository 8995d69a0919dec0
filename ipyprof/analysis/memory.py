"""The allocator's totals over the recorded steps: the heartbeat, its peak, its growth, and who holds what then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ipyprof.analysis.holders import MOST_MOMENTS, Holding, Moments, Ownership
from ipyprof.analysis.lifetimes import Lifetimes, lifetimes, line_number, lines_at
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind, Role
from ipyprof.trace.model import Int64, LiveRecord, Trace

MOST_POINTS = 2_000
MOST_CALLS = 200
MOMENT_NAMES = 14
TOGETHER_NS = 200_000  # calls of the allocator closer than this are one: empty_cache frees many segments in a row
CPU = -1
CUT_OFF = "unfinished step "  # what the export calls the range of a step that was cut off

ALLOCATED = "memory taken from the driver"
FREED = "cache given back"
RETRIED = "cache given back, then memory taken: a retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCall:
    """Calls in a row with which the allocator went to the driver, in the recorded steps of all devices.

    ``at_ns`` is ns since the first mark, ``dur_ns`` the time in the calls, ``what`` one of the constants above.
    """

    at_ns: int
    dur_ns: int
    count: int
    what: str
    step: int


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
    """

    devices: tuple[DeviceMemory, ...]
    busiest: int | None
    cpu: DeviceMemory | None
    calls: tuple[AllocatorCall, ...] = ()
    call_count: int = 0
    call_ns: int = 0


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
    )


def allocator_calls(trace: Trace, marks_ns: Int64) -> tuple[AllocatorCall, ...]:
    """The calls between the first and the last mark with which the allocator went to the driver, in time order."""
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.role[calls], (Role.ALLOC, Role.FREE))]
    calls = calls[(trace.start_ns[calls] >= marks_ns[0]) & (trace.start_ns[calls] < marks_ns[-1])]
    if len(calls) == 0:
        return ()
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    breaks = np.flatnonzero(start[1:] - np.maximum.accumulate(end)[:-1] > TOGETHER_NS) + 1
    found = []
    for group in np.split(calls, breaks):
        roles = set(trace.role[group].tolist())
        at = int(trace.start_ns[group[0]])
        found.append(
            AllocatorCall(
                at_ns=at - int(marks_ns[0]),
                dur_ns=int(trace.dur_ns[group].sum()),
                count=len(group),
                what=RETRIED if len(roles) == 2 else ALLOCATED if Role.ALLOC in roles else FREED,
                step=int(np.searchsorted(marks_ns, at, side="right")) - 1,
            )
        )
    return tuple(found)


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
    failed = live is not None and live.out_of_memory is not None and not live.out_of_memory.later
    end = int(trace.memory.time_ns.max(initial=-1))
    if not failed or len(steps.marks_ns) == 0 or end <= steps.marks_ns[-1]:
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
    holders, growing, moments = _whose(trace, steps, live, marks, blocks, device, first + asked - 1, (first, last))
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
        peak_range=scope,
        peak_step=max(int(np.searchsorted(marks, at_peak, side="right")) - 1, 0),
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
    peak: int,
    window: tuple[int, int],
) -> tuple[tuple[Holding, ...], tuple[Holding, ...], Moments | None]:
    """(holders at the peak, what grows, holders over time). ``peak`` is a record, ``window`` begins and ends them."""
    if blocks is None:
        return (), (), None
    looked = live is not None and live.owners is not None
    owners = [owner for owner in live.owners or () if owner.device == device] if live is not None else []
    failed_step = len(marks) - 2 if len(marks) > len(steps.marks_ns) else None
    whose = Ownership(trace, blocks, owners if looked else None, failed_step=failed_step)
    first, last = window
    shown = np.arange(first - 1, last)
    if len(shown) > MOST_MOMENTS:
        curve = blocks.allocated_bytes[shown + 1]
        place = np.append(marks[0], blocks.time_ns[shown[1:]])
        shown = np.union1d(shown[thin(place, curve, MOST_MOMENTS - 1)], [peak])
    begin = int(marks[0])
    at = np.where(shown < first, begin, blocks.time_ns[np.maximum(shown, 0)])
    step = np.searchsorted(marks, at, side="right") - 1
    moments = whose.moments(shown.tolist(), step.tolist(), (at - begin).tolist(), MOMENT_NAMES)
    at_marks = np.searchsorted(blocks.time_ns, steps.marks_ns, side="right") - 1
    cycle = live.cycle if live is not None and steps.count > 2 * live.cycle else 1
    peak_step = int(step[np.flatnonzero(shown == peak)[0]])
    return whose.at(peak, peak_step), whose.growing(at_marks[::cycle].tolist(), cycle), moments


def _range_at(trace: Trace, at: int) -> str | None:
    """The innermost range of the user's at an instant; what our own cut-off steps are called is none."""
    event = _latest(trace, Kind.ANNOTATION, at)
    name = None if event < 0 else trace.names[trace.name[event]]
    return None if name is None or name.startswith(CUT_OFF) else name


def running_at(trace: Trace, at: int) -> tuple[str | None, int | None]:
    """(operator, line) that ran at an instant: on each thread the innermost, of these the one that began last."""
    operator = _latest(trace, Kind.OPERATOR, at)
    line = _latest(trace, Kind.LINE, at)
    name = None if operator < 0 else trace.names[trace.name[operator]]
    return name, None if line < 0 else line_number(trace.names[trace.name[line]])


def _latest(trace: Trace, kind: Kind, at: int) -> int:
    """Index of the event of a kind that holds an instant and began last, -1 = none."""
    events = trace.select(kind)
    around = events[(trace.start_ns[events] <= at) & (trace.end_ns[events] > at)]
    return int(around[-1]) if len(around) else -1
