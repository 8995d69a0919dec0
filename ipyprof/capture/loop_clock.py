"""Every step of the loop by the host's clock, from the first mark to the end of the cell.

A mark costs two readings of the clock (0.3 us); nothing here waits for the GPU. What ipyprof itself takes (the start of
CUPTI, the stop, the report) is a pause: it is no step, and the steps behind it may be served from what the loader's
workers made meanwhile. So each step keeps what lay ready in the loader's queue, how many batches had been made, and
whether every worker was busy (torch 2.1 to 2.13; private, guarded; without it the fields are -1).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ipyprof.capture.sampler import Sampler
from ipyprof.trace.live import LoopStep, Sample, WholeLoop

MOST_STEPS = 20_000
"""Kept one by one; of further ones the sum."""


class LoopClock:
    """The time of a cell, step by step.

    Args:
        cell_name: the file name that the cell is compiled under.
    """

    def __init__(self, cell_name: str = "") -> None:
        self._cell_name = cell_name
        self._sampler: Sampler | None = None
        self._begin_ns = time.perf_counter_ns()
        self._first_ns = self._last_ns = 0
        self._opened_ns: int | None = None
        self._steps: list[LoopStep] = []
        self._begins: list[int] = []
        self._more_steps = self._more_ns = 0
        self._waited_ns = 0
        self._epoch_start = False
        self._iterator: Callable[[], Any] = _none  # weak: what is alive keeps its workers alive
        self._ours_ns = self._ours_in_step_ns = 0
        self._paused_before = False
        self._pausing_ns: int | None = None
        self._profiled_ns = self._profiled_steps = 0
        self._first_after = 0
        self.profiling = False

    # -- what happens in the loop --

    def mark(self, *, opens: bool = True) -> None:
        """A step ends here, and the next one begins unless ``opens`` is false."""
        now = time.perf_counter_ns()
        if self._opened_ns is None:
            if not self._first_ns:
                self._first_ns = now
                self._sampler = Sampler(self._cell_name, threading.get_ident())
                self._sampler.start()
        else:
            self._step(now - self._opened_ns - self._ours_in_step_ns)
        self._opened_ns = now if opens else None
        self._last_ns = now
        self._waited_ns, self._epoch_start, self._ours_in_step_ns = 0, False, 0

    def waited(self, iterator: Any, ns: int, epoch_start: bool) -> None:
        """The loop waited for a batch of this iterator, the first of an epoch or a later one."""
        self._iterator = weakref.ref(iterator)
        self._waited_ns += ns
        self._epoch_start |= epoch_start

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What runs inside is ours, and no part of a step."""
        if self._pausing_ns is not None:
            yield
            return
        self._pausing_ns = time.perf_counter_ns()
        self._look(False)
        try:
            yield
        finally:
            took, self._pausing_ns = time.perf_counter_ns() - self._pausing_ns, None
            self._ours_ns += took
            if self._opened_ns is not None:
                self._ours_in_step_ns += took
            self._paused_before = True
            self._look(not self.profiling)

    def stop(self) -> None:
        """The cell is over: nothing looks at it any more."""
        if self._sampler is not None:
            self._sampler.stop()

    def profiled(self, on: bool) -> None:
        """From here on steps are profiled, or not any more."""
        if on == self.profiling:
            return
        self.profiling = on
        self._look(not on)
        if not on:
            self._first_after = len(self._steps)
            self._paused_before = True

    # -- the result --

    def result(self) -> WholeLoop | None:
        """What was seen so far; ``None`` without a mark. May be called again as the loop goes on."""
        if not self._first_ns:
            return None
        now = time.perf_counter_ns()
        samples = self._sampler.seen() if self._sampler is not None else ()
        return WholeLoop(
            cell_ns=now - self._begin_ns,
            before_ns=self._first_ns - self._begin_ns,
            behind_ns=now - self._last_ns,
            ours_ns=self._ours_ns,
            profiled_ns=self._profiled_ns,
            profiled_steps=self._profiled_steps,
            steps=tuple(self._steps),
            first_after=self._first_after,
            more_steps=self._more_steps,
            more_ns=self._more_ns,
            samples=self._placed(samples),
        )

    def _placed(self, samples: tuple[tuple[int, Sample], ...]) -> tuple[tuple[int, Sample], ...]:
        """(index of the step, sample) of those that lie in a kept step."""
        found, at = [], 0
        for when, sample in samples:
            while at + 1 < len(self._begins) and self._begins[at + 1] <= when:
                at += 1
            if self._begins and self._begins[at] <= when:
                found.append((at, sample))
        return tuple(found)

    def _step(self, ns: int) -> None:
        assert self._opened_ns is not None
        if self.profiling:
            self._profiled_ns += ns
            self._profiled_steps += 1
            return
        if len(self._steps) == MOST_STEPS:
            self._more_steps += 1
            self._more_ns += ns
            return
        iterator = self._iterator()
        ready, made, busy = stock_of(iterator) if iterator is not None else (-1, -1, False)
        self._steps.append(
            LoopStep(
                ns=ns,
                waited_ns=self._waited_ns,
                epoch_start=self._epoch_start,
                ready=ready,
                made=made,
                all_busy=busy,
                behind_pause=self._paused_before,
            )
        )
        self._begins.append(self._opened_ns)
        self._paused_before = False

    def _look(self, on: bool) -> None:
        if self._sampler is not None:
            self._sampler.pause(not on)


def _none() -> None:
    """No iterator was seen."""


def stock_of(iterator: Any) -> tuple[int, int, bool]:
    """(batches that lie ready, batches made in this epoch, every worker is busy) of torch's iterator of workers.

    (-1, -1, False) where it has no workers or torch keeps these things elsewhere.
    """
    state = object.__getattribute__(iterator, "__dict__")
    try:
        kept = sum(len(one) > 1 for one in state["_task_info"].values())
        ready = kept + state["_data_queue"].qsize()
        if state["_data_queue"] is not state["_worker_result_queue"]:  # a thread pins memory between the two
            ready += state["_worker_result_queue"].qsize()
        under_way = state["_tasks_outstanding"] + kept - ready
        return ready, state["_rcvd_idx"] + ready, under_way >= state["_num_workers"]
    except (KeyError, AttributeError, TypeError, NotImplementedError, OSError):
        return -1, -1, False
