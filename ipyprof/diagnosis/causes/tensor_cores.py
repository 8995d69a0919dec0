"""The GPU multiplies in float32 without its Tensor Cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.ceilings import Ceilings
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Float, Program
from ipyprof.analysis.roofline import CallGroup, Roofline, roof_ns
from ipyprof.diagnosis.cause import (
    NS_PER_MS,
    Cause,
    Finding,
    Gain,
    Site,
    Where,
    gain_of,
    measured,
    no_ceilings,
    operator_sites,
    record_where,
)
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import NO, UNKNOWN

TORCH_NAMES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
FULL_NAMES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "TF32"}


class TensorCores(Cause):
    id = "tensor_cores"
    name = "products without Tensor Cores"
    subject = ("Products without Tensor Cores", " hold this step back")
    without = "on Tensor Cores"
    checked = "precision"
    bound = "GPU-bound (compute)"
    sentence = "{place} multiplies in float32 without Tensor Cores: {cost}; if not intended, {best} in 16 bits."
    part = "kernel"
    works = True

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when float32 products run on Tensor Cores."""
        program, _ = measured(profile)
        roof = profile.roofline
        ceilings = roof.ceilings
        if ceilings is None:
            return self.unknown(no_ceilings(roof))
        if ceilings.maker != "NVIDIA":
            return self.unknown(
                f"{ceilings.name} has matrix units of another maker, whose use its kernels' names do not tell"
            )
        if not ceilings.has_tensor_cores:
            return self.absent(profile, f"{ceilings.name} has no Tensor Cores to use")
        slow = _slow(roof)
        if slow is None:
            return _none_seen(self, profile, roof)
        groups = [roof.groups[at] for at in slow.groups]
        gain = gain_of(profile, _edited(program, roof, slow, ceilings))
        spent_ns = sum(group.device_ns for group in groups) / profile.operators.steps
        flops = sum(group.work.flops * group.calls for group in groups if group.work is not None)
        rate = flops / sum(group.device_ns for group in groups) / 1e3
        per_ms = profile.operators.steps * NS_PER_MS
        least = [
            f"{time_text(_least_ns(groups, unit, ceilings) / per_ms)} in {FULL_NAMES[unit]}"
            for unit in ("tf32", slow.target)
            if unit in ceilings.reachable_flops
        ]
        evidence = (
            f"float32 products take {time_text(spent_ns / NS_PER_MS)} of a step at {rate:.0f} TFLOP/s in kernels "
            f"without Tensor Cores ({groups[0].kernels[0][:60]}); they need at least {' or '.join(least)}"
        )
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence}: {percent_short(gain.share)} of the step",
            advice=_advice(slow.target, "tf32" in ceilings.peak_flops),
            where=groups_where(profile, program, roof, slow.groups),
            sites=groups_sites(profile, groups, gain),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Those products take their least time in 16 bits: autocast's dtype, what the advice names first."""
        roof = profile.roofline
        slow = _slow(roof)
        if slow is None or roof.ceilings is None:
            return program
        return _edited(program, roof, slow, roof.ceilings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """Float32 calls proven to run without Tensor Cores, as indices of groups, and the dtype of the cure."""

    groups: tuple[int, ...]
    target: str


def _slow(roof: Roofline) -> _Slow | None:
    ceilings = roof.ceilings
    if ceilings is None or not ceilings.has_tensor_cores:
        return None
    target = "bf16" if "bf16" in ceilings.peak_flops else "fp16"
    chosen = tuple(
        at for at, group in enumerate(roof.groups) if group.tensor_core == NO and group.device_ns and _is_float32(group)
    )
    return _Slow(groups=chosen, target=target) if chosen else None


def _is_float32(group: CallGroup) -> bool:
    """A float32 product or convolution that Tensor Cores could do: a matrix times a vector is none."""
    work = group.work
    if work is None or work.dtype != "fp32" or work.kind not in ("gemm", "convolution"):
        return False
    return work.product is None or min(work.product.m, work.product.n) > 1


def _edited(program: Program, roof: Roofline, slow: _Slow, ceilings: Ceilings) -> Program:
    remaining = np.ones(len(roof.groups))
    for at in slow.groups:
        group = roof.groups[at]
        remaining[at] = min(_least_ns([group], slow.target, ceilings) / group.device_ns, 1.0)
    return scaled(program, roof, remaining)


def _least_ns(groups: list[CallGroup], unit: str, ceilings: Ceilings) -> float:
    """ns of all calls in another dtype: its ceiling, and half of the bytes in 16 bits."""
    total = 0.0
    for group in groups:
        if group.work is not None:
            size = 1.0 if unit == "tf32" else 0.5
            least = roof_ns(replace(group.work, bytes=group.work.bytes * size), unit, ceilings)
            total += (least or 0.0) * group.calls
    return total


def _none_seen(cause: Cause, profile: Profile, roof: Roofline) -> Finding:
    unsure = [
        group for group in roof.groups if group.tensor_core == UNKNOWN and group.work is not None and _is_float32(group)
    ]
    unread = [group for group in roof.groups if group.tensor_core == NO and group.work is None]
    steps = profile.operators.steps
    for groups, why in ((unread, "their input shapes were not recorded"), (unsure, "their kernels' names do not tell")):
        spent = sum(group.device_ns for group in groups) / steps
        if profile.step_ns and spent > 0.05 * profile.step_ns:
            return cause.unknown(f"products take {time_text(spent / NS_PER_MS)} of a step and {why}")
    return cause.absent(profile, "no float32 product runs without Tensor Cores")


def _advice(target: str, tf32: bool) -> str:
    cast = f"torch.autocast('cuda', dtype={TORCH_NAMES[target]}) around the forward pass"
    light = ", or torch.set_float32_matmul_precision('high') for TF32" if tf32 else ""
    return f"If float32 is not intended: {cast}{light}. Both round the inputs of products; sums stay in float32."


def scaled(program: Program, roof: Roofline, remaining: Float) -> Program:
    """The program with each record's time multiplied by its group's ``remaining``: (groups,) float, 1 = unchanged."""
    group = roof.group[program.record]
    return replace(program, dur=program.dur * np.where(group >= 0, np.append(remaining, 1.0)[group], 1.0))


def groups_where(profile: Profile, program: Program, roof: Roofline, groups: Sequence[int]) -> Where:
    """The line of the cell that launches most of these groups' work, with the first one's operator."""
    chosen = np.isin(roof.group[program.record], groups)
    return record_where(profile, program, chosen, operator=roof.groups[groups[0]].name)


def groups_sites(profile: Profile, groups: Sequence[CallGroup], gain: Gain) -> tuple[Site, ...]:
    """One site per operator of these groups, the most device time first."""
    count: dict[str, float] = {}
    for group in groups:
        count[group.name] = count.get(group.name, 0.0) + group.calls / max(profile.operators.steps, 1)
    return operator_sites(profile, list(count.items()), gain)
