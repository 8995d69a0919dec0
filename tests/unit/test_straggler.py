"""Who is late, and why: from simulated summaries with exact times, and from real recordings of two ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ipyprof.analysis.profile import analyse
from ipyprof.ranks.clocks import align, match
from ipyprof.ranks.straggler import Comparison, compare
from ipyprof.ranks.summary import RankSummary, summarise
from ipyprof.report.report import Straggler
from tests.shared_traces import shared_trace
from tests.simulated_ranks import MS, Job, large_job, simulate

Row = tuple[int, ...]


def late_of(found: Comparison) -> Straggler:
    assert found.ranks.state == "straggler" and found.ranks.straggler is not None
    return found.ranks.straggler


def who(found: Comparison) -> tuple[int, float, int, str | None]:
    """(rank, ms, steps late, cause)"""
    late = late_of(found)
    return late.rank, round(late.late_ms, 6), late.steps_late, late.cause


def moved(one: RankSummary, times: Callable[[Row], Sequence[int]]) -> RankSummary:
    """The summary with other times (ready, start, end) of its collectives."""
    return structs.replace(one, rows=tuple((*row[:2], *times(row), *row[5:]) for row in one.rows))  # type: ignore[misc]


def delayed(one: RankSummary, delays_ms: Sequence[float]) -> RankSummary:
    """The summary of a rank that is ready so much later, by step."""
    return moved(one, lambda row: (row[2] + round(delays_ms[row[1]] * MS), *row[3:5]))


def test_the_straggler_has_the_least_communication() -> None:
    """C10: the others wait, the late rank does not; it is late all the same."""
    rows = compare(simulate(Job(late={2: ("compute", 30 * MS)}))).ranks.per_rank

    exposed = [(one.breakdown or {})["communication"] for one in rows]
    assert min(exposed) == exposed[2] < exposed[0]
    assert (rows[2].waiting_ms, rows[2].late_ms, rows[2].last_share) == (0.0, 30.0, 1.0)
    assert rows[0].waiting_ms is not None and rows[0].waiting_ms >= 30
    assert [one.last_share for one in rows if one.rank != 2] == [0.0] * 3


def test_what_would_be_gained_ends_at_the_next_late_rank() -> None:
    found = compare(simulate(Job(ranks=8, late={5: ("loader", 30 * MS), 6: ("host", 20 * MS)})))

    assert who(found) == (5, 30.0, 3, "loader")
    assert (late_of(found).recoverable_ms, late_of(found).others) == (10.0, (6,))


def test_a_delay_under_a_twentieth_of_the_step_is_balanced() -> None:
    found = compare(simulate(Job(late={1: ("host", 1 * MS)})))

    assert found.ranks.state == "balanced"
    assert found.worst_ms == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("delays", "worst"),
    [
        ([(9.0, 0.0, 0.0), (0.0, 9.0, 0.0), (0.0, 0.0, 9.0)], 9.0),
        # two H200s, each with a host whose speed changed: three of four steps said rank 0, the fourth rank 1 by more
        ([(6.5, 10.5, 7.5, 0.0), (0.0, 0.0, 0.0, 20.0)], 20.0),
    ],
)
def test_ranks_that_are_late_in_turn_are_no_stragglers(delays: list[tuple[float, ...]], worst: float) -> None:
    ranks = simulate(Job(ranks=len(delays), buckets=1, steps=len(delays[0])))

    found = compare([delayed(one, ms) for one, ms in zip(ranks, delays, strict=True)])

    assert (found.ranks.state, found.ranks.straggler) == ("varying", None)
    assert found.worst_ms == pytest.approx(worst)


def test_the_same_kernels_that_take_longer_are_a_slow_gpu() -> None:
    # given a rank that computes 30 ms more with as many kernels, at a lower clock
    ranks = simulate(Job(late={1: ("compute", 30 * MS)}))
    ranks = tuple(structs.replace(one, kernels=1000.0, clock_mhz=1980 - 780 * (one.rank == 1)) for one in ranks)
    throttled = structs.replace(ranks[1], throttle=("thermal slowdown",))
    # when they are compared, then the cause is the GPU, and the clock says so
    found = compare((ranks[0], throttled, *ranks[2:]))
    assert who(found)[3] == "slow_gpu"
    assert late_of(found).clock == "1,200 MHz, the others 1,980 MHz (thermal slowdown)"


def test_a_delay_that_no_part_explains_has_no_cause() -> None:
    # given a rank that enters late and whose parts are those of the others
    ranks = list(simulate(Job(late={1: ("host", 30 * MS)})))
    ranks[1] = structs.replace(ranks[1], breakdown=ranks[0].breakdown)

    assert who(compare(ranks)) == (1, 30.0, 3, None)


def test_delays_that_the_clocks_could_have_made_up_cannot_be_told() -> None:
    # given two hosts of which the second one's clock goes 10 ms faster in every step of 40 ms
    ranks = [
        moved(one, lambda row: [when + 10 * MS * row[1] for when in row[2:5]]) if one.rank >= 8 else one
        for one in simulate(Job(ranks=16))
    ]
    # when they are compared, then nobody is called late, and nobody balanced
    found = compare(ranks)
    assert (found.ranks.state, found.ranks.straggler) == ("unknown", None)
    assert found.reason.startswith("the ranks' clocks agree within ")
    # and what the collectives cost is still there, without a word on who was late
    assert found.ranks.collectives and found.clocks is not None
    assert (found.ranks.entries, found.ranks.lanes) == ((), {})
    assert {one.late_ms for one in found.ranks.per_rank} == {None}


def test_ends_that_lie_apart_on_one_clock_hide_no_delay() -> None:
    """Threads of a busy host are told late that a collective is over; when it was entered stays as it was."""
    # given two ranks of which the first leaves each other step's collectives 35 ms late, and all that follows is later
    first, second = simulate(Job(ranks=2, late={1: ("host", 30 * MS)}))

    def later(row: Row, *, ragged: bool) -> list[int]:
        shift = 35 * MS * (row[1] // 2)
        return [row[2] + shift, row[3] + shift, row[4] + shift + 35 * MS * (ragged and row[1] % 2)]

    first, second = (moved(one, lambda row, one=one: later(row, ragged=one is first)) for one in (first, second))  # type: ignore[misc]

    assert who(compare([first, second])) == (1, 30.0, 3, "host")


NO = np.nan


@pytest.mark.parametrize(
    ("end", "hosts", "common", "offset"),
    [
        # one host has one clock: nothing is taken off, so that a collective that is left at several times stays so
        ([[100.0, 160.0], [300.0, 340.0]], ["node0", "node0"], True, [0.0, 0.0]),
        # hosts of one name may be several: ends two seconds apart are not of one clock
        ([[1e6, 2e9 + 1e6], [5e6, 2e9 + 5e6]], ["localhost", "localhost"], False, [0.0, 2e9]),
        # ranks 0 and 1 share a collective, 1 and 2 another one; rank 3 shares none
        ([[10.0, 510.0, NO, NO], [NO, 700.0, 900.0, NO]], [None] * 4, False, [0.0, 500.0, 700.0, NO]),
    ],
)
def test_offsets_of_clocks(end: list[list[float]], hosts: list[str | None], common: bool, offset: list[float]) -> None:
    clocks = align(np.array(end), hosts)

    assert clocks.common == common
    assert clocks.offset_ns.tolist() == pytest.approx(offset, nan_ok=True)


def test_the_first_collective_of_a_recording_may_be_the_profilers_start() -> None:
    # given one step in which only the first collective is entered late, by 50 ms, and two without any delay
    first, second = simulate(Job(ranks=2))
    row = second.rows[0]
    late = (*row[:2], row[2] + 50 * MS, row[3] + 50 * MS, *row[4:])
    # when they are compared, then it is left out, and said
    found = compare([first, structs.replace(second, rows=(late, *second.rows[1:]))])
    assert found.ranks.state == "balanced"
    assert found.skipped_start == (1, 50.0)


def with_rows(one: RankSummary, rows: Sequence[Row]) -> RankSummary:
    steps = tuple(sorted({row[1] for row in rows}))
    return structs.replace(one, rows=tuple(rows), steps=steps)  # type: ignore[arg-type]


def test_ranks_that_recorded_other_steps_are_compared_on_the_common_ones() -> None:
    """B11: rank 0 recorded steps 0 to 2, rank 1 steps 1 to 2 only."""
    first, second = simulate(Job(ranks=2, late={1: ("host", 30 * MS)}))

    found = compare([first, with_rows(second, [row for row in second.rows if row[1] > 0])])

    assert who(found) == (1, 30.0, 2, "host")
    assert (found.ranks.steps, found.unmatched) == (2, 4)


def test_ranks_that_cannot_be_compared_say_why() -> None:
    """B11: different steps; no collectives; one rank."""
    first, second = simulate(Job(ranks=2))
    other_steps = with_rows(second, [(row[0], row[1] + 10, *row[2:]) for row in second.rows])
    silent = [structs.replace(one, rows=()) for one in (first, second)]

    found = [compare(ranks) for ranks in ([first, other_steps], silent, [first])]

    assert {one.ranks.state for one in found} == {"unknown"}
    assert [one.reason for one in found] == [
        "the ranks recorded different steps",
        "no collective in the recorded steps",
        "one rank alone cannot tell who is late",
    ]


def test_a_rank_that_lacks_the_first_collectives_is_matched_at_the_end() -> None:
    # given a rank whose first two collectives of a step are not in its file, the last two of another kind
    ranks = list(simulate(Job(ranks=2, steps=1, buckets=4)))
    for at, one in enumerate(ranks):
        kinds = (*one.kinds, structs.replace(one.kinds[0], name="allgather"))
        rows = (*one.rows[:2], *((1, *row[1:]) for row in one.rows[2:]))
        ranks[at] = structs.replace(one, kinds=kinds, rows=rows[2 * at :])
    # when they are matched, then the last two are the same two
    ((group,), unmatched) = match(ranks)
    assert [kind.name for kind in group.kinds] == ["allreduce", "allreduce", "allgather", "allgather"]
    assert np.isnan(group.ready_ns[:, 1]).tolist() == [True, True, False, False]
    assert unmatched == 0


def test_groups_are_matched_apart() -> None:
    """Two groups of two: order counts within a group, not over all."""
    split = []
    for one in simulate(Job(ranks=4, late={3: ("host", 30 * MS)})):
        pair = (0, 1) if one.rank < 2 else (2, 3)
        kind = structs.replace(one.kinds[0], group=f"pair {pair[0]}", members=pair, size=2)
        split.append(structs.replace(one, kinds=(kind,)))

    found = compare(split)

    assert who(found)[:2] == (3, 30.0)
    assert found.ranks.per_rank[0].late_ms == 0.0


def test_a_thousand_ranks() -> None:
    """1,024 ranks on 128 hosts, clocks up to 5 s apart, three missing, one late by 31 ms, one by 15 ms."""
    found = compare(simulate(large_job(1024)))

    rank, late_ms, steps, cause = who(found)
    assert (rank, steps, cause) == (640, 3, "loader")
    assert late_ms == pytest.approx(31.0, rel=0.01)
    assert late_of(found).others == (341,)
    assert len(found.ranks.lanes) <= 8


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

    rank, found_ms, steps, cause = who(compare(simulate(job)))

    assert (rank, steps, cause) == (late, 3, part)
    assert found_ms == pytest.approx(late_ms, rel=1e-3)


def recorded(name: str) -> Comparison:
    """Two real ranks: DDP on two H200s."""
    traces = [shared_trace(f"nccl-h200/ddp_{name}_rank{rank}.json.gz") for rank in (0, 1)]
    return compare([structs.replace(summarise(analyse(trace)), rank=rank) for rank, trace in enumerate(traces)])


def test_real_balanced_ranks() -> None:
    """All-reduces over NVLink near what NCCL reaches, no rank late."""
    found = recorded("balanced")

    assert found.ranks.state == "balanced"
    assert found.worst_ms < 0.03 * (found.ranks.step_ms or 0.0)
    (cost,) = found.ranks.collectives
    assert (cost.name, cost.calls, cost.size, cost.message_bytes) == ("allreduce", 8.0, 2, 2 * 16_781_312)
    assert cost.message_bytes is not None and cost.message_bytes / cost.latency_ms == pytest.approx(208e6, rel=0.02)
    assert found.clocks is not None and found.clocks.residual_ns is not None and found.clocks.residual_ns < 20_000
    for one in found.ranks.per_rank:
        assert sum((one.breakdown or {}).values()) == pytest.approx(one.step_ms or 0.0, rel=0.01)


def test_real_straggler_by_gpu_work() -> None:
    """Rank 1 runs twenty more products before its forward pass: 3.9 ms of GPU work a step."""
    found = recorded("straggler_gpu")

    rank, late_ms, steps, cause = who(found)
    assert (rank, steps, cause) == (1, 3, "compute")
    assert late_ms == pytest.approx(3.91, rel=0.1)
    assert (late_of(found).phase, late_of(found).more_kernels) == ("forward", 20.0)
