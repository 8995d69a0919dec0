"""The planted suite on one command line.

    python -m tests.gpu.planted [--shard I/N] [--held-out | --tuning | --later | --all] [--only NAME ...] [--out DIR]
    python -m tests.gpu.planted --merge DIR ... --into tests/gpu/RESULTS.md

One worker process runs the loops of the shard; when it dies or a loop takes too long, another goes on behind that loop.
DIR (a new temporary directory if not given) gets ``results.json``, ``RESULTS.md`` and ``traces/``. The exit code is 0
when everything holds. With ``IPYPROF_SMALL=1`` or without CUDA it is a dry run: verdicts are wrong there,
and the exit code says only whether every loop ran.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.planted import PLANTED, half_of
from tests.gpu.planted.judge import classic, rows_of, summary
from tests.gpu.planted.tables import page, write_results
from tests.gpu.workloads import REDUCED, Workload

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.2
START_S = 120.0  # a worker that has not begun its first loop


def chosen(half: str, shard: str, only: Sequence[str]) -> list[Workload]:
    """The loops of one part (as `half_of` says, or ``all``) and one shard (``I/N``, I from 1), or those named.

    Neighbours go to different shards, so that every shard gets some of each cause.

    Raises:
        ValueError: a name or a shard that does not exist.
    """
    unknown = set(only) - {one.name for one in PLANTED}
    if unknown:
        raise ValueError(f"no such loop: {', '.join(sorted(unknown))}")
    if only:
        return [one for one in PLANTED if one.name in only]
    number, count = (int(part) for part in shard.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"shard {shard}: it is I/N with I from 1 to N")
    some = [one for one in PLANTED if half in ("all", half_of(one))]
    return some[number - 1 :: count]


class Suite:
    """The workers of one run, one after the other; owns their processes."""

    def __init__(self, out: Path, *, seconds: float, loop_seconds: float) -> None:
        self.out = out
        self.loops: dict[str, Any] = {}
        self._until = time.monotonic() + seconds
        self._loop_seconds = loop_seconds

    def run(self, loops: Sequence[Workload]) -> None:
        """Runs all loops; those that did not get their turn are in ``self.loops`` with an error."""
        together = [one for one in loops if not one.env]
        for group in [together, *([one] for one in loops if one.env)]:
            left = [one.name for one in group]
            while left and time.monotonic() < self._until:
                left = self._worker(left, dict(group[0].env))
            for name in left:
                self.loops.setdefault(name, {"name": name, "forms": {}, "error": "the time was up before its turn"})

    def _worker(self, names: list[str], env: dict[str, str]) -> list[str]:
        """What is left to do when one worker has ended: everything behind the loop at which it broke off."""
        command = [sys.executable, "-m", "tests.gpu.planted.worker", "--out", str(self.out), *names]
        now = self.out / "now.txt"
        now.unlink(missing_ok=True)
        log = (self.out / "worker.log").open("a")
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True
        )
        reason, seen, since = "", "", time.monotonic()
        try:
            while process.poll() is None and not reason:
                time.sleep(POLL_S)
                at = now.read_text() if now.exists() else ""
                if at != seen:
                    seen, since = at, time.monotonic()
                    self._collect(names)
                allowed = self._loop_seconds if seen else START_S
                if time.monotonic() - since > allowed:
                    reason = f"took longer than {allowed:.0f} s"
                elif time.monotonic() > self._until:
                    reason = "the time was up"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()
        self._collect(names)
        left = [name for name in names if name not in self.loops]
        if left:
            print((self.out / "worker.log").read_text()[-2000:], flush=True)
        if left and not seen:  # the next would not start either
            for name in left:
                self._take(name, {"name": name, "forms": {}, "error": reason or "the worker did not start"})
            return []
        if left:
            broken = seen if seen in left else left[0]
            reason = reason or f"the worker ended with {process.returncode}"
            self._take(broken, {"name": broken, "forms": {}, "error": reason})
            left.remove(broken)
        return left

    def _collect(self, names: Sequence[str]) -> None:
        for name in names:
            path = self.out / "loops" / f"{name}.json"
            if name not in self.loops and path.exists():
                self._take(name, json.loads(path.read_text()))

    def _take(self, name: str, found: dict[str, Any]) -> None:
        self.loops[name] = found
        for row in rows_of({name: found}):
            words = "; ".join(row.failures) if row.failures else "holds"
            print(
                f"{row.name:28} {row.form:9} {found.get('seconds', 0.0):5.1f} s  hand {row.hand_ms:9.3f}  "
                f"step {row.step_ms:9.3f}  predicted {row.predicted_ms:9.3f}  {row.verdict:17} "
                f"file {row.file_verdict:17} {words}",
                flush=True,
            )


def main() -> int:
    """0 when everything holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.planted", description=(__doc__ or "").splitlines()[0])
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--held-out", dest="half", action="store_const", const="held-out", help="the half kept aside")
    half.add_argument("--tuning", dest="half", action="store_const", const="tuning", help="the other half (default)")
    half.add_argument(
        "--later", dest="half", action="store_const", const="later", help="pairs written after both had been run"
    )
    half.add_argument("--all", dest="half", action="store_const", const="all")
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=560.0, help="all in all (default 560)")
    parser.add_argument("--loop-seconds", type=float, default=90.0, help="for one loop with all its forms (default 90)")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="DIR", help="put these runs' tables together, run nothing"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "tests" / "gpu" / "RESULTS.md")
    arguments = parser.parse_args()
    if arguments.merge:
        write_results(arguments.merge, arguments.into)
        return 0
    try:
        loops = chosen(arguments.half or "tuning", arguments.shard, arguments.only)
    except ValueError as error:
        parser.error(str(error))
    out = (arguments.out or Path(tempfile.mkdtemp(prefix="ipyprof_planted_"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for one in loops:
        (out / "loops" / f"{one.name}.json").unlink(missing_ok=True)
    begun = time.monotonic()
    suite = Suite(out, seconds=arguments.seconds, loop_seconds=arguments.loop_seconds)
    try:
        suite.run(loops)
    finally:
        machine = out / "machine.json"
        told = json.loads(machine.read_text()) if machine.exists() else {}
        results = {"machine": told, "seconds": time.monotonic() - begun, "loops": suite.loops}
        (out / "results.json").write_text(json.dumps(results))
        text = page(results, f"Planted suite, {arguments.half or 'tuning'}, shard {arguments.shard}")
        (out / "RESULTS.md").write_text(text)
        size = sum(path.stat().st_size for path in (out / "traces").glob("*.gz"))
        print(f"\n{text}\ntraces: {size / 1e6:.1f} MB in {out / 'traces'}", flush=True)
    if REDUCED:
        broken = [row for row in rows_of(suite.loops) if row.verdict == "-" and "no " not in "".join(row.failures)[:3]]
        return 1 if broken else 0
    return 0 if summary(rows_of(suite.loops)).held and not classic(suite.loops)[1] else 1


if __name__ == "__main__":
    sys.exit(main())
