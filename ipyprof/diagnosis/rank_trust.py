"""What can make a comparison of ranks wrong, checked one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ipyprof.analysis.rank_roll import Roll
from ipyprof.analysis.ranks import Comparison
from ipyprof.formatting import plural, time_text

SHOWN = 6
CLOCK_SHARE = 0.01
"""Clocks that are off by more than this share of the step are a warning: a delay is found from 5 % on."""

Note = tuple[str, str, str]


def rank_checks(roll: Roll, comparison: Comparison) -> tuple[Note, ...]:
    """Checks that apply, each (check, status, text)."""
    return (*_who(roll), *_how(roll, comparison))


def number_list(ranks: Sequence[int]) -> str:
    """Such as ``1–6, 9``: runs of numbers joined, at most six parts shown."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    return ", ".join(parts[:SHOWN]) + (f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else "")


def _who(roll: Roll) -> Iterator[Note]:
    count = len(roll.ranks) + len(roll.cpu_only)
    if roll.missing:
        of = f" of {roll.world_size}" if roll.world_size else ""
        noun = "rank" if len(roll.missing) == 1 else "ranks"
        text = f"{count}{of} ranks are there, {noun} {number_list(roll.missing)} missing"
        yield "ranks", "warn", text
    elif count > 1:
        yield "ranks", "ok", f"{count} of {count} ranks are there"
    for rank, used, others in roll.duplicates:
        files = ", ".join(_file(path) for path in others)
        yield "ranks", "warn", f"more than one file of rank {rank}: {_file(used)} is used, left out: {files}"
    if roll.cpu_only:
        ranks = number_list([one.rank for one in roll.cpu_only])
        yield "ranks", "warn", f"no GPU work in the recording of rank {ranks}: not compared"
    if roll.by_order and count > 1:
        files = ", ".join(_file(path) for path in roll.by_order[:3])
        yield "ranks", "warn", f"no rank in the file or its name, numbered in order: {files}"
    if roll.disagree:
        yield "ranks", "warn", "the files are of worlds of several sizes"
    for one in roll.ranks:
        if one.stopped:
            yield "ranks", "warn", f"rank {one.rank} stopped with {one.stopped}"
        if one.error:
            yield "ranks", "warn", f"rank {one.rank}: {one.error}"


def _how(roll: Roll, comparison: Comparison) -> Iterator[Note]:
    clocks = comparison.clocks
    if clocks is not None and clocks.residual_ns is not None:
        off = time_text(clocks.residual_ns / 1e6)
        bad = bool(comparison.step_ns) and clocks.residual_ns > CLOCK_SHARE * (comparison.step_ns or 0.0)
        if clocks.common:
            text = f"the ranks share one clock; the ends of {plural(clocks.ends, 'collective')} lie within ±{off}"
            yield "rank clocks", "ok", text
        else:
            text = f"clocks aligned on the ends of {plural(clocks.ends, 'collective')}, ±{off}"
            yield "rank clocks", "warn" if bad else "ok", text
    if comparison.apart:
        yield "rank clocks", "warn", f"rank {number_list(comparison.apart)} shares no collective with the others"
    numbers = {one.steps for one in roll.ranks}
    if len(numbers) > 1 and comparison.steps:
        yield "rank steps", "warn", f"the ranks recorded different steps; {comparison.steps} are common and compared"
    if comparison.unmatched:
        yield "collectives", "warn", f"{plural(comparison.unmatched, 'collective')} without a partner on another rank"
    if comparison.skipped_start is not None:
        rank, ns = comparison.skipped_start
        text = f"rank {rank} entered the first collective {time_text(ns / 1e6)} late, as its profiler started: left out"
        yield "profiler start", "ok", text
    if roll.ranks and any(not kind.group for one in roll.ranks for kind in one.kinds):
        yield "collectives", "warn", "the recording does not name the process groups: matched by order alone"


def _file(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1] or "a process"
