"""The report: typed plain data, JSON in and out. Every picture and text is drawn from it and from nothing else.

Times are in ms, sizes in bytes, shares 0..1; what was not measured is ``None``, and views say so in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ipyprof.analysis.results import (
    Account,
    Breakdown,
    Heartbeat,
    Kernel,
    Line,
    Memory,
    MemoryDetail,
    Ms,
    Number,
    Operator,
    Record,
    RecordedStep,
    RuntimeDetail,
    ScopeRow,
    Timeline,
    Utilization,
)
from ipyprof.diagnosis.cause import Finding, Verdict
from ipyprof.errors import IpyprofError
from ipyprof.trace.live import DeviceState, Repeats

SCHEMA = 2


class Source(Record, frozen=True):
    """Where the numbers came from. ``cell`` holds the cell's lines, line 1 (the magic line) first; empty for files."""

    kind: str  # "live" or "file"
    path: str | None = None
    name: str | None = None
    cell: tuple[str, ...] = ()
    options: str = ""
    created: str = ""  # ISO 8601, UTC
    partial: str = ""  # why the recording ended early, or empty


class Device(Record, frozen=True):
    """One GPU; ``busy_share`` is of the step."""

    name: str
    index: int
    busy_share: Number | None = None
    memory: Memory | None = None


class Throughput(Record, frozen=True):
    """Work per second; ``unit`` such as ``samples/s``."""

    value: Number
    unit: str


class StepTimes(Record, frozen=True):
    """How long a step takes. ``step_ms`` is the loop's own pace: all unprofiled steps, typical and unlike, divided by
    their number; ``typical_step_ms`` is their median. ``overhead`` = profiled / unprofiled typical step;
    ``per_step_ms`` are the unprofiled samples, empty from a file.
    """

    count: int
    how: str
    step_ms: Ms | None
    profiled_step_ms: Ms | None
    typical_step_ms: Ms | None = None
    overhead: Number | None = None
    per_step_ms: tuple[Ms, ...] = ()
    profiled_per_step_ms: tuple[Ms, ...] = ()
    throughput: Throughput | None = None
    baseline: str = "none"  # "before", "after", "after_first", "wait" or "none"
    cycle: int = 1
    alternatives: tuple[str, ...] = ()


class TrustCheck(Record, frozen=True):
    """What could make the numbers wrong; ``status`` is ok, warn or fail."""

    check: str
    status: str
    text: str


class Without(Record, frozen=True):
    """The step without the verdict's cause; ``label`` names what is gone, such as ``the reads``."""

    label: str
    step_ms: Ms | None
    breakdown: Breakdown


class Views(Record, frozen=True):
    """What the pictures need. ``groups``: ``phase``, ``range``, ``module class``, ``module`` → rows."""

    heartbeat: Heartbeat | None = None
    memory: MemoryDetail | None = None
    without: Without | None = None
    per_step: tuple[RecordedStep, ...] = ()
    timeline: Timeline | None = None
    groups: dict[str, tuple[ScopeRow, ...]] = {}  # noqa: RUF012 (msgspec copies it)
    device_state: DeviceState | None = None


class Straggler(Record, frozen=True):
    """The late rank, and what it has more of than the others, per step.

    Attributes:
        phase: loader, forward, backward or optimizer, or ``None``.
        late_ms: median over the steps of how much later than the median of the others it is ready.
        cause: ``loader``, ``compute``, ``copies``, ``runtime``, ``host``, ``slow_gpu`` (the same kernels take longer),
            or ``None``: the recording does not show it.
        recoverable_ms: what being as early as the next late rank would gain.
        steps_late: steps in which it is late.
        others: further ranks that are late, the latest first.
        own_ms, others_ms: what it takes for the cause, and the median of the others.
        more_kernels: kernels (operators without a GPU) that it runs more.
        clock: what the GPUs' clocks say where its own is lower, or empty.
    """

    rank: int
    phase: str | None
    late_ms: Ms
    cause: str | None = None
    recoverable_ms: Ms = 0.0
    steps_late: int = 0
    others: tuple[int, ...] = ()
    own_ms: Ms = 0.0
    others_ms: Ms = 0.0
    more_kernels: Number = 0.0
    clock: str = ""


class Rank(Record, frozen=True):
    """One rank. ``waiting_ms`` is what it waits in collectives per step; ``kept`` why its trace was kept."""

    rank: int
    host: str | None = None
    gpu: str | None = None
    bus_id: str | None = None
    clock_mhz: Number | None = None
    throttle: tuple[str, ...] = ()
    pcie: str | None = None
    step_ms: Ms | None = None
    late_ms: Ms | None = None
    steps_late: int | None = None
    last_share: Number | None = None
    waiting_ms: Ms | None = None
    breakdown: dict[str, Ms] | None = None
    path: str | None = None
    error: str | None = None
    kept: str | None = None


class CollectiveCost(Record, frozen=True):
    """One kind of collective, per step: transfer once all ranks are there, waiting for the last one, exposed time."""

    name: str
    group: str | None = None
    size: int | None = None
    message_bytes: Number | None = None
    calls: Number = 0.0
    latency_ms: Ms = 0.0
    waiting_ms: Ms | None = None
    exposed_ms: Ms = 0.0


