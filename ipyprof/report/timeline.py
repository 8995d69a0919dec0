"""One recorded step on the clock: its lanes, a dense part magnified, the worst bubble named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipyprof.formatting import columns, plural, shorten, tick_text, time_text
from ipyprof.report.canvas import GREY, Drawn, Picture
from ipyprof.report.categories import ACCENT, ACCENT_INK, BY_KEY, OUTLINE

WIDTH = 700.0
_LEFT = 98.0
_RIGHT = WIDTH - 8.0
_LANES = 8
_AXIS = 18.0
_STRIP = 22.0
_BUBBLE_LABEL = 300.0  # pixels that a bubble needs to carry its label itself
_TRACK_ALPHA = 0.16
_NARROWEST = 3.0  # pixels: hardly a character is narrower


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the clock in ms, drawn at ``top`` pixels with lanes ``lane`` high and ``pitch`` apart."""

    start: float
    end: float
    top: float
    lane: float
    pitch: float

    def x(self, ms: float) -> float:
        return _LEFT + (ms - self.start) / (self.end - self.start) * (_RIGHT - _LEFT)


def timeline(view: Mapping[str, Any]) -> Drawn | None:
    """The step of ``views["timeline"]`` as a picture with its alt text, or ``None`` where it holds nothing to draw."""
    clock = _clock(view)
    if clock is None:
        return None
    lanes, start, end = clock
    bubble = view.get("bubble")
    part = magnified(lanes, start, end, bubble)
    count = len(lanes)
    whole = Window(start, end, 2.0, 18.0 if part else 22.0, 24.0 if part else 28.0)
    bubble_in_part = part is not None and bubble is not None and _inside(bubble, part)
    strip = 0.0
    if bubble is not None:
        first, last = part if bubble_in_part and part is not None else (start, end)
        width = (bubble["end_ms"] - bubble["start_ms"]) / (last - first) * (_RIGHT - _LEFT)
        strip = _STRIP if width < _BUBBLE_LABEL else 0.0
    bottom = whole.top + count * whole.pitch + (0.0 if bubble_in_part else strip)
    zoom = None
    height = bottom + _AXIS
    if part is not None:
        zoom = Window(part[0], part[1], bottom + 42, 22.0, 28.0)
        height = zoom.top + count * zoom.pitch + (strip if bubble_in_part else 0.0) + _AXIS
    picture = Picture(WIDTH, height)
    _draw_lanes(picture, lanes, whole)
    crossed = () if part is None else (whole.x(part[0]), whole.x(part[1]))
    _draw_axis(picture, whole, bottom - 2, origin=start, crossed=crossed)
    if zoom is not None:
        _draw_lanes(picture, lanes, zoom)
        _draw_axis(picture, zoom, height - _AXIS - 2, origin=start)
        _draw_funnel(picture, whole, zoom, bottom)
    if bubble is not None:
        _draw_bubble(picture, bubble, lanes, zoom if bubble_in_part and zoom is not None else whole, strip > 0)
    return picture.drawn(_alt(lanes, start, end, bubble))


def magnification(view: Mapping[str, Any]) -> float | None:
    """How many times larger the magnified part is, or ``None`` where nothing is magnified."""
    clock = _clock(view)
    if clock is None:
        return None
    lanes, start, end = clock
    part = magnified(lanes, start, end, view.get("bubble"))
    return (end - start) / (part[1] - part[0]) if part else None


def magnified(
    lanes: Sequence[Mapping[str, Any]], start: float, end: float, bubble: Mapping[str, Any] | None
) -> tuple[float, float] | None:
    """The part of the clock that is too dense to read, or ``None``.

    A bubble too narrow to be seen gets the part around it. Else, where 95 % of the segments crowd into less than a
    third of the step, it is that third; where segments are narrow everywhere, a twentieth around the densest place.
    """
    span = end - start
    if bubble is not None and 0 < bubble["end_ms"] - bubble["start_ms"] < 0.05 * span:
        middle = (bubble["start_ms"] + bubble["end_ms"]) / 2
        reach = max(3.0 * (bubble["end_ms"] - bubble["start_ms"]), span / 400)
        return _shifted(middle - reach, middle + reach, start, end)
    middles = np.sort(np.array([(one[0] + one[1]) / 2 for lane in lanes for one in lane["segments"]], dtype=np.float64))
    widths = np.array([one[1] - one[0] for lane in lanes for one in lane["segments"]], dtype=np.float64)
    if len(middles) < 40:
        return None
    window = math.ceil(0.95 * len(middles))
    lengths = middles[window - 1 :] - middles[: len(middles) - window + 1]
    first = int(lengths.argmin())
    if lengths[first] < span / 3:
        margin = max(0.04 * float(lengths[first]), span / 400)
        return _shifted(float(middles[first]) - margin, float(middles[first + window - 1]) + margin, start, end)
    if float(np.median(widths)) < span / (_RIGHT - _LEFT) and len(middles) > 400:
        counts, edges = np.histogram(middles, bins=20, range=(start, end))
        densest = int(counts.argmax())
        return float(edges[densest]), float(edges[densest + 1])
    return None


def _clock(view: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], float, float] | None:
    """The lanes that hold anything, with the step's start and end; ``None`` where there is nothing to draw."""
    lanes = _most_used([lane for lane in view.get("lanes") or () if lane.get("segments")])
    start, end = view.get("start_ms"), view.get("end_ms")
    if not lanes or start is None or end is None or not end > start:
        return None
    return lanes, float(start), float(end)


