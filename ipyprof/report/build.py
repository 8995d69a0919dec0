"""From what was measured and found to the report: units change here, nothing is computed anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipyprof.analysis.amdahl import amdahl_shares
from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import device_state
from ipyprof.diagnosis.finding import Finding, Verdict
from ipyprof.diagnosis.trust import checks
from ipyprof.report import views
from ipyprof.report.memory_facts import device_memory, memory_views, shown_memory
from ipyprof.report.repeats import with_repeats
from ipyprof.report.report import (
    Breakdown,
    Device,
    Kernel,
    Line,
    Operator,
    Report,
    RuntimeDetail,
    Source,
    Steps,
    Throughput,
    TrustCheck,
    Utilization,
)
from ipyprof.report.scope_views import groups

MS = 1e6
TOP = 10
VERSION_KEYS = {"cuda": "cuda_runtime_version", "cupti": "cupti_version"}


def build_report(profile: Profile, findings: tuple[Finding, ...], verdict: Verdict, *, source: Source) -> Report:
    """The report of one profile. ``source`` says where it came from; its cell comes from the live record if empty."""
    live, whole = profile.live, profile.breakdown
    if live is not None:
        source = replace(
            source, cell=source.cell or tuple(live.source.splitlines()), partial=source.partial or live.partial
        )
    gpu = profile.has_gpu
    parts = whole.parts if whole is not None else None
    runtime = {
        key: parts[key] / MS if parts is not None and gpu else None for key in ("launch", "sync", "allocator", "call")
    }
    devices = _devices(profile)
    busiest = next((device for device in devices if whole is not None and device.index == whole.device), None)
    none = dict.fromkeys(("kernel", "memcpy", "memset", "communication", "data_loading", "runtime", "cpu", "other"))
    report = Report(
        source=source,
        environment=_environment(profile),
        device=busiest,
        devices=devices,
        steps=_steps(profile),
        breakdown=Breakdown(**(views.breakdown_ms(parts, gpu=gpu) if parts is not None else none)),
        runtime_detail=RuntimeDetail(
            launch=runtime["launch"], sync=runtime["sync"], allocator=runtime["allocator"], other=runtime["call"]
        ),
        communication_total_ms=whole.communication_total_ns / MS if whole is not None and gpu else None,
        utilization=_utilization(profile),
        operators=_operators(profile),
        kernels=_kernels(profile),
        lines=_lines(profile),
        memory=shown_memory(profile, busiest.memory if busiest is not None else None),
        findings=findings,
        verdict=verdict,
        trust=tuple(TrustCheck(check=c.check, status=c.status, text=c.text) for c in checks(profile)),
        views=_views(profile, verdict),
    )
    return report if live is None or live.repeats is None else with_repeats(report, live.repeats)


def _views(profile: Profile, verdict: Verdict) -> dict[str, Any]:
    found = {
        "heartbeat": views.heartbeat(profile),
        "memory": memory_views(profile),
        "without": views.without(profile, verdict),
        "per_step": views.per_step(profile),
        "timeline": views.timeline(profile, verdict),
        "groups": groups(profile),
        "device_state": device_state.view(profile),
    }
    return {key: value for key, value in found.items() if value}


def _environment(profile: Profile) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(("torch", "cuda", "cupti", "python"))
    for key, name in VERSION_KEYS.items():
        value = profile.trace.metadata.get(name)
        if value is not None:
            found[key] = str(value)
    if profile.live is not None:
        found |= {key: str(value) for key, value in profile.live.environment.items() if value is not None}
    return found


def _steps(profile: Profile) -> Steps:
    live = profile.live
    step_ms = None if profile.step_ns is None else profile.step_ns / MS
    throughput = None
    if live is not None and live.items is not None and step_ms:
        throughput = Throughput(value=live.items / step_ms * 1000, unit=f"{live.unit}/s")
    return Steps(
        count=profile.steps.count,
        how=live.how if live is not None and live.how else profile.steps.how,
        step_ms=step_ms,
        profiled_step_ms=None if profile.profiled_step_ns is None else profile.profiled_step_ns / MS,
        overhead=profile.overhead,
        per_step_ms=tuple(ns / MS for ns in live.baseline_ns) if live is not None else (),
        profiled_per_step_ms=tuple(ns / MS for ns in live.profiled_ns) if live is not None else (),
        throughput=throughput,
        baseline=live.baseline if live is not None else "none",
        cycle=live.cycle if live is not None else 1,
        alternatives=live.alternatives if live is not None else (),
    )


def _devices(profile: Profile) -> tuple[Device, ...]:
    names = {device.index: device.name for device in profile.trace.devices}
    if profile.live is not None:
        names |= {int(index): name for index, name in profile.live.device_names.items()}
    memory = {view.device: view for view in profile.memory.devices}
    busy = profile.breakdown.device_busy_ns if profile.breakdown is not None else {}
    step = profile.step_ns
    return tuple(
        Device(
            name=names.get(index, f"device {index}"),
            index=index,
            busy_share=busy[index] / step if index in busy and step else None,
            memory=device_memory(memory[index]) if index in memory else None,
        )
        for index in profile.devices
    )


def _utilization(profile: Profile) -> Utilization:
    nvml = profile.live.utilization if profile.live is not None else None
    whole, step = profile.breakdown, profile.step_ns
    if whole is None or not step or not profile.has_gpu:
        return Utilization(nvml=nvml)
    covered = profile.kernels.covered_sm_ns
    busy = whole.parts["kernel"] / step
    share = None if covered is None else min(covered / profile.kernels.steps / step, busy)
    tensor_core = profile.roofline.tensor_core_share
    return Utilization(
        nvml=nvml,
        kernel_busy=busy,
        sm_coverage=share,
        mfu=profile.roofline.mfu,
        tensor_core=None if tensor_core is None else min(tensor_core, busy),
    )


def _operators(profile: Profile) -> tuple[Operator, ...]:
    table, gpu = profile.operators, profile.has_gpu
    steps = max(table.steps, 1)
    order = list(range(len(table.rows)))
    if not gpu:
        order.sort(key=lambda at: (-table.rows[at].self_host_ns, table.rows[at].name))
    rows = [Operator(**fields) for fields in views.operator_dicts((table.rows[at] for at in order), steps, gpu=gpu)]
    program, replayed = profile.program, profile.replayed
    if gpu:
        roofs = [profile.roofline.rows[at] for at in order]
        rows = [
            replace(row, bound=row.bound if row.bound != "unknown" else roof.bound, tensor_core=roof.tensor_core)
            for row, roof in zip(rows, roofs, strict=True)
        ]
    if gpu and program is not None and replayed is not None:
        shares = amdahl_shares(profile.trace, program, replayed, profile.cost_ns, table, TOP, once=profile.once)
        rows[: len(shares)] = [replace(row, amdahl_share=share) for row, share in zip(rows, shares, strict=False)]
    return tuple(rows)


def _kernels(profile: Profile) -> tuple[Kernel, ...]:
    steps = max(profile.kernels.steps, 1)
    return tuple(
        Kernel(
            name=row.name,
            calls=row.calls / steps,
            device_ms=row.device_ns / steps / MS,
            tensor_core=profile.roofline.kernel_tensor_core.get(row.name, row.tensor_core),
            bound=row.bound if row.bound != "unknown" else profile.roofline.kernel_bound.get(row.name, "unknown"),
            est_occupancy=row.est_occupancy,
        )
        for row in profile.kernels.rows
    )


def _lines(profile: Profile) -> tuple[Line, ...]:
    """Every line of the cell, measured or not; empty where no line has a cost."""
    if profile.live is None or not profile.lines:
        return ()
    costs = {cost.line: cost for cost in profile.lines}
    memory = profile.memory
    peaks = memory.devices[memory.busiest].line_peaks if memory.busiest is not None else {}
    rows = []
    for number, text in enumerate(profile.live.source.splitlines(), start=1):
        cost = costs.get(number)
        rows.append(
            Line(
                line=number,
                source=text,
                device_ms=None if not profile.has_gpu else cost.device_ns / MS if cost is not None else 0.0,
                host_ms=cost.host_ns / MS if cost is not None else 0.0,
                sync_count=None if not profile.has_gpu else cost.sync_count if cost is not None else 0.0,
                peak_bytes=peaks.get(number),
            )
        )
    return tuple(rows)
