"""The memory part of the report: its values, its HTML and its text, from built recordings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.delivery import no_events
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.report.build import build_report
from ipyprof.report.html import render_html
from ipyprof.report.memory_facts import FAILED_REST, PROCESS_REST
from ipyprof.report.memory_section import failure_text, room_text
from ipyprof.report.report import Report, Source
from ipyprof.report.text import render_text
from ipyprof.trace.model import AllocatorState, LiveRecord, OutOfMemory, Owner, Trace
from tests.unit.test_holders import MB, Training, owner

FAILED = OutOfMemory(
    line=5, tried_bytes=2_000 * MB, capacity_bytes=8_000 * MB, free_bytes=250 * MB, allocated_bytes=4_000 * MB,
    unused_bytes=1_900 * MB, text="CUDA out of memory.",
)  # fmt: skip


def report_of(trace: Trace, live: LiveRecord) -> Report:
    profile = analyse(trace, live)
    findings, verdict = diagnose(profile)
    return build_report(profile, findings, verdict, source=Source(kind="live"))


def trained(*, steps: int = 3, **live: Any) -> tuple[Training, LiveRecord]:
    """A training that keeps its losses with their graphs, and what its live record says."""
    training = Training()
    training.builder.device()
    weight = training.heap.older(50 * MB)
    owners = [owner(weight, 50 * MB, "model.h.0.weight", "parameter")]
    for number in range(steps):
        at = 1_000 * number
        training.builder.launch(at + 115, 5, "gemm", at + 125, 60)
        found = training.step(keep_graph=True)
        training.end_step(found, loss=False)
        owners.append(owner(found["loss"], 512, f"losses[{number}]", "tensor"))
        owners.append(owner(found["saved"], 40 * MB, f"graph of losses[{number}]", "graph"))
    record = LiveRecord(source="%%gpuprofile\n" * 7, owners=tuple(owners), cuda=True, **live)
    return training, record


def test_the_report_names_who_holds_the_peak() -> None:
    training, live = trained()

    memory = report_of(training.builder.trace(), live).memory

    assert memory is not None
    assert {holder.name: (holder.bytes, holder.line) for holder in memory.holders}["graph kept by losses"] == (
        80 * MB,
        4,
    )
    assert sum(holder.bytes for holder in memory.holders) == memory.peak_bytes


def test_the_leak_is_told_with_what_to_do() -> None:
    """E15: growth per step, and that the peak is not yet reached."""
    training, live = trained()

    report = report_of(training.builder.trace(), live)

    assert report.views["memory"]["growing"] == [{"name": "losses", "bytes": 40 * MB + 512, "line": 4}]
    told = "losses keeps 40.0 MB more after each step (line 4)"
    assert told in " ".join(render_text(report, 100).split())
    assert told in render_html(report)


def test_holders_over_time_are_in_the_views() -> None:
    training, live = trained()

    moments = report_of(training.builder.trace(), live).views["memory"]["moments"]

    assert len(moments["time_ms"]) == len(moments["bytes"])
    assert {"parameters of model", "activations of line 4"} <= set(moments["names"])


def test_a_report_with_memory_survives_json() -> None:
    training, live = trained(out_of_memory=FAILED)
    report = report_of(training.builder.trace(), live)

    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


def test_a_request_that_failed_heads_the_dashboard_and_the_text() -> None:
    training, live = trained(
        out_of_memory=FAILED,
        allocator=(AllocatorState(device=0, allocated_bytes=1, reserved_bytes=2, largest_free_bytes=90 * MB),),
    )
    training.builder.annotation("unfinished step 3", 3_100, 3_900)
    training.builder.line(4, 3_100, 3_900)
    training.heap.alloc(3_200, 700 * MB)

    report = report_of(training.builder.trace(), live)

    text, page = " ".join(render_text(report, 100).split()), render_html(report)
    for told in (
        "Line 5 asked for 2,000 MB; 250 MB of 8,000 MB were free.",
        "held 1,900 MB more, free (reserved 5,900 MB), the largest free piece 90.0 MB.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ):
        assert told in text
        assert told in page
    assert page.index("out of memory") < page.index("One step")
    holders = report.views["memory"]["out_of_memory"]["holders"]
    assert [holder["name"] for holder in holders[:3]] == [
        "activations of line 4",
        "graph kept by losses",
        "allocated before recording, not reachable from the notebook",
    ]


def test_a_request_that_failed_before_anything_was_recorded_is_told_by_name() -> None:
    live = LiveRecord(
        cuda=True,
        owners=(owner(1, 600 * MB, "model.weight", "parameter"), owner(2, 900 * MB, "cache", "tensor")),
        out_of_memory=FAILED,
    )

    report = report_of(no_events(), live)

    assert [(one["name"], one["bytes"]) for one in report.views["memory"]["out_of_memory"]["holders"]] == [
        (FAILED_REST, 2_500 * MB),
        ("cache", 900 * MB),
        ("parameters of model", 600 * MB),
    ]
    assert report.memory is not None
    assert report.memory.peak_bytes == 4_000 * MB
    assert "Line 5 asked for 2,000 MB" in " ".join(render_text(report, 100).split())
    assert "of the process" not in render_text(report, 100)


def test_a_request_that_failed_behind_the_recording_has_its_own_holders() -> None:
    late = OutOfMemory(
        tried_bytes=10 * MB, allocated_bytes=80 * MB, later=True, owners=(owner(9, 80 * MB, "hoard", "tensor"),)
    )
    training, live = trained(out_of_memory=late)

    told = report_of(training.builder.trace(), live).views["memory"]["out_of_memory"]

    assert [(one["name"], one["bytes"]) for one in told["holders"]] == [("hoard", 80 * MB)]


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ({}, "The cell asked for more memory than there was."),
        ({"line": 3, "tried_bytes": 2 * MB}, "Line 3 asked for 2.0 MB."),
        ({"tried_bytes": 2 * MB, "capacity_bytes": 9 * MB}, "The cell asked for 2.0 MB; the device has 9.0 MB."),
    ],
)
def test_what_is_not_known_of_a_request_is_left_out(failed: dict[str, Any], text: str) -> None:
    assert failure_text(failed) == text
    assert room_text(failed) == "What the allocator held then was not measured."


def test_the_process_is_split_into_names_and_the_rest() -> None:
    on_cpu = Owner(address=1, device=-1, bytes=30 * MB, name="x", role="tensor", variable="x")
    live = LiveRecord(owners=(on_cpu,), process_memory=((0, 90 * MB), (5, 100 * MB)))

    memory = report_of(no_events(), live).memory

    assert memory is not None
    assert [(holder.name, holder.bytes) for holder in memory.holders] == [(PROCESS_REST, 70 * MB), ("x", 30 * MB)]


def test_hostile_names_are_escaped() -> None:
    training, live = trained()
    evil = Owner(
        address=live.owners[0].address if live.owners else 0, device=0, bytes=50 * MB, name="<b>x</b>",
        role="tensor", variable="<b>x</b>",
    )  # fmt: skip
    live = LiveRecord(source="%%gpuprofile\n" * 7, owners=(evil,), cuda=True)

    page = render_html(report_of(training.builder.trace(), live))

    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
