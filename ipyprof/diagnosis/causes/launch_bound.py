"""The GPU runs kernels shorter than their launch. The residual cause: it is looked at after the specific ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Bool, Host, Program
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Cause, Finding, Where, gain_of, measured, top_line
from ipyprof.diagnosis.causes.cpu_bound import kept_by_a_graph, many_launches
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.kinds import Role


class LaunchBound(Cause):
    id = "launch_bound"
    name = "launches"
    subject = ("Kernel launches", " hold this step back")
    without = "as one graph"
    checked = "short kernels"
    bound = "CPU-bound (launches)"
    sentence = "The GPU waits for launches of short kernels: {cost}; one launch for all makes it {best}."

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when a step's kernels are launched together."""
        program, replayed = measured(profile)
        launches = program.act == Act.LAUNCH
        per_step = float(launches.sum()) / program.steps
        if not _one_by_one(profile, program).any():
            return self.absent(
                profile, "all kernels are launched as graphs" if launches.any() else "no launch in the steps"
            )
        gain = gain_of(profile, self.edit(profile, program))
        kernel_ns = float(np.median(program.dur)) if len(program.dur) else 0.0
        begun = np.sort(replayed.call_begin[launches])
        between_ns = float(np.median(np.diff(begun))) if len(begun) > 1 else 0.0
        line = top_line(program.call_line[launches], np.ones(int(launches.sum())))
        evidence = (
            f"{plural(round(per_step), 'launch')} in a step, one every {time_text(between_ns / 1e6)}; the median "
            f"kernel runs {time_text(kernel_ns / 1e6)}"
        )
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence}; one launch for all recovers {percent_short(gain.share)} of the step",
            advice="Launch less often: torch.compile(mode='reduce-overhead') or a CUDA graph, a fused optimizer, "
            "larger batches if memory and the task allow.",
            where=Where(line=line),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """One graph launch in place of a step's launches; loader, waits, compilation and the host's own work stay."""
        if not _one_by_one(profile, program).any():
            return program
        launching = (program.act == Act.LAUNCH) | ((program.act == Act.PLAIN) & (program.event >= 0))
        launching &= program.call_host != Host.ALLOCATOR
        # Operators that only lead up to a launch go with it, however long the stretch between two launches is.
        stays = np.where(program.gap_host == Host.CPU, kept_by_a_graph(profile, program), program.gap)
        share = np.divide(stays, program.gap, out=np.zeros(len(stays)), where=program.gap > 0)
        own = np.where(launching, 0.0, program.own)
        first = np.searchsorted(program.call_from, profile.steps.marks_ns[:-1])
        launches = np.flatnonzero(program.act == Act.LAUNCH)
        after = np.searchsorted(launches, first)
        own[launches[after[after < len(launches)]]] = thresholds.GRAPH_LAUNCH_NS
        # Nodes of a graph follow each other without a pause (280 kernels of 0.98 us in 0.265 ms on an H200). Pauses of
        # a busy stream that make up much of a step of few kernels are something else.
        follows = (program.depends < 0) & (program.idle | many_launches(program))
        return replace(
            program,
            gap=stays,
            gap_operator=np.minimum(program.gap_operator, stays),
            gap_events=program.gap_events * share,
            own=own,
            call_events=np.where(launching, 0.0, program.call_events),
            pause=np.where(follows, np.minimum(program.pause, 0.0), program.pause),
            idle=np.zeros(len(program.idle), bool),
            queue=0,
        )


def _one_by_one(profile: Profile, program: Program) -> Bool:
    """(k,) bool: items that launch work of their own, not a graph."""
    alone: Bool = program.act == Act.LAUNCH
    alone[alone] = profile.trace.role[program.event[alone]] != Role.GRAPH_LAUNCH
    return alone
