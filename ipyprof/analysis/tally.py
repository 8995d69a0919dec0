"""Distinct combinations of whole numbers, by one sort of one number each."""

from __future__ import annotations

import numpy as np

from ipyprof.trace.model import Int64

MOST_COMBINATIONS = 1 << 62


def distinct_columns(*columns: Int64) -> tuple[Int64, Int64]:
    """((columns, d), (n,)) int64: the distinct combinations in lexicographic order, and which one each place has.

    Args:
        columns: one or more (n,) int64 of the same length.
    """
    whole = np.zeros(len(columns[0]), np.int64)
    spread = 1
    for column in columns:
        # Ranks, not values: ids of streams may be addresses.
        values, ranks = _ranked(column)
        spread *= max(len(values), 1)
        if spread > MOST_COMBINATIONS:
            table, place = np.unique(np.stack(columns), axis=1, return_inverse=True)
            return table.astype(np.int64), place.reshape(-1).astype(np.int64)
        whole = whole * len(values) + ranks
    _, first, place = np.unique(whole, return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns]).astype(np.int64), place.astype(np.int64)


def _ranked(column: Int64) -> tuple[Int64, Int64]:
    """Values from the least to the largest (where that is far, those that occur), and the rank of each."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    if high - low <= 4 * len(column) + 1024:
        return np.arange(low, high + 1), column - low
    values, ranks = np.unique(column, return_inverse=True)
    return values, ranks.astype(np.int64)
