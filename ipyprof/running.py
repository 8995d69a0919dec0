"""The run that is on in this process. There is at most one, because a process has one profiler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.capture.steps import StepDetector
    from ipyprof.surface import Surface

_ALREADY = "ipyprof: a profile is already running; the code inside it ran without one of its own."
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_NOTHING = "99"


class _Run:
    """A run that is on, and whether another one inside it was refused."""

    def __init__(self, detector: StepDetector) -> None:
        self.detector = detector
        self.refused = False


_runs: list[_Run] = []


def is_on() -> bool:
    """Whether a cell or a block is being profiled."""
    return bool(_runs)


def refuse(surface: Surface) -> None:
    """Say that a run inside the one that is on is not profiled; once, however often it is tried."""
    run = _runs[-1]
    if not run.refused:
        run.refused = True
        surface.say(_ALREADY)


@contextmanager
def on(detector: StepDetector) -> Iterator[None]:
    """Inside, ``step()`` goes to this run, and Kineto writes no log.

    Kineto reads its log level when the first profiler of the process starts. From torch 2.13 on the default prints two
    lines per recording to standard error, which a notebook shows. A level that the user has set stays.
    """
    run = _Run(detector)
    quiet = _LOG_LEVEL not in os.environ
    if quiet:
        os.environ[_LOG_LEVEL] = _NOTHING
    _runs.append(run)
    try:
        yield
    finally:
        _runs.remove(run)
        if quiet and os.environ.get(_LOG_LEVEL) == _NOTHING:
            del os.environ[_LOG_LEVEL]


def step() -> None:
    """Tell the run that is on, if there is one, that a step ends here."""
    if _runs:
        _runs[-1].detector.user_step()
