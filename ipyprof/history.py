"""The last reports and panels of this process: at most ten, and no traces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.report.report import Report

KEPT = 10

_reports: deque[Report] = deque(maxlen=KEPT)
_panels: deque[Callable[[], None]] = deque()


def remember(report: Report) -> None:
    """Keep a report; the oldest of more than ten is forgotten."""
    _reports.append(report)


def keep_panel(close: Callable[[], None]) -> None:
    """Keep a panel alive; the oldest of more than ten is closed. ``close`` closes this one."""
    _panels.append(close)
    if len(_panels) > KEPT:
        _panels.popleft()()


def reports() -> tuple[Report, ...]:
    """The kept reports, the oldest first."""
    return tuple(_reports)


def last() -> Report | None:
    """The newest report, or ``None`` where there is none."""
    return _reports[-1] if _reports else None


def forget() -> None:
    """Let all reports go, and close all panels."""
    _reports.clear()
    while _panels:
        _panels.popleft()()
