"""The report of a profile and what was found in it: put together, not computed."""

from __future__ import annotations

from datetime import datetime, timezone

from msgspec import structs

from ipyprof.analysis.loop import account_of
from ipyprof.analysis.profile import Profile, amdahl_shares, analyse
from ipyprof.analysis.results import (
    Breakdown,
    Kernel,
    Line,
    Operator,
    RuntimeDetail,
    Utilization,
)
from ipyprof.analysis.scopes import groups
from ipyprof.analysis.timeline import breakdown_ms, breakdown_of, per_step, timeline
from ipyprof.diagnosis.cause import Verdict
from ipyprof.diagnosis.causes import CAUSES, cause_of
from ipyprof.diagnosis.verdict import Diagnosis, diagnose
from ipyprof.report.memory import heartbeat, memory_detail, memory_of
from ipyprof.report.repeats import with_repeats
from ipyprof.report.report import Device, Report, Source, StepTimes, Throughput, TrustCheck, Views, Without
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace

MS = 1e6
AMDAHL_ROWS = 10
VERSION_KEYS = {"cuda": "cuda_runtime_version", "cupti": "cupti_version"}


def report_of(trace: Trace, source: Source, live: LiveRecord | None = None) -> Report:
    """The report of a trace: analysed, diagnosed and put together.

    Args:
        trace: as read.
        source: where it came from.
        live: what the run knows beside the trace; without, what the file carries of it.
    """
    profile = analyse(trace, live)
    return build_report(profile, diagnose(profile), source=source)


def now() -> str:
    """This second in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def build_report(profile: Profile, diagnosis: Diagnosis, *, source: Source) -> Report:
    """The report of one profile. ``source`` says where it came from; its cell comes from the live record if empty."""
    live, whole = profile.live, profile.breakdown
    if live is not None:
        source = structs.replace(
            source, cell=source.cell or tuple(live.source.splitlines()), partial=source.partial or live.partial
        )
    gpu = profile.has_gpu
    parts = whole.parts if whole is not None else None
    runtime = RuntimeDetail()
    if parts is not None and gpu:
        runtime = RuntimeDetail(
            launch=parts["launch"] / MS,
            sync=parts["sync"] / MS,
            allocator=parts["allocator"] / MS,
            other=parts["call"] / MS,
        )
    devices = _devices(profile)
    busiest = next((device for device in devices if whole is not None and device.index == whole.device), None)
    report = Report(
        source=source,
        environment=_environment(profile),
        device=busiest,
        devices=devices,
        steps=_steps(profile),
        breakdown=_breakdown(profile),
        runtime_detail=runtime,
        communication_total_ms=whole.communication_total_ns / MS if whole is not None and gpu else None,
        utilization=_utilization(profile),
        operators=_operators(profile),
        kernels=_kernels(profile),
        lines=_lines(profile),
        memory=memory_of(profile, busiest.memory if busiest is not None else None),
        findings=diagnosis.findings,
        verdict=diagnosis.verdict,
        trust=tuple(TrustCheck(check=c.check, status=c.status, text=c.text) for c in diagnosis.checks),
        account=account_of(live, profile.pace),
        views=_views(profile, diagnosis.verdict),
    )
    return report if live is None or live.repeats is None else with_repeats(report, live.repeats)


def _breakdown(profile: Profile) -> Breakdown:
    if profile.breakdown is None:
        return Breakdown()
    typical = breakdown_ms(profile.breakdown.parts, gpu=profile.has_gpu)
    return structs.replace(typical, unlike_steps=profile.unlike_ns / MS) if profile.unlike_ns else typical


def _views(profile: Profile, verdict: Verdict) -> Views:
    found = timeline(profile)
    if found is not None and verdict.cause == "compute_bound":
        found = structs.replace(found, bubble=None)
    return Views(
        heartbeat=heartbeat(profile),
        memory=memory_detail(profile),
        without=_without(profile, verdict),
        per_step=per_step(profile),
        timeline=found,
        groups=groups(profile),
        device_state=profile.live.device_state if profile.live is not None else None,
    )


def _without(profile: Profile, verdict: Verdict) -> Without | None:
    """The step without the verdict's cause, or ``None`` where nothing would be gone."""
    cause, step_ms = cause_of(verdict.cause), verdict.predicted_step_ms
    if cause not in CAUSES or step_ms is None or profile.program is None or not profile.has_gpu:
        return None
    edited = cause.edit(profile, profile.program)  # one that leaves the typical step alone leaves that step
    return Without(label=cause.name, step_ms=step_ms, breakdown=breakdown_of(profile, edited, step_ms))


