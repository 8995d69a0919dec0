"""The run that is on in this process. There is at most one, because a process has one profiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.capture.steps import StepDetector
    from ipyprof.surface import Surface

_ALREADY = "ipyprof: a profile is already running; the code inside it ran without one of its own."
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_NOTHING = "99"


class Run:
    """A run that is on, and whether another one beside it was refused.

    Attributes:
        detector: gets the calls of ``step()``, or ``None`` until it is made.
    """

    def __init__(self) -> None:
        self.detector: StepDetector | None = None
        self.refused = False


_runs: list[Run] = []
_lock = threading.Lock()


@contextmanager
def claim(surface: Surface) -> Iterator[Run | None]:
    """The run that is on inside; ``None`` while there is another one, which is said once, however often it is tried.

    Of several threads exactly one gets a run. Inside it Kineto writes no log: Kineto reads its log level when the
    first profiler of the process starts, and from torch 2.13 on the default prints two lines per recording to standard
    error, which a notebook shows. A level that the user has set stays.
    """
    run, said = _begun()
    if run is None:
        if not said:
            surface.say(_ALREADY)
        yield None
        return
    quiet = _LOG_LEVEL not in os.environ
    if quiet:
        os.environ[_LOG_LEVEL] = _NOTHING
    try:
        yield run
    finally:
        if quiet and os.environ.get(_LOG_LEVEL) == _NOTHING:
            del os.environ[_LOG_LEVEL]
        _runs.remove(run)


def _begun() -> tuple[Run | None, bool]:
    """A new run, or ``None`` where there is one, and whether that one has refused another before."""
    with _lock:
        if _runs:
            said, _runs[-1].refused = _runs[-1].refused, True
            return None, said
        run = Run()
        _runs.append(run)
        return run, False


def step() -> None:
    """Tell the run that is on, if there is one, that a step ends here."""
    for run in tuple(_runs):
        if run.detector is not None:
            run.detector.user_step()
