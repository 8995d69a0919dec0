"""Device time by kernel name, and how much of the device the kernels could fill."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind, Role
from ipyprof.trace.model import Int64, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One kernel, copy or memset by name, summed over the recorded steps.

    Attributes:
        est_occupancy: estimated occupancy 0..1, the mean over the time of the records that have one, or ``None``.
        category: ``kernel``, ``copy`` or ``communication``.
        bound: ``copy``, ``launch`` (its median duration is shorter than its median launching call) or ``unknown``.
        tensor_core: ``n/a`` for copies, else ``unknown``.
    """

    name: str
    calls: int
    device_ns: int
    est_occupancy: float | None
    category: str
    bound: str
    tensor_core: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Rows by device time, the largest first.

    ``covered_sm_ns`` is Σ duration · min(1, blocks / SMs) over the compute kernels of all ``steps``; ``None`` where a
    kernel's grid or its device's number of SMs is not in the file. Divide by steps × step time for the share.
    """

    rows: tuple[KernelRow, ...]
    steps: int
    covered_sm_ns: float | None


def kernel_rows(trace: Trace, steps: Steps, device: int | None = None) -> KernelTable:
    """The device records of the recorded steps by name.

    Args:
        device: count this device's work only; ``None`` = all devices.
    """
    work = np.flatnonzero(steps.step >= 0)
    if device is not None:
        work = work[trace.device[work] == device]
    order = work[np.argsort(trace.name[work], kind="stable")]
    names, first = np.unique(trace.name[order], return_index=True)
    occupancy = np.array(
        [np.nan if detail.occupancy is None else detail.occupancy for detail in trace.details] + [np.nan]
    )
    last = np.append(first[1:], len(order))
    rows = [
        _row(trace, steps, trace.names[name], order[begin:stop], occupancy[trace.detail[order[begin:stop]]])
        for name, begin, stop in zip(names.tolist(), first.tolist(), last.tolist()[: len(names)], strict=True)
    ]
    rows.sort(key=lambda row: (-row.device_ns, row.name))
    covered = _covered_sm(trace, work[trace.kind[work] == Kind.KERNEL])
    return KernelTable(rows=tuple(rows), steps=steps.count, covered_sm_ns=covered)


def _row(
    trace: Trace, steps: Steps, name: str, mine: Int64, occupancy: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> KernelRow:
    kind, dur = int(trace.kind[mine[0]]), trace.dur_ns[mine]
    category = {Kind.MEMCPY: "copy", Kind.MEMSET: "copy", Kind.COMMUNICATION: "communication"}.get(Kind(kind), "kernel")
    bound = "copy" if category == "copy" else "unknown"
    launch = steps.launch[mine]
    # A graph's kernels have no launch of their own to compare with.
    own = trace.role[launch] != Role.GRAPH_LAUNCH
    if category == "kernel" and own.any():
        short = dur[own] < trace.dur_ns[launch[own]]
        bound = "launch" if 2 * dur[own][short].sum() > dur[own].sum() else "unknown"
    known = ~np.isnan(occupancy)
    weight = np.maximum(dur[known], 1)
    return KernelRow(
        name=name,
        calls=len(mine),
        device_ns=int(dur.sum()),
        est_occupancy=float(np.average(occupancy[known], weights=weight)) if known.any() else None,
        category=category,
        bound=bound,
        tensor_core="n/a" if category == "copy" else "unknown",
    )


def _covered_sm(trace: Trace, kernels: Int64) -> float | None:
    """Σ duration · min(1, blocks / SMs) in ns, ``None`` where one of them is unknown."""
    sms = {device.index: device.sm_count for device in trace.devices}
    count = {index: sms.get(index) for index in np.unique(trace.device[kernels]).tolist()}
    if len(kernels) == 0 or not all(count.values()):
        return None
    grids = [prod(detail.grid) if detail.grid else 0 for detail in trace.details] + [0]
    blocks = np.array(grids, np.float64)[trace.detail[kernels]]
    if (blocks <= 0).any():
        return None
    index, inverse = np.unique(trace.device[kernels], return_inverse=True)
    available = np.array([float(count[at] or 0) for at in index.tolist()])[inverse]
    return float((trace.dur_ns[kernels] * np.minimum(1.0, blocks / available)).sum())
