"""The loop waits, but not in every step: epoch starts, evaluation, checkpoints, plots, the collector."""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.results import UnlikeSteps as Kind
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, Finding, Gain, Where, least_share, part_text
from ipyprof.formatting import percent_short, plural, speedup_text, time_text

EPOCH_START = "the start of an epoch"
COLLECTION = "garbage collection"
UNSEEN = "something too short to be seen"
ADVICE = {
    EPOCH_START: "Keep the workers over the epochs: persistent_workers=True, and a dataset that is quick to send.",
    COLLECTION: "Collect when it costs least: gc.freeze() before the loop, gc.disable() in it, gc.collect() between "
    "epochs.",
}
ELSE = (
    "Do it less often, or beside the loop: save and log from a thread, copy without waiting, evaluate on fewer batches."
)


class UnlikeSteps(Cause):
    id = "unlike_steps"
    name = "steps unlike the others"
    subject = ("Steps unlike the others", " hold this loop back")
    without = "with typical steps"
    checked = "evaluation, epoch starts"
    bound = "CPU-bound (not in every step)"
    part = "unlike_steps"

    def find(self, profile: Profile) -> Finding:
        """Whether all steps are alike: those that are not, what they did, and what they cost each step."""
        pace, step_ns = profile.pace, profile.loop_ns
        if profile.live is None:
            return self.unknown("a file holds the recorded steps only")
        if pace is None or step_ns is None or not step_ns:
            return self.unknown("too few steps without the profiler")
        gain = Gain(step_ns=step_ns, recoverable_ns=profile.unlike_ns)
        found = gain.share > least_share(profile)
        told = "; ".join(_told(one) for one in pace.unlike[:3])
        evidence = f"{plural(pace.steps, 'step')} timed" + (f"; {told}" if told else ", all alike")
        main = pace.unlike[0] if pace.unlike else None
        return Finding(
            cause=self.id,
            status="found" if found else "cleared",
            recoverable_ms=gain.recoverable_ns / NS_PER_MS,
            predicted_step_ms=gain.predicted_ns / NS_PER_MS,
            speedup_bound=gain.step_ns / max(gain.predicted_ns, 1.0),
            where=Where(line=None if main is None else main.line, scope=None if main is None else main.what),
            evidence=evidence,
            advice="" if not found or main is None else ADVICE.get(main.what, ELSE),
        )

    def headline(self, profile: Profile, finding: Finding) -> str:
        """Such as ``Line 9 (evaluate) takes 184 ms more in every 20th step: 9.2 of 13.8 ms (67 %); ...``"""
        step_ms, gained = (profile.loop_ns or 0.0) / NS_PER_MS, finding.recoverable_ms or 0.0
        main = profile.pace.unlike[0] if profile.pace is not None and profile.pace.unlike else None
        cost = f"{part_text(gained, step_ms)} ({percent_short(gained / step_ms if step_ms else None)})"
        what = "Some steps take longer" if main is None else _sentence(main)
        return f"{what}: {cost}; all steps typical, at most {speedup_text(finding.speedup_bound)} faster."


def _sentence(one: Kind) -> str:
    """Such as ``Line 9 (evaluate) takes 184 ms more in every 20th step``."""
    each = time_text(one.ms / max(one.count, 1))
    if one.what == EPOCH_START and one.count > 1:
        return f"Each of {plural(one.count, 'epoch start')} takes {each} more"
    what = "something" if one.what == UNSEEN else one.what
    named = what if one.line is None or what == f"line {one.line}" else f"line {one.line} ({what})"
    return f"{named[0].upper()}{named[1:]} takes {each} more {_when(one)}"


def _told(one: Kind) -> str:
    place = "" if one.line is None or one.what == f"line {one.line}" else f", line {one.line}"
    return f"{one.what}{place}: {time_text(one.ms / max(one.count, 1))} {_when(one)}"


def _when(one: Kind) -> str:
    """``in every 20th step``, ``at each of 3 epoch starts``, ``in 2 steps``."""
    if one.what == EPOCH_START:
        return f"at each of {plural(one.count, 'epoch start')}" if one.count > 1 else "once"
    if one.count > 1 and one.period is not None and one.period >= 2:
        return f"in every {_ordinal(round(one.period))} step"
    return f"in {plural(one.count, 'step')}" if one.count > 1 else "in one step"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
