"""How far each operator is from what the device can do: FLOPs, bytes, what bounds it, Tensor Cores, MFU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.ceilings import Ceilings, ceilings_of
from ipyprof.analysis.intervals import distinct_columns
from ipyprof.analysis.operators import Flags, OperatorTable
from ipyprof.analysis.work import PRODUCTS, Work, operator_work
from ipyprof.trace.kinds import NO, NONE, UNKNOWN, YES, Kind, copy_direction, tensor_core_evidence
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

PROOF = 1.15  # FLOP/s over this many times the peak without Tensor Cores prove them: cards run over their listed clock
NEAR_SHARE = 0.1  # reaching less than this of both ceilings, neither bounds the operator: latency does
UNSEEN_SHARE = 0.05  # with kernels of unknown kind over this share of the step, the Tensor Cores' share is not known

FLOAT32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """All calls of one operator with the same inputs, in the recorded steps.

    Attributes:
        name: the operator; kernels: the names of its device records, the longest time first.
        calls: number of calls; device_ns: their device time together.
        work: of one call, or ``None``.
        unit: key of the ceiling that its FLOPs are held against: the dtype, or ``tf32`` for float32 products which
            may run on Tensor Cores.
        tensor_core: ``yes``, ``no``, ``unknown`` or ``n/a``.
        roof_ns: least time of one call at the reachable ceilings, or ``None``.
    """

    name: str
    kernels: tuple[str, ...]
    calls: int
    device_ns: int
    work: Work | None
    unit: str
    tensor_core: str
    roof_ns: float | None

    @property
    def achieved_flops(self) -> float | None:
        """FLOP/s."""
        return None if self.work is None or not self.device_ns else self.work.flops * self.calls / self.device_ns * 1e9

    @property
    def reached(self) -> float | None:
        """Share 0..1 of what the ceilings allow."""
        return None if self.roof_ns is None or not self.device_ns else self.roof_ns * self.calls / self.device_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineRow:
    """One row of the operator table, over all recorded steps.

    Attributes:
        flops, bytes: of the calls whose work is known; ``None`` = of none.
        device_ns: device time of those calls.
        achieved_flops, achieved_bandwidth: FLOP/s and bytes/s over that time.
        bound: ``compute``, ``memory`` or ``unknown``.
        tensor_core: ``yes``, ``no``, ``unknown`` or ``n/a``.
        roof_ns: least time of those calls at the reachable ceilings.
    """

    name: str
    flops: float | None
    bytes: float | None
    device_ns: int
    achieved_flops: float | None
    achieved_bandwidth: float | None
    bound: str
    tensor_core: str
    roof_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Rows aligned with the operator table, and the step as a whole.

    Attributes:
        device: name of the device as the file has it; empty = not known.
        ceilings: of that device, or ``None``.
        groups: the calls, most device time first.
        group: (n,) int64; for a device record of a recorded step the index of its group, -1 = none.
        call: (n,) int64; for such a record the operator event it belongs to, -1 elsewhere.
        mfu: FLOPs of products, convolutions and attention in a step / (step × peak), share 0..1, or ``None``. Work that
            the program repeats (activation checkpointing) counts as often as it ran.
        mfu_text: its denominator, such as ``bf16 dense peak 989 TFLOP/s (NVIDIA H200 data sheet)``.
        tensor_core_share: of the step, time in kernels proven to use Tensor Cores; ``None`` = not known.
        known_share: of the device time, calls whose work is known.
        kernel_tensor_core: device record name → ``yes``, ``no``, ``unknown`` or ``n/a``.
        kernel_bound: device record name → ``compute``, ``memory`` or ``unknown``, from calls whose main kernel it is.
    """

    device: str
    ceilings: Ceilings | None
    rows: tuple[RooflineRow, ...]
    groups: tuple[CallGroup, ...]
    group: Int64
    call: Int64
    mfu: float | None
    mfu_text: str
    tensor_core_share: float | None
    known_share: float
    kernel_tensor_core: Mapping[str, str]
    kernel_bound: Mapping[str, str]


