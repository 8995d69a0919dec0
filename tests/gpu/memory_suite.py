"""The memory view on a GPU: activations of their line, a training's holders, a leak, a request that fails, the cost.

    python -m tests.gpu.memory_suite [--only NAME ...] [--out DIR] [--pairs 7]

runs every case in one process and prints a table; the exit code is 0 only when all hold. On a GPU without ``--out``
and ``--only`` the table goes to ``tests/gpu/RESULTS.md`` too. Without CUDA it is a dry run with small sizes: the cells
run, and nothing is judged.

* ``attention``: materialised attention against scaled_dot_product_attention, batch 2, 32 heads, 2048, 128, bf16. The
  S × S weights are activations of their line within 1 %, the peak is ``max_memory_allocated`` within 1 %, and after
  the change they are gone.
* ``training``: AdamW training of a GPT-2; parameters, gradients and optimizer state within 1 % of what their tensors
  sum to; the holders add up to the total at every record, and in the panel's data at every point of the heartbeat.
* ``leak``: a list that keeps losses with their graph; named, with the right bytes per step, and its line.
* ``churn``: empty_cache in every step; its calls are marks in each step, and reserved memory falls.
* ``caught``: requests that fail and are caught in every step; told with their line, and the verdict is of the step.
* ``kept``: nothing is alive that only the look for holders could keep.
* ``reading``: a recording of 100,000 allocations and frees is read and given to its holders in 2 s.
* ``devices``: with two GPUs or more, each has its heartbeat and its holders.
* ``failure``: out of memory in backward; the line of the backward call and the three largest holders are named, in the
  verdict's sentence the line and the largest.
* ``snapshot``: torch's own snapshot is written, and the history is off afterwards.
* ``cost``: the launch-bound loop recorded with and without memory, interleaved; at most 1.20 times, and the unprofiled
  step is the same.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipyprof.analysis.allocations import lifetimes
from ipyprof.analysis.holders import Ownership
from ipyprof.analysis.memory import memory_view
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.reader import read_trace
from tests.gpu import memory_cases as cases
from tests.gpu.memory_cases import Found, megabytes
from tests.gpu.planted.worker import new_shell
from tests.gpu.results import RESULTS, put
from tests.gpu.workloads import GPT, REDUCED, WORKLOADS


class Notebook:
    """A shell in this process with the extension loaded.

    Args:
        out: folder of the traces.
        pairs: how often the cost is measured.
    """

    def __init__(self, out: Path, pairs: int = 7) -> None:
        self.shell = new_shell()
        self.out, self.pairs = out, pairs

    def run(self, cell: str, *, fails: type[BaseException] | None = None) -> None:
        """Run a cell that succeeds, or ends in this error."""
        result = self.shell.run_cell(cell, silent=True)
        error = result.error_before_exec or result.error_in_exec
        if fails is None:
            result.raise_error()
        elif type(error) is not fails:
            raise AssertionError(f"the cell ended with {error!r}, not with {fails.__name__}")

    def report(self, loop: str, options: str = "", **expected: Any) -> dict[str, Any]:
        """The report of a loop cell, as a dictionary."""
        self.run(f"%%gpuprofile -q --at-end -o report {options}\n{loop}", **expected)
        report: dict[str, Any] = self.shell.user_ns["report"].to_dict()
        return report

    def forget(self) -> None:
        """Let go of everything that the cells made."""
        self.shell.reset(new_session=False)
        sys.last_value = sys.last_traceback = sys.last_exc = None  # type: ignore[attr-defined]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(1.0)
            # What cuBLAS holds of a large segment keeps the whole segment in the cache, and the next case would use it.
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None:
                clear()
            torch.cuda.empty_cache()


Measure = Callable[[Notebook], Sequence[Any]]
"""Runs the cells of a case and gives what its judge takes."""


def attention(notebook: Notebook) -> Sequence[Any]:
    notebook.run(cases.ATTENTION_SETUP)
    notebook.run(cases.MATERIALISED)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    slow = notebook.report(cases.MATERIALISED)
    most = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return slow, notebook.report(cases.FUSED), most


def training(notebook: Notebook) -> Sequence[Any]:
    trace_file = notebook.out / "training.json.gz"
    notebook.run(GPT.setup)
    notebook.run(GPT.slow)
    notebook.report(GPT.slow, f"--trace {trace_file}")
    if REDUCED:
        return ()
    names = notebook.shell.user_ns
    parameters = sum(one.numel() * one.element_size() for one in names["model"].parameters())
    state = sum(
        one.numel() * one.element_size()
        for values in names["optimizer"].state.values()
        for one in values.values()
        if torch.is_tensor(one)
    )
    trace = read_trace(trace_file)
    assert trace.live is not None
    blocks = lifetimes(trace, find_steps(trace, live=True), trace.live, 0)
    assert blocks is not None
    whose = Ownership(trace, blocks, [owner for owner in trace.live.owners or () if owner.device == 0])
    records = np.arange(-1, len(blocks.time_ns))
    table = whose.moments(records, np.full(len(records), -1), records, len(records))
    most = {name: int(table.bytes[:, at].max()) for at, name in enumerate(table.names)}
    wrong = int((table.bytes.sum(axis=1) != blocks.allocated_bytes).sum())
    roles = ("parameters of model", "gradients of model", "state of optimizer")
    return most, dict(zip(roles, (parameters, parameters, state), strict=True)), wrong


def plain(setup: str, loop: str, options: str = "", **expected: Any) -> Measure:
    """The report of a cell behind its setup."""

    def measure(notebook: Notebook) -> Sequence[Any]:
        notebook.run(setup)
        return (notebook.report(loop, options, **expected),)

    return measure


def kept(notebook: Notebook) -> Sequence[Any]:
    notebook.run(cases.KEPT_SETUP)
    names = notebook.shell.user_ns
    thing = names["thing"]
    watched = [weakref.ref(one) for one in (thing, thing.weight, thing.losses[0])]
    del thing
    held_before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    gc.collect()
    gc.disable()
    try:
        notebook.report(cases.KEPT)
        for name in ("thing", "y", "Thing"):
            del names[name]
        alive = sum(one() is not None for one in watched)
        held_after = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    finally:
        gc.enable()
    return alive, held_before, held_after


def judge_kept(alive: int, held_before: int, held_after: int) -> Found:
    failures = [f"{alive} objects are alive"] if alive else []
    if not REDUCED and held_after > held_before - 4 * 2**22:
        failures.append(f"{megabytes(held_after)} are allocated, {megabytes(held_before)} before")
    measured = f"{alive} alive, {megabytes(held_before)} before, {megabytes(held_after)} after"
    return Found(measured=measured, failures=tuple(failures))


def reading(notebook: Notebook) -> Sequence[Any]:
    file = notebook.out / "reading.json"
    notebook.run(cases.READING_SETUP)
    notebook.report(cases.READING, f"--wait 1 --warmup 1 --active {cases.STEPS_READ} --trace {file}")
    begin = time.perf_counter()
    trace = read_trace(file)
    summary = memory_view(trace, find_steps(trace, live=True), trace.live)
    seconds = time.perf_counter() - begin
    file.unlink()
    if not REDUCED:
        assert summary.busiest is not None
        assert summary.devices[summary.busiest].holders
    return len(trace.memory.time_ns), seconds


def snapshot(notebook: Notebook) -> Sequence[Any]:
    if not torch.cuda.is_available():
        return ()
    target = notebook.out / "memory.pickle"
    notebook.run(cases.CHURN_SETUP)
    notebook.report(cases.CHURN, f"--memory-snapshot {target}")
    with target.open("rb") as file:
        entries = sum(map(len, pickle.load(file)["device_traces"]))
    torch.empty(1 << 20, device="cuda")
    return entries, getattr(torch._C, "_cuda_isHistoryEnabled", lambda: None)()


def judge_snapshot(entries: int, still_on: bool | None) -> Found:
    failures = [] if entries else ["the snapshot has no entries"]
    if still_on:
        failures.append("the history is still on")
    return Found(measured=f"{entries} entries, still on: {still_on}", failures=tuple(failures))


def cost(notebook: Notebook) -> Sequence[Any]:
    loop = next(workload for workload in WORKLOADS if workload.name == "tiny_kernels")
    notebook.run(loop.setup)
    notebook.run(loop.slow)
    recorded, unprofiled = [], []
    for _ in range(1 if REDUCED else notebook.pairs):
        reports = [notebook.report(loop.slow, option) for option in ("--memory", "--no-memory")]
        recorded.append(tuple(report["steps"]["profiled_step_ms"] for report in reports))
        unprofiled.append(tuple(report["steps"]["step_ms"] for report in reports))
    return recorded, unprofiled


CASES: dict[str, tuple[Measure, Callable[..., Found]]] = {
    "cost": (cost, cases.judge_cost),
    "churn": (plain(cases.CHURN_SETUP, cases.CHURN), cases.judge_churn),
    "snapshot": (snapshot, judge_snapshot),
    "leak": (plain(cases.LEAK_SETUP, cases.LEAK), cases.judge_leak),
    "kept": (kept, judge_kept),
    "caught": (plain(cases.CAUGHT_SETUP, cases.CAUGHT), cases.judge_caught),
    "reading": (reading, cases.judge_reading),
    "devices": (plain(cases.DEVICES_SETUP, cases.DEVICES), cases.judge_devices),
    "attention": (attention, cases.judge_attention),
    "training": (training, cases.judge_training),
    "failure": (
        plain(
            cases.FAILURE_SETUP,
            cases.FAILURE,
            "--wait 1 --warmup 1 --active 3",
            fails=torch.OutOfMemoryError,
        ),
        cases.judge_failure,
    ),
}
"""Case → what runs it, and what judges what that gives. The module says what each is about.

