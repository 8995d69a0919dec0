"""All causes, ranked by what removing them recovers, and the one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Program
from ipyprof.analysis.steps import ends_early
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import NS_PER_MS, Finding, Gain, Verdict, Where, gain_of, least_share, unknown
from ipyprof.diagnosis.causes import (
    allocator,
    communication,
    cpu_bound,
    data_loading,
    host_sync,
    launch_bound,
    memory_bound,
    misaligned_shapes,
    tensor_cores,
    transfer,
    unstable_shapes,
)
from ipyprof.diagnosis.memory import verdict_of_failure
from ipyprof.diagnosis.trust import confidence, shifted
from ipyprof.diagnosis.words import BOUND_OF, NEXT_NAMES, device_bound, headline, healthy_headline
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import DEVICE_KINDS, Kind

WAITING: tuple[ModuleType, ...] = (
    data_loading,
    host_sync,
    allocator,
    transfer,
    communication,
    unstable_shapes,
    cpu_bound,
    launch_bound,
)
GPU_WORK: tuple[ModuleType, ...] = (tensor_cores, misaligned_shapes, memory_bound)
CAUSES = (*WAITING, *GPU_WORK)
"""Each has CAUSE, ``find(profile)`` and ``edit(profile, program)``. A new cause is a new file and a row here."""

RESIDUAL = launch_bound.CAUSE

LOOK_ADVICE = "Look at the breakdown and the lines below; record more steps (--active 10) or a longer loop."
STRAGGLER = "straggler"
CUT_ADVICE = "Copy or export the file again. The numbers below are of the part that is there, and lack the rest."


def diagnose(profile: Profile) -> tuple[tuple[Finding, ...], Verdict]:
    """(findings, the dominant bottleneck). Findings are ordered: found by gain, then cleared by gain, then unknown.

    Where the cell ran out of memory, the verdict's sentence is of that.
    """
    findings, verdict = _judged(profile)
    return findings, verdict_of_failure(profile, verdict)


def _judged(profile: Profile) -> tuple[tuple[Finding, ...], Verdict]:
    if ends_early(profile.trace):
        missing = _what_is_missing(profile)
        cut = tuple(unknown(cause, missing) for cause in (*(module.CAUSE for module in CAUSES), STRAGGLER))
        return cut, _inconclusive(profile, missing, advice=CUT_ADVICE)
    reason = _cannot_look(profile)
    if reason is not None:
        verdict, seen = _without_gpu(profile, reason)
        blind = tuple(unknown(module.CAUSE, reason) for module in CAUSES if verdict.cause != module.CAUSE)
        return (blind if seen is None else (seen, *blind)), verdict
    found = [module.find(profile) for module in CAUSES]
    found += _between_processes(profile)
    reason = _cannot_replay(profile)
    if reason is not None:
        found = [unknown(one.cause, reason) if one.status == "found" else one for one in found]
        return tuple(_ranked(found)), _inconclusive(profile, reason)
    return tuple(_ranked(found)), _verdict(profile, found)


def edited(profile: Profile, cause: str) -> Program | None:
    """The program without this cause, or ``None`` where it is no cause with an edit."""
    module = next((module for module in CAUSES if cause == module.CAUSE), None)
    if module is None or profile.program is None or not profile.has_gpu:
        return None
    program: Program = module.edit(profile, profile.program)
    return program


def _cannot_replay(profile: Profile) -> str | None:
    """Why the replay of the unedited step says nothing of the step, or ``None``."""
    trace, carried = profile.trace, profile.steps.carried
    device_ns = int(trace.dur_ns[trace.select(*DEVICE_KINDS)].sum())
    unknown_ns = int(trace.dur_ns[carried].sum())
    if unknown_ns > thresholds.CARRIED_SHARE * device_ns:
        return f"the launches of {percent_short(unknown_ns / device_ns)} of the GPU's work are not in the file"
    if shifted(profile):
        return "host and GPU clocks disagree, so the GPU's idle time is unknown"
    if profile.fit_error is not None and profile.fit_error > thresholds.FIT_SHARE and not profile.once:
        return (
            f"the replay misses the recording by {percent_short(profile.fit_error)}, over "
            f"{percent_short(thresholds.FIT_SHARE)}"
        )
    return None


def _what_is_missing(profile: Profile) -> str:
    """Why nothing is judged of a file that was cut off, in at most 13 words.

    A cut takes calls and GPU records without a trace: what is left looks like a loop with other steps, sound and whole.
    """
    if profile.has_gpu:
        return "the file ends early, and GPU records may be missing"
    if profile.live is not None and profile.live.cuda:
        return "the file ends early, before the GPU's records"
    return "the file ends early, and records may be missing"


def _cannot_look(profile: Profile) -> str | None:
    """Why no cause can be looked at, or ``None``."""
    if profile.program is None or profile.step_ns is None or profile.breakdown is None:
        return "no step was recorded"
    if profile.step_ns <= 0:
        return "the step has no length"
    if profile.silent:
        return "GPU work was launched but none was recorded"
    if not profile.has_gpu:
        return "no GPU"
    return None


def _between_processes(profile: Profile) -> list[Finding]:
    """``straggler``: cleared in a single process; one file of several cannot tell."""
    world = profile.trace.metadata.get("distributedInfo")
    several = isinstance(world, dict) and world.get("world_size", 1) != 1
    if several or len(profile.trace.select(Kind.COMMUNICATION)):
        waits = "waits in collectives; " if len(profile.trace.select(Kind.COMMUNICATION)) else ""
        return [unknown(STRAGGLER, f"{waits}one file of several ranks cannot tell who is late")]
    return [Finding(cause=STRAGGLER, status="cleared", recoverable_ms=0.0, evidence="one process")]


def _ranked(findings: list[Finding]) -> list[Finding]:
    order = {"found": 0, "cleared": 1, "unknown": 2}
    return sorted(findings, key=lambda finding: (order[finding.status], -(finding.recoverable_ms or 0.0)))


def _verdict(profile: Profile, findings: list[Finding]) -> Verdict:
    assert profile.breakdown is not None and profile.step_ns is not None and profile.program is not None
    found = [finding for finding in findings if finding.status == "found"]
    if not found:
        return _nothing_found(profile, findings)
    main = _dominant(profile, found)
    following, gain, text = _next(profile, main)
    level, reasons = confidence(profile)
    return Verdict(
        cause=main.cause,
        headline=headline(profile, main),
        advice=main.advice,
        change=main.change,
        bound=BOUND_OF[main.cause],
        recoverable_ms=main.recoverable_ms,
        predicted_step_ms=main.predicted_step_ms,
        speedup_bound=main.speedup_bound,
        confidence=level,
        reasons=reasons,
        next=following,
        next_ms=None if gain is None else gain.recoverable_ns / NS_PER_MS,
        next_text=text,
    )


def _dominant(profile: Profile, found: list[Finding]) -> Finding:
    """The finding that heads the verdict: the largest gain, of the GPU's own work or of what it waits for."""
    working = {module.CAUSE for module in GPU_WORK}
    waits = [finding for finding in found if finding.cause not in working]
    candidates = [finding for finding in found if finding.cause in working]
    if waits:
        candidates.insert(0, _dominant_wait(profile, waits))
    return max(candidates, key=lambda finding: finding.recoverable_ms or 0.0)


