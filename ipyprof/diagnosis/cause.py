"""What all causes share: the recoverable time of an edit, and when it counts as found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Float, Program
from ipyprof.analysis.replay import device_work_ns
from ipyprof.analysis.results import Ms, Number, Record
from ipyprof.diagnosis import thresholds
from ipyprof.formatting import percent_short
from ipyprof.trace.model import Int64


class Where(Record, frozen=True):
    """The place a finding points to. ``line`` counts from 1; line 1 of a cell is the magic line."""

    operator: str | None = None
    file: str | None = None
    line: int | None = None
    scope: str | None = None


class Site(Record, frozen=True):
    """One place of several. ``count`` is per step; ``recoverable_ms`` is what curing this place alone would gain."""

    where: Where
    status: str
    count: Number
    recoverable_ms: Ms | None


class Finding(Record, frozen=True):
    """One cause, looked at.

    Attributes:
        cause: identifier of the cause, as in DESIGN section 6.
        status: ``found``, ``cleared`` (looked, not a problem) or ``unknown`` (could not look).
        recoverable_ms: step time that removing the cause would recover at most, by replay; ``None`` = not measured.
        predicted_step_ms: the step without the cause, at least.
        speedup_bound: step / predicted step, at most; ``None`` where the cure does more than the edit: then
            ``speedup_range`` says (low, high) of what such cures reached.
        where: the place that costs most.
        sites: all places, the most expensive first.
        evidence: what was seen, with its numbers and the threshold.
        advice: one concrete change.
        change: the change as a diff of the user's own line: (before, after), or ``None``.
    """

    cause: str
    status: str
    recoverable_ms: Ms | None = None
    predicted_step_ms: Ms | None = None
    speedup_bound: Number | None = None
    speedup_range: tuple[Number, Number] | None = None
    where: Where = Where()
    sites: tuple[Site, ...] = ()
    evidence: str = ""
    advice: str = ""
    change: tuple[str, str] | None = None


class Verdict(Record, frozen=True):
    """The dominant bottleneck in one sentence of at most 25 words.

    Attributes:
        cause: a finding's cause, or ``compute_bound`` or ``inconclusive``.
        headline: the sentence.
        advice: one concrete change, or what to look at.
        change: the change as a diff of the user's own line, or ``None``.
        bound: the words people ask for: ``IO-bound``, ``CPU-bound``, ``GPU-bound (compute)``, ``GPU-bound (bandwidth)``
            or ``unknown``.
        recoverable_ms, predicted_step_ms, speedup_bound: as in the finding.
        confidence: ``high``, ``medium`` or ``low``.
        reasons: why the confidence is not high, each a part of a sentence.
        next: cause that would come next, or ``None``; next_ms: what removing that one too would recover; next_text: in
            words, such as ``then launches: 0.62 of 2.50 ms``.
    """

    cause: str
    headline: str
    advice: str
    change: tuple[str, str] | None = None
    bound: str = "unknown"
    recoverable_ms: Ms | None = None
    predicted_step_ms: Ms | None = None
    speedup_bound: Number | None = None
    speedup_range: tuple[Number, Number] | None = None
    confidence: str = "low"
    reasons: tuple[str, ...] = ()
    next: str | None = None
    next_ms: Ms | None = None
    next_text: str | None = None


NS_PER_MS = 1e6
NOWHERE = Where()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What an edit recovers, per step in ns; ``predicted_ns`` is the step that remains, at least."""

    step_ns: float
    recoverable_ns: float

    @property
    def predicted_ns(self) -> float:
        return self.step_ns - self.recoverable_ns

    @property
    def share(self) -> float:
        """Of the step, 0..1."""
        return self.recoverable_ns / self.step_ns if self.step_ns else 0.0


def gain_of(profile: Profile, edited: Program, before: Program | None = None, before_ns: float | None = None) -> Gain:
    """What running ``edited`` instead of ``before`` (the recorded program) would recover of the unprofiled step.

    ``before_ns`` is the step of ``before`` where that is known already: a replay takes time.
    """
    assert profile.replayed is not None and profile.step_ns is not None
    base = profile.replayed.step_ns
    if before is not None:
        base = profile.step_without(before) if before_ns is None else before_ns
    typical = profile.step_ns if before is None else max(profile.step_ns - (profile.replayed.step_ns - base), 1.0)
    step = typical + profile.unlike_ns
    # An edit that finds nothing to take out gives the program back.
    if edited is (profile.program if before is None else before):
        return Gain(step_ns=step, recoverable_ns=0.0)
    recovered = max(base - profile.step_without(edited), 0.0)
    # Where replay and step differ, so does what is left: the GPU's own work is left in any case.
    most = min(max(typical - device_work_ns(edited), 0.0), typical * 0.999)
    return Gain(step_ns=step, recoverable_ns=min(recovered, most))


def is_found(profile: Profile, gain: Gain) -> bool:
    """Whether a gain is large enough, against the step and against the replay's own error."""
    return gain.share > least_share(profile) and gain.recoverable_ns > thresholds.ERRORS * profile.error_ns


def least_share(profile: Profile) -> float:
    """Share of the step that a gain must be over."""
    return thresholds.FOUND_SHARE if profile.step_from == "baseline" else thresholds.FOUND_SHARE_NO_BASELINE


def judged(
    profile: Profile,
    cause: str,
    gain: Gain,
    *,
    evidence: str,
    cleared: str = "",
    advice: str = "",
    where: Where = NOWHERE,
    sites: tuple[Site, ...] = (),
    change: tuple[str, str] | None = None,
) -> Finding:
    """The finding for a cause that was there: found, or cleared because removing it gains too little.

    Unknown, with its numbers, where the gain would be large enough and lies within the replay's own error.
    """
    found = is_found(profile, gain)
    unclear = not found and gain.share > least_share(profile)
    if unclear:
        off, gained = percent_short(profile.error_ns / gain.step_ns), percent_short(gain.share)
        cleared = f"{evidence}; a gain of {gained} is within the replay's error ({off}, counted twice)"
    return Finding(
        cause=cause,
        status="found" if found else "unknown" if unclear else "cleared",
        recoverable_ms=gain.recoverable_ns / NS_PER_MS,
        predicted_step_ms=gain.predicted_ns / NS_PER_MS,
        speedup_bound=gain.step_ns / gain.predicted_ns,
        where=where,
        sites=sites,
        evidence=evidence if found or not cleared else cleared,
        advice=advice if found else "",
        change=change if found else None,
    )


def absent(profile: Profile, cause: str, evidence: str) -> Finding:
    """The finding for a cause of which nothing was seen."""
    step_ms = None if profile.step_ns is None else profile.step_ns / NS_PER_MS
    return Finding(
        cause=cause,
        status="cleared",
        recoverable_ms=0.0,
        predicted_step_ms=step_ms,
        speedup_bound=1.0,
        evidence=evidence,
    )


def unknown(cause: str, reason: str) -> Finding:
    """The finding for a cause that could not be looked at."""
    return Finding(cause=cause, status="unknown", evidence=reason)


def source_line(profile: Profile, line: int | None) -> str:
    """The cell's text of a line, or an empty string."""
    if profile.live is None or not line:
        return ""
    lines = profile.live.source.splitlines()
    return lines[line - 1] if line <= len(lines) else ""


def top_lines(lines: Int64, weight: Float) -> list[int]:
    """Distinct lines (0 = none left out), the heaviest first."""
    distinct = [line for line in np.unique(lines).tolist() if line > 0]
    return sorted(distinct, key=lambda line: (-float(weight[lines == line].sum()), line))
