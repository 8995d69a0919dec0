"""A comparison as a card and as text: the answer, both steps on one scale, what moved, what it teaches."""

from __future__ import annotations

import math
from typing import Any

from ipyprof.diagnosis.thresholds import BUSY_SHARE
from ipyprof.formatting import (
    GLUE,
    NOT_MEASURED,
    columns,
    percent_short,
    plural,
    printable,
    rate_text,
    shorten,
    size_text,
    speedup_text,
    time_cell,
    time_text,
)
from ipyprof.report.comparison import Comparison, Pair, Run
from ipyprof.report.comparison import Row as Moved
from ipyprof.report.significance import FASTER, LEAST_SAMPLES, SAME, SLOWER, UNKNOWN
from ipyprof.show.html import RED_CAPTION, RING_CAPTION, step_bar, whole_page
from ipyprof.show.markup import render
from ipyprof.show.pictures import DONUT_SIZE, donut
from ipyprof.show.table import Cell, Column, Row, Table, name_cell, wrapped
from ipyprof.show.text import NARROWEST
from ipyprof.show.words import ACCENT, BY_NAME, KERNEL, OUTLINE, Fact, cause_name, culprit_of, step_parts

TOP = 10
CODE_LINES = 8
SIDES = ("before", "after")
MOVED = (("before", 10), ("after", 10), ("change", 11))
_LETTERS = {"kernel": "█", "copies": "▓", "communication": "▒", "cpu": "░", "runtime": "▚", "data_loading": "▤"}
ARROW = " → "
NOTHING = "≈ 0"
NEARLY = 0.02  # a ratio within this of 1 is "≈ 1×"
HOST_SPEEDS = 1.9  # a shared host has two: 5,000 small operators on the CPU took 15 or 29 ms on that of an H200
RECORDED_HOST = "Host times are as recorded, longer than without the profiler: they do not add up to the step."
HOW = (
    "Steps follow each other closely, so neighbours count as one where they are correlated; an exact permutation test "
    "on ranks then says how often chance alone gives such a difference, and a bootstrap gives the interval of the "
    "ratio of the medians. It compares these two recordings: what changes between two runs, such as another load on "
    "the machine, it cannot see. Loops that wait for the host repeat within 30 % on a shared machine, and within a "
    "factor of 1.9 where its host has two speeds; loops that keep the GPU busy within 3 %. Where the difference is of "
    "that size, record each twice. Fifteen steps or more on either side also count as different where a gap lies "
    "between all of one side and all of the other."
)
"""What the answer rests on and what it cannot see, for the folded text."""


def _facts(found: Comparison) -> tuple[Fact, ...]:
    """The numbers under the headline."""
    facts = [
        Fact(name=pair.name, value=pair_arrow(pair), measured=None not in (pair.before, pair.after))
        for pair in found.numbers
        if pair.name in ("step", "throughput", "GPU computes")
    ]
    cause = found.after.cause
    now = {"compute_bound": "nothing: healthy", "inconclusive": "could not tell"}.get(cause, cause_name(cause))
    return (*facts, Fact(name="now holding it back", value=now))


def brief(found: Comparison) -> str:
    """Both labels, the answer and the step of both: ``before → after: faster, 57.0 → 15.1 ms``."""
    labels = f"{found.before.label}{ARROW}{found.after.label}"
    return f"{labels}: {found.significance.answer}, {pair_arrow(found.numbers[0])}"


def pair_arrow(pair: Pair) -> str:
    """Both values with one unit where they share it: ``257 → 31.6 ms``, ``5.9 → 48 %``."""
    before, after, _ = pair_texts(pair)
    first, _, unit = before.rpartition(" ")
    if unit and after.endswith(f" {unit}") and pair.before is not None and pair.after is not None:
        before = first
    return f"{before}{ARROW}{after}"


def pair_texts(pair: Pair) -> tuple[str, str, str]:
    """Before, after and their ratio, such as ``("249 img/s", "2,025 img/s", "8.1×")``."""
    before, after = (_value_text(pair.unit, value) for value in (pair.before, pair.after))
    return before, after, ratio_text(pair.ratio)


