"""The one object that touches ``torch.profiler``: prepared, recording and stopped in one thread.

Only one profiler can be on in a process, and torch says nothing when a second one takes the session over: stopping or
exporting the first one then raises (torch 2.11) or kills the process (torch 2.13). Hence the rules here:

1. start, stop and export happen in one thread;
2. before a stop we look whether something still records; if not, the session was taken, and the object is never
   touched again;
3. when a profiler is already on, ours is not started;
4. while ours is on, a profiler that the user starts makes ours stop first.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, _KinetoProfile

from ipyprof.capture import torch_doors as doors
from ipyprof.options import Options

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


class ProfilerState(Enum):
    """Where a ``Profiler`` stands. ``LOST``: the session was taken, the object must not be touched."""

    OFF = auto()
    PREPARED = auto()
    RECORDING = auto()
    STOPPED = auto()
    LOST = auto()


def already_on() -> bool:
    """Whether another profiler is on, recording or in warm-up: then ours must not start."""
    return doors.profiler_recording() or doors.profiler_open()


_attached = False


def profiled_before() -> bool:
    """Whether a profiler of ours has started CUPTI in this process: it stays attached, and costs every launch."""
    return _attached


def _attach() -> None:
    global _attached
    _attached = True


class Profiler:
    """One session of torch's profiler.

    Args:
        options: ``shapes``, ``memory`` and ``stack`` choose what is recorded.
        cuda: record the GPU as well.
        give_way: called in the user's thread when the user starts a profiler while this one is on; it has to stop
            this one.
        late: called in the main thread while this one records, from ``options.limit_s`` on.
    """

    def __init__(self, options: Options, *, cuda: bool, give_way: Callable[[], None], late: Callable[[], None]) -> None:
        self.state = ProfilerState.OFF
        self._options = options
        self._cuda = cuda
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._takeover = doors.Takeover(give_way)
        self._watchdog = Watchdog(options.limit_s, late, not_inside=late.__module__)
        self._torch: Any = None

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is in the thread that this profiler belongs to; a forked process has none of it."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def warm(self) -> None:
        """Have CUPTI's first start (4 to 5 s) over before anything is recorded. Without CUDA there is none."""
        if self._cuda:
            _attach()
            self._run_empty()

    def prepare(self) -> None:
        """Begin to run and discard.

        Raises:
            Exception: whatever torch raises when it refuses; the profiler is then lost.
        """
        if self._options.memory and self._cuda:
            have_block_warning_over(tuple(self._activities()))
        self._torch = self._new()
        if self._cuda:
            _attach()
        try:
            self._torch.prepare_trace()
        except BaseException:
            self.abandon()
            raise
        self.state = ProfilerState.PREPARED
        self._takeover.install()

    def start(self) -> None:
        """Begin to record, from off or from prepared. Raises as ``prepare``."""
        if self.state is ProfilerState.OFF:
            self.prepare()
        if self.state is not ProfilerState.PREPARED:
            return
        self._takeover.remove()  # our own start goes through the same door
        try:
            self._torch.start_trace()
        except BaseException:
            self.abandon()
            raise
        self.state = ProfilerState.RECORDING
        self._takeover.install()
        self._watchdog.start()

    def check(self) -> bool:
        """Whether this profiler is on and still owns the session; a session that was taken is given up."""
        if self.state is ProfilerState.RECORDING and self.in_own_thread and not doors.profiler_recording():
            self.abandon()
        return self.state in (ProfilerState.PREPARED, ProfilerState.RECORDING)

    def stop(self) -> bool:
        """Whether what was recorded can be exported. From prepared, stopping records nothing worth an export.

        In another thread than the one that started it this only warns: stopping there would kill the process at the
        export. A later call in its own thread stops it.
        """
        if self.state in (ProfilerState.PREPARED, ProfilerState.RECORDING) and not self.in_own_thread:
            warnings.warn(
                "ipyprof was started in another thread and can only be stopped there; its recording is given up.",
                RuntimeWarning,
                stacklevel=3,
            )
            if all(thread.ident != self._thread for thread in threading.enumerate()):
                self.abandon()
                self._run_empty()  # else the session of a thread that is gone kills the process when it exits
            return False
        if not self.check():
            return self.state is ProfilerState.STOPPED
        self._watchdog.stop()
        self._takeover.remove()
        recorded = self.state is ProfilerState.RECORDING
        try:
            if not recorded:
                self._torch.start_trace()
            doors.leave_unparsed(self._torch)
            self._torch.stop_trace()
        except Exception:
            if not doors.profiler_recording():
                self.abandon()
                raise
            doors.disable_profiler(self._torch)
        self.state = ProfilerState.STOPPED if recorded else ProfilerState.LOST
        return recorded

    def export(self, path: Path) -> None:
        """Write what was recorded as Kineto's JSON; the profiler is spent afterwards.

        Raises:
            RuntimeError: not stopped, or called in another thread.
            OSError: the file cannot be written.
        """
        if self.state is not ProfilerState.STOPPED or not self.in_own_thread:
            raise RuntimeError("there is no stopped recording in this thread")
        self.state = ProfilerState.LOST
        self._torch.export_chrome_trace(str(path))
        self._torch = None

    def abandon(self) -> None:
        """Give the session up without touching torch's profiler. Safe in every thread."""
        self.state = ProfilerState.LOST
        self._watchdog.stop()
        self._takeover.remove()
        doors.disarm(self._torch)
        self._torch = None

    def release_thread(self) -> bool:
        """Whether nothing of a session that was given up is left on in this thread."""
        if self.state is not ProfilerState.LOST or not self.in_own_thread or not doors.profiler_recording():
            return True
        if doors.profiler_open():  # the user's: theirs to stop
            return False
        return doors.release_thread(self._new())

    def _run_empty(self) -> None:
        empty = self._new()
        try:
            empty.prepare_trace()
            empty.start_trace()
            empty.stop_trace()
        finally:
            doors.disarm(empty)

    def _activities(self) -> list[ProfilerActivity]:
        activities = [ProfilerActivity.CPU]
        if self._cuda and ProfilerActivity.CUDA in torch.profiler.supported_activities():
            activities.append(ProfilerActivity.CUDA)
        return activities

    def _new(self) -> Any:
        return _KinetoProfile(
            activities=self._activities(),
            # There is one cycle, so nothing accumulates; without it torch 2.11 warns about clearing events.
            acc_events=True,
            record_shapes=self._options.shapes,
            # Without CUDA the process memory is sampled; torch would print a warning about blocks older than the run.
            profile_memory=self._options.memory and self._cuda,
            with_stack=self._options.stack,
        )


@functools.cache
def have_block_warning_over(activities: tuple[ProfilerActivity, ...]) -> None:
    """Free a CPU block that is older than a recording, once per process, where nobody reads what torch says to that.

    With ``profile_memory`` torch's C++ code writes "Memory block of unknown size was allocated before the profiling
    started" to file descriptor 2 at the first such block and at every thousandth, past Python's warnings: a red box in
    the notebook of everyone with a DataLoader.
    """
    block = torch.empty(1_024)
    profiler = _KinetoProfile(activities=activities, profile_memory=True, acc_events=True)
    profiler.prepare_trace()
    profiler.start_trace()
    try:
        with _unread_stderr():
            del block
    finally:
        profiler.stop_trace()
        doors.disarm(profiler)


@contextmanager
def _unread_stderr() -> Iterator[None]:
    """File descriptor 2 goes nowhere inside; for a microsecond of our own code only."""
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
