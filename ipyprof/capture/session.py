"""The phases of a run: baseline, warm-up, recording, baseline, and then nothing, or the next recording (``--repeat``).

    wait  ->  warm-up  ->  recorded (active)  ->  baseline (after)  ->  over: a mark does nothing
                ^                                        |
                +----------  further recordings  --------+

Driven by marks, each a step boundary. The iteration that decided what a step is lies before the first mark and counts
as the first step of the wait. Nothing here synchronises in the loop but twice a recording: before its first step and at
its end. A failure of the profiler never reaches the user's code; it becomes a note of the recording.

The steps between two recordings are the baseline after the one and the wait of the next: a loop pays for them once. A
recording is exported where its baseline is complete, before the next profiler starts, because one process has one
profiler. What stops the recordings for good (the user's own profiler, one that does not start, the end of the loop)
leaves those that were made.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from msgspec import structs

from ipyprof.capture import baseline, nvml, probes
from ipyprof.capture import torch_doors as doors
from ipyprof.capture.loop_clock import LoopClock
from ipyprof.capture.memory import Holdings
from ipyprof.capture.profiler import Profiler, ProfilerState, already_on, profiled_before, uninterrupted
from ipyprof.capture.recording import LineRange, Notes, RecordedSteps, Recording, end_ranges, export
from ipyprof.options import Options
from ipyprof.trace.live import LiveRecord

BEFORE_NS = 1_000_000_000
BEFORE_SHARE = 4


class Phase(Enum):
    """Where a recording stands. ``COLD``: recording from the cell's first statement, no step known yet."""

    WAIT = auto()
    WARMUP = auto()
    COLD = auto()
    ACTIVE = auto()
    AFTER = auto()
    OVER = auto()


_DEFAULTS = {"wait": 2, "warmup": 2, "active": 3}
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


