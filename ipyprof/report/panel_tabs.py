"""The panel's other tabs: memory under a cursor, the timeline magnified, another run beside this one, saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipyprof.formatting import percent_whole, size_text, time_text
from ipyprof.report.canvas import Drawn
from ipyprof.report.categories import ACCENT
from ipyprof.report.failed import memory_facts
from ipyprof.report.markup import SMALL, card, div, escape, figure, mono, note
from ipyprof.report.memory_facts import moments_at
from ipyprof.report.plots import CURVE, HEARTBEAT_SIZE, heartbeat
from ipyprof.report.report import MemoryView, Report
from ipyprof.report.timeline import WIDTH, timeline
from ipyprof.report.words import steps_text

UPPER, LOWER = 20.0, 18.0  # from the picture's top and bottom
HOLDERS_SHOWN = 6
_LONG = {"description_width": "90px"}


def memory_tab(report: Report) -> Any | None:
    """The heartbeat with a cursor and what is allocated there; ``None`` without a curve."""
    view = report.views.get("heartbeat")
    drawn = heartbeat(view, report.memory) if isinstance(view, Mapping) else None
    if drawn is None or not isinstance(view, Mapping):
        return None
    import ipywidgets

    others = [one for one in memory_facts(report).get("devices") or () if len(one["time_ms"]) > 1]
    if not others or report.device is None:
        return _memory_cursor(report, view, report.memory, drawn)
    shown = ipywidgets.VBox()
    curves = {report.device.index: view} | {int(other["device"]): other for other in others}
    memories = {device.index: device.memory for device in report.devices} | {report.device.index: report.memory}
    choice = ipywidgets.Dropdown(
        options=[(f"GPU {index}", index) for index in sorted(curves)],
        value=report.device.index,
        description="device",
        style=_LONG,
    )

    def choose(index: int) -> None:
        picture_of = heartbeat(curves[index], memories.get(index))
        assert picture_of is not None
        shown.children = (_memory_cursor(report, curves[index], memories.get(index), picture_of),)

    choice.observe(lambda change: choose(int(change["new"])), names="value")
    choose(report.device.index)
    return ipywidgets.VBox([choice, shown])


def _memory_cursor(report: Report, view: Mapping[str, Any], memory: MemoryView | None, drawn: Drawn) -> Any:
    """One heartbeat, a slider along it, and what is allocated there."""
    import ipywidgets

    first, last = float(view["time_ms"][0]), float(view["time_ms"][-1])
    width, height = HEARTBEAT_SIZE
    image = figure(drawn, width)
    slider = ipywidgets.FloatSlider(
        value=first,
        min=first,
        max=max(last, first + 1e-6),
        step=max((last - first) / 1_000, 1e-6),
        description="ms",
        readout_format=".2f",
        layout=ipywidgets.Layout(width="700px", max_width="100%"),
    )
    shown = ipywidgets.HTML()

    def show(at_ms: float) -> None:
        across = CURVE[0] + (at_ms - first) / max(last - first, 1e-9) * (CURVE[1] - CURVE[0])
        place = f"left:{across / width:.2%};top:{UPPER / height:.1%};bottom:{LOWER / height:.1%}"
        line = div("", f"position:absolute;width:0;border-left:2px solid {ACCENT};{place}")
        curve = div(image + line, f"position:relative;width:{width}px;max-width:100%")
        shown.value = card(curve + note(memory_at(report, at_ms, view, memory)))

    slider.observe(lambda change: show(float(change["new"])), names="value")
    show(first)
    return ipywidgets.VBox([slider, shown])


def memory_at(
    report: Report, at_ms: float, view: Mapping[str, Any] | None = None, memory: MemoryView | None = None
) -> str:
    """What is allocated at an instant of the recorded clock, and who holds it where that is known; HTML.

    Args:
        view, memory: of another device than the busiest, whose holders over time are not kept.
    """
    whole: Mapping[str, Any] = report.views["heartbeat"]
    busiest = view is None or view is whole
    if view is None or busiest:
        view, memory = whole, report.memory
    at = max(int(np.searchsorted(np.asarray(view["time_ms"], np.float64), at_ms, "right")) - 1, 0)
    process = not view.get("allocated")
    used = float(view["process" if process else "allocated"][at])
    marks = [float(mark) for mark in whole.get("marks_ms") or ()]
    step = sum(mark <= at_ms for mark in marks)
    where = f"step {step}, " if step else ""
    text = f"{where}{time_text(at_ms)}: <b>{size_text(used)}</b> {'in this process' if process else 'allocated'}"
    if memory is not None and memory.peak_bytes:
        text += f", {percent_whole(used / memory.peak_bytes)} of the peak"
    reserved = view.get("reserved") or ()
    if len(reserved) > at:
        text += f"; reserved {size_text(reserved[at])}"
    return f"{text}.{_holders_at(report, at_ms) if busiest else ''}"


def _holders_at(report: Report, at_ms: float) -> str:
    """Who holds the most at an instant, where ``views["memory"]["moments"]`` knows; HTML."""
    moments = memory_facts(report).get("moments")
    if not moments or not moments["time_ms"]:
        return ""
    held = sorted(moments_at(moments, at_ms).items(), key=lambda one: -one[1])
    named = [f"{mono(str(name)[:60])} {size_text(size)}" for name, size in held[:HOLDERS_SHOWN] if size > 0]
    return f" Held by {' · '.join(named)}." if named else ""


def timeline_tab(report: Report) -> Any | None:
    """The recorded step's lanes, and a slider for the part that is shown; ``None`` without lanes."""
    view = report.views.get("timeline")
    drawn = timeline(view) if isinstance(view, Mapping) else None
    if drawn is None or not isinstance(view, Mapping):
        return None
    import ipywidgets

    first, last = float(view["start_ms"]), float(view["end_ms"])
    slider = ipywidgets.FloatRangeSlider(
        value=(first, last),
        min=first,
        max=last,
        step=max((last - first) / 1_000, 1e-6),
        description="ms",
        readout_format=".3f",
        continuous_update=False,
        layout=ipywidgets.Layout(width="700px", max_width="100%"),
    )
    shown = ipywidgets.HTML()

    def show(begin: float, end: float) -> None:
        part = timeline(zoomed(view, begin, end))
        shown.value = card(figure(part, WIDTH) if part is not None else note("Nothing is there."))

    slider.observe(lambda change: show(*change["new"]), names="value")
    show(first, last)
    return ipywidgets.VBox([slider, shown])


