"""Where one step's time goes: disjoint parts that add up to the step exactly, swept over a replayed steady pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.intervals import covered, sweep, sweep_windows
from ipyprof.analysis.program import Host, Program
from ipyprof.analysis.replay import Replayed, fold
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, Trace

FITS = 0.05  # a replayed step this close to the measured one is the same step; its parts are scaled to it

DEVICE_PARTS = (
    ("kernel", Kind.KERNEL),
    ("memcpy", Kind.MEMCPY),
    ("memset", Kind.MEMSET),
    ("communication", Kind.COMMUNICATION),
)
HOST_PARTS = (
    ("data_loading", Host.DATA_LOADING),
    ("launch", Host.LAUNCH),
    ("sync", Host.SYNC),
    ("allocator", Host.ALLOCATOR),
    ("call", Host.OTHER_CALL),
    ("cpu", Host.CPU),
)
PARTS = (*(part for part, _ in DEVICE_PARTS), *(part for part, _ in HOST_PARTS), "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """ns of one step by part, keys ``PARTS``; they add up to ``step_ns``. ``launch`` to ``call`` are "runtime".

    Attributes:
        parts: float ns per part.
        step_ns: the step they add up to.
        communication_total_ns: device time in collectives, overlapped or not, per step.
        device: index of the device they describe (the busiest), -1 = none.
        device_busy_ns: device index → ns per step in which it worked at all.
    """

    parts: Mapping[str, float]
    step_ns: float
    communication_total_ns: float
    device: int
    device_busy_ns: Mapping[int, float]


def break_down(trace: Trace, program: Program, replayed: Replayed, step_ns: float) -> Breakdown:
    """The parts of one step of ``step_ns``, in the proportions of the replayed steady state.

    The steady pass repeats with its period, so it is folded into one period: what lies beyond comes round again. Where
    replay and step differ by over ``FITS``, a longer step leaves the difference in ``other``.
    """
    period = max(round(replayed.step_ns * program.steps), 1)
    origin = float(replayed.gap_begin[0]) if len(replayed.gap_begin) else float(program.begin)
    kinds = trace.kind[program.record]
    devices = trace.device[program.record]
    busy: dict[int, float] = {}
    spans: dict[int, tuple[Int64, Int64]] = {}
    for device in np.unique(devices).tolist():
        mine = devices == device
        spans[device] = fold(replayed.record_start[mine], replayed.record_end[mine], origin, period)
        busy[device] = covered(*spans[device]) / program.steps
    busiest = max(busy, key=lambda device: busy[device]) if busy else -1
    mine = devices == busiest
    layers = [_device(replayed, mine & (kinds == kind), origin, period) for _, kind in DEVICE_PARTS]
    layers += [_host(program, replayed, int(what), origin, period) for _, what in HOST_PARTS]
    owned = [ns / program.steps for ns in sweep(layers, 0, period)]
    parts = dict(zip(PARTS, owned, strict=True))
    total = period / program.steps
    communication = covered(*layers[3]) / program.steps
    if step_ns <= total * (1 + FITS):
        scale = step_ns / total
        parts = {part: ns * scale for part, ns in parts.items()}
        communication *= scale
        busy = {device: ns * scale for device, ns in busy.items()}
    # What rounding leaves is no part: it may be below zero by the last bit.
    parts["other"] = max(step_ns - sum(ns for part, ns in parts.items() if part != "other"), 0.0)
    return Breakdown(
        parts=parts,
        step_ns=step_ns,
        communication_total_ns=communication,
        device=busiest,
        device_busy_ns=busy,
    )


def recorded_parts(trace: Trace, program: Program, device: int, begin: int, stop: int) -> dict[str, float]:
    """ns by part of [begin, stop) as recorded, on the recorded clock; they add up to stop - begin."""
    return recorded_steps(trace, program, device, np.array([begin, stop], np.int64))[0]


def recorded_steps(trace: Trace, program: Program, device: int, marks: Int64) -> list[dict[str, float]]:
    """As ``recorded_parts``, for each window between two neighbours of ``marks``: (windows + 1,) int64, sorted."""
    mine = trace.device[program.record] == device
    kinds = trace.kind[program.record]
    layers = []
    for _, kind in DEVICE_PARTS:
        chosen = program.record[mine & (kinds == kind)]
        layers.append((trace.start_ns[chosen], trace.end_ns[chosen]))
    for _, what in HOST_PARTS:
        gaps, calls = program.gap_host == what, program.call_host == what
        start = np.concatenate((program.gap_from[gaps], program.call_from[calls]))
        layers.append((start, np.concatenate((program.gap_to[gaps], program.call_to[calls]))))
    windows = sweep_windows(layers, marks).T.tolist()
    return [dict(zip(PARTS, map(float, owned), strict=True)) for owned in windows]


def _device(
    replayed: Replayed, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], origin: float, period: int
) -> tuple[Int64, Int64]:
    return fold(replayed.record_start[chosen], replayed.record_end[chosen], origin, period)


def _host(program: Program, replayed: Replayed, what: int, origin: float, period: int) -> tuple[Int64, Int64]:
    gaps, calls = program.gap_host == what, program.call_host == what
    start = np.concatenate((replayed.gap_begin[gaps], replayed.call_begin[calls]))
    end = np.concatenate((replayed.call_begin[gaps], replayed.call_end[calls]))
    return fold(start, end, origin, period)
