"""The cell's own lines with what each costs."""

from __future__ import annotations

from collections.abc import Sequence

from ipyprof.formatting import NOT_MEASURED, columns, count_cell, plural, shorten, size_text, step_cell
from ipyprof.report.categories import ACCENT, KERNEL, LOADER, PYTHON, RULE
from ipyprof.report.markup import (
    CARD,
    ELLIPSIS,
    MAIN,
    MUTED,
    SMALL,
    bar,
    cell,
    columns_row,
    div,
    mono,
    muted,
    note,
    row,
    span,
    table,
    title,
)
from ipyprof.report.report import Line, Report
from ipyprof.report.words import leading_line

LINES_SHOWN = 24
SOURCE_COLUMNS = 92
_NARROW_COLUMNS = 30  # what a browser 800 wide has room for
_COLUMN = 7.25  # pixels of a character of code
_COLUMNS = {"device_ms": 115, "host_ms": 115, "sync_count": 65, "peak_bytes": 85}  # pixels of what stands beside it
_GPU_CAUSES = frozenset(("transfer", "communication", "tensor_cores", "misaligned_shapes", "memory_bound"))
_NO_PEAK = "–"
_COST = "padding-left:4px;padding-right:6px"
_FILLING = f"width:100%;{ELLIPSIS};padding-left:0"


def lines_section(report: Report) -> str:
    """The cell's own lines with device time, host time and syncs; empty where no line was measured."""
    lines = report.lines
    if not lines:
        if report.source.kind == "file":
            return ""
        return title("Your lines") + note(f"Time per line was {NOT_MEASURED}.", 0)
    lead = leading_line(report)
    device, peaks = _measured(lines, "device_ms"), _measured(lines, "peak_bytes")
    syncs = _measured(lines, "sync_count")
    device_total = sum(line.device_ms or 0.0 for line in lines)
    host_total = sum(line.host_ms or 0.0 for line in lines)
    most = max([*(line.device_ms or 0.0 for line in lines), *(line.host_ms or 0.0 for line in lines), 1e-12])
    guilty = _guilty(report.verdict.cause, device=device)
    titles = [cell("", header=True), cell("your cell", header=True, style="padding-left:0")]
    titles += [cell("GPU ms", align="right", header=True, style=_COST), cell("", header=True)] if device else []
    titles += [cell("host ms", align="right", header=True, style=_COST), cell("", header=True)]
    titles += [cell("syncs", align="right", header=True, style=_COST)] if syncs else []
    titles += [cell("peak", align="right", header=True, style=_COST)] if peaks else []
    body = ""
    for kept in _kept_lines(lines, lead):
        if isinstance(kept, int):
            body += row(cell(""), cell(muted(f"⋯ {plural(kept, 'line')} that cost less"), span_columns=len(titles) - 1))
            continue
        leads = kept.line == lead
        edge = f"border-left:3px solid {ACCENT}" if leads else "border-left:3px solid rgba(0,0,0,0)"
        cells = [
            cell(
                span(mono(str(kept.line)), "font-weight:bold" if leads else MUTED),
                align="right",
                style=f"{edge};width:22px;padding:1px 8px 1px 4px",
            ),
            cell(_source(kept.source), style=_FILLING),
        ]
        if device:
            cells += _cost(kept.device_ms, device_total, most, KERNEL.fill, bold=leads and guilty == "device_ms")
        fill = LOADER.fill if leads and report.verdict.cause == "data_loading" else PYTHON.fill
        cells += _cost(kept.host_ms, host_total, most, fill, bold=leads and guilty == "host_ms")
        if syncs:
            number = count_cell(kept.sync_count)
            shown = f"<b>{number}</b>" if leads and guilty == "sync_count" else number
            cells.append(cell(shown, align="right", style=_COST))
        if peaks:
            peak = size_text(kept.peak_bytes) if kept.peak_bytes is not None else muted(_NO_PEAK)
            cells.append(cell(peak, align="right", style=_COST))
        body += row(*cells)
    rule = f"border-top:1px solid {RULE}"
    last = [cell("", style=rule), cell("<b>all lines</b>", style=f"padding-left:0;{rule}")]
    if device:
        last += [
            cell(f"<b>{step_cell(device_total, device_total)}</b>", align="right", style=f"{_COST};{rule}"),
            cell("", style=rule),
        ]
    last += [
        cell(f"<b>{step_cell(host_total, host_total)}</b>", align="right", style=f"{_COST};{rule}"),
        cell("", style=rule),
    ]
    if syncs:
        count = sum(line.sync_count or 0.0 for line in lines)
        last.append(cell(f"<b>{count_cell(count)}</b>", align="right", style=f"{_COST};{rule}"))
    if peaks:
        last.append(cell("", style=rule))
    body += row(*last)
    words = [
        "host ms: the line's own time."
        if not device
        else "GPU ms: the line's work on the GPU as recorded, with the backward pass of what it computed. host ms: the "
        "line's own time, waiting included, also while the GPU works: so it may be more than what can be recovered."
    ]
    if syncs:
        words.append("A sync is a place where Python waits for the GPU.")
    if peaks and any(line.peak_bytes is None for line in lines):
        words.append(f"peak {_NO_PEAK}: nothing was allocated or freed there.")
    head, shown = title("Your lines", "per step"), table(row(*titles), body)
    width = _table_width(lines)
    if width <= MAIN:
        return head + columns_row(shown, div("<br>".join(words), SMALL))
    return head + div(shown + note(" ".join(words)), f"max-width:{width}px")


