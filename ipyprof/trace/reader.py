"""A file of torch.profiler as a ``Trace``: one pass of typed decoding, then one column at a time."""

from __future__ import annotations

import gc
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ipyprof.errors import TraceError
from ipyprof.trace import source
from ipyprof.trace.clock import UNKNOWN_NS, nanoseconds
from ipyprof.trace.details import collect_details
from ipyprof.trace.intern import interned
from ipyprof.trace.kinds import CATEGORY_KINDS, DEVICE_KINDS, Kind, call_role, event_kind
from ipyprof.trace.kineto import ABSENT, DEVICES, NOTHING, Arguments, Event
from ipyprof.trace.model import DeviceInfo, Int32, Int64, LiveRecord, MemoryRecords, Trace, UInt8

ABSURD_NS = 10**15
"""Durations above this, eleven days, are damage."""

FIRST_TEXT_ID = -(1 << 40)
"""Text ids count down from here, below every number that a file uses."""

HOST_RANGES = (Kind.OPERATOR, Kind.ANNOTATION, Kind.STEP, Kind.LINE, Kind.LOADER)

_APART = frozenset({"traceEvents", "deviceProperties", "ipyprof", "baseTimeNanoseconds"})
_NO_ARGUMENTS = Arguments()


def read_trace(path: str | PathLike[str]) -> Trace:
    """The trace in a ``.json`` or ``.json.gz`` file; the content, not the name, tells which it is.

    Raises:
        TraceError: the file is no readable trace, with what was found.
    """
    where = Path(path)
    return parse_trace(source.read_bytes(where), str(path))


def parse_trace(data: bytes, path: str = "trace") -> Trace:
    """The trace in these bytes, plain or gz; ``path`` is for messages.

    Raises:
        TraceError: they are no readable trace, with what was found.
    """
    # The events are many objects and none of them is a cycle: each pass of the collector over them is for nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _parsed(source.unpack(data, path), path)
    finally:
        if collecting:
            gc.enable()


def _parsed(data: bytes, path: str) -> Trace:
    file, top, damage = source.decode(data, path)
    events = file.traceEvents
    complete = [event for event in events if event.ph == "X"]
    others = [event for event in events if event.ph != "X"]
    memory = [event for event in others if event.name == "[memory]" and event.args is not None]
    flows = [event for event in others if event.cat == "fwdbwd"]

    start_ns, dur_ns, complete = _sound(complete, damage)
    if not complete:
        raise TraceError(f"{path} is a trace without any complete event", source.ALLOWED, "record at least one step")
    memory_ns, memory = _timed(memory)
    flows_ns, flows = _timed(flows)
    origin_ns = int(min(start_ns.min(), memory_ns.min(initial=np.iinfo(np.int64).max)))

    # Columns are filled in the file's order, which is the order in memory, and sorted as arrays.
    arguments = [event.args or _NO_ARGUMENTS for event in complete]
    name, names = interned([event.name for event in complete])
    kind = _kinds([event.cat for event in complete], name, names)
    ids = _Ids()
    pid = ids.column([event.pid for event in complete])
    tid = ids.column([event.tid for event in complete])
    device, stream = _places(arguments, kind, pid, tid)
    host = np.flatnonzero(np.isin(kind, HOST_RANGES))
    detail, details = collect_details(arguments, np.flatnonzero(np.isin(kind, DEVICE_KINDS)), host)
    order = np.lexsort((-dur_ns, start_ns))

    return Trace(
        start_ns=start_ns[order] - origin_ns,
        dur_ns=dur_ns[order],
        kind=kind[order],
        role=_roles(kind, name, names)[order],
        name=name[order],
        pid=pid[order],
        tid=tid[order],
        device=device[order],
        stream=stream[order],
        correlation=_wrapped([args.correlation for args in arguments])[order],
        external_id=_wrapped([args.external or args.old_external for args in arguments])[order],
        sequence=_wrapped([args.sequence for args in arguments])[order],
        detail=detail[order],
        names=names,
        details=details,
        memory=_memory(memory, memory_ns - origin_ns),
        flows=_flows(flows, flows_ns - origin_ns, ids),
        origin_ns=origin_ns,
        base_ns=file.baseTimeNanoseconds,
        devices=_devices(top.get("deviceProperties", NOTHING), damage),
        metadata=source.small_values(top, _APART),
        thread_names=_thread_names(others, ids, set(np.unique(tid[kind <= Kind.CALL]).tolist())),
        damage=damage,
        live=_live(top.get("ipyprof", NOTHING), damage),
        path=path,
    )


