"""Passes by running sums and maxima give what going through the program item by item gives, to the last bit."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.program import Act, Program
from ipyprof.analysis.recurrence import advance, host_times, opening, prepare
from tests import plain_replay

PASSES = 4


def program_of(random: Random, items: int, *, queue: int, streams: int, launches: float, meets: float) -> Program:
    """Any program: launches of one or more records, synchronisations, copies, records that depend on others."""
    act: list[int] = []
    first: list[int] = []
    last: list[int] = []
    target: list[int] = []
    stream: list[int] = []
    depends: list[int] = []
    for _ in range(items):
        begin, what, awaited, count = len(stream), Act.PLAIN, -1, 0
        if random.random() < launches:
            # An edit may take the launch out and leave its records in the columns.
            what = Act.LAUNCH if random.random() < 0.97 else Act.PLAIN
            count = random.choice([1, 1, 1, 2, 5])
        elif random.random() < meets:
            what = random.choice([Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD, Act.BLOCKING_COPY])
            count = int(what == Act.BLOCKING_COPY)
            if what == Act.SYNC_STREAM:
                awaited = random.randrange(streams)
            if what == Act.SYNC_RECORD:
                what, awaited = (what, random.randrange(begin)) if begin else (Act.PLAIN, -1)
        for _ in range(count):
            stream.append(random.randrange(streams))
            depends.append(random.randrange(begin) if begin and random.random() < meets / 2 else -1)
        act.append(what)
        first.append(begin)
        last.append(len(stream))
        target.append(awaited)
    records = len(stream)
    long = random.choice([300, 3_000, 300_000])

    def whole(count: int, low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([float(random.randrange(low, high)) for _ in range(count)])

    def chance(count: int, share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([random.random() < share for _ in range(count)], bool)

    none = np.zeros(items, np.int64)
    empty = np.empty(0, np.int64)
    return Program(
        gap_from=none,
        gap_to=none,
        call_from=none,
        call_to=none,
        gap=whole(items, 0, 2_000),
        gap_operator=np.zeros(items),
        gap_events=np.zeros(items),
        own=whole(items, 0, 3_000),
        call_events=np.zeros(items),
        act=np.array(act, np.int64),
        target=np.array(target, np.int64),
        gap_host=none,
        call_host=none,
        gap_line=none,
        call_line=none,
        event=none,
        first=np.array(first, np.int64),
        last=np.array(last, np.int64),
        record=np.arange(records),
        stream=np.array(stream, np.int64),
        dur=whole(records, 0, long),
        idle=chance(records, 0.3),
        latency=whole(records, 0, 9_000),
        pause=whole(records, -9_000, 9_000),
        depends=np.array(depends, np.int64),
        graph=chance(records, 0.1),
        at_end=chance(items, 0.1),
        ready=np.array([random.choice([-np.inf, 0.0, 5e3, 1e6]) for _ in range(streams)]),
        begin=1_000,
        stop=2_000,
        steps=1,
        queue=queue,
        operator_start=empty,
        operator_end=empty,
        edges=empty,
        edge_from=none,
        edge_to=none,
        threads=(1,),
        line_from=empty,
        line_number=empty,
        cut_start=empty,
        cut_end=empty,
    )


def check(program: Program, *, deflated: bool) -> None:
    # given
    prepared = prepare(program, program.gap, program.own, deflated=deflated)
    state, plain = opening(program), plain_replay.opened(program)
    for _ in range(PASSES):
        # when
        advance(prepared, state)
        plain_replay.advance(program, program.gap, program.own, plain, deflated=deflated)
        # then
        assert state.host == plain.host
        assert state.ready == plain.ready
        assert state.start.tolist() == plain.start
        found = host_times(prepared, state)
        assert [one.tolist() for one in found] == [plain.gap_begin, plain.call_begin, plain.call_end]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    items=st.sampled_from([0, 1, 2, 7, 40, 150]),
    queue=st.sampled_from([0, 1, 2, 5, 30, 1_024]),
    streams=st.sampled_from([1, 1, 2, 3]),
    launches=st.sampled_from([0.1, 0.6, 1.0]),
    meets=st.sampled_from([0.0, 0.05, 0.5]),
    deflated=st.booleans(),
)
def test_any_program_is_as_item_by_item(
    seed: int, items: int, queue: int, streams: int, launches: float, meets: float, deflated: bool
) -> None:
    program = program_of(Random(seed), items, queue=queue, streams=streams, launches=launches, meets=meets)
    check(program, deflated=deflated)


@pytest.mark.parametrize("meets", [0.0, 0.2])
def test_a_full_queue_holds_the_host(meets: float) -> None:
    # given launches far faster than the work, and more of them than the queue holds
    program = program_of(Random(3), 400, queue=8, streams=2, launches=0.9, meets=meets)
    long = program.dur + 1e6
    slow = Program(
        **{name: getattr(program, name) for name in Program.__slots__} | {"dur": long, "pause": 0.0 * program.pause}
    )
    # when
    prepared, state = prepare(slow, slow.gap, slow.own, deflated=False), opening(slow)
    advance(prepared, state)
    # then
    assert state.host - slow.begin > slow.gap.sum() + slow.own.sum() + 1e7
    check(slow, deflated=False)


def test_what_changes_nothing_changes_no_bit() -> None:
    # given times that have no exact sum, and work that nobody waits for
    program = program_of(Random(5), 150, queue=0, streams=1, launches=0.8, meets=0.0)
    fine = np.linspace(0.1, 0.9, 150)
    # when
    ends = []
    for work in (program.dur, 0.0 * program.dur):
        edited = Program(**{name: getattr(program, name) for name in Program.__slots__} | {"dur": work})
        state = opening(edited)
        prepared = prepare(edited, program.gap + fine, program.own + fine, deflated=False)
        for _ in range(PASSES):
            advance(prepared, state)
        ends.append(state.host)
    # then
    assert ends[0] == ends[1]