def _shifted(low: float, high: float, start: float, end: float) -> tuple[float, float]:
    """The window moved into [start, end] without changing its length where that is possible."""
    length = min(high - low, end - start)
    low = min(max(low, start), end - length)
    return low, low + length


def _most_used(lanes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if len(lanes) <= _LANES:
        return list(lanes)
    used = [sum(one[1] - one[0] for one in lane["segments"]) for lane in lanes]
    kept = sorted(sorted(range(len(lanes)), key=lambda index: -used[index])[:_LANES])
    return [lanes[index] for index in kept]


def _inside(bubble: Mapping[str, Any], part: tuple[float, float]) -> bool:
    return bool(part[0] <= bubble["start_ms"] and bubble["end_ms"] <= part[1])


def _draw_lanes(picture: Picture, lanes: Sequence[Mapping[str, Any]], window: Window) -> None:
    for number, lane in enumerate(lanes):
        top = window.top + number * window.pitch
        bottom = top + window.lane
        picture.rectangles([(_LEFT, top, _RIGHT, bottom)], "#808080", alpha=_TRACK_ALPHA)
        picture.word(_LEFT - 9, top + window.lane / 2, _lane_name(picture, lane), align="right")
        boxes: dict[str, list[tuple[float, float, float, float]]] = {}
        names: list[tuple[float, float, str, str]] = []
        for begin, finish, category, label in lane["segments"]:
            low, high = max(begin, window.start), min(finish, window.end)
            if high <= low:
                continue
            left, right = window.x(low), window.x(high)
            boxes.setdefault(category, []).append((left, top, right, bottom))
            if label and right - left > 24:
                names.append((left, right, category, str(label)))
        for category, group in boxes.items():
            known = BY_KEY.get(category)
            picture.rectangles(group, known.fill if known and known.fill else OUTLINE)
        for left, right, category, label in names:
            known = BY_KEY.get(category)
            room = right - left - 8
            # To measure a text takes longer than to draw one, and a name may have 900 characters.
            text = label if len(label) * _NARROWEST <= room and picture.text_width(label) <= room else ""
            if not text and right - left > 60 and columns(label) > 12:
                text = shorten(label, int((right - left - 10) / 7))
            if text:
                ink = known.ink if known and known.ink else "#111111"
                picture.text(left + 5, top + window.lane / 2, text, colour=ink)


def _lane_name(picture: Picture, lane: Mapping[str, Any]) -> str:
    """The lane's name, shortened to the room at its left."""
    name = shorten(str(lane.get("name", "")), int(_LEFT / _NARROWEST))
    width = columns(name)
    while width > 4 and picture.text_width(shorten(name, width)) > _LEFT - 11:
        width -= 1
    return shorten(name, width)


def _draw_axis(picture: Picture, window: Window, top: float, *, origin: float, crossed: Sequence[float] = ()) -> None:
    """Ticks below the lanes; one whose label a line of ``crossed`` (pixels) would cut has none."""
    span = window.end - window.start
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.8)
    tick = math.ceil((window.start - origin) / step - 1e-9) * step
    while tick <= window.end - origin + 1e-9:
        across = window.x(tick + origin)
        picture.line([(across, top - 3), (across, top + 1)], GREY, width=0.8)
        text = tick_text(tick, step)
        half = picture.text_width(text) / 2
        place = min(max(across, _LEFT + half), _RIGHT - half)
        if all(abs(place - line) > half + 3 for line in crossed):
            picture.word(place, top + 8, text, align="center")
        tick += step


def _draw_funnel(picture: Picture, whole: Window, part: Window, bottom: float) -> None:
    """Lines from the magnified part in the overview to the ends of the larger lanes below."""
    knee = bottom + 24
    for ms, corner in ((part.start, _LEFT), (part.end, _RIGHT)):
        across = whole.x(ms)
        picture.line(
            [(across, bottom - 6), (across, knee), (corner, knee + 9), (corner, part.top - 1)], GREY, width=0.9
        )


def _draw_bubble(
    picture: Picture, bubble: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], window: Window, strip: bool
) -> None:
    names = [lane.get("name") for lane in lanes]
    number = names.index(bubble.get("lane")) if bubble.get("lane") in names else len(lanes) - 1
    top = window.top + number * window.pitch
    middle = top + window.lane / 2
    left = window.x(max(bubble["start_ms"], window.start))
    right = window.x(min(bubble["end_ms"], window.end))
    picture.line([(left, middle), (right, middle)], ACCENT, width=2)
    for across in (left, right):
        picture.line([(across, middle - 6), (across, middle + 6)], ACCENT, width=2)
    text = shorten(str(bubble.get("text", "")), 78)
    if not text:
        return
    if strip:
        place = window.top + len(lanes) * window.pitch + 6
        picture.line([((left + right) / 2, middle), ((left + right) / 2, place)], ACCENT, width=1.4)
        half = picture.text_width(text, bold=True) / 2 + 4
        picture.label(max((left + right) / 2, _LEFT + half), place, text, fill=ACCENT, ink=ACCENT_INK)
    else:
        picture.label((left + right) / 2, middle, text, fill=ACCENT, ink=ACCENT_INK)


def _alt(lanes: Sequence[Mapping[str, Any]], start: float, end: float, bubble: Mapping[str, Any] | None) -> str:
    named = ", ".join(shorten(str(lane.get("name", "")), 24) for lane in lanes)
    text = f"One recorded step of {time_text(end - start)} on {plural(len(lanes), 'lane')}: {named}."
    return f"{text} {bubble['text']}." if bubble is not None and bubble.get("text") else text
