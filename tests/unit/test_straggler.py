"""The sentence, the finding and the verdict of several ranks, and the roll: missing, duplicate, CPU-only ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.ranks.files import judge
from ipyprof.ranks.judge import Joint, find, join, number_list, phase_of, sentence
from ipyprof.ranks.summary import UNKNOWN_RANK, RankSummary, call_the_roll
from tests.simulated_ranks import MS, Job, simulate


def joint(job: Job) -> Joint:
    return judge(call_the_roll(simulate(job)))


@pytest.mark.parametrize(
    ("part", "because"),
    [
        ("loader", "its loader takes 33.0 ms, the others' 2.00 ms"),
        ("compute", "its GPU computes 69.0 ms, the others' 38.0 ms, with 50 more kernels"),
        ("host", "its Python takes 31.0 ms, the others' 0.00 ms"),
        ("copies", "its GPU copies for 31.0 ms, the others' 0.00 ms"),
    ],
)
def test_the_sentence_names_rank_delay_and_cause(part: str, because: str) -> None:
    """C10: who, by how much, how often, and what it has more of."""
    found = joint(Job(ranks=8, late={5: (part, 31 * MS)}))

    assert sentence(found) == f"rank 5 is late by 31.0 ms on 3 of 3 steps: {because}"
    assert len(sentence(found).split()) <= 25
    assert phase_of(found) == ("loader" if part == "loader" else "forward")


def test_without_a_gpu_operators_take_the_time() -> None:
    ranks = [replace(one, has_gpu=False) for one in simulate(Job(late={1: ("compute", 31 * MS)}))]

    assert sentence(judge(call_the_roll(ranks))).endswith("its operators take 69.0 ms, the others' 38.0 ms")


def test_balanced_says_so() -> None:
    found = joint(Job(late={1: ("host", MS)}))

    assert sentence(found) == "4 ranks are balanced: the latest is 1.00 ms (2.4 % of the step) behind the others"
    finding = find(found)
    assert (finding.status, finding.recoverable_ms) == ("cleared", 0.0)


def test_balanced_ranks_say_what_is_usual_and_what_was_the_worst() -> None:
    # given ranks of which one is 1 ms late on each step, and on the last one by 9 ms more
    ranks = list(simulate(Job(late={1: ("host", MS)})))
    rows = tuple((*row[:2], row[2] + 9 * MS * (row[1] == 2), *row[3:]) for row in ranks[1].rows)
    ranks[1] = replace(ranks[1], rows=rows)
    # when they are compared, then both are told, as shares of the recorded step
    assert sentence(judge(call_the_roll(ranks))) == (
        "4 ranks are balanced: the latest is 1.00 ms (2.4 % of the step) behind the others, at most 10.0 ms"
    )


def test_one_file_cannot_tell() -> None:
    """C10: one rank's file."""
    found = judge(call_the_roll(simulate(Job(ranks=2))[:1]))

    assert sentence(found) == "could not tell who is late: rank 1 missing"
    assert find(found).evidence == "one rank alone cannot tell who is late"
    assert find(found).status == "unknown"


def test_the_finding_is_what_the_step_would_gain() -> None:
    finding = find(joint(Job(late={2: ("loader", 31 * MS)})))

    step = 40 + 31 + 0.3
    assert (finding.status, finding.where.scope) == ("found", "rank 2")
    assert finding.recoverable_ms == pytest.approx(31)
    assert finding.predicted_step_ms == pytest.approx(step - 31, rel=0.02)
    assert "storage" in finding.advice and "rank 2" in finding.advice


OWN = Verdict(cause="launch_bound", headline="The GPU waits for launches.", advice="", confidence="high")
COMMUNICATION = Finding(
    cause="communication",
    status="found",
    recoverable_ms=3.0,
    evidence="1 collective in a step, 3.0 ms; one file cannot tell which rank is late",
)
SINGLE = Finding(cause="straggler", status="unknown", evidence="one file of several ranks cannot tell who is late")


