"""What counts as a collective, and one rank's: when it was ready for each, and whether its own work waited for the end.

With a GPU they are device work; without, the annotations of the Gloo backend.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipyprof.analysis.attribution import Bool, around
from ipyprof.analysis.intervals import coverage_before, union
from ipyprof.analysis.results import Record
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import STEP_PREFIX, Kind, Role
from ipyprof.trace.model import Int64, Trace

KIND, STEP, READY, START, END, JOINED, EXPOSED = range(7)
"""Columns of a table of collectives, int64; times in ns on the trace's clock.

``KIND``: index into the distinct kinds. ``STEP``: number of the step, as its mark has it. ``READY``: when everything of
this rank's own that the collective needs was done (one that queues behind another starts later than that). ``JOINED``:
1 = work of this rank waited for the end. ``EXPOSED``: ns of it that no other work of this rank hides.
"""

JOIN_NS = 20_000  # work that was held up starts this close behind the collective's end
HELD_NS = 10_000  # and had been launched this long before it
HOST_JOIN_NS = 1_000_000  # a host that slept goes on within this of the end of what it waited for,
HOST_JOIN_SHARE = 0.25  # or within this share of how long it slept (4 processes on 2 busy cores: 11 ms of 82 ms)
HOST_HELD_NS = 200_000  # shorter pauses of the host are not waits for a collective

_BACKEND = re.compile(r"^(nccl|gloo|rccl|xccl|mpi|ucc):")
_PAIRWISE = re.compile(r"send|recv|wait|^coalesced$", re.IGNORECASE)
_HOST_CALL = re.compile(r"^c10d::\w+_$")
_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_TYPE_BYTES = {
    "double": 8, "long": 8, "int64": 8, "cfloat": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4,
    "bfloat16": 2, "half": 2, "short": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "long int": 8,
}  # fmt: skip


class CollectiveKind(Record, frozen=True):
    """What one collective is. Unknown is ``None``, of a group ``""``.

    ``name`` such as ``allreduce``: lower case, without underscores and without the backend. ``members``: the ranks of
    its process group, sorted; ``size``: how many. ``message_bytes``: the larger of input and output.
    """

    name: str
    group: str = ""
    members: tuple[int, ...] | None = None
    size: int | None = None
    message_bytes: int | None = None

    @property
    def leaves_together(self) -> bool:
        """No rank can leave it before all have entered."""
        return self.name.startswith(_TOGETHER)


def collectives_of(trace: Trace, steps: Steps) -> tuple[tuple[CollectiveKind, ...], Int64]:
    """(the distinct kinds, (c, 7) table) of what the recorded steps launched for a whole group, in order of issue.

    Carried-over collectives, sends and receives are left out.
    """
    device = trace.select(Kind.COMMUNICATION)
    return _on_device(trace, steps, device) if len(device) else _on_host(trace, steps)


def collective_annotations(trace: Trace) -> Int64:
    """Indices of the host's annotations of collectives, in time order."""
    spans = trace.select(Kind.ANNOTATION)
    named = np.array([_BACKEND.match(name) is not None for name in trace.names], bool)
    chosen: Int64 = spans[named[trace.name[spans]]]
    return chosen


def host_work(trace: Trace) -> tuple[Int64, Int64]:
    """Disjoint (start, end) in which operators ran, on whatever thread, but for those that issue a collective."""
    operators = trace.select(Kind.OPERATOR)
    issuing = ("c10d::", "record_param_comms", "autograd::engine", "Optimizer.")
    work = np.array([not name.startswith(issuing) for name in trace.names], bool)
    operators = operators[work[trace.name[operators]]]
    return union(trace.start_ns[operators], trace.end_ns[operators])


def step_numbers(trace: Trace, steps: Steps) -> tuple[int, ...]:
    """The number in the mark of each step: equal ones are the same step on all ranks. Without marks they count up."""
    marks = trace.select(Kind.STEP)
    marks = marks[trace.tid[marks] == steps.thread]
    found: list[int] = []
    for mark in marks.tolist():
        text = trace.names[trace.name[mark]].removeprefix(STEP_PREFIX).split()[0]
        found.append(int(text) if text.isdigit() else len(found))
    return tuple(found) if len(found) == steps.count else tuple(range(steps.count))


