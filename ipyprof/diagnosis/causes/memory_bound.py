"""The GPU moves bytes: chains of elementwise kernels, norms, softmax, attention written out, copies between layouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipyprof.analysis.fusion import ATTENTION, CHAIN, LAYOUT, Chain, factors
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Program
from ipyprof.diagnosis.cause import (
    NS_PER_MS,
    Cause,
    Finding,
    gain_of,
    measured,
    no_ceilings,
    operator_sites,
    record_where,
)
from ipyprof.formatting import percent_short, size_text, time_text

SHOWN_OPERATORS = 4


class MemoryBound(Cause):
    id = "memory_bound"
    name = "unfused kernels"
    subject = ("Memory bandwidth", " holds this step back")
    without = "with fewer bytes"
    checked = "bytes moved"
    bound = "GPU-bound (bandwidth)"
    sentence = "{place} moves bytes that fused kernels would not: {cost}; fused, at least {faster}."
    part = "kernel"
    works = True
    at_least = True

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when kernels that only move bytes are one kernel per chain."""
        program, _ = measured(profile)
        roof = profile.roofline
        if roof.ceilings is None:
            return self.unknown(no_ceilings(roof))
        if roof.known_share == 0.0:
            return self.unknown("no input shapes were recorded, or the work runs in a CUDA graph or compiled kernels")
        found = profile.chains
        if not found:
            return self.absent(profile, "no chain of kernels that one kernel would shorten")
        gain = gain_of(profile, _fused(profile, program, found))
        ranked = _ranked(profile, found)
        steps = profile.operators.steps
        spent = sum(chain.device_ns for chain in found) / steps / NS_PER_MS
        fused = sum(chain.fused_ns for chain in found) / steps / NS_PER_MS
        moved = sum(chain.bytes for chain in found) / steps
        worst, _, count = ranked[0]
        evidence = (
            f"kernels that only move bytes move {size_text(moved)} in {time_text(spent)} of a step; with each input "
            f"read once and each output written once, {time_text(fused)}; most by {_named(worst)} "
            f"({count:.0f} × per step)"
        )
        chosen = np.zeros(len(profile.trace), bool)
        chosen[np.concatenate([chain.records for chain in found])] = True
        return self.judged(
            profile,
            gain,
            evidence=f"{evidence}; one kernel per chain recovers at least {percent_short(gain.share)} of the step",
            advice=_advice(found),
            where=record_where(profile, program, chosen[program.record], operator=worst.operators[0]),
            sites=operator_sites(profile, [(_named(chain), times) for chain, _, times in ranked], gain),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Each chain reads its inputs once and writes its outputs once, at the bandwidth that the device reaches."""
        found = profile.chains
        return _fused(profile, program, found) if found else program


def _ranked(profile: Profile, found: tuple[Chain, ...]) -> list[tuple[Chain, float, float]]:
    """(one chain of each kind, ns to gain per step, chains per step), the most to gain first."""
    steps = max(profile.operators.steps, 1)
    alike: dict[tuple[str, tuple[str, ...]], list[Chain]] = {}
    for chain in found:
        alike.setdefault((chain.what, chain.operators), []).append(chain)
    rows = [
        (group[0], sum(chain.device_ns - chain.fused_ns for chain in group) / steps, len(group) / steps)
        for group in alike.values()
    ]
    return sorted(rows, key=lambda row: -row[1])


def _named(chain: Chain) -> str:
    shown = [name.removeprefix("aten::") for name in chain.operators]
    if len(shown) > SHOWN_OPERATORS:
        shown = [*shown[: SHOWN_OPERATORS - 1], f"… {len(shown) - SHOWN_OPERATORS + 1} more"]
    return " → ".join(shown) if len(chain.operators) > 1 else chain.operators[0]


def _advice(found: tuple[Chain, ...]) -> str:
    """The cure of what gains most."""
    gains: dict[str, float] = {}
    for chain in found:
        what = LAYOUT if chain.what not in (ATTENTION, CHAIN) and chain.relayout else chain.what
        gains[what] = gains.get(what, 0.0) + chain.device_ns - chain.fused_ns
    main = max(gains, key=lambda what: gains[what])
    if main == ATTENTION:
        return "Use torch.nn.functional.scaled_dot_product_attention: the scores then never reach memory."
    if main == LAYOUT:
        return (
            "Keep one memory layout: model.to(memory_format=torch.channels_last) and the inputs too, and no permute "
            "that ends in a copy."
        )
    return "Let one kernel do a chain: torch.compile(model), or the fused forms in torch.nn.functional and torch.optim."


def _fused(profile: Profile, program: Program, found: tuple[Chain, ...]) -> Program:
    return replace(program, dur=program.dur * factors(profile.trace, found)[program.record])
