"""The panel: steps and operators, memory, timeline, comparing, saving; and its absence."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ipyprof.analysis.results import ScopeRow
from ipyprof.report.report import Report, Views
from ipyprof.show import perfetto
from ipyprof.show.html import render_html
from ipyprof.show.panel import (
    LIMITS,
    build_panel,
    close_panel,
    free_name,
    group_names,
    group_rows,
    rows_view,
    selected,
    step_ring,
)
from ipyprof.show.tables import work_of
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.reader import read_trace
from ipyprof.trace.writer import KeptTrace, tensorboard_name
from tests.sample_comparisons import fast, slow
from tests.sample_reports import SAMPLES, cpu_only, hostile, starvation, sync


def words_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).replace("&nbsp;", " ").split())


class Steps:
    """The first tab's controls and what they show."""

    def __init__(self, report: Report) -> None:
        controls, below = build_panel(report).children[0].children
        self.slider, self.group, self.sort, self.limit, self.filter = controls.children
        self._table, self.image = below.children

    @property
    def table(self) -> str:
        return words_of(self._table.value)


def opened(report: Report, title: str, **given: Any) -> Any:
    """The content of one tab, after it was opened."""
    panel = build_panel(report, **given)
    titles = [panel.get_title(at) for at in range(len(panel.children))]
    at = next(number for number, name in enumerate(titles) if name.startswith(title))
    panel.selected_index = at
    return panel.children[at].children[0]


# -- steps and operators --


def test_panel_starts_with_the_mean() -> None:
    # given a report with three recorded steps, when the panel is built
    steps = Steps(starvation())
    # then the slider offers the mean and each step, and shows the mean's donut and operators
    assert steps.slider.options == ("mean", "step 1", "step 2", "step 3")
    assert bytes(steps.image.value).startswith(b"\x89PNG")
    assert "By operator mean recorded step, % of all GPU time" in steps.table
    assert "1 aten::copy_ 5.93" in steps.table


def test_moving_the_slider_shows_that_step() -> None:
    # given a panel, when the slider moves to step 2
    steps = Steps(starvation())
    mean = bytes(steps.image.value)
    steps.slider.value = "step 2"
    # then picture and table are that step's, and say that the clock is the recording's
    assert bytes(steps.image.value) != mean
    assert "one recorded step" in steps.table
    # and the mean comes back
    steps.slider.value = "mean"
    assert bytes(steps.image.value) == mean


def test_more_than_ten_rows() -> None:
    # given 22 operators, when 25 rows are asked for, then all are there
    steps = Steps(starvation())
    assert "12 more; 22 rows of 22" in steps.table
    steps.limit.value = 25
    assert "22 aten::small_9" in steps.table
    assert "more;" not in steps.table


def test_the_filter_keeps_rows_with_every_word() -> None:
    # given a panel, when two words are typed, then rows with both are left, and percent are still of all
    steps = Steps(starvation())
    steps.filter.value = "BATCH backward"
    assert "1 aten::native_batch_norm_backward 3.05 14.6" in steps.table
    assert "1 row of 22 3.05 14.6" in steps.table
    # and a name that is nowhere says so
    steps.filter.value = "nothing"
    assert steps.table.endswith("Nothing has such a name.")


def test_rows_are_sorted_as_asked() -> None:
    # given operators by device time, when sorted by calls and by name, then the order follows
    steps = Steps(starvation())
    steps.sort.value = "calls"
    assert "1 aten::copy_" in steps.table and "2 aten::add_" in steps.table
    steps.sort.value = "name"
    assert "1 aten::add_" in steps.table


def test_groups_are_what_the_report_holds() -> None:
    # given reports with and without shapes, lines and groups of the views, when asked, then only what is there
    assert group_names(sync()) == ("operator", "kernel", "line of the cell")
    shaped = structs.replace(sync().operators[0], shapes="[64, 64]")
    fc = ScopeRow(name="net.fc", device_ms=1.0, host_ms=1.0)
    report = structs.replace(sync(), operators=(shaped,), lines=(), views=Views(groups={"module": (fc,)}))
    assert group_names(report) == ("operator", "operator and shapes", "kernel", "module")
    assert group_rows(report, "operator and shapes")[0].name == "aten::mm  [64, 64]"
    assert group_rows(report, "module") == (work_of(fc),)


