"""The collectives of one rank: when it was ready for each, and whether its own work waited for the end.

With a GPU they are device work; without, the annotations of the Gloo backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipyprof.analysis.attribution import Bool, around
from ipyprof.analysis.intervals import coverage_before, union
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import STEP_PREFIX, Kind, Role
from ipyprof.trace.model import Int64, Trace

BACKEND = re.compile(r"^(nccl|gloo|rccl|xccl|mpi|ucc):")
PAIRWISE = re.compile(r"send|recv|wait|^coalesced$", re.IGNORECASE)
_ALGORITHM = re.compile(r"(?<![A-Za-z])(RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|PAT)(?![A-Za-z])")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])")

# What moves over the busiest link, as a multiple of the message, for n ranks (nccl-tests, PERFORMANCE.md).
_TWICE, _ONCE, _ALL = "twice", "once", "all"
_BUS = {
    "allreduce": _TWICE,
    "allgather": _ONCE,
    "reducescatter": _ONCE,
    "alltoall": _ONCE,
    "broadcast": _ALL,
    "reduce": _ALL,
}
_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_TYPE_BYTES = {
    "double": 8, "long": 8, "int64": 8, "cfloat": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4,
    "bfloat16": 2, "half": 2, "short": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "long int": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """What one collective is. Unknown is ``None``, of a group ``""``.

    Attributes:
        group: name of the process group; members: its ranks, sorted.
        name: such as ``allreduce``: lower case, without underscores and without the backend.
        elements: of the larger of input and output; dtype: as the file writes it.
        size: ranks in the group.
        algorithm: such as ``RING LL``, from the kernel's name.
    """

    group: str
    members: tuple[int, ...] | None
    name: str
    elements: int | None
    dtype: str | None
    size: int | None
    algorithm: str | None

    @property
    def message_bytes(self) -> int | None:
        """Size of the message, or ``None``."""
        known = (self.dtype or "").lower().removeprefix("c10::")
        each = _TYPE_BYTES.get(known, 1 if known.startswith("float8") else None)
        return None if each is None or self.elements is None else each * self.elements

    @property
    def leaves_together(self) -> bool:
        """No rank can leave it before all have entered."""
        return self.name.startswith(_TOGETHER)

    def bus_bytes_per_s(self, latency_ns: float) -> float | None:
        """Bus bandwidth when the collective takes ``latency_ns``, or ``None``."""
        way = next((way for name, way in _BUS.items() if self.name.startswith(name)), None)
        size, moved = self.size, self.message_bytes
        if way is None or size is None or size < 2 or moved is None or latency_ns <= 0:
            return None
        others = (size - 1) / size
        return {_TWICE: 2 * others, _ONCE: others, _ALL: 1.0}[way] * moved / (latency_ns / 1e9)


def is_collective_annotation(name: str) -> bool:
    """Whether a host annotation of this name is a collective of a backend."""
    return BACKEND.match(name) is not None


def annotations_of(trace: Trace) -> Int64:
    """Host annotations of collectives, in time order."""
    spans = trace.select(Kind.ANNOTATION)
    named = np.array([is_collective_annotation(name) for name in trace.names], bool)
    chosen: Int64 = spans[named[trace.name[spans]]]
    return chosen


def kind_of(trace: Trace, record: int | None, annotation: int | None) -> CollectiveKind:
    """What a device record is, by its own metadata, else by the annotation around its launch; or what this is."""
    detail = trace.detail_of(record) if record is not None else None
    told: Mapping[str, Any] = detail.collective if detail is not None and detail.collective else {}
    name = str(told.get("Collective name", ""))
    elements = [value for key in ("In msg nelems", "Out msg nelems") if isinstance(value := told.get(key), int)]
    dtype = told.get("dtype")
    if annotation is not None and not told:
        name = BACKEND.sub("", trace.names[trace.name[annotation]])
        about = trace.detail_of(annotation)
        shape = about.shapes[0] if about is not None and about.shapes else None
        if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape):
            elements = [int(np.prod(shape))]
        dtype = about.dtypes[0] if about is not None and about.dtypes else None
    group = str(told.get("Process Group Name", "")) or _only_group(trace)
    members = _members(trace, group, told.get("Process Group Ranks"))
    size = told.get("Group size")
    kernel = trace.names[trace.name[record]].split("(")[0] if record is not None else ""
    return CollectiveKind(
        group=group,
        members=members,
        name=re.sub(r"[_\W]|base", "", name.lower().split(" ")[0]) or "collective",
        elements=max(elements) if elements else None,
        dtype=dtype if isinstance(dtype, str) and dtype else None,
        size=size if isinstance(size, int) and size > 0 else len(members) if members is not None else None,
        algorithm=" ".join(found.group(1) for how in (_ALGORITHM, _PROTOCOL) if (found := how.search(kernel))) or None,
    )


def _groups(trace: Trace) -> list[Mapping[str, Any]]:
    world = trace.metadata.get("distributedInfo")
    groups = world.get("pg_config") if isinstance(world, dict) else None
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _only_group(trace: Trace) -> str:
    """The name of the file's group where it has one only, else ``""``."""
    groups = _groups(trace)
    return str(groups[0].get("pg_name", "")) if len(groups) == 1 else ""


