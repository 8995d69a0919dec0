"""Ranks on real GPUs: planted delays, and whether the right rank, cause and amount are named.

    python -m tests.gpu.ranks_suite [--ranks N] [--case NAME ...] [--out FOLDER]

Starts N ranks (2 if not given) with torch's launcher, over NCCL where there are as many GPUs, else a dry run over Gloo
on the CPU, which shows that the script works and judges neither amounts nor balance. Each case is recorded with
``ranks="auto"``. Prints a Markdown table; the exit code is 1 when a case is not what was planted: rank and cause must
be right, and ``late_ms`` within 10 % of the planted delay.

What is right is timed by hand in the same process, over the same loop without its collectives (``no_sync``). The
planted delay is the late rank's step with the plant less that without it. Where no rank is late, a step with its
collectives is set against one without, or against the recorded time of the collectives alone where that is longer: with
all of them hidden no step is shorter. If that gains a tenth, the finding ``communication`` must be there, and the
predicted share of the step at most a tenth of the step above it; if it gains a twentieth or less, it must not be there.
Steps 15 to 18 are recorded: in its first ten DistributedDataParallel times itself, and its host waits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

LIMIT_S = 540
WITHIN = 0.10
SLEEP_S = 0.020
PRODUCTS = 40
STEPS, WAIT = 60, 12
RUNS, STEPS_PER_RUN = 8, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One planted job.

    Attributes:
        plant: what the last rank has more of: ``gpu``, ``host``, ``loader`` or empty.
        cause: what must be named for it; empty: balanced.
        plain: no rank is late, and the loop is timed without its collectives too.
        layers, width, batch: of the model; the gradient is ``layers · width²`` numbers of 16 bits.
        bucket_mb: DDP's bucket.
        read: the loss is read in each step, so that the host does not run ahead and a sleep delays all of its length.
    """

    name: str
    plant: str = ""
    cause: str = ""
    plain: bool = False
    layers: int = 8
    width: int = 4096
    batch: int = 4096
    bucket_mb: int = 25
    read: bool = True


CASES = (
    Case(name="balanced"),
    Case(name="gpu_work", plant="gpu", cause="compute"),
    Case(name="host_sleep", plant="host", cause="host"),
    Case(name="loader_sleep", plant="loader", cause="loader"),
    Case(name="communication_bound", plain=True, layers=8, width=8192, batch=64, bucket_mb=200, read=False),
    Case(name="overlapped", plain=True, batch=16384, read=False),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every case was named right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.ranks_suite", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    names = asked.case or [case.name for case in CASES]
    if asked.worker:
        return work(names, asked.out)
    folder = asked.out or Path(tempfile.mkdtemp(prefix="ranks-suite-"))
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(asked.ranks)]
    command += ["-m", "tests.gpu.ranks_suite", "--worker", "--out", str(folder)]
    for name in names:
        command += ["--case", name]
    try:
        code = subprocess.run(command, timeout=LIMIT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"the job did not end within {LIMIT_S} s", file=sys.stderr)
        code = 1
    return max(judge(names, folder, asked.ranks), min(code, 1))


