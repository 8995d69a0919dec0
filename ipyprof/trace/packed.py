"""Lists of Python numbers as arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def packed(values: Sequence[float], code: str) -> npt.NDArray[Any]:
    """(n,) array of the values; ``code`` is their type as ``struct`` and ``numpy`` call it, such as ``q`` for int64.

    ``struct`` takes two thirds of what ``array`` and ``np.array`` take for the same list.

    Raises:
        struct.error: a value does not fit the type, or is no number.
    """
    return np.frombuffer(struct.pack(f"{len(values)}{code}", *values), code)
