"""What the user asked for: the way to find the step, the loop named by ``--loop`` or a comment, and how many runs.

Also what could have been asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from IPython.core.error import UsageError

from ipyprof.capture.marking import Loop, step_comments
from ipyprof.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``way`` is one of ``STEP_WAYS``, ``loop`` the named one, ``runs`` how often the cell is run."""

    way: str
    loop: Loop | None
    runs: int


def repeated_runs(options: Options) -> int:
    """How often ``--step cell`` runs the cell: wait + warmup + active, for each recording."""
    given = ((options.wait, 2), (options.warmup, 2), (options.active, 3))
    return options.repeat * sum(default if value is None else value for value, default in given)


def asked_for(options: Options, loops: Sequence[Loop], source: str) -> Asked:
    """The user's wish, checked against the cell's own loops.

    Raises:
        UsageError: ``--loop`` or a ``# gpuprofile: step`` comment names no loop, two comments name two, or
            ``--step loop`` is given for a cell without a loop.
    """
    loop = None
    if options.loop is not None:
        loop = _loop_at(options.loop, loops)
        if loop is None:
            raise UsageError(f"--loop {options.loop}: no loop of the cell begins on that line; {_list(loops)}.")
    elif options.step in ("auto", "loop"):
        loop = _commented(loops, source)
    if loop is None and options.step == "loop" and not loops:
        raise UsageError(f"--step loop: {_list(loops)}; leave the option out or give --step optimizer.")
    way = "loop" if loop is not None else options.step
    return Asked(way=way, loop=loop, runs=repeated_runs(options) if way == "cell" else 1)


def other_ways(loops: Sequence[Loop], *, optimizers: Sequence[str], batches: bool, runs: int | None) -> tuple[str, ...]:
    """What else could be the step, each with the option that chooses it.

    Args:
        loops: those that were not chosen.
        optimizers: class names of the optimizers that stepped.
        batches: batches were drawn from a DataLoader.
        runs: how often ``--step cell`` would run the cell, or ``None`` where that makes no sense.
    """
    ways = [f"the loop at line {loop.line}: --loop {loop.line}" for loop in loops]
    if optimizers:
        ways.append(f"the steps of {', '.join(optimizers)}: --step optimizer")
    if batches:
        ways.append("the batches: --step loader")
    if runs is not None:
        ways.append(f"the cell, run {runs} times as %%timeit does: --step cell")
    return tuple(ways)


def _commented(loops: Sequence[Loop], source: str) -> Loop | None:
    lines = step_comments(source)
    if len(lines) > 1:
        raise UsageError(
            f"# gpuprofile: step is on lines {', '.join(map(str, lines))}; one loop can be the step; keep one of them."
        )
    if not lines:
        return None
    loop = _loop_at(lines[0], loops)
    if loop is None:
        raise UsageError(f"# gpuprofile: step on line {lines[0]} is not on a loop of the cell; {_list(loops)}.")
    return loop


def _loop_at(line: int, loops: Sequence[Loop]) -> Loop | None:
    return next((loop for loop in loops if loop.line <= line <= loop.header_end_line), None)


def _list(loops: Sequence[Loop]) -> str:
    """Where the cell has loops, as the end of a sentence."""
    if not loops:
        return "the cell has no loop of its own (loops inside functions do not count)"
    lines = [str(loop.line) for loop in loops]
    if len(lines) == 1:
        return f"its only loop is on line {lines[0]}"
    return f"its loops are on lines {', '.join(lines[:-1])} and {lines[-1]}"
