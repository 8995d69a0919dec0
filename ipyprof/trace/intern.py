"""Values as small numbers: each distinct one once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value", bound=Hashable)


def interned(values: list[Value]) -> tuple[npt.NDArray[np.int32], tuple[Value, ...]]:
    """(n,) int32 index of each value among the distinct ones, and those, in order of first appearance."""
    # A new key gets the number of keys before it, without a Python call per value.
    numbers: defaultdict[Value, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    column = np.fromiter(map(numbers.__getitem__, values), np.int32, len(values))
    return column, tuple(numbers)
