"""The last ten reports and panels of this process, and on disk the trace of the newest one with a panel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.report.report import Report
    from ipyprof.trace.writer import KeptTrace

KEPT = 10

_reports: deque[tuple[int, Report]] = deque(maxlen=KEPT)
_numbers = count(1)
_panels: deque[Callable[[], None]] = deque()
_traces: list[tuple[Report, KeptTrace]] = []


def remember(report: Report) -> None:
    """Keep a report under the next number; the oldest of more than ten is forgotten."""
    _reports.append((next(_numbers), report))


def replace(before: Report, now: Report) -> None:
    """Keep ``now`` in the place and under the number of ``before``, where that is still kept."""
    for at, (number, report) in enumerate(_reports):
        if report is before:
            _reports[at] = number, now


def keep_trace(report: Report, trace: KeptTrace) -> None:
    """Keep the trace of a report; the one before is let go."""
    _let_traces_go()
    _traces.append((report, trace))


def trace_of(report: Report) -> KeptTrace | None:
    """The kept trace of this very report, or ``None``."""
    return next((trace for owner, trace in _traces if owner is report), None)


def keep_panel(close: Callable[[], None]) -> None:
    """Keep a panel alive; the oldest of more than ten is closed. ``close`` closes this one."""
    _panels.append(close)
    if len(_panels) > KEPT:
        _panels.popleft()()


def reports() -> tuple[Report, ...]:
    """The kept reports, the oldest first."""
    return tuple(report for _, report in _reports)


def numbered() -> tuple[tuple[int, Report], ...]:
    """The kept reports with their numbers, the oldest first. A number stays with its report."""
    return tuple(_reports)


def find(name: str) -> Report | None:
    """The newest kept report with this title, else the one with this number, else ``None``."""
    for _, report in reversed(_reports):
        if report.source.name == name:
            return report
    return next((report for number, report in _reports if str(number) == name), None)


def last() -> Report | None:
    """The newest report, or ``None`` where there is none."""
    return _reports[-1][1] if _reports else None


def forget() -> None:
    """Let all reports go, and close all panels. Numbers begin at 1 again."""
    global _numbers
    _let_traces_go()
    _reports.clear()
    _numbers = count(1)
    while _panels:
        _panels.popleft()()


def _let_traces_go() -> None:
    while _traces:
        _traces.pop()[1].let_go()
