"""Several ranks of one job: who is late, as bars, lanes and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipyprof.analysis.results import Lane, Timeline
from ipyprof.formatting import NOT_MEASURED, TIMES, count_cell, plural, size_text, time_cell, time_text
from ipyprof.report.report import CollectiveCost, Entry, Rank, Ranks, Report
from ipyprof.show.pictures import WIDTH, timeline
from ipyprof.show.table import Cell, Column, Row, Table, wrapped
from ipyprof.show.words import (
    ACCENT,
    COMMUNICATION,
    COPIES,
    KERNEL,
    LOADER,
    OTHER,
    OUTLINE,
    PYTHON,
    RUNTIME,
    Category,
)

PARTS: dict[str, Category] = {
    "compute": KERNEL,
    "copies": COPIES,
    "communication": COMMUNICATION,
    "loader": LOADER,
    "runtime": RUNTIME,
    "host": PYTHON,
    "other": OTHER,
}
"""Parts of a rank's step → their colours."""
ROWS = 12
_ENTRIES = 6
_TICKS = 16
_COSTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPiece:
    """A part of a rank's bar: its share of the bar's width, and what only a reader without styles sees."""

    category: Category
    width: float
    hidden: str


def ranks_section(report: Report) -> dict[str, Any] | None:
    """What several ranks say together, for the page; ``None`` for a single process."""
    ranks = report.ranks
    if ranks is None or not ranks.per_rank:
        return None
    rows = chosen_rows(ranks)
    lanes = timeline(_lanes(ranks))
    seen = [part for part in PARTS if any(_share(one, part, rows) >= 0.002 for one in rows)]
    left = _measured(ranks) - len(rows)
    entries = ranks.entries[:_ENTRIES]
    scale = max((ms for entry in entries for _, ms in entry.arrivals_ms), default=0.0)
    return {
        "title": rank_title(ranks),
        "sentence": "" if report.verdict.cause == "straggler" else f"{ranks.sentence[:1].upper()}{ranks.sentence[1:]}.",
        "bars": [_bar(one, rows, ranks) for one in rows],
        "left": f"{plural(left, 'rank')} more are not drawn" if left > 0 else "",
        "legend": [(_name(part), PARTS[part].fill) for part in seen],
        "drawn": lanes._replace(alt=f"Ranks. {lanes.alt}") if lanes is not None else None,
        "width": WIDTH,
        "entries": [
            {
                "name": one.name,
                "ticks": _ticks(sorted(ms for _, ms in one.arrivals_ms), scale),
                "last": _last_text(one),
            }
            for one in entries
        ],
        "entries_more": f"step {entries[0].step}; right = later" if entries else "",
        "notes": _notes(ranks),
    }


def rank_lines(report: Report, width: int) -> list[str]:
    """The same in lines of at most ``width`` columns; empty for a single process."""
    ranks = report.ranks
    if ranks is None:
        return []
    said = "" if report.verdict.cause == "straggler" else f": {ranks.sentence}."
    lines = wrapped(f"{rank_title(ranks)}{said}", width)
    lines += ranks_table(ranks).text(width)
    return lines + [line for text in _notes(ranks) for line in wrapped(text, width, indent=2)]


def ranks_table(ranks: Ranks) -> Table:
    """The ranks with how late they are and the parts of their steps in ms."""
    rows = chosen_rows(ranks)
    shown = [part for part in PARTS if any((one.breakdown or {}).get(part, 0.0) > 0.0005 for one in rows)]
    late = ranks.straggler.rank if ranks.straggler is not None else None
    body = []
    for one in rows:
        delay = NOT_MEASURED if one.late_ms is None else f"{one.late_ms:+.2f}".replace("-", "−")
        name = f"rank {one.rank}" + (" (shown)" if one.rank == ranks.shown else "")
        cells = [Cell(name), Cell(delay)]
        cells += [Cell(time_cell((one.breakdown or {}).get(part, 0.0), ranks.step_ms)) for part in shown]
        body.append(Row(tuple(cells), lead=one.rank == late))
    left = _measured(ranks) - len(rows)
    if left > 0:
        body.append(Row((Cell(f"{plural(left, 'rank')} more", faint=True, span=2 + len(shown)),)))
    parts = [
        Column(title=PARTS[part].short, width=9, least=27 + 9 * number) for number, part in enumerate(shown, start=1)
    ]
    columns = (Column(title="rank", kind="name"), Column(title="late ms", width=13), *parts)
    return Table(columns=columns, rows=tuple(body), most=20)


