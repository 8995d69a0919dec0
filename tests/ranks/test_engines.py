"""The README's example: a notebook with two local ipyparallel engines, %%px, and one joint report under the cell."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.job import LATE_S, OWN_S

for module in ("ipyparallel", "nbclient", "nbformat"):
    pytest.importorskip(module, reason=f"{module} is not installed")

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """
import ipyparallel
cluster = ipyparallel.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync(activate=True)
for rank, engine in enumerate(engines):
    engine.push({"RANK": rank}, block=True)
"""
SETUP = """%%px
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
%load_ext ipyprof
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:PORT", rank=RANK, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.ones(16, 64)] * 9
"""
PROFILED = f"""%%px
%%gpuprofile --ranks auto
for batch in batches:
    time.sleep({OWN_S} + {LATE_S} * (RANK == 1))
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
STOP = "cluster.stop_cluster_sync()"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def shown(cell: Any) -> list[str]:
    """The texts that a cell displayed, each in one line; what it printed is not among them."""
    texts = (output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return [" ".join(text.split()) for text in texts if text]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook after it ran; its kernel and engines have ended."""
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sources = (CLUSTER, SETUP.replace("PORT", str(free_port())), PROFILED, STOP)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    return nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_two_engines_show_one_report(notebook: Any) -> None:
    # given a notebook whose two engines are the ranks of a process group, when a cell was profiled on both
    texts = shown(notebook.cells[2])
    # then the report of both is shown once
    reports = [text for text in texts if "Rank 1 is late by" in text]
    assert len(reports) == 1 and "its Python takes" in reports[0]
