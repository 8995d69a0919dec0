"""From a recording to a report that is shown, kept and written. A failure of ours is one line, not the user's error."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ipyprof import files, history
from ipyprof.errors import OptionError
from ipyprof.options import Options

if TYPE_CHECKING:
    from ipyprof.capture.recording import Recording
    from ipyprof.capture.repeated import AnySession
    from ipyprof.capture.steps import StepDetector
    from ipyprof.report.report import Report, Source
    from ipyprof.show.output import Surface
    from ipyprof.trace.live import LiveRecord
    from ipyprof.trace.model import Trace


Note = tuple[str, str, str]


class Delivery:
    """What follows one recording, once: read, analyse, show, remember, write.

    Args:
        options: of the run.
        surface: where it shows itself.
        cell: the cell's lines, the magic line first; empty for scripts.

    Attributes:
        report: the report, or ``None`` until it is ready and where it could not be made.
        notes: what the step detector has to say, added to the recording's own notes.
    """

    def __init__(self, options: Options, surface: Surface, *, cell: Sequence[str] = ()) -> None:
        self.report: Report | None = None
        self.notes: Sequence[Note] = ()
        self._failed = False
        self._kept_for_panel = False
        self._shown: Recording | None = None
        self._options = options
        self._surface = surface
        self._cell = tuple(cell)
        self._done = False
        self._process = os.getpid()
        # The cell may change the working directory.
        self._trace_file = None if options.trace is None else options.trace.absolute()
        self._page_file = None if options.html is None else options.html.absolute()
        self._log_folder = None if options.logdir is None else options.logdir.absolute()

    def deliver(self, recording: Recording) -> None:
        """Hand the report of a complete recording out, the first time only; the recording's file is gone afterwards.

        After an interrupt the recording is still there, for ``finish``.
        """
        __tracebackhide__ = True
        if self._done:
            return
        try:
            self._deliver(recording)
        except KeyboardInterrupt as interrupt:
            raise interrupt.with_traceback(None) from None
        except BaseException:
            self._give_up(recording)
            raise
        self._give_up(recording)

    def _give_up(self, recording: Recording) -> None:
        self._done = True
        for one in recording.every:
            if not self._kept_for_panel or self._shown is None or one.directory is not self._shown.directory:
                one.discard()

    def _keep_for_panel(self, recording: Recording, live: LiveRecord) -> None:
        """Keep the newest run's file, so that the panel can save it or hand it on; the run before lets its own go."""
        from ipyprof.trace.writer import MOST_BYTES, KeptTrace

        path = recording.trace_path
        if self.report is None or path is None or not self._surface.panel or path.stat().st_size > MOST_BYTES:
            return
        history.keep_trace(self.report, KeptTrace(path, live, recording.discard))
        self._kept_for_panel = True

    def finish(self, session: AnySession, error: BaseException | None) -> None:
        """End the run and hand its report out, unless that was done while a loop went on.

        An interrupt of the report does not hide ``error``, which the code raised. A loop that was interrupted while
        its report was made gets it here; an interrupt here keeps the trace.
        """
        __tracebackhide__ = True
        if os.getpid() != self._process:
            return  # a process that the cell forked, which came to the end of the cell too
        self._failed = error is not None
        if self._done and error is not None:
            self._tell_failure(error)
        try:
            self.deliver(session.finish(error))
        except KeyboardInterrupt as interrupt:
            self._interrupted(session.finish())  # what was interrupted may have left something on
            if error is None:
                raise interrupt.with_traceback(None) from None

    def _tell_failure(self, error: BaseException) -> None:
        """Some lines where memory ran out behind the report: the report that was shown cannot know it."""
        from ipyprof.capture.memory import live_of_failure

        try:
            live = live_of_failure(self._options, error)
            if live is not None:
                from ipyprof.show.memory import failure_lines  # here, for it takes matplotlib along

                for line in failure_lines(report_of(nothing_recorded(), self._source(live), live)):
                    self._surface.say(line)
        except Exception as failure:  # the user's error is the one to tell
            self._surface.say(f"ipyprof could not tell who holds the memory: {type(failure).__name__}: {failure}")

    def _interrupted(self, recording: Recording) -> None:
        """Keep the trace of a report that was not made; write the files of one that was."""
        if self._done:
            return
        whole, recording = recording, self._shown or recording
        try:
            live = self._live(recording)
            if self.report is None:
                self._surface.say(f"ipyprof: interrupted while reading the recording{self._kept(recording, live)}")
            self._surface.end(" · ".join(["interrupted", *self._write(recording, live)]))
        finally:
            self._give_up(whole)

    def _live(self, recording: Recording) -> LiveRecord:
        from msgspec.structs import replace

        return replace(recording.live, name=self._options.name, notes=(*recording.live.notes, *self.notes))

    def _deliver(self, recording: Recording) -> None:
        live = self._live(recording)
        if self._failed and recording.trace_path is None and not live.baseline_ns and live.out_of_memory is None:
            why = live.partial or "the cell ended before a step did"
            self._surface.end("nothing was recorded")
            self._surface.say(f"ipyprof: nothing was recorded: {why}.")
            return
        headline = ""
        try:
            if self.report is None:
                self._shown, self.report = self._judged(recording)
                recording, live = self._shown, self._live(self._shown)
                history.remember(self.report)
            headline = self.report.verdict.headline
            self._keep_for_panel(recording, live)
            self._surface.show(self.report)
        except Exception as failure:
            self._fail(failure, recording, live)
        written = self._write(recording, live)
        for check, status, text in recording.live.notes:
            if recording.trace_path is None and check == "profiler" and status != "ok":
                self._surface.say(f"ipyprof: {text}.")
        self._surface.end(" · ".join([headline or "no report", *written]))

    def _judged(self, recording: Recording) -> tuple[Recording, Report]:
        """The recording that is shown, and its report; of several, each is judged."""
        if not recording.others:
            return recording, self._made(recording, self._live(recording))
        from dataclasses import replace

        from msgspec import structs

        from ipyprof.report.repeats import put_together, with_repeats

        every = recording.every
        reports = [self._made(one, self._live(one)) for one in every]
        repeats = put_together(reports)
        shown = every[repeats.shown - 1]
        rest = tuple(replace(one, others=()) for one in every if one is not shown)
        live = structs.replace(shown.live, repeats=repeats)
        return replace(shown, live=live, others=rest), with_repeats(reports[repeats.shown - 1], repeats)

    def _made(self, recording: Recording, live: LiveRecord) -> Report:
        """The report of the recording."""
        return report_of(self._read(recording), self._source(live), live)

    def _read(self, recording: Recording) -> Trace:
        """The recorded trace; without one, a trace of no events."""
        from ipyprof.trace.reader import read_trace

        if recording.trace_path is None:
            return nothing_recorded()
        trace = read_trace(recording.trace_path)
        self._surface.status(f"reading {len(trace):,} events...")
        return trace

    def _source(self, live: LiveRecord) -> Source:
        from ipyprof.report.report import Source

        return Source(
            kind="live",
            name=self._options.name,
            cell=self._cell,
            options=self._options.as_text(),
            created=now(),
            partial=live.partial,
        )

    def _fail(self, failure: Exception, recording: Recording, live: LiveRecord) -> None:
        """One line; the trace is kept so that it can be looked at."""
        kept = self._kept(recording, live)
        text = " ".join(str(failure).split())
        self._surface.say(f"ipyprof could not read its recording: {type(failure).__name__}: {text}{kept}")

    def _kept(self, recording: Recording, live: LiveRecord) -> str:
        """Where the trace was kept, as the end of a sentence; empty where there is none or ``--trace`` writes it."""
        if recording.trace_path is not None and self._options.trace is None:
            from ipyprof.trace.writer import write_trace

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
        return ""

    def _write(self, recording: Recording, live: LiveRecord) -> list[str]:
        """What was written for the user, as short texts."""
        written = []
        try:
            if recording.trace_path is not None:
                written += self._write_traces(recording.trace_path, recording, live)
            elif asked := self._options.trace or self._options.logdir:
                self._surface.say(f"ipyprof: nothing was recorded, so {asked} was not written.")
            if self._page_file is not None and self.report is not None:
                write_page(self.report, self._page_file)
                written.append(f"page: {self._options.html}")
        except Exception as failure:
            self._surface.say(f"ipyprof could not write a file: {type(failure).__name__}: {failure}")
        return written

    def _write_traces(self, trace: Path, recording: Recording, live: LiveRecord) -> list[str]:
        """Write the trace where ``--trace`` and ``--logdir`` want it; what was written, as short texts.

        The folder gets those of all recordings, as TensorBoard expects of a schedule that repeats.
        """
        from ipyprof.trace.writer import tensorboard_name, write_trace

        written = []
        if self._trace_file is not None:
            from ipyprof.show.perfetto import ORIGIN  # here, for it takes asyncio along

            write_trace(trace, live, self._trace_file)
            written.append(f"trace: {self._options.trace} (opens in {ORIGIN})")
        if self._log_folder is not None:
            self._log_folder.mkdir(parents=True, exist_ok=True)
            write_trace(trace, live, self._log_folder / tensorboard_name())
            for other in recording.others:
                if other.trace_path is not None:
                    write_trace(other.trace_path, self._live(other), self._log_folder / tensorboard_name())
            written.append(f"tensorboard --logdir {self._options.logdir}")
        return written


