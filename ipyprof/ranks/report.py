"""Several ranks in the report: the value of its key ``ranks``, and its lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.formatting import NOT_MEASURED, TIMES, count_cell, plural, rate_text, size_text, time_cell, time_text
from ipyprof.ranks.summary import PARTS

MS = 1e6
ROWS = 12
MOST_LANES = 8
BUS_BYTES = 1_000_000  # of smaller messages the bandwidth says nothing: their time is latency
HEADS = {
    "compute": "compute",
    "copies": "copies",
    "communication": "comm.",
    "loader": "loader",
    "runtime": "CUDA",
    "host": "Python",
    "other": "other",
}


def chosen_rows(ranks: Mapping[str, Any], most: int = ROWS) -> list[dict[str, Any]]:
    """The ranks that are shown, by rank: all where there is room, else the latest, the shown one, first and last."""
    rows = [one for one in ranks.get("per_rank") or () if one.get("breakdown")]
    if len(rows) <= most:
        return sorted(rows, key=lambda one: int(one["rank"]))
    by_delay = sorted(rows, key=lambda one: -(one["late_ms"] or 0.0))
    middle = by_delay[len(by_delay) // 2]
    named = [one for one in rows if one["rank"] == ranks.get("shown") or one.get("kept")]
    chosen = [*by_delay[:4], rows[0], rows[-1], middle, by_delay[-1], *named[:3], *by_delay[4:]]
    unique = {one["rank"]: one for one in chosen}
    kept = list(dict.fromkeys(one["rank"] for one in chosen))[:most]
    return [unique[rank] for rank in sorted(kept)]


def rank_title(ranks: Mapping[str, Any]) -> str:
    """Such as ``8 ranks, 3 steps``."""
    size = ranks.get("world_size")
    of = f" of {size}" if size and size != ranks["count"] else ""
    steps = f", {plural(ranks['steps'], 'step')} compared" if ranks.get("steps") else ""
    return f"{ranks['count']}{of} rank{'' if ranks['count'] == 1 and not of else 's'}{steps}"


def rank_table(ranks: Mapping[str, Any], width: int) -> list[str]:
    """Ranks with their parts in ms and how late they are, in lines of at most ``width`` columns."""
    rows = chosen_rows(ranks)
    if not rows:
        return []
    shown = [part for part in PARTS if any((one["breakdown"][part] or 0.0) > 0.0005 for one in rows)]
    total = ranks.get("step_ms")
    shown = shown[: max((width - 22) // 9, 1)]
    late = (ranks.get("straggler") or {}).get("rank")
    lines = [f"  {'rank':>6}{'late ms':>13}" + "".join(f"{HEADS[part]:>9}" for part in shown)]
    for one in rows:
        mark = "!" if one["rank"] == late else "*" if one["rank"] == ranks.get("shown") else " "
        delay = NOT_MEASURED if one["late_ms"] is None else f"{one['late_ms']:+.2f}".replace("-", "−")
        cells = "".join(f"{time_cell(one['breakdown'][part], total):>9}" for part in shown)
        lines.append(f"{mark} {one['rank']:>6}{delay:>13}{cells}")
    left = sum(1 for one in ranks["per_rank"] if one.get("breakdown")) - len(rows)
    if left > 0:
        lines.append(f"  {plural(left, 'rank')} more, {'between these' if left > 1 else 'like these'}")
    return lines


def collective_lines(ranks: Mapping[str, Any]) -> list[str]:
    """The collectives that take most time, a sentence each."""
    return [collective_text(cost) for cost in (ranks.get("collectives") or ())[:3]]


def collective_text(cost: Mapping[str, Any]) -> str:
    """Such as ``8 allreduce a step of 33.6 MB over 2 ranks (RING LL): 0.16 ms, waiting 0.54 ms, 207 GB/s``."""
    size = f" of {size_text(cost['message_bytes'])}" if cost.get("message_bytes") is not None else ""
    over = f" over {plural(cost['size'], 'rank')}" if cost.get("size") else ""
    how = f" ({cost['algorithm']})" if cost.get("algorithm") else ""
    rate = cost.get("bus_bytes_per_s")
    bus = f", {rate_text(rate / 1e9, 'GB/s')} on the bus" if rate and cost["message_bytes"] >= BUS_BYTES else ""
    head = f"{count_cell(cost['calls'])}{TIMES} {cost['name']}{size}{over}{how}"
    return (
        f"{head}: takes {time_text(cost['latency_ms'])}{bus}, waits {time_text(cost['waiting_ms'])}, "
        f"exposed {time_text(cost['exposed_ms'])}"
    )


def kept_text(ranks: Mapping[str, Any]) -> str:
    """Which traces were kept, and why; empty where none was."""
    kept = [f"rank {one['rank']} ({one['kept']})" for one in ranks.get("per_rank") or () if one.get("kept")]
    return f"Traces kept: {'; '.join(kept)}." if kept else ""


def last_text(entry: Mapping[str, Any]) -> str:
    """Such as ``rank 5 is ready 31 ms after the first``."""
    rank, ms = max(entry["arrivals_ms"], key=lambda one: one[1])
    return f"rank {rank} last, {time_text(ms)}"


def lane_view(ranks: Mapping[str, Any]) -> dict[str, Any] | None:
    """The ranks' collectives of the step with the largest delay, as the timeline draws lanes; ``None`` without them."""
    lanes = ranks.get("lanes") or {}
    if not lanes:
        return None
    end = max((span[1] for spans in lanes.values() for span in spans), default=0.0)
    return {
        "start_ms": 0.0,
        "end_ms": end,
        "bubble": None,
        "lanes": [
            {
                "name": f"rank {rank}",
                "kind": "device",
                "segments": [[start, stop, "communication", "collective"] for start, stop in _ordered(lanes[rank])],
            }
            for rank in sorted(lanes, key=int)
        ],
    }


def _ordered(spans: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    return sorted(spans, key=lambda span: (span[0], span[1]))
