"""The dashboard: complete, escaped, small, and free of what untrusted notebooks remove."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec import structs

from ipyprof.analysis.results import Holder, Line
from ipyprof.report.report import Report
from ipyprof.show.html import bundle, render_html, render_page
from ipyprof.show.markup import table_html
from ipyprof.show.table import Column, Row, Table, name_cell
from tests.golden_files import assert_golden, without_pictures
from tests.outline import Outline
from tests.sample_reports import (
    SAMPLES,
    cpu_only,
    healthy,
    hostile,
    inconclusive,
    no_baseline,
    starvation,
    sync,
)

VOID = {"img", "br", "meta"}


@pytest.mark.parametrize("name", ["sync", "cpu_only", "no_baseline", "inconclusive"])
def test_dashboard_is_as_agreed(name: str) -> None:
    # given a report, when it is rendered, then it equals the HTML that was looked at and kept
    assert_golden(f"{name}.html", without_pictures(render_html(SAMPLES[name]())))


@pytest.mark.parametrize("name", SAMPLES)
def test_only_what_untrusted_notebooks_keep(name: str) -> None:
    # given a dashboard, when its elements are listed
    outline = Outline(render_html(SAMPLES[name]()))
    # then there is no script, style element, SVG, link or handler, and every element is closed
    assert outline.tags <= {
        "div", "span", "b", "br", "h3", "h4", "table", "thead", "tbody", "tr", "th", "td", "img", "details", "summary"
    }  # fmt: skip
    assert outline.attributes <= {"style", "title", "align", "colspan", "src", "alt", "width"}
    assert outline.open == []


@pytest.mark.parametrize("name", SAMPLES)
def test_pictures_are_embedded_and_described(name: str) -> None:
    outline = Outline(render_html(SAMPLES[name]()))
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert all(len(alt) > 20 for alt in outline.alts)


@pytest.mark.parametrize("name", SAMPLES)
def test_dashboard_is_small(name: str) -> None:
    assert len(render_html(SAMPLES[name]()).encode("utf-8")) < 300_000


@pytest.mark.parametrize("name", SAMPLES)
def test_no_address_outside_the_document(name: str) -> None:
    assert re.findall(r"https?://|url\(", render_html(SAMPLES[name]())) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_text_colour_only_on_its_own_fill(name: str) -> None:
    # given a dashboard, when the styles that set a text colour are listed
    styles = re.findall(r'style="([^"]*)"', render_html(SAMPLES[name]()))
    coloured = [style for style in styles if re.search(r"(?:^|;)color:", style)]
    # then each sets its background too: all other text inherits the theme's
    assert [style for style in coloured if "background:#" not in style] == []


def test_nothing_is_typeset_as_mathematics() -> None:
    # given a name that JupyterLab would typeset, when it is drawn, then no two delimiters stand in one run of text
    page = render_html(verdict_of(sync(), headline=r"a $x_1$ and \(y\) end", advice="US$ 1 and US$ 2"))
    runs = re.split(r"<[^>]*>", page)
    assert [run for run in runs if run.count("$") + run.count("\\") > 1] == []
    # and it is read as it was written, in attributes too
    assert r"a $x_1$ and \(y\) end" in Outline(page).text
    named = Table(columns=(Column(kind="name"),), rows=(Row((name_cell("a$b" + "c" * 90, 20),)),))
    assert 'title="a$b' in table_html(named)


def test_hostile_names_stay_text() -> None:
    # given names with markup, when they are rendered
    markup = render_html(hostile())
    # then they are text, whole, and no element came of them
    assert "<script" not in markup
    assert "<b>bold" not in markup
    assert "onerror=" not in Outline(markup).attributes
    assert '<b>bold</b><script>alert("1")</script> $x_1$ & �� 前向传播 한국어 🚀' in Outline(markup).text
    assert markup.encode("utf-8").decode("utf-8") == markup


def test_a_long_name_is_shortened_and_whole_on_hover() -> None:
    markup = render_html(hostile())
    assert markup.count("T_" * 440) == 1
    assert 'title="void kernel&lt;T_T_' in markup


def test_order_of_the_sections() -> None:
    # given a full report, when its text is read from the top, then the sections follow the agreed order
    text = Outline(render_html(starvation())).text
    places = [
        text.index(name)
        for name in (
            "Line 2 keeps the GPU waiting",
            "step now",
            "One step",
            "How much of the GPU is used",
            "Top operators on the GPU",
            "Memory heartbeat",
            "Your lines",
            "One step on the clock",
            "What was checked",
            "How to read this page",
            "Trust:",
        )
    ]
    assert places == sorted(places)


def test_five_facts_and_the_change() -> None:
    text = Outline(render_html(starvation())).text
    for fact in ("257 ms", "≥ 31.6 ms", "at most 8.1×", "249 img/s", "Python, operators"):
        assert fact in text
    assert "− train_loader = DataLoader(ds, batch_size=64)" in text
    assert "+ train_loader = DataLoader(ds, batch_size=64, num_workers=8" in text


def test_the_step_without_the_cause_is_on_the_same_scale() -> None:
    # given 3.80 ms with 0.82 ms of kernels, and 2.50 ms without the reads
    markup = render_html(sync())
    # when both bars are drawn, then kernels have the same width in both and the rest is recoverable
    assert markup.count("width:21.58%") == 2
    assert "recoverable: at most 1.30 ms (34 %)" in Outline(markup).text


def test_without_a_second_replay_there_is_one_bar() -> None:
    text = Outline(render_html(no_baseline())).text
    assert "recoverable" not in text
    assert "no baseline: as recorded" in text


def test_without_a_gpu_the_host_is_shown() -> None:
    text = Outline(render_html(cpu_only())).text
    assert "GPU computes, GPU copies, Communication, CUDA calls: not measured (no GPU)." in text
    assert "Top operators on the host" in text
    assert "How much of the GPU is used" not in text
    assert "Tensor Cores" not in text.split("How to read this page")[0]


def test_nothing_measured_is_said_in_words() -> None:
    text = Outline(render_html(inconclusive())).text
    assert "? Could not tell" in text
    for sentence in ("The step's time was not measured.", "Operators were not measured.", "Memory was not measured."):
        assert sentence in text


def test_partial_recording_is_said_under_the_headline() -> None:
    assert "! partial the cell raised ValueError in step 4" in Outline(render_html(no_baseline())).text


def test_healthy_has_no_bottleneck() -> None:
    text = Outline(render_html(healthy())).text
    assert "✓ Healthy : nothing to cure" in text
    assert "bottleneck " not in text.replace("next bottleneck", "")


def test_a_tall_page_folds_the_timeline_first() -> None:
    # given a report whose page would grow too tall, when it is rendered, then the timeline is folded
    assert "<summary" in render_html(starvation()).split("One step on the clock")[0].rsplit("<details", 1)[1]


def test_a_short_page_folds_no_check() -> None:
    before = render_html(cpu_only()).split("What was checked")[0]
    assert "<details" not in before


def test_a_long_cell_shows_its_costly_lines_and_counts_the_rest() -> None:
    # given a cell of 300 lines, line 7 the verdict's, line 200 costly
    lines = tuple(
        Line(line=number, source=f"line_{number}()", device_ms=0.0, host_ms=5.0 if number == 200 else 0.0, sync_count=0)
        for number in range(1, 301)
    )
    # when it is rendered
    text = Outline(render_html(structs.replace(sync(), lines=lines))).text
    # then both are shown, the page does not list them all, and says how many are left out
    assert "line_7()" in text
    assert "line_200()" in text
    assert "line_150()" not in text
    assert "lines that cost less" in text


def test_indentation_of_the_cell_is_kept() -> None:
    assert "&nbsp; &nbsp; &nbsp; &nbsp; total += h[0, 0].item()" in render_html(sync())


@pytest.mark.parametrize("make", [sync, inconclusive])
def test_page_is_a_whole_document_around_the_same_fragment(make: Callable[[], Report]) -> None:
    page = render_page(make())
    assert page.startswith("<!DOCTYPE html>")
    assert '<meta charset="utf-8">' in page
    assert '<meta name="color-scheme" content="light dark">' in page
    assert render_html(make()) in page
    assert Outline(page).open == []


def test_bundle_has_text_and_dashboard() -> None:
    # given a report, when a notebook asks for it, then both forms are there and each names the verdict
    report = sync()
    shown = report._repr_mimebundle_()
    assert shown == bundle(report)
    assert list(shown) == ["text/plain", "text/html"]
    assert "Line 7 reads a number back" in shown["text/plain"]
    assert "Line 7 reads a number back" in shown["text/html"]


def test_columns_without_a_judgement_are_left_out_and_named() -> None:
    # given operators of which neither bound nor Tensor Core use is known
    operators = tuple(structs.replace(one, bound="unknown", tensor_core="unknown") for one in starvation().operators)
    # when the dashboard is rendered
    text = Outline(render_html(structs.replace(starvation(), operators=operators))).text
    # then the two columns are gone, and a sentence says that they were not measured
    assert "Bound by, Tensor Cores: not measured." in text
    assert "? unknown" not in text.split("Memory heartbeat")[0]


def test_several_reasons_are_one_sentence() -> None:
    report = sync()
    verdict = structs.replace(report.verdict, confidence="low", reasons=("a single step", "from a file."))
    text = Outline(render_html(structs.replace(report, verdict=verdict))).text
    assert "Why low confidence: a single step; from a file." in text


# -- what recordings of an H200 have taught --


def verdict_of(report: Report, **changes: object) -> Report:
    return structs.replace(report, verdict=structs.replace(report.verdict, **changes))


def row_of(page: str, source: str) -> str:
    """The table row that shows this code."""
    return next(one for one in re.findall(r"<tr\b.*?</tr>", page) if source in one)


@pytest.mark.parametrize(
    ("cause", "bold"),
    [("host_sync", "60"), ("cpu_bound", "1.88"), ("allocator", "1.88"), ("transfer", "0.09"), ("memory_bound", "0.09")],
)
def test_the_guilty_line_is_bold_in_the_column_that_is_meant(cause: str, bold: str) -> None:
    # given a verdict on waits, on the host's time or on the GPU's, when the lines are drawn, then that alone is bold
    report = verdict_of(sync(), cause=cause)
    found = structs.replace(report.findings[0], cause=cause)
    page = render_html(structs.replace(report, findings=(found, *report.findings[1:])))
    assert re.findall(r"<b>([\d.]+)</b>", row_of(page, "total += h[0, 0].item()")) == [bold]


def test_a_deletion_has_no_empty_new_line() -> None:
    # given a change that takes a line away, when it is shown, then there is the line that goes and none that comes
    page = render_html(verdict_of(sync(), change=("    torch.cuda.empty_cache()", "")))
    assert "−" in Outline(page).text and "> + " not in page and ">+ " not in page


@pytest.mark.parametrize(
    ("cause", "name"), [("tensor_cores", "On Tensor Cores"), ("launch_bound", "As one graph"), ("transfer", "Without")]
)
def test_the_second_bar_says_what_is_done_otherwise(cause: str, name: str) -> None:
    # given causes that are taken away or cured otherwise, when the bars are named, then each by what happens
    text = Outline(render_html(verdict_of(sync(), cause=cause))).text
    assert f"{name} " in text
    assert "Without products without" not in text


def test_a_gain_unlike_its_part_is_explained() -> None:
    # given a loader whose part is 225.4 ms, when removing it gains as much, more or less, then the difference is told
    for gained, words in ((225.4, ""), (230.0, "more than that part"), (200.0, "less than that part")):
        text = Outline(render_html(verdict_of(starvation(), recoverable_ms=gained))).text
        assert ("than that part" in text) == bool(words)
        assert words in text


def test_next_to_nothing_of_other_has_no_row() -> None:
    # given 0.01 ms of 257 that are "other", and then 5 ms, when the parts are listed, then only the second has a row
    for other, shown in ((0.01, False), (5.0, True)):
        breakdown = structs.replace(starvation().breakdown, other=other)
        page = render_html(structs.replace(starvation(), breakdown=breakdown))
        assert ("</span>Other</td>" in page) is shown


def test_tensor_cores_that_do_not_apply_are_not_called_unmeasured() -> None:
    # given operators that are no products, when the columns are left out, then nothing is called not measured
    operators = tuple(structs.replace(one, tensor_core="n/a") for one in sync().operators)
    assert "Tensor Cores: not measured" not in Outline(render_html(structs.replace(sync(), operators=operators))).text


def test_a_long_line_of_code_is_shown_whole() -> None:
    # given a line of 88 columns, when the lines are drawn on the whole card, then it is there to its end
    code = "    loss = F.cross_entropy(model(x).float(), labels.to(device, non_blocking=True), weight=w)"
    line = Line(line=3, source=code, device_ms=1.0, host_ms=1.0, sync_count=0)
    page = render_html(structs.replace(sync(), lines=(line,)))
    assert "weight=w)</span>" in row_of(page, "cross_entropy")


def test_holders_are_words_and_names_are_code() -> None:
    # given a variable and a description, when they are listed at the peak, then only the variable is code
    memory = sync().memory
    assert memory is not None
    holders = (Holder(name="weights", bytes=9, line=4), Holder(name="activations of line 5", bytes=8, line=5))
    text = Outline(render_html(structs.replace(sync(), memory=structs.replace(memory, holders=holders)))).text
    assert "At the peak: weights (line 4) 9 bytes · activations of line 5 8 bytes." in text
