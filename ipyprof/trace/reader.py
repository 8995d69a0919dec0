"""A file of torch.profiler as a ``Trace``: typed decoding piece by piece, each into columns while it is near."""

from __future__ import annotations

import gc
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ipyprof.errors import TraceError
from ipyprof.trace import pieces, source
from ipyprof.trace.columns import ABSURD_NS, EventColumns
from ipyprof.trace.kinds import CATEGORY_KINDS, Kind, call_role, event_kind
from ipyprof.trace.kineto import DEVICES, NOTHING, value_of
from ipyprof.trace.model import DeviceInfo, Int32, Int64, LiveRecord, MemoryRecords, Trace, UInt8
from ipyprof.trace.ordering import nested_order
from ipyprof.trace.refusal import refusal

SMALL_BYTES = 1 << 16
"""Top-level values above this are no metadata."""

FAR_OFF = "events more than eleven days from the others"
"""What a damaged time looks like; sums over such spans would not be exact."""

LARGEST = 1 << 62
"""No sound number of a live record is larger: not a time in ns, not a size in bytes."""

_APART = frozenset({"traceEvents", "deviceProperties", "ipyprof", "baseTimeNanoseconds"})


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
    path = source.shown(path)
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _parsed(source.unpack(data, path), path)
    finally:
        if collecting:
            gc.enable()


def _parsed(data: bytes, path: str) -> Trace:
    decoded, columns = _columns(data, path)
    start_ns, dur_ns = columns.column("start_ns"), columns.column("dur_ns")
    damage = {**decoded.damage, **columns.damage}
    if not len(start_ns):
        if decoded.records and decoded.records == damage.get(pieces.UNFIT):
            what = f"{path} is a list of {decoded.records:,} records that are no events"
            raise TraceError(what, source.ALLOWED, source.EXPORT)
        raise TraceError(f"{path} is a trace without any complete event", source.ALLOWED, "record at least one step")
    memory_ns = columns.memory_column("time_ns")
    refused = columns.memory_column("refused") == 1
    order = nested_order(start_ns, dur_ns)
    first, last = _recorded(start_ns[order], memory_ns)
    order = order[(start_ns[order] >= first) & (start_ns[order] <= last)]
    if len(order) < len(start_ns):
        damage[FAR_OFF] = len(start_ns) - len(order)
    remembered = np.flatnonzero((memory_ns >= first) & (memory_ns <= last))
    origin_ns = int(min(start_ns[order].min(), memory_ns[remembered].min(initial=np.iinfo(np.int64).max)))

    def sorted_column(name: str) -> Any:
        return columns.column(name)[order]

    names = columns.names.distinct()
    name = sorted_column("name")
    kind = _kinds(sorted_column("category"), columns.categories.distinct(), name, names)
    tid = sorted_column("tid")
    base = value_of(decoded.top.get("baseTimeNanoseconds", NOTHING))
    return Trace(
        start_ns=start_ns[order] - origin_ns,
        dur_ns=dur_ns[order],
        kind=kind,
        role=_roles(kind, name, names),
        name=name,
        pid=sorted_column("pid"),
        tid=tid,
        device=sorted_column("device").astype(np.int32),
        stream=sorted_column("stream"),
        correlation=sorted_column("correlation"),
        external_id=sorted_column("external_id"),
        sequence=sorted_column("sequence"),
        detail=sorted_column("detail"),
        names=names,
        details=columns.details.details(),
        memory=_memory(columns, memory_ns - origin_ns, remembered[~refused[remembered]]),
        refused=_memory(columns, memory_ns - origin_ns, remembered[refused[remembered]]),
        flows=_flows(columns, origin_ns),
        origin_ns=origin_ns,
        base_ns=base if isinstance(base, int) else 0,
        devices=_devices(decoded.top.get("deviceProperties", NOTHING), damage),
        metadata=_small_values(decoded.top),
        thread_names=_thread_names(columns, set(np.unique(tid[kind <= Kind.CALL]).tolist())),
        damage=damage,
        live=_live(decoded.top.get("ipyprof", NOTHING), damage),
        path=path,
    )