def _environment(profile: Profile) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(("torch", "cuda", "cupti", "python"))
    for key, name in VERSION_KEYS.items():
        value = profile.trace.metadata.get(name)
        if value is not None:
            found[key] = str(value)
    if profile.live is not None:
        found |= {key: str(value) for key, value in profile.live.environment.items() if value is not None}
    return found


def _steps(profile: Profile) -> StepTimes:
    live = profile.live
    step_ms = None if profile.loop_ns is None else profile.loop_ns / MS
    throughput = None
    if live is not None and live.items is not None and step_ms:
        throughput = Throughput(value=live.items / step_ms * 1000, unit=f"{live.unit}/s")
    return StepTimes(
        count=profile.steps.count,
        how=live.how if live is not None and live.how else profile.steps.how,
        step_ms=step_ms,
        typical_step_ms=None if profile.step_ns is None else profile.step_ns / MS,
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
    memory = {view.device: view.memory for view in profile.memory.devices}
    busy = profile.breakdown.device_busy_ns if profile.breakdown is not None else {}
    step = profile.step_ns
    return tuple(
        Device(
            name=names.get(index, f"device {index}"),
            index=index,
            busy_share=busy[index] / step if index in busy and step else None,
            memory=memory.get(index),
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
    share = None if covered is None else min(covered / step, busy)
    tensor_core = profile.roofline.tensor_core_share
    return Utilization(
        nvml=nvml,
        kernel_busy=busy,
        sm_coverage=share,
        mfu=profile.roofline.mfu,
        tensor_core=None if tensor_core is None else min(tensor_core, busy),
    )


def _operators(profile: Profile) -> tuple[Operator, ...]:
    """The rows with what bounds them, their use of Tensor Cores, and what the step would gain without each."""
    table = profile.operators
    if not profile.has_gpu:
        return table.rows
    shares: tuple[float | None, ...] = ()
    if profile.program is not None and profile.replayed is not None:
        shares = amdahl_shares(
            profile.trace, profile.program, profile.replayed, profile.cost_ns, table, AMDAHL_ROWS, once=profile.once
        )
    shares += (None,) * (len(table.rows) - len(shares))
    return tuple(
        structs.replace(
            row,
            bound=row.bound if row.bound != "unknown" else roof.bound,
            tensor_core=roof.tensor_core,
            amdahl_share=share,
        )
        for row, roof, share in zip(table.rows, profile.roofline.rows, shares, strict=True)
    )


def _kernels(profile: Profile) -> tuple[Kernel, ...]:
    roof = profile.roofline
    return tuple(
        structs.replace(
            row,
            tensor_core=roof.kernel_tensor_core.get(row.name, row.tensor_core),
            bound=row.bound if row.bound != "unknown" else roof.kernel_bound.get(row.name, "unknown"),
        )
        for row in profile.kernels.rows
    )


def _lines(profile: Profile) -> tuple[Line, ...]:
    """Every line of the cell, measured or not; empty where no line has a cost."""
    if profile.live is None or not profile.lines:
        return ()
    costs = {cost.line: cost for cost in profile.lines}
    memory, zero = profile.memory, 0.0 if profile.has_gpu else None
    peaks = memory.devices[memory.busiest].line_peaks if memory.busiest is not None else {}
    return tuple(
        structs.replace(
            costs.get(number, Line(line=number, source="", device_ms=zero, host_ms=0.0, sync_count=zero)),
            source=text,
            peak_bytes=peaks.get(number),
        )
        for number, text in enumerate(profile.live.source.splitlines(), start=1)
    )
