"""Two pictures: the donut of one step and the heartbeat of memory. Each comes as PNG bytes with its alt text; what
stands at the axes of the heartbeat is left to the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ipyprof.formatting import percent_whole, shorten, size_text, size_tick, time_text
from ipyprof.report.canvas import GREY, Drawn, Picture, drawable
from ipyprof.report.categories import ACCENT, MEMORY, MEMORY_INK, OTHER, OUTLINE, Category, Part
from ipyprof.report.report import MemoryView

Floats = npt.NDArray[np.float64]

DONUT_SIZE = (336, 152)
HEARTBEAT_SIZE = (700, 118)
CURVE = (54.0, HEARTBEAT_SIZE[0] - 8.0)  # where the curve of memory begins and ends, in pixels
MERGED_SHARE = 0.03
_LABEL_HEIGHT = 20.5
_BESIDE = 14.0  # between the ring and its labels
_MOST_ASIDE = 30.0


def donut(
    parts: Sequence[Part], step_ms: float | None, *, culprit: Category | None = None, caption: str = "a step"
) -> tuple[bytes, str]:
    """The step as a ring, clockwise from the top: thick where the GPU works, thin where it waits.

    Args:
        parts: in drawing order; under 3 % they merge into "rest", but never ``culprit``.
        step_ms: the number in the hole, ``None`` = not measured.
        culprit: gets an arc outside the ring.
        caption: the small word in the hole.
    """
    width, height = DONUT_SIZE
    picture = Picture(width, height)
    down, radius = height / 2, 60.0
    kept = [
        part
        for part in parts
        if part.category is not OTHER and (part.share >= MERGED_SHARE or (part.category is culprit and part.share > 0))
    ]
    rest = sum(part.share for part in parts if part not in kept)
    slices = [(part.category, part.share, f"{part.category.short} {percent_whole(part.share)}") for part in kept]
    if rest > 1e-9:
        slices.append((OTHER, rest, f"rest {percent_whole(rest)}"))
    across = _across(picture, slices, radius)
    start = 0.0
    anchors: list[tuple[float, str, Category]] = []
    for category, share, text in slices:
        end = start + share
        inner = radius - (18 if category.works else 12)
        ring = _ring(across, down, inner, radius, start, end, gap=1.0 if len(slices) > 1 else 0.0)
        if category is OTHER:
            picture.polygon(ring, "none", edge=OUTLINE)
        else:
            picture.polygon(ring, category.fill)
        if category is culprit:
            picture.line(_arc(across, down, radius + 7, start, end), ACCENT, width=3)
        anchors.append((_anchor(start, end), text, category))
        start = end
    for side in (1, -1):
        _donut_labels(picture, [one for one in anchors if (one[0] < 0.5) == (side > 0)], side, across, down, radius)
    picture.text(
        across,
        down - 7,
        time_text(step_ms) if step_ms is not None else "not measured",
        size=_hole(step_ms),
        bold=True,
        align="center",
    )
    picture.text(across, down + 12, caption, align="center")
    named = ", ".join(text for _, text, _ in anchors) or "nothing measured"
    return picture.png(), f"Step of {time_text(step_ms)} as a ring: {named}."


def heartbeat(view: Mapping[str, Any], memory: MemoryView | None) -> Drawn | None:
    """Memory over the recorded steps with its peak, or ``None`` where ``view`` holds no curve.

    Args:
        view: ``views["heartbeat"]``; the curve is ``allocated``, or ``process`` on the CPU; sizes in bytes.
        memory: the peak, its instant and operator; the curve's own maximum where it is ``None``.
    """
    name = "allocated" if view.get("allocated") else "process"
    time = np.asarray(view.get("time_ms") or (), dtype=np.float64)
    used = np.asarray(view.get(name) or (), dtype=np.float64)
    if len(time) < 2 or len(time) != len(used):
        return None
    reserved = np.asarray(view.get("reserved") or (), dtype=np.float64)
    highest = int(used.argmax())
    peak_bytes = float(memory.peak_bytes) if memory is not None else float(used[highest])
    peak_ms = memory.peak_at_ms if memory is not None and memory.peak_at_ms is not None else float(time[highest])
    first, last = float(time[0]), max(float(time[-1]), float(time[0]) + 1e-9)
    top = max(peak_bytes, float(used.max()), float(reserved.max()) if len(reserved) == len(time) else 0.0, 1.0)

    width, height = HEARTBEAT_SIZE
    picture = Picture(width, height)
    (left, right), upper, lower = CURVE, 26.0, height - 20.0

    def x(ms: Floats | float) -> Any:
        return left + (np.asarray(ms) - first) / (last - first) * (right - left)

    def y(size: Floats | float) -> Any:
        return lower - np.asarray(size) / top * (lower - upper)

    curve = staircase(*thin(time, used, 900))
    points = np.column_stack([x(curve[:, 0]), y(curve[:, 1])])
    picture.polygon(np.concatenate([[[points[0, 0], lower]], points, [[points[-1, 0], lower]]]), MEMORY, alpha=0.16)
    marks = [float(mark) for mark in view.get("marks_ms") or () if first - 1e-6 <= float(mark) <= last + 1e-6]
    for number, mark in enumerate(marks, start=1):
        end = marks[number] if number < len(marks) else last
        if end - mark > 0.002 * (last - first):
            picture.line([(x(mark), upper), (x(mark), lower + 4)], GREY, width=0.8)
            if float(x(end)) - float(x(mark)) > 60:
                picture.word(float(x(mark)) + 4, lower + 11, f"step {number}")
    picture.line([(left, lower), (right, lower)], GREY, width=0.8)
    for call in view.get("calls_ms") or ():
        if first <= call <= last:
            at = float(x(call))
            picture.polygon(np.array([[at, lower - 1], [at - 3, lower - 7], [at + 3, lower - 7]]), ACCENT)
    if len(reserved) == len(time):
        line = staircase(*thin(time, reserved, 300))
        picture.line(np.column_stack([x(line[:, 0]), y(line[:, 1])]), MEMORY, width=1, dashes=(4, 3))
    picture.line(points, MEMORY, width=1.4)
    for tick in _size_ticks(top):
        picture.word(left - 6, float(y(tick)), size_tick(tick), align="right")
    spot = min(max(float(x(peak_ms)), left), right)
    picture.line([(spot, 18), (spot, float(y(peak_bytes)))], MEMORY, width=1)
    picture.dot(spot, float(y(peak_bytes)), 2.6, MEMORY)
    operator = memory.peak_operator if memory is not None else None
    shown = operator and operator == drawable(operator, bold=True)  # else the text beside the picture names it
    text = f"peak {size_text(peak_bytes)}" + (f": {shorten(operator, 42)}" if shown and operator else "")
    _, label_right = picture.label(spot, 10, text, fill=MEMORY, ink=MEMORY_INK)
    if len(reserved) == len(time):
        note = f"reserved {size_text(float(reserved.max()))}"
        room_right = right - picture.text_width(note)
        if room_right > label_right + 8:
            picture.word(right, 10, note, align="right")
        else:
            picture.word(left, 10, note)
    clock = f"recorded time, {time_text(last - max(first, 0.0))}"
    if not marks or float(x(marks[-1])) + 50 < right - picture.text_width(clock):
        picture.word(right, lower + 11, clock, align="right")
    what = "allocated on the GPU" if name == "allocated" else "of the process"
    alt = f"Memory {what} over {time_text(last - first)} of recorded time: peak {size_text(peak_bytes)}"
    return picture.drawn(alt + (f" in {shorten(operator, 80)}." if operator else "."))


def thin(time: Floats, value: Floats, buckets: int) -> tuple[Floats, Floats]:
    """At most ``4 × buckets`` points of the curve: each bucket's first, lowest, highest and last, so peaks stay exact.

    Args:
        time, value: (n,) float64, ``time`` sorted.
    """
    if len(time) <= 4 * buckets:
        return time, value
    edges = np.linspace(0, len(time), buckets + 1).astype(np.int64)
    keep: set[int] = set()
    for begin, end in pairwise(edges):
        if end > begin:
            part = value[begin:end]
            keep.update((int(begin), int(begin + part.argmin()), int(begin + part.argmax()), int(end - 1)))
    index = np.array(sorted(keep), dtype=np.int64)
    return time[index], value[index]


def staircase(time: Floats, value: Floats) -> Floats:
    """(2n − 1, 2): the points of a curve that keeps its value until the next one."""
    across = np.repeat(time, 2)[1:]
    return np.column_stack([across, np.repeat(value, 2)[:-1]])


def _across(picture: Picture, slices: Sequence[tuple[Category, float, str]], radius: float) -> float:
    """Where the ring's centre is: in the middle, or aside where a label would reach over the ring."""
    room = {1: 0.0, -1: 0.0}
    start = 0.0
    for category, share, text in slices:
        side = 1 if _anchor(start, start + share) < 0.5 else -1
        wide = picture.text_width(text, bold=category is not OTHER) + 8
        room[side] = max(room[side], wide)
        start += share
    low, high = (radius + _BESIDE + room[side] + 1 for side in (-1, 1))
    return min(max(picture.width / 2, low), max(picture.width - high, picture.width / 2 - _MOST_ASIDE))


