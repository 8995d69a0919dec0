"""What one run of the profiler leaves: its steps, line ranges and notes, and the exported trace in a directory."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ipyprof.capture import baseline, probes
from ipyprof.capture import torch_doors as doors
from ipyprof.capture.profiler import Profiler, uninterrupted
from ipyprof.trace.live import LiveRecord

STEP, MARK, FOREIGN = b'"ProfilerStep#', b'"ProfilerMark#', b'"ProfilerUser#'
"""How names begin in a file: of torch's steps; of ours, until the file is there; and what torch's become then.

A profiler of the user's that waits for its schedule records its steps too, each under torch's name.
"""


class Notes:
    """Sentences for the trust section, each ``(check, status, text)``, in order and without repeats."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str, str], None] = {}

    def add(self, check: str, status: str, text: str) -> None:
        """Keep one; ``status`` is ``ok``, ``warn`` or ``fail``."""
        self._notes[check, status, text] = None

    def failed(self, status: str, failure: Exception) -> None:
        """Keep a failure of ours."""
        self.add("capture", status, f"{type(failure).__name__}: {failure}")

    def shielded(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What ``act`` returns, or ``None`` with a note when it fails."""
        try:
            return act(*arguments, **named)
        except Exception as failure:
            self.failed("warn", failure)
            return None

    def as_tuple(self) -> tuple[tuple[str, str, str], ...]:
        """All of them."""
        return tuple(self._notes)


class RecordedSteps:
    """Whole steps are ``ProfilerStep#N`` spans in the file, as in torch's own schedule, from mark to mark.

    Attributes:
        completed: whole steps so far.
        unfinished: number of the step that was cut off and does not serve as the step, or ``None``.
        laps: one sample per step.
        memory: (ns since recording began, resident bytes) at each mark, without CUDA.
        closing_ns: per whole step, what its last mark took, from its call to the end of the step's span.
    """

    def __init__(self) -> None:
        self.completed = 0
        self.unfinished: int | None = None
        self.laps = baseline.Laps()
        self.memory: list[tuple[int, int]] = []
        self.closing_ns: list[int] = []
        self._begin_ns = self._called_ns = time.perf_counter_ns()
        self._span: Any = None

    def running_ns(self) -> int:
        """Time since recording began."""
        return time.perf_counter_ns() - self._begin_ns

    def mark_called(self) -> None:
        """A mark begins now: what comes before the span's end is its own time, not the step's."""
        self._called_ns = time.perf_counter_ns()

    def open(self, index: int) -> None:
        """Step number ``index`` begins. The CUDA event of the mark lies before the span."""
        self.laps.mark(baseline.stamp())
        self._sample_memory()
        self._span = torch.autograd.profiler.record_function(f"{MARK[1:].decode()}{index}")
        self._span.__enter__()

    def close(self) -> None:
        """The open step is over, and whole. Its span ends here, before anything waits for the GPU."""
        self._end_span()
        self.closing_ns.append(time.perf_counter_ns() - self._called_ns)
        self.completed += 1

    def end(self) -> None:
        """No further step begins."""
        self.laps.mark(baseline.stamp(), opens=False)
        self._sample_memory()

    def cut_off(self, index: int, *, serves: bool) -> None:
        """The open step, number ``index``, ends in its middle; ``serves``: what there is of it stands for the step."""
        self._end_span()
        if serves:
            self.end()
        else:
            self.unfinished = index
            self.laps.pause()

    def forget_span(self) -> None:
        """The session of the open span is not ours any more: it must not be ended."""
        self._span = None

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.__exit__(None, None, None)

    def _sample_memory(self) -> None:
        if not torch.cuda.is_initialized() and (held := probes.process_bytes()) is not None:
            self.memory.append((self.running_ns(), held))


def name_steps(file: Path, *, unfinished: int | None) -> None:
    """Give the marks in an exported file torch's name, in place, so that every ``ProfilerStep#`` is a whole step.

    Args:
        unfinished: number of the step that was cut off; its span becomes ``unfinished step N``.
    """
    if unfinished is not None:
        text = file.read_bytes()
        file.write_bytes(text.replace(MARK + b'%d"' % unfinished, b'"unfinished step %d"' % unfinished))
    if not file.stat().st_size:
        return
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as content:
        for before, after in ((STEP, FOREIGN), (MARK, STEP)):
            at = content.find(before)
            while at >= 0:
                content[at : at + len(after)] = after
                at = content.find(before, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The result of one run.

    Attributes:
        trace_path: Kineto's JSON in a temporary directory, or ``None`` where nothing was recorded.
        live: what the run knows beside the trace; its notes say why there is no trace.
        directory: owns the file, which goes with it.
        others: further recordings of the same loop (``--repeat``), in order; none of them has others.
    """

    trace_path: Path | None
    live: LiveRecord
    directory: TemporaryDirectory[str] | None = None
    others: tuple[Recording, ...] = ()

    @property
    def every(self) -> tuple[Recording, ...]:
        """This one and the others."""
        return self, *self.others

    def discard(self) -> None:
        """Remove the file, but not those of the others. Calling it again does nothing."""
        if self.directory is not None:
            with uninterrupted():  # the directory's own finalizer is gone once its removal has begun
                self.directory.cleanup()


def export(profiler: Profiler, *, unfinished: int | None) -> tuple[Path, TemporaryDirectory[str]]:
    """The exported trace and the directory that owns it.

    ``unfinished`` is the step that was cut off.

    Raises:
        OSError: torch wrote no file. It says nothing of that: on a full disk it gives up in silence.
        Exception: whatever the export raises; no file is left then.
    """
    directory = TemporaryDirectory(prefix="ipyprof-")
    path = Path(directory.name) / "trace.json"
    try:
        profiler.export(path)
        if not path.exists():
            free = shutil.disk_usage(path.parent).free
            raise OSError(
                f"torch wrote no trace; {free / 1e6:,.1f} MB are free in {tempfile.gettempdir()}: make room, or set "
                "TMPDIR to a folder on another disk"
            )
        name_steps(path, unfinished=unfinished)
    except BaseException:
        directory.cleanup()
        raise
    return path, directory


class LineRange:
    """Records a range ``## line N``; ``around`` holds the open ones of the thread, the innermost last.

    Its exit does nothing where the range is not among them any more.
    """

    __slots__ = ("_around", "_range")

    def __init__(self, line: int, around: list[AbstractContextManager[Any]]) -> None:
        self._range = doors.named_range(f"## line {line}")
        self._around = around

    def __enter__(self) -> None:
        self._range.__enter__()
        self._around.append(self._range)

    def __exit__(self, *_error: object) -> None:
        while self._range in self._around:  # with one inside that an interrupt left open
            self._around.pop().__exit__(None, None, None)


def end_ranges(opened: list[AbstractContextManager[Any]]) -> None:
    """End every open range, the innermost first, while their profiler is on."""
    while opened:
        opened.pop().__exit__(None, None, None)
