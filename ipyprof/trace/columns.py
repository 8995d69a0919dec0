"""Columns that grow by lists of events: what is read of an event is read while it is near, and the event is dropped."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ipyprof.trace.kinds import CATEGORY_KINDS, DEVICE_KINDS, Kind, accelerator, call_role, event_kind
from ipyprof.trace.kineto import (
    ABSENT,
    UNKNOWN_NS,
    Arguments,
    DetailStore,
    Event,
    joined_times,
    nanoseconds,
    packed,
    wrapped,
)
from ipyprof.trace.model import Int32, Int64, MemoryRecords, UInt8

Value = TypeVar("Value", bound=Hashable)


class Interner(Generic[Value]):
    """Numbers values in order of first appearance, over several lists of them."""

    def __init__(self) -> None:
        # A new key gets the number of keys before it, without a Python call per value.
        self._numbers: defaultdict[Value, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def numbers(self, values: Iterable[Value]) -> list[int]:
        """The number of each value."""
        return list(map(self._numbers.__getitem__, values))

    def distinct(self) -> tuple[Value, ...]:
        """The values by their number."""
        return tuple(self._numbers)


class Ids:
    """Process and thread ids as 64-bit integers: numbers as they are, text as negative numbers."""

    def __init__(self) -> None:
        self._texts: Interner[str] = Interner()

    def texts(self) -> tuple[str, ...]:
        """The ids that are text and no number."""
        return self._texts.distinct()

    def number(self, value: int | str | None) -> int:
        """The id's number, the same one at every call."""
        try:
            return wrapped(int(value or 0))
        except ValueError:
            return FIRST_TEXT_ID - self._texts.numbers([str(value)])[0]

    def packed(self, values: list[int | str | None]) -> bytes:
        """The numbers of the ids as an int64 array's bytes."""
        try:
            return packed(cast("list[int]", values), "q")
        except struct.error:
            return packed([self.number(value) for value in values], "q")


FIRST_TEXT_ID = -(1 << 40)
"""Text ids count down from here, below every number that a file uses."""
ABSURD_NS = 10**15
"""Durations above this, eleven days, are damage; so are times this far from the others."""
ABSURD_BYTES = 1 << 50
"""No allocator holds a pebibyte; sums of such sizes would overflow."""
NOT_READ = "not read"
"""How damage begins that tells of an accelerator whose records nothing here reads."""
FAR_OFF = "events more than eleven days from the others"
"""What a damaged time looks like; sums over such spans would not be exact."""
_NO_ARGUMENTS = Arguments()
_COMPLETE = "X"
_LAUNCH_LINK = "ac2g"  # two for every device record, and correlation ids say the same
_REFUSED = "[OutOfMemory]"
_MEMORY = ("[memory]", _REFUSED)
_SIZES = ("delta_bytes", "allocated_bytes", "reserved_bytes")


def _among(*kinds: Kind) -> npt.NDArray[np.bool_]:
    """(kinds,) whether each kind is one of these: a table to look up."""
    table = np.zeros(len(Kind), np.bool_)
    table[list(kinds)] = True
    return table


_PLACED = _among(*DEVICE_KINDS, Kind.GPU_ANNOTATION, Kind.CUDA_SYNC)
_WORK = _among(*DEVICE_KINDS)
_DESCRIBED = _among(Kind.OPERATOR, Kind.ANNOTATION)