def device_name(trace: Trace, live: LiveRecord | None, device: int) -> str:
    """What the file, or else the live run, calls this device; empty = not known.

    A process that sees one device by another number has it under that number in the list: where all have one name, it
    is that one.
    """
    names = {info.index: info.name for info in trace.devices}
    if live is not None:
        names |= {int(index): name for index, name in live.device_names.items()}
    one = set(names.values())
    return names.get(device, one.pop() if len(one) == 1 else "")


def roofline(trace: Trace, operators: OperatorTable, device: str, step_ns: float | None) -> Roofline:
    """The roofline of the device work that the operator table holds. Linear in the device records.

    Args:
        device: the device's name; empty = not known.
    """
    ceilings = ceilings_of(device)
    records = np.flatnonzero(operators.row >= 0)
    names = {name: tensor_core_evidence(trace.names[name]) for name in np.unique(trace.name[records]).tolist()}
    call = np.full(len(trace), -1, np.int64)
    owned = records[(operators.owner[records] >= 0) & _working(trace, records)]
    call[owned] = operators.owner[owned]
    group = np.full(len(trace), -1, np.int64)
    groups, group[owned], row_of = _groups(trace, operators, owned, ceilings)
    rows = tuple(
        _row(row.name, [groups[at] for at in np.flatnonzero(row_of == index).tolist()], ceilings)
        for index, row in enumerate(operators.rows)
    )
    proven = {at for at, found in enumerate(groups) if found.tensor_core == YES}
    mfu, text = _mfu(groups, ceilings, step_ns, operators.steps)
    device_ns = int(trace.dur_ns[records].sum())
    known = sum(found.device_ns for found in groups if found.work is not None)
    return Roofline(
        device=device,
        ceilings=ceilings,
        rows=rows,
        groups=tuple(groups),
        group=group,
        call=call,
        mfu=mfu,
        mfu_text=text,
        tensor_core_share=_tensor_core_share(trace, records, group, proven, names, step_ns, operators.steps),
        known_share=known / device_ns if device_ns else 0.0,
        kernel_tensor_core=_by_kernel(groups, {trace.names[name]: verdict for name, verdict in names.items()}),
        kernel_bound=_bound_by_kernel(groups, ceilings),
    )


def _by_kernel(groups: list[CallGroup], named: dict[str, str]) -> dict[str, str]:
    """What names tell, and for names that do not tell what the rate of their calls proves."""
    proven = {group.kernels[0] for group in groups if group.tensor_core == YES}
    return {name: YES if verdict == UNKNOWN and name in proven else verdict for name, verdict in named.items()}


def _bound_by_kernel(groups: list[CallGroup], ceilings: Ceilings | None) -> dict[str, str]:
    alike: dict[str, list[CallGroup]] = {}
    for group in groups:
        alike.setdefault(group.kernels[0], []).append(group)
    return {
        name: _bound(
            [(group, group.work) for group in mine if group.work is not None],
            sum(group.device_ns for group in mine),
            ceilings,
        )
        for name, mine in alike.items()
    }


def _working(trace: Trace, records: Int64) -> Flags:
    """(k,) bool: kernels, fills and copies inside the device; not what goes over the link or between ranks."""
    kind = trace.kind[records]
    inside = np.array(
        [
            kind_of == Kind.MEMCPY and copy_direction(trace.names[name])[0] == "DtoD"
            for kind_of, name in zip(kind.tolist(), trace.name[records].tolist(), strict=True)
        ],
        bool,
    )
    working: Flags = (kind == Kind.KERNEL) | (kind == Kind.MEMSET) | inside
    return working


