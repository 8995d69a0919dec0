"""All causes, ranked by what removing them recovers, and the one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.steps import ends_early
from ipyprof.diagnosis import causes, thresholds
from ipyprof.diagnosis.cause import NS_PER_MS, Finding, Verdict, Where, gain_of, least_share
from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.causes.compute_bound import device_bound, healthy_headline
from ipyprof.diagnosis.causes.data_loading import loading_advice
from ipyprof.diagnosis.memory import verdict_of_failure
from ipyprof.diagnosis.trust import LEVELS, Check, checks, confidence, shifted
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import DEVICE_KINDS

LOADER, READS, PYTHON, RESIDUAL, RANKS = "data_loading", "host_sync", "cpu_bound", "launch_bound", "straggler"
HEALTHY, INCONCLUSIVE, UNLIKE = "compute_bound", "inconclusive", "unlike_steps"
_ORDER = {"found": 0, "cleared": 1, "unknown": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found in a profile.

    Attributes:
        findings: of every cause: found by gain, then cleared by gain, then unknown.
        verdict: the dominant bottleneck; of a cell that ran out of memory, the request that failed.
        checks: what can make the numbers wrong.
    """

    findings: tuple[Finding, ...]
    verdict: Verdict
    checks: tuple[Check, ...]


def diagnose(profile: Profile) -> Diagnosis:
    """The findings, the one sentence, and how far both can be trusted."""
    findings, verdict = _judged(profile)
    checked = checks(profile)
    level, reasons = confidence(checked)
    verdict = replace(
        verdict,
        confidence=min(level, verdict.confidence, key=LEVELS.index),
        reasons=(*verdict.reasons, *reasons),
    )
    return Diagnosis(findings=findings, verdict=verdict_of_failure(profile, verdict), checks=checked)


def ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """Found by gain, then cleared by gain, then unknown."""
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.status], -(finding.recoverable_ms or 0.0))))


def _judged(profile: Profile) -> tuple[tuple[Finding, ...], Verdict]:
    """(findings, the verdict with no more confidence than its own evidence allows)."""
    if ends_early(profile.trace):
        missing = _what_is_missing(profile)
        return tuple(cause.unknown(missing) for cause in causes.CAUSES), _inconclusive(missing, _CUT)
    reason = _cannot_look(profile)
    if reason is not None:
        verdict, seen = _without_gpu(profile, reason)
        blind = [cause.unknown(reason) for cause in causes.CAUSES if cause.id not in (verdict.cause, RANKS)]
        return (*seen, *blind), verdict
    found = [cause.find(profile) for cause in causes.CAUSES]
    reason = _cannot_replay(profile)
    if reason is not None:
        found = [cause_of(one.cause).unknown(reason) if one.status == "found" else one for one in found]
        return ranked(found), _inconclusive(reason)
    return ranked(found), _verdict(profile, found)


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
    return None if profile.has_gpu else "no GPU"


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
        off, most = percent_short(profile.fit_error), percent_short(thresholds.FIT_SHARE)
        return f"the replay misses the recording by {off}, over {most}"
    return None


def _verdict(profile: Profile, findings: list[Finding]) -> Verdict:
    found = [finding for finding in findings if finding.status == "found"]
    if not found:
        return _nothing_found(profile, findings)
    main = _dominant(profile, found)
    cause = cause_of(main.cause)
    following, following_ms, text = _next(profile, main)
    return Verdict(
        cause=main.cause,
        headline=cause.headline(profile, main),
        advice=main.advice,
        change=main.change,
        bound=cause.bound,
        recoverable_ms=main.recoverable_ms,
        predicted_step_ms=main.predicted_step_ms,
        speedup_bound=main.speedup_bound,
        confidence="high",
        next=following,
        next_ms=following_ms,
        next_text=text,
    )


def _dominant(profile: Profile, found: list[Finding]) -> Finding:
    """The finding that heads the verdict: the largest gain, of the GPU's own work or of what it waits for."""
    waits = [finding for finding in found if not cause_of(finding.cause).works]
    candidates = [finding for finding in found if finding not in waits]
    if waits:
        candidates.insert(0, _dominant_wait(profile, waits))
    return max(candidates, key=lambda finding: finding.recoverable_ms or 0.0)


