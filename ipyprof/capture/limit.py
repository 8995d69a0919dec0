"""The time limit of a recording, also where nothing is marked: a loop inside a function may run for an hour.

Only the thread that started torch's profiler may stop it. So a timer asks Python to call back in the main thread
between two bytecodes (``Py_AddPendingCall``), which is how signal handlers run, without touching the user's signals.
Where the cell runs in another thread, or without ctypes, the limit is checked at marks, hooks and batches only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

try:
    import ctypes

    _PENDING: Any = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
except (ImportError, AttributeError):
    _PENDING = None

AGAIN_S = 0.1
GRACE = 1.5  # times the limit: where steps are marked, the one under way may end


class Watchdog:
    """Calls back in the main thread once a time is over, and again until it is stopped.

    Args:
        seconds: the limit; the first call comes ``GRACE`` times as long after the start.
        late: called between two bytecodes of whatever runs then; must not raise.
        not_inside: name of the module in whose functions it is not called; it comes ``AGAIN_S`` later then.
    """

    def __init__(self, seconds: float, late: Callable[[], None], *, not_inside: str) -> None:
        self._seconds = seconds
        self._late = late
        self._not_inside = not_inside
        self._timer: threading.Timer | None = None
        # Python keeps the address of what it shall call, so the object has to live until then.
        self._call = None if _PENDING is None else _PENDING(self._called)

    def start(self) -> None:
        """Begin to count, in the main thread only."""
        if self._call is not None and threading.current_thread() is threading.main_thread():
            self._wait(GRACE * self._seconds)

    def stop(self) -> None:
        """No call begins any more. Stopping again does nothing."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if timer is not threading.current_thread():
                timer.join(1.0)  # it ends at once, and no thread of ours is left

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._ask)
        self._timer.daemon = True
        self._timer.name = "ipyprof limit"
        self._timer.start()

    def _ask(self) -> None:
        if self._timer is not None:
            ctypes.pythonapi.Py_AddPendingCall(self._call, None)

    def _called(self, _nothing: Any) -> int:
        if self._timer is None:
            return 0
        frame = sys._getframe().f_back
        while frame is not None and frame.f_globals.get("__name__") != self._not_inside:
            frame = frame.f_back
        if frame is None:
            self._late()
        if self._timer is not None:
            self._wait(AGAIN_S)
        return 0
