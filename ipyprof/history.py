"""The last reports of this process: at most ten, and no traces. The only state that a module of ours keeps."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.report.report import Report

KEPT = 10

_reports: deque[Report] = deque(maxlen=KEPT)


def remember(report: Report) -> None:
    """Keep a report; the oldest of more than ten is forgotten."""
    _reports.append(report)


def reports() -> tuple[Report, ...]:
    """The kept reports, the oldest first."""
    return tuple(_reports)


def last() -> Report | None:
    """The newest report, or ``None`` where there is none."""
    return _reports[-1] if _reports else None


def forget() -> None:
    """Let all reports go."""
    _reports.clear()
