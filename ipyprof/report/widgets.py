"""The panel of a live kernel, of core ipywidgets only. Losing it never loses the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.report.categories import culprit_of, step_parts
from ipyprof.report.codec import decode
from ipyprof.report.markup import card, escape
from ipyprof.report.plots import DONUT_SIZE, donut
from ipyprof.report.report import Operator, Report
from ipyprof.report.tables import operators_table

MEAN = "mean"


def build_panel(report: Report) -> Any | None:
    """A slider over the mean and each recorded step, above that step's donut and operators.

    Returns:
        The widget (ipywidgets 7 or 8), or ``None`` without ipywidgets or without steps to choose from.
    """
    steps = report.views.get("per_step")
    if not steps:
        return None
    try:
        import ipywidgets
    except Exception:  # a broken front-end package must not cost the report
        return None
    slider = ipywidgets.SelectionSlider(
        options=[MEAN, *(_step_name(step) for step in steps)],
        value=MEAN,
        description="step",
        continuous_update=False,
        layout=ipywidgets.Layout(width="420px"),
    )
    image = ipywidgets.Image(
        format="png",
        value=b"",
        layout=ipywidgets.Layout(width=f"{DONUT_SIZE[0]}px", flex="0 0 auto", object_fit="contain"),
    )
    table = ipywidgets.HTML(layout=ipywidgets.Layout(flex="1 1 620px", max_width="760px", min_width="0"))
    drawn: dict[str, tuple[bytes, str]] = {}

    def show(name: str) -> None:
        if name not in drawn:
            drawn[name] = step_view(report, name)
        image.value, table.value = drawn[name]

    def chosen(change: Mapping[str, Any]) -> None:
        show(str(change["new"]))

    slider.observe(chosen, names="value")
    show(MEAN)
    below = ipywidgets.HBox([table, image], layout=ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start"))
    return ipywidgets.VBox([slider, below])


def close_panel(panel: Any) -> None:
    """Close a widget and all that belongs to it. ipywidgets keeps each one that is not closed, for good."""
    for child in getattr(panel, "children", ()):
        close_panel(child)
    for part in (getattr(panel, "layout", None), getattr(panel, "style", None), panel):
        if part is not None:
            part.close()


def step_view(report: Report, name: str) -> tuple[bytes, str]:
    """The donut (PNG) and the operator table (HTML) of the mean, unprofiled, or of one recorded step.

    Args:
        name: ``"mean"`` or ``"step 2"``.
    """
    culprit = culprit_of(report.verdict.cause)
    if name == MEAN:
        png, alt = donut(step_parts(report.breakdown, culprit), report.steps.step_ms, culprit=culprit)
        return png, _beside(alt, operators_table(report.operators))
    steps: Sequence[Mapping[str, Any]] = report.views["per_step"]
    step = next(step for step in steps if _step_name(step) == name)
    png, alt = donut(step_parts(step["breakdown"], culprit), step["step_ms"], culprit=culprit, caption="recorded")
    rows = decode(tuple[Operator, ...], step.get("operators") or (), "a step's operators")
    return png, _beside(alt, operators_table(rows, recorded=True))


def _step_name(step: Mapping[str, Any]) -> str:
    return f"step {step['step']}"


def _beside(alt: str, table: str) -> str:
    """The table, with the donut's alt text for readers who do not see the picture (the Image widget has none)."""
    return card(f'<div aria-label="{escape(alt)}">{table}</div>')
