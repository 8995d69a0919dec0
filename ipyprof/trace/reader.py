"""A file of torch.profiler as a ``Trace``: typed decoding piece by piece, each into columns while it is near."""

from __future__ import annotations

import gc
import re
import stat
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ipyprof.errors import TraceError
from ipyprof.trace.columns import ABSURD_NS, EventColumns, nested_order
from ipyprof.trace.kinds import CATEGORY_KINDS, Kind, call_role, event_kind
from ipyprof.trace.kineto import DEVICES, EVENT, EVENTS, NOTHING, RAW, RAW_LIST, TOP, Event, value_of
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import DeviceInfo, Int32, Int64, MemoryRecords, Trace, UInt8

ALLOWED = "ipyprof reads the JSON that torch.profiler exports, plain or gz"
EXPORT = "write the file with prof.export_chrome_trace() and give that one"
GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_RATIO = 200
"""A trace packs to between a tenth and a fortieth; gzip itself can reach a thousandth with nothing but repetition."""
FREE_BYTES = 64 << 20
"""What any file may unpack to, whatever its ratio."""
MOST_BYTES = 4 << 30
"""What no packed file may exceed: more than this does not fit into the memory of most machines five times."""
_FEED_BYTES = 1 << 16
_GZIP_WINDOW = 31  # zlib's way to say: with gzip's header and checksum
_SOMETHING = re.compile(rb"[^ \t\r\n\0]")


def read_bytes(path: Path) -> bytes:
    """The file's JSON, unpacked if its content says gzip.

    Raises:
        TraceError: the file cannot be opened, is no file, is empty, or its gzip is broken or unpacks to too much.
    """
    name = shown(path)
    try:
        mode = path.stat().st_mode
        # A device may have no end; a pipe has one.
        odd = not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode))
        data = b"" if odd else path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise TraceError(f"{name} cannot be opened ({reason})", ALLOWED, "check the path") from None
    if odd:
        raise TraceError(f"{name} is no regular file", ALLOWED, "check the path")
    return unpack(data, name)


def shown(path: Path | str) -> str:
    """The path for messages: a file's name may hold line breaks and what a terminal takes for commands."""
    return "".join(character if character.isprintable() else "�" for character in str(path))


def unpack(data: bytes, path: str) -> bytes:
    """``data``, unpacked if it begins as gzip does, without a byte order mark. Raises ``TraceError``.

    A packed file that was cut off is unpacked up to the cut.
    """
    if data.startswith(GZIP_MAGIC):
        try:
            data = _inflated(data, path)
        except zlib.error as error:
            raise TraceError(f"{path} is a broken gzip file ({error})", ALLOWED, "copy or export it again") from None
    data = data.removeprefix(BYTE_ORDER_MARK)
    # A regular expression, not strip(): that would copy the whole file.
    if _SOMETHING.search(data) is None:
        raise TraceError(f"{path} is empty", ALLOWED, "export it again")
    return data


def first_byte(data: bytes) -> bytes:
    """The first byte that is no space."""
    found = _SOMETHING.search(data)
    return b"" if found is None else found.group()


def _inflated(packed: bytes, path: str) -> bytes:
    """All members of a gzip file as one; bounded before anything too large is there."""
    most = min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * len(packed)))
    view = memoryview(packed)
    parts: list[bytes] = []
    size = 0
    at = 0
    member = zlib.decompressobj(_GZIP_WINDOW)
    fresh = True
    while at < len(view):
        chunk = bytes(view[at : at + _FEED_BYTES])
        at += len(chunk)
        while chunk:
            if fresh and parts:
                chunk = chunk.lstrip(b"\0")  # some writers pad with zeros
                if not chunk:
                    break
            # One byte more than allowed tells that there is too much.
            part = member.decompress(chunk, most - size + 1)
            fresh = False
            size += len(part)
            if size > most:
                raise _too_large(path, len(packed), most)
            parts.append(part)
            chunk = member.unconsumed_tail
            if member.eof:
                chunk = member.unused_data
                member, fresh = zlib.decompressobj(_GZIP_WINDOW), True
    return b"".join(parts)


def _too_large(path: str, packed: int, most: int) -> TraceError:
    times = f", over {MOST_RATIO} times its size," if most < MOST_BYTES else ""
    return TraceError(
        f"{path} has {packed:,} bytes and unpacks to more than {most:,}{times} as no trace does",
        "ipyprof unpacks up to 4 GiB and 200 times the size",
        "if you trust the file, unpack it with gunzip and give the JSON",
    )


TRUNCATED = "truncated"
"""The word in msgspec's error for text that ends too soon."""

