"""Runs planted loops one after the other in this process: by hand, under the magic, by hand again.

    python -m tests.gpu.planted.worker --out DIR NAME ...

The shell is IPython's own without a front end. Each loop leaves ``DIR/loops/NAME.json`` and one trace per form; the
name that is being run stands in ``DIR/now.txt``, so that whoever started this process knows what it was at.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import gzip
import importlib.util
import io
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.optim.optimizer import register_optimizer_step_post_hook
from traitlets.config import Config

import ipyprof
from tests.gpu.planted import PLANTED
from tests.gpu.planted.cells import PLANTED_STAND_INS
from tests.gpu.stepped import Marks, compile_stepped, host_ms, run_stepped, same_speed
from tests.gpu.workloads import Workload

SKIP = 5
OPERATORS_KEPT = 12
MORE_TIMINGS = 4
DROPPED = ("views", "kernels", "lines", "devices", "memory")


def main() -> None:
    """Runs the loops named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.planted.worker", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    (out / "loops").mkdir(parents=True, exist_ok=True)
    (out / "traces").mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_text(json.dumps(machine()))
    shell = new_shell()
    known = {one.name: one for one in PLANTED}
    for name in arguments.names:
        (out / "now.txt").write_text(name)
        begun = time.monotonic()
        found = measure(shell, known[name], out / "traces")
        found["seconds"] = time.monotonic() - begun
        part = out / "loops" / f"{name}.part"
        part.write_text(json.dumps(found))
        part.replace(out / "loops" / f"{name}.json")


def machine() -> dict[str, str]:
    """What the loops run on."""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def new_shell() -> Any:
    """A shell without a front end and without a history file, with the magic loaded."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    run_cell(shell, "%load_ext ipyprof")
    return shell


def run_cell(shell: Any, text: str) -> None:
    """Runs a cell; what it prints is dropped.

    Raises:
        RuntimeError: the cell raised, with the traceback in the text.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        result = shell.run_cell(text, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        told = "".join(traceback.format_exception(error))[-3000:]
        raise RuntimeError(f"a cell raised {type(error).__name__}: {error}\n{told}")


def measure(shell: Any, workload: Workload, traces: Path) -> dict[str, Any]:
    """The forms of one loop; a form that raised has ``error`` instead of numbers."""
    found: dict[str, Any] = {"name": workload.name, "forms": {}, "skipped": ""}
    missing = [module for module in workload.needs if importlib.util.find_spec(module) is None]
    if missing:
        return found | {"skipped": f"no {', '.join(missing)}"}
    before = set(shell.user_ns)
    try:
        begun = time.monotonic()
        if not torch.cuda.is_available():
            run_cell(shell, PLANTED_STAND_INS)
        run_cell(shell, workload.setup)
        found["setup_seconds"] = time.monotonic() - begun
        for form, setup, loop in forms(workload):
            begun = time.monotonic()
            pace = found["forms"].get("slow", {}).get("pace_ms") if workload.edit_is_fix and form == "fixed" else None
            try:
                if setup:
                    run_cell(shell, setup)
                found["forms"][form] = measure_form(shell, workload, form, loop, traces, pace)
            except Exception as error:
                found["forms"][form] = {"error": f"{type(error).__name__}: {error}"[:4000]}
            found["forms"][form]["seconds"] = time.monotonic() - begun
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:4000]
    finally:
        tidy(shell, before)
    return found


def forms(workload: Workload) -> Iterator[tuple[str, str, str]]:
    """(form, its setup, its loop) in the order in which they run."""
    yield "slow", "", workload.slow
    yield from workload.variants
    if workload.fixed is not None:
        yield "fixed", workload.fixed_setup, workload.fixed


