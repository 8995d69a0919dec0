"""The sentence, the finding and the verdict of several ranks, and who is there: missing, duplicate, CPU-only ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.ranks.judge import Joint, judge, number_list, with_ranks
from ipyprof.ranks.summary import UNKNOWN_RANK, RankSummary
from ipyprof.report.report import Report
from tests import sample_reports
from tests.simulated_ranks import MS, Job, simulate

LATE = Job(late={2: ("loader", 31 * MS)})


OWN = Verdict(cause="launch_bound", headline="The GPU waits for launches.", advice="", confidence="high")
COMMUNICATION = Finding(
    cause="communication",
    status="found",
    recoverable_ms=3.0,
    evidence="1 collective in a step, 3.0 ms; one file cannot tell which rank is late",
)
SINGLE = Finding(cause="straggler", status="unknown", evidence="one file of several ranks cannot tell who is late")


def joined(joint: Joint) -> Report:
    """Rank 0's own report with what all ranks say."""
    own = structs.replace(sample_reports.sync(), findings=(COMMUNICATION, SINGLE), verdict=OWN)
    return with_ranks(own, joint, 0)


def sentence(ranks: Sequence[RankSummary]) -> str:
    return judge(ranks).ranks.sentence


@pytest.mark.parametrize(
    ("part", "gpu", "because", "bound"),
    [
        ("loader", True, "its loader takes 33.0 ms, the others' 2.00 ms", "IO"),
        ("compute", True, "its GPU computes 69.0 ms, the others' 38.0 ms, with 50 more kernels", "GPU"),
        ("compute", False, "its operators take 69.0 ms, the others' 38.0 ms", "CPU"),
        ("host", True, "its Python takes 31.0 ms, the others' 0.00 ms", "CPU"),
        ("copies", True, "its GPU copies for 31.0 ms, the others' 0.00 ms", "IO"),
    ],
)
def test_the_sentence_names_rank_delay_and_cause(part: str, gpu: bool, because: str, bound: str) -> None:
    """C10: who, by how much, how often, and what it has more of."""
    summaries = simulate(Job(ranks=8, late={5: (part, 31 * MS)}))
    joint = judge([structs.replace(one, has_gpu=gpu) for one in summaries])

    assert joint.ranks.sentence == f"rank 5 is late by 31.0 ms on 3 of 3 steps: {because}"
    assert len(joint.ranks.sentence.split()) <= 25
    assert joint.ranks.straggler is not None
    assert joint.ranks.straggler.phase == ("loader" if part == "loader" else "forward")
    assert joined(joint).verdict.bound.startswith(f"{bound}-bound")


def test_balanced_ranks_say_what_is_usual_and_what_was_the_worst() -> None:
    # given ranks of which one is 1 ms late on each step
    ranks = list(simulate(Job(late={1: ("host", MS)})))
    usual = "4 ranks are balanced: the latest is 1.00 ms (2.4 % of the step) behind the others"
    assert sentence(ranks) == usual
    finding = judge(ranks).finding
    assert (finding.status, finding.recoverable_ms) == ("cleared", 0.0)
    # and on the last one by 9 ms more
    rows = tuple((*row[:2], row[2] + 9 * MS * (row[1] == 2), *row[3:]) for row in ranks[1].rows)
    ranks[1] = structs.replace(ranks[1], rows=rows)
    # when they are compared, then both are told, as shares of the recorded step
    assert sentence(ranks) == f"{usual}, at most 10.0 ms"


def test_one_file_cannot_tell() -> None:
    """C10: one rank's file."""
    joint = judge(simulate(Job(ranks=2))[:1])

    assert joint.ranks.sentence == "could not tell who is late: rank 1 missing"
    assert joint.finding.status == "unknown"


def test_the_finding_is_what_the_step_would_gain() -> None:
    finding = judge(simulate(LATE)).finding

    step = 40 + 31 + 0.3
    assert (finding.status, finding.where.scope) == ("found", "rank 2")
    assert finding.recoverable_ms == pytest.approx(31)
    assert finding.predicted_step_ms == pytest.approx(step - 31, rel=0.02)
    assert "storage" in finding.advice and "rank 2" in finding.advice


