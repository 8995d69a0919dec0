"""Traces of several ranks, from files: what ``load``, the magic and the command line make of them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import ipyprof
from ipyprof.__main__ import main
from ipyprof.analysis.profile import Profile
from ipyprof.errors import IpyprofError
from ipyprof.ranks import files as rank_files
from ipyprof.ranks.summary import RankSummary
from ipyprof.report.report import Report
from ipyprof.show.text import render_text
from tests.builder import TraceBuilder
from tests.shared_traces import FOLDER

LATE_US = 30_000.0
STEP_US = 20_000.0
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"


def rank_trace(
    rank: int,
    *,
    late: dict[int, float] | None = None,
    world: int = 4,
    told: bool = True,
    gpu: bool = True,
    first_step: int = 3,
    external: int = 0,
) -> TraceBuilder:
    """One rank of a job on one clock: 20 ms of kernels, an all-reduce that all leave together, an optimizer kernel.

    Args:
        late: rank → us of GPU work that it has more of, before its all-reduce.
        told: the file says which rank it is.
        first_step: number of its first step.
        external: what its ids begin at.
    """
    extra = late or {}
    builder = TraceBuilder()
    builder._last_external = external
    if gpu:
        builder.device()
    slowest = max(extra.values(), default=0.0)
    at = 1_000.0
    for step in range(3):
        own = STEP_US + extra.get(rank, 0.0)
        ready = at + 10 + own
        done = at + 10 + STEP_US + slowest + 500
        if gpu:
            builder.launch(at=at, dur=5, kernel_name="gemm", kernel_at=at + 10, kernel_dur=own)
            metadata = {
                "Collective name": "allreduce",
                "dtype": "BFloat16",
                "In msg nelems": 10_000_000,
                "Out msg nelems": 10_000_000,
                "Group size": world,
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(world))),
            }
            builder.launch(
                at=at + 20, dur=5, kernel_name=REDUCE, kernel_at=ready, kernel_dur=done - ready, stream=20, **metadata
            )
            builder.launch(at=at + 30, dur=5, kernel_name="adam", kernel_at=done + 2, kernel_dur=100)
            builder.sync(at=at + 40, dur=done + 110 - at - 40)
        else:
            builder.op("aten::mm", at=at + 10, end=at + 1_000)
        end = done + 120
        builder.step(first_step + step, at=at, end=end)
        at = end
    if told:
        builder.metadata(distributedInfo={"rank": rank, "world_size": world, "backend": "nccl"})
    builder.metadata(baseTimeNanoseconds=1_790_000_000 * 10**9, host_name="node0")
    return builder


def write(folder: Path, ranks: dict[str, TraceBuilder]) -> Path:
    """A folder with these files, packed where their names say so."""
    for name, builder in ranks.items():
        data = builder.json()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


def four(folder: Path, **values: object) -> Path:
    """Four ranks, rank 2 late by 30 ms of GPU work (C10)."""
    return write(folder, {f"rank{rank}.json.gz": rank_trace(rank, late={2: LATE_US}) for rank in range(4)})


def trust(report: Report, check: str) -> list[str]:
    return [one.text for one in report.trust if one.check == check]


SENTENCE = "Rank 2 is late by 30.0 ms on 3 of 3 steps: its GPU takes 50.1 ms for the same kernels, the others' 20.1 ms."


def test_a_folder_of_four_ranks_names_the_late_one(tmp_path: Path) -> None:
    """C10: the straggler has the least communication; with all ranks it is named, with the phase."""
    # given the traces of four ranks, when the folder is loaded
    report = ipyprof.load(four(tmp_path))
    # then the sentence names rank 2
    assert report.verdict.cause == "straggler"
    assert report.verdict.headline == SENTENCE
    assert report.ranks is not None
    assert report.ranks.count == 4 and report.ranks.missing == ()
    late = report.ranks.straggler
    assert late is not None
    assert (late.rank, late.phase) == (2, "forward")
    assert late.late_ms == pytest.approx(30.0)
    assert [one.rank for one in report.ranks.per_rank] == [0, 1, 2, 3]
    # and the step shown is its own
    assert report.ranks.shown == 2
    assert trust(report, "rank clocks") == ["the ranks share one clock; the ends of 3 collectives lie within ±0.00 ms"]


def test_one_file_of_several_ranks_cannot_tell(tmp_path: Path) -> None:
    """C10: one rank's file."""
    report = ipyprof.load(four(tmp_path) / "rank0.json.gz")

    (finding,) = (one for one in report.findings if one.cause == "straggler")
    assert (finding.status, report.ranks) == ("unknown", None)
    assert finding.evidence == "waits in collectives; one file of several ranks cannot tell who is late"


