"""Where a run shows itself, and that a broken panel costs only the panel."""

from __future__ import annotations

import gc
import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from ipyprof.show import panel as widgets
from ipyprof.show.output import WIDGET, Notebook, Silent, Terminal, surface_for
from tests import sample_reports


class Shell:
    """A shell with this publisher."""

    def __init__(self, publisher: object) -> None:
        self.display_pub = publisher


class Screen(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("shell", "quiet", "kind"),
    [
        (None, False, Terminal),
        (None, True, Silent),
        (Shell(DisplayPublisher()), False, Terminal),
        (Shell(CapturingDisplayPublisher()), False, Notebook),
        (Shell(CapturingDisplayPublisher()), True, Silent),
    ],
)
def test_place_follows_the_shell(shell: Any, quiet: bool, kind: type) -> None:
    # given a shell or none, when the place is chosen, then it is what that shell can show
    assert type(surface_for(shell, quiet=quiet, static=False)) is kind


def test_notebook_updates_one_escaped_status_line(shell: InteractiveShell) -> None:
    with capture_output() as captured:
        # given a notebook's surface
        surface = Notebook(panel=False)
        # when the status changes and ends
        surface.status("recording <3> steps")
        surface.end("done & over")
    # then all is one output that was updated, and text is escaped
    first, last = captured.outputs
    assert "recording &lt;3&gt; steps" in first.data["text/html"]
    assert last.data["text/plain"] == "ipyprof: done & over"
    assert "done &amp; over" in last.data["text/html"]


def test_report_then_panel_as_its_own_output(shell: InteractiveShell) -> None:
    # given a report with recorded steps, when it is shown with the panel, then there are two outputs
    with capture_output() as captured:
        Notebook(panel=True).show(sample_reports.sync())
    report, panel = captured.outputs
    assert set(report.data) == {"text/plain", "text/html"}
    assert WIDGET in panel.data


def test_ipywidgets_7_gets_the_same_two_outputs(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a panel of ipywidgets 7, which makes no bundle of its own
    old = SimpleNamespace(model_id="abc", close=lambda: None)
    monkeypatch.setattr(widgets, "build_panel", lambda *_parts, **_named: old)
    # when it is shown, then the view names its model, and its text is not the list of its fields
    with capture_output() as captured:
        Notebook(panel=True).show(sample_reports.sync())
    _, panel = captured.outputs
    assert panel.data[WIDGET] == {"version_major": 2, "version_minor": 0, "model_id": "abc"}
    assert "live notebook" in panel.data["text/plain"] and "SimpleNamespace" not in panel.data["text/plain"]


def test_twenty_runs_leave_the_users_figures_alone(shell: InteractiveShell) -> None:
    # given a figure of the user's, settings of their own, and as many panels as are kept
    import matplotlib
    import matplotlib.figure
    import matplotlib.pyplot as pyplot

    def figures() -> int:
        gc.collect()
        return sum(type(one) is matplotlib.figure.Figure for one in gc.get_objects())

    def settings() -> tuple[object, ...]:
        return dict(matplotlib.rcParams), pyplot.get_backend(), pyplot.isinteractive(), pyplot.get_fignums()

    backend = matplotlib.get_backend()
    matplotlib.use("agg")
    report = sample_reports.no_baseline()
    with matplotlib.rc_context({"lines.linewidth": 7, "figure.facecolor": "pink"}), capture_output():
        pyplot.figure(num=41)
        for _ in range(10):
            Notebook(panel=True).show(report)
        before, alive = settings(), figures()
        # when ten more are shown
        for _ in range(10):
            Notebook(panel=True).show(report)
        # then settings, backend and figures are the same, and no figure of ours is kept
        assert settings() == before
        assert pyplot.gcf().number == 41
        assert figures() == alive
        pyplot.close(41)
    matplotlib.use(backend)


def test_only_ten_panels_stay_alive(shell: InteractiveShell) -> None:
    # given ten panels
    from ipywidgets.widgets import widget

    living = widget._instances if hasattr(widget, "_instances") else widget.Widget.widgets  # ipywidgets 8, 7
    with capture_output():
        for _ in range(10):
            Notebook(panel=True).show(sample_reports.sync())
        alive = len(living)
        # when two more are shown, then as many widgets are alive as before
        for _ in range(2):
            Notebook(panel=True).show(sample_reports.sync())
    assert len(living) == alive


def test_broken_panel_keeps_the_report(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # given widgets that fail
    def fail(_report: object) -> None:
        raise RuntimeError("no comm")

    monkeypatch.setattr(widgets, "build_panel", fail)
    # when a report is shown, then it is there alone
    with capture_output() as captured:
        Notebook(panel=True).show(sample_reports.sync())
    assert [set(output.data) for output in captured.outputs] == [{"text/plain", "text/html"}]


def test_terminal_erases_its_status_before_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a terminal
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    surface = Terminal()
    # when a status and the report are shown, then the line is erased and the text is on standard output
    surface.status("recording 3 steps")
    surface.show(sample_reports.sync())
    assert screen.getvalue() == "\r\033[Kipyprof: recording 3 steps\r\033[K"
    assert "Top operators" in capsys.readouterr().out
