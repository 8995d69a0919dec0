"""Fuzzes the path from a file to its page, for as long as asked: ``python -m tests.fuzz --seconds 3600``.

With atheris (``pip install atheris``, where it has a wheel) coverage leads the mutations; without it, or with
``--random``, a plain random generator drives the same mutator. Each fault is kept as a file in ``--out`` and printed;
the exit code is 1 when there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import Choose, mutated

TOLD_SECONDS = 120


class Campaign:
    """Counts outcomes until its time is over, and keeps one file per place in the code that failed.

    Args:
        seconds: how long.
        folder: where the files of faults go.
    """

    def __init__(self, seconds: float, folder: Path) -> None:
        from tests.fuzz.seeds import seeds

        self.seeds = seeds()
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, Path] = {}
        self.folder = folder
        self.begin = time.monotonic()
        self.end = self.begin + seconds
        self._told = self.begin
        self._scratch = folder / "input.json"

    def run(self, choose: Choose) -> None:
        """Damage one of the seeds and look at the outcome."""
        from tests.fuzz.outcome import outcome

        data = mutated(self.seeds[choose(len(self.seeds))], choose)
        try:
            self.counts[outcome(data, self._scratch)] += 1
        except Exception as fault:
            self.counts["fault"] += 1
            self._keep(data, fault)
        if time.monotonic() > self._told + TOLD_SECONDS:
            self._told = time.monotonic()
            print(self.summary(), flush=True)

    def over(self) -> bool:
        """The time is used up."""
        return time.monotonic() >= self.end

    def summary(self) -> str:
        """One line: runs, outcomes, faults by place, CPU time."""
        runs = sum(self.counts.values())
        cpu = time.process_time()
        return f"{runs:,} runs, {dict(self.counts)}, {len(self.faults)} places with faults, {cpu:,.0f} s of CPU time"

    def _keep(self, data: bytes, fault: Exception) -> None:
        last = traceback.extract_tb(fault.__traceback__)[-1]
        ours = [one for one in traceback.extract_tb(fault.__traceback__) if "ipyprof" in one.filename]
        at = ours[-1] if ours else last
        place = f"{type(fault).__name__} at {Path(at.filename).name}:{at.lineno}"
        if place in self.faults:
            return
        path = self.folder / f"fault-{len(self.faults):03d}.json"
        path.write_bytes(data)
        self.faults[place] = path
        print(f"{path}: {place}: {str(fault)[:300]}", flush=True)


def with_random(campaign: Campaign, seed: int) -> None:
    """A random generator until the time is over."""
    generator = random.Random(seed)
    while not campaign.over():
        campaign.run(generator.randrange)


def with_atheris(campaign: Campaign, atheris: Any, corpus: Path) -> None:
    """atheris until the time is over; it ends the process."""

    def one(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        campaign.run(lambda count: provider.ConsumeIntInRange(0, count - 1))
        if campaign.over():
            print(campaign.summary(), flush=True)
            sys.stdout.flush()
            # libFuzzer has no other way to end from inside without calling it a crash.
            import os

            os._exit(1 if campaign.faults else 0)

    corpus.mkdir(exist_ok=True)
    generator = random.Random(0)
    for number in range(32):
        (corpus / f"seed-{number}").write_bytes(generator.randbytes(96))
    atheris.Setup([sys.argv[0], "-max_len=512", "-timeout=120", "-rss_limit_mb=0", "-verbosity=0", str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--random", action="store_true", help="a plain random generator, also where atheris is there")
    parser.add_argument("--seed", type=int, default=0, help="of the plain random generator")
    parser.add_argument("--out", type=Path, help="folder for the files of faults (a new temporary one)")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="ipyprof-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    atheris = None
    if not asked.random:
        try:
            import atheris
        except ImportError:
            print("atheris is not installed: a plain random generator", flush=True)
    if atheris is None:
        campaign = Campaign(asked.seconds, folder)
        with_random(campaign, asked.seed)
        print(campaign.summary())
        return 1 if campaign.faults else 0
    with atheris.instrument_imports(include=["ipyprof"]):
        import ipyprof.api
        import ipyprof.diagnosis.verdict
        import ipyprof.report.build
        import ipyprof.run
        import ipyprof.show.html
        import ipyprof.show.text
        import ipyprof.trace.reader  # noqa: F401
    with_atheris(Campaign(asked.seconds, folder), atheris, folder / "corpus")
    return 0


if __name__ == "__main__":
    sys.exit(main())
