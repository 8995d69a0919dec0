"""A comparison as text and as a card: what it says, what it escapes, how wide it is."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from ipyprof.formatting import columns
from ipyprof.report.comparison import Pair, compare_reports
from ipyprof.report.report import Report, Views
from ipyprof.show.comparison import (
    comparison_page,
    comparison_text,
    interval_text,
    lessons,
    pair_arrow,
    ratio_text,
    render_comparison,
)
from tests.outline import Outline
from tests.sample_comparisons import fast, slow, timed
from tests.sample_reports import SAMPLES, cpu_only, healthy, sync

PAIRS = [(name, other) for name in SAMPLES for other in ("sync", "hostile")]


def words_of(page: str) -> str:
    """The card's text without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).replace("&nbsp;", " ").split())


def test_text_has_the_answer_first_and_all_rows() -> None:
    # given the cured loop, when it is written as text
    lines = comparison_text(compare_reports(slow(), fast())).splitlines()
    # then the sentence comes first, and rows carry both times and the change
    assert lines[0] == "Before and after · before → after · NVIDIA H200 · loop at line 2"
    assert lines[1] == "Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms."
    rows = [" ".join(line.split()) for line in lines]
    assert "GPU computes 15.2 15.2 ≈ 0 no significant change" in rows
    assert "Data loading 225.4 · −225.4 vanished" in rows
    assert "aten::copy_ 5.93 1.06 −4.87" in rows
    assert "throughput 249 img/s 2,025 img/s 8.1×" in rows
    assert "21 operators with no significant change." in rows
    assert "+ for x, y in fast_loader:" in rows


def test_text_bars_share_one_scale() -> None:
    # given steps of 257 and 31.6 ms, when drawn, then the bars are as long as the steps are
    lines = comparison_text(compare_reports(slow(), fast())).splitlines()
    drawn = {name: line for line in lines for name in ("before", "after") if re.match(rf"{name}\s+[█▓▒░▚▤·]", line)}
    count = {name: len(re.findall("[█▓▒░▚▤]", line)) for name, line in drawn.items()}
    assert count["after"] / count["before"] == pytest.approx(31.6 / 257, abs=0.02)


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_text_is_never_wider_than_asked(before: str, after: str, width: int) -> None:
    # given any two reports, when written as text, then no line is wider, and no control character is left
    text = comparison_text(compare_reports(SAMPLES[before](), SAMPLES[after]()), width)
    assert max(columns(line) for line in text.splitlines()) <= width
    assert "\x00" not in text and "\ud800" not in text


def test_card_says_what_the_text_says() -> None:
    # given the cured loop, when drawn, then the card has the sentence, both bars, the numbers and the lessons
    card = render_comparison(compare_reports(slow(), fast()))
    told = words_of(card)
    assert "Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms." in told
    assert "257 → 31.6 ms" in told and "249 → 2,025 img/s" in told and "5.9 → 48 %" in told
    assert "now holding it back launches" in told
    assert "throughput 249 img/s 2,025 img/s 8.1×" in told
    assert "Faster: every step after the change was faster than every step before it" in told
    assert "The GPU computes as long as before: the gain is waiting that is gone." in told
    assert card.count("<img ") == 2
    assert card.count('alt="Step of ') == 2
    assert len(card) < 100_000


def test_warnings_stand_in_the_head() -> None:
    found = compare_reports(sync(), cpu_only())
    told = words_of(render_comparison(found))
    assert found.warnings
    assert all(warning in told for warning in found.warnings)
    assert told.index("compare with care") < told.index("One step")


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_card_is_safe_for_untrusted_notebooks(before: str, after: str) -> None:
    # given any two reports, names that try to be markup among them, when drawn
    card = render_comparison(compare_reports(SAMPLES[before](), SAMPLES[after]()))
    # then nothing of them is markup: only our own elements and attributes are there, all closed
    seen = Outline(card)
    assert seen.open == []
    assert seen.tags <= {
        "div", "span", "b", "h3", "h4", "table", "thead", "tbody", "tr", "th", "td", "img", "details", "summary"
    }  # fmt: skip
    assert seen.attributes <= {"style", "title", "align", "colspan", "src", "alt", "width"}
    assert all(source.startswith("data:image/png;base64,") for source in seen.sources)
    assert "\x00" not in card
    card.encode()


def test_page_is_a_whole_document() -> None:
    page = comparison_page(compare_reports(slow(), fast()))
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>\n")
    assert "<title>ipyprof: Predicted at most" in page


