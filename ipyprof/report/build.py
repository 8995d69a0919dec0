"""The report of a profile and what was found in it: put together, not computed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ipyprof.analysis.allocations import RETRIED
from ipyprof.analysis.holders import Holding, held_by_name
from ipyprof.analysis.memory import CPU, DeviceMemory
from ipyprof.analysis.profile import Profile, amdahl_shares
from ipyprof.analysis.results import (
    AllocatorCall,
    Breakdown,
    FailedRequest,
    Heartbeat,
    Holder,
    Kernel,
    Line,
    Memory,
    MemoryDetail,
    MemoryPeak,
    Operator,
    Refused,
    RuntimeDetail,
    Utilization,
)
from ipyprof.analysis.scopes import groups
from ipyprof.analysis.timeline import breakdown_ms, breakdown_of, per_step, timeline
from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.diagnosis.memory import (
    advice_after,
    allocator_at,
    checkpoint_advice,
    error_advice,
    failed_request,
    fragmentation_advice,
    growth_advice,
    holders_at_failure,
)
from ipyprof.diagnosis.trust import checks
from ipyprof.diagnosis.verdict import edited
from ipyprof.diagnosis.words import NEXT_NAMES
from ipyprof.report.repeats import with_repeats
from ipyprof.report.report import Device, Report, Source, StepTimes, Throughput, TrustCheck, Views, Without
from ipyprof.trace.live import OutOfMemory

MS = 1e6
AMDAHL_ROWS = 10
VERSION_KEYS = {"cuda": "cuda_runtime_version", "cupti": "cupti_version"}


MOST_HOLDERS = 40
MOST_REFUSED = 50
OTHERS = "other holders"
PROCESS_REST = "the rest of the process: Python, libraries, what no name reaches"


def device_memory(view: DeviceMemory) -> Memory:
    """One device's memory, with who holds it at the peak."""
    return Memory(
        peak_bytes=view.peak_bytes,
        peak_at_ms=view.peak_at_ns / MS,
        peak_operator=view.peak_operator,
        peak_line=view.peak_line,
        reserved_peak_bytes=view.reserved_peak_bytes,
        growth_bytes_per_step=view.growth_bytes_per_step,
        holders=_holders(view.holders),
    )


def shown_memory(profile: Profile, busiest: Memory | None) -> Memory | None:
    """What the report shows: the busiest device's, else what is known after a request that failed, else the process's.

    Args:
        busiest: the memory of the device that worked most, ``None`` = not measured.
    """
    if busiest is not None:
        return busiest
    summary, failed = profile.memory, failed_request(profile)
    if failed is not None:
        if summary.busiest is not None:
            return device_memory(summary.devices[summary.busiest])
        state = allocator_at(profile, failed)
        allocated = failed.allocated_bytes or (state.allocated_bytes if state is not None else None)
        if allocated:
            return Memory(
                peak_bytes=allocated,
                peak_at_ms=None,
                peak_line=failed.line,
                holders=_holders(holders_at_failure(profile)),
            )
    return _process_memory(profile)


def heartbeat(profile: Profile) -> Heartbeat | None:
    """The memory curve of the busiest device on the recorded clock, or of the process without a GPU."""
    marks = tuple(((profile.steps.marks_ns - profile.steps.marks_ns[0]) / MS).tolist())
    summary = profile.memory
    if summary.busiest is not None:
        calls = tuple(call.at_ns / MS for call in summary.calls)
        return structs.replace(_curve(summary.devices[summary.busiest]), marks_ms=marks, calls_ms=calls)
    samples = profile.live.process_memory if profile.live is not None else ()
    if not samples or profile.has_gpu:
        return None
    return Heartbeat(
        time_ms=tuple(at / MS for at, _ in samples), process=tuple(size for _, size in samples), marks_ms=marks
    )


