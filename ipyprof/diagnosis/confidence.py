"""How far a verdict can be trusted, with the reasons."""

from __future__ import annotations

from statistics import median

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.clocks import clocks
from ipyprof.diagnosis.device_state import other_processes, state_of, throttling
from ipyprof.formatting import percent_short, plural

LEVELS = ("low", "medium", "high")


def confidence(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """(``high``, ``medium`` or ``low``; the reasons why it is not high, each a sentence part)."""
    level = 2
    reasons: list[str] = []

    def lower(to: int, reason: str) -> None:
        nonlocal level
        level = min(level, to)
        reasons.append(reason)

    live = profile.live
    if profile.once:
        lower(0, "a single step")
    if live is not None and live.cold:
        lower(0, "the recorded steps are the first ones: cold")
    if live is None:
        lower(1, "from a file: no unprofiled steps to compare with")
        if profile.steps.how == "no step marks":
            lower(0, "no step marks in the file")
    elif profile.step_from != "baseline":
        lower(1, "no unprofiled step was timed")
    elif live.baseline == "after_first":
        lower(1, "one unprofiled step only, right behind the recording")
    if live is not None and live.partial:
        lower(1, "the recording ended early")
    if profile.fit_error is not None and profile.fit_error > thresholds.FIT_SHARE:
        lower(0, f"the replay misses the recording by {percent_short(profile.fit_error)}")
    if profile.step_ns and profile.replayed is not None:
        off = abs(profile.replayed.step_ns - profile.step_ns) / profile.step_ns
        if off > thresholds.FIT_SHARE:
            lower(1, f"the replayed step is {percent_short(off)} off the unprofiled one")
    if abs(profile.drift - 1) > thresholds.DRIFT_SHARE:
        lower(1, f"the unprofiled steps ran {drift_text(profile.drift)}, apart from what recording costs")
    spread = unprofiled_spread(profile)
    if spread is not None and spread > thresholds.UNSTABLE_SHARE:
        lower(1, f"unprofiled steps vary by {percent_short(spread)}")
    if profile.overhead is not None and profile.overhead > thresholds.OVERHEAD_WARN:
        lower(1, f"recording made the step {profile.overhead:.1f} times as long")
    if profile.lost:
        lower(1, f"{plural(profile.lost, 'launch')} without a GPU record")
    agree = clocks(profile)
    if agree is not None and agree[0] != "ok":
        lower(0, agree[1])
    state = state_of(profile)
    if state is not None:
        for said in (throttling(state), other_processes(state)):
            if said is not None and said[0] == "warn":
                lower(1, said[1])
    return LEVELS[level], tuple(reasons)


def drift_text(drift: float) -> str:
    """How the unprofiled steps ran against the recorded ones: ``12 % slower``, ``20 % faster``."""
    return f"{percent_short(abs(drift - 1))} {'slower' if drift > 1 else 'faster'}"


def unprofiled_spread(profile: Profile) -> float | None:
    """(90th − 10th percentile) / median of the unprofiled samples; ``None`` under three of them."""
    samples = sorted(profile.live.baseline_ns) if profile.live is not None else []
    if len(samples) < 3:
        return None
    low, high = samples[len(samples) // 10], samples[-1 - len(samples) // 10]
    return (high - low) / median(samples)
