"""Runs of memory-moving kernels that could be one kernel, and what that one would take.

The file does not say which tensor an operator reads, so a chain is neighbours on one stream and of one step where the
next reads what has the size and dtype of what the last one wrote. Where the same calls come round again, they may be a
loop over independent tensors as well as a longer chain: there the chain ends, so that what is said is the least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.intervals import distinct_columns
from ipyprof.analysis.roofline import Roofline
from ipyprof.analysis.work import MOVING, Work
from ipyprof.trace.model import Int64, Trace

# A kernel on its own counts only where it reaches less than this of the bandwidth. On an H200: elementwise kernels of
# one dtype 0.72 to 1.1; with casts 0.5 to 0.6, layout copies 0.3, layer norm 0.47, its backward 0.3, sums 0.2 to 0.7.
SLOW_SHARE = 0.7
LEAST_NS = 2_000.0  # no kernel is shorter
PRODUCTS_BEFORE = 2  # the scores' product is one of the last two before the softmax (backward has two)

LAYOUT_KERNELS = ("nchwToNhwc", "nhwcToNchw")

ATTENTION, LAYOUT, CHAIN, SINGLE = "attention", "layout", "chain", "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Neighbouring calls that could be one kernel.

    Attributes:
        what: ``attention`` (between the two products of attention written out), ``layout`` (a convolution's own copies
            between layouts), ``chain`` or ``single``.
        operators: their names in order.
        calls: (k,) int64 operator events; records: (r,) int64 their device records.
        bytes: what they move now; fused_bytes: what one kernel would move, at least.
        device_ns: their device time; fused_ns: that of one kernel.
        relayout: one of them only puts elements in another order.
    """

    what: str
    operators: tuple[str, ...]
    calls: Int64
    records: Int64
    bytes: float
    fused_bytes: float
    device_ns: int
    fused_ns: float
    relayout: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """Operator calls in the order in which their work starts, stream by stream. Lists are read one by one.

    Attributes:
        group: number of each in the roofline's groups; lane: of its device, stream and step.
        device_ns: of its records; layouts: it runs kernels that only put elements in another order for themselves.
        event: (c,) int64 operator events.
        records: (r,) int64 device records, call by call; begins: where those of each call begin, then the end.
    """

    group: list[int]
    lane: list[int]
    device_ns: list[int]
    layouts: list[bool]
    event: Int64
    records: Int64
    begins: list[int]

    def device_ns_of(self, part: list[int]) -> int:
        """Device time of these calls."""
        return sum(self.device_ns[at] for at in part)

    def records_of(self, part: list[int]) -> Int64:
        """(r,) int64 device records of these calls, which are in order."""
        if part[-1] - part[0] == len(part) - 1:
            return self.records[self.begins[part[0]] : self.begins[part[-1] + 1]]
        return np.concatenate([self.records[self.begins[at] : self.begins[at + 1]] for at in part])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Neighbouring calls [begin, end) of a run that one kernel could do, and the bytes that they and it would move."""

    begin: int
    end: int
    names: tuple[str, ...]
    bytes: float
    fused_bytes: float
    relayout: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """What depends only on the groups of calls, worked out once for each row of them: every step has the same.

    Attributes:
        works, roof_ns: of each group, ``roof_ns`` the least time of its whole work.
        whole: calls of these groups in a row as one part; parts: the same calls as the parts that fit together.
        bandwidth: bytes per second.
    """

    works: tuple[Work | None, ...]
    roof_ns: tuple[float, ...]
    whole: Callable[[tuple[int, ...]], _Part]
    parts: Callable[[tuple[int, ...]], tuple[_Part, ...]]
    bandwidth: float


def chains(trace: Trace, roof: Roofline, step: Int64) -> tuple[Chain, ...]:
    """Every chain that one kernel would shorten, in time order per stream. Needs ceilings: empty without.

    Args:
        step: (n,) int64, the step of each device record (``Steps.step``).
    """
    if roof.ceilings is None or all(group.work is None for group in roof.groups):
        return ()
    groups = _groups(roof, roof.ceilings.reachable_bandwidth)
    calls = _calls(trace, roof, step)
    moving = [work is not None and work.kind in MOVING for work in groups.works]
    found: list[Chain] = []
    run: list[int] = []
    before: list[int] = []
    lane = -1
    for at, (group, lane_here) in enumerate(zip(calls.group, calls.lane, strict=True)):
        if lane_here != lane:
            found += _close(calls, run, before, None, groups)
            run, before, lane = [], [], lane_here
        if moving[group]:
            run.append(at)
            continue
        found += _close(calls, run, before, at, groups)
        run = []
        work = groups.works[group]
        before = [*before, at][-PRODUCTS_BEFORE:] if work is not None and work.product is not None else []
        if calls.layouts[at]:
            found += _layouts(trace, calls, at, roof.groups[group].name)
    found += _close(calls, run, before, None, groups)
    return tuple(chain for chain in found if chain.fused_ns < chain.device_ns)


def _groups(roof: Roofline, bandwidth: float) -> _Groups:
    works = tuple(group.work for group in roof.groups)
    # Where gradients are computed, what is written may be kept for them.
    kept = any("backward" in group.name.lower() for group in roof.groups)

    @cache
    def linked(earlier: int, later: int) -> bool:
        return _linked(works[earlier], works[later]) is not None

    @cache
    def whole(groups: tuple[int, ...]) -> _Part:
        part = [work for group in groups if (work := works[group]) is not None]
        return _Part(
            begin=0,
            end=len(groups),
            names=tuple(roof.groups[group].name for group in groups),
            bytes=sum(work.bytes for work in part),
            fused_bytes=_fused_bytes(part, kept),
            relayout=any(work.relayout for work in part),
        )

    @cache
    def parts(groups: tuple[int, ...]) -> tuple[_Part, ...]:
        found: list[_Part] = []
        begin = 0
        for at in range(1, len(groups) + 1):
            if at < len(groups) and linked(groups[at - 1], groups[at]) and not _comes_round(groups, begin, at):
                continue
            found.append(replace(whole(groups[begin:at]), begin=begin, end=at))
            begin = at
        return tuple(found)

    roof_ns = tuple(group.roof_ns or 0.0 for group in roof.groups)
    return _Groups(works=works, roof_ns=roof_ns, whole=whole, parts=parts, bandwidth=bandwidth)


def factors(trace: Trace, found: tuple[Chain, ...]) -> npt.NDArray[np.float64]:
    """(n,) float: what remains of each device record's time, 1 where nothing changes."""
    remaining = np.ones(len(trace))
    for chain in found:
        remaining[chain.records] = chain.fused_ns / chain.device_ns
    return remaining


