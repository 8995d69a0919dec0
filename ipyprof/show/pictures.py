"""Two pictures: the donut of one step and the heartbeat of memory. Each comes as PNG bytes with its alt text; what
stands at the axes of the heartbeat is left to the page."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Polygon
from matplotlib.patheffects import Normal, Stroke
from matplotlib.text import Text
from matplotlib.transforms import Affine2D
from PIL import Image

from ipyprof.analysis.results import Bubble, Heartbeat, Lane, Memory, Timeline
from ipyprof.formatting import (
    columns,
    percent_whole,
    plural,
    printable,
    shorten,
    size_text,
    size_tick,
    tick_text,
    time_text,
)
from ipyprof.show.words import ACCENT, ACCENT_INK, BY_KEY, MEMORY, MEMORY_INK, OTHER, OUTLINE, Category, Part

COLOURS = 128
GREY = "#787878"
_DPI = 144  # two device pixels per CSS pixel, and a point is a CSS pixel
_MISSING_GLYPH = "□"

# No grey reaches 4.5:1 on both white and black, so plain words are drawn a little heavier than the font is.
_HEAVIER = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A plain word of a picture that the page writes over it: it then has the theme's own colour, which no grey that is
    drawn can match in dark and light. ``left`` and ``top`` are shares of the picture; ``align`` says which point of the
    word is at ``left``, its vertical centre is at ``top``."""

    text: str
    left: float
    top: float
    align: str


class Drawn(NamedTuple):
    """A picture, what it shows in words, and the words that the page writes over it."""

    png: bytes
    alt: str
    words: tuple[Word, ...] = ()