The cost comes first, while the process is fresh; large segments, and what limits the memory, come last.
"""


def run_case(name: str, notebook: Notebook) -> Found:
    """One case; what it raises is a failure of it."""
    if name == "devices" and torch.cuda.device_count() < 2:
        return Found(measured="not measured: fewer than two GPUs")
    measure, judge = CASES[name]
    try:
        given = measure(notebook)
        return Found(measured="dry run") if REDUCED and judge is not judge_kept else judge(*given)
    except Exception as error:
        return Found(measured="", failures=(f"{type(error).__name__}: {error}",))
    finally:
        notebook.forget()


def table(found: Mapping[str, Found], seconds: float) -> str:
    """The results as Markdown."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, dry run"
    lines = ["## Memory", "", f"{device}, torch {torch.__version__}, {seconds:.0f} s in all.", ""]
    lines += ["| case | measured | holds |", "| --- | --- | --- |"]
    for name, one in found.items():
        lines.append(f"| {name} | {one.measured} | {'; '.join(one.failures) or 'yes'} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every case holds."""
    parser = argparse.ArgumentParser(description="The memory view on a GPU.")
    parser.add_argument("--only", nargs="+", choices=tuple(CASES), metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="gets the table and the traces")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of the cost (default 7)")
    given = parser.parse_args(arguments)
    out = (given.out or Path(tempfile.mkdtemp(prefix="ipyprof-memory-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    notebook = Notebook(out, given.pairs)
    found: dict[str, Found] = {}
    for name in given.only or CASES:
        one = found[name] = run_case(name, notebook)
        print(f"{'ok  ' if not one.failures else 'FAIL'} {name}: {one.measured} {'; '.join(one.failures)}", flush=True)
    text = table(found, time.perf_counter() - begin)
    (out / "MEMORY.md").write_text(text)
    if torch.cuda.is_available() and given.out is None and given.only is None:
        put(RESULTS, "memory", text)
    return int(any(one.failures for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
