"""The private doors of torch that capture goes through, each guarded, with what serves in its place beside it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler


def profiler_recording() -> bool:
    """Whether a profiler records in this thread, ours or the user's. False in warm-up."""
    try:
        return bool(torch.autograd._profiler_enabled())
    except AttributeError:
        return bool(getattr(autograd_profiler, "_is_profiler_enabled", False))


def profiler_open() -> bool:
    """Whether some torch profiler object is between its preparation and its stop, in warm-up or in any thread.

    Looks through the collector's objects (about 70 ms), which runs no code of theirs.
    """
    kind = autograd_profiler.profile
    for candidate in gc.get_objects():
        if issubclass(type(candidate), kind):
            state = object.__getattribute__(candidate, "__dict__")
            if state.get("entered") and state.get("kineto_results") is None:
                return True
    return False


def disarm(profiler: Any) -> None:
    """Mark the inner object of a lost or refused profiler as not entered, so that ``profiler_open`` skips it."""
    inner = getattr(profiler, "profiler", None)
    if inner is not None:
        inner.entered = False


def leave_unparsed(profiler: Any) -> None:
    """Let the stop of this profiler end without torch's own pass over the events in Python, which only its tables need.

    torch 2.13 makes that pass at the stop of a profiler that accumulates events: ten times as long as the stop itself,
    and with stacks it fails on a name that is not UTF-8, so that a sound recording is lost.
    """
    inner = getattr(profiler, "profiler", None)
    if inner is not None:
        inner.acc_events = False


def disable_profiler(profiler: Any) -> None:
    """Switch recording off where ``stop_trace`` failed on its way (a CUDA error in its synchronise) and left it on.

    The records go to the profiler object, which can then be exported.

    Raises:
        AttributeError: this torch has no such door.
    """
    profiler.profiler.kineto_results = torch.autograd._disable_profiler()


def release_thread(fresh: Any) -> bool:
    """Whether this thread stopped collecting after another thread's profiler took the session.

    The thread's own state stays on then, and switching it off without a session kills the process. So ``fresh``, a
    new profiler, is prepared first (tried on torch 2.13). Call it only when no other profiler is open.
    """
    disable = getattr(torch.autograd, "_disable_profiler", None)
    if disable is None:
        return False
    fresh.prepare_trace()
    try:
        disable()
    finally:
        disarm(fresh)
    return not profiler_recording()


def named_range(name: str) -> AbstractContextManager[Any]:
    """A context manager that records a range of this name: 0.3 us off, 1.1 us on (7 and 9 in the public way)."""
    try:
        fast: AbstractContextManager[Any] = torch._C._profiler._RecordFunctionFast(name)
    except (AttributeError, TypeError):
        slow: AbstractContextManager[Any] = torch.profiler.record_function(name)
        return slow
    return fast


def stream_is_capturing() -> bool:
    """Whether the current CUDA stream is capturing a graph; then no event may be recorded on it and nobody may wait."""
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except (AttributeError, RuntimeError):
        return False


class Takeover:
    """Lets a profiler that the user starts win: ours gives way first.

    torch raises no error for a second profiler: it silently takes the session, and stopping or exporting the first
    one then kills the process. While installed, the two functions that every profiler of torch starts through are
    replaced by ones that call ``give_way`` and take themselves out. Where torch lacks them nothing is replaced, and
    the look at ``profiler_recording`` before each stop is what remains.
    """

    _NAMES = ("_prepare_profiler", "_enable_profiler")

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._give_way = give_way
        self._replaced: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = []

    def install(self) -> None:
        """Replace the functions; nothing happens when they are replaced already."""
        if self._replaced:
            return
        for name in self._NAMES:
            original = getattr(autograd_profiler, name, None)
            if callable(original):
                door = self._door(original)
                setattr(autograd_profiler, name, door)
                self._replaced.append((name, original, door))

    def remove(self) -> None:
        """Put the functions back, unless somebody has replaced ours since."""
        replaced, self._replaced = self._replaced, []
        for name, original, door in replaced:
            if getattr(autograd_profiler, name, None) is door:
                setattr(autograd_profiler, name, original)

    def _door(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def door(*args: Any, **kwargs: Any) -> Any:
            self.remove()
            with suppress(Exception):  # a failure of ours must not stop the user's profiler
                self._give_way()
            return original(*args, **kwargs)

        return door