def _calls(trace: Trace, roof: Roofline, step: Int64) -> _Calls:
    records = np.flatnonzero(roof.call >= 0)
    order = np.lexsort((trace.start_ns[records], trace.stream[records], trace.device[records]))
    records = records[order].astype(np.int64)
    call = roof.call[records]
    first = np.flatnonzero(np.append(True, call[1:] != call[:-1])[: len(call)])
    head = records[first]
    lane = distinct_columns(trace.device[head].astype(np.int64), trace.stream[head], step[head])[1]
    reorders = np.array([any(word in name for word in LAYOUT_KERNELS) for name in trace.names], bool)
    return _Calls(
        group=roof.group[head].tolist(),
        lane=lane.tolist(),
        device_ns=np.add.reduceat(trace.dur_ns[records], first).tolist(),
        layouts=np.logical_or.reduceat(reorders[trace.name[records]], first).tolist(),
        event=call[first],
        records=records,
        begins=[*first.tolist(), len(records)],
    )


def _close(calls: _Calls, run: list[int], before: list[int], after: int | None, groups: _Groups) -> list[Chain]:
    """The chains of one run of memory-moving calls between two others."""
    if not run:
        return []
    found: list[Chain] = []
    scores, inner = _attention(calls, run, before, after, groups)
    if scores is not None:
        whole = groups.whole(tuple(calls.group[at] for at in inner))
        # Backward forms the scores again.
        again_ns = groups.roof_ns[calls.group[scores]] if any("backward" in name for name in whole.names) else 0.0
        found.append(_chain(ATTENTION, calls, inner, replace(whole, fused_bytes=0.0), max(again_ns, LEAST_NS)))
        run = [at for at in run if at not in inner]
    for part in groups.parts(tuple([calls.group[at] for at in run])):
        mine = run[part.begin : part.end]
        fused_ns = max(part.fused_bytes / groups.bandwidth * 1e9, LEAST_NS)
        what, least = (CHAIN, 1.0) if len(mine) > 1 else (SINGLE, SLOW_SHARE)
        if fused_ns < least * calls.device_ns_of(mine):
            found.append(_chain(what, calls, mine, part, fused_ns))
    return found


