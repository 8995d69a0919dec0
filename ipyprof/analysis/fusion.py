"""Runs of memory-moving kernels that could be one kernel, and what that one would take.

The file does not say which tensor an operator reads, so a chain is neighbours on one stream and of one step where the
next reads what has the size and dtype of what the last one wrote. Where the same calls come round again, they may be a
loop over independent tensors as well as a longer chain: there the chain ends, so that what is said is the least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.roofline import Roofline
from ipyprof.analysis.tally import distinct_columns
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """One operator call; ``lane`` numbers its device, stream and step, ``roof_ns`` is the least time of its whole work.

    ``layouts``: it runs kernels that only put elements in another order for themselves.
    """

    name: str
    event: int
    group: int
    records: Int64
    device_ns: int
    lane: int
    work: Work | None
    roof_ns: float
    layouts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """What depends only on the groups of calls, each worked out once.

    Attributes:
        linked: whether calls of the second group read what those of the first wrote.
        summed: of calls of these groups in a row (bytes, bytes of one kernel for all, one only reorders elements).
        bandwidth: bytes per second.
    """

    linked: Callable[[int, int], bool]
    summed: Callable[[tuple[int, ...]], tuple[float, float, bool]]
    bandwidth: float


def chains(trace: Trace, roof: Roofline, step: Int64) -> tuple[Chain, ...]:
    """Every chain that one kernel would shorten, in time order per stream. Needs ceilings: empty without.

    Args:
        step: (n,) int64, the step of each device record (``Steps.step``).
    """
    if roof.ceilings is None or all(group.work is None for group in roof.groups):
        return ()
    groups = _groups(roof, roof.ceilings.reachable_bandwidth)
    found: list[Chain] = []
    run: list[_Call] = []
    before: list[_Call] = []
    for call in _calls(trace, roof, step):
        if run and run[-1].lane != call.lane:
            found += _close(run, before, None, groups)
            run, before = [], []
        work = call.work
        if work is not None and work.kind in MOVING:
            run.append(call)
            continue
        found += _close(run, before, call, groups)
        run = []
        before = [*before, call][-PRODUCTS_BEFORE:] if work is not None and work.product is not None else []
        if call.layouts:
            found += _layouts(trace, call)
    found += _close(run, before, None, groups)
    return tuple(chain for chain in found if chain.fused_ns < chain.device_ns)


def _groups(roof: Roofline, bandwidth: float) -> _Groups:
    works = [group.work for group in roof.groups]
    # Where gradients are computed, what is written may be kept for them.
    kept = any("backward" in group.name.lower() for group in roof.groups)

    @cache
    def linked(earlier: int, later: int) -> bool:
        return _linked(works[earlier], works[later]) is not None

    @cache
    def summed(groups: tuple[int, ...]) -> tuple[float, float, bool]:
        part = [work for group in groups if (work := works[group]) is not None]
        return sum(work.bytes for work in part), _fused_bytes(part, kept), any(work.relayout for work in part)

    return _Groups(linked=linked, summed=summed, bandwidth=bandwidth)


def factors(trace: Trace, found: tuple[Chain, ...]) -> npt.NDArray[np.float64]:
    """(n,) float: what remains of each device record's time, 1 where nothing changes."""
    remaining = np.ones(len(trace))
    for chain in found:
        remaining[chain.records] = chain.fused_ns / chain.device_ns
    return remaining


