"""A cell that ran out of memory: who held it then, what would have made room, and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

from ipyprof.analysis.holding import REST, ROUNDING, Holding, held_by_name
from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.finding import Verdict
from ipyprof.diagnosis.memory_advice import failure_advice
from ipyprof.formatting import shorten, size_text
from ipyprof.trace.model import AllocatorState, OutOfMemory

FAILED_REST = "not reachable from the notebook"
MOST_WORDS = 25
_LONGEST_NAME = 80


def failed_request(profile: Profile) -> OutOfMemory | None:
    """The request for memory that the cell ended with, or ``None``."""
    return profile.live.out_of_memory if profile.live is not None else None


def allocator_at(profile: Profile, failed: OutOfMemory) -> AllocatorState | None:
    """torch's allocator of the device that the request was for, or ``None`` where that was not looked at."""
    states = profile.live.allocator if profile.live is not None else ()
    return next((state for state in states if state.device == failed.device), None)


def holders_at_failure(profile: Profile) -> tuple[Holding, ...]:
    """Who held memory when the request failed: from the recording that it ended, else by name alone."""
    failed, live, summary = failed_request(profile), profile.live, profile.memory
    if failed is None or live is None:
        return ()
    if not failed.later:
        view = next((view for view in summary.devices if view.device == failed.device and view.holders), None)
        if view is not None:
            return view.holders
    named = held_by_name(failed.owners if failed.later else live.owners or (), failed.device)
    state = allocator_at(profile, failed)
    allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else 0)
    rest = allocated - sum(holding.bytes for holding in named)
    if rest > 0:
        named = (*named, Holding(name=FAILED_REST, role=REST, bytes=rest, line=None))
    return tuple(sorted(named, key=lambda holding: -holding.bytes))


def advice_after(profile: Profile, failed: OutOfMemory) -> tuple[str, ...]:
    """What would have made room for the request, the cheapest first."""
    device = profile.live.device_state if profile.live is not None else None
    others = device.others_bytes if device is not None else None
    return failure_advice(failed, holders_at_failure(profile), allocator_at(profile, failed), others)


def verdict_of_failure(profile: Profile, verdict: Verdict) -> Verdict:
    """The verdict of a cell that ran out of memory: that heads it, and its cause stays that of the steps before.

    Args:
        verdict: of the steps that were recorded; comes back as it is where no request failed.
    """
    failed = failed_request(profile)
    if failed is None:
        return verdict
    advice = next(iter(advice_after(profile, failed)), "")
    if verdict.cause != "inconclusive":
        advice = f"{advice} The steps until then: {verdict.headline}".strip()
    return replace(
        verdict,
        headline=failure_headline(failed, holders_at_failure(profile)),
        advice=advice,
        change=None,
        next_text=None,
    )


def failure_headline(failed: OutOfMemory, holders: tuple[Holding, ...]) -> str:
    """At most 25 words: which request, where, and who holds most of what has a name.

    Example:
        >>> failure_headline(OutOfMemory(line=6, tried_bytes=2_000_000), ())
        'Line 6 ran out of memory: it asked for 2.0 MB.'
    """
    who = f"Line {failed.line}" if failed.line else "The cell"
    memory = "host memory" if failed.device < 0 else "memory"
    asked = f": it asked for {size_text(failed.tried_bytes)}" if failed.tried_bytes else ""
    free = f" with {size_text(failed.free_bytes)} free" if asked and failed.free_bytes is not None else ""
    named = [one for one in holders if one.role not in (REST, ROUNDING)]
    largest = ""
    if named:
        largest = f"; largest holder: {shorten(named[0].name, _LONGEST_NAME)}, {size_text(named[0].bytes)}"
    for parts in ((asked, free, largest), (asked, largest), (asked, free)):
        text = f"{who} ran out of {memory}{''.join(parts)}."
        if len(text.split()) <= MOST_WORDS:
            break
    return text
