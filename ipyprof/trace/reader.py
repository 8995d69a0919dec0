"""A file of torch.profiler as a ``Trace``: typed decoding piece by piece, each into columns while it is near."""

from __future__ import annotations

import gc
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from ipyprof.errors import TraceError
from ipyprof.trace.columns import EventColumns
from ipyprof.trace.kinds import CATEGORY_KINDS
from ipyprof.trace.kineto import DEVICES, EVENT, EVENTS, NOTHING, RAW_LIST, TOP, Event, value_of
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import DeviceInfo, Trace

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
        # A device may have no end, and a pipe may wait for ever.
        odd = not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        data = b"" if odd else path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise TraceError(f"{name} cannot be opened ({reason})", ALLOWED, "check the path") from None
    if odd:
        raise TraceError(f"{name} is no regular file", ALLOWED, "give a file on a disk")
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


SMALL_BYTES = 1 << 16
"""Top-level values above this are no metadata."""
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
    text, columns = _Text(data), EventColumns()
    try:
        for events in text.lists():
            columns.add(events)
            del events  # before the next ones are decoded, which then take their place in the processor's cache
    except msgspec.DecodeError as error:
        raise _refusal(data, path, error) from None  # the decoder's own error says nothing to who gave the file
    except RecursionError:
        raise TraceError(f"{path} is JSON nested too deeply for a trace", ALLOWED, EXPORT) from None
    if foreign := _foreign(columns):
        raise TraceError(f"{path} is {foreign}", ALLOWED, EXPORT)
    found = columns.columns()
    damage = {**text.damage, **columns.damage}
    if ENDS_EARLY in damage:
        damage[ENDS_EARLY] = columns.records
    if not len(found["start_ns"]):
        if not columns.records and UNFIT in damage:
            what = f"{path} is a list of {damage[UNFIT]:,} records that are no events"
            raise TraceError(what, ALLOWED, EXPORT)
        raise TraceError(f"{path} is a trace without any complete event", ALLOWED, "record at least one step")
    top = text.top
    base = value_of(top.get("baseTimeNanoseconds", NOTHING))
    return Trace(
        **found,
        base_ns=base if isinstance(base, int) else 0,
        devices=_devices(top.get("deviceProperties", NOTHING), damage),
        metadata={
            key: value_of(raw)
            for key, raw in top.items()
            if key not in _APART and memoryview(raw).nbytes <= SMALL_BYTES
        },
        live=_live(top.get("ipyprof", NOTHING), damage),
        damage=damage,
        path=path,
    )


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


PIECE_BYTES = 1 << 20
REPAIRED = "text that is not valid JSON, repaired"
HOLES = "text with zero bytes, which a disk leaves where nothing was written"
BROKEN = "events whose text is no JSON"
UNFIT = "events with a value of the wrong type"
ENDS_EARLY = "partial: the file ends early, events read"
_MOST_STARTS = 8
_MOST_CUTS = 16
_MOST_INNER = 8
_TAIL_BYTES = 64
_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[A-Za-z ]{1,40}")')
_CUT_NUMBER = re.compile(rb"[:,\[]\s*-?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]*)?)?\Z")
_SPACES = bytes(byte if byte >= 0x20 else 0x20 for byte in range(256))
_SURROGATE = re.compile(rb"(\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}", re.IGNORECASE)
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])( *)(?:[-+]?(?:inf(?:inity)?|nan(?:\([a-z]*\))?))(?= *[,\]}])", re.IGNORECASE)


