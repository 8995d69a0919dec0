"""A picture in CSS pixels, drawn by matplotlib without pyplot, axes or the user's rcParams.

Every property that matplotlib would take from rcParams is given, so a user's style sheet changes nothing here, and
nothing here changes the user's figures.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
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

from ipyprof.formatting import printable

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