@pytest.mark.parametrize("how", ["list", "pattern", "tuple"])
def test_lists_and_patterns_give_the_same(tmp_path: Path, how: str) -> None:
    folder = four(tmp_path)
    paths = sorted(folder.iterdir())
    given = {"list": paths, "tuple": tuple(map(str, paths)), "pattern": str(folder / "rank*.json.gz")}[how]

    assert ipyprof.load(given).ranks == ipyprof.load(folder).ranks  # type: ignore[arg-type]


def test_missing_duplicate_and_cpu_only_ranks_are_named(tmp_path: Path) -> None:
    """B11: ranks 0, 2 (twice) and 7 of eight, 7 without any GPU work."""
    folder = write(
        tmp_path,
        {
            "a.json": rank_trace(0, world=8),
            "b.json": rank_trace(2, world=8),
            "c.json": rank_trace(2, world=8),
            "d.json": rank_trace(7, world=8, gpu=False),
        },
    )

    report = ipyprof.load(folder)

    assert report.ranks is not None
    assert (report.ranks.count, report.ranks.missing) == (3, (1, 3, 4, 5, 6))
    assert (report.ranks.duplicates, report.ranks.cpu_only) == ((2,), (7,))
    assert trust(report, "ranks") == [
        "3 of 8 ranks are there, ranks 1, 3–6 missing",
        "more than one file of rank 2: b.json is used, left out: c.json",
        "no GPU work in the recording of rank 7: not compared",
    ]


def test_ranks_come_from_the_names_of_files(tmp_path: Path) -> None:
    """B11: no distributedInfo; rank10 comes after rank9."""
    folder = write(
        tmp_path, {f"rank{rank}.json": rank_trace(rank, told=False, late={10: LATE_US}, world=11) for rank in (9, 10)}
    )

    report = ipyprof.load(folder)

    assert report.ranks is not None
    assert report.ranks.straggler.rank == 10
    assert report.ranks.missing == tuple(range(9))


def test_external_ids_may_differ_between_ranks(tmp_path: Path) -> None:
    """B11: collectives are matched by order and group, not by an id of one process."""
    late = {1: LATE_US}
    folder = write(
        tmp_path,
        {f"rank{rank}.json": rank_trace(rank, late=late, world=2, external=5_000 * rank) for rank in range(2)},
    )

    report = ipyprof.load(folder)

    assert report.ranks is not None and report.ranks.straggler.rank == 1
    assert trust(report, "collectives") == []


def test_different_steps_are_compared_on_the_common_ones(tmp_path: Path) -> None:
    """B11: rank 1 recorded one step later."""
    late = {1: LATE_US}
    ranks = {f"rank{rank}.json": rank_trace(rank, late=late, world=2, first_step=3 + rank) for rank in range(2)}

    report = ipyprof.load(write(tmp_path, ranks))

    assert report.ranks is not None and report.ranks.steps == 2
    assert trust(report, "rank steps") == ["the ranks recorded different steps; 2 are common and compared"]


def test_what_is_no_trace_is_left_out_and_named(tmp_path: Path) -> None:
    # given a folder with a notebook and a broken file among the traces
    folder = four(tmp_path)
    (folder / "notes.json").write_text('{"cells": []}')
    (folder / "broken.json.gz").write_bytes(b"\x1f\x8b broken")
    # when it is loaded, then the ranks are read and the others are named
    report = ipyprof.load(folder)
    assert report.ranks is not None and report.ranks.count == 4
    left_out = trust(report, "files")
    assert any("notes.json is a notebook" in text for text in left_out)
    assert any("broken.json.gz is a broken gzip file" in text for text in left_out)


def test_one_file_that_cannot_be_analysed_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a failure of ours on one of four files
    real = rank_files.summarise

    def failing(profile: Profile) -> RankSummary:
        if profile.trace.path.endswith("rank1.json.gz"):
            raise RuntimeError("odd")
        return real(profile)

    monkeypatch.setattr(rank_files, "summarise", failing)
    # when they are read here
    found = rank_files.read_summaries(rank_files.trace_files(four(tmp_path)), workers=1)
    # then the others are there, and it is named
    assert [one.rank for one in found if isinstance(one, RankSummary)] == [0, 2, 3]
    assert "rank1.json.gz could not be analysed (RuntimeError: odd)" in str(found[1])


def test_a_pattern_without_files_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(IpyprofError, match="no file is called"):
        ipyprof.load(tmp_path / "*.json")


