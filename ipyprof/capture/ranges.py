"""The ranges around the cell's statements, all of which can be ended from within.

A range that outlives its profiler would end in the session of the next one, perhaps the user's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ipyprof.capture import doors


class LineRanges:
    """The open ranges of one thread, the innermost last."""

    def __init__(self) -> None:
        self._open: list[AbstractContextManager[Any]] = []

    def of(self, line: int) -> AbstractContextManager[Any]:
        """A context manager that records a range ``## line N``. Its exit does nothing when the range is ended."""
        return _LineRange(line, self._open)

    def end_all(self) -> None:
        """End every open range, the innermost first, while their profiler is on."""
        while self._open:
            self._open.pop().__exit__(None, None, None)

    def forget(self) -> None:
        """The profiler of the open ranges was taken: they must not be ended."""
        self._open.clear()


class _LineRange:
    __slots__ = ("_open", "_range")

    def __init__(self, line: int, open_ranges: list[AbstractContextManager[Any]]) -> None:
        self._range = doors.named_range(f"## line {line}")
        self._open = open_ranges

    def __enter__(self) -> None:
        self._range.__enter__()
        self._open.append(self._range)

    def __exit__(self, *_error: object) -> None:
        while self._range in self._open:  # with one inside that an interrupt left open
            self._open.pop().__exit__(None, None, None)
