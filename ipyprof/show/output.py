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
DIFFERS = 0.05
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

    def show(self, report: Report, *, goes_on: bool = False) -> None:
        """Show the report; ``goes_on``: the loop does, and the report will be brought up to date."""

    def update(self, report: Report) -> None:
        """Show the report in the place of the one before, at the end of the cell."""

    def close(self) -> None:
        """The run is over."""


class Notebook:
    """Rich outputs of a kernel.

    Args:
        panel: show the widgets under the report.
    """

    def __init__(self, *, panel: bool) -> None:
        self.panel = panel
        self._line: Any = None
        self._page: Any = None
        self._outputs = _Outputs()

    def status(self, text: str) -> None:
        from IPython.display import display

        if self._outputs.captured:
            return
        line = _NAME + text
        shown = {"text/plain": line, "text/html": f'<div style="{_STATUS_STYLE}">{_linked(line)}</div>'}
        if self._line is None or self._outputs.cleared(self._line):
            self._line = self._outputs.seen(display(shown, raw=True, display_id=True))
        else:
            self._line.update(shown, raw=True)

    def end(self, text: str) -> None:
        if self._line is not None:
            self.status(text)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, report: Report, *, goes_on: bool = False) -> None:
        from IPython.display import display

        from ipyprof.show.html import bundle

        if self._outputs.captured and goes_on:
            return
        self._page = self._outputs.seen(display(bundle(report), raw=True, display_id=True))
        if self.panel and not goes_on:  # a busy kernel answers no widget
            show_panel(report)

    def update(self, report: Report) -> None:
        from ipyprof.show.html import bundle

        if self._page is None or self._outputs.cleared(self._page):
            self.show(report)
            return
        self._page.update(bundle(report), raw=True)
        if self.panel:
            show_panel(report)

    def close(self) -> None:
        self._outputs.close()


class _Outputs:
    """What becomes of our outputs: a cell may clear them, and may capture what is displayed while it runs."""

    def __init__(self) -> None:
        from IPython.core.getipython import get_ipython

        self._shell = get_ipython()
        self._publisher = getattr(self._shell, "display_pub", None)
        self._count = 0
        self._counts: dict[int, int] = {}
        original = getattr(self._publisher, "clear_output", None)
        if original is not None:

            def clear_output(*arguments: Any, **keywords: Any) -> None:
                self._count += 1
                original(*arguments, **keywords)

            vars(self._publisher)["clear_output"] = clear_output

    @property
    def captured(self) -> bool:
        """Whether displays go into a capture of the cell's own, which holds nothing of ours."""
        return getattr(self._shell, "display_pub", None) is not self._publisher

    def seen(self, handle: Any) -> Any:
        """``handle``, of an output that was just displayed."""
        self._counts[id(handle)] = self._count
        return handle

    def cleared(self, handle: Any) -> bool:
        """Whether outputs were cleared since this one was displayed."""
        return self._counts.get(id(handle)) != self._count

    def close(self) -> None:
        """Clearing is as before."""
        if self._publisher is not None:
            vars(self._publisher).pop("clear_output", None)


def _linked(line: str) -> str:
    """The line as HTML; Perfetto's address is a link."""
    from ipyprof.show.perfetto import LINK, ORIGIN  # here, for it takes asyncio along

    return html.escape(line).replace(ORIGIN, LINK)


class Terminal:
    """Plain text. The status line appears only where standard error is a terminal, and leaves nothing behind."""

    panel = False

    def __init__(self) -> None:
        self._shown: Report | None = None

    def status(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"{_ERASE}{_NAME}{text}", end="", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        if sys.stderr.isatty():
            print(_ERASE, end="", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        self.end("")
        print(text, flush=True)

    def show(self, report: Report, *, goes_on: bool = False) -> None:
        from ipyprof.show.text import render_text

        self._shown = report
        self.end("")
        print(render_text(report, min(shutil.get_terminal_size().columns, WIDEST)), flush=True)

    def update(self, report: Report) -> None:
        if self._shown is None or differ(self._shown, report):
            print("\nThe same, of the whole loop:\n", flush=True)
            self.show(report)

    def close(self) -> None:
        """Nothing to undo."""


class Silent:
    """Nothing but what went wrong."""

    panel = False

    def status(self, text: str) -> None:
        """Not shown."""

    def end(self, text: str) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def show(self, report: Report, *, goes_on: bool = False) -> None:
        """Not shown."""

    def update(self, report: Report) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing to undo."""


def differ(one: Report, other: Report) -> bool:
    """Whether the two say different things: another cause, or a step that differs by over ``DIFFERS``."""
    steps = one.steps.step_ms, other.steps.step_ms
    if one.verdict.cause != other.verdict.cause or None in steps:
        return True
    return abs((steps[0] or 0.0) - (steps[1] or 0.0)) > DIFFERS * (steps[0] or 0.0)


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
