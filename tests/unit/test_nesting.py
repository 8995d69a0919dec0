"""Which interval encloses which, against the definition taken literally."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.attribution import MOST_LAYERS, innermost, parents, probe
from ipyprof.trace.model import Int64

STEADY = settings(deadline=None)  # the machine may be busy
SCALE = 10_000  # far above the slack
spans = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 12), st.integers(0, 2)), max_size=14)


def arrays(rows: list[tuple[int, int, int]], scale: int = SCALE) -> tuple[Int64, Int64, Int64]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0] * scale, (table[:, 0] + table[:, 1]) * scale, table[:, 2]


def us(*pairs: tuple[float, float]) -> tuple[Int64, Int64, Int64]:
    """Intervals of one thread from their begins and ends in microseconds."""
    table = np.round(np.array(pairs) * 1000).astype(np.int64)
    return table[:, 0], table[:, 1], np.zeros(len(pairs), np.int64)


def latest_holder(rows: list[tuple[int, int, int]], at: int, thread: int, before: int | None = None) -> int:
    """The last interval, in order of (start, -end), that holds an instant; of those before one only, if it is given."""
    order = sorted(range(len(rows)), key=lambda index: (rows[index][0], -rows[index][1]))
    if before is not None:
        order = order[: order.index(before)]
    holding = [
        index for index in order if rows[index][2] == thread and rows[index][0] <= at < rows[index][0] + rows[index][1]
    ]
    return holding[-1] if holding else -1


@STEADY
@given(spans)
def test_parent_is_the_latest_interval_that_holds_the_begin(rows: list[tuple[int, int, int]]) -> None:
    found = parents(*arrays(rows))

    assert found.tolist() == [latest_holder(rows, row[0], row[2], index) for index, row in enumerate(rows)]


@STEADY
@given(spans, st.lists(st.tuples(st.integers(-2, 40), st.integers(0, 3)), max_size=8))
def test_innermost_is_the_latest_interval_that_holds_the_instant(
    rows: list[tuple[int, int, int]], points: list[tuple[int, int]]
) -> None:
    at = np.array([point[0] * SCALE for point in points], np.int64)
    thread = np.array([point[1] for point in points], np.int64)

    found = innermost(*arrays(rows), at, thread)

    assert found.tolist() == [latest_holder(rows, instant, name) for instant, name in points]


@STEADY
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 3_000), st.integers(0, 1)), max_size=30))
def test_no_interval_is_its_own_ancestor(rows: list[tuple[int, int, int]]) -> None:
    """Whatever the clock did, within the slack too."""
    found = parents(*arrays(rows, scale=1))

    for start in range(len(rows)):
        seen, at = set(), start
        while at >= 0:
            assert at not in seen
            seen.add(at)
            at = int(found[at])


def test_a_child_that_begins_a_little_early_stays_a_child() -> None:
    """B10: 0.3 us before its parent."""
    start, end, thread = us((9.7, 14), (10, 30))

    assert parents(start, end, thread).tolist() == [1, -1]


def test_a_call_that_begins_a_little_early_is_in_its_operator() -> None:
    """B10: the instant that stands for a call lies inside the operator."""
    start, end, thread = us((0, 9), (10, 30))
    call_start, call_end, call_thread = us((9.7, 14))

    assert innermost(start, end, thread, probe(call_start, call_end), call_thread).tolist() == [1]


def test_neighbours_that_overlap_a_little_stay_neighbours() -> None:
    start, end, thread = us((0, 10.3), (10, 30))

    assert parents(start, end, thread).tolist() == [-1, -1]


def test_crossing_spans_both_stay() -> None:
    """A12: a step ends in the middle of the optimizer's step; what begins after that end is the optimizer's."""
    start, end, thread = us((0, 100), (90, 110), (92, 95), (102, 105))

    assert parents(start, end, thread).tolist() == [-1, 0, 1, 1]


def test_equal_intervals_nest_in_order() -> None:
    start, end, thread = us((0, 10), (0, 10), (0, 10))

    assert parents(start, end, thread).tolist() == [-1, 0, 1]


def test_threads_do_not_enclose_each_other() -> None:
    start, end, _ = us((0, 100), (10, 20))

    assert parents(start, end, np.array([1, 2])).tolist() == [-1, -1]


def test_deep_nesting_is_linear() -> None:
    """Far more layers than are taken off one by one."""
    depth = MOST_LAYERS * 4_000
    at = np.arange(depth, dtype=np.int64) * SCALE

    found = parents(at, 2 * depth * SCALE - at, np.zeros(depth, np.int64))

    assert found.tolist() == list(range(-1, depth - 1))


def test_a_long_staircase_is_linear() -> None:
    """Each span crosses the next one only."""
    steps = MOST_LAYERS * 4_000
    at = np.arange(steps, dtype=np.int64) * SCALE

    found = parents(at, at + SCALE + SCALE // 2, np.zeros(steps, np.int64))

    assert found.tolist() == list(range(-1, steps - 1))


def test_nothing_gives_nothing() -> None:
    none = np.empty(0, np.int64)

    assert parents(none, none, none).tolist() == []
    assert innermost(none, none, none, np.array([5]), np.array([1])).tolist() == [-1]
