"""The report's memory: what analysis measured, with the advice on it, and the request that ended the cell."""

from __future__ import annotations

from msgspec import structs

from ipyprof.analysis.holders import largest
from ipyprof.analysis.memory import RETRIED, marks_ms, process_memory
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.results import FailedRequest, Heartbeat, Memory, MemoryDetail
from ipyprof.diagnosis.memory import (
    advice_after,
    allocator_at,
    checkpoint_advice,
    error_advice,
    failed_request,
    fragmentation_advice,
    growth_advice,
    holders_at_failure,
)
from ipyprof.trace.live import OutOfMemory


def memory_of(profile: Profile, busiest: Memory | None) -> Memory | None:
    """What the report shows: the busiest device's, else what is known after a request that failed, else the process's.

    Args:
        busiest: of the device that worked most, ``None`` = not measured.
    """
    summary, failed = profile.memory, failed_request(profile)
    if busiest is not None:
        return busiest
    if failed is not None:
        if summary.busiest is not None:
            return summary.devices[summary.busiest].memory
        state = allocator_at(profile, failed)
        allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else None)
        if allocated:
            holders = largest(holders_at_failure(profile))
            return Memory(peak_bytes=allocated, peak_at_ms=None, peak_line=failed.line, holders=holders)
    process = _process(profile)
    return None if process is None else process[0]


def heartbeat(profile: Profile) -> Heartbeat | None:
    """The memory curve of the busiest device on the recorded clock, or of the process without a GPU."""
    summary = profile.memory
    if summary.busiest is None:
        process = _process(profile)
        return None if process is None else process[1]
    return structs.replace(
        summary.devices[summary.busiest].heartbeat,
        marks_ms=marks_ms(profile.steps.marks_ns),
        calls_ms=tuple(call.at_ms for call in summary.calls),
    )


def memory_detail(profile: Profile) -> MemoryDetail | None:
    """What stands beside the heartbeat; ``None`` where there is nothing."""
    summary, live, failed = profile.memory, profile.live, failed_request(profile)
    state = live.device_state if live is not None else None
    found = MemoryDetail(
        calls=summary.calls,
        call_count=summary.call_count,
        call_ms=summary.call_ms,
        refused=summary.refused,
        out_of_memory=None if failed is None else _failure(profile, failed),
        other_processes=state.others_bytes or 0 if state is not None else 0,
        incomplete=live is not None and live.owners is not None and not live.owners_complete,
    )
    if summary.busiest is not None:
        view = summary.devices[summary.busiest]
        found = structs.replace(
            found,
            peak=view.peak,
            parts=dict(view.parts),
            growing=view.growing,
            advice=_advice(profile),
            devices=tuple(other.heartbeat for other in summary.devices if other is not view),
        )
    return None if found == MemoryDetail() else found


def _process(profile: Profile) -> tuple[Memory, Heartbeat] | None:
    if profile.live is None or profile.has_gpu:
        return None
    return process_memory(profile.live, profile.steps.marks_ns)


def _advice(profile: Profile) -> tuple[str, ...]:
    """On the busiest device; after a request that failed only on what grows, the rest is the request's."""
    summary, live = profile.memory, profile.live
    assert summary.busiest is not None
    view = summary.devices[summary.busiest]
    growth = growth_advice(view.growing)
    if failed_request(profile) is not None:
        return growth
    state = next((one for one in live.allocator if one.device == view.device), None) if live is not None else None
    holders, retried = view.memory.holders, any(call.what == RETRIED for call in summary.calls)
    fragments = fragmentation_advice(view.memory.peak_bytes, view.peak.unused_bytes or 0, state, retried=retried)
    return (*growth, *error_advice(holders), *checkpoint_advice(holders), *fragments)


def _failure(profile: Profile, failed: OutOfMemory) -> FailedRequest:
    state = allocator_at(profile, failed)
    allocated, unused = failed.allocated_bytes, failed.unused_bytes
    if allocated is None and state is not None:
        allocated, unused = state.allocated_bytes, state.reserved_bytes - state.allocated_bytes
    return FailedRequest(
        line=failed.line,
        device=failed.device,
        tried_bytes=failed.tried_bytes,
        capacity_bytes=failed.capacity_bytes or (state.device_total_bytes if state is not None else None),
        free_bytes=failed.free_bytes,
        allocated_bytes=allocated,
        reserved_bytes=None if allocated is None or unused is None else allocated + unused,
        unused_bytes=unused,
        largest_free_bytes=state.largest_free_bytes if state is not None else None,
        later=failed.later,
        text=failed.text,
        holders=largest(holders_at_failure(profile)),
        advice=advice_after(profile, failed),
    )