def test_a_late_rank_heads_the_verdict() -> None:
    # given one rank's own findings
    late = joint(Job(late={2: ("loader", 31 * MS)}))
    # when they are joined with what all ranks say
    findings, verdict = join(late, (COMMUNICATION, SINGLE), OWN, shown=0, has_gpu=True)
    # then the sentence is the verdict, and what the rank alone could not tell is told
    assert verdict.cause == "straggler"
    assert (
        verdict.headline == "Rank 2 is late by 31.0 ms on 3 of 3 steps: its loader takes 33.0 ms, the others' 2.00 ms."
    )
    assert verdict.next == "launch_bound"
    assert [finding.cause for finding in findings] == ["straggler", "communication"]
    assert findings[1].evidence == "1 collective in a step, 3.0 ms; rank 0 waits there for rank 2"


def test_a_delay_that_nothing_explains_is_told_with_low_confidence() -> None:
    # given a late rank whose recording holds nothing that explains the delay
    ranks = [replace(one, parts={}) for one in simulate(Job(late={2: ("loader", 31 * MS)}))]
    # when it is put into the verdict, then who is late is told, and that the reason is not seen
    _, verdict = join(judge(call_the_roll(ranks)), (COMMUNICATION, SINGLE), OWN, shown=0, has_gpu=True)
    assert verdict.headline == "Rank 2 is late by 31.0 ms on 3 of 3 steps: its recording does not show why."
    assert verdict.confidence == "low"


def test_balanced_ranks_keep_the_ranks_own_verdict() -> None:
    findings, verdict = join(joint(Job()), (COMMUNICATION, SINGLE), OWN, shown=0, has_gpu=True)

    assert verdict == OWN
    assert {finding.cause: finding.status for finding in findings} == {"communication": "found", "straggler": "cleared"}


# The roll.


def ranks(*numbers: int, world: int | None = None) -> list[RankSummary]:
    """Summaries of files as they are read, of ranks that their files name."""
    one = simulate(Job(ranks=1))[0]
    return [replace(one, rank=number, world_size=world, path=f"{at}.json") for at, number in enumerate(numbers)]


def texts(summaries: Sequence[RankSummary]) -> list[str]:
    return [text for check, _, text in judge(call_the_roll(summaries)).notes if check == "ranks"]


def test_missing_ranks_are_named() -> None:
    """B11: ranks 0 and 7 only, of eight."""
    found = ranks(0, 7, world=8)

    assert call_the_roll(found).missing == (1, 2, 3, 4, 5, 6)
    assert texts(found) == ["2 of 8 ranks are there, ranks 1–6 missing"]


def test_missing_ranks_without_a_world_size_are_the_gaps() -> None:
    """B11: no file says how many there are; rank 7 tells of eight at least."""
    assert call_the_roll(ranks(0, 7)).missing == (1, 2, 3, 4, 5, 6)


def test_two_files_of_one_rank_are_named() -> None:
    """B11: the first is used."""
    found = ranks(0, 0, 1, world=2)

    assert [one.path for one in call_the_roll(found).ranks] == ["0.json", "2.json"]
    assert "more than one file of rank 0: 0.json is used, left out: 1.json" in texts(found)


def test_a_rank_without_gpu_work_among_others_is_not_compared() -> None:
    """B11: one CPU-only file among GPU files."""
    found = ranks(0, 1, 2, world=3)
    found[1] = replace(found[1], has_gpu=False)
    roll = call_the_roll(found)

    assert ([one.rank for one in roll.ranks], [one.rank for one in roll.cpu_only]) == ([0, 2], [1])
    assert roll.missing == ()
    assert "no GPU work in the recording of rank 1: not compared" in texts(found)


def test_a_rank_may_stand_in_the_name_of_its_file() -> None:
    """B11: no distributedInfo."""
    found = [
        replace(one, rank=UNKNOWN_RANK, path=path)
        for one, path in zip(ranks(0, 0), ("log/rank-12.pt.trace.json", "rank7/rank_3.Apr_03.json.gz"), strict=True)
    ]

    assert [(one.rank, one.rank_from) for one in call_the_roll(found).ranks] == [(3, "file name"), (12, "file name")]


def test_files_without_any_rank_are_numbered_in_order() -> None:
    """B11: and it is said."""
    found = [replace(one, rank=UNKNOWN_RANK, path=f"{name}.json") for one, name in zip(ranks(0, 0), "ab", strict=True)]

    assert [one.rank for one in call_the_roll(found).ranks] == [0, 1]
    assert "no rank in the file or its name, numbered in order: a.json, b.json" in texts(found)


def test_numbers_in_words() -> None:
    assert number_list([9, 1, 2, 3, 5]) == "1–3, 5, 9"
    assert number_list(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10 and 14 more"
