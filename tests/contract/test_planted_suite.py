"""The planted suite, checked without a GPU: what it holds, that its cells compile, and that its judge sees."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.planted import HEALTHY, PAIRS, PLANTED
from tests.gpu.planted.__main__ import chosen
from tests.gpu.planted.judge import CLASSIC, classic, rows_of, summary
from tests.gpu.planted.tables import read_results, write_results
from tests.gpu.stepped import compile_stepped, fixed_step_ms
from tests.gpu.workloads import NOT_WAITING, Workload

ROOT = Path(__file__).resolve().parents[2]
CAUSES = {
    "data_loading", "host_sync", "allocator", "transfer", "cpu_bound", "launch_bound", "unstable_shapes",
    "tensor_cores", "misaligned_shapes", "memory_bound",
}  # fmt: skip
BY_NAME = {one.name: one for one in PLANTED}


def compile_cells(workload: Workload) -> None:
    """Compiles every cell of a loop.

    Raises:
        SyntaxError: a cell is no Python. ValueError: a loop cell has no loop.
    """
    loops = [
        workload.slow,
        *([] if workload.fixed is None else [workload.fixed]),
        *(one[2] for one in workload.variants),
    ]
    for text in (workload.setup, workload.fixed_setup, *(one[1] for one in workload.variants)):
        ast.parse(text)
    for loop in loops:
        if workload.trainer:
            ast.parse(loop)
        else:
            compile_stepped(loop, workload.name)


def test_every_single_gpu_cause_is_planted_in_pairs() -> None:
    # given the pairs, when their causes are counted, then there are enough and none is missing
    assert len(PAIRS) >= 24
    assert {one.slow_cause for one in PAIRS} == CAUSES
    assert all(one.fixed is not None for one in PAIRS)


def test_half_of_the_pairs_of_each_cause_is_kept_aside() -> None:
    # given the pairs, when those kept aside are counted, then they are half, and each cause is in both halves
    aside = Counter(one.slow_cause for one in PAIRS if one.held_out)
    tuning = Counter(one.slow_cause for one in PAIRS if not one.held_out)
    assert abs(aside.total() - tuning.total()) <= 1
    assert set(aside) == set(tuning) == CAUSES


def test_real_models_and_both_trainers_are_among_them() -> None:
    # given the pairs, when their models are read, then there are six real models and two trainers, each used once
    models = [one.model for one in PAIRS if one.model]
    assert len([model for model in models if not model.endswith("Trainer")]) >= 5
    assert len(set(models)) == len(models) >= 7
    assert {one.name for one in PAIRS if one.trainer} == {"hf_trainer", "lightning_trainer"}


def test_healthy_loops_are_enough_and_stand_alone() -> None:
    # given the healthy loops, when they are read, then there are eight or more and none has a fixed form
    assert len(HEALTHY) >= 8
    assert all(one.slow_cause == NOT_WAITING and one.fixed is None for one in HEALTHY)


def test_names_are_unique_and_fit_a_file_name() -> None:
    # given all loops, when their names are read, then each is a name of its own
    assert len(BY_NAME) == len(PLANTED)
    assert all(name.isidentifier() for name in BY_NAME)


@pytest.mark.parametrize("workload", PLANTED, ids=[one.name for one in PLANTED])
def test_cells_compile(workload: Workload) -> None:
    # given a planted loop in the sizes of the dry run, when its cells are compiled, then they are Python
    compile_cells(workload)


def test_cells_compile_in_the_sizes_of_the_gpu_run() -> None:
    # given the sizes of the GPU run, when every cell is compiled, then it is Python
    code = (
        "from tests.contract.test_planted_suite import PLANTED, compile_cells\n"
        "print(len([*map(compile_cells, PLANTED)]))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"IPYPROF_SMALL": "0"}, capture_output=True, text=True
    )
    assert (told.stdout.strip(), told.returncode) == (str(len(PLANTED)), 0), told.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("item_ten_times", ".item()"),
        ("clip_with_if", "if scale"),
        ("print_loss", "print(float(loss))"),
        ("synchronise_each_layer", "torch.cuda.synchronize()"),
        ("numpy_augmentation", "augment(step)"),
        ("python_lists", "k * k % 7"),
        ("sleep_before_product", "time.sleep"),
        ("empty_cache_each_step", "empty_cache()"),
        ("growing_history_capped", "torch.cat"),
        ("pageable_batch", ".to(device"),
        ("buffer_left_on_cpu", "statistics.to(device)"),
        ("results_to_host", "y.cpu()"),
        ("gpt2_logits_to_host", "logits.cpu()"),
        ("products_4093", "a @ b"),
        ("sleeping_items", "in loader:"),
        ("plain_generator", "in batches():"),
        ("tokenised_on_the_fly", "in loader:"),
        ("positions_each_step", "nonzero"),
        ("activations_to_host", '.to("cpu")'),
        ("json_each_step", "json.dumps"),
        ("layers_of_5003", "F.linear"),
        ("norm_by_hand", "norm(x"),
    ],
)
def test_expected_lines_hold_the_cause(name: str, text: str) -> None:
    # given a pair whose verdict should name a line, when that line is read, then it holds the cause
    lines = ("%%gpuprofile\n" + BY_NAME[name].slow).splitlines()
    assert any(text in lines[number - 1] for number in BY_NAME[name].expected_lines)


def test_shards_share_a_half_without_overlap() -> None:
    # given three shards of each half, when they are put together, then each loop is there once
    names = [
        one.name
        for half in ("tuning", "held-out", "later")
        for number in (1, 2, 3)
        for one in chosen(half, f"{number}/3", [])
    ]
    assert sorted(names) == sorted(one.name for one in PLANTED)


@pytest.mark.parametrize(("shard", "only"), [("0/2", []), ("3/2", []), ("1/1", ["no_such_loop"])])
def test_unknown_shard_or_name_is_refused(shard: str, only: list[str]) -> None:
    # given a shard or a name that does not exist, when loops are chosen, then that is an error
    with pytest.raises(ValueError, match=r"shard|no such loop"):
        chosen("all", shard, only)


def form(
    cause: str, *, hand: float, found: dict[str, float] | None = None, file: str = "", file_confidence: str = "medium"
) -> dict[str, Any]:
    """What the worker writes of one form; ``found`` is cause → predicted step in ms."""
    findings = [
        {"cause": name, "status": "found", "predicted_step_ms": ms, "recoverable_ms": hand - ms, "where": {"line": 2}}
        for name, ms in (found or {}).items()
    ]
    verdict = {"cause": cause, "confidence": "high", "headline": f"{cause}."}
    return {
        "step_ms": hand,
        "report": {"verdict": verdict, "findings": findings, "steps": {"step_ms": hand}, "operators": []},
        "file": {"verdict": {"cause": file or cause, "confidence": file_confidence}, "findings": []},
    }


def failures(name: str, **forms: Any) -> list[str]:
    """What the judge says of one loop's forms."""
    return [text for row in rows_of({name: {"forms": forms}}) for text in row.failures]


