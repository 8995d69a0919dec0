"""Device and host time by operator name. Each piece of device work belongs to exactly one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ipyprof.analysis.attribution import MOST_LAYERS, innermost, parents, probe
from ipyprof.analysis.intervals import distinct_columns
from ipyprof.analysis.results import Kernel, Operator
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import DEVICE_KINDS, Kind, Role
from ipyprof.trace.model import Int64, Trace

MS = 1e6  # ns


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Kernels, copies and memsets by name, per step, the most device time first.

    ``covered_sm_ns`` is Σ duration · min(1, blocks / SMs) over the compute kernels of one step; ``None`` where a
    kernel's grid or its device's number of SMs is not in the file.
    """

    rows: tuple[Kernel, ...]
    covered_sm_ns: float | None


def kernel_rows(trace: Trace, steps: Steps, device: int | None = None) -> KernelTable:
    """The device records of the recorded steps by name.

    ``bound`` is ``copy``, ``launch`` where most of the time is in records shorter than their launching call, or
    ``unknown``.

    Args:
        device: count this device's work only; ``None`` = all devices.
    """
    work = np.flatnonzero(steps.step >= 0)
    if device is not None:
        work = work[trace.device[work] == device]
    occupancy = np.array(
        [np.nan if detail.occupancy is None else detail.occupancy for detail in trace.details] + [np.nan]
    )
    order = work[np.argsort(trace.name[work], kind="stable")]
    groups = np.split(order, np.flatnonzero(np.diff(trace.name[order])) + 1) if len(order) else []
    rows = [_kernel(trace, steps, mine, occupancy[trace.detail[mine]]) for mine in groups]
    covered = _covered_sm(trace, work[trace.kind[work] == Kind.KERNEL])
    return KernelTable(
        rows=tuple(sorted(rows, key=lambda row: (-row.device_ms, row.name))),
        covered_sm_ns=None if covered is None else covered / max(steps.count, 1),
    )


