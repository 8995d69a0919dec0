"""The dashboard: one HTML fragment that stands alone, made by ``templates/dashboard.html``.

No script, no ``<style>``, no SVG: untrusted notebooks and GitHub remove them. Without any style it still reads, from
the verdict down. Here a report becomes what the template shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from ipyprof.formatting import NOT_MEASURED, TIMES, percent_rung, percent_whole, step_cell, time_text
from ipyprof.report.repeats import repeats_text
from ipyprof.report.report import Report
from ipyprof.show.markup import BAR_PIXELS, CARD, MAIN, render, table_html, text_fits
from ipyprof.show.memory import failure_section, memory_section
from ipyprof.show.pictures import DONUT_SIZE, WIDTH, donut, magnification, timeline
from ipyprof.show.ranks import ranks_section
from ipyprof.show.tables import (
    checks_table,
    lines_table,
    operators_table,
    runs_table,
    scope_summary,
    scope_tables,
    scope_words,
    step_tables,
    widest_line,
)
from ipyprof.show.text import render_text, runs_text
from ipyprof.show.words import (
    ACCENT,
    BY_KEY,
    DRIVER,
    KERNEL,
    MEMORY,
    OUTLINE,
    Category,
    Part,
    bound_word,
    clock_text,
    culprit_of,
    device_state_text,
    device_text,
    facts,
    ladder_lesson,
    limit_words,
    more_facts,
    remaining_text,
    rungs,
    step_parts,
    steps_text,
    subject,
    unmeasured_text,
    without_label,
)

RING_CAPTION = "thick ring: GPU works \u00a0 thin: GPU waits"
RED_CAPTION = " \u00a0 red: the bottleneck"
_TALL = 32  # rows of tables; beyond this the timeline folds, and then what was checked
_TALLER = 46
_COLUMN = 7.25  # pixels of a character of code
_NUMBER = 55  # pixels of a column beside it
_LANE_WORDS = {
    "data_loading": "host in the data loader",
    "cpu": "host in Python, operators",
    "runtime": "host in CUDA calls: launches, syncs",
    "kernel": "GPU computes",
    "memcpy": "GPU copies",
    "memset": "GPU copies",
    "communication": "communication",
    "other": "other",
}
_AT_MOST = (
    "The step is replayed on the recorded kernels and calls, once as it was and once without the cause. The "
    "difference is what a perfect cure would gain: the new step takes at least that long, so the speed-up is at "
    "most that factor. A long call is not a large gain: what counts is how long the GPU then has nothing to do. Where "
    "the cure does more than the replay takes out, such as fusing kernels, it says “at least”."
)
_READING = (
    "All times are of one step without the profiler, from one mark to the next; where the clock of the slower "
    "recording is meant, it says “recorded”: the host times of operators are on it, and may add up to more than the "
    "step. The parts of a step do not overlap and add up to it: GPU work comes first, and what the host does counts "
    "only while the GPU waits. Self time is an operator's own, without the operators it calls. “If free” is by replay: "
    "less than the operator's share where the host holds the step back, more where its calls keep the GPU waiting. "
    "▲ compute: limited by arithmetic. ▬ memory: limited by bytes moved. "
    "▪ launch: shorter than the call that starts it. ⇄ copy: moves data. ● yes: the kernels use Tensor Cores. A dot "
    "is zero; what was not measured says so."
)
_HEALTHY = (
    "“Healthy” means: looked, and no wait costs 5 % of the step. “Could not tell” is another answer, with its reason."
)


def render_html(report: Report) -> str:
    """The dashboard of ``report``: safe to show untrusted, in dark and light themes, under 300 kB."""
    verdict = report.verdict
    lines, checks, operators = lines_table(report), checks_table(report), operators_table(report)
    explanations = [("What do “at most” and “at least” mean?", _AT_MOST), ("How to read this page", _READING)]
    if verdict.cause in ("compute_bound", "inconclusive"):
        explanations.insert(0, ("Healthy is not the same as “found nothing”", _HEALTHY))
    failure, ranks = failure_section(report), ranks_section(report)
    rows = sum(len(one.rows) for one in (lines, checks, operators)) + len(ranks["bars"] if ranks else ())
    rows += len(failure["holders"].rows) if failure else 0
    calm = {"compute_bound": KERNEL.fill, "inconclusive": OUTLINE}.get(verdict.cause, ACCENT)
    change: list[tuple[str, str]] = []
    if verdict.change is not None:
        change = [(sign, line) for sign, text in zip("-+", verdict.change, strict=True) for line in text.splitlines()]
    return render(
        "dashboard.html",
        report=report,
        rule=ACCENT if report.failed_request is not None else calm,
        eyebrow=[
            subject(report),
            bound_word(report),
            device_text(report),
            steps_text(report),
            report.source.name or "",
        ],
        facts=facts(report),
        told=[*more_facts(report), *([repeats_text(report)] if report.repeats is not None else [])],
        change=change,
        why=_why(report),
        failure=failure,
        ranks=ranks,
        step=_step(report),
        operators=operators,
        ladder=_ladder(report),
        memory=memory_section(report),
        lines=lines,
        lines_body=replace(lines, title=""),
        lines_width=min(max(round(widest_line(report) * _COLUMN) + _NUMBER * len(lines.columns), MAIN), CARD),
        scopes=scope_tables(report),
        scope_summary=scope_summary(report),
        scope_words=scope_words(report),
        timeline=_timeline(report),
        checks=checks,
        checks_body=replace(checks, title=""),
        folded=[name for name, most in (("timeline", _TALL), ("checks", _TALLER)) if rows > most],
        explanations=explanations,
        trust=sorted(report.trust, key=lambda check: check.status == "ok"),
    )


def render_page(report: Report) -> str:
    """A whole HTML document around the dashboard, for a file."""
    return whole_page(report.verdict.headline, render_html(report))


def whole_page(headline: str, content: str) -> str:
    """An HTML document around ``content``, which is HTML; it follows the reader's dark or light setting."""
    return render("page.html", headline=headline, content=Markup(content)) + "\n"