def _hole(step_ms: float | None) -> float:
    return 16.0 if step_ms is not None else 11.0


def _point(across: float, down: float, radius: float, turn: float) -> tuple[float, float]:
    angle = 2 * math.pi * turn
    return across + radius * math.sin(angle), down - radius * math.cos(angle)


def _anchor(start: float, end: float) -> float:
    """Where the label of a slice points: its middle; of a large one its most horizontal place, where there is room."""
    middle = (start + end) / 2
    if end - start < 0.4:
        return middle
    return min(max(0.25 if middle < 0.5 else 0.75, start + 0.04), end - 0.04)


def _arc(across: float, down: float, radius: float, start: float, end: float) -> Floats:
    turns = np.linspace(start, end, max(2, int(240 * (end - start)) + 2)) * 2 * np.pi
    return np.column_stack([across + radius * np.sin(turns), down - radius * np.cos(turns)])


def _ring(across: float, down: float, inner: float, outer: float, start: float, end: float, gap: float) -> Floats:
    """The outline of a slice, ``gap`` pixels narrower than its share so that neighbours stay apart."""
    trim_outer = min(gap / 2 / (2 * math.pi * outer), (end - start) / 4)
    trim_inner = min(gap / 2 / (2 * math.pi * inner), (end - start) / 4)
    return np.concatenate(
        [
            _arc(across, down, outer, start + trim_outer, end - trim_outer),
            _arc(across, down, inner, start + trim_inner, end - trim_inner)[::-1],
        ]
    )


