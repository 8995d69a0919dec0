"""What one rank does in a recorded step, in parts that can be compared with another rank's, on the recorded clock.

Every rank's parts add up to its step, and all ranks have the same step: what one rank has more of than the others is
what makes it late, and what they have more of is communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.breakdown import DEVICE_PARTS
from ipyprof.analysis.collective_kinds import is_collective_annotation
from ipyprof.analysis.collectives import host_work
from ipyprof.analysis.intervals import coverage_before, covered, sweep, union
from ipyprof.analysis.phases import phase_spans
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import DEVICE_KINDS, Kind
from ipyprof.trace.model import Int64, LiveRecord, Trace

PARTS = ("compute", "copies", "communication", "loader", "runtime", "host", "other")
"""``compute``: kernels, or operators where there is no GPU; ``runtime``: CUDA calls; ``host``: Python between calls."""
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """Per step, in ns.

    Attributes:
        parts: disjoint, keys ``PARTS``; they add up to ``step_ns``.
        totals: ``compute``, ``copies``, ``communication`` and ``loader`` whether something hides them or not.
        phases: phase → ``compute`` and ``host`` in it.
        kernels: kernels (operators without a GPU) per step.
        step_ns: the recorded step.
    """

    parts: Mapping[str, float]
    totals: Mapping[str, float]
    phases: Mapping[str, Mapping[str, float]]
    kernels: float
    step_ns: float


def rank_parts(trace: Trace, steps: Steps, program: Program, live: LiveRecord | None) -> RankParts:
    """The parts of one recorded step, from the first mark on."""
    on_device = bool(np.isin(trace.kind, DEVICE_KINDS).any())
    return _with_device(trace, steps, program) if on_device else _without_device(trace, steps, live)


def _with_device(trace: Trace, steps: Steps, program: Program) -> RankParts:
    count = max(steps.count, 1)
    records = program.record
    kinds = trace.kind[records]
    begin, stop = _window(trace, program)
    spans = {name: union(*_of(trace, records, kinds, kind)) for name, kind in DEVICE_PARTS}
    hosts = {what: _host(program, what) for what in Host}
    backward, optimizer = phase_spans(trace, steps)
    copies = union(*_joined(spans["memcpy"], spans["memset"]))
    layers = [
        spans["kernel"],
        copies,
        spans["communication"],
        hosts[Host.DATA_LOADING],
        union(*_joined(*(hosts[what] for what in (Host.LAUNCH, Host.SYNC, Host.ALLOCATOR, Host.OTHER_CALL)))),
    ]
    python = hosts[Host.CPU]
    inside = [_common(python, backward), _common(python, optimizer), python]
    owned = [ns / count for ns in sweep([*layers, *inside], begin, stop)]
    compute, moved, exposed, loader, runtime, in_backward, in_optimizer, in_forward, other = owned
    parts = dict(
        zip(
            PARTS,
            (compute, moved, exposed, loader, runtime, in_backward + in_optimizer + in_forward, other),
            strict=True,
        )
    )
    work = records[kinds == Kind.KERNEL]
    phase = _phase_of(trace.start_ns[steps.launch[work]], backward, optimizer)
    busy = [float(trace.dur_ns[work[phase == at]].sum()) / count for at in range(len(PHASES))]
    host = (in_forward, in_backward, in_optimizer)
    return RankParts(
        parts=parts,
        totals={
            "compute": sum(busy),
            "copies": covered(*_joined(*(_of(trace, records, kinds, kind) for kind in (Kind.MEMCPY, Kind.MEMSET))))
            / count,
            "communication": covered(*_of(trace, records, kinds, Kind.COMMUNICATION)) / count,
            "loader": covered(*hosts[Host.DATA_LOADING]) / count,
        },
        phases={name: {"compute": busy[at], "host": host[at]} for at, name in enumerate(PHASES)},
        kernels=len(work) / count,
        step_ns=(stop - begin) / count,
    )


def _window(trace: Trace, program: Program) -> tuple[int, int]:
    """The recorded steps as the device saw them: from the end of the work before them to the end of theirs.

    The host runs ahead, so that the device is still busy with earlier steps when the first mark passes.
    """
    records = program.record
    stop = max(program.stop, int(trace.end_ns[records].max()) if len(records) else 0)
    earlier = np.setdiff1d(trace.select(*DEVICE_KINDS), records)
    earlier = earlier[trace.start_ns[earlier] < (int(trace.start_ns[records].min()) if len(records) else stop)]
    begin = max(program.begin, int(trace.end_ns[earlier].max()) if len(earlier) else program.begin)
    return min(begin, stop - 1), stop


def _without_device(trace: Trace, steps: Steps, live: LiveRecord | None) -> RankParts:
    count = max(steps.count, 1)
    begin, stop = int(steps.marks_ns[0]), int(steps.marks_ns[-1])
    loader = loader_spans(trace, steps, live, np.array([steps.thread], np.int64))
    work = host_work(trace)
    spans = trace.select(Kind.ANNOTATION)
    backend = np.array([is_collective_annotation(name) for name in trace.names], bool)[trace.name[spans]]
    collectives = union(trace.start_ns[spans[backend]], trace.end_ns[spans[backend]])
    backward, optimizer = phase_spans(trace, steps)
    inside = [_common(work, backward), _common(work, optimizer), work]
    idle = np.array([begin], np.int64), np.array([stop], np.int64)
    rest = [_common(idle, backward), _common(idle, optimizer), idle]
    owned = [ns / count for ns in sweep([loader, *inside, collectives, *rest], begin, stop)]
    fetch, *computes, exposed, host_backward, host_optimizer, host_forward, _ = owned
    busy = (computes[2], computes[0], computes[1])
    host = (host_forward, host_backward, host_optimizer)
    operators = trace.select(Kind.OPERATOR)
    parts = (sum(busy), 0.0, exposed, fetch, 0.0, sum(host), 0.0)
    return RankParts(
        parts=dict(zip(PARTS, parts, strict=True)),
        totals={
            "compute": _within(work, begin, stop) / count,
            "copies": 0.0,
            "communication": _within(collectives, begin, stop) / count,
            "loader": _within(loader, begin, stop) / count,
        },
        phases={name: {"compute": busy[at], "host": host[at]} for at, name in enumerate(PHASES)},
        kernels=int((steps.of_time(trace.start_ns[operators]) >= 0).sum()) / count,
        step_ns=(stop - begin) / count,
    )


def _phase_of(at: Int64, backward: tuple[Int64, Int64], optimizer: tuple[Int64, Int64]) -> Int64:
    """(m,) index into ``PHASES`` for each instant."""
    phase = np.zeros(len(at), np.int64)
    for number, spans in ((1, backward), (2, optimizer)):
        phase[coverage_before(*spans, at + 1) > coverage_before(*spans, at)] = number
    return phase


def _host(program: Program, what: Host) -> tuple[Int64, Int64]:
    gaps, calls = program.gap_host == what, program.call_host == what
    start = np.concatenate((program.gap_from[gaps], program.call_from[calls]))
    return union(start, np.concatenate((program.gap_to[gaps], program.call_to[calls])))


def _of(
    trace: Trace, records: Int64, kinds: np.ndarray[tuple[int], np.dtype[np.uint8]], kind: Kind
) -> tuple[Int64, Int64]:
    chosen = records[kinds == kind]
    return trace.start_ns[chosen], trace.end_ns[chosen]


def _joined(*spans: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    return np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans])


def _within(spans: tuple[Int64, Int64], begin: int, stop: int) -> int:
    return covered(np.clip(spans[0], begin, stop), np.clip(spans[1], begin, stop))


def _common(one: tuple[Int64, Int64], other: tuple[Int64, Int64]) -> tuple[Int64, Int64]:
    """Disjoint, sorted spans that lie in both of two such sets."""
    if len(one[0]) == 0 or len(other[0]) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    edges = np.unique(np.concatenate((*one, *other)))
    start, end = edges[:-1], edges[1:]
    both = (coverage_before(*one, end) - coverage_before(*one, start) > 0) & (
        coverage_before(*other, end) - coverage_before(*other, start) > 0
    )
    return union(start[both], end[both])
