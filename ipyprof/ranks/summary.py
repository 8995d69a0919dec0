"""One rank in a few kB: the common currency of everything that speaks of many ranks.

A trace reduces to it, a running rank sends it, and who is late is found from it alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ipyprof.analysis.breakdown import DEVICE_PARTS
from ipyprof.analysis.intervals import coverage_before, covered, sweep, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.analysis.scopes import phase_spans
from ipyprof.analysis.steps import Steps, ends_early
from ipyprof.ranks.collectives import (
    CollectiveKind,
    Collectives,
    collectives_of,
    host_work,
    is_collective_annotation,
    step_numbers,
)
from ipyprof.trace.kinds import DEVICE_KINDS, Kind
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

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


VERSION = 1
MOST_COLLECTIVES = 4_000
"""A rank with more keeps the steps that fit, the first ones; it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a rank knows of the machine under it; unknown is ``None``.

    Attributes:
        host: name of the machine.
        bus_id: PCI bus id of the GPU, such as ``00000000:18:00.0``; gpu: its name.
        clock_mhz: clock of the multiprocessors while the steps ran; clock_limit_mhz: the highest it could be.
        throttle: reasons why the clock was held down, in NVML's words.
        pcie: link now and at most, such as ``gen 5 x16 of gen 5 x16``.
    """

    host: str | None = None
    bus_id: str | None = None
    gpu: str | None = None
    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    pcie: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank's recording. Times are int ns; those of collectives count from ``base_ns``.

    Attributes:
        rank: its number in the world; rank_from: ``distributedInfo``, ``file name``, ``order`` or ``process``.
        world_size: ranks in the world, or ``None``.
        path: the file, or empty.
        base_ns: Unix time, by this host's clock, of the trace's time zero; 0 = the file does not say.
        facts: of its machine.
        steps: numbers of the recorded steps.
        step_ns: the unprofiled step, or ``None``; recorded_step_ns: the recorded one.
        unprofiled: ``step_ns`` was timed without the profiler.
        parts, totals, phases, kernels: as in ``RankParts``.
        kinds: the distinct collectives.
        rows: one per collective: index of its kind, step, ready, start, end, joined (0 or 1), exposed ns.
        left_out: as in ``Collectives``.
        has_gpu: device work was recorded.
        cause: what this rank's own recording says holds it back, or empty.
        error: why it recorded less than it should, or empty.
        stopped: the exception that ended its run, in words, or empty.
    """

    rank: int
    rank_from: str = "process"
    world_size: int | None = None
    path: str = ""
    base_ns: int = 0
    facts: HostFacts = HostFacts()
    steps: tuple[int, ...] = ()
    step_ns: float | None = None
    recorded_step_ns: float | None = None
    unprofiled: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kernels: float = 0.0
    kinds: tuple[CollectiveKind, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    left_out: int = 0
    has_gpu: bool = False
    cause: str = ""
    error: str = ""
    stopped: str = ""
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        plain = asdict(self)
        plain["rows"] = [list(row) for row in self.rows]
        for key in ("parts", "totals"):
            plain[key] = {name: round(ns) for name, ns in plain[key].items()}
        plain["phases"] = {name: {key: round(ns) for key, ns in one.items()} for name, one in self.phases.items()}
        return plain

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> RankSummary:
        """The summary that ``to_dict`` made ``plain`` from; keys that are not known are ignored.

        Raises:
            ValueError: no summary, or one of another version.
        """
        if not isinstance(plain, Mapping) or plain.get("version") != VERSION:
            raise ValueError("no rank summary of this version")
        try:
            known = {one.name: plain[one.name] for one in fields(RankSummary) if one.name in plain}
            known["facts"] = HostFacts(**{**plain["facts"], "throttle": tuple(plain["facts"]["throttle"])})
            known["steps"] = tuple(plain["steps"])
            known["rows"] = tuple(tuple(row) for row in plain["rows"])
            known["kinds"] = tuple(
                CollectiveKind(**{**kind, "members": None if kind["members"] is None else tuple(kind["members"])})
                for kind in plain["kinds"]
            )
            return RankSummary(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a rank summary that does not fit: {error}") from None


def summarise(
    profile: Profile,
    *,
    rank: int,
    rank_from: str,
    facts: HostFacts | None = None,
    cause: str = "",
    error: str = "",
) -> RankSummary:
    """The summary of one analysed trace."""
    trace, steps, program = profile.trace, profile.steps, profile.program
    known = RankSummary(
        rank=rank,
        rank_from=rank_from,
        world_size=world_size(trace),
        path=trace.path,
        base_ns=trace.base_ns + trace.origin_ns,
        facts=facts if facts is not None else facts_of(trace),
        cause=cause,
        error=error or ("its file ends early" if ends_early(trace) else ""),
        has_gpu=profile.has_gpu,
        step_ns=profile.step_ns,
        recorded_step_ns=profile.profiled_step_ns,
        unprofiled=profile.step_from == "baseline",
    )
    if program is None:
        return known
    parts = rank_parts(trace, steps, program, profile.live)
    found = collectives_of(trace, steps)
    numbers = step_numbers(trace, steps)
    kept = _kept(found, numbers)
    error = known.error
    if len(kept) < len(found) and not error:
        error = f"{len(found) - len(kept):,} of {len(found):,} collectives left out of the summary"
    rows = zip(
        found.kind[kept].tolist(),
        found.step[kept].tolist(),
        found.ready_ns[kept].tolist(),
        found.start_ns[kept].tolist(),
        found.end_ns[kept].tolist(),
        found.joined[kept].astype(np.int64).tolist(),
        found.exposed_ns[kept].tolist(),
        strict=True,
    )
    return replace(
        known,
        error=error,
        steps=numbers,
        parts=parts.parts,
        totals=parts.totals,
        phases=parts.phases,
        kernels=parts.kernels,
        kinds=found.kinds,
        rows=tuple(rows),
        left_out=found.left_out,
    )


def facts_of(trace: Trace) -> HostFacts:
    """What a file says of the machine."""
    host = trace.metadata.get("host_name")
    return HostFacts(
        host=host if isinstance(host, str) and host else None,
        gpu=trace.devices[0].name if trace.devices else None,
    )


def world_size(trace: Trace) -> int | None:
    """Ranks in the world of a file, or ``None``."""
    world = trace.metadata.get("distributedInfo")
    size = world.get("world_size") if isinstance(world, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def _kept(found: Collectives, numbers: Sequence[int]) -> Int64:
    """Indices of the collectives that fit, of whole steps: the same ones on every rank."""
    fits = 0
    kept = np.zeros(len(found), bool)
    for number in numbers:
        mine = found.step == number
        fits += int(mine.sum())
        if fits > MOST_COLLECTIVES and kept.any():
            break
        kept |= mine
    return np.flatnonzero(kept).astype(np.int64)


UNKNOWN_RANK = -1
_IN_NAME = re.compile(r"rank[-_ .]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """The ranks that are there.

    Attributes:
        ranks: one summary for each rank, by rank, all comparable; a CPU-only rank among GPU ranks is not in it.
        missing: ranks of the world without a summary.
        duplicates: (rank, path that is used, paths that are left out).
        cpu_only: summaries without device work among others with it.
        by_order: paths whose rank is only their place in the list.
        world_size: as the files say, or ``None``.
        disagree: the files name several world sizes.
    """

    ranks: tuple[RankSummary, ...]
    missing: tuple[int, ...]
    duplicates: tuple[tuple[int, str, tuple[str, ...]], ...]
    cpu_only: tuple[RankSummary, ...]
    by_order: tuple[str, ...]
    world_size: int | None
    disagree: bool


def call_the_roll(summaries: Sequence[RankSummary]) -> Roll:
    """Every summary with its rank. Of two files of one rank the first, by the order given, is used."""
    numbered = [_by_name(one) for one in summaries]
    taken = {one.rank for one in numbered}
    free = (number for number in range(len(taken) + len(numbered) + 1) if number not in taken)
    numbered = [
        replace(one, rank=next(free), rank_from="order") if one.rank == UNKNOWN_RANK else one for one in numbered
    ]
    by_rank: dict[int, list[RankSummary]] = {}
    for one in numbered:
        by_rank.setdefault(one.rank, []).append(one)
    chosen = [by_rank[rank][0] for rank in sorted(by_rank)]
    duplicates = tuple(
        (rank, same[0].path, tuple(one.path for one in same[1:])) for rank, same in sorted(by_rank.items()) if same[1:]
    )
    any_gpu = any(one.has_gpu for one in chosen)
    sizes = {one.world_size for one in chosen if one.world_size}
    world = max(sizes) if sizes else None
    expected = max([world or 0, *(rank + 1 for rank in by_rank)])
    return Roll(
        ranks=tuple(one for one in chosen if one.has_gpu or not any_gpu),
        missing=tuple(rank for rank in range(expected) if rank not in by_rank),
        duplicates=duplicates,
        cpu_only=tuple(one for one in chosen if any_gpu and not one.has_gpu),
        by_order=tuple(one.path for one in numbered if one.rank_from == "order"),
        world_size=world,
        disagree=len(sizes) > 1,
    )


def _by_name(one: RankSummary) -> RankSummary:
    if one.rank != UNKNOWN_RANK:
        return one
    found = _IN_NAME.findall(re.split(r"[\\/]", one.path)[-1])
    return replace(one, rank=int(found[-1]), rank_from="file name") if found else one