class Picture:
    """A transparent picture of ``width`` × ``height`` CSS pixels; (0, 0) is the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width = width
        self.height = height
        self._words: list[Word] = []
        plain: Any = "none"  # no layout engine: the user's rcParams may name one
        self._figure: Any = Figure(
            figsize=(width / 72, height / 72), dpi=_DPI, facecolor="none", edgecolor="none", layout=plain, linewidth=0
        )
        self._canvas: Any = FigureCanvasAgg(self._figure)
        self._pixels = Affine2D().scale(_DPI / 72, -_DPI / 72).translate(0, height * _DPI / 72)

    def rectangles(
        self, boxes: Sequence[tuple[float, float, float, float]], colour: str, *, alpha: float = 1.0
    ) -> None:
        """Filled boxes (left, top, right, bottom), antialiased: many thin ones show their true density."""
        if not boxes:
            return
        left, top, right, bottom = np.asarray(boxes, dtype=np.float64).T
        corners: Any = np.stack(
            [np.stack(pair, axis=1) for pair in ((left, top), (right, top), (right, bottom), (left, bottom))], axis=1
        )
        self._add(
            PolyCollection(
                corners, facecolors=[colour], edgecolors="none", linewidths=0, antialiaseds=True, alpha=alpha
            )
        )

    def polygon(
        self,
        points: npt.ArrayLike,
        colour: str,
        *,
        alpha: float = 1.0,
        edge: str | None = None,
        edge_width: float = 1.0,
    ) -> None:
        """A filled polygon through ``points``, (n, 2); ``colour`` ``"none"`` leaves the outline."""
        self._add(
            Polygon(
                np.asarray(points, dtype=np.float64),
                closed=True,
                facecolor=colour,
                edgecolor=edge or "none",
                linewidth=edge_width if edge else 0,
                linestyle="solid",
                joinstyle="miter",
                antialiased=True,
                alpha=alpha,
            )
        )

    def line(
        self, points: npt.ArrayLike, colour: str, *, width: float = 1.0, dashes: tuple[float, float] | None = None
    ) -> None:
        """A line through ``points``, (n, 2)."""
        across, down = np.asarray(points, dtype=np.float64).T
        self._add(
            Line2D(
                across,
                down,
                color=colour,
                linewidth=width,
                linestyle="solid" if dashes is None else (0, dashes),
                marker="None",
                drawstyle="default",
                antialiased=True,
                solid_capstyle="butt",
                solid_joinstyle="round",
                dash_capstyle="butt",
            )
        )

    def dot(self, across: float, down: float, radius: float, colour: str) -> None:
        angles = np.linspace(0, 2 * np.pi, 24)
        self.polygon(np.column_stack([across + radius * np.cos(angles), down + radius * np.sin(angles)]), colour)

    def text(
        self,
        across: float,
        down: float,
        text: str,
        *,
        colour: str = GREY,
        size: float = 11,
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """``text`` with its vertical centre at ``down``; ``align`` says which point of it is at ``across``."""
        self._figure.add_artist(self._text(across, down, text, colour, size, bold, align))

    def word(self, across: float, down: float, text: str, *, align: str = "left") -> None:
        """``text`` as ``text`` draws it, left to the page."""
        line = " ".join(text.split())
        self._words.append(Word(text=line, left=across / self.width, top=down / self.height, align=align))

    def drawn(self, alt: str) -> Drawn:
        """The picture with ``alt`` and its words."""
        return Drawn(self.png(), alt, tuple(self._words))

    def text_width(self, text: str, *, size: float = 11, bold: bool = False) -> float:
        artist = self._text(0, 0, text, GREY, size, bold, "left")
        artist.set_figure(self._figure)
        return float(artist.get_window_extent(self._canvas.get_renderer()).width) * 72 / _DPI

    def label(
        self, across: float, down: float, text: str, *, fill: str, ink: str, align: str = "center", size: float = 11
    ) -> tuple[float, float]:
        """Bold ``text`` on its own coloured box, kept inside the picture.

        Returns:
            The left and right edge of the box.
        """
        width = self.text_width(text, size=size, bold=True) + 8
        left = across - {"left": 0.0, "center": width / 2, "right": width}[align]
        left = max(1.0, min(left, self.width - width - 1))
        self._add(
            FancyBboxPatch(
                (left + 2, down - 7),
                width - 4,
                14,
                boxstyle="round,pad=2,rounding_size=3",
                facecolor=fill,
                edgecolor="none",
                linewidth=0,
                antialiased=True,
            )
        )
        self.text(left + 4, down, text, colour=ink, size=size, bold=True)
        return left, left + width

    def png(self) -> bytes:
        """The picture as a palette PNG at two device pixels per CSS pixel."""
        self._canvas.draw()
        return quantised_png(np.asarray(self._canvas.buffer_rgba(), dtype=np.uint8))

    def _text(self, across: float, down: float, text: str, colour: str, size: float, bold: bool, align: str) -> Any:
        artist: Any = Text(
            across,
            down,
            drawable(text, bold=bold),
            color=colour,
            fontproperties=_font(bold=bold, size=size),
            verticalalignment="center_baseline",
            parse_math=False,
            usetex=False,
        )
        artist.set_horizontalalignment(align)
        artist.set_transform(self._pixels)
        _neutral(artist)
        if colour == GREY and not bold:
            artist.set_path_effects([Stroke(linewidth=_HEAVIER, foreground=colour), Normal()])
        return artist

    def _add(self, artist: Any) -> None:
        artist.set_transform(self._pixels)
        _neutral(artist)
        self._figure.add_artist(artist)


def drawable(text: str, *, bold: bool = False) -> str:
    """``text`` on one line, with a box for every character that the font lacks: matplotlib would warn for each."""
    font = get_font(_font_file(bold=bold))
    line = " ".join(printable(text).split())
    return "".join(character if font.get_char_index(ord(character)) else _MISSING_GLYPH for character in line)


def quantised_png(pixels: npt.NDArray[np.uint8], colours: int = COLOURS) -> bytes:
    """A PNG with a palette of at most ``colours``: the most frequent colours exactly, the rest by their nearest.

    Args:
        pixels: (height, width, 4) uint8, straight alpha.
    """
    height, width, _ = pixels.shape
    packed = np.ascontiguousarray(pixels).view(np.uint32).reshape(-1)
    unique, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    table = unique.view(np.uint8).reshape(-1, 4).astype(np.float32)
    index: npt.NDArray[np.uint8]
    if len(unique) <= colours:
        palette = table
        index = inverse.astype(np.uint8)
    else:
        frequent = np.argsort(-counts, kind="stable")[: colours // 2]
        rest = np.ones(len(unique), dtype=bool)
        rest[frequent] = False
        octree = Image.fromarray(unique[rest].view(np.uint8).reshape(1, -1, 4), "RGBA").quantize(
            colours - len(frequent), method=Image.Quantize.FASTOCTREE
        )
        spread = np.asarray(_palette(octree), dtype=np.float32).reshape(-1, 4)
        palette = np.concatenate([table[frequent], spread])[:colours]
        weighed, wanted = _premultiplied(palette), _premultiplied(table)
        nearest = ((wanted[:, None, :] - weighed[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
        index = nearest.astype(np.uint8)[inverse]
    image = Image.fromarray(index.reshape(height, width), "P")
    image.putpalette(palette[:, :3].astype(np.uint8).tobytes(), "RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, transparency=palette[:, 3].astype(np.uint8).tobytes())
    return buffer.getvalue()


def _palette(image: Image.Image) -> list[Any]:
    """The (red, green, blue, alpha) of every palette entry."""
    return list(image.palette.colors) if image.palette is not None else []


def _premultiplied(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Colours as they look: one that is nearly transparent differs little from another such."""
    alpha = table[:, 3:4]
    return np.concatenate([table[:, :3] * alpha / 255, alpha * 2], axis=1)