def _table_width(lines: Sequence[Line]) -> int:
    """How wide the table is, in pixels, to show the longest line of code: from ``MAIN`` to the whole card."""
    code = [line.source.expandtabs(4).rstrip() for line in lines if not line.source.startswith("%")]
    longest = max((columns(text) for text in code), default=0)
    numbers = sum(width for name, width in _COLUMNS.items() if _measured(lines, name))
    return min(max(round(min(longest, SOURCE_COLUMNS) * _COLUMN) + 50 + numbers, MAIN), CARD)


def lines_height(report: Report) -> int:
    """About how many pixels ``lines_section`` takes."""
    if not report.lines:
        return 40
    height = 62 + 18 * len(_kept_lines(report.lines, leading_line(report)))
    return height + (40 if _table_width(report.lines) > MAIN else 0)


def _guilty(cause: str, *, device: bool) -> str:
    """The column whose number the verdict speaks of: bold on its line."""
    if not device:
        return "host_ms"
    return "device_ms" if cause in _GPU_CAUSES else "sync_count" if cause == "host_sync" else "host_ms"


def _measured(lines: Sequence[Line], name: str) -> bool:
    return any(getattr(line, name) is not None for line in lines)


def _source(source: str) -> str:
    """One line of code with its indentation, the full line on hover where a narrow page may shorten it."""
    line = source.expandtabs(4).rstrip("\n")
    short = shorten(line, SOURCE_COLUMNS)
    whole = line.strip()[:1000] if columns(line) > _NARROW_COLUMNS else ""
    return span(mono(short, indent=True), "white-space:nowrap", title=whole)


def _cost(ms: float | None, total: float, most: float, fill: str, *, bold: bool) -> list[str]:
    number = step_cell(ms, total)
    drawn = bar(ms / most, fill, width="38px") if ms else ""
    return [
        cell(f"<b>{number}</b>" if bold else number, align="right", style=_COST),
        cell(drawn, style="padding:1px 4px 1px 0;width:38px"),
    ]


def _kept_lines(lines: Sequence[Line], lead: int | None) -> list[Line | int]:
    """All lines of a short cell; of a long one the costliest, with the number of lines left out between them."""
    if len(lines) <= LINES_SHOWN:
        return list(lines)
    ranked = sorted(
        lines,
        key=lambda line: (
            line.line != lead,
            -((line.device_ms or 0.0) + (line.host_ms or 0.0) + (line.sync_count or 0.0) * 1e-6),
        ),
    )
    chosen = {line.line for line in ranked[: LINES_SHOWN - 6]}
    kept: list[Line | int] = []
    left_out = 0
    for line in lines:
        if line.line in chosen:
            if left_out:
                kept.append(left_out)
            left_out = 0
            kept.append(line)
        else:
            left_out += 1
    return [*kept, left_out] if left_out else kept
