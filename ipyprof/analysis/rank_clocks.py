"""Clocks of several hosts brought together: all ranks leave a collective together, whenever they entered it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.launched import Bool, Float

REFINEMENTS = 4
OTHER_HOST_NS = 1_000_000  # clocks of one host agree better than this; hosts may share a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Offsets to take off each rank's times.

    Attributes:
        offset_ns: (r,) float; NaN where a rank shares no collective with the first ones.
        residual_ns: half of how far apart the ends of a collective still lie, 90th percentile; ``None`` = not measured.
        common: the ranks share one clock, and no offset was taken off.
        ends: collectives whose ends were used.
    """

    offset_ns: Float
    residual_ns: float | None
    common: bool
    ends: int


def align(end_ns: Float, hosts: Sequence[str | None]) -> Clocks:
    """The offsets that bring the ends of collectives together.

    With all ranks on one host their clock is the same, so that nothing is taken off; ends then only give the residual.

    Args:
        end_ns: (c, r) float, NaN where a rank took no part.
        hosts: (r,) names of the machines.
    """
    count = end_ns.shape[1]
    seen = ~np.isnan(end_ns)
    useful = seen.sum(axis=1) >= 2
    end_ns, seen = end_ns[useful], seen[useful]
    one_host = len(set(hosts)) == 1 and hosts[0] is not None
    if len(end_ns) == 0:
        offset = np.zeros(count) if one_host else np.full(count, np.nan)
        return Clocks(offset_ns=offset, residual_ns=None, common=one_host, ends=0)
    offset = _offsets(end_ns, seen)
    aligned, together = _spread(end_ns - offset), _spread(end_ns)
    if one_host and not (together > OTHER_HOST_NS and together > 10 * (aligned or 1.0)):
        return Clocks(offset_ns=np.zeros(count), residual_ns=together / 2, common=True, ends=len(end_ns))
    return Clocks(offset_ns=offset, residual_ns=aligned / 2, common=False, ends=len(end_ns))


def _offsets(end_ns: Float, seen: Bool) -> Float:
    """(r,) offsets against the first rank, from rank to rank over the collectives that they share."""
    count = end_ns.shape[1]
    offset = np.full(count, np.nan)
    first = int(np.argmax(seen.any(axis=0)))
    offset[first] = 0.0
    while True:
        known = ~np.isnan(offset)
        middle = _middle(end_ns - offset)
        reached = seen[~np.isnan(middle)].any(axis=0) & ~known
        if not reached.any():
            break
        offset[reached] = _middle((end_ns[:, reached] - middle[:, np.newaxis]).T)
    for _ in range(REFINEMENTS):
        middle = _middle(end_ns - offset)
        known = ~np.isnan(offset)
        better = _middle((end_ns - middle[:, np.newaxis]).T)
        offset[known] = better[known] - better[first]
    return offset


def _middle(values: Float) -> Float:
    """(k,) median of each row without its NaNs; NaN for a row of nothing else."""
    result = np.full(len(values), np.nan)
    filled = ~np.isnan(values).all(axis=1)
    if filled.any():
        result[filled] = np.nanmedian(values[filled], axis=1)
    return result


def _spread(values: Float) -> float:
    """The 90th percentile of last − first over the rows that have two or more."""
    rows = values[(~np.isnan(values)).sum(axis=1) >= 2]
    if len(rows) == 0:
        return 0.0
    return float(np.percentile(np.nanmax(rows, axis=1) - np.nanmin(rows, axis=1), 90))
