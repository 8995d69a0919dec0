"""Donut, heartbeat and timeline: what they say, and that they leave the user's matplotlib alone."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
from msgspec import structs
from PIL import Image

from ipyprof.analysis.results import Breakdown, Heartbeat, Lane, Timeline
from ipyprof.show.markup import figure_html
from ipyprof.show.pictures import (
    DONUT_SIZE,
    Picture,
    _lane_name,
    donut,
    drawable,
    heartbeat,
    magnification,
    quantised_png,
    staircase,
    thin,
    timeline,
)
from ipyprof.show.words import KERNEL, LOADER, culprit_of, step_parts
from tests.sample_reports import HOSTILE, cpu_only, healthy, hostile, inconclusive, starvation, sync


def pixels(png: bytes) -> Any:
    """(height, width, 4) uint8."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGBA"))


def holds(png: bytes, colour: str) -> int:
    """How many pixels have exactly this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)] + [255], dtype=np.uint8)
    return int((pixels(png) == wanted).all(axis=2).sum())


def test_picture_is_a_palette_of_128_colours_at_twice_the_size() -> None:
    # given the busiest picture
    drawn = timeline(starvation().views.timeline)
    assert drawn is not None
    image = Image.open(io.BytesIO(drawn[0]))
    # when it is opened, then it has a palette of at most 128 colours, is 1400 pixels wide and transparent
    assert image.mode == "P"
    assert len(np.unique(np.asarray(image))) <= 128
    assert image.width == 1400
    assert pixels(drawn[0])[0, 0, 3] == 0


def test_frequent_colours_survive_the_palette_exactly() -> None:
    # given a picture with thousands of colours and one large plain area
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 4), dtype=np.uint8)
    noise[:20] = (0x28, 0x69, 0xA2, 255)
    # when it is written, then the plain area has its colour to the last bit
    assert holds(quantised_png(noise), "#2869a2") >= 20 * 60


def test_donut_is_drawn_in_the_categories_colours() -> None:
    report = starvation()
    culprit = culprit_of("data_loading")
    png, alt = donut(step_parts(report.breakdown, culprit), 257.0, culprit=culprit)
    assert pixels(png).shape[:2] == (2 * DONUT_SIZE[1], 2 * DONUT_SIZE[0])
    assert holds(png, LOADER.fill) > holds(png, KERNEL.fill) > 100
    assert alt == "Step of 257 ms as a ring: compute 6 %, Python 3 %, loader 88 %, rest 3 %."


def test_a_small_bottleneck_is_never_merged_into_the_rest() -> None:
    # given a step whose loader takes 2 %, when the loader is the culprit, then it keeps its slice
    parts = step_parts(Breakdown(kernel=98.0, data_loading=2.0), LOADER)
    _, alt = donut(parts, 100.0, culprit=LOADER)
    assert "loader 2 %" in alt
    assert "rest" not in alt


def test_bottleneck_comes_last_in_the_step() -> None:
    parts = step_parts(starvation().breakdown, LOADER)
    assert [part.category.name for part in parts] == [
        "kernel", "copies", "communication", "cpu", "runtime", "other", "data_loading"
    ]  # fmt: skip
    assert sum(part.ms for part in parts) == pytest.approx(257.0)
    assert sum(part.share for part in parts) == pytest.approx(1.0)


def test_parts_that_were_not_measured_are_left_out() -> None:
    assert [part.category.name for part in step_parts(cpu_only().breakdown)] == ["cpu", "data_loading", "other"]
    assert step_parts(inconclusive().breakdown) == ()


def test_donut_of_nothing_says_so() -> None:
    _, alt = donut((), None)
    assert alt == "Step of not measured as a ring: nothing measured."


def test_a_label_stands_clear_of_the_red_edge() -> None:
    # given a step that is all computing, and computing the bottleneck, when it is drawn
    parts = step_parts(Breakdown(kernel=100.0), KERNEL)
    edge = (pixels(donut(parts, 100.0, culprit=KERNEL)[0])[:, :, :3] == (0xC2, 0x3A, 0x1A)).all(axis=2)
    # then the edge is whole: its right half is not hidden behind the label
    columns = np.flatnonzero(edge.any(axis=0))
    middle = (columns[0] + columns[-1]) // 2
    assert abs(int(edge[:, :middle].sum()) - int(edge[:, middle:].sum())) < 0.05 * edge.sum()


def test_words_at_the_axes_are_the_pages() -> None:
    # given heartbeat and timeline, when they are drawn, then what stands at their axes are words with their places
    report = starvation()
    beat, lanes = heartbeat(report.views.heartbeat, report.memory), timeline(report.views.timeline)
    assert beat is not None and lanes is not None
    named = {word.text: word for word in beat.words}
    assert {"0", "1 GB", "2 GB", "3 GB", "step 1", "step 2", "step 3", "reserved 3,595 MB"} <= set(named)
    assert (named["0"].align, named["0"].left) == ("right", pytest.approx(48 / 700))
    assert named["3 GB"].top < named["2 GB"].top < named["0"].top < named["step 1"].top < 1
    assert [word.text for word in lanes.words if word.align == "right"][:2] == ["host, main", "autograd"]
    # and the page has them in its own colour, escaped
    page = figure_html(beat._replace(words=(named["0"], replace(named["0"], text="<b>"))), 700)
    assert page.count(">0</span>") == 1 and "&lt;b&gt;" in page and "color:" not in page


def test_thinned_curve_keeps_its_peak_and_ends() -> None:
    # given 200,000 samples with one single-sample peak
    time = np.arange(200_000, dtype=np.float64)
    value = np.sin(time / 5000) * 100
    value[123_457] = 1e9
    # when the curve is thinned
    thin_time, thin_value = thin(time, value, 500)
    # then the peak is there at its instant, the ends too, and the curve is short
    assert thin_value.max() == 1e9
    assert thin_time[thin_value.argmax()] == 123_457
    assert (thin_time[0], thin_time[-1]) == (0, 199_999)
    assert len(thin_time) <= 2000


def test_memory_keeps_its_value_until_the_next_sample() -> None:
    points = staircase(np.array([0.0, 1.0, 3.0]), np.array([5.0, 7.0, 2.0]))
    assert points.tolist() == [[0, 5], [1, 5], [1, 7], [3, 7], [3, 2]]


def test_heartbeat_names_peak_and_operator() -> None:
    report = starvation()
    drawn = heartbeat(report.views.heartbeat, report.memory)
    assert drawn is not None
    assert drawn[1].endswith("peak 3,215 MB in aten::threshold_backward.")


def test_a_name_that_cannot_be_drawn_is_left_to_the_text() -> None:
    # given a peak in a range whose name the font lacks, when drawn, then the picture is that of a peak without a name
    view, memory = sync().views.heartbeat, sync().memory
    assert memory is not None
    named = heartbeat(view, structs.replace(memory, peak_operator="前向传播"))
    bare = heartbeat(view, structs.replace(memory, peak_operator=None))
    assert named is not None and bare is not None
    assert named[0] == bare[0]
    assert named[1].endswith("in 前向传播.")


def test_a_very_long_lane_name_is_drawn_at_once() -> None:
    # given a name of 900 characters, when it is shortened to the room, then few of its lengths are measured
    picture = Picture(100, 20)
    measured = []
    real = picture.text_width
    picture.text_width = lambda text, **more: (measured.append(text), real(text, **more))[1]  # type: ignore[method-assign]
    assert _lane_name(picture, Lane(name="T_" * 450, kind="device", segments=())).endswith("…")
    assert len(measured) < 40 and max(map(len, measured)) < 40


def test_heartbeat_of_a_process() -> None:
    report = cpu_only()
    drawn = heartbeat(report.views.heartbeat, report.memory)
    assert drawn is not None
    assert drawn[1].startswith("Memory of the process over 123 ms")


@pytest.mark.parametrize("view", [None, Heartbeat(time_ms=(0.0,), allocated=(5,)), Heartbeat(time_ms=(0.0, 1.0))])
def test_heartbeat_without_a_curve_is_nothing(view: Heartbeat | None) -> None:
    assert heartbeat(view, None) is None


def test_heartbeat_of_an_empty_allocator_is_drawn() -> None:
    drawn = heartbeat(Heartbeat(time_ms=(0.0, 1.0), allocated=(0, 0)), None)
    assert drawn is not None
    assert "peak 0 bytes" in drawn[1]


def test_timeline_magnifies_around_a_narrow_bubble() -> None:
    view = sync().views.timeline
    factor = magnification(view)
    assert factor == pytest.approx(5.55 / (6 * 0.062))
    drawn = timeline(view)
    assert drawn is not None
    assert "GPU dry for 62 µs" in drawn[1]


def test_timeline_magnifies_the_third_that_holds_the_work() -> None:
    factor = magnification(starvation().views.timeline)
    assert factor is not None
    assert factor == pytest.approx(5, abs=1)


def test_timeline_of_wide_segments_is_not_magnified() -> None:
    wide = Lane(name="GPU", kind="device", segments=((0.0, 4.0, "kernel", ""),))
    assert magnification(Timeline(start_ms=0.0, end_ms=9.0, lanes=(wide,))) is None
    assert magnification(healthy().views.timeline) is None


@pytest.mark.parametrize(
    "view",
    [
        None,
        Timeline(start_ms=0.0, end_ms=1.0, lanes=()),
        Timeline(start_ms=0.0, end_ms=1.0, lanes=(Lane(name="GPU", kind="device", segments=()),)),
    ],
)
def test_timeline_without_segments_is_nothing(view: Timeline | None) -> None:
    assert timeline(view) is None


def test_names_of_any_script_draw_without_a_warning() -> None:
    # given names with markup, mathematics, other scripts and control characters
    report = hostile()
    # when all pictures are drawn with warnings as errors, then none is given
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timeline(report.views.timeline)
        heartbeat(report.views.heartbeat, report.memory)
        donut(step_parts(report.breakdown), 257.0)


def test_characters_that_the_font_lacks_become_boxes() -> None:
    assert drawable("aten::前向 $x_1$") == "aten::□□ $x_1$"
    assert "�" in drawable(HOSTILE)


def test_dollar_signs_are_not_mathematics() -> None:
    # given text that mathematics would draw as one small x, when it is measured, then it is as wide as its letters
    picture = Picture(200, 20)
    assert picture.text_width("$x_1$") > picture.text_width("x_1")


def test_the_users_style_changes_no_picture_and_no_picture_the_style() -> None:
    # given a picture in the default style
    plain = donut(step_parts(sync().breakdown), 3.8)[0]
    # when the user asks for sketches, other fonts, tight boxes and mathematics everywhere
    changed = {
        "path.sketch": (5, 100, 5), "font.family": "serif", "savefig.bbox": "tight", "figure.autolayout": True,
        "figure.facecolor": "red", "lines.marker": "o", "font.size": 30, "figure.dpi": 33,
    }  # fmt: skip
    with matplotlib.rc_context(changed):
        before = dict(matplotlib.rcParams)
        drawn = donut(step_parts(sync().breakdown), 3.8)[0]
        # then the picture is the same, and so are the user's settings
        assert dict(matplotlib.rcParams) == before
    assert drawn == plain


def test_pyplot_is_never_imported() -> None:
    # given a fresh interpreter, when a dashboard is drawn, then pyplot was not needed and no backend was chosen
    code = (
        "import sys; from tests.sample_reports import starvation; from ipyprof.show.html import bundle; "
        "bundle(starvation()); print('matplotlib.pyplot' in sys.modules)"
    )
    # (an old matplotlib uses what a new pyparsing deprecates)
    strict = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    done = subprocess.run([sys.executable, *strict, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")
