"""The dashboard's sections around pictures: verdict, step, heartbeat, timeline. Each function returns HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.analysis.results import Holder
from ipyprof.formatting import (
    GLUE,
    NOT_MEASURED,
    TIMES,
    percent_cell,
    percent_whole,
    plural,
    size_text,
    step_cell,
    time_text,
    unbroken,
)
from ipyprof.ranks.report import chosen_rows, collective_text, kept_text, lane_view, last_text, rank_title
from ipyprof.report.repeats import repeats_text
from ipyprof.report.report import Report, plain_values
from ipyprof.show.markup import (
    MUTED,
    SMALL,
    cell,
    chip,
    columns_row,
    div,
    escape,
    figure,
    mono,
    muted,
    note,
    picture,
    row,
    span,
    swatch,
    table,
    text_fits,
    title,
)
from ipyprof.show.memory import is_process
from ipyprof.show.pictures import DONUT_SIZE, HEARTBEAT_SIZE, WIDTH, donut, heartbeat, magnification, timeline
from ipyprof.show.words import (
    ACCENT,
    ACCENT_INK,
    BY_KEY,
    COMMUNICATION,
    COPIES,
    KERNEL,
    LOADER,
    OTHER,
    OUTLINE,
    PYTHON,
    RUNTIME,
    TRACK,
    Category,
    Fact,
    Part,
    bound_word,
    clock_text,
    culprit_of,
    device_text,
    facts,
    failed_request,
    has_row,
    limit_words,
    remaining_text,
    step_parts,
    steps_text,
    subject,
    unmeasured,
    views_of,
    without_label,
)

_BAR_PIXELS = 632.0  # the bar in a browser 800 wide: what fits there fits everywhere
_HOLDERS = 4  # the largest; all of them are in the table below

# What the halves of the step's table need side by side: without the bottleneck, and where it stands.
_GROUP_PIXELS = (240, 292)
_WAITS_PIXELS = 316
_EDGE_PIXELS = 3.0
_LAST_WORDS = 3  # blanks
RING_CAPTION = "thick ring: GPU works &nbsp; thin: GPU waits"
RED_CAPTION = " &nbsp; red: the bottleneck"
_FIRST = "padding:1px 6px 1px 0;white-space:nowrap"
_NUMBER = "padding:1px 6px"
_LAST = "padding:1px 0 1px 6px"
_ONE_LINE = "overflow:hidden;white-space:nowrap"
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


def verdict_section(report: Report) -> str:
    """The rule at the left, the eyebrow, the sentence, five facts, the change as a diff."""
    verdict = report.verdict
    rule = {"compute_bound": KERNEL.fill, "inconclusive": OUTLINE}.get(verdict.cause, ACCENT)
    if failed_request(report) is not None:
        rule = ACCENT
    said, rest = subject(report)
    eyebrow = [
        f"<b>{escape(said)}</b>{escape(rest)}",
        f"confidence <b>{escape(verdict.confidence)}</b>",
        escape(bound_word(report)),
        escape(device_text(report)),
        escape(steps_text(report)),
        escape(report.source.name) if report.source.name else "",
    ]
    lines = [eyebrow_line(eyebrow), headline_line(verdict.headline)]
    if report.source.partial:
        lines.append(
            div(f"{chip('! partial', ACCENT, ACCENT_INK)}&nbsp; {escape(report.source.partial)}", "margin:0 0 5px 0")
        )
    lines.append(fact_tiles(facts(report)))
    if report.repeats is not None:
        lines.append(div(escape(repeats_text(report)), f"{SMALL};margin-top:4px"))
    if verdict.advice:
        lines.append(div(escape(verdict.advice), "margin-top:6px"))
    if verdict.change is not None:
        before, after = (text.splitlines() for text in verdict.change)
        lines.append(diff_block([("-", line) for line in before] + [("+", line) for line in after]))
    if verdict.confidence != "high" and verdict.reasons:
        why = "; ".join(reason.rstrip(".") for reason in verdict.reasons) + "."
        lines.append(
            div(f"{muted(f'Why {escape(verdict.confidence)} confidence:')} {escape(why)}", f"{SMALL};margin-top:4px")
        )
    return div("".join(lines), f"border-left:4px solid {rule};padding:1px 0 3px 14px;margin:2px 0 10px 0")


def step_section(report: Report) -> str:
    """The step as bars, without the cause below on the same scale, as a table and as a donut."""
    culprit = culprit_of(report.verdict.cause)
    parts = step_parts(report.breakdown, culprit)
    step_ms = report.steps.step_ms
    head = title("One step", _step_subtitle(report))
    if not parts or step_ms is None or not step_ms > 0:
        return head + note(f"The step's time was {NOT_MEASURED}.")
    main = head + step_bar(clock_text(report), time_text(step_ms), parts, step_ms, culprit)
    without = views_of(report).get("without")
    if isinstance(without, dict) and isinstance(without.get("breakdown"), dict) and without.get("step_ms") is not None:
        name = without_label(report)
        rest = step_parts(without["breakdown"], culprit)
        main += step_bar(
            name[0].upper() + name[1:],
            remaining_text(report, without["step_ms"]),
            rest,
            step_ms,
            culprit,
            gain=limit_words(report),
        )
    main += _step_table(report, parts, culprit)
    png, alt = donut(parts, step_ms, culprit=culprit)
    image = picture(png, alt, DONUT_SIZE[0])
    if all(not part.category.works for part in parts):
        caption = "the host's step: GPU time is not available"
    else:
        caption = RING_CAPTION
    if culprit is not None:
        caption += RED_CAPTION
    beside = div(image, "display:flex;justify-content:center") + div(caption, f"{SMALL};text-align:center")
    if culprit is None and report.verdict.cause in ("host_sync", "launch_bound"):
        beside += note("No slice is the culprit: the GPU lacks queued work.")
    return columns_row(main, beside)


def memory_section(report: Report) -> str:
    """The heartbeat with its peak, and who holds memory then."""
    view = views_of(report).get("heartbeat")
    memory = report.memory
    drawn = heartbeat(view, memory) if isinstance(view, dict) else None
    process = isinstance(view, dict) and not view.get("allocated") and bool(view.get("process"))
    whose = "of this process" if process or is_process(report) else "allocated on the GPU"
    more = f"{whose}, {plural(report.steps.count, 'recorded step')}"
    head = title("Memory heartbeat", more if drawn or memory else "")
    if drawn is None and memory is None:
        return head + note(f"Memory was {NOT_MEASURED}.", 0)
    main = figure(drawn, HEARTBEAT_SIZE[0]) if drawn is not None else note(f"The curve was {NOT_MEASURED}.", 0)
    if memory is None:
        return head + columns_row(main, "")
    place = f" at <b>line {memory.peak_line}</b>" if memory.peak_line is not None else ""
    where = f" in {mono(' '.join(memory.peak_operator.split())[:80])}" if memory.peak_operator else ""
    growth = memory.growth_bytes_per_step
    if growth is None:
        grows = f"growth {NOT_MEASURED}"
    elif growth == 0:
        grows = "no growth per step"
    else:
        grows = f"{size_text(growth)} {'more' if growth > 0 else 'less'} after each step".replace("−", "")
    text = f"Peak <b>{size_text(memory.peak_bytes)}</b>{place}{where}; {grows}."
    if memory.reserved_peak_bytes is not None and not (isinstance(view, dict) and drawn and view.get("reserved")):
        text += f" Reserved: {size_text(memory.reserved_peak_bytes)}."
    beside = div(text, f"{SMALL};word-wrap:break-word")
    if memory.holders and failed_request(report) is None:
        held = [f"{_holder_name(holder)} {size_text(holder.bytes)}" for holder in memory.holders[:_HOLDERS]]
        rest = memory.holders[_HOLDERS:]
        if rest:
            held.append(f"{len(rest)} more {size_text(sum(holder.bytes for holder in rest))}")
        beside += div("At the peak: " + " · ".join(held) + ".", f"{SMALL};word-wrap:break-word")
    return head + columns_row(main, beside)


def _holder_name(holder: Holder) -> str:
    """``weights:`` as code, ``activations of line 5:`` as words, with the line where the name does not say it."""
    name = holder.name[:60]
    if name.isidentifier():
        return mono(name) + (f" (line {holder.line}):" if holder.line else ":")
    return f"{escape(name)}:"


def timeline_section(report: Report) -> str:
    """One recorded step's lanes with a legend; empty without the view."""
    view = views_of(report).get("timeline")
    drawn = timeline(view) if isinstance(view, dict) else None
    if drawn is None or not isinstance(view, dict):
        return ""
    seen = {segment[2] for lane in view["lanes"] for segment in lane["segments"]}
    entries: dict[str, str] = {}
    for key, words in _LANE_WORDS.items():
        if key in seen:
            entries.setdefault(words, swatch(BY_KEY[key].fill))
    if view.get("bubble"):
        entries["worst bubble"] = swatch(ACCENT)
    legend = "".join(span(mark + escape(words), "white-space:nowrap") for words, mark in entries.items())
    beside = div(legend, f"{SMALL};display:flex;flex-wrap:wrap;gap:2px 18px;margin-top:2px")
    return columns_row(figure(drawn, WIDTH), beside)