class Entry(Record, frozen=True):
    """When each rank was ready for one collective, in the step with the largest delay."""

    name: str
    step: int
    arrivals_ms: tuple[tuple[int, Ms], ...]


class Ranks(Record, frozen=True):
    """Several ranks of one job. ``lanes``: rank → its collectives in the step with the largest delay."""

    count: int
    missing: tuple[int, ...] = ()
    straggler: Straggler | None = None
    per_rank: tuple[Rank, ...] = ()
    sentence: str = ""
    state: str = ""
    shown: int | None = None
    world_size: int | None = None
    cpu_only: tuple[int, ...] = ()
    duplicates: tuple[int, ...] = ()
    steps: int = 0
    step_ms: Ms | None = None
    collectives: tuple[CollectiveCost, ...] = ()
    entries: tuple[Entry, ...] = ()
    lanes: dict[str, tuple[tuple[Ms, Ms], ...]] = {}  # noqa: RUF012 (msgspec copies it)


class Report(Record, frozen=True):
    """One run, judged. ``repeats`` is ``None`` for a single recording, ``ranks`` for a single process."""

    source: Source
    environment: dict[str, str | None]
    device: Device | None
    devices: tuple[Device, ...]
    steps: StepTimes
    breakdown: Breakdown
    runtime_detail: RuntimeDetail
    communication_total_ms: Ms | None
    utilization: Utilization
    operators: tuple[Operator, ...]
    kernels: tuple[Kernel, ...]
    lines: tuple[Line, ...]
    memory: Memory | None
    findings: tuple[Finding, ...]
    verdict: Verdict
    trust: tuple[TrustCheck, ...]
    account: Account | None = None
    ranks: Ranks | None = None
    repeats: Repeats | None = None
    views: Views = Views()
    schema: int = SCHEMA

    @property
    def failed_request(self) -> Any | None:
        """The request for memory that the cell ended with (``FailedRequest``), or ``None``."""
        return None if self.views.memory is None else self.views.memory.out_of_memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``: ``schema`` first, then the keys of the class.

        Example:
            >>> report.to_dict()["steps"]["step_ms"]  # doctest: +SKIP
            257.0
        """
        plain = plain_values(self)
        return {"schema": plain.pop("schema"), **plain}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Report:
        """The report that ``to_dict`` made ``data`` from; also of schema 1. Unknown keys are ignored; a view that is
        damaged is left out, and ``trust`` says so.

        Raises:
            IpyprofError: not a report, another schema number, a missing key, a value of the wrong type, or a number
                that cannot have been measured.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema not in (1, SCHEMA) or isinstance(schema, bool):
            given = "JSON without a schema number" if schema is None else f"a report with schema {schema!r}"
            raise IpyprofError(
                given,
                f"this version reads reports with schema 1 to {SCHEMA}",
                "write the report again or update ipyprof",
            )
        plain = dict(data) | {"schema": SCHEMA}
        damaged = []
        views = plain.get("views")
        if isinstance(views, Mapping):
            plain["views"] = {name: value for name, value in views.items() if _fits(Views, name, value)}
            damaged = [name for name in views if name not in plain["views"]]
        if plain.get("ranks") is not None and not _converts(plain["ranks"], Ranks):
            plain["ranks"] = None
            damaged.append("ranks")
        try:
            report = msgspec.convert(plain, Report)
        except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
            raise IpyprofError(
                f"a report that does not fit: {error}", "every key has its type", "write it again with ipyprof"
            ) from None
        if not damaged:
            return report
        text = f"damaged in the file and left out: {', '.join(damaged)}"
        check = TrustCheck(check="saved report", status="warn", text=text)
        return msgspec.structs.replace(report, trust=(*report.trust, check))

    def __repr__(self) -> str:
        """Such as ``<Report before: data_loading, 42.8 of 57.0 ms>``."""
        return f"<Report {RENDERERS['brief'](self)}>" if RENDERERS else f"<Report {self.verdict.cause}>"

    def __str__(self) -> str:
        """What a terminal shows."""
        return RENDERERS["text/plain"](self).rstrip("\n") if RENDERERS else repr(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The text and the dashboard, for the notebook's display system."""
        return {name: render(self) for name, render in RENDERERS.items() if "/" in name}


RENDERERS: dict[str, Callable[[Report], str]] = {}
"""How a report shows itself: MIME type (or ``brief``) → renderer. ``ipyprof.show`` registers them; nothing here knows
them."""


def _fits(kind: type[msgspec.Struct], name: str, value: Any) -> bool:
    """Whether ``value`` is what the field ``name`` holds; a field that this version does not know is ignored."""
    return _converts({name: value}, kind)


def _converts(value: Any, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError):  # the second: a lone surrogate for a number
        return False
    return True


def plain_values(struct: Record) -> dict[str, Any]:
    """Plain values for ``json.dumps``, numbers that are not finite as ``None``."""
    plain: dict[str, Any] = _finite(msgspec.to_builtins(struct, str_keys=True))
    return plain


def _finite(value: Any) -> Any:
    """JSON has no word for a number that is not finite: it was not measured."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
