"""The memory suite's own judgement, checked without a GPU: it must see what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.memory_cases import (
    ENTRIES,
    judge_attention,
    judge_caught,
    judge_churn,
    judge_cost,
    judge_devices,
    judge_failure,
    judge_leak,
    judge_reading,
    judge_training,
)

MATRIX = 500
LINE = "activations of line 3"


def report(peak: int, **holders: int) -> dict[str, Any]:
    """A report's dictionary with a peak and who holds it, as far as the suite reads it."""
    named = [{"name": name.replace("_", " "), "bytes": size, "line": 3} for name, size in holders.items()]
    return {"memory": {"peak_bytes": peak, "holders": named}}


SLOW, FIXED = report(1_500, activations_of_line_3=500, rest=1_000), report(400, activations_of_line_3=20, rest=380)


@pytest.mark.parametrize(
    ("slow", "fixed", "most"),
    [
        (report(1_500, activations_of_line_3=480, rest=1_020), FIXED, 1_500),
        (report(1_500, rest=1_500), FIXED, 1_500),
        (SLOW, FIXED, 1_600),
        (report(1_500, activations_of_line_3=500, rest=999), FIXED, 1_500),
        (SLOW, report(400, activations_of_line_3=100, rest=300), 1_500),
        (SLOW, report(1_100, rest=1_100), 1_500),
    ],
    ids=["too few", "not named", "peak", "sum", "still there", "peak stays"],
)
def test_attention_that_is_wrong_is_seen(slow: dict[str, Any], fixed: dict[str, Any], most: int) -> None:
    assert judge_attention(slow, fixed, most, MATRIX).failures


def test_attention_that_is_right_holds() -> None:
    assert judge_attention(SLOW, FIXED, 1_500, MATRIX).failures == ()


def test_a_training_is_judged_by_each_role_and_by_the_sums() -> None:
    expected = {"parameters of model": 1_000, "gradients of model": 1_000}

    assert judge_training({"parameters of model": 1_005, "gradients of model": 995}, expected, 0).failures == ()
    assert len(judge_training({"parameters of model": 1_050}, expected, 3).failures) == 3


def leaking(name: str = "kept", size: int = 1_000, line: int = 4) -> dict[str, Any]:
    growing = [{"name": name, "bytes": size, "line": line}]
    return {"views": {"memory": {"growing": growing}}, "memory": {"growth_bytes_per_step": 1_000}}


@pytest.mark.parametrize("given", [leaking("loss"), leaking(size=900), leaking(line=5), {**leaking(), "views": {}}])
def test_a_leak_that_is_wrong_is_seen(given: dict[str, Any]) -> None:
    assert judge_leak(given, 1_000).failures


def test_a_leak_that_is_right_holds() -> None:
    assert judge_leak(leaking(), 1_000).failures == ()


def churning(*calls: tuple[int, str], lowest: int = 10) -> dict[str, Any]:
    rows = [[1.0, 0.1, 1, what, step, 0.5] for step, what in calls]
    heartbeat = {"reserved": [100, lowest]}
    return {"views": {"memory": {"calls": rows}, "heartbeat": heartbeat}, "steps": {"count": 2}}


def test_churn_is_judged_by_its_calls_and_by_the_curve() -> None:
    both = ((1, "cache given back"), (2, "memory taken from the driver"))

    assert judge_churn(churning(*both)).failures == ()
    assert judge_churn(churning(both[0])).failures
    assert judge_churn(churning(both[1], both[1])).failures
    assert judge_churn(churning(*both, lowest=90)).failures


def failing(
    line: int = 6,
    tried: int = 100,
    last: str = "hidden",
    size: int = 100,
    headline: str = "Line 6 ran out of memory; largest holder: parameters of big, 100 bytes.",
) -> dict[str, Any]:
    names = ("parameters of big", "gradients of big", last)
    holders = [{"name": name, "bytes": size} for name in names]
    failed = {"line": line, "tried_bytes": tried, "holders": holders}
    return {"views": {"memory": {"out_of_memory": failed}}, "verdict": {"headline": headline}}


@pytest.mark.parametrize(
    "given",
    [
        failing(5),
        failing(tried=90),
        failing(last="loss"),
        failing(size=50),
        failing(headline="The GPU is not waiting."),
        failing(headline="Line 6 ran out of memory; largest holder: hidden."),
        failing(headline="Line 6 ran out of memory; largest holder: parameters of big" + " x" * 20),
        {"views": {}},
    ],
)
def test_a_failure_that_is_told_wrong_is_seen(given: dict[str, Any]) -> None:
    assert judge_failure(given, 100).failures


def test_a_failure_that_is_told_right_holds() -> None:
    assert judge_failure(failing(), 100).failures == ()


def caught(line: int = 4, count: int = 3, trusted: str = "ok", headline: str = "The GPU waits.") -> dict[str, Any]:
    refused = [{"line": line, "count": count, "operator": "aten::empty", "asked_bytes": 9}]
    return {
        "views": {"memory": {"refused": refused}},
        "steps": {"count": 3},
        "trust": [{"check": "out of memory", "status": trusted}],
        "verdict": {"headline": headline},
    }


def test_caught_requests_are_judged_by_place_trust_and_verdict() -> None:
    assert judge_caught(caught(trusted="warn")).failures == ()
    assert judge_caught(caught()).failures
    for wrong in ({"line": 5}, {"count": 2}, {"headline": "Line 4 ran out of memory."}):
        assert judge_caught(caught(**{"trusted": "warn", **wrong})).failures  # type: ignore[arg-type]


def test_reading_is_judged_by_entries_and_time() -> None:
    assert judge_reading(ENTRIES, 1.9).failures == ()
    assert judge_reading(ENTRIES - 1, 1.9).failures
    assert judge_reading(ENTRIES, 2.1).failures


def test_devices_are_judged_by_curve_and_holder() -> None:
    def given(curve: int = 1, size: int = 4 * 2**24) -> dict[str, Any]:
        held = {0: ("one", 4 * 2**24), 1: ("other", size)}
        found = [
            {"index": index, "memory": {"holders": [{"name": name, "bytes": held_bytes}]}}
            for index, (name, held_bytes) in held.items()
        ]
        return {"views": {"memory": {"devices": [{"device": curve}]}}, "devices": found, "device": found[0]}

    assert judge_devices(given()).failures == ()
    assert judge_devices(given(curve=2)).failures
    assert judge_devices(given(size=9)).failures


def test_the_cost_is_the_median_of_pairs() -> None:
    same = [(1.0, 1.0)]

    assert judge_cost([(1.1, 1.0), (1.19, 1.0), (9.0, 1.0)], same).failures == ()
    assert judge_cost([(1.1, 1.0), (1.3, 1.0), (1.3, 1.0)], same).failures
    assert judge_cost([(1.1, 1.0)], [(1.2, 1.0)]).failures