def _donut_labels(
    picture: Picture,
    anchors: Sequence[tuple[float, str, Category]],
    side: int,
    across: float,
    down: float,
    radius: float,
) -> None:
    """Labels of one side (1 = right) from top to bottom, moved apart where they would overlap."""
    ranked = sorted(anchors, key=lambda anchor: _point(across, down, radius, anchor[0])[1])
    places = [_point(across, down, radius + 16, anchor[0])[1] for anchor in ranked]
    low, high = 10.0, picture.height - 10.0
    for index in range(len(places)):
        places[index] = max(places[index], low if index == 0 else places[index - 1] + _LABEL_HEIGHT)
    for index in reversed(range(len(places))):
        places[index] = min(places[index], high if index == len(places) - 1 else places[index + 1] - _LABEL_HEIGHT)
    for (turn, text, category), place in zip(ranked, places, strict=True):
        # Beside the ring at this height, so that labels near the top stand closer to the middle.
        nearest = max(abs(place - down) - 9, 0.0)
        reach = math.sqrt(max((radius + _BESIDE) ** 2 - nearest**2, 0.0))
        edge = across + side * max(reach, 26.0)
        on_ring = _point(across, down, radius + 2, turn)
        colour = OUTLINE if category is OTHER else category.fill
        picture.line([on_ring, (edge, place)], colour, width=1)
        align = "left" if side > 0 else "right"
        if category is OTHER:
            picture.text(edge + side * 3, place, text, align=align)
        else:
            picture.label(edge, place, text, fill=category.fill, ink=category.ink, align=align)


def _size_ticks(top: float) -> list[float]:
    """Zero and two to four round sizes below ``top``."""
    raw = top / 3
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.75)
    return [step * number for number in range(int(top / step * 1.0001) + 1)]
