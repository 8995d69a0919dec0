"""The report in a terminal."""

from __future__ import annotations

import pytest
from msgspec import structs

from ipyprof.formatting import columns
from ipyprof.report.report import Views
from ipyprof.show.html import render_html
from ipyprof.show.text import render_text
from ipyprof.show.words import rungs
from ipyprof.trace.live import DeviceState
from tests.golden_files import assert_golden
from tests.sample_reports import SAMPLES, cpu_only, healthy, hostile, inconclusive, no_baseline, starvation, sync


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_as_agreed(name: str) -> None:
    # given a report, when it is rendered, then it equals the text that was looked at and kept
    assert_golden(f"{name}.txt", render_text(SAMPLES[name]()))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    # given a width, when a report is rendered, then every line fits
    text = render_text(SAMPLES[name](), width)
    assert [line for line in text.splitlines() if columns(line) > width] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_compact(name: str) -> None:
    assert len(render_text(SAMPLES[name]()).splitlines()) <= 72


def test_the_verdict_comes_first_with_the_words_people_ask_for() -> None:
    assert "IO-bound" in render_text(starvation()).splitlines()[0]
    assert "CPU-bound" in render_text(sync()).splitlines()[0]
    assert "GPU-bound (compute)" in render_text(healthy()).splitlines()[0]


def test_headline_is_whole() -> None:
    # given a headline that wraps, when it is rendered, then it is there word by word
    assert sync().verdict.headline in " ".join(render_text(sync()).split())


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    lines = render_text(sync()).splitlines()
    assert [line for line in lines if line.lstrip().startswith(("% ", "ms")) and "% of step" not in line] == []


def test_unmeasured_parts_are_named_in_words() -> None:
    text = render_text(cpu_only())
    assert "GPU computes, GPU copies, Communication, CUDA calls: not measured (no GPU)." in " ".join(text.split())
    assert "Top operators, recorded host time" in text
    assert "all recorded host time" in text


def test_nothing_measured_is_still_a_report() -> None:
    text = render_text(inconclusive())
    assert "One step: not measured." in text
    assert "Top operators: Operators were not measured." in text
    assert "Memory: not measured." in text


def test_a_live_cell_without_operators_says_so() -> None:
    # given a live recording that saw the host and nothing else, such as of time.sleep
    report = structs.replace(cpu_only(), operators=(), kernels=())
    # then no operator ran; of a file that may lack them nothing is known
    assert "Top operators: No operator ran." in render_text(report)
    assert "No operator ran." in render_html(report)
    from_file = structs.replace(report, source=structs.replace(report.source, kind="file"))
    assert "Top operators: Operators were not measured." in render_text(from_file)


def test_partial_recording_is_said() -> None:
    assert "! partial: the cell raised ValueError in step 4" in " ".join(render_text(no_baseline()).split())


def test_no_control_character_reaches_the_terminal() -> None:
    text = render_text(hostile())
    assert [character for character in text if ord(character) < 32 and character != "\n"] == []
    assert text.encode("utf-8").decode("utf-8") == text


# -- what print and repr give --


@pytest.mark.parametrize("name", SAMPLES)
def test_a_printed_report_is_what_a_terminal_shows(name: str) -> None:
    # given a report, when it is printed, then that is the terminal's text
    report = SAMPLES[name]()
    assert f"{report}\n" == render_text(report)


def test_a_report_among_others_is_one_line() -> None:
    # given reports in a list, when it is shown, then each is its title, its cause and the cost
    named = structs.replace(starvation(), source=structs.replace(starvation().source, name="before"))
    assert repr([named, healthy()]) == (
        "[<Report before: data_loading, 225 of 257 ms>, <Report compute_bound, step 20.6 ms>]"
    )
    assert repr(inconclusive()) == "<Report inconclusive, step not measured>"


def test_a_title_cannot_break_the_line() -> None:
    # given a title with a line break, a turning character and no end, when it is shown, then it is short and printable
    source = structs.replace(sync().source, name="a\nb\u202e" + "c" * 900)
    text = repr(structs.replace(sync(), source=source))
    assert text.startswith("<Report a b�ccc") and "…: host_sync, 1.30 of 3.80 ms>" in text
    assert len(text) < 90


# -- the ladder --


@pytest.mark.parametrize(
    ("state", "kind", "why"),
    [
        (None, "live", "the driver was not asked"),
        (None, "file", "not in a trace"),
        ({"missing": "the nvml extra is not installed"}, "live", "the nvml extra is not installed"),
        ({"missing": ""}, "live", "the steps ended before the driver's next sample"),
    ],
)
def test_a_driver_that_told_nothing_has_a_reason(state: dict[str, str] | None, kind: str, why: str) -> None:
    # given a run without nvidia-smi's number, when the ladder is made, then it says why
    report = structs.replace(
        sync(),
        utilization=structs.replace(sync().utilization, nvml=None),
        views=Views(device_state=None if state is None else DeviceState(**state)),
        source=structs.replace(sync().source, kind=kind),
    )
    first = rungs(report)[0]
    assert (first.name, first.share, first.words) == ("nvidia-smi", None, why)
    assert f"nvidia-smi not measured ({why})" in " ".join(str(report).split())


@pytest.mark.parametrize(
    ("name", "core", "shapes", "why"),
    [
        ("aten::mm", "yes", "", "input shapes were not recorded"),
        ("aten::mm", "unknown", "[8, 8]", "the peak of this device or precision is not known"),
        ("CUDA graph replay", "n/a", "", "a CUDA graph has no shapes"),
        ("aten::add", "n/a", "[8]", "no product, convolution or attention ran"),
    ],
)
def test_a_step_without_mfu_has_a_reason(name: str, core: str, shapes: str, why: str) -> None:
    # given operators and no MFU, when the ladder is made, then its last rung says why
    one = structs.replace(sync().operators[0], name=name, tensor_core=core, shapes=shapes)
    use = structs.replace(sync().utilization, mfu=None)
    assert rungs(structs.replace(sync(), operators=(one,), utilization=use))[-1].words == why
