"""Records every planted loop with plain ``torch.profiler`` and times it by hand, without ipyprof.

    python -m tests.gpu.record_baseline [--out DIR] [--only NAME ...]

writes to DIR (a new temporary directory if not given) ``timings.json`` and ``traces_N.tar`` with one
``WORKLOAD.FORM.SWITCHES.json.gz`` per recording, and prints a table. The phases are ipyprof's: two steps with no
profiler, two in warm-up, three recorded from mark to mark between two synchronisations, then the rest of the loop.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import itertools
import json
import platform
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, _KinetoProfile, record_function

from tests.gpu.stepped import Marks, block_step_ms, compile_stepped, run_stepped
from tests.gpu.workloads import STAND_INS, WORKLOADS, Workload

TAR_BYTES = 15_000_000
SWITCHES = {"full": (True, True), "shapes": (True, False), "plain": (False, False)}
"""Name → (record_shapes, profile_memory)."""
VARIED = {("tiny_kernels", "slow"), ("item_between_kernels", "slow"), ("gpt2_training", "slow")}
"""Loops that are also recorded with fewer switches."""


class Recording:
    """The profiler's phases, driven by the numbers of the marks: prepare, start and stop at these."""

    def __init__(self, switches: str, steps: int) -> None:
        shapes, memory = SWITCHES[switches]
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self.profiler = _KinetoProfile(activities=activities, record_shapes=shapes, profile_memory=memory)
        self.prepare_at, self.start_at, self.stop_at = (2, 4, 7) if steps >= 8 else (1, 2, steps - 1)
        self.cost_s: dict[str, float] = {}
        self._span: Any = None

    def on_mark(self, number: int) -> bool:
        """Whether the step that begins at this mark is recorded."""
        if self._span is not None:
            self._span.__exit__(None, None, None)
            self._span = None
        if number == self.prepare_at:
            self._timed("prepare", self.profiler.prepare_trace)
        if number == self.start_at:
            _synchronise()
            self._timed("start", self.profiler.start_trace)
        if number == self.stop_at:
            self._timed("drain", _synchronise)
            self._timed("stop", self.profiler.stop_trace)
        if not self.start_at <= number < self.stop_at:
            return False
        self._span = record_function(f"ProfilerStep#{number}")
        self._span.__enter__()
        return True

    def _timed(self, name: str, action: Any) -> None:
        begun = time.perf_counter()
        action()
        self.cost_s[name] = time.perf_counter() - begun


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _namespace(workload: Workload, form: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(STAND_INS, {})
    exec(compile(workload.setup, f"<{workload.name} setup>", "exec"), namespace)
    if form == "fixed":
        exec(compile(workload.fixed_setup, f"<{workload.name} fixed setup>", "exec"), namespace)
    return namespace


def measure(workload: Workload, form: str, out: Path) -> dict[str, Any]:
    """The timings of one form; its traces land in ``out``."""
    begun = time.perf_counter()
    source = workload.forms()[form]
    namespace = _namespace(workload, form)
    code = compile_stepped(source, f"<{workload.name}>")
    run_stepped(code, namespace, warm := Marks())
    steps = len(warm.wall_s) - 1
    hand = Marks()
    run_stepped(code, namespace, hand)
    result: dict[str, Any] = {
        "cold_ms": warm.steps_ms(),
        "hand_ms": hand.steps_ms(),
        "block_ms": block_step_ms(source, namespace, skip=min(5, steps // 2)),
        "host_ms": [1e3 * (after - before) for before, after in itertools.pairwise(hand.wall_s)],
        "recordings": {},
    }
    result["step_ms"] = median(result["hand_ms"][min(5, steps // 3) :])
    for switches in SWITCHES if (workload.name, form) in VARIED else ("full",):
        recording = Recording(switches, steps)
        marks = Marks(recording.on_mark)
        run_stepped(code, namespace, marks)
        samples = marks.steps_ms()
        name = f"{workload.name}.{form}.{switches}.json"
        recording.profiler.export_chrome_trace(str(out / name))
        text = (out / name).read_bytes()
        (out / f"{name}.gz").write_bytes(gzip.compress(text, 6))
        (out / name).unlink()
        result["recordings"][switches] = {
            "wait_ms": samples[: recording.prepare_at],
            "warmup_ms": samples[recording.prepare_at : recording.start_at],
            "recorded_ms": samples[recording.start_at : recording.stop_at],
            "after_ms": samples[recording.stop_at :],
            "cost_s": recording.cost_s,
            "bytes": len(text),
        }
    result["seconds"] = time.perf_counter() - begun
    return result


def _pack(traces: Path, out: Path) -> list[Path]:
    """The tars of at most about ``TAR_BYTES`` each that hold every trace."""
    tars: list[Path] = []
    room = 0
    for trace in sorted(traces.glob("*.gz")):
        size = trace.stat().st_size + 1024
        if size > room:
            tars.append(out / f"traces_{len(tars)}.tar")
            room = TAR_BYTES
        room -= size
        with tarfile.open(tars[-1], "a") as tar:
            tar.add(trace, trace.name)
    return tars


def main() -> None:
    """Records all loops, or those named by ``--only``, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    timings: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "loops": {},
    }
    print(f"{'loop':30} {'hand':>9} {'block':>9} {'host':>9} {'recorded':>9} {'after':>9}  (ms)  seconds", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            if arguments.only and workload.name not in arguments.only:
                continue
            for form in workload.forms():
                try:
                    found = measure(workload, form, Path(folder))
                except Exception as error:
                    timings["loops"][f"{workload.name}.{form}"] = {"error": repr(error)}
                    print(f"{workload.name + ' ' + form:30} {error!r}", flush=True)
                    continue
                timings["loops"][f"{workload.name}.{form}"] = found
                full = found["recordings"]["full"]
                cells = (
                    found["step_ms"], found["block_ms"], median(found["host_ms"]), median(full["recorded_ms"]),
                    median(full["after_ms"] or [float("nan")]),
                )  # fmt: skip
                numbers = " ".join(f"{cell:9.3f}" for cell in cells)
                print(f"{workload.name + ' ' + form:30} {numbers}        {found['seconds']:.1f}", flush=True)
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
            # Written every time, so that a run cut short still leaves what it had.
            (out / "timings.json").write_text(json.dumps(timings))
        tars = _pack(Path(folder), out)
    print("\n".join(f"{path} {path.stat().st_size}" for path in [out / "timings.json", *tars]))


if __name__ == "__main__":
    main()