def zoomed(view: Mapping[str, Any], begin_ms: float, end_ms: float) -> dict[str, Any]:
    """The part of ``views["timeline"]`` between two instants; segments are cut at both."""
    lanes = [
        {
            **lane,
            "segments": [
                [max(start, begin_ms), min(end, end_ms), *rest]
                for start, end, *rest in lane["segments"]
                if end > begin_ms and start < end_ms
            ],
        }
        for lane in view["lanes"]
    ]
    bubble = view.get("bubble")
    if bubble is not None:
        start, end = max(bubble["start_ms"], begin_ms), min(bubble["end_ms"], end_ms)
        bubble = {**bubble, "start_ms": start, "end_ms": end} if end > start else None
    return {**view, "start_ms": begin_ms, "end_ms": end_ms, "lanes": lanes, "bubble": bubble}


def compare_tab(report: Report, earlier: Callable[[], Sequence[tuple[int, Report]]]) -> Any:
    """Choose another run of this session; this one is the later of the two."""
    import ipywidgets

    from ipyprof.report.compare import compare_reports
    from ipyprof.report.compare_html import render_comparison

    choice = ipywidgets.Dropdown(options=[("choose a run", None)], description="compare with", style=_LONG)
    again = ipywidgets.Button(description="Look for runs", tooltip="Runs that were made since this panel was shown")
    shown = ipywidgets.HTML()
    known: dict[int, Report] = {}

    def look(_button: Any = None) -> None:
        known.clear()
        known.update((number, one) for number, one in earlier() if one is not report)
        labels = [(f"{number}: {one.source.name or steps_text(one)}", number) for number, one in known.items()]
        choice.options = [("choose a run" if labels else "no other run is kept", None), *labels]

    def chosen(change: Mapping[str, Any]) -> None:
        other = known.get(change["new"]) if change["new"] is not None else None
        shown.value = "" if other is None else render_comparison(compare_reports(other, report))

    again.on_click(look)
    choice.observe(chosen, names="value")
    look()
    return ipywidgets.VBox([ipywidgets.HBox([choice, again]), shown])


def save_tab(saves: Mapping[str, tuple[str, Callable[[Path], None]]], stem: str, perfetto: Any | None) -> Any:
    """Buttons that write files into the working directory, never over one that is there.

    Args:
        saves: button → (ending of the file's name, what writes it).
        stem: of the files' names, to begin with.
        perfetto: the widget that hands the trace to Perfetto, or ``None`` where no trace is kept.
    """
    import ipywidgets

    name = ipywidgets.Text(value=stem, description="file name", style=_LONG)
    told = ipywidgets.HTML()

    def button(label: str, ending: str, write: Callable[[Path], None]) -> Any:
        made = ipywidgets.Button(description=label)

        def clicked(_button: Any) -> None:
            target = free_name(name.value.strip() or stem, ending)
            try:
                write(target)
            except Exception as failure:
                told.value = div(escape(f"Not saved: {failure}"), SMALL)
            else:
                told.value = div(f"Saved {mono(str(target))}", SMALL)

        made.on_click(clicked)
        return made

    buttons = [button(label, ending, write) for label, (ending, write) in saves.items()]
    rows = [ipywidgets.HBox([name, *buttons], layout=ipywidgets.Layout(flex_flow="row wrap")), told]
    return ipywidgets.VBox([*rows, *([perfetto] if perfetto is not None else [])])


def free_name(stem: str, ending: str) -> Path:
    """``stem`` with its ending, and a number where such a file is there."""
    target, number = Path(f"{stem}{ending}"), 2
    while target.exists():
        target, number = Path(f"{stem}-{number}{ending}"), number + 1
    return target
