"""The phases of a run, and how many steps each of them gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from ipyprof.capture.baseline import ENOUGH_NS
from ipyprof.options import Options


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
