"""The panel of a live kernel, of core ipywidgets only. Losing it never loses the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipyprof.analysis.results import Memory, Operator
from ipyprof.formatting import (
    NOT_MEASURED,
    columns,
    count_cell,
    percent_cell,
    percent_whole,
    plural,
    shorten,
    size_text,
    time_cell,
    time_text,
)
from ipyprof.report.report import Report
from ipyprof.show.markup import (
    ELLIPSIS,
    SMALL,
    bar,
    card,
    cell,
    code_name,
    div,
    escape,
    escape_attribute,
    figure,
    mono,
    muted,
    note,
    row,
    span,
    table,
    title,
)
from ipyprof.show.perfetto import perfetto_button
from ipyprof.show.pictures import CURVE, DONUT_SIZE, HEARTBEAT_SIZE, WIDTH, Drawn, donut, heartbeat, timeline
from ipyprof.show.words import (
    ACCENT,
    BOUND,
    COPIES,
    KERNEL,
    PYTHON,
    RULE,
    TENSOR_CORE,
    culprit_of,
    memory_facts,
    step_parts,
    steps_text,
    views_of,
)

if TYPE_CHECKING:
    from ipyprof.trace.writer import KeptTrace


UPPER, LOWER = 20.0, 18.0  # from the picture's top and bottom
HOLDERS_SHOWN = 6
_LONG = {"description_width": "90px"}


def memory_tab(report: Report) -> Any | None:
    """The heartbeat with a cursor and what is allocated there; ``None`` without a curve."""
    view = views_of(report).get("heartbeat")
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


def _memory_cursor(report: Report, view: Mapping[str, Any], memory: Memory | None, drawn: Drawn) -> Any:
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


def memory_at(report: Report, at_ms: float, view: Mapping[str, Any] | None = None, memory: Memory | None = None) -> str:
    """What is allocated at an instant of the recorded clock, and who holds it where that is known; HTML.

    Args:
        view, memory: of another device than the busiest, whose holders over time are not kept.
    """
    whole: Mapping[str, Any] = views_of(report)["heartbeat"]
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
    return f"{text}."


def timeline_tab(report: Report) -> Any | None:
    """The recorded step's lanes, and a slider for the part that is shown; ``None`` without lanes."""
    view = views_of(report).get("timeline")
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

    from ipyprof.report.comparison import compare_reports
    from ipyprof.show.compare_html import render_comparison

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


MEAN = "mean"
SORTS = ("device time", "host time", "calls", "name")
OPERATOR, SHAPE, KERNELS, LINES = "operator", "operator and shapes", "kernel", "line of the cell"
_NAME = f"width:44%;{ELLIPSIS}"
_NAME_COLUMNS = 60
_PATH_COLUMNS = 44  # the end of a path is what counts: it fits into a browser 800 wide
_BETWEEN = " › "


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """One row, per step; ``None`` = not measured. ``bound`` and ``tensor_core`` are empty where they do not apply.

    ``total_ms`` is with what is inside, on the device where it was measured; ``path`` are the names of what is around
    the row and its own, empty where nothing is around it.
    """

    name: str
    calls: float | None = None
    device_ms: float | None = None
    host_ms: float | None = None
    bound: str = ""
    tensor_core: str = ""
    total_ms: float | None = None
    path: tuple[str, ...] = ()


def group_names(report: Report) -> tuple[str, ...]:
    """What the rows can be grouped by: only what this report holds."""
    names = [OPERATOR]
    if any(one.shapes for one in report.operators):
        names.append(SHAPE)
    if report.kernels:
        names.append(KERNELS)
    if report.lines:
        names.append(LINES)
    groups = views_of(report).get("groups")
    if isinstance(groups, Mapping):
        names += [str(name) for name, rows in groups.items() if rows and name not in names]
    return tuple(names)


