"""Whether the host's and the GPU's clock agree. Where they do not, idle time of the GPU is not what it looks like.

Sources: pytorch/pytorch#175790 (in later sessions of one process kernels lie ever later), pytorch/kineto PR 1082.
"""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import thresholds
from ipyprof.formatting import plural, time_text


def clocks(profile: Profile) -> tuple[str, str] | None:
    """(``ok``, ``warn`` or ``fail``; a sentence), or ``None`` where no kernel has its launch in the steps."""
    program = profile.program
    if program is None or not profile.has_gpu or len(program.record) == 0:
        return None
    early = _early(profile)
    if early:
        return "fail", f"{plural(early, 'kernel')} before the launch: host and GPU clocks disagree"
    late = _late_ns(profile)
    if late > thresholds.CLOCK_LATE_NS:
        return "warn", f"the first kernel starts {time_text(late / 1e6)} after its launch: the GPU clock looks shifted"
    return "ok", "host and GPU clocks agree"


def shifted(profile: Profile) -> bool:
    """Whether the clocks are so far apart that the GPU's idle time is unknown; a few early kernels are not enough."""
    program = profile.program
    if program is None or not profile.has_gpu or len(program.record) == 0:
        return False
    most = _early(profile) > thresholds.CLOCK_EARLY_SHARE * len(program.record)
    return most or _late_ns(profile) > thresholds.CLOCK_LATE_NS


def _early(profile: Profile) -> int:
    """Kernels that start before their launch by more than jitter."""
    program, trace = profile.program, profile.trace
    assert program is not None
    delay = trace.start_ns[program.record] - trace.start_ns[profile.steps.launch[program.record]]
    return int((delay < -thresholds.CLOCK_EARLY_NS).sum())


def _late_ns(profile: Profile) -> float:
    """How long after its launch call the first kernel of a live run starts; 0 in a file.

    A live run synchronises before it records, so that the queue is empty then. A call itself may take long: it loads
    the kernel.
    """
    program, trace = profile.program, profile.trace
    assert program is not None
    if profile.live is None:
        return 0.0
    first = program.record[0]
    return float(trace.start_ns[first] - trace.end_ns[profile.steps.launch[first]])
