"""Phases, ranges and modules in the report, the dashboard, the text and the panel's rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from ipyprof.analysis import scopes
from ipyprof.analysis.profile import analyse
from ipyprof.analysis.results import ScopeRow
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.report.build import build_report
from ipyprof.report.report import Report, Source
from ipyprof.show.html import render_html
from ipyprof.show.markup import table_html
from ipyprof.show.panel import group_names, group_rows, selected
from ipyprof.show.tables import Work, scope_summary, scope_tables, work_table
from ipyprof.show.text import render_text
from tests.machine import Machine
from tests.sample_reports import sync, with_views

NODE = "autograd::engine::evaluate_function: MmBackward0"


def built(machine: Machine) -> Report:
    profile = analyse(machine.trace())
    diagnosis = diagnose(profile)
    return build_report(profile, diagnosis, source=Source(kind="file"))


def training(*ranges: str, modules: tuple[str, ...] = ()) -> Machine:
    """Two steps: a forward kernel of 100 in these ranges and modules, a backward one of 300, an optimizer's of 10."""
    machine = Machine()
    for step in range(2):
        with machine.step():
            begin = machine.host
            machine.launch(100)
            machine.builder.op("aten::mm", begin, machine.host, sequence=step)
            for name in ranges:
                machine.builder.annotation(name, begin, machine.host)
            for name in modules:
                machine.builder.python(f"nn.Module: {name}", begin, machine.host)
            with machine.thread(2):
                begin = machine.host
                machine.launch(300)
                machine.builder.op(NODE, begin, machine.host, 2, sequence=step)
            begin = machine.host
            machine.launch(10)
            machine.builder.annotation("Optimizer.step#SGD.step", begin, machine.host)
            machine.sync()
    return machine


def rows_table(rows: Sequence[Work], every: Sequence[Work], *, name: str, limit: int) -> str:
    return table_html(work_table(rows, every, title=name, more="", limit=limit, host=True))


def with_groups(**groups: list[dict[str, Any]]) -> Report:
    return with_views(sync(), groups=groups)


def group_row(
    name: str, device_ms: float | None, *within: str, total: float | None = None, **more: Any
) -> dict[str, Any]:
    known = {"name": name, "within": list(within), "calls": 1.0, "device_ms": device_ms, "host_ms": 1.0}
    return {**known, "total_device_ms": device_ms if total is None else total, "total_host_ms": 1.0, **more}


def test_a_training_steps_groups_are_in_the_report_and_survive_json() -> None:
    # given a recording with a range of the user's and a module, when the report is built
    report = built(training("attention", modules=("Net_0",)))
    groups = report.to_dict()["views"]["groups"]
    # then there are rows by phase, range, module class and module, in ms of one step
    assert list(groups) == ["phase", "range", "module class", "module"]
    assert {row["name"]: round(row["device_ms"], 6) for row in groups["phase"]} == {
        "forward": 0.1,
        "backward": 0.3,
        "optimizer": 0.01,
        "the rest": 0.0,
    }
    assert groups["range"][0]["name"] == "attention" and groups["range"][0]["device_ms"] == 0.4
    # and the panel of a report loaded from JSON offers the same
    loaded = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert group_names(loaded)[-4:] == ("phase", "range", "module class", "module")
    assert group_rows(loaded, "module")[0].name == "Net_0"


def test_torchs_own_optimizer_ranges_alone_are_no_group() -> None:
    # given a recording in which only torch named ranges, when the report is built, then the phases say it all
    assert list(built(training()).to_dict()["views"]["groups"]) == ["phase"]


def test_the_dashboard_folds_the_model_and_says_the_shares() -> None:
    # given a training step without modules, when the dashboard is drawn
    report = built(training("attention"))
    page = render_html(report)
    # then one folded line has the shares of the phases, and how to have modules is inside
    assert scope_summary(report) == "GPU time: forward 24 %, backward 73 %, optimizer 2 %"
    assert f'Where in the model&nbsp; <span style="opacity:.72">{scope_summary(report)}' in page
    assert "modules by name: record with" in page and "--stack" in page
    assert "record_function" not in page.split("Where in the model")[1].split("</details>")[0]


def test_no_section_without_groups() -> None:
    # given a report of an older file, when it is drawn, then nothing is said of the model
    assert scope_tables(sync()) == []
    assert "Where in the model" not in render_html(sync()) + render_text(sync())


def test_the_text_has_phases_and_the_largest_ranges() -> None:
    # given phases and nested ranges, when the text is written, then inner ranges are indented below their own
    text = render_text(built(training("outer", "inner")))
    phases, ranges = (
        [line.split() for line in text.split(f"{title} ")[1].splitlines()[1:]] for title in ("Phases", "Ranges")
    )
    assert phases[:3] == [["forward", "0.10", "24.4"], ["backward", "0.30", "73.2"], ["optimizer", "0.01", "2.4"]]
    assert ranges[:2] == [["outer", "0.40", "97.6"], ["inner", "0.40", "97.6"]]
    assert "\n    inner" in text


def test_a_long_path_keeps_its_end_and_is_found_by_every_name_in_it() -> None:
    # given a module deep inside others
    report = with_groups(module=[group_row("Linear_7", 2.0, "VeryLongNameOfAModel_0", "Encoder_0", "Attention_3")])
    rows = group_rows(report, "module")
    # when it is filtered by the model's name and drawn
    shown = rows_table(selected(rows, "verylong linear", "device time"), rows, name="module", limit=5)
    # then the end of the path is there, the whole of it on hover
    assert "… › Encoder_0 › Attention_3 › Linear_7" in shown
    assert 'title="VeryLongNameOfAModel_0 › Encoder_0 › Attention_3 › Linear_7"' in shown
    assert "with inner" in shown


def test_only_nested_groups_have_a_column_for_what_is_inside() -> None:
    rows = group_rows(with_groups(phase=[group_row("forward", 1.0)]), "phase")
    assert "with inner" not in rows_table(rows, rows, name="phase", limit=5)


def test_names_of_ranges_are_text() -> None:
    # given a range whose name is markup, when section and panel are drawn, then it is escaped
    report = with_groups(range=[group_row("<img src=x>", 1.0), group_row("$x_1$ 前向", 1.0, "<img src=x>")])
    rows = group_rows(report, "range")
    page = render_html(report) + rows_table(rows, rows, name="range", limit=5)
    assert "<img src=x" not in page and "&lt;img src=x&gt;" in page
    assert "前向" in page


def test_many_rows_are_cut_without_losing_time() -> None:
    # given a model with 900 modules of which none is large
    leaves = [
        ScopeRow(
            name=f"Linear_{at}",
            within=("Net_0",),
            calls=1.0,
            device_ms=0.001,
            total_device_ms=0.001,
            host_ms=0.00001,
            total_host_ms=0.00001,
        )
        for at in range(900)
    ]
    top = structs.replace(leaves[0], name="Net_0", within=(), device_ms=0.0, total_device_ms=900_000.0, host_ms=0.0)
    outside = structs.replace(leaves[0], name="outside any module", within=(), calls=None)
    # when the rows for the report are chosen
    kept = scopes._largest([top, *leaves, outside])
    # then the model and what is outside are among them, and one row, before what is outside, has the rest
    assert len(kept) == scopes.MOST_ROWS
    assert kept[0] is top and kept[-1] is outside and kept[-2].name == "503 more"
    assert sum(row.device_ms or 0 for row in kept) == pytest.approx(0.901)
