"""The order of a trace's events: by start, and of those that start together the longest first."""

from __future__ import annotations

import numpy as np

from ipyprof.trace.model import Int64


def nested_order(start: Int64, dur: Int64) -> Int64:
    """(n,) int64 order by (start, -dur), equal ones in the order given: an interval comes before what it holds.

    Files are nearly in that order, which a stable sort is fast on, and few events start together: only those are sorted
    by their duration as well.

    Args:
        start, dur: (n,) int64.
    """
    order = np.argsort(start, kind="stable").astype(np.int64, copy=False)
    sorted_start = start[order]
    together = sorted_start[1:] == sorted_start[:-1]
    if together.any():
        places = np.flatnonzero(np.append(together, False) | np.append(False, together))
        tied = order[places]
        order[places] = tied[np.lexsort((-dur[tied], start[tied]))]
    return order
