"""Who is late, and why: from simulated summaries with exact times, and from real recordings of two ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.profile import analyse
from ipyprof.ranks.clocks import align, match
from ipyprof.ranks.comparison import Comparison, compare
from ipyprof.ranks.summary import HostFacts, RankSummary, summarise
from tests.shared_traces import shared_trace
from tests.simulated_ranks import MS, Job, large_job, simulate


def straggler(found: Comparison) -> tuple[int, float, int, str]:
    """(rank, ms, steps late, cause)"""
    assert found.straggler is not None
    late = found.straggler
    return late.rank, round(late.late_ns / MS, 6), late.steps_late, late.why.cause


def test_balanced_ranks_are_balanced() -> None:
    found = compare(simulate(Job()))

    assert (found.state, found.straggler, found.steps, found.worst_ns) == ("balanced", None, 3, 0.0)


@pytest.mark.parametrize("part", ["loader", "compute", "host", "copies"])
@pytest.mark.parametrize("chained", [False, True])
def test_the_late_rank_and_its_cause_are_named(part: str, chained: bool) -> None:
    """C10: four ranks, rank 2 has 30 ms more before each all-reduce; with one wait a step, or with one for each."""
    found = compare(simulate(Job(late={2: (part, 30 * MS)}, chained=chained)))

    assert found.state == "straggler"
    assert straggler(found) == (2, 30.0, 3, part)


def test_the_straggler_has_the_least_communication() -> None:
    """C10: the others wait, the late rank does not; it is late all the same."""
    ranks = simulate(Job(late={2: ("compute", 30 * MS)}))
    found = compare(ranks)

    exposed = {one.rank: one.parts["communication"] for one in ranks}
    assert min(exposed, key=lambda rank: exposed[rank]) == 2
    assert found.waiting_ns[2] == 0.0 and found.waiting_ns[0] >= 30 * MS
    assert found.last_share == {0: 0.0, 1: 0.0, 2: 1.0, 3: 0.0}


def test_a_delay_that_every_bucket_shows_counts_once() -> None:
    """Eight buckets of one backward pass see the same 30 ms."""
    found = compare(simulate(Job(buckets=8, late={1: ("host", 30 * MS)})))

    assert straggler(found)[:2] == (1, 30.0)


def test_what_would_be_gained_ends_at_the_next_late_rank() -> None:
    found = compare(simulate(Job(ranks=8, late={5: ("loader", 30 * MS), 6: ("host", 20 * MS)})))

    assert found.straggler is not None
    assert straggler(found) == (5, 30.0, 3, "loader")
    assert found.straggler.recoverable_ns == 10 * MS
    assert found.others == (6,)


def test_a_delay_under_a_twentieth_of_the_step_is_balanced() -> None:
    found = compare(simulate(Job(late={1: ("host", 1 * MS)})))

    assert found.state == "balanced"
    assert found.worst_ns == pytest.approx(1 * MS)


def test_a_rank_that_is_late_on_one_step_only_is_no_straggler() -> None:
    # given three steps, each with another late rank
    ranks = list(simulate(Job(ranks=3, buckets=1)))
    for at, one in enumerate(ranks):
        moved = [(*row[:2], row[2] + 9 * MS * (row[1] == at), *row[3:]) for row in one.rows]
        ranks[at] = replace(one, rows=tuple(moved))
    # when they are compared, then none of them is the late one
    found = compare(ranks)
    assert (found.state, found.straggler) == ("varying", None)
    assert found.worst_ns == pytest.approx(9 * MS)


def test_a_rank_that_is_late_on_most_steps_by_chance_is_no_straggler() -> None:
    """Two H200s, each with a host whose speed changed: three of four steps said rank 0, the fourth rank 1 by more."""
    # given two ranks that are late in turn
    planted = {0: (1.3, 2.1, 1.5, 0.0), 1: (0.0, 0.0, 0.0, 4.0)}
    ranks = list(simulate(Job(ranks=2, buckets=1, steps=4)))
    for at, delays in planted.items():
        moved = [(*row[:2], row[2] + round(5 * delays[row[1]] * MS), *row[3:]) for row in ranks[at].rows]
        ranks[at] = replace(ranks[at], rows=tuple(moved))
    # when they are compared, then none is called late
    found = compare(ranks)
    assert (found.state, found.straggler) == ("varying", None)


def test_the_same_kernels_that_take_longer_are_a_slow_gpu() -> None:
    # given a rank that computes 30 ms more with as many kernels, at a lower clock
    ranks = list(simulate(Job(late={1: ("compute", 30 * MS)})))
    throttled = HostFacts(host="node0", clock_mhz=1200, throttle=("thermal slowdown",))
    ranks = [replace(one, kernels=1000.0, facts=replace(one.facts, clock_mhz=1980)) for one in ranks]
    ranks[1] = replace(ranks[1], facts=throttled)
    # when they are compared, then the cause is the GPU, and the clock says so
    found = compare(ranks)
    assert straggler(found)[3] == "slow_gpu"
    assert found.straggler is not None
    assert found.straggler.why.clock == "1,200 MHz, the others 1,980 MHz (thermal slowdown)"


def test_a_delay_that_no_part_explains_has_no_cause() -> None:
    # given a rank that enters late and whose parts are those of the others
    ranks = list(simulate(Job(late={1: ("host", 30 * MS)})))
    ranks[1] = replace(ranks[1], parts=ranks[0].parts)

    assert straggler(compare(ranks)) == (1, 30.0, 3, "")


def test_clocks_of_other_hosts_are_aligned_on_the_ends() -> None:
    """Two hosts, the second 3.7 s ahead: the delay is the one that was planted."""
    job = Job(ranks=16, late={11: ("loader", 31 * MS)}, clock_offset={1: 3_700 * MS})
    found = compare(simulate(job))

    assert straggler(found) == (11, 31.0, 3, "loader")
    assert found.clocks is not None and not found.clocks.common
    assert found.clocks.residual_ns == pytest.approx(0.0, abs=1)


def test_delays_that_the_clocks_could_have_made_up_cannot_be_told() -> None:
    # given two hosts of which the second one's clock goes 10 ms faster in every step of 40 ms
    ranks = list(simulate(Job(ranks=16)))
    for at, one in enumerate(ranks[8:], 8):
        drifted = [(*row[:2], *(when + 10 * MS * row[1] for when in row[2:5]), *row[5:]) for row in one.rows]
        ranks[at] = replace(one, rows=tuple(drifted))
    # when they are compared, then nobody is called late, and nobody balanced
    found = compare(ranks)
    assert (found.state, found.straggler) == ("unknown", None)
    assert found.reason.startswith("the ranks' clocks agree within ")
    # and what the collectives cost is still there, without a word on who was late
    assert found.costs and found.clocks is not None
    assert (found.late_ns, found.entries, found.lanes) == ({}, (), {})


def test_one_host_has_one_clock() -> None:
    """Nothing is taken off, so that a collective that is left at several times stays so."""
    end = np.array([[100.0, 160.0], [300.0, 340.0]])

    clocks = align(end, ["node0", "node0"])

    assert clocks.common and clocks.offset_ns.tolist() == [0.0, 0.0]
    assert clocks.residual_ns == pytest.approx(29.0)


def test_hosts_of_one_name_may_be_several() -> None:
    """Ends two seconds apart are not of one clock, whatever the hosts are called."""
    end = np.array([[1e6, 2e9 + 1e6], [5e6, 2e9 + 5e6]])

    clocks = align(end, ["localhost", "localhost"])

    assert not clocks.common
    assert clocks.offset_ns.tolist() == [0.0, 2e9]


def test_offsets_reach_over_groups_that_share_a_rank() -> None:
    """Ranks 0 and 1 share a collective, 1 and 2 another one; rank 3 shares none."""
    missing = np.nan
    end = np.array([[10.0, 510.0, missing, missing], [missing, 700.0, 900.0, missing]])

    offset = align(end, [None] * 4).offset_ns

    assert offset[:3].tolist() == [0.0, 500.0, 700.0]
    assert np.isnan(offset[3])


def test_the_first_collective_of_a_recording_may_be_the_profilers_start() -> None:
    # given one step in which only the first collective is entered late, by 50 ms, and two without any delay
    ranks = list(simulate(Job(ranks=2)))
    first = ranks[1].rows[0]
    late = (*first[:2], first[2] + 50 * MS, first[3] + 50 * MS, *first[4:])
    ranks[1] = replace(ranks[1], rows=(late, *ranks[1].rows[1:]))
    # when they are compared, then it is left out, and said
    found = compare(ranks)
    assert found.state == "balanced"
    assert found.skipped_start == (1, 50.0 * MS)


def with_rows(one: RankSummary, rows: Sequence[tuple[int, ...]]) -> RankSummary:
    return replace(one, rows=tuple(rows), steps=tuple(sorted({row[1] for row in rows})))


def test_ranks_that_recorded_other_steps_are_compared_on_the_common_ones() -> None:
    """B11: rank 0 recorded steps 0 to 2, rank 1 steps 1 to 2 only."""
    ranks = list(simulate(Job(ranks=2, late={1: ("host", 30 * MS)})))
    ranks[1] = with_rows(ranks[1], [row for row in ranks[1].rows if row[1] > 0])

    found = compare(ranks)

    assert straggler(found) == (1, 30.0, 2, "host")
    assert (found.steps, found.unmatched) == (2, 4)


def test_ranks_without_a_common_step_cannot_be_compared() -> None:
    """B11: different steps."""
    ranks = list(simulate(Job(ranks=2)))
    ranks[1] = with_rows(ranks[1], [(row[0], row[1] + 10, *row[2:]) for row in ranks[1].rows])

    found = compare(ranks)

    assert (found.state, found.reason) == ("unknown", "the ranks recorded different steps")


def test_a_rank_that_lacks_the_first_collectives_is_matched_at_the_end() -> None:
    # given a rank whose first two collectives of a step are not in its file, the last two of another kind
    ranks = list(simulate(Job(ranks=2, steps=1, buckets=4, late={1: ("host", 30 * MS)})))
    other = replace(ranks[0].kinds[0], name="allgather")
    ranks = [replace(one, kinds=(*one.kinds, other)) for one in ranks]
    ranks = [replace(one, rows=(*one.rows[:2], *((1, *row[1:]) for row in one.rows[2:]))) for one in ranks]
    ranks[1] = replace(ranks[1], rows=ranks[1].rows[2:])
    # when they are matched, then the last two are the same two
    (group,) = match(ranks).groups
    assert [kind.name for kind in group.kinds] == ["allreduce", "allreduce", "allgather", "allgather"]
    assert np.isnan(group.ready_ns[:, 1]).tolist() == [True, True, False, False]


def test_groups_are_matched_apart() -> None:
    """Two groups of two: order counts within a group, not over all."""
    ranks = simulate(Job(ranks=4, late={3: ("host", 30 * MS)}))
    split = []
    for one in ranks:
        pair = (0, 1) if one.rank < 2 else (2, 3)
        kind = replace(one.kinds[0], group=f"pair {pair[0]}", members=pair, size=2)
        split.append(replace(one, kinds=(kind,)))

    found = compare(split)

    assert straggler(found)[:2] == (3, 30.0)
    assert found.late_ns[0] == 0.0


def test_one_rank_alone_cannot_tell() -> None:
    found = compare(simulate(Job(ranks=2))[:1])

    assert (found.state, found.reason) == ("unknown", "one rank alone cannot tell who is late")


def test_ranks_without_collectives_cannot_be_compared() -> None:
    ranks = [replace(one, rows=()) for one in simulate(Job(ranks=2))]

    assert compare(ranks).reason == "no collective in the recorded steps"


def test_a_summary_survives_json_and_is_small() -> None:
    one = simulate(Job(ranks=8, buckets=20))[3]
    text = json.dumps(one.to_dict())

    assert RankSummary.from_dict(json.loads(text)).rows == one.rows
    assert RankSummary.from_dict(json.loads(text)) == one
    assert len(text) < 5_000


@pytest.mark.parametrize("plain", [{}, {"version": 99}, {"version": 1}, [], "text", None])
def test_what_is_no_summary_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match="summary"):
        RankSummary.from_dict(plain)


def test_a_thousand_ranks() -> None:
    """1,024 ranks on 128 hosts, clocks up to 5 s apart, three missing, one late by 31 ms, one by 15 ms."""
    found = compare(simulate(large_job(1024)))

    rank, late_ms, steps, cause = straggler(found)
    assert (rank, steps, cause) == (640, 3, "loader")
    assert late_ms == pytest.approx(31.0, rel=0.01)
    assert found.others == (341,)


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(2, 40),
    place=st.floats(0, 0.999),
    part=st.sampled_from(["loader", "compute", "host", "copies"]),
    late_ms=st.integers(5, 200),
    chained=st.booleans(),
    buckets=st.integers(1, 12),
    ahead_ms=st.lists(st.integers(-5_000, 5_000), min_size=5, max_size=5),
)
def test_any_planted_delay_is_found(
    ranks: int, place: float, part: str, late_ms: int, chained: bool, buckets: int, ahead_ms: list[int]
) -> None:
    """Any rank, any part, any number of buckets, clocks up to seconds apart."""
    late = int(place * ranks)
    job = Job(
        ranks=ranks,
        late={late: (part, late_ms * MS)},
        chained=chained,
        buckets=buckets,
        clock_offset={host: ms * MS for host, ms in enumerate(ahead_ms)},
    )

    rank, found_ms, steps, cause = straggler(compare(simulate(job)))

    assert (rank, steps, cause) == (late, 3, part)
    assert found_ms == pytest.approx(late_ms, rel=1e-3)


def summaries(name: str) -> Mapping[int, RankSummary]:
    """Two real ranks."""
    return {
        rank: summarise(
            analyse(shared_trace(f"nccl-h200/ddp_{name}_rank{rank}.json.gz")), rank=rank, rank_from="file name"
        )
        for rank in (0, 1)
    }


def test_real_balanced_ranks() -> None:
    """Two H200s, DDP: all-reduces over NVLink near what NCCL reaches, no rank late."""
    ranks = summaries("balanced")
    found = compare(list(ranks.values()))

    assert found.state == "balanced"
    assert found.worst_ns < 0.03 * (found.step_ns or 0.0)
    (cost,) = found.costs
    assert (cost.name, cost.calls, cost.size, cost.algorithm) == ("allreduce", 8.0, 2, "RING LL")
    assert cost.message_bytes == 2 * 16_781_312
    assert cost.bus_bytes_per_s == pytest.approx(208e9, rel=0.02)
    assert found.clocks is not None and found.clocks.residual_ns is not None and found.clocks.residual_ns < 20_000
    for one in ranks.values():
        assert sum(one.parts.values()) == pytest.approx(one.recorded_step_ns or 0.0, rel=0.01)


def test_real_straggler_by_gpu_work() -> None:
    """Rank 1 runs twenty more products before its forward pass: 3.9 ms of GPU work a step."""
    found = compare(list(summaries("straggler_gpu").values()))

    rank, late_ms, steps, cause = straggler(found)
    assert (rank, steps, cause) == (1, 3, "compute")
    assert late_ms == pytest.approx(3.91, rel=0.1)
    assert found.straggler is not None
    assert (found.straggler.why.phase, found.straggler.why.more_kernels) == ("forward", 20.0)


def test_ends_that_lie_apart_on_one_clock_hide_no_delay() -> None:
    """Threads of a busy host are told late that a collective is over; when it was entered stays as it was."""
    ranks = list(simulate(Job(ranks=2, late={1: ("host", 30 * MS)})))
    ragged = [(*row[:4], row[4] + 35 * MS * (row[1] % 2), *row[5:]) for row in ranks[0].rows]
    # what the rank does next comes after that
    shift = {step: 35 * MS * sum(one % 2 for one in range(step)) for step in range(3)}
    ranks[0] = with_rows(ranks[0], [(*row[:2], *(at + shift[row[1]] for at in row[2:5]), *row[5:]) for row in ragged])
    ranks[1] = with_rows(
        ranks[1], [(*row[:2], *(at + shift[row[1]] for at in row[2:5]), *row[5:]) for row in ranks[1].rows]
    )

    assert straggler(compare(ranks)) == (1, 30.0, 3, "host")
