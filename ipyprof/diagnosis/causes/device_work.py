"""What the causes that lie in the GPU's own work share: scaled durations, places and sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.lines import record_lines
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Program
from ipyprof.analysis.roofline import CallGroup, Roofline
from ipyprof.diagnosis.cause import NS_PER_MS, Finding, Gain, Site, Where, is_found, top_lines, unknown

MOST_SITES = 8


def no_ceilings(cause: str, roof: Roofline) -> Finding:
    """The finding for a device whose ceilings are not known."""
    if roof.device:
        return unknown(cause, f"{roof.device} is not in the table of ceilings")
    return unknown(cause, "the file does not name the device, so that its ceilings are not known")


def scaled(program: Program, roof: Roofline, remaining: npt.NDArray[np.float64]) -> Program:
    """The program with each record's time multiplied by its group's ``remaining``: (groups,) float, 1 = unchanged."""
    group = roof.group[program.record]
    share = np.where(group >= 0, np.append(remaining, 1.0)[group], 1.0)
    return replace(program, dur=program.dur * share)


def scaled_records(program: Program, remaining: npt.NDArray[np.float64]) -> Program:
    """The program with each record's time multiplied by ``remaining``: (n,) float over the trace, 1 = unchanged."""
    return replace(program, dur=program.dur * remaining[program.record])


def device_where(
    profile: Profile, program: Program, roof: Roofline, groups: npt.NDArray[np.int64], *, operator: str
) -> Where:
    """The line of the cell that launches most of these groups' work, with the operator."""
    return record_where(profile, program, np.isin(roof.group[program.record], groups), operator=operator)


def record_where(profile: Profile, program: Program, chosen: npt.NDArray[np.bool_], *, operator: str) -> Where:
    """The line that most of the ``chosen`` (m,) records' time belongs to, backward work to its forward's."""
    line = record_lines(profile.trace, profile.steps, program)
    lines = top_lines(line[chosen], program.dur[chosen])
    return Where(operator=operator, line=lines[0] if lines else None)


def group_sites(profile: Profile, groups: list[CallGroup], gain: Gain) -> tuple[Site, ...]:
    """One site per operator of these groups, the most device time first."""
    count: dict[str, float] = {}
    for group in groups:
        count[group.name] = count.get(group.name, 0.0) + group.calls / max(profile.operators.steps, 1)
    return sites(profile, list(count.items()), gain)


def sites(profile: Profile, places: list[tuple[str, float]], gain: Gain) -> tuple[Site, ...]:
    """One site per (operators, count per step). One alone has the whole gain; several are not replayed one by one."""
    if len(places) == 1:
        (name, count), status = places[0], "found" if is_found(profile, gain) else "cleared"
        return (
            Site(
                where=Where(operator=name), status=status, count=count, recoverable_ms=gain.recoverable_ns / NS_PER_MS
            ),
        )
    return tuple(
        Site(where=Where(operator=name), status="unknown", count=count, recoverable_ms=None)
        for name, count in places[:MOST_SITES]
    )