def report_of(trace: Trace, source: Source, live: LiveRecord | None = None) -> Report:
    """The report of a trace: analysed, diagnosed and built.

    Args:
        trace: as read.
        source: where it came from.
        live: what the run knows beside the trace; without, what the file carries of it.
    """
    from ipyprof.analysis.profile import analyse
    from ipyprof.diagnosis.verdict import diagnose
    from ipyprof.report.build import build_report

    profile = analyse(trace, live)
    findings, verdict = diagnose(profile)
    return build_report(profile, findings, verdict, source=source)


def now() -> str:
    """This second in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def check_targets(options: Options) -> None:
    """Before anything runs: ``--trace`` and ``--html`` can be files, and two of them; ``--logdir`` can be a folder.

    Raises:
        OptionError: a folder is missing, what is there is no regular file or no folder, or both are one file.
    """
    snapshot = options.memory_snapshot
    if snapshot is not None:
        from ipyprof.capture.memory import check_snapshot

        check_snapshot(snapshot)
    for name, target in (("trace", options.trace), ("html", options.html), ("memory-snapshot", snapshot)):
        if target is not None:
            check_target(name, target)
    if options.logdir is not None and (found := files.folder_obstacle(options.logdir)) is not None:
        raise OptionError(f"--logdir {options.logdir}", *found)
    if options.trace is not None and options.html is not None and files.same_file(options.trace, options.html):
        raise OptionError(f"--trace {options.trace} --html {options.html}", "that is one file", "give two names")


_OWN_MARKS = {"html": (b"<!DOCTYPE html", b"<html"), "trace": (b'"traceEvents"', b"\x1f\x8b")}


def check_target(name: str, target: Path) -> None:
    """As ``check_targets``, for the file of one option."""
    found = files.obstacle(target)
    # A page or trace of an earlier run is replaced; a file of another kind was named by mistake.
    if found is None and name in _OWN_MARKS and files.holds_other(target, _OWN_MARKS[name]):
        found = f"that file is there and is no {name} file", "give another name, or remove it first"
    if found is not None:
        raise OptionError(f"--{name} {target}", *found)


def write_page(report: Report, target: Path) -> None:
    """The dashboard as an HTML page, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    from ipyprof.show.html import render_page

    write_text(render_page(report), target)


