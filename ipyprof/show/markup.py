"""Templates become HTML here: autoescape is on, and what damaged and hostile names hold is made harmless.

The templates use style attributes only, for untrusted notebooks and GitHub remove the rest. JupyterLab stripes table
rows, fixes columns and colours code; styles undo that. Text gets no colour, so that it inherits the theme's.
"""

from __future__ import annotations

import base64
import functools
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ipyprof.formatting import GLUE, columns, printable, unbroken
from ipyprof.show import words
from ipyprof.show.pictures import Drawn, Word

CARD = 1080
MAIN = 700
_DELIMITER = re.compile(r"[$\\]")
_LAST_WORDS = 3  # blanks
_EDGE_SHARE = 3.0 / 632  # of a bar: an edge has a width of its own, which a hair has not
BAR_PIXELS = 632.0  # the bar in a browser 800 wide: what fits there fits everywhere


def escape(text: Any) -> Markup:
    """``text`` safe inside elements, control characters and lone surrogates replaced.

    JupyterLab typesets what stands between two ``$`` or behind a backslash; it looks for them in one run of text, so
    each gets an element of its own.
    """
    safe = attribute(text)
    return Markup(_DELIMITER.sub(r"<span>\g<0></span>", str(safe)))  # a Markup would escape the elements


def attribute(text: Any) -> Markup:
    """``text`` safe inside attributes, and where no element may stand; else as ``escape``."""
    return Markup.escape(printable(str(text)))


def code(text: str) -> Markup:
    """Code with every blank kept."""
    safe = escape(text.expandtabs(4)).replace("  ", Markup("&nbsp; ")).replace("  ", Markup(" &nbsp;"))
    return Markup("&nbsp;") + safe[1:] if safe.startswith(" ") else safe


def headline(text: str) -> Markup:
    """The sentence. Its last words stay together: a line that says ``faster.`` alone says nothing."""
    return Markup(GLUE.join(escape(unbroken(text)).rsplit(" ", _LAST_WORDS)))


def text_fits(text: str, pixels: float, *, bold: bool = True) -> bool:
    """Whether ``text`` of 12 px fits into ``pixels``, by the mean width of a character."""
    return columns(text) * (6.5 if bold else 5.8) + 12 <= pixels


def render(template: str, **values: Any) -> str:
    """The template with ``values``; a text among them is escaped, ``Markup`` is not."""
    return _environment().get_template(template).render(values)


def table_html(table: Any) -> str:
    """A ``Table`` as a card of its own."""
    return render("table.html", table=table)


def figure_html(drawn: Drawn, width: float) -> Markup:
    """The picture with its words over it, each at its place however wide the page lets the picture be."""
    module: Any = _environment().get_template("parts.html").module
    return Markup(module.figure(drawn, width))


def card(content: str) -> str:
    """``content``, which is HTML, in the dashboard's font and width."""
    return render("card.html", content=Markup(content))


def _place(word: Word) -> str:
    """The style that puts a word over its picture."""
    place = f"left:{word.left:.2%}"
    if word.align == "right":
        place = f"right:{1 - word.left:.2%}"
        if columns(word.text) > 8:
            place += f";max-width:{word.left:.1%};overflow:hidden;text-overflow:ellipsis"
    elif word.align == "center":
        place += ";width:0;display:flex;justify-content:center"
    return f"top:{word.top:.1%};{place}"


def _safe(value: Any) -> Any:
    return value if isinstance(value, (Markup, jinja2.Undefined)) else escape(value)


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_safe,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "attribute": attribute,
        "base64": lambda png: base64.b64encode(png).decode("ascii"),
        "code": code,
        "headline": headline,
        "place": _place,
        "unbroken": unbroken,
    }
    made.globals |= {
        name: getattr(words, name) for name in ("ACCENT", "ACCENT_INK", "OUTLINE", "RULE", "TRACK", "OTHER", "TRUST")
    }
    made.globals |= {
        "CARD": CARD,
        "MAIN": MAIN,
        "EDGE_SHARE": _EDGE_SHARE,
        "SMALL": Markup("font-size:12px;line-height:17px"),
    }
    made.globals |= {
        "MUTED": Markup("opacity:.72"),
        "MONO": Markup("font-family:Menlo,Consolas,monospace;font-size:12px"),
    }
    return made
