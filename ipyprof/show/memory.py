"""Memory in words: the request that failed, the peak and who held it, what to do; for page and terminal."""

from __future__ import annotations

from typing import Any

from ipyprof.analysis.results import AllocatorCall, FailedRequest, Heartbeat, MemoryDetail, Refused
from ipyprof.formatting import NOT_MEASURED, plural, shorten, size_text, time_text
from ipyprof.report.report import Report
from ipyprof.show.pictures import HEARTBEAT_SIZE, heartbeat
from ipyprof.show.table import Table, wrapped
from ipyprof.show.tables import holders_table

CALLS_SHOWN = 3
REFUSED_SHOWN = 3
HOLDERS_SHOWN = 4  # the largest; all of them are in the table below
CURVES_SHOWN = 3


def is_process(report: Report) -> bool:
    """Whether the numbers are of this process's memory, not of a GPU's."""
    view, failed = report.views.heartbeat, report.failed_request
    if view is not None and view.allocated:
        return False
    return report.device is None and (failed is None or failed.device == -1)


def failure_section(report: Report) -> dict[str, Any] | None:
    """The request that failed, who held memory then, and what would make room; ``None`` where none failed."""
    failed = report.failed_request
    if failed is None:
        return None
    held = holders_table(failed.holders, {}) if failed.holders else Table(empty=f"Holders: {NOT_MEASURED}.")
    return {
        "moment": _moment(failed),
        "text": failure_text(failed),
        "room": room_text(failed),
        "holders": held,
        "advice": failed.advice,
    }


def memory_section(report: Report) -> dict[str, Any]:
    """The heartbeat with its peak, who holds memory then, what grows, what to do, the allocator's calls."""
    view, memory, detail = report.views.heartbeat, report.memory, detail_of(report)
    drawn = heartbeat(view, memory)
    whose = "of this process" if is_process(report) else "allocated on the GPU"
    memories = {device.index: device.memory for device in report.devices}
    others = [(f"GPU {one.device}", heartbeat(one, memories.get(one.device))) for one in detail.devices[:CURVES_SHOWN]]
    shown: dict[str, Any] = {
        "more": f"{whose}, {plural(report.steps.count, 'recorded step')}" if drawn or memory else "",
        "drawn": drawn,
        "width": HEARTBEAT_SIZE[0],
        "empty": f"{'The curve' if memory is not None else 'Memory'} was {NOT_MEASURED}.",
        "beside": memory_lines(report, reserved=drawn is None or view is None or not view.reserved),
        "notes": notes(report),
        "others": [(name, picture) for name, picture in others if picture is not None],
        "holders": None,
    }
    if memory is not None and memory.holders and report.failed_request is None:
        shown["holders"] = holders_table(memory.holders, detail.parts)
        shown["when"] = "held at the end, by name" if is_process(report) else "they add up to the peak"
    return shown


def detail_of(report: Report) -> MemoryDetail:
    """What stands beside the heartbeat; empty where there is nothing."""
    return report.views.memory or MemoryDetail()


def memory_lines(report: Report, *, reserved: bool = True) -> list[str]:
    """The peak and its growth, and the largest holders; with ``reserved`` what was reserved. Empty without a peak."""
    memory = report.memory
    if memory is None:
        return []
    place = f" at line {memory.peak_line}" if memory.peak_line is not None else ""
    where = f" in {shorten(' '.join(memory.peak_operator.split()), 80)}" if memory.peak_operator else ""
    growth = memory.growth_bytes_per_step
    grows = f"growth {NOT_MEASURED}" if growth is None else "no growth per step"
    if growth:
        grows = f"{size_text(abs(growth))} {'more' if growth > 0 else 'less'} after each step"
    whose = " of the process" if is_process(report) else ""
    text = f"Peak {size_text(memory.peak_bytes)}{whose}{place}{where}; {grows}."
    if memory.reserved_peak_bytes is not None and reserved:
        text += f" Reserved: {size_text(memory.reserved_peak_bytes)}."
    if not memory.holders or report.failed_request is not None:
        return [text]
    held = [
        f"{one.name[:60]}{f' (line {one.line})' if one.line and one.name.isidentifier() else ''} {size_text(one.bytes)}"
        for one in memory.holders[:HOLDERS_SHOWN]
    ]
    rest = memory.holders[HOLDERS_SHOWN:]
    if rest:
        held.append(f"{len(rest)} more {size_text(sum(one.bytes for one in rest))}")
    return [text, f"At the peak: {' · '.join(held)}."]


def failure_lines(report: Report) -> list[str]:
    """The failed request as sentences, for a terminal; empty where none failed."""
    failed = report.failed_request
    if failed is None:
        return []
    lines = [f"! Out of memory ({_moment(failed)}): {failure_text(failed)}", room_text(failed)]
    if failed.holders:
        lines.append(f"Held then: {' · '.join(f'{one.name} {size_text(one.bytes)}' for one in failed.holders[:6])}.")
    return [*lines, *failed.advice]


