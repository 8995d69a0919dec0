"""Every text that comes from a file reaches the outputs as text: no element, no attribute, no formula, no command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.mathtext
import pytest

from ipyprof import saved
from ipyprof.errors import IpyprofError
from ipyprof.report.report import Report
from ipyprof.show.html import bundle, render_page
from ipyprof.show.panel import build_panel, close_panel
from ipyprof.show.text import render_text
from tests.fuzz.seeds import built, live_record
from tests.outline import Outline

MARK = "zq"
HOSTILE = (
    f"{MARK}\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;b&gt;"
    "$\\frac{1}{0}$ `code` [link](javascript:alert(1)) \x1b[2J\x07\x00\u202e\r\nFORGED 99.9 ms"
)
ALLOWED_TAGS = {
    *("div", "span", "b", "table", "thead", "tbody", "tr", "td", "th", "img", "details", "summary"),
    *("html", "head", "meta", "title", "body", "br", "h3", "h4"),
}
ALLOWED_ATTRIBUTES = {
    *("style", "title", "align", "colspan", "src", "alt", "width", "lang", "charset", "name", "content", "aria-label"),
}

File = dict[str, Any]
Plant = Callable[[File], None]


def named(category: str, wanted: str = "") -> Plant:
    """Plants in the names of all events of a category, or of those with one name."""

    def plant(file: File) -> None:
        for event in file["traceEvents"]:
            if event.get("cat") == category and event["name"].startswith(wanted):
                event["name"] = event["name"][: len(wanted)] + HOSTILE if wanted.startswith("#") else HOSTILE

    return plant


def argument(key: str, value: Any) -> Plant:
    """Plants in an argument of all events that have it."""

    def plant(file: File) -> None:
        for event in file["traceEvents"]:
            if key in event.get("args", {}):
                event["args"][key] = value

    return plant


def live(**values: Any) -> Plant:
    def plant(file: File) -> None:
        file["ipyprof"] = {**file["ipyprof"], **values}

    return plant


def device_name(file: File) -> None:
    file["deviceProperties"][0]["name"] = HOSTILE
    file["ipyprof"]["device_names"] = {"0": HOSTILE}


def thread_name(file: File) -> None:
    for event in file["traceEvents"]:
        if event.get("ph") == "M":
            event["args"]["name"] = HOSTILE


def top_level(file: File) -> None:
    file[HOSTILE] = HOSTILE
    file["distributedInfo"] = {"backend": HOSTILE, "rank": 0, "world_size": 2, HOSTILE: [HOSTILE]}
    file["traceName"] = HOSTILE


def keys_of_events(file: File) -> None:
    for event in file["traceEvents"]:
        event[HOSTILE] = {HOSTILE: HOSTILE}
        event.setdefault("args", {})[HOSTILE] = HOSTILE


def ids(file: File) -> None:
    for event in file["traceEvents"]:
        event["pid"] = event["tid"] = HOSTILE


def everything(file: File) -> None:
    for key, plant in PLACES.items():
        if key != "everything":
            plant(file)


PLACES: dict[str, Plant] = {
    "operator": named("cpu_op", "aten::mm"),
    "all operators": named("cpu_op"),
    "kernel": named("kernel"),
    "copy": named("gpu_memcpy"),
    "call": named("cuda_runtime"),
    "annotation": named("user_annotation"),
    "device": device_name,
    "thread": thread_name,
    "top level": top_level,
    "keys": keys_of_events,
    "ids": ids,
    "dtype": argument("Input type", [HOSTILE, HOSTILE]),
    "shapes": argument("Input Dims", [HOSTILE, [HOSTILE]]),
    "inputs": argument("Concrete Inputs", [HOSTILE]),
    "collective": argument("Collective name", HOSTILE),
    "grid": argument("grid", [HOSTILE]),
    "cell": live(source=f"%%gpuprofile\nfor x in loader:\n    {HOSTILE}.item()"),
    "how": live(how=HOSTILE, partial=HOSTILE, alternatives=[HOSTILE]),
    "environment": live(environment={"torch": HOSTILE, HOSTILE: HOSTILE}),
    "sync site": live(sync_sites=[{"file": HOSTILE, "line": 3, "count": 1.0, "in_cell": False}]),
    "note": live(notes=[[HOSTILE, "warn", HOSTILE], ["profiler", HOSTILE, HOSTILE]]),
    "unit": live(items=8, unit=HOSTILE),
    "baseline": live(baseline=HOSTILE, mark=HOSTILE),
    "everything": everything,
}

SHOWN = {"operator", "all operators", "device", "cell", "how", "note", "unit", "everything"}
"""Where the text must be seen, so that the test looks at something."""


def report_with(plant: Plant, folder: Path) -> Report:
    builder = built()
    builder.live(live_record())
    file = json.loads(builder.json())
    plant(file)
    path = folder / "trace.json"
    path.write_text(json.dumps(file))
    return saved.load(path)


def assert_harmless(markup: str) -> Outline:
    outline = Outline(markup)
    assert outline.open == []
    assert outline.tags <= ALLOWED_TAGS
    assert outline.attributes <= ALLOWED_ATTRIBUTES
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(markup)
    return outline


@pytest.mark.parametrize("place", PLACES)
def test_text_of_a_file_stays_text(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given text that HTML, Markdown, mathtext or a terminal would act on
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a name was parsed as mathematics")

    monkeypatch.setattr(matplotlib.mathtext.MathTextParser, "parse", refuse)
    report = report_with(PLACES[place], tmp_path)
    # when
    page, shown, plain = render_page(report), bundle(report), render_text(report)
    # then the page holds our own elements, and the text as text
    outline = assert_harmless(page)
    assert_harmless(shown["text/html"])
    if place in SHOWN:
        assert MARK in outline.text
        assert MARK in plain
    # and the terminal gets no command and no line of somebody else's
    assert all(character == "\n" or character.isprintable() for character in plain)
    assert not [line for line in plain.splitlines() if line.startswith("FORGED")]
    assert shown["text/plain"] == plain
    assert set(shown) == {"text/plain", "text/html"}


@pytest.mark.parametrize("place", ["operator", "all operators", "kernel"])
def test_the_panel_shows_text_as_text(place: str, tmp_path: Path) -> None:
    pytest.importorskip("ipywidgets")
    panel = build_panel(report_with(PLACES[place], tmp_path))
    assert panel is not None
    try:
        seen = 0
        for chooser in [part for part in parts(panel) if getattr(part, "options", None)]:
            for option in chooser.options:
                chooser.value = option[1] if isinstance(option, tuple) else option
                for part in parts(panel):
                    if type(part).__name__ == "HTML":
                        assert_harmless(part.value)
                        seen += MARK in part.value
        assert seen
    finally:
        close_panel(panel)


def parts(widget: Any) -> list[Any]:
    """The widget and all that it holds."""
    return [widget, *(part for child in getattr(widget, "children", ()) for part in parts(child))]


def test_the_name_of_the_file_stays_text(tmp_path: Path) -> None:
    # given a name that a file system takes
    path = tmp_path / HOSTILE.replace("/", "").replace("\0", "")[:80]
    path.write_bytes(built().json())
    # when
    report = saved.load(path)
    # then
    assert_harmless(render_page(report))
    assert "\x1b" not in render_text(report)


def test_the_name_of_a_file_that_is_refused_is_no_command(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[2J\nb.json"
    path.write_bytes(b"no trace")
    with pytest.raises(IpyprofError) as caught:
        saved.load(path)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_report_is_untrusted_too(tmp_path: Path) -> None:
    # given a report in whose JSON every text was replaced
    plain = report_with(PLACES["note"], tmp_path).to_dict()

    def planted(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: planted(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [planted(item, key) for item in value]
        return HOSTILE if isinstance(value, str) and key not in ("cause", "status", "confidence", "bound") else value

    path = tmp_path / "report.json"
    path.write_text(json.dumps(planted(plain)))
    # when
    report = saved.load(path)
    # then
    assert_harmless(render_page(report))
    assert not {"\x1b", "\0"} & set(render_text(report))
