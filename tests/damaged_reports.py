"""A report that holds every view, its parts damaged one at a time, and everything that can be drawn of what is left."""

from __future__ import annotations

import copy
import json
import math
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import structs

from ipyprof.analysis.results import (
    AllocatorCall,
    FailedRequest,
    Heartbeat,
    Holder,
    Memory,
    MemoryDetail,
    MemoryPeak,
    Refused,
    ScopeRow,
)
from ipyprof.errors import IpyprofError
from ipyprof.ranks.judge import judge
from ipyprof.report.comparison import compare_reports
from ipyprof.report.report import Device, Report
from ipyprof.show.compare_html import comparison_page
from ipyprof.show.compare_text import comparison_text
from ipyprof.show.html import render_page
from ipyprof.show.panel import build_panel
from ipyprof.show.pictures import Drawn
from ipyprof.show.text import render_text
from ipyprof.trace.live import DeviceState, Repeat, Repeats
from tests.sample_reports import sync
from tests.simulated_ranks import MS, Job, simulate

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 0.5, -1e300, 1e15, 1e18, 1e19, 1e300, math.nan, math.inf, 2**62, 2**63, 10**400, "", "a",
    "\ud800 \0", "-1", [], {}, [1, 2], ["a"], [["a", 1]], [None], [[]], {"a": 1}, {"": None}, {"phase": [1, 2]},
)  # fmt: skip


def everything() -> Report:
    """``sync`` with groups, memory facts, another device, ranks and repeats in it."""
    base = sync()
    row = ScopeRow(name="forward", calls=1.0, device_ms=0.5, total_device_ms=0.9, host_ms=2.0, total_host_ms=3.0)
    inner = structs.replace(row, name="net.fc", within=("net",), device_ms=0.41)
    times = (0.0, 5.0, 9.0)
    refused = Refused(
        device=0,
        at_ms=3.0,
        step=2,
        count=2,
        asked_bytes=4_000_000,
        allocated_bytes=70_000_000,
        operator="aten::empty",
        line=5,
    )
    memory = MemoryDetail(
        peak=MemoryPeak(step=2, range="forward", unused_bytes=1_000, largest_free_bytes=500),
        parts={"weights": (("fc1", 40_000_000), ("fc2", 22_900_000))},
        growing=(Holder(name="history", bytes=4_096, line=8),),
        advice=("history grows.",),
        devices=(Heartbeat(device=1, time_ms=times, allocated=(1_000, 4_000, 2_000), reserved=(4_096,) * 3),),
        calls=(
            AllocatorCall(at_ms=1.0, dur_ms=0.2, count=1, what="cudaMalloc", step=1, in_step_ms=1.0),
            AllocatorCall(at_ms=6.0, dur_ms=0.4, count=2, what="cudaFree", step=2, in_step_ms=0.5),
        ),
        call_count=3,
        call_ms=0.6,
        refused=(refused,),
        other_processes=1_000_000,
        incomplete=True,
    )
    joint = judge(simulate(Job(late={2: ("loader", 31 * MS)})))
    timeline = base.views.timeline
    assert base.memory is not None and timeline is not None
    short = tuple(structs.replace(lane, segments=lane.segments[:50]) for lane in timeline.lanes)
    heartbeat = Heartbeat(
        time_ms=times,
        allocated=(70_000_000, 72_400_000, 71_000_000),
        reserved=(73_400_000,) * 3,
        marks_ms=(0.0, 3.0, 6.0),
        calls_ms=(1.0,),
    )
    second = Device(name="NVIDIA H200", index=1, memory=Memory(peak_bytes=4_000, peak_at_ms=5))
    return structs.replace(
        base,
        devices=(*base.devices, second),
        ranks=structs.replace(joint.ranks, shown=0),
        repeats=Repeats(shown=1, recordings=(Repeat(step_ms=3.8, cause="host_sync"), Repeat(step_ms=None, cause="x"))),
        views=structs.replace(
            base.views,
            timeline=structs.replace(timeline, lanes=short),
            heartbeat=heartbeat,
            groups={
                "phase": (row, structs.replace(row, name="the rest")),
                "module class": (row, inner),
                "range": (row,),
            },
            memory=memory,
            device_state=DeviceState(sm_clock_mhz=1_980, slowed_by=()),
        ),
    )