def failure_text(failed: FailedRequest) -> str:
    """Such as ``Line 5 asked for 2,147 MB; 537 MB of 8,590 MB were free.``"""
    who = f"Line {failed.line}" if failed.line else "The cell"
    capacity = size_text(failed.capacity_bytes) if failed.capacity_bytes else ""
    tried = size_text(failed.tried_bytes) if failed.tried_bytes else "more memory than there was"
    text = f"{who} asked for {tried}"
    if failed.free_bytes is not None:
        text += f"; {size_text(failed.free_bytes)}" + (f" of {capacity}" if capacity else "") + " were free"
    elif capacity:
        text += f"; the {'machine' if failed.device == -1 else 'device'} has {capacity}"
    return f"{text}."


def room_text(failed: FailedRequest) -> str:
    """What the allocator had then: given out, reserved and free, in which pieces."""
    allocated, unused = failed.allocated_bytes, failed.unused_bytes
    if allocated is None:
        return f"What the allocator held then was {NOT_MEASURED}."
    text = f"PyTorch had given out {size_text(allocated)}"
    if unused is not None:
        text += f" and held {size_text(unused)} more, free (reserved {size_text(allocated + unused)})"
        if failed.largest_free_bytes is not None:
            text += f", the largest free piece {size_text(failed.largest_free_bytes)}"
    return f"{text}."


def notes(report: Report) -> list[str]:
    """Sentences under the heartbeat: advice, the allocator's calls, other processes, what was not looked at."""
    detail = detail_of(report)
    found = []
    if detail.peak is not None and detail.peak.range:
        found.append(f"The peak is in recorded step {detail.peak.step}, in the range {shorten(detail.peak.range, 80)}.")
    found += [_refused_text(one) for one in detail.refused[:REFUSED_SHOWN]]
    if len(detail.refused) > REFUSED_SHOWN:
        found.append(f"! Requests failed in {plural(len(detail.refused) - REFUSED_SHOWN, 'more place')}.")
    found += detail.advice
    found += [_device_text(report, one) for one in detail.devices]
    if detail.calls:
        longest = sorted(sorted(detail.calls, key=lambda call: -call.dur_ms)[:CALLS_SHOWN], key=lambda call: call.at_ms)
        found.append(
            f"▾ The allocator called the driver {plural(detail.call_count or len(detail.calls), 'time')}, "
            f"{time_text(detail.call_ms)} in all, in recorded time"
            f"{'; the longest' * (len(detail.calls) > CALLS_SHOWN)}: {'; '.join(map(_call, longest))}."
            f"{_settled(report, detail)}"
        )
    if detail.other_processes:
        found.append(f"Other processes hold {size_text(detail.other_processes)} of this GPU.")
    if detail.incomplete:
        found.append("Not all of the notebook's objects were looked at, so some holders may have no name.")
    return found


def terminal_lines(report: Report, width: int) -> list[str]:
    """All of it in lines of at most ``width`` columns."""
    shown = memory_lines(report)
    texts = [f"Memory {shown[0][0].lower()}{shown[0][1:]}", *shown[1:], *notes(report)] if shown else []
    return [line for text in texts or [f"Memory: {NOT_MEASURED}."] for line in wrapped(text, width)]


def _call(call: AllocatorCall) -> str:
    times = f"{call.count} calls, " if call.count > 1 else ""
    return f"{call.what} in step {call.step}, {time_text(call.in_step_ms)} into it ({times}{time_text(call.dur_ms)})"


def _settled(report: Report, detail: MemoryDetail) -> str:
    """That the later steps had all they need in the cache; empty where they had not, or not all calls are known."""
    last = max(call.step for call in detail.calls)
    whole = sum(call.count for call in detail.calls) == detail.call_count
    return f" None after step {last}: the cache has settled." if whole and last < report.steps.count else ""


def _refused_text(one: Refused) -> str:
    """Such as ``! 2 requests for 4,000 MB failed in step 2 (line 5, aten::empty), and the cell went on: ...``"""
    requests = "A request" if one.count == 1 else f"{one.count} requests"
    memory = " of host memory" if one.device < 0 else ""
    places = (f"line {one.line}" if one.line else "", one.operator or "")
    place = ", ".join(shorten(part, 60) for part in places if part)
    step = f"in step {one.step}" if one.count == 1 else f"from step {one.step} on"
    return (
        f"! {requests} for {size_text(one.asked_bytes)}{memory} failed {step}{f' ({place})' if place else ''}, and "
        f"the cell went on; {size_text(one.allocated_bytes)} were given out then."
    )


def _device_text(report: Report, curve: Heartbeat) -> str:
    """The peak of a device beside the busiest, and who holds most of it."""
    memory = next((device.memory for device in report.devices if device.index == curve.device), None)
    if memory is None or memory.peak_at_ms is None:
        return f"GPU {curve.device}: at most {size_text(max(curve.allocated, default=0))} allocated."
    where = f", line {memory.peak_line}" if memory.peak_line else ""
    held = " · ".join(f"{one.name} {size_text(one.bytes)}" for one in memory.holders[:3])
    return (
        f"GPU {curve.device}: at most {size_text(memory.peak_bytes)} allocated at {time_text(memory.peak_at_ms)}"
        f"{where}, {size_text(memory.reserved_peak_bytes)} reserved{f'; {held}' if held else ''}."
    )


def _moment(failed: FailedRequest) -> str:
    return "after the recording was over" if failed.later else "the error itself goes on unchanged"
