"""Columns that grow by lists of events: what is read of an event is read while it is near, and the event is dropped."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ipyprof.trace.kinds import CATEGORY_KINDS, DEVICE_KINDS, Kind
from ipyprof.trace.kineto import ABSENT, UNKNOWN_NS, Arguments, DetailStore, Event, nanoseconds, packed
from ipyprof.trace.model import Int32, Int64

Value = TypeVar("Value", bound=Hashable)


class Interner(Generic[Value]):
    """Numbers values in order of first appearance, over several lists of them."""

    def __init__(self) -> None:
        # A new key gets the number of keys before it, without a Python call per value.
        self._numbers: defaultdict[Value, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def __len__(self) -> int:
        return len(self._numbers)

    def column(self, values: Iterable[Value]) -> Int32:
        """(n,) int32 number of each value."""
        return packed(list(map(self._numbers.__getitem__, values)), "i")

    def distinct(self) -> tuple[Value, ...]:
        """The values by their number."""
        return tuple(self._numbers)


ABSURD_NS = 10**15
"""Durations above this, eleven days, are damage."""
FIRST_TEXT_ID = -(1 << 40)
"""Text ids count down from here, below every number that a file uses."""
_NO_ARGUMENTS = Arguments()
_COMPLETE = "X"


def _among(*kinds: Kind) -> npt.NDArray[np.bool_]:
    """(kinds,) whether each kind is one of these: a table to look up."""
    table = np.zeros(len(Kind), np.bool_)
    table[list(kinds)] = True
    return table


_PLACED = _among(*DEVICE_KINDS, Kind.GPU_ANNOTATION, Kind.CUDA_SYNC)
_WORK = _among(*DEVICE_KINDS)
_DESCRIBED = _among(Kind.OPERATOR, Kind.ANNOTATION)
EVENT_COLUMNS: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "category": np.int32,
    "name": np.int32,
    "pid": np.int64,
    "tid": np.int64,
    "device": np.int64,
    "stream": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "sequence": np.int64,
    "detail": np.int32,
}
MEMORY_COLUMNS = ("time_ns", "device", "delta_bytes", "allocated_bytes", "reserved_bytes", "address", "tid", "refused")
_LAUNCH_LINK = "ac2g"  # two for every device record, and correlation ids say the same
_REFUSED = "[OutOfMemory]"
_MEMORY = ("[memory]", _REFUSED)


class EventColumns:
    """The columns of all lists that ``add`` got, in the file's order.

    Attributes:
        damage: events that are left out, by reason.
        names, categories: the distinct ones.
        details: the distinct arguments.
        ids: numbers of process and thread ids.
        flows: phase, flow id, thread number and ns of each forward-to-backward link's end.
        labels: (is of a thread, its or its process's number, name).
    """

    def __init__(self) -> None:
        self.damage: dict[str, int] = {}
        self.names: Interner[str] = Interner()
        self.categories: Interner[str] = Interner()
        self.details = DetailStore()
        self.ids = Ids()
        self.flows: list[tuple[str, int | str, int, int]] = []
        self.labels: list[tuple[bool, int, str]] = []
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in EVENT_COLUMNS}
        self._memory: dict[str, list[Int64]] = {name: [] for name in MEMORY_COLUMNS}
        self._kinds = np.empty(0, np.uint8)

    def add(self, events: list[Event]) -> None:
        """Take the columns of these events; none of them is kept."""
        complete = [event for event in events if event.ph == _COMPLETE]
        if len(complete) < len(events):
            self._add_others([event for event in events if event.ph != _COMPLETE and event.cat != _LAUNCH_LINK])
        start_ns, dur_ns, complete = self._sound(complete)
        if not complete:
            return
        arguments = [event.args or _NO_ARGUMENTS for event in complete]
        pid = self.ids.column([event.pid for event in complete])
        tid = self.ids.column([event.tid for event in complete])
        category = self.categories.column([event.cat for event in complete])
        kind = self._kind_of_categories()[category]
        device, stream = _places(arguments, kind, pid, tid)
        self._append(
            start_ns=start_ns,
            dur_ns=dur_ns,
            category=category,
            name=self.names.column([event.name for event in complete]),
            pid=pid,
            tid=tid,
            device=device,
            stream=stream,
            correlation=wrapped([args.correlation for args in arguments]),
            external_id=wrapped([args.external or args.old_external for args in arguments]),
            sequence=wrapped([args.sequence for args in arguments]),
            detail=self._detail(arguments, kind),
        )

    def column(self, name: str) -> npt.NDArray[Any]:
        """(n,) one of ``EVENT_COLUMNS``; its parts are given up."""
        parts = self._parts.pop(name)
        return np.concatenate(parts) if parts else np.empty(0, EVENT_COLUMNS[name])

    def memory_column(self, name: str) -> Int64:
        """(m,) one of ``MEMORY_COLUMNS``."""
        return np.concatenate([np.empty(0, np.int64), *self._memory[name]])

    def _append(self, **columns: npt.NDArray[Any]) -> None:
        for name, column in columns.items():
            self._parts[name].append(column)

    def _kind_of_categories(self) -> npt.NDArray[np.uint8]:
        """(categories,) kind of each category so far, whatever the name."""
        known = len(self._kinds)
        if len(self.categories) > known:
            new = [CATEGORY_KINDS.get(text, Kind.OTHER) for text in self.categories.distinct()[known:]]
            self._kinds = np.append(self._kinds, np.array(new, np.uint8))
        return self._kinds

    def _detail(self, arguments: list[Arguments], kind: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        detail = np.full(len(arguments), -1, np.int32)
        device = np.flatnonzero(_WORK[kind])
        host = np.flatnonzero(_DESCRIBED[kind])
        detail[device] = self.details.device_column([arguments[index] for index in device.tolist()])
        detail[host] = self.details.host_column([arguments[index] for index in host.tolist()])
        return detail

    def _sound(self, events: list[Event]) -> tuple[Int64, Int64, list[Event]]:
        """Start and duration of the events that have both, and those events; the others are counted."""
        starts = nanoseconds([event.ts for event in events])
        durations = packed([event.dur for event in events], "d")
        sound = (starts != UNKNOWN_NS) & (durations >= 0) & (durations <= ABSURD_NS / 1000)
        if not sound.all():
            no_start = starts == UNKNOWN_NS
            for reason, wrong in (
                ("events without a start", no_start),
                ("events without a duration", ~no_start & np.isnan(durations)),
                ("events that end before they start", ~no_start & (durations < 0)),
                ("events of more than eleven days", ~no_start & (durations > ABSURD_NS / 1000)),
            ):
                if wrong.any():
                    self.damage[reason] = self.damage.get(reason, 0) + int(wrong.sum())
            events = [events[index] for index in np.flatnonzero(sound).tolist()]
            starts, durations = starts[sound], durations[sound]
        # Durations are short enough for a float64 to hold every nanosecond.
        return starts, np.rint(durations * 1000).astype(np.int64), events

    def _add_others(self, events: list[Event]) -> None:
        """Take what is no complete event: memory records, links and labels."""
        self._add_memory([event for event in events if event.name in _MEMORY])
        flows = [event for event in events if event.ph in ("s", "f") and event.cat == "fwdbwd"]
        for event, time in zip(flows, nanoseconds([event.ts for event in flows]).tolist(), strict=True):
            if time != UNKNOWN_NS:
                self.flows.append((event.ph, event.id, self.ids.number(event.tid), time))
        for event in events:
            if event.ph == "M" and event.args is not None and isinstance(event.args.label, str):
                if event.name == "thread_name":
                    self.labels.append((True, self.ids.number(event.tid), event.args.label))
                elif event.name == "process_name":
                    self.labels.append((False, self.ids.number(event.pid), event.args.label))

    def _add_memory(self, events: list[Event]) -> None:
        if not events:
            return
        time_ns = nanoseconds([event.ts for event in events])
        known = [event.args is not None for event in events]
        sound = np.array(known, bool) & (time_ns != UNKNOWN_NS)
        if not sound.all():
            events = [events[index] for index in np.flatnonzero(sound).tolist()]
        rows = [event.args or _NO_ARGUMENTS for event in events]
        columns = {
            "time_ns": time_ns[sound],
            # Device types: 0 is the CPU; 1 CUDA, 6 HIP and the rest are devices.
            "device": wrapped([-1 if args.device_type == 0 else args.device_id for args in rows]),
            "delta_bytes": wrapped([args.delta for args in rows]),
            "allocated_bytes": wrapped([args.allocated for args in rows]),
            "reserved_bytes": wrapped([args.reserved for args in rows]),
            "address": wrapped([args.address for args in rows]),
            "tid": self.ids.column([event.tid for event in events]),
            "refused": wrapped([event.name == _REFUSED for event in events]),
        }
        for name, column in columns.items():
            self._memory[name].append(column)


class Ids:
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
        try:
            return wrapped(cast("list[int]", values))
        except TypeError:
            return wrapped([value if isinstance(value, int) else self.number(value) for value in values])

    def _new(self, value: int | str | None) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                self._texts += 1
                return FIRST_TEXT_ID - self._texts
        return 0 if value is None else _wrap(value)


def wrapped(values: list[int]) -> Int64:
    """(n,) int64 of the values, one to one for all unsigned 64-bit ones."""
    try:
        return packed(values, "q")
    except struct.error:
        return packed(list(map(_wrap, values)), "q")


def _wrap(value: int) -> int:
    """``value`` as a signed 64-bit number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _places(arguments: list[Arguments], kind: npt.NDArray[np.uint8], pid: Int64, tid: Int64) -> tuple[Int64, Int64]:
    """(n,) device and (n,) stream; -1 on the host. Old files have the two as process and thread only."""
    rows = np.flatnonzero(_PLACED[kind])
    device = np.full(len(kind), -1, np.int64)
    stream = np.full(len(kind), -1, np.int64)
    there = [arguments[index] for index in rows.tolist()]
    named = wrapped([args.device for args in there])
    # Calls of ROCm have addresses here as text; device work has numbers.
    on = wrapped([args.stream if isinstance(args.stream, int) else ABSENT for args in there])
    device[rows] = np.where(named == ABSENT, pid[rows], named)
    stream[rows] = np.where(on == ABSENT, tid[rows], on)
    return np.where(np.abs(device) < 1 << 31, device, -1), stream


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
