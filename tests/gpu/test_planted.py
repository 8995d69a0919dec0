"""The planted loops of the GPU suite, one test each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.suite import run
from tests.gpu.workloads import WORKLOADS, Workload


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", WORKLOADS, ids=[workload.name for workload in WORKLOADS])
def test_planted_loop_is_timed_and_named(workload: Workload, tmp_path: Path) -> None:
    # given a planted loop, when its notebook has run
    outcomes = run(workload, tmp_path)
    # then its step time, the sum of its breakdown and its verdict hold in both forms
    assert {f"{one.workload} {one.form}": one.failures for one in outcomes if one.failures} == {}