def judge(names: Sequence[str], folder: Path, ranks: int) -> int:
    """Print the table of what was found; 1 when a case is missing or wrong."""
    wrong = 0
    print(
        "\n| case | planted | late_ms | rank, cause | communication | step ms | predicted | by hand with, without "
        "| sentence | right |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        if case.name not in names:
            continue
        path = folder / f"{case.name}.json"
        if not path.exists():
            wrong += 1
            print(f"| {case.name} | - | - | - | - | - | - | - | nothing was recorded | NO |")
            continue
        found = json.loads(path.read_text())
        reason = fault(case, found, ranks)
        wrong += bool(reason)
        late = found["straggler"] or {}
        planted, amount = _or_dash(found["planted_ms"]), _or_dash(late.get("late_ms"))
        who = "-" if not late else f"{late['rank']}, {late['cause']}"
        print(
            f"| {case.name} | {planted} | {amount} | {who} | {found['communication']} | {found['step_ms']:.2f} "
            f"| {_or_dash(found['predicted_ms'])} | {_or_dash(found['with_ms'])}, {_or_dash(found['without_ms'])} "
            f"| {found['sentence']} | {'yes' if not reason else f'NO: {reason}'} |"
        )
    return min(wrong, 1)


def fault(case: Case, found: dict[str, Any], ranks: int) -> str:
    """Why the report of a case is not what was planted, or empty."""
    late = found["straggler"]
    if found["count"] != ranks or found["missing"]:
        return f"{found['count']} of {ranks} ranks"
    if not case.cause:
        if not found["cuda"]:
            return ""  # steps of a few ms on a busy CPU are not balanced
        return "no rank is late" if late is not None else _communication_fault(found)
    if late is None:
        return f"rank {ranks - 1} is late"
    if (late["rank"], late["cause"]) != (ranks - 1, case.cause):
        return f"rank {ranks - 1}, {case.cause}"
    off = abs(late["late_ms"] / found["planted_ms"] - 1)
    return f"off by {off:.0%}" if found["cuda"] and off > WITHIN else ""


def _communication_fault(found: dict[str, Any]) -> str:
    """Why the finding is not what the loop without its collectives shows, or empty."""
    if found["without_ms"] is None:
        return ""
    hidden = max(found["without_ms"], found["communication_ms"] or 0.0)
    gained = 1 - hidden / found["with_ms"]
    named = found["communication"] == "found"
    if named == (gained < 0.05) and not 0.05 < gained < 0.10:
        return f"with its collectives hidden it is {gained:.0%} faster"
    if named and found["predicted_ms"] / found["step_ms"] > WITHIN + hidden / found["with_ms"]:
        return f"predicted {found['predicted_ms'] / found['step_ms']:.2f} of the step, not {1 - gained:.2f}"
    return ""


def _or_dash(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def work(names: Sequence[str], folder: Path) -> int:
    """One rank: every case in turn; rank 0 writes what its report says."""
    import torch
    import torch.distributed as dist

    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = torch.cuda.device_count() >= size
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo")
    for case in CASES:
        if case.name in names:
            found = record(case, rank, size, cuda=cuda)
            if rank == 0:
                (folder / f"{case.name}.json").write_text(json.dumps(found))
            dist.barrier()
    dist.destroy_process_group()
    return 0


def record(case: Case, rank: int, size: int, *, cuda: bool) -> dict[str, Any]:
    """What rank 0's report says of one case; of other ranks nothing that matters."""
    import torch
    import torch.distributed as dist

    import ipyprof

    loop = Loop(case, late=rank == size - 1, cuda=cuda)
    with ipyprof.profile(ranks="auto", quiet=True, wait=WAIT, warmup=2, active=4, name=case.name) as run:
        for inputs in loop.batches(STEPS):
            loop.step(inputs)
            run.step()
    planted_ms = with_ms = without_ms = None
    if case.plant:
        planted, plain = by_hand(loop, [{"collectives": False}, {"collectives": False, "planted": False}])
        told = torch.tensor([planted - plain], device=loop.device)
        dist.broadcast(told, src=size - 1)
        planted_ms = float(told.item())
    if case.plain:
        with_ms, without_ms = by_hand(loop, [{"collectives": True}, {"collectives": False}])
    if rank:
        return {}
    assert run.report is not None
    report = run.report.to_dict()
    own: dict[str, Any] = next((finding for finding in report["findings"] if finding["cause"] == "communication"), {})
    ranks = report["ranks"]
    return {
        "cuda": cuda,
        "planted_ms": planted_ms,
        "communication": own.get("status", "-"),
        "predicted_ms": own.get("predicted_step_ms"),
        "communication_ms": report["communication_total_ms"],
        "with_ms": with_ms,
        "without_ms": without_ms,
        "step_ms": report["steps"]["step_ms"],
        "verdict": report["verdict"]["headline"],
        "trust": [check["text"] for check in report["trust"] if check["status"] != "ok"],
        **{key: ranks[key] for key in ("count", "missing", "straggler", "sentence", "per_rank", "collectives")},
    }


class Loop:
    """A training loop of a case, on this rank.

    Attributes:
        device: of its tensors.
    """

    def __init__(self, case: Case, *, late: bool, cuda: bool) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        dtype = torch.bfloat16 if cuda else torch.float32
        width, batch, side = (case.width, case.batch, 4096) if cuda else (128, 64, 256)
        layers = (torch.nn.Linear(width, width) for _ in range(case.layers))
        self._parallel = DistributedDataParallel(
            torch.nn.Sequential(*layers).to(self.device, dtype),
            device_ids=[self.device] if cuda else None,
            bucket_cap_mb=case.bucket_mb,
            gradient_as_bucket_view=True,  # with gradients that stay: the same copies with collectives and without
        )
        self._optimizer = torch.optim.SGD(self._parallel.parameters(), lr=1e-4)
        self._data = torch.randn(batch, width, device=self.device, dtype=dtype)
        self._square = torch.randn(side, side, device=self.device, dtype=dtype)
        self._plant = case.plant if late else ""
        self._read = case.read

    def batches(self, steps: int, *, planted: bool = True) -> Any:
        """A loader of so many batches."""
        from torch.utils.data import DataLoader

        slow = planted and self._plant == "loader"
        items: Any = Items(steps, self._data, seconds=SLEEP_S if slow else 0.0)
        return DataLoader(items, batch_size=None)

    def step(self, inputs: Any, *, planted: bool = True) -> None:
        """One step."""
        import torch

        self._optimizer.zero_grad(set_to_none=False)
        if planted and self._plant == "host":
            time.sleep(SLEEP_S)
        if planted and self._plant == "gpu":
            for _ in range(PRODUCTS):
                torch.mm(self._square, self._square)
        loss = self._parallel(inputs).float().square().mean()
        loss.backward()
        self._optimizer.step()
        if self._read:
            loss.item()

    def step_ms(self, steps: int, *, collectives: bool, planted: bool = True) -> float:
        """Mean ms of so many steps between two synchronisations."""
        import torch

        wait = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        with nullcontext() if collectives else self._parallel.no_sync():
            wait()
            begin = time.perf_counter()
            for inputs in self.batches(steps, planted=planted):
                self.step(inputs, planted=planted)
            wait()
            return (time.perf_counter() - begin) * 1e3 / steps


class Items:
    """A data set of the same batch again and again, each after so many seconds."""

    def __init__(self, count: int, batch: Any, *, seconds: float) -> None:
        self._count, self._batch, self._seconds = count, batch, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if self._seconds:
            time.sleep(self._seconds)
        return self._batch


def by_hand(loop: Loop, forms: Sequence[dict[str, bool]]) -> list[float]:
    """Median step in ms of each form of the loop; the forms take turns, and the first turn does not count."""
    taken = [[loop.step_ms(STEPS_PER_RUN, **form) for form in forms] for _ in range(RUNS)]
    return [median(column) for column in zip(*taken[1:], strict=True)]


if __name__ == "__main__":
    sys.exit(main())
