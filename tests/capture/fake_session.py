"""A session that records nothing and logs every call that a detector makes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ipyprof.capture.cell import CompiledCell, compile_cell, run_cell
from ipyprof.capture.loop_clock import LoopClock
from ipyprof.capture.recording import Recording
from ipyprof.capture.session import Session
from ipyprof.capture.steps import StepDetector
from ipyprof.options import Options
from ipyprof.trace.live import LoaderSeen


class FakeSession:
    """Records the steps ``record`` (counted by marks, from 1) and is over after ``over_after`` marks.

    Attributes:
        log: every call but ``range`` and ``check_limit``, such as ``"plan 6 1"`` and ``"mark 2"``.
        described: the arguments of ``describe``.
        ranges: the lines of the ranges that were asked for.
        iterable, loaders: what was described beside them.
    """

    def __init__(self, *, record: range = range(0), over_after: int = 2**60) -> None:
        self.log: list[str] = []
        self.described: list[dict[str, Any]] = []
        self.ranges: list[int] = []
        self.iterable = ""
        self.loaders: Callable[[], tuple[LoaderSeen, ...]] = tuple
        self.recording = False
        self.over = False
        self.clock = LoopClock()
        self._record = record
        self._over_after = over_after

    @property
    def marks(self) -> int:
        """Marks so far."""
        return sum(entry.startswith("mark") for entry in self.log)

    @property
    def planned(self) -> tuple[int | None, int]:
        """(remaining, cycle) of the one plan."""
        (plan,) = [entry for entry in self.log if entry.startswith("plan")]
        _, remaining, cycle = plan.split()
        return (None if remaining == "None" else int(remaining)), int(cycle)

    def start_cold(self) -> None:
        self.log.append("start_cold")
        self.recording = True

    def drop(self) -> None:
        self.log.append("drop")
        self.recording = False

    def plan(self, *, remaining: int | None, cycle: int = 1) -> None:
        self.log.append(f"plan {remaining} {cycle}")

    def mark(self, line: int | None = None) -> None:
        self.log.append(f"mark {line}")
        self.recording = self.marks in self._record
        self.over = self.marks >= self._over_after

    def close(self, line: int | None = None) -> None:
        self.log.append(f"close {line}")
        self.recording = False

    def check_limit(self) -> None:
        """The fake has no limit."""

    def describe(self, *, iterable: str, loaders: Callable[[], tuple[LoaderSeen, ...]], **fields: Any) -> None:
        self.described.append(fields)
        self.iterable, self.loaders = iterable, loaders

    def range(self, line: int) -> AbstractContextManager[Any]:
        self.ranges.append(line)
        return nullcontext()


def detector_for(compiled: CompiledCell, options: Options, session: Any, **more: Any) -> StepDetector:
    """The detector of this cell's steps."""
    return StepDetector(options, session, compiled.loops, compiled.text, filename=compiled.filename, **more)


def record(shell: Any, cell: str, options: Options) -> tuple[Recording, BaseException | None]:
    """What a real session records of a cell, and what the cell raised."""
    compiled = compile_cell(shell, cell)
    session = Session(options, source=compiled.source, cell_name=compiled.filename)
    detector = detector_for(compiled, options, session)
    try:
        run_cell(shell, compiled, detector=detector)
    except Exception as error:
        return session.finish(error), error
    return session.finish(), None


class Run:
    """A cell that was run under a detector with a fake session."""

    def __init__(self, shell: Any, cell: str, options: Options, session: FakeSession, **detector: Any) -> None:
        self.session = session
        self.compiled = compile_cell(shell, cell)
        self.detector = detector_for(self.compiled, options, session, **detector)
        shell.user_ns["user_step"] = self.detector.user_step
        self.value = run_cell(shell, self.compiled, detector=self.detector)

    @property
    def log(self) -> list[str]:
        return self.session.log

    @property
    def how(self) -> str:
        """The way the step was found; it is said once."""
        (fields,) = self.session.described
        return str(fields["how"])

    @property
    def described(self) -> dict[str, Any]:
        (fields,) = self.session.described
        return fields