def _neutral(artist: Any) -> None:
    artist.set_sketch_params(None)
    artist.set_path_effects([])
    artist.set_snap(False)
    artist.set_clip_on(False)


@functools.cache
def _font_file(*, bold: bool) -> str:
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"))


def _font(*, bold: bool, size: float) -> Any:
    return FontProperties(fname=_font_file(bold=bold), size=size)


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


def heartbeat(view: Heartbeat | None, memory: Memory | None) -> Drawn | None:
    """Memory over the recorded steps with its peak, or ``None`` where ``view`` holds no curve.

    Args:
        view: the curve is ``allocated``, or ``process`` on the CPU; sizes in bytes.
        memory: the peak, its instant and operator; the curve's own maximum where it is ``None``.
    """
    if view is None:
        return None
    time = np.asarray(view.time_ms, dtype=np.float64)
    used = np.asarray(view.allocated or view.process, dtype=np.float64)
    if len(time) < 2 or len(time) != len(used):
        return None
    reserved = np.asarray(view.reserved, dtype=np.float64)
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
    marks = [mark for mark in view.marks_ms if first - 1e-6 <= mark <= last + 1e-6]
    for number, mark in enumerate(marks, start=1):
        end = marks[number] if number < len(marks) else last
        if end - mark > 0.002 * (last - first):
            picture.line([(x(mark), upper), (x(mark), lower + 4)], GREY, width=0.8)
            if float(x(end)) - float(x(mark)) > 60:
                picture.word(float(x(mark)) + 4, lower + 11, f"step {number}")
    picture.line([(left, lower), (right, lower)], GREY, width=0.8)
    for call in view.calls_ms:
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
    what = "allocated on the GPU" if view.allocated else "of the process"
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


def timeline(view: Timeline | None) -> Drawn | None:
    """The recorded step as a picture with its alt text, or ``None`` where it holds nothing to draw."""
    clock = _clock(view)
    if view is None or clock is None:
        return None
    lanes, start, end = clock
    bubble = view.bubble
    part = magnified(lanes, start, end, bubble)
    count = len(lanes)
    whole = Window(start, end, 2.0, 18.0 if part else 22.0, 24.0 if part else 28.0)
    bubble_in_part = part is not None and bubble is not None and _inside(bubble, part)
    strip = 0.0
    if bubble is not None:
        first, last = part if bubble_in_part and part is not None else (start, end)
        width = (bubble.end_ms - bubble.start_ms) / (last - first) * (_RIGHT - _LEFT)
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


def magnification(view: Timeline | None) -> float | None:
    """How many times larger the magnified part is, or ``None`` where nothing is magnified."""
    clock = _clock(view)
    if view is None or clock is None:
        return None
    lanes, start, end = clock
    part = magnified(lanes, start, end, view.bubble)
    return (end - start) / (part[1] - part[0]) if part else None


def magnified(lanes: Sequence[Lane], start: float, end: float, bubble: Bubble | None) -> tuple[float, float] | None:
    """The part of the clock that is too dense to read, or ``None``.

    A bubble too narrow to be seen gets the part around it. Else, where 95 % of the segments crowd into less than a
    third of the step, it is that third; where segments are narrow everywhere, a twentieth around the densest place.
    """
    span = end - start
    if bubble is not None and 0 < bubble.end_ms - bubble.start_ms < 0.05 * span:
        middle = (bubble.start_ms + bubble.end_ms) / 2
        reach = max(3.0 * (bubble.end_ms - bubble.start_ms), span / 400)
        return _shifted(middle - reach, middle + reach, start, end)
    middles = np.sort(np.array([(one[0] + one[1]) / 2 for lane in lanes for one in lane.segments], dtype=np.float64))
    widths = np.array([one[1] - one[0] for lane in lanes for one in lane.segments], dtype=np.float64)
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


