"""The whole-loop suite: what the report says of a loop against the same loop timed by hand.

    python -m tests.gpu.whole_loop [--only NAME ...] [--out DIR]

Each loop runs under ``%%gpuprofile`` in a process of its own, and by hand, before and after that, in processes that
never profiled: the mean over all its steps, synchronised once at the end. It holds when the report's step is within
5 % or 0.2 ms of the mean by hand (or between the two where they differ by more), the verdict is the expected cause on
the expected line, and no loop that loses time outside its typical steps is called healthy. The exit code is 0 only
then. Without CUDA the same loops run with CPU work in place of the GPU's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARE, LEAST_MS = 0.05, 0.2
HEALTHY = ("compute_bound", "memory_bound", "tensor_cores", "misaligned_shapes", "inconclusive", "cpu_bound")
SETUP = """
import gc, os, tempfile, time, torch
from torch.utils.data import DataLoader, Dataset
CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
class Pictures(Dataset):
    def __init__(self, count, seconds): self.count, self.seconds = count, seconds
    def __len__(self): return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(8)
if CUDA:
    torch.set_float32_matmul_precision("high")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.randn(16384, 2048, device=device, dtype=torch.bfloat16)
    small = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).to(device)
    adam = torch.optim.Adam(small.parameters())
    y = torch.randn(32, 64, device=device)
    def work():
        optimizer.zero_grad(); loss = model(x).square().mean(); loss.backward(); optimizer.step(); return loss
    def host_work():
        adam.zero_grad(); loss = small(y).square().mean(); loss.backward(); adam.step(); return loss
else:
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    x = torch.ones(256, 256) / 256
    def work(seconds=0.005):
        begun, y = time.perf_counter(), x
        while time.perf_counter() - begun < seconds: y = torch.tanh(y @ x)
        return y.mean()
    host_work = work
def evaluate():
    with torch.no_grad():
        for _ in range(100):
            model(x) if CUDA else work(0.0015)
    return work().item()
def checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        torch.save([torch.zeros(10_000_000) for _ in range(4)], os.path.join(folder, "model.pt"))
def hugging_face(**options):
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    rows = [{"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.tensor(i % 2)} for i in range(800)]
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=100, per_device_train_batch_size=8, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_strategy="no", **options)
    return transformers.Trainer(
        transformers.BertForSequenceClassification(config), arguments, train_dataset=rows, eval_dataset=rows)
class Node: pass
def clutter():
    for _ in range(150_000):
        one = Node(); one.self = one
def log(step): print("step", step, end="\\r")
"""


@dataclass(frozen=True)
class Loop:
    """A cell of ``steps`` steps; ``causes``: what the verdict may be; ``line``: of it, ``None`` = any."""

    name: str
    cell: str
    steps: int
    causes: tuple[str, ...]
    line: int | None = None


def loader(workers: int, seconds: float, count: int, more: str = "") -> str:
    """A cell that draws ``count`` batches."""
    made = f"DataLoader(Pictures({count}, {seconds}), batch_size=1, num_workers={workers}{more})"
    return f"for batch in {made}:\n    work()\n"


LOOPS = (
    Loop("4 workers of 40 ms, prefetch 8", loader(4, 0.04, 300, ", prefetch_factor=8"), 300, ("data_loading",), 2),
    Loop("4 workers of 40 ms, prefetch 2", loader(4, 0.04, 300), 300, ("data_loading",), 2),
    Loop("1 worker of 100 ms", loader(1, 0.1, 100), 100, ("data_loading",), 2),
    Loop("2 workers of 30 ms, prefetch 16", loader(2, 0.03, 200, ", prefetch_factor=16"), 200, ("data_loading",), 2),
    Loop("16 workers of 20 ms: fed", loader(16, 0.02, 300), 300, HEALTHY),
    Loop(
        "workers start anew every 10 batches",
        "loader = DataLoader(Pictures(10, 0.001), batch_size=1, num_workers=4)\n"
        "for epoch in range(15):\n    for batch in loader:\n        for _ in range(4):\n            work()\n",
        150,
        (*HEALTHY, "unlike_steps"),
    ),
    Loop(
        "workers persist over epochs",
        "loader = DataLoader(Pictures(20, 0.001), batch_size=1, num_workers=4, persistent_workers=True)\n"
        "for epoch in range(10):\n    for batch in loader:\n        for _ in range(2):\n            work()\n",
        200,
        (*HEALTHY, "unlike_steps"),
    ),
    Loop(
        "evaluation every 20th step",
        "for step in range(200):\n    work()\n    if step % 20 == 19:\n        evaluate()\n",
        200,
        ("unlike_steps",),
        5,
    ),
    Loop(
        "a remote call every 10th step",
        "for step in range(200):\n    loss = work()\n    if step % 10 == 9:\n"
        "        loss.item()\n        time.sleep(0.08)\n",
        200,
        ("unlike_steps",),
        6,
    ),
    Loop(
        "checkpoint every 25th step",
        "for step in range(200):\n    work()\n    if step % 25 == 24:\n        checkpoint()\n",
        200,
        ("unlike_steps",),
        5,
    ),
    Loop(
        "garbage every 10th step",
        "for step in range(200):\n    loss = work()\n    if step % 10 == 9:\n        clutter(); gc.collect()\n",
        200,
        ("unlike_steps",),
        5,
    ),
    Loop(
        "printing every 10th step",
        "for step in range(300):\n    work()\n    if step % 10 == 9:\n        log(step)\n",
        300,
        HEALTHY,
    ),
    Loop("healthy", "for step in range(300):\n    work()\n", 300, HEALTHY),
    Loop(
        "transformers' Trainer, evaluation every 25th step",
        "trainer = hugging_face(eval_strategy='steps', eval_steps=25)\ntrainer.train()\n",
        100,
        ("unlike_steps", *HEALTHY, "launch_bound"),
    ),
    Loop(
        "waiting for the host",
        "for step in range(1500):\n    host_work()\n",
        1500,
        ("launch_bound", "cpu_bound", "inconclusive"),
    ),
)


def by_hand(loops: tuple[Loop, ...]) -> dict[str, float]:
    """ms a step of each loop, in this process, which never profiles."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell

    import ipyprof.run
    import ipyprof.show.html  # the collector walks the same modules in both

    assert ipyprof.run is not None and ipyprof.show.html is not None
    names = InteractiveShell.instance().user_ns
    exec(SETUP, names)
    found = {}
    for _ in range(20):
        names["work"]()
    for loop in loops:
        if "hugging_face" in loop.cell:
            exec(loop.cell.replace("trainer.train", "trainer.evaluate"), names)  # imports and first calls
        if names["CUDA"]:
            torch.cuda.synchronize()
        first: list[float] = []
        started = time.perf_counter()
        done = {name: names[name] for name in ("work", "host_work")}
        for name, body in done.items():
            names[name] = noting(body, first)
        exec(loop.cell, names)
        if names["CUDA"]:
            torch.cuda.synchronize()
        begun = first[0] if first else started
        found[loop.name] = (time.perf_counter() - begun) / loop.steps * 1e3  # without the start of the workers
        names.update(done)
    return found


def noting(body: Callable[..., Any], first: list[float]) -> Callable[..., Any]:
    """``body``, which notes when it was called for the first time."""

    def noted(*arguments: Any) -> Any:
        if not first:
            first.append(time.perf_counter())
        return body(*arguments)

    return noted


def by_magic(loop: Loop) -> dict[str, Any]:
    """The report of the loop, in this process."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    warm = "hugging_face().evaluate()" if "hugging_face" in loop.cell else ""
    for code in (
        "%load_ext ipyprof",
        SETUP,
        warm,
        "for _ in range(20): work()",
        f"%%gpuprofile -q -o report\n{loop.cell}",
    ):
        shell.run_cell(code).raise_error()
    plain: dict[str, Any] = shell.user_ns["report"].to_dict()
    return plain


def judged(loop: Loop, hand: tuple[float, float], report: dict[str, Any]) -> tuple[str, bool]:
    """A row of the table, and whether it holds."""
    step, verdict = report["steps"]["step_ms"], report["verdict"]
    low, high = min(hand), max(hand)
    near = step is not None and low - max(SHARE * low, LEAST_MS) <= step <= high + max(SHARE * high, LEAST_MS)
    found = next((one for one in report["findings"] if one["cause"] == verdict["cause"]), None)
    line = None if found is None else found["where"]["line"]
    right = verdict["cause"] in loop.causes and loop.line in (None, line)
    shown = f"{step:.2f} ({report['steps']['typical_step_ms']:.2f})" if step is not None else "not measured"
    state = "holds" if near and right else "step" if right else "verdict" if near else "both"
    row = f"| {loop.name} | {low:.2f}–{high:.2f} | {shown} | {state} | {verdict['headline']} |"
    return row, near and right


def child(*arguments: str) -> Any:
    """What this module prints as JSON in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.whole_loop", *arguments], capture_output=True, text=True, check=False
    )
    lines = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(done.stderr[-2000:] + done.stdout[-500:])
    return json.loads(lines[-1].removeprefix("RESULT "))


def main() -> int:
    """0 where every loop holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--hand", action="store_true", help="print what each loop takes by hand, as JSON")
    parser.add_argument("--magic", help="print the report of this loop, as JSON")
    asked = parser.parse_args()
    chosen = tuple(one for one in LOOPS if not asked.only or any(part in one.name for part in asked.only))
    if asked.hand:
        print("RESULT", json.dumps(by_hand(chosen)))
        return 0
    if asked.magic:
        print("RESULT", json.dumps(by_magic(next(one for one in LOOPS if one.name == asked.magic))))
        return 0
    only = ("--only", *(one.name for one in chosen))
    before = child("--hand", *only)
    reports = {one.name: child("--magic", one.name) for one in chosen}
    after = child("--hand", *only)
    rows = [judged(one, (before[one.name], after[one.name]), reports[one.name]) for one in chosen]
    table = "\n".join(
        [
            "| loop | by hand, ms | report (typical) | | verdict |",
            "| --- | --- | --- | --- | --- |",
            *(row for row, _ in rows),
        ]
    )
    print(table)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "whole_loop.md").write_text(table + "\n")
        (asked.out / "whole_loop.json").write_text(json.dumps(reports))
    return 0 if all(holds for _, holds in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