def timeline_subtitle(report: Report) -> str:
    """Such as ``recorded clock; lower part magnified 27×``."""
    view = views_of(report).get("timeline")
    factor = magnification(view) if isinstance(view, dict) else None
    return "recorded clock" + (f"; lower part magnified {factor:.0f}{TIMES}" if factor is not None else "")


def eyebrow_line(parts: Sequence[str]) -> str:
    """``parts``, HTML, in a row; one that does not fit goes to the next line whole, and no line begins with a dot."""
    shown = [part for part in parts if part]
    look = "display:inline-block;max-width:100%"
    texts = [span(part + ("&nbsp; ·" if part is not shown[-1] else ""), look) for part in shown]
    return div(" &nbsp;".join(texts), f"{SMALL};opacity:.8;word-wrap:break-word")


def headline_line(text: str) -> str:
    """The sentence. Its last words stay together: a line that says ``faster.`` alone says nothing."""
    whole = GLUE.join(escape(unbroken(text)).rsplit(" ", _LAST_WORDS))
    return div(whole, "font-size:20px;line-height:25px;font-weight:bold;margin:2px 0 5px 0")


def diff_block(lines: Sequence[tuple[str, str]]) -> str:
    """Lines of code, each ``(sign, text)`` with the sign ``-`` or ``+``."""
    shown = []
    for sign, text in lines:
        added = sign == "+"
        content = mono(f"{'+' if added else '−'} {text}", indent=True, bold=added)
        shown.append(div(content if added else muted(content), "line-height:18px;word-wrap:break-word"))
    look = "background:rgba(128,128,128,.12);border-radius:3px;padding:3px 9px;margin-top:5px;max-width:880px"
    return div("".join(shown), look)