def group_rows(report: Report, group: str, step: str = MEAN) -> tuple[PanelRow, ...]:
    """The rows of ``group``: of the mean step, or of one recorded step where the group is known for it.

    Args:
        group: one of ``group_names``.
        step: ``"mean"`` or ``"step 2"``; kernels, lines and groups of the views are known for the mean only.
    """
    if group in (OPERATOR, SHAPE):
        return tuple(_operator_row(one, shapes=group == SHAPE) for one in _operators(report, step))
    if group == KERNELS:
        return tuple(
            PanelRow(
                name=one.name,
                calls=one.calls,
                device_ms=one.device_ms,
                bound=one.bound,
                tensor_core=one.tensor_core,
            )
            for one in report.kernels
        )
    if group == LINES:
        return tuple(
            PanelRow(name=f"{one.line:>3}  {one.source}", calls=None, device_ms=one.device_ms, host_ms=one.host_ms)
            for one in report.lines
            if one.device_ms or one.host_ms
        )
    rows: Sequence[Mapping[str, Any]] = views_of(report)["groups"][group]
    return tuple(_group_row(one) for one in rows)


def knows_steps(group: str) -> bool:
    """Whether the group is known for each recorded step, not only for the mean."""
    return group in (OPERATOR, SHAPE)


def selected(rows: Sequence[PanelRow], words: str, sort: str) -> tuple[PanelRow, ...]:
    """The rows whose name holds every word (in any case), sorted by ``sort``, one of ``SORTS``; the largest first."""
    wanted = words.lower().split()
    kept = [one for one in rows if all(word in one.name.lower() for word in wanted)]
    if sort == "name":
        return tuple(sorted(kept, key=lambda one: one.name.lower()))
    field = {"host time": "host_ms", "calls": "calls"}.get(sort, "device_ms")
    return tuple(sorted(kept, key=lambda one: (-(getattr(one, field) or 0.0), one.name)))


def rows_table(rows: Sequence[PanelRow], every: Sequence[PanelRow], *, name: str, clock: str, limit: int) -> str:
    """The first ``limit`` of ``rows`` as HTML; percent are of all rows, ``every``.

    Args:
        name: of the group, such as ``kernel``.
        clock: what the times are of, such as ``one recorded step``.
    """
    device = any(one.device_ms is not None for one in every)
    head = title(f"By {name}", f"{clock}, % of all {'GPU' if device else 'host'} time")
    if not rows:
        return head + note("Nothing has such a name." if every else f"This was {NOT_MEASURED}.", 0)

    def own(one: PanelRow) -> float:
        return (one.device_ms if device else one.host_ms) or 0.0

    total = sum(own(one) for one in every)
    longest = max(own(one) for one in rows) or 1.0
    host_total = max(sum(one.host_ms or 0.0 for one in every), 1e-9)
    bounds = any(one.bound in ("compute", "memory", "launch") for one in rows)
    cores = any(one.tensor_core in ("yes", "no") for one in rows)
    totals = any(one.path for one in every)
    titles = [
        _cell("", header=True),
        _cell(name, header=True, style=_NAME),
        _cell("", header=True),
        *(_cell(text, align="right", header=True) for text in ("GPU ms" if device else "", "%", "host ms", "calls")),
        *([_cell("with inner", align="right", style="white-space:normal", header=True)] if totals else []),
        *([_cell("bound by", header=True)] if bounds else []),
        *([_cell("Tensor Cores", style="white-space:normal", header=True)] if cores else []),
    ]
    body = ""
    for number, one in enumerate(rows[:limit], start=1):
        fill = PYTHON if not device else COPIES if one.bound == "copy" else KERNEL
        cells = [
            _cell(muted(str(number)), align="right", style="width:18px;padding-left:0"),
            _cell(_shown(one), style=_NAME),
            _cell(bar(own(one) / longest, fill.fill), style="min-width:60px"),
            _cell(time_cell(one.device_ms, total) if device else "", align="right"),
            _cell(percent_cell(own(one) / total if total else None), align="right"),
            _cell(time_cell(one.host_ms, host_total) if one.host_ms is not None else "", align="right"),
            _cell(count_cell(one.calls) if one.calls is not None else "", align="right"),
        ]
        cells += [_cell(time_cell(one.total_ms, total), align="right")] if totals else []
        cells += [_cell(_mark(BOUND, one.bound))] if bounds else []
        cells += [_cell(_mark(TENSOR_CORE, one.tensor_core))] if cores else []
        body += row(*cells)
    shown = sum(own(one) for one in rows)
    line = f"border-top:1px solid {RULE}"
    more = f"{len(rows) - limit:,} more; " if len(rows) > limit else ""
    body += row(
        _cell("", style=line),
        _cell(f"{more}<b>{plural(len(rows), 'row')}</b> of {len(every):,}", style=line, span_columns=2),
        _cell(f"<b>{time_cell(shown, total)}</b>" if device else "", align="right", style=line),
        _cell(f"<b>{percent_cell(shown / total if total else None)}</b>", align="right", style=line),
        _cell("", style=line, span_columns=len(titles) - 5),
    )
    return head + table(row(*titles), body)


