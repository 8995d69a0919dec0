"""Which of the cell's own statements is running, read from the stack. A cell's statements run in its ``<module>``."""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FrameType


def running_line(filename: str) -> int | None:
    """The line of the statement of the cell ``filename`` that is running, or ``None``."""
    frame: FrameType | None = sys._getframe(1) if filename else None
    while frame is not None and not _is_cell(frame, filename):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def called_by_cell(filename: str, *, through: Collection[str]) -> bool:
    """Whether the caller, leaving out frames of the files ``through``, is a statement of the cell itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in through:
        frame = frame.f_back
    return frame is not None and _is_cell(frame, filename)


def _is_cell(frame: FrameType, filename: str) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_code.co_filename == filename