def out_of_memory() -> Report:
    """``everything`` of a cell that ended with a request for more memory than there was."""
    base = everything()
    failed = FailedRequest(
        line=5,
        device=0,
        tried_bytes=2_147_000_000,
        capacity_bytes=8_590_000_000,
        free_bytes=537_000_000,
        allocated_bytes=7_000_000_000,
        reserved_bytes=8_000_000_000,
        unused_bytes=1_000_000_000,
        largest_free_bytes=4_000_000,
        text="out of memory",
        holders=(Holder(name="w", bytes=6_000_000_000, line=2), Holder(name="x", bytes=1_000)),
        advice=("Use less.",),
    )
    assert base.views.memory is not None
    memory = structs.replace(base.views.memory, out_of_memory=failed)
    return structs.replace(base, views=structs.replace(base.views, memory=memory))


def places(value: Any, path: tuple[Any, ...] = (), *, items: int = 2) -> Iterator[tuple[Any, ...]]:
    """The paths of every value in ``value``, of the first ``items`` of each list."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key), items=items)
    elif isinstance(value, (list, tuple)):
        for at, one in enumerate(value[:items]):
            yield from places(one, (*path, at), items=items)


def damaged(plain: dict[str, Any], path: tuple[Any, ...], chance: random.Random) -> dict[str, Any]:
    """A copy of ``plain`` with the value at ``path`` replaced, left out, doubled or under another name."""
    whole = copy.copy(plain)
    holder: Any = whole
    for key in path[:-1]:
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    key, action = path[-1], chance.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * chance.randrange(1, 4)
    elif action == 1:
        holder[chance.choice(("a", "", "-1", "10"))] = holder.pop(key)
    elif action == 2 and type(holder[key]) in (int, float):
        holder[key] = holder[key] * chance.choice((-1, 0, 1e-12, 1e6, 1e12))
    elif action == 2 and isinstance(holder[key], list):
        holder[key] = holder[key][: chance.randrange(max(len(holder[key]), 1))]
    else:
        holder[key] = chance.choice(ODD)
    return whole


def left_out(report: Report) -> str:
    """What ``trust`` says of views that were damaged in the file; empty where none was."""
    return next((check.text for check in report.trust if check.check == "saved report"), "")


def outcome(plain: Any, other: Report, seen: set[str]) -> str:
    """``report``, ``left out`` or ``refused``. Everything else that is raised, warnings too, is a fault.

    The text, the page, the JSON, the panel with all its tabs and both comparisons with ``other`` are made. Of reports
    that lack the same damaged views only the first is drawn.

    Args:
        seen: texts of ``left_out`` whose reports were made.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            report = Report.from_dict(plain)
        except IpyprofError:
            return "refused"
        damage = left_out(report)
        if damage in seen:
            return "left out"
        if damage:
            seen.add(damage)
        render_text(report)
        assert "<script" not in render_page(report)
        json.dumps(report.to_dict(), allow_nan=False)
        for found in (compare_reports(report, other), compare_reports(other, report)):
            comparison_text(found)
            comparison_page(found)
        warnings.simplefilter("ignore", DeprecationWarning)  # ipywidgets' own
        use_panel(report, other)
    return "left out" if damage else "report"


def use_panel(report: Report, other: Report) -> None:
    """Open every tab of the panel and move what can be moved."""
    panel = build_panel(report, earlier=lambda: [(1, other)])
    if panel is None:
        return
    controls, _ = panel.children[0].children
    slider, group, sort, *_ = controls.children
    for step in slider.options:
        slider.value = step
    for name in group.options:
        group.value = name
    sort.value = "host time"
    for at in range(1, len(panel.children)):
        panel.selected_index = at
        for part in _inside(panel.children[at]):
            if hasattr(part, "options"):
                part.index = len(part.options) - 1
            elif hasattr(part, "max"):
                middle = (part.min + part.max) / 2
                part.value = (middle, part.max) if isinstance(part.value, tuple) else middle


def _inside(part: Any) -> Iterator[Any]:
    for child in getattr(part, "children", ()):
        yield child
        yield from _inside(child)


class Sketch:
    """In place of a picture: it takes what is drawn, refuses places that are not finite, and paints nothing."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height

    def _take(self, *places: Any, **_look: Any) -> None:
        for place in places:
            if not isinstance(place, str):
                assert np.isfinite(np.asarray(place, np.float64)).all()

    line = polygon = rectangles = dot = text = word = _take

    def label(self, across: float, down: float, text: str, **_look: Any) -> tuple[float, float]:
        self._take(across, down)
        return across, across + self.text_width(text)

    def text_width(self, text: str, **_look: Any) -> float:
        return 6.0 * len(text)

    def png(self) -> bytes:
        self._take(self.width, self.height)
        return b"\x89PNG"

    def drawn(self, alt: str) -> Drawn:
        return Drawn(self.png(), alt)
