"""Values as small numbers: each distinct one once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from ipyprof.trace.model import Int32
from ipyprof.trace.packed import packed

Value = TypeVar("Value", bound=Hashable)


class Interner(Generic[Value]):
    """Numbers values in order of first appearance, over several lists of them."""

    def __init__(self) -> None:
        # A new key gets the number of keys before it, without a Python call per value.
        self._numbers: defaultdict[Value, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def __len__(self) -> int:
        return len(self._numbers)

    def column(self, values: Iterable[Value]) -> Int32:
        """(n,) int32 number of each value."""
        return packed(list(map(self._numbers.__getitem__, values)), "i")

    def distinct(self) -> tuple[Value, ...]:
        """The values by their number."""
        return tuple(self._numbers)
