"""Real jobs on the CPU: Gloo, two and four processes started by torch's own launcher, each with a planted delay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.job import LATE_S

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "ranks" / "job.py"
LIMIT_S = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job left: its exit code, what it printed (in one line), and rank 0's report of each case."""

    code: int
    printed: str
    reports: dict[str, dict[str, Any]]


def run_job(cases: str, ranks: int, folder: Path) -> Done:
    """The job of these cases, one after another in the same processes; it fails the test when it hangs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, str(JOB), cases, str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
    )
    reports = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return Done(code=done.returncode, printed=" ".join((done.stdout + done.stderr).split()), reports=reports)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two ranks, six runs."""
    return run_job("balanced,compute,loader,host,fsdp,short", 2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Four ranks, three runs."""
    return run_job("balanced,compute,loader", 4, tmp_path_factory.mktemp("four"))


@pytest.fixture(params=[2, 4])
def job(request: pytest.FixtureRequest) -> tuple[int, Done]:
    """(ranks, what they left)."""
    return request.param, request.getfixturevalue({2: "two", 4: "four"}[request.param])


def test_balanced_ranks(job: tuple[int, Done]) -> None:
    # given a job without a delay, when it is recorded
    ranks, done = job
    # then it is balanced, and all ranks are there
    assert done.code == 0, done.printed
    found = done.reports["balanced"]["ranks"]
    # (four processes on two cores take turns at being late)
    assert found["state"] == "balanced" or (ranks > 2 and found["state"] == "varying"), found["sentence"]
    assert (f"{ranks} ranks are balanced" in found["sentence"]) == (found["state"] == "balanced")
    assert (found["count"], found["missing"], found["straggler"]) == (ranks, [], None)


def test_only_rank_0_reports(two: Done) -> None:
    """A report for each of the six runs, not for each rank."""
    assert two.printed.count("2 ranks, ") == 6


@pytest.mark.parametrize(
    ("case", "phase", "because"),
    [("compute", "forward", "its operators take"), ("loader", "loader", "its loader takes")],
)
def test_the_late_rank_is_named(case: str, phase: str, because: str, job: tuple[int, Done]) -> None:
    # given a job whose last rank has 80 ms more of something in each step, when it is recorded
    ranks, done = job
    assert done.code == 0, done.printed
    found, verdict = done.reports[case]["ranks"], done.reports[case]["verdict"]
    # then the sentence names it, by how much it is late, and what it has more of
    assert verdict["cause"] == "straggler", found["sentence"]
    assert verdict["headline"].startswith(f"Rank {ranks - 1} is late by ")
    assert because in verdict["headline"]
    assert (found["straggler"]["rank"], found["straggler"]["phase"]) == (ranks - 1, phase)
    # computing is slower where four processes share two cores
    most = 1.25 if case == "loader" else 2.5
    assert 0.75 * LATE_S * 1e3 < found["straggler"]["late_ms"] < most * LATE_S * 1e3
    # and the traces that are kept are there, with the reasons
    kept = {one["rank"]: one["kept"] for one in found["per_rank"] if one["kept"]}
    assert kept[ranks - 1].startswith("late, last: ")
    assert all(Path(text.split(": ")[1]).is_file() for text in kept.values())
    assert len(kept) == 2 if ranks == 2 else len(kept) in (2, 3)


@pytest.mark.parametrize("case", ["host", "fsdp"])
def test_a_late_host_is_named(case: str, two: Done) -> None:
    """With DDP, where nothing waits between the buckets, and with FSDP, where each layer waits for its weights."""
    report = two.reports[case]

    assert report["ranks"]["straggler"]["rank"] == 1
    assert "its Python takes" in report["verdict"]["headline"]
    assert 0.75 * LATE_S * 1e3 < report["ranks"]["straggler"]["late_ms"] < 1.25 * LATE_S * 1e3


def test_ranks_that_record_fewer_steps_are_compared_on_those(two: Done) -> None:
    """Both leave the loop in the fourth recorded step."""
    report = two.reports["short"]

    # On a busy machine the first step may be left out, because one profiler started later than the other.
    left_out = any(check["check"] == "profiler start" for check in report["trust"])
    assert report["ranks"]["steps"] == (2 if left_out else 3), report["trust"]
    assert report["source"]["partial"] != ""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_raises_is_named(ranks: int, tmp_path: Path) -> None:
    # given a job whose last rank raises after the recording, while the others wait for it in a collective
    done = run_job("raises", ranks, tmp_path)
    # then the job ends with its error, and the sentence says which rank stopped with what
    assert done.code != 0
    assert "ValueError: boom" in done.printed
    assert f"rank {ranks - 1} stopped with ValueError: boom" in done.printed


def test_a_rank_that_dies_leaves_a_partial_report(tmp_path: Path) -> None:
    # given a job whose last rank dies without a word, so that the launcher ends the other
    done = run_job("dies", 2, tmp_path)
    # then rank 0 still says what it knows, and who is missing
    assert done.code != 0
    assert "1 of 2 ranks: could not tell who is late: rank 1 missing" in done.printed
    assert "1 rank did not report" in done.printed


def test_without_a_process_group_the_launchers_store_is_the_meeting_place(tmp_path: Path) -> None:
    # given ranks that never make a process group
    done = run_job("unmade", 2, tmp_path)
    # then both are there, and nothing can be said of who is late
    found = done.reports["unmade"]["ranks"]
    assert found["count"] == 2
    assert found["sentence"] == "could not tell who is late: no collective in the recorded steps"


def test_a_single_process_is_reported_as_ever(tmp_path: Path) -> None:
    # given a script that asks for ranks and was not started by a launcher
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch, ipyprof\n"
        "with ipyprof.profile(ranks='auto', quiet=True) as run:\n"
        "    for _ in range(9):\n"
        "        torch.ones(64, 64) @ torch.ones(64, 64)\n"
        "        run.step()\n"
        "print([one.text for one in run.report.trust if one.check == 'ranks'], run.report.ranks)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, env={**environment, "PYTHONPATH": str(ROOT)}, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == (
        "['no other rank was found: start the script with torchrun, or leave ranks out'] None"
    )
