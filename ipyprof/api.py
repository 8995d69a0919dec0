"""The public functions: ``profile``, ``step``, ``load``, ``compare``, ``last_report``. Importing loads no torch."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from os import PathLike
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ipyprof import history
from ipyprof import run as running
from ipyprof.errors import IpyprofError, OptionError
from ipyprof.options import STEP_WAYS, Options
from ipyprof.run import Delivery, check_targets, now, report_of
from ipyprof.show.output import surface_for

if TYPE_CHECKING:
    from ipyprof.capture.steps import StepDetector
    from ipyprof.report.comparison import Comparison
    from ipyprof.report.report import Report
    from ipyprof.trace.live import LiveRecord

__all__ = ["compare", "last_report", "load", "profile", "step"]

_SHORT = {"limit": "limit_s"}
_LONG = {name: short for short, name in _SHORT.items()}
_OPTIONS = tuple(_LONG.get(field.name, field.name) for field in fields(Options) if field.name not in ("output", "loop"))
_STEP_WAYS = tuple(way for way in STEP_WAYS if way not in ("loop", "cell"))
_KEYS = {"schema", "verdict", "breakdown"}
"""What tells a report from other JSON."""


class profile:
    """Profile a block: for scripts and for cells that await.

    The block runs as it would without. Call ``run.step()`` where a step ends; without that, optimizer steps or batches
    are taken as the steps, and where there are none the block is one step. The report is shown in a notebook and
    printed in a script, as soon as it is ready or when the block ends.

    Args:
        options: as those of ``%%gpuprofile``: ``wait, warmup, active, repeat, step, limit, at_end, shapes, memory,
            stack, items, unit, quiet, static, trace, html, logdir, memory_snapshot, name, ranks``;
            see ``ipyprof.options.Options``.

    Attributes:
        report: the report, ``None`` until it is ready and where the recording could not be read.

    Raises:
        OptionError: an option that is not known, or a value that is not allowed.

    Example:
        >>> with ipyprof.profile(items=64, unit="samples") as run:  # doctest: +SKIP
        ...     for x, y in loader:
        ...         train_step(x, y)
        ...         run.step()
        >>> run.report.verdict.headline  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        given = {_SHORT.get(name, name): value for name, value in options.items()}
        unknown = sorted(set(given) - {*(_SHORT.get(name, name) for name in _OPTIONS), "loop"})
        if unknown:
            raise OptionError(
                f"profile({unknown[0]}=...)",
                f"the options are {', '.join(_OPTIONS)}",
                "use one of them or leave it out",
            )
        shell = _shell()
        given.setdefault("static", _lasting_static(shell))
        for name, allowed in (("loop", (None,)), ("step", _STEP_WAYS)):
            if name in given and given[name] not in allowed:
                raise OptionError(
                    f"profile({name}={given[name]!r})",
                    f"the loops of a block are not known: the step is {', '.join(_STEP_WAYS[:-1])} or {_STEP_WAYS[-1]}",
                    "call run.step() at the end of each step",
                )
        self._options = Options(**given)
        try:
            check_targets(self._options)
        except OptionError as error:
            raise OptionError(_as_keywords(error.given), error.allowed, error.todo) from None
        self._surface = surface_for(shell, quiet=self._options.quiet, static=self._options.static)
        self._delivery: Delivery | None = None
        self._detector: StepDetector | None = None
        self._on = ExitStack()

    @property
    def report(self) -> Report | None:
        """The report, or ``None``."""
        return None if self._delivery is None else self._delivery.report

    def step(self) -> None:
        """A step ends here. Outside of the block this does nothing."""
        if self._detector is not None:
            self._detector.user_step()

    def __enter__(self) -> profile:
        if self._delivery is not None:
            raise IpyprofError("a profile() that was used before", "each runs one block", "make a new one")
        with ExitStack() as on:
            run = on.enter_context(running.claim(self._surface))
            if run is not None:
                self._begin(run, on, *_caller(sys._getframe(1)))
            self._on = on.pop_all()
        return self

    def _begin(self, run: running.Run, on: ExitStack, filename: str, cell: tuple[str, ...]) -> None:
        from ipyprof.capture.memory import MemoryHistory
        from ipyprof.capture.repeated import session_of
        from ipyprof.capture.steps import StepDetector

        make: type[Delivery] = Delivery
        if self._options.ranks is not None:
            from ipyprof.ranks.job import RankDelivery, surface_of_rank

            make, self._surface = RankDelivery, surface_of_rank(self._surface)
        delivery = make(self._options, self._surface, cell=cell)
        session = session_of(
            self._options,
            status=self._surface.status,
            on_ready=delivery.deliver,
            source="\n".join(cell),
            cell_name=filename,
            block=True,
        )
        detector = StepDetector(self._options, session, (), "", filename=filename)
        delivery.notes = detector.notes
        run.detector = detector
        self._delivery, self._detector = delivery, detector
        on.push(lambda _kind, error, _traceback: delivery.finish(session, error))
        on.enter_context(MemoryHistory(self._options.memory_snapshot, self._surface.say))
        on.enter_context(detector)
        detector.run_begins(0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        detector, self._detector = self._detector, None
        if detector is not None and error is None:
            detector.cell_ended()
        self._on.__exit__(kind, error, traceback)  # the detector, the report, and then the next run may come


def step() -> None:
    """Say that a step ends here, in a profiled cell or block. Does nothing while nothing is profiled."""
    running.step()


def last_report() -> Report | None:
    """The newest of the last ten reports of this process, or ``None`` while there is none."""
    return history.last()


def load(path: str | PathLike[str] | Sequence[str | PathLike[str]]) -> Report:
    """The report of a saved trace, or a saved report; the file's content tells which, plain or gz.

    Several traces, one of each rank of a job, make one report that says who is late and why. The rank is that of
    ``distributedInfo``, else of the file's name (``rank3``), else the place in the list, and the report says so.

    A trace that ``--trace`` wrote carries the cell and what was measured beside the trace, so its numbers, lines and
    verdict are those of the live report. It carries the title (``--name``), but of the options only ``items`` and
    ``unit``.

    Args:
        path: of one file; or the traces of several ranks: a list, a folder, or a pattern such as ``log/*.json.gz``.

    Raises:
        IpyprofError: the file is neither, with what was found. ``TraceError``, one of its kinds, for traces.

    Example:
        >>> ipyprof.load("step.json.gz").verdict.cause  # doctest: +SKIP
        'host_sync'
    """
    if isinstance(path, (list, tuple)):
        return _load_several(path)
    if not isinstance(path, (str, PathLike)):
        raise IpyprofError(
            f"load({type(path).__name__})", "load() takes a path or a list of paths", "give one of the two"
        )
    reports = load_all(path)
    if len(reports) != 1:
        raise IpyprofError(
            f"{os.fspath(path)} holds {len(reports)} reports",
            "load() gives one report",
            "show them with python -m ipyprof report",
        )
    return reports[0]


def compare(before: Report | str | PathLike[str], after: Report | str | PathLike[str]) -> Comparison:
    """What changed between two runs: step time and whether its change is real, parts, operators, throughput, memory.

    Nothing is refused: what makes the two hard to compare (another device, another torch, other work per step, no
    unprofiled steps) is in ``warnings``.

    Args:
        before, after: reports, or paths of saved traces or reports.

    Raises:
        IpyprofError: a file that is neither a trace nor a report.

    Example:
        >>> ipyprof.compare("before.json.gz", "after.json.gz").headline  # doctest: +SKIP
        'Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms.'
    """
    from ipyprof.report.comparison import compare_reports
    from ipyprof.report.report import Report

    one, other = (given if isinstance(given, Report) else load(given) for given in (before, after))
    return compare_reports(one, other)


def _load_several(paths: Sequence[str | PathLike[str]]) -> Report:
    """The report of a list of files, folders and patterns."""
    from ipyprof.ranks.files import trace_files

    if not paths or not all(isinstance(path, (str, PathLike)) for path in paths):
        raise IpyprofError(
            "load([])" if not paths else f"load() with a list of {type(paths[0]).__name__}",
            "a list holds the paths of the ranks' traces",
            "give one path for each rank",
        )
    found = [file for path in paths for file in trace_files(path)]
    if len(found) == 1:
        return load(found[0])
    from ipyprof.ranks.files import load_ranks, short_name

    return load_ranks(found, short_name(found))


def load_all(path: str | PathLike[str]) -> tuple[Report, ...]:
    """As ``load``, and all reports of a list of them."""
    from ipyprof.ranks.files import trace_files

    found = trace_files(path)
    if len(found) > 1:
        from ipyprof.ranks.files import load_ranks

        return (load_ranks(found, os.fspath(path)),)
    where = found[0]
    from ipyprof.report.report import Source
    from ipyprof.trace import reader as source
    from ipyprof.trace.reader import parse_trace

    data = source.read_bytes(where)
    saved = _saved_reports(data)
    if saved is not None:
        return saved
    trace = parse_trace(data, str(where))
    live = trace.live
    report = report_of(
        trace,
        Source(
            kind="file" if live is None else "live",
            path=str(where),
            name=None if live is None else live.name,
            cell=() if live is None else tuple(live.source.splitlines()),
            options="" if live is None else _kept_options(live),
            created=now(),
            partial="" if live is None else live.partial,
        ),
    )
    return (report,)


def _kept_options(live: LiveRecord) -> str:
    """The options that a live record carries, as ``Options.as_text`` writes them."""
    kept = (("items", live.items, None), ("unit", live.unit, "items"))
    return " ".join(f"{name}={value!r}" for name, value, default in kept if value != default)


def _saved_reports(data: bytes) -> tuple[Report, ...] | None:
    """The reports in the JSON text of one or of a list, or ``None`` where it is something else.

    Raises:
        IpyprofError: a report of another schema, or a damaged one.
    """
    if b'"traceEvents"' in data or b'"verdict"' not in data or data.lstrip()[:1] not in (b"{", b"["):
        return None
    import msgspec

    from ipyprof.report.report import Report

    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    several = plain if isinstance(plain, list) else [plain]
    if not several or not all(isinstance(one, dict) and one.keys() >= _KEYS for one in several):
        return None
    return tuple(Report.from_dict(one) for one in several)


def _as_keywords(given: str) -> str:
    """``--memory-snapshot FILE`` as ``memory_snapshot=FILE``."""
    return re.sub(r"(^|\s)--([a-z-]+) ", lambda found: f"{found[1]}{found[2].replace('-', '_')}=", given)


def _shell() -> Any | None:
    """The IPython shell of this process, or ``None``; IPython is not imported for the question."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return None if get_ipython is None else get_ipython()


def _lasting_static(shell: Any | None) -> bool:
    """What ``%config GpuProfile.static`` says."""
    for one in getattr(shell, "configurables", ()):
        if type(one).__name__ == "GpuProfile":
            return bool(one.static)
    return False


def _caller(frame: FrameType) -> tuple[str, tuple[str, ...]]:
    """The caller's file, and its lines where it is a notebook's cell (a script's report carries no source)."""
    filename = frame.f_code.co_filename
    if os.path.exists(filename):
        return filename, ()
    return filename, tuple(line.rstrip("\n") for line in linecache.getlines(filename))