def test_files_are_read_in_processes_and_a_dead_one_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two processes for four files
    paths = rank_files.trace_files(four(tmp_path))
    found = rank_files.read_summaries(paths, workers=2)
    assert [one.rank for one in found if isinstance(one, RankSummary)] == [0, 1, 2, 3]
    # when no process can be started, then the files are read here, with the same result
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    assert rank_files.read_summaries(paths, workers=2) == found


def test_reading_in_processes_does_not_run_the_script_again(tmp_path: Path) -> None:
    # given a script without a guard that prints and loads a folder
    folder = four(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(f"print('once')\nimport ipyprof\nprint(ipyprof.load({str(folder)!r}).ranks.straggler.rank)\n")
    root = str(Path(ipyprof.__file__).resolve().parents[1])
    # when it runs
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env={"PYTHONPATH": root, "PATH": ""}
    )
    # then it ran once
    assert done.stdout.split() == ["once", "2"]


def test_report_of_ranks_survives_json_and_is_drawn(tmp_path: Path) -> None:
    report = ipyprof.load(four(tmp_path))
    again = Report.from_dict(json.loads(json.dumps(report.to_dict())))

    assert again.ranks == report.ranks
    text = render_text(again)
    assert "4 ranks, 3 steps compared" in text
    assert "! rank 2 (shown) +30.00" in " ".join(text.split())


def test_command_line_shows_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = four(tmp_path)

    assert main(["report", str(folder)]) == 0
    assert "Rank 2 is late by 30.0 ms" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"]["straggler"]["rank"] == 2


def test_magic_loads_and_keeps_the_report(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder of traces
    (tmp_path / "log").mkdir()
    four(tmp_path / "log")
    # when the magic loads it
    shell.run_cell("%gpuprofile --load log/ -o ranks").raise_error()
    # then the sentence is shown, and the report has its name
    assert "Rank 2 is late by 30.0 ms" in " ".join(capsys.readouterr().out.split())
    assert shell.user_ns["ranks"].verdict.cause == "straggler"
    assert ipyprof.last_report() is shell.user_ns["ranks"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--load nowhere.json", "nowhere.json cannot be opened"),
        ("--load log --wait 2", "does not take --wait"),
    ],
)
def test_magic_says_what_cannot_be_loaded(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    shell.run_cell(f"%gpuprofile {line}")

    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(not (FOLDER / "nccl-h200").exists(), reason="the shared traces are not there")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("balanced", "2 ranks are balanced"),
        ("straggler_gpu", "rank 1 is late by 4.10 ms on 3 of 3 steps: its GPU computes 14.6 ms, the others' 11.4 ms"),
    ],
)
def test_recordings_of_two_gpus(name: str, told: str) -> None:
    """DDP on two H200s; rank 1 of the second runs twenty products more."""
    report = ipyprof.load(str(FOLDER / "nccl-h200" / f"ddp_{name}_rank*.json.gz"))

    assert report.ranks is not None
    assert told in report.ranks.sentence
    assert (report.verdict.cause == "straggler") == (name == "straggler_gpu")


@pytest.mark.skipif(not (FOLDER / "hta").exists(), reason="the shared traces are not there")
def test_real_mixed_folder(tmp_path: Path) -> None:
    """B11: two of 128 ranks, a CPU-only file of rank 0, and a file that names no rank."""
    hta = FOLDER / "hta"
    names = [
        "tests~data~timeline_analysis~sampled_rank-0.json.gz",
        "tests~data~trace_filter~sampled_rank-1.json.gz",
        "tests~data~mixed_files~rank_non_gpu.json.gz",
        "tests~data~rank_unavailable~rank_not_found.json.gz",
    ]

    report = ipyprof.load([hta / name for name in names])

    assert report.ranks is not None
    assert (report.ranks.world_size, len(report.ranks.missing)) == (128, 125)
    assert report.ranks.duplicates == (0,)
    assert report.ranks.cpu_only == (2,)
    assert any("numbered in order" in text for text in trust(report, "ranks"))


def test_magic_of_a_single_kernel_asked_for_ranks_reports_as_ever(shell: InteractiveShell) -> None:
    # given a kernel that is no rank of a job, when the magic is asked for ranks
    shell.run_cell(
        "%%gpuprofile -q --ranks auto -o report\nfor i in range(9):\n    x = torch.tanh(x @ x)\n"
    ).raise_error()
    # then its report says so
    report = shell.user_ns["report"]
    assert report.ranks is None
    assert trust(report, "ranks") == ["no other rank was found: start the script with torchrun, or leave ranks out"]