@pytest.mark.parametrize("before", [slow(), sync()])
@pytest.mark.parametrize("after", [fast(), sync(), timed(sync(), 7.5, 7.6, 7.7), timed(sync(), 2.0)])
def test_headline_has_at_most_25_words(before: Report, after: Report) -> None:
    assert len(compare_reports(before, after).headline.split()) <= 25


def test_more_than_the_bound_is_explained() -> None:
    # given a change that gained more than its bound, when told, then it names what else there must be
    found = compare_reports(sync(), timed(sync(), 1.0, 1.0, 1.0))
    assert lessons(found)[0] == (
        "The bound of 1.5× holds for removing reads of a value alone: the change did more than that, or another cause "
        "went with it."
    )


def test_a_little_more_than_the_bound_is_within_the_noise() -> None:
    # given 4 % more than the bound, when told, then it is no more than runs differ
    found = compare_reports(sync(), timed(sync(), 2.4, 2.4, 2.4))
    assert lessons(found)[0] == "Beyond the bound of 1.5× by no more than runs of one loop or their steps differ."


def test_a_loop_that_waits_for_the_host_may_be_the_machine() -> None:
    # given a step of which the GPU computes 22 %, 1.5 times as fast after, when told, then to record both again
    told = [text for text in lessons(compare_reports(sync(), timed(sync(), 2.5, 2.5, 2.5))) if "record both" in text]
    assert told == [
        "The slower run waits for the host, whose speed alone can change a step by up to 1.9× from run to run on a "
        "shared machine: record both again to be sure."
    ]
    # and not where the GPU computes all the time, nor where it is beyond the machine's two speeds
    for before, after in ((healthy(), timed(healthy(), 13.0, 13.1, 13.2)), (sync(), timed(sync(), 1.0, 1.0, 1.0))):
        assert not any("record both" in text for text in lessons(compare_reports(before, after)))


def test_host_times_are_called_recorded() -> None:
    # given two runs without a GPU of which one has no recorded steps
    quiet = structs.replace(cpu_only(), views=Views())
    first = structs.replace(cpu_only().operators[0], self_host_ms=9.0)
    found = compare_reports(quiet, structs.replace(quiet, operators=(first,)))
    # when shown, then both say that the times are recorded, and how many operators could not be judged
    card, text = words_of(render_comparison(found)), comparison_text(found)
    assert "host self time, ms per recorded step" in card
    assert "Host times are as recorded, longer than without the profiler" in card
    assert "Recorded host self time" in text
    for shown in (card, " ".join(text.split())):
        assert "1 operator not judged (fewer than 3 recorded steps know them)" in shown


def test_half_of_the_promise() -> None:
    # given 1.30 ms promised and 0.65 ms gained, when told, then it says half
    assert lessons(compare_reports(sync(), timed(sync(), 3.14, 3.15, 3.16)))[0] == (
        "The change gained 50 % of what removing reads of a value can give."
    )


@pytest.mark.parametrize(
    ("pair", "shown"),
    [
        (Pair(name="step", unit="ms", before=257.0, after=31.6), "257 → 31.6 ms"),
        (Pair(name="step", unit="ms", before=1.2, after=0.05), "1.20 ms → 50 µs"),
        (Pair(name="step", unit="ms", before=None, after=1.0), "not measured → 1.00 ms"),
        (Pair(name="peak", unit="bytes", before=3.2e9, after=8e6), "3,200 → 8.0 MB"),
        (Pair(name="use", unit="share", before=0.059, after=0.481), "5.9 → 48 %"),
    ],
)
def test_two_values_share_their_unit(pair: Pair, shown: str) -> None:
    assert pair_arrow(pair) == shown


def test_ratios_near_one_say_so() -> None:
    assert [ratio_text(ratio) for ratio in (8.13, 1.01, 0.99, 0.18, None)] == ["8.1×", "≈ 1×", "≈ 1×", "0.18×", ""]


def test_interval_of_the_ratio() -> None:
    assert re.fullmatch(r"8\.1× \(95 %: \d\.\d to \d\.\d\)", interval_text(compare_reports(slow(), fast())))
    assert interval_text(compare_reports(sync(), timed(sync(), 2.0))) == ""


def test_a_printed_comparison_is_what_a_terminal_shows() -> None:
    # given a comparison, when it is printed, then that is the terminal's text; among others it is one line
    found = compare_reports(slow(), fast())
    assert f"{found}\n" == comparison_text(found)
    assert repr(found) == "<Comparison before → after: faster, 257 → 31.6 ms>"
