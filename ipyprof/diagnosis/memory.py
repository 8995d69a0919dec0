"""What to do about memory: at an ordinary peak, for what grows, and after a request that failed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ipyprof.analysis.holders import (
    ACTIVATIONS,
    GRAPHS,
    OPTIMIZER,
    REST,
    TEMPORARIES,
    TENSORS,
    held_by_name,
)
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.results import Holder
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Verdict
from ipyprof.formatting import percent_whole, shorten, size_text, speedup_text
from ipyprof.trace.live import AllocatorState, OutOfMemory

MOST_LINES = 2
_DROPPED = (TENSORS, GRAPHS)


def checkpoint_advice(holders: Sequence[Holder]) -> tuple[str, ...]:
    """Which lines' activations to compute again in the backward pass, and what that saves at most.

    Args:
        holders: at the peak, the largest first.
    """
    total = sum(holding.bytes for holding in holders)
    least = thresholds.CHECKPOINT_SHARE * total
    lines = [one for one in holders if one.role == ACTIVATIONS and one.line and one.bytes >= least]
    return tuple(
        f"Line {one.line} keeps {size_text(one.bytes)} of activations for the backward pass, "
        f"{percent_whole(one.bytes / total)} of the peak: torch.utils.checkpoint.checkpoint there saves at most that, "
        "for a second forward pass of the line."
        for one in lines[:MOST_LINES]
    )


def growth_advice(growing: Sequence[Holder]) -> tuple[str, ...]:
    """What to do about holders that hold more after every step; little growth is left out."""
    return tuple(_of_growth(one) for one in growing if one.bytes >= thresholds.GROWTH_BYTES)


def fragmentation_advice(
    peak_bytes: int, unused_bytes: int, state: AllocatorState | None, *, retried: bool
) -> tuple[str, ...]:
    """What to do where memory is short and yet some of what is reserved is not given out at the peak.

    Args:
        peak_bytes, unused_bytes: given out then, and reserved beyond that.
        state: of torch's allocator on that device, ``None`` = not looked.
        retried: the allocator had to flush its cache to serve a request.
    """
    reserved = peak_bytes + unused_bytes
    free, whole = (None, None) if state is None else (state.device_free_bytes, state.device_total_bytes)
    short = retried or (free is not None and whole is not None and free <= thresholds.NEARLY_FULL_SHARE * whole)
    if not short or unused_bytes < thresholds.FRAGMENTED_SHARE * reserved or not unused_bytes:
        return ()
    text = (
        f"At the peak {size_text(unused_bytes)} of the {size_text(reserved)} reserved were not given out "
        f"({percent_whole(unused_bytes / reserved)}): in pieces that are too small, or cached for other sizes"
    )
    return (f"{text}; {_segments(state)}",)


def _of_growth(one: Holder) -> str:
    size = size_text(one.bytes)
    where = f" (line {one.line})" if one.line and f"line {one.line}" not in one.name else ""
    if one.name == "Out":
        return f"Out keeps {size} more after each step: end the line with a semicolon, or empty it with %reset out."
    if one.role == TENSORS:
        return (
            f"{one.name} keeps {size} more after each step{where}: let go of the parts that are not needed any more, "
            "or keep them on the CPU. The peak is not reached yet."
        )
    if one.role == GRAPHS:
        return (
            f"{one.name} keeps {size} more after each step{where}: keep loss.item() or loss.detach() there, "
            "not tensors with the graph behind them. The peak is not reached yet."
        )
    return f"{_spoken(one)}: {size} more after each step{where}. The peak is not reached yet."


def _spoken(one: Holder) -> str:
    """The holder at the beginning of a sentence; a variable keeps its letters."""
    return one.name if one.role == TENSORS else f"{one.name[:1].upper()}{one.name[1:]}"


def error_advice(holders: Sequence[Holder]) -> tuple[str, ...]:
    """What to do about memory that only the traceback of an earlier error keeps."""
    total = sum(holding.bytes for holding in holders)
    kept = sum(one.bytes for one in holders if _of_last_error(one))
    if kept < thresholds.DROP_SHARE * total or not kept:
        return ()
    return (
        f"The traceback of the last error keeps {size_text(kept)} of its functions' variables: another error takes its "
        "place, such as a cell with 1/0.",
    )


def _of_last_error(one: Holder) -> bool:
    return one.name.endswith(", last error)")


def failure_advice(
    failed: OutOfMemory, holders: Sequence[Holder], state: AllocatorState | None, others_bytes: int | None
) -> tuple[str, ...]:
    """What would have made room for the request that failed, the cheapest first; where nothing does, its own size.

    Args:
        holders: when it failed, the largest first.
        state: of torch's allocator on that device.
        others_bytes: what other processes hold of the device; ``None`` = not measured.
    """
    capacity = failed.capacity_bytes or (None if state is None else state.device_total_bytes)
    if failed.tried_bytes and capacity and failed.tried_bytes > capacity:
        return (_of_the_request(failed, capacity),)
    total = sum(holding.bytes for holding in holders)
    advice = []
    advice += _fragmented(failed, state)
    advice += error_advice(holders)
    least = thresholds.DROP_SHARE * max(total, failed.tried_bytes or 0)
    dropped = [one for one in holders if one.role in _DROPPED and not _of_last_error(one) and one.bytes >= least]
    if dropped:
        one = dropped[0]
        before = f"line {failed.line}" if failed.line else "the request"
        what = "empty it with %reset out" if one.name == "Out" else f"let go of it before {before}"
        advice.append(f"{_spoken(one)} holds {size_text(one.bytes)}: {what} if it is not needed.")
    advice += [text.replace("of the peak", "of what was held") for text in checkpoint_advice(holders)]
    smaller = batch_share(failed, holders)
    if smaller is not None:
        advice.append(
            f"A batch smaller by at least {percent_whole(smaller)} makes room for this request: activations and "
            "temporaries follow it, parameters and optimizer state do not."
        )
    states = [one for one in holders if one.role == OPTIMIZER and one.bytes >= thresholds.STATE_SHARE * total]
    if states:
        advice.append(
            f"Optimizer state is {percent_whole(states[0].bytes / total)} of what was held: an optimizer with smaller "
            "state, or shards of it, makes room."
        )
    if others_bytes and others_bytes >= (failed.tried_bytes or others_bytes):
        advice.append(f"Other processes hold {size_text(others_bytes)} of this GPU.")
    return tuple(advice) or (_of_the_request(failed, capacity),)


def _of_the_request(failed: OutOfMemory, capacity: int | None) -> str:
    """What to do about the request itself; ``capacity``: of the device or the machine, ``None`` = not known."""
    where = f" on line {failed.line}" if failed.line else ""
    what = "this machine" if failed.device < 0 else f"GPU {failed.device}"
    tried = failed.tried_bytes
    if not tried:
        return f"How much was asked for is not known: ask for less{where}."
    if capacity is None:
        return f"Ask for less than {size_text(tried)} at once{where}: a smaller shape or dtype."
    if tried > capacity:
        return (
            f"The request alone is {speedup_text(tried / capacity)} all that {what} has ({size_text(capacity)}), so "
            f"nothing makes room for it: look at the shape that is asked for{where}."
        )
    return (
        f"The request is {percent_whole(tried / capacity)} of all that {what} has ({size_text(capacity)}): ask for "
        f"less at once{where}, a smaller shape or dtype."
    )


def _fragmented(failed: OutOfMemory, state: AllocatorState | None) -> list[str]:
    """Advice where enough is free, in pieces that are too small."""
    unused, tried = failed.unused_bytes, failed.tried_bytes
    if (
        unused is None
        or tried is None
        or unused + (failed.free_bytes or 0) < tried
        or unused < thresholds.DROP_SHARE * tried
    ):
        return []
    largest = None if state is None else state.largest_free_bytes
    pieces = "" if largest is None else f", the largest piece {size_text(largest)}"
    return [f"{size_text(unused)} are reserved and free, but in pieces{pieces}; {_segments(state)}"]


def _segments(state: AllocatorState | None) -> str:
    """What a segment that can grow would do for memory in pieces."""
    if state is not None and state.expandable:
        return "expandable_segments is on already."
    return "start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."


def batch_share(failed: OutOfMemory, holders: Sequence[Holder]) -> float | None:
    """The share by which a batch has to shrink so that this one request fits; ``None`` where that is not known.

    What follows the batch is the request itself, activations, and temporaries. Later requests of the step are not
    known, so this is the least.
    """
    tried, free = failed.tried_bytes, failed.free_bytes
    if tried is None or free is None:
        return None
    follows = tried + sum(one.bytes for one in holders if one.role in (ACTIVATIONS, TEMPORARIES))
    lacking = tried - free - (failed.unused_bytes or 0)
    return lacking / follows if 0 < lacking < follows else None


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


def holders_at_failure(profile: Profile) -> tuple[Holder, ...]:
    """Who held memory when the request failed: from the recording that it ended, else by name alone."""
    failed, live, summary = failed_request(profile), profile.live, profile.memory
    if failed is None or live is None:
        return ()
    if not failed.later:
        view = next((view for view in summary.devices if view.device == failed.device and view.memory.holders), None)
        if view is not None:
            return view.memory.holders
    named = held_by_name(failed.owners if failed.later else live.owners or (), failed.device)
    state = allocator_at(profile, failed)
    allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else 0)
    rest = allocated - sum(holding.bytes for holding in named)
    if rest > 0:
        named = (*named, Holder(name=FAILED_REST, role=REST, bytes=rest))
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


def failure_headline(failed: OutOfMemory, holders: tuple[Holder, ...]) -> str:
    """At most 25 words: which request, where, and who holds most of what has a name.

    Example:
        >>> failure_headline(OutOfMemory(line=6, tried_bytes=2_000_000), ())
        'Line 6 ran out of memory: it asked for 2.0 MB.'
    """
    who = f"Line {failed.line}" if failed.line else "The cell"
    memory = "host memory" if failed.device < 0 else "memory"
    asked = f": it asked for {size_text(failed.tried_bytes)}" if failed.tried_bytes else ""
    free = f" with {size_text(failed.free_bytes)} free" if asked and failed.free_bytes is not None else ""
    named = [one for one in holders if one.role != REST]
    largest = ""
    if named:
        largest = f"; largest holder: {shorten(named[0].name, _LONGEST_NAME)}, {size_text(named[0].bytes)}"
    for parts in ((asked, free, largest), (asked, largest), (asked, free)):
        text = f"{who} ran out of {memory}{''.join(parts)}."
        if len(text.split()) <= MOST_WORDS:
            break
    return text
