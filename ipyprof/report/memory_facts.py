"""The memory part of the report: from the measured views to its plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipyprof.analysis.holders import Holding, held_by_name
from ipyprof.analysis.memory import CPU, DeviceMemory
from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.memory_advice import checkpoint_advice, failure_advice, growth_advice
from ipyprof.report.report import Holder, MemoryView
from ipyprof.trace.model import AllocatorState, OutOfMemory

MS = 1e6
MOST_HOLDERS = 40
OTHERS = "other holders"
PROCESS_REST = "the rest of the process: Python, libraries, what no name reaches"
FAILED_REST = "not reachable from the notebook"


def device_memory(view: DeviceMemory) -> MemoryView:
    """One device's memory, with who holds it at the peak."""
    return MemoryView(
        peak_bytes=view.peak_bytes,
        peak_at_ms=view.peak_at_ns / MS,
        peak_operator=view.peak_operator,
        peak_line=view.peak_line,
        reserved_peak_bytes=view.reserved_peak_bytes,
        growth_bytes_per_step=view.growth_bytes_per_step,
        holders=_holders(view.holders),
    )


def shown_memory(profile: Profile, busiest: MemoryView | None) -> MemoryView | None:
    """What the report shows: the busiest device's, else what is known after a request that failed, else the process's.

    Args:
        busiest: the memory of the device that worked most, ``None`` = not measured.
    """
    if busiest is not None:
        return busiest
    summary, failed = profile.memory, _failed(profile)
    if failed is not None:
        if summary.busiest is not None:
            return device_memory(summary.devices[summary.busiest])
        state = _state(profile, failed)
        allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else None)
        if allocated:
            return MemoryView(
                peak_bytes=allocated, peak_at_ms=None, peak_line=failed.line, holders=_holders(_at_failure(profile))
            )
    return _process_memory(profile)


def memory_views(profile: Profile) -> dict[str, Any] | None:
    """``views["memory"]``: what stands beside the numbers; ``None`` where there is nothing.

    Keys, each only where it is known: ``peak`` (its recorded ``step``, from 1, and ``range``), ``parts`` (holder →
    [[layer, bytes], ...]), ``growing`` (holders with bytes per step), ``advice`` (sentences), ``moments`` (``time_ms``,
    ``names``, ``bytes[i][j]``), ``calls`` ([[ms, ms long, count, what, step], ...]) with ``call_count`` and ``call_ms``
    of all of them, ``other_processes`` (bytes), ``out_of_memory`` (the request that failed, with ``holders`` and
    ``advice``), ``incomplete`` (not all names were looked at).
    """
    summary, live, failed = profile.memory, profile.live, _failed(profile)
    view = summary.devices[summary.busiest] if summary.busiest is not None else None
    found: dict[str, Any] = {}
    if view is not None:
        found["parts"] = {one.name: [list(part) for part in one.parts] for one in view.holders if len(one.parts) > 1}
        found["peak"] = {"step": view.peak_step + 1, "range": view.peak_range}
        found["growing"] = [{"name": one.name, "bytes": one.bytes, "line": one.line} for one in view.growing]
        found["advice"] = [*growth_advice(view.growing), *(() if failed else checkpoint_advice(view.holders))]
        if view.moments is not None:
            found["moments"] = {
                "time_ms": [at / MS for at in view.moments.time_ns],
                "names": list(view.moments.names),
                "bytes": [list(row) for row in view.moments.bytes],
            }
    if summary.calls:
        found["calls"] = [[one.at_ns / MS, one.dur_ns / MS, one.count, one.what, one.step + 1] for one in summary.calls]
        found |= {"call_count": summary.call_count, "call_ms": summary.call_ns / MS}
    if live is not None and live.device_state is not None and live.device_state.others_bytes:
        found["other_processes"] = live.device_state.others_bytes
    if failed is not None:
        found["out_of_memory"] = _failure(profile, failed)
    if live is not None and live.owners is not None and not live.owners_complete:
        found["incomplete"] = True
    return {key: value for key, value in found.items() if value} or None


def _failed(profile: Profile) -> OutOfMemory | None:
    return profile.live.out_of_memory if profile.live is not None else None


def _state(profile: Profile, failed: OutOfMemory) -> AllocatorState | None:
    states = profile.live.allocator if profile.live is not None else ()
    return next((state for state in states if state.device == failed.device), None)


def _at_failure(profile: Profile) -> tuple[Holding, ...]:
    """Who held memory when the request failed: from the recording that it ended, else by name alone."""
    failed, live, summary = _failed(profile), profile.live, profile.memory
    if failed is None or live is None:
        return ()
    if not failed.later:
        view = next((view for view in summary.devices if view.device == failed.device and view.holders), None)
        if view is not None:
            return view.holders
    named = held_by_name(failed.owners if failed.later else live.owners or (), failed.device)
    state = _state(profile, failed)
    allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else 0)
    rest = allocated - sum(holding.bytes for holding in named)
    if rest > 0:
        named = (*named, Holding(name=FAILED_REST, role="rest", bytes=rest, line=None))
    return tuple(sorted(named, key=lambda holding: -holding.bytes))


def _failure(profile: Profile, failed: OutOfMemory) -> dict[str, Any]:
    holders, state = _at_failure(profile), _state(profile, failed)
    device = profile.live.device_state if profile.live is not None else None
    others = device.others_bytes if device is not None else None
    allocated, unused = failed.allocated_bytes, failed.unused_bytes
    if allocated is None and state is not None:
        allocated, unused = state.allocated_bytes, state.reserved_bytes - state.allocated_bytes
    return {
        "line": failed.line,
        "device": failed.device,
        "tried_bytes": failed.tried_bytes,
        "capacity_bytes": failed.capacity_bytes or (state.device_total_bytes if state is not None else None),
        "free_bytes": failed.free_bytes,
        "allocated_bytes": allocated,
        "reserved_bytes": None if allocated is None or unused is None else allocated + unused,
        "unused_bytes": unused,
        "largest_free_bytes": state.largest_free_bytes if state is not None else None,
        "later": failed.later,
        "text": failed.text,
        "holders": [
            {"name": one.name, "bytes": one.bytes, "line": one.line} for one in _holders(holders)[:MOST_HOLDERS]
        ],
        "advice": list(failure_advice(failed, holders, state, others)),
    }


def _holders(holdings: Sequence[Holding]) -> tuple[Holder, ...]:
    """The largest by name and the others as one, so that they still add up."""
    shown, rest = holdings[:MOST_HOLDERS], holdings[MOST_HOLDERS:]
    found = [Holder(name=one.name, bytes=one.bytes, line=one.line) for one in shown]
    if rest:
        found.append(Holder(name=f"{len(rest)} {OTHERS}", bytes=sum(one.bytes for one in rest)))
    return tuple(found)


def _process_memory(profile: Profile) -> MemoryView | None:
    """Without a GPU: what the process held, as sampled at the marks, and what names reach of it."""
    live = profile.live
    samples = live.process_memory if live is not None and not profile.has_gpu else ()
    if live is None or not samples:
        return None
    at, most = max(samples, key=lambda sample: sample[1])
    named = held_by_name(live.owners or (), CPU)
    rest = most - sum(holding.bytes for holding in named)
    if named and rest >= 0:
        named = (*named, Holding(name=PROCESS_REST, role="rest", bytes=rest, line=None))
    return MemoryView(peak_bytes=most, peak_at_ms=at / MS, holders=_holders(sorted(named, key=lambda one: -one.bytes)))
