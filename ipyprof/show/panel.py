"""The panel of a live kernel, of core ipywidgets only. Losing it never loses the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ipyprof.analysis.results import Heartbeat, Memory
from ipyprof.formatting import percent_whole, size_text, time_text
from ipyprof.report.comparison import compare_reports
from ipyprof.report.report import Report
from ipyprof.show.comparison import render_comparison
from ipyprof.show.markup import attribute, card, escape, figure_html, table_html
from ipyprof.show.memory import detail_of
from ipyprof.show.perfetto import perfetto_button
from ipyprof.show.pictures import CURVE, DONUT_SIZE, HEARTBEAT_SIZE, WIDTH, Drawn, donut, heartbeat, timeline
from ipyprof.show.tables import Work, work_of, work_table
from ipyprof.show.words import ACCENT, culprit_of, step_parts, steps_text
from ipyprof.trace.writer import KeptTrace

UPPER, LOWER = 20.0, 18.0  # from the picture's top and bottom
_LONG = {"description_width": "90px"}


def memory_tab(report: Report) -> Any | None:
    """The heartbeat with a cursor and what is allocated there; ``None`` without a curve."""
    view = report.views.heartbeat
    if view is None or heartbeat(view, report.memory) is None:
        return None
    import ipywidgets

    curves = {view.device if report.device is None else report.device.index: view}
    curves |= {one.device: one for one in detail_of(report).devices if len(one.time_ms) > 1}
    memories = {device.index: device.memory for device in report.devices} | {next(iter(curves)): report.memory}
    shown = ipywidgets.VBox()

    def choose(index: int) -> None:
        drawn = heartbeat(curves[index], memories.get(index))
        if drawn is not None:
            shown.children = (_memory_cursor(curves[index], memories.get(index), view.marks_ms, drawn),)

    choose(next(iter(curves)))
    if len(curves) == 1:
        return shown
    choice = ipywidgets.Dropdown(
        options=[(f"GPU {index}", index) for index in sorted(curves)],
        value=next(iter(curves)),
        description="device",
        style=_LONG,
    )
    choice.observe(lambda change: choose(int(change["new"])), names="value")
    return ipywidgets.VBox([choice, shown])


def _memory_cursor(view: Heartbeat, memory: Memory | None, marks_ms: Sequence[float], drawn: Drawn) -> Any:
    """One heartbeat, a slider along it, and what is allocated there."""
    import ipywidgets

    first, last = view.time_ms[0], view.time_ms[-1]
    width, height = HEARTBEAT_SIZE
    image = figure_html(drawn, width)
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
        line = f'<div style="position:absolute;width:0;border-left:2px solid {ACCENT};{place}"></div>'
        curve = f'<div style="position:relative;width:{width}px;max-width:100%">{image}{line}</div>'
        shown.value = card(f"{curve}<div>{escape(memory_at(view, memory, marks_ms, at_ms))}</div>")

    slider.observe(lambda change: show(float(change["new"])), names="value")
    show(first)
    return ipywidgets.VBox([slider, shown])


def memory_at(view: Heartbeat, memory: Memory | None, marks_ms: Sequence[float], at_ms: float) -> str:
    """What is allocated at an instant of the recorded clock: ``step 2, 12.0 ms: 63 MB allocated, 87 % of the peak.``"""
    at = max(int(np.searchsorted(np.asarray(view.time_ms, np.float64), at_ms, "right")) - 1, 0)
    used = (view.allocated or view.process)[at]
    step = sum(mark <= at_ms for mark in marks_ms)
    where = f"step {step}, " if step else ""
    text = f"{where}{time_text(at_ms)}: {size_text(used)} {'allocated' if view.allocated else 'in this process'}"
    if memory is not None and memory.peak_bytes:
        text += f", {percent_whole(used / memory.peak_bytes)} of the peak"
    return text + (f"; reserved {size_text(view.reserved[at])}." if view.reserved else ".")


def timeline_tab(report: Report) -> Any | None:
    """The recorded step's lanes; ``None`` without lanes."""
    drawn = timeline(report.views.timeline)
    if drawn is None:
        return None
    import ipywidgets

    return ipywidgets.HTML(card(figure_html(drawn, WIDTH)))


def compare_tab(report: Report, earlier: Callable[[], Sequence[tuple[int, Report]]]) -> Any:
    """Choose another run of this session; this one is the later of the two."""
    import ipywidgets

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
                told.value = escape(f"Not saved: {failure}")
            else:
                told.value = escape(f"Saved {target}")

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


MEAN = "mean"
SORTS = ("device time", "host time", "calls", "name")
OPERATOR, SHAPE, KERNELS, LINES = "operator", "operator and shapes", "kernel", "line of the cell"


