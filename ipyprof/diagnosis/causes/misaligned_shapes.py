"""The GPU multiplies matrices whose rows do not begin at a multiple that its wide loads need."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipyprof.analysis.ceilings import Ceilings
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Program
from ipyprof.analysis.roofline import CallGroup, Roofline, roof_ns
from ipyprof.analysis.work import Product, Work, product_work
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, Finding, gain_of, measured, no_ceilings
from ipyprof.diagnosis.causes.tensor_cores import groups_sites, groups_where, scaled
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import NO, YES, loads_unaligned

# Elements that one 16-byte load holds.
MULTIPLES = {"fp16": 8, "bf16": 8, "tf32": 4, "fp8": 16}

# A product that reaches more than this of its ceiling has little to gain from padding. On an H200 in bf16: 4093³ 0.20;
# 42 aligned products of GPT-2, a transformer block and squares 0.58 to 1.07, the lowest with a result of 768 × 768.
WELL_BELOW = 0.5

# Padding a short dimension adds much work, and short products wait for other things than loads.
LEAST_DIMENSION = 64
LEAST_NS = 10_000.0


class MisalignedShapes(Cause):
    id = "misaligned_shapes"
    name = "sizes that tile badly"
    subject = ("Sizes that tile badly", " hold this step back")
    without = "with padded sizes"
    checked = "odd sizes"
    bound = "GPU-bound (compute)"
    sentence = "{place} multiplies sizes that tile badly: {cost}; padded, it may be {best}."
    part = "kernel"
    works = True

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when the sizes of products are padded."""
        program, _ = measured(profile)
        roof = profile.roofline
        if roof.ceilings is None:
            return self.unknown(no_ceilings(roof))
        if not any(group.work is not None and group.work.product is not None for group in roof.groups):
            return _no_products(self, profile, roof)
        found = _badly(roof)
        if not found:
            return self.absent(profile, "no product that is well below its ceiling has a size that loads badly")
        gain = gain_of(profile, _edited(program, roof, found))
        groups = [roof.groups[each.group] for each in found]
        first, worst = groups[0], found[0]
        steps = profile.operators.steps
        spent = sum(group.device_ns for group in groups) / steps
        assert first.work is not None
        cost = worst.padded.flops / first.work.flops - 1
        narrow = "; its kernel loads one or two elements at a time" if any(map(loads_unaligned, first.kernels)) else ""
        sizes = " and ".join(_padded_text(size, first.unit) for size in worst.sizes)
        evidence = (
            f"{first.name} with size {' and '.join(map(str, worst.sizes))} reaches {percent_short(first.reached)} of "
            f"its ceiling{narrow}; such products take {time_text(spent / NS_PER_MS)} of a step; padding costs "
            f"{percent_short(cost)} more operations"
        )
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence} and may recover {percent_short(gain.share)} of the step",
            advice=f"Pad {sizes}: it may tile better; how much depends on the card and the library.",
            where=groups_where(profile, program, roof, [each.group for each in found]),
            sites=groups_sites(profile, groups, gain),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Those products take the time of the padded shape at the rate that the device reaches."""
        roof = profile.roofline
        return _edited(program, roof, _badly(roof))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Badly:
    """One group that may gain: the dimensions to pad, and the padded work."""

    group: int
    sizes: tuple[int, ...]
    padded: Work
    least_ns: float


def _padded_text(size: int, unit: str) -> str:
    """``50257 to 50304``: the next multiple of 64 where that is cheap, else of what one load holds."""
    return f"{size} to {padded_size(size, unit)}"


def padded_size(size: int, unit: str) -> int:
    """The size to pad to: a multiple of 64 where it adds under 2 %, else of the elements in one load."""
    whole = -(-size // 64) * 64
    return whole if whole <= 1.02 * size else -(-size // MULTIPLES[unit]) * MULTIPLES[unit]


def _badly(roof: Roofline) -> tuple[_Badly, ...]:
    """The groups whose sizes load badly and that are well below their ceiling, the most time to gain first."""
    if roof.ceilings is None:
        return ()
    found = [each for at, group in enumerate(roof.groups) if (each := _look(at, group, roof.ceilings)) is not None]
    return tuple(
        sorted(
            found, key=lambda each: each.least_ns * roof.groups[each.group].calls - roof.groups[each.group].device_ns
        )
    )


def _look(at: int, group: CallGroup, ceilings: Ceilings) -> _Badly | None:
    product = group.work.product if group.work is not None else None
    multiple = MULTIPLES.get(group.unit)
    if group.work is None or product is None or multiple is None or not group.device_ns:
        return None
    # Float32 whose kernels do not tell may run without Tensor Cores: then its ceiling is another one.
    if group.tensor_core == NO or (group.unit == "tf32" and group.tensor_core != YES):
        return None
    bad = [name for name, row in product.loaded if row % multiple and getattr(product, name) % multiple]
    long = min(product.m, product.n, product.k) >= LEAST_DIMENSION
    if not bad or not long or group.reached is None or group.reached >= WELL_BELOW:
        return None
    padded = _padded(product, set(bad), group.unit)
    work = product_work(padded, short=group.work.dtype)
    least = roof_ns(work, group.unit, ceilings)
    if least is None or least < LEAST_NS or least * group.calls >= group.device_ns:
        return None
    sizes = tuple(dict.fromkeys(getattr(product, name) for name in bad))
    return _Badly(group=at, sizes=sizes, padded=work, least_ns=least)


def _padded(product: Product, names: set[str], unit: str) -> Product:
    # All sizes equal to a padded one are the same dimension of the program, and are padded with it.
    sizes = {getattr(product, name) for name in names}
    new = {
        name: padded_size(size, unit) if size in sizes else size
        for name, size in (("m", product.m), ("n", product.n), ("k", product.k))
    }
    return replace(product, m=new["m"], n=new["n"], k=new["k"])


def _edited(program: Program, roof: Roofline, found: tuple[_Badly, ...]) -> Program:
    remaining = np.ones(len(roof.groups))
    for each in found:
        group = roof.groups[each.group]
        remaining[each.group] = each.least_ns * group.calls / group.device_ns
    return scaled(program, roof, remaining) if found else program


def _no_products(cause: Cause, profile: Profile, roof: Roofline) -> Finding:
    unread = sum(group.device_ns for group in roof.groups if group.work is None and group.tensor_core != "n/a")
    spent = unread / profile.operators.steps
    if profile.step_ns and spent > 0.05 * profile.step_ns:
        return cause.unknown(
            f"products take {time_text(spent / NS_PER_MS)} of a step and their input shapes were not recorded"
        )
    return cause.absent(profile, "no matrix product")
