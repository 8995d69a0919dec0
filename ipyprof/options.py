"""One frozen set of options, shared by the magic, the context manager and the command line."""

from __future__ import annotations

import keyword
import math
import os
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path

from ipyprof.errors import OptionError

STEP_WAYS = ("auto", "call", "loop", "optimizer", "loader", "cell")
MOST_RECORDINGS = 20
"""Each is kept as a file of its own until all are read, and --step cell runs the cell for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one run of ipyprof does.

    Attributes:
        wait: steps before the profiler starts; ``None`` means 2, fewer in a short loop.
        warmup: steps that the profiler runs and discards; ``None`` means 2, fewer in a short loop.
        active: steps that are recorded; ``None`` means 3, fewer in a short loop.
        repeat: recordings in one run, at most ``MOST_RECORDINGS``.
        step: where a step ends, one of ``STEP_WAYS``.
        loop: line of the cell whose loop is the step (line 1 is the magic line), or ``None``.
        limit_s: seconds after which recording stops by itself.
        at_end: show the report when the cell ends, not while a long loop goes on.
        shapes: record operator input shapes.
        memory: record allocations.
        stack: record Python stacks.
        items: work items in one step, for the throughput, or ``None``.
        unit: name of a work item.
        output: name in the user's namespace that gets the report, or ``None``.
        quiet: show nothing.
        static: leave out the widgets.
        trace: file that gets the trace, or ``None``.
        html: file that gets the dashboard, or ``None``.
        memory_snapshot: file that gets the CUDA allocator's own snapshot, or ``None``.
        logdir: folder that gets the trace under the name that TensorBoard looks for, or ``None``.
        name: title of this run in the history, or ``None``.
        ranks: ``auto``: this process is one rank of a job, and rank 0 reports on all at the end; or ``None``.

    Raises:
        OptionError: a value that is not allowed.
    """

    wait: int | None = None
    warmup: int | None = None
    active: int | None = None
    repeat: int = 1
    step: str = "auto"
    loop: int | None = None
    limit_s: float = 30.0
    at_end: bool = False
    shapes: bool = True
    memory: bool = True
    stack: bool = False
    items: float | None = None
    unit: str = "items"
    output: str | None = None
    quiet: bool = False
    static: bool = False
    trace: Path | None = None
    html: Path | None = None
    memory_snapshot: Path | None = None
    logdir: Path | None = None
    name: str | None = None
    ranks: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1), ("loop", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise OptionError(
                    f"{name}={value!r}",
                    f"{name} is a whole number of at least {least}",
                    f"give {least} or more",
                )
        if self.repeat > MOST_RECORDINGS:
            raise OptionError(
                f"repeat={self.repeat}",
                f"repeat is at most {MOST_RECORDINGS}, because each recording is kept in a file until all are read",
                "give 3 to 5 to see the spread",
            )
        if self.step not in STEP_WAYS:
            raise OptionError(f"step={self.step!r}", f"step is one of {', '.join(STEP_WAYS)}", "give one of them")
        if self.ranks is not None:
            if self.ranks != "auto":
                raise OptionError(f"ranks={self.ranks!r}", "ranks is auto or left out", 'give ranks="auto"')
            if self.repeat > 1:
                raise OptionError(
                    f"repeat={self.repeat} together with ranks='auto'",
                    "one recording of every rank is compared",
                    "leave out one of the two",
                )
            # All ranks meet when the block ends: none can while another one is still in its steps.
            object.__setattr__(self, "at_end", True)
        if not _is_amount(self.limit_s):
            raise _no_amount("limit", self.limit_s)
        if self.items is not None and not _is_amount(self.items):
            raise _no_amount("items", self.items)
        for name in ("at_end", "shapes", "memory", "stack", "quiet", "static"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise OptionError(f"{name}={value!r}", f"{name} is True or False", "give one of the two")
        if not isinstance(self.unit, str) or not self.unit.strip():
            raise OptionError(f"unit={self.unit!r}", "unit is the name of an item", "give a text such as samples")
        if self.name is not None and not isinstance(self.name, str):
            raise OptionError(f"name={self.name!r}", "name is a text", "give a text in quotes or leave it out")
        if self.loop is not None and self.step not in ("auto", "loop"):
            raise OptionError(
                f"loop={self.loop} together with step={self.step!r}",
                "a loop line goes with step auto or loop",
                "leave out one of the two",
            )
        if self.output is not None and not _is_name(self.output):
            raise OptionError(f"-o {self.output!r}", "-o takes a Python name", "give a name such as -o report")
        for name in ("trace", "html", "logdir", "memory_snapshot"):
            value = getattr(self, name)
            if value is None or isinstance(value, Path):
                continue
            text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
            if not isinstance(text, str):
                what = "folder" if name == "logdir" else "file"
                raise OptionError(f"{name}={value!r}", f"{name} is the path of a {what}", "give it as text")
            object.__setattr__(self, name, Path(text))
        if self.trace is not None and not self.trace.name.endswith((".json", ".json.gz")):
            raise OptionError(
                f"trace={str(self.trace)!r}",
                "a trace file ends in .json or .json.gz",
                "rename it, such as step.json.gz",
            )

    def as_text(self) -> str:
        """The options that differ from the defaults, such as ``active=5 stack=True``."""
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return " ".join(
            f"{name}={(str(value) if isinstance(value, Path) else value)!r}"
            for name, value, default in given
            if value != default
        )


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def _no_amount(name: str, value: object) -> OptionError:
    allowed = f"{name} is a finite number above 0"
    return OptionError(f"{name}={value!r}", allowed, "give such a number")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