def _members(trace: Trace, group: str, text: object) -> tuple[int, ...] | None:
    """The ranks of a group: from the event's text where it is whole, else from the file's list of groups."""
    if isinstance(text, str) and re.fullmatch(r"\[\d+(, ?\d+)*\]", text):
        return tuple(sorted(int(rank) for rank in text[1:-1].split(",")))
    for one in _groups(trace):
        ranks = one.get("ranks")
        if str(one.get("pg_name", "")) == group and isinstance(ranks, list) and ranks:
            return tuple(sorted(rank for rank in ranks if isinstance(rank, int)))
    return None


def distinct(kinds: list[CollectiveKind]) -> tuple[tuple[CollectiveKind, ...], Int64]:
    numbers: dict[CollectiveKind, int] = {}
    column = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
    return tuple(numbers), np.asarray(column, np.int64)


JOIN_NS = 20_000  # work that was held up starts this close behind the collective's end
HELD_NS = 10_000  # and had been launched this long before it
HOST_JOIN_NS = 1_000_000  # a host that slept goes on within this of the end of what it waited for,
HOST_JOIN_SHARE = 0.25  # or within this share of how long it slept (4 processes on 2 busy cores: 11 ms of 82 ms)
HOST_HELD_NS = 200_000  # shorter pauses of the host are not waits for a collective
_HOST_CALL = re.compile(r"^c10d::\w+_$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """One rank's collectives in the recorded steps, in the order in which it issued them. Arrays are (c,).

    Attributes:
        kinds: the distinct ones; kind: index into them.
        step: number of the step, as its mark has it.
        ready_ns: when everything of this rank's own that the collective needs was done. A collective that queues
            behind another one starts later than that.
        start_ns, end_ns: on the trace's clock.
        joined: work of this rank waited for the end.
        exposed_ns: how much of it no other work of this rank hides.
        left_out: device collectives of the file that no step launched (carried over), or that are no collectives
            of the whole group (send, receive).
        on_device: they are device work; else host annotations.
    """

    kinds: tuple[CollectiveKind, ...]
    kind: Int64
    step: Int64
    ready_ns: Int64
    start_ns: Int64
    end_ns: Int64
    joined: Bool
    exposed_ns: Int64
    left_out: int
    on_device: bool

    def __len__(self) -> int:
        return len(self.kind)


def collectives_of(trace: Trace, steps: Steps) -> Collectives:
    """The collectives that the recorded steps launched."""
    device = trace.select(Kind.COMMUNICATION)
    return _on_device(trace, steps, device) if len(device) else _on_host(trace, steps)


def step_numbers(trace: Trace, steps: Steps) -> tuple[int, ...]:
    """The number in the mark of each step: equal ones are the same step on all ranks. Without marks they count up."""
    marks = trace.select(Kind.STEP)
    marks = marks[trace.tid[marks] == steps.thread]
    found: list[int] = []
    for mark in marks.tolist():
        text = trace.names[trace.name[mark]].removeprefix(STEP_PREFIX).split()[0]
        found.append(int(text) if text.isdigit() else len(found))
    return tuple(found) if len(found) == steps.count else tuple(range(steps.count))


def _on_device(trace: Trace, steps: Steps, device: Int64) -> Collectives:
    launched = device[steps.step[device] >= 0]
    annotations = annotations_of(trace)
    inside = around(trace, annotations, steps.launch[launched]) if len(annotations) else np.full(len(launched), -1)
    described: list[CollectiveKind] = []
    for record, at in zip(launched.tolist(), inside.tolist(), strict=True):
        described.append(kind_of(trace, record, int(annotations[at]) if at >= 0 else None))
    whole = np.array([not PAIRWISE.search(kind.name) for kind in described], bool)
    chosen = launched[whole]
    order = np.argsort(trace.start_ns[steps.launch[chosen]], kind="stable")
    chosen = chosen[order]
    kept = [kind for kind, keep in zip(described, whole.tolist(), strict=True) if keep]
    kinds, kind = distinct([kept[at] for at in order.tolist()])
    start, end = trace.start_ns[chosen], trace.end_ns[chosen]
    others = trace.select(Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    others = others[np.isin(trace.device[others], np.unique(trace.device[chosen]))]
    own = others[steps.launch[others] >= 0]
    exposed = (end - start) - _overlap(union(trace.start_ns[others], trace.end_ns[others]), start, end)
    numbers = np.asarray(step_numbers(trace, steps), np.int64)
    return Collectives(
        kinds=kinds,
        kind=kind,
        step=numbers[steps.step[chosen]] if len(chosen) else np.empty(0, np.int64),
        ready_ns=np.minimum(_own_work_done(trace, steps, own, trace.start_ns[steps.launch[chosen]]), start),
        start_ns=start,
        end_ns=end,
        joined=_device_waited(trace, steps, own, end) | _host_call_waited(trace, end),
        exposed_ns=exposed,
        left_out=len(device) - len(chosen),
        on_device=True,
    )


def _on_host(trace: Trace, steps: Steps) -> Collectives:
    """The Gloo backend: a collective runs as an annotation on a thread of its own."""
    spans = annotations_of(trace)
    step = steps.of_time(trace.start_ns[spans])
    spans, step = spans[step >= 0], step[step >= 0]
    described = [kind_of(trace, None, span) for span in spans.tolist()]
    whole = np.array([not PAIRWISE.search(kind.name) for kind in described], bool)
    chosen, step = spans[whole], step[whole]
    kinds, kind = distinct([one for one, keep in zip(described, whole.tolist(), strict=True) if keep])
    start, end = trace.start_ns[chosen], trace.end_ns[chosen]
    busy_start, busy_end = host_work(trace)
    ready = start.copy()
    issued = _issuing_calls(trace, steps)
    if len(issued) == len(chosen) and bool((trace.start_ns[issued] <= start).all()):
        ready = trace.start_ns[issued]
        step = np.where(steps.of_time(ready) >= 0, steps.of_time(ready), step)
    released = _host_released(trace, ready, end)
    waited = released >= 0
    numbers = np.asarray(step_numbers(trace, steps), np.int64)
    return Collectives(
        kinds=kinds,
        kind=kind,
        step=numbers[step] if len(chosen) else np.empty(0, np.int64),
        ready_ns=ready,
        start_ns=start,
        end_ns=np.where(waited, np.clip(released, start, end), end),
        joined=waited,
        exposed_ns=(end - start) - _overlap((busy_start, busy_end), start, end),
        left_out=len(spans) - len(chosen),
        on_device=False,
    )


def host_work(trace: Trace) -> tuple[Int64, Int64]:
    """Disjoint (start, end) in which operators ran, on whatever thread, but for those that issue a collective."""
    operators = trace.select(Kind.OPERATOR)
    leaves = np.array([_is_work(name) for name in trace.names], bool)[trace.name[operators]]
    operators = operators[leaves]
    return union(trace.start_ns[operators], trace.end_ns[operators])


def _is_work(name: str) -> bool:
    return not name.startswith(("c10d::", "record_param_comms", "autograd::engine", "Optimizer."))


def _issuing_calls(trace: Trace, steps: Steps) -> Int64:
    """Operators by which the host issues collectives, in the recorded steps and in time order."""
    operators = trace.select(Kind.OPERATOR)
    named = np.array([bool(_HOST_CALL.match(name)) and not PAIRWISE.search(name) for name in trace.names], bool)
    issuing = operators[named[trace.name[operators]]]
    kept: Int64 = issuing[steps.of_time(trace.start_ns[issuing]) >= 0]
    return kept


def _overlap(spans: tuple[Int64, Int64], start: Int64, end: Int64) -> Int64:
    return coverage_before(*spans, end) - coverage_before(*spans, start)


def _own_work_done(trace: Trace, steps: Steps, own: Int64, launched_ns: Int64) -> Int64:
    """(c,) when the work that was launched before each collective was done, or its launch where that is later."""
    order = own[np.argsort(trace.start_ns[steps.launch[own]], kind="stable")]
    if len(order) == 0:
        return launched_ns
    done = np.maximum.accumulate(trace.end_ns[order])
    at = np.searchsorted(trace.start_ns[steps.launch[order]], launched_ns) - 1
    return np.where(at >= 0, np.maximum(done[np.maximum(at, 0)], launched_ns), launched_ns)


def _device_waited(trace: Trace, steps: Steps, own: Int64, end: Int64) -> Bool:
    """(c,) whether work that had been launched started right behind the end, on a stream that was idle until then."""
    held = np.empty(0, np.int64)
    if len(own):
        order = own[np.lexsort((trace.start_ns[own], trace.stream[own], trace.device[own]))]
        same = (trace.stream[order][1:] == trace.stream[order][:-1]) & (
            trace.device[order][1:] == trace.device[order][:-1]
        )
        before = np.concatenate(([np.iinfo(np.int64).min // 2], trace.end_ns[order][:-1]))
        before[1:][~same] = np.iinfo(np.int64).min // 2
        start = trace.start_ns[order]
        waiting = (before < start - HELD_NS) & (trace.start_ns[steps.launch[order]] < start - HELD_NS)
        held = np.sort(start[waiting])
    return _soon_after(held, end, JOIN_NS)


def _host_call_waited(trace: Trace, end: Int64) -> Bool:
    """(c,) whether a call that synchronises had begun before the end and returned right behind it."""
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.role[calls], (Role.SYNC_DEVICE, Role.SYNC_STREAM, Role.SYNC_EVENT))]
    calls = calls[trace.dur_ns[calls] > HELD_NS]
    return _soon_after(np.sort(trace.end_ns[calls]), end, JOIN_NS)


def _host_released(trace: Trace, ready: Int64, end: Int64) -> Int64:
    """(c,) when a host that waited for each collective went on, -1 where it did not wait.

    It waited when its longest pause since it was ready ends about when the collective does. A thread that is woken up
    on a busy machine goes on late, and the annotation may outlast the collective.
    """
    spans = trace.select(Kind.OPERATOR, Kind.ANNOTATION, Kind.STEP, Kind.LOADER, Kind.LINE)
    spans = spans[~np.isin(trace.tid[spans], np.unique(trace.tid[annotations_of(trace)]))]
    edges = np.unique(np.concatenate((trace.start_ns[spans], trace.end_ns[spans])))
    work = host_work(trace)
    released = np.full(len(end), -1, np.int64)
    for at, (first, last) in enumerate(zip(ready.tolist(), end.tolist(), strict=True)):
        begin, stop = np.searchsorted(edges, first), np.searchsorted(edges, last, side="right")
        inside = edges[begin : stop + 1]
        if len(inside) < 2:
            continue
        pauses = np.diff(inside) - _overlap(work, inside[:-1], inside[1:])
        longest = int(np.argmax(pauses))
        pause, goes_on = int(pauses[longest]), int(inside[longest + 1])
        near = max(HOST_JOIN_NS, round(HOST_JOIN_SHARE * pause))
        if pause >= HOST_HELD_NS and abs(goes_on - last) <= near:
            released[at] = goes_on
    return released


def _soon_after(instants: Int64, end: Int64, within_ns: int) -> Bool:
    """(c,) whether one of the sorted ``instants`` lies at each end or at most ``within_ns`` behind it."""
    if len(instants) == 0:
        return np.zeros(len(end), bool)
    at = np.searchsorted(instants, end)
    found: Bool = (at < len(instants)) & (instants[np.minimum(at, len(instants) - 1)] - end <= within_ns)
    return found
