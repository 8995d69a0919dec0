"""The panel's other tabs: memory under a cursor, the timeline magnified, another run beside this one, saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipyprof.formatting import percent_whole, size_text, time_text
from ipyprof.report.categories import ACCENT
from ipyprof.report.markup import SMALL, card, div, escape, mono, note, picture
from ipyprof.report.plots import HEARTBEAT_SIZE, heartbeat
from ipyprof.report.report import Report
from ipyprof.report.timeline import WIDTH, timeline
from ipyprof.report.words import steps_text

# Where the curve begins and ends in the heartbeat's picture, in its pixels.
CURVE = (48.0, HEARTBEAT_SIZE[0] - 8.0)
HOLDERS_SHOWN = 6
_LONG = {"description_width": "90px"}


def memory_tab(report: Report) -> Any | None:
    """The heartbeat with a cursor and what is allocated there; ``None`` without a curve."""
    view = report.views.get("heartbeat")
    drawn = heartbeat(view, report.memory) if isinstance(view, Mapping) else None
    if drawn is None or not isinstance(view, Mapping):
        return None
    import ipywidgets

    first, last = float(view["time_ms"][0]), float(view["time_ms"][-1])
    image = picture(*drawn, HEARTBEAT_SIZE[0])
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
        look = f"position:absolute;top:0;bottom:18px;width:0;left:{across:.1f}px;border-left:2px solid {ACCENT}"
        curve = div(image + div("", look), f"position:relative;width:{HEARTBEAT_SIZE[0]}px")
        shown.value = card(curve + note(memory_at(report, at_ms)))

    slider.observe(lambda change: show(float(change["new"])), names="value")
    show(first)
    return ipywidgets.VBox([slider, shown])


def memory_at(report: Report, at_ms: float) -> str:
    """What is allocated at an instant of the recorded clock, and who holds it where that is known; HTML."""
    view = report.views["heartbeat"]
    at = max(int(np.searchsorted(np.asarray(view["time_ms"], np.float64), at_ms, "right")) - 1, 0)
    process = not view.get("allocated")
    used = float((view.get("process") if process else view["allocated"])[at])
    marks = [float(mark) for mark in view.get("marks_ms") or ()]
    step = sum(mark <= at_ms for mark in marks)
    where = f"step {step}, " if step else ""
    text = f"{where}{time_text(at_ms)}: <b>{size_text(used)}</b> {'in this process' if process else 'allocated'}"
    if report.memory is not None and report.memory.peak_bytes:
        text += f", {percent_whole(used / report.memory.peak_bytes)} of the peak"
    reserved = view.get("reserved") or ()
    if len(reserved) > at:
        text += f"; reserved {size_text(reserved[at])}"
    return f"{text}.{_holders_at(report, at_ms)}"


def _holders_at(report: Report, at_ms: float) -> str:
    """Who holds the most at an instant, where ``views["memory"]["moments"]`` knows; HTML."""
    memory = report.views.get("memory")
    moments = memory.get("moments") if isinstance(memory, Mapping) else None
    if not moments or not moments["time_ms"]:
        return ""
    at = max(int(np.searchsorted(np.asarray(moments["time_ms"], np.float64), at_ms, "right")) - 1, 0)
    held = sorted(zip(moments["bytes"][at], moments["names"], strict=True), key=lambda one: -one[0])
    named = [f"{mono(str(name)[:60])} {size_text(size)}" for size, name in held[:HOLDERS_SHOWN] if size > 0]
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
        shown.value = card(picture(*part, WIDTH) if part is not None else note("Nothing is there."))

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
