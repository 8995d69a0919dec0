"""The panel of a live kernel, of core ipywidgets only. Losing it never loses the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipyprof.report.categories import culprit_of, step_parts
from ipyprof.report.markup import card, escape_attribute
from ipyprof.report.panel_rows import (
    MEAN,
    SORTS,
    group_names,
    group_rows,
    knows_steps,
    rows_table,
    selected,
)
from ipyprof.report.panel_tabs import compare_tab, memory_tab, save_tab, timeline_tab
from ipyprof.report.perfetto import perfetto_button
from ipyprof.report.plots import DONUT_SIZE, donut
from ipyprof.report.report import Report

if TYPE_CHECKING:
    from ipyprof.trace.kept import KeptTrace

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
    if not report.operators and not report.views.get("per_step"):
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

    names = [MEAN, *(f"step {step['step']}" for step in report.views.get("per_step") or ())]
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
    step = next(one for one in report.views["per_step"] if f"step {one['step']}" == name)
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
