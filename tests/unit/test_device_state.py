"""The driver's word on the GPU while steps ran: as checks, in the confidence, and as a line under the ladder."""

from __future__ import annotations

from typing import Any

import pytest

from ipyprof.analysis.profile import Profile, analyse
from ipyprof.diagnosis.trust import checks, confidence, device_line
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.formatting import clock_text, link_text, power_text
from ipyprof.report.build import build_report
from ipyprof.report.report import Report, Source
from ipyprof.show.html import render_html
from ipyprof.show.text import render_text
from ipyprof.trace.live import DeviceState
from tests.machine import Machine, live
from tests.sample_reports import with_views


def profiled(state: DeviceState | None) -> Profile:
    """A sound run of three steps, of which the driver said this."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(500)
            machine.launch(500)
    return analyse(machine.trace(), live("", 1_002, 1_002, 1_002, device_state=state))


def judged(check: str, **state: Any) -> tuple[str, str] | None:
    """(status, text) of this check."""
    return next(((one.status, one.text) for one in checks(profiled(DeviceState(**state))) if one.check == check), None)


def reported(state: DeviceState | None) -> Report:
    profile = profiled(state)
    return build_report(profile, diagnose(profile), source=Source(kind="live"))


CAPPED = DeviceState(
    sm_clock_mhz=1_700,
    max_sm_clock_mhz=1_980,
    slowed_by=("software power cap",),
    power_w=698.4,
    power_limit_w=700.0,
    pcie_generation=5,
    pcie_width=16,
    max_pcie_generation=5,
    max_pcie_width=16,
    others=0,
    others_bytes=0,
    others_busy=0.0,
)
HOT = DeviceState(sm_clock_mhz=1_200, max_sm_clock_mhz=1_980, slowed_by=("hardware thermal slowdown",))


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [
        ((1_980, 1_980, ()), "ok", "SM clock 1,980 MHz, not held back"),
        ((1_700, 1_980, ("software power cap",)), "ok", "SM clock 1,700 of 1,980 MHz (86 %): software power cap"),
        ((1_500, 1_980, ("software power cap",)), "warn", "SM clock 1,500 of 1,980 MHz (76 %): software power cap"),
        (
            (1_900, 1_980, ("software thermal slowdown",)), "warn",
            "SM clock 1,900 of 1,980 MHz (96 %): software thermal slowdown",
        ),
        ((1_000, 1_980, ()), "ok", "SM clock 1,000 of 1,980 MHz (51 %), not held back"),
        ((1_000, 1_980, None), "warn", "SM clock 1,000 of 1,980 MHz (51 %), why is not known"),
        ((1_900, 1_980, None), "ok", "SM clock 1,900 of 1,980 MHz (96 %)"),
        ((None, 1_980, ("hardware power brake",)), "warn", "SM clock held back: hardware power brake"),
        ((None, None, ()), "ok", "nothing held the SM clock back"),
    ],
)  # fmt: skip
def test_throttling(state: tuple[int | None, int | None, tuple[str, ...] | None], status: str, text: str) -> None:
    clock, most, reasons = state

    assert judged("throttling", sm_clock_mhz=clock, max_sm_clock_mhz=most, slowed_by=reasons) == (status, text)


@pytest.mark.parametrize(
    ("others", "status", "text"),
    [
        ((0, 0, 0.0), "ok", "no other process on the GPU"),
        ((0, None, None), "ok", "no other process on the GPU"),
        ((1, 700, 0.0), "ok", "1 other process with 700 bytes of the GPU, not computing"),
        ((2, 3_000_000_000, 0.3), "warn", "2 other processes with 3,000 MB of the GPU, computing 30 % of the time"),
        ((2, None, None), "warn", "2 other processes on the GPU; whether they compute is not measured"),
        ((1, None, None), "warn", "1 other process on the GPU; whether it computes is not measured"),
    ],
)
def test_other_processes(others: tuple[int, int | None, float | None], status: str, text: str) -> None:
    count, size, busy = others

    assert judged("other processes", others=count, others_bytes=size, others_busy=busy) == (status, text)


def test_nothing_is_said_of_what_was_not_measured() -> None:
    missing = DeviceState(missing="the nvml extra is not installed")

    assert [one.check for one in checks(profiled(missing))] == [one.check for one in checks(profiled(None))]
    assert confidence(checks(profiled(missing))) == confidence(checks(profiled(None))) == ("high", ())


def test_full_load_at_the_power_limit_keeps_the_confidence() -> None:
    assert confidence(checks(profiled(CAPPED))) == ("high", ())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (HOT, "SM clock 1,200 of 1,980 MHz (61 %): hardware thermal slowdown"),
        (
            DeviceState(others=1, others_bytes=10, others_busy=0.5),
            "1 other process with 10 bytes of the GPU, computing 50 % of the time",
        ),
    ],
)
def test_a_slowed_or_shared_gpu_lowers_the_confidence(state: DeviceState, reason: str) -> None:
    assert confidence(checks(profiled(state))) == ("medium", (reason,))


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (CAPPED, "SM clock 1,700 of 1,980 MHz (86 %): software power cap · 698 of 700 W · PCIe 5 ×16."),
        (
            DeviceState(
                pcie_generation=4, pcie_width=8, max_pcie_generation=5, max_pcie_width=16, others=1,
                missing="the driver stopped answering: GPU is lost",
            ),
            "PCIe 4 ×8 of 5 ×16 · 1 other process on the GPU; whether it computes is not measured. "
            "The rest: not measured (the driver stopped answering: GPU is lost).",
        ),
        (
            DeviceState(missing="the nvml extra is not installed"),
            "Clock, power, PCIe link, other processes: not measured (the nvml extra is not installed).",
        ),
        (DeviceState(), "Clock, power, PCIe link, other processes: not measured."),
    ],
)  # fmt: skip
def test_line_under_the_ladder(state: DeviceState, line: str) -> None:
    # given what the driver said, when it is put into words, then they stand in text and dashboard alike
    report = reported(state)

    assert device_line(state) == line
    assert line in " ".join(render_text(report, 400).split())
    assert line in render_html(report)


def test_no_line_without_a_driver_that_was_asked() -> None:
    report = reported(None)

    assert report.views.device_state is None
    assert "PCIe" not in render_text(report)
    assert "PCIe" not in render_html(report)


def test_words_of_the_driver_are_escaped() -> None:
    report = reported(DeviceState(missing="<script>alert(1)</script>"))

    assert "<script>" not in render_html(report)
    assert "&lt;script&gt;" in render_html(report)


def test_state_survives_the_reports_json() -> None:
    report = reported(CAPPED)
    again = Report.from_dict(report.to_dict())

    assert again.to_dict()["views"]["device_state"]["slowed_by"] == ["software power cap"]
    assert render_text(again) == render_text(report)


def test_a_report_with_a_foreign_state_is_shown_without_it() -> None:
    report = with_views(reported(None), device_state={"sm_clock_mhz": "fast"})

    assert "PCIe" not in render_text(report)


def test_units_of_the_device() -> None:
    assert [clock_text(None, 5), clock_text(1_980, None), clock_text(900, 1_980)] == [
        "", "1,980 MHz", "900 of 1,980 MHz",
    ]  # fmt: skip
    assert [power_text(None, 1.0), power_text(71.6, None), power_text(690, 700)] == ["", "72 W", "690 of 700 W"]
    assert [link_text((None, 8), (5, 16)), link_text((4, 8), (None, 16)), link_text((4, 16), (5, 16))] == [
        "", "PCIe 4 ×8", "PCIe 4 ×16 of 5 ×16",
    ]  # fmt: skip
