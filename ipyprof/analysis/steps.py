"""Where steps begin and end on the host, and which step launched each piece of device work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.trace.kinds import DEVICE_KINDS, Kind, Role
from ipyprof.trace.model import Int64, Trace
from ipyprof.trace.reader import ENDS_EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The recorded steps. Step i is [marks_ns[i], marks_ns[i + 1]) on the host's clock.

    Attributes:
        marks_ns: (steps + 1,) int64, sorted.
        ends_ns: (steps,) int64, where each step's own range ends; the mark behind it follows within microseconds.
        thread: tid that marked the steps (without marks: the thread that launches most), -1 = none.
        how: how the steps were found, in words.
        launch: (n,) int64; for a device record the index of the API call that launched it, -1 = no call in the file.
        step: (n,) int64; for a device record the step whose marks hold its launch, -1 = outside or launched before.
        carried: indices of device records whose launch is not in the file ("carried over").
    """

    marks_ns: Int64
    ends_ns: Int64
    thread: int
    how: str
    launch: Int64
    step: Int64
    carried: Int64

    @property
    def count(self) -> int:
        """Number of whole steps."""
        return len(self.marks_ns) - 1

    def of_time(self, at: Int64) -> Int64:
        """(m,) int64 step that holds each host instant, -1 = none."""
        index = np.searchsorted(self.marks_ns, at, side="right") - 1
        return np.where((index >= 0) & (index < self.count), index, -1).astype(np.int64)


def ends_early(trace: Trace) -> bool:
    """Whether the file was cut off: then nothing tells which records are missing.

    Kineto writes the host's ranges first and the calls and GPU records behind them, so that a cut takes a launch with
    its kernel and no launch is left without one.
    """
    return ENDS_EARLY in trace.damage


def find_steps(trace: Trace, *, live: bool = False) -> Steps:
    """The steps of a trace: its ``ProfilerStep`` marks on the host, or one step that spans everything.

    With ``live`` a recording without marks has no step: what it holds was cut off before its first step was whole.
    """
    launch = launching_calls(trace)
    marks, ends, thread, how = _marks(trace)
    if live and not bool((trace.kind == Kind.STEP).any()):
        marks, ends = marks[:1], ends[:0]
    device = trace.select(*DEVICE_KINDS)
    step = np.full(len(trace), -1, np.int64)
    owned = device[launch[device] >= 0]
    index = np.searchsorted(marks, trace.start_ns[launch[owned]], side="right") - 1
    step[owned] = np.where((index >= 0) & (index < len(marks) - 1), index, -1)
    carried = device[launch[device] < 0]
    return Steps(marks_ns=marks, ends_ns=ends, thread=thread, how=how, launch=launch, step=step, carried=carried)


def launching_calls(trace: Trace) -> Int64:
    """(n,) int64: for each device record the index of the API call that launched it, -1 elsewhere.

    That is the call with its correlation. Older files without any have the external id in common instead, with the
    launch and with calls that launch nothing.
    """
    launch = np.full(len(trace), -1, np.int64)
    calls, device = trace.select(Kind.CALL), trace.select(*DEVICE_KINDS)
    if not trace.correlation[device].any():
        launching = np.isin(trace.role[calls], (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.MEMSET))
        return _joined(launch, device, calls[launching], trace.external_id)
    # A correlation seen twice (a runtime call and the driver call inside it) belongs to the outer, earlier one.
    return _joined(launch, device, calls, trace.correlation)


def _joined(launch: Int64, device: Int64, calls: Int64, ids: Int64) -> Int64:
    """``launch`` with the first of ``calls`` at each of ``device`` that has its id; an id of 0 is none."""
    calls = calls[ids[calls] != 0]
    if len(calls) == 0 or len(device) == 0:
        return launch
    order = calls[np.argsort(ids[calls], kind="stable")]
    keys = ids[order]
    at = np.searchsorted(keys, ids[device])
    hit = (at < len(keys)) & (keys[np.minimum(at, len(keys) - 1)] == ids[device])
    launch[device[hit]] = order[at[hit]]
    return launch


def recorded_step_ns(trace: Trace, steps: Steps) -> float | None:
    """ns from step to step as recorded; ``None`` without steps.

    From the last device end of the first step to that of the last step where both have device work, else from the
    marks. The host's marks alone are not the step: the host runs ahead.
    """
    if steps.count < 1:
        return None
    first, last = (np.flatnonzero(steps.step == step) for step in (0, steps.count - 1))
    if steps.count > 1 and len(first) and len(last):
        span = int(trace.end_ns[last].max()) - int(trace.end_ns[first].max())
        if span > 0:
            return span / (steps.count - 1)
    stop = int(steps.marks_ns[-1])
    if steps.count == 1 and len(first):
        stop = max(stop, int(trace.end_ns[first].max()))
    return (stop - int(steps.marks_ns[0])) / steps.count


def _marks(trace: Trace) -> tuple[Int64, Int64, int, str]:
    steps = trace.select(Kind.STEP)
    if len(steps):
        threads, counts = np.unique(trace.tid[steps], return_counts=True)
        thread = int(threads[np.argmax(counts)])
        mine = steps[trace.tid[steps] == thread]
        start, end = trace.start_ns[mine], trace.end_ns[mine]
        # Annotation ends can lie some microseconds after the next start; starts are the marks, the last end closes.
        marks = np.append(start, max(int(end[-1]), int(start[-1])))
        return marks, np.minimum(end, marks[1:]), thread, f"{len(mine)} step marks"
    host = trace.select(Kind.CALL, Kind.OPERATOR, Kind.ANNOTATION, Kind.LOADER)
    used = np.concatenate((host, trace.select(*DEVICE_KINDS)))
    if len(used) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64), -1, "no step marks"
    thread = -1
    if len(host):
        calls = trace.select(Kind.CALL)
        threads, counts = np.unique(trace.tid[calls if len(calls) else host], return_counts=True)
        thread = int(threads[np.argmax(counts)])
    stop = int(trace.end_ns[used].max())
    return np.array([trace.start_ns[used].min(), stop], np.int64), np.array([stop], np.int64), thread, "no step marks"
