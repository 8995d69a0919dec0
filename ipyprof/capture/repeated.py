"""Several recordings of one loop (``--repeat``), each with a profiler, a trace and a baseline of its own.

    wait -> warm-up, recorded -> between -> warm-up, recorded -> ... -> baseline (after)

The steps between two recordings are the baseline after the one and the wait of the next: a loop pays for them once.
A recording is exported where its baseline is complete, before the next profiler starts, because one process has one
profiler. What stops the recordings for good (the user's own profiler, one that does not start, the end of the loop)
leaves those that were made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ipyprof.capture.memory import Holdings
from ipyprof.capture.notes import Notes
from ipyprof.capture.profiler import uninterrupted
from ipyprof.capture.recording import HandOver, Recording
from ipyprof.capture.session import Session
from ipyprof.capture.steps import repeated_runs
from ipyprof.options import Options
from ipyprof.trace.live import LiveRecord, LoaderSeen


def session_of(
    options: Options,
    *,
    status: Callable[[str], None],
    on_ready: Callable[[Recording], None],
    source: str,
    cell_name: str,
    block: bool = False,
) -> AnySession:
    """The session of one run; the arguments are those of `Session`, and ``block`` that of `RepeatedSession`."""
    if options.repeat == 1:
        return Session(options, status=status, on_ready=on_ready, source=source, cell_name=cell_name)
    return RepeatedSession(options, status=status, on_ready=on_ready, source=source, cell_name=cell_name, block=block)


class RepeatedSession:
    """As `Session`, which makes one recording, for ``options.repeat`` of them, one after the other.

    ``finish`` and ``on_ready`` give the first recording that holds a whole step, with the ``others``. One that a
    failure cut off is not among them, unless it is all there is or holds the request for memory that failed.

    Args:
        block: a block of code is recorded, which nothing but its own steps can run again.
    """

    def __init__(
        self,
        options: Options,
        *,
        status: Callable[[str], None],
        on_ready: Callable[[Recording], None] | None = None,
        source: str = "",
        cell_name: str = "",
        block: bool = False,
    ) -> None:
        self.over = False
        self._options = options
        self._block = block
        self._show = status
        self._cell_name = cell_name
        self._ready = HandOver(None if options.at_end else on_ready)
        self._made: list[Recording] = []
        self._session = Session(options, status=self._status, source=source, cell_name=cell_name)
        self._session.course.more = options.repeat - 1
        self._thread = threading.get_ident()
        self._result: Recording | None = None

    @property
    def recording(self) -> bool:
        """True only while steps are recorded."""
        return self._session.recording

    def start_cold(self) -> None:
        """As `Session.start_cold`."""
        self._session.start_cold()

    def drop(self) -> None:
        """As `Session.drop`."""
        self._session.drop()

    def plan(self, *, remaining: int | None, cycle: int = 1) -> None:
        """As `Session.plan`; the loop is shared out among the recordings as it goes."""
        self._session.plan(remaining=remaining, cycle=cycle)

    def mark(self, line: int | None = None) -> None:
        """A step ends here and the next one begins; a recording may be complete here and the next one begin."""
        self._session.mark(line)
        if self._session.over and not self.over and threading.get_ident() == self._thread:
            with uninterrupted():
                self._go_on(line)
            self._ready.give(self._result)

    def close(self, line: int | None = None) -> None:
        """The last step ends here and none begins, so that no further recording does."""
        self._session.close(line)
        if self._session.over and not self.over:
            self.over = True
            if self._session.result is not None:
                with uninterrupted():
                    self._complete(self._session.result, None)
                self._ready.give(self._result)

    def check_limit(self) -> None:
        """As `Session.check_limit`; each recording has the limit to itself."""
        self._session.check_limit()

    def describe(
        self, *, how: str, mark: str, loop_line: int | None, loop_is_for: bool, alternatives: Sequence[str]
    ) -> None:
        """As `Session.describe`, for all recordings."""
        self._session.describe(
            how=how, mark=mark, loop_line=loop_line, loop_is_for=loop_is_for, alternatives=alternatives
        )

    def draws(self, iterable: str, loaders: Callable[[], tuple[LoaderSeen, ...]]) -> None:
        """As `Session.draws`, for all recordings."""
        self._session.draws(iterable, loaders)

    def range(self, line: int) -> AbstractContextManager[Any]:
        """As `Session.range`."""
        return self._session.range(line)

    def finish(self, error: BaseException | None = None) -> Recording:
        """As `Session.finish`."""
        if self._result is None:
            with uninterrupted():
                cut_off = error is not None and self._session.recording
                self._complete(self._session.finish(error), error, cut_off=cut_off)
            self._ready.give(self._result)
        with uninterrupted():
            last = self._session.finish()
        return self._result or last

    def _go_on(self, line: int | None) -> None:
        """The recording under way is complete at this mark: begin the next one, where there is one to come."""
        done, result = self._session, self._session.result
        if result is None:  # the user's profiler is on, and nothing of ours is touched before the end
            self.over = True
            return
        if not done.course.more or not done.course.fits_again or result.trace_path is None:
            self._complete(result, None)
            return
        self._made.append(result)
        self._session = Session(self._options, status=self._status, cell_name=self._cell_name)
        self._session.course.more = done.course.more - 1
        self._session.follow(done)
        self._session.mark(line)

    def _complete(self, last: Recording, error: BaseException | None, *, cut_off: bool = False) -> None:
        """No recording follows: put those together that hold a whole step, and say why others are missing.

        Args:
            cut_off: the error came in the middle of the last recording.
        """
        self.over = True
        asked, notes = self._options.repeat, Notes()
        whole = [one for one in self._made if _holds_a_step(one)]
        ran_out = cut_off and last.live.out_of_memory is not None and last.trace_path is not None
        counts = _holds_a_step(last) and not (cut_off and whole)
        kept = [*whole, last] if counts or ran_out or not whole else whole
        for one in (*self._made, last):
            if not any(one is other for other in kept):
                one.discard()
        later = self._failed_later(error, notes) if self._made and not ran_out else {}
        made = len(whole) + counts
        if made < asked:
            asked_text = f"repeat={asked}" if self._block else f"--repeat {asked}"
            notes.add("repeat", "warn", f"{asked_text}: {self._why_fewer(made, last, error)}")
        self._result, *others = (replace(one, live=_with(one.live, later, notes)) for one in kept)
        self._result = replace(self._result, others=tuple(others))

    def _why_fewer(self, made: int, last: Recording, error: BaseException | None) -> str:
        """What was made instead of all, and why, in a part of a sentence."""
        ran_once = last.trace_path is not None and last.live.mark == "cell" and self._session.course.index == 0
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
        fits = self._session.course.fits_again
        return f"{count} made: {'the loop ended' if fits else 'the loop is too short for more'}"

    def _failed_later(self, error: BaseException | None, notes: Notes) -> dict[str, Any]:
        """Fields of a recording that was complete before the cell ran out of memory; empty for other errors."""
        known: dict[str, Any] = {}
        Holdings(known, self._options, notes, over=True).look_at_error(error, self._cell_name)
        return known if "out_of_memory" in known else {}

    def _status(self, text: str) -> None:
        asked = self._options.repeat
        self._show(f"{text} (recording {asked - self._session.course.more} of {asked})")


def _holds_a_step(recording: Recording) -> bool:
    return recording.trace_path is not None and bool(recording.live.profiled_ns)


def _with(live: LiveRecord, later: dict[str, Any], notes: Notes) -> LiveRecord:
    """The live record with what came later, unless it has that already, and with these notes."""
    fields = {name: getattr(live, name) for name in live.__struct_fields__}
    if live.out_of_memory is None:
        fields |= later
    return LiveRecord(**fields | {"notes": (*live.notes, *notes.as_tuple())})


AnySession = Session | RepeatedSession
"""What one run is driven by."""
