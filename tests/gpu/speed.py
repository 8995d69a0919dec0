"""What profiling costs on a GPU: ``python -m tests.gpu.speed [--dry] [--pairs N]``, within 90 seconds.

One loop of small kernels, whose step the host decides: there any extra work of the host shows. Runs of a cell alone and
under ``%%gpuprofile`` alternate.

* Steps outside the recording: hundred steps that begin twenty steps behind the one in which the report was delivered,
  against the same steps of the cell alone, with the standard error over the pairs: such a host changes its speed by
  half within seconds, and what is looked for is a hundredth.
* Recorded steps, against plain ``torch.profiler`` with the same switches.
* The end of the cell to the dashboard, for recordings of 10,000, 100,000 and 500,000 events, and against
  ``prof.key_averages().table()`` of the same recording up to 100,000.

The exit code is 1 when a goal is missed. Without CUDA it does nothing, or with ``--dry`` a short run on the CPU that
checks the script, not the goals.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from itertools import pairwise
from statistics import mean, median, stdev
from typing import Any

import torch

from ipyprof import last_report
from tests.benchmarks.__main__ import Row
from tests.benchmarks.live import live_seconds

LAYERS, WIDTH, BATCH = 8, 256, 64
STAMPED = (20, 40, 60, 80, 100, 120)
"""Steps behind the one in which the report is out: those between two of these are timed together."""
MOST_STEPS = 10_000
EVENTS = (10_000, 100_000, 500_000)
TABLE_UP_TO = 150_000  # events; torch's own table takes minutes beyond
OUTSIDE, RECORDED, TABLE = 1.01, 1.05, 6.0

STEP = """    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
OUTSIDE_CELL = f"""behind = 0
for number in range({MOST_STEPS}):
    if behind or last_report() is not earlier:
        behind += 1
        if behind in {STAMPED}:
            synchronise()
            stamps.append(clock())
        if behind == {STAMPED[-1]}:
            break
{STEP}"""
RECORDED_CELL = f"""for number in range(40):
{STEP}synchronise()
"""


def loop(device: str) -> dict[str, Any]:
    """The names that the cell uses."""
    layers = (layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()))
    model = torch.nn.Sequential(*layers).to(device)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False),
        "batch": torch.randn(BATCH, WIDTH, device=device),
        "synchronise": torch.cuda.synchronize if device == "cuda" else lambda: None,
        "clock": time.perf_counter,
        "last_report": last_report,
        "stamps": [],
    }


def outside(shell: Any, pairs: int) -> tuple[float, float]:
    """(profiled / alone, its standard error) over steps behind the report, of the median of each run."""
    names = shell.user_ns

    def taken(magic: str, earlier: object) -> list[float]:
        names["stamps"].clear()
        names["earlier"] = earlier
        shell.run_cell(magic + OUTSIDE_CELL).raise_error()
        return [end - begin for begin, end in pairwise(names["stamps"])]

    nothing_to_wait_for = object()
    taken("", nothing_to_wait_for)
    ratios = []
    for _ in range(pairs):
        alone = median(taken("", nothing_to_wait_for))
        ratios.append(median(taken("%%gpuprofile -q --static -o report\n", last_report())) / alone)
    return mean(ratios), stdev(ratios) / pairs**0.5 if pairs > 1 else math.inf


def recorded(shell: Any, device: str, pairs: int) -> tuple[float, float]:
    """(median of recorded step / that of plain ``torch.profiler``, its step in ms)."""
    names = shell.user_ns
    ratios, plain = [], []
    for _ in range(pairs):
        plain.append(_plain_ms(names, device))
        names["stamps"].clear()
        shell.run_cell("%%gpuprofile -q --static --no-memory -o report\n" + RECORDED_CELL).raise_error()
        ratios.append(median(names["report"].steps.profiled_per_step_ms) / plain[-1])
    return median(ratios), median(plain)


def _plain_ms(names: dict[str, Any], device: str) -> float:
    """Median of three steps in ms that ``torch.profiler`` alone records, behind two of warm-up."""
    marks: list[Any] = []
    schedule = torch.profiler.schedule(wait=2, warmup=2, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule, record_shapes=True) as profiler:
        for number in range(7):
            if number == 4:
                names["synchronise"]()
            if number >= 4:
                marks.append(_mark(device))
            names["optimizer"].zero_grad()
            names["model"](names["batch"]).square().mean().backward()
            names["optimizer"].step()
            if number < 6:
                profiler.step()
        marks.append(_mark(device))
        names["synchronise"]()
    return median(_between_ms(begin, end) for begin, end in pairwise(marks))


def _mark(device: str) -> Any:
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_ms(begin: Any, end: Any) -> float:
    return float(end - begin) * 1e3 if isinstance(begin, float) else float(begin.elapsed_time(end))


def rows_of(device: str, pairs: int, events: tuple[int, ...]) -> list[Row]:
    """The table; each line is printed as it comes."""
    from IPython.core.interactiveshell import InteractiveShell

    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        print(row, flush=True)

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "ipyprof")
    shell.user_ns.update(loop(device))
    slower, error = outside(shell, pairs)
    note = f"± {error:.2f} over {pairs} pairs"
    add(Row(what="steps behind the recording / alone", value=slower, limit=OUTSIDE, note=note))
    slower, plain_ms = recorded(shell, device, pairs)
    note = f"{plain_ms:.2f} ms each"
    add(Row(what="recorded steps / torch.profiler alone", value=slower, limit=RECORDED, note=note))
    found, _, _ = live_seconds(4, device, table=False)
    for wanted in events:
        steps = max(round(wanted / (found / 4)), 1)
        count, ours, theirs = live_seconds(steps, device, table=wanted <= TABLE_UP_TO)
        add(Row(what=f"end of the cell to the dashboard, {count:,} events", value=ours, unit="s"))
        if theirs is not None:
            what = f"key_averages().table() / dashboard, {count:,} events"
            add(Row(what=what, value=theirs / ours, limit=TABLE, at_least=True, note=f"{theirs:.2f} s"))
    return rows


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.speed", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="a short run on the CPU; the goals are not judged")
    asked = parser.parse_args()
    if asked.dry:
        rows_of("cpu", 1, (2_000, 10_000))
        return 0
    if not torch.cuda.is_available():
        print("there is no CUDA device: --dry checks the script on the CPU")
        return 0
    print(torch.cuda.get_device_name())
    return 0 if all(row.met for row in rows_of("cuda", asked.pairs, EVENTS)) else 1


if __name__ == "__main__":
    sys.exit(main())