def _groups(
    trace: Trace, operators: OperatorTable, owned: Int64, ceilings: Ceilings | None
) -> tuple[list[CallGroup], Int64, Int64]:
    """The groups, the group of each of ``owned``, and each group's row."""
    owner = operators.owner[owned]
    keys = trace.name[owner].astype(np.int64), trace.detail[owner].astype(np.int64), operators.row[owned]
    distinct, which = distinct_columns(*keys)
    count = distinct.shape[1]
    times = np.bincount(which, trace.dur_ns[owned], count).astype(np.int64)
    order = np.argsort(-times, kind="stable")
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    which = place[which]
    distinct, times = distinct[:, order], times[order]
    calls = np.bincount(distinct_columns(which, owner)[0][0], minlength=count)
    part, part_of = distinct_columns(which, trace.name[owned].astype(np.int64))
    part_ns = np.bincount(part_of, trace.dur_ns[owned], part.shape[1])
    kernels: list[list[tuple[float, str]]] = [[] for _ in range(count)]
    for at, name, spent in zip(part[0].tolist(), part[1].tolist(), part_ns.tolist(), strict=True):
        kernels[at].append((-spent, trace.names[name]))
    groups = [
        _group(
            trace.names[int(distinct[0, at])],
            trace,
            int(distinct[1, at]),
            tuple(name for _, name in sorted(kernels[at])),
            int(calls[at]),
            int(times[at]),
            ceilings,
        )
        for at in range(count)
    ]
    return groups, which.astype(np.int64), distinct[2]


def _group(
    name: str,
    trace: Trace,
    detail: int,
    kernels: tuple[str, ...],
    calls: int,
    device_ns: int,
    ceilings: Ceilings | None,
) -> CallGroup:
    details = trace.details[detail] if detail >= 0 else None
    work = operator_work(name, details, list_dtype(kernels[0]))
    evidence = _evidence(work, kernels, calls, device_ns, ceilings)
    unit = work.dtype if work is not None else "other"
    if work is not None and work.kind in PRODUCTS and unit == FLOAT32 and evidence != NO:
        unit = "tf32" if ceilings is not None and "tf32" in ceilings.peak_flops else FLOAT32
    return CallGroup(
        name=name,
        kernels=kernels,
        calls=calls,
        device_ns=device_ns,
        work=work,
        unit=unit,
        tensor_core=evidence,
        roof_ns=None if work is None or ceilings is None else roof_ns(work, unit, ceilings),
    )


def roof_ns(work: Work, unit: str, ceilings: Ceilings) -> float | None:
    """Least ns of one call at the reachable ceilings; ``None`` for a product in a dtype without a ceiling."""
    moving_ns = work.bytes / ceilings.reachable_bandwidth * 1e9
    if work.kind not in PRODUCTS:
        return moving_ns
    reachable = _reachable(unit, ceilings)
    return None if reachable is None else max(work.flops / reachable * 1e9, moving_ns)


def _reachable(unit: str, ceilings: Ceilings) -> float | None:
    # A card without units for a dtype multiplies it where it multiplies float32.
    return ceilings.reachable_flops.get(unit) or ceilings.plain_flops.get(unit)


def _evidence(
    work: Work | None, kernels: tuple[str, ...], calls: int, device_ns: int, ceilings: Ceilings | None
) -> str:
    """Whether the calls use Tensor Cores: proven by their rate, else by their kernels' names."""
    named = [verdict for kernel in kernels if (verdict := tensor_core_evidence(kernel)) != NONE]
    product = work is not None and work.kind in PRODUCTS
    if YES in named:
        return YES
    # A convolution by Winograd's or Fourier's way needs fewer operations than counted: its rate proves nothing.
    if work is not None and work.kind in ("gemm", "attention") and ceilings is not None and ceilings.has_tensor_cores:
        plain = ceilings.plain_flops.get(work.dtype)
        if plain is not None and device_ns and work.flops * calls / device_ns * 1e9 > PROOF * plain:
            return YES
    if NO in named:
        return NO if UNKNOWN not in named else UNKNOWN
    return UNKNOWN if product or (UNKNOWN in named and work is None) else NONE