def _operators(report: Report, step: str) -> Sequence[Operator]:
    if step == MEAN:
        return report.operators
    return next(one for one in report.views.per_step if f"step {one.step}" == step).operators


def _operator_row(one: Operator, *, shapes: bool) -> PanelRow:
    return PanelRow(
        name=f"{one.name}  {one.shapes}" if shapes and one.shapes else one.name,
        calls=one.calls,
        device_ms=one.self_device_ms,
        host_ms=one.self_host_ms,
        bound=one.bound,
        tensor_core=one.tensor_core,
    )


def _group_row(one: Mapping[str, Any]) -> PanelRow:
    name = str(one.get("name", ""))
    path = (*map(str, one.get("within") or ()), name)
    device, total = one.get("device_ms"), one.get("total_device_ms")
    return PanelRow(
        name=_BETWEEN.join(path),
        calls=one.get("calls"),
        device_ms=device,
        host_ms=one.get("host_ms"),
        total_ms=total if device is not None else one.get("total_host_ms"),
        path=path if len(path) > 1 else (),
    )


def _shown(one: PanelRow) -> str:
    """The name as code; of a long path the end, with the whole of it on hover."""
    if not one.path:
        return code_name(one.name, _NAME_COLUMNS)
    if columns(one.name) <= _PATH_COLUMNS:
        return code_name(one.name, _PATH_COLUMNS)
    kept = one.path[-1:]
    while columns(_BETWEEN.join(("…", *one.path[-len(kept) - 1 :]))) <= _PATH_COLUMNS:
        kept = one.path[-len(kept) - 1 :]
    short = shorten(" ".join(_BETWEEN.join(("…", *kept)).split()), _PATH_COLUMNS)
    return span(mono(short), "white-space:nowrap", title=shorten(" ".join(one.name.split()), 1000))


def _mark(marks: Mapping[str, str], word: str) -> str:
    return f"{marks[word]}&nbsp;{escape(word)}" if word in marks else muted("n/a" if word == "n/a" else "?")


def _cell(content: str, *, align: str = "left", style: str = "", span_columns: int = 1, header: bool = False) -> str:
    return cell(content, align=align, style=f"padding:1px 6px;{style}", span_columns=span_columns, header=header)


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
    if not report.operators and not views_of(report).get("per_step"):
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

    names = [MEAN, *(f"step {step['step']}" for step in views_of(report).get("per_step") or ())]
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
    step = next(one for one in views_of(report)["per_step"] if f"step {one['step']}" == name)
    return donut(step_parts(step["breakdown"], culprit), step["step_ms"], culprit=culprit, caption="recorded")


def rows_view(report: Report, name: str, *, group: str, sort: str, words: str, limit: int, alt: str) -> str:
    """The table of one step's rows as HTML, with the donut's alt text for readers who do not see the picture."""
    step = name if knows_steps(group) else MEAN
    rows = group_rows(report, group, step)
    clock = "one recorded step" if step != MEAN else "mean recorded step" if knows_steps(group) else "one step"
    if step != name:
        clock += " (of the mean: single steps are not known)"
    shown = rows_table(selected(rows, words, sort), rows, name=group, clock=clock, limit=limit)
    return card(f'<div aria-label="{escape_attribute(alt)}">{shown}</div>')
