"""The panel: a step slider over donut and operators, and its absence."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from ipyprof.report.report import Report
from ipyprof.report.widgets import build_panel, step_view
from tests.sample_reports import cpu_only, starvation, sync


def test_panel_starts_with_the_mean() -> None:
    # given a report with three recorded steps, when the panel is built
    slider, below = build_panel(starvation()).children
    table, image = below.children
    # then the slider offers the mean and each step, and shows the mean's donut and operators
    assert slider.options == ("mean", "step 1", "step 2", "step 3")
    assert bytes(image.value).startswith(b"\x89PNG")
    assert "aten::copy_" in table.value
    assert "in one step," in table.value


def test_moving_the_slider_shows_that_step() -> None:
    # given a panel, when the slider moves to step 2
    slider, below = build_panel(starvation()).children
    table, image = below.children
    mean = bytes(image.value)
    slider.value = "step 2"
    # then picture and table are that step's, and say that the clock is the recording's
    assert bytes(image.value) != mean
    assert "one recorded step" in table.value
    # and the mean comes back
    slider.value = "mean"
    assert bytes(image.value) == mean


def test_panel_of_a_report_from_json() -> None:
    # given a report that went through JSON, when a step is drawn, then it is the same
    report = sync()
    assert step_view(Report.from_dict(report.to_dict()), "step 3") == step_view(report, "step 3")


def test_no_steps_no_panel() -> None:
    assert build_panel(cpu_only()) is None
    assert build_panel(dataclasses.replace(sync(), views={})) is None


def test_without_ipywidgets_there_is_no_panel_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an environment without ipywidgets
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    # when the panel is built, then there is none
    assert build_panel(sync()) is None