def ratio_text(ratio: float | None) -> str:
    """``8.1×``, ``0.18×``, ``≈ 1×``; empty where there is none."""
    if ratio is None:
        return ""
    if abs(ratio - 1) < NEARLY:
        return "≈ 1×"
    return speedup_text(ratio)


def interval_text(found: Comparison) -> str:
    """Such as ``8.1× (95 %: 7.9 to 8.4)``; empty where the samples give none."""
    judged = found.significance
    if judged.ratio is None or judged.low is None or judged.high is None:
        return ""
    low, high = (speedup_text(one).rstrip("×") for one in (judged.low, judged.high))
    return f"{speedup_text(judged.ratio)} (95 %: {low} to {high})"


def _rest(found: Comparison) -> tuple[str, ...]:
    """What became of the operators that are not listed, a phrase each."""
    told = []
    if found.same_operators:
        told.append(f"{plural(found.same_operators, 'operator')} with {SAME}")
    if found.unjudged_operators:
        few = f"fewer than {LEAST_SAMPLES} recorded steps know them"
        told.append(f"{plural(found.unjudged_operators, 'operator')} not judged ({few})")
    return tuple(told)


def lessons(found: Comparison) -> tuple[str, ...]:
    """What this comparison teaches, a sentence each: the promise, what did not move, what comes next."""
    told = []
    promise, answer = found.promise, found.significance.answer
    if promise is not None and answer not in (SAME, UNKNOWN) and found.speedup is not None and found.speedup > 1:
        bound = speedup_text(promise.bound)
        if promise.exceeded:
            told.append(
                f"The bound of {bound} holds for removing {cause_name(promise.cause)} alone: the change did more than "
                "that, or another cause went with it."
            )
        elif promise.kind == "at most" and promise.reached > promise.bound * (1 + NEARLY):
            told.append(f"Beyond the bound of {bound} by no more than runs of one loop or their steps differ.")
        elif promise.kind == "at most" and promise.recovered is not None:
            share = percent_short(min(promise.recovered, 1.0))
            told.append(f"The change gained {share} of what removing {cause_name(promise.cause)} can give.")
    kernel = next((row for row in found.parts if row.name == "kernel"), None)
    if kernel is not None and kernel.state == "same" and answer not in (SAME, UNKNOWN):
        told.append("The GPU computes as long as before: the gain is waiting that is gone.")
    if found.after.cause == found.before.cause and found.after.cause not in ("compute_bound", "inconclusive"):
        told.append(f"What holds the step back is still the same: {cause_name(found.after.cause)}.")
    if _may_be_the_machine(found):
        told.append(
            "The slower run waits for the host, whose speed alone can change a step by up to "
            f"{speedup_text(HOST_SPEEDS)} from run to run on a shared machine: record both again to be sure."
        )
    told.append(f"Now: {found.after.headline}")
    return tuple(told)


def _may_be_the_machine(found: Comparison) -> bool:
    """Whether the two differ by no more than runs of one loop do that is held back by the host."""
    if found.significance.answer in (SAME, UNKNOWN) or not found.speedup:
        return False
    slower = found.after if found.speedup < 1 else found.before
    busy = (slower.breakdown.kernel or 0.0) / (slower.step_ms or math.inf)
    return max(found.speedup, 1 / found.speedup) <= HOST_SPEEDS and busy < BUSY_SHARE


def _samples_text(found: Comparison) -> tuple[str, str]:
    """The range of each side's samples with the step, such as ``257 ms (254–261)``."""
    texts = []
    for run in (found.before, found.after):
        text = time_text(run.step_ms)
        if run.clock == "unprofiled" and len(run.samples_ms) > 1 and not found.per_item:
            low, high = (time_text(one) for one in (min(run.samples_ms), max(run.samples_ms)))
            unit = text.rpartition(" ")[2]
            if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
                low, high = low[: -len(unit) - 1], high[: -len(unit) - 1]
            text += f"  ({low}–{high})"
        texts.append(text)
    return texts[0], texts[1]


