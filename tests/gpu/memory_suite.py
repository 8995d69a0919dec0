"""The memory view on a GPU: activations of their line, a training's holders, a leak, a request that fails, the cost.

    python -m tests.gpu.memory_suite [--only NAME ...] [--out DIR] [--pairs 7]

runs every case in one process and prints a table; the exit code is 0 only when all hold. On a GPU without ``--out``
and ``--only`` the table goes to ``tests/gpu/RESULTS.md`` too. Without CUDA it is a dry run with small sizes: the cells
run, and nothing is judged.

* ``attention``: materialised attention against scaled_dot_product_attention, batch 2, 32 heads, 2048, 128, bf16. The
  S × S weights are activations of their line within 1 %, the peak is ``max_memory_allocated`` within 1 %, and after
  the change they are gone.
* ``training``: AdamW training of a GPT-2; parameters, gradients and optimizer state within 1 % of what their tensors
  sum to, and the holders add up to the total at every record.
* ``leak``: a list that keeps losses with their graph; named, with the right bytes per step, and its line.
* ``churn``: empty_cache in every step; its calls are marks in each step, and reserved memory falls.
* ``failure``: out of memory in backward; the line of the backward call and the three largest holders are named.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ipyprof.analysis.holders import Ownership
from ipyprof.analysis.lifetimes import lifetimes
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.reader import read_trace
from tests.gpu.results import RESULTS, put
from tests.gpu.workloads import DEVICE, GPT, REDUCED, WORKLOADS

SHARE = 0.01
COST = 1.20
SAME_STEP = 1.05
BLOCK = 512


def _size(full: int, reduced: int) -> int:
    return reduced if REDUCED else full


LENGTH = _size(2048, 64)
MATRIX_BYTES = 2 * 32 * LENGTH * LENGTH * 2
LEAK_NUMBERS = _size(2**22, 2**10)
LEAK_BYTES = 4 * LEAK_NUMBERS + BLOCK
BIG = _size(2**28, 2**12)

ATTENTION_SETUP = f"""
import torch
from torch.nn import functional as F
{DEVICE}
q, k, v = (torch.randn(2, 32, {LENGTH}, 128, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
scale = 128 ** -0.5
def clear():
    q.grad = k.grad = v.grad = None
"""
MATERIALISED = """for step in range(24):
    out = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v
    out.sum().backward()
    clear()
"""
FUSED = MATERIALISED.replace("torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v",
                             "F.scaled_dot_product_attention(q, k, v)")  # fmt: skip

LEAK_SETUP = f"import torch\n{DEVICE}\nweights = torch.zeros({LEAK_NUMBERS}, device=device, requires_grad=True)\n"
LEAK = """kept = []
for step in range(30):
    loss = torch.exp(weights * 0.001).sum()
    kept.append(loss)
"""

CHURN_SETUP = f"import torch\n{DEVICE}\n"
CHURN = f"""for step in range(20):
    buffers = [torch.empty({_size(2**26, 2**8)}, device=device, dtype=torch.uint8) for _ in range(4)]
    buffers = None
    torch.cuda.empty_cache()
"""

FAILURE_SETUP = f"""
import torch
{DEVICE}
big = torch.zeros({BIG}, device=device, requires_grad=True)
optimizer = torch.optim.SGD([big], lr=1e-3)
def limit(step):
    if step != 3:
        return
    if device == "cpu":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**27) / total)
"""
FAILURE = """for step in range(12):
    hidden = torch.tanh(big * 1.5)
    loss = (hidden * hidden).sum()
    limit(step)
    loss.backward()
    optimizer.step()
"""
FAILURE_LINE = 6
FAILURE_HOLDERS = {"parameters of big", "gradients of big", "hidden"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one case gave: ``measured`` in words, and what does not hold."""

    case: str
    measured: str
    failures: tuple[str, ...] = ()


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
            torch.cuda.empty_cache()


def near(name: str, measured: float, expected: float, share: float = SHARE) -> list[str]:
    """What does not hold, where two sizes differ by more than a share of the expected one."""
    if abs(measured - expected) <= share * expected:
        return []
    return [f"{name}: {measured:,.0f} is not {expected:,.0f} within {share:.0%}"]


def held(report: Mapping[str, Any]) -> dict[str, int]:
    """Holder → bytes at the peak."""
    return {holder["name"]: holder["bytes"] for holder in report["memory"]["holders"]}


def megabytes(size: float) -> str:
    """Such as ``536.9 MB``."""
    return f"{size / 1e6:,.1f} MB"


def judge_attention(
    slow: Mapping[str, Any], fixed: Mapping[str, Any], most_allocated: int, matrix_bytes: int = MATRIX_BYTES
) -> Found:
    """The weights are activations of line 3, and gone after the change."""
    before, after = held(slow), held(fixed)
    mine = before.get("activations of line 3", 0)
    later = after.get("activations of line 3", 0)
    failures = near("activations of line 3", mine, matrix_bytes)
    failures += near("the peak against max_memory_allocated", slow["memory"]["peak_bytes"], most_allocated)
    failures += near("the sum of the holders", sum(before.values()), slow["memory"]["peak_bytes"], 0.0)
    if later > 0.1 * matrix_bytes:
        failures.append(f"after the change line 3 still has {megabytes(later)} of activations")
    if fixed["memory"]["peak_bytes"] > slow["memory"]["peak_bytes"] - matrix_bytes:
        failures.append(f"the peak fell only to {megabytes(fixed['memory']['peak_bytes'])}")
    measured = (
        f"activations of line 3 {megabytes(mine)} of {megabytes(matrix_bytes)}, then {megabytes(later)}; peak "
        f"{megabytes(slow['memory']['peak_bytes'])} (max_memory_allocated {megabytes(most_allocated)}), then "
        f"{megabytes(fixed['memory']['peak_bytes'])}"
    )
    return Found(case="attention", measured=measured, failures=tuple(failures))


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


