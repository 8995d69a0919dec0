"""The card of a comparison: one HTML fragment that stands alone, as the dashboard's (see ``html.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from ipyprof.formatting import time_cell
from ipyprof.report.comparison import Comparison, Row
from ipyprof.report.significance import FASTER, SLOWER
from ipyprof.show.comparison import (
    HOW,
    NOTHING,
    RECORDED_HOST,
    comparison_facts,
    interval_text,
    lessons,
    operators_rest,
    pair_texts,
    row_name,
    row_texts,
    samples_text,
    table_numbers,
)
from ipyprof.show.html import whole_page
from ipyprof.show.markup import (
    ELLIPSIS,
    SMALL,
    card,
    cell,
    chip,
    code_name,
    columns_row,
    details,
    div,
    escape,
    muted,
    note,
    picture,
    row,
    section,
    swatch,
    table,
    title,
)
from ipyprof.show.pictures import DONUT_SIZE, donut
from ipyprof.show.sections import (
    RED_CAPTION,
    RING_CAPTION,
    diff_block,
    eyebrow_line,
    fact_tiles,
    headline_line,
    step_bar,
)
from ipyprof.show.words import ACCENT, ACCENT_INK, BY_NAME, KERNEL, OUTLINE, RULE, culprit_of, step_parts

TOP = 10
CODE_LINES = 8
_CLOSE = "padding:1px 5px"


def render_comparison(found: Comparison) -> str:
    """The card of ``found``: safe to show untrusted, in dark and light themes."""
    parts = [_head(found), section(_step(found)), section(_moved(found))]
    if found.operators or operators_rest(found):
        parts.append(section(_operators(found)))
    how = details("How is “real” told from noise?", div(escape(HOW), f"{SMALL};max-width:760px"))
    return card("".join(parts) + section(how, first=True))


def comparison_page(found: Comparison) -> str:
    """A whole HTML document around the card, for a file."""
    return whole_page(found.headline, render_comparison(found))


def _head(found: Comparison) -> str:
    rule = {FASTER: KERNEL.fill, SLOWER: ACCENT}.get(found.significance.answer, OUTLINE)
    before, after = found.before, found.after
    eyebrow = [
        "<b>Before and after</b>",
        f"before: <b>{escape(before.label)}</b>" if before.label != "before" else "",
        f"after: <b>{escape(after.label)}</b>" if after.label != "after" else "",
        escape(after.device or ""),
        escape(after.how),
    ]
    lines = [eyebrow_line(eyebrow), headline_line(found.headline), fact_tiles(comparison_facts(found))]
    if found.warnings:
        mark = chip("! compare with care", ACCENT, ACCENT_INK)
        lines.append(div(f"{mark}&nbsp; {' &nbsp;·&nbsp; '.join(map(escape, found.warnings))}", "margin:5px 0 0 0"))
    if found.code:
        lines.append(diff_block(found.code[:CODE_LINES]))
        if len(found.code) > CODE_LINES:
            lines.append(note(muted(f"{len(found.code) - CODE_LINES} more lines of the cell differ"), 2))
    return div("".join(lines), f"border-left:4px solid {rule};padding:1px 0 3px 14px;margin:2px 0 10px 0")


def _step(found: Comparison) -> str:
    head = title("One step", "both bars on the same scale")
    runs = (found.before, found.after)
    scale = max(run.step_ms or 0.0 for run in runs)
    rings, bars, marked = "", "", False
    for run, name, number in zip(runs, ("before", "after"), samples_text(found), strict=True):
        culprit = culprit_of(run.cause)
        parts = step_parts(run.breakdown, culprit)
        if not parts or not run.step_ms:
            continue
        marked = marked or culprit is not None
        ring = picture(*donut(parts, run.step_ms, culprit=culprit, caption=name), DONUT_SIZE[0])
        rings += div(ring, f"flex:1 1 260px;max-width:{DONUT_SIZE[0]}px")  # side by side in a browser 800 wide too
        bars += step_bar(name, number, parts, scale, culprit)
    if not bars:
        return columns_row(head + note("The steps were not measured."), _numbers(found))
    works = any(one.before_ms or one.after_ms for one in found.parts if BY_NAME[one.name].works)
    rings_mean = RING_CAPTION if works else "the host's steps: no GPU time"
    caption = div(rings_mean + (RED_CAPTION if marked else ""), f"{SMALL};text-align:center")
    drawn = div(rings, "display:flex;flex-wrap:wrap;justify-content:space-around;gap:4px 12px")
    return columns_row(head + drawn + caption + bars, _numbers(found))


def _numbers(found: Comparison) -> str:
    titles = row(
        cell("", header=True, style=f"{_CLOSE};padding-left:0"),
        cell("before", align="right", header=True, style=_CLOSE),
        cell("after", align="right", header=True, style=_CLOSE),
        cell("ratio", align="right", header=True, style=f"{_CLOSE};padding-right:0"),
    )
    body = ""
    for pair in table_numbers(found):
        before, after, ratio = pair_texts(pair)
        body += row(
            cell(escape(pair.name), style=f"{_CLOSE};padding-left:0"),
            cell(escape(before), align="right", style=_CLOSE),
            cell(escape(after), align="right", style=_CLOSE),
            cell(escape(ratio), align="right", style=f"{_CLOSE};padding-right:0"),
        )
    text = found.significance.text
    interval = interval_text(found)
    per = "per item, " if found.per_item else ""
    clock = "recorded steps, " if found.before.clock == "recorded" else ""
    judged = f"<b>{escape(_capital(found.significance.answer))}</b>: {escape(text)}."
    if interval:
        judged += f" Before / after, {per}{clock}ratio of the medians: {escape(interval)}."
    return table(titles, body) + note(judged, 8)


def _moved(found: Comparison) -> str:
    total = max((run.step_ms or 0.0 for run in (found.before, found.after)), default=0.0)
    head = title("What moved", "ms per step")
    if not found.parts:
        return head + note("The parts of a step were not measured.", 0)
    body = "".join(_row(one, total, swatch(BY_NAME[one.name].fill) + escape(row_name(one))) for one in found.parts)
    steps = (found.before.step_ms, found.after.step_ms)
    line = f"border-top:1px solid {RULE}"
    change = "" if None in steps else _signed((steps[1] or 0.0) - (steps[0] or 0.0), total)
    body += row(
        cell("<b>step</b>", style=f"padding-left:0;{line}"),
        *(cell(f"<b>{time_cell(step, total)}</b>", align="right", style=line) for step in steps),
        cell(f"<b>{change}</b>", align="right", style=line),
        cell("", style=line),
    )
    told = "".join(note(escape(text), 0 if number == 0 else 6) for number, text in enumerate(lessons(found)))
    return head + columns_row(table(_titles("part"), body), told)


def _operators(found: Comparison) -> str:
    side = "device" if found.on_device else "host"
    head = title("Operators that moved", f"{side} self time, ms per recorded step")
    rest = " ".join(f"{text}." for text in operators_rest(found))
    if not found.operators:
        return head + note(rest, 0)
    shown = found.operators[:TOP]
    total = max(max(one.before_ms or 0.0, one.after_ms or 0.0) for one in shown)
    body = "".join(_row(one, total, code_name(one.name, 48)) for one in shown)
    more = found.operators[TOP:]
    text = head + table(_titles("operator"), body)
    notes = []
    if more:
        change = sum(one.change_ms or 0.0 for one in more)
        notes.append(f"{len(more):,} more moved by {_signed(change, total)} ms together.")
    if rest:
        notes.append(rest)
    if not found.on_device:
        notes.append(RECORDED_HOST)
    return div(text + (note(escape(" ".join(notes)), 2) if notes else ""), "max-width:700px")


def _titles(name: str) -> str:
    right: Sequence[str] = ("before", "after", "change")
    return row(
        cell(name, header=True, style="padding-left:0"),
        *(cell(one, align="right", header=True, style="width:80px") for one in right),
        cell("", header=True, style="width:150px"),
    )


def _row(one: Row, total: float, name: str) -> str:
    before, after, change, word = row_texts(one, total)
    weight = "" if one.state == "same" else "font-weight:bold"
    return row(
        cell(name, style=f"padding-left:0;{ELLIPSIS};width:45%"),
        cell(before, align="right"),
        cell(after, align="right"),
        cell(escape(change), align="right", style=weight),
        cell(muted(escape(word)), style="white-space:nowrap"),
    )


def _signed(change: float, total: float) -> str:
    text = time_cell(change, total)
    return NOTHING if text == "·" else f"+{text}" if change > 0 else text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
