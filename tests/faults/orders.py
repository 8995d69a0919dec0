"""The user's own profiler, started and stopped at every pair of moments of a run of ours.

    python -m tests.faults.orders [--few]

In a process of its own, because some of these orders have killed one. Theirs has to hold every operator that ran while
it was on, and none that did not; ours says what became of it; and the next run is right.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from tempfile import TemporaryDirectory
from typing import Any

import torch
from _pytest.monkeypatch import MonkeyPatch
from IPython.core.interactiveshell import InteractiveShell
from torch.profiler import ProfilerActivity, profile, schedule
from traitlets.config import Config

from ipyprof.capture.session import ALREADY_ON, TAKEN
from tests.faults.state import Before

# Before the cell; the iteration that decides; wait; two of the warm-up; the recorded steps; two of the baseline; behind
# all; after the cell.
MOMENTS = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 9, 30, 40)
FEW = (-1, 3, 5, 9, 40)
LENGTH = 40
CELL = "%%gpuprofile -q -o report\nfor i in range(40):\n    at(i)\n    y = torch.exp(x)"
NEXT = "%%gpuprofile -q -o report\nfor i in range(12):\n    y = torch.exp(x)"


class Theirs:
    """A profiler that is on from iteration ``start`` to ``stop``; with ``warmup`` it discards that many of its own.

    Attributes:
        expected: operators that it has to hold.
    """

    def __init__(self, start: int, stop: int, warmup: int) -> None:
        self._start, self._stop, self._warmup = start, stop, warmup
        plan = schedule(wait=0, warmup=warmup, active=1_000) if warmup else None
        self._profiler = profile(activities=[ProfilerActivity.CPU], schedule=plan)
        inside = range(max(start, 0), min(stop, LENGTH))
        self.expected = max(len(inside) - warmup, 0)

    def at(self, iteration: int) -> None:
        if iteration == self._stop:
            self._profiler.stop()
        if iteration == self._start:
            self._profiler.start()
        elif self._start < iteration < self._stop and self._warmup:
            self._profiler.step()

    def held(self) -> int:
        """The operators that it holds."""
        return sum(row.count for row in self._profiler.key_averages() if row.key == "aten::exp")


def orders(*, few: bool) -> Iterator[tuple[int, int, int]]:
    """(start, stop, warm-up) of every run; ``few``: one moment of every phase, and no warm-up."""
    for start, stop in combinations(FEW if few else MOMENTS, 2):
        yield start, stop, 0
        if start >= 0 and not few:
            yield start, stop, 2


def run_all(shell: Any, *, few: bool) -> tuple[Counter[str], list[str]]:
    """(how often ours ended in which way, what was wrong)."""
    ways: Counter[str] = Counter()
    wrong: list[str] = []
    before = Before()
    for start, stop, warmup in orders(few=few):
        name = f"from {start} to {stop}, warm-up {warmup}"
        print(name, flush=True)
        theirs = Theirs(start, stop, warmup)
        shell.user_ns["at"] = theirs.at
        theirs.at(-1)
        shell.run_cell(CELL).raise_error()
        theirs.at(LENGTH)
        report = shell.user_ns["report"]
        way = report.source.partial or f"{report.steps.count} steps"
        ways[way] += 1
        if way not in (TAKEN, ALREADY_ON, "3 steps"):
            wrong.append(f"{name}: ours ended with {way}")
        if theirs.expected and theirs.held() != theirs.expected:
            wrong.append(f"{name}: theirs holds {theirs.held()} of {theirs.expected}")
        wrong += [f"{name}: {text}" for text in before.left()]
        shell.run_cell(NEXT).raise_error()
        report = shell.user_ns["report"]
        if (report.steps.count, report.source.partial) != (3, ""):
            wrong.append(f"{name}: the next run has {report.steps.count} steps, {report.source.partial}")
    return ways, wrong


def main() -> int:
    """Exit status: 1 where something was wrong."""
    with TemporaryDirectory() as own, MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", own)  # others on this machine have files of ours too
        ways, wrong = run_all(_shell(), few="--few" in sys.argv)
    print(f"{sum(ways.values())} orders: {dict(ways)}")
    print("\n".join(wrong))
    return 1 if wrong else 0


def _shell() -> Any:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_cell("%load_ext ipyprof").raise_error()
    shell.user_ns |= {"torch": torch, "x": torch.ones(64, 64)}
    shell.run_cell(NEXT).raise_error()
    return shell


if __name__ == "__main__":
    sys.exit(main())