def _dominant_wait(profile: Profile, found: list[Finding]) -> Finding:
    """Of what the GPU waits for, a specific cause before the residual one where it is large enough."""
    assert profile.step_ns is not None
    residual = next((finding for finding in found if finding.cause == RESIDUAL), None)
    specific = sorted((f for f in found if f.cause != RESIDUAL), key=lambda f: -(f.recoverable_ms or 0.0))
    if residual is None:
        return specific[0]
    if not specific:
        return residual
    gain, of_graph = specific[0].recoverable_ms or 0.0, residual.recoverable_ms or 0.0
    enough = gain * NS_PER_MS >= thresholds.SPECIFIC_SHARE * profile.step_ns
    if enough or gain >= thresholds.SPECIFIC_OF_GRAPH * of_graph:
        return specific[0]
    # A graph cannot hold a read-back: the sync has to go first.
    return next((finding for finding in specific if finding.cause == host_sync.CAUSE), residual)


def _next(profile: Profile, main: Finding) -> tuple[str | None, Gain | None, str]:
    """(the cause that comes next once the first is cured, what curing it too recovers, a few words on it)."""
    assert profile.program is not None and profile.step_ns is not None
    module = next(module for module in CAUSES if main.cause == module.CAUSE)
    cured: Program = module.edit(profile, profile.program)
    cured_ns = profile.step_without(cured)
    best, best_gain = None, None
    for other in CAUSES:
        if other is module:
            continue
        gain = gain_of(profile, other.edit(profile, cured), before=cured, before_ns=cured_ns)
        large = gain.recoverable_ns > thresholds.FOUND_SHARE * gain.step_ns
        if large and (best_gain is None or gain.recoverable_ns > best_gain.recoverable_ns):
            best, best_gain = other.CAUSE, gain
    if best is None or best_gain is None:
        return None, None, "then the GPU's own work"
    gained, step = time_text(best_gain.recoverable_ns / NS_PER_MS), time_text(best_gain.step_ns / NS_PER_MS)
    return best, best_gain, f"then {NEXT_NAMES[best]}: {gained} of {step}"


def _nothing_found(profile: Profile, findings: list[Finding]) -> Verdict:
    assert profile.breakdown is not None and profile.step_ns is not None
    busy = profile.breakdown.parts["kernel"] / profile.step_ns
    if busy < thresholds.NEARLY_BUSY_SHARE:
        return _inconclusive(
            profile, f"the GPU computes {percent_short(busy)} of the step; {_too_little(profile, findings)}"
        )
    level, reasons = confidence(profile)
    if busy < thresholds.BUSY_SHARE:
        reasons = (f"the GPU computes {percent_short(busy)} of the step: nearly busy, not busy", *reasons)
        level = "low" if level == "low" else "medium"
    remaining = profile.step_ns * busy
    return Verdict(
        cause="compute_bound",
        headline=healthy_headline(profile, busy),
        advice="Change nothing in the loop. To go faster, give the GPU less work: a smaller model, a lower precision.",
        bound=device_bound(profile),
        recoverable_ms=(profile.step_ns - remaining) / NS_PER_MS,
        predicted_step_ms=remaining / NS_PER_MS,
        speedup_bound=profile.step_ns / max(remaining, 1.0),
        confidence=level,
        reasons=reasons,
    )


