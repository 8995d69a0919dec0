"""The report: frozen plain data, JSON in and out. Every picture and text is drawn from it and from nothing else.

Times are in ms, sizes in bytes, shares 0..1; what was not measured is ``None``, and views say so in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import msgspec

from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.errors import IpyprofError
from ipyprof.trace.live import Repeats

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the numbers came from. ``cell`` holds the cell's lines, line 1 (the magic line) first; empty for files."""

    kind: str  # "live" or "file"
    path: str | None = None
    name: str | None = None
    cell: tuple[str, ...] = ()
    options: str = ""
    created: str = ""  # ISO 8601, UTC
    partial: str = ""  # why the recording ended early, or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    index: int
    busy_share: float | None = None
    memory: MemoryView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    value: float
    unit: str  # such as "samples/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """``overhead`` = profiled / unprofiled step; ``per_step_ms`` are the unprofiled samples, empty from a file."""

    count: int
    how: str
    step_ms: float | None
    profiled_step_ms: float | None
    overhead: float | None = None
    per_step_ms: tuple[float, ...] = ()
    profiled_per_step_ms: tuple[float, ...] = ()
    throughput: Throughput | None = None
    baseline: str = "none"  # "after", "after_first", "wait" or "none"
    cycle: int = 1
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Disjoint parts of one unprofiled step in ms; the parts that are not ``None`` add up to ``step_ms`` exactly."""

    kernel: float | None
    memcpy: float | None
    memset: float | None
    communication: float | None
    data_loading: float | None
    runtime: float | None
    cpu: float | None
    other: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDetail:
    """``runtime`` apart: launches, synchronisation, allocation, the rest."""

    launch: float | None
    sync: float | None
    allocator: float | None
    other: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    nvml: float | None = None
    kernel_busy: float | None = None
    sm_coverage: float | None = None
    mfu: float | None = None
    tensor_core: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row per operator name, per step. ``share`` is of device time, ``amdahl_share`` of the step."""

    name: str
    calls: float
    self_device_ms: float | None
    total_device_ms: float | None
    self_host_ms: float
    total_host_ms: float
    share: float | None
    shapes: str = ""
    bound: str = "unknown"  # compute, memory, launch, copy or unknown
    tensor_core: str = "unknown"  # yes, no, unknown or n/a
    amdahl_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    name: str
    calls: float
    device_ms: float
    tensor_core: str = "unknown"
    bound: str = "unknown"
    est_occupancy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the cell, per step. ``None`` = not measured."""

    line: int
    source: str
    device_ms: float | None
    host_ms: float | None
    sync_count: float | None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    name: str
    bytes: int
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """Allocated memory of one device; ``peak_at_ms`` counts from the first recorded mark."""

    peak_bytes: int
    peak_at_ms: float | None
    peak_operator: str | None = None
    peak_line: int | None = None
    reserved_peak_bytes: int | None = None
    growth_bytes_per_step: int | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustCheck:
    check: str
    status: str  # ok, warn or fail
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run, judged. Build it with ``Report.from_profile`` or ``Report.from_dict``.

    ``views`` holds what the pictures need, as plain JSON (see ``docs`` of each key):

    * ``heartbeat``: ``{"time_ms": [...], "allocated": [...], "reserved": [...], "marks_ms": [...], "calls_ms": [...]}``
      on the recorded clock (0 = first recorded mark); sizes in bytes; at most 2,000 points; ``process`` instead of
      ``allocated`` on the CPU; ``calls_ms`` are where the allocator went to the driver.
    * ``memory``: who holds it over time, what grows, what to do, a request that failed; see
      ``ipyprof.report.build.memory_views``.
    * ``without``: ``{"label": str, "step_ms": float, "breakdown": {...}}``, the step without the verdict's cause; or
      absent. ``label`` names what is gone, such as ``the reads`` or ``waiting for the loader``.
    * ``per_step``: one per recorded step, on the recorded clock:
      ``{"step": 1, "step_ms": float, "breakdown": {...}, "operators": [rows as Operator]}``.
    * ``timeline``: ``{"start_ms", "end_ms", "lanes": [...], "bubble": {"lane", "start_ms", "end_ms", "text"} | null}``
      with lanes ``{"name": str, "kind": "host" | "device", "segments": [[start_ms, end_ms, category, label], ...]}``:
      one recorded step, recorded clock, categories as the breakdown's keys.
    * ``groups``: rows by phase, ``record_function`` range, module class and module; see
      ``ipyprof.report.build.groups``.
    * ``device_state``: the fields of ``DeviceState`` and ``text``, one line of them; only of a live run on a GPU.

    ``repeats`` is ``None`` for a single recording.
    ``ranks`` is ``None`` for a single process, else as ``ipyprof.ranks.report.ranks_value`` makes it.
    """

    source: Source
    environment: Mapping[str, str | None]
    device: Device | None
    devices: tuple[Device, ...]
    steps: Steps
    breakdown: Breakdown
    runtime_detail: RuntimeDetail
    communication_total_ms: float | None
    utilization: Utilization
    operators: tuple[Operator, ...]
    kernels: tuple[Kernel, ...]
    lines: tuple[Line, ...]
    memory: MemoryView | None
    findings: tuple[Finding, ...]
    verdict: Verdict
    trust: tuple[TrustCheck, ...]
    ranks: Mapping[str, Any] | None = None
    repeats: Repeats | None = None
    views: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``, with the keys of the class, ``schema`` first and ``views`` last.

        Example:
            >>> report.to_dict()["steps"]["step_ms"]  # doctest: +SKIP
            257.0
        """

        plain: dict[str, Any] = encode(self)
        return {"schema": plain.pop("schema"), **plain}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        """The report that ``to_dict`` made ``data`` from. Unknown keys are ignored; a view that is damaged is left out,
        and ``trust`` says so.

        Raises:
            IpyprofError: not a report, another schema number, a missing key, a value of the wrong type, or a number
                that cannot have been measured.
        """
        from ipyprof.report.saved_views import RANKS, fitting, sound, sound_views

        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA or isinstance(schema, bool):
            given = "JSON without a schema number" if schema is None else f"a report with schema {schema!r}"
            raise IpyprofError(
                given, f"this version reads reports with schema {SCHEMA}", "write the report again or update ipyprof"
            )
        plain = {part.name: data[part.name] for part in fields(Report) if part.name in data}
        damaged: list[str] = []
        if isinstance(plain.get("views"), Mapping):
            plain["views"], damaged = sound_views(plain["views"])
        if plain.get(RANKS) is not None and not fitting(RANKS, plain[RANKS]):
            plain[RANKS] = None
            damaged.append(RANKS)
        if not sound({name: value for name, value in plain.items() if name not in ("views", RANKS)}):
            raise IpyprofError(
                "a report with a number that is too large or not finite, or nested too deep",
                "a report holds measured times, sizes and shares",
                "write it again with ipyprof",
            )
        report = decode(Report, plain, "a report")
        if not damaged:
            return report
        text = f"damaged in the file and left out: {', '.join(damaged)}"
        return replace(report, trust=(*report.trust, TrustCheck(check="saved report", status="warn", text=text)))

    def __repr__(self) -> str:
        """Such as ``<Report before: data_loading, 42.8 of 57.0 ms>``."""
        from ipyprof.show.words import brief

        return f"<Report {brief(self)}>"

    def __str__(self) -> str:
        """What a terminal shows."""
        from ipyprof.show.text import render_text

        return render_text(self).rstrip("\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The text and the dashboard, for the notebook's display system."""
        from ipyprof.show.html import bundle

        return bundle(self)