def _columns(data: bytes, path: str) -> tuple[pieces.Decoded, EventColumns]:
    """What the fastest pass that the text allows leaves.

    Raises:
        TraceError: no pass finds events.
    """
    first: msgspec.DecodeError | None = None
    for take in pieces.passes(data, path):
        decoded, columns = pieces.Decoded(), EventColumns()
        try:
            for events in take(decoded):
                columns.add(events)
                del events  # before the next ones are decoded, which then take their place in the processor's cache
            if first is None or decoded.records:
                return decoded, columns
        except msgspec.DecodeError as error:
            first = first or error
        except RecursionError:
            raise TraceError(f"{path} is JSON nested too deeply for a trace", source.ALLOWED, source.EXPORT) from None
    raise refusal(data, path, first) from None  # the decoder's own error says nothing to who gave the file


def _kinds(category: Int32, categories: tuple[str, ...], name: Int32, names: tuple[str, ...]) -> UInt8:
    """(n,) kinds, decided once per distinct (category, name)."""
    kinds = np.full(len(category), Kind.OTHER, np.uint8)
    for number, text in enumerate(categories):
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


def _recorded(start_ns: Int64, memory_ns: Int64) -> tuple[int, int]:
    """(first, last) ns that a recording can hold around its middle event; everything unless some are far off.

    Args:
        start_ns: (n,) int64, sorted, not empty.
    """
    first, last = int(start_ns[0]), int(start_ns[-1])
    if len(memory_ns):
        first, last = min(first, int(memory_ns.min())), max(last, int(memory_ns.max()))
    if last - first <= ABSURD_NS:
        return first, last
    middle = int(start_ns[len(start_ns) // 2])
    return middle - ABSURD_NS, middle + ABSURD_NS


def _memory(columns: EventColumns, time_ns: Int64, rows: Int64) -> MemoryRecords:
    order = rows[np.argsort(time_ns[rows], kind="stable")]
    return MemoryRecords(
        time_ns=time_ns[order],
        device=columns.memory_column("device")[order].astype(np.int32),
        delta_bytes=columns.memory_column("delta_bytes")[order],
        allocated_bytes=columns.memory_column("allocated_bytes")[order],
        reserved_bytes=columns.memory_column("reserved_bytes")[order],
        address=columns.memory_column("address")[order],
        tid=columns.memory_column("tid")[order],
    )


def _flows(columns: EventColumns, origin_ns: int) -> Int64:
    """(k, 4) int64: forward tid, forward ns, backward tid, backward ns, sorted by forward time."""
    ends: dict[str, dict[int | str, tuple[int, int]]] = {"s": {}, "f": {}}
    for phase, key, thread, time in columns.flows:
        ends[phase].setdefault(key, (thread, time - origin_ns))
    starts, finishes = ends["s"], ends["f"]
    rows = [(*starts[key], *finishes[key]) for key in starts.keys() & finishes.keys()]
    rows.sort(key=lambda row: (row[1], row[3], row))
    return np.array(rows, np.int64).reshape(-1, 4)


def _thread_names(columns: EventColumns, threads: set[int]) -> dict[int, str]:
    """Host thread → its name; a thread without one gets its process's name where the two ids are the same."""
    named: dict[int, str] = {}
    processes: dict[int, str] = {}
    for is_thread, number, label in columns.labels:
        (named if is_thread else processes).setdefault(number, label)
    both = {**processes, **named}
    return {tid: both[tid] for tid in sorted(threads & both.keys())}


def _small_values(top: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The decoded values of the small top-level keys."""
    return {
        key: value_of(raw) for key, raw in top.items() if key not in _APART and memoryview(raw).nbytes <= SMALL_BYTES
    }


def _devices(raw: msgspec.Raw, damage: dict[str, int]) -> tuple[DeviceInfo, ...]:
    if raw is NOTHING:
        return ()
    try:
        devices = DEVICES.decode(raw)
    except (msgspec.DecodeError, RecursionError):
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
        live = msgspec.json.decode(raw, type=LiveRecord)
        sound = _in_range(msgspec.to_builtins(live)) and all(index.isdecimal() for index in live.device_names)
    except (msgspec.DecodeError, RecursionError):
        sound = False
    if sound:
        return live
    damage["a live record of another version"] = 1
    return None


def _in_range(value: Any) -> bool:
    """Whether every number in it is one that columns can hold."""
    if isinstance(value, dict):
        return all(map(_in_range, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_in_range, value))
    return not isinstance(value, (int, float)) or abs(value) < LARGEST