def _comes_round(groups: tuple[int, ...], begin: int, at: int) -> bool:
    """Whether the calls from ``at`` on repeat the last ones of the chain [begin, at)."""
    for since in range(at - 1, begin - 1, -1):
        if groups[since] == groups[at] and groups[at : at + at - since] == groups[since:at]:
            return True
    return False


def _chain(what: str, calls: _Calls, mine: list[int], part: _Part, fused_ns: float) -> Chain:
    return Chain(
        what=what,
        operators=part.names,
        calls=calls.event[mine],
        records=calls.records_of(mine),
        bytes=part.bytes,
        fused_bytes=part.fused_bytes,
        device_ns=calls.device_ns_of(mine),
        fused_ns=fused_ns,
        relayout=part.relayout,
    )


def _linked(earlier: Work | None, later: Work | None) -> tuple[int, int] | None:
    """(bytes written, bytes read) of what the later call reads from the earlier; ``None`` = they do not fit."""
    for written in earlier.writes if earlier is not None else ():
        for read in later.reads if later is not None else ():
            if read.dtype == written.dtype and read.elements == written.elements:
                return written.nbytes, read.nbytes
    return None


def _fused_bytes(works: list[Work], kept: bool) -> float:
    """Bytes of one kernel for all: what passes between them is not read again, and not written where none keeps it."""
    moved = sum(work.bytes for work in works)
    for earlier, later in pairwise(works):
        linked = _linked(earlier, later)
        if linked is not None:
            moved -= linked[1]
            if not kept and not earlier.in_place:
                moved -= linked[0]
    return moved


def _attention(
    calls: _Calls, run: list[int], before: list[int], after: int | None, groups: _Groups
) -> tuple[int | None, list[int]]:
    """The product that made the scores, and the calls on them, where softmax stands between two products."""
    closing = groups.works[calls.group[after]] if after is not None else None
    product = closing.product if closing is not None else None
    if product is None:
        return None, []
    for at in run:
        work = groups.works[calls.group[at]]
        if work is None or work.kind != "softmax":
            continue
        size = work.writes[0].elements
        if size not in (product.batch * product.m * product.k, product.batch * product.k * product.n):
            continue
        made = [each for each in before if _scores(groups.works[calls.group[each]]) == size]
        if made:
            return made[-1], [each for each in run if _written(groups.works[calls.group[each]]) == {size}]
    return None, []


def _scores(work: Work | None) -> int | None:
    """Elements of what a product writes, ``None`` = it is none."""
    product = work.product if work is not None else None
    return product.batch * product.m * product.n if product is not None else None


def _written(work: Work | None) -> set[int]:
    """Sizes, in elements, of what a call writes."""
    return {tensor.elements for tensor in work.writes} if work is not None else set()


def _layouts(trace: Trace, calls: _Calls, at: int, name: str) -> list[Chain]:
    """A convolution's own copies from and to channels-last."""
    mine = np.array(
        [
            record
            for record in calls.records_of([at]).tolist()
            if any(word in trace.names[trace.name[record]] for word in LAYOUT_KERNELS)
        ],
        np.int64,
    )
    if len(mine) == 0:
        return []
    return [
        Chain(
            what=LAYOUT,
            operators=(name,),
            calls=calls.event[[at]],
            records=mine,
            bytes=0.0,
            fused_bytes=0.0,
            device_ns=int(trace.dur_ns[mine].sum()),
            fused_ns=0.0,
            relayout=True,
        )
    ]