def chosen_rows(ranks: Ranks, most: int = ROWS) -> list[Rank]:
    """The ranks that are shown, by rank: all where there is room, else the latest, the shown one, first and last."""
    rows = [one for one in ranks.per_rank if one.breakdown]
    if len(rows) <= most:
        return sorted(rows, key=lambda one: one.rank)
    by_delay = sorted(rows, key=lambda one: -(one.late_ms or 0.0))
    named = [one for one in rows if one.rank == ranks.shown or one.kept]
    chosen = [*by_delay[:4], rows[0], rows[-1], by_delay[len(rows) // 2], by_delay[-1], *named[:3], *by_delay[4:]]
    unique = {one.rank: one for one in chosen}
    return [unique[rank] for rank in sorted(list(unique)[:most])]


def rank_title(ranks: Ranks) -> str:
    """Such as ``8 ranks, 3 steps compared``."""
    of = f" of {ranks.world_size}" if ranks.world_size and ranks.world_size != ranks.count else ""
    steps = f", {plural(ranks.steps, 'step')} compared" if ranks.steps else ""
    return f"{ranks.count}{of} rank{'' if ranks.count == 1 and not of else 's'}{steps}"


def _notes(ranks: Ranks) -> list[str]:
    """The collectives that take most time, a sentence each, and which traces were kept."""
    kept = [f"rank {one.rank} ({one.kept})" for one in ranks.per_rank if one.kept]
    return [
        *map(_collective_text, ranks.collectives[:_COSTS]),
        *([f"Traces kept: {'; '.join(kept)}."] if kept else []),
    ]


def _collective_text(cost: CollectiveCost) -> str:
    """Such as ``8× allreduce of 33.6 MB over 2 ranks: takes 0.16 ms, waits 0.54 ms, exposed 0.40 ms``."""
    size = f" of {size_text(cost.message_bytes)}" if cost.message_bytes is not None else ""
    over = f" over {plural(cost.size, 'rank')}" if cost.size else ""
    return (
        f"{count_cell(cost.calls)}{TIMES} {cost.name}{size}{over}: takes {time_text(cost.latency_ms)}, "
        f"waits {time_text(cost.waiting_ms)}, exposed {time_text(cost.exposed_ms)}"
    )


def _measured(ranks: Ranks) -> int:
    return sum(1 for one in ranks.per_rank if one.breakdown)


def _share(one: Rank, part: str, rows: Sequence[Rank]) -> float:
    """A part of a rank's step, of the longest step of all."""
    scale = max(sum((row.breakdown or {}).values()) for row in rows)
    return (one.breakdown or {}).get(part, 0.0) / scale if scale > 0 else 0.0


def _bar(one: Rank, rows: Sequence[Rank], ranks: Ranks) -> dict[str, Any]:
    pieces = [
        RankPiece(
            category=category,
            width=_share(one, part, rows),
            hidden=f"{_name(part)} {time_text((one.breakdown or {}).get(part))}; ",
        )
        for part, category in PARTS.items()
        if _share(one, part, rows) >= 0.002
    ]
    return {
        "name": f"rank {one.rank}" + (" (shown)" if one.rank == ranks.shown else ""),
        "pieces": pieces,
        "late": ranks.straggler is not None and one.rank == ranks.straggler.rank,
        "end": "" if one.late_ms is None else f"late {time_text(one.late_ms)}" if one.late_ms > 0 else "waits",
    }


def _ticks(arrivals: Sequence[float], scale: float) -> list[tuple[float, str, float]]:
    """(gap before it in percent, colour, width in percent) of each rank's mark; of many only the last 16."""
    if scale <= 0:
        return []
    marks: list[tuple[float, str, float]] = []
    at, wide = 0.0, 1.5
    chosen = [arrivals[0], *arrivals[-_TICKS:]] if len(arrivals) > _TICKS else list(arrivals)
    for number, ms in enumerate(chosen):
        place = max(min(ms / scale, 1.0) * 97.0, at)
        if place <= 98.5:
            last = number == len(chosen) - 1 and len(chosen) > 1
            marks.append((place - at, ACCENT if last else OUTLINE, wide))
            at = place + wide
    return marks


def _last_text(entry: Entry) -> str:
    rank, ms = max(entry.arrivals_ms, key=lambda one: one[1])
    return f"rank {rank} last, {time_text(ms)}"


def _lanes(ranks: Ranks) -> Timeline | None:
    """The ranks' collectives of the step with the largest delay, as the timeline draws lanes; ``None`` without them."""
    if not ranks.lanes:
        return None
    lanes = tuple(
        Lane(
            name=f"rank {rank}",
            kind="device",
            segments=tuple((start, stop, "communication", "collective") for start, stop in sorted(ranks.lanes[rank])),
        )
        for rank in sorted(ranks.lanes, key=int)
    )
    end = max((span[1] for spans in ranks.lanes.values() for span in spans), default=0.0)
    return Timeline(start_ms=0.0, end_ms=end, lanes=lanes)


def _name(part: str) -> str:
    return PARTS[part].label if part != "compute" else "computes"
