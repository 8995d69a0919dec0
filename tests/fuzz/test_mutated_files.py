"""Damaged files of every kind end in a report or in one of our own errors."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import KEYS, VALUES, mutated
from tests.fuzz.outcome import REFUSED, REPORT, outcome
from tests.fuzz.seeds import built, seeds

SEEDS = seeds()


@settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.sampled_from(range(len(SEEDS))), numbers=st.randoms(use_true_random=False))
def test_a_mutated_file_is_a_report_or_refused(tmp_path: Path, seed: int, numbers: random.Random) -> None:
    data = mutated(SEEDS[seed], numbers.randrange)
    assert outcome(data, tmp_path / "trace.json") in (REPORT, REFUSED)


@settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789.eE-+ntfaluN \\u', max_size=200).map(str.encode)
)
def test_any_bytes_are_a_report_or_refused(tmp_path: Path, data: bytes) -> None:
    for text in (data, b'{"traceEvents":[' + data, b'{"traceEvents":[{"ph":"X","ts":1,"dur":1},' + data + b"]}"):
        assert outcome(text, tmp_path / "trace.json") in (REPORT, REFUSED)


@pytest.mark.parametrize("key", ["ts", "dur", "pid", "tid", "name", "cat", "args", "ph", "id"])
def test_any_value_of_any_field_is_a_report_or_refused(tmp_path: Path, key: str) -> None:
    # given every odd value once, in a file whose other events are sound
    file: dict[str, Any] = json.loads(built().json())
    rows = [dict(row) for row in file["traceEvents"]]
    for value, row in zip(VALUES, itertools.cycle(rows), strict=False):
        file["traceEvents"].append({**row, key: value})
    data = json.dumps(file).encode("utf-8", "surrogatepass")
    # then
    assert outcome(data, tmp_path / "trace.json") == REPORT


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("traceEvents", "")])
def test_any_value_of_any_argument_is_a_report(tmp_path: Path, key: str) -> None:
    file: dict[str, Any] = json.loads(built().json())
    rows = [dict(row) for row in file["traceEvents"]]
    for value, row in zip(VALUES, itertools.cycle(rows), strict=False):
        file["traceEvents"].append({**row, "args": {**row.get("args", {}), key: value}})
    data = json.dumps(file).encode("utf-8", "surrogatepass")
    assert outcome(data, tmp_path / "trace.json") == REPORT
