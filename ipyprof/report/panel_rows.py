"""The rows that the panel shows: by operator, shape, kernel, line of the cell, or any group that the views hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipyprof.formatting import NOT_MEASURED, columns, count_cell, percent_cell, plural, shorten, time_cell
from ipyprof.report.categories import COPIES, KERNEL, PYTHON, RULE
from ipyprof.report.codec import decode
from ipyprof.report.markup import (
    ELLIPSIS,
    bar,
    cell,
    code_name,
    escape,
    mono,
    muted,
    note,
    row,
    span,
    table,
    title,
)
from ipyprof.report.report import Operator, Report
from ipyprof.report.words import BOUND, TENSOR_CORE

MEAN = "mean"
SORTS = ("device time", "host time", "calls", "name")
OPERATOR, SHAPE, KERNELS, LINES = "operator", "operator and shapes", "kernel", "line of the cell"
_NAME = f"width:44%;{ELLIPSIS}"
_NAME_COLUMNS = 60
_PATH_COLUMNS = 44  # the end of a path is what counts: it fits into a browser 800 wide
_BETWEEN = " › "


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """One row, per step; ``None`` = not measured. ``bound`` and ``tensor_core`` are empty where they do not apply.

    ``total_ms`` is with what is inside, on the device where it was measured; ``path`` are the names of what is around
    the row and its own, empty where nothing is around it.
    """

    name: str
    calls: float | None = None
    device_ms: float | None = None
    host_ms: float | None = None
    bound: str = ""
    tensor_core: str = ""
    total_ms: float | None = None
    path: tuple[str, ...] = ()


def group_names(report: Report) -> tuple[str, ...]:
    """What the rows can be grouped by: only what this report holds."""
    names = [OPERATOR]
    if any(one.shapes for one in report.operators):
        names.append(SHAPE)
    if report.kernels:
        names.append(KERNELS)
    if report.lines:
        names.append(LINES)
    groups = report.views.get("groups")
    if isinstance(groups, Mapping):
        names += [str(name) for name, rows in groups.items() if rows and name not in names]
    return tuple(names)


def group_rows(report: Report, group: str, step: str = MEAN) -> tuple[PanelRow, ...]:
    """The rows of ``group``: of the mean step, or of one recorded step where the group is known for it.

    Args:
        group: one of ``group_names``.
        step: ``"mean"`` or ``"step 2"``; kernels, lines and groups of the views are known for the mean only.
    """
    if group in (OPERATOR, SHAPE):
        return tuple(_operator_row(one, shapes=group == SHAPE) for one in _operators(report, step))
    if group == KERNELS:
        return tuple(
            PanelRow(
                name=one.name,
                calls=one.calls,
                device_ms=one.device_ms,
                bound=one.bound,
                tensor_core=one.tensor_core,
            )
            for one in report.kernels
        )
    if group == LINES:
        return tuple(
            PanelRow(name=f"{one.line:>3}  {one.source}", calls=None, device_ms=one.device_ms, host_ms=one.host_ms)
            for one in report.lines
            if one.device_ms or one.host_ms
        )
    rows: Sequence[Mapping[str, Any]] = report.views["groups"][group]
    return tuple(_group_row(one) for one in rows)


def knows_steps(group: str) -> bool:
    """Whether the group is known for each recorded step, not only for the mean."""
    return group in (OPERATOR, SHAPE)


def selected(rows: Sequence[PanelRow], words: str, sort: str) -> tuple[PanelRow, ...]:
    """The rows whose name holds every word (in any case), sorted by ``sort``, one of ``SORTS``; the largest first."""
    wanted = words.lower().split()
    kept = [one for one in rows if all(word in one.name.lower() for word in wanted)]
    if sort == "name":
        return tuple(sorted(kept, key=lambda one: one.name.lower()))
    field = {"host time": "host_ms", "calls": "calls"}.get(sort, "device_ms")
    return tuple(sorted(kept, key=lambda one: (-(getattr(one, field) or 0.0), one.name)))


def rows_table(rows: Sequence[PanelRow], every: Sequence[PanelRow], *, name: str, clock: str, limit: int) -> str:
    """The first ``limit`` of ``rows`` as HTML; percent are of all rows, ``every``.

    Args:
        name: of the group, such as ``kernel``.
        clock: what the times are of, such as ``one recorded step``.
    """
    device = any(one.device_ms is not None for one in every)
    head = title(f"By {name}", f"{clock}, % of all {'GPU' if device else 'host'} time")
    if not rows:
        return head + note("Nothing has such a name." if every else f"This was {NOT_MEASURED}.", 0)

    def own(one: PanelRow) -> float:
        return (one.device_ms if device else one.host_ms) or 0.0

    total = sum(own(one) for one in every)
    longest = max(own(one) for one in rows) or 1.0
    host_total = max(sum(one.host_ms or 0.0 for one in every), 1e-9)
    bounds = any(one.bound in ("compute", "memory", "launch") for one in rows)
    cores = any(one.tensor_core in ("yes", "no") for one in rows)
    totals = any(one.path for one in every)
    titles = [
        _cell("", header=True),
        _cell(name, header=True, style=_NAME),
        _cell("", header=True),
        *(_cell(text, align="right", header=True) for text in ("GPU ms" if device else "", "%", "host ms", "calls")),
        *([_cell("with inner", align="right", style="white-space:normal", header=True)] if totals else []),
        *([_cell("bound by", header=True)] if bounds else []),
        *([_cell("Tensor Cores", style="white-space:normal", header=True)] if cores else []),
    ]
    body = ""
    for number, one in enumerate(rows[:limit], start=1):
        fill = PYTHON if not device else COPIES if one.bound == "copy" else KERNEL
        cells = [
            _cell(muted(str(number)), align="right", style="width:18px;padding-left:0"),
            _cell(_shown(one), style=_NAME),
            _cell(bar(own(one) / longest, fill.fill), style="min-width:60px"),
            _cell(time_cell(one.device_ms, total) if device else "", align="right"),
            _cell(percent_cell(own(one) / total if total else None), align="right"),
            _cell(time_cell(one.host_ms, host_total) if one.host_ms is not None else "", align="right"),
            _cell(count_cell(one.calls) if one.calls is not None else "", align="right"),
        ]
        cells += [_cell(time_cell(one.total_ms, total), align="right")] if totals else []
        cells += [_cell(_mark(BOUND, one.bound))] if bounds else []
        cells += [_cell(_mark(TENSOR_CORE, one.tensor_core))] if cores else []
        body += row(*cells)
    shown = sum(own(one) for one in rows)
    line = f"border-top:1px solid {RULE}"
    more = f"{len(rows) - limit:,} more; " if len(rows) > limit else ""
    body += row(
        _cell("", style=line),
        _cell(f"{more}<b>{plural(len(rows), 'row')}</b> of {len(every):,}", style=line, span_columns=2),
        _cell(f"<b>{time_cell(shown, total)}</b>" if device else "", align="right", style=line),
        _cell(f"<b>{percent_cell(shown / total if total else None)}</b>", align="right", style=line),
        _cell("", style=line, span_columns=len(titles) - 5),
    )
    return head + table(row(*titles), body)


def _operators(report: Report, step: str) -> Sequence[Operator]:
    if step == MEAN:
        return report.operators
    view = next(one for one in report.views["per_step"] if f"step {one['step']}" == step)
    return decode(tuple[Operator, ...], view.get("operators") or (), "a step's operators")


def _operator_row(one: Operator, *, shapes: bool) -> PanelRow:
    return PanelRow(
        name=f"{one.name}  {one.shapes}" if shapes and one.shapes else one.name,
        calls=one.calls,
        device_ms=one.self_device_ms,
        host_ms=one.self_host_ms,
        bound=one.bound,
        tensor_core=one.tensor_core,
    )


def _group_row(one: Mapping[str, Any]) -> PanelRow:
    name = str(one.get("name", ""))
    path = (*map(str, one.get("within") or ()), name)
    device, total = one.get("device_ms"), one.get("total_device_ms")
    return PanelRow(
        name=_BETWEEN.join(path),
        calls=one.get("calls"),
        device_ms=device,
        host_ms=one.get("host_ms"),
        total_ms=total if device is not None else one.get("total_host_ms"),
        path=path if len(path) > 1 else (),
    )


def _shown(one: PanelRow) -> str:
    """The name as code; of a long path the end, with the whole of it on hover."""
    if not one.path:
        return code_name(one.name, _NAME_COLUMNS)
    if columns(one.name) <= _PATH_COLUMNS:
        return code_name(one.name, _PATH_COLUMNS)
    kept = one.path[-1:]
    while columns(_BETWEEN.join(("…", *one.path[-len(kept) - 1 :]))) <= _PATH_COLUMNS:
        kept = one.path[-len(kept) - 1 :]
    short = shorten(" ".join(_BETWEEN.join(("…", *kept)).split()), _PATH_COLUMNS)
    return span(mono(short), "white-space:nowrap", title=shorten(" ".join(one.name.split()), 1000))


def _mark(marks: Mapping[str, str], word: str) -> str:
    return f"{marks[word]}&nbsp;{escape(word)}" if word in marks else muted("n/a" if word == "n/a" else "?")


def _cell(content: str, *, align: str = "left", style: str = "", span_columns: int = 1, header: bool = False) -> str:
    return cell(content, align=align, style=f"padding:1px 6px;{style}", span_columns=span_columns, header=header)
