"""Reports as the renderers get them, with the numbers of H200 recordings; curves and lanes are built by rule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from ipyprof.analysis.results import (
    Breakdown,
    Bubble,
    Heartbeat,
    Holder,
    Kernel,
    Lane,
    Line,
    Memory,
    Operator,
    RecordedStep,
    RuntimeDetail,
    Timeline,
    Utilization,
)
from ipyprof.diagnosis.cause import Finding, Site, Verdict, Where
from ipyprof.report.report import Device, Report, Source, StepTimes, Throughput, TrustCheck, Views, Without

ENVIRONMENT: dict[str, str | None] = {"torch": "2.11.0+cu130", "cuda": "13.0", "cupti": "13.0.1", "python": "3.12.3"}
H200 = Device(name="NVIDIA H200", index=0)


def operator(
    name: str, ms: float, calls: float, total: float, bound: str, core: str = "n/a", amdahl: float | None = None
) -> Operator:
    return Operator(
        name=name,
        calls=calls,
        self_device_ms=ms,
        total_device_ms=ms,
        self_host_ms=0.01 * calls,
        total_host_ms=0.012 * calls,
        share=ms / total,
        bound=bound,
        tensor_core=core,
        amdahl_share=amdahl,
    )


def heartbeat(peak: float, floor: float, reserved: float, step_ms: float, *, points: int = 400) -> Heartbeat:
    """Three beats that rise and fall; the second touches the peak exactly."""
    time, used = [], []
    for step in range(3):
        for index in range(points // 3):
            turn = index / (points // 3)
            beat = math.sin(math.pi * turn) ** 2
            time.append(step * step_ms + turn * step_ms)
            used.append(round(floor + (peak - floor) * beat * (1.0 if step == 1 else 0.97)))
    used[used.index(max(used))] = round(peak)
    return Heartbeat(
        time_ms=tuple(time),
        allocated=tuple(used),
        reserved=(round(reserved),) * len(time),
        marks_ms=(0.0, step_ms, 2 * step_ms),
    )


def lane(name: str, kind: str, segments: Iterable[Iterable[Any]]) -> Lane:
    return Lane(name=name, kind=kind, segments=tuple((start, end, key, text) for start, end, key, text in segments))


def sync() -> Report:
    """60 products, each followed by a read of one value."""
    parts = Breakdown(
        kernel=0.82, memcpy=0.09, memset=0.0, communication=0.0, data_loading=0.0, runtime=0.89, cpu=2.00, other=0.0
    )
    total = 0.91
    operators = (
        operator("aten::mm", 0.75, 60, total, "launch", "no", 0.19),
        operator("aten::_local_scalar_dense", 0.08, 60, total, "copy", amdahl=0.02),
        operator("aten::tanh", 0.08, 60, total, "launch", amdahl=0.02),
    )
    lines = [
        ("%%gpuprofile", None, None),
        ("for step in range(30):", 0.0, 0.01),
        ("    h = x", 0.0, 0.0),
        ("    total = 0.0", 0.0, 0.0),
        ("    for w in weights:              # 60 products", 0.0, 0.04),
        ("        h = torch.tanh(h @ w)", 0.82, 1.86),
        ("        total += h[0, 0].item()", 0.09, 1.88),
        ("    history.append(total)", 0.0, 0.01),
    ]
    gpu, main = [], []
    for index in range(60):
        start = index * 5.55 / 60
        main += [
            [start, start + 0.033, "cpu", "torch.tanh(h @ w)"],
            [start + 0.033, start + 0.052, "runtime", "cudaLaunchKernel"],
            [start + 0.054, start + 0.066, "cpu", ""],
            [start + 0.067, start + 0.083, "runtime", ".item()"],
        ]
        gpu += [
            [start + 0.043, start + 0.053, "kernel", "gemm"],
            [start + 0.054, start + 0.057, "kernel", "tanh"],
            [start + 0.072, start + 0.0735, "memcpy", ""],
        ]
    bubble_start = 21 * 5.55 / 60 + 0.0735
    views = Views(
        heartbeat=heartbeat(72.4e6, 70.9e6, 73.4e6, 5.55),
        without=Without(
            label="the reads",
            step_ms=2.50,
            breakdown=Breakdown(
                kernel=0.82,
                memcpy=0.0,
                memset=0.0,
                communication=0.0,
                data_loading=0.0,
                runtime=0.62,
                cpu=1.06,
                other=0.0,
            ),
        ),
        per_step=tuple(
            RecordedStep(
                step=number,
                step_ms=5.55 + 0.02 * number,
                breakdown=Breakdown(
                    kernel=0.82,
                    memcpy=0.09,
                    memset=0.0,
                    communication=0.0,
                    data_loading=0.0,
                    runtime=1.4,
                    cpu=3.24 + 0.02 * number,
                    other=0.0,
                ),
                operators=operators,
            )
            for number in (1, 2, 3)
        ),
        timeline=Timeline(
            start_ms=0.0,
            end_ms=5.55,
            lanes=(
                lane("host, main", "host", main),
                lane("GPU", "device", gpu),
            ),
            bubble=Bubble(
                lane="GPU",
                start_ms=bubble_start,
                end_ms=bubble_start + 0.062,
                text="GPU dry for 62 µs: after each .item() nothing is queued (line 7)",
            ),
        ),
    )
    place = Where(operator="aten::item", line=7)
    return Report(
        source=Source(kind="live", cell=tuple(source for source, _, _ in lines), created="2026-11-29T12:00:00Z"),
        environment=ENVIRONMENT,
        device=H200,
        devices=(structs.replace(H200, busy_share=0.22),),
        steps=StepTimes(
            count=3,
            how="loop at line 2",
            step_ms=3.80,
            profiled_step_ms=5.59,
            overhead=1.47,
            per_step_ms=(3.79, 3.80, 3.82),
            profiled_per_step_ms=(5.57, 5.59, 5.61),
            baseline="after",
        ),
        breakdown=parts,
        runtime_detail=RuntimeDetail(launch=0.55, sync=0.3, allocator=0.0, other=0.04),
        communication_total_ms=0.0,
        utilization=Utilization(nvml=0.33, kernel_busy=0.216, sm_coverage=0.22, mfu=0.063),
        operators=operators,
        kernels=(Kernel(name="sm80_xmma_gemm_f32", calls=60, device_ms=0.75, tensor_core="no", bound="launch"),),
        lines=tuple(
            Line(
                line=number,
                source=source,
                device_ms=device or 0.0,
                host_ms=host or 0.0,
                sync_count=60 if number == 7 else 0,
            )
            for number, (source, device, host) in enumerate(lines, start=1)
        ),
        memory=Memory(
            peak_bytes=72_400_000,
            peak_at_ms=8.325,
            peak_operator="aten::tanh",
            peak_line=6,
            reserved_peak_bytes=73_400_000,
            growth_bytes_per_step=0,
            holders=(
                Holder(name="weights", bytes=62_900_000, line=None),
                Holder(name="library workspace", bytes=6_300_000),
                Holder(name="x, h and the product", bytes=3_100_000, line=6),
            ),
        ),
        findings=(
            Finding(
                cause="host_sync",
                status="found",
                recoverable_ms=1.30,
                predicted_step_ms=2.50,
                speedup_bound=1.52,
                where=place,
                sites=(Site(where=place, status="found", count=60, recoverable_ms=1.30),),
                evidence="60 × aten::item → cudaStreamSynchronize, line 7",
                advice="Change one thing: keep the sum on the GPU and read it once, after the loop.",
                change=(
                    "        total += h[0, 0].item()",
                    "        total += h[0, 0]          # a tensor: stays on the GPU",
                ),
            ),
            Finding(
                cause="launch_bound",
                status="found",
                recoverable_ms=1.59,
                evidence="comes second: a CUDA graph cannot hold a read-back; then 2.50 → 0.91 ms",
            ),
            Finding(cause="data_loading", status="cleared", recoverable_ms=0.0, evidence="no loader in the loop"),
            Finding(
                cause="allocator",
                status="cleared",
                recoverable_ms=0.0,
                evidence="no cudaMalloc or cudaFree inside the steps",
            ),
            Finding(
                cause="tensor_cores",
                status="cleared",
                recoverable_ms=0.06,
                evidence="float32 on purpose or not: hidden behind the host",
            ),
            Finding(cause="transfer", status="cleared", recoverable_ms=0.09, evidence="all below 5 % of the step"),
            Finding(cause="memory_bound", status="cleared", recoverable_ms=0.03, evidence="all below 5 % of the step"),
            Finding(cause="straggler", status="cleared", evidence="one process"),
            Finding(cause="communication", status="cleared", evidence="one process"),
            Finding(cause="unstable_shapes", status="unknown", evidence="shapes were not recorded"),
        ),
        verdict=Verdict(
            cause="host_sync",
            headline="Line 7 reads a number back 60 times per step and the GPU runs dry each time (34 %, 1.30 ms); "
            "without .item() at most 1.5× faster.",
            advice="Change one thing: keep the sum on the GPU and read it once, after the loop.",
            change=(
                "        total += h[0, 0].item()",
                "        total += h[0, 0]          # a tensor: stays on the GPU",
            ),
            bound="CPU-bound",
            recoverable_ms=1.30,
            predicted_step_ms=2.50,
            speedup_bound=1.52,
            confidence="high",
            next="launch_bound",
            next_ms=0.62,
            next_text="then launches: 0.62 of 2.50 ms",
        ),
        trust=(
            TrustCheck(check="steps", status="ok", text="3 steps within ±1 %"),
            TrustCheck(check="records", status="ok", text="no record lost, none carried over"),
            TrustCheck(check="clock", status="ok", text="host and GPU clocks agree"),
            TrustCheck(check="processes", status="ok", text="no other process on the GPU"),
            TrustCheck(check="throttling", status="ok", text="no throttling"),
            TrustCheck(
                check="overhead",
                status="warn",
                text="recording made the step 47 % longer; corrected to the unprofiled step",
            ),
        ),
        views=views,
    )


def starvation() -> Report:
    """A convolutional net that waits for its loader."""
    parts = Breakdown(
        kernel=15.2, memcpy=5.6, memset=0.0, communication=0.0, data_loading=225.4, runtime=2.0, cpu=8.8, other=0.0
    )
    total = 20.84
    rows = [
        ("aten::copy_", 5.93, 246, "copy", "n/a"),
        ("aten::native_batch_norm", 3.47, 53, "memory", "n/a"),
        ("aten::convolution_backward", 3.14, 53, "compute", "yes"),
        ("aten::native_batch_norm_backward", 3.05, 53, "memory", "n/a"),
        ("aten::cudnn_convolution", 1.67, 53, "compute", "yes"),
        ("aten::add_", 1.02, 85, "memory", "n/a"),
        ("aten::threshold_backward", 0.87, 49, "memory", "n/a"),
        ("aten::clamp_min_", 0.56, 49, "memory", "n/a"),
        ("aten::max_pool2d_with_indices_backward", 0.46, 1, "memory", "n/a"),
        ("aten::max_pool2d_with_indices", 0.22, 1, "memory", "n/a"),
    ] + [(f"aten::small_{index}", 0.45 / 12, 2, "launch", "n/a") for index in range(12)]
    operators = tuple(operator(name, ms, calls, total, bound, core, ms / 257) for name, ms, calls, bound, core in rows)
    lines = [
        ("%%gpuprofile", 0.0, 0.0, 0),
        ("for x, y in train_loader:", 0.0, 225.4, 0),
        ('    x = x.to("cuda", memory_format=torch.channels_last)', 5.62, 6.1, 1),
        ('    y = y.to("cuda")', 0.01, 0.1, 1),
        ('    with torch.autocast("cuda", torch.bfloat16):', 0.0, 0.0, 0),
        ("        loss = loss_fn(model(x), y)", 14.85, 9.4, 0),
        ("    opt.zero_grad()", 0.08, 0.6, 0),
        ("    loss.backward()", 0.0, 12.9, 0),
        ("    opt.step()", 0.28, 2.5, 0),
    ]
    main = [[0.0, 218.0, "data_loading", "next(train_loader)"], [218.0, 224.0, "runtime", "cudaMemcpyAsync"]]
    autograd, gpu = [], [[218.2, 224.0, "memcpy", ""]]
    for index in range(120):
        start = 225 + index * 0.22
        main += [[start, start + 0.15, "cpu", ""], [start + 0.15, start + 0.2, "runtime", ""]]
        autograd += [[start + 26.4, start + 26.5, "cpu", ""], [start + 26.5, start + 26.55, "runtime", ""]]
        gpu += [[start + 0.3, start + 0.3 + 0.02 + 0.12 * (index % 7 == 0), "kernel", ""]]
        gpu += [[start + 26.6, start + 26.65 + 0.1 * (index % 3 == 0), "kernel", ""]]
    gpu.sort()
    views = Views(
        heartbeat=heartbeat(3_215e6, 421e6, 3_595e6, 272.0),
        without=Without(
            label="waiting for the loader",
            step_ms=31.6,
            breakdown=Breakdown(
                kernel=15.2,
                memcpy=5.6,
                memset=0.0,
                communication=0.0,
                data_loading=0.0,
                runtime=2.0,
                cpu=8.8,
                other=0.0,
            ),
        ),
        per_step=tuple(
            RecordedStep(
                step=number,
                step_ms=272.0 + number,
                breakdown=Breakdown(
                    kernel=15.2,
                    memcpy=5.6,
                    memset=0.0,
                    communication=0.0,
                    data_loading=235.0 + number,
                    runtime=3.2,
                    cpu=13.0,
                    other=0.0,
                ),
                operators=operators,
            )
            for number in (1, 2, 3)
        ),
        timeline=Timeline(
            start_ms=0.0,
            end_ms=280.0,
            lanes=(
                lane("host, main", "host", main),
                lane("autograd", "host", autograd),
                lane("GPU", "device", gpu),
            ),
            bubble=Bubble(
                lane="GPU",
                start_ms=0.0,
                end_ms=218.2,
                text="GPU waits for the next batch, line 2 (218 ms recorded)",
            ),
        ),
    )
    change = (
        "train_loader = DataLoader(ds, batch_size=64)",
        "train_loader = DataLoader(ds, batch_size=64, num_workers=8, pin_memory=True, persistent_workers=True)",
    )
    advice = "Change one thing: let worker processes load while the GPU computes."
    return structs.replace(
        sync(),
        source=Source(kind="live", cell=tuple(line[0] for line in lines)),
        steps=StepTimes(
            count=3,
            how="loop at line 2",
            step_ms=257.0,
            profiled_step_ms=272.0,
            overhead=1.06,
            per_step_ms=(254.0, 257.0, 261.0),
            profiled_per_step_ms=(271.0, 272.0, 274.0),
            throughput=Throughput(value=249, unit="img/s"),
            baseline="after",
        ),
        breakdown=parts,
        runtime_detail=RuntimeDetail(launch=1.6, sync=0.3, allocator=0.0, other=0.1),
        utilization=Utilization(nvml=0.09, kernel_busy=0.059, sm_coverage=0.056, mfu=0.006),
        operators=operators,
        lines=tuple(
            Line(line=number, source=source, device_ms=device, host_ms=host, sync_count=syncs)
            for number, (source, device, host, syncs) in enumerate(lines, start=1)
        ),
        memory=Memory(
            peak_bytes=3_215_000_000,
            peak_at_ms=408.0,
            peak_operator="aten::threshold_backward",
            peak_line=6,
            reserved_peak_bytes=3_595_000_000,
            growth_bytes_per_step=0,
            holders=(
                Holder(name="activations", bytes=2_690_000_000, line=6),
                Holder(name="parameters", bytes=102_000_000),
                Holder(name="gradients", bytes=98_000_000),
                Holder(name="SGD state", bytes=102_000_000),
                Holder(name="other", bytes=223_000_000),
            ),
        ),
        findings=(
            Finding(
                cause="data_loading",
                status="found",
                recoverable_ms=225.4,
                predicted_step_ms=31.6,
                speedup_bound=8.13,
                where=Where(line=2, scope="next(train_loader)"),
                evidence="next(train_loader) runs in the main process (num_workers=0), line 2",
                advice=advice,
                change=change,
            ),
            Finding(
                cause="cpu_bound",
                status="cleared",
                recoverable_ms=10.8,
                evidence="4 % of the step today; comes next once the loader is cured",
            ),
            Finding(
                cause="transfer",
                status="cleared",
                recoverable_ms=4.9,
                evidence="2 % of the step: 38.5 MB from pageable memory at 6.5 GB/s",
            ),
            Finding(
                cause="host_sync", status="cleared", recoverable_ms=0.1, evidence="2 syncs, both copies of the batch"
            ),
            Finding(
                cause="allocator",
                status="cleared",
                recoverable_ms=0.0,
                evidence="no cudaMalloc or cudaFree inside the steps",
            ),
            Finding(cause="straggler", status="unknown", evidence="one process, one GPU: nothing to compare"),
            Finding(cause="communication", status="unknown", evidence="one process, one GPU: nothing to compare"),
        ),
        trust=(
            *sync().trust[:5],
            TrustCheck(
                check="overhead",
                status="warn",
                text="recording made the step 6 % longer; corrected to the unprofiled step",
            ),
        ),
        verdict=Verdict(
            cause="data_loading",
            headline="Line 2 keeps the GPU waiting for the next batch 88 % of every step (225 of 257 ms); "
            "loading in parallel makes it at most 8.1× faster.",
            advice=advice,
            change=change,
            bound="IO-bound",
            recoverable_ms=225.4,
            predicted_step_ms=31.6,
            speedup_bound=8.13,
            confidence="high",
            next="cpu_bound",
            next_ms=9.3,
            next_text="then Python: 9.30 of 31.6 ms",
        ),
        views=views,
    )


def healthy() -> Report:
    """A transformer block whose GPU computes 96 % of the step."""
    base = sync()
    rows = [
        ("aten::mm", 6.34, 48, "compute", "yes"),
        ("aten::addmm", 3.32, 24, "compute", "yes"),
        ("aten::_cudnn_attention_backward", 2.17, 6, "compute", "yes"),
        ("aten::native_layer_norm_backward", 1.34, 12, "memory", "n/a"),
        ("aten::cat", 1.19, 6, "memory", "n/a"),
        ("aten::copy_", 1.07, 9, "memory", "n/a"),
        ("aten::sum", 0.97, 24, "memory", "n/a"),
        ("aten::gelu_backward", 0.73, 6, "memory", "n/a"),
        ("aten::_cudnn_attention_forward", 0.65, 6, "compute", "yes"),
        ("aten::gelu", 0.54, 6, "memory", "n/a"),
    ] + [(f"aten::small_{index}", 0.159, 2, "memory", "n/a") for index in range(10)]
    gpu = [[index * 0.0826, index * 0.0826 + 0.08, "kernel", ""] for index in range(250)]
    main = [[12 + index * 0.05, 12 + index * 0.05 + 0.03, "cpu", ""] for index in range(100)]
    return structs.replace(
        base,
        steps=structs.replace(
            base.steps,
            step_ms=20.6,
            profiled_step_ms=21.1,
            overhead=1.02,
            per_step_ms=(20.5, 20.6, 20.6),
            throughput=Throughput(value=795_340, unit="tokens/s"),
        ),
        breakdown=Breakdown(
            kernel=19.81,
            memcpy=0.10,
            memset=0.02,
            communication=0.0,
            data_loading=0.0,
            runtime=0.07,
            cpu=0.60,
            other=0.0,
        ),
        utilization=Utilization(nvml=1.0, kernel_busy=0.962, sm_coverage=0.92, mfu=0.433, tensor_core=0.61),
        operators=tuple(operator(name, ms, calls, 19.91, bound, core) for name, ms, calls, bound, core in rows),
        findings=tuple(
            structs.replace(
                finding,
                status="cleared",
                recoverable_ms=0.67 if finding.cause == "launch_bound" else 0.0,
                change=None,
                evidence="host runs 8 ms ahead of the GPU",
            )
            if finding.status == "found"
            else finding
            for finding in base.findings
        ),
        memory=Memory(
            peak_bytes=4_086_000_000,
            peak_at_ms=31.5,
            peak_operator="aten::mul",
            peak_line=4,
            reserved_peak_bytes=4_243_000_000,
            growth_bytes_per_step=0,
        ),
        verdict=Verdict(
            cause="compute_bound",
            headline="The GPU computes 96 % of every step (19.8 of 20.6 ms); "
            "removing every wait would make it at most 1.04× faster.",
            advice="Change nothing in the loop. To go faster, do less work: a smaller model, fewer tokens, "
            "or a lower precision (fp8) where accuracy allows.",
            bound="GPU-bound (compute)",
            recoverable_ms=0.69,
            predicted_step_ms=19.91,
            speedup_bound=1.04,
            confidence="high",
        ),
        views=Views(
            heartbeat=heartbeat(4_086e6, 706e6, 4_243e6, 21.0),
            timeline=Timeline(
                start_ms=0.0,
                end_ms=20.7,
                bubble=None,
                lanes=(
                    lane("host, main", "host", main),
                    lane("GPU", "device", gpu),
                ),
            ),
        ),
    )


def cpu_only() -> Report:
    """No GPU: the host's step, process memory, host time per operator."""
    base = starvation()
    beat = heartbeat(812e6, 640e6, 1.0, 41.0)
    return structs.replace(
        base,
        environment={"torch": "2.13.0+cpu", "cuda": None, "cupti": None, "python": "3.11.2"},
        device=None,
        devices=(),
        steps=StepTimes(
            count=3,
            how="loop at line 2",
            step_ms=38.2,
            profiled_step_ms=41.0,
            overhead=1.07,
            per_step_ms=(38.0, 38.2, 38.9),
            baseline="after",
        ),
        breakdown=Breakdown(
            kernel=None,
            memcpy=None,
            memset=None,
            communication=None,
            data_loading=21.1,
            runtime=None,
            cpu=16.6,
            other=0.5,
        ),
        runtime_detail=RuntimeDetail(launch=None, sync=None, allocator=None, other=None),
        communication_total_ms=None,
        utilization=Utilization(),
        operators=tuple(
            structs.replace(
                one,
                self_device_ms=None,
                total_device_ms=None,
                share=None,
                amdahl_share=None,
                bound="unknown",
                tensor_core="unknown",
            )
            for one in base.operators
        ),
        kernels=(),
        lines=tuple(
            structs.replace(line, device_ms=None, sync_count=None, host_ms=(line.host_ms or 0) / 7)
            for line in base.lines
        ),
        memory=Memory(peak_bytes=812_000_000, peak_at_ms=None),
        findings=(
            Finding(
                cause="data_loading",
                status="found",
                where=Where(line=2),
                evidence="55 % of the step is spent in next(train_loader), line 2",
            ),
            Finding(cause="host_sync", status="unknown", evidence="no GPU"),
            Finding(cause="allocator", status="unknown", evidence="no GPU"),
            Finding(cause="transfer", status="unknown", evidence="no GPU"),
            Finding(cause="launch_bound", status="unknown", evidence="no GPU"),
        ),
        verdict=Verdict(
            cause="data_loading",
            headline="Line 2 waits for the next batch 55 % of every step (21.1 of 38.2 ms); "
            "GPU time is not available here.",
            advice="Let worker processes load: num_workers=2 in the DataLoader.",
            bound="IO-bound",
            confidence="medium",
            reasons=("No GPU: the gain was not replayed",),
        ),
        trust=(TrustCheck(check="gpu", status="warn", text="GPU time is not available: torch sees no CUDA device"),),
        views=Views(
            heartbeat=Heartbeat(time_ms=beat.time_ms, process=beat.allocated, marks_ms=beat.marks_ms),
        ),
    )


