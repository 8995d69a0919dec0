"""The report as JSON: the keys of the contract, and back without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from ipyprof.errors import IpyprofError
from ipyprof.report.report import Report
from tests.sample_reports import SAMPLES, starvation, sync


@pytest.mark.parametrize("name", SAMPLES)
def test_json_gives_the_same_report_again(name: str) -> None:
    # given a report
    report = SAMPLES[name]()
    # when it goes through JSON text
    again = Report.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False)))
    # then nothing is lost
    assert again == report
    assert again.to_dict() == report.to_dict()


def test_top_level_keys_are_those_of_the_contract() -> None:
    # given a report, when it becomes plain values, then its keys are the contract's, the schema first
    assert list(sync().to_dict()) == [
        "schema",
        "source",
        "environment",
        "device",
        "devices",
        "steps",
        "breakdown",
        "runtime_detail",
        "communication_total_ms",
        "utilization",
        "operators",
        "kernels",
        "lines",
        "memory",
        "findings",
        "verdict",
        "trust",
        "account",
        "ranks",
        "repeats",
        "views",
    ]


@pytest.mark.parametrize(
    ("part", "keys"),
    [
        ("breakdown", "kernel memcpy memset communication data_loading runtime cpu other unlike_steps"),
        ("runtime_detail", "launch sync allocator other"),
        ("utilization", "nvml kernel_busy sm_coverage mfu tensor_core"),
        (
            "memory",
            "peak_bytes peak_at_ms peak_operator peak_line reserved_peak_bytes growth_bytes_per_step holders",
        ),
        (
            "steps",
            "count how step_ms typical_step_ms profiled_step_ms overhead per_step_ms profiled_per_step_ms throughput "
            "baseline cycle alternatives",
        ),
        (
            "verdict",
            "cause headline advice change bound recoverable_ms predicted_step_ms speedup_bound speedup_range "
            "confidence reasons next next_ms next_text",
        ),
    ],
)
def test_nested_keys_are_those_of_the_contract(part: str, keys: str) -> None:
    # given a report as plain values, when one part is looked at, then it has these keys
    assert set(sync().to_dict()[part]) == set(keys.split())


@pytest.mark.parametrize(
    ("part", "keys"),
    [
        (
            "operators",
            "name calls self_device_ms total_device_ms self_host_ms total_host_ms share shapes bound tensor_core "
            "amdahl_share",
        ),
        ("kernels", "name calls device_ms tensor_core bound est_occupancy"),
        ("lines", "line source device_ms host_ms sync_count peak_bytes"),
        ("trust", "check status text"),
        (
            "findings",
            "cause status recoverable_ms predicted_step_ms speedup_bound speedup_range where sites evidence advice "
            "change",
        ),
    ],
)
def test_row_keys_are_those_of_the_contract(part: str, keys: str) -> None:
    # given a report as plain values, when the rows of a list are looked at, then each has these keys
    assert [set(row) for row in sync().to_dict()[part][:2]] == [set(keys.split())] * len(sync().to_dict()[part][:2])


def test_place_and_sites_of_a_finding() -> None:
    # given a finding with one site
    finding = sync().to_dict()["findings"][0]
    # when it is plain, then place and site carry the contract's keys
    assert finding["where"] == {"operator": "aten::item", "file": None, "line": 7, "scope": None}
    assert finding["sites"] == [{"where": finding["where"], "status": "found", "count": 60, "recoverable_ms": 1.30}]


def test_numbers_that_json_has_no_word_for() -> None:
    # given a number that is not finite, when it becomes plain, then it is null
    plain = replace(sync(), communication_total_ms=float("nan")).to_dict()
    assert plain["communication_total_ms"] is None
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_a_report_of_schema_1_is_read() -> None:
    # given a report without what schema 2 brought
    plain = starvation().to_dict() | {"schema": 1}
    del plain["account"], plain["breakdown"]["unlike_steps"], plain["steps"]["typical_step_ms"]
    # when it is read, then nothing else is different
    assert Report.from_dict(plain) == starvation()


def test_unknown_keys_are_ignored() -> None:
    # given a report of a later version with keys that this one does not know
    plain = starvation().to_dict()
    plain["weather"] = "fine"
    plain["steps"]["mood"] = 1
    # when it is read, then the rest is there
    assert Report.from_dict(plain).steps == starvation().steps


@pytest.mark.parametrize("schema", [None, 0, 3, "1", True])
def test_another_schema_is_refused(schema: Any) -> None:
    # given a report with another schema number
    plain = sync().to_dict()
    plain["schema"] = schema
    # when it is read, then one sentence says what was given, what is allowed and what to do
    with pytest.raises(IpyprofError, match="reads reports with schema 1 to 2; write the report again"):
        Report.from_dict(plain)


def test_what_is_not_a_report_is_refused() -> None:
    # given a JSON list, when it is read as a report, then it is refused by our error
    with pytest.raises(IpyprofError, match="JSON without a schema number"):
        Report.from_dict([1, 2])  # type: ignore[arg-type]


def test_the_place_of_a_wrong_value_is_named() -> None:
    # given a report whose step time is text
    plain = sync().to_dict()
    plain["steps"]["step_ms"] = "fast"
    # when it is read, then the error names the place
    with pytest.raises(IpyprofError, match=r"\$\.steps\.step_ms"):
        Report.from_dict(plain)


def test_a_missing_key_is_named() -> None:
    # given a report without its verdict
    plain = sync().to_dict()
    del plain["verdict"]
    # when it is read, then the error names the key
    with pytest.raises(IpyprofError, match="verdict"):
        Report.from_dict(plain)