def _kernel(trace: Trace, steps: Steps, mine: Int64, occupancy: npt.NDArray[np.float64]) -> Kernel:
    kind, dur, count = int(trace.kind[mine[0]]), trace.dur_ns[mine], max(steps.count, 1)
    copies = kind in (Kind.MEMCPY, Kind.MEMSET)
    # A graph's kernels have no launch of their own to compare with; communication waits for others.
    launch = steps.launch[mine]
    own = trace.role[launch] != Role.GRAPH_LAUNCH if kind == Kind.KERNEL else np.zeros(len(mine), bool)
    short = dur[own] < trace.dur_ns[launch[own]]
    launching = 2 * dur[own][short].sum() > dur[own].sum()
    known = ~np.isnan(occupancy)
    weight = np.maximum(dur[known], 1)
    return Kernel(
        name=trace.names[trace.name[mine[0]]],
        calls=len(mine) / count,
        device_ms=int(dur.sum()) / count / MS,
        est_occupancy=float(np.average(occupancy[known], weights=weight)) if known.any() else None,
        bound="copy" if copies else "launch" if launching else "unknown",
        tensor_core="n/a" if copies else "unknown",
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


MOST_INPUTS = 4


def common_shapes(trace: Trace, events: Int64, row: Int64, rows: int) -> list[str]:
    """The input shapes of most events of each row, such as ``[64, 512] × [512, 512] +2 more``; empty = not recorded.

    Args:
        events: (k,) int64 event indices.
        row: (k,) int64 the row of each, below ``rows``.
    """
    text = [""] * rows
    known = trace.detail[events] >= 0
    pairs, place = distinct_columns(row[known], trace.detail[events[known]].astype(np.int64))
    counts = np.bincount(place, minlength=pairs.shape[1])
    seen: list[dict[str, int]] = [{} for _ in range(rows)]
    for at, detail, count in zip(pairs[0].tolist(), pairs[1].tolist(), counts.tolist(), strict=True):
        written = shape_text(trace.details[detail].shapes or ())
        if written:
            seen[at][written] = seen[at].get(written, 0) + count
    for at, found in enumerate(seen):
        if found:
            most = max(found, key=lambda written: (found[written], written))
            text[at] = most if len(found) == 1 else f"{most} +{len(found) - 1} more"
    return text


def shape_text(shapes: Sequence[Any]) -> str:
    """The inputs, such as ``[64, 512] × [512, 512]``; a list of tensors as ``(3 tensors)``; empty = no tensor."""
    tensors = [shape for shape in shapes if isinstance(shape, (list, tuple)) and len(shape)]
    written = [
        f"({len(shape)} tensors)" if isinstance(shape[0], (list, tuple)) else f"[{', '.join(map(str, shape))}]"
        for shape in tensors[:MOST_INPUTS]
    ]
    return " × ".join(written + ["…"] * (len(tensors) > MOST_INPUTS))


Flags = npt.NDArray[np.bool_]
GRAPH_ROW = "CUDA graph replay"
UNOWNED_ROW = "no operator recorded"
ID_SLACK_NS = 2_000  # old files round to whole microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """All operators of the recorded steps, the most device self time first, then the most host self time.

    Attributes:
        rows: per step: the mean of the recorded ones. A name nested in itself counts once (``aten::mean`` runs its own
            out variant), in ``calls`` and in the totals. ``bound`` is ``copy``, ``launch`` (most of its kernel time is
            in kernels shorter than their launching call) or ``unknown``.
        steps: number of recorded steps.
        gpu: device work was recorded.
        calls, self_device_ns, total_device_ns, self_host_ns, total_host_ns: (steps, rows) int64, aligned with ``rows``.
        row: (n,) int64; for a device record of a recorded step its row, -1 elsewhere.
        owner: (n,) int64; for any device record the innermost operator event around its launch, -1 = none. A graph's
            kernels have the operator around the graph launch, though their row is the graph's.
        parent: (n,) int64; for an operator event the operator event around it, -1 = none.
    """

    rows: tuple[Operator, ...]
    steps: int
    gpu: bool
    calls: Int64
    self_device_ns: Int64
    total_device_ns: Int64
    self_host_ns: Int64
    total_host_ns: Int64
    row: Int64
    owner: Int64
    parent: Int64

    def per_step(self, step: int) -> tuple[Operator, ...]:
        """The rows of one recorded step, counted from 0, in its own order; rows without anything in it are left out."""
        times = (self.calls, self.self_device_ns, self.total_device_ns, self.self_host_ns, self.total_host_ns)
        found = _measured(self.rows, *(value[step] for value in times), steps=1, gpu=self.gpu)
        present = np.flatnonzero(np.stack([value[step] for value in times]).any(axis=0)).tolist()
        return tuple(sorted((found[at] for at in present), key=_rank))


def operator_rows(trace: Trace, steps: Steps, device: int | None = None) -> OperatorTable:
    """The operators of the recorded steps. The rows' device self times add up to the steps' device time exactly.

    A device record belongs to the innermost operator around its launching call; a graph's kernels to the row
    "CUDA graph replay"; device work launched outside all operators (or on a thread without them) to
    "no operator recorded". Our own ranges, steps, annotations and loaders are no operators.

    Args:
        device: count this device's work only; ``None`` = all devices.
    """
    events = trace.select(Kind.OPERATOR)
    inner = parents(trace.start_ns[events], trace.end_ns[events], trace.tid[events])
    parent = _scatter(len(trace), events, np.where(inner >= 0, events[np.maximum(inner, 0)], -1))
    owner = _owners(trace, steps, events, inner)

    work = np.flatnonzero(steps.step >= 0)
    if device is not None:
        work = work[trace.device[work] == device]
    launch, step, dur = steps.launch[work], steps.step[work], trace.dur_ns[work]
    graph_name, unowned_name = len(trace.names), len(trace.names) + 1
    label = np.where(owner[work] >= 0, trace.name[np.maximum(owner[work], 0)], unowned_name).astype(np.int64)
    of_graph = trace.role[launch] == Role.GRAPH_LAUNCH
    label[of_graph] = graph_name

    event_step = steps.of_time(trace.start_ns[events])
    inside = event_step >= 0
    event_label = trace.name[events].astype(np.int64)
    outermost = _outermost_of_name(event_label, inner)
    record, around = _around(owner[work], events, inner, outermost)
    labels = np.unique(np.concatenate((label, event_label[inside], event_label[around])))
    size = (steps.count, len(labels))

    def tally(at: Int64, labelled: Int64, weight: Int64 | None = None) -> Int64:
        # Sums of ns stay exact in float64 below 2^53 ns, 104 days.
        cell = at * len(labels) + np.searchsorted(labels, labelled)
        return np.bincount(cell, weight, size[0] * size[1]).astype(np.int64).reshape(size)

    top = inside & outermost
    calls = tally(event_step[top], event_label[top])
    # Rows that stand for no operator count their launches.
    bare = label >= graph_name
    first = np.flatnonzero(bare)[np.unique(launch[bare], return_index=True)[1]]
    calls += tally(step[first], label[first])
    self_device = tally(step, label, dur)
    total_device = tally(step[bare], label[bare], dur[bare]) + tally(step[record], event_label[around], dur[record])
    own_host = _self_host(trace, events, inner)
    self_host = tally(event_step[inside], event_label[inside], own_host[inside])
    total_host = tally(event_step[top], event_label[top], trace.dur_ns[events[top]])

    spoken = (*trace.names, GRAPH_ROW, UNOWNED_ROW)
    bound = _bounds(trace, work, launch, np.searchsorted(labels, label), len(labels), of_graph)
    shapes = common_shapes(trace, events[inside], np.searchsorted(labels, event_label[inside]), len(labels))
    named = [
        Operator(
            name=spoken[name],
            calls=0,
            self_device_ms=None,
            total_device_ms=None,
            self_host_ms=0.0,
            total_host_ms=0.0,
            share=None,
            shapes=shapes[at],
            bound=bound[at],
            tensor_core="n/a" if bound[at] == "copy" else "unknown",
        )
        for at, name in enumerate(labels.tolist())
    ]
    gpu = len(trace.select(*DEVICE_KINDS)) > 0
    sums = (value.sum(axis=0) for value in (calls, self_device, total_device, self_host, total_host))
    rows = _measured(named, *sums, steps=steps.count, gpu=gpu)
    order = sorted(range(len(rows)), key=lambda at: _rank(rows[at]))
    new_place = np.empty(len(order), np.int64)
    new_place[order] = np.arange(len(order))
    return OperatorTable(
        rows=tuple(rows[at] for at in order),
        steps=steps.count,
        gpu=gpu,
        calls=calls[:, order],
        self_device_ns=self_device[:, order],
        total_device_ns=total_device[:, order],
        self_host_ns=self_host[:, order],
        total_host_ns=total_host[:, order],
        row=_scatter(len(trace), work, new_place[np.searchsorted(labels, label)]),
        owner=owner,
        parent=parent,
    )


def _owners(trace: Trace, steps: Steps, events: Int64, inner: Int64) -> Int64:
    """(n,) int64 operator event around each device record's launching call, -1 elsewhere.

    By the id that Kineto gives both, where it names one operator of the call's thread that held the call but for the
    clocks' disagreement; else by time: some files have no ids, and in some they name operators that ran much later.
    """
    owner = np.full(len(trace), -1, np.int64)
    work = trace.select(*DEVICE_KINDS)
    work = work[steps.launch[work] >= 0]
    if len(work) == 0 or len(events) == 0:
        return owner
    calls, of_work = np.unique(steps.launch[work], return_inverse=True)
    start, end = trace.start_ns[calls], trace.end_ns[calls]
    place = innermost(
        trace.start_ns[events], trace.end_ns[events], trace.tid[events], probe(start, end), trace.tid[calls], inner
    )
    found = np.where(place >= 0, events[np.maximum(place, 0)], -1)
    ids, first, counts = np.unique(trace.external_id[events], return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(ids, trace.external_id[calls]), len(ids) - 1)
    named = events[first[at]]
    sure = (
        (trace.external_id[calls] != 0)
        & (ids[at] == trace.external_id[calls])
        & (counts[at] == 1)
        & (trace.tid[named] == trace.tid[calls])
        & (trace.start_ns[named] - start <= ID_SLACK_NS)
        & (end - trace.end_ns[named] <= ID_SLACK_NS)
    )
    owner[work] = np.where(sure, named, found)[of_work]
    return owner


def _outermost_of_name(label: Int64, inner: Int64) -> Flags:
    """(k,) bool: the operator event is not nested in one of its own name."""
    outermost = np.ones(len(label), bool)
    current = inner
    for _ in range(MOST_LAYERS):
        if not (current >= 0).any():
            return outermost
        outermost &= (current < 0) | (label[np.maximum(current, 0)] != label)
        current = np.where(current >= 0, inner[np.maximum(current, 0)], -1)
    return _outermost_of_deep(label, inner)


def _outermost_of_deep(label: Int64, inner: Int64) -> Flags:
    """As ``_outermost_of_name``, in linear time however deep the operators are nested."""
    outermost = np.ones(len(label), bool)
    labels, children = label.tolist(), np.argsort(inner, kind="stable").tolist()
    first = np.searchsorted(np.sort(inner), np.arange(-1, len(label) + 1)).tolist()
    open_labels: dict[int, int] = {}
    # Down into each event (~event: up again), with the names that are open on the way.
    todo = children[first[0] : first[1]]
    while todo:
        event = todo.pop()
        if event < 0:
            open_labels[labels[~event]] -= 1
            continue
        count = open_labels.get(labels[event], 0)
        outermost[event] = count == 0
        open_labels[labels[event]] = count + 1
        todo.append(~event)
        todo += children[first[event + 1] : first[event + 2]]
    return outermost


def _around(owner: Int64, events: Int64, inner: Int64, outermost: Flags) -> tuple[Int64, Int64]:
    """(records, places): each record with each operator around it, one of each name; places are into ``events``."""
    records, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    record = np.flatnonzero(owner >= 0)
    place = np.searchsorted(events, owner[record])
    while len(record):
        counted = outermost[place]
        records.append(record[counted])
        places.append(place[counted])
        place = inner[place]
        record, place = record[place >= 0], place[place >= 0]
    return np.concatenate(records), np.concatenate(places)


def _self_host(trace: Trace, events: Int64, inner: Int64) -> Int64:
    """(k,) int64 ns of each operator event outside the operators it called."""
    start, end = trace.start_ns[events], trace.end_ns[events]
    child = np.flatnonzero(inner >= 0)
    around = inner[child]
    shared = np.maximum(np.minimum(end[child], end[around]) - np.maximum(start[child], start[around]), 0)
    taken = np.bincount(around, shared, len(events)).astype(np.int64)
    alone: Int64 = np.maximum(end - start - taken, 0)
    return alone


def _bounds(trace: Trace, work: Int64, launch: Int64, row: Int64, rows: int, of_graph: Flags) -> list[str]:
    """``copy``, ``launch`` or ``unknown`` of each row, from its device records.

    By time, not by count: many tiny casts beside a few large ones are not what the operator takes.
    """
    kind, dur = trace.kind[work], trace.dur_ns[work]
    copying = (kind == Kind.MEMCPY) | (kind == Kind.MEMSET)
    talking = kind == Kind.COMMUNICATION
    # Only kernels with a launch of their own compare with it; communication waits for others.
    own = ~copying & ~talking & ~of_graph
    short = own.copy()
    short[own] = dur[own] < trace.dur_ns[launch[own]]
    masks = (np.ones(len(work)), copying, talking, own, short)
    total, copies, talks, in_own, in_short = (np.bincount(row, dur * mask, rows) for mask in masks)
    copy = (total > 0) & (copies * 2 > total)
    launching = (total > 0) & (talks * 2 <= total) & (in_short * 2 > in_own)
    found: list[str] = np.where(copy, "copy", np.where(launching, "launch", "unknown")).tolist()
    return found


def _scatter(size: int, at: Int64, value: Int64) -> Int64:
    """(size,) int64 with the values at their places and -1 elsewhere."""
    spread = np.full(size, -1, np.int64)
    spread[at] = value
    return spread


def _rank(row: Operator) -> tuple[float, float, str]:
    return (-(row.self_device_ms or 0.0), -row.self_host_ms, row.name)


def _measured(
    rows: Sequence[Operator],
    calls: Int64,
    self_device_ns: Int64,
    total_device_ns: Int64,
    self_host_ns: Int64,
    total_host_ns: Int64,
    *,
    steps: int,
    gpu: bool,
) -> list[Operator]:
    """The rows with these numbers, (rows,) each, summed over ``steps``."""
    device = int(self_device_ns.sum())
    steps = max(steps, 1)
    columns = zip(
        calls.tolist(),
        self_device_ns.tolist(),
        total_device_ns.tolist(),
        self_host_ns.tolist(),
        total_host_ns.tolist(),
        strict=True,
    )
    return [
        structs.replace(
            row,
            calls=count / steps,
            self_device_ms=self_device / steps / MS if gpu else None,
            total_device_ms=total_device / steps / MS if gpu else None,
            self_host_ms=self_host / steps / MS,
            total_host_ms=total_host / steps / MS,
            share=self_device / device if gpu and device else None,
        )
        for row, (count, self_device, total_device, self_host, total_host) in zip(rows, columns, strict=True)
    ]
