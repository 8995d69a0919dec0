"""One run, for the magic and the block alike: it claims the process, records, and hands its report out.

A failure of ours is one line, never the user's error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from msgspec import structs

from ipyprof import files, history
from ipyprof.capture.memory import MemoryHistory, check_snapshot, live_of_failure
from ipyprof.capture.recording import Recording
from ipyprof.capture.session import Session
from ipyprof.capture.steps import StepDetector
from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.report.build import now, report_of
from ipyprof.report.repeats import put_together, with_repeats
from ipyprof.report.report import Report, Source
from ipyprof.show.memory import failure_lines
from ipyprof.show.output import Silent, Surface, write_page
from ipyprof.show.perfetto import ORIGIN
from ipyprof.trace.live import LiveRecord, WholeLoop
from ipyprof.trace.model import Trace, no_events
from ipyprof.trace.reader import read_trace
from ipyprof.trace.writer import MOST_BYTES, KeptTrace, tensorboard_name, write_trace

_ALREADY = "ipyprof: a profile is already running; the code inside it ran without one of its own."
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_NOTHING = "99"


class Judge(Protocol):
    """How the recordings of a run become its report. Ranks of a job have one of their own (``ipyprof.ranks.job``).

    ``first``: this process shows the report and writes the page; the other ranks say only what went wrong.
    """

    @property
    def first(self) -> bool: ...

    def around(self, run: Run, recording: Recording) -> AbstractContextManager[None]:
        """Surrounds all that is done with the recording: reading, showing, writing."""

    def report(self, run: Run, recording: Recording) -> tuple[Recording, Report]:
        """The recording that is shown, and its report."""

    def trace_file(self, run: Run) -> Path | None:
        """Where the trace goes, once the report is made; ``None``: nowhere."""


class Alone:
    """The judge of a single process. Of several recordings (``--repeat``) each is judged."""

    first = True

    def around(self, run: Run, recording: Recording) -> AbstractContextManager[None]:
        return nullcontext()

    def report(self, run: Run, recording: Recording) -> tuple[Recording, Report]:
        every = recording.every
        reports = [report_of(run.read(one), run.source(live), live) for one in every for live in (run.live(one),)]
        if len(every) == 1:
            return recording, reports[0]
        repeats = put_together(reports)
        shown = every[repeats.shown - 1]
        rest = tuple(replace(one, others=()) for one in every if one is not shown)
        shown_with_rest = replace(shown, live=structs.replace(shown.live, repeats=repeats), others=rest)
        return shown_with_rest, with_repeats(reports[repeats.shown - 1], repeats)

    def trace_file(self, run: Run) -> Path | None:
        return run.trace_file


class Run:
    """One run. Used as a context manager it gives the step detector, or ``None`` while another run is on.

    Of several threads exactly one gets a run; a refusal is said once, however often it is tried. The report is handed
    out as soon as it can be made, while a loop goes on, and brought up to date with the whole loop when the block ends.

    Args:
        options: of the run.
        surface: where it shows itself.
        filename: what the code is compiled as.
        source: the code, the magic line first; empty for scripts.
        loops, text: the cell's loops and its code, as ``StepDetector`` takes them.
        block: a block of code is recorded, which nothing but its own steps can run again.
        judge: how the recordings become the report.
        keep: gets the report, or ``None``, when the run is over.

    Attributes:
        report: the report, or ``None`` until it is ready and where it could not be made.
        detector: of the steps, or ``None`` until it is made.
        error: what the code raised, or ``None``.
        trace_file: where ``--trace`` puts the trace, or ``None``.
    """

    def __init__(
        self,
        options: Options,
        surface: Surface,
        *,
        filename: str,
        source: str = "",
        loops: Sequence[Any] = (),
        text: str = "",
        block: bool = False,
        judge: Judge | None = None,
        keep: Callable[[Report | None], None] = lambda _report: None,
    ) -> None:
        self.report: Report | None = None
        self.detector: StepDetector | None = None
        self.error: BaseException | None = None
        self.options = options
        self.refused = False
        self._judge = judge or Alone()
        self.surface = surface if self._judge.first else Silent()
        self._filename, self._source, self._loops, self._text = filename, source, loops, text
        self._block = block
        self._keep = keep
        self._on = ExitStack()
        self._kept_for_panel = False
        self._shown: Recording | None = None
        self._early: Recording | None = None  # its report was shown while the loop went on
        self._whole: WholeLoop | None = None  # all steps of the cell, once it is over
        self._done = self._goes_on = False
        self._process = os.getpid()
        # The cell may change the working directory.
        self.trace_file = None if options.trace is None else options.trace.absolute()
        self._page_file = None if options.html is None or not self._judge.first else options.html.absolute()
        self._log_folder = None if options.logdir is None else options.logdir.absolute()

    def __enter__(self) -> StepDetector | None:
        other = _claim(self)
        if other is not None:
            if not other.refused:
                other.refused = True
                self.surface.say(_ALREADY)
            self._keep(None)
            return None
        with ExitStack() as on:
            on.callback(_runs.remove, self)
            on.callback(self.surface.close)
            on.enter_context(_kineto_is_quiet())
            session = Session(
                self.options,
                status=self.surface.status,
                on_ready=self.deliver,
                source=self._source,
                cell_name=self._filename,
                block=self._block,
            )
            self.detector = StepDetector(self.options, session, self._loops, self._text, filename=self._filename)
            on.push(lambda _kind, error, _traceback: self._finish(session, error))
            on.enter_context(MemoryHistory(self.options.memory_snapshot, self.surface.say))
            if not self._block:
                self.surface.status("looking for the step...")
            self._on = on.pop_all()
        return self.detector

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self._on.__exit__(kind, error, traceback)  # the report, and then the next run may come

    def deliver(self, recording: Recording, *, early: bool = True) -> None:
        """Hand the report of a complete recording out, the first time only; the recording's file is gone afterwards,
        unless the loop goes on (``early``).

        After an interrupt the recording is still there, for the end of the run.
        """
        __tracebackhide__ = True
        if self._done:
            return
        try:
            self._goes_on = early and len(recording.every) == 1 and self._judge.first
            with self._judge.around(self, recording):
                self._deliver(recording)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        except BaseException:
            self._give_up(recording)
            raise
        if self._goes_on and self.report is not None:
            self._done, self._early = True, recording
        else:
            self._give_up(recording)

    def read(self, recording: Recording) -> Trace:
        """The recorded trace; without one, a trace of no events."""
        if recording.trace_path is None:
            return no_events()
        trace = read_trace(recording.trace_path)
        self.surface.status(f"reading {len(trace):,} events...")
        return trace

    def live(self, recording: Recording) -> LiveRecord:
        """What was measured beside the trace, with the title and what the detector has to say."""
        live, notes = recording.live, self.detector.notes if self.detector is not None else ()
        loop = self._whole or live.loop
        return structs.replace(live, name=self.options.name, notes=(*live.notes, *notes), loop=loop)

    def source(self, live: LiveRecord) -> Source:
        """Where the report's numbers come from."""
        return Source(
            kind="live",
            name=self.options.name,
            cell=tuple(self._source.splitlines()),
            options=self.options.as_text(),
            created=now(),
            partial=live.partial,
        )

    def _finish(self, session: Session, error: BaseException | None) -> None:
        """End the run and hand its report out, unless that was done while a loop went on.

        An interrupt of the report does not hide ``error``, which the code raised. A loop that was interrupted while
        its report was made gets it here; an interrupt here keeps the trace.
        """
        __tracebackhide__ = True
        try:
            if os.getpid() != self._process:
                return  # a process that the cell forked, which came to the end of the cell too
            self.error = error
            if self._done and error is not None:
                self._tell_failure(error)
            try:
                recording = session.finish(error)
                self._whole = session.clock.result()
                if self._early is None:
                    self.deliver(recording, early=False)
                else:
                    self._bring_up_to_date(recording)
            except KeyboardInterrupt as interrupt:
                self._interrupted(session.finish())  # what was interrupted may have left something on
                if error is None:
                    raise interrupt.with_traceback(None) from None
        finally:
            self._keep(self.report)

    def _bring_up_to_date(self, recording: Recording) -> None:
        """The report once more, with what the whole loop showed, in the place of the one that was shown early."""
        before, live = self.report, self.live(recording)
        try:
            self.report = report_of(self.read(recording), self.source(live), live)
            if before is not None:
                history.replace(before, self.report)
            self._keep_for_panel(recording, live)
            self.surface.update(self.report)
        except Exception as failure:  # the early report stands
            self.report = before
            self.surface.say(f"ipyprof could not read its recording again: {type(failure).__name__}: {failure}")
        self._end(recording, live)
        self._early = None
        self._give_up(recording)

    def _end(self, recording: Recording, live: LiveRecord) -> None:
        """Write the files, and say so in the last line."""
        headline = "no report" if self.report is None else self.report.verdict.headline
        self.surface.end(" · ".join([headline, *self._write(recording, live)]))

    def _deliver(self, recording: Recording) -> None:
        live = self.live(recording)
        failed = self.error is not None
        if failed and recording.trace_path is None and not live.baseline_ns and live.out_of_memory is None:
            why = live.partial or "the cell ended before a step did"
            self.surface.end("nothing was recorded")
            self.surface.say(f"ipyprof: nothing was recorded: {why}.")
            return
        try:
            if self.report is None:
                self._shown, self.report = self._judge.report(self, recording)
                recording, live = self._shown, self.live(self._shown)
                history.remember(self.report)
            if not self._goes_on:
                self._keep_for_panel(recording, live)
            self.surface.show(self.report, goes_on=self._goes_on)
        except Exception as failure:
            text = " ".join(str(failure).split())
            kept = self._kept(recording, live)
            self.surface.say(f"ipyprof could not read its recording: {type(failure).__name__}: {text}{kept}")
        for check, status, text in recording.live.notes:
            if recording.trace_path is None and check == "profiler" and status != "ok":
                self.surface.say(f"ipyprof: {text}.")
        if self._goes_on and self.report is not None:
            self.surface.end(f"{self.report.verdict.headline} The loop goes on; its report is final when it ends.")
        else:
            self._end(recording, live)

    def _give_up(self, recording: Recording) -> None:
        self._done = True
        for one in recording.every:
            if not self._kept_for_panel or self._shown is None or one.directory is not self._shown.directory:
                one.discard()

    def _keep_for_panel(self, recording: Recording, live: LiveRecord) -> None:
        """Keep the newest run's file, so that the panel can save it or hand it on; the run before lets its own go."""
        path = recording.trace_path
        if self.report is None or path is None or not self.surface.panel or path.stat().st_size > MOST_BYTES:
            return
        history.keep_trace(self.report, KeptTrace(path, live, recording.discard))
        self._kept_for_panel = True

    def _tell_failure(self, error: BaseException) -> None:
        """Some lines where memory ran out behind the report: the report that was shown cannot know it."""
        try:
            live = live_of_failure(self.options, error)
            for line in () if live is None else failure_lines(report_of(no_events(), self.source(live), live)):
                self.surface.say(line)
        except Exception as failure:  # the user's error is the one to tell
            self.surface.say(f"ipyprof could not tell who holds the memory: {type(failure).__name__}: {failure}")

    def _interrupted(self, recording: Recording) -> None:
        """Keep the trace of a report that was not made; write the files of one that was."""
        if self._done and self._early is None:
            return
        whole, recording = recording, self._shown or recording
        try:
            live = self.live(recording)
            if self.report is None:
                self.surface.say(f"ipyprof: interrupted while reading the recording{self._kept(recording, live)}")
            self.surface.end(" · ".join(["interrupted", *self._write(recording, live)]))
        finally:
            self._give_up(whole)

    def _kept(self, recording: Recording, live: LiveRecord) -> str:
        """Where the trace was kept, as the end of a sentence; empty where there is none or ``--trace`` writes it."""
        if recording.trace_path is None or self.options.trace is not None:
            return ""
        try:
            folder = Path(tempfile.mkdtemp(prefix="ipyprof-kept-"))
        except OSError:  # the first failure is the one to tell
            return ""
        try:
            write_trace(recording.trace_path, live, folder / "trace.json.gz")
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            return ""
        return f"; the trace is kept in {folder / 'trace.json.gz'}"

    def _write(self, recording: Recording, live: LiveRecord) -> list[str]:
        """What was written for the user, as short texts."""
        written: list[str] = []
        try:
            if recording.trace_path is not None:
                self._write_traces(recording.trace_path, recording, live, written)
            elif asked := self.options.trace or self.options.logdir:
                self.surface.say(f"ipyprof: nothing was recorded, so {asked} was not written.")
            if self._page_file is not None and self.report is not None:
                write_page(self.report, self._page_file)
                written.append(f"page: {self.options.html}")
        except Exception as failure:
            self.surface.say(f"ipyprof could not write a file: {type(failure).__name__}: {failure}")
        return written

    def _write_traces(self, trace: Path, recording: Recording, live: LiveRecord, written: list[str]) -> None:
        """Write the trace where the judge and ``--logdir`` want it.

        The folder gets those of all recordings, as TensorBoard expects of a schedule that repeats.
        """
        target = self._judge.trace_file(self)
        if target is not None:
            write_trace(trace, live, target)
            shown = self.options.trace if target == self.trace_file else target
            written.append(f"trace: {shown} (opens in {ORIGIN})")
        if self._log_folder is not None:
            self._log_folder.mkdir(parents=True, exist_ok=True)
            write_trace(trace, live, self._log_folder / tensorboard_name())
            for other in recording.others:
                if other.trace_path is not None:
                    write_trace(other.trace_path, self.live(other), self._log_folder / tensorboard_name())
            written.append(f"tensorboard --logdir {self.options.logdir}")


