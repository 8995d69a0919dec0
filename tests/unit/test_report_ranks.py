"""Several ranks in text and dashboard: what is drawn, how large it gets, and names that are hostile."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from ipyprof.ranks.judge import judge
from ipyprof.ranks.summary import RankSummary
from ipyprof.report.report import Report
from ipyprof.show.html import render_html
from ipyprof.show.ranks import chosen_rows
from ipyprof.show.text import render_text
from tests import sample_reports
from tests.simulated_ranks import MS, Job, large_job, simulate

LIMIT = 300_000


def report_of(summaries: tuple[RankSummary, ...], kept: str | None = None) -> Report:
    """A sample report with these ranks in it; ``kept`` of the first one."""
    ranks = judge(summaries).ranks
    first, *others = ranks.per_rank
    rows = (structs.replace(first, kept=kept), *others)
    return structs.replace(sample_reports.sync(), ranks=structs.replace(ranks, per_rank=rows, shown=0))


@pytest.fixture(scope="module")
def small() -> Report:
    return report_of(simulate(Job(late={2: ("loader", 31 * MS)})), kept="first")


@pytest.fixture(scope="module")
def large() -> Report:
    return report_of(simulate(large_job(1024)))


def test_text_names_the_late_rank_and_lists_the_parts(small: Report) -> None:
    text = " ".join(render_text(small).split())

    assert "4 ranks, 3 steps compared: rank 2 is late by 31.0 ms on 3 of 3 steps: its loader takes 33.0 ms" in text
    assert "! rank 2 +31.00 38.00 0.30 33.00" in text
    assert "rank 0 (shown) +0.00 38.00 31.30 2.00" in text  # two others are as early: it is not late, and not early
    assert "Traces kept: rank 0 (first)." in text


def test_dashboard_has_a_bar_for_each_rank_and_who_enters_when(small: Report) -> None:
    page = render_html(small)

    for rank in range(4):
        assert f"rank {rank}" in page
    assert "Who enters when" in page
    assert "rank 2 last, 31.0 ms" in page
    assert 'alt="Ranks. ' in page
    assert "loader" in page.lower()


def test_a_single_process_has_no_section() -> None:
    page = render_html(sample_reports.sync())

    assert "Who enters when" not in page


def test_parts_of_a_rank_add_up_to_its_step(small: Report) -> None:
    assert small.ranks is not None
    for one in small.ranks.per_rank:
        assert sum((one.breakdown or {}).values()) == pytest.approx(one.step_ms)


def test_a_thousand_ranks_stay_small(large: Report) -> None:
    """Twelve of them are drawn: the latest, the shown one, the first and the last; the others are counted."""
    assert large.ranks is not None
    rows = [one.rank for one in chosen_rows(large.ranks)]

    assert len(rows) == 12
    assert {0, 341, 640, 1022} <= set(rows)
    assert "1,009 ranks more" in render_text(large)
    assert len(render_html(large)) < LIMIT
    assert len(large.ranks.lanes) <= 8
    assert len(json.dumps(large.to_dict()["ranks"])) < 2_000_000


def test_names_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    ranks = []
    for one in simulate(Job(ranks=2, late={1: ("host", 30 * MS)})):
        kind = structs.replace(one.kinds[0], name=hostile, group=hostile)
        ranks.append(structs.replace(one, kinds=(kind,), path=f"{hostile}.json", error=hostile))

    page = render_html(report_of(tuple(ranks), kept=hostile))

    assert "<script" not in page