T = TypeVar("T")


def encode(value: Any) -> Any:
    """Plain dicts, lists, numbers, text and ``None``: what ``json.dumps`` takes.

    Tuples become lists; numpy numbers and arrays become Python's; a number that is not finite was not measured, so it
    becomes ``None`` (JSON has no word for it).
    """
    return _finite(msgspec.to_builtins(value, enc_hook=_plain, str_keys=True))


def decode(kind: type[T], data: Any, what: str) -> T:
    """A ``kind`` from plain values as ``encode`` makes them. Keys that ``kind`` does not know are ignored, so that a
    report of a later version with the same schema number can be read.

    Args:
        what: name of what is read, for the error, such as ``"a report"``.

    Raises:
        IpyprofError: a key is missing or a value has the wrong type.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: a lone surrogate in a number's place
        raise IpyprofError(
            f"{what} that does not fit: {error}", "every key of the schema has its type", "write it again with ipyprof"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # numpy arrays and numbers, without importing numpy here
        return value.tolist()
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a report holds no {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def memory_facts(report: Report) -> Mapping[str, Any]:
    """``views["memory"]``, empty where there is none."""
    facts = report.views.get("memory")
    return facts if isinstance(facts, Mapping) else {}


def failed_request(report: Report) -> Mapping[str, Any] | None:
    """The request for memory that the cell ended with, or ``None``."""
    failed = memory_facts(report).get("out_of_memory")
    return failed if isinstance(failed, Mapping) else None


def failed_while_recorded(report: Report) -> bool:
    """Whether that request ended the recording itself, so that the heartbeat leads up to it."""
    failed = failed_request(report)
    return failed is not None and not failed.get("later")