def _row(name: str, groups: list[CallGroup], ceilings: Ceilings | None) -> RooflineRow:
    known = [(group, group.work) for group in groups if group.work is not None]
    evidence = [group.tensor_core for group in sorted(groups, key=lambda group: -group.device_ns)]
    asked = [verdict for verdict in evidence if verdict != NONE]
    flops = sum(work.flops * group.calls for group, work in known)
    moved = sum(work.bytes * group.calls for group, work in known)
    device_ns = sum(group.device_ns for group, _ in known)
    roofs = [group.roof_ns * group.calls for group, _ in known if group.roof_ns is not None]
    timed = bool(known) and device_ns > 0
    return RooflineRow(
        name=name,
        flops=flops if known else None,
        bytes=moved if known else None,
        device_ns=device_ns,
        achieved_flops=flops / device_ns * 1e9 if timed else None,
        achieved_bandwidth=moved / device_ns * 1e9 if timed else None,
        bound=_bound(known, sum(group.device_ns for group in groups), ceilings),
        tensor_core=asked[0] if asked else NONE,
        roof_ns=sum(roofs) if known and len(roofs) == len(known) else None,
    )


def _bound(known: list[tuple[CallGroup, Work]], device_ns: int, ceilings: Ceilings | None) -> str:
    """The ceiling that most of the time is nearer to, where either is near at all."""
    if ceilings is None:
        return "unknown"
    nearer = {"compute": 0, "memory": 0}
    for group, work in known:
        reachable = _reachable(group.unit, ceilings) if work.kind in PRODUCTS else None
        counting_ns = work.flops / reachable * 1e9 if reachable else 0.0
        moving_ns = work.bytes / ceilings.reachable_bandwidth * 1e9
        if max(counting_ns, moving_ns) * group.calls >= NEAR_SHARE * group.device_ns:
            nearer["compute" if counting_ns > moving_ns else "memory"] += group.device_ns
    most = max(nearer, key=lambda bound: nearer[bound])
    return most if nearer[most] * 2 > device_ns else "unknown"


def _mfu(
    groups: list[CallGroup], ceilings: Ceilings | None, step_ns: float | None, steps: int
) -> tuple[float | None, str]:
    if ceilings is None or not step_ns or not steps:
        return None, ""
    flops: dict[str, float] = {}
    for group in groups:
        if group.work is not None and group.work.kind in PRODUCTS:
            flops[group.unit] = flops.get(group.unit, 0.0) + group.work.flops * group.calls
    if not flops:
        return None, ""
    unit = max(flops, key=lambda key: flops[key])
    peak = ceilings.peak_flops.get(unit) or ceilings.plain_flops.get(unit)
    if peak is None:
        return None, ""
    share = sum(flops.values()) / steps / (step_ns / 1e9 * peak)
    return share, f"{unit} dense peak {peak / 1e12:.0f} TFLOP/s ({ceilings.source})"


def _tensor_core_share(
    trace: Trace,
    records: Int64,
    group: Int64,
    proven: set[int],
    names: Mapping[int, str],
    step_ns: float | None,
    steps: int,
) -> float | None:
    """Of the step, the time of kernels that are proven by name, or the main kernel of calls proven by their rate."""
    if not step_ns or not steps:
        return None
    used = unseen = 0
    for name, at, kind, spent in zip(
        trace.name[records].tolist(),
        group[records].tolist(),
        trace.kind[records].tolist(),
        trace.dur_ns[records].tolist(),
        strict=True,
    ):
        if kind != Kind.KERNEL:
            continue
        if names[name] == YES or (names[name] == UNKNOWN and at in proven):
            used += spent
        elif names[name] == UNKNOWN:
            unseen += spent
    whole = step_ns * steps
    return None if unseen > UNSEEN_SHARE * whole else min(used / whole, 1.0)


_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_OPAQUE_DTYPES = {"1": "bool", "2": "c10::Half", "4": "float", "8": "double"}
_ELEMENT = re.compile(r"\b(c10::BFloat16|c10::Half|float|double)\b")


def list_dtype(kernel_name: str) -> str | None:
    """Element type of a kernel over lists of tensors, from its name: the recorder does not write it."""
    opaque = _OPAQUE.search(kernel_name)
    if opaque:
        return _OPAQUE_DTYPES.get(opaque.group(1))
    plain = _ELEMENT.search(kernel_name)
    return plain.group(1) if plain else None