def _clock(view: Timeline | None) -> tuple[list[Lane], float, float] | None:
    """The lanes that hold anything, with the step's start and end; ``None`` where there is nothing to draw."""
    lanes = [] if view is None else _most_used([lane for lane in view.lanes if lane.segments])
    if view is None or not lanes or not view.end_ms > view.start_ms:
        return None
    return lanes, view.start_ms, view.end_ms


def _shifted(low: float, high: float, start: float, end: float) -> tuple[float, float]:
    """The window moved into [start, end] without changing its length where that is possible."""
    length = min(high - low, end - start)
    low = min(max(low, start), end - length)
    return low, low + length


def _most_used(lanes: Sequence[Lane]) -> list[Lane]:
    if len(lanes) <= _LANES:
        return list(lanes)
    used = [sum(one[1] - one[0] for one in lane.segments) for lane in lanes]
    kept = sorted(sorted(range(len(lanes)), key=lambda index: -used[index])[:_LANES])
    return [lanes[index] for index in kept]


def _inside(bubble: Bubble, part: tuple[float, float]) -> bool:
    return bool(part[0] <= bubble.start_ms and bubble.end_ms <= part[1])


def _draw_lanes(picture: Picture, lanes: Sequence[Lane], window: Window) -> None:
    for number, lane in enumerate(lanes):
        top = window.top + number * window.pitch
        bottom = top + window.lane
        picture.rectangles([(_LEFT, top, _RIGHT, bottom)], "#808080", alpha=_TRACK_ALPHA)
        picture.word(_LEFT - 9, top + window.lane / 2, _lane_name(picture, lane), align="right")
        boxes: dict[str, list[tuple[float, float, float, float]]] = {}
        names: list[tuple[float, float, str, str]] = []
        for begin, finish, category, label in lane.segments:
            low, high = max(begin, window.start), min(finish, window.end)
            if high <= low:
                continue
            left, right = window.x(low), window.x(high)
            boxes.setdefault(category, []).append((left, top, right, bottom))
            if label and right - left > 24:
                names.append((left, right, category, label))
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


def _lane_name(picture: Picture, lane: Lane) -> str:
    """The lane's name, shortened to the room at its left."""
    name = shorten(lane.name, int(_LEFT / _NARROWEST))
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


def _draw_bubble(picture: Picture, bubble: Bubble, lanes: Sequence[Lane], window: Window, strip: bool) -> None:
    names = [lane.name for lane in lanes]
    number = names.index(bubble.lane) if bubble.lane in names else len(lanes) - 1
    top = window.top + number * window.pitch
    middle = top + window.lane / 2
    left = window.x(max(bubble.start_ms, window.start))
    right = window.x(min(bubble.end_ms, window.end))
    picture.line([(left, middle), (right, middle)], ACCENT, width=2)
    for across in (left, right):
        picture.line([(across, middle - 6), (across, middle + 6)], ACCENT, width=2)
    text = shorten(bubble.text, 78)
    if not text:
        return
    if strip:
        place = window.top + len(lanes) * window.pitch + 6
        picture.line([((left + right) / 2, middle), ((left + right) / 2, place)], ACCENT, width=1.4)
        half = picture.text_width(text, bold=True) / 2 + 4
        picture.label(max((left + right) / 2, _LEFT + half), place, text, fill=ACCENT, ink=ACCENT_INK)
    else:
        picture.label((left + right) / 2, middle, text, fill=ACCENT, ink=ACCENT_INK)


def _alt(lanes: Sequence[Lane], start: float, end: float, bubble: Bubble | None) -> str:
    named = ", ".join(shorten(lane.name, 24) for lane in lanes)
    text = f"One recorded step of {time_text(end - start)} on {plural(len(lanes), 'lane')}: {named}."
    return f"{text} {bubble.text}." if bubble is not None and bubble.text else text
