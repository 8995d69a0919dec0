"""What the pictures need, as plain JSON: heartbeat, the step without its cause, each recorded step, timeline."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from ipyprof.analysis.breakdown import Breakdown, break_down, recorded_parts, recorded_steps
from ipyprof.analysis.intervals import union
from ipyprof.analysis.operators import OperatorRow
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program
from ipyprof.analysis.replay import replay
from ipyprof.diagnosis.finding import Verdict
from ipyprof.diagnosis.verdict import edited
from ipyprof.diagnosis.words import NEXT_NAMES
from ipyprof.formatting import time_text
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64

MS = 1e6
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
