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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ipyprof.analysis.allocations import lifetimes
from ipyprof.analysis.holders import Ownership
from ipyprof.analysis.memory import memory_view
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.reader import read_trace
from tests.gpu.memory_cells import (
    ATTENTION_SETUP,
    CAUGHT,
    CAUGHT_SETUP,
    CHURN,
    CHURN_SETUP,
    DEVICES,
    DEVICES_SETUP,
    FAILURE,
    FAILURE_SETUP,
    FUSED,
    KEPT,
    KEPT_SETUP,
    LEAK,
    LEAK_SETUP,
    MATERIALISED,
    READING,
    READING_SETUP,
    STEPS_READ,
)
from tests.gpu.memory_judges import (
    Found,
    judge_attention,
    judge_caught,
    judge_churn,
    judge_cost,
    judge_devices,
    judge_failure,
    judge_leak,
    judge_reading,
    judge_training,
    megabytes,
)
from tests.gpu.results import RESULTS, put
from tests.gpu.workloads import GPT, REDUCED, WORKLOADS


class Notebook:
    """A shell in this process with the extension loaded.

    Args:
        out: folder of the traces.
    """

    def __init__(self, out: Path) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        self.shell = InteractiveShell.instance(config=config)
        self.out = out
        self.run("%load_ext ipyprof")

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


