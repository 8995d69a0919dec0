"""From what was measured and found to the report: units change here, nothing is computed anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ipyprof.analysis.allocations import RETRIED
from ipyprof.analysis.breakdown import break_down, recorded_parts, recorded_steps
from ipyprof.analysis.holders import Holding, Moments, held_by_name
from ipyprof.analysis.intervals import union
from ipyprof.analysis.memory import CPU, DeviceMemory, thin
from ipyprof.analysis.operators import OperatorRow
from ipyprof.analysis.profile import Profile, amdahl_shares
from ipyprof.analysis.program import Host, Program
from ipyprof.analysis.replay import replay
from ipyprof.analysis.scopes import ScopeRow, scopes
from ipyprof.diagnosis import trust as device_state
from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.diagnosis.memory import (
    advice_after,
    allocator_at,
    checkpoint_advice,
    error_advice,
    failed_request,
    fragmentation_advice,
    growth_advice,
    holders_at_failure,
)
from ipyprof.diagnosis.trust import checks
from ipyprof.diagnosis.verdict import edited
from ipyprof.diagnosis.words import NEXT_NAMES
from ipyprof.formatting import time_text
from ipyprof.report.repeats import with_repeats
from ipyprof.report.report import (
    Breakdown,
    Device,
    Holder,
    Kernel,
    Line,
    MemoryView,
    Operator,
    Report,
    RuntimeDetail,
    Source,
    Steps,
    Throughput,
    TrustCheck,
    Utilization,
)
from ipyprof.trace.kinds import Kind
from ipyprof.trace.live import OutOfMemory
from ipyprof.trace.model import Int64

LANE_SEGMENTS = 1_500
STEP_ROWS = 40
HOST_KEYS = {
    int(Host.DATA_LOADING): "data_loading",
    int(Host.LAUNCH): "runtime",
    int(Host.SYNC): "runtime",
    int(Host.ALLOCATOR): "runtime",
    int(Host.OTHER_CALL): "runtime",
    int(Host.CPU): "cpu",
}
DEVICE_KEYS = {
    int(Kind.KERNEL): "kernel",
    int(Kind.MEMCPY): "memcpy",
    int(Kind.MEMSET): "memset",
    int(Kind.COMMUNICATION): "communication",
}
GPU_PARTS = ("kernel", "memcpy", "memset", "communication")
RUNTIME_PARTS = ("launch", "sync", "allocator", "call")


def breakdown_ms(parts: dict[str, float] | Any, *, gpu: bool) -> dict[str, float | None]:
    """The report's breakdown keys in ms; without a GPU the device's and CUDA's parts are ``None``.

    The calls of a CUDA whose device work was not recorded are then host time like any other: what is left adds up.
    """
    runtime = sum(parts[part] for part in RUNTIME_PARTS)
    whole: dict[str, float | None] = {part: parts[part] / MS for part in (*GPU_PARTS, "data_loading")}
    whole |= {"runtime": runtime / MS, "cpu": parts["cpu"] / MS, "other": parts["other"] / MS}
    if not gpu:
        whole |= dict.fromkeys((*GPU_PARTS, "runtime"))
        whole["cpu"] = (parts["cpu"] + runtime) / MS
    return whole


def heartbeat(profile: Profile) -> dict[str, Any] | None:
    """The memory curve of the busiest device on the recorded clock, or of the process without a GPU."""
    marks = ((profile.steps.marks_ns - profile.steps.marks_ns[0]) / MS).tolist()
    summary = profile.memory
    if summary.busiest is not None:
        view = summary.devices[summary.busiest]
        return {
            "time_ms": (view.time_ns / MS).tolist(),
            "allocated": view.allocated_bytes.tolist(),
            "reserved": view.reserved_bytes.tolist(),
            "marks_ms": marks,
            "calls_ms": [call.at_ns / MS for call in summary.calls],
        }
    samples = profile.live.process_memory if profile.live is not None else ()
    if not samples or profile.has_gpu:
        return None
    return {
        "time_ms": [at / MS for at, _ in samples],
        "process": [size for _, size in samples],
        "marks_ms": marks,
    }


def without(profile: Profile, verdict: Verdict) -> dict[str, Any] | None:
    """The step without the verdict's cause, by the same replay, or ``None`` where none was found."""
    program = edited(profile, verdict.cause)
    if program is None or verdict.predicted_step_ms is None:
        return None
    parts = break_down(
        profile.trace, program, replay(program, profile.cost_ns, once=profile.once), verdict.predicted_step_ms * MS
    )
    return {
        "label": NEXT_NAMES.get(verdict.cause, verdict.cause),
        "step_ms": verdict.predicted_step_ms,
        "breakdown": breakdown_ms(parts.parts, gpu=True),
    }


