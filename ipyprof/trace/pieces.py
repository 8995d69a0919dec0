"""JSON text as lists of typed events, a piece of the text at a time; damage costs the events that it hit, no more.

Decoding piece by piece keeps the events of one piece in the processor's cache until their columns are filled, and only
those in memory. A piece ends where an event seems to end: if that was wrong, the piece is no JSON, and the text is
decoded as a whole.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from ipyprof.trace.kineto import EVENT, EVENTS, RAW, RAW_LIST, TOP, Event
from ipyprof.trace.refusal import TRUNCATED
from ipyprof.trace.source import first_byte

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