def test_lines_and_kernels_are_of_the_mean_and_say_so() -> None:
    # given the panel at step 2, when grouped by line
    steps = Steps(sync())
    steps.slider.value = "step 2"
    steps.group.value = "line of the cell"
    # then the lines with a cost are there, and it says that they are of the mean
    assert "(of the mean: single steps are not known)" in steps.table
    assert "total += h[0, 0].item()" in steps.table
    steps.group.value = "kernel"
    assert "sm80_xmma_gemm_f32" in steps.table


def test_without_a_gpu_rows_are_by_host_time() -> None:
    # given a report of the CPU, when the panel is built, then host time is sorted and its percent shown
    steps = Steps(cpu_only())
    assert steps.sort.value == "host time"
    assert "% of all host time" in steps.table


def test_rows_of_hostile_names_are_text() -> None:
    # given names that try to be markup, when drawn, then they are escaped
    page = rows_view(hostile(), "mean", group="operator", sort="calls", words="", limit=50, alt="")
    assert "<script" not in page and "<img" not in page


def test_a_filter_may_be_anything() -> None:
    # given text that is no regular expression, when filtered, then nothing breaks
    assert selected(group_rows(sync(), "operator"), "([", "calls") == ()


def test_panel_of_a_report_from_json() -> None:
    # given a report that went through JSON, when a step is drawn, then it is the same
    report, again = sync(), Report.from_dict(sync().to_dict())
    assert step_ring(again, "step 3") == step_ring(report, "step 3")
    asked: dict[str, Any] = {"group": "operator", "sort": "calls", "words": "", "limit": 10, "alt": ""}
    assert rows_view(again, "step 3", **asked) == rows_view(report, "step 3", **asked)


# -- the other tabs --


def test_other_tabs_are_drawn_when_they_are_opened() -> None:
    # given a panel, when it is built, then only the first tab has content; an opened one gets it
    panel = build_panel(sync())
    assert [len(place.children) for place in panel.children[1:]] == [0, 0, 0, 0]
    panel.selected_index = 2
    assert [len(place.children) for place in panel.children[1:]] == [0, 1, 0, 0]


def test_the_memory_cursor_tells_what_is_allocated() -> None:
    # given the heartbeat, when the cursor moves to the peak
    slider, shown = opened(sync(), "Memory").children[0].children
    slider.value = 8.325
    # then step, size and share of the peak are told
    assert "step 2" in words_of(shown.value)
    assert "100 % of the peak" in words_of(shown.value)
    assert "reserved 73.4 MB" in words_of(shown.value)


def test_the_memory_cursor_shrinks_with_its_picture() -> None:
    # given a narrow page, on which the picture is smaller, when the cursor stands at the end, then in its percent
    slider, shown = opened(sync(), "Memory").children[0].children
    slider.value = slider.max
    assert "left:98.86%" in shown.value  # 692 of 700 pixels
    assert "max-width:100%" in shown.value


def test_a_report_without_a_curve_says_so() -> None:
    report = structs.replace(sync(), views=Views(), memory=None)
    assert opened(report, "Memory").value == "Not measured."


def test_another_run_is_compared_with_this_one() -> None:
    # given two runs of the session, when the earlier is chosen in the later one's panel
    runs = [(1, slow()), (2, fast())]
    bar, shown = opened(runs[1][1], "Compare", earlier=lambda: runs).children
    choice, _ = bar.children
    assert choice.options == (("choose a run", None), ("1: before", 1))
    choice.value = 1
    # then the card is there, this run being the later one
    assert "Predicted at most 8.1×, reached 8.1×" in words_of(shown.value)
    choice.value = None
    assert shown.value == ""