def per_step(profile: Profile) -> list[dict[str, Any]]:
    """Each recorded step on the recorded clock: breakdown and operators."""
    program, whole = profile.program, profile.breakdown
    if program is None or whole is None:
        return []
    marks = profile.steps.marks_ns
    parts = recorded_steps(profile.trace, program, whole.device, marks)
    return [
        {
            "step": step + 1,
            "step_ms": (stop - begin) / MS,
            "breakdown": breakdown_ms(parts[step], gpu=profile.has_gpu),
            "operators": operator_dicts(profile.operators.per_step(step)[:STEP_ROWS], 1, gpu=profile.has_gpu),
        }
        for step, (begin, stop) in enumerate(pairwise(marks.tolist()))
    ]


def operator_dicts(rows: Iterable[OperatorRow], steps: int, *, gpu: bool) -> list[dict[str, Any]]:
    """Operator rows as the report's fields, per step; ``share`` is of the device time of these rows."""
    rows = list(rows)
    device = sum(row.self_device_ns for row in rows)
    return [
        {
            "name": row.name,
            "calls": row.calls / steps,
            "self_device_ms": row.self_device_ns / steps / MS if gpu else None,
            "total_device_ms": row.total_device_ns / steps / MS if gpu else None,
            "self_host_ms": row.self_host_ns / steps / MS,
            "total_host_ms": row.total_host_ns / steps / MS,
            "share": row.self_device_ns / device if gpu and device else None,
            "shapes": row.shapes,
            "bound": row.bound if gpu else "unknown",
            "tensor_core": "n/a" if row.category == "copy" else "unknown",
            "amdahl_share": None,
        }
        for row in rows
    ]


def timeline(profile: Profile, verdict: Verdict) -> dict[str, Any] | None:
    """One recorded step on the recorded clock: host lanes, stream lanes, the longest bubble of the GPU."""
    program = profile.program
    if program is None or profile.steps.count == 0:
        return None
    middle = profile.steps.count // 2
    begin, stop = (int(at) for at in profile.steps.marks_ns[middle : middle + 2])
    lanes = [*_host_lanes(profile, program, begin, stop), *_stream_lanes(profile, begin, stop)]
    return {
        "start_ms": 0.0,
        "end_ms": (stop - begin) / MS,
        "lanes": lanes,
        "bubble": _bubble(profile, program, begin, stop, lanes) if verdict.cause != "compute_bound" else None,
    }


def _host_lanes(profile: Profile, program: Program, begin: int, stop: int) -> list[dict[str, Any]]:
    trace, lanes = profile.trace, []
    calls = program.event >= 0
    thread = np.where(calls, trace.tid[np.maximum(program.event, 0)], profile.steps.thread)
    for tid in [profile.steps.thread, *(t for t in program.threads if t != profile.steps.thread)]:
        mine = calls & (thread == tid)
        start = [program.call_from[mine]]
        end = [program.call_to[mine]]
        what = [program.call_host[mine]]
        if tid == profile.steps.thread:
            for key in (Host.DATA_LOADING, Host.CPU):
                chosen = program.gap_host == key
                if key == Host.CPU:
                    chosen &= ~calls | (thread == tid)
                start.append(program.gap_from[chosen])
                end.append(program.gap_to[chosen])
                what.append(np.full(int(chosen.sum()), int(key), np.int64))
        else:
            events = trace.select(Kind.OPERATOR)
            events = events[(trace.tid[events] == tid) & (profile.operators.parent[events] < 0)]
            start.insert(0, trace.start_ns[events])
            end.insert(0, trace.end_ns[events])
            what.insert(0, np.full(len(events), int(Host.CPU), np.int64))
        segments = _segments(np.concatenate(start), np.concatenate(end), np.concatenate(what), HOST_KEYS, begin, stop)
        if segments:
            name = "host, main" if tid == profile.steps.thread else _thread_name(profile, tid)
            lanes.append({"name": name, "kind": "host", "segments": segments})
    return lanes