def no_baseline() -> Report:
    """Recorded steps only: no overhead, confidence medium, cut short, no memory, no pictures but the donut."""
    base = sync()
    return structs.replace(
        base,
        source=structs.replace(base.source, partial="the cell raised ValueError in step 4; 2 recorded steps are shown"),
        steps=structs.replace(base.steps, count=2, step_ms=5.59, overhead=None, per_step_ms=(), baseline="none"),
        breakdown=Breakdown(
            kernel=0.82, memcpy=0.09, memset=0.0, communication=0.0, data_loading=0.0, runtime=1.44, cpu=3.24, other=0.0
        ),
        utilization=Utilization(kernel_busy=0.147),
        memory=None,
        lines=(),
        verdict=structs.replace(
            base.verdict,
            confidence="medium",
            reasons=("No step ran without the profiler",),
            predicted_step_ms=3.9,
            speedup_bound=1.43,
            next=None,
        ),
        trust=(
            *base.trust[:5],
            TrustCheck(check="baseline", status="warn", text="no baseline: times are the recorded ones"),
            TrustCheck(check="records", status="fail", text="12 kernels were lost"),
        ),
        views=Views(),
    )


def inconclusive() -> Report:
    """One cold step of a file: hardly anything could be measured."""
    return Report(
        source=Source(kind="file", path="runs/trace.json.gz"),
        environment={"torch": None, "cuda": None, "cupti": None, "python": None},
        device=None,
        devices=(),
        steps=StepTimes(count=1, how="no step marks", step_ms=None, profiled_step_ms=None),
        breakdown=Breakdown(
            kernel=None,
            memcpy=None,
            memset=None,
            communication=None,
            data_loading=None,
            runtime=None,
            cpu=None,
            other=None,
        ),
        runtime_detail=RuntimeDetail(launch=None, sync=None, allocator=None, other=None),
        communication_total_ms=None,
        utilization=Utilization(),
        operators=(),
        kernels=(),
        lines=(),
        memory=None,
        findings=(Finding(cause="data_loading", status="unknown", evidence="no steps in the file"),),
        verdict=Verdict(
            cause="inconclusive",
            headline="What holds the step back could not be told: the file holds no step marks and one cold step.",
            advice="Record at least three steps: call prof.step() after each.",
            confidence="low",
            reasons=("The file has no step marks",),
        ),
        trust=(TrustCheck(check="steps", status="fail", text="no step marks"),),
    )