def phases_for(options: Options, *, length: int | None, cycle: int = 1) -> Phases:
    """The phases of a loop of ``length`` steps (``None``: unknown). What the options state is kept.

    Recorded steps are a whole number of cycles: with accumulation the optimizer steps every ``cycle``-th time.
    """
    stated = {name: value for name in _DEFAULTS if (value := getattr(options, name)) is not None}
    steps = {**_DEFAULTS, "after": 1, **stated}
    steps["active"] = -(-steps["active"] // cycle) * cycle
    if length is not None:
        for name, least in _GIVEN_UP:
            stride, least = (cycle, cycle) if name == "active" else (1, least)
            while name not in stated and sum(steps.values()) > length and steps[name] - stride >= least:
                steps[name] -= stride
    return Phases(**steps)


def repeated_runs(options: Options) -> int:
    """How often ``--step cell`` runs the cell: wait + warmup + active, for each recording."""
    given = ((getattr(options, name), default) for name, default in _DEFAULTS.items())
    return options.repeat * sum(default if value is None else value for value, default in given)


class Course:
    """Where the loop stands, and how its steps are shared out.

    Attributes:
        index: number of the step that is running, from 0.
        cycle: iterations in one optimizer cycle.
        phases: the steps of each phase.
        more: recordings of the same loop that are to follow this one.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._length: int | None = None
        self.index, self.cycle, self.more = 0, 1, options.repeat - 1
        self.phases = phases_for(options, length=None)
        self._share_out_between()

    def waits_on(self, laps: baseline.Laps) -> bool:
        """Whether the wait goes on though its steps are over: before the first profiler of a process the steps cost
        what they cost without one, and behind it no more. For a second, and a quarter of a loop of known length."""
        if self._options.wait is not None or self._length is None or self.index >= self._length // BEFORE_SHARE:
            return False
        window = laps.window_ns
        return window is None or window[1] - window[0] < BEFORE_NS

    def waited(self) -> None:
        """The wait ends with the step that is just over."""
        self.phases = replace(self.phases, wait=max(self.index, self.phases.wait))

    @property
    def cold(self) -> bool:
        """Whether the first steps of the loop are the recorded ones."""
        return self.phases.warmup == 0 and self.phases.wait <= 1

    @property
    def fits_again(self) -> bool:
        """Whether what is left is enough for another recording, as far as is known."""
        return self._length is None or self._length - self.index > self.phases.warmup + self.phases.active

    def plan(self, *, length: int | None, cycle: int) -> None:
        """Share out a loop of ``length`` steps (``None``: unknown)."""
        self._length, self.cycle = length, cycle
        self.phases = phases_for(self._options, length=length, cycle=cycle)

    def again(self) -> None:
        """The next recording begins with the wait that is just over."""
        self.phases = replace(self.phases, wait=self.index)
        self.index -= 1  # the mark that ended that wait is told again
        self.more -= 1
        self._share_out_between()

    def recorded(self) -> None:
        """The recording stopped at this mark: choose how many steps run without a profiler behind it.

        They are its baseline after and the wait of the next one. A loop of known length shares them out evenly, so that
        as many recordings fit as can: each with one step before it, and the last one with one behind it. One of unknown
        length may end at any step: the fewest that make a baseline.
        """
        if not self.more:
            return
        least, profiled = self._options.wait or 0, self.phases.warmup + self.phases.active
        if self._length is None:
            self._share_out_between(least=least, least_ns=0)
            return
        left = self._length - self.index
        fit = min(self.more, (left - 1) // (max(least, 1) + profiled))
        if fit > 0:
            self._share_out_between(least=least, most=max(least, 1, (left - fit * profiled) // (fit + 1)))

    def has_baseline(self, laps: baseline.Laps) -> bool:
        """Whether the steps without the profiler behind the recording end with these."""
        enough = baseline.enough(laps, cycle=self.cycle, least_ns=self._least_ns)
        return (enough and len(laps) >= self._least) or len(laps) == self._most

    def _share_out_between(
        self, *, least: int = 0, most: int | None = None, least_ns: int = baseline.ENOUGH_NS
    ) -> None:
        self._least, self._most, self._least_ns = least, most, least_ns


TAKEN = "your cell started its own profiler"
ALREADY_ON = "a profiler was already on, so this one did not start"


def _silent(_text: str) -> None:
    """The status of a run that shows none."""


class Session:
    """One run of the profiler over one cell or block: ``options.repeat`` recordings, one after the other.

    The result is the first recording that holds a whole step, with the ``others``. One that a failure cut off is not
    among them, unless it is all there is or holds the request for memory that failed.

    Args:
        options: of this run.
        status: gets one short text when the phase changes.
        on_ready: gets the result once, at the mark where it is complete, unless ``options.at_end``.
        source: the cell's text.
        cell_name: the file name that the cell is compiled under.
        block: a block of code is recorded, which nothing but its own steps can run again.

    Attributes:
        recording: true only while steps are recorded.
        over: no mark changes anything any more.
        result: the recordings, ``None`` until they are complete.
        clock: of all steps, to the end of the cell; it goes on when the run is over.
    """

    def __init__(
        self,
        options: Options,
        *,
        status: Callable[[str], None] = _silent,
        on_ready: Callable[[Recording], None] | None = None,
        source: str = "",
        cell_name: str = "",
        block: bool = False,
    ) -> None:
        self.recording = self.over = False
        self.result: Recording | None = None
        self.clock = LoopClock(cell_name)
        self._course = Course(options)
        self._options = options
        self._status = status
        self._on_ready = None if options.at_end else on_ready
        self._described: dict[str, Any] = {"source": source, "items": options.items, "unit": options.unit}
        self._cell_name = cell_name
        self._block = block
        self._thread: int | None = None
        self._process = os.getpid()
        self._at_mark: Callable[[int | None, bool], None] = self._boundary
        self._made: list[Recording] = []  # those before the one under way
        self._begin_anew(baseline.Laps())

    def _begin_anew(self, wait: baseline.Laps) -> None:
        """What belongs to one recording; ``wait`` are the steps before it, so far."""
        self._phase = Phase.WAIT
        self._wait, self._after = wait, baseline.Laps()
        self._profiler: Profiler | None = None
        self._steps: RecordedSteps | None = None
        self._ranges: list[AbstractContextManager[Any]] = []
        self._probe: probes.SyncLines | None = None
        self._device = nvml.DeviceReader()
        self._known: dict[str, Any] = {}
        self._partial, self._taken = "", False
        self._notes = Notes()
        self._holdings = Holdings(self._options, self._notes)

    # -- what the cell runner calls --

    def start_cold(self) -> None:
        """Record at once, without baseline and warm-up: the cell may turn out to be the step."""
        self._own_thread()
        if self._phase is Phase.WAIT and self._course.index == 0:
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
        self._course.plan(length=None if remaining is None else remaining + 1, cycle=cycle)

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

    def describe(self, **fields: Any) -> None:
        """Keep how the step was found: fields of a ``LiveRecord``; ``loaders`` is a function, asked at the end."""
        self._described |= fields

    def range(self, line: int) -> AbstractContextManager[Any]:
        """A context manager that records the cell's line as a range ``## line N``, while steps are recorded.

        At other times it does nothing: it would show in the trace of a profiler of the user's.
        """
        return LineRange(line, self._ranges) if self.recording else nullcontext()

    def finish(self, error: BaseException | None = None) -> Recording:
        """The result, with the steps so far. Everything that was on is off. May be called at any time, and again.

        Args:
            error: what the cell raised; the recording then says in which step.
        """
        if self.result is None:
            self._own_thread()
            with uninterrupted():
                cut_off = error is not None and self.recording
                self._holdings.look_at_error(error, self._cell_name)
                self._notes.shielded(self._end, error)
                self._notes.shielded(self._complete, error=error, cut_off=cut_off)
            self._hand_out()
        with uninterrupted():
            self._release()
            self._notes.shielded(self.clock.stop)
        return self.result or self._without_trace()

    # -- at a mark --

    def _boundary(self, line: int | None, opens: bool) -> None:
        if self._steps is not None:
            self._steps.mark_called()
        self._own_thread()
        if not self._in_own_thread:
            self._notes.add("thread", "warn", "a step mark in another thread was not counted")
            return
        self.clock.mark(opens=opens)
        if self._phase in (Phase.WAIT, Phase.AFTER) and self._stays(opens):
            return
        self._change(line, opens)

    def _change(self, line: int | None, opens: bool) -> None:
        """A phase ends: all that follows of it is ours, and no time of the loop's."""
        with self.clock.pause():
            self._guarded(self._transition, line, opens)
            self._hand_out()
        self.clock.profiled(self._phase in (Phase.WARMUP, Phase.ACTIVE))

    def _only_timed(self, _line: int | None, opens: bool) -> None:
        """A mark of a run that is over."""
        if self._in_own_thread:
            self.clock.mark(opens=opens)

    def _late_mark(self, *_mark: object) -> None:
        """A mark after another thread ended the run: the profiler goes off here, where it was started."""
        if self._in_own_thread:
            self._at_mark = self._only_timed
            with uninterrupted():
                self._release()

    def _stays(self, opens: bool) -> bool:
        """Whether this mark changes no phase; it is the mark of an unprofiled step, and as cheap as can be."""
        waits = self._phase is Phase.WAIT
        laps = self._wait if waits else self._after
        laps.mark(baseline.stamp(), opens=opens)
        self._course.index += opens
        if waits:
            if not opens or self._course.index < self._course.phases.wait:
                return True
            return not profiled_before() and torch.cuda.is_available() and self._course.waits_on(laps)
        return not (self._course.has_baseline(laps) or (not opens and len(laps)))

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
            self._complete(begins_at=line, opens=opens)

    def _leave_wait(self, line: int | None) -> None:
        self._wait.pause()
        self._course.waited()
        self._known["profiled_before"] = profiled_before()
        if already_on():
            self._refuse()
            self._phase = Phase.AFTER
            return
        if not self._make_ready(prepare=self._course.phases.warmup > 0):
            return
        if self._course.phases.warmup == 0:
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
        self._course.index += opens
        if not self._profiler_is_ours():
            self._lose()
        elif opens and self._course.index >= self._course.phases.wait + self._course.phases.warmup:
            self._begin(line, Phase.ACTIVE)

    def _begin(self, line: int | None, phase: Phase) -> None:
        """The first recorded step begins."""
        assert self._profiler is not None
        active = self._course.phases.active  # said before the step, not in it: a display takes half a millisecond
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
        self._known |= {"current_line": line, "cold": phase is Phase.COLD or self._course.cold}
        self._phase = phase
        self.recording = True
        self._steps.open(self._course.index)

    def _recorded_step(self, opens: bool) -> None:
        steps = self._steps
        if steps is None or not self._profiler_is_ours():
            self._lose()
            return
        steps.close()
        self._course.index += opens
        late, active = self._is_late(), self._course.phases.active
        if opens and not late and steps.completed < active:
            steps.open(self._course.index)
            return
        steps.end()
        if steps.completed < active:
            why = f"stopped after {self._options.limit_s:g} s (--limit)" if late else "the loop ended"
            self._partial = f"{why} with {steps.completed} of {_count(active, 'step')}"
        self._stop()
        if opens:
            self._course.recorded()
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
        kind = "the cell ended" if error is None else type(error).__name__
        if self._phase is Phase.COLD and error is None:
            self._cold_step_is_over()
        elif self._phase in (Phase.COLD, Phase.ACTIVE):
            self._partial = f"{kind} in {self._where()}"
            self._cut_off()
        elif self._phase in (Phase.WAIT, Phase.WARMUP):
            self._end_probe()
            if self._profiler is not None:
                self._profiler.stop()
            before = f"before recording began, after {_count(self._course.index, 'step')}"
            self._partial = self._partial or f"{kind} {before}"

    def _cold_step_is_over(self) -> None:
        if self._steps is not None and self._profiler_is_ours():
            self._steps.close()
            self._steps.end()
        self._stop()

    def _where(self) -> str:
        if self._phase is Phase.COLD or self._steps is None:
            return "the cell"
        return f"step {self._steps.completed + 1} of {self._course.phases.active}"

    def _cut_off(self) -> None:
        """Stop in the middle of a step."""
        if self._steps is not None and self._in_own_thread:
            end_ranges(self._ranges)
            # The part of a cell that ran is all there will ever be of it; a part of a loop's step says nothing.
            self._steps.cut_off(self._course.index, serves=self._phase is Phase.COLD)
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
            end_ranges(self._ranges)
            self._steps.cut_off(self._course.index, serves=False)
        self.recording = False
        if self._profiler_is_ours() and self._profiler is not None:
            self._profiler.stop()
        self._profiler = self._steps = None
        self._known |= {"current_line": None, "cold": False}
        self._phase = Phase.WAIT

    def _lose(self) -> None:
        """The user's profiler has the session; ours is never touched again."""
        if self._steps is not None:
            self._steps.forget_span()
        self._ranges.clear()  # they must not be ended
        self._end_probe()
        self._taken = True
        self._let_go(f"{TAKEN}, which took the recording")

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
                self._let_go(f"{TAKEN}: only one profiler can be on in a process")
            else:
                self._cut_off()
                self._let_go(f"{TAKEN}; what was recorded before it was kept")

    def _let_go(self, why: str) -> None:
        """Measure nothing more: from here on the user's profiler slows the steps."""
        self._notes.add("profiler", "warn", why)
        self.recording = False
        self._partial = TAKEN
        self._phase = Phase.OVER
        self._at_mark, self.over = self._only_timed, True

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

    def _complete(
        self,
        *,
        opens: bool = False,
        begins_at: int | None = None,
        error: BaseException | None = None,
        cut_off: bool = False,
    ) -> None:
        """Export and build the recording; the next one begins, where there is one to come, or a mark does nothing.

        ``opens``: a step begins, at this line. ``error``: the cell ended with it; ``cut_off``: inside this recording.
        """
        if self.result is not None:
            return
        self._phase = Phase.OVER
        last = self._notes.shielded(self._recorded) or self._without_trace()
        if opens and self._course.more and self._course.fits_again and last.trace_path is not None:
            self._made.append(last)
            self._course.again()
            self._begin_anew(self._after.settled())
            if not self._stays(True):
                self._change(begins_at, True)
            return
        self.over = True
        self._at_mark = self._only_timed if self._in_own_thread else self._late_mark
        self.result = last if self._options.repeat == 1 else self._put_together(last, error, cut_off=cut_off)

    def _recorded(self) -> Recording:
        """The recording under way, exported. A probe that fails becomes a note."""
        notes, steps = self._notes, self._steps or RecordedSteps()
        notes.shielded(self._device.look)
        self._say("reading the recording")
        path = directory = None
        if self._profiler is not None and self._profiler.state is ProfilerState.STOPPED and self._steps is not None:
            try:
                path, directory = export(self._profiler, unfinished=steps.unfinished)
            except Exception as failure:
                text = f"the recording could not be written: {type(failure).__name__}: {failure}"
                notes.add("profiler", "fail", text)
        wait_ns, after_ns, profiled_ns = (laps.durations_ns() for laps in (self._wait, self._after, steps.laps))
        first = not self._known.get("profiled_before", False)
        name, samples = baseline.choose(after_ns, wait_ns, profiled_ns, closed=self._after.closed, first=first)
        host_ns = {"after": self._after.settled().host_ns(), "before": self._wait.host_ns()[baseline.COLD :]}
        windows = [window for laps in (self._after, self._wait, steps.laps) if (window := laps.window_ns)]
        utilization, state = notes.shielded(self._device.finish, windows) or (None, None)
        fields = self._described | self._known | self._holdings.fields
        fields["loaders"] = notes.shielded(fields.get("loaders", tuple)) or ()
        live = LiveRecord(
            **fields,
            cycle=self._course.cycle,
            partial=self._partial,
            taken=self._taken,
            baseline_ns=samples,
            baseline=name,
            baseline_closing=name == "after_first" and self._after.closed and len(after_ns) == 1,
            baseline_host_ns=host_ns.get(name, ()),
            attached=baseline.attached(after_ns, wait_ns) if name == "before" else None,
            loop=notes.shielded(self.clock.result),
            wait_ns=wait_ns,
            profiled_ns=profiled_ns,
            closing_ns=tuple(steps.closing_ns),
            cuda=bool(notes.shielded(probes.gpu_was_used)),
            environment=notes.shielded(probes.versions) or {},
            device_names=notes.shielded(probes.device_names) or {},
            utilization=utilization,
            device_state=state,
            cores=notes.shielded(probes.usable_cores),
            process_memory=tuple(steps.memory),
            notes=notes.as_tuple(),
        )
        return Recording(trace_path=path, live=live, directory=directory)

    def _without_trace(self) -> Recording:
        return Recording(trace_path=None, live=LiveRecord(notes=self._notes.as_tuple()))

    def _put_together(self, last: Recording, error: BaseException | None, *, cut_off: bool) -> Recording:
        """Those recordings that hold a whole step; each says why others are missing."""
        whole = [one for one in self._made if _holds_a_step(one)]
        ran_out = cut_off and last.live.out_of_memory is not None and last.trace_path is not None
        counts = _holds_a_step(last) and not (cut_off and whole)
        kept = [*whole, last] if counts or ran_out or not whole else whole
        for one in (*self._made, last):
            if not any(one is other for other in kept):
                one.discard()
        notes, asked, made = Notes(), self._options.repeat, len(whole) + counts
        later = Holdings(self._options, notes, over=True)
        if self._made and not ran_out:  # what was complete before the cell ran out of memory knows nothing of that
            later.look_at_error(error, self._cell_name)
        if made < asked:
            asked_text = f"repeat={asked}" if self._block else f"--repeat {asked}"
            notes.add("repeat", "warn", f"{asked_text}: {self._why_fewer(made, last, error)}")
        told = []
        for one in kept:
            fields = later.fields if "out_of_memory" in later.fields and one.live.out_of_memory is None else {}
            live = structs.replace(one.live, **fields, notes=(*one.live.notes, *notes.as_tuple()))
            told.append(replace(one, live=live))
        return replace(told[0], others=tuple(told[1:]))

    def _why_fewer(self, made: int, last: Recording, error: BaseException | None) -> str:
        """What was made instead of all, and why, in a part of a sentence."""
        ran_once = last.trace_path is not None and last.live.mark == "cell" and self._course.index == 0
        if ran_once and made == 1 and error is None and not last.live.partial:
            if self._block:
                return "the block ran once; call run.step() at the end of each step"
            return f"the cell ran once; --step cell runs it {repeated_runs(self._options)} times"
        count = {0: "no recording was", 1: "1 recording was"}.get(made, f"{made} recordings were")
        if last.live.partial or error is not None:
            return f"{count} made: {last.live.partial or type(error).__name__}"
        failed = next((text for check, status, text in last.live.notes if (check, status) == ("profiler", "fail")), "")
        if failed:
            return f"{count} made: {failed}"
        return f"{count} made: {'the loop ended' if self._course.fits_again else 'the loop is too short for more'}"

    def _hand_out(self) -> None:
        """Give the result to the caller, once. A failure is a warning: at a mark it would reach the user's code."""
        if self.result is None:
            return
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            try:
                on_ready(self.result)
            except Exception as failure:
                warnings.warn(f"ipyprof: the report failed: {type(failure).__name__}: {failure}", stacklevel=2)

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
        asked = self._options.repeat
        if asked > 1:
            text = f"{text} (recording {asked - self._course.more} of {asked})"
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


def _holds_a_step(recording: Recording) -> bool:
    return recording.trace_path is not None and bool(recording.live.profiled_ns)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
