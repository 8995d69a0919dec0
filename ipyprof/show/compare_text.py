"""A comparison as plain text, for terminals and ``text/plain``."""

from __future__ import annotations

from collections.abc import Sequence

from ipyprof.formatting import columns, printable, shorten
from ipyprof.report.comparison import Comparison, Row
from ipyprof.show.comparison import (
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
from ipyprof.show.text import NARROWEST, padded, wrapped
from ipyprof.show.words import culprit_of, step_parts

TOP = 10
CODE_LINES = 8
_LETTERS = {"kernel": "█", "copies": "▓", "communication": "▒", "cpu": "░", "runtime": "▚", "data_loading": "▤"}


def comparison_text(found: Comparison, width: int = 80) -> str:
    """The comparison in lines of at most ``width`` columns (60 at least), the answer first."""
    width = max(width, NARROWEST)
    parts = [
        _head(found, width),
        _bars(found, width),
        _numbers(found, width),
        _rows(found.parts, "What moved, ms per step", max(_step_ms(found)), width, parts=True),
        _operators(found, width),
        [line for text in lessons(found) for line in wrapped(text, width)],
    ]
    return printable("\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)) + "\n"


def _head(found: Comparison, width: int) -> list[str]:
    before, after = found.before, found.after
    eyebrow = ["Before and after", f"{before.label} → {after.label}", after.device, after.how]
    lines = wrapped(" · ".join(part for part in eyebrow if part), width)
    lines += wrapped(found.headline, width)
    lines += wrapped(
        " · ".join(f"{fact.name} {fact.value}".replace(" ", "\u00a0") for fact in comparison_facts(found)), width
    )
    judged = found.significance
    per = "per item, " if found.per_item else ""
    text = f"{judged.answer[0].upper()}{judged.answer[1:]}: {judged.text}."
    interval = interval_text(found)
    lines += wrapped(text + (f" Before / after, {per}ratio of the medians: {interval}." if interval else ""), width)
    for warning in found.warnings:
        lines += wrapped(f"! {warning}", width, indent=2)
    for sign, source in found.code[:CODE_LINES]:
        lines.append(f"  {sign} {shorten(source.expandtabs(4), width - 4)}")
    if len(found.code) > CODE_LINES:
        lines.append(f"    {len(found.code) - CODE_LINES} more lines of the cell differ")
    return lines


def _bars(found: Comparison, width: int) -> list[str]:
    """Both steps on one scale, each part in its own shade."""
    scale = max(_step_ms(found))
    if scale <= 0:
        return []
    lines, seen = [], {}
    numbers = samples_text(found)
    room = width - 10 - max(map(columns, numbers))
    for run, name, number in zip((found.before, found.after), ("before", "after"), numbers, strict=True):
        drawn, end = "", 0.0
        for part in step_parts(run.breakdown, culprit_of(run.cause)):
            end += part.ms
            letter = _LETTERS.get(part.category.name, "·")
            length = round(min(end / scale, 1.0) * room) - len(drawn)  # a damaged report may say more than its step
            if length > 0:
                seen[part.category.name] = f"{letter} {part.category.label}".replace(" ", "\u00a0")
            drawn += letter * length
        lines.append(f"{name:<8}{drawn}  {number}")
    return lines + wrapped("   ".join(seen.values()), width)


def _numbers(found: Comparison, width: int) -> list[str]:
    room = width - 48
    lines = [f"{'':<{room}}{'before':>18}{'after':>18}{'ratio':>10}"]
    for pair in table_numbers(found):
        before, after, ratio = pair_texts(pair)
        lines.append(f"{padded(pair.name, room)}{_right(before, 18)}{_right(after, 18)}{_right(ratio, 10)}")
    return lines


def _right(text: str, width: int) -> str:
    """``text`` at the right end of ``width`` columns, shortened where it does not fit."""
    short = shorten(" ".join(text.split()), width - 1)
    return " " * (width - columns(short)) + short


def _operators(found: Comparison, width: int) -> list[str]:
    name = "Operators, GPU self time" if found.on_device else "Recorded host self time"
    shown = found.operators[:TOP]
    total = max((max(one.before_ms or 0.0, one.after_ms or 0.0) for one in shown), default=0.0)
    lines = _rows(shown, name, total, width, parts=False)
    if len(found.operators) > TOP:
        lines.append(f"{len(found.operators) - TOP} more moved")
    return lines + [line for text in operators_rest(found) for line in wrapped(text, width)]


def _rows(rows: Sequence[Row], name: str, total: float, width: int, *, parts: bool) -> list[str]:
    if not rows:
        return []
    room = width - 54
    lines = [f"{padded(name, room)}{'before':>10}{'after':>10}{'change':>11}"]
    for one in rows:
        before, after, change, word = row_texts(one, total)
        shown = row_name(one) if parts else " ".join(one.name.split())
        lines.append(f"{padded(printable(shown), room)}{before:>10}{after:>10}{change:>11}  {word}")
    return lines


def _step_ms(found: Comparison) -> tuple[float, float]:
    return found.before.step_ms or 0.0, found.after.step_ms or 0.0
