"""The namespaces that a look for holders begins from: the notebook's, those of running frames, those of an error's."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

import torch
from IPython.core.getipython import get_ipython

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
)
_LAST = ("_", "__", "___")
_MOST_FRAMES = 200
_MOST_CAUSES = 8


@contextmanager
def namespaces(error: BaseException | None = None) -> Iterator[list[Mapping[str, Any]]]:
    """Names to objects, the notebook's first, then frames of the user's that run, then those that ``error`` left.

    Names that begin with ``_`` are the shell's or private and are left out, but for ``Out`` and ``_``, which keep
    results alive. A frame's locals come as ``name (in function)``. On the way out the copies of locals that Python
    before 3.13 keeps in a frame are emptied again, unless the user's own code holds that copy.

    Args:
        error: what the cell raised.
    """
    shell = get_ipython()
    spaces: list[Mapping[str, Any]] = []
    frame: FrameType | None
    globals_seen: set[int] = set()
    copies: list[dict[str, Any]] = []
    if shell is not None:
        globals_seen.add(id(shell.user_ns))
        spaces.append(_public(shell.user_ns))
    for frame in (*_running_frames(), *_frames_of(error)):
        if not _is_users(frame):
            continue
        if id(frame.f_globals) not in globals_seen:
            globals_seen.add(id(frame.f_globals))
            spaces.append(_public(frame.f_globals))
        if frame.f_code.co_flags & CO_OPTIMIZED:
            spaces.append(_locals(frame))
            if sys.version_info < (3, 13):
                copies.append(frame.f_locals)
    if shell is not None:
        kept = shell.user_ns
        spaces.append({name: kept[name] for name in ("Out", *_LAST) if name in kept})
    frame = None
    try:
        yield spaces
    finally:
        spaces.clear()
        while copies:
            copy = copies.pop()
            if sys.getrefcount(copy) <= 3:  # the frame's, ours, and the call's: nobody else looks at it
                copy.clear()


def _locals(frame: FrameType) -> dict[str, Any]:
    where = frame.f_code.co_name
    return {f"{name} (in {where})": value for name, value in frame.f_locals.items()}


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


def _running_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


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
    module = dict.get(frame.f_globals, "__name__")
    root = module.split(".")[0] if type(module) is str else ""
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS) and root not in _SHELL_PACKAGES