def _value_text(unit: str, value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    if unit == "ms":
        return time_text(value)
    if unit == "share":
        return percent_short(value)
    if unit == "bytes":
        return size_text(value)
    return rate_text(value, unit)


def render_comparison(found: Comparison) -> str:
    """The card of ``found``: safe to show untrusted, in dark and light themes."""
    before, after = found.before, found.after
    return render(
        "comparison.html",
        rule={FASTER: KERNEL.fill, SLOWER: ACCENT}.get(found.significance.answer, OUTLINE),
        labels=[(side, run.label) for side, run in zip(SIDES, (before, after), strict=True) if run.label != side],
        eyebrow=[after.device or "", after.how],
        headline=found.headline,
        facts=_facts(found),
        warnings=found.warnings,
        code=found.code[:CODE_LINES],
        code_left=max(len(found.code) - CODE_LINES, 0),
        step=_step(found),
        numbers=numbers_table(found),
        answer=_answer(found),
        parts_moved=parts_table(found),
        lessons=lessons(found),
        operators=operators_table(found),
        how=HOW,
    )


def comparison_page(found: Comparison) -> str:
    """A whole HTML document around the card, for a file."""
    return whole_page(found.headline, render_comparison(found))


def comparison_text(found: Comparison, width: int = 80) -> str:
    """The comparison in lines of at most ``width`` columns (60 at least), the answer first."""
    width = max(width, NARROWEST)
    operators = operators_table(found)
    parts = [
        _head(found, width),
        _bars(found, width),
        numbers_table(found).text(width),
        parts_table(found).text(width),
        operators.text(width) + [line for text in operators.notes for line in wrapped(text, width)],
        [line for text in lessons(found) for line in wrapped(text, width)],
    ]
    return printable("\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)) + "\n"


def numbers_table(found: Comparison) -> Table:
    """Throughput, use of the GPU and memory of both; the step stands in the bars."""
    titles = (
        Column(kind="name"),
        *(Column(title=name, width=wide) for name, wide in zip(SIDES, (18, 18), strict=True)),
    )
    rows = [(pair.name, *pair_texts(pair)) for pair in found.numbers if pair.name != "step"]
    cells = [Row(tuple(Cell(text) for text in texts)) for texts in rows]
    return Table(columns=(*titles, Column(title="ratio", width=10)), rows=tuple(cells))


def parts_table(found: Comparison) -> Table:
    """The parts of the step that take time on either side, and the step."""
    steps = (found.before.step_ms, found.after.step_ms)
    total = max(step or 0.0 for step in steps)
    rows = [_moved(one, total, Cell(BY_NAME[one.name].label, fill=BY_NAME[one.name].fill)) for one in found.parts]
    change = "" if None in steps else _signed((steps[1] or 0.0) - (steps[0] or 0.0), total)
    last = (Cell("step"), *(Cell(time_cell(step, total)) for step in steps), Cell(change), Cell())
    return Table(
        title="What moved",
        more="ms per step",
        heading="What moved, ms per step",
        columns=_moved_columns("part"),
        rows=(*rows, Row(last, rule=True)) if rows else (),
        empty="The parts of a step were not measured.",
    )


def operators_table(found: Comparison) -> Table:
    """The ten operators that moved most; below it what became of the others."""
    shown, left = found.operators[:TOP], found.operators[TOP:]
    total = max((max(one.before_ms or 0.0, one.after_ms or 0.0) for one in shown), default=0.0)
    notes = []
    if left:
        change = sum(one.change_ms or 0.0 for one in left)
        notes.append(f"{len(left):,} more moved by {_signed(change, total)} ms together.")
    notes += [f"{text}." for text in _rest(found)]
    if shown and not found.on_device:
        notes.append(RECORDED_HOST)
    return Table(
        title="Operators that moved" if shown or notes else "",
        more=f"{'device' if found.on_device else 'host'} self time, ms per recorded step",
        heading="Operators, GPU self time" if found.on_device else "Recorded host self time",
        columns=_moved_columns("operator"),
        rows=tuple(_moved(one, total, name_cell(one.name, 48)) for one in shown),
        notes=tuple(notes),
    )


def _moved_columns(name: str) -> tuple[Column, ...]:
    numbers = (Column(title=title, width=wide, look="width:80px") for title, wide in MOVED)
    return (
        Column(title=name, kind="name", look="width:45%"),
        *numbers,
        Column(kind="text", width=23, least=76, look="width:150px"),
    )


def _moved(row: Moved, total: float, name: Cell) -> Row:
    """Before, after, the change with its sign, and a word: in a column whose largest is ``total``."""
    times = [
        Cell(time_cell(0.0 if value is None and row.state != "unknown" else value, total))
        for value in (row.before_ms, row.after_ms)
    ]
    change, word = "", "cannot tell"
    if row.change_ms is not None:
        change = NOTHING if row.state == "same" else _signed(row.change_ms, total)
        word = SAME if row.state == "same" else row.state if row.state in ("appeared", "vanished") else ""
    return Row((name, *times, Cell(change, bold=row.state != "same"), Cell(word, faint=True)))


def _signed(change: float, total: float) -> str:
    text = time_cell(change, total)
    return NOTHING if text == "·" else f"+{text}" if change > 0 else text


def _answer(found: Comparison) -> str:
    """The answer with what it rests on, and the interval of the ratio."""
    judged, interval = found.significance, interval_text(found)
    per = "per item, " if found.per_item else ""
    clock = "recorded steps, " if found.before.clock == "recorded" else ""
    text = f"{judged.answer[:1].upper()}{judged.answer[1:]}: {judged.text}."
    return text + (f" Before / after, {per}{clock}ratio of the medians: {interval}." if interval else "")


def _runs(found: Comparison) -> list[tuple[str, str, Run]]:
    return list(zip(SIDES, _samples_text(found), (found.before, found.after), strict=True))


def _step(found: Comparison) -> dict[str, Any]:
    """Both steps as rings and as bars on one scale."""
    scale = max(run.step_ms or 0.0 for _, _, run in _runs(found))
    rings, bars, marked = [], [], False
    for name, number, run in _runs(found):
        culprit = culprit_of(run.cause)
        parts = step_parts(run.breakdown, culprit)
        if parts and run.step_ms:
            marked = marked or culprit is not None
            rings.append(donut(parts, run.step_ms, culprit=culprit, caption=name))
            bars.append(step_bar(name, number, parts, scale))
    works = any(one.before_ms or one.after_ms for one in found.parts if BY_NAME[one.name].works)
    caption = (RING_CAPTION if works else "the host's steps: no GPU time") + (RED_CAPTION if marked else "")
    return {"rings": rings, "bars": bars, "caption": caption, "width": DONUT_SIZE[0]}


def _head(found: Comparison, width: int) -> list[str]:
    before, after = found.before, found.after
    eyebrow = ["Before and after", f"{before.label} → {after.label}", after.device, after.how]
    facts = " · ".join(f"{fact.name} {fact.value}".replace(" ", GLUE) for fact in _facts(found))
    texts = [" · ".join(part for part in eyebrow if part), found.headline, facts, _answer(found)]
    lines = [line for text in texts for line in wrapped(text, width)]
    lines += [line for warning in found.warnings for line in wrapped(f"! {warning}", width, indent=2)]
    lines += [f"  {sign} {shorten(source.expandtabs(4), width - 4)}" for sign, source in found.code[:CODE_LINES]]
    if len(found.code) > CODE_LINES:
        lines.append(f"    {len(found.code) - CODE_LINES} more lines of the cell differ")
    return lines


def _bars(found: Comparison, width: int) -> list[str]:
    """Both steps on one scale, each part in its own shade."""
    scale = max(run.step_ms or 0.0 for _, _, run in _runs(found))
    if scale <= 0:
        return []
    lines, seen = [], {}
    room = width - 10 - max(columns(number) for _, number, _ in _runs(found))
    for name, number, run in _runs(found):
        drawn, end = "", 0.0
        for part in step_parts(run.breakdown, culprit_of(run.cause)):
            end += part.ms
            letter = _LETTERS.get(part.category.name, "·")
            length = round(min(end / scale, 1.0) * room) - len(drawn)  # a damaged report may say more than its step
            if length > 0:
                seen[part.category.name] = f"{letter} {part.category.label}".replace(" ", GLUE)
            drawn += letter * length
        lines.append(f"{name:<8}{drawn}  {number}")
    return lines + wrapped("   ".join(seen.values()), width)
