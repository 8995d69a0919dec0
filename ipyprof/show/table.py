"""One table for page, terminal and panel: columns, rows of cells with bars and marks, notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from ipyprof.formatting import GLUE, columns, printable, shorten, unbroken

_MARK = 2  # columns of a terminal before each row


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``kind``: ``number`` (at the right), ``text``, ``name`` (takes what the others leave), ``bar`` or ``long``.

    ``width``: in a terminal, 0 = only on the page; ``least``: only in terminals at least so wide; ``look``: more CSS.
    """

    title: str = ""
    kind: str = "number"
    width: int = 8
    least: int = 0
    look: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A text with what marks it.

    ``bar``: share 0..1 of a bar of the colour ``fill``, instead of the text. Without a bar ``fill`` is a small square
    before it. ``code``: set in the font of code, with ``hover`` its whole text. ``chip``: on the accent's colour.
    ``below``: smaller, under it. ``span``: how many columns it takes.
    """

    text: str = field(default="", kw_only=False)
    bold: bool = False
    faint: bool = False
    code: bool = False
    indent: int = 0
    hover: str = ""
    bar: float | None = None
    fill: str | None = None
    chip: str = ""
    below: str = ""
    span: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """``rule``: a sum, below a line. ``lead``: the verdict names it."""

    cells: tuple[Cell, ...]
    rule: bool = False
    lead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``more`` goes on after the title; ``heading`` is the title in a terminal where it differs. ``most``: the widest
    that the column of names gets there. ``empty``: what stands there instead of rows."""

    title: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    more: str = ""
    heading: str = ""
    notes: tuple[str, ...] = ()
    empty: str = ""
    most: int = 60

    @property
    def edge(self) -> bool:
        """Whether a row has an edge in the accent's colour."""
        return any(row.lead for row in self.rows)

    @property
    def top(self) -> bool:
        """Whether cells stand at the top of their row: another one wraps."""
        return any(column.kind == "long" for column in self.columns)

    def placed(self, row: Row) -> Iterator[tuple[Column, Cell]]:
        """The cells of ``row`` with the column in which each begins."""
        at = 0
        for cell in row.cells:
            yield self.columns[at], cell
            at += cell.span

    def text(self, width: int) -> list[str]:
        """Lines of at most ``width`` columns: the head, then one for each row; ``!`` marks what the verdict names."""
        heading = (self.heading or self.title).strip()
        if not self.rows:
            return wrapped(f"{heading}: {self.empty}" if heading else self.empty, width) if self.empty else []
        if self.top:
            return [*wrapped(heading, width), *self._wrapped_rows(width)]
        shown = [column for column in self.columns if column.kind == "name" or (column.width and width >= column.least)]
        room = min(width - _MARK - sum(column.width for column in shown if column.kind != "name"), self.most)
        names = next((at for at, column in enumerate(shown) if column.kind == "name"), 0)
        left = _MARK + room + sum(column.width for column in shown[:names])
        lines = [padded(heading, left) + "".join(_aligned(one.title, one, 0.0) for one in shown[names + 1 :])]
        for row in self.rows:
            texts = self._by_column(row)
            lines.append("! " if row.lead else "  ")
            for column in shown:
                cell = texts.get(id(column), Cell())
                if column.kind == "name":
                    indent = " " * (2 * cell.indent + (names > 0) + 2 * (cell.fill is not None))
                    lines[-1] += padded(indent + printable(cell.text.expandtabs(4)), room)
                else:
                    lines[-1] += _aligned(cell.text, column, cell.bar or 0.0)
        return [line.rstrip() for line in lines]

    def _by_column(self, row: Row) -> dict[int, Cell]:
        """The cells of ``row`` by their column; what spans several stands in the one of names."""
        found, at = {}, 0
        for cell in row.cells:
            over = self.columns[at : at + cell.span]
            found[id(next((one for one in over if one.kind == "name"), over[0]))] = cell
            at += cell.span
        return found

    def _wrapped_rows(self, width: int) -> Iterator[str]:
        indent = self.columns[0].width
        for row in self.rows:
            first, *rest = (cell.text for _, cell in self.placed(row))
            yield from wrapped(padded(first, indent).replace(" ", GLUE) + "  ".join(filter(None, rest)), width, indent)


def name_cell(text: str, width: int, *, indent: int = 0, whole: str = "") -> Cell:
    """A name as code on one line, at most ``width`` columns, the full one (or ``whole``) on hover."""
    line = " ".join(text.split())
    short = shorten(line, width)
    whole = whole or (line if short != line else "")
    return Cell(short, code=True, hover=shorten(whole, 1000), indent=indent)


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most ``width`` columns; wide characters count two."""
    lines: list[str] = []
    whole = unbroken(printable(text))
    for line in textwrap.wrap(whole, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        lines += _split(line.replace(GLUE, " "), width)
    return lines


def padded(text: str, width: int) -> str:
    """``text`` shortened or filled to ``width`` columns."""
    short = shorten(text, width)
    return short + " " * (width - columns(short))


def _split(line: str, width: int) -> Iterator[str]:
    while columns(line) > width:
        kept = shorten(line, width + 1)[:-1]
        yield kept
        line = line[len(kept) :]
    yield line


def _aligned(text: str, column: Column, bar: float) -> str:
    """``text``, or the bar, in the column's width."""
    line = " ".join(printable(text).split())
    if column.kind == "number":
        short = shorten(line, column.width - 1)
        return " " * (column.width - columns(short)) + short
    drawn = ("█" * round(min(bar, 1.0) * (column.width - 2)) or "▏") if bar > 0 else line
    return "  " + padded(drawn, column.width - 2)