def group_names(report: Report) -> tuple[str, ...]:
    """What the rows can be grouped by: only what this report holds."""
    names = [OPERATOR]
    if any(one.shapes for one in report.operators):
        names.append(SHAPE)
    if report.kernels:
        names.append(KERNELS)
    if report.lines:
        names.append(LINES)
    names += [name for name, rows in report.views.groups.items() if rows and name not in names]
    return tuple(names)


def group_rows(report: Report, group: str, step: str = MEAN) -> tuple[Work, ...]:
    """The rows of ``group``: of the mean step, or of one recorded step where the group is known for it.

    Args:
        group: one of ``group_names``.
        step: ``"mean"`` or ``"step 2"``; kernels, lines and groups of the views are known for the mean only.
    """
    if group in (OPERATOR, SHAPE):
        named = {f"step {one.step}": one.operators for one in report.views.per_step}
        return tuple(work_of(one, shapes=group == SHAPE) for one in named.get(step, report.operators))
    if group == KERNELS:
        return tuple(map(work_of, report.kernels))
    if group == LINES:
        return tuple(work_of(one) for one in report.lines if one.device_ms or one.host_ms)
    return tuple(map(work_of, report.views.groups[group]))


def knows_steps(group: str) -> bool:
    """Whether the group is known for each recorded step, not only for the mean."""
    return group in (OPERATOR, SHAPE)


def selected(rows: Sequence[Work], words: str, sort: str) -> tuple[Work, ...]:
    """The rows whose name holds every word (in any case), sorted by ``sort``, one of ``SORTS``; the largest first."""
    wanted = words.lower().split()
    kept = [one for one in rows if all(word in one.name.lower() for word in wanted)]
    if sort == "name":
        return tuple(sorted(kept, key=lambda one: one.name.lower()))
    field = {"host time": "host_ms", "calls": "calls"}.get(sort, "device_ms")
    return tuple(sorted(kept, key=lambda one: (-(getattr(one, field) or 0.0), one.name)))


_CLOSE = {"description_width": "initial"}
LIMITS = (10, 25, 50)  # a row weighs 1 kB in the saved notebook: the filter finds the rest
Saves = Mapping[str, tuple[str, Callable[[Path], None]]]


def build_panel(
    report: Report,
    *,
    trace: KeptTrace | None = None,
    earlier: Callable[[], Sequence[tuple[int, Report]]] = tuple,
    saves: Saves | None = None,
) -> Any | None:
    """Tabs: steps and operators; memory; timeline; another run beside this one; saving. Each is drawn when it is opened
    and emptied when another one is: JupyterLab saves what widgets hold, and of the tabs only the one in sight counts.

    Args:
        trace: the run's trace while it is kept, for Perfetto and for saving.
        earlier: gives the runs of this session with their numbers, to compare with.
        saves: button → (ending of the file's name, what writes it), beside the trace.

    Returns:
        The widget (ipywidgets 7 or 8), or ``None`` without ipywidgets or without anything to choose from.
    """
    if not report.operators and not report.views.per_step:
        return None
    try:
        import ipywidgets
    except Exception:  # a broken front-end package must not cost the report
        return None
    kept = trace if trace is not None and trace.is_there else None
    others: list[tuple[str, Callable[[], Any | None]]] = [
        ("Memory", lambda: memory_tab(report)),
        ("Timeline", lambda: timeline_tab(report)),
        ("Compare", lambda: compare_tab(report, earlier)),
        ("Save" if kept is None else "Save, Perfetto", lambda: _saving(report, kept, saves or {})),
    ]
    places = [ipywidgets.VBox([]) for _ in others]
    tabs = ipywidgets.Tab([steps_tab(report), *places])
    hidden: dict[int, list[tuple[Any, Any]]] = {}
    for number, name in enumerate(("Operators", *(name for name, _ in others))):
        tabs.set_title(number, name)

    def opened(change: Mapping[str, Any]) -> None:
        at, left = change["new"], change["old"]
        if left is not None:
            hidden[left] = _emptied(tabs.children[left])
        for widget, value in hidden.pop(at, ()):
            widget.value = value
        if at and not places[at - 1].children:
            content = others[at - 1][1]()
            places[at - 1].children = (content if content is not None else ipywidgets.HTML("Not measured."),)

    tabs.observe(opened, names="selected_index")
    return tabs