def _step_subtitle(report: Report) -> str:
    overhead = report.steps.overhead
    if report.source.kind == "file" and overhead is None:
        return "from a file: the recording's own cost is taken out"
    if overhead is None and report.steps.baseline == "none" and report.device is not None:
        return "mark to mark; no step ran without the profiler"
    return "mark to mark"


def fact_tiles(facts_shown: Sequence[Fact]) -> str:
    """A row of numbers, each with its name above it."""
    tiles = [
        div(
            div(escape(fact.name), f"{SMALL};{MUTED}")
            + div(
                escape(fact.value),
                "font-size:17px;line-height:21px;font-weight:bold" if fact.measured else f"line-height:21px;{MUTED}",
            ),
            "white-space:nowrap",
        )
        for fact in facts_shown
    ]
    return div("".join(tiles), "display:flex;flex-wrap:wrap;gap:2px 24px")


def step_bar(
    name: str, number: str, parts: Sequence[Part], scale_ms: float, culprit: Category | None, *, gain: str = ""
) -> str:
    """One bar on the scale of ``scale_ms``; with ``gain`` the rest up to it is dashed: recoverable."""
    number = f"<b>{escape(number)}</b>"
    total = sum(part.ms for part in parts)
    pieces = []
    for part in parts:
        width = part.ms / scale_ms
        if width <= 0:
            continue
        look = f"flex:0 0 auto;width:{min(width, 1) * 100:.2f}%;height:24px;line-height:24px;{_ONE_LINE}"
        look += ";box-sizing:border-box;font-weight:bold"
        if width * _BAR_PIXELS > _EDGE_PIXELS:  # an edge has a width of its own, which a hair has not
            look += ";border-right:1px solid rgba(255,255,255,.55)"
        if part.category is not OTHER:
            look += f";background:{part.category.fill};color:{part.category.ink}"
        else:
            look += f";border:1px solid {OUTLINE}" if width * _BAR_PIXELS > _EDGE_PIXELS else f";background:{OUTLINE}"
        full = f"{part.category.label} {percent_whole(part.share)}"
        room = width * _BAR_PIXELS
        if text_fits(full, room):
            pieces.append(div(f"&nbsp; {escape(full)}", f"{look};font-size:12px"))
        elif text_fits(percent_whole(part.share), room):
            hidden = span(escape(part.category.label) + " ", "font-size:0")
            pieces.append(div(f"&nbsp;{hidden}{percent_whole(part.share)}", f"{look};font-size:12px"))
        else:
            pieces.append(div(span(f"{escape(full)}; ", "font-size:0"), f"{look};font-size:0"))
    if gain and scale_ms - total > 1e-9:
        share = (scale_ms - total) / scale_ms
        amount = f"{gain} {time_text(scale_ms - total)} ({percent_whole(share)})"
        room = share * _BAR_PIXELS
        text = next((one for one in (f"recoverable: {amount}", amount) if text_fits(one, room, bold=False)), "")
        look = f"flex:1 1 0;height:24px;line-height:22px;box-sizing:border-box;font-size:12px;{_ONE_LINE}"
        look += f";border:1px dashed {ACCENT}"
        if text:
            pieces.append(div(f"&nbsp; {text}", look))
        else:
            pieces.append(div(span(f"recoverable: {amount}", "font-size:0"), look))
            number = f"{muted(f'recoverable: {amount}')} &nbsp; {number}"
    label = div(
        span(escape(name), "min-width:0") + span(number), f"{SMALL};display:flex;justify-content:space-between;gap:12px"
    )
    return div(label + div("".join(pieces), "display:flex;width:100%;height:24px;overflow:hidden"), "margin-bottom:5px")


