"""What one cause's module says, and the sentence that is made of all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place a finding points to. ``line`` counts from 1; line 1 of a cell is the magic line."""

    operator: str | None = None
    file: str | None = None
    line: int | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place of several. ``count`` is per step; ``recoverable_ms`` is what curing this place alone would gain."""

    where: Where
    status: str
    count: float
    recoverable_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause, looked at.

    Attributes:
        cause: identifier of the cause, as in DESIGN section 6.
        status: ``found``, ``cleared`` (looked, not a problem) or ``unknown`` (could not look).
        recoverable_ms: step time that removing the cause would recover at most, by replay; ``None`` = not measured.
        predicted_step_ms: the step without the cause, at least.
        speedup_bound: step / predicted step, at most.
        where: the place that costs most.
        sites: all places, the most expensive first.
        evidence: what was seen, with its numbers and the threshold.
        advice: one concrete change.
        change: the change as a diff of the user's own line: (before, after), or ``None``.
    """

    cause: str
    status: str
    recoverable_ms: float | None = None
    predicted_step_ms: float | None = None
    speedup_bound: float | None = None
    where: Where = Where()
    sites: tuple[Site, ...] = ()
    evidence: str = ""
    advice: str = ""
    change: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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
    recoverable_ms: float | None = None
    predicted_step_ms: float | None = None
    speedup_bound: float | None = None
    confidence: str = "low"
    reasons: tuple[str, ...] = ()
    next: str | None = None
    next_ms: float | None = None
    next_text: str | None = None
