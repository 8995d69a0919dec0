"""The allocator's totals over the recorded steps: the heartbeat, its peak, its growth, and who holds what then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.allocations import lifetimes, line_number, lines_at, operators_at
from ipyprof.analysis.attribution import innermost
from ipyprof.analysis.holders import REST, Ownership, held_by_name, largest
from ipyprof.analysis.results import AllocatorCall, Heartbeat, Holder, Memory, MemoryPeak, Refused
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind, Role
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

MS = 1e6
MOST_POINTS = 2_000
MOST_CALLS = 200
MOST_REFUSED = 50
CPU = -1
CUT_OFF = "unfinished step "  # what the export calls the range of a step that was cut off
TOGETHER_NS = 200_000  # calls of the allocator closer than this are one: empty_cache frees many segments in a row
ALLOCATED = "memory taken from the driver"
FREED = "cache given back"
RETRIED = "cache given back, then memory taken: a retry"
PROCESS_REST = "the rest of the process: Python, libraries, what no name reaches"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One device's memory between the first and the last recorded mark.

    Attributes:
        device: index.
        memory: the peak and who holds it. Where a request failed: who held memory at the last one that did not, before
            the error let go of some. No holders where there are no addresses.
        heartbeat: the curve, without marks and calls; its first point is the first mark.
        peak: where it lies; one step more than the whole ones for a step that was cut off.
        parts: holder → (layer, bytes) pairs.
        growing: who holds more after every step, with bytes per step.
        line_peaks: the most that was allocated while each line of the cell ran and changed it.
        unexplained: records whose total did not change by their own size: others are missing, the curve may be
            incomplete (pytorch/pytorch#192290).
    """

    device: int
    memory: Memory
    heartbeat: Heartbeat
    peak: MemoryPeak
    parts: Mapping[str, tuple[tuple[str, int], ...]]
    growing: tuple[Holder, ...]
    line_peaks: Mapping[int, int]
    unexplained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySummary:
    """Memory by device, in order of index. ``busiest`` is the index in ``devices`` to show first, ``None`` = no device.

    ``calls`` are those with which the allocator went to the driver, at most 200, the longest; ``call_count`` and
    ``call_ms`` are of all of them. ``refused`` are requests that failed without ending the cell, in time order.
    """

    devices: tuple[DeviceMemory, ...] = ()
    busiest: int | None = None
    calls: tuple[AllocatorCall, ...] = ()
    call_count: int = 0
    call_ms: float = 0.0
    refused: tuple[Refused, ...] = ()


def memory_view(trace: Trace, steps: Steps, live: LiveRecord | None = None) -> MemorySummary:
    """The memory of each GPU that has records, from the allocator's totals and never from summed changes.

    The device to show first is the one with the most device time in the recorded steps; without any, the one with
    the highest peak. Where a request for memory failed in the recording, the step that it ended counts too.
    """
    marks = _marks(trace, steps, live)
    if len(marks) < 2:
        return MemorySummary()
    indices = [device for device in np.unique(trace.memory.device).tolist() if device != CPU]
    devices = tuple(_of_device(trace, steps, live, marks, device) for device in indices)
    work = np.flatnonzero(steps.step >= 0)
    busy = [int(trace.dur_ns[work[trace.device[work] == device]].sum()) for device in indices]
    ranked = sorted(range(len(devices)), key=lambda at: (-busy[at], -devices[at].memory.peak_bytes))
    calls = _allocator_calls(trace, marks)
    return MemorySummary(
        devices=devices,
        busiest=ranked[0] if ranked else None,
        calls=tuple(sorted(sorted(calls, key=lambda call: -call.dur_ms)[:MOST_CALLS], key=lambda call: call.at_ms)),
        call_count=sum(call.count for call in calls),
        call_ms=sum(call.dur_ms for call in calls),
        refused=_refused(trace, steps, live, marks)[:MOST_REFUSED],
    )


def process_memory(live: LiveRecord, marks_ns: Int64) -> tuple[Memory, Heartbeat] | None:
    """Without a GPU: what the process held, as sampled at the marks, and what names reach of it at the most."""
    samples = live.process_memory
    if not samples:
        return None
    at, most = max(samples, key=lambda sample: sample[1])
    named = held_by_name(live.owners or (), CPU)
    rest = most - sum(one.bytes for one in named)
    if named and rest >= 0:
        named = (*named, Holder(name=PROCESS_REST, role=REST, bytes=rest))
    curve = Heartbeat(
        time_ms=tuple(at / MS for at, _ in samples),
        process=tuple(size for _, size in samples),
        marks_ms=marks_ms(marks_ns),
    )
    return Memory(peak_bytes=most, peak_at_ms=at / MS, holders=largest(named)), curve