def _step_table(report: Report, parts: Sequence[Part], culprit: Category | None) -> str:
    """The parts in bar order, in two groups side by side."""
    step_ms = report.steps.step_ms
    groups = (
        ("GPU works", [part for part in parts if part.category.works]),
        ("GPU waits while the host does", [part for part in parts if not part.category.works]),
    )
    missing = unmeasured(report.breakdown)
    tables: list[str] = []
    for name, group in groups:
        if not group:
            continue
        if not any(part.category.works for part in parts):
            name = "The host does"
        head = row(
            cell("", header=True),
            cell("ms", align="right", header=True, style=_NUMBER),
            cell("% of step", align="right", header=True, style=_LAST),
        )
        total = sum(part.ms for part in group)
        body = row(
            cell(f"<b>{escape(name)}</b>", style=_FIRST),
            cell(f"<b>{step_cell(total, step_ms)}</b>", align="right", style=_NUMBER),
            cell(
                f"<b>{percent_cell(sum(part.share for part in group))}</b>",
                align="right",
                style=_LAST,
            ),
        )
        for part in group:
            if not has_row(part, culprit):
                continue
            mark = ""
            if part.category is culprit:
                mark = "&nbsp; " + chip("bottleneck", ACCENT, ACCENT_INK)
            body += row(
                cell(
                    swatch(part.category.fill) + escape(part.category.label) + mark,
                    style=_FIRST,
                ),
                cell(step_cell(part.ms, step_ms), align="right", style=_NUMBER),
                cell(percent_cell(part.share), align="right", style=_LAST),
            )
        works = group[0].category.works
        room = _GROUP_PIXELS[any(part.category is culprit for part in group)] if works else _WAITS_PIXELS
        tables.append(div(table(head, body), f"flex:1 1 {room}px;min-width:0"))
    text = div("".join(tables), "display:flex;flex-wrap:wrap;gap:2px 24px;align-items:flex-start;margin-top:2px")
    if missing:
        names = ", ".join(category.label for category in missing)
        reason = " (no GPU)" if report.device is None else ""
        text += note(f"{escape(names)}: {NOT_MEASURED}{reason}.", 2)
    said = _recovered_text(report, parts, culprit)
    return text + (note(escape(said), 2) if said else "")