def _sound(events: list[Event], damage: dict[str, int]) -> tuple[Int64, Int64, list[Event]]:
    """Start and duration of the events that have both, and those events; the others are counted in ``damage``."""
    starts = nanoseconds([event.ts for event in events])
    durations = np.fromiter([event.dur for event in events], np.float64, len(events))
    no_start = starts == UNKNOWN_NS
    no_duration = ~no_start & np.isnan(durations)
    negative = ~no_start & (durations < 0)
    absurd = ~no_start & (durations > ABSURD_NS / 1000)
    for reason, wrong in (
        ("events without a start", no_start),
        ("events without a duration", no_duration),
        ("events that end before they start", negative),
        ("events of more than eleven days", absurd),
    ):
        if wrong.any():
            damage[reason] = int(wrong.sum())
    sound = ~(no_start | no_duration | negative | absurd)
    if not sound.all():
        events = [events[index] for index in np.flatnonzero(sound).tolist()]
    # Durations are short enough for a float64 to hold every nanosecond.
    return starts[sound], np.rint(durations[sound] * 1000).astype(np.int64), events


def _timed(events: list[Event]) -> tuple[Int64, list[Event]]:
    times = nanoseconds([event.ts for event in events])
    known = times != UNKNOWN_NS
    return times[known], [events[index] for index in np.flatnonzero(known).tolist()]


def _kinds(categories: list[str], name: Int32, names: tuple[str, ...]) -> UInt8:
    """(n,) kinds, decided once per distinct (category, name)."""
    category, distinct = interned(categories)
    kinds = np.full(len(categories), Kind.OTHER, np.uint8)
    for number, text in enumerate(distinct):
        if text not in CATEGORY_KINDS:
            continue
        rows = np.flatnonzero(category == number)
        here = name[rows]
        by_name = np.zeros(len(names), np.uint8)
        present = np.zeros(len(names), np.bool_)
        present[here] = True
        for index in np.flatnonzero(present).tolist():
            by_name[index] = event_kind(text, names[index])
        kinds[rows] = by_name[here]
    return kinds


def _roles(kind: UInt8, name: Int32, names: tuple[str, ...]) -> UInt8:
    """(n,) roles, decided once per distinct name of a call."""
    calls = np.flatnonzero(kind == Kind.CALL)
    by_name = np.zeros(len(names), np.uint8)
    for index in np.unique(name[calls]).tolist():
        by_name[index] = call_role(names[index])
    roles = np.zeros(len(kind), np.uint8)
    roles[calls] = by_name[name[calls]]
    return roles


class _Ids:
    """Process and thread ids as int64: numbers as they are, text as negative numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int | str | None, int] = {}
        self._texts = 0

    def number(self, value: int | str | None) -> int:
        """The id's number, the same one at every call."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = self._new(value)
        return known

    def column(self, values: list[int | str | None]) -> Int64:
        """(n,) int64 numbers of the ids."""
        return _wrapped([value if value.__class__ is int else self.number(value) for value in values])

    def _new(self, value: int | str | None) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                self._texts += 1
                return FIRST_TEXT_ID - self._texts
        return 0 if value is None else _wrap(value)