def _thread_name(profile: Profile, tid: int) -> str:
    events = profile.trace.select(Kind.OPERATOR)
    events = events[profile.trace.tid[events] == tid]
    names = profile.trace.name[events]
    autograd = any(profile.trace.names[name].startswith("autograd::engine") for name in np.unique(names).tolist())
    return "autograd" if autograd else "host, other"


def _stream_lanes(profile: Profile, begin: int, stop: int) -> list[dict[str, Any]]:
    trace, whole = profile.trace, profile.breakdown
    device = whole.device if whole is not None else -1
    work = trace.select(*DEVICE_KEYS)
    work = work[(trace.device[work] == device) & (trace.end_ns[work] > begin) & (trace.start_ns[work] < stop)]
    streams, counts = np.unique(trace.stream[work], return_counts=True)
    lanes = []
    for stream in streams[np.argsort(-counts, kind="stable")][:4].tolist():
        mine = work[trace.stream[work] == stream]
        segments = _segments(
            trace.start_ns[mine], trace.end_ns[mine], trace.kind[mine].astype(np.int64), DEVICE_KEYS, begin, stop
        )
        name = "GPU" if len(streams) == 1 else f"GPU, stream {stream}"
        lanes.append({"name": name, "kind": "device", "segments": segments})
    return lanes