def _dominant_wait(profile: Profile, found: list[Finding]) -> Finding:
    """Of what the GPU waits for, a specific cause before the residual one where it is large enough."""
    residual = next((finding for finding in found if finding.cause == RESIDUAL), None)
    specific = sorted((f for f in found if f.cause != RESIDUAL), key=lambda f: -(f.recoverable_ms or 0.0))
    if residual is None or not specific:
        return residual or specific[0]
    gain, of_graph = specific[0].recoverable_ms or 0.0, residual.recoverable_ms or 0.0
    enough = gain * NS_PER_MS >= thresholds.SPECIFIC_SHARE * (profile.loop_ns or 0.0)
    if enough or gain >= thresholds.SPECIFIC_OF_GRAPH * of_graph:
        return specific[0]
    # A graph cannot hold a read-back: the sync has to go first.
    return next((finding for finding in specific if finding.cause == READS), residual)


def _next(profile: Profile, main: Finding) -> tuple[str | None, float | None, str]:
    """(the cause that comes next once the first is cured, ms that curing it too recovers, a few words on it)."""
    assert profile.program is not None
    cured = cause_of(main.cause).edit(profile, profile.program)
    cured_ns, alike = profile.step_without(cured), cured is profile.program  # then its steps were unlike others
    gains = [
        (cause, gain_of(profile, cause.edit(profile, cured), before=cured, before_ns=cured_ns, alike=alike))
        for cause in causes.CAUSES
        if cause.id != main.cause
    ]
    large = [pair for pair in gains if pair[1].share > thresholds.FOUND_SHARE]
    if not large:
        return None, None, f"then {cause_of(HEALTHY).name}"
    cause, gain = max(large, key=lambda pair: pair[1].recoverable_ns)
    gained_ms = gain.recoverable_ns / NS_PER_MS
    return cause.id, gained_ms, f"then {cause.name}: {time_text(gained_ms)} of {time_text(gain.step_ns / NS_PER_MS)}"


def _nothing_found(profile: Profile, findings: list[Finding]) -> Verdict:
    assert profile.breakdown is not None and profile.loop_ns is not None
    step_ns = profile.loop_ns
    busy = profile.breakdown.parts["kernel"] / step_ns
    computes = f"the GPU computes {percent_short(busy)} of the step"
    if busy < thresholds.NEARLY_BUSY_SHARE:
        return _inconclusive(f"{computes}; {_too_little(profile, findings)}")
    nearly = busy < thresholds.BUSY_SHARE
    remaining = step_ns * busy
    return Verdict(
        cause=HEALTHY,
        headline=healthy_headline(profile, busy),
        advice="Change nothing in the loop. To go faster, give the GPU less work: a smaller model, a lower precision.",
        bound=device_bound(profile),
        recoverable_ms=(step_ns - remaining) / NS_PER_MS,
        predicted_step_ms=remaining / NS_PER_MS,
        speedup_bound=step_ns / max(remaining, 1.0),
        confidence="medium" if nearly else "high",
        reasons=(f"{computes}: nearly busy, not busy",) if nearly else (),
    )


def _too_little(profile: Profile, findings: list[Finding]) -> str:
    """Why the largest gain is no finding, in at most 8 words."""
    assert profile.loop_ns is not None
    largest = max(findings, key=lambda finding: finding.recoverable_ms or 0.0)
    share = (largest.recoverable_ms or 0.0) * NS_PER_MS / profile.loop_ns
    if share > least_share(profile):
        return f"{largest.cause}'s {percent_short(share)} is within the replay's error"
    return f"no cause recovers {percent_short(least_share(profile))} of it"


_LOOK = "Look at the breakdown and the lines below; record more steps (--active 10) or a longer loop."
_CUT = "Copy or export the file again. The numbers below are of the part that is there, and lack the rest."
_SILENT = (
    "Usual reasons: no permission for GPU performance counters (NVreg_RestrictProfilingToAdminUsers=0, or "
    "CAP_SYS_ADMIN in a container), a CUPTI that does not match the driver, an unsupported platform (WSL)."
)