def marks_ms(marks_ns: Int64) -> tuple[float, ...]:
    """The marks, from the first one on."""
    return tuple(((marks_ns - marks_ns[0]) / MS).tolist())


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


def _ended_in_recording(live: LiveRecord | None) -> bool:
    """Whether a request for memory failed that ended the cell while it was recorded."""
    return live is not None and live.out_of_memory is not None and not live.out_of_memory.later


def _marks(trace: Trace, steps: Steps, live: LiveRecord | None) -> Int64:
    """The instants at which steps begin and the last one ends, also one that ran out of memory in its middle."""
    end = int(trace.memory.time_ns.max(initial=-1))
    if not _ended_in_recording(live) or len(steps.marks_ns) == 0 or end <= steps.marks_ns[-1]:
        return steps.marks_ns
    return np.append(steps.marks_ns, end + 1)


def _of_device(trace: Trace, steps: Steps, live: LiveRecord | None, marks: Int64, device: int) -> DeviceMemory:
    records = trace.memory
    mine = np.flatnonzero(records.device == device)
    time, totals, reserved = records.time_ns[mine], records.allocated_bytes[mine], records.reserved_bytes[mine]
    begin, stop = int(marks[0]), int(marks[-1])
    first, last = (int(at) for at in np.searchsorted(time, (begin, stop), side="right"))
    # What was held at the first mark: the total before it, else what the first record says was there before itself.
    baseline = int(totals[first - 1]) if first else int(totals[0] - records.delta_bytes[mine[0]])
    at_mark = np.searchsorted(time, steps.marks_ns, side="right")
    held = np.where(at_mark > 0, totals[np.maximum(at_mark - 1, 0)], baseline)
    lines = lines_at(trace, steps, live, time[first:last])
    time = np.concatenate(([0], time[first:last] - begin)).astype(np.int64)
    allocated = np.concatenate(([baseline], totals[first:last])).astype(np.int64)
    reserved = np.concatenate(([int(reserved[max(first - 1, 0)])], reserved[first:last])).astype(np.int64)
    peak = int(np.argmax(allocated))
    at_peak = int(time[peak]) + begin
    # Where a request failed, memory is what it was at the last one that did not.
    failed = len(marks) > len(steps.marks_ns)
    given = np.flatnonzero(np.diff(allocated) > 0) + 1
    asked = int(given[-1]) if failed and len(given) else peak
    holders, parts, growing = _whose(trace, steps, live, marks, device, first - 1 + asked, int(time[asked]) + begin)
    half = MOST_POINTS // 2 - 1
    drawn = np.arange(len(time))
    if len(time) > MOST_POINTS:
        drawn = np.union1d(thin(time, allocated, half), thin(time, reserved, half))
    scope = "" if peak == 0 else _latest(trace, Kind.ANNOTATION, at_peak)
    return DeviceMemory(
        device=device,
        memory=Memory(
            peak_bytes=int(allocated[peak]),
            peak_at_ms=int(time[peak]) / MS,
            peak_operator=_latest(trace, Kind.OPERATOR, at_peak) or None if peak else None,
            peak_line=line_number(_latest(trace, Kind.LINE, at_peak)) if peak else None,
            reserved_peak_bytes=int(reserved.max()),
            growth_bytes_per_step=_growth(held, 1 if live is None else live.cycle),
            holders=holders,
        ),
        heartbeat=Heartbeat(
            device=device,
            time_ms=tuple((time[drawn] / MS).tolist()),
            allocated=tuple(allocated[drawn].tolist()),
            reserved=tuple(reserved[drawn].tolist()),
        ),
        peak=MemoryPeak(
            step=max(int(np.searchsorted(marks, at_peak, side="right")), 1),
            range=None if not scope or scope.startswith(CUT_OFF) else scope,
            unused_bytes=max(int(reserved[peak] - allocated[peak]), 0),
            largest_free_bytes=next(
                (
                    one.largest_free_bytes
                    for one in (live.allocator if live is not None else ())
                    if one.device == device
                ),
                None,
            ),
        ),
        parts=parts,
        growing=growing,
        line_peaks={line: int(allocated[1:][lines == line].max()) for line in np.unique(lines[lines > 0]).tolist()},
        unexplained=int((np.diff(allocated) != records.delta_bytes[mine[first:last]]).sum()),
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
    trace: Trace, steps: Steps, live: LiveRecord | None, marks: Int64, device: int, record: int, at_ns: int
) -> tuple[tuple[Holder, ...], Mapping[str, tuple[tuple[str, int], ...]], tuple[Holder, ...]]:
    """(holders right after a record of the device, their parts, what grows)."""
    blocks = lifetimes(trace, steps, live, device, marks)
    if blocks is None:
        return (), {}, ()
    owners = None
    if live is not None and live.owners is not None:
        owners = [owner for owner in live.owners if owner.device == device]
    failed_step = len(marks) - 2 if len(marks) > len(steps.marks_ns) else None
    whose = Ownership(trace, blocks, owners, failed_step=failed_step)
    step = int(np.searchsorted(marks, at_ns, side="right")) - 1
    at_marks = np.searchsorted(blocks.time_ns, steps.marks_ns, side="right") - 1
    cycle = live.cycle if live is not None and steps.count > 2 * live.cycle else 1
    return whose.at(record, step), whose.parts(record, step), whose.growing(at_marks[::cycle].tolist(), cycle)


