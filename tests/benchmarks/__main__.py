"""Speed and memory against goals, as ratios within one run: ``python -m tests.benchmarks [TRACE] [--large]``.

The trace (a real one, from ``IPYPROF_TRACES`` or the folder beside the repository) is tiled to 50,000 and 500,000
events, with ``--large`` to 5 million. Each file is decoded, read and analysed in turn, several times; the least CPU
time of each counts, because everything else on the machine only adds. Peers may work in several processes, so they
are compared by wall-clock time. The exit code is 1 when a goal is missed.

Peers are compared when ``pip install '.[benchmarks]'`` has put them beside ipyprof.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.benchmarks import decoding, peers
from tests.benchmarks.entries import entries_seconds
from tests.benchmarks.tile import tiled
from tests.shared_traces import FOLDER

DEFAULT = "nccl-h200/ddp_balanced_rank0.json.gz"
SIZES = (50_000, 500_000)
LARGE = 5_000_000
PEERS_UP_TO = 600_000  # events; they need minutes and many GB beyond
IMPORT_SECONDS = 0.100
MEMORY_ENTRIES = 100_000
MEMORY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; ``limit`` is the goal, met where ``value`` is at most that, or at least it."""

    what: str
    value: float
    limit: float | None = None
    at_least: bool = False
    unit: str = "×"
    note: str = ""

    @property
    def met(self) -> bool:
        """The goal is met, or there is none."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        goal = "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:g} {self.unit}"
        verdict = "" if self.limit is None else "met" if self.met else "MISSED"
        return f"{self.what:<58}{self.value:>9.2f} {self.unit:<3}{goal:>10}  {verdict:<7}{self.note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Seconds of one job: on the clock, and of this process's CPU time."""

    wall: float
    cpu: float


def measured(path: Path, rounds: int) -> dict[str, Taken]:
    """Least seconds of ``decode``, ``read`` and ``full``, taken in turn."""
    from ipyprof.report.build import report_of
    from ipyprof.report.report import Source
    from ipyprof.trace.reader import parse_trace

    data = path.read_bytes()
    source = Source(kind="file", path=str(path))
    jobs: dict[str, Callable[[], object]] = {
        "decode": lambda: decoding.decode(data),
        "read": lambda: parse_trace(data),
        "full": lambda: report_of(parse_trace(data), source),
    }
    found: dict[str, list[Taken]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            found[name].append(taken_by(job))
    return {
        name: Taken(wall=min(one.wall for one in some), cpu=min(one.cpu for one in some))
        for name, some in found.items()
    }


def taken_by(job: Callable[[], object]) -> Taken:
    """What one call takes, the collector run before it and off during it, as while ipyprof reads."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        kept = job()
        taken = Taken(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)
    finally:
        gc.enable()
    del kept
    return taken


def peak_bytes(path: Path) -> tuple[int, int]:
    """(peak resident memory of a process that makes the report of this file, of that before it opened the file)."""
    command = [sys.executable, "-m", "tests.benchmarks", "--peak-of", str(path)]
    peak, before = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(peak), int(before)


def _print_peak(path: Path) -> None:
    from ipyprof import saved
    from ipyprof.report.build import report_of
    from ipyprof.report.report import Source
    from ipyprof.trace.model import no_events

    def peak() -> int:
        # The system's own figure begins with what the parent had before it started this process.
        status = Path("/proc/self/status")
        if status.exists():
            return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    report_of(no_events(), Source(kind="file", path=""))  # everything that is needed is imported
    before = peak()
    saved.load(path)
    print(peak(), before)


def import_seconds(rounds: int = 7) -> float:
    """What ``import ipyprof`` adds to the start of Python, in CPU time."""

    def least(code: str) -> float:
        ask = f"{code}\nimport time\nprint(time.process_time())"
        command = [sys.executable, "-c", ask]
        return min(
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(rounds)
        )

    return least("import ipyprof") - least("pass")


def rows_of(trace: Path, sizes: tuple[int, ...], folder: Path, rounds: int) -> list[Row]:
    """The table; each part is printed as it comes."""
    rows: list[Row] = []
    full: dict[int, float] = {}

    def add(row: Row) -> None:
        rows.append(row)
        print(row, flush=True)

    for size in sizes:
        path = folder / f"tiled-{size}.json"
        events = tiled(trace, size, path)
        json_bytes = path.stat().st_size
        least = measured(path, rounds)  # as many at every size: the least of several against a single one is no growth
        decode, read, whole = least["decode"].cpu, least["read"].cpu, least["full"].cpu
        full[events] = whole
        about = f"{events:,} events"
        note = f"{json_bytes / 1e6:,.0f} MB, decoding {decode:.2f} s"
        add(Row(what=f"{about}: columns / decoding", value=read / decode, limit=2.0, note=note))
        add(Row(what=f"{about}: full report / decoding", value=whole / decode, limit=8.0, note=f"{whole:.2f} s"))
        peak, before = peak_bytes(path)
        note = f"{peak / 1e6:,.0f} MB, {before / 1e6:,.0f} MB of it before the file"
        add(Row(what=f"{about}: memory for it / JSON", value=(peak - before) / json_bytes, limit=5.0, note=note))
        if size <= PEERS_UP_TO:
            for name, (run, goal) in peers.installed().items():
                try:
                    taken = taken_by(partial(run, path)).wall
                except Exception as failure:
                    print(f"{about}: {name} failed: {type(failure).__name__}: {str(failure)[:80]}")
                    continue
                ratio = taken / least["full"].wall
                add(Row(what=f"{about}: {name}", value=ratio, limit=goal, at_least=True, note=f"{taken:.2f} s"))
        path.unlink()
    ordered = sorted(full)
    for small, large in pairwise(ordered):
        growth = (full[large] / full[small]) / (large / small)
        add(Row(what=f"time per event, {large:,} against {small:,} events", value=growth, limit=1.1))
    return rows


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, default=FOLDER / DEFAULT, help="the trace to tile")
    parser.add_argument("--large", action="store_true", help="5 million events as well")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peak_of is not None:
        _print_peak(asked.peak_of)
        return 0
    if not asked.trace.exists():
        print(f"{asked.trace} is not there: give a trace of your own")
        return 2
    print(f"tiled from {asked.trace.name}; least of {asked.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(asked.trace, SIZES + ((LARGE,) if asked.large else ()), Path(folder), asked.rounds)
    rows.append(Row(what="import ipyprof", value=import_seconds() * 1e3, limit=IMPORT_SECONDS * 1e3, unit="ms"))
    print(rows[-1])
    entries, seconds = entries_seconds(MEMORY_ENTRIES)
    what = f"{entries:,} allocations and frees: read, with their holders"
    rows.append(Row(what=what, value=seconds, limit=MEMORY_SECONDS, unit="s"))
    print(rows[-1])
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: nothing live was compared")
    else:
        from tests.benchmarks.live import live_seconds

        events, ours, theirs = live_seconds()
        assert theirs is not None
        note = f"{ours:.2f} s against {theirs:.2f} s"
        what = f"live, {events:,} events: key_averages().table() / dashboard"
        rows.append(Row(what=what, value=theirs / ours, limit=6.0, at_least=True, note=note))
        print(rows[-1])
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