def memory_detail(profile: Profile) -> MemoryDetail | None:
    """What stands beside the heartbeat; ``None`` where there is nothing."""
    summary, live, failed = profile.memory, profile.live, failed_request(profile)
    view = summary.devices[summary.busiest] if summary.busiest is not None else None
    found = MemoryDetail(
        calls=tuple(
            AllocatorCall(
                at_ms=one.at_ns / MS,
                dur_ms=one.dur_ns / MS,
                count=one.count,
                what=one.what,
                step=one.step + 1,
                in_step_ms=one.in_step_ns / MS,
            )
            for one in summary.calls
        ),
        call_count=summary.call_count,
        call_ms=summary.call_ns / MS,
        refused=tuple(
            Refused(
                device=one.device,
                at_ms=one.at_ns / MS,
                step=one.step + 1,
                count=one.count,
                asked_bytes=one.asked_bytes,
                allocated_bytes=one.allocated_bytes,
                operator=one.operator,
                line=one.line,
            )
            for one in summary.refused[:MOST_REFUSED]
        ),
        out_of_memory=None if failed is None else _failure(profile, failed),
        other_processes=(live.device_state.others_bytes or 0) if live is not None and live.device_state else 0,
        incomplete=live is not None and live.owners is not None and not live.owners_complete,
    )
    if view is not None:
        state = next((one for one in live.allocator if one.device == view.device), None) if live is not None else None
        advice = [*growth_advice(view.growing)]
        if failed is None:
            advice += error_advice(view.holders)
            advice += checkpoint_advice(view.holders)
            retried = any(call.what == RETRIED for call in summary.calls)
            advice += fragmentation_advice(view.peak_bytes, view.peak_unused_bytes, state, retried=retried)
        found = structs.replace(
            found,
            peak=MemoryPeak(
                step=view.peak_step + 1,
                range=view.peak_range,
                unused_bytes=view.peak_unused_bytes,
                largest_free_bytes=state.largest_free_bytes if state is not None else None,
            ),
            parts={one.name: one.parts for one in view.holders if len(one.parts) > 1},
            growing=_holders(view.growing),
            advice=tuple(advice),
            devices=tuple(_curve(other) for other in summary.devices if other is not view),
        )
    return None if found == MemoryDetail() else found


def _curve(view: DeviceMemory) -> Heartbeat:
    return Heartbeat(
        device=view.device,
        time_ms=tuple((view.time_ns / MS).tolist()),
        allocated=tuple(view.allocated_bytes.tolist()),
        reserved=tuple(view.reserved_bytes.tolist()),
    )


def _failure(profile: Profile, failed: OutOfMemory) -> FailedRequest:
    holders, state = holders_at_failure(profile), allocator_at(profile, failed)
    allocated, unused = failed.allocated_bytes, failed.unused_bytes
    if allocated is None and state is not None:
        allocated, unused = state.allocated_bytes, state.reserved_bytes - state.allocated_bytes
    return FailedRequest(
        line=failed.line,
        device=failed.device,
        tried_bytes=failed.tried_bytes,
        capacity_bytes=failed.capacity_bytes or (state.device_total_bytes if state is not None else None),
        free_bytes=failed.free_bytes,
        allocated_bytes=allocated,
        reserved_bytes=None if allocated is None or unused is None else allocated + unused,
        unused_bytes=unused,
        largest_free_bytes=state.largest_free_bytes if state is not None else None,
        later=failed.later,
        text=failed.text,
        holders=_holders(holders)[:MOST_HOLDERS],
        advice=advice_after(profile, failed),
    )


def _holders(holdings: Sequence[Holding]) -> tuple[Holder, ...]:
    """The largest by name and the others as one, so that they still add up."""
    shown, rest = holdings[:MOST_HOLDERS], holdings[MOST_HOLDERS:]
    found = [Holder(name=one.name, bytes=one.bytes, line=one.line) for one in shown]
    if rest:
        found.append(Holder(name=f"{len(rest)} {OTHERS}", bytes=sum(one.bytes for one in rest)))
    return tuple(found)


def _process_memory(profile: Profile) -> Memory | None:
    """Without a GPU: what the process held, as sampled at the marks, and what names reach of it."""
    live = profile.live
    samples = live.process_memory if live is not None and not profile.has_gpu else ()
    if live is None or not samples:
        return None
    at, most = max(samples, key=lambda sample: sample[1])
    named = held_by_name(live.owners or (), CPU)
    rest = most - sum(holding.bytes for holding in named)
    if named and rest >= 0:
        named = (*named, Holding(name=PROCESS_REST, role="rest", bytes=rest, line=None))
    return Memory(peak_bytes=most, peak_at_ms=at / MS, holders=_holders(sorted(named, key=lambda one: -one.bytes)))


def build_report(profile: Profile, findings: tuple[Finding, ...], verdict: Verdict, *, source: Source) -> Report:
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
        breakdown=breakdown_ms(parts, gpu=gpu) if parts is not None else Breakdown(),
        runtime_detail=runtime,
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
    """The step without the verdict's cause, or ``None`` where none was found."""
    program, step_ms = edited(profile, verdict.cause), verdict.predicted_step_ms
    if program is None or step_ms is None:
        return None
    label = NEXT_NAMES.get(verdict.cause, verdict.cause)
    return Without(label=label, step_ms=step_ms, breakdown=breakdown_of(profile, program, step_ms))


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
    step_ms = None if profile.step_ns is None else profile.step_ns / MS
    throughput = None
    if live is not None and live.items is not None and step_ms:
        throughput = Throughput(value=live.items / step_ms * 1000, unit=f"{live.unit}/s")
    return StepTimes(
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