def test_right_pair_holds() -> None:
    # given a slow form rightly named, a prediction within 10 % above the fixed step, and a fixed form without the cause
    slow = form("data_loading", hand=22.0, found={"data_loading": 5.4})
    # when it is judged, then nothing is wrong
    assert failures("sleeping_items", slow=slow, fixed=form("compute_bound", hand=5.0)) == []


@pytest.mark.parametrize(
    ("slow", "fixed", "words"),
    [
        (
            form("cpu_bound", hand=22.0, found={"data_loading": 5.0, "cpu_bound": 4.0}, file="data_loading"),
            form("compute_bound", hand=5.0),
            "called cpu_bound, expected data_loading",
        ),
        (
            form("data_loading", hand=22.0, found={"data_loading": 5.6}),
            form("compute_bound", hand=5.0),
            "predicted 5.600 ms, fixed 5.000 ms: 1.12 × of it",
        ),
        (
            form("data_loading", hand=22.0, found={"data_loading": 5.0}),
            form("data_loading", hand=5.0),
            "still called data_loading",
        ),
        (
            form("data_loading", hand=22.0, found={"data_loading": 5.0}, file="launch_bound", file_confidence="high"),
            form("compute_bound", hand=5.0),
            "from the file launch_bound, with high confidence",
        ),
    ],
)
def test_wrong_pair_is_seen(slow: dict[str, Any], fixed: dict[str, Any], words: str) -> None:
    # given a pair that is wrong in one way, when it is judged, then that is said
    assert failures("sleeping_items", slow=slow, fixed=fixed) == [words]


def test_waiting_cause_in_a_healthy_loop_is_seen() -> None:
    # given a healthy loop whose report finds a sync behind a compute_bound verdict
    slow = form("compute_bound", hand=20.0, found={"host_sync": 18.0})
    # when it is judged, then that is said
    assert failures("item_on_busy_gpu", slow=slow) == ["called host_sync, expected not waiting"]


