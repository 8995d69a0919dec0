"""Who holds the memory: the request that failed, the holders as a table, what to do. As HTML and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ipyprof.formatting import (
    NOT_MEASURED,
    percent_cell,
    percent_whole,
    plural,
    shorten,
    size_text,
    time_text,
    unbroken,
)
from ipyprof.report.report import Report
from ipyprof.show.markup import (
    ELLIPSIS,
    SMALL,
    bar,
    cell,
    chip,
    code_name,
    columns_row,
    details,
    div,
    escape,
    figure,
    muted,
    note,
    row,
    table,
    title,
)
from ipyprof.show.pictures import HEARTBEAT_SIZE, heartbeat
from ipyprof.show.words import ACCENT, ACCENT_INK, MEMORY, failed_request, memory_facts, views_of

SHOWN = 14
PARTS_SHOWN = 3
CALLS_SHOWN = 3
REFUSED_SHOWN = 3
DEVICE_HOLDERS = 3
CURVES_SHOWN = 3
_NUMBER = "padding:1px 6px"
_FOLD_HEIGHT = 24
_LINE_HEIGHT = 17


def is_process(report: Report) -> bool:
    """Whether the numbers are of this process's memory, not of a GPU's."""
    view = views_of(report).get("heartbeat")
    if isinstance(view, dict) and view.get("allocated"):
        return False
    failed = failed_request(report)
    return report.device is None and (failed is None or failed.get("device") == -1)


def failure_section(report: Report) -> str:
    """The request that failed, who held memory then, and what would make room; empty where none failed."""
    failed = failed_request(report)
    if failed is None:
        return ""
    head = div(
        f"{chip('! out of memory', ACCENT, ACCENT_INK)}&nbsp; <b>{escape(failure_text(failed))}</b>", "line-height:20px"
    )
    held = _table(failed.get("holders") or (), {}) if failed.get("holders") else note(f"Holders: {NOT_MEASURED}.")
    beside = div("".join(div(escape(text), "margin-bottom:4px") for text in failed.get("advice") or ()), SMALL)
    return title("Out of memory", _moment(failed)) + head + note(escape(room_text(failed))) + columns_row(held, beside)


def holders_section(report: Report) -> str:
    """What grows, what to do, the allocator's calls, and the table of holders, folded; empty where nothing is known."""
    memory, facts = report.memory, memory_facts(report)
    content = "".join(note(escape(text)) for text in notes(report))
    if memory is not None and memory.holders and failed_request(report) is None:
        when = "held at the end, by name" if is_process(report) else "they add up to the peak"
        shown = _table([_row(holder) for holder in memory.holders], facts.get("parts") or {})
        content += div(details("Who holds the memory", columns_row(shown, ""), more=when), "margin-top:4px")
    return content + _device_curves(report)