def measure_form(
    shell: Any, workload: Workload, form: str, loop: str, traces: Path, pace: float | None
) -> dict[str, Any]:
    """Hand timings (a variant has one), the report, and what ``load`` says of the trace without our key.

    ``hand_ms`` and ``paces_ms`` go together: a timing, and the time of a fixed piece of CPU work around it. With
    ``pace``, what that work took around the recording of the slow form, the loop is timed again until one timing was
    taken at that speed of the host, or ``MORE_TIMINGS`` times.
    """
    pair = form in workload.forms()
    timed = [paced_ms(shell, workload, loop)] if pair else []
    trace = traces / f"{workload.name}.{form}.json.gz"
    shell.user_ns.pop("report", None)
    before = host_ms()
    run_cell(shell, f"%%gpuprofile -q -o report --trace {trace} {workload.options}\n{loop}")
    after = host_ms()
    report = shell.user_ns.pop("report", None)
    timed.append(paced_ms(shell, workload, loop))
    for _ in range(MORE_TIMINGS if pace else 0):
        if any(pace is None or same_speed(at, pace) for _, at in timed):
            break
        timed.append(paced_ms(shell, workload, loop))
    hand = [step for step, _ in timed]
    found: dict[str, Any] = {"hand_ms": hand, "paces_ms": [at for _, at in timed], "step_ms": median(hand)}
    # A host that changed its speed in between recorded a step of both.
    found["pace_ms"] = (before + after) / 2 if same_speed(before, after) else None
    found["report"] = None if report is None else brief(report.to_dict())
    if trace.exists():
        found["trace"], found["trace_bytes"] = trace.name, trace.stat().st_size
        begun = time.monotonic()
        found["file"] = from_file(trace)
        found["file_seconds"] = time.monotonic() - begun
    return found


def paced_ms(shell: Any, workload: Workload, loop: str) -> tuple[float, float]:
    """(the step timed by hand, what the fixed CPU work took around it), in ms."""
    before = host_ms()
    step = hand_ms(shell, workload, loop)
    return step, (before + host_ms()) / 2


def hand_ms(shell: Any, workload: Workload, loop: str) -> float:
    """The median step in ms of one run of the loop without the magic, the first steps left out."""
    marks = Marks()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if workload.trainer:
            hook = register_optimizer_step_post_hook(lambda *given: marks.mark())
            try:
                exec(compile(loop, "<hand>", "exec"), shell.user_ns)
            finally:
                hook.remove()
        else:
            run_stepped(compile_stepped(loop, "<hand>"), shell.user_ns, marks)
    steps = marks.steps_ms()
    return median(steps[min(SKIP, len(steps) // 3) :])


def brief(report: dict[str, Any]) -> dict[str, Any]:
    """The report's dictionary without what only its pictures need, with the first operators."""
    kept = {key: value for key, value in report.items() if key not in DROPPED}
    kept["operators"] = kept["operators"][:OPERATORS_KEPT]
    return kept


def from_file(trace: Path) -> dict[str, Any]:
    """Verdict and findings that ``ipyprof.load`` gives for the trace without our key."""
    with tempfile.TemporaryDirectory() as folder:
        stripped = Path(folder) / "trace.json"
        stripped.write_bytes(without_our_key(gzip.decompress(trace.read_bytes())))
        try:
            report = ipyprof.load(stripped).to_dict()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    return {key: report[key] for key in ("verdict", "findings", "steps")}


def without_our_key(data: bytes) -> bytes:
    """The trace's JSON without ``"ipyprof"``; the other values stay as they are, byte for byte where they can."""
    try:
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        parts.pop("ipyprof", None)
        return msgspec.json.encode(parts)
    except (msgspec.DecodeError, UnicodeDecodeError):
        whole = json.loads(data.decode("utf-8", "replace"))
        whole.pop("ipyprof", None)
        return json.dumps(whole).encode()


def tidy(shell: Any, before: set[str]) -> None:
    """Takes away what a loop left behind: names, tensors, compiled code, settings."""
    for name in set(shell.user_ns) - before:
        del shell.user_ns[name]
    shell.user_ns["Out"].clear()
    for name in ("_", "__", "___"):
        shell.user_ns[name] = ""
    shell.displayhook.flush()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
