"""``ipyprof.profile``: the run of a block, for scripts and for cells that await."""

from __future__ import annotations

import linecache
import os
import re
import sys
from contextlib import ExitStack
from dataclasses import fields
from types import FrameType, TracebackType
from typing import Any

from ipyprof.capture.steps import StepDetector
from ipyprof.errors import IpyprofError, OptionError
from ipyprof.options import STEP_WAYS, Options
from ipyprof.ranks.job import judge_of
from ipyprof.report.report import Report
from ipyprof.run import Run, check_targets
from ipyprof.show.output import surface_for

_SHORT = {"limit": "limit_s"}
_LONG = {name: short for short, name in _SHORT.items()}
_OPTIONS = tuple(_LONG.get(field.name, field.name) for field in fields(Options) if field.name not in ("output", "loop"))
_STEP_WAYS = tuple(way for way in STEP_WAYS if way not in ("loop", "cell"))


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
        self._run: Run | None = None
        self._detector: StepDetector | None = None
        self._on = ExitStack()

    @property
    def report(self) -> Report | None:
        """The report, or ``None``."""
        return None if self._run is None else self._run.report

    def step(self) -> None:
        """A step ends here. Outside of the block this does nothing."""
        if self._detector is not None:
            self._detector.user_step()

    def __enter__(self) -> profile:
        if self._run is not None:
            raise IpyprofError("a profile() that was used before", "each runs one block", "make a new one")
        filename, source = _caller(sys._getframe(1))
        judge = judge_of(self._options, self._surface)
        run = Run(self._options, self._surface, filename=filename, source=source, block=True, judge=judge)
        with ExitStack() as on:
            detector = on.enter_context(run)
            if detector is not None:
                self._run, self._detector = run, detector
                on.enter_context(detector)
                detector.run_begins(0)
            self._on = on.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        detector, self._detector = self._detector, None
        if detector is not None and error is None:
            detector.cell_ended()
        self._on.__exit__(kind, error, traceback)  # the detector, the report, and then the next run may come


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


def _caller(frame: FrameType) -> tuple[str, str]:
    """The caller's file, and its text where it is a notebook's cell (a script's report carries no source)."""
    filename = frame.f_code.co_filename
    return filename, "" if os.path.exists(filename) else "".join(linecache.getlines(filename))