def holders_height(report: Report) -> int:
    """About how many pixels ``holders_section`` takes on a page 1280 wide."""
    folded = report.memory is not None and report.memory.holders and failed_request(report) is None
    folds = int(bool(folded)) + int(bool(memory_facts(report).get("devices")))
    return sum(_LINE_HEIGHT * (1 + len(text) // 170) + 4 for text in notes(report)) + _FOLD_HEIGHT * folds


def failure_height(report: Report) -> int:
    """About how many pixels ``failure_section`` takes on a page 1280 wide."""
    failed = failed_request(report)
    if failed is None:
        return 0
    advice = sum(1 + len(text) // 60 for text in failed.get("advice") or ())
    return 100 + max(19 * min(len(failed.get("holders") or ()) + 1, SHOWN + 2), _LINE_HEIGHT * advice)


def failure_lines(report: Report) -> list[str]:
    """The failed request as sentences, for a terminal; empty where none failed."""
    failed = failed_request(report)
    if failed is None:
        return []
    lines = [f"! Out of memory ({_moment(failed)}): {failure_text(failed)}", room_text(failed)]
    holders = failed.get("holders") or ()
    if holders:
        lines.append(
            "Held then: " + " · ".join(f"{one['name']} {size_text(one['bytes'])}" for one in holders[:6]) + "."
        )
    return [*lines, *(failed.get("advice") or ())]


def failure_text(failed: Mapping[str, Any]) -> str:
    """Such as ``Line 5 asked for 2,147 MB; 537 MB of 8,590 MB were free.``"""
    who = f"Line {failed['line']}" if failed.get("line") else "The cell"
    tried, free, capacity = failed.get("tried_bytes"), failed.get("free_bytes"), failed.get("capacity_bytes")
    text = f"{who} asked for {size_text(tried)}" if tried else f"{who} asked for more memory than there was"
    if free is not None:
        text += f"; {size_text(free)}" + (f" of {size_text(capacity)}" if capacity else "") + " were free"
    elif capacity:
        text += f"; the {'machine' if failed.get('device') == -1 else 'device'} has {size_text(capacity)}"
    return f"{text}."


def room_text(failed: Mapping[str, Any]) -> str:
    """What the allocator had then: given out, reserved and free, in which pieces."""
    allocated, unused = failed.get("allocated_bytes"), failed.get("unused_bytes")
    if allocated is None:
        return f"What the allocator held then was {NOT_MEASURED}."
    text = f"PyTorch had given out {size_text(allocated)}"
    if unused is not None:
        text += f" and held {size_text(unused)} more, free (reserved {size_text(allocated + unused)})"
        largest = failed.get("largest_free_bytes")
        if largest is not None:
            text += f", the largest free piece {size_text(largest)}"
    return f"{text}."


def notes(report: Report) -> list[str]:
    """Sentences under the heartbeat: advice, the allocator's calls, other processes, what was not looked at."""
    facts = memory_facts(report)
    peak = facts.get("peak") or {}
    found = []
    if peak.get("range"):
        found.append(f"The peak is in recorded step {peak['step']}, in the range {shorten(peak['range'], 80)}.")
    refused = facts.get("refused") or ()
    found += [_refused_text(one) for one in refused[:REFUSED_SHOWN]]
    if len(refused) > REFUSED_SHOWN:
        found.append(f"! Requests failed in {plural(len(refused) - REFUSED_SHOWN, 'more place')}.")
    found += [str(text) for text in facts.get("advice") or ()]
    found += [_device_text(report, one) for one in facts.get("devices") or ()]
    calls = facts.get("calls") or ()
    if calls:
        longest = sorted(calls, key=lambda call: -call[1])[:CALLS_SHOWN]
        shown = "; ".join(_call(*call) for call in sorted(longest))
        found.append(
            f"▾ The allocator called the driver {plural(int(facts.get('call_count') or len(calls)), 'time')}, "
            f"{time_text(facts.get('call_ms'))} in all, in recorded time"
            f"{'; the longest' * (len(calls) > CALLS_SHOWN)}: {shown}."
            f"{_settled(report, calls, facts)}"
        )
    if facts.get("other_processes"):
        found.append(f"Other processes hold {size_text(facts['other_processes'])} of this GPU.")
    if facts.get("incomplete"):
        found.append("Not all of the notebook's objects were looked at, so some holders may have no name.")
    return found


def _call(_at_ms: float, ms: float, count: int, what: str, step: int, in_step_ms: float) -> str:
    times = f"{count} calls, " if count > 1 else ""
    return f"{what} in step {step}, {time_text(in_step_ms)} into it ({times}{time_text(ms)})"


def _settled(report: Report, calls: Sequence[Sequence[Any]], facts: Mapping[str, Any]) -> str:
    """That the later steps had all they need in the cache; empty where they had not, or not all calls are known."""
    last = max(int(call[4]) for call in calls)
    whole = sum(int(call[2]) for call in calls) == facts.get("call_count")
    return f" None after step {last}: the cache has settled." if whole and last < report.steps.count else ""


def _refused_text(one: Mapping[str, Any]) -> str:
    """Such as ``! 2 requests for 4,000 MB failed in step 2 (line 5, aten::empty), and the cell went on: ...``"""
    count = int(one["count"])
    requests = "A request" if count == 1 else f"{count} requests"
    memory = " of host memory" if one["device"] < 0 else ""
    places = (f"line {one['line']}" if one.get("line") else "", str(one.get("operator") or ""))
    place = ", ".join(shorten(part, 60) for part in places if part)
    step = f"in step {one['step']}" if count == 1 else f"from step {one['step']} on"
    return (
        f"! {requests} for {size_text(one['asked_bytes'])}{memory} failed {step}{f' ({place})' if place else ''}, and "
        f"the cell went on; {size_text(one['allocated_bytes'])} were given out then."
    )


def _device_text(report: Report, curve: Mapping[str, Any]) -> str:
    """The peak of a device beside the busiest, and who holds most of it."""
    number = curve["device"]
    memory = next((device.memory for device in report.devices if device.index == number), None)
    if memory is None or memory.peak_at_ms is None:
        return f"GPU {number}: at most {size_text(max(curve['allocated']))} allocated."
    where = f", line {memory.peak_line}" if memory.peak_line else ""
    held = " · ".join(f"{one.name} {size_text(one.bytes)}" for one in memory.holders[:DEVICE_HOLDERS])
    return (
        f"GPU {number}: at most {size_text(memory.peak_bytes)} allocated at {time_text(memory.peak_at_ms)}{where}, "
        f"{size_text(memory.reserved_peak_bytes)} reserved{f'; {held}' if held else ''}."
    )


def _device_curves(report: Report) -> str:
    """The heartbeats of the devices beside the busiest, folded; empty where there are none."""
    memories = {device.index: device.memory for device in report.devices}
    drawn = []
    for one in (memory_facts(report).get("devices") or ())[:CURVES_SHOWN]:
        picture_of = heartbeat(one, memories.get(one["device"]))
        if picture_of is not None:
            drawn.append(muted(f"GPU {one['device']}") + figure(picture_of, HEARTBEAT_SIZE[0]))
    return details("Heartbeats of the other GPUs", "".join(map(div, drawn))) if drawn else ""


def _moment(failed: Mapping[str, Any]) -> str:
    if failed.get("later"):
        return "after the recording was over"
    return "the error itself goes on unchanged"


def _row(holder: Any) -> dict[str, Any]:
    return {"name": holder.name, "bytes": holder.bytes, "line": holder.line}


def _table(holders: Sequence[Mapping[str, Any]], parts: Mapping[str, Any]) -> str:
    """The holders with their bytes, share, line, and the largest layers."""
    total = sum(one["bytes"] for one in holders)
    if total <= 0:
        return ""
    lines = any(one.get("line") for one in holders)
    head = row(
        cell("", header=True),
        cell("", header=True),
        cell("size", align="right", header=True, style=_NUMBER),
        cell("%", align="right", header=True, style=_NUMBER),
        *((cell("line", align="right", header=True),) if lines else ()),
    )
    body = "".join(_rows(holders, parts, total, lines))
    body += row(
        cell("<b>all</b>"),
        cell(""),
        cell(f"<b>{size_text(total)}</b>", align="right", style=_NUMBER),
        cell("<b>100.0</b>", align="right", style=_NUMBER),
        *((cell(""),) if lines else ()),
    )
    return table(head, body)


def _rows(holders: Sequence[Mapping[str, Any]], parts: Mapping[str, Any], total: int, lines: bool) -> Iterator[str]:
    largest = max(one["bytes"] for one in holders)
    for one in holders[:SHOWN]:
        share = one["bytes"] / total
        layers = parts.get(one["name"]) or ()
        name = code_name(one["name"], 64)
        if layers:
            shown = " · ".join(
                f"{shorten(str(layer), 40)} {percent_whole(size / max(one['bytes'], 1))}"
                for layer, size in layers[:PARTS_SHOWN]
            )
            name += div(muted(escape(unbroken(shown))), f"{SMALL};white-space:normal")
        yield row(
            cell(name, style=f"width:66%;{ELLIPSIS}"),
            cell(bar(max(one["bytes"], 0) / largest, MEMORY, width="56px"), style="vertical-align:middle"),
            cell(size_text(one["bytes"]), align="right", style=_NUMBER),
            cell(percent_cell(share), align="right", style=_NUMBER),
            *((cell(str(one["line"]) if one.get("line") else "", align="right"),) if lines else ()),
        )
    rest = holders[SHOWN:]
    if rest:
        size = sum(one["bytes"] for one in rest)
        yield row(
            cell(muted(f"{len(rest)} more")),
            cell(""),
            cell(size_text(size), align="right", style=_NUMBER),
            cell(percent_cell(size / total), align="right", style=_NUMBER),
            *((cell(""),) if lines else ()),
        )
