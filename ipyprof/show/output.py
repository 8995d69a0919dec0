"""Where a run shows itself: in a notebook, in a terminal or script, or nowhere.

Nothing here clears an output of the user's. The status line is one output that is updated in its place and ends as the
verdict in one line; the report is an output of its own, and so is the panel: losing the panel never loses the report.
"""

from __future__ import annotations

import html
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ipyprof import history
from ipyprof.files import write_text

if TYPE_CHECKING:
    from ipyprof.report.report import Report


WIDEST = 100
WIDGET = "application/vnd.jupyter.widget-view+json"
_NAME = "ipyprof: "
_STATUS_STYLE = "font:12px system-ui,sans-serif;opacity:.75;padding:1px 0"
_NO_PANEL = "(a panel to step through the recorded steps is here in a live notebook)"
_ERASE = "\r\033[K"


class Surface(Protocol):
    """What a run shows, and where. ``panel``: the widgets are shown under the report."""

    @property
    def panel(self) -> bool: ...

    def status(self, text: str) -> None:
        """Show what is going on, in one line that replaces the one before."""

    def end(self, text: str) -> None:
        """The last text of the status line."""

    def say(self, text: str) -> None:
        """Print one line that stays."""

    def show(self, report: Report) -> None:
        """Show the report."""


class Notebook:
    """Rich outputs of a kernel.

    Args:
        panel: show the widgets under the report.
    """

    def __init__(self, *, panel: bool) -> None:
        self.panel = panel
        self._line: Any = None

    def status(self, text: str) -> None:
        from IPython.display import display

        line = _NAME + text
        shown = {"text/plain": line, "text/html": f'<div style="{_STATUS_STYLE}">{_linked(line)}</div>'}
        if self._line is None:
            self._line = display(shown, raw=True, display_id=True)
        else:
            self._line.update(shown, raw=True)

    def end(self, text: str) -> None:
        if self._line is not None:
            self.status(text)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, report: Report) -> None:
        from IPython.display import display

        from ipyprof.show.html import bundle

        display(bundle(report), raw=True)
        if self.panel:
            show_panel(report)


def _linked(line: str) -> str:
    """The line as HTML; Perfetto's address is a link."""
    from ipyprof.show.perfetto import LINK, ORIGIN  # here, for it takes asyncio along

    return html.escape(line).replace(ORIGIN, LINK)


class Terminal:
    """Plain text. The status line appears only where standard error is a terminal, and leaves nothing behind."""

    panel = False

    def status(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"{_ERASE}{_NAME}{text}", end="", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        if sys.stderr.isatty():
            print(_ERASE, end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        self.end("")
        print(text, flush=True)

    def show(self, report: Report) -> None:
        from ipyprof.show.text import render_text

        self.end("")
        print(render_text(report, min(shutil.get_terminal_size().columns, WIDEST)), flush=True)


class Silent:
    """Nothing but what went wrong."""

    panel = False

    def status(self, text: str) -> None:
        """Not shown."""

    def end(self, text: str) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def show(self, report: Report) -> None:
        """Not shown."""


def surface_for(shell: Any | None, *, quiet: bool, static: bool) -> Surface:
    """The place for the output of one run.

    Args:
        shell: the ``InteractiveShell`` that runs the code, or ``None`` in a script.
        quiet: show nothing.
        static: leave out the panel.
    """
    if quiet:
        return Silent()
    if takes_rich_output(shell):
        return Notebook(panel=not static and getattr(shell, "kernel", None) is not None)
    return Terminal()


def takes_rich_output(shell: Any | None) -> bool:
    """Whether this shell's displays go to a front end (or are captured), not to a terminal as text."""
    if shell is None:
        return False
    from IPython.core.displaypub import DisplayPublisher

    return type(shell.display_pub) is not DisplayPublisher


def show_panel(report: Report) -> bool:
    """Whether the panel was shown, as an output of its own. A front end without widgets costs nothing but the panel."""
    from IPython.display import display

    from ipyprof.show.panel import build_panel, close_panel

    try:
        saves = {
            "Save page": (".html", partial(write_page, report)),
            "Save JSON": (".json", partial(write_json, report)),
        }
        panel = build_panel(report, trace=history.trace_of(report), earlier=history.numbered, saves=saves)
        if panel is None:
            return False
        history.keep_panel(partial(close_panel, panel))
        bundle_of = getattr(panel, "_repr_mimebundle_", None)  # ipywidgets 8
        bundle = bundle_of() if bundle_of is not None else None
        if not bundle or WIDGET not in bundle:  # ipywidgets 7 shows itself, with all its fields as text
            bundle = {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}}
        display({**bundle, "text/plain": _NO_PANEL}, raw=True)
    except Exception:  # the report is shown already, and whole
        return False
    return True


def write_page(report: Report, target: Path) -> None:
    """The dashboard as an HTML page, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    from ipyprof.show.html import render_page

    write_text(render_page(report), target)


def write_json(report: Report, target: Path) -> None:
    """The report as JSON, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    write_text(json.dumps(report.to_dict(), allow_nan=False), target)
