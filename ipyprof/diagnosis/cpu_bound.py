"""The GPU waits for other work of the host: Python, or operators on the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Bool, Float, Host, Program
from ipyprof.analysis.replay import deflated
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.finding import Finding, Site, Where
from ipyprof.diagnosis.judge import NS_PER_MS, absent, gain_of, is_found, judged, top_lines
from ipyprof.formatting import percent_short, time_text

CAUSE = "cpu_bound"
LINES_REPLAYED = 5


def long_gaps(profile: Profile, program: Program) -> tuple[Bool, Float]:
    """(k,) items behind a long stretch without a CUDA call, and the deflated ns of each gap; no loader time among them."""
    gap = deflated(program, profile.cost_ns)[0]
    return (gap >= thresholds.PYTHON_GAP_NS) & (program.gap_host == Host.CPU), gap


def edit(profile: Profile, program: Program) -> Program:
    """The same steps with that work off the thread."""
    return _without(program, long_gaps(profile, program)[0])


def find(profile: Profile) -> Finding:
    """Whether the step is shorter when long stretches of host work without any CUDA call are gone."""
    program = profile.program
    assert program is not None
    long, gap = long_gaps(profile, program)
    if not long.any():
        return absent(profile, CAUSE, "no stretch of Python over 0.1 ms without a CUDA call")
    gain = gain_of(profile, _without(program, long))
    lines = top_lines(program.gap_line[long], gap[long])
    sites = []
    for line in lines[:LINES_REPLAYED]:
        mine = long & (program.gap_line == line)
        alone = gain_of(profile, _without(program, mine))
        site = Site(
            where=Where(line=line),
            status="found" if is_found(profile, alone) else "cleared",
            count=float(mine.sum()) / program.steps,
            recoverable_ms=alone.recoverable_ns / NS_PER_MS,
        )
        sites.append(site)
    sites.sort(key=lambda site: -(site.recoverable_ms or 0.0))
    total = time_text(float(gap[long].sum()) / program.steps / NS_PER_MS)
    at = f", most of it at line {sites[0].where.line}" if sites else ""
    evidence = f"{total} of host work per step in stretches over 0.1 ms without a CUDA call{at}"
    return judged(
        profile,
        CAUSE,
        gain,
        evidence=evidence,
        cleared=f"{evidence}; without it the step is {percent_short(gain.share)} shorter",
        advice="Move this work into the loader's workers, vectorise it, or do it while the GPU is busy.",
        where=sites[0].where if sites else Where(),
        sites=tuple(sites),
    )


def _without(program: Program, items: Bool) -> Program:
    zero = np.zeros(1)
    return replace(
        program,
        gap=np.where(items, zero, program.gap),
        gap_operator=np.where(items, zero, program.gap_operator),
        gap_events=np.where(items, zero, program.gap_events),
    )
