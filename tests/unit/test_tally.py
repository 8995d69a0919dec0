"""Distinct combinations are those of sorting rows, whatever the numbers are."""

from __future__ import annotations

import numpy as np
import pytest

from ipyprof.analysis.intervals import begun, distinct_columns


@pytest.mark.parametrize("largest", [3, 1 << 20, (1 << 62) - 1])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_distinct_columns_are_sorted_and_complete(largest: int, columns: int) -> None:
    # given
    random = np.random.default_rng(1)
    table = random.integers(-1, largest, (columns, 500))
    # when
    distinct, place = distinct_columns(*table)
    # then
    expected, expected_place = np.unique(table, axis=1, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(place, expected_place.reshape(-1))


def test_nothing_has_no_combinations() -> None:
    # given
    nothing = np.empty(0, np.int64)
    # when
    distinct, place = distinct_columns(nothing, nothing)
    # then
    assert distinct.shape == (2, 0) and len(place) == 0


@pytest.mark.parametrize(("starts", "instants"), [(3, 200), (200, 3), (0, 5), (5, 0)])
@pytest.mark.parametrize("ordered", [True, False])
def test_starts_that_have_begun_are_counted(starts: int, instants: int, ordered: bool) -> None:
    # given
    random = np.random.default_rng(2)
    start, at = np.sort(random.integers(0, 50, starts)), random.integers(-2, 53, instants)
    at = np.sort(at) if ordered else at
    # when
    found = begun(start, at)
    # then
    assert found.tolist() == [int((start <= instant).sum()) for instant in at.tolist()]
