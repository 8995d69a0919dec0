"""The GPU waits for copies between host and device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.attribution import around
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Bool, Program
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Cause, Finding, Where, gain_of, measured, top_line
from ipyprof.formatting import percent_short, size_text, time_text
from ipyprof.trace.kinds import Kind, copy_direction
from ipyprof.trace.model import Int64

SYNCS = (Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD)


class Transfer(Cause):
    id = "transfer"
    name = "copies"
    subject = ("Copies", " hold this step back")
    without = "without the copies"
    checked = "copies"
    bound = "IO-bound (copies between host and GPU)"
    sentence = "{waiting} for copies: {cost}; copying beside the kernels makes it {best}."
    part = "memcpy"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when large copies are not made or run beside the kernels."""
        program, _ = measured(profile)
        found = copies(profile, program)
        if len(found.items) == 0:
            return self.absent(profile, "no copy of 1 MB or more between host and device in the recorded steps")
        gain = gain_of(profile, self.edit(profile, program))
        # What is said is of the direction that takes longer.
        spent = program.dur[found.records]
        there = float(spent[found.to_device].sum()) >= float(spent[~found.to_device].sum())
        mainly = found.of(found.to_device == there)
        spent = program.dur[mainly.records]
        line = top_line(program.call_line[mainly.items], spent)
        size, time = float(mainly.size.sum()) / program.steps, float(spent.sum()) / program.steps
        rate = size / time if time else 0.0
        way = f"to the GPU in a step{_memory(mainly)}" if there else "to the host in a step"
        seen = f"{size_text(size)} {way}, {time_text(time / 1e6)}"
        return self.judged(
            profile,
            gain,
            evidence=f"{seen}, {rate:.1f} GB/s",
            cleared=f"{seen}; removing the wait recovers {percent_short(gain.share)} of the step",
            advice=_advice(mainly),
            where=Where(operator="aten::copy_", line=line),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Copies to the host do not happen; copies to the device run at the pinned rate beside the kernels."""
        found = copies(profile, program)
        if len(found.items) == 0:
            return program
        program = program.cut(*_releases(profile, program, found), records=False)
        act, own, last, dur, stream = (
            column.copy() for column in (program.act, program.own, program.last, program.dur, program.stream)
        )
        idle, pause, latency, depends = (
            column.copy() for column in (program.idle, program.pause, program.latency, program.depends)
        )
        quiet = found.waits.copy()
        quiet[found.items[found.alone]] = True
        act[found.waits] = Act.PLAIN
        launches = program.own[program.act == Act.LAUNCH]
        own[quiet] = np.minimum(own[quiet], float(np.median(launches)) if len(launches) else 0.0)
        home = found.items[~found.to_device & found.alone]
        last[home], act[home] = program.first[home], Act.PLAIN
        dur[found.records[~found.to_device & ~found.alone]] = 0.0
        sent = found.records[found.to_device]
        act[found.items[found.to_device]] = Act.LAUNCH
        dur[sent] = np.minimum(dur[sent], found.size[found.to_device] / pinned_rate(profile) * 1e9)
        stream[sent], idle[sent], pause[sent], latency[sent] = len(program.ready), True, 0.0, 0.0
        depends[np.isin(depends, found.records)] = -1
        return replace(
            program,
            act=act,
            own=own,
            last=last,
            dur=dur,
            stream=stream,
            idle=idle,
            pause=pause,
            latency=latency,
            depends=depends,
            ready=np.append(program.ready, -np.inf),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """The large copies between host and device.

    Attributes:
        items: (c,) host item of each; records: (c,) its device record; size: (c,) bytes.
        to_device: (c,) bool; pageable: (c,) int64, the host's memory: 1 pageable, 0 pinned, -1 the file does not say.
        alone: (c,) bool, the item launches nothing else: a copy may be one node of a graph.
        waits: (k,) bool per host item: the synchronisation behind such a copy, in the same operator.
    """

    items: Int64
    records: Int64
    size: Int64
    to_device: Bool
    pageable: Int64
    alone: Bool
    waits: Bool

    def of(self, chosen: Bool) -> Copies:
        """Some of the copies: ``chosen`` is (c,)."""
        return replace(
            self,
            items=self.items[chosen],
            records=self.records[chosen],
            size=self.size[chosen],
            to_device=self.to_device[chosen],
            pageable=self.pageable[chosen],
            alone=self.alone[chosen],
        )


def copies(profile: Profile, program: Program) -> Copies:
    """Copies of at least ``LARGE_COPY_BYTES`` between host and device, with the waits that belong to them."""
    trace = profile.trace
    length = program.last - program.first
    item = np.repeat(np.arange(len(program.act)), length)
    record = np.arange(int(length.sum())) + np.repeat(program.first - (np.cumsum(length) - length), length)
    copied = trace.kind[program.record[record]] == Kind.MEMCPY
    chosen: list[tuple[int, int, int, bool, int]] = []
    for at, index in zip(item[copied].tolist(), record[copied].tolist(), strict=True):
        event = int(program.record[index])
        direction, pageable = copy_direction(trace.names[trace.name[event]])
        detail = trace.detail_of(event)
        size = detail.moved_bytes if detail is not None and detail.moved_bytes is not None else 0
        if direction in ("HtoD", "DtoH") and size >= thresholds.LARGE_COPY_BYTES:
            chosen.append((at, index, size, direction == "HtoD", -1 if pageable is None else int(pageable)))
    columns = np.array(chosen, np.int64).reshape(-1, 5)
    return Copies(
        items=columns[:, 0],
        records=columns[:, 1],
        size=columns[:, 2],
        to_device=columns[:, 3] > 0,
        pageable=columns[:, 4],
        alone=length[columns[:, 0]] == 1,
        waits=_waits_behind(profile, program, columns[:, 0]),
    )


def _releases(profile: Profile, program: Program, found: Copies) -> tuple[Int64, Int64]:
    """(start, end) recorded ns behind each copy to the host in which the host tensor of the copy before is given back.

    That is from the end of the outermost operator around the copy to the next operator, call or line, and not longer
    than giving back so many bytes takes: what lies beyond is the statement's own work with the copy.
    """
    trace = profile.trace
    events = trace.select(Kind.OPERATOR)
    home = found.items[~found.to_device]
    outer = events[profile.operators.parent[events] < 0]
    within = around(trace, outer, program.event[home])
    known = within >= 0
    start = trace.end_ns[outer[within[known]]] if len(outer) else np.empty(0, np.int64)
    longest = found.size[~found.to_device][known] / thresholds.RELEASE_RATE * 1e9
    begins = np.sort(np.concatenate((program.call_from, trace.start_ns[events], [program.stop])))
    following = begins[np.minimum(np.searchsorted(begins, start), len(begins) - 1)]
    return start, np.maximum(np.minimum(following, start + longest.astype(np.int64)), start)


def _memory(found: Copies) -> str:
    """From what kind of host memory, in words; empty where the file does not say."""
    if (found.pageable == 1).any():
        return " from pageable memory"
    return " from pinned memory" if (found.pageable == 0).all() else ""


def pinned_rate(profile: Profile) -> float:
    """Bytes per second from pinned memory: the best seen in the trace, else by compute capability."""
    trace = profile.trace
    best = 0.0
    for event in trace.select(Kind.MEMCPY).tolist():
        direction, pageable = copy_direction(trace.names[trace.name[event]])
        detail = trace.detail_of(event)
        if direction == "HtoD" and pageable is False and detail is not None and trace.dur_ns[event] > 0:
            moved = detail.moved_bytes or 0
            if moved >= thresholds.LARGE_COPY_BYTES:
                best = max(best, moved / float(trace.dur_ns[event]) * 1e9)
    if best:
        return best
    capability = next((device.compute_capability for device in trace.devices if device.compute_capability), None)
    major = capability[0] if capability is not None else 0
    return thresholds.PINNED_RATE.get(major, thresholds.PINNED_RATE_UNKNOWN)


def _waits_behind(profile: Profile, program: Program, items: Int64) -> Bool:
    """(k,) bool: synchronising items in the operator that made one of these copies, behind it."""
    waits = np.zeros(len(program.act), bool)
    syncs = np.flatnonzero(np.isin(program.act, SYNCS) & (program.event >= 0))
    if len(syncs) == 0 or len(items) == 0:
        return waits
    owner = operator_of(profile, program, np.concatenate((items, syncs)))
    made, asked = owner[: len(items)], owner[len(items) :]
    # The first copy of each operator: a synchronisation behind it belongs to it.
    order = np.lexsort((items, made))
    operators, first = np.unique(made[order], return_index=True)
    place = np.minimum(np.searchsorted(operators, asked), len(operators) - 1)
    waits[syncs] = (asked >= 0) & (operators[place] == asked) & (items[order][first][place] < syncs)
    return waits


def operator_of(profile: Profile, program: Program, items: Int64) -> Int64:
    """(i,) int64: the innermost operator event around each item's call, -1 = none."""
    trace = profile.trace
    events = trace.select(Kind.OPERATOR)
    found = around(trace, events, program.event[items])
    return np.where(found >= 0, events[np.maximum(found, 0)] if len(events) else -1, -1).astype(np.int64)


def _advice(found: Copies) -> str:
    if not found.to_device.any():
        return "Keep the result on the GPU; copy it to the host once, after the loop."
    if (found.pageable != 0).any():
        return "Copy from pinned memory without blocking: DataLoader(pin_memory=True), x.to(device, non_blocking=True)."
    return "Copy the next batch on a stream of its own while the GPU works on this one."