def test_a_late_rank_heads_the_verdict() -> None:
    # given one rank's own findings, when they are joined with what all ranks say
    report = joined(judge(simulate(LATE)))
    # then the sentence is the verdict, and what the rank alone could not tell is told
    verdict = report.verdict
    assert (verdict.cause, verdict.next, verdict.confidence) == ("straggler", "launch_bound", "high")
    assert verdict.headline.startswith("Rank 2 is late by 31.0 ms on 3 of 3 steps: its loader takes 33.0 ms")
    assert [finding.cause for finding in report.findings] == ["straggler", "communication"]
    assert report.findings[1].evidence == "1 collective in a step, 3.0 ms; rank 0 waits there for rank 2"
    assert report.ranks is not None and report.ranks.shown == 0
    assert "4 of 4 ranks are there" in [check.text for check in report.trust]


def test_a_delay_that_nothing_explains_is_told_with_low_confidence() -> None:
    verdict = joined(judge([structs.replace(one, breakdown=None) for one in simulate(LATE)])).verdict

    assert verdict.headline == "Rank 2 is late by 31.0 ms on 3 of 3 steps: its recording does not show why."
    assert verdict.confidence == "low"


def test_balanced_ranks_keep_the_ranks_own_verdict() -> None:
    report = joined(judge(simulate(Job())))

    assert report.verdict == OWN
    assert [(one.cause, one.status) for one in report.findings] == [
        ("communication", "found"),
        ("straggler", "cleared"),
    ]


def test_the_rank_that_stopped_first_is_named_first() -> None:
    """Rank 0 says only that another one has gone."""
    ranks = list(simulate(Job()))
    ranks[0] = structs.replace(ranks[0], stopped="RuntimeError: Connection closed by peer")
    ranks[3] = structs.replace(ranks[3], stopped="ValueError: boom")

    assert judge(ranks).stopped[0] == (3, "ValueError: boom")
    assert sentence(ranks).startswith("rank 3 stopped with ValueError: boom (1 more stopped); 4 ranks are balanced")


# Who is there.


def files(*numbers: int, world: int | None = None) -> list[RankSummary]:
    """Summaries of files as they are read, of ranks that their files name."""
    one = simulate(Job(ranks=1))[0]
    return [structs.replace(one, rank=number, world_size=world, path=f"{at}.json") for at, number in enumerate(numbers)]


def texts(summaries: Sequence[RankSummary]) -> list[str]:
    return [check.text for check in judge(summaries).checks if check.check == "ranks"]


@pytest.mark.parametrize(("world", "of"), [(8, " of 8"), (None, "")])
def test_missing_ranks_are_named(world: int | None, of: str) -> None:
    """B11: ranks 0 and 7 only, of eight; where no file says how many there are, rank 7 tells of eight at least."""
    found = files(0, 7, world=world)

    assert judge(found).ranks.missing == (1, 2, 3, 4, 5, 6)
    assert texts(found) == [f"2{of} ranks are there, ranks 1–6 missing"]


def test_a_rank_may_stand_in_the_name_of_its_file_or_only_in_the_order() -> None:
    """B11: no distributedInfo; what is only the order is said."""
    paths = ("log/rank-12.pt.trace.json", "rank7/rank_3.Apr_03.json.gz", "a.json", "b.json")
    found = [
        structs.replace(one, rank=UNKNOWN_RANK, path=path) for one, path in zip(files(0, 0, 0, 0), paths, strict=True)
    ]

    assert [one.rank for one in judge(found).ranks.per_rank] == [0, 1, 3, 12]
    assert "no rank in the file or its name, numbered in order: a.json, b.json" in texts(found)


def test_numbers_in_words() -> None:
    assert number_list([9, 1, 2, 3, 5]) == "1–3, 5, 9"
    assert number_list(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10 and 14 more"
