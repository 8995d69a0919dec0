"""The namespaces that a look for holders begins from: the notebook's, those of running frames, those of an error's."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any, NamedTuple

import torch
from IPython.core.getipython import get_ipython

from ipyprof.capture.objects import mro_of

_NOT_THE_USERS = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    sysconfig.get_paths()["stdlib"] + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen ",
)
_SHELL_PACKAGES = (
    "IPython",
    "ipykernel",
    "traitlets",
    "tornado",
    "zmq",
    "jupyter_client",
    "pytest",
    "_pytest",
    "pluggy",
    "xdist",
    "execnet",
    "__channelexec__",  # what execnet calls the module that it runs in a worker of xdist
)
_HISTORY = "_oh"  # what the shell calls Out itself: the user may give that name to something else
_LAST = ("_", "__", "___")
LAST_ERROR = ", last error"  # behind the name of a function whose locals the last error keeps
_MOST_FRAMES = 200
_MOST_CAUSES = 8


class Namespaces(NamedTuple):
    """Names to objects: those that the user gave, those of frames beyond the shell or test runner, which may be the
    user's or a server's, and ``Out``, ``_``, ``__``, ``___``, which keep results alive.
    """

    given: list[dict[str, Any]]
    around: list[dict[str, Any]]
    results: dict[str, Any]


@contextmanager
def namespaces(error: BaseException | None = None) -> Iterator[Namespaces]:
    """The notebook's names first, then of frames of the user's that run, of those that ``error`` left, and of those
    that the notebook's last error left, whose traceback keeps their tensors.

    Names that begin with ``_`` are the shell's or private and are left out, but for the results. A frame's locals come
    as ``name (in function)``. On the way out the copies of locals that Python before 3.13 keeps in a frame are emptied
    again, unless the user's own code holds that copy.

    Args:
        error: what the cell raised.
    """
    shell = get_ipython()
    spaces: list[dict[str, Any]] = []
    around: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    frame: FrameType | None
    globals_seen: set[int] = set()
    copies: list[dict[str, Any]] = []
    if shell is not None:
        globals_seen.add(id(shell.user_ns))
        spaces.append(_public(shell.user_ns))
    inner, outer = _running_frames()
    named = [(frame, "", spaces) for frame in (*inner, *_frames_of(error))]
    named += [(frame, LAST_ERROR, spaces) for frame in _frames_of(_last_error())]
    named += [(frame, "", around) for frame in outer]
    for frame, more, into in named:
        if not _is_users(frame):
            continue
        if id(frame.f_globals) not in globals_seen:
            globals_seen.add(id(frame.f_globals))
            into.append(_public(frame.f_globals))
        if frame.f_code.co_flags & CO_OPTIMIZED:
            into.append(_locals(frame, more))
            if sys.version_info < (3, 13):
                copies.append(frame.f_locals)
    if shell is not None:
        for name, key in (("Out", _HISTORY), *((name, name) for name in _LAST)):
            if key in shell.user_ns:
                results[name] = shell.user_ns[key]
    frame = None
    for frames in (named, inner, outer):
        frames.clear()
    try:
        yield Namespaces(spaces, around, results)
    finally:
        spaces.clear()
        around.clear()
        results.clear()
        while copies:
            copy = copies.pop()
            if sys.getrefcount(copy) <= 3:  # the frame's, ours, and the call's: nobody else looks at it
                copy.clear()


def _locals(frame: FrameType, more: str) -> dict[str, Any]:
    where = frame.f_code.co_name
    return {f"{name} (in {where}{more})": value for name, value in frame.f_locals.items()}


def _last_error() -> BaseException | None:
    """What the shell showed last, or ``None``; Python 3.12 gave it another name."""
    for name in ("last_exc", "last_value"):
        error = vars(sys).get(name)
        if error is not None and any(base is BaseException for base in mro_of(type(error))):
            found: BaseException = error
            return found
    return None


def users_file(error: BaseException) -> str:
    """The file name of the outermost frame of the user's in an error's traceback; empty without one."""
    trace = part_of(error, "__traceback__")
    while trace is not None and not _is_users(trace.tb_frame):
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_code.co_filename)


def _public(names: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in dict.items(names)
        if type(name) is str and not name.startswith("_") and name not in ("In", "Out")
    }


def _running_frames() -> tuple[list[FrameType], list[FrameType]]:
    """(frames, frames around): those that run, the innermost first, up to the first of the shell's; those beyond it."""
    found: list[FrameType] = []
    border = _MOST_FRAMES
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        if _is_shells(frame):
            border = min(border, len(found))
        found.append(frame)
        frame = frame.f_back
    return found[:border], found[border:]


def _frames_of(error: BaseException | None) -> Iterator[FrameType]:
    """The frames of an error and of what caused it, the innermost first."""
    seen: set[int] = set()
    for _ in range(_MOST_CAUSES):
        if error is None or id(error) in seen:
            return
        seen.add(id(error))
        found = []
        trace = part_of(error, "__traceback__")
        while trace is not None:
            found.append(trace.tb_frame)
            trace = trace.tb_next
        yield from reversed(found[-_MOST_FRAMES:])
        error = part_of(error, "__cause__") or part_of(error, "__context__")


def part_of(error: BaseException, name: str) -> Any:
    """An attribute that every exception has, past whatever its class does with names."""
    return BaseException.__dict__[name].__get__(error)


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS) and not _is_shells(frame)


def _is_shells(frame: FrameType) -> bool:
    module = dict.get(frame.f_globals, "__name__")
    return type(module) is str and module.split(".")[0] in _SHELL_PACKAGES
