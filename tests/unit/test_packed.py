"""Lists of numbers as arrays."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest


from ipyprof.trace.kineto import packed


@pytest.mark.parametrize(
    ("values", "code", "dtype"),
    [([1, -(1 << 63), (1 << 63) - 1], "q", np.int64), ([3, -1], "i", np.int32), ([0.5, 2.0], "d", np.float64)],
)
def test_numbers_are_kept_exactly(values: list[float], code: str, dtype: type[np.generic]) -> None:
    array = packed(values, code)

    assert array.dtype == dtype
    assert array.tolist() == values


def test_no_numbers_are_an_empty_array() -> None:
    assert packed([], "q").tolist() == []


@pytest.mark.parametrize("value", [1 << 63, "7", None])
def test_what_does_not_fit_is_an_error(value: Any) -> None:
    with pytest.raises(struct.error):
        packed([0, value], "q")


def test_unsigned_ids_are_wrapped_one_to_one() -> None:
    assert wrapped([1, (1 << 64) - 1, 1 << 63]).tolist() == [1, -1, -(1 << 63)]
