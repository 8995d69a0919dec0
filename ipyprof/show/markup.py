"""HTML in style attributes: the few elements that the dashboard is made of, escaped by default.

JupyterLab stripes table rows, fixes columns and colours code; each style here undoes that. Text gets no colour, so
that it inherits the theme's. A table has hundreds of cells, so a cell says only what differs from what every front end
does by itself, and nothing twice.
"""

from __future__ import annotations

import base64
import html
import re
from typing import TYPE_CHECKING

from ipyprof.formatting import columns, printable, shorten
from ipyprof.show.words import RULE, TRACK

if TYPE_CHECKING:
    from ipyprof.show.pictures import Drawn, Word


CARD = 1080
MAIN = 700
NOTES = 336
MUTED = "opacity:.72"

# Takes what the other columns leave, and on a narrow page still enough to tell names apart.
ELLIPSIS = "max-width:0;min-width:132px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
SMALL = "font-size:12px;line-height:17px"
_FONT = "font-family:'Helvetica Neue','Segoe UI',Arial,sans-serif"
_MONO = "font-family:Menlo,Consolas,monospace;font-size:12px"
_MATHEMATICS = frozenset("$\\")
_DELIMITER = re.compile(r"[$\\]")
_CELL = "padding:1px 10px;line-height:16px"


def escape(text: str) -> str:
    """``text`` safe inside elements, control characters and lone surrogates replaced.

    JupyterLab typesets what stands between two ``$`` or behind a backslash; it looks for them in one run of text, so
    each gets an element of its own.
    """
    safe = escape_attribute(text)
    return safe if _MATHEMATICS.isdisjoint(safe) else _DELIMITER.sub(r"<span>\g<0></span>", safe)


def escape_attribute(text: str) -> str:
    """``text`` safe inside attributes, and where no element may stand; else as ``escape``."""
    return html.escape(printable(text), quote=True)


def element(tag: str, content: str, style: str = "", **attributes: str) -> str:
    """``<tag style=... ...>content</tag>``; ``content`` is HTML, attribute values are text."""
    parts = [f' style="{html.escape(style, quote=True)}"'] if style else []
    parts += [f' {name}="{escape_attribute(value)}"' for name, value in attributes.items() if value]
    return f"<{tag}{''.join(parts)}>{content}</{tag}>"


def div(content: str, style: str = "") -> str:
    return element("div", content, style)


def span(content: str, style: str = "", title: str = "") -> str:
    return element("span", content, style, title=title)


def muted(content: str) -> str:
    return span(content, MUTED)


def mono(text: str, *, indent: bool = False, bold: bool = False) -> str:
    """Code: ``text`` escaped; with ``indent`` every space is kept."""
    safe = escape(text.expandtabs(4))
    if indent:
        safe = safe.replace("  ", "&nbsp; ").replace("  ", " &nbsp;")
        if safe.startswith(" "):
            safe = "&nbsp;" + safe[1:]
    return span(safe, f"{_MONO};font-weight:bold" if bold else _MONO)


def code_name(text: str, width: int) -> str:
    """A name as code on one line, at most ``width`` columns, the full one on hover."""
    line = " ".join(text.split())
    short = shorten(line, width)
    look = f"{_MONO};white-space:nowrap"
    return span(escape(short), look, title="" if short == line else shorten(line, 1000))


def title(name: str, more: str = "") -> str:
    """A section's title; ``more`` is text."""
    tail = f"&nbsp; {muted(escape(more))}" if more else ""
    return div(f"<b>{escape(name)}</b>{tail}", "font-size:13px;line-height:18px;margin:0 0 3px 0")


def note(content: str, top: int = 4) -> str:
    return div(content, f"{SMALL};margin-top:{top}px")


def section(content: str, *, first: bool = False) -> str:
    border = "" if first else f"border-top:1px solid {RULE};"
    return div(content, f"{border}padding:8px 0 9px 0")


def columns_row(main: str, notes: str, *, reverse: bool = False) -> str:
    """``main`` with ``notes`` at its right, below it on a narrow page; ``reverse``: notes come first in the text."""
    if not notes:
        return div(main, f"max-width:{MAIN}px")
    left = div(main, f"flex:1 1 {MAIN - 40}px;min-width:0;max-width:100%")
    right = div(notes, f"flex:1 1 {NOTES - 36}px;min-width:0;max-width:100%")
    if reverse:
        return div(
            right + left, "display:flex;flex-direction:row-reverse;flex-wrap:wrap;gap:8px 36px;align-items:flex-start"
        )
    return div(left + right, "display:flex;flex-wrap:wrap;gap:4px 36px;align-items:flex-start")