def attention(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(ATTENTION_SETUP)
    notebook.run(MATERIALISED)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    slow = notebook.report(MATERIALISED)
    most = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    fixed = notebook.report(FUSED)
    if REDUCED:
        return Found(case="attention", measured="dry run")
    return judge_attention(slow, fixed, most)


def training(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    trace_file = notebook.out / "training.json.gz"
    notebook.run(GPT.setup)
    notebook.run(GPT.slow)
    notebook.report(GPT.slow, f"--trace {trace_file}")
    names = notebook.shell.user_ns
    parameters = sum(one.numel() * one.element_size() for one in names["model"].parameters())
    state = sum(
        one.numel() * one.element_size()
        for values in names["optimizer"].state.values()
        for one in values.values()
        if torch.is_tensor(one)
    )
    if REDUCED:
        return Found(case="training", measured="dry run")
    trace = read_trace(trace_file)
    assert trace.live is not None
    steps = find_steps(trace, live=True)
    blocks = lifetimes(trace, steps, trace.live, 0)
    assert blocks is not None
    whose = Ownership(trace, blocks, [owner for owner in trace.live.owners or () if owner.device == 0])
    records = np.arange(-1, len(blocks.time_ns))
    table = whose.moments(records, np.full(len(records), -1), records, len(records))
    most = {name: int(table.bytes[:, at].max()) for at, name in enumerate(table.names)}
    wrong = int((table.bytes.sum(axis=1) != blocks.allocated_bytes).sum())
    expected = {
        "parameters of model": parameters,
        "gradients of model": parameters,
        "state of optimizer": state,
    }
    return judge_training(most, expected, wrong)


def leak(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(LEAK_SETUP)
    report = notebook.report(LEAK)
    return Found(case="leak", measured="dry run") if REDUCED else judge_leak(report)


def churn(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(CHURN_SETUP)
    report = notebook.report(CHURN)
    return Found(case="churn", measured="dry run") if REDUCED else judge_churn(report)


def caught(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(CAUGHT_SETUP)
    report = notebook.report(CAUGHT)
    return Found(case="caught", measured="dry run") if REDUCED else judge_caught(report)


def kept(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(KEPT_SETUP)
    names = notebook.shell.user_ns
    thing = names["thing"]
    watched = [weakref.ref(one) for one in (thing, thing.weight, thing.losses[0])]
    del thing
    held_before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    gc.collect()
    gc.disable()
    try:
        notebook.report(KEPT)
        for name in ("thing", "y", "Thing"):
            del names[name]
        alive = sum(one() is not None for one in watched)
        held_after = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    finally:
        gc.enable()
    failures = [f"{alive} of {len(watched)} objects are alive"] if alive else []
    if not REDUCED and held_after > held_before - 4 * 2**22:
        failures.append(f"{megabytes(held_after)} are allocated, {megabytes(held_before)} before")
    measured = f"{alive} alive, {megabytes(held_before)} before, {megabytes(held_after)} after"
    return Found(case="kept", measured=measured, failures=tuple(failures))


def reading(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    file = notebook.out / "reading.json"
    notebook.run(READING_SETUP)
    notebook.report(READING, f"--wait 1 --warmup 1 --active {STEPS_READ} --trace {file}")
    begin = time.perf_counter()
    trace = read_trace(file)
    summary = memory_view(trace, find_steps(trace, live=True), trace.live)
    seconds = time.perf_counter() - begin
    file.unlink()
    if REDUCED:
        return Found(case="reading", measured="dry run")
    assert summary.busiest is not None
    assert summary.devices[summary.busiest].holders
    return judge_reading(len(trace.memory.time_ns), seconds)


def devices(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    if torch.cuda.device_count() < 2:
        return Found(case="devices", measured="not measured: fewer than two GPUs")
    notebook.run(DEVICES_SETUP)
    return judge_devices(notebook.report(DEVICES))


def failure(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(FAILURE_SETUP)
    report = notebook.report(FAILURE, "--wait 1 --warmup 1 --active 3", fails=torch.OutOfMemoryError)
    return Found(case="failure", measured="dry run") if REDUCED else judge_failure(report)


def snapshot(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    if not torch.cuda.is_available():
        return Found(case="snapshot", measured="dry run")
    target = notebook.out / "memory.pickle"
    notebook.run(CHURN_SETUP)
    notebook.report(CHURN, f"--memory-snapshot {target}")
    with target.open("rb") as file:
        kept = pickle.load(file)
    entries = sum(map(len, kept["device_traces"]))
    failures = [] if entries else ["the snapshot has no entries"]
    torch.empty(1 << 20, device="cuda")
    now = torch.cuda.memory._snapshot()["device_traces"]
    still = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: None)()
    if still:
        failures.append("the history is still on")
    measured = f"{entries} entries, {sum(map(len, now))} in torch afterwards, still on: {still}"
    return Found(case="snapshot", measured=measured, failures=tuple(failures))


def cost(notebook: Notebook, pairs: int) -> Found:
    """See the module."""
    loop = next(workload for workload in WORKLOADS if workload.name == "tiny_kernels")
    notebook.run(loop.setup)
    notebook.run(loop.slow)
    recorded, unprofiled = [], []
    for _ in range(1 if REDUCED else pairs):
        reports = [notebook.report(loop.slow, option) for option in ("--memory", "--no-memory")]
        recorded.append(tuple(report["steps"]["profiled_step_ms"] for report in reports))
        unprofiled.append(tuple(report["steps"]["step_ms"] for report in reports))
    return Found(case="cost", measured="dry run") if REDUCED else judge_cost(recorded, unprofiled)


CASES: dict[str, Callable[[Notebook, int], Found]] = {
    "cost": cost,
    "churn": churn,
    "snapshot": snapshot,
    "leak": leak,
    "kept": kept,
    "caught": caught,
    "reading": reading,
    "devices": devices,
    "attention": attention,
    "training": training,
    "failure": failure,
}
"""The cost comes first, while the process is fresh; large segments, and what limits the memory, come last."""


def run_case(name: str, notebook: Notebook, pairs: int) -> Found:
    """One case; what it raises is a failure of it."""
    try:
        return CASES[name](notebook, pairs)
    except Exception as error:
        return Found(case=name, measured="", failures=(f"{type(error).__name__}: {error}",))
    finally:
        notebook.forget()


def table(found: Sequence[Found], seconds: float) -> str:
    """The results as Markdown."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, dry run"
    lines = ["## Memory", "", f"{device}, torch {torch.__version__}, {seconds:.0f} s in all.", ""]
    lines += ["| case | measured | holds |", "| --- | --- | --- |"]
    for one in found:
        lines.append(f"| {one.case} | {one.measured} | {'; '.join(one.failures) or 'yes'} |")
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
    notebook = Notebook(out)
    found = []
    for name in given.only or CASES:
        found.append(run_case(name, notebook, given.pairs))
        one = found[-1]
        print(f"{'ok  ' if not one.failures else 'FAIL'} {name}: {one.measured} {'; '.join(one.failures)}", flush=True)
    text = table(found, time.perf_counter() - begin)
    (out / "MEMORY.md").write_text(text)
    if torch.cuda.is_available() and given.out is None and given.only is None:
        put(RESULTS, "memory", text)
    return int(any(one.failures for one in found))


if __name__ == "__main__":
    sys.exit(main())