# Key at the top of a file that is no trace -> what the file is.
_KNOWN_OTHERS = (
    ("rocprofiler-sdk-tool", "rocprof's results"),
    ("nodes", "an execution trace or a profile of another tool, without traceEvents"),
    ("segments", "a memory snapshot"),
    ("cells", "a notebook"),
)


def refusal(data: bytes, path: str, error: Exception | None) -> TraceError:
    """Why the text is no trace, in one sentence; ``error`` is what decoding it raised."""
    try:
        keys = list(TOP.decode(data)) if first_byte(data) != b"[" else ["traceEvents"]
    except msgspec.ValidationError:
        return TraceError(f"{path} is JSON, but no object", ALLOWED, EXPORT)
    except msgspec.DecodeError as broken:
        return _not_json(data, path, error or broken)
    for key, what in _KNOWN_OTHERS:
        if key in keys and "traceEvents" not in keys:
            return TraceError(f"{path} is {what} (key {key!r})", ALLOWED, EXPORT)
    if "traceEvents" in keys:
        if error is not None and not isinstance(error, msgspec.ValidationError):
            return _not_json(data, path, error)
        return TraceError(f"{path} has a key 'traceEvents' that is no list", ALLOWED, EXPORT)
    shown = ", ".join(repr(key[:40]) for key in keys[:5]) or "none"
    return TraceError(f"{path} is JSON without the key 'traceEvents' (its keys: {shown})", ALLOWED, EXPORT)


def _not_json(data: bytes, path: str, error: Exception) -> TraceError:
    if first_byte(data) not in (b"{", b"["):
        shown = data[:12].decode("ascii", "backslashreplace").strip()
        return TraceError(f"{path} is no JSON: it begins with {shown!r}", ALLOWED, EXPORT)
    if TRUNCATED in str(error):
        return TraceError(f"{path} is cut off after {len(data):,} bytes", ALLOWED, "copy or export it again")
    return TraceError(f"{path} is broken JSON ({error})", ALLOWED, "copy or export it again")


PIECE_BYTES = 1 << 20
REPAIRED = "text that is not valid JSON, repaired"
HOLES = "text with zero bytes, which a disk leaves where nothing was written"
UNFIT = "events with a value of the wrong type"
BROKEN = "events that are not valid JSON"
BROKEN_END = "text after the events that is not valid JSON"
ENDS_EARLY = "partial: the file ends early, events read"
_OBJECT_HEAD = b'{"traceEvents":['
_LIST_HEAD = b"["
_MOST_STARTS = 8
_MOST_ENDS = 64
_MOST_JOINED = 16
_TAIL_BYTES = 64
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[A-Za-z ]{1,40}")')
_CUT_NUMBER = re.compile(rb"[:,\[]\s*-?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]*)?)?\Z")
_SPACES = bytes(byte if byte >= 0x20 else 0x20 for byte in range(256))
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])( *)(?:[-+]?(?:inf(?:inity)?|nan(?:\([a-z]*\))?))(?= *[,\]}])", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Decoded:
    """What one pass over the text leaves beside its events: it grows while the lists are taken.

    Attributes:
        top: the file's top-level keys but ``traceEvents``, undecoded.
        damage: what was skipped or repaired, by reason, with its count.
        records: elements of ``traceEvents`` so far, fit or not.
    """

    top: dict[str, msgspec.Raw] = field(default_factory=dict)
    damage: dict[str, int] = field(default_factory=dict)
    records: int = 0

    def count(self, reason: str, number: int = 1) -> None:
        """Note damage."""
        self.damage[reason] = self.damage.get(reason, 0) + number


Pass = Callable[[Decoded], Iterator[list[Event]]]


def passes(data: bytes, path: str) -> Iterator[Pass]:
    """Ways to take the events, the fastest first: the next one is for when a list raises ``msgspec.DecodeError``."""
    cut = _Cut(data)
    yield cut.by_pieces
    if len(cut.spans) > 1 and not cut.ends_early:
        yield lambda decoded: iter([_whole(data, decoded)])
    yield cut.by_events


