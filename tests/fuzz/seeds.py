"""Small sound files that are damaged: one of everything that the reader and the analyses look at."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from ipyprof.trace.live import LiveRecord, SyncSite
from tests.builder import TraceBuilder

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SMALL_BYTES = 9_000

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def built() -> TraceBuilder:
    """Three steps with a fetch, a product, a copy, a collective, an allocation, a read, a graph and backward work."""
    builder = TraceBuilder()
    builder.device()
    builder.metadata(record_shapes=1, baseTimeNanoseconds=1_700_000_000_000_000_000)
    builder.thread_name(2, "pt_autograd_0")
    for number in range(3):
        at = number * 2_000.0
        builder.step(number, at, at + 1_990)
        builder.loader(at + 5, at + 200)
        builder.line(3, at + 210, at + 900)
        builder.op(
            "aten::mm", at + 220, at + 260, sequence=number, shapes=[[64, 63], [63, 64]], strides=[[63, 1], [64, 1]],
            dtypes=["float", "float"], concrete=["", ""],
        )  # fmt: skip
        builder.launch(at + 230, 6, "volta_sgemm_128x64_nn", at + 240, 120, grid=(4, 2, 1))
        builder.op("aten::copy_", at + 270, at + 330, shapes=[[1024], [1024]], dtypes=["float", "float"])
        builder.copy(at + 280, 40, "HtoD pageable", at + 362, 30, 4096)
        builder.op("autograd::engine::evaluate_function: MmBackward0", at + 400, at + 460, tid=2, sequence=number)
        builder.launch(at + 410, 5, "elementwise_kernel", at + 420, 50, tid=2)
        collective = {"Collective name": "allreduce", "In msg nelems": 1024, "Group size": 2, "dtype": "Float"}
        builder.launch(at + 470, 5, NCCL, at + 480, 60, stream=20, **collective)
        builder.call("cudaMalloc", at + 500, 80)
        builder.op("aten::item", at + 600, at + 800)
        builder.copy(at + 610, 10, "DtoH", at + 625, 2, 4)
        builder.sync(at + 622, 10, "cudaStreamSynchronize")
        builder.graph(at + 910, 20, [("a", at + 940, 10), ("b", at + 951, 10)])
        builder.fill(at + 960, 5, at + 970, 4, 512)
        builder.memory(at + 225, 4096, 8192, 1 << 21)
        builder.memory(at + 900, -4096, 4096, 1 << 21)
        builder.flow(at + 220, at + 400)
    return builder


def live_record() -> LiveRecord:
    """What a live run of ``built`` would know."""
    return LiveRecord(
        source="%%gpuprofile\nfor x in loader:\n    loss += (x @ w).item()",
        how="loop at line 2",
        mark="loop",
        loop_line=2,
        loop_is_for=True,
        baseline_ns=(1_500_000, 1_510_000, 1_490_000),
        baseline="after",
        profiled_ns=(2_000_000, 2_000_000, 2_000_000),
        cuda=True,
        environment={"torch": "2.11.0", "cuda": "13.0"},
        device_names={"0": "NVIDIA H200"},
        sync_sites=(SyncSite(file="<cell>", line=3, count=1.0, in_cell=True),),
        utilization=0.5,
        notes=(("profiler", "ok", "fine"),),
    )


def seeds() -> list[Any]:
    """JSON values: built traces without and with a live record, a saved report, and the smallest recorded ones."""
    from ipyprof.report.build import report_of
    from ipyprof.report.report import Source

    plain, live = built(), built()
    live.live(live_record())
    report = report_of(plain.trace(), Source(kind="file", path="trace.json"))
    values = [json.loads(plain.json()), json.loads(live.json()), json.loads(plain.json())["traceEvents"]]
    values.append(json.loads(json.dumps(report.to_dict())))
    for path in sorted(FIXTURES.glob("*.json.gz")):
        if path.stat().st_size < SMALL_BYTES:
            values.append(json.loads(gzip.decompress(path.read_bytes())))
    return values
