"""Signals that wait until a transition of the profiler is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

try:  # without the conversion of every number to an enumeration: 2 us in place of 20
    _plain: Any = import_module("_signal")
except ImportError:
    _plain = signal

# Those whose Python handlers may raise: an interrupt, a user's time limit, torch's word of a loader's worker that died.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGCHLD", "SIGUSR1", "SIGUSR2")
_DEFERRED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Nothing comes back; a signal that arrives inside is delivered on the way out.

    Blocking signals in the thread is not enough in a kernel: another thread of the process takes the signal, and
    Python still runs the handler in the main thread. So the Python handlers are replaced for the moment, which costs
    a few microseconds. Outside the main thread no Python handler runs, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    replaced = []
    try:
        for number in _DEFERRED:
            handler = _plain.getsignal(number)
            if callable(handler):  # default and ignored signals run no Python; None was installed from C
                replaced.append((number, handler))
                _plain.signal(number, note)
        yield
    finally:
        for number, handler in replaced:
            _plain.signal(number, handler)
        # Each once, whatever the handlers before it raise; the interrupt last, so that it is what the cell ends with.
        _deliver(sorted(set(arrived), key=lambda number: number == signal.SIGINT))


def _deliver(numbers: list[int]) -> None:
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _deliver(numbers[1:])