def test_runs_made_later_are_found() -> None:
    # given a panel without other runs, when one was made and looked for, then it can be chosen
    runs: list[tuple[int, Report]] = []
    bar, _ = opened(fast(), "Compare", earlier=lambda: runs).children
    choice, again = bar.children
    assert choice.options == (("no other run is kept", None),)
    runs.append((1, slow()))
    again.click()
    assert choice.options[1] == ("1: before", 1)


def test_saving_writes_beside_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a working directory with a file of that name
    monkeypatch.chdir(tmp_path)
    Path("mine.html").write_text("kept")
    saves = {"Save page": (".html", lambda target: target.write_text("page"))}
    row, told = opened(sync(), "Save", saves=saves).children
    name, button = row.children
    name.value = "mine"
    # when the button is clicked, then a new file is written and its name is told
    button.click()
    assert Path("mine.html").read_text() == "kept"
    assert Path("mine-2.html").read_text() == "page"
    assert "Saved mine-2.html" in words_of(told.value)


def test_a_failed_save_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(_target: Path) -> None:
        raise OSError("disk <full>")

    row, told = opened(sync(), "Save", saves={"Save page": (".html", fail)}).children
    row.children[1].click()
    assert "Not saved: disk &lt;full&gt;" in told.value


def test_free_names(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    (tmp_path / "a-2.json").touch()
    assert free_name(str(tmp_path / "a"), ".json") == tmp_path / "a-3.json"
    assert free_name(str(tmp_path / "b"), ".json.gz") == tmp_path / "b.json.gz"


# -- the trace --


@pytest.fixture
def kept(tmp_path: Path) -> KeptTrace:
    """A kept trace of two events, with a live record that has a title."""
    path = tmp_path / "recorded.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    return KeptTrace(path, LiveRecord(name="trial"), path.unlink)


def test_a_kept_trace_is_saved_with_its_record(kept: KeptTrace, tmp_path: Path) -> None:
    # given a kept trace, when saved, then it reads again with its title
    kept.write(tmp_path / "saved.json.gz")
    trace = read_trace(tmp_path / "saved.json.gz")
    assert trace.live is not None and trace.live.name == "trial"
    assert kept.packed()[:2] == b"\x1f\x8b"


def test_a_trace_that_was_let_go_says_so(kept: KeptTrace, tmp_path: Path) -> None:
    # given a trace that is gone, when it is asked for, then the reason is told, and letting it go again is nothing
    kept.let_go()
    kept.let_go()
    assert not kept.is_there
    with pytest.raises(ValueError, match="only that of the newest run is kept"):
        kept.packed()


def test_tensorboard_names_follow_torch() -> None:
    # given torch's rule: worker, nanoseconds, ending; when a name is made, then TensorBoard's own pattern takes it
    name = tensorboard_name()
    assert re.fullmatch(r"[^/]+_\d+\.\d{19}\.pt\.trace\.json\.gz", name)


def test_one_click_puts_the_trace_into_an_output_that_is_emptied(
    kept: KeptTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the button of a kept trace, in a kernel's event loop
    monkeypatch.setattr(perfetto, "CLEARED_AFTER_S", 0.01)
    widget = opened(sync(), "Save", trace=kept).children[-1]
    (button, _), output = widget.children[0].children, widget.children[1]
    assert output.outputs == ()

    async def click() -> str:
        button.click()
        shown = output.outputs[0]["data"]["text/html"]
        await asyncio.sleep(0.1)
        return str(shown)

    # when it is clicked, then the output holds the packed trace and the script, and is empty soon after
    shown = asyncio.run(click())
    assert base64.b64encode(kept.packed()).decode() in shown
    assert "https://ui.perfetto.dev" in shown
    assert output.outputs == ()


def test_without_an_event_loop_nothing_stays(kept: KeptTrace) -> None:
    widget = opened(sync(), "Save", trace=kept).children[-1]
    widget.children[0].children[0].click()
    assert widget.children[1].outputs == ()


def test_a_large_trace_is_not_handed_over(kept: KeptTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a trace over the limit, when the button is clicked, then nothing is shown and the way around is told
    monkeypatch.setattr(perfetto, "MOST_BYTES", 10)
    widget = opened(sync(), "Save", trace=kept).children[-1]
    button, note = widget.children[0].children
    button.click()
    assert widget.children[1].outputs == ()
    assert "more than 10 bytes is not handed over through the browser" in words_of(note.value)


def test_a_trace_that_is_gone_is_told_at_the_click(kept: KeptTrace) -> None:
    widget = opened(sync(), "Save", trace=kept).children[-1]
    kept.let_go()
    button, note = widget.children[0].children
    button.click()
    assert "Not opened: the trace of this run is gone" in words_of(note.value)


def test_a_title_cannot_end_the_script() -> None:
    # given a title that tries to, when the script is made, then there is one script element and one end of it
    page = perfetto.handover(b"x", "</script><b>\u2028")
    assert page.count("</script>") == 1
    assert "<b>" not in page and "\u2028" not in page


# -- what the notebook keeps --


def held(widget: Any) -> int:
    """Bytes of a widget's and its parts' tables and pictures, as the notebook keeps them."""
    own = getattr(widget, "value", "") if type(widget).__name__ in ("HTML", "Image") else ""
    size = len(json.dumps(own)) - 2 if isinstance(own, str) else len(base64.b64encode(bytes(own)))
    return size + sum(held(child) for child in getattr(widget, "children", ()))


def test_only_the_tab_in_sight_holds_anything() -> None:
    # given a panel whose tabs were all opened, when each is left and opened again
    panel = build_panel(starvation())
    first = held(panel)
    sizes = []
    for at in (1, 2, 1, 0):
        panel.selected_index = at
        sizes.append(held(panel))
    # then it holds what the tab in sight shows, and every tab shows again what it showed
    assert sizes == [sizes[0], sizes[1], sizes[0], first]
    assert min(sizes) > 1_000
    assert all(held(place) == 0 for place in panel.children[1].children)


def test_a_tab_comes_back_as_it_was_left() -> None:
    # given rows that were sorted and filtered, when another tab is looked at in between, then they are still there
    panel = build_panel(starvation())
    controls, below = panel.children[0].children
    controls.children[4].value = "BATCH backward"
    panel.selected_index = 2
    assert below.children[0].value == ""
    panel.selected_index = 0
    assert "1 row of 22" in words_of(below.children[0].value)
    assert bytes(below.children[1].value).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_weighs_less_than_300_kb_whatever_is_open(name: str) -> None:
    # given the page of a run and its panel, when each tab is opened, a run is compared and as many rows as there may be
    # are shown
    report = SAMPLES[name]()
    page = len(json.dumps(render_html(report)))
    panel = build_panel(report, earlier=lambda: [(1, starvation())])
    if panel is None:  # a run without anything to choose from has its page only
        assert page < 300_000
        return
    sizes = []
    for at in range(1, 5):
        panel.selected_index = at
        if at == 3:
            panel.children[3].children[0].children[0].children[0].value = 1
        sizes.append(held(panel))
    panel.selected_index = 0
    _, group, _, limit, _ = panel.children[0].children[0].children
    limit.value = max(LIMITS)
    for rows in group.options:
        group.value = rows
        sizes.append(held(panel))
    # then both together are under 300 kB
    assert page + max(sizes) < 300_000


# -- no panel --


def test_closing_closes_every_part() -> None:
    # given a panel with an opened tab, when it is closed, then no widget of it is left
    import ipywidgets

    known = getattr(ipywidgets.widgets.widget, "_instances", None)
    if known is None:
        pytest.skip("this ipywidgets keeps its list elsewhere")
    before = set(known)
    panel = build_panel(sync())
    panel.selected_index = 1
    close_panel(panel)
    assert set(known) - before == set()


def test_nothing_to_choose_from_no_panel() -> None:
    assert build_panel(structs.replace(sync(), views=Views(), operators=())) is None


def test_without_ipywidgets_there_is_no_panel_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an environment without ipywidgets
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    # when the panel is built, then there is none
    assert build_panel(sync()) is None
