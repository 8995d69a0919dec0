"""Input shapes as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ipyprof.analysis.tally import distinct_columns
from ipyprof.trace.model import Int64, Trace

MOST_INPUTS = 4


def common_shapes(trace: Trace, events: Int64, row: Int64, rows: int) -> list[str]:
    """The input shapes of most events of each row, such as ``[64, 512] × [512, 512] +2 more``; empty = not recorded.

    Args:
        events: (k,) int64 event indices.
        row: (k,) int64 the row of each, below ``rows``.
    """
    text = [""] * rows
    known = trace.detail[events] >= 0
    pairs, place = distinct_columns(row[known], trace.detail[events[known]].astype(np.int64))
    counts = np.bincount(place, minlength=pairs.shape[1])
    seen: list[dict[str, int]] = [{} for _ in range(rows)]
    for at, detail, count in zip(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), strict=True):
        written = shape_text(trace.details[detail].shapes or ())
        if written:
            seen[at][written] = seen[at].get(written, 0) + count
    for at, found in enumerate(seen):
        if found:
            most = max(found, key=lambda written: (found[written], written))
            text[at] = most if len(found) == 1 else f"{most} +{len(found) - 1} more"
    return text


def shape_text(shapes: Sequence[Any]) -> str:
    """The inputs, such as ``[64, 512] × [512, 512]``; a list of tensors as ``(3 tensors)``; empty = no tensor."""
    tensors = [shape for shape in shapes if isinstance(shape, (list, tuple)) and len(shape)]
    written = [
        f"({len(shape)} tensors)" if isinstance(shape[0], (list, tuple)) else f"[{', '.join(map(str, shape))}]"
        for shape in tensors[:MOST_INPUTS]
    ]
    return " × ".join(written + ["…"] * (len(tensors) > MOST_INPUTS))
