"""The views and ranks of a saved report, checked once when it is read: whoever draws them may rely on their types.

A saved report comes from anywhere. The types below say what each view holds as ``Report`` describes it; what one value
says of another (curves of one length, an index that is there) is checked beside them. A view that does not fit is left
out whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypedDict

import msgspec

from ipyprof.ranks.summary import PARTS
from ipyprof.report.report import Holder, Operator
from ipyprof.trace.live import DeviceState

RANKS = "ranks"
LARGEST = 1e19  # of any number: more than any 64-bit count, and far from where floats overflow
DEEPEST = 30  # lists and objects within each other; a report has less than ten


class Curve(TypedDict, total=False):
    """A heartbeat; on the CPU ``process`` stands in for ``allocated``."""

    time_ms: list[float]
    allocated: list[int]
    reserved: list[int]
    process: list[int]
    marks_ms: list[float]
    calls_ms: list[float]


class DeviceCurve(TypedDict):
    device: int
    time_ms: list[float]
    allocated: list[int]
    reserved: list[int]


class Without(TypedDict):
    label: str
    step_ms: float | None
    breakdown: dict[str, float | None]


class Step(TypedDict):
    step: int
    step_ms: float
    breakdown: dict[str, float | None]
    operators: list[Operator]


class Lane(TypedDict):
    name: str
    kind: str
    segments: list[tuple[float, float, str, str]]


class Bubble(TypedDict):
    lane: str
    start_ms: float
    end_ms: float
    text: str


class Timeline(TypedDict):
    start_ms: float
    end_ms: float
    lanes: list[Lane]
    bubble: Bubble | None


class GroupRow(TypedDict):
    name: str
    within: list[str]
    calls: float | None
    device_ms: float | None
    total_device_ms: float | None
    host_ms: float | None
    total_host_ms: float | None


class Peak(TypedDict):
    step: int
    range: str | None
    unused_bytes: int | None
    largest_free_bytes: int | None


class Moments(TypedDict):
    time_ms: list[float]
    names: list[str]
    first: list[int]
    changes: list[list[int]]


class Refused(TypedDict):
    device: int
    at_ms: float
    step: int
    count: int
    asked_bytes: int
    allocated_bytes: int
    operator: str | None
    line: int | None


class OutOfMemory(TypedDict, total=False):
    line: int | None
    device: int | None
    tried_bytes: int | None
    capacity_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    unused_bytes: int | None
    largest_free_bytes: int | None
    later: bool
    text: str
    holders: list[Holder]
    advice: list[str]


class Memory(TypedDict, total=False):
    peak: Peak
    parts: dict[str, list[tuple[str, int]]]
    growing: list[Holder]
    advice: list[str]
    moments: Moments
    devices: list[DeviceCurve]
    calls: list[tuple[float, float, int, str, int, float]]
    call_count: int
    call_ms: float
    refused: list[Refused]
    out_of_memory: OutOfMemory
    other_processes: int
    incomplete: bool


class DeviceStateView(DeviceState, frozen=True, kw_only=True):
    text: str


class Straggler(TypedDict):
    rank: int
    phase: str | None
    late_ms: float
    cause: str | None


class Rank(TypedDict):
    rank: int
    late_ms: float | None
    breakdown: dict[str, float] | None
    kept: str | None


class Collective(TypedDict):
    name: str
    size: int | None
    message_bytes: int | None
    algorithm: str | None
    calls: float
    latency_ms: float
    waiting_ms: float | None
    exposed_ms: float
    bus_bytes_per_s: float | None


class Entry(TypedDict):
    name: str
    step: int
    arrivals_ms: list[tuple[int, float]]


class Ranks(TypedDict):
    count: int
    straggler: Straggler | None
    per_rank: list[Rank]
    sentence: str
    shown: int | None
    world_size: int | None
    steps: int
    step_ms: float | None
    collectives: list[Collective]
    entries: list[Entry]
    lanes: dict[str, list[tuple[float, float]]]


def sound(value: Any) -> bool:
    """Whether every number in these plain values is finite and none too large, and nothing nests too deep."""
    level = [value]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, (list, tuple)):
                inner += one
            elif isinstance(one, (int, float)) and not -LARGEST <= one <= LARGEST:  # neither is NaN
                return False
        if not inner:
            return True
        level = inner
    return False


def fitting(name: str, value: Any) -> bool:
    """Whether ``value`` is what the view ``name``, or ``ranks``, holds."""
    kind, fits = _KINDS[name]
    if not sound(value):
        return False
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: a lone surrogate in a number's place
        return False
    return fits(value)


def sound_views(views: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The views that fit, and the names of those that do not. Names that this version does not know are in neither."""
    known = {name: value for name, value in views.items() if name in VIEW_NAMES}
    kept = {name: value for name, value in known.items() if fitting(name, value)}
    return kept, [name for name in known if name not in kept]


def _anything(_value: Any) -> bool:
    return True


def _rising(times: Sequence[float]) -> bool:
    return all(one <= other for one, other in pairwise(times))


def _curve_fits(view: Mapping[str, Any]) -> bool:
    """Times rise; the curves are as long as they are, or not there."""
    count = len(view.get("time_ms", ()))
    lengths = {len(view.get(name, ())) for name in ("allocated", "reserved", "process")}
    return _rising(view.get("time_ms", ())) and lengths <= {0, count}


def _device_curve_fits(view: Mapping[str, Any]) -> bool:
    return bool(view["allocated"]) and _curve_fits(view)


def _moments_fit(moments: Mapping[str, Any]) -> bool:
    count = len(moments["names"])
    return (
        len(moments["first"]) == count
        and len(moments["changes"]) == max(len(moments["time_ms"]) - 1, 0)
        and all(len(change) % 2 == 0 for change in moments["changes"])
        and all(0 <= at < count for change in moments["changes"] for at in change[::2])
    )


def _memory_fits(view: Mapping[str, Any]) -> bool:
    curves = all(_device_curve_fits(one) for one in view.get("devices", ()))
    return curves and ("moments" not in view or _moments_fit(view["moments"]))


def _steps_fit(steps: Sequence[Mapping[str, Any]]) -> bool:
    """No two steps have one number."""
    return len({step["step"] for step in steps}) == len(steps)


def _ranks_fit(ranks: Mapping[str, Any]) -> bool:
    """Each breakdown has every part; someone arrives at each entry; lanes are by a rank's number."""
    return (
        all(one["breakdown"].keys() >= set(PARTS) for one in ranks["per_rank"] if one["breakdown"])
        and all(entry["arrivals_ms"] for entry in ranks["entries"])
        and all(rank.isdecimal() and rank.isascii() for rank in ranks["lanes"])
    )


_KINDS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "heartbeat": (Curve, _curve_fits),
    "memory": (Memory, _memory_fits),
    "without": (Without, _anything),
    "per_step": (list[Step], _steps_fit),
    "timeline": (Timeline, _anything),
    "groups": (dict[str, list[GroupRow]], _anything),
    "device_state": (DeviceStateView, _anything),
    RANKS: (Ranks, _ranks_fit),
}
VIEW_NAMES = frozenset(_KINDS) - {RANKS}
