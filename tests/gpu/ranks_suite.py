"""Ranks on real GPUs: planted delays, and whether the right rank, cause and amount are named.

    python -m tests.gpu.ranks_suite [--ranks N] [--case NAME ...] [--out FOLDER]

Starts N ranks (2 if not given) with torch's launcher, over NCCL where there are as many GPUs, else a dry run over Gloo
on the CPU, which shows that the script works and judges neither amounts nor balance. Each case is recorded with
``ranks="auto"``. Prints a Markdown table; the exit code is 1 when a case is not what was planted: rank and cause must
be right, and ``late_ms`` within 10 % of the planted delay, which is measured in the same process. Where no rank is
late, the same loop is also timed without its collectives (``no_sync``): if that is a tenth faster or more, the finding
``communication`` must be there with a predicted step of at most 1.1 times that; if it is a twentieth faster or less, it
must not be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

LIMIT_S = 540
WITHIN = 0.10
SLEEP_S = 0.020
PRODUCTS = 40
STEPS = 16


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
    Case(name="many_launches", plain=True, layers=24, batch=64, bucket_mb=200, read=False),
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
        "\n| case | planted | late_ms | rank, cause | communication | step ms | predicted without | without, by hand "
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
            f"| {_or_dash(found['predicted_ms'])} | {_or_dash(found['without_ms'])} | {found['sentence']} "
            f"| {'yes' if not reason else f'NO: {reason}'} |"
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
    without = found["without_ms"]
    if without is None:
        return ""
    gained = 1 - without / found["step_ms"]
    if gained >= 0.10:
        if found["communication"] != "found":
            return f"without its collectives it is {gained:.0%} faster"
        most = 1.10 * without
        return f"predicted over 1.1 × {without:.2f} ms" if (found["predicted_ms"] or 0.0) > most else ""
    return (
        f"without its collectives it is {gained:.0%} faster"
        if gained <= 0.05 and found["communication"] == "found"
        else ""
    )


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
    from torch.nn.parallel import DistributedDataParallel

    import ipyprof

    device = torch.device("cuda" if cuda else "cpu")
    dtype = torch.bfloat16 if cuda else torch.float32
    width, batch = (case.width, case.batch) if cuda else (128, 64)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(case.layers))).to(device, dtype)
    parallel = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if cuda else None,
        bucket_cap_mb=case.bucket_mb,
        gradient_as_bucket_view=True,  # with gradients that stay: the same copies with collectives and without
    )
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-4)
    data = torch.randn(batch, width, device=device, dtype=dtype)
    square = torch.randn(4096 if cuda else 256, 4096 if cuda else 256, device=device, dtype=dtype)
    late = rank == size - 1
    planted_ms = _planted(case, square, rank, size, cuda=cuda)

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            if case.plant == "loader" and late:
                time.sleep(SLEEP_S)
            yield data

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[torch.Tensor]:
            return batches()

    loader = torch.utils.data.DataLoader(Stream(), batch_size=None)

    def step(inputs: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        if case.plant == "host" and late:
            time.sleep(SLEEP_S)
        if case.plant == "gpu" and late:
            for _ in range(PRODUCTS):
                torch.mm(square, square)
        loss = parallel(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        if case.read:
            loss.item()

    with ipyprof.profile(ranks="auto", quiet=True, wait=3, warmup=2, active=4, name=case.name) as run:
        for inputs in loader:
            step(inputs)
            run.step()
    without_ms = None
    if case.plain:
        with parallel.no_sync():
            without_ms = _step_ms(lambda: step(data), cuda=cuda)
    if rank:
        return {}
    assert run.report is not None
    plain = run.report.to_dict()
    own: dict[str, Any] = next((finding for finding in plain["findings"] if finding["cause"] == "communication"), {})
    ranks = plain["ranks"]
    return {
        "cuda": cuda,
        "planted_ms": planted_ms,
        "communication": own.get("status", "-"),
        "predicted_ms": own.get("predicted_step_ms"),
        "without_ms": without_ms,
        "step_ms": ranks["step_ms"] or 0.0,
        "verdict": plain["verdict"]["headline"],
        "trust": [check["text"] for check in plain["trust"] if check["status"] != "ok"],
        **{key: ranks[key] for key in ("count", "missing", "straggler", "sentence", "per_rank", "collectives")},
    }


def _step_ms(step: Callable[[], None], *, cuda: bool) -> float:
    """Median ms of a step of five runs of twenty, each between two synchronisations; three steps before them."""
    import torch

    wait = torch.cuda.synchronize if cuda else lambda: None
    taken = []
    for steps in (3, 20, 20, 20, 20, 20):
        wait()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        taken.append((time.perf_counter() - begin) * 1e3 / steps)
    return median(taken[1:])


def _planted(case: Case, square: Any, rank: int, size: int, *, cuda: bool) -> float | None:
    """ms that the late rank has more: the sleep, or its products as they run alone on that rank's device."""
    import torch
    import torch.distributed as dist

    if case.plant in ("host", "loader"):
        return SLEEP_S * 1e3
    if case.plant != "gpu":
        return None
    times = []
    for _ in range(5):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(square, square)
        if cuda:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    told = torch.tensor([sorted(times)[2]], device=square.device)
    dist.broadcast(told, src=size - 1)
    return float(told.item())


if __name__ == "__main__":
    sys.exit(main())
