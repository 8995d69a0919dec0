"""The GPU waits for other work of the host: Python, or operators on the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.intervals import coverage_before, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Float, Host, Program
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, Finding, Site, Where, gain_of, is_found, measured, top_lines
from ipyprof.diagnosis.causes import unstable_shapes
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64

LINES_REPLAYED = 5


class CpuBound(Cause):
    id = "cpu_bound"
    name = "Python"
    subject = ("Python on the CPU", " holds this step back")
    without = "without that work"
    checked = "Python, operators"
    bound = "CPU-bound (Python)"
    sentence = "{waiting} for Python: {cost}; without it, {best}."
    part = "cpu"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when long stretches of host work without any CUDA call are gone."""
        program, _ = measured(profile)
        gap = host_work(profile, program)
        long = gap > 0
        over = f"over {time_text(stretch_ns(profile, program) / NS_PER_MS)} without a CUDA call"
        if not long.any():
            return self.absent(profile, f"no stretch of Python {over}")
        gain = gain_of(profile, _without(program, gap))
        lines = top_lines(program.gap_line[long], gap[long])
        sites = []
        for line in lines[:LINES_REPLAYED]:
            mine = long & (program.gap_line == line)
            alone = gain_of(profile, _without(program, np.where(mine, gap, 0.0)))
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
        evidence = f"{total} of host work per step in stretches {over}{at}"
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence}; without it the step is {percent_short(gain.share)} shorter",
            advice="Move this work into the loader's workers, vectorise it, or do it while the GPU is busy.",
            where=sites[0].where if sites else Where(),
            sites=tuple(sites),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """The same steps with that work off the thread."""
        return _without(program, host_work(profile, program))


def host_work(profile: Profile, program: Program) -> Float:
    """(k,) ns in each gap of the host's own work: Python outside operators, and long operators that launch nothing.

    0 where it is shorter than ``stretch_ns``. Loader time is not among them.
    """
    computing = _within(program, *_cpu_operators(profile))
    # What torch.compile does is a cause of its own.
    work = np.minimum(program.gap - program.gap_operator + computing, program.gap)
    work = np.maximum(work - _within(program, *unstable_shapes.compiling(profile)), 0.0)
    return np.where((work >= stretch_ns(profile, program)) & (program.gap_host == Host.CPU), work, 0.0)


def stretch_ns(profile: Profile, program: Program) -> float:
    """How long a stretch of host work is at least; shorter ones go with the launches around them.

    In a step of few launches a stretch may hold it back that would be lost among many.
    """
    if many_launches(program) or profile.step_ns is None:
        return float(thresholds.PYTHON_GAP_NS)
    return min(thresholds.FOUND_SHARE * profile.step_ns, thresholds.PYTHON_GAP_NS)


def many_launches(program: Program) -> bool:
    """Whether a step has so many launches that what lies between two of them belongs to launching."""
    return float((program.act == Act.LAUNCH).sum()) / program.steps >= thresholds.MANY_LAUNCHES


def kept_by_a_graph(profile: Profile, program: Program) -> Float:
    """(k,) ns in each gap that would stay if a graph replaced the launches: the host's own work, and compilation."""
    kept = host_work(profile, program) + _within(program, *unstable_shapes.compiling(profile))
    return np.minimum(kept, program.gap)


def _within(program: Program, start: Int64, end: Int64) -> Float:
    """(k,) ns of each gap inside these disjoint, sorted intervals."""
    recorded = coverage_before(start, end, program.gap_to) - coverage_before(start, end, program.gap_from)
    return recorded.astype(float) * program.slowed


def _without(program: Program, work: Float) -> Program:
    kept = np.maximum(program.gap - work, 0.0)
    share = np.divide(kept, program.gap, out=np.ones(len(kept)), where=program.gap > 0)
    return replace(
        program,
        gap=kept,
        gap_operator=np.minimum(program.gap_operator, kept),
        gap_events=program.gap_events * share,
    )


def _cpu_operators(profile: Profile) -> tuple[Int64, Int64]:
    """Disjoint (start, end) of operators of at least ``PYTHON_GAP_NS`` in which no API call is made."""
    trace, program = profile.trace, profile.program
    assert program is not None
    events = trace.select(Kind.OPERATOR)
    events = events[(trace.dur_ns[events] >= thresholds.PYTHON_GAP_NS) & np.isin(trace.tid[events], program.threads)]
    calls = np.sort(trace.start_ns[trace.select(Kind.CALL)])
    silent = np.searchsorted(calls, trace.start_ns[events]) == np.searchsorted(calls, trace.end_ns[events])
    return union(trace.start_ns[events[silent]], trace.end_ns[events[silent]])