class _Text:
    """The text of a file, decoded in pieces that are cut at the ends of events.

    Attributes:
        top: the file's top-level keys but ``traceEvents``, undecoded.
        damage: what was skipped or repaired, by reason, with its count.

    Both grow while the lists are taken.
    """

    def __init__(self, data: bytes) -> None:
        self.top: dict[str, msgspec.Raw] = {}
        self.damage: dict[str, int] = {}
        self._data = data
        self._head = b"[" if first_byte(data) == b"[" else b'{"traceEvents":['

    def lists(self) -> Iterator[list[Event]]:
        """Lists of the events, in the file's order; those of a file that ends early up to its end.

        Raises:
            msgspec.DecodeError: the text is damaged beyond repair, or no trace.
        """
        begin = first = self._begin()
        if begin < 0:
            yield self._repairing(self._data)
            return
        between = self._between(begin)
        view = memoryview(self._data)
        while (found := between.search(self._data, begin + PIECE_BYTES)) is not None:
            try:
                events = self._repairing(b"".join((b"[", view[begin : found.start() + 1], b"]")))
            except msgspec.DecodeError:
                break  # no event ends there, or the text is damaged: the rest as a whole
            yield events
            del events
            begin = found.start(1)
        rest = b"".join((self._head, view[begin:]))
        try:
            yield self._repairing(rest)
        except msgspec.DecodeError as error:
            if _too_soon(self._data, error):
                events = self._up_to_the_cut(rest, between)
                self.damage[ENDS_EARLY] = 1
            else:
                events = self._one_by_one(rest, between)
            if not events and begin == first:
                raise
            yield events

    def _one_by_one(self, text: bytes, between: re.Pattern[bytes]) -> list[Event]:
        """The events of the rest of a file, each by itself: a name with a bare quote in it costs that event alone."""
        starts = [len(self._head), *(found.start(1) for found in between.finditer(text)), len(text)]
        close = b"]" if len(self._head) == 1 else b"]}"
        events: list[Event] = []
        at = 0
        while at < len(starts) - 1:
            for end in range(
                at + 1, min(at + _MOST_INNER, len(starts))
            ):  # what looks like an end may be inside an event
                whole = self._head + text[starts[at] : starts[end]].rstrip(b", \t\r\n")
                try:
                    events += self._repairing(whole if starts[end] == len(text) else whole + close)
                except msgspec.DecodeError:
                    continue
                at = end
                break
            else:
                self.damage[BROKEN] = self.damage.get(BROKEN, 0) + 1
                at += 1
        return events

    def _begin(self) -> int:
        """Where the list's elements begin, or -1 where that is not clear."""
        if self._head == b"[":
            return self._data.index(b"[") + 1
        for found in islice(_START.finditer(self._data), _MOST_STARTS):
            try:
                # Only at the top level does closing the head give an object.
                self.top = TOP.decode(self._data[: found.start()] + b'"traceEvents":0}')
            except msgspec.DecodeError:
                continue
            del self.top["traceEvents"]
            return found.end()
        return -1

    def _between(self, begin: int) -> re.Pattern[bytes]:
        """What stands between two events; its group begins the second. Events begin with the first one's key, or ph."""
        first = _FIRST_KEY.match(self._data, begin)
        key = b"|" + re.escape(first.group(1)) if first is not None else b""
        return re.compile(rb'\}\s*,\s*(\{)(?=\s*(?:"ph"' + key + rb")\s*:)")

    def _up_to_the_cut(self, text: bytes, between: re.Pattern[bytes]) -> list[Event]:
        """The events of a list that ends early, without the last one if that is not whole."""
        ends = [found.start() + 1 for found in between.finditer(text)][-_MOST_CUTS:]
        for end in (text.rfind(b"}") + 1, *reversed(ends)):
            try:
                return self._repairing(b"".join((b"[", memoryview(text)[len(self._head) : end], b"]")))
            except msgspec.DecodeError:
                continue
        return []

    def _repairing(self, text: bytes) -> list[Event]:
        """The events of a list, or of an object with ``traceEvents``, whose other keys are kept."""
        try:
            return self._events(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            repaired = _repair(text)
            if repaired == text:
                raise
        events = self._events(repaired)
        self.damage[HOLES if b"\0" in text else REPAIRED] = 1
        return events

    def _events(self, text: bytes) -> list[Event]:
        if first_byte(text) == b"[":
            return self._list(text)
        top = TOP.decode(text)
        if "traceEvents" not in top:
            raise msgspec.ValidationError("no traceEvents")
        events = self._list(top.pop("traceEvents"))
        self.top.update(top)
        return events

    def _list(self, text: bytes | msgspec.Raw) -> list[Event]:
        try:
            return EVENTS.decode(text)
        except msgspec.ValidationError:
            raws = RAW_LIST.decode(text)
        fit = [event for raw in raws if (event := _event(raw)) is not None]
        self.damage[UNFIT] = self.damage.get(UNFIT, 0) + len(raws) - len(fit)
        return fit


def _event(raw: msgspec.Raw) -> Event | None:
    try:
        return EVENT.decode(raw)
    except msgspec.ValidationError:
        return None


def _too_soon(data: bytes, error: msgspec.DecodeError) -> bool:
    """Whether the text ends before its JSON does: a number that was cut behind its point is an error of its own."""
    return TRUNCATED in str(error) or _CUT_NUMBER.search(data[-_TAIL_BYTES:]) is not None


def _repair(data: bytes) -> bytes:
    """``data`` with control characters, broken UTF-8, half characters and bare inf or nan replaced."""
    text = data.translate(_SPACES).decode("utf-8", "replace").encode()
    text = _SURROGATE.sub(lambda found: found[1] or rb"\ufffd", text)
    return _NOT_A_NUMBER.sub(rb'\1"nan"', text)


TRUNCATED = "truncated"
"""The word in msgspec's error for text that ends too soon."""
_SHOWN = 5
_NOT_TORCHS = "none of its events has a category of torch.profiler"

# Key at the top of a file that is no trace -> what the file is.
_KNOWN_OTHERS = (
    ("rocprofiler-sdk-tool", "rocprof's results"),
    ("nodes", "an execution trace or a profile of another tool, without traceEvents"),
    ("segments", "a memory snapshot"),
    ("cells", "a notebook"),
)


def _refusal(data: bytes, path: str, error: msgspec.DecodeError) -> TraceError:
    """Why the text is no trace, in one sentence; ``error`` is what decoding it raised."""
    try:
        keys = list(TOP.decode(data)) if first_byte(data) != b"[" else ["traceEvents"]
    except msgspec.ValidationError:
        return TraceError(f"{path} is JSON, but no object", ALLOWED, EXPORT)
    except msgspec.DecodeError:
        keys = ["traceEvents"]
    if "traceEvents" in keys:
        if isinstance(error, msgspec.ValidationError):
            return TraceError(f"{path} has a key 'traceEvents' that is no list", ALLOWED, EXPORT)
        if first_byte(data) not in (b"{", b"["):
            shown = data[:12].decode("ascii", "backslashreplace").strip()
            return TraceError(f"{path} is no JSON: it begins with {shown!r}", ALLOWED, EXPORT)
        cut = TRUNCATED in str(error)
        what = f"is cut off after {len(data):,} bytes" if cut else f"is broken JSON ({error})"
        return TraceError(f"{path} {what}", ALLOWED, "copy or export it again")
    for key, what in _KNOWN_OTHERS:
        if key in keys:
            return TraceError(f"{path} is {what} (key {key!r})", ALLOWED, EXPORT)
    return TraceError(f"{path} is JSON without the key 'traceEvents' (its keys: {_some(keys)})", ALLOWED, EXPORT)


def _foreign(columns: EventColumns) -> str:
    """What the file of another tool is, in words; empty where an event has a category of torch.profiler's."""
    categories = columns.categories.distinct()
    is_onnx = {"Session", "Node"} <= set(categories)  # which has torch's old "Kernel" too
    if not categories or (not is_onnx and not CATEGORY_KINDS.keys().isdisjoint(categories)):
        return ""
    if is_onnx:
        return f"a profile of ONNX Runtime: {_NOT_TORCHS}"
    if any(label.startswith(("/device:", "/host:")) for label in columns.processes.values()):
        return f"a profile of JAX or TensorFlow: {_NOT_TORCHS}"
    if "CPU functions" in columns.ids.texts():
        return f"a trace of the autograd profiler before torch 1.8: {_NOT_TORCHS}"
    if categories == ("",):
        return f"a trace of another tool: none of its events has a category (names: {_some(columns.names.distinct())})"
    return f"a trace of another tool: {_NOT_TORCHS} (theirs: {_some([one for one in categories if one])})"


def _some(words: Sequence[str]) -> str:
    return ", ".join(repr(word[:40]) for word in words[:_SHOWN]) or "none"
