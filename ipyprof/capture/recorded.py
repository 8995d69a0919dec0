"""The steps of one recording: their spans in the trace, their samples, and the process memory at their marks."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

import torch

from ipyprof.capture import baseline, probes

STEP, MARK, FOREIGN = b'"ProfilerStep#', b'"ProfilerMark#', b'"ProfilerUser#'
"""How names begin in a file: of torch's steps; of ours, until the file is there; and what torch's become then.

A profiler of the user's that waits for its schedule records its steps too, each under torch's name.
"""


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