class EventColumns:
    """The columns of all lists that ``add`` got, in the file's order.

    Attributes:
        records: events so far, of any phase.
        damage: events that are left out, by reason.
        names, categories: the distinct ones of complete events.
        ids: numbers of process and thread ids.
        processes: process → its name, where the file has one.
    """

    def __init__(self) -> None:
        self.records = 0
        self.damage: dict[str, int] = {}
        self.names: Interner[str] = Interner()
        self.categories: Interner[str] = Interner()
        self.processes: dict[int, str] = {}
        self._details = DetailStore()
        self.ids = Ids()
        # Of a column's name its parts as bytes; of those of device work and described ranges only their rows.
        self._parts: defaultdict[str, list[bytes]] = defaultdict(list)
        self._kinds: list[Kind] = []

    def add(self, events: list[Event]) -> None:
        """Take the columns of these events; none of them is kept."""
        self.records += len(events)
        complete = [event for event in events if event.ph == _COMPLETE]
        if len(complete) < len(events):
            self._add_others([event for event in events if event.ph != _COMPLETE and event.cat != _LAUNCH_LINK])
        arguments = [event.args or _NO_ARGUMENTS for event in complete]
        category = self.categories.numbers([event.cat for event in complete])
        self._append("category", category, "i")
        self._append("name", self.names.numbers([event.name for event in complete]), "i")
        self._parts["start"].append(joined_times([event.ts for event in complete]))
        self._append("dur", [event.dur for event in complete], "d")
        self._parts["pid"].append(self.ids.packed([event.pid for event in complete]))
        self._parts["tid"].append(self.ids.packed([event.tid for event in complete]))
        self._append("correlation", [args.correlation for args in arguments])
        self._append("external_id", [args.external or args.old_external for args in arguments])
        kind = self._kind_of_categories()[category]
        described = [arguments[row] for row in np.flatnonzero(_DESCRIBED[kind]).tolist()]
        self._append("sequence", [args.sequence for args in described])
        self._append("host_detail", self._details.of_host(described), "i")
        placed = [arguments[row] for row in np.flatnonzero(_PLACED[kind]).tolist()]
        self._append("device", [args.device for args in placed])
        # Calls of ROCm have addresses here as text; device work has numbers.
        self._append("stream", [args.stream if isinstance(args.stream, int) else ABSENT for args in placed])
        work = [arguments[row] for row in np.flatnonzero(_WORK[kind]).tolist()]
        self._append("device_detail", self._details.of_device(work), "i")

    def columns(self) -> dict[str, Any]:
        """What a ``Trace`` has of the events, by the name that it has there. The parts are given up.

        No array has a row if no complete event is sound.
        """
        start, dur = self._times()
        memory = self._memory()
        # The order and its start times hold the sound events only.
        order = nested_order(start, dur)
        order = order[start[order] != UNKNOWN_NS]
        first, last = _recorded(start[order], memory["time_ns"])
        near = (start[order] >= first) & (start[order] <= last)
        if not near.all():
            self.damage[FAR_OFF] = int((~near).sum())
            order = order[near]
        near = (memory["time_ns"] >= first) & (memory["time_ns"] <= last)
        memory = {name: column[near] for name, column in memory.items()}
        origin = int(min(start[order].min(initial=last), memory["time_ns"].min(initial=last)))
        memory["time_ns"] -= origin
        refused = memory.pop("refused") == 1
        category, name = self._column("category", np.int32), self._column("name", np.int32)
        categories, names = self.categories.distinct(), self.names.distinct()
        kind = _kinds(category, categories, name, names)
        pid, tid = self._column("pid"), self._column("tid")
        self._note_what_is_not_read(category, pid)
        unsorted: dict[str, npt.NDArray[Any]] = {
            "dur_ns": dur,
            "kind": kind,
            "role": _roles(kind, name, names),
            "name": name,
            "pid": pid,
            "tid": tid,
            "correlation": self._column("correlation"),
            "external_id": self._column("external_id"),
            **self._of_some(self._kind_of_categories()[category], pid, tid),
        }
        return {
            "start_ns": start[order] - origin,
            **{name: column[order] for name, column in unsorted.items()},
            "names": names,
            "details": self._details.details(),
            "memory": MemoryRecords(**{name: column[~refused] for name, column in memory.items()}),
            "refused": MemoryRecords(**{name: column[refused] for name, column in memory.items()}),
            "origin_ns": origin,
        }

    def _append(self, name: str, values: Sequence[float], code: str = "q") -> None:
        self._parts[name].append(packed(values, code))

    def _column(self, name: str, dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
        return np.frombuffer(b"".join(self._parts.pop(name, [])), dtype)

    def _kind_of_categories(self) -> UInt8:
        """(categories,) kind of each category so far, whatever the name."""
        for text in self.categories.distinct()[len(self._kinds) :]:
            self._kinds.append(CATEGORY_KINDS.get(text, Kind.OTHER))
        return np.array(self._kinds, np.uint8)

    def _times(self) -> tuple[Int64, Int64]:
        """(n,) start and (n,) duration in ns; the start is ``UNKNOWN_NS`` where the two are none, which is counted."""
        start = nanoseconds(b"".join(self._parts.pop("start", [])))
        dur = self._column("dur", np.float64)
        known = start != UNKNOWN_NS
        sound = known & (dur >= 0) & (dur <= ABSURD_NS / 1000)
        if not sound.all():
            for reason, wrong in (
                ("events without a start", ~known),
                ("events without a duration", known & np.isnan(dur)),
                ("events that end before they start", known & (dur < 0)),
                ("events of more than eleven days", known & (dur > ABSURD_NS / 1000)),
            ):
                self._note(reason, int(wrong.sum()))
            start, dur = np.where(sound, start, UNKNOWN_NS), np.where(sound, dur, 0)
        # Durations are short enough for a float64 to hold every nanosecond.
        return start, np.rint(dur * 1000).astype(np.int64)

    def _of_some(self, kind: UInt8, pid: Int64, tid: Int64) -> dict[str, npt.NDArray[Any]]:
        """The (n,) columns that only some kinds of category fill, -1 elsewhere."""
        described, placed, work = (np.flatnonzero(table[kind]) for table in (_DESCRIBED, _PLACED, _WORK))
        sequence, stream, place = (np.full(len(kind), -1, np.int64) for _ in range(3))
        detail = np.full(len(kind), -1, np.int32)
        sequence[described] = self._column("sequence")
        detail[described] = self._column("host_detail", np.int32)
        detail[work] = self._column("device_detail", np.int32)
        # Old files have device and stream as process and thread only.
        named, on = self._column("device"), self._column("stream")
        place[placed] = np.where(named == ABSENT, pid[placed], named)
        stream[placed] = np.where(on == ABSENT, tid[placed], on)
        device = np.where(np.abs(place) < 1 << 31, place, -1).astype(np.int32)
        return {"sequence": sequence, "detail": detail, "device": device, "stream": stream}

    def _add_others(self, events: list[Event]) -> None:
        """Take what is no complete event: memory records and the names of processes."""
        memory = [event for event in events if event.name in _MEMORY and event.args is not None]
        if memory:
            rows = [event.args or _NO_ARGUMENTS for event in memory]
            self._parts["memory"].append(joined_times([event.ts for event in memory]))
            # Device types: 0 is the CPU; 1 CUDA, 6 HIP and the rest are devices.
            self._append("memory device", [-1 if args.device_type == 0 else args.device_id for args in rows])
            self._append("delta_bytes", [args.delta for args in rows])
            self._append("allocated_bytes", [args.allocated for args in rows])
            self._append("reserved_bytes", [args.reserved for args in rows])
            self._append("address", [args.address for args in rows])
            self._parts["memory tid"].append(self.ids.packed([event.tid for event in memory]))
            self._append("refused", [event.name == _REFUSED for event in memory])
        for event in events:
            if event.name == "process_name" and event.args is not None and isinstance(event.args.label, str):
                self.processes.setdefault(self.ids.number(event.pid), event.args.label)

    def _memory(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of ``MemoryRecords`` and ``refused``, sorted by time; what has no time or no size is left out."""
        found: dict[str, npt.NDArray[Any]] = {
            "time_ns": nanoseconds(b"".join(self._parts.pop("memory", []))),
            "device": self._column("memory device").astype(np.int32),
            "tid": self._column("memory tid"),
            **{name: self._column(name) for name in (*_SIZES, "address", "refused")},
        }
        absurd = np.logical_or.reduce([(found[name] > ABSURD_BYTES) | (found[name] < -ABSURD_BYTES) for name in _SIZES])
        absurd &= found["refused"] == 0  # a request can be for any size
        self._note("memory records of more than a pebibyte", int(absurd.sum()))
        rows = np.flatnonzero((found["time_ns"] != UNKNOWN_NS) & ~absurd)
        rows = rows[np.argsort(found["time_ns"][rows], kind="stable")]
        return {name: column[rows] for name, column in found.items()}

    def _note_what_is_not_read(self, category: Int32, pid: Int64) -> None:
        """Count the records of accelerators that nothing here reads."""
        by_category = np.bincount(category, minlength=1)
        for number, text in enumerate(self.categories.distinct()):
            if name := accelerator(text):
                self._note(f"{NOT_READ}: {name} records", int(by_category[number]))
        for process, label in self.processes.items():
            if name := accelerator(label):
                self._note(f"{NOT_READ}: {name} records", int((pid == process).sum()))

    def _note(self, reason: str, count: int) -> None:
        if count:
            self.damage[reason] = self.damage.get(reason, 0) + count


def _kinds(category: Int32, categories: tuple[str, ...], name: Int32, names: tuple[str, ...]) -> UInt8:
    """(n,) kinds, decided once per distinct (category, name)."""
    kinds = np.full(len(category), Kind.OTHER, np.uint8)
    for number, text in enumerate(categories):
        if text in CATEGORY_KINDS:
            rows = np.flatnonzero(category == number)
            kinds[rows] = _by_name(name[rows], names, partial(event_kind, text))
    return kinds


def _roles(kind: UInt8, name: Int32, names: tuple[str, ...]) -> UInt8:
    """(n,) roles, decided once per distinct name of a call."""
    calls = np.flatnonzero(kind == Kind.CALL)
    roles = np.zeros(len(kind), np.uint8)
    roles[calls] = _by_name(name[calls], names, call_role)
    return roles


def _by_name(name: Int32, names: tuple[str, ...], decide: Callable[[str], int]) -> UInt8:
    """(n,) what ``decide`` says of each name, asked once per distinct one."""
    present = np.zeros(len(names), np.bool_)
    present[name] = True
    by_name = np.zeros(len(names), np.uint8)
    for index in np.flatnonzero(present).tolist():
        by_name[index] = decide(names[index])
    return by_name[name]


def _recorded(start_ns: Int64, memory_ns: Int64) -> tuple[int, int]:
    """(first, last) ns that a recording can hold around its middle event; everything unless some are far off.

    Args:
        start_ns: (n,) int64, sorted.
        memory_ns: (m,) int64, sorted.
    """
    ends = [int(times[at]) for times in (start_ns, memory_ns) if len(times) for at in (0, -1)]
    if not len(start_ns) or max(ends) - min(ends) <= ABSURD_NS:
        return min(ends, default=0), max(ends, default=0)
    middle = int(start_ns[len(start_ns) // 2])
    return middle - ABSURD_NS, middle + ABSURD_NS


def nested_order(start: Int64, dur: Int64) -> Int64:
    """(n,) int64 order by (start, -dur), equal ones in the order given: an interval comes before what it holds.

    Files are nearly in that order, which a stable sort is fast on, and few events start together: only those are sorted
    by their duration as well.

    Args:
        start, dur: (n,) int64.
    """
    order = np.argsort(start, kind="stable").astype(np.int64, copy=False)
    sorted_start = start[order]
    together = sorted_start[1:] == sorted_start[:-1]
    if together.any():
        places = np.flatnonzero(np.append(together, False) | np.append(False, together))
        tied = order[places]
        order[places] = tied[np.lexsort((-dur[tied], start[tied]))]
    return order