def _recovered_text(report: Report, parts: Sequence[Part], culprit: Category | None) -> str:
    """Why removing the bottleneck gains more or less than its part of the step; empty where it gains the same."""
    gained = report.verdict.recoverable_ms
    own = next((part.ms for part in parts if part.category is culprit), None)
    if gained is None or own is None or culprit is None or culprit.name == "kernel":
        return ""
    if step_cell(gained, report.steps.step_ms) == step_cell(own, report.steps.step_ms):
        return ""
    if gained > own:
        return (
            f"Without it the step is {time_text(gained)} shorter, more than that part: what waited behind it moves up."
        )
    return f"Without it the step is {time_text(gained)} shorter, less than that part: other work then takes its place."


PART_CATEGORIES: dict[str, Category] = {
    "compute": KERNEL,
    "copies": COPIES,
    "communication": COMMUNICATION,
    "loader": LOADER,
    "runtime": RUNTIME,
    "host": PYTHON,
    "other": OTHER,
}
_ENTRIES = 6
_TICKS = 16
_LABEL = "flex:0 0 118px;white-space:nowrap;overflow:hidden"
_ROW = f"{SMALL};display:flex;align-items:center;gap:8px;margin:2px 0"


def ranks_section(report: Report) -> str:
    """What several ranks say together; empty for a single process."""
    ranks = {} if report.ranks is None else plain_values(report.ranks)
    if not ranks.get("per_rank"):
        return ""
    sentence = str(ranks.get("sentence", ""))
    main = title("Ranks", rank_title(ranks))
    if report.verdict.cause != "straggler":
        main += div(escape(f"{sentence[:1].upper()}{sentence[1:]}."), "margin:0 0 4px 0")
    main += _bars(ranks)
    lanes = lane_view(ranks)
    drawn = timeline(lanes) if lanes is not None else None
    beside = _spread(ranks)
    if drawn is not None:
        main += note(muted("Collectives of the step with the largest delay, all ranks on one clock"), 6)
        main += figure(drawn._replace(alt=f"Ranks. {drawn.alt}"), WIDTH)
    costs = [note(escape(collective_text(cost))) for cost in (ranks.get("collectives") or ())[:4]]
    kept = kept_text(ranks)
    return columns_row(main, beside + "".join(costs) + (note(escape(kept)) if kept else ""))


def ranks_height(report: Report) -> int:
    """About how many pixels the section takes on a page 1280 wide."""
    ranks = {} if report.ranks is None else plain_values(report.ranks)
    if not ranks.get("per_rank"):
        return 0
    return 70 + 19 * len(chosen_rows(ranks)) + (60 + 28 * len(ranks["lanes"]) if ranks.get("lanes") else 0)


