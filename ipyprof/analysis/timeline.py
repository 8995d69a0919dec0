"""The recorded steps on the recorded clock: each step's parts and operators, and the lanes of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from ipyprof.analysis.breakdown import break_down, recorded_parts, recorded_steps
from ipyprof.analysis.intervals import union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program
from ipyprof.analysis.replay import replay
from ipyprof.analysis.results import Breakdown, Bubble, Lane, RecordedStep, Segment, Timeline
from ipyprof.formatting import time_text
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64

MS = 1e6
LANE_SEGMENTS = 1_500
MOST_STREAMS = 4
STEP_ROWS = 40
SHORT_SHARE = 0.002  # a bubble shorter than this share of the step is none
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
RUNTIME_PARTS = ("launch", "sync", "allocator", "call")
BUBBLE_WORDS = {
    "data_loading": "the next batch",
    "launch": "launches",
    "sync": "a synchronisation",
    "allocator": "memory allocation",
    "cpu": "the host",
}


def breakdown_ms(parts: Mapping[str, float], *, gpu: bool) -> Breakdown:
    """The parts of a step in ms; without a GPU the device's and CUDA's parts are ``None``.

    The calls of a CUDA whose device work was not recorded are then host time like any other: what is left adds up.
    """
    runtime = sum(parts[part] for part in RUNTIME_PARTS)
    if not gpu:
        return Breakdown(
            data_loading=parts["data_loading"] / MS, cpu=(parts["cpu"] + runtime) / MS, other=parts["other"] / MS
        )
    return Breakdown(
        **{part: parts[part] / MS for part in (*DEVICE_KEYS.values(), "data_loading", "cpu", "other")},
        runtime=runtime / MS,
    )


def breakdown_of(profile: Profile, program: Program, step_ms: float) -> Breakdown:
    """The step that remains, ``step_ms`` long, when an edited program runs instead."""
    replayed = replay(program, profile.cost_ns, once=profile.once)
    return breakdown_ms(break_down(profile.trace, program, replayed, step_ms * MS).parts, gpu=profile.has_gpu)


def per_step(profile: Profile) -> tuple[RecordedStep, ...]:
    """Each recorded step with its parts and the operators that take most of it."""
    program, whole = profile.program, profile.breakdown
    if program is None or whole is None:
        return ()
    marks = profile.steps.marks_ns
    parts = recorded_steps(profile.trace, program, whole.device, marks)
    return tuple(
        RecordedStep(
            step=step + 1,
            step_ms=(stop - begin) / MS,
            breakdown=breakdown_ms(parts[step], gpu=profile.has_gpu),
            operators=profile.operators.per_step(step)[:STEP_ROWS],
        )
        for step, (begin, stop) in enumerate(pairwise(marks.tolist()))
    )


def timeline(profile: Profile) -> Timeline | None:
    """The middle recorded step: host lanes, stream lanes, the longest bubble of the GPU; ``None`` without steps."""
    program = profile.program
    if program is None or profile.steps.count == 0:
        return None
    middle = profile.steps.count // 2
    begin, stop = (int(at) for at in profile.steps.marks_ns[middle : middle + 2])
    lanes = (*_host_lanes(profile, program, begin, stop), *_stream_lanes(profile, begin, stop))
    gpu = next((lane.name for lane in lanes if lane.kind == "device"), None)
    bubble = _bubble(profile, program, begin, stop, gpu) if gpu is not None else None
    return Timeline(start_ms=0.0, end_ms=(stop - begin) / MS, lanes=lanes, bubble=bubble)


def _host_lanes(profile: Profile, program: Program, begin: int, stop: int) -> list[Lane]:
    trace, lanes, main = profile.trace, [], profile.steps.thread
    calls = program.event >= 0
    thread = np.where(calls, trace.tid[np.maximum(program.event, 0)], main)
    operators = trace.select(Kind.OPERATOR)
    outermost = operators[profile.operators.parent[operators] < 0]
    for tid in [main, *(t for t in program.threads if t != main)]:
        mine = calls & (thread == tid)
        spans = [(program.call_from[mine], program.call_to[mine], program.call_host[mine])]
        if tid == main:
            for key in (Host.DATA_LOADING, Host.CPU):
                chosen = program.gap_host == key
                if key == Host.CPU:
                    chosen &= ~calls | mine
                spans.append((program.gap_from[chosen], program.gap_to[chosen], program.gap_host[chosen]))
        else:
            own = outermost[trace.tid[outermost] == tid]
            spans.insert(0, (trace.start_ns[own], trace.end_ns[own], np.full(len(own), int(Host.CPU), np.int64)))
        start, end, what = (np.concatenate(part) for part in zip(*spans, strict=True))
        segments = _segments(start, end, what, HOST_KEYS, begin, stop)
        if segments:
            name = "host, main" if tid == main else _thread_name(profile, tid)
            lanes.append(Lane(name=name, kind="host", segments=segments))
    return lanes


def _thread_name(profile: Profile, tid: int) -> str:
    trace = profile.trace
    events = trace.select(Kind.OPERATOR)
    names = np.unique(trace.name[events[trace.tid[events] == tid]]).tolist()
    return "autograd" if any(trace.names[name].startswith("autograd::engine") for name in names) else "host, other"


def _stream_lanes(profile: Profile, begin: int, stop: int) -> list[Lane]:
    trace = profile.trace
    work = _device_work(profile)
    work = work[(trace.end_ns[work] > begin) & (trace.start_ns[work] < stop)]
    streams, counts = np.unique(trace.stream[work], return_counts=True)
    lanes = []
    for stream in streams[np.argsort(-counts, kind="stable")][:MOST_STREAMS].tolist():
        mine = work[trace.stream[work] == stream]
        kinds = trace.kind[mine].astype(np.int64)
        segments = _segments(trace.start_ns[mine], trace.end_ns[mine], kinds, DEVICE_KEYS, begin, stop)
        name = "GPU" if len(streams) == 1 else f"GPU, stream {stream}"
        lanes.append(Lane(name=name, kind="device", segments=segments))
    return lanes


def _device_work(profile: Profile) -> Int64:
    """The records of the busiest device."""
    work = profile.trace.select(*DEVICE_KEYS)
    busiest = profile.breakdown.device if profile.breakdown is not None else -1
    mine: Int64 = work[profile.trace.device[work] == busiest]
    return mine


def _segments(
    start: Int64, end: Int64, what: Int64, keys: Mapping[int, str], begin: int, stop: int
) -> tuple[Segment, ...]:
    """The longest segments in time order; neighbours of one kind closer than a hair are one."""
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
    return tuple((round((a - begin) / MS, 5), round((b - begin) / MS, 5), key, "") for a, b, key in kept)


def _bubble(profile: Profile, program: Program, begin: int, stop: int, lane: str) -> Bubble | None:
    """The longest time in this step in which the busiest device does nothing, with what the host does then."""
    trace, whole = profile.trace, profile.breakdown
    assert whole is not None
    work = _device_work(profile)
    start, end = union(np.clip(trace.start_ns[work], begin, stop), np.clip(trace.end_ns[work], begin, stop))
    idle_from, idle_to = np.concatenate(([begin], end)), np.concatenate((start, [stop]))
    at = int(np.argmax(idle_to - idle_from))
    first, last = int(idle_from[at]), int(idle_to[at])
    if last - first < SHORT_SHARE * (stop - begin):
        return None
    share = np.minimum(program.gap_to, last) - np.maximum(program.gap_from, first)
    line = int(program.gap_line[int(np.argmax(share))]) if len(share) else 0
    parts = recorded_parts(trace, program, whole.device, first, last)
    doing = BUBBLE_WORDS[max(BUBBLE_WORDS, key=lambda part: parts[part])]
    where = f", line {line}" if line else ""
    return Bubble(
        lane=lane,
        start_ms=(first - begin) / MS,
        end_ms=(last - begin) / MS,
        text=f"GPU waits {time_text((last - first) / MS)} for {doing}{where}",
    )