def bundle(report: Report) -> dict[str, str]:
    """``{"text/plain": ..., "text/html": ...}``: each stands alone, so a front end that drops one loses nothing."""
    return {"text/plain": render_text(report), "text/html": render_html(report)}


def runs_bundle(runs: Sequence[tuple[int, Report]]) -> dict[str, str]:
    """``text/plain`` and ``text/html`` of the session's runs with their numbers, in the given order."""
    return {"text/plain": runs_text(runs), "text/html": table_html(runs_table(runs))}


def _why(report: Report) -> str:
    if report.verdict.confidence == "high" or not report.verdict.reasons:
        return ""
    return "; ".join(reason.rstrip(".") for reason in report.verdict.reasons) + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a bar: its share of the bar's width, what it shows, and what only a reader without styles sees."""

    category: Category
    width: float
    shown: str = ""
    hidden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar. ``gain`` is told in the dashed rest of it, or ``beside`` its number where it has no room there."""

    name: str
    number: str
    pieces: tuple[Piece, ...]
    gain: str = ""
    beside: str = ""


def step_bar(name: str, number: str, parts: Sequence[Part], scale_ms: float, *, gain: str = "") -> Bar:
    """One bar on the scale of ``scale_ms``; with ``gain`` the rest up to it is dashed: recoverable."""
    pieces = []
    for part in parts:
        width = min(part.ms / scale_ms, 1.0)
        share = percent_whole(part.share)
        full, room = f"{part.category.label} {share}", width * BAR_PIXELS
        if width <= 0:
            continue
        if text_fits(full, room):
            shown, hidden = full, ""
        elif text_fits(share, room):
            shown, hidden = share, f"{part.category.label} "
        else:
            shown, hidden = "", f"{full}; "
        pieces.append(Piece(category=part.category, width=width, shown=shown, hidden=hidden))
    left = scale_ms - sum(part.ms for part in parts)
    if not gain or left <= 1e-9:
        return Bar(name=name, number=number, pieces=tuple(pieces))
    amount = f"{gain} {time_text(left)} ({percent_whole(left / scale_ms)})"
    room = left / scale_ms * BAR_PIXELS
    text = next((one for one in (f"recoverable: {amount}", amount) if text_fits(one, room, bold=False)), "")
    beside = "" if text else f"recoverable: {amount}"
    return Bar(name=name, number=number, pieces=tuple(pieces), gain=text or beside, beside=beside)


def _step(report: Report) -> dict[str, Any]:
    """The step as bars, without the cause below on the same scale, as tables and as a ring."""
    culprit = culprit_of(report.verdict.cause)
    parts, step_ms, without = step_parts(report.breakdown, culprit), report.steps.step_ms, report.views.without
    shown: dict[str, Any] = {"more": _step_clock(report), "bars": [], "tables": [], "notes": [], "ring": None}
    if not parts or step_ms is None or not step_ms > 0:
        return {**shown, "empty": f"The step's time was {NOT_MEASURED}."}
    bars = [step_bar(clock_text(report), time_text(step_ms), parts, step_ms)]
    if without is not None and without.step_ms is not None:
        name, number = without_label(report), remaining_text(report, without.step_ms)
        rest = step_parts(without.breakdown, culprit)
        bars.append(step_bar(name[0].upper() + name[1:], number, rest, step_ms, gain=limit_words(report)))
    host_only = all(not part.category.works for part in parts)
    lost = culprit is None and report.verdict.cause in ("host_sync", "launch_bound")
    return {
        **shown,
        "bars": bars,
        "tables": step_tables(report, parts, culprit),
        "notes": [text for text in (unmeasured_text(report), _recovered_text(report, parts, culprit)) if text],
        "ring": donut(parts, step_ms, culprit=culprit),
        "ring_width": DONUT_SIZE[0],
        "caption": ("the host's step: GPU time is not available" if host_only else RING_CAPTION)
        + (RED_CAPTION if culprit is not None else ""),
        "no_slice": "No slice is the culprit: the GPU lacks queued work." if lost else "",
    }


def _step_clock(report: Report) -> str:
    overhead = report.steps.overhead
    if report.source.kind == "file" and overhead is None:
        return "from a file: the recording's own cost is taken out"
    if overhead is None and report.steps.baseline == "none" and report.device is not None:
        return "mark to mark; no step ran without the profiler"
    return "mark to mark"


def _recovered_text(report: Report, parts: Sequence[Part], culprit: Category | None) -> str:
    """Why removing the bottleneck gains more or less than its part of the step; empty where it gains the same."""
    gained = report.verdict.recoverable_ms
    own = next((part.ms for part in parts if part.category is culprit), None)
    if gained is None or own is None or culprit is KERNEL:
        return ""
    if step_cell(gained, report.steps.step_ms) == step_cell(own, report.steps.step_ms):
        return ""
    if gained > own:
        return (
            f"Without it the step is {time_text(gained)} shorter, more than that part: what waited behind it moves up."
        )
    return f"Without it the step is {time_text(gained)} shorter, less than that part: other work then takes its place."


def _ladder(report: Report) -> dict[str, Any]:
    """How much of the GPU is used, from the driver's number down to arithmetic."""
    shown = [
        (rung, "" if rung.share is None else percent_rung(rung.share), MEMORY if rung.name == DRIVER else KERNEL.fill)
        for rung in rungs(report)
    ]
    return {"rungs": shown, "driver": device_state_text(report), "lesson": ladder_lesson(report)}


def _timeline(report: Report) -> dict[str, Any]:
    """One recorded step's lanes with a legend."""
    view = report.views.timeline
    drawn = timeline(view)
    if view is None or drawn is None:
        return {"drawn": None}
    seen = {segment[2] for lane in view.lanes for segment in lane.segments}
    legend = {words: BY_KEY[key].fill for key, words in _LANE_WORDS.items() if key in seen}
    if view.bubble is not None:
        legend["worst bubble"] = ACCENT
    factor = magnification(view)
    more = "recorded clock" + (f"; lower part magnified {factor:.0f}{TIMES}" if factor is not None else "")
    return {"drawn": drawn, "width": WIDTH, "legend": list(legend.items()), "more": more}