def _bars(ranks: Mapping[str, Any]) -> str:
    rows = chosen_rows(ranks)
    if not rows:
        return note("No rank has recorded a step.")
    scale = max(sum(one["breakdown"].values()) for one in rows)
    late = (ranks.get("straggler") or {}).get("rank")
    lines = []
    seen: dict[str, Category] = {}
    for one in rows:
        pieces = []
        for part, category in PART_CATEGORIES.items():
            ms = one["breakdown"].get(part) or 0.0
            if scale <= 0 or ms / scale < 0.002:
                continue
            seen.setdefault(part, category)
            look = f"flex:0 0 auto;width:{ms / scale * 100:.2f}%;height:15px;box-sizing:border-box"
            look += f";background:{category.fill}" if category.fill else f";border:1px solid {OUTLINE}"
            pieces.append(div(span(f"{escape(_name(part))} {time_text(ms)}; ", "font-size:0"), f"{look};font-size:0"))
        name = f"rank {one['rank']}" + (" (shown)" if one["rank"] == ranks.get("shown") else "")
        delay = one["late_ms"]
        end = "" if delay is None else f"late {time_text(delay)}" if delay > 0 else "waits"
        mark = chip("late", ACCENT, ACCENT_INK) if one["rank"] == late else ""
        lines.append(
            div(
                div(escape(name), _LABEL)
                + div("".join(pieces), f"flex:1 1 auto;min-width:0;display:flex;height:15px;background:{TRACK}")
                + div(f"{mark} {escape(end)}", "flex:0 0 112px;white-space:nowrap;text-align:right"),
                _ROW,
            )
        )
    legend = "".join(
        span(swatch(category.fill) + escape(_name(part)), "white-space:nowrap") for part, category in seen.items()
    )
    left = sum(1 for one in ranks["per_rank"] if one.get("breakdown")) - len(rows)
    more = note(muted(f"{plural(left, 'rank')} more are not drawn")) if left > 0 else ""
    return "".join(lines) + more + div(legend, f"{SMALL};display:flex;flex-wrap:wrap;gap:2px 18px;margin-top:3px")


def _spread(ranks: Mapping[str, Any]) -> str:
    """When each rank was ready for the collectives of the step with the largest delay."""
    entries = (ranks.get("entries") or ())[:_ENTRIES]
    if not entries:
        return ""
    scale = max(ms for entry in entries for _, ms in entry["arrivals_ms"])
    lines = [title("Who enters when", f"step {entries[0]['step']}; right = later")]
    for number, entry in enumerate(entries, start=1):
        arrivals = sorted(ms for _, ms in entry["arrivals_ms"])
        label = div(escape(f"{number}. {entry['name']}"), "flex:0 0 92px;white-space:nowrap;overflow:hidden")
        track = div(
            _ticks(arrivals, scale), f"flex:1 1 90px;min-width:60px;display:flex;height:11px;background:{TRACK}"
        )
        lines.append(div(label + track + div(escape(last_text(entry)), f"white-space:nowrap;{MUTED}"), _ROW))
    return "".join(lines)


def _ticks(arrivals: Sequence[float], scale: float) -> str:
    """Marks at the arrivals; of many only the band of the first 90 % and the last one."""
    if scale <= 0:
        return ""
    chosen = (
        list(arrivals) if len(arrivals) <= _TICKS else [arrivals[0], arrivals[int(len(arrivals) * 0.9)], arrivals[-1]]
    )
    pieces, at = [], 0.0
    for number, ms in enumerate(chosen):
        place = min(ms / scale, 1.0) * 97.0
        band = len(arrivals) > _TICKS and number == 1
        look = f"background:{OUTLINE};opacity:.4" if band else ""
        if place > at:
            pieces.append(div("", f"flex:0 0 auto;width:{place - at:.2f}%;{look}"))
            at = place
        fill = ACCENT if number == len(chosen) - 1 and len(chosen) > 1 else OUTLINE
        if at < 98.5:
            pieces.append(div("", f"flex:0 0 auto;width:1.5%;background:{fill}"))
            at += 1.5
    return "".join(pieces)


def _name(part: str) -> str:
    category = PART_CATEGORIES[part]
    return category.label if category is not KERNEL else "computes"
