"""The phases of one run: baseline, warm-up, recording, baseline, and then nothing.

    baseline (wait)  ->  warm-up  ->  recorded (active)  ->  baseline (after)  ->  over: a mark does nothing

Driven by marks, each a step boundary. The iteration that decided what a step is lies before the first mark and counts
as the first step of the wait. Nothing here synchronises in the loop but twice: before the first recorded step and at
the end of the recording. A failure of the profiler never reaches the user's code; it becomes a note of the recording.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch

from ipyprof.capture import baseline, nvml, probes
from ipyprof.capture import torch_doors as doors
from ipyprof.capture.baseline import ENOUGH_NS
from ipyprof.capture.memory import Holdings
from ipyprof.capture.notes import Notes
from ipyprof.capture.profiler import Profiler, ProfilerState, already_on, uninterrupted
from ipyprof.capture.recording import HandOver, LineRanges, RecordedSteps, Recording, exported, live_record
from ipyprof.options import Options
from ipyprof.trace.live import LiveRecord, LoaderSeen


class Phase(Enum):
    """Where a run stands. ``COLD``: recording from the cell's first statement, no step known yet."""

    WAIT = auto()
    WARMUP = auto()
    COLD = auto()
    ACTIVE = auto()
    AFTER = auto()
    OVER = auto()


