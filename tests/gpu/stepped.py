"""Loop cells with a call at every step: what the hand timing runs instead of the magic."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch


def compile_stepped(source: str, filename: str) -> Any:
    """The loop cell's code, its first line being line 2, with calls to ``__mark``.

    It is called at the start of each iteration of the last outermost ``for``, and once behind that loop.

    Raises:
        ValueError: the cell has no outermost ``for``.
    """
    tree = ast.parse("\n" + source, filename)
    at = max((n for n, statement in enumerate(tree.body) if isinstance(statement, ast.For)), default=None)
    if at is None:
        raise ValueError(f"{filename} has no loop at its own level")
    loop = tree.body[at]
    assert isinstance(loop, ast.For)
    mark = ast.parse("__mark()").body[0]
    loop.body.insert(0, mark)
    tree.body.insert(at + 1, mark)
    return compile(ast.fix_missing_locations(tree), filename, "exec")


class Marks:
    """Step boundaries of one run of a loop, read after it. Without CUDA the wall clock stands for both clocks.

    Args:
        on_mark: called with the number of every mark, the closing one too.
    """

    def __init__(self, on_mark: Callable[[int], None] = lambda number: None) -> None:
        self._on_mark = on_mark
        self._cuda = torch.cuda.is_available()
        self._events: list[torch.cuda.Event] = []
        self.wall_s: list[float] = []

    def mark(self) -> None:
        """A step ends and the next begins."""
        self._on_mark(len(self.wall_s))
        self.wall_s.append(time.perf_counter())
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def steps_ms(self) -> list[float]:
        """Milliseconds from each mark to the next on the GPU's clock; synchronises."""
        if not self._cuda:
            return [1e3 * (after - before) for before, after in itertools.pairwise(self.wall_s)]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(self._events)]


def run_stepped(code: Any, namespace: dict[str, Any], marks: Marks) -> None:
    """Runs code of `compile_stepped` in ``namespace`` with these marks; their name is gone afterwards."""
    namespace["__mark"] = marks.mark
    try:
        exec(code, namespace)
    finally:
        namespace.pop("__mark", None)


def hand_step_ms(source: str, namespace: dict[str, Any], skip: int = 5) -> float:
    """The median unprofiled step in ms, timed by one CUDA event per step boundary, the first ``skip`` left out.

    A loop shorter than twice that leaves out its first third.
    """
    marks = Marks()
    run_stepped(compile_stepped(source, "<hand>"), namespace, marks)
    steps = marks.steps_ms()
    return median(steps[min(skip, len(steps) // 3) :])


def block_step_ms(source: str, namespace: dict[str, Any], skip: int = 3) -> float:
    """The mean unprofiled step in ms between two synchronisations, one at mark ``skip`` and one behind the loop."""
    cuda = torch.cuda.is_available()

    def at_mark(number: int) -> None:
        if number == skip and cuda:
            torch.cuda.synchronize()

    marks = Marks(at_mark)
    run_stepped(compile_stepped(source, "<hand>"), namespace, marks)
    if cuda:
        torch.cuda.synchronize()
    steps = len(marks.wall_s) - 1 - skip
    return 1e3 * (time.perf_counter() - marks.wall_s[skip]) / steps if steps > 0 else float("nan")


# A shared host has two speeds or more (5,000 small CPU operators take 15 or 29 ms on the machine of the results) and
# changes between them within seconds. The replay predicts the step of the host that was recorded; a fixed form that was
# timed while the host ran at another speed is another machine's.
SAME_SPEED = 1.25  # readings of `host_ms` within this factor are one speed; the two speeds seen are 1.9 apart


def same_speed(*readings_ms: float) -> bool:
    """Whether the host ran equally fast at all these readings of `host_ms`; true of none."""
    return not readings_ms or max(readings_ms) <= SAME_SPEED * min(readings_ms)


def host_ms() -> float:
    """Milliseconds that this host takes for 5,000 small CPU operators, the best of three.

    A fixed piece of work that no GPU takes part in: where it changes, the host changed its speed.
    """
    small = torch.zeros(16)
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(5_000):
            small.add(1)
        taken.append(1e3 * (time.perf_counter() - begun))
    return min(taken)


def fixed_step_ms(slow: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[float, bool]:
    """(the fixed form's step in ms, whether it was timed at the speed at which the slow form was recorded).

    The median over the hand timings at that speed; over all where there is none, or where the speed changed during the
    recording. NaN without timings.
    """
    hand, paces, pace = fixed.get("hand_ms") or [], fixed.get("paces_ms") or [], slow.get("pace_ms")
    if pace is not None and len(paces) == len(hand):
        same = [step for step, at in zip(hand, paces, strict=True) if same_speed(at, pace)]
        if same:
            return median(same), True
    return float(fixed.get("step_ms", float("nan"))), False
