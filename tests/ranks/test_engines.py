"""A notebook with two local ipyparallel engines: each records, rank 0's engine shows the joint report."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.job import LATE_S, OWN_S

ipyparallel = pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")

ROOT = Path(__file__).resolve().parents[2]
SETUP = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
%load_ext ipyprof
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.ones(16, 64)] * 9
"""
# What stands below %%px in the notebook; see the README.
CELL = f"""%%gpuprofile --ranks auto
for batch in batches:
    time.sleep({OWN_S} + {LATE_S} * (RANK == 1))
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """The texts that an engine displayed, each in one line."""
    return [" ".join(str(one.get("data", {}).get("text/plain", "")).split()) for one in outputs]


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two local engines, each of which knows its rank."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ipyparallel.Cluster(n=2, log_level=40, profile_dir=str(tmp_path / "profile")) as client:
        port = free_port()
        for rank, engine in enumerate(client):
            engine.push({"RANK": rank, "PORT": port}, block=True)
        yield client


def test_two_engines_show_one_report(engines: Any) -> None:
    # given two engines with a process group
    view = engines[:]
    view.execute(SETUP, block=False).get(timeout=120)
    # when a cell is profiled on both
    result = view.execute(CELL, silent=False, block=False)
    result.get(timeout=120)
    # then the first shows the report of both, and the second nothing
    first, second = (shown(outputs) for outputs in result.outputs)
    assert any("Rank 1 is late by" in text and "its Python takes" in text for text in first)
    assert second == []
