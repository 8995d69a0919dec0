"""What a cause is, what a finding and a verdict hold, and when a gain counts as found."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ipyprof.analysis.lines import record_lines
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Bool, Float, Program
from ipyprof.analysis.replay import Replayed, device_work_ns
from ipyprof.analysis.results import Ms, Number, Record
from ipyprof.analysis.roofline import Roofline
from ipyprof.diagnosis import thresholds
from ipyprof.formatting import percent_short, speedup_text, time_text
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
MOST_SITES = 8


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


def gain_of(
    profile: Profile,
    edited: Program,
    before: Program | None = None,
    before_ns: float | None = None,
    *,
    alike: bool = False,
) -> Gain:
    """What running ``edited`` instead of ``before`` (the recorded program) would recover of the loop's step.

    Args:
        before_ns: the step of ``before`` where that is known already: a replay takes time.
        alike: of a loop whose steps are all typical.
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


class Cause:
    """What holds a step back: its words, how it is found, and the step without it.

    A new cause is a file in ``causes/`` with a class of this one, its page of explanation (``ID.md``) beside it, and a
    row in ``causes/__init__.py``.

    Attributes:
        id: identifier in the report.
        name: what would be gone without it; one name wherever the cause is named.
        subject: how the dashboard begins: the subject, and how the sentence goes on.
        without: the step without it, in two or three words.
        checked: what was looked at, in a word or two.
        bound: the words people ask for, such as ``IO-bound``, with the kind in brackets.
        sentence: the headline, with places for ``place`` (the line, else ``nobody``), ``waiting`` (that the GPU waits
            for it), ``times``, ``cost``, ``best`` (how much faster at most) and ``faster``.
        part: key of the breakdown in which its time sits, or ``None``: the GPU is left without queued work.
        works: it is the GPU's own work; else the GPU waits.
        at_least: its cure does more than the edit that is replayed, so its gain is the least.
    """

    id: str = ""
    name: str = ""
    subject: tuple[str, str] = ("", " holds this step back")
    without: str = "without the cause"
    checked: str = ""
    bound: str = "unknown"
    sentence: str = "{place} is held back: {cost}; without it, {best}."
    nobody: str = "The GPU"
    part: str | None = None
    works: bool = False
    at_least: bool = False

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter without it. The profile has a program, a replay and GPU work."""
        return self.unknown("nothing looks for it")

    def edit(self, profile: Profile, program: Program) -> Program:
        """The program without it; the same object where there is nothing to take out."""
        return program

    @property
    def page(self) -> str:
        """Its explanation as Markdown; empty where there is none."""
        source = sys.modules[type(self).__module__].__file__
        page = Path(source or "").with_name(f"{self.id}.md")
        return page.read_text(encoding="utf-8") if source and page.is_file() else ""

    def headline(self, profile: Profile, finding: Finding) -> str:
        """The sentence of at most 25 words: the line, what the GPU suffers, share and ms, what is gained at most."""
        step_ms, gained = (profile.loop_ns or 0.0) / NS_PER_MS, finding.recoverable_ms or 0.0
        line = finding.where.line
        place = f"Line {line}" if line else self.nobody
        count = sum(site.count for site in finding.sites if site.where.line == line and site.where.file is None)
        faster = f"{speedup_text(finding.speedup_bound)} faster"
        return self.sentence.format(
            place=place,
            waiting=f"{place} keeps the GPU waiting" if line else "The GPU waits",
            times="" if count < 1.5 else f" {count:.0f} times per step",
            cost=f"{part_text(gained, step_ms)} ({percent_short(gained / step_ms if step_ms else None)})",
            best=f"at most {faster}",
            faster=faster,
        )

    def judged(
        self,
        profile: Profile,
        gain: Gain,
        *,
        evidence: str,
        cleared: str = "",
        advice: str = "",
        where: Where = NOWHERE,
        sites: tuple[Site, ...] = (),
        change: tuple[str, str] | None = None,
    ) -> Finding:
        """The finding where it was there: found, or cleared because removing it gains too little.

        Unknown, with its numbers, where the gain would be large enough and lies within the replay's own error.
        """
        found = is_found(profile, gain)
        unclear = not found and gain.share > least_share(profile)
        if unclear:
            off, gained = percent_short(profile.error_ns / gain.step_ns), percent_short(gain.share)
            cleared = f"{evidence}; a gain of {gained} is within the replay's error ({off}, counted twice)"
        return Finding(
            cause=self.id,
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

    def absent(self, profile: Profile, evidence: str) -> Finding:
        """The finding where nothing of it was seen."""
        return Finding(
            cause=self.id,
            status="cleared",
            recoverable_ms=0.0,
            predicted_step_ms=None if profile.loop_ns is None else profile.loop_ns / NS_PER_MS,
            speedup_bound=1.0,
            evidence=evidence,
        )

    def unknown(self, reason: str) -> Finding:
        """The finding where it could not be looked at."""
        return Finding(cause=self.id, status="unknown", evidence=reason)


def measured(profile: Profile) -> tuple[Program, Replayed]:
    """What is edited, and its replay: causes are looked for only where both are there."""
    assert profile.program is not None and profile.replayed is not None
    return profile.program, profile.replayed


def no_ceilings(roof: Roofline) -> str:
    """Why nothing is known of what the device could do."""
    if roof.device:
        return f"{roof.device} is not in the table of ceilings"
    return "the file does not name the device, so that its ceilings are not known"


def part_text(part_ms: float, step_ms: float) -> str:
    """``1.5 of 5.2 ms``: one unit where both have the same."""
    part, whole = time_text(part_ms).rsplit(" ", 1), time_text(step_ms)
    return f"{part[0]} of {whole}" if part[1] == whole.rsplit(" ", 1)[1] else f"{' '.join(part)} of {whole}"


def source_line(profile: Profile, line: int | None) -> str:
    """The cell's text of a line, or an empty string."""
    if profile.live is None or not line:
        return ""
    lines = profile.live.source.splitlines()
    return lines[line - 1] if line <= len(lines) else ""


def top_line(lines: Int64, weight: Float) -> int | None:
    """The heaviest line (0 = none, left out), or ``None``."""
    return next(iter(top_lines(lines, weight)), None)


def top_lines(lines: Int64, weight: Float) -> list[int]:
    """Distinct lines (0 = none, left out), the heaviest first."""
    distinct = [line for line in np.unique(lines).tolist() if line > 0]
    return sorted(distinct, key=lambda line: (-float(weight[lines == line].sum()), line))


def record_where(profile: Profile, program: Program, chosen: Bool, *, operator: str) -> Where:
    """The line that most of the ``chosen`` (m,) records' time belongs to, backward work to its forward's."""
    lines = record_lines(profile.trace, profile.steps, program)
    return Where(operator=operator, line=top_line(lines[chosen], program.dur[chosen]))


def operator_sites(profile: Profile, places: list[tuple[str, float]], gain: Gain) -> tuple[Site, ...]:
    """One site per (operators, count per step). One alone has the whole gain; several are not replayed one by one."""
    if len(places) == 1:
        (name, count), status = places[0], "found" if is_found(profile, gain) else "cleared"
        gained = gain.recoverable_ns / NS_PER_MS
        return (Site(where=Where(operator=name), status=status, count=count, recoverable_ms=gained),)
    return tuple(
        Site(where=Where(operator=name), status="unknown", count=count, recoverable_ms=None)
        for name, count in places[:MOST_SITES]
    )
