"""The headline: at most 25 words, made of the line, what the GPU suffers, share and ms, and the bound."""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.cause import Finding
from ipyprof.formatting import percent_short, speedup_text, time_text

BOUND_OF = {
    "data_loading": "IO-bound (data loading)",
    "host_sync": "CPU-bound (the host waits for the GPU, then the GPU for the host)",
    "allocator": "CPU-bound (memory allocation)",
    "transfer": "IO-bound (copies between host and GPU)",
    "communication": "communication-bound",
    "unstable_shapes": "CPU-bound (new shapes)",
    "cpu_bound": "CPU-bound (Python)",
    "launch_bound": "CPU-bound (launches)",
    "tensor_cores": "GPU-bound (compute)",
    "misaligned_shapes": "GPU-bound (compute)",
    "memory_bound": "GPU-bound (bandwidth)",
}
AT_LEAST = frozenset(("memory_bound",))
"""Causes whose cure does more than the edit that the replay makes: their gain is a lower bound."""
NEXT_NAMES = {
    "data_loading": "data loading",
    "host_sync": "waits for the GPU",
    "allocator": "memory allocation",
    "transfer": "copies",
    "communication": "collectives",
    "unstable_shapes": "new shapes",
    "cpu_bound": "Python",
    "launch_bound": "launches",
    "tensor_cores": "products without Tensor Cores",
    "misaligned_shapes": "badly tiled products",
    "memory_bound": "unfused kernels",
}


def headline(profile: Profile, finding: Finding) -> str:
    """The sentence for a found cause."""
    step_ms = (profile.step_ns or 0.0) / 1e6
    gained = finding.recoverable_ms or 0.0
    share = percent_short(gained / step_ms if step_ms else None)
    cost = f"{_both(gained, step_ms)} ({share})"
    faster = f"{speedup_text(finding.speedup_bound)} faster"
    best = f"at most {faster}"
    line = finding.where.line
    place = f"Line {line}" if line else ""
    count = sum(site.count for site in finding.sites if site.where.line == line and site.where.file is None)
    times = "" if count < 1.5 else f" {count:.0f} times per step"
    waiting = f"{place} keeps the GPU waiting" if place else "The GPU waits"
    if finding.cause == "data_loading":
        return f"{waiting} for the next batch: {cost}; loading in parallel: {best}."
    if finding.cause == "host_sync":
        subject = f"{place} leaves" if place else "A wait leaves"
        return f"{subject} the GPU without work{times}: {cost}; without the wait, {best}."
    if finding.cause == "allocator":
        return f"{waiting} for memory allocation: {cost}; without it, {best}."
    if finding.cause == "transfer":
        return f"{waiting} for copies: {cost}; copying beside the kernels makes it {best}."
    if finding.cause == "communication":
        return f"{waiting} in collectives: {cost}; hidden behind other work, {best}."
    if finding.cause == "unstable_shapes":
        return f"{waiting} while new shapes are prepared: {cost}; with known shapes, {best}."
    if finding.cause == "cpu_bound":
        return f"{waiting} for Python: {cost}; without it, {best}."
    if finding.cause == "launch_bound":
        return f"The GPU waits for launches of short kernels: {cost}; one launch for all makes it {best}."
    works = place or "The GPU"
    if finding.cause == "tensor_cores":
        return f"{works} multiplies in float32 without Tensor Cores: {cost}; if not intended, {best} in 16 bits."
    if finding.cause == "misaligned_shapes":
        return f"{works} multiplies sizes that tile badly: {cost}; padded, it may be {best}."
    if finding.cause == "memory_bound":
        # Fusing does more than the edit: what the chains leave in registers is not counted.
        return f"{works} moves bytes that fused kernels would not: {cost}; fused, at least {faster}."
    return f"The GPU is held back by {finding.cause}: {cost}; without it, {best}."


def device_bound(profile: Profile) -> str:
    """Which of the GPU's ceilings most of its time is held against, in the words people ask for."""
    time = {"compute": 0, "memory": 0}
    for row in profile.roofline.rows:
        if row.bound in time:
            time[row.bound] += row.device_ns
    if not any(time.values()):
        return "GPU-bound (compute or bandwidth)"
    return "GPU-bound (compute)" if time["compute"] >= time["memory"] else "GPU-bound (bandwidth)"


def healthy_headline(profile: Profile, busy: float) -> str:
    """The sentence for a GPU that is not waiting: what it does, and what removing every wait would still gain."""
    step_ms = (profile.step_ns or 0.0) / 1e6
    return (
        f"The GPU is not waiting: it computes {percent_short(busy)} of every step "
        f"({_both(busy * step_ms, step_ms)}); without all waits, "
        f"at most {speedup_text(1 / busy if busy else None)} faster."
    )


def _both(part_ms: float, step_ms: float) -> str:
    """``1.5 of 5.2 ms``: one unit where both have the same."""
    part, whole = time_text(part_ms).rsplit(" ", 1), time_text(step_ms)
    return f"{part[0]} of {whole}" if part[1] == whole.rsplit(" ", 1)[1] else f"{' '.join(part)} of {whole}"