class _Cut:
    """Text cut into pieces at the ends of events.

    Attributes:
        spans: (begin, end) of each piece; the last one holds what follows the events too.
        ends_early: the last piece is no JSON because it ends too soon.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._is_list = first_byte(data) == b"["
        self.ends_early = False
        self._top: dict[str, msgspec.Raw] = {}
        at = self._begin()
        self.spans: list[tuple[int, int]] = []
        self._separator = self._between(at)
        if at >= 0:
            while at + PIECE_BYTES < len(data):
                found = self._separator.search(data, at + PIECE_BYTES)
                if found is None:
                    break
                self.spans.append((at, found.start() + 1))
                at = found.start(1)
        self.spans.append((at, len(data)))

    def by_pieces(self, decoded: Decoded) -> Iterator[list[Event]]:
        """Lists of events; a piece with damaged text is repaired."""
        decoded.top.update(self._top)
        for begin, end in self.spans[:-1]:
            yield self._piece(begin, end, decoded)
        try:
            yield self._last_piece(self.spans[-1][0], decoded)
        except msgspec.DecodeError as error:
            self.ends_early = _too_soon(self._data, error)
            raise

    def by_events(self, decoded: Decoded) -> Iterator[list[Event]]:
        """Lists of events; of a piece that cannot be repaired the events that are whole."""
        if self.spans[-1][0] < 0:
            raise msgspec.DecodeError("no list of events")
        decoded.top.update(self._top)
        rest = self.spans[0][0]
        for _, end in self.spans:
            is_last = end == len(self._data)
            begin, rest = rest, end
            try:
                yield self._last_piece(begin, decoded) if is_last else self._piece(begin, end, decoded)
            except msgspec.DecodeError as error:
                self.ends_early = is_last and _too_soon(self._data, error)
                events, rest = self._whole_events(begin, end, decoded)
                yield events
            if not is_last and rest == end:
                rest = self._next(end)
        if self.ends_early:
            decoded.damage[ENDS_EARLY] = decoded.records

    def _whole_events(self, begin: int, end: int, decoded: Decoded) -> tuple[list[Event], int]:
        """The whole events of a piece, and where the next piece begins: early, if this one ends within an event."""
        text, last = self._data[begin:end], end == len(self._data)
        begins = [0, *(found.start(1) for found in self._separator.finditer(text))]
        ends = [*begins[1:], len(text)]
        events: list[Event] = []
        at, losing = 0, False
        while at < len(begins):
            event, taken = _joined_event(text, begins[at], ends[at : at + _MOST_JOINED])
            near_end = at + _MOST_JOINED >= len(begins)
            if event is None and taken == 0 and near_end and (self.ends_early or not last):
                # The end came too soon: of the file, or of the piece.
                end = begin + begins[at]
                break
            if event is None and last and near_end:
                # What follows the last event is broken, or the event is.
                event, stop = _event_before_the_rest(text[begins[at] : begins[at] + PIECE_BYTES])
                if event is not None:
                    taken = bisect_left(begins, begins[at] + stop) - at
                    if not self.ends_early:
                        decoded.count(BROKEN_END)
            if event is not None:
                events.append(event)
            elif not losing and not (last and self.ends_early and at + 1 >= len(begins)):
                decoded.count(BROKEN)
            losing = event is None
            at += max(taken, 1)
        decoded.records += len(events)
        return events, end

    def _next(self, end: int) -> int:
        """Where the event behind a piece begins."""
        found = self._separator.match(self._data, end - 1)
        return end if found is None else found.start(1)

    def _piece(self, begin: int, end: int, decoded: Decoded) -> list[Event]:
        text = b"".join((_LIST_HEAD, self._view[begin:end], b"]"))
        return _repairing(_list_events, text, decoded)

    def _last_piece(self, begin: int, decoded: Decoded) -> list[Event]:
        if begin < 0:
            return _repairing(_whole, self._data, decoded)
        text = b"".join((_LIST_HEAD if self._is_list else _OBJECT_HEAD, self._view[begin:]))
        return _repairing(_whole, text, decoded)

    def _begin(self) -> int:
        """Where the list's elements begin, or -1 where that is not clear."""
        if self._is_list:
            return self._data.index(b"[") + 1
        for number, found in enumerate(_START.finditer(self._data)):
            if number == _MOST_STARTS:
                break
            try:
                # Only at the top level does closing the head give an object.
                self._top = TOP.decode(self._data[: found.start()] + b'"traceEvents":0}')
            except msgspec.DecodeError:
                continue
            del self._top["traceEvents"]
            return found.end()
        return -1

    def _between(self, begin: int) -> re.Pattern[bytes]:
        """What stands between two events; its group begins the second. Events begin with the first one's key, or ph."""
        first = _FIRST_KEY.match(self._data, max(begin, 0))
        key = b"|" + re.escape(first.group(1)) if first is not None else b""
        return re.compile(rb'\}\s*,\s*(\{)(?=\s*(?:"ph"' + key + rb")\s*:)")


def _too_soon(data: bytes, error: msgspec.DecodeError) -> bool:
    """Whether the text ends before its JSON does: a number that was cut behind its point is an error of its own."""
    return TRUNCATED in str(error) or _CUT_NUMBER.search(data[-_TAIL_BYTES:]) is not None