def _latest(trace: Trace, kind: Kind, at: int) -> str:
    """The name of the event of a kind that holds an instant, of several the one that began last; empty = none."""
    events = trace.select(kind)
    around = events[(trace.start_ns[events] <= at) & (trace.end_ns[events] > at)]
    return trace.names[trace.name[around[-1]]] if len(around) else ""


def _allocator_calls(trace: Trace, marks_ns: Int64) -> list[AllocatorCall]:
    """The calls between the first and the last mark with which the allocator went to the driver, in time order."""
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.role[calls], (Role.ALLOC, Role.FREE))]
    calls = calls[(trace.start_ns[calls] >= marks_ns[0]) & (trace.start_ns[calls] < marks_ns[-1])]
    if len(calls) == 0:
        return []
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    step = np.searchsorted(marks_ns, start, side="right") - 1
    what = _what(trace, calls)
    apart = start[1:] - np.maximum.accumulate(end)[:-1] > TOGETHER_NS
    breaks = np.flatnonzero(apart | (np.diff(step) != 0) | (what[1:] != what[:-1])) + 1
    return [
        AllocatorCall(
            at_ms=int(start[group[0]] - marks_ns[0]) / MS,
            dur_ms=int(trace.dur_ns[calls[group]].sum()) / MS,
            count=len(group),
            what=(ALLOCATED, FREED, RETRIED)[what[group[0]]],
            step=int(step[group[0]]) + 1,
            in_step_ms=int(start[group[0]] - marks_ns[step[group[0]]]) / MS,
        )
        for group in np.split(np.arange(len(calls)), breaks)
    ]


def _what(trace: Trace, calls: Int64) -> Int64:
    """(n,) int64: 0 = taken, 1 = given back, 2 = a retry: both kinds of calls in one operator.

    Without operators around them, as in a flush by the program itself, each is what it is.
    """
    events = trace.select(Kind.OPERATOR)
    around = innermost(
        trace.start_ns[events], trace.end_ns[events], trace.tid[events], trace.start_ns[calls], trace.tid[calls]
    )
    frees = trace.role[calls] == Role.FREE
    both = np.intersect1d(around[frees], around[~frees])
    return np.where((around >= 0) & np.isin(around, both), 2, frees.astype(np.int64))


def _refused(trace: Trace, steps: Steps, live: LiveRecord | None, marks_ns: Int64) -> tuple[Refused, ...]:
    """The requests between the first and the last mark that failed and were caught, in time order; those of one place
    and size together.

    Where the cell ended with one while it was recorded, that is the last of all and is left out.
    """
    records = trace.refused
    mine = np.flatnonzero((records.time_ns >= marks_ns[0]) & (records.time_ns < marks_ns[-1]))
    if _ended_in_recording(live):
        mine = mine[mine < len(records.time_ns) - 1]
    if len(mine) == 0:
        return ()  # most recordings have none: the operators around them need not be looked for
    at = records.time_ns[mine]
    operators = operators_at(trace, at, records.tid[mine]).tolist()
    names = [None if operator < 0 else trace.names[trace.name[operator]] for operator in operators]
    found: dict[tuple[int, int, str | None, int | None], list[int]] = {}
    for record, line, name in zip(mine.tolist(), lines_at(trace, steps, live, at).tolist(), names, strict=True):
        key = int(records.device[record]), int(records.delta_bytes[record]), name, line or None
        found.setdefault(key, []).append(record)
    return tuple(
        Refused(
            device=device,
            at_ms=int(records.time_ns[first] - marks_ns[0]) / MS,
            step=int(np.searchsorted(marks_ns, records.time_ns[first], side="right")),
            count=1 + len(others),
            asked_bytes=asked,
            allocated_bytes=int(records.allocated_bytes[first]),
            operator=operator,
            line=line,
        )
        for (device, asked, operator, line), (first, *others) in found.items()
    )