def _too_little(profile: Profile, findings: list[Finding]) -> str:
    """Why the largest gain is no finding, in at most 8 words."""
    assert profile.step_ns is not None
    largest = max(findings, key=lambda finding: finding.recoverable_ms or 0.0)
    share = (largest.recoverable_ms or 0.0) * NS_PER_MS / profile.step_ns
    if share > least_share(profile):
        return f"{largest.cause}'s {percent_short(share)} is within the replay's error"
    return f"no cause recovers {percent_short(least_share(profile))} of it"


def _inconclusive(profile: Profile, reason: str, advice: str = LOOK_ADVICE) -> Verdict:
    return Verdict(
        cause="inconclusive",
        headline=f"Could not tell what holds the step back: {reason}.",
        advice=advice,
        confidence="low",
        reasons=confidence(profile)[1],
    )


def _cpu_doubt(profile: Profile, parts: Mapping[str, float]) -> str | None:
    """Why the parts of a step without a GPU cannot be trusted, or ``None``."""
    assert profile.step_ns is not None
    if profile.steps.count < 2:
        return "one step was recorded, at least two are needed without a GPU"
    if profile.step_ns < thresholds.CPU_LEAST_STEP_NS:
        return f"a step of {time_text(profile.step_ns / NS_PER_MS)} is shorter than what marking it takes"
    if profile.overhead is not None and profile.overhead > thresholds.CPU_MOST_OVERHEAD:
        return f"recording made the step {profile.overhead:.0f} times as long"
    if parts["other"] / profile.step_ns > thresholds.CPU_MOST_OTHER:
        return f"{percent_short(parts['other'] / profile.step_ns)} of the step is not explained by the recording"
    off = 0.0 if profile.replayed is None else abs(profile.replayed.step_ns / profile.step_ns - 1)
    if off > thresholds.CPU_MOST_OFF:
        return f"the recorded steps are {percent_short(off)} off the unprofiled ones, by more than recording them costs"
    return None


def _without_gpu(profile: Profile, reason: str) -> tuple[Verdict, Finding | None]:
    """(the verdict without device records, its finding): the loader, or the largest line, or nothing."""
    parts = profile.breakdown.parts if profile.breakdown is not None else {}
    if profile.silent:
        return Verdict(
            cause="inconclusive",
            headline="GPU work was launched but none was recorded, so nothing can be said of the GPU.",
            advice="Usual reasons: no permission for GPU performance counters (NVreg_RestrictProfilingToAdminUsers=0, "
            "or CAP_SYS_ADMIN in a container), a CUPTI that does not match the driver, an unsupported platform (WSL).",
            confidence="low",
        ), None
    if profile.step_ns is None or profile.step_ns <= 0 or not parts:
        timed = profile.live is not None and bool(profile.live.baseline_ns)
        return Verdict(
            cause="inconclusive",
            headline=f"Could not tell what holds the step back: {reason}.",
            advice="The steps were timed, but none was recorded; the notes below say why."
            if timed
            else "Let the cell run at least two steps, of the kind that --step asks for.",
            confidence="low",
        ), None
    doubt = _cpu_doubt(profile, parts)
    if doubt is not None:
        return _inconclusive(profile, doubt), None
    loading = parts["data_loading"] / profile.step_ns
    where = Where()
    level, reasons = confidence(profile)
    level = "medium" if level == "high" else level
    if loading > thresholds.CPU_LOADING_SHARE:
        line = profile.live.loop_line if profile.live is not None else None
        where = Where(line=line)
        cause, text = data_loading.CAUSE, f"fetching batches takes {percent_short(loading)} of the step"
        advice = data_loading.advice(profile)
    else:
        cause = cpu_bound.CAUSE
        costs = sorted((cost for cost in profile.lines if cost.line > 0), key=lambda cost: -cost.host_ms)
        line = costs[0].line if costs else None
        where = Where(line=line)
        text = (
            "the CPU computes"
            if line is None
            else f"line {line} takes {percent_short(costs[0].host_ms * NS_PER_MS / profile.step_ns)} of the step"
        )
        advice = "GPU time is not available here: run on a machine with CUDA to see what a GPU would wait for."
    at = f"Line {where.line}: " if where.line and cause == data_loading.CAUSE else ""
    sentence = f"{at}{text}; GPU time is not available."
    return Verdict(
        cause=cause,
        headline=sentence[0].upper() + sentence[1:],
        advice=advice,
        bound=BOUND_OF[cause],
        confidence=level,
        reasons=("no GPU: the gain was not replayed", *reasons),
    ), Finding(cause=cause, status="found", where=where, evidence=text, advice=advice)