def _repairing(decode: Callable[[bytes, Decoded], list[Event]], text: bytes, decoded: Decoded) -> list[Event]:
    try:
        return decode(text, decoded)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        repaired = _repair(text)
        if repaired == text:
            raise
    events = decode(repaired, decoded)
    decoded.damage[HOLES if b"\0" in text else REPAIRED] = 1
    return events


def _whole(text: bytes, decoded: Decoded) -> list[Event]:
    """The events of an object or a list, and the object's other keys."""
    if first_byte(text) == b"[":
        return _list_events(text, decoded)
    top = TOP.decode(text)
    events = top.pop("traceEvents", None)
    if events is None:
        raise msgspec.ValidationError("no traceEvents")
    taken = _list_events(events, decoded)
    decoded.top.update(top)
    return taken


def _list_events(text: bytes | msgspec.Raw, decoded: Decoded) -> list[Event]:
    """The events of a list; its other elements are counted as unfit."""
    try:
        events = EVENTS.decode(text)
    except msgspec.ValidationError:
        raws = RAW_LIST.decode(text)
        events = [event for raw in raws if (event := _event(raw)) is not None]
        decoded.count(UNFIT, len(raws) - len(events))
        decoded.records += len(raws)
    else:
        decoded.records += len(events)
    return events


def _event(text: bytes | msgspec.Raw) -> Event | None:
    """The event, its text repaired where that helps, or ``None``."""
    try:
        return EVENT.decode(text)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError:
        pass
    try:
        return EVENT.decode(_repair(bytes(text)))
    except msgspec.DecodeError:
        return None


def _joined_event(text: bytes, begin: int, ends: list[int]) -> tuple[Event | None, int]:
    """The event from ``begin`` to the first of the ends that makes it whole, and how many ends that took.

    An end too many stands in lists of objects among the arguments. 0 ends: all of them are too soon.
    """
    for count, end in enumerate(ends, 1):
        part = text[begin:end].rstrip(b", \t\r\n")
        event = _event(part)
        if event is not None:
            return event, count
        try:
            RAW.decode(part)
        except msgspec.DecodeError as error:
            if TRUNCATED in str(error):
                continue
        return None, 1
    return None, 0


def _event_before_the_rest(text: bytes) -> tuple[Event | None, int]:
    """The event that the text begins with, whatever follows, and where it ends."""
    end = 0
    for _ in range(_MOST_ENDS):
        end = text.find(b"}", end) + 1
        if end == 0:
            break
        event = _event(text[:end])
        if event is not None:
            return event, end
    return None, 0


def _repair(data: bytes) -> bytes:
    """``data`` with control characters, broken UTF-8 and bare inf or nan replaced; nothing else is touched."""
    text = data.translate(_SPACES).decode("utf-8", "replace").encode()
    return _NOT_A_NUMBER.sub(rb'\1"nan"', text)


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
    return parse_trace(read_bytes(where), str(path))


def parse_trace(data: bytes, path: str = "trace") -> Trace:
    """The trace in these bytes, plain or gz; ``path`` is for messages.

    Raises:
        TraceError: they are no readable trace, with what was found.
    """
    # The events are many objects and none of them is a cycle: each pass of the collector over them is for nothing.
    path = shown(path)
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _parsed(unpack(data, path), path)
    finally:
        if collecting:
            gc.enable()


def _parsed(data: bytes, path: str) -> Trace:
    decoded, columns = _columns(data, path)
    start_ns, dur_ns = columns.column("start_ns"), columns.column("dur_ns")
    damage = {**decoded.damage, **columns.damage}
    if not len(start_ns):
        if decoded.records and decoded.records == damage.get(UNFIT):
            what = f"{path} is a list of {decoded.records:,} records that are no events"
            raise TraceError(what, ALLOWED, EXPORT)
        raise TraceError(f"{path} is a trace without any complete event", ALLOWED, "record at least one step")
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


def _columns(data: bytes, path: str) -> tuple[Decoded, EventColumns]:
    """What the fastest pass that the text allows leaves.

    Raises:
        TraceError: no pass finds events.
    """
    first: msgspec.DecodeError | None = None
    for take in passes(data, path):
        decoded, columns = Decoded(), EventColumns()
        try:
            for events in take(decoded):
                columns.add(events)
                del events  # before the next ones are decoded, which then take their place in the processor's cache
            if first is None or decoded.records:
                return decoded, columns
        except msgspec.DecodeError as error:
            first = first or error
        except RecursionError:
            raise TraceError(f"{path} is JSON nested too deeply for a trace", ALLOWED, EXPORT) from None
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
