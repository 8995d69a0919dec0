"""One rank in a few kB: the common currency of everything that speaks of many ranks.

A trace reduces to it, a running rank sends it, and who is late is found from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ipyprof.analysis.collective_kinds import CollectiveKind
from ipyprof.analysis.collectives import Collectives, collectives_of, step_numbers
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.rank_parts import rank_parts
from ipyprof.analysis.steps import ends_early
from ipyprof.trace.model import Int64, Trace

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
