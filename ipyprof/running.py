"""The run that is on in this process. There is at most one, because a process has one profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipyprof.capture.steps import StepDetector

ALREADY = "ipyprof: a profile is already running; this code ran inside it, without one of its own."

_detectors: list[StepDetector] = []


def is_on() -> bool:
    """Whether a cell or a block is being profiled."""
    return bool(_detectors)


@contextmanager
def on(detector: StepDetector) -> Iterator[None]:
    """Inside, ``step()`` goes to this run."""
    _detectors.append(detector)
    try:
        yield
    finally:
        _detectors.remove(detector)


def step() -> None:
    """Tell the run that is on, if there is one, that a step ends here."""
    if _detectors:
        _detectors[-1].user_step()
