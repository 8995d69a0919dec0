"""Where a step of the cell ends: choose the loop, optimizer, loader or call, then mark its boundaries.

Until the choice nothing of the session is called (but a cold start where the cell or a loop of one iteration is the
step); after it, one call per boundary. What decides is in `ipyprof.capture.watch`.

A step of an inner loop goes from mark to mark, over the end of an epoch too: the fetch of the next epoch and what lies
between are part of one step, an outlier among the samples. The last step is closed directly behind the loop when no
loop around it has an iteration left, else behind the outermost one. The marks of optimizers, batches and calls have no
such end: what follows the last of them is no whole step.

Costs of the mark at a loop's start (Python 3.11): 0.11 us before the choice, 0.05 us when the loop was not chosen or
all is recorded.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from IPython.core.error import UsageError
from torch.utils.data import dataloader as loader_module

from ipyprof.capture import watch
from ipyprof.capture.loaders import drawn_name
from ipyprof.capture.marking import (
    CLOSED,
    RANGE,
    SEEN,
    Builtins,
    Loop,
    called_by_cell,
    running_line,
    step_comments,
    step_name,
)
from ipyprof.capture.profiler import uninterrupted
from ipyprof.capture.session import Session, repeated_runs
from ipyprof.capture.watch import Choice, Evidence, Launches, LoopState, Rules, Watch, batches_left, known_length
from ipyprof.options import Options


def rules_for(options: Options, loops: Sequence[Loop], source: str) -> Rules:
    """The user's wish, checked against the cell's own loops.

    Raises:
        UsageError: ``--loop`` or a ``# gpuprofile: step`` comment names no loop, two comments name two, or
            ``--step loop`` is given for a cell without a loop.
    """
    loop = None
    if options.loop is not None:
        loop = _loop_at(options.loop, loops)
        if loop is None:
            raise UsageError(f"--loop {options.loop}: no loop of the cell begins on that line; {_list(loops)}.")
    elif options.step in ("auto", "loop"):
        loop = _commented(loops, source)
    if loop is None and options.step == "loop" and not loops:
        raise UsageError(f"--step loop: {_list(loops)}; leave the option out or give --step optimizer.")
    return Rules("loop" if loop is not None else options.step, loop)


def _commented(loops: Sequence[Loop], source: str) -> Loop | None:
    lines = step_comments(source)
    if len(lines) > 1:
        raise UsageError(
            f"# gpuprofile: step is on lines {', '.join(map(str, lines))}; one loop can be the step; keep one of them."
        )
    if not lines:
        return None
    loop = _loop_at(lines[0], loops)
    if loop is None:
        raise UsageError(f"# gpuprofile: step on line {lines[0]} is not on a loop of the cell; {_list(loops)}.")
    return loop


def _loop_at(line: int, loops: Sequence[Loop]) -> Loop | None:
    return next((loop for loop in loops if loop.line <= line <= loop.header_end_line), None)


def _list(loops: Sequence[Loop]) -> str:
    """Where the cell has loops, as the end of a sentence."""
    if not loops:
        return "the cell has no loop of its own (loops inside functions do not count)"
    lines = [str(loop.line) for loop in loops]
    if len(lines) == 1:
        return f"its only loop is on line {lines[0]}"
    return f"its loops are on lines {', '.join(lines[:-1])} and {lines[-1]}"


def _guarded(act: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose exception never reaches the user's code: it switches the marks off, and ``None`` comes back."""

    @functools.wraps(act)
    def guarded(detector: StepDetector, *arguments: Any) -> Any:
        try:
            return act(detector, *arguments)
        except Exception as error:
            detector._fail(error)
            return None

    return guarded


_LOADER_FILES = (__file__, watch.__file__, loader_module.__file__)