def _on_device(trace: Trace, steps: Steps, device: Int64) -> tuple[tuple[CollectiveKind, ...], Int64]:
    launched = device[steps.step[device] >= 0]
    launched = launched[np.argsort(trace.start_ns[steps.launch[launched]], kind="stable")]
    annotations = collective_annotations(trace)
    inside = around(trace, annotations, steps.launch[launched]) if len(annotations) else np.full(len(launched), -1)
    told = zip(launched.tolist(), inside.tolist(), strict=True)
    kinds, kind = _distinct([_kind_of(trace, one, int(annotations[at]) if at >= 0 else None) for one, at in told])
    chosen, kind = launched[kind >= 0], kind[kind >= 0]
    start, end = trace.start_ns[chosen], trace.end_ns[chosen]
    others = trace.select(Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
    others = others[np.isin(trace.device[others], np.unique(trace.device[chosen]))]
    own = others[steps.launch[others] >= 0]
    ready = np.minimum(_own_work_done(trace, steps, own, trace.start_ns[steps.launch[chosen]]), start)
    joined = _device_waited(trace, steps, own, end) | _host_call_waited(trace, end)
    exposed = (end - start) - _overlap(union(trace.start_ns[others], trace.end_ns[others]), start, end)
    number = np.asarray(step_numbers(trace, steps), np.int64)[steps.step[chosen]]
    return kinds, np.stack((kind, number, ready, start, end, joined.astype(np.int64), exposed), axis=1)


def _on_host(trace: Trace, steps: Steps) -> tuple[tuple[CollectiveKind, ...], Int64]:
    """The Gloo backend: a collective runs as an annotation on a thread of its own."""
    spans = collective_annotations(trace)
    step = steps.of_time(trace.start_ns[spans])
    spans, step = spans[step >= 0], step[step >= 0]
    kinds, kind = _distinct([_kind_of(trace, None, span) for span in spans.tolist()])
    chosen, step, kind = spans[kind >= 0], step[kind >= 0], kind[kind >= 0]
    start, end = trace.start_ns[chosen], trace.end_ns[chosen]
    ready = start.copy()
    calls = trace.select(Kind.OPERATOR)
    named = np.array([bool(_HOST_CALL.match(name)) and not _PAIRWISE.search(name) for name in trace.names], bool)
    issued = calls[named[trace.name[calls]] & (steps.of_time(trace.start_ns[calls]) >= 0)]
    if len(issued) == len(chosen) and bool((trace.start_ns[issued] <= start).all()):
        ready = trace.start_ns[issued]
        step = np.where(steps.of_time(ready) >= 0, steps.of_time(ready), step)
    released = _host_released(trace, ready, end)
    waited = released >= 0
    exposed = (end - start) - _overlap(host_work(trace), start, end)
    left = np.where(waited, np.clip(released, start, end), end)
    number = np.asarray(step_numbers(trace, steps), np.int64)[step]
    return kinds, np.stack((kind, number, ready, start, left, waited.astype(np.int64), exposed), axis=1)


def _kind_of(trace: Trace, record: int | None, annotation: int | None) -> CollectiveKind:
    """What a device record is, by its own metadata, else by the annotation around its launch; or what this is."""
    detail = trace.detail_of(record) if record is not None else None
    told: Mapping[str, Any] = detail.collective if detail is not None and detail.collective else {}
    name, dtype = str(told.get("Collective name", "")), told.get("dtype")
    elements = [value for key in ("In msg nelems", "Out msg nelems") if isinstance(value := told.get(key), int)]
    if annotation is not None and not told:
        name = _BACKEND.sub("", trace.names[trace.name[annotation]])
        about = trace.detail_of(annotation)
        shape = about.shapes[0] if about is not None and about.shapes else None
        if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape):
            elements = [math.prod(int(size) for size in shape)]
        dtype = about.dtypes[0] if about is not None and about.dtypes else None
    groups = _groups(trace)
    group = str(told.get("Process Group Name", "")) or (str(groups[0].get("pg_name", "")) if len(groups) == 1 else "")
    members = _members(groups, group, told.get("Process Group Ranks"))
    size = told.get("Group size")
    return CollectiveKind(
        name=re.sub(r"[_\W]|base", "", name.lower().split(" ")[0]) or "collective",
        group=group,
        members=members,
        size=size if isinstance(size, int) and size > 0 else len(members) if members is not None else None,
        message_bytes=_message_bytes(max(elements, default=None), dtype),
    )


def _message_bytes(elements: int | None, dtype: object) -> int | None:
    name = dtype.lower().removeprefix("c10::") if isinstance(dtype, str) else ""
    each = _TYPE_BYTES.get(name, 1 if name.startswith("float8") else None)
    return None if each is None or elements is None else each * elements


def _groups(trace: Trace) -> list[Mapping[str, Any]]:
    world = trace.metadata.get("distributedInfo")
    groups = world.get("pg_config") if isinstance(world, dict) else None
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _members(groups: Sequence[Mapping[str, Any]], group: str, text: object) -> tuple[int, ...] | None:
    """The ranks of a group: from the event's text where it is whole, else from the file's list of groups."""
    if isinstance(text, str) and re.fullmatch(r"\[\d+(, ?\d+)*\]", text):
        return tuple(sorted(int(rank) for rank in text[1:-1].split(",")))
    for one in groups:
        ranks = one.get("ranks")
        if str(one.get("pg_name", "")) == group and isinstance(ranks, list) and ranks:
            return tuple(sorted(rank for rank in ranks if isinstance(rank, int)))
    return None


def _distinct(kinds: Sequence[CollectiveKind]) -> tuple[tuple[CollectiveKind, ...], Int64]:
    """(the distinct kinds, (c,) the index of each one's), -1 = between two ranks only."""
    numbers: dict[CollectiveKind, int] = {}
    index = [-1 if _PAIRWISE.search(kind.name) else numbers.setdefault(kind, len(numbers)) for kind in kinds]
    return tuple(numbers), np.asarray(index, np.int64)


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
    order = own[np.lexsort((trace.start_ns[own], trace.stream[own], trace.device[own]))]
    start, stream = trace.start_ns[order], np.stack((trace.device[order], trace.stream[order]))
    idle = np.ones(len(order), bool)
    idle[1:] = (stream[:, 1:] != stream[:, :-1]).any(axis=0) | (trace.end_ns[order][:-1] < start[1:] - HELD_NS)
    waiting = idle & (trace.start_ns[steps.launch[order]] < start - HELD_NS)
    return _soon_after(np.sort(start[waiting]), end, JOIN_NS)


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
    spans = spans[~np.isin(trace.tid[spans], np.unique(trace.tid[collective_annotations(trace)]))]
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
    never = np.iinfo(np.int64).max // 2
    found: Bool = np.append(instants, never)[np.searchsorted(instants, end)] - end <= within_ns
    return found
