"""Why a rank is late: what of its own work it has more of than the median of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ipyprof.analysis.rank_parts import PHASES
from ipyprof.analysis.rank_summary import RankSummary

CAUSES = ("loader", "compute", "copies", "runtime", "host")
EXPLAINED = 0.5  # the part must account for this share of the delay
SAME_WORK = 0.02  # kernel counts that differ by less are the same work
SLOWER = 1.05  # the same kernels that take so many times as long run on a slower GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What the late rank has more of, per step, in ns.

    Attributes:
        cause: one of ``CAUSES``, ``slow_gpu`` (the same kernels take longer), or empty: the recording does not show it.
        own_ns, others_ns: what the late rank takes for it, and the median of the others.
        excess_ns: how much more of it lies where nothing hides it.
        phase: ``loader``, ``forward``, ``backward`` or ``optimizer``, or empty.
        more_kernels: kernels (operators without a GPU) that the late rank runs more, per step.
        clock: what the GPUs' clocks say, or empty.
    """

    cause: str
    own_ns: float = 0.0
    others_ns: float = 0.0
    excess_ns: float = 0.0
    phase: str = ""
    more_kernels: float = 0.0
    clock: str = ""


def why_late(late: RankSummary, others: Sequence[RankSummary], late_ns: float) -> Why:
    """What explains most of the delay, or a ``Why`` without a cause where nothing explains half of it."""
    known = [one for one in others if one.parts]
    if not late.parts or not known:
        return Why(cause="")
    excess = {name: late.parts[name] - median(one.parts[name] for one in known) for name in CAUSES}
    cause = max(excess, key=lambda name: excess[name])
    if excess[cause] < EXPLAINED * late_ns:
        return Why(cause="", excess_ns=excess[cause], clock=_clock(late, known))
    kind = late.totals if cause in late.totals else late.parts
    own = kind[cause]
    usual = float(median((one.totals if cause in one.totals else one.parts)[cause] for one in known))
    kernels = float(median(one.kernels for one in known))
    more = late.kernels - kernels
    named = cause
    if cause == "compute" and late.has_gpu and abs(more) <= SAME_WORK * max(kernels, 1.0) and own > SLOWER * usual:
        named = "slow_gpu"
    return Why(
        cause=named,
        own_ns=own,
        others_ns=usual,
        excess_ns=excess[cause],
        phase="loader"
        if cause == "loader"
        else _phase(late, known, "host" if cause in ("host", "runtime") else "compute"),
        more_kernels=more if cause == "compute" else 0.0,
        clock=_clock(late, known),
    )


def _phase(late: RankSummary, others: Sequence[RankSummary], what: str) -> str:
    """The phase in which the late rank has most more of it, or empty where none is known."""
    if not all(name in one.phases for one in (late, *others) for name in PHASES):
        return ""
    more = {name: late.phases[name][what] - median(one.phases[name][what] for one in others) for name in PHASES}
    return max(more, key=lambda name: more[name])


def _clock(late: RankSummary, others: Sequence[RankSummary]) -> str:
    """Such as ``1,200 MHz, the others 1,980 MHz (thermal slowdown)``; empty unless its clock is lower."""
    clocks = [one.facts.clock_mhz for one in others if one.facts.clock_mhz is not None]
    own = late.facts.clock_mhz
    if own is None or not clocks or own * SLOWER > median(clocks):
        return ""
    reasons = f" ({', '.join(late.facts.throttle)})" if late.facts.throttle else ""
    return f"{own:,} MHz, the others {median(clocks):,.0f} MHz{reasons}"