def write_json(report: Report, target: Path) -> None:
    """The report as JSON, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    write_text(json.dumps(report.to_dict(), allow_nan=False), target)


def write_text(text: str, target: Path) -> None:
    """``text`` as UTF-8, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    content = text.encode()
    with files.whole_file(target) as file:
        file.write(content)


_ALREADY = "ipyprof: a profile is already running; the code inside it ran without one of its own."
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_NOTHING = "99"


class Run:
    """A run that is on, and whether another one beside it was refused.

    Attributes:
        detector: gets the calls of ``step()``, or ``None`` until it is made.
    """

    def __init__(self) -> None:
        self.detector: StepDetector | None = None
        self.refused = False


_runs: list[Run] = []
_lock = threading.Lock()


@contextmanager
def claim(surface: Surface) -> Iterator[Run | None]:
    """The run that is on inside; ``None`` while there is another one, which is said once, however often it is tried.

    Of several threads exactly one gets a run. Inside it Kineto writes no log: Kineto reads its log level when the
    first profiler of the process starts, and from torch 2.13 on the default prints two lines per recording to standard
    error, which a notebook shows. A level that the user has set stays.
    """
    run, said = _begun()
    if run is None:
        if not said:
            surface.say(_ALREADY)
        yield None
        return
    quiet = _LOG_LEVEL not in os.environ
    if quiet:
        os.environ[_LOG_LEVEL] = _NOTHING
    try:
        yield run
    finally:
        if quiet and os.environ.get(_LOG_LEVEL) == _NOTHING:
            del os.environ[_LOG_LEVEL]
        _runs.remove(run)


def _begun() -> tuple[Run | None, bool]:
    """A new run, or ``None`` where there is one, and whether that one has refused another before."""
    with _lock:
        if _runs:
            said, _runs[-1].refused = _runs[-1].refused, True
            return None, said
        run = Run()
        _runs.append(run)
        return run, False


def step() -> None:
    """Tell the run that is on, if there is one, that a step ends here."""
    for run in tuple(_runs):
        if run.detector is not None:
            run.detector.user_step()


def nothing_recorded() -> Trace:
    """The trace of a run that recorded nothing."""
    from ipyprof.trace.model import no_events

    return no_events()