# What a short loop gives up first, with what is left of it. From 2/2/3/1 this gives, for loops of 7 down to 2:
# 1/2/3/1, 1/1/3/1, 1/1/2/1, 1/1/1/1, 1/1/1/0, 1/0/1/0.
_GIVEN_UP = (("wait", 1), ("warmup", 1), ("active", 1), ("after", 0), ("warmup", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Steps before the profiler, steps it discards, steps it records, steps wanted after it (1 or 0)."""

    wait: int
    warmup: int
    active: int
    after: int

    @property
    def cold(self) -> bool:
        """Whether the first steps of the loop are the recorded ones."""
        return self.warmup == 0 and self.wait <= 1


def phases_for(options: Options, *, length: int | None, cycle: int = 1) -> Phases:
    """The phases of a loop of ``length`` steps (``None``: unknown). What the options state is kept.

    Recorded steps are a whole number of cycles: with accumulation the optimizer steps every ``cycle``-th time.
    """
    default = {"wait": 2, "warmup": 2, "active": 3, "after": 1}
    stated = {
        name: value
        for name, value in (("wait", options.wait), ("warmup", options.warmup), ("active", options.active))
        if value is not None
    }
    steps = default | stated
    steps["active"] = -(-steps["active"] // cycle) * cycle
    if length is not None:
        for name, least in _GIVEN_UP:
            least = cycle if name == "active" else least
            stride = cycle if name == "active" else 1
            while name not in stated and sum(steps.values()) > length and steps[name] - stride >= least:
                steps[name] -= stride
    return Phases(**steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The steps without the profiler behind a recording: at least so many, and at most so many (``None``: no limit).

    ``least_ns`` is how long those of a baseline take at least.
    """

    least: int = 0
    most: int | None = None
    least_ns: int = ENOUGH_NS

    def over(self, steps: int, *, enough: bool) -> bool:
        """Whether they end here, behind this many; ``enough``: they are enough for a baseline."""
        return (enough and steps >= self.least) or steps == self.most


class Course:
    """Where one recording's loop stands, and how its steps are shared out.

    Attributes:
        index: number of the step that is running, from 0.
        cycle: iterations in one optimizer cycle.
        phases: the steps of each phase.
        between: the steps behind the recording.
        more: recordings of the same loop that are to follow this one.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._length: int | None = None
        self.index, self.cycle, self.more = 0, 1, 0
        self.phases = phases_for(options, length=None)
        self.between = Between()

    @property
    def left(self) -> int | None:
        """Steps still to come, at a mark; ``None`` if unknown."""
        return None if self._length is None else self._length - self.index

    @property
    def fits_again(self) -> bool:
        """Whether what is left is enough for another recording, as far as is known."""
        left = self.left
        return left is None or left > self.phases.warmup + self.phases.active

    def plan(self, *, length: int | None, cycle: int) -> None:
        """Share out a loop of ``length`` steps (``None``: unknown)."""
        self._length, self.cycle = length, cycle
        self.phases = phases_for(self._options, length=length, cycle=cycle)

    def follow(self, earlier: Course) -> None:
        """Go on from the mark at which the earlier recording was complete; that mark is told to this course too."""
        self._length, self.cycle = earlier._length, earlier.cycle
        self.phases = replace(earlier.phases, wait=earlier.index)
        self.index = earlier.index - 1

    def stopped(self) -> None:
        """The recording stopped at this mark: choose how many steps run without a profiler behind it.

        They are its baseline after and the wait of the next one. A loop of known length shares them out evenly, so that
        as many recordings fit as can: each with one step before it, and the last one with one behind it. One of unknown
        length may end at any step: the fewest that make a baseline.
        """
        if not self.more:
            return
        least, left, profiled = self._options.wait or 0, self.left, self.phases.warmup + self.phases.active
        if left is None:
            self.between = Between(least=least, least_ns=0)
            return
        fit = min(self.more, (left - 1) // (max(least, 1) + profiled))
        if fit > 0:
            self.between = Between(least=least, most=max(least, 1, (left - fit * profiled) // (fit + 1)))


TAKEN = "your cell started its own profiler"
ALREADY_ON = "a profiler was already on, so this one did not start"


def _silent(_text: str) -> None:
    """The status of a run that shows none."""


class Session:
    """One run of the profiler over one cell or script.

    Args:
        options: of this run.
        status: gets one short text when the phase changes.
        on_ready: gets the recording once, at the mark where it is complete, unless ``options.at_end``.
        source: the cell's text.
        cell_name: the file name that the cell is compiled under.

    Attributes:
        recording: true only while steps are recorded.
        over: no mark changes anything any more.
        result: the recording, ``None`` until it is complete.
        course: where the loop stands.
    """

    def __init__(
        self,
        options: Options,
        *,
        status: Callable[[str], None] = _silent,
        on_ready: Callable[[Recording], None] | None = None,
        source: str = "",
        cell_name: str = "",
    ) -> None:
        self.recording = self.over = False
        self.course = Course(options)
        self._options = options
        self._status = status
        self._ready = HandOver(None if options.at_end else on_ready)
        self._described: dict[str, Any] = {"source": source, "items": options.items, "unit": options.unit}
        self._known: dict[str, Any] = {}
        self._cell_name = cell_name
        self._thread: int | None = None
        self._process = os.getpid()
        self._at_mark: Callable[[int | None, bool], None] = self._boundary
        self._phase = Phase.WAIT
        self._wait, self._after = baseline.Laps(), baseline.Laps()
        self._profiler: Profiler | None = None
        self._steps: RecordedSteps | None = None
        self._ranges = LineRanges()
        self._probe: probes.SyncLines | None = None
        self._device = nvml.DeviceReader()
        self._partial, self._taken = "", False
        self._notes = Notes()
        self._holdings = Holdings(self._known, options, self._notes)
        self.result: Recording | None = None

    # -- what the cell runner calls --

    def start_cold(self) -> None:
        """Record at once, without baseline and warm-up: the cell may turn out to be the step."""
        self._own_thread()
        if self._phase is Phase.WAIT and self.course.index == 0:
            self._guarded(self._start_cold)

    def drop(self) -> None:
        """Forget a recording begun by ``start_cold``; the phases begin at the next mark."""
        if self._phase is Phase.COLD:
            self._guarded(self._drop)

    def plan(self, *, remaining: int | None, cycle: int = 1) -> None:
        """Choose how many steps each phase gets. Called once, before the first mark; without it the length is unknown.

        Args:
            remaining: iterations still to come after the one that is just over; ``None`` if unknown.
            cycle: iterations in one optimizer cycle.
        """
        self._own_thread()
        self.course.plan(length=None if remaining is None else remaining + 1, cycle=cycle)

    def follow(self, earlier: Session) -> None:
        """Record the loop of ``earlier`` again, from the mark on at which that one was complete.

        What ran between the two is the baseline after the one and the wait of the other.
        """
        self._described, self._thread = earlier._described, earlier._thread
        self._wait = earlier._after.settled()
        self.course.follow(earlier.course)

    def mark(self, line: int | None = None) -> None:
        """A step ends here and the next one begins."""
        self._at_mark(line, True)

    def close(self, line: int | None = None) -> None:
        """The mark after the loop: the last step ends here and none begins. A cold step is over here too."""
        self._at_mark(line, False)

    def check_limit(self) -> None:
        """Stop a recording that has run for longer than ``options.limit_s``, in the middle of a step too."""
        if self.recording and self._is_late() and self._in_own_thread:
            self._guarded(self._stop_at_limit)

    def describe(
        self, *, how: str, mark: str, loop_line: int | None, loop_is_for: bool, alternatives: Sequence[str]
    ) -> None:
        """Keep how the step was found, for the ``LiveRecord``; the arguments are its fields."""
        self._described |= {"how": how, "mark": mark, "loop_line": loop_line, "loop_is_for": loop_is_for}
        self._described["alternatives"] = tuple(alternatives)

    def draws(self, iterable: str, loaders: Callable[[], tuple[LoaderSeen, ...]]) -> None:
        """Keep what the steps draw from: the class of the marked loop's iterable, and the loaders seen by the end."""
        self._described |= {"iterable": iterable, "loaders": loaders}

    def range(self, line: int) -> AbstractContextManager[Any]:
        """A context manager that records the cell's line as a range ``## line N``, while steps are recorded.

        At other times it does nothing: it would show in the trace of a profiler of the user's.
        """
        return self._ranges.of(line) if self.recording else nullcontext()

    def finish(self, error: BaseException | None = None) -> Recording:
        """The recording, with the steps so far. Everything that was on is off. May be called at any time, and again.

        Args:
            error: what the cell raised; the recording then says in which step.
        """
        if self.result is None:
            self._own_thread()
            with uninterrupted():
                self._holdings.look_at_error(error, self._cell_name)
                self._notes.shielded(self._end, error)
                self._notes.shielded(self._complete)
            self._ready.give(self.result)
        with uninterrupted():
            self._release()
        return self.result or Recording(trace_path=None, live=LiveRecord(notes=self._notes.as_tuple()))

    # -- at a mark --

    def _boundary(self, line: int | None, opens: bool) -> None:
        if self._steps is not None:
            self._steps.mark_called()
        self._own_thread()
        if not self._in_own_thread:
            self._notes.add("thread", "warn", "a step mark in another thread was not counted")
            return
        if self._phase in (Phase.WAIT, Phase.AFTER) and self._stays(opens):
            return
        self._guarded(self._transition, line, opens)
        self._ready.give(self.result)

    def _late_mark(self, *_mark: object) -> None:
        """A mark after another thread ended the run: the profiler goes off here, where it was started."""
        if self._in_own_thread:
            self._at_mark = _nothing
            with uninterrupted():
                self._release()

    def _stays(self, opens: bool) -> bool:
        """Whether this mark changes no phase; it is the mark of an unprofiled step, and as cheap as can be."""
        waits = self._phase is Phase.WAIT
        laps = self._wait if waits else self._after
        laps.mark(baseline.stamp(), opens=opens)
        self.course.index += opens
        if waits:
            return not opens or self.course.index < self.course.phases.wait
        between = self.course.between
        enough = baseline.enough(laps, cycle=self.course.cycle, least_ns=between.least_ns)
        return not (between.over(len(laps), enough=enough) or (not opens and len(laps)))

    def _transition(self, line: int | None, opens: bool) -> None:
        if self._phase is Phase.COLD:
            if not opens:
                self._cold_step_is_over()
                self._complete()
                return
            self._drop()
            if self._stays(opens):
                return
        if self._phase is Phase.WAIT:
            self._leave_wait(line)
        elif self._phase is Phase.WARMUP:
            self._warm_step(line, opens)
        elif self._phase is Phase.ACTIVE:
            self._recorded_step(opens)
        elif self._phase is Phase.AFTER:
            self._complete()

    def _leave_wait(self, line: int | None) -> None:
        self._wait.pause()
        if already_on():
            self._refuse()
            self._phase = Phase.AFTER
            return
        if not self._make_ready(prepare=self.course.phases.warmup > 0):
            return
        if self.course.phases.warmup == 0:
            self._begin(line, Phase.ACTIVE)
            return
        self._phase = Phase.WARMUP
        self._say("warming up")
        probe = probes.SyncLines(self._cell_name)
        if probe.start():
            self._probe = probe

    def _make_ready(self, *, prepare: bool) -> bool:
        """Whether torch's profiler is there: in warm-up, or started once before so that the real start is quick."""
        cuda = torch.cuda.is_available()
        self._say("starting CUPTI..." if cuda else "starting the profiler...")
        self._notes.shielded(self._device.open)
        try:
            self._profiler = Profiler(self._options, cuda=cuda, give_way=self._give_way, late=self.check_limit)
            if prepare:
                self._profiler.prepare()
            else:
                self._profiler.warm()
        except Exception as failure:
            self._fail_to_start(failure)
            return False
        return True

    def _warm_step(self, line: int | None, opens: bool) -> None:
        self._end_probe()
        self.course.index += opens
        if not self._profiler_is_ours():
            self._lose()
        elif opens and self.course.index >= self.course.phases.wait + self.course.phases.warmup:
            self._begin(line, Phase.ACTIVE)

    def _begin(self, line: int | None, phase: Phase) -> None:
        """The first recorded step begins."""
        assert self._profiler is not None
        active = self.course.phases.active  # said before the step, not in it: a display takes half a millisecond
        self._say("recording the cell" if phase is Phase.COLD else f"recording {_count(active, 'step')}")
        try:
            self._synchronize()
            self._holdings.begin()
            self._profiler.start()
        except Exception as failure:
            self._fail_to_start(failure)
            return
        self._steps = RecordedSteps()
        self._partial, self._taken = "", False
        self._known |= {"current_line": line, "cold": phase is Phase.COLD or self.course.phases.cold}
        self._phase = phase
        self.recording = True
        self._steps.open(self.course.index)

    def _recorded_step(self, opens: bool) -> None:
        steps = self._steps
        if steps is None or not self._profiler_is_ours():
            self._lose()
            return
        steps.close()
        self.course.index += opens
        late, active = self._is_late(), self.course.phases.active
        if opens and not late and steps.completed < active:
            steps.open(self.course.index)
            return
        steps.end()
        if steps.completed < active:
            why = f"stopped after {self._options.limit_s:g} s (--limit)" if late else "the loop ended"
            self._partial = f"{why} with {steps.completed} of {_count(active, 'step')}"
        self._stop()
        if opens:
            self.course.stopped()
            self._say("measuring without the profiler")
            self._after.mark(baseline.stamp())
        else:
            self._complete()

    def _stop_at_limit(self) -> None:
        self._partial = f"stopped after {self._options.limit_s:g} s (--limit) in {self._where()}"
        self._cut_off()

    # -- ends --

    def _end(self, error: BaseException | None) -> None:
        """The cell is over: stop what is on."""
        kind = "" if error is None else type(error).__name__
        if self._phase is Phase.COLD and error is None:
            self._cold_step_is_over()
        elif self._phase in (Phase.COLD, Phase.ACTIVE):
            self._partial = f"{kind or 'the cell ended'} in {self._where()}"
            self._cut_off()
        elif self._phase in (Phase.WAIT, Phase.WARMUP):
            self._end_probe()
            if self._profiler is not None:
                self._profiler.stop()
            before = f"before recording began, after {_count(self.course.index, 'step')}"
            self._partial = self._partial or f"{kind or 'the cell ended'} {before}"

    def _cold_step_is_over(self) -> None:
        if self._steps is not None and self._profiler_is_ours():
            self._steps.close()
            self._steps.end()
        self._stop()

    def _where(self) -> str:
        if self._phase is Phase.COLD or self._steps is None:
            return "the cell"
        return f"step {self._steps.completed + 1} of {self.course.phases.active}"

    def _cut_off(self) -> None:
        """Stop in the middle of a step."""
        if self._steps is not None and self._in_own_thread:
            self._ranges.end_all()
            # The part of a cell that ran is all there will ever be of it; a part of a loop's step says nothing.
            self._steps.cut_off(self.course.index, serves=self._phase is Phase.COLD)
        self._stop()

    def _stop(self) -> None:
        self.recording = False
        self._phase = Phase.AFTER
        if self._profiler is None:
            return
        if not self._profiler_is_ours():
            self._lose()
            return
        if not self._profiler.in_own_thread:
            self._notes.add("thread", "warn", "the run was ended from another thread, so its recording was given up")
        self._notes.shielded(self._synchronize)
        self._profiler.stop()
        self._holdings.stop()

    def _drop(self) -> None:
        """Forget the cold recording."""
        if self._steps is not None:
            self._ranges.end_all()
            self._steps.cut_off(self.course.index, serves=False)
        self.recording = False
        if self._profiler_is_ours() and self._profiler is not None:
            self._profiler.stop()
        self._profiler = self._steps = None
        self._known |= {"current_line": None, "cold": False}
        self._phase = Phase.WAIT

    def _lose(self) -> None:
        """The user's profiler has the session; ours is never touched again."""
        self._taken = True
        if self._steps is not None:
            self._steps.forget_span()
        self._ranges.forget()
        self._end_probe()
        self._notes.add("profiler", "warn", f"{TAKEN}, which took the recording")
        self._let_go()

    def _give_way(self) -> None:
        """The user starts a profiler while ours is on: theirs wins."""
        profiler = self._profiler
        if profiler is None:
            return
        if not profiler.in_own_thread:
            profiler.abandon()  # the marks of our own thread find it gone
            return
        with uninterrupted():
            self._end_probe()
            if self._phase is Phase.WARMUP:
                profiler.stop()
                self._taken = True
                self._notes.add("profiler", "warn", f"{TAKEN}: only one profiler can be on in a process")
            else:
                self._cut_off()
                self._notes.add("profiler", "warn", f"{TAKEN}; what was recorded before it was kept")
            self._let_go()

    def _let_go(self) -> None:
        """Measure nothing more: from here on the user's profiler slows the steps."""
        self.recording = False
        self._partial = TAKEN
        self._phase = Phase.OVER
        self._at_mark, self.over = _nothing, True

    def _refuse(self) -> None:
        """Go on without a recording, because the user's profiler is on."""
        self._taken = True
        self._partial = ALREADY_ON
        self._notes.add("profiler", "warn", f"{ALREADY_ON}: only one profiler can be on in a process")

    def _fail_to_start(self, failure: Exception) -> None:
        self._notes.add("profiler", "fail", f"the profiler did not start: {type(failure).__name__}: {failure}")
        self._partial = "the profiler did not start"
        self.recording = False
        self._phase = Phase.AFTER
        if self._profiler is not None:
            self._notes.shielded(self._profiler.stop)

    def _start_cold(self) -> None:
        if already_on():
            self._refuse()
        elif self._make_ready(prepare=False):
            self._begin(None, Phase.COLD)

    # -- the result --

    def _complete(self) -> None:
        """Export and build the recording; from here on marks do nothing."""
        if self.result is not None:
            return
        self._phase, self.over = Phase.OVER, True
        self._at_mark = _nothing if self._in_own_thread else self._late_mark
        self._notes.shielded(self._device.look)
        self._say("reading the recording")
        path = directory = None
        if self._profiler is not None and self._profiler.state is ProfilerState.STOPPED and self._steps is not None:
            path, directory = exported(self._profiler, self._notes, unfinished=self._steps.unfinished)
        self._known |= {"cycle": self.course.cycle, "partial": self._partial, "taken": self._taken}
        steps = self._steps or RecordedSteps()
        known = self._described | self._known
        live = live_record(known, self._wait, steps, self._after, self._device, self._notes)
        self.result = Recording(trace_path=path, live=live, directory=directory)

    def _release(self) -> None:
        """Leave nothing on in this thread that could not be switched off from another one."""
        profiler = self._profiler
        if profiler is not None and profiler.in_own_thread:
            self._notes.shielded(profiler.stop)
            self._notes.shielded(profiler.release_thread)

    # -- small parts --

    def _own_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()

    @property
    def _in_own_thread(self) -> bool:
        """Whether this is the thread of the marks; a process that the cell forked has none."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def _profiler_is_ours(self) -> bool:
        return self._profiler is not None and self._profiler.check()

    def _is_late(self) -> bool:
        return self._steps is not None and self._steps.running_ns() > self._options.limit_s * 1e9

    def _synchronize(self) -> None:
        if torch.cuda.is_initialized() and not doors.stream_is_capturing():
            torch.cuda.synchronize()

    def _end_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            self._known["sync_sites"] = probe.stop()

    def _say(self, text: str) -> None:
        self._notes.shielded(self._status, text)

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Act with signals held back; a failure of ours becomes a note and ends the recording."""
        with uninterrupted():
            try:
                act(*arguments)
            except Exception as failure:
                self._notes.failed("fail", failure)
                self._partial = self._partial or "recording failed"
                self._notes.shielded(self._end_probe)
                self._notes.shielded(self._stop)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nothing(_line: int | None, _opens: bool) -> None:
    """The mark of a run that is over."""