def _wrap(value: int) -> int:
    """``value`` as a signed 64-bit number: one to one for all unsigned 64-bit ones."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _wrapped(values: list[int]) -> Int64:
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.fromiter(map(_wrap, values), np.int64, len(values))


def _places(arguments: list[Arguments], kind: UInt8, pid: Int64, tid: Int64) -> tuple[Int32, Int64]:
    """(n,) device and (n,) stream; -1 on the host. Old files have the two as process and thread only."""
    work = np.isin(kind, (*DEVICE_KINDS, Kind.GPU_ANNOTATION))
    rows = np.flatnonzero(work | (kind == Kind.CUDA_SYNC))
    device = np.full(len(kind), -1, np.int64)
    stream = np.full(len(kind), -1, np.int64)
    there = [arguments[index] for index in rows.tolist()]
    device[rows] = _wrapped([args.device for args in there])
    # Calls of ROCm have addresses here as text; device work has numbers.
    stream[rows] = _wrapped([args.stream if isinstance(args.stream, int) else ABSENT for args in there])
    device = np.where(device == ABSENT, pid, device)
    stream = np.where(stream == ABSENT, tid, stream)
    return np.where(np.abs(device) < 1 << 31, device, -1).astype(np.int32), stream


def _memory(events: list[Event], time_ns: Int64) -> MemoryRecords:
    order = np.argsort(time_ns, kind="stable")
    records = [args for index in order.tolist() if (args := events[index].args) is not None]
    # Device types: 0 is the CPU; 1 CUDA, 6 HIP and the rest are devices.
    device = [-1 if args.device_type == 0 else args.device_id for args in records]
    return MemoryRecords(
        time_ns=time_ns[order],
        device=_wrapped(device).astype(np.int32),
        delta_bytes=_wrapped([args.delta for args in records]),
        allocated_bytes=_wrapped([args.allocated for args in records]),
        reserved_bytes=_wrapped([args.reserved for args in records]),
    )


def _flows(events: list[Event], time_ns: Int64, ids: _Ids) -> Int64:
    """(k, 4) int64: forward tid, forward ns, backward tid, backward ns, sorted by forward time."""
    ends: dict[str, dict[int | str, tuple[int, int]]] = {"s": {}, "f": {}}
    for event, time in zip(events, time_ns.tolist(), strict=True):
        if event.ph in ends:
            ends[event.ph].setdefault(event.id, (ids.number(event.tid), time))
    starts, finishes = ends["s"], ends["f"]
    rows = [(*starts[key], *finishes[key]) for key in starts.keys() & finishes.keys()]
    rows.sort(key=lambda row: (row[1], row[3], row))
    return np.array(rows, np.int64).reshape(-1, 4)


def _thread_names(events: list[Event], ids: _Ids, threads: set[int]) -> dict[int, str]:
    """Host thread → its name; a thread without one gets its process's name where the two ids are the same."""
    named: dict[int, str] = {}
    processes: dict[int, str] = {}
    for event in events:
        if event.ph == "M" and event.args is not None and isinstance(event.args.label, str):
            if event.name == "thread_name":
                named.setdefault(ids.number(event.tid), event.args.label)
            elif event.name == "process_name":
                processes.setdefault(ids.number(event.pid), event.args.label)
    both = {**processes, **named}
    return {tid: both[tid] for tid in sorted(threads & both.keys())}


def _devices(raw: msgspec.Raw, damage: dict[str, int]) -> tuple[DeviceInfo, ...]:
    if raw is NOTHING:
        return ()
    try:
        devices = DEVICES.decode(raw)
    except msgspec.ValidationError:
        damage["device properties of an unknown form"] = 1
        return ()
    return tuple(
        DeviceInfo(
            index=device.id,
            name=device.name,
            sm_count=device.numSms,
            compute_capability=None if device.computeMajor is None else (device.computeMajor, device.computeMinor or 0),
            total_bytes=device.totalGlobalMem,
        )
        for device in devices
    )


def _live(raw: Any, damage: dict[str, int]) -> LiveRecord | None:
    if raw is NOTHING:
        return None
    try:
        return msgspec.json.decode(raw, type=LiveRecord)
    except msgspec.ValidationError:
        damage["a live record of another version"] = 1
        return None