def _calls(trace: Trace, roof: Roofline, step: Int64) -> list[_Call]:
    """Calls in the order in which their work starts, stream by stream."""
    records = np.flatnonzero(roof.call >= 0)
    if len(records) == 0:
        return []
    order = np.lexsort((trace.start_ns[records], trace.stream[records], trace.device[records]))
    records = records[order].astype(np.int64)
    call = roof.call[records]
    first = np.concatenate(([0], np.flatnonzero(np.diff(call)) + 1))
    last = np.append(first[1:], len(call))
    head = records[first]
    lane = distinct_columns(trace.device[head].astype(np.int64), trace.stream[head], step[head])[1]
    reorders = np.array([any(word in name for word in LAYOUT_KERNELS) for name in trace.names], bool)
    columns = (
        first,
        last,
        call[first],
        roof.group[head],
        np.add.reduceat(trace.dur_ns[records], first),
        lane,
        np.logical_or.reduceat(reorders[trace.name[records]], first),
    )
    return [
        _Call(
            name=roof.groups[number].name,
            event=event,
            group=number,
            records=records[begin:stop],
            device_ns=device_ns,
            lane=place,
            work=roof.groups[number].work,
            roof_ns=roof.groups[number].roof_ns or 0.0,
            layouts=layouts,
        )
        for begin, stop, event, number, device_ns, place, layouts in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _close(run: list[_Call], before: list[_Call], after: _Call | None, groups: _Groups) -> list[Chain]:
    """The chains of one run of memory-moving calls between two others."""
    found: list[Chain] = []
    scores, inner = _attention(run, before, after)
    if scores is not None:
        # Backward forms the scores again.
        again_ns = scores.roof_ns if any("backward" in call.name for call in inner) else 0.0
        moved, _, relayout = groups.summed(tuple(call.group for call in inner))
        found.append(_chain(ATTENTION, inner, moved, 0.0, max(again_ns, LEAST_NS), relayout))
        run = [call for call in run if call not in inner]
    begin = 0
    for at in range(1, len(run) + 1):
        if at < len(run) and groups.linked(run[at - 1].group, run[at].group) and not _comes_round(run, begin, at):
            continue
        part = run[begin:at]
        begin = at
        moved, fused, relayout = groups.summed(tuple(call.group for call in part))
        fused_ns = max(fused / groups.bandwidth * 1e9, LEAST_NS)
        what, least = (CHAIN, 1.0) if len(part) > 1 else (SINGLE, SLOW_SHARE)
        if fused_ns < least * sum(call.device_ns for call in part):
            found.append(_chain(what, part, moved, fused, fused_ns, relayout))
    return found


def _comes_round(run: list[_Call], begin: int, at: int) -> bool:
    """Whether the calls from ``at`` on repeat the last ones of the chain run[begin:at]."""
    for since in range(at - 1, begin - 1, -1):
        if run[since].group == run[at].group:
            length = at - since
            ahead = [call.group for call in run[at : at + length]]
            if ahead == [call.group for call in run[since:at]]:
                return True
    return False


def _chain(what: str, part: list[_Call], moved: float, fused_bytes: float, fused_ns: float, relayout: bool) -> Chain:
    return Chain(
        what=what,
        operators=tuple(call.name for call in part),
        calls=np.array([call.event for call in part], np.int64),
        records=np.concatenate([call.records for call in part]),
        bytes=moved,
        fused_bytes=fused_bytes,
        device_ns=sum(call.device_ns for call in part),
        fused_ns=fused_ns,
        relayout=relayout,
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


def _attention(run: list[_Call], before: list[_Call], after: _Call | None) -> tuple[_Call | None, list[_Call]]:
    """The product that made the scores, and the calls on them, where softmax stands between two products."""
    product = after.work.product if after is not None and after.work is not None else None
    if product is None:
        return None, []
    for call in run:
        if call.work is None or call.work.kind != "softmax":
            continue
        size = call.work.writes[0].elements
        if size not in (product.batch * product.m * product.k, product.batch * product.k * product.n):
            continue
        made = [
            each
            for each in before
            if each.work is not None
            and each.work.product is not None
            and each.work.product.batch * each.work.product.m * each.work.product.n == size
        ]
        if made:
            inner = [each for each in run if each.work is not None and {t.elements for t in each.work.writes} == {size}]
            return made[-1], inner
    return None, []


def _layouts(trace: Trace, call: _Call) -> list[Chain]:
    """A convolution's own copies from and to channels-last."""
    mine = np.array(
        [
            record
            for record in call.records.tolist()
            if any(word in trace.names[trace.name[record]] for word in LAYOUT_KERNELS)
        ],
        np.int64,
    )
    if len(mine) == 0:
        return []
    return [
        Chain(
            what=LAYOUT,
            operators=(call.name,),
            calls=np.array([call.event], np.int64),
            records=mine,
            bytes=0.0,
            fused_bytes=0.0,
            device_ns=int(trace.dur_ns[mine].sum()),
            fused_ns=0.0,
            relayout=True,
        )
    ]
