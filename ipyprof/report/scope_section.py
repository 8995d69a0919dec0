"""Where in the model the time goes: phases, modules and ``record_function`` ranges, for the dashboard and the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.formatting import count_cell, percent_cell, percent_whole, shorten, time_cell
from ipyprof.report.categories import KERNEL, PYTHON, RULE
from ipyprof.report.markup import (
    ELLIPSIS,
    bar,
    cell,
    code_name,
    columns_row,
    details,
    div,
    mono,
    muted,
    note,
    row,
    table,
    title,
)
from ipyprof.report.report import Report
from ipyprof.report.scope_views import MODULE_CLASS, PHASE, RANGE

TITLE = "Where in the model"
ROWS_SHOWN = 12
LINES_SHOWN = 6
SMALLEST = 0.01  # of the time; smaller rows are counted only
_NAME = f"width:44%;{ELLIPSIS};padding-left:0"
_RANGE_CALL = 'torch.profiler.record_function("name")'
_TREES = ((MODULE_CLASS, "Modules", "module"), (RANGE, "Ranges", "range"))

Row = Mapping[str, Any]


def scopes_section(report: Report) -> str:
    """A folded part with a table of phases and the largest modules and ranges; empty where none was recorded."""
    groups = _groups(report)
    if not any(groups.get(name) for name in (PHASE, MODULE_CLASS, RANGE)):
        return ""
    main = _phase_table(groups[PHASE]) if groups.get(PHASE) else ""
    for name, heading, word in _TREES:
        if groups.get(name):
            main += div(_tree_table(groups[name], heading, word), "margin-top:8px" if main else "")
    words = []
    if groups.get(PHASE):
        words.append(
            "forward: everything up to the backward pass, copies of the batch included. optimizer: its step and "
            "zero_grad. the rest: such as clipping, logging."
        )
    if groups.get(MODULE_CLASS) or groups.get(RANGE):
        words.append(
            "GPU ms: with all that runs inside, and with the backward pass of what it computed, unless that runs in a "
            "range of its own. own: without what is inside. host ms: of the host while it is in there."
        )
    words.append(hint(report))
    beside = "".join(note(text, 21 if at == 0 else 4) for at, text in enumerate(words) if text)
    return details(TITLE, columns_row(main, beside), more=summary(report))


def summary(report: Report) -> str:
    """Such as ``GPU time: forward 32 %, backward 66 %, optimizer 2 %``; plain text."""
    groups = _groups(report)
    rows = groups.get(PHASE) or [one for one in groups.get(MODULE_CLASS) or groups.get(RANGE) or () if _depth(one) == 0]
    device = _on_device(rows)
    total = sum(_own(one, device) for one in rows) if groups.get(PHASE) else _total(groups, device)
    shares = [(one["name"], _inner(one, device) / total) for one in rows if total > 0]
    shares = [(name, share) for name, share in shares if share >= SMALLEST]
    if not groups.get(PHASE):
        shares = shares[:3]
    said = ", ".join(f"{shorten(' '.join(name.split()), 40)} {percent_whole(share)}" for name, share in shares)
    return f"{'GPU' if device else 'host'} time: {said}" if said else ""


def hint(report: Report) -> str:
    """How to have what this recording does not name; HTML."""
    groups = _groups(report)
    missing = []
    if not groups.get(MODULE_CLASS):
        missing.append(f"modules by name: record with {mono('--stack')}")
    if not groups.get(RANGE):
        missing.append(f"parts of your own: {mono(_RANGE_CALL)} around them")
    return f"Not recorded: {'; '.join(missing)}." if missing else ""


def scope_lines(report: Report) -> list[tuple[str, str, str, str]]:
    """(name, ms, percent, kind) of the phases and the largest modules and ranges, for the text; names are indented."""
    groups = _groups(report)
    lines = []
    for name in (PHASE, MODULE_CLASS, RANGE):
        rows = groups.get(name) or ()
        device = _on_device(rows)
        total = sum(_own(one, device) for one in rows)
        if total <= 0:
            continue
        kept = [one for one in rows if _inner(one, device) > 0] if name == PHASE else _kept(rows, device, LINES_SHOWN)
        for one in kept:
            ms = _inner(one, device)
            label = "  " * _depth(one) + " ".join(str(one["name"]).split())
            lines.append((label, time_cell(ms, total), percent_cell(ms / total), name))
    return lines


def _phase_table(rows: Sequence[Row]) -> str:
    device = _on_device(rows)
    total, host_total = sum(_own(one, device) for one in rows), sum(one["host_ms"] or 0.0 for one in rows)
    longest = max((_own(one, device) for one in rows), default=0.0) or 1.0
    titles = [_cell("", header=True, style=_NAME), _cell("", header=True)]
    titles += [_number("GPU ms", header=True), _number("%", header=True)] if device else []
    titles += [_number("host ms", header=True)] + ([] if device else [_number("%", header=True)])
    body = ""
    for one in rows:
        share = percent_cell(_own(one, device) / total if total else None)
        cells = [
            _cell(code_name(str(one["name"]), 48), style=_NAME),
            _cell(bar(_own(one, device) / longest, (KERNEL if device else PYTHON).fill), style="min-width:60px"),
        ]
        cells += [_number(time_cell(one["device_ms"], total)), _number(share)] if device else []
        cells += [_number(time_cell(one["host_ms"], host_total))] + ([] if device else [_number(share)])
        body += row(*cells)
    return title("Phases", "one step") + table(row(*titles), body)


def _tree_table(rows: Sequence[Row], heading: str, word: str) -> str:
    device = _on_device(rows)
    total, host_total = sum(_own(one, device) for one in rows), sum(one["host_ms"] or 0.0 for one in rows)
    kept = _kept(rows, device, ROWS_SHOWN)
    names = ("GPU ms", "%", "own", "host ms", "calls") if device else ("host ms", "%", "own", "calls")
    titles = [_cell(word, header=True, style=_NAME), _cell("", header=True)]
    titles += [_number(name, header=True) for name in names]
    body = ""
    for one in kept:
        ms = _inner(one, device)
        cells = [
            _cell("&nbsp;" * (5 * min(_depth(one), 8)) + code_name(str(one["name"]), 48), style=_NAME),
            _cell(bar(ms / total if total else 0.0, (KERNEL if device else PYTHON).fill), style="min-width:60px"),
            _number(time_cell(ms, total)),
            _number(percent_cell(ms / total if total else None)),
            _number(time_cell(_own(one, device), total)),
        ]
        cells += [_number(_host(one, host_total))] if device else []
        cells.append(_number(count_cell(one["calls"]) if one["calls"] is not None else ""))
        body += row(*cells)
    left = len(rows) - len(kept)
    if left:
        rule = f"border-top:1px solid {RULE}"
        body += row(_cell(muted(f"{left:,} smaller ones"), style=rule, span_columns=len(titles)))
    more = "one step; instances of a class together" if word == "module" else "one step"
    return title(heading, more) + table(row(*titles), body)


def _kept(rows: Sequence[Row], device: bool, limit: int) -> list[Row]:
    """The rows with the most time inside, in the order of the tree; a kept one is never without those around it."""
    total = sum(_own(one, device) for one in rows)
    ranked = sorted(range(len(rows)), key=lambda at: (-_inner(rows[at], device), at))
    large = [at for at in ranked if total > 0 and _inner(rows[at], device) >= SMALLEST * total]
    return [rows[at] for at in sorted(large[:limit])]


def _groups(report: Report) -> Mapping[str, Sequence[Row]]:
    groups = report.views.get("groups")
    return groups if isinstance(groups, Mapping) else {}


def _total(groups: Mapping[str, Sequence[Row]], device: bool) -> float:
    rows = groups.get(MODULE_CLASS) or groups.get(RANGE) or ()
    return sum(_own(one, device) for one in rows)


def _on_device(rows: Sequence[Row]) -> bool:
    return any(one["device_ms"] is not None for one in rows)


def _own(one: Row, device: bool) -> float:
    return float((one["device_ms"] if device else one["host_ms"]) or 0.0)


def _inner(one: Row, device: bool) -> float:
    return float((one["total_device_ms"] if device else one["total_host_ms"]) or 0.0)


def _host(one: Row, total: float) -> str:
    return "" if one["total_host_ms"] is None else time_cell(one["total_host_ms"], total)


def _depth(one: Row) -> int:
    return len(one["within"])


def _cell(content: str, *, style: str = "", span_columns: int = 1, header: bool = False) -> str:
    return cell(content, style=f"padding:1px 6px;{style}", span_columns=span_columns, header=header)


def _number(content: str, *, header: bool = False) -> str:
    return cell(content, align="right", style="padding:1px 6px", header=header)
