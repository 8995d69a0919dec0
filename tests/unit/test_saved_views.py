"""A saved report from anywhere: what is damaged is left out or refused, and what is left can be drawn."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ipyprof import api
from ipyprof.__main__ import main
from ipyprof.diagnosis import trust as device_state
from ipyprof.errors import IpyprofError
from ipyprof.report import build
from ipyprof.report import build as views
from ipyprof.report.report import Report
from ipyprof.report.saved_views import DEEPEST, RANKS, VIEW_NAMES, fitting, sound
from ipyprof.show import pictures as plots
from ipyprof.show import pictures as timeline
from ipyprof.show.html import render_page
from ipyprof.show.text import render_text
from tests.damaged_reports import Sketch, damaged, everything, left_out, out_of_memory, outcome, places
from tests.fuzz.seeds import FIXTURES
from tests.sample_reports import SAMPLES, cpu_only, starvation

CASES = 50  # of each sample
BASES = {"everything": everything, "out of memory": out_of_memory, "starvation": starvation, "cpu only": cpu_only}


def changed(path: tuple[Any, ...], value: Any) -> Report:
    """``out_of_memory`` as read from a file in which the value at ``path`` is another one."""
    plain = json.loads(json.dumps(out_of_memory().to_dict()))
    holder = plain
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return Report.from_dict(plain)


@pytest.mark.parametrize("name", BASES)
def test_a_damaged_report_is_drawn_or_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # given a report, and pictures that only look at what they are given
    for module in (plots, timeline):
        monkeypatch.setattr(module, "Picture", Sketch)
    plain, other = json.loads(json.dumps(BASES[name]().to_dict())), starvation()
    chance, everywhere = random.Random(name), list(places(plain))
    inside = [path for path in everywhere if path[0] in ("views", RANKS)]
    seen: set[str] = set()
    # when values in its views, and anywhere, are replaced, left out, doubled or renamed
    found = [outcome(plain, other, seen)]
    for number in range(CASES):
        path = chance.choice(inside if number % 3 and inside else everywhere)
        found.append(outcome(damaged(plain, path, chance), other, seen))
    # then each ends in a report, one without a view, or a refusal
    assert found[0] == "report"
    assert set(found) == {"report", "left out", "refused"}


def test_every_view_of_a_report_comes_back() -> None:
    # given reports with everything in them, when they are read from their JSON, then nothing is left out
    for report in (everything(), out_of_memory(), *(sample() for sample in SAMPLES.values())):
        plain = report.to_dict()
        again = Report.from_dict(json.loads(json.dumps(plain)))
        assert again.to_dict() == plain
        assert render_text(again) == render_text(report)


def test_recorded_reports_come_back_with_the_same_page() -> None:
    # given a recording
    report = api.load(FIXTURES / "sleeping_loader_slow.json.gz")
    # when its report is read from its JSON
    again = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    # then page and views are the same
    assert again.views == report.views
    assert render_page(again) == render_page(report)


def test_every_view_that_is_built_has_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    # given all views that ``build`` knows, each with something in it
    for name in ("heartbeat", "per_step", "timeline", "without"):
        monkeypatch.setattr(views, name, lambda *_given: 1)
    monkeypatch.setattr(build, "memory_views", lambda *_given: 1)
    monkeypatch.setattr(build, "groups", lambda *_given: 1)
    monkeypatch.setattr(device_state, "view", lambda *_given: 1)
    # then a saved report keeps them all
    assert set(build._views(None, None)) == VIEW_NAMES  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "path", "value"),
    [
        ("groups", ("groups", "phase"), [1, 2]),
        ("timeline", ("timeline", "lanes"), 5),
        ("timeline", ("timeline", "lanes", 0, "segments", 0), [1.0, 2.0]),
        ("heartbeat", ("heartbeat", "allocated"), ["a"]),
        ("heartbeat", ("heartbeat", "reserved"), [1, 2]),
        ("heartbeat", ("heartbeat", "time_ms"), [0.0, 9.0, 5.0]),
        ("heartbeat", ("heartbeat", "marks_ms", 0), float("nan")),
        ("memory", ("memory", "moments", "changes", 0), [2, 4_096]),
        ("memory", ("memory", "moments", "changes", 0), [1]),
        ("memory", ("memory", "moments", "first"), [1]),
        ("memory", ("memory", "devices", 0, "allocated"), []),
        ("memory", ("memory", "calls", 0), [1.0]),
        ("memory", ("memory", "out_of_memory", "holders", 0), {"name": "w"}),
        ("per_step", ("per_step", 1, "step"), 1),
        ("per_step", ("per_step", 0, "operators"), [{}]),
        ("without", ("without", "step_ms"), 10**400),
        ("device_state", ("device_state", "text"), 7),
    ],
)
def test_a_damaged_view_is_left_out_and_said(view: str, path: tuple[Any, ...], value: Any) -> None:
    # when a report with one value that is odd is read
    report = changed(("views", *path), value)
    # then that view is gone, the others are there, and trust says so
    assert report.views.keys() == VIEW_NAMES - {view}
    assert report.trust[-1].status == "warn"
    assert left_out(report) == f"damaged in the file and left out: {view}"
    assert f"left out: {view}" in " ".join(render_text(report).split())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("lanes",), {"first": [[0.0, 1.0]]}),
        (("per_rank", 0, "breakdown"), {"compute": 1.0}),
        (("entries", 0, "arrivals_ms"), []),
        (("count",), "four"),
    ],
)
def test_damaged_ranks_are_left_out_and_said(path: tuple[Any, ...], value: Any) -> None:
    report = changed((RANKS, *path), value)
    assert report.ranks is None
    assert left_out(report) == "damaged in the file and left out: ranks"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, 10**400])
def test_a_number_that_cannot_have_been_measured_is_refused(value: float) -> None:
    with pytest.raises(IpyprofError, match="too large or not finite"):
        changed(("breakdown", "cpu"), value)


def test_half_a_character_in_place_of_a_number_is_refused() -> None:
    with pytest.raises(IpyprofError):
        changed(("breakdown", "cpu"), "\ud800")
    assert not fitting("device_state", {"text": "", "others": "\ud800"})


def test_what_nests_too_deep_is_not_sound() -> None:
    # given lists within lists
    deep: list[Any] = []
    for _ in range(DEEPEST - 1):
        deep = [deep]
    # then one more is too many
    assert sound(deep)
    assert not sound([deep])


def test_an_unknown_view_is_ignored() -> None:
    plain = everything().to_dict()
    plain["views"]["of_a_later_version"] = [1, 2]
    report = Report.from_dict(plain)
    assert report.views.keys() == VIEW_NAMES
    assert left_out(report) == ""


def test_the_command_reports_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a file with two damaged views
    plain = everything().to_dict()
    plain["views"] |= {"groups": {"phase": [1, 2]}, "timeline": {"lanes": 5}}
    saved, page = tmp_path / "report.json", tmp_path / "page.html"
    saved.write_text(json.dumps(plain))
    # when text and page are asked for, then both are there and name them
    assert main(["report", str(saved)]) == 0
    assert "left out: timeline, groups" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(saved), "--html", str(page)]) == 0
    assert "left out: timeline, groups" in page.read_text()
