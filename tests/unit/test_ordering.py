"""The order of events: by start, of equal starts the longest first, of equal ones the first in the file."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.trace.columns import nested_order

spans = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=12)


@settings(deadline=None)
@given(spans)
def test_the_order_is_that_of_a_stable_sort(rows: list[tuple[int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 2)

    order = nested_order(table[:, 0], table[:, 1])

    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(len(rows)), key=lambda at: (rows[at][0], -rows[at][1]))