def chip(text: str, fill: str, ink: str) -> str:
    style = "font-weight:bold;font-size:12px;padding:0 5px;border-radius:3px;white-space:nowrap"
    return span(escape(text), f"background:{fill};color:{ink};{style}")


def swatch(fill: str) -> str:
    look = f"background:{fill}" if fill else "border:1px solid #787878"
    return span(
        "", f"display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:7px;box-sizing:border-box;{look}"
    )


def bar(share: float, fill: str, *, width: str = "100%", track: bool = False) -> str:
    """A bar of 9 px; a share above 0 is at least a hair wide."""
    length = f"{max(min(share, 1.0) * 100, 0.8):.1f}%" if share > 0 else "0"
    inner = div("", f"width:{length};height:9px;background:{fill};border-radius:1px")
    if width == "100%" and not track:
        return inner
    background = f";background:{TRACK}" if track else ""
    return div(inner, f"width:{width};height:9px{background}")


def cell(content: str, *, align: str = "left", style: str = "", span_columns: int = 1, header: bool = False) -> str:
    """A cell; of declarations in ``style`` that are made twice the last one holds."""
    look = [_CELL]
    if align == "left":
        look.append("text-align:left")  # JupyterLab puts every cell's text at the right
    if header:
        look.append("font-size:12px;font-weight:normal;white-space:nowrap")
        content = muted(content)
    elif align == "right" and " " in content:
        look.append("white-space:nowrap")
    more = {"colspan": str(span_columns)} if span_columns > 1 else {}
    if header or align != "left":
        more["align"] = align
    return element("th" if header else "td", content, _declared(";".join((*look, style))), **more)


def row(*cells: str, style: str = "") -> str:
    return element("tr", "".join(cells), f"background:transparent{';' + style if style else ''}")


def _declared(style: str) -> str:
    """``style`` with each property once, as it was said last."""
    said: dict[str, str] = {}
    for part in filter(None, style.split(";")):
        name, value = part.split(":", 1)
        said.pop(name, None)
        said[name] = value
    return ";".join(f"{name}:{value}" for name, value in said.items())


def table(head: str, body: str, style: str = "") -> str:
    look = (
        "border-collapse:collapse;border:0;table-layout:auto;width:100%;margin:0;background:transparent;font-size:13px"
    )
    upper = element("thead", head, f"border:0;border-bottom:1px solid {RULE};background:transparent") if head else ""
    whole = element("table", upper + f"<tbody>{body}</tbody>", f"{look};{style}" if style else look)
    return div(whole, "overflow:auto")  # wider than a narrow page it can be moved, and is not cut off


def picture(png: bytes, alt: str, width: float) -> str:
    """The PNG as a ``data:`` image, ``width`` CSS pixels wide or as wide as the page allows."""
    data = base64.b64encode(png).decode("ascii")
    style = f"width:{width:.0f}px;max-width:100%;height:auto;display:block;margin:0;background:transparent"
    return f'<img src="data:image/png;base64,{data}" alt="{escape_attribute(alt)}" width="{width:.0f}" style="{style}">'


def figure(drawn: Drawn, width: float) -> str:
    """The picture with its words over it, each at its place however wide the page lets the picture be."""
    words = " ".join(_placed(word) for word in drawn.words)
    look = f"position:relative;width:{width:.0f}px;max-width:100%;font-size:11px;line-height:14px;white-space:nowrap"
    return div(picture(drawn.png, drawn.alt, width) + words, look)


def _placed(word: Word) -> str:
    place = f"left:{word.left:.2%}"
    if word.align == "right":
        place = f"right:{1 - word.left:.2%}"
        if columns(word.text) > 8:
            place += f";max-width:{word.left:.1%};overflow:hidden;text-overflow:ellipsis"
    elif word.align == "center":
        place += ";width:0;display:flex;justify-content:center"
    return span(escape(word.text), f"position:absolute;margin-top:-7px;top:{word.top:.1%};{place};{MUTED}")


def details(summary: str, content: str, *, more: str = "") -> str:
    """A folded part; ``summary`` and ``more`` are text, ``content`` is HTML."""
    head = f"{escape(summary)}{'&nbsp; ' + muted(escape(more)) if more else ''}"
    line = element("summary", head, "font-size:13px;line-height:20px;cursor:pointer")
    return element("details", line + div(content, "padding:4px 0 6px 0"), "margin:0")


def card(content: str) -> str:
    look = f"{_FONT};font-size:13px;line-height:17px;max-width:{CARD}px;text-align:left;word-wrap:break-word"
    return div(content, look)


def text_fits(text: str, pixels: float, *, bold: bool = True) -> bool:
    """Whether ``text`` of 12 px fits into ``pixels``, by the mean width of a character."""
    return columns(text) * (6.5 if bold else 5.8) + 12 <= pixels
