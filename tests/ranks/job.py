"""One rank of a small job on the CPU, for ``torchrun``: planted delays on the last rank, recorded as one of several.

    torchrun --nproc-per-node 2 tests/ranks/job.py CASE,CASE... FOLDER

Each case is a run of its own. Rank 0 prints the reports and writes their JSON to FOLDER. Cases: see ``CASES``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ipyprof

CASES = ("balanced", "compute", "loader", "host", "fsdp", "short", "raises", "dies", "unmade")
LATE_S = 0.080
OWN_S = 0.080
"""What every rank does before its forward pass, so that noise of a busy machine is small against the step."""
STEPS = 9


class Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    """As many as there are steps; a late loader sleeps before each."""

    def __init__(self, sleep_s: float) -> None:
        super().__init__()
        self.sleep_s = sleep_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(STEPS):
            time.sleep(self.sleep_s)
            yield torch.ones(16, 64)


def busy(seconds: float) -> None:
    """Operators for so long."""
    matrix = torch.ones(96, 96)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.mm(matrix, matrix)


def run(case: str, late: bool) -> ipyprof.profile:
    """One recorded loop of the case."""
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    if case == "fsdp":
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    elif case != "unmade":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Batches(LATE_S if case == "loader" and late else 0.0), batch_size=None)
    with ipyprof.profile(ranks="auto", wait=1, warmup=1, active=4, name=case) as recorded:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            time.sleep(OWN_S + (LATE_S if case in ("host", "fsdp") and late else 0.0))
            if case == "compute" and late:
                busy(LATE_S)
            model(batch).sum().backward()
            optimizer.step()
            recorded.step()
            if late and case == "raises" and number == 7:
                raise ValueError("boom")
            if late and case == "dies" and number == STEPS - 1:
                os._exit(3)
            if case == "short" and number == 4:
                break
    return recorded


def main() -> None:
    cases, folder = sys.argv[1].split(","), Path(sys.argv[2])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if "unmade" not in cases:
        dist.init_process_group("gloo")
    for case in cases:
        recorded = run(case, rank == size - 1)
        if rank == 0 and recorded.report is not None:
            (folder / f"{case}.json").write_text(json.dumps(recorded.report.to_dict()))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
