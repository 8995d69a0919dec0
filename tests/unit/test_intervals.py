"""Interval sets against the same answers counted instant by instant."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.intervals import coverage_before, covered, inside, intersection, sweep, union
from ipyprof.trace.model import Int64

STEADY = settings(deadline=None)  # the machine may be busy
SPAN = 30
intervals = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=8)
instants = st.lists(st.integers(-3, SPAN + 3), max_size=8)


def arrays(pairs: list[tuple[int, int]]) -> tuple[Int64, Int64]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def cells(pairs: list[tuple[int, int]]) -> set[int]:
    """The unit instants that the intervals cover."""
    return {at for start, end in pairs for at in range(start, end)}


@STEADY
@given(intervals)
def test_union_covers_the_same_instants(pairs: list[tuple[int, int]]) -> None:
    start, end = union(*arrays(pairs))

    assert cells(list(zip(start.tolist(), end.tolist(), strict=True))) == cells(pairs)


@STEADY
@given(intervals)
def test_union_is_sorted_and_apart(pairs: list[tuple[int, int]]) -> None:
    start, end = union(*arrays(pairs))

    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@STEADY
@given(intervals)
def test_covered_counts_each_instant_once(pairs: list[tuple[int, int]]) -> None:
    assert covered(*arrays(pairs)) == len(cells(pairs))


@STEADY
@given(intervals, instants)
def test_coverage_before_counts_the_instants_before(pairs: list[tuple[int, int]], at: list[int]) -> None:
    found = coverage_before(*union(*arrays(pairs)), np.array(at, np.int64))

    assert found.tolist() == [sum(cell < instant for cell in cells(pairs)) for instant in at]


@STEADY
@given(intervals, instants)
def test_inside_tells_covered_instants(pairs: list[tuple[int, int]], at: list[int]) -> None:
    found = inside(*union(*arrays(pairs)), np.array(at, np.int64))

    assert found.tolist() == [instant in cells(pairs) for instant in at]


@STEADY
@given(intervals)
def test_many_sorted_instants_are_told_as_single_ones(pairs: list[tuple[int, int]]) -> None:
    start, end = union(*arrays(pairs))
    at = np.repeat(np.arange(-3, SPAN + 3), 2)

    assert inside(start, end, at).tolist() == [instant in cells(pairs) for instant in at.tolist()]
    assert coverage_before(start, end, at).tolist() == [
        sum(cell < instant for cell in cells(pairs)) for instant in at.tolist()
    ]


@STEADY
@given(intervals, intervals)
def test_intersection_covers_what_both_cover(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    start, end = intersection(*union(*arrays(one)), *union(*arrays(other)))

    assert (end > start).all()
    assert (start[1:] >= end[:-1]).all()
    assert cells(list(zip(start.tolist(), end.tolist(), strict=True))) == cells(one) & cells(other)


@STEADY
@given(st.lists(intervals, max_size=4), st.integers(0, SPAN), st.integers(0, SPAN))
def test_sweep_gives_each_instant_to_the_first_layer(layers: list[list[tuple[int, int]]], one: int, other: int) -> None:
    begin, stop = min(one, other), max(one, other)

    owned = sweep([arrays(layer) for layer in layers], begin, stop)

    left = set(range(begin, stop))
    expected = []
    for layer in layers:
        expected.append(len(left & cells(layer)))
        left -= cells(layer)
    assert owned == [*expected, len(left)]
    assert sum(owned) == stop - begin


def test_two_streams_at_once_are_busy_once() -> None:
    """C1: two streams that overlap for 100 ms are 100 ms busy, not 200."""
    start, end = np.array([0, 0], np.int64), np.array([100_000_000, 100_000_000], np.int64)

    assert covered(start, end) == 100_000_000


def test_real_nanoseconds_do_not_overflow() -> None:
    """Times near 2^62 still give exact lengths."""
    base = 1 << 62

    assert sweep([(np.array([base + 1]), np.array([base + 4]))], base, base + 10) == [3, 7]