_runs: list[Run] = []
_lock = threading.Lock()


def step() -> None:
    """Say that a step ends here, in a profiled cell or block. Does nothing while nothing is profiled."""
    for run in tuple(_runs):
        if run.detector is not None:
            run.detector.user_step()


def check_targets(options: Options) -> None:
    """Before anything runs: what ``options`` asks to be written can be.

    Raises:
        OptionError: a folder is missing, what is there is no regular file or no folder, or both are one file.
    """
    if options.memory_snapshot is not None:
        check_snapshot(options.memory_snapshot)
    targets = (("trace", options.trace), ("html", options.html), ("memory-snapshot", options.memory_snapshot))
    for name, target in targets:
        if target is not None:
            files.check_target(name, target)
    if options.logdir is not None and (found := files.folder_obstacle(options.logdir)) is not None:
        raise OptionError(f"--logdir {options.logdir}", *found)
    if options.trace is not None and options.html is not None and files.same_file(options.trace, options.html):
        raise OptionError(f"--trace {options.trace} --html {options.html}", "that is one file", "give two names")


def _claim(run: Run) -> Run | None:
    """``None`` where ``run`` is the one that is on now, else the other one that is."""
    with _lock:
        if _runs:
            return _runs[-1]
        _runs.append(run)
        return None


@contextmanager
def _kineto_is_quiet() -> Iterator[None]:
    """Inside it Kineto writes no log. A level that the user has set stays.

    Kineto reads its log level when the first profiler of the process starts, and from torch 2.13 on the default prints
    two lines per recording to standard error, which a notebook shows.
    """
    quiet = _LOG_LEVEL not in os.environ
    if quiet:
        os.environ[_LOG_LEVEL] = _NOTHING
    try:
        yield
    finally:
        if quiet and os.environ.get(_LOG_LEVEL) == _NOTHING:
            del os.environ[_LOG_LEVEL]
