"""Healthy: the GPU is not waiting, and no cause in its own work was found."""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, part_text
from ipyprof.formatting import percent_short, speedup_text


class ComputeBound(Cause):
    id = "compute_bound"
    name = "the GPU's own work"
    subject = ("✓ Healthy", ": nothing to cure")
    without = "without all waits"
    checked = "the GPU's own work"
    bound = "GPU-bound (compute or bandwidth)"
    works = True


def healthy_headline(profile: Profile, busy: float) -> str:
    """The sentence for a GPU that computes for ``busy`` (0..1) of the step: what removing every wait would gain."""
    step_ms = (profile.loop_ns or 0.0) / NS_PER_MS
    return (
        f"The GPU is not waiting: it computes {percent_short(busy)} of every step "
        f"({part_text(busy * step_ms, step_ms)}); without all waits, "
        f"at most {speedup_text(1 / busy if busy else None)} faster."
    )


def device_bound(profile: Profile) -> str:
    """Which of the GPU's ceilings most of its time is held against, in the words people ask for."""
    time = {"compute": 0, "memory": 0}
    for row in profile.roofline.rows:
        if row.bound in time:
            time[row.bound] += row.device_ns
    if not any(time.values()):
        return ComputeBound.bound
    return "GPU-bound (compute)" if time["compute"] >= time["memory"] else "GPU-bound (bandwidth)"