def judge_training(measured: Mapping[str, int], expected: Mapping[str, int], wrong_sums: int) -> Found:
    """Each role within 1 % of its tensors, and the holders add up everywhere."""
    failures = [text for name in expected for text in near(name, measured.get(name, 0), expected[name])]
    if wrong_sums:
        failures.append(f"at {wrong_sums} records the holders do not add up to the total")
    shown = "; ".join(
        f"{name} {megabytes(measured.get(name, 0))} of {megabytes(size)}" for name, size in expected.items()
    )
    return Found(case="training", measured=shown, failures=tuple(failures))


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
    most: dict[str, int] = {}
    wrong = 0
    for record in range(-1, len(blocks.time_ns)):
        table = whose.at(record, -1)
        wrong += sum(holding.bytes for holding in table) != blocks.total(record)
        for holding in table:
            most[holding.name] = max(most.get(holding.name, 0), holding.bytes)
    expected = {
        "parameters of model": parameters,
        "gradients of model": parameters,
        "state of optimizer": state,
    }
    return judge_training(most, expected, wrong)


def judge_leak(report: Mapping[str, Any], step_bytes: int = LEAK_BYTES) -> Found:
    """The list is named with its bytes per step and its line."""
    growing = report["views"].get("memory", {}).get("growing") or []
    failures = []
    if [one["name"] for one in growing] != ["kept"]:
        failures.append(f"what grows is {[one['name'] for one in growing]}, not kept")
    else:
        failures += near("bytes per step of kept", growing[0]["bytes"], step_bytes)
        if growing[0]["line"] != 4:
            failures.append(f"its line is {growing[0]['line']}, not 4")
    failures += near("growth of the total", report["memory"]["growth_bytes_per_step"] or 0, step_bytes)
    return Found(case="leak", measured=f"{growing} of {step_bytes:,} bytes per step", failures=tuple(failures))


def leak(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(LEAK_SETUP)
    report = notebook.report(LEAK)
    return Found(case="leak", measured="dry run") if REDUCED else judge_leak(report)


def judge_churn(report: Mapping[str, Any]) -> Found:
    """Every recorded step has calls of both kinds, and reserved memory falls and rises."""
    calls = report["views"].get("memory", {}).get("calls") or []
    steps = {step for _, _, _, _, step in calls}
    reserved = report["views"]["heartbeat"]["reserved"]
    failures = []
    if steps != set(range(1, report["steps"]["count"] + 1)):
        failures.append(f"calls in steps {sorted(steps)} of {report['steps']['count']}")
    if not any("given back" in what for _, _, _, what, _ in calls):
        failures.append("no call gave memory back")
    if min(reserved) > 0.5 * max(reserved):
        failures.append(f"reserved memory only fell from {max(reserved):,} to {min(reserved):,}")
    total = sum(count for _, _, count, _, _ in calls)
    return Found(case="churn", measured=f"{total} calls in {len(steps)} steps", failures=tuple(failures))


def churn(notebook: Notebook, _pairs: int) -> Found:
    """See the module."""
    notebook.run(CHURN_SETUP)
    report = notebook.report(CHURN)
    return Found(case="churn", measured="dry run") if REDUCED else judge_churn(report)


def judge_failure(report: Mapping[str, Any], big_bytes: int = 4 * BIG) -> Found:
    """The line of the backward call, the request, and the three largest holders."""
    failed = report["views"].get("memory", {}).get("out_of_memory")
    if failed is None:
        return Found(case="failure", measured="", failures=("the report knows of no request that failed",))
    first = failed["holders"][:3]
    failures = []
    if failed["line"] != FAILURE_LINE:
        failures.append(f"the line is {failed['line']}, not {FAILURE_LINE}")
    if {one["name"] for one in first} != FAILURE_HOLDERS:
        failures.append(f"the largest holders are {[one['name'] for one in first]}, not {sorted(FAILURE_HOLDERS)}")
    failures += [text for one in first for text in near(one["name"], one["bytes"], big_bytes)]
    failures += near("the request", failed["tried_bytes"] or 0, big_bytes, 0.02)
    shown = ", ".join(f"{one['name']} {megabytes(one['bytes'])}" for one in first)
    return Found(case="failure", measured=f"line {failed['line']}: {shown}", failures=tuple(failures))


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


def judge_cost(
    recorded: Sequence[tuple[float, float]], unprofiled: Sequence[tuple[float, float]], *, most: float = COST
) -> Found:
    """Medians of pairs, each (with memory, without), in ms."""
    ratio = median(one / other for one, other in recorded)
    same = median(one / other for one, other in unprofiled)
    failures = [] if ratio <= most else [f"recording takes {ratio:.2f} times as long with memory, not {most:.2f}"]
    if not 1 / SAME_STEP <= same <= SAME_STEP:
        failures.append(f"the unprofiled step changes by {same:.3f} times")
    ratios = [one / other for one, other in recorded]
    measured = (
        f"recorded step {ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f}) times, unprofiled step {same:.3f} times, "
        f"{len(ratios)} pairs"
    )
    return Found(case="cost", measured=measured, failures=tuple(failures))


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
    "attention": attention,
    "leak": leak,
    "churn": churn,
    "snapshot": snapshot,
    "training": training,
    "failure": failure,
}
"""The cost comes first, while the process is fresh; what limits the memory comes last."""


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
