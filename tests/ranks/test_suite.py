"""The suite for several GPUs: a dry run of its command, and what it calls wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.ranks_suite import CASES, Case, fault

BOUND = Case(name="bound", plain=True)
ROOT = Path(__file__).resolve().parents[2]
GPU = next(case for case in CASES if case.name == "gpu_work")


def test_the_command_runs_on_the_cpu(tmp_path: Path) -> None:
    # given no GPU, when one case is run as on a GPU machine
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.ranks_suite", "--case", "loader_sleep", "--out", str(tmp_path / "out")],
        capture_output=True, text=True, cwd=ROOT, env=environment, timeout=150, check=False,
    )  # fmt: skip
    # then the table names rank and cause
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 1, loader |" in done.stdout


def found(**changes: Any) -> dict[str, Any]:
    """What a right report of the case says."""
    right = {
        "cuda": True,
        "count": 2,
        "missing": [],
        "planted_ms": 8.0,
        "communication": "cleared",
        "without_ms": None,
        "straggler": {"rank": 1, "cause": "compute", "late_ms": 8.3, "phase": "forward"},
    }
    return {**right, **changes}


def alone(**changes: Any) -> dict[str, Any]:
    """What a report says of a job without a late rank, whose step takes 5 ms by hand too."""
    return found(**{"straggler": None, "step_ms": 5.0, "with_ms": 5.0, "communication_ms": None, **changes})


@pytest.mark.parametrize(
    ("case", "report", "told"),
    [
        (GPU, found(), ""),
        (GPU, found(straggler=None), "rank 1 is late"),
        (GPU, found(straggler={"rank": 0, "cause": "compute", "late_ms": 8.0}), "rank 1, compute"),
        (GPU, found(straggler={"rank": 1, "cause": "host", "late_ms": 8.0}), "rank 1, compute"),
        (GPU, found(straggler={"rank": 1, "cause": "compute", "late_ms": 9.0}), "off by 12%"),
        (GPU, found(cuda=False, straggler={"rank": 1, "cause": "compute", "late_ms": 9.0}), ""),
        (GPU, found(count=1, missing=[1]), "1 of 2 ranks"),
        (Case(name="balanced"), found(), "no rank is late"),
        (Case(name="balanced"), found(straggler=None), ""),
        (BOUND, alone(without_ms=4.9), ""),
        (BOUND, alone(without_ms=2.0), "with its collectives hidden it is 60% faster"),
        (BOUND, alone(without_ms=4.6), ""),
        (BOUND, alone(without_ms=4.6, communication="found", predicted_ms=4.5), ""),
        (BOUND, alone(without_ms=2.0, communication="found", predicted_ms=2.1), ""),
        (BOUND, alone(without_ms=2.0, communication="found", predicted_ms=3.0), "predicted 0.60 of the step, not 0.40"),
        (BOUND, alone(without_ms=4.9, communication="found"), "with its collectives hidden it is 2% faster"),
        (BOUND, alone(without_ms=2.0, communication_ms=4.8), ""),
    ],
)
def test_what_was_not_planted_is_wrong(case: Case, report: dict[str, Any], told: str) -> None:
    assert fault(case, report, 2) == told
