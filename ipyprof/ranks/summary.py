"""One rank in a few kB: what a trace reduces to, what a running rank sends, and all that who is late is found from."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import field

from ipyprof.analysis.intervals import covered, inside, intersection, sweep, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.analysis.results import Ms, Number
from ipyprof.analysis.scopes import phase_spans
from ipyprof.analysis.steps import ends_early
from ipyprof.ranks.collectives import (
    STEP,
    CollectiveKind,
    collective_annotations,
    collectives_of,
    host_work,
    step_numbers,
)
from ipyprof.report.report import Rank
from ipyprof.trace.kinds import DEVICE_KINDS, Kind
from ipyprof.trace.model import Int64, Trace

PARTS = ("compute", "copies", "communication", "loader", "runtime", "host", "other")
"""Keys of a rank's ``breakdown``, which add up to its step. ``compute``: kernels, or operators where there is no GPU;
``runtime``: CUDA calls; ``host``: Python between calls."""
PHASES = ("forward", "backward", "optimizer")
UNKNOWN_RANK = -1
MOST_COLLECTIVES = 4_000
"""A rank with more keeps the steps that fit, the first ones; it says so."""
MS = 1e6
Spans = tuple[Int64, Int64]


class RankSummary(Rank, frozen=True, omit_defaults=True):
    """One rank's row of the report, not yet compared, and what the comparison needs.

    Attributes:
        world_size: ranks in the world, or ``None``.
        base_ns: Unix time, by this host's clock, of the trace's time zero; 0 = the file does not say.
        has_gpu: device work was recorded.
        steps: numbers of the recorded steps.
        unprofiled_ms: a step timed without the profiler, or ``None``.
        busy_ms: ``compute``, ``copies`` and ``loader`` per step, whether something hides them or not.
        phases_ms: phase → ``compute`` and ``host`` in it, per step.
        kernels: kernels (operators without a GPU) per step.
        kinds: the distinct collectives; rows: one for each, int ns since ``base_ns``, with the columns of
            ``collectives.KIND`` and those behind it.
        stopped: the exception that ended its run, in words, or empty.
    """

    world_size: int | None = None
    base_ns: int = 0
    has_gpu: bool = False
    steps: tuple[int, ...] = ()
    unprofiled_ms: Ms | None = None
    busy_ms: dict[str, Ms] = field(default_factory=dict)
    phases_ms: dict[str, dict[str, Ms]] = field(default_factory=dict)
    kernels: Number = 0.0
    kinds: tuple[CollectiveKind, ...] = ()
    rows: tuple[tuple[int, int, int, int, int, int, int], ...] = ()
    stopped: str = ""

    def row(self) -> Rank:
        """Its row of the report."""
        return Rank(**{name: getattr(self, name) for name in Rank.__struct_fields__})


def summarise(profile: Profile) -> RankSummary:
    """The summary of one analysed trace; its rank is what the trace says, else ``UNKNOWN_RANK``."""
    trace, steps = profile.trace, profile.steps
    world = trace.metadata.get("distributedInfo")
    world = world if isinstance(world, dict) else {}
    rank, host = _integer(world.get("rank"), 0), trace.metadata.get("host_name")
    ms: dict[str, Any] = {}
    if profile.program is not None:
        on_device = bool(np.isin(trace.kind, DEVICE_KINDS).any())
        ms = _on_device(profile, profile.program) if on_device else _on_host(profile)
    kinds, table = collectives_of(trace, steps) if ms else ((), np.empty((0, 7), np.int64))
    numbers = step_numbers(trace, steps) if ms else ()
    kept = table[np.isin(table[:, STEP], _steps_that_fit(table[:, STEP], numbers))]
    error = "its file ends early" if ends_early(trace) else None
    if len(kept) < len(table) and error is None:
        error = f"{len(table) - len(kept):,} of {len(table):,} collectives left out of the summary"
    return RankSummary(
        rank=UNKNOWN_RANK if rank is None else rank,
        world_size=_integer(world.get("world_size"), 1),
        host=host if isinstance(host, str) and host else None,
        gpu=trace.devices[0].name if trace.devices else None,
        path=trace.path or None,
        error=error,
        base_ns=trace.base_ns + trace.origin_ns,
        has_gpu=profile.has_gpu,
        step_ms=profile.profiled_step_ns / MS if profile.profiled_step_ns else None,
        unprofiled_ms=profile.step_ns / MS if profile.step_ns and profile.step_from == "baseline" else None,
        steps=numbers,
        kinds=kinds,
        rows=tuple(map(tuple, kept.tolist())),
        **ms,
    )


def _integer(value: object, least: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None


def _steps_that_fit(step: Int64, numbers: tuple[int, ...]) -> list[int]:
    """The first steps with at most ``MOST_COLLECTIVES`` together, and the first one anyway: the same on every rank."""
    counts = np.cumsum([int((step == number).sum()) for number in numbers])
    return [number for at, number in enumerate(numbers) if at == 0 or counts[at] <= MOST_COLLECTIVES]


def _on_device(profile: Profile, program: Program) -> dict[str, Any]:
    """``breakdown``, ``busy_ms``, ``phases_ms`` and ``kernels`` of one recorded step."""
    trace, steps = profile.trace, profile.steps
    per_step = MS * max(steps.count, 1)
    records = {kind: program.record[trace.kind[program.record] == kind] for kind in DEVICE_KINDS}
    device = {kind: (trace.start_ns[one], trace.end_ns[one]) for kind, one in records.items()}
    host = {what: _host_spans(program, what) for what in Host}
    backward, optimizer = phase_spans(trace, steps)
    copies, python, loader = _joined(device[Kind.MEMCPY], device[Kind.MEMSET]), host[Host.CPU], host[Host.DATA_LOADING]
    calls = _joined(host[Host.LAUNCH], host[Host.SYNC], host[Host.ALLOCATOR], host[Host.OTHER_CALL])
    in_phases = [intersection(*python, *backward), intersection(*python, *optimizer), python]
    layers = [device[Kind.KERNEL], copies, device[Kind.COMMUNICATION], loader, calls, *in_phases]
    swept = (ns / per_step for ns in sweep(layers, *_window(trace, program)))
    compute, copy, communication, fetch, runtime, in_backward, in_optimizer, in_forward, other = swept
    kernels = records[Kind.KERNEL]
    phase = _phase_of(trace.start_ns[steps.launch[kernels]], backward, optimizer)
    busy = [float(trace.dur_ns[kernels[phase == at]].sum()) / per_step for at in range(len(PHASES))]
    parts = (compute, copy, communication, fetch, runtime, in_backward + in_optimizer + in_forward, other)
    return {
        "breakdown": dict(zip(PARTS, parts, strict=True)),
        "busy_ms": {
            "compute": sum(busy),
            "copies": covered(*copies) / per_step,
            "loader": covered(*loader) / per_step,
        },
        "phases_ms": _phases(busy, (in_forward, in_backward, in_optimizer)),
        "kernels": len(kernels) * MS / per_step,
    }


def _on_host(profile: Profile) -> dict[str, Any]:
    """As ``_on_device``, of a rank without a GPU."""
    trace, steps = profile.trace, profile.steps
    per_step = MS * max(steps.count, 1)
    begin, stop = int(steps.marks_ns[0]), int(steps.marks_ns[-1])
    loader = loader_spans(trace, steps, profile.live, np.array([steps.thread], np.int64))
    work, spans = host_work(trace), collective_annotations(trace)
    backward, optimizer = phase_spans(trace, steps)
    whole = np.array([begin], np.int64), np.array([stop], np.int64)
    layers = [
        loader,
        *(intersection(*work, *backward), intersection(*work, *optimizer), work),
        (trace.start_ns[spans], trace.end_ns[spans]),
        *(backward, optimizer, whole),
    ]
    swept = (ns / per_step for ns in sweep(layers, begin, stop))
    fetch, in_backward, in_optimizer, in_forward, exposed, host_backward, host_optimizer, host_forward, _ = swept
    busy, host = (in_forward, in_backward, in_optimizer), (host_forward, host_backward, host_optimizer)
    operators = trace.select(Kind.OPERATOR)
    return {
        "breakdown": dict(zip(PARTS, (sum(busy), 0.0, exposed, fetch, 0.0, sum(host), 0.0), strict=True)),
        "busy_ms": {
            "compute": covered(*intersection(*work, *whole)) / per_step,
            "copies": 0.0,
            "loader": covered(*intersection(*loader, *whole)) / per_step,
        },
        "phases_ms": _phases(busy, host),
        "kernels": int((steps.of_time(trace.start_ns[operators]) >= 0).sum()) * MS / per_step,
    }


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


def _phases(busy: Any, host: Any) -> dict[str, dict[str, float]]:
    return {name: {"compute": busy[at], "host": host[at]} for at, name in enumerate(PHASES)}


def _phase_of(at: Int64, backward: Spans, optimizer: Spans) -> Int64:
    """(m,) index into ``PHASES`` for each instant."""
    return np.where(inside(*optimizer, at), 2, np.where(inside(*backward, at), 1, 0)).astype(np.int64)


def _host_spans(program: Program, what: Host) -> Spans:
    gaps, calls = program.gap_host == what, program.call_host == what
    start = np.concatenate((program.gap_from[gaps], program.call_from[calls]))
    return union(start, np.concatenate((program.gap_to[gaps], program.call_to[calls])))


def _joined(*spans: Spans) -> Spans:
    return np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans])
