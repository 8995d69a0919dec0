"""Runs of memory-moving kernels that could be one kernel, and what that one would take.

The file does not say which tensor an operator reads, so a chain is neighbours on one stream and of one step where the
next reads what has the size and dtype of what the last one wrote. Where the same calls come round again, they may be a
loop over independent tensors as well as a longer chain: there the chain ends, so that what is said is the least.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """One operator call; ``lane`` is its device, stream and step, ``roof_ns`` the least time of its whole work."""

    name: str
    event: int
    group: int
    records: Int64
    lane: tuple[int, int, int]
    work: Work | None
    roof_ns: float


def chains(trace: Trace, roof: Roofline, step: Int64) -> tuple[Chain, ...]:
    """Every chain that one kernel would shorten, in time order per stream. Needs ceilings: empty without.

    Args:
        step: (n,) int64, the step of each device record (``Steps.step``).
    """
    if roof.ceilings is None or all(group.work is None for group in roof.groups):
        return ()
    bandwidth = roof.ceilings.reachable_bandwidth
    # Where gradients are computed, what is written may be kept for them.
    kept = any("backward" in group.name.lower() for group in roof.groups)
    found: list[Chain] = []
    run: list[_Call] = []
    before: list[_Call] = []
    for call in _calls(trace, roof, step):
        if run and run[-1].lane != call.lane:
            found += _close(trace, run, before, None, bandwidth, kept)
            run, before = [], []
        work = call.work
        if work is not None and work.kind in MOVING:
            run.append(call)
            continue
        found += _close(trace, run, before, call, bandwidth, kept)
        run = []
        before = [*before, call][-PRODUCTS_BEFORE:] if work is not None and work.product is not None else []
        found += _layouts(trace, call)
    found += _close(trace, run, before, None, bandwidth, kept)
    return tuple(chain for chain in found if chain.fused_ns < chain.device_ns)


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
    found = []
    for begin, stop in zip(first.tolist(), last.tolist(), strict=True):
        record, event = int(records[begin]), int(call[begin])
        number = int(roof.group[record])
        group = roof.groups[number]
        found.append(
            _Call(
                name=group.name,
                event=event,
                group=number,
                records=records[begin:stop],
                lane=(int(trace.device[record]), int(trace.stream[record]), int(step[record])),
                work=group.work,
                roof_ns=group.roof_ns or 0.0,
            )
        )
    return found


def _close(
    trace: Trace, run: list[_Call], before: list[_Call], after: _Call | None, bandwidth: float, kept: bool
) -> list[Chain]:
    """The chains of one run of memory-moving calls between two others."""
    found: list[Chain] = []
    scores, inner = _attention(run, before, after)
    if scores is not None:
        # Backward forms the scores again.
        again_ns = scores.roof_ns if any("backward" in call.name for call in inner) else 0.0
        found.append(_chain(trace, ATTENTION, inner, 0.0, max(again_ns, LEAST_NS)))
        run = [call for call in run if call not in inner]
    begin = 0
    for at in range(1, len(run) + 1):
        if at < len(run) and _linked(run[at - 1].work, run[at].work) is not None and not _comes_round(run, begin, at):
            continue
        part = run[begin:at]
        begin = at
        fused = _fused_bytes([call.work for call in part if call.work is not None], kept)
        chain = _chain(trace, CHAIN if len(part) > 1 else SINGLE, part, fused, max(fused / bandwidth * 1e9, LEAST_NS))
        if chain.what == CHAIN or chain.fused_ns < SLOW_SHARE * chain.device_ns:
            found.append(chain)
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


def _chain(trace: Trace, what: str, part: list[_Call], fused_bytes: float, fused_ns: float) -> Chain:
    records = np.concatenate([call.records for call in part])
    works = [call.work for call in part if call.work is not None]
    return Chain(
        what=what,
        operators=tuple(call.name for call in part),
        calls=np.array([call.event for call in part], np.int64),
        records=records,
        bytes=sum(work.bytes for work in works),
        fused_bytes=fused_bytes,
        device_ns=int(trace.dur_ns[records].sum()),
        fused_ns=fused_ns,
        relayout=any(work.relayout for work in works),
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