def _segments(start: Int64, end: Int64, what: Int64, keys: dict[int, str], begin: int, stop: int) -> list[list[Any]]:
    """[start_ms, end_ms, category, label] rows; neighbours of one kind closer than a hair are one segment."""
    hair = max((stop - begin) // (2 * LANE_SEGMENTS), 1)
    rows: list[tuple[int, int, str]] = []
    for key in np.unique(what).tolist():
        chosen = what == key
        first, last = np.clip(start[chosen], begin, stop), np.clip(end[chosen], begin, stop)
        keep = last > first
        merged_start, merged_end = union(first[keep], last[keep] + hair)
        spans = zip(merged_start.tolist(), merged_end.tolist(), strict=True)
        rows += [(a, b - hair, keys[key]) for a, b in spans]
    rows.sort(key=lambda row: -(row[1] - row[0]))
    kept = sorted(rows[:LANE_SEGMENTS])
    return [[round((a - begin) / MS, 5), round((b - begin) / MS, 5), key, ""] for a, b, key in kept]


def _bubble(
    profile: Profile, program: Program, begin: int, stop: int, lanes: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The longest time in this step in which the busiest device does nothing, with what the host does then."""
    trace, whole = profile.trace, profile.breakdown
    gpu = next((lane["name"] for lane in lanes if lane["kind"] == "device"), None)
    if whole is None or gpu is None:
        return None
    work = trace.select(*DEVICE_KEYS)
    work = work[trace.device[work] == whole.device]
    start, end = union(np.clip(trace.start_ns[work], begin, stop), np.clip(trace.end_ns[work], begin, stop))
    idle_from, idle_to = np.concatenate(([begin], end)), np.concatenate((start, [stop]))
    at = int(np.argmax(idle_to - idle_from))
    first, last = int(idle_from[at]), int(idle_to[at])
    if last - first < 0.002 * (stop - begin):
        return None
    share = np.minimum(program.gap_to, last) - np.maximum(program.gap_from, first)
    line = int(program.gap_line[int(np.argmax(share))]) if len(share) else 0
    parts = recorded_parts(trace, program, whole.device, first, last)
    doing = max(("data_loading", "launch", "sync", "allocator", "cpu"), key=lambda part: parts[part])
    words = {
        "data_loading": "the next batch",
        "launch": "launches",
        "sync": "a synchronisation",
        "allocator": "memory allocation",
        "cpu": "the host",
    }
    where = f", line {line}" if line else ""
    return {
        "lane": gpu,
        "start_ms": (first - begin) / MS,
        "end_ms": (last - begin) / MS,
        "text": f"GPU waits {time_text((last - first) / MS)} for {words[doing]}{where}",
    }


__all__ = ["Breakdown", "breakdown_ms", "heartbeat", "operator_dicts", "per_step", "timeline", "without"]

PHASE, RANGE, MODULE_CLASS, MODULE = "phase", "range", "module class", "module"
MOST_ROWS = 400
TORCHS_OWN = "Optimizer."  # torch names these ranges itself, and the phases say the same


def groups(profile: Profile) -> dict[str, list[dict[str, Any]]]:
    """Group → rows ``{"name", "within", "calls", "device_ms", "total_device_ms", "host_ms", "total_host_ms"}``.

    ``within`` are the names of what is around the row, the outermost first; rows stand in the order of the tree, what
    is outside all of them last. ``device_ms`` are a row's own, without those inside it: they add up to the operators'
    device time. Without a GPU device times are ``None``. Only groups that the recording has.
    """
    program, replayed, step = profile.program, profile.replayed, profile.step_ns
    if program is None or replayed is None or step is None:
        return {}
    found = scopes(
        profile.trace,
        profile.steps,
        program,
        replayed,
        profile.operators,
        cost_ns=profile.cost_ns,
        step_ns=step,
        live=profile.live,
    )
    named = any(row.calls is not None and not row.name.startswith(TORCHS_OWN) for row in found.ranges)
    tables = {
        PHASE: found.phases,
        RANGE: found.ranges if named else (),
        MODULE_CLASS: found.classes,
        MODULE: found.modules,
    }
    return {name: [_plain(row, gpu=profile.has_gpu) for row in _largest(rows)] for name, rows in tables.items() if rows}


def _largest(rows: Sequence[ScopeRow]) -> list[ScopeRow]:
    """The rows with the most time, in their order, and one for what the others have of their own, before the last row
    where that is what is outside all of them."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    # A row has at least the time of those inside it, and stands before them: what is around a kept row is kept.
    ranked = sorted(range(len(rows)), key=lambda at: (-rows[at].total_device_ns, -(rows[at].total_host_ns or 0.0), at))
    last = len(rows) - 1 if rows[-1].calls is None else -1
    kept = sorted({*ranked[: MOST_ROWS - 2], *([last] if last >= 0 else [])})
    left = [row for at, row in enumerate(rows) if at not in set(kept)]
    device, host = sum(row.device_ns for row in left), sum(row.host_ns or 0.0 for row in left)
    rest = ScopeRow(
        name=f"{len(left):,} more", device_ns=device, total_device_ns=device, host_ns=host, total_host_ns=host
    )
    shown = [rows[at] for at in kept]
    return [*shown[:-1], rest, shown[-1]] if last >= 0 else [*shown, rest]


def _plain(row: ScopeRow, *, gpu: bool) -> dict[str, Any]:
    return {
        "name": row.name,
        "within": list(row.within),
        "calls": row.calls,
        "device_ms": row.device_ns / MS if gpu else None,
        "total_device_ms": row.total_device_ns / MS if gpu else None,
        "host_ms": None if row.host_ns is None else row.host_ns / MS,
        "total_host_ms": None if row.total_host_ns is None else row.total_host_ns / MS,
    }


MOST_HOLDERS = 40
OTHER_POINTS = 400
MOST_REFUSED = 50
OTHERS = "other holders"
PROCESS_REST = "the rest of the process: Python, libraries, what no name reaches"


def device_memory(view: DeviceMemory) -> MemoryView:
    """One device's memory, with who holds it at the peak."""
    return MemoryView(
        peak_bytes=view.peak_bytes,
        peak_at_ms=view.peak_at_ns / MS,
        peak_operator=view.peak_operator,
        peak_line=view.peak_line,
        reserved_peak_bytes=view.reserved_peak_bytes,
        growth_bytes_per_step=view.growth_bytes_per_step,
        holders=_holders(view.holders),
    )


def shown_memory(profile: Profile, busiest: MemoryView | None) -> MemoryView | None:
    """What the report shows: the busiest device's, else what is known after a request that failed, else the process's.

    Args:
        busiest: the memory of the device that worked most, ``None`` = not measured.
    """
    if busiest is not None:
        return busiest
    summary, failed = profile.memory, failed_request(profile)
    if failed is not None:
        if summary.busiest is not None:
            return device_memory(summary.devices[summary.busiest])
        state = allocator_at(profile, failed)
        allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else None)
        if allocated:
            return MemoryView(
                peak_bytes=allocated,
                peak_at_ms=None,
                peak_line=failed.line,
                holders=_holders(holders_at_failure(profile)),
            )
    return _process_memory(profile)


def memory_views(profile: Profile) -> dict[str, Any] | None:
    """``views["memory"]``: what stands beside the numbers; ``None`` where there is nothing.

    Keys, each only where it is known:

    * ``peak``: its recorded ``step``, from 1, its ``range``, ``unused_bytes`` that were reserved beyond it, and
      ``largest_free_bytes`` of the cache when recording ended;
    * ``parts``: holder → [[layer, bytes], ...]; ``growing``: holders with bytes per step; ``advice``: sentences;
    * ``moments``: who holds what at each point of the heartbeat, see ``moments_at``;
    * ``devices``: the heartbeats of the devices beside the busiest;
    * ``calls``: [[ms, ms long, count, what, step, ms in the step], ...], with ``call_count`` and ``call_ms`` of all;
    * ``refused``: requests that failed and were caught; ``out_of_memory``: the one that ended the cell, with its
      ``holders`` and ``advice``;
    * ``other_processes``: bytes; ``incomplete``: not all names were looked at.
    """
    summary, live, failed = profile.memory, profile.live, failed_request(profile)
    view = summary.devices[summary.busiest] if summary.busiest is not None else None
    found: dict[str, Any] = {}
    if view is not None:
        found["parts"] = {one.name: [list(part) for part in one.parts] for one in view.holders if len(one.parts) > 1}
        state = next((one for one in live.allocator if one.device == view.device), None) if live is not None else None
        found["peak"] = {
            "step": view.peak_step + 1,
            "range": view.peak_range,
            "unused_bytes": view.peak_unused_bytes,
            "largest_free_bytes": state.largest_free_bytes if state is not None else None,
        }
        found["growing"] = [{"name": one.name, "bytes": one.bytes, "line": one.line} for one in view.growing]
        found["advice"] = [*growth_advice(view.growing)]
        if failed is None:
            found["advice"] += error_advice(view.holders)
            found["advice"] += checkpoint_advice(view.holders)
            found["advice"] += fragmentation_advice(
                view.peak_bytes,
                view.peak_unused_bytes,
                state,
                retried=any(call.what == RETRIED for call in summary.calls),
            )
        found["devices"] = [_curve(other) for other in summary.devices if other is not view]
        if view.moments is not None:
            found["moments"] = _moments(view.moments)
    if summary.calls:
        found["calls"] = [
            [one.at_ns / MS, one.dur_ns / MS, one.count, one.what, one.step + 1, one.in_step_ns / MS]
            for one in summary.calls
        ]
        found |= {"call_count": summary.call_count, "call_ms": summary.call_ns / MS}
    found["refused"] = [
        {
            "device": one.device,
            "at_ms": one.at_ns / MS,
            "step": one.step + 1,
            "count": one.count,
            "asked_bytes": one.asked_bytes,
            "allocated_bytes": one.allocated_bytes,
            "operator": one.operator,
            "line": one.line,
        }
        for one in summary.refused[:MOST_REFUSED]
    ]
    if live is not None and live.device_state is not None and live.device_state.others_bytes:
        found["other_processes"] = live.device_state.others_bytes
    if failed is not None:
        found["out_of_memory"] = _failure(profile, failed)
    if live is not None and live.owners is not None and not live.owners_complete:
        found["incomplete"] = True
    return {key: value for key, value in found.items() if value} or None


def _curve(view: DeviceMemory) -> dict[str, Any]:
    """One device's heartbeat as ``views["heartbeat"]`` has it, in fewer points, and its number."""
    drawn = np.arange(len(view.time_ns))
    if len(drawn) > OTHER_POINTS:
        half = OTHER_POINTS // 2
        drawn = np.union1d(
            thin(view.time_ns, view.allocated_bytes, half), thin(view.time_ns, view.reserved_bytes, half)
        )
    return {
        "device": view.device,
        "time_ms": (view.time_ns[drawn] / MS).tolist(),
        "allocated": view.allocated_bytes[drawn].tolist(),
        "reserved": view.reserved_bytes[drawn].tolist(),
    }


def _moments(moments: Moments) -> dict[str, Any]:
    """``names``, ``time_ms``, the bytes of each name at the ``first`` of these, and the ``changes`` at each later one.

    A change is a flat list: index of a name, its bytes from then on, index, bytes, and so on.
    """
    rows: list[list[int]] = [[] for _ in moments.time_ns]
    later, column = np.nonzero(np.diff(moments.bytes, axis=0))
    for at, name, size in zip(
        (later + 1).tolist(), column.tolist(), moments.bytes[later + 1, column].tolist(), strict=True
    ):
        rows[at] += (name, size)
    return {
        "time_ms": (moments.time_ns / MS).tolist(),
        "names": list(moments.names),
        "first": moments.bytes[0].tolist(),
        "changes": rows[1:],
    }


def moments_at(moments: Mapping[str, Any], at_ms: float) -> dict[str, int]:
    """Holder → bytes at an instant of the recorded clock, from ``views["memory"]["moments"]``."""
    held = [int(size) for size in moments["first"]]
    for time_ms, change in zip(moments["time_ms"][1:], moments["changes"], strict=True):
        if time_ms > at_ms:
            break
        for name, size in zip(change[::2], change[1::2], strict=True):
            held[name] = int(size)
    return dict(zip(moments["names"], held, strict=True))


def _failure(profile: Profile, failed: OutOfMemory) -> dict[str, Any]:
    holders, state = holders_at_failure(profile), allocator_at(profile, failed)
    allocated, unused = failed.allocated_bytes, failed.unused_bytes
    if allocated is None and state is not None:
        allocated, unused = state.allocated_bytes, state.reserved_bytes - state.allocated_bytes
    return {
        "line": failed.line,
        "device": failed.device,
        "tried_bytes": failed.tried_bytes,
        "capacity_bytes": failed.capacity_bytes or (state.device_total_bytes if state is not None else None),
        "free_bytes": failed.free_bytes,
        "allocated_bytes": allocated,
        "reserved_bytes": None if allocated is None or unused is None else allocated + unused,
        "unused_bytes": unused,
        "largest_free_bytes": state.largest_free_bytes if state is not None else None,
        "later": failed.later,
        "text": failed.text,
        "holders": [
            {"name": one.name, "bytes": one.bytes, "line": one.line} for one in _holders(holders)[:MOST_HOLDERS]
        ],
        "advice": list(advice_after(profile, failed)),
    }


def _holders(holdings: Sequence[Holding]) -> tuple[Holder, ...]:
    """The largest by name and the others as one, so that they still add up."""
    shown, rest = holdings[:MOST_HOLDERS], holdings[MOST_HOLDERS:]
    found = [Holder(name=one.name, bytes=one.bytes, line=one.line) for one in shown]
    if rest:
        found.append(Holder(name=f"{len(rest)} {OTHERS}", bytes=sum(one.bytes for one in rest)))
    return tuple(found)


def _process_memory(profile: Profile) -> MemoryView | None:
    """Without a GPU: what the process held, as sampled at the marks, and what names reach of it."""
    live = profile.live
    samples = live.process_memory if live is not None and not profile.has_gpu else ()
    if live is None or not samples:
        return None
    at, most = max(samples, key=lambda sample: sample[1])
    named = held_by_name(live.owners or (), CPU)
    rest = most - sum(holding.bytes for holding in named)
    if named and rest >= 0:
        named = (*named, Holding(name=PROCESS_REST, role="rest", bytes=rest, line=None))
    return MemoryView(peak_bytes=most, peak_at_ms=at / MS, holders=_holders(sorted(named, key=lambda one: -one.bytes)))


MS = 1e6
TOP = 10
VERSION_KEYS = {"cuda": "cuda_runtime_version", "cupti": "cupti_version"}


def build_report(profile: Profile, findings: tuple[Finding, ...], verdict: Verdict, *, source: Source) -> Report:
    """The report of one profile. ``source`` says where it came from; its cell comes from the live record if empty."""
    live, whole = profile.live, profile.breakdown
    if live is not None:
        source = replace(
            source, cell=source.cell or tuple(live.source.splitlines()), partial=source.partial or live.partial
        )
    gpu = profile.has_gpu
    parts = whole.parts if whole is not None else None
    runtime = {
        key: parts[key] / MS if parts is not None and gpu else None for key in ("launch", "sync", "allocator", "call")
    }
    devices = _devices(profile)
    busiest = next((device for device in devices if whole is not None and device.index == whole.device), None)
    none = dict.fromkeys(("kernel", "memcpy", "memset", "communication", "data_loading", "runtime", "cpu", "other"))
    report = Report(
        source=source,
        environment=_environment(profile),
        device=busiest,
        devices=devices,
        steps=_steps(profile),
        breakdown=Breakdown(**(breakdown_ms(parts, gpu=gpu) if parts is not None else none)),
        runtime_detail=RuntimeDetail(
            launch=runtime["launch"], sync=runtime["sync"], allocator=runtime["allocator"], other=runtime["call"]
        ),
        communication_total_ms=whole.communication_total_ns / MS if whole is not None and gpu else None,
        utilization=_utilization(profile),
        operators=_operators(profile),
        kernels=_kernels(profile),
        lines=_lines(profile),
        memory=shown_memory(profile, busiest.memory if busiest is not None else None),
        findings=findings,
        verdict=verdict,
        trust=tuple(TrustCheck(check=c.check, status=c.status, text=c.text) for c in checks(profile)),
        views=_views(profile, verdict),
    )
    return report if live is None or live.repeats is None else with_repeats(report, live.repeats)


def _views(profile: Profile, verdict: Verdict) -> dict[str, Any]:
    found = {
        "heartbeat": heartbeat(profile),
        "memory": memory_views(profile),
        "without": without(profile, verdict),
        "per_step": per_step(profile),
        "timeline": timeline(profile, verdict),
        "groups": groups(profile),
        "device_state": device_state.view(profile),
    }
    return {key: value for key, value in found.items() if value}


def _environment(profile: Profile) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(("torch", "cuda", "cupti", "python"))
    for key, name in VERSION_KEYS.items():
        value = profile.trace.metadata.get(name)
        if value is not None:
            found[key] = str(value)
    if profile.live is not None:
        found |= {key: str(value) for key, value in profile.live.environment.items() if value is not None}
    return found


def _steps(profile: Profile) -> Steps:
    live = profile.live
    step_ms = None if profile.step_ns is None else profile.step_ns / MS
    throughput = None
    if live is not None and live.items is not None and step_ms:
        throughput = Throughput(value=live.items / step_ms * 1000, unit=f"{live.unit}/s")
    return Steps(
        count=profile.steps.count,
        how=live.how if live is not None and live.how else profile.steps.how,
        step_ms=step_ms,
        profiled_step_ms=None if profile.profiled_step_ns is None else profile.profiled_step_ns / MS,
        overhead=profile.overhead,
        per_step_ms=tuple(ns / MS for ns in live.baseline_ns) if live is not None else (),
        profiled_per_step_ms=tuple(ns / MS for ns in live.profiled_ns) if live is not None else (),
        throughput=throughput,
        baseline=live.baseline if live is not None else "none",
        cycle=live.cycle if live is not None else 1,
        alternatives=live.alternatives if live is not None else (),
    )


def _devices(profile: Profile) -> tuple[Device, ...]:
    names = {device.index: device.name for device in profile.trace.devices}
    if profile.live is not None:
        names |= {int(index): name for index, name in profile.live.device_names.items()}
    memory = {view.device: view for view in profile.memory.devices}
    busy = profile.breakdown.device_busy_ns if profile.breakdown is not None else {}
    step = profile.step_ns
    return tuple(
        Device(
            name=names.get(index, f"device {index}"),
            index=index,
            busy_share=busy[index] / step if index in busy and step else None,
            memory=device_memory(memory[index]) if index in memory else None,
        )
        for index in profile.devices
    )


def _utilization(profile: Profile) -> Utilization:
    nvml = profile.live.utilization if profile.live is not None else None
    whole, step = profile.breakdown, profile.step_ns
    if whole is None or not step or not profile.has_gpu:
        return Utilization(nvml=nvml)
    covered = profile.kernels.covered_sm_ns
    busy = whole.parts["kernel"] / step
    share = None if covered is None else min(covered / profile.kernels.steps / step, busy)
    tensor_core = profile.roofline.tensor_core_share
    return Utilization(
        nvml=nvml,
        kernel_busy=busy,
        sm_coverage=share,
        mfu=profile.roofline.mfu,
        tensor_core=None if tensor_core is None else min(tensor_core, busy),
    )


def _operators(profile: Profile) -> tuple[Operator, ...]:
    table, gpu = profile.operators, profile.has_gpu
    steps = max(table.steps, 1)
    order = list(range(len(table.rows)))
    if not gpu:
        order.sort(key=lambda at: (-table.rows[at].self_host_ns, table.rows[at].name))
    rows = [Operator(**fields) for fields in operator_dicts((table.rows[at] for at in order), steps, gpu=gpu)]
    program, replayed = profile.program, profile.replayed
    if gpu:
        roofs = [profile.roofline.rows[at] for at in order]
        rows = [
            replace(row, bound=row.bound if row.bound != "unknown" else roof.bound, tensor_core=roof.tensor_core)
            for row, roof in zip(rows, roofs, strict=True)
        ]
    if gpu and program is not None and replayed is not None:
        shares = amdahl_shares(profile.trace, program, replayed, profile.cost_ns, table, TOP, once=profile.once)
        rows[: len(shares)] = [replace(row, amdahl_share=share) for row, share in zip(rows, shares, strict=False)]
    return tuple(rows)


def _kernels(profile: Profile) -> tuple[Kernel, ...]:
    steps = max(profile.kernels.steps, 1)
    return tuple(
        Kernel(
            name=row.name,
            calls=row.calls / steps,
            device_ms=row.device_ns / steps / MS,
            tensor_core=profile.roofline.kernel_tensor_core.get(row.name, row.tensor_core),
            bound=row.bound if row.bound != "unknown" else profile.roofline.kernel_bound.get(row.name, "unknown"),
            est_occupancy=row.est_occupancy,
        )
        for row in profile.kernels.rows
    )


def _lines(profile: Profile) -> tuple[Line, ...]:
    """Every line of the cell, measured or not; empty where no line has a cost."""
    if profile.live is None or not profile.lines:
        return ()
    costs = {cost.line: cost for cost in profile.lines}
    memory = profile.memory
    peaks = memory.devices[memory.busiest].line_peaks if memory.busiest is not None else {}
    rows = []
    for number, text in enumerate(profile.live.source.splitlines(), start=1):
        cost = costs.get(number)
        rows.append(
            Line(
                line=number,
                source=text,
                device_ms=None if not profile.has_gpu else cost.device_ns / MS if cost is not None else 0.0,
                host_ms=cost.host_ns / MS if cost is not None else 0.0,
                sync_count=None if not profile.has_gpu else cost.sync_count if cost is not None else 0.0,
                peak_bytes=peaks.get(number),
            )
        )
    return tuple(rows)
