"""Several recordings of one loop: which one stands for all, what they say together, and what that does to trust."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from ipyprof.formatting import times_text
from ipyprof.report.comparison import compare_reports
from ipyprof.report.repeats import check, choose, judged, put_together, repeats_text, sentence, with_repeats
from ipyprof.report.report import Report
from ipyprof.show.html import render_html
from ipyprof.show.text import render_text
from ipyprof.trace.live import Repeat, Repeats
from tests import sample_reports


def repeats(*recordings: tuple[float | None, str], shown: int = 1) -> Repeats:
    return Repeats(shown=shown, recordings=tuple(Repeat(step_ms=step, cause=cause) for step, cause in recordings))


def report(step_ms: float, cause: str = "host_sync", *, baseline: str = "after", partial: str = "") -> Report:
    """A recording of this step and verdict, with high confidence."""
    one = sample_reports.sync()
    return structs.replace(
        one,
        source=structs.replace(one.source, partial=partial),
        steps=structs.replace(one.steps, step_ms=step_ms, baseline=baseline),
        verdict=structs.replace(one.verdict, cause=cause, confidence="high", reasons=()),
    )


AGREE = repeats((12.0, "host_sync"), (12.4, "host_sync"), (12.1, "host_sync"), shown=3)


@pytest.mark.parametrize(
    ("recordings", "whole", "index"),
    [
        # the median step
        ([(12.0, "a"), (12.4, "a"), (12.1, "a")], [True] * 3, 2),
        # of two the first
        ([(12.0, "a"), (12.4, "a")], [True] * 2, 0),
        # among those of the most frequent cause
        ([(12.0, "a"), (12.4, "a"), (12.1, "b")], [True] * 3, 0),
        # one that ended early stands for all only where all did
        ([(12.0, "a"), (12.4, "a"), (12.1, "a")], [True, True, False], 0),
        ([(12.0, "a"), (12.4, "a"), (12.1, "a")], [False] * 3, 2),
        # a step that was not timed is the last choice
        ([(None, "a"), (12.4, "a")], [True] * 2, 1),
        ([(None, "a")], [True], 0),
    ],
)
def test_recording_that_stands_for_all(
    recordings: list[tuple[float | None, str]], whole: list[bool], index: int
) -> None:
    assert choose(repeats(*recordings).recordings, whole) == index


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (AGREE, "3 recordings: step 12.0, 12.4, 12.1 ms; verdict the same in 3 of 3"),
        (
            repeats((12.0, "host_sync"), (12.4, "launch_bound"), (12.1, "host_sync")),
            "3 recordings: step 12.0, 12.4, 12.1 ms; verdict host_sync in 2 of 3, launch_bound in 1 of 3",
        ),
        (
            repeats((0.99, "host_sync"), (None, "host_sync")),
            "2 recordings: step 0.99 ms (1 not measured); verdict the same in 2 of 2",
        ),
        (
            repeats((None, "host_sync"), (None, "host_sync")),
            "2 recordings: no step was timed without the profiler; verdict the same in 2 of 2",
        ),
    ],
)
def test_what_all_say_is_one_sentence(said: Repeats, text: str) -> None:
    assert sentence(said) == text


def test_one_recording_tells_its_verdict() -> None:
    assert sentence(repeats((12.0, "host_sync"))) == "1 recording: step 12.0 ms; verdict host_sync"


@pytest.mark.parametrize(
    ("times", "text"),
    [([12.0, 12.1], "12.0, 12.1 ms"), ([0.05, 1.02], "50 µs, 1.02 ms"), ([20_000.0], "20.0 s")],
)
def test_times_in_a_row_have_their_unit_once(times: list[float], text: str) -> None:
    assert times_text(times) == text


@pytest.mark.parametrize(
    ("said", "before", "after", "reasons"),
    [
        (AGREE, "high", "high", ()),
        (
            repeats((12.0, "host_sync"), (12.4, "launch_bound"), (12.1, "host_sync")),
            "high",
            "medium",
            ("the recordings disagree: host_sync, launch_bound, host_sync",),
        ),
        (
            repeats((12.0, "host_sync"), (12.4, "launch_bound")),
            "high",
            "low",
            ("the recordings disagree: host_sync, launch_bound",),
        ),
        (
            repeats((10.0, "host_sync"), (15.0, "host_sync"), (11.0, "host_sync")),
            "high",
            "medium",
            ("the recordings' steps vary by 45 %",),
        ),
        (repeats((10.0, "host_sync"), (15.0, "host_sync")), "low", "low", ("the recordings' steps vary by 40 %",)),
    ],
)
def test_recordings_that_differ_lower_the_confidence(
    said: Repeats, before: str, after: str, reasons: tuple[str, ...]
) -> None:
    # given the verdict of the recording that is shown
    verdict = structs.replace(sample_reports.sync().verdict, confidence=before, reasons=())
    # when the others are looked at
    found = judged(verdict, said)
    # then only what differs lowers it, and is its reason and a warning
    assert (found.confidence, found.reasons) == (after, reasons)
    assert check(said).status == ("warn" if reasons else "ok")


def test_report_tells_all_recordings_in_every_form() -> None:
    # given three recordings whose middle step is the last one's
    reports = [report(12.0), report(12.4), report(12.1)]
    # when they are put together
    said = put_together(reports)
    shown = with_repeats(reports[said.shown - 1], said)
    # then text, page and JSON have the row, and the report comes back from its JSON
    row = "3 recordings: step 12.0, 12.4, 12.1 ms; verdict the same in 3 of 3."
    assert said == AGREE
    assert shown.steps.step_ms == 12.1
    assert row in render_text(shown, 120)
    assert row in render_html(shown)
    plain = json.loads(json.dumps(shown.to_dict()))
    assert plain["repeats"]["recordings"][1] == {"step_ms": 12.4, "cause": "host_sync"}
    assert Report.from_dict(plain) == shown
    assert shown.trust[-1].text == f"{row[:-1]}; number 3 is shown"


def test_single_recording_has_no_such_row() -> None:
    one = sample_reports.sync()
    assert repeats_text(one) == ""
    assert one.to_dict()["repeats"] is None
    assert "recordings" not in render_text(one)


def test_step_of_a_neighbours_baseline_is_not_counted_twice() -> None:
    # given a second recording without steps behind it: its unprofiled step is the first one's
    reports = [report(12.0), report(12.0, baseline="wait")]
    # then it is not measured
    assert put_together(reports).recordings == repeats((12.0, "host_sync"), (None, "host_sync")).recordings


def test_recording_that_ended_early_is_not_shown() -> None:
    reports = [report(12.0), report(12.3), report(12.1, partial="ValueError in step 2 of 3")]
    assert put_together(reports).shown == 1


def ran_out(*, later: bool) -> Report:
    """A recording whose cell ran out of memory."""
    one = report(9.0, "cpu_bound")
    return sample_reports.with_views(one, memory={"out_of_memory": {"device": 0, "later": later}})


def test_recording_that_ran_out_of_memory_is_shown_and_has_no_vote() -> None:
    # given two whole recordings and one in which memory ran out, when they are put together
    reports = [report(12.0), report(12.4), ran_out(later=False)]
    said = put_together(reports)
    # then it is shown, the others vote, and its confidence is its own
    assert said == repeats((12.0, "host_sync"), (12.4, "host_sync"), shown=3)
    shown = with_repeats(reports[-1], said)
    assert shown.verdict.confidence == "high"
    assert shown.trust[-1].text.endswith("verdict the same in 2 of 2; number 3, which ran out of memory, is shown")


def test_memory_that_ran_out_behind_the_recordings_takes_no_vote() -> None:
    assert len(put_together([ran_out(later=True), ran_out(later=True)]).recordings) == 2


def test_comparison_says_that_the_recordings_of_a_run_reach_to_the_other() -> None:
    # given a run whose recordings differ by more than the two runs do
    before = with_repeats(report(12.1), repeats((12.0, "host_sync"), (13.0, "host_sync")))
    # when it is compared
    found = compare_reports(before, report(12.5)).warnings
    # then that is said, and only of that run
    assert [text for text in found if "recordings" in text] == [
        "before: the steps of its recordings, 12.0, 13.0 ms, reach as far as the other run's"
    ]
