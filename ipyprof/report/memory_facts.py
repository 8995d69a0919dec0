"""The memory part of the report: from the measured views to its plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipyprof.analysis.allocator_events import RETRIED
from ipyprof.analysis.holding import Holding, Moments, held_by_name
from ipyprof.analysis.memory import CPU, DeviceMemory, thin
from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.memory_advice import checkpoint_advice, error_advice, fragmentation_advice, growth_advice
from ipyprof.diagnosis.out_of_memory import advice_after, allocator_at, failed_request, holders_at_failure
from ipyprof.report.report import Holder, MemoryView
from ipyprof.trace.model import OutOfMemory

MS = 1e6
MOST_HOLDERS = 40
OTHER_POINTS = 400
MOST_REFUSED = 50
OTHERS = "other holders"
PROCESS_REST = "the rest of the process: Python, libraries, what no name reaches"


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
    summary, failed = profile.memory, failed_request(profile)
    if failed is not None:
        if summary.busiest is not None:
            return device_memory(summary.devices[summary.busiest])
        state = allocator_at(profile, failed)
        allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else None)
        if allocated:
            return MemoryView(
                peak_bytes=allocated,
                peak_at_ms=None,
                peak_line=failed.line,
                holders=_holders(holders_at_failure(profile)),
            )
    return _process_memory(profile)


def memory_views(profile: Profile) -> dict[str, Any] | None:
    """``views["memory"]``: what stands beside the numbers; ``None`` where there is nothing.

    Keys, each only where it is known:

    * ``peak``: its recorded ``step``, from 1, its ``range``, ``unused_bytes`` that were reserved beyond it, and
      ``largest_free_bytes`` of the cache when recording ended;
    * ``parts``: holder → [[layer, bytes], ...]; ``growing``: holders with bytes per step; ``advice``: sentences;
    * ``moments``: who holds what at each point of the heartbeat, see ``moments_at``;
    * ``devices``: the heartbeats of the devices beside the busiest;
    * ``calls``: [[ms, ms long, count, what, step, ms in the step], ...], with ``call_count`` and ``call_ms`` of all;
    * ``refused``: requests that failed and were caught; ``out_of_memory``: the one that ended the cell, with its
      ``holders`` and ``advice``;
    * ``other_processes``: bytes; ``incomplete``: not all names were looked at.
    """
    summary, live, failed = profile.memory, profile.live, failed_request(profile)
    view = summary.devices[summary.busiest] if summary.busiest is not None else None
    found: dict[str, Any] = {}
    if view is not None:
        found["parts"] = {one.name: [list(part) for part in one.parts] for one in view.holders if len(one.parts) > 1}
        state = next((one for one in live.allocator if one.device == view.device), None) if live is not None else None
        found["peak"] = {
            "step": view.peak_step + 1,
            "range": view.peak_range,
            "unused_bytes": view.peak_unused_bytes,
            "largest_free_bytes": state.largest_free_bytes if state is not None else None,
        }
        found["growing"] = [{"name": one.name, "bytes": one.bytes, "line": one.line} for one in view.growing]
        found["advice"] = [*growth_advice(view.growing)]
        if failed is None:
            found["advice"] += error_advice(view.holders)
            found["advice"] += checkpoint_advice(view.holders)
            found["advice"] += fragmentation_advice(
                view.peak_bytes,
                view.peak_unused_bytes,
                state,
                retried=any(call.what == RETRIED for call in summary.calls),
            )
        found["devices"] = [_curve(other) for other in summary.devices if other is not view]
        if view.moments is not None:
            found["moments"] = _moments(view.moments)
    if summary.calls:
        found["calls"] = [
            [one.at_ns / MS, one.dur_ns / MS, one.count, one.what, one.step + 1, one.in_step_ns / MS]
            for one in summary.calls
        ]
        found |= {"call_count": summary.call_count, "call_ms": summary.call_ns / MS}
    found["refused"] = [
        {
            "device": one.device,
            "at_ms": one.at_ns / MS,
            "step": one.step + 1,
            "count": one.count,
            "asked_bytes": one.asked_bytes,
            "allocated_bytes": one.allocated_bytes,
            "operator": one.operator,
            "line": one.line,
        }
        for one in summary.refused[:MOST_REFUSED]
    ]
    if live is not None and live.device_state is not None and live.device_state.others_bytes:
        found["other_processes"] = live.device_state.others_bytes
    if failed is not None:
        found["out_of_memory"] = _failure(profile, failed)
    if live is not None and live.owners is not None and not live.owners_complete:
        found["incomplete"] = True
    return {key: value for key, value in found.items() if value} or None


def _curve(view: DeviceMemory) -> dict[str, Any]:
    """One device's heartbeat as ``views["heartbeat"]`` has it, in fewer points, and its number."""
    drawn = np.arange(len(view.time_ns))
    if len(drawn) > OTHER_POINTS:
        half = OTHER_POINTS // 2
        drawn = np.union1d(
            thin(view.time_ns, view.allocated_bytes, half), thin(view.time_ns, view.reserved_bytes, half)
        )
    return {
        "device": view.device,
        "time_ms": (view.time_ns[drawn] / MS).tolist(),
        "allocated": view.allocated_bytes[drawn].tolist(),
        "reserved": view.reserved_bytes[drawn].tolist(),
    }


def _moments(moments: Moments) -> dict[str, Any]:
    """``names``, ``time_ms``, the bytes of each name at the ``first`` of these, and the ``changes`` at each later one.

    A change is a flat list: index of a name, its bytes from then on, index, bytes, and so on.
    """
    rows: list[list[int]] = [[] for _ in moments.time_ns]
    later, column = np.nonzero(np.diff(moments.bytes, axis=0))
    for at, name, size in zip(
        (later + 1).tolist(), column.tolist(), moments.bytes[later + 1, column].tolist(), strict=True
    ):
        rows[at] += (name, size)
    return {
        "time_ms": (moments.time_ns / MS).tolist(),
        "names": list(moments.names),
        "first": moments.bytes[0].tolist(),
        "changes": rows[1:],
    }


def moments_at(moments: Mapping[str, Any], at_ms: float) -> dict[str, int]:
    """Holder → bytes at an instant of the recorded clock, from ``views["memory"]["moments"]``."""
    held = [int(size) for size in moments["first"]]
    for time_ms, change in zip(moments["time_ms"][1:], moments["changes"], strict=True):
        if time_ms > at_ms:
            break
        for name, size in zip(change[::2], change[1::2], strict=True):
            held[name] = int(size)
    return dict(zip(moments["names"], held, strict=True))


def _failure(profile: Profile, failed: OutOfMemory) -> dict[str, Any]:
    holders, state = holders_at_failure(profile), allocator_at(profile, failed)
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
        "advice": list(advice_after(profile, failed)),
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