def _inconclusive(reason: str, advice: str = _LOOK) -> Verdict:
    headline = f"Could not tell what holds the step back: {reason}."
    return Verdict(cause=INCONCLUSIVE, headline=headline, advice=advice)


def _without_gpu(profile: Profile, reason: str) -> tuple[Verdict, tuple[Finding, ...]]:
    """(the verdict without device records, its finding if any): the loader, or the largest line, or nothing."""
    if profile.silent:
        headline = "GPU work was launched but none was recorded, so nothing can be said of the GPU."
        return Verdict(cause=INCONCLUSIVE, headline=headline, advice=_SILENT), ()
    if not profile.step_ns or profile.step_ns <= 0 or profile.breakdown is None:
        timed = profile.live is not None and bool(profile.live.baseline_ns)
        advice = "Let the cell run at least two steps, of the kind that --step asks for."
        if timed:
            advice = "The steps were timed, but none was recorded; the notes below say why."
        return _inconclusive(reason, advice), ()
    doubt = _cpu_doubt(profile, profile.step_ns, profile.breakdown.parts["other"])
    if doubt is not None:
        return _inconclusive(doubt), ()
    unlike = cause_of(UNLIKE).find(profile)
    if unlike.status == "found" and profile.unlike_ns >= thresholds.CPU_LOADING_SHARE * (profile.loop_ns or 0.0):
        told = replace(unlike, recoverable_ms=None, predicted_step_ms=None, speedup_bound=None)
        return _of_cpu(UNLIKE, cause_of(UNLIKE).headline(profile, unlike), unlike.advice), (told,)
    loading = profile.breakdown.parts["data_loading"] / profile.step_ns
    if loading > thresholds.CPU_LOADING_SHARE:
        cause, line = LOADER, profile.live.loop_line if profile.live is not None else None
        text = f"fetching batches takes {percent_short(loading)} of the step"
        advice = loading_advice(profile)
    else:
        cause = PYTHON
        costs = [(cost.host_ms or 0.0, -cost.line) for cost in profile.lines if cost.line > 0]
        line, text = None, "the CPU computes"
        if costs:
            host_ms, line = max(costs)[0], -max(costs)[1]
            text = f"line {line} takes {percent_short(host_ms * NS_PER_MS / profile.step_ns)} of the step"
        advice = "GPU time is not available here: run on a machine with CUDA to see what a GPU would wait for."
    at = f"Line {line}: " if line and cause == LOADER else ""
    sentence = f"{at}{text}; GPU time is not available."
    verdict = _of_cpu(cause, sentence[0].upper() + sentence[1:], advice)
    return verdict, (Finding(cause=cause, status="found", where=Where(line=line), evidence=text, advice=advice),)


def _of_cpu(cause: str, headline: str, advice: str) -> Verdict:
    return Verdict(
        cause=cause,
        headline=headline,
        advice=advice,
        bound=cause_of(cause).bound,
        confidence="medium",
        reasons=("no GPU: the gain was not replayed",),
    )


def _cpu_doubt(profile: Profile, step_ns: float, other_ns: float) -> str | None:
    """Why the parts of a step without a GPU cannot be trusted, or ``None``."""
    if profile.steps.count < 2:
        return "one step was recorded, at least two are needed without a GPU"
    if step_ns < thresholds.CPU_LEAST_STEP_NS:
        return f"a step of {time_text(step_ns / NS_PER_MS)} is shorter than what marking it takes"
    if profile.overhead is not None and profile.overhead > thresholds.CPU_MOST_OVERHEAD:
        return f"recording made the step {profile.overhead:.0f} times as long"
    if other_ns / step_ns > thresholds.CPU_MOST_OTHER:
        return f"{percent_short(other_ns / step_ns)} of the step is not explained by the recording"
    off = 0.0 if profile.replayed is None else abs(profile.replayed.step_ns / step_ns - 1)
    if off > thresholds.CPU_MOST_OFF:
        return f"the recorded steps are {percent_short(off)} off the unprofiled ones, by more than recording them costs"
    return None
