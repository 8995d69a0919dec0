"""The GPU suite: every planted loop under ``%%gpuprofile`` in a real notebook, against the same loop timed by hand.

    python -m tests.gpu.suite [--only NAME ...] [--out DIR] [--repeats 3] [--judge]

runs one notebook in one kernel per workload and, for each form, `--repeats` interleaved pairs of hand timing and
magic; twice as many where the host decides the step. It holds when the median step is within 5 % or 0.2 ms of the
hand timing, every breakdown adds up to its step, every first verdict is the planted one, and no fixed form has the
planted cause. The exit code is 0 only then.

A host that is shared has two speeds or more and changes between them in the middle of a run, which medians of a few
runs do not average out. So a fixed piece of CPU work is timed around every run. Where it shows that the host's speed
changed by over a quarter, the fastest run by hand and the fastest under the magic are compared as well, and the step
holds when these agree: others only add time (the rule of `timeit`). The table says which comparison it was.

The table goes to ``DIR/RESULTS.md``; without ``--out`` and ``--only`` to ``tests/gpu/RESULTS.md`` as well. Notebooks,
report JSON and traces stay in DIR (a new temporary directory if not given). Without CUDA it is a dry run on the
reduced loops: step times and sums are checked, verdicts are not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import nbformat
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.gpu.results import RESULTS, put
from tests.gpu.stepped import SAME_SPEED, same_speed
from tests.gpu.workloads import NOT_WAITING, STAND_INS, WAITING, WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[2]
RELATIVE, ABSOLUTE_MS = 0.05, 0.2
SUM_MS = 1e-6
CELL_SECONDS = 180
HOST_BOUND_REPEATS = 2  # times as many as the others

HELPERS = """import json
from tests.gpu.stepped import block_step_ms, hand_step_ms, host_ms
hand = {"events": {}, "block": {}, "host": {}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one form of one workload gave; times in ms, one entry per repeat.

    ``host_ms`` are the readings of the host's speed, and ``compared`` says which step times were compared.
    ``reports`` are the reports' dictionaries; ``failures`` says in words what does not hold.
    """

    workload: str
    form: str
    expected: str
    hand_ms: tuple[float, ...] = ()
    block_ms: tuple[float, ...] = ()
    host_ms: tuple[float, ...] = ()
    compared: str = "median"
    reports: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    failures: tuple[str, ...] = ()


def repeats_of(workload: Workload, form: str, repeats: int) -> int:
    """How many pairs of hand timing and magic this form gets."""
    return repeats * (HOST_BOUND_REPEATS if workload.host_bound and form == "slow" else 1)


def notebook(workload: Workload, out: Path, repeats: int) -> nbformat.NotebookNode:
    """The notebook of one workload; its cells write ``hand.json`` and one ``FORM_N.json`` per report to ``out``."""
    new = nbformat.v4.new_code_cell
    cells = [] if torch.cuda.is_available() else [new(STAND_INS)]
    cells += [new(workload.setup), new("%load_ext ipyprof"), new(HELPERS)]
    for form, loop in workload.forms().items():
        if form == "fixed" and workload.fixed_setup:
            cells.append(new(workload.fixed_setup))
        host = f'hand["host"].setdefault("{form}", []).append(host_ms())\n'
        time_by_hand = (
            f'{host}loop = """{loop}"""\n'
            f'hand["events"].setdefault("{form}", []).append(hand_step_ms(loop, globals()))\n'
            f'hand["block"].setdefault("{form}", []).append(block_step_ms(loop, globals()))\n{host}'
        )
        cells.append(new(f'hand_step_ms("""{loop}""", globals())  # warms the loop up; not counted'))
        pairs = repeats_of(workload, form, repeats)
        for pair in range(pairs):
            # The last of the pairs is the one that is looked at: dashboard in the notebook, trace on disk.
            last = f" --trace {out / form}.json.gz" if pair == pairs - 1 else " -q"
            cells.append(new(time_by_hand))
            cells.append(new(f"%%gpuprofile -o report{last}\n{loop}"))
            cells.append(new(f'{host}json.dump(report.to_dict(), open(r"{out / form}_{pair}.json", "w"))'))
    cells.append(new(f'json.dump(hand, open(r"{out / "hand.json"}", "w"))'))
    return nbformat.v4.new_notebook(cells=cells)


def run(workload: Workload, out: Path, repeats: int = 3) -> list[Outcome]:
    """One outcome per form, after running the workload's notebook; everything it wrote is in ``out``."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    executed = notebook(workload, out, repeats)
    client = NotebookClient(
        executed, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    )
    error = ""
    try:
        client.execute()
    except CellExecutionError as raised:
        error = f"the notebook stopped: {raised.ename}: {raised.evalue}"
    except Exception as raised:
        error = f"the notebook did not run: {raised!r}"
    nbformat.write(executed, out / f"{workload.name}.ipynb")
    return read(workload, out, repeats, error=error, verdicts=torch.cuda.is_available())


def read(workload: Workload, out: Path, repeats: int, *, error: str = "", verdicts: bool = True) -> list[Outcome]:
    """One outcome per form from what the workload's notebook wrote to ``out``."""
    hand = _read(out / "hand.json") or {"events": {}, "block": {}, "host": {}}
    outcomes = []
    for form in workload.forms():
        reports = [_read(out / f"{form}_{pair}.json") for pair in range(repeats_of(workload, form, repeats))]
        outcomes.append(
            judge(
                workload,
                form,
                hand_ms=hand["events"].get(form, ()),
                block_ms=hand["block"].get(form, ()),
                host_ms=hand["host"].get(form, ()),
                reports=[report for report in reports if report is not None],
                error=error,
                verdicts=verdicts,
            )
        )
    return outcomes


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def judge(
    workload: Workload,
    form: str,
    *,
    hand_ms: Sequence[float],
    block_ms: Sequence[float],
    host_ms: Sequence[float] = (),
    reports: Sequence[Mapping[str, Any]],
    error: str = "",
    verdicts: bool = True,
) -> Outcome:
    """The outcome of one form: what it measured, and in words what does not hold.

    Args:
        workload: the workload.
        form: ``slow`` or ``fixed``.
        hand_ms: steps timed by hand with events, one per repeat.
        block_ms: the same between two synchronisations; shown, not judged.
        host_ms: readings of the host's speed, taken around every run.
        reports: dictionaries of the reports.
        error: why the notebook stopped, or empty.
        verdicts: whether verdicts are judged (not so without CUDA).
    """
    failures = [error] if error else []
    compared = "median"
    if not reports or not hand_ms:
        failures.append("no report" if hand_ms else "not timed by hand")
    else:
        steps = list(map(step_ms, reports))
        if not agree(median(steps), median(hand_ms)):
            if not same_speed(*host_ms):
                compared = "fastest"
            if compared == "median" or not agree(min(steps), min(hand_ms)):
                failures.append(f"step {median(steps):.3f} ms, by hand {median(hand_ms):.3f} ms")
    for number, report in enumerate(reports, 1):
        off = sum_error_ms(report)
        if not off <= SUM_MS:
            failures.append(f"run {number}: breakdown is off by {off:.3g} ms")
        if verdicts:
            failures += [f"run {number}: {words}" for words in verdict_failures(workload, form, report)]
    expected = workload.slow_cause or "-"
    if form == "fixed" and workload.slow_cause not in (None, NOT_WAITING):
        expected = f"not {workload.slow_cause}"
    return Outcome(
        workload=workload.name,
        form=form,
        expected=expected,
        hand_ms=tuple(hand_ms),
        block_ms=tuple(block_ms),
        host_ms=tuple(host_ms),
        compared=compared,
        reports=tuple(reports),
        failures=tuple(failures),
    )


def agree(step: float, truth: float) -> bool:
    """Whether a step in ms is the true one, within 5 % or 0.2 ms."""
    return abs(step - truth) <= max(RELATIVE * truth, ABSOLUTE_MS)


def step_ms(report: Mapping[str, Any]) -> float:
    """The report's unprofiled step in ms; NaN where it has none, which holds for nothing."""
    step = report["steps"]["step_ms"]
    return math.nan if step is None else float(step)


def sum_error_ms(report: Mapping[str, Any]) -> float:
    """How far the parts of the breakdown that were measured are from the step; a part below 0 is infinitely far."""
    parts = [float(part) for part in report["breakdown"].values() if part is not None]
    if not parts or min(parts) < 0:
        return math.inf
    return abs(math.fsum(parts) - step_ms(report))


def verdict_failures(workload: Workload, form: str, report: Mapping[str, Any]) -> list[str]:
    """What is wrong with the verdict of one report, in words."""
    if workload.slow_cause is None:
        return []
    cause = str(report["verdict"]["cause"])
    if workload.slow_cause == NOT_WAITING:
        found = {str(one["cause"]) for one in report["findings"] if one["status"] == "found"}
        wrong = sorted(({cause} | found) & (WAITING | {"inconclusive"}))
        return [f"called {', '.join(wrong)}, expected not waiting"] if wrong else []
    if form == "fixed":
        return [f"still called {cause}"] if cause == workload.slow_cause else []
    if cause != workload.slow_cause:
        return [f"called {cause}, expected {workload.slow_cause}"]
    line = named_line(report)
    if workload.expected_lines and line not in workload.expected_lines:
        return [f"names line {line}, expected {' or '.join(map(str, workload.expected_lines))}"]
    return []


def named_line(report: Mapping[str, Any]) -> int | None:
    """The cell line that the finding of the first verdict names, or ``None``."""
    for finding in report["findings"]:
        if finding["cause"] == report["verdict"]["cause"] and finding["status"] == "found":
            line = (finding.get("where") or {}).get("line")
            return None if line is None else int(line)
    return None


def table(outcomes: Sequence[Outcome], seconds: float | None) -> str:
    """The results as a page of markdown; ``seconds`` is how long they took to get, where that is known."""
    measured: Mapping[str, Any] = next((report for one in outcomes for report in one.reports), {})
    device, versions = measured.get("device"), measured.get("environment", {})
    machine = device["name"] if device else "CPU (dry run on reduced loops, verdicts not judged)"
    held = sum(not outcome.failures for outcome in outcomes)
    lines = [
        "# Results of the GPU suite",
        "",
        f"`python -m tests.gpu.suite` on {time.strftime('%Y-%m-%d')}: {machine}, torch {versions.get('torch')}, "
        f"Python {versions.get('python')}{'' if seconds is None else f', {seconds:.0f} s'}. "
        f"{held} of {len(outcomes)} hold.",
        "",
        "Step by hand: median step between CUDA events, one per step boundary, without the magic; median of runs that "
        "alternate with the magic's, in brackets their range. It holds within 5 % or 0.2 ms, the larger of the two. "
        "Host: range of the time of 5,000 small CPU operators around the runs. Where that changed by over "
        f"{SAME_SPEED - 1:.0%} the fastest runs are compared if the medians differ: see tests/gpu/suite.py. Block: "
        "the same loop between two synchronisations, divided by its steps. Overhead: recorded step / unprofiled step.",
        "",
        "| workload | form | runs | by hand ms | block ms | ipyprof ms | host ms | compared | off | overhead | "
        "kernel share | expected | verdict | line | recoverable ms | confidence | holds |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | --- | --- | ---: | ---: | --- | "
        "--- |",
    ]
    lines += [_row(outcome) for outcome in outcomes]
    failed = [(outcome, words) for outcome in outcomes for words in outcome.failures]
    if failed:
        lines += ["", "## What does not hold", ""]
        lines += [f"- {outcome.workload}, {outcome.form}: {words}" for outcome, words in failed]
    headlines = [outcome for outcome in outcomes if outcome.reports]
    lines += ["", "## Headlines", ""]
    lines += [f"- {one.workload}, {one.form}: {one.reports[-1]['verdict']['headline']}" for one in headlines]
    return "\n".join(lines) + "\n"


def _row(outcome: Outcome) -> str:
    def number(value: float | None, digits: int = 3) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    def middle(values: Sequence[float]) -> str:
        return f"{median(values):.3f} ({min(values):.2f}–{max(values):.2f})" if values else "-"

    reports = outcome.reports
    steps = list(map(step_ms, reports))
    cells = [outcome.workload, outcome.form, str(len(reports)), middle(outcome.hand_ms)]
    cells += [number(median(outcome.block_ms) if outcome.block_ms else None), middle(steps)]
    cells.append(f"{min(outcome.host_ms):.0f}–{max(outcome.host_ms):.0f}" if outcome.host_ms else "-")
    cells.append(outcome.compared)
    if reports:
        last = reports[-1]
        causes = list(dict.fromkeys(str(report["verdict"]["cause"]) for report in reports))
        line = named_line(last)
        kernel = last["breakdown"]["kernel"]
        of = median if outcome.compared == "median" else min
        cells += [
            f"{100 * (of(steps) / of(outcome.hand_ms) - 1):+.1f} %" if outcome.hand_ms else "-",
            number(last["steps"]["overhead"], 2),
            "-" if kernel is None else f"{100 * kernel / step_ms(last):.0f} %",
            outcome.expected,
            ", ".join(causes),
            "-" if line is None else str(line),
            number(last["verdict"]["recoverable_ms"], 2),
            str(last["verdict"]["confidence"]),
        ]
    else:
        cells += ["-", "-", "-", outcome.expected, "-", "-", "-", "-"]
    return "| " + " | ".join([*cells, "**no**" if outcome.failures else "yes"]) + " |"


def main() -> int:
    """0 when everything holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.suite", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], choices=[one.name for one in WORKLOADS], metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--judge", action="store_true", help="run nothing: judge again what lies in --out")
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="ipyprof_gpu_"))
    out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    for workload in WORKLOADS:
        if arguments.only and workload.name not in arguments.only:
            continue
        if arguments.judge:
            outcomes += read(workload, out / workload.name, arguments.repeats)
        else:
            outcomes += run(workload, out / workload.name, arguments.repeats)
        page = table(outcomes, None if arguments.judge else time.monotonic() - begun)
        # Written after every workload, so that a run cut short still leaves what it had.
        (out / "RESULTS.md").write_text(page)
        print(
            "\n".join(_row(one) + " " + "; ".join(one.failures) for one in outcomes[-len(workload.forms()) :]),
            flush=True,
        )
    if not arguments.only and arguments.out is None and torch.cuda.is_available():
        put(RESULTS, "GPU suite", page)
    print(f"\n{page}\nfiles: {out}")
    return 1 if any(outcome.failures for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
