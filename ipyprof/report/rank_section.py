"""The dashboard's section for several ranks: a stacked bar for each, who entered when, all ranks on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.formatting import plural, time_text
from ipyprof.report.categories import (
    ACCENT,
    ACCENT_INK,
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
)
from ipyprof.report.markup import (
    MUTED,
    SMALL,
    chip,
    columns_row,
    div,
    escape,
    figure,
    muted,
    note,
    span,
    swatch,
    title,
)
from ipyprof.report.ranks import chosen_rows, collective_text, kept_text, lane_view, last_text, rank_title
from ipyprof.report.report import Report
from ipyprof.report.timeline import WIDTH, timeline

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
    ranks = report.ranks
    if not ranks or not ranks.get("per_rank"):
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
    ranks = report.ranks
    if not ranks or not ranks.get("per_rank"):
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
