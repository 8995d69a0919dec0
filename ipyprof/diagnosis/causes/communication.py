"""The GPU waits in collectives that no other work hides. One rank's view: who is late, one file cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Program
from ipyprof.diagnosis.cause import Cause, Finding, gain_of, record_where
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.kinds import Kind


class Communication(Cause):
    id = "communication"
    name = "collectives"
    subject = ("Communication", " holds this step back")
    without = "without the wait"
    checked = "exposed collectives"
    bound = "communication-bound"
    sentence = "{waiting} in collectives: {cost}; hidden behind other work, {best}."
    part = "communication"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when its collectives are hidden behind other work."""
        program, whole = profile.program, profile.breakdown
        assert program is not None and whole is not None
        collective = profile.trace.kind[program.record] == Kind.COMMUNICATION
        if not collective.any():
            return self.absent(profile, "no collective in the recorded steps")
        gain = gain_of(profile, self.edit(profile, program))
        total, exposed = whole.communication_total_ns, whole.parts["communication"]
        count = plural(round(float(collective.sum()) / program.steps), "collective")
        evidence = (
            f"{count} in a step, {time_text(total / 1e6)}, of which "
            f"{time_text(exposed / 1e6)} beside no other work; one file cannot tell which rank is late"
        )
        names = profile.trace.name[program.record[collective]]
        operator = profile.trace.names[int(np.bincount(names).argmax())].split("(")[0]
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence}; hiding them recovers {percent_short(gain.share)} of the step",
            advice="Overlap the collectives with the backward pass: other buckets (bucket_cap_mb), and no_sync() while "
            "gradients accumulate.",
            where=record_where(profile, program, collective, operator=operator),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Collectives run beside everything else, and nothing waits for them."""
        collective = profile.trace.kind[program.record] == Kind.COMMUNICATION
        if not collective.any():
            return program
        waited = (program.depends >= 0) & collective[np.maximum(program.depends, 0)]
        # DistributedDataParallel times its first ten steps: its host waits for the event behind the last collective.
        host_waits = (program.act == Act.SYNC_RECORD) & (program.target >= 0)
        host_waits &= collective[np.where(host_waits, program.target, 0)]
        return replace(
            program,
            act=np.where(host_waits, Act.PLAIN, program.act),
            target=np.where(host_waits, -1, program.target),
            stream=np.where(collective, len(program.ready), program.stream),
            depends=np.where(collective | waited, -1, program.depends),
            idle=program.idle | collective | waited,
            latency=np.where(collective | waited, 0.0, program.latency),
            pause=np.where(collective, 0.0, program.pause),
            ready=np.append(program.ready, -np.inf),
        )