def test_summary_counts_what_holds() -> None:
    # given one right pair with an error of 4 %, one pair that did not run and one healthy loop
    results: dict[str, Any] = {
        "sleeping_items": {
            "forms": {
                "slow": form("data_loading", hand=22.0, found={"data_loading": 5.2}),
                "fixed": form("compute_bound", hand=5.0),
            }
        },
        "item_ten_times": {"error": "the worker ended with -9", "forms": {}},
        "large_products": {"forms": {"slow": form("compute_bound", hand=9.0)}},
    }
    # when the rows are counted
    got = summary(rows_of(results))
    # then the pair that did not run counts as not right
    assert (got.pairs, got.slow_right, got.fixed_right) == (2, 1, 1)
    assert (got.healthy, got.healthy_right) == (1, 1)
    assert (got.files, got.files_right, got.files_sure_and_wrong) == (2, 2, 0)
    assert got.median_error == pytest.approx(0.04)
    assert not got.held


def test_fixed_form_is_taken_at_the_speed_of_the_recording() -> None:
    # given a fixed form timed on a fast and on a slow host, and a slow form recorded on the slow one
    fixed = {"hand_ms": [6.0, 9.0, 9.2], "paces_ms": [15.0, 29.0, 28.0], "step_ms": 9.0}
    # when its step is asked for, then only the timings on the slow host count
    assert fixed_step_ms({"pace_ms": 30.0}, fixed) == (9.1, True)


@pytest.mark.parametrize("pace", [None, 60.0])
def test_without_a_timing_at_that_speed_all_count(pace: float | None) -> None:
    # given a recording at no known speed or at one that no timing has, when the step is asked for, then that is said
    fixed = {"hand_ms": [6.0, 9.0, 9.2], "paces_ms": [15.0, 29.0, 28.0], "step_ms": 9.0}
    assert fixed_step_ms({"pace_ms": pace}, fixed) == (9.0, False)


def attention_form(step: float, attention: float, share: float) -> dict[str, Any]:
    """A form of the classic case with one attention row."""
    made = form("data_loading", hand=step, found={"data_loading": 50.0})
    made["report"]["operators"] = [
        {"name": "aten::_flash_attention_forward", "self_device_ms": attention, "amdahl_share": share}
    ]
    return made


def test_classic_case_compares_the_gain_with_the_figure_of_the_report() -> None:
    # given attention of 15 of 300 ms, made 2.5 × faster for 291 ms, and a loader mended for 50 ms
    results = {
        CLASSIC: {
            "forms": {
                "slow": attention_form(300.0, 15.0, 0.05),
                "attention": attention_form(291.0, 6.0, 0.02),
                "fixed": attention_form(50.0, 15.0, 0.3),
            }
        }
    }
    # when it is judged
    told, wrong = classic(results)
    # then both gains are told and nothing is wrong
    assert "2.50 × faster" in told[1]
    assert "3.0 % less" in told[1]
    assert "6.0 × faster" in told[2]
    assert wrong == []


def test_shards_are_merged_into_one_file_that_keeps_the_rest(tmp_path: Path) -> None:
    # given two shards' results and a page that already holds an older block between other text
    for number, name in enumerate(("sleeping_items", "too_few_workers")):
        forms = {
            "slow": form("data_loading", hand=22.0, found={"data_loading": 5.0}),
            "fixed": form("compute_bound", hand=5.0),
        }
        (tmp_path / str(number)).mkdir()
        text = json.dumps({"machine": {"device": "H200"}, "seconds": 9, "loops": {name: {"forms": forms}}})
        (tmp_path / str(number) / "results.json").write_text(text)
    target = tmp_path / "RESULTS.md"
    target.write_text("# Results\n\n<!-- planted suite: begin -->\nstale block\n<!-- planted suite: end -->\nlast\n")
    # when they are merged
    write_results([tmp_path / "0", tmp_path / "1"], target)
    # then both halves' loops are in the new block, the old block is gone and the rest is kept
    text = target.read_text()
    assert set(read_results([tmp_path / "0", tmp_path / "1"])["loops"]) == {"sleeping_items", "too_few_workers"}
    assert (
        text.index("used for tuning")
        < text.index("| sleeping_items")
        < text.index("kept aside")
        < text.index("| too_few")
    )
    assert "stale block" not in text
    assert text.startswith("# Results\n")
    assert text.endswith("last\n")