class StepDetector:
    """Finds the steps of one run of a cell; a context manager around the run.

    Args:
        options: of the run.
        session: gets the marks.
        loops: the cell's own loops, from `ipyprof.capture.marking.find_loops`.
        source: the cell's text, line 1 is the magic line; empty for a block of code that is not rewritten.
        filename: what the cell is compiled as; with it a mark knows the line of the cell that is running.
        launched: whether work was launched since it last said so; asks CUDA by default.

    Attributes:
        notes: sentences for the trust section, each ``(check, status, text)``.
        runs: how many times the cell is to be run.

    Raises:
        UsageError: ``--loop`` or a comment names a line without a loop.
    """

    def __init__(
        self,
        options: Options,
        session: Session,
        loops: Sequence[Loop],
        source: str,
        *,
        filename: str = "",
        launched: Callable[[], bool] | None = None,
    ) -> None:
        self.notes: list[tuple[str, str, str]] = []
        self._options = options
        self._session = session
        self._loops = tuple(loops)
        self._filename = filename
        self._cell_filename = filename if source else ""  # a block of a script has statements that are not marked
        self._rules = rules_for(options, self._loops, source)
        self._way = self._rules.way
        self.runs = repeated_runs(options) if self._way == "cell" else 1
        self._evidence = Evidence(self._loops, self._rules, launched or Launches())
        self._watch: Watch | None = None
        self._names = Builtins()
        self._thread = 0
        self._cold: LoopState | bool = False
        self._chosen: LoopState | None = None
        self._mark = ""  # what a mark is, once that is settled
        self._closed = False
        self._optimizer_names: dict[str, None] = {}

    # -- what the cell runner calls --

    @property
    def wants_ranges(self) -> bool:
        """Whether the run that begins now takes the copy of the cell with a range around every statement."""
        return self._session.recording if self._way == "cell" else not self._loops

    @property
    def wants_marks(self) -> bool:
        """Whether the cell's loops are to be marked."""
        return self._way != "cell"

    def __enter__(self) -> StepDetector:
        self._thread = threading.get_ident()
        with uninterrupted():
            self._install()
        return self

    @_guarded
    def run_begins(self, number: int) -> None:
        """The cell is about to run for the ``number``-th time, from 0."""
        if self._way == "cell":
            if number == 0 and self.runs > 1:
                return  # the run that decides, as the first iteration of a loop
            if number == 1:
                self._mark = "cell"
                self._describe(f"the cell, {self.runs} times")
                self._session.plan(remaining=self.runs - 1)
            if number >= 1:
                self._session.mark(1)
                return
        if not self._loops and self._way in ("auto", "cell"):
            self._cold = True
            self._session.start_cold()

    @_guarded
    def cell_ended(self) -> None:
        """The last run came to its end without an exception."""
        if self._way == "cell" and self.runs > 1:
            self._session.close(1)
        elif self._cold is True and not self._mark:
            self._mark = "cell"
            self._describe("the cell, once")
            self._session.close(1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._restore()
        if not self._mark:
            self._describe_nothing()

    @_guarded
    def user_step(self) -> None:
        """``ipyprof.step()`` was called in the cell."""
        if threading.get_ident() != self._thread:
            return
        if self._mark == "call":
            self._mark_event()
        elif self._mark or self._way not in ("auto", "call"):
            text = "ipyprof.step() was called, but the steps were already found in another way"
            if ("steps", "warn", text) not in self.notes:
                self.notes.append(("steps", "warn", text))
        else:
            inner = self._evidence.innermost()
            left = None if inner is None else self._evidence.remaining(inner)
            self._choose_events("call", "ipyprof.step()", None if left is None else left - 1)

    # -- the names in the cell --

    def _seen(self, index: int, iterable: Any) -> Any:
        if not self._mark:
            self._loop_starts(index, iterable)
        elif self._chosen is not None and self._evidence.states[index] in self._evidence.around(self._chosen):
            state = self._evidence.states[index]
            state.begun, state.length = 0, _length(iterable)
        return iterable

    def _watched_step(self, state: LoopState) -> Callable[[], bool]:
        """The mark of a loop before the choice."""

        def step() -> bool:
            state.begun += 1
            if state.begun < state.look_at:
                return False
            return bool(self._iteration(state))

        return step

    def range(self, line: int) -> AbstractContextManager[Any]:
        """A range around the statement at ``line``."""
        try:
            return self._session.range(line)
        except Exception as error:
            self._fail(error)
            return nullcontext()

    # -- before the choice --

    @_guarded
    def _loop_starts(self, index: int, iterable: Any) -> None:
        self._evidence.loop_starts(index, _length(iterable))
        self._evidence.states[index].iterable = drawn_name(iterable)

    @_guarded
    def _iteration(self, state: LoopState) -> bool:
        choice = self._evidence.iteration_begins(state)
        if choice is not None:
            return self._choose_loop(choice)
        if state.begun == 1 and self._starts_cold(state):
            self._cold = state
            self._session.start_cold()
            return self._session.recording
        return False

    def _starts_cold(self, state: LoopState) -> bool:
        """Whether this loop of one iteration is the step, as far as can be known at its start."""
        if not self._rules.loops or self._cold or not self._evidence.is_single(state):
            return False
        if self._rules.loop is not None:
            return state.loop is self._rules.loop
        return self._evidence.is_outermost(state) and not state.loop.has_children

    @_guarded
    def _loop_ended(self, index: int) -> None:
        if not self._mark:
            state = self._evidence.states[index]
            if self._cold is state:
                self._mark = "loop"
                self._describe(f"loop at line {state.loop.line}, once", state.loop)
                self._session.close(state.loop.line)
                self._be_done()
            self._evidence.loop_ends(index)
        elif self._chosen is not None and not self._closed:
            around = self._evidence.around(self._chosen)
            outermost = around[-1] if around else self._chosen
            ended = index == self._chosen.loop.index
            if (ended and all(state.begun == state.length for state in around)) or index == outermost.loop.index:
                self._closed = True
                self._session.close(self._chosen.loop.line)
                self._be_done()

    @_guarded
    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._session.check_limit()
        self._optimizer_names[type(optimizer).__name__] = None
        if self._evidence.optimizer_stepped(id(optimizer)):
            self._choose_events("optimizer", "optimizer steps", None)
            anchor, name = weakref.ref(optimizer), type(optimizer).__name__

            def mark(stepped: Any) -> None:
                nonlocal anchor
                if anchor() is None and type(stepped).__name__ == name:
                    anchor = weakref.ref(stepped)  # a new one for the next fold
                if anchor() is stepped:
                    self._mark_event()

            assert self._watch is not None
            self._watch.on_step, self._watch.on_batch = mark, self._check_limit

    @_guarded
    def _batch_drawn(self, iterator: Any) -> None:
        self._session.check_limit()
        if self._evidence.batch_drawn(
            id(iterator), in_function=not called_by_cell(self._cell_filename, through=_LOADER_FILES)
        ):
            self._choose_events("loader", "batches", batches_left(iterator))
            dataset = getattr(iterator, "_dataset", None)

            def mark(drawn: Any) -> None:
                if getattr(drawn, "_dataset", None) is dataset:
                    self._mark_event()

            assert self._watch is not None
            self._watch.on_step, self._watch.on_batch = self._check_limit, mark
            self._watch.mark_after_fetch()

    # -- the choice --

    def _choose_loop(self, choice: Choice) -> bool:
        state, loop = choice.state, choice.state.loop
        self._mark, self._chosen = "loop", state
        if self._cold:
            self._session.drop()
        cycle = f", {choice.cycle} iterations to an optimizer step" if choice.cycle > 1 else ""
        self._describe(f"loop at line {loop.line}{cycle}", loop)
        self._session.plan(remaining=self._evidence.remaining(state), cycle=choice.cycle)
        self._leave_watching(self._check_limit)
        around = self._evidence.around(state)
        for other in self._evidence.states:
            self._names.set(step_name(other.loop.index), _counting_step(other) if other in around else bool)
        self._names.set(step_name(loop.index), self._marking_step(loop.line))
        self._session.mark(loop.line)
        return self._session.recording

    def _marking_step(self, line: int) -> Callable[[], bool]:
        """The mark of the chosen loop."""
        session = self._session

        def step() -> bool:
            try:
                session.mark(line)
                if session.over:
                    self._only_time(line)
                return session.recording
            except Exception as error:
                self._fail(error)
                return False

        return step

    def _choose_events(self, mark: str, how: str, remaining: int | None) -> None:
        """Optimizer steps, batches or calls are the marks; the first is now."""
        self._mark = mark
        if self._cold:
            self._session.drop()
        self._describe(how)
        self._session.plan(remaining=remaining)
        self._leave_watching(self._check_limit)
        for state in self._evidence.states:
            # The ranged copy of a loop with loops inside would run on long after the recording.
            name = step_name(state.loop.index)
            self._names.set(name, bool if state.loop.has_children else self._is_recording)
        self._session.mark(running_line(self._filename))

    @_guarded
    def _mark_event(self) -> None:
        self._session.mark(None if self._session.over else running_line(self._filename))

    def _is_recording(self) -> bool:
        return self._session.recording

    @_guarded
    def _check_limit(self, _event: Any) -> None:
        self._session.check_limit()

    # -- the end --

    @_guarded
    def _describe_nothing(self) -> None:
        if self._cold is True:
            self._describe("the cell, once")
        elif isinstance(self._cold, LoopState):
            self._describe(f"loop at line {self._cold.loop.line}, once", self._cold.loop)
        elif self._rules.loop is not None:
            self._describe(f"loop at line {self._rules.loop.line}, which did not come to a second iteration")
        else:
            self._describe("no step found")

    def _describe(self, how: str, loop: Loop | None = None) -> None:
        """Tell the session how the step was found, and what else could be one, with the option that chooses it."""
        ways = [f"the loop at line {other.line}: --loop {other.line}" for other in self._loops if other is not loop]
        if self._optimizer_names and self._mark != "optimizer":
            ways.append(f"the steps of {', '.join(self._optimizer_names)}: --step optimizer")
        if self._evidence.any_batch and self._mark != "loader":
            ways.append("the batches: --step loader")
        if self._mark in ("", "cell") and self._way != "cell":
            ways.append(f"the cell, run {repeated_runs(self._options)} times as %%timeit does: --step cell")
        self._session.describe(
            how=how,
            mark=self._mark or "cell",
            loop_line=None if loop is None else loop.line,
            loop_is_for=loop is not None and loop.is_for,
            alternatives=tuple(ways),
            iterable="" if loop is None else self._evidence.states[loop.index].iterable,
            loaders=tuple if self._watch is None else self._watch.loaders.seen,
        )

    # -- small parts --

    def _leave_watching(self, instead: Callable[[Any], None]) -> None:
        """Optimizer steps and batches are no evidence any more. The hooks stay: one of them may be running."""
        if self._watch is not None:
            self._watch.forget_backward()
            self._watch.on_step = self._watch.on_batch = instead

    def _only_time(self, line: int) -> None:
        """All is recorded: the steps of the chosen loop are timed until the cell ends; nothing else is looked at."""
        self._leave_watching(_ignore)
        mark = self._session.mark

        def step() -> bool:
            mark(line)
            return False

        around = self._evidence.around(self._chosen) if self._chosen is not None else ()
        for state in self._evidence.states:
            if state is self._chosen:
                self._names.set(step_name(state.loop.index), step)
            elif state not in around:
                self._names.set(step_name(state.loop.index), bool)

    def _be_done(self) -> None:
        """No mark means anything any more: make each as cheap as can be."""
        self._closed = True
        self._leave_watching(_ignore)
        if self._watch is not None:
            self._watch.loaders.on = False
        for loop in self._loops:
            self._names.set(step_name(loop.index), bool)  # bool() is False

    def _install(self) -> None:
        try:
            self._names.set(SEEN, self._seen)
            self._names.set(CLOSED, self._loop_ended)
            self._names.set(RANGE, self.range)
            for state in self._evidence.states:
                self._names.set(step_name(state.loop.index), self._watched_step(state))
            if self._way not in ("call", "cell"):
                self._watch = Watch(self._optimizer_stepped, self._batch_drawn, self._evidence.backward_ran)
                self._watch.loaders.waited = self._session.clock.waited
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._names.restore()

    def _fail(self, error: Exception) -> None:
        self.notes.append(("steps", "fail", f"the step marks were switched off: {type(error).__name__}: {error}"))
        self._mark = self._mark or "cell"
        self._be_done()


def _counting_step(state: LoopState) -> Callable[[], bool]:
    """The mark of a loop around the chosen one: its body as written, and the count for the last `close`."""

    def step() -> bool:
        state.begun += 1
        return False

    return step


def _length(iterable: Any) -> int | None:
    try:
        return known_length(iterable)
    except Exception:
        return None  # the user's own __len__ failed


def _ignore(_event: Any) -> None:
    """An event after the end."""