def _emptied(widget: Any) -> list[tuple[Any, Any]]:
    """The tables and pictures inside ``widget``, each with what it showed; now they show nothing."""
    import ipywidgets

    if isinstance(widget, (ipywidgets.HTML, ipywidgets.Image)):
        shown = widget.value
        widget.value = b"" if isinstance(widget, ipywidgets.Image) else ""
        return [(widget, shown)]
    return [one for child in getattr(widget, "children", ()) for one in _emptied(child)]


def _saving(report: Report, trace: KeptTrace | None, saves: Saves) -> Any:
    stem = re.sub(r"[^\w.-]+", "-", report.source.name or "").strip("-.") or "ipyprof"
    if trace is None:
        return save_tab(saves, stem, None)
    title = f"ipyprof: {report.source.name or report.verdict.headline}"
    return save_tab({"Save trace": (".json.gz", trace.write), **saves}, stem, perfetto_button(trace.packed, title))


def close_panel(panel: Any) -> None:
    """Close a widget and all that belongs to it. ipywidgets keeps each one that is not closed, for good."""
    for child in getattr(panel, "children", ()):
        close_panel(child)
    for part in (getattr(panel, "layout", None), getattr(panel, "style", None), panel):
        if part is not None:
            part.close()


def steps_tab(report: Report) -> Any:
    """A slider over the mean and each recorded step, above that step's donut and rows: grouped, sorted, filtered."""
    import ipywidgets

    names = [MEAN, *(f"step {one.step}" for one in report.views.per_step)]
    short = ipywidgets.Layout(width="200px")
    slider = ipywidgets.SelectionSlider(
        options=names,
        value=MEAN,
        description="step",
        continuous_update=False,
        disabled=len(names) == 1,
        style=_CLOSE,
        layout=ipywidgets.Layout(width="280px"),
    )
    group = ipywidgets.Dropdown(options=group_names(report), description="group by", layout=short, style=_CLOSE)
    sort = ipywidgets.Dropdown(options=SORTS, description="sort by", layout=short, style=_CLOSE)
    limit = ipywidgets.Dropdown(
        options=LIMITS, description="rows", layout=ipywidgets.Layout(width="110px"), style=_CLOSE
    )
    words = ipywidgets.Text(placeholder="part of a name", description="filter", layout=short, style=_CLOSE)
    if all(one.self_device_ms is None for one in report.operators):
        sort.value = "host time"
    image = ipywidgets.Image(
        format="png",
        value=b"",
        layout=ipywidgets.Layout(width=f"{DONUT_SIZE[0]}px", flex="0 0 auto", object_fit="contain"),
    )
    table = ipywidgets.HTML(layout=ipywidgets.Layout(flex="1 1 560px", max_width="720px", min_width="0"))
    rings: dict[str, tuple[bytes, str]] = {}

    def show(_change: object = None) -> None:
        name = slider.value
        if name not in rings:
            rings[name] = step_ring(report, name)
        image.value, alt = rings[name]
        table.value = rows_view(
            report, name, group=group.value, sort=sort.value, words=words.value, limit=limit.value, alt=alt
        )

    for control in (slider, group, sort, limit, words):
        control.observe(show, names="value")
    show()
    wrapped = ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start")
    controls = ipywidgets.HBox([slider, group, sort, limit, words], layout=wrapped)
    return ipywidgets.VBox([controls, ipywidgets.HBox([table, image], layout=wrapped)])


def step_ring(report: Report, name: str) -> tuple[bytes, str]:
    """The donut (PNG and alt text) of the mean, unprofiled, or of one recorded step.

    Args:
        name: ``"mean"`` or ``"step 2"``.
    """
    culprit = culprit_of(report.verdict.cause)
    if name == MEAN:
        return donut(step_parts(report.breakdown, culprit), report.steps.step_ms, culprit=culprit)
    step = next(one for one in report.views.per_step if f"step {one.step}" == name)
    return donut(step_parts(step.breakdown, culprit), step.step_ms, culprit=culprit, caption="recorded")


def rows_view(report: Report, name: str, *, group: str, sort: str, words: str, limit: int, alt: str) -> str:
    """The table of one step's rows as HTML, with the donut's alt text for readers who do not see the picture."""
    step = name if knows_steps(group) else MEAN
    rows = group_rows(report, group, step)
    clock = "one recorded step" if step != MEAN else "mean recorded step" if knows_steps(group) else "one step"
    if step != name:
        clock += " (of the mean: single steps are not known)"
    kept = selected(rows, words, sort)
    device = any(one.device_ms is not None for one in rows)
    more = f"{clock}, % of all {'GPU' if device else 'host'} time"
    shown = table_html(work_table(kept, rows, title=f"By {group}", more=more, limit=limit, host=True))
    return Markup('<div aria-label="{}">{}</div>').format(attribute(alt), Markup(shown))