HOSTILE = '<b>bold</b><script>alert("1")</script> $x_1$ & \x00\ud800 前向传播 한국어 🚀'


def hostile() -> Report:
    """Names that try to be markup, math, other scripts, control characters, or 900 characters long."""
    base = starvation()
    long_name = "void kernel<" + "T_" * 450 + ">"
    names = [HOSTILE, long_name, "$\\frac{x_1}{2}$", "前向传播" * 30, '"><img src=x onerror=alert(1)>']
    operators = (
        tuple(structs.replace(one, name=name) for one, name in zip(base.operators, names, strict=False))
        + base.operators[5:]
    )
    assert base.memory is not None
    views = base.views
    assert views.timeline is not None and views.timeline.bubble is not None and views.without is not None
    first, second, *others = views.timeline.lanes
    lanes = (
        lane(first.name, first.kind, [(0.0, 218.0, "data_loading", HOSTILE), *first.segments[1:]]),
        structs.replace(second, name="前向传播 $a_b$ thread 123456"),
        *others,
    )
    bubble = structs.replace(views.timeline.bubble, text=HOSTILE)
    return structs.replace(
        base,
        source=structs.replace(base.source, name=HOSTILE, partial=HOSTILE),
        operators=operators,
        lines=tuple(structs.replace(line, source=f"{line.source}  # {HOSTILE}") for line in base.lines),
        memory=structs.replace(
            base.memory, peak_operator="前向传播 $x_1$ " * 9, holders=(Holder(name=HOSTILE, bytes=10_000_000),)
        ),
        findings=tuple(structs.replace(finding, evidence=HOSTILE) for finding in base.findings),
        verdict=structs.replace(
            base.verdict,
            headline=HOSTILE,
            advice=HOSTILE,
            change=(HOSTILE, HOSTILE),
            reasons=(HOSTILE,),
            confidence="medium",
        ),
        trust=(TrustCheck(check="x", status="warn", text=HOSTILE),),
        views=structs.replace(
            views,
            without=structs.replace(views.without, label=HOSTILE),
            timeline=structs.replace(views.timeline, lanes=lanes, bubble=bubble),
        ),
    )


SAMPLES = {
    "sync": sync,
    "starvation": starvation,
    "healthy": healthy,
    "cpu_only": cpu_only,
    "no_baseline": no_baseline,
    "inconclusive": inconclusive,
    "hostile": hostile,
}


def with_views(report: Report, **views: Any) -> Report:
    """The report with these views, as JSON holds them, in place of its own."""
    plain = report.to_dict()
    return Report.from_dict({**plain, "views": {**plain["views"], **views}})
