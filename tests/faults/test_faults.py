"""After each fault the kernel is usable, the state is as before, and the next run is right.

This module takes whole cells through the magic and looks at what is left. What lives elsewhere:

* The user's profiler at every moment of a session, in another thread, and the session ended in another thread:
  ``tests/capture/test_session_dangers.py`` and ``TestOtherProfilers``, ``TestThreads`` in
  ``tests/capture/test_session.py``. From every moment to every other: ``tests/faults/orders.py``.
* SIGINT in a transition and at forty moments of a session: ``TestInterrupts`` in ``tests/capture/test_session.py``; of
  the report: ``tests/entry/test_magic.py``; to a real kernel: ``tests/faults/interrupts.py``; under a loader with
  workers: ``tests/kernel/test_kernel_cell.py``.
* Workers, forked and spawned, that live: ``tests/kernel/test_kernel_cell.py``.
* A kernel that restarts, fifty runs, a disk that is full: ``tests/faults/test_long_lived.py``.
* Out of memory in every phase: ``tests/capture/test_out_of_memory.py``; on a GPU: ``tests/gpu/test_session_gpu.py``.
* A driver (NVML) that is missing, does not answer, or is lost in the middle: ``tests/capture/test_nvml.py``.
* CUDA graphs, several streams: ``tests/gpu/test_session_gpu.py``, ``tests/gpu/planted``.
* The time limit in cells without marks: ``tests/capture/test_limit.py``.
* Faults while several recordings are made: ``tests/capture/test_repeated.py``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.profiler import _KinetoProfile

import ipyprof
from ipyprof.capture.profiler import Profiler, uninterrupted
from ipyprof.capture.session import ALREADY_ON, TAKEN
from tests.faults.state import Before
from tests.machine import Machine

NEXT = "%%gpuprofile -q -o following\nfor i in range(12):\n    y = torch.tanh(x @ x)"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not pytest's: a worker's socket is in it, and the path of a socket has room for 107 characters."""
    with tempfile.TemporaryDirectory() as own:
        monkeypatch.setattr("tempfile.tempdir", own)
        yield


@pytest.fixture
def safe(shell: InteractiveShell, own_temporary_folder: None) -> Iterator[InteractiveShell]:
    """A shell that is looked at afterwards: nothing is left on, and the next profile is right."""
    shell.run_cell("import ipyprof, os, threading, time").raise_error()
    shell.run_cell(NEXT).raise_error()
    before = Before()
    yield shell
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)  # they hold a loader of the cell that failed, profiled or not
    shell.last_execution_result = shell.InteractiveTB.tb = None
    gc.collect()
    assert before.left() == []
    shell.run_cell(NEXT).raise_error()
    following = shell.user_ns["following"]
    assert (following.steps.count, following.steps.how, following.source.partial) == (3, "loop at line 2", "")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Cells that are run one after the other.

    Attributes:
        error: name of the class of what the last one raises.
        steps: recorded steps in the report ``report``; ``None``: there is no report of that name.
        partial: why it ended early, as far as it begins so.
        holds: an expression that is true afterwards.
    """

    name: str
    cells: tuple[str, ...]
    error: str = ""
    steps: int | None = 3
    partial: str = ""
    holds: str = "True"


# Theirs: a profiler of the user's, and how many `exp` it has to hold.
THEIRS = "theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])\n"
COUNT = "sum(row.count for row in theirs.key_averages() if row.key == 'aten::exp')"
LOOP = "%%gpuprofile -q -o report\nfor i in range(40):\n    y = x.exp()"
# What a training framework does: its own loop and optimizer, and a callback that steps a profiler with a schedule.
TRAINER = """
class ProfilerCallback:
    def __init__(self):
        self.traces = []
        self.profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait={wait}, warmup=1, active=3, repeat=2),
            on_trace_ready=lambda p: self.traces.append([row.count for row in p.events() if row.key == "aten::exp"]),
        )
    def on_train_begin(self): self.profiler.start()
    def on_step_end(self): self.profiler.step()
    def on_train_end(self): self.profiler.stop()

class Trainer:
    def __init__(self, callback):
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.callback = callback
    def train(self):
        self.callback.on_train_begin()
        for _ in range(40):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4).exp()).sum().backward()
            self.optimizer.step()
            self.callback.on_step_end()
        self.callback.on_train_end()
callback = ProfilerCallback()
"""
TRAIN = "%%gpuprofile -q -o report\nTrainer(callback).train()"

PARAMETER = "w = torch.nn.Parameter(torch.ones(4)); optimizer = torch.optim.SGD([w], lr=0.1); optimizer.step()\n"
HOOKED = PARAMETER + "def hook(gradient):\n    if i == 5: raise ValueError('mine')\nw.register_hook(hook)"
FAILING_OPTIMIZER = (
    PARAMETER
    + "def fail(optimizer, arguments, keywords):\n    if i == 5: raise ValueError('mine')\n"
    + "optimizer.register_step_pre_hook(fail)"
)

FAULTS = (
    # Magics inside each other.
    Fault(
        name="a block in a profiled cell",
        cells=(
            "%%gpuprofile -q -o report\nfor i in range(12):\n"
            "    with ipyprof.profile(quiet=True) as inner:\n        x @ x",
        ),
        holds="inner.report is None",
    ),
    Fault(
        name="a profiled statement in a block",
        cells=(
            "with ipyprof.profile(quiet=True) as outer:\n    for i in range(12):\n"
            "        get_ipython().run_line_magic('gpuprofile', '-q y = x @ x')\n        outer.step()\n"
            "report = outer.report",
        ),
    ),
    Fault(
        name="a profiled cell that runs a profiled cell",
        cells=(
            "%%gpuprofile -q -o report\nfor i in range(12):\n    y = x @ x\n    if i in (1, 3, 5, 9):\n"
            "        get_ipython().run_cell('%%gpuprofile -q -o inner\\nfor k in range(12): x @ x').raise_error()",
        ),
        holds="inner is None",
    ),
    Fault(
        name="a profiled cell in another thread of one",
        cells=(
            "said = []\n"
            "def other():\n    with ipyprof.profile(quiet=True) as run:\n        x @ x\n    said.append(run.report)",
            "%%gpuprofile -q -o report\nfor i in range(12):\n    y = x @ x\n    if i == 5:\n"
            "        thread = threading.Thread(target=other); thread.start(); thread.join()",
        ),
        holds="said == [None]",
    ),
    # The user's own profiler.
    Fault(
        name="theirs is on before, and stopped in our cell",
        cells=(THEIRS + "theirs.start()", LOOP + "\n    if i == 5: theirs.stop()"),
        steps=0,
        partial=ALREADY_ON,
        holds=f"{COUNT} == 6",
    ),
    Fault(
        name="theirs is on before, and stopped by an error of the cell",
        cells=(
            THEIRS,
            "%%gpuprofile -q -o report\n"
            "with theirs:\n    for i in range(40):\n        y = x.exp()\n        1 / (5 - i)",
        ),
        error="ZeroDivisionError",
        steps=0,
        partial=ALREADY_ON,
        holds=f"{COUNT} == 6",
    ),
    Fault(
        name="theirs is around the magic",
        cells=(
            THEIRS + "with theirs:\n    get_ipython().run_cell_magic('gpuprofile', '-q -o report', "
            "'for i in range(40):\\n    y = x.exp()')",
        ),
        steps=0,
        partial=ALREADY_ON,
        holds=f"{COUNT} == 40",
    ),
    Fault(
        name="theirs is started in our cell and left on",
        cells=(THEIRS, LOOP + "\n    if i == 6: theirs.start()", "x.exp()\ntheirs.stop()"),
        steps=2,
        partial=TAKEN,
        holds=f"{COUNT} == 34",
    ),
    Fault(
        name="theirs is left on, and we are asked again",
        cells=(THEIRS, LOOP + "\n    if i == 6: theirs.start()", LOOP, "theirs.stop()"),
        steps=0,
        partial=ALREADY_ON,
        holds=f"{COUNT} == 73",
    ),
    Fault(
        name="a trainer whose callback profiles from its first step",
        cells=(TRAINER.format(wait=0), TRAIN),
        steps=1,
        partial=TAKEN,
        holds="[len(one) for one in callback.traces] == [3, 3]",
    ),
    Fault(
        name="a trainer whose callback waits, and profiles in our warm-up",
        cells=(TRAINER.format(wait=3), TRAIN),
        steps=0,
        partial=TAKEN,
        holds="[len(one) for one in callback.traces] == [3, 3]",
    ),
    Fault(
        name="a trainer whose callback profiles behind our recording",
        cells=(TRAINER.format(wait=20), TRAIN),
        holds="[len(one) for one in callback.traces] == [3]",
    ),
    # Errors in every phase: the iteration that decides, wait, warm-up, recording, baseline, behind all.
    *(
        Fault(
            name=f"an error in iteration {at}",
            cells=(
                "%%gpuprofile -q -o report\n"
                f"for i in range(60):\n    y = x @ x\n    if i == {at}: raise {error}('mine')",
            ),
            error=error,
            steps=steps,
            partial=partial,
        )
        for at, error, steps, partial in (
            (0, "ValueError", None, ""),
            (1, "GeneratorExit", None, ""),
            (2, "StopIteration", None, ""),
            (3, "MemoryError", None, ""),
            (4, "ValueError", 0, "ValueError in step 1 of 3"),
            (6, "KeyboardInterrupt", 2, "KeyboardInterrupt in step 3 of 3"),
            (8, "AssertionError", 3, ""),
            (59, "ValueError", 3, ""),
        )
    ),
    Fault(
        name="an error in a cell without a loop",
        cells=("%%gpuprofile -q -o report\ny = x @ x\nraise ValueError('mine')",),
        error="ValueError",
        steps=1,
        partial="ValueError in the cell",
    ),
    *(
        Fault(
            name=f"an error in {name}",
            cells=(
                before,
                "%%gpuprofile -q -o report\nfor i in range(12):\n    (w * 2).sum().backward(); optimizer.step()",
            ),
            error="ValueError",
            steps=1,
            partial="ValueError in step 2 of 3",
        )
        for name, before in (("a hook of a backward pass", HOOKED), ("the optimizer", FAILING_OPTIMIZER))
    ),
    Fault(
        name="an optimizer whose step calls that of its class",
        cells=(
            PARAMETER + "class Own(torch.optim.SGD):\n    def step(self, closure=None): return super().step(closure)\n"
            "optimizer = Own([w], lr=0.1)",
            "%%gpuprofile -q -o report\nfor i in range(12):\n    (w * 2).sum().backward(); optimizer.step()",
        ),
        holds="report.steps.how == 'loop at line 2'",
    ),
    # Processes.
    *(
        Fault(
            name=f"a loader's worker that {'raises' if way == 'raise' else 'dies by ' + way}",
            cells=(
                "from tests.faults.workers import Dying\nfrom torch.utils.data import DataLoader",
                "%%gpuprofile -q -o report\n"
                f"for batch in DataLoader(Dying('{way}', 22), batch_size=4, num_workers=1):\n"
                "    y = batch.sum(); time.sleep(0.03)",  # longer than a worker takes, which is ahead by two batches
            ),
            error="LookupError" if way == "raise" else "RuntimeError",
            steps=None,
        )
        for way in ("exit", "kill", "raise")
    ),
    Fault(
        name="children that are forked in recorded steps",
        cells=(
            "import multiprocessing\nfrom tests.faults.workers import compute\n"
            "context = multiprocessing.get_context('fork')",
            "%%gpuprofile -q -o report\nfor i in range(12):\n    y = x @ x\n    if i in (3, 5):\n"
            "        child = context.Process(target=compute); child.start(); child.join()",
        ),
        holds="child.exitcode == 0",
    ),
    Fault(
        name="a forked child that leaves at once",
        cells=(
            "%%gpuprofile -q -o report\nfor i in range(12):\n    y = x @ x\n    if i == 5:\n        child = os.fork()\n"
            "        if not child: os._exit(7)\n        status = os.waitpid(child, 0)[1]",
        ),
        holds="os.waitstatus_to_exitcode(status) == 7",
    ),
    # Threads.
    Fault(
        name="a thread that computes before, in and after the cell",
        cells=(
            "end = threading.Event()\n"
            "def compute():\n    while not end.is_set():\n        x @ x\n        time.sleep(0.001)\n"
            "thread = threading.Thread(target=compute); thread.start()",
            LOOP,
            LOOP,
            "end.set(); thread.join()",
        ),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_the_kernel_is_as_before_and_the_next_run_is_right(safe: InteractiveShell, fault: Fault) -> None:
    # given the cells of a fault
    *first, last = fault.cells
    for cell in first:
        safe.run_cell(cell).raise_error()
    # when the last has run
    result = safe.run_cell(last)
    # then its own error has come through, our report says what became of us, and theirs is whole
    assert type(result.error_in_exec).__name__ == (fault.error or "NoneType")
    report = safe.user_ns.get("report")
    if fault.steps is not None:
        assert report is not None
        assert (report.steps.count, report.source.partial) == (fault.steps, fault.partial)
    assert eval(fault.holds, safe.user_ns)


# -- faults of torch and of the machine, simulated --


def _refuse(*_arguments: object, **_named: object) -> None:
    raise RuntimeError("no profiler today")


def _write_launches_without_kernels(_profiler: Profiler, path: Path) -> None:
    """What Kineto writes where CUPTI is not allowed to see the device."""
    machine = Machine()
    for _ in range(3):
        with machine.step(), machine.op("aten::mm"):
            machine.python(900)
            machine.call("cudaLaunchKernel", 100)
    path.write_bytes(machine.builder.json())


@pytest.mark.parametrize(
    ("owner", "name", "instead", "said"),
    [
        (_KinetoProfile, "prepare_trace", _refuse, "the profiler did not start: RuntimeError: no profiler today"),
        (_KinetoProfile, "start_trace", _refuse, "the profiler did not start: RuntimeError: no profiler today"),
        (_KinetoProfile, "export_chrome_trace", _refuse, "could not be written: RuntimeError: no profiler today"),
        (_KinetoProfile, "export_chrome_trace", lambda *_: None, "torch wrote no trace; "),
        (
            _KinetoProfile,
            "export_chrome_trace",
            lambda _self, path: Path(path).write_text(""),
            "could not read its recording",
        ),
        (Profiler, "export", _write_launches_without_kernels, "NVreg_RestrictProfilingToAdminUsers"),
    ],
    ids=[
        "no preparation",
        "no start",
        "export raises",
        "export writes nothing",
        "export writes an empty file",
        "no CUPTI",
    ],
)
def test_a_torch_that_fails_is_said_and_leaves_the_cell_alone(
    safe: InteractiveShell,
    capsys: pytest.CaptureFixture[str],
    owner: type,
    name: str,
    instead: Callable[..., None],
    said: str,
) -> None:
    # given a torch whose profiler fails somewhere
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, instead)
        # when a cell is profiled
        result = safe.run_cell("%%gpuprofile --static\nn = 0\nfor i in range(20):\n    n += 1\n    y = x @ x\nn")
    # then it ran to its end, and one sentence says what failed
    assert result.result == 20
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_stop_that_fails_is_said_and_switches_off(safe: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    # given a profiler that is off when its stop raises, as behind an error of CUDA
    stop = _KinetoProfile.stop_trace

    def fail(profiler: Any) -> None:
        stop(profiler)
        raise RuntimeError("CUDA error: an illegal memory access")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_KinetoProfile, "stop_trace", fail)
        # when a cell is profiled
        result = safe.run_cell("%%gpuprofile --static\nfor i in range(20):\n    y = x @ x\ni")
    # then it ran to its end, and a note says what failed
    assert result.result == 19
    assert "an illegal memory access" in " ".join(capsys.readouterr().out.split())


def test_a_trace_that_cannot_be_kept_leaves_no_folder(
    safe: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a recording that can be neither read nor kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_KinetoProfile, "export_chrome_trace", lambda _self, path: Path(path).write_text(""))
        safe.run_cell("%%gpuprofile --static\nfor i in range(20):\n    y = x @ x").raise_error()
    # then there is one line and no file
    assert "could not read its recording" in capsys.readouterr().out
    assert list(Path(tempfile.gettempdir()).iterdir()) == []


# -- signals --


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1])
def test_a_handler_of_the_users_that_raises_does_so_behind_a_transition(number: signal.Signals) -> None:
    # given a handler that raises an ordinary error: a time limit, or torch's word of a worker that died
    def handler(_number: int, _frame: object) -> None:
        raise TimeoutError("mine")

    before, order = signal.signal(number, handler), []

    def inside() -> None:
        with uninterrupted():
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            order.append("inside")

    # when the signal comes in a transition of ours, which takes errors for its own
    try:
        with pytest.raises(TimeoutError, match="mine"):
            inside()
    finally:
        signal.signal(number, before)
    # then it is raised behind it
    assert order == ["inside"]


def test_an_interrupt_is_not_lost_behind_a_handler_that_raises() -> None:
    # given a time limit and an interrupt that come in one transition, in this order
    def handler(_number: int, _frame: object) -> None:
        raise TimeoutError("mine")

    before = signal.signal(signal.SIGUSR1, handler)

    def inside() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)

    # when the transition is over, then both come, and the interrupt is what the cell ends with
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            inside()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(caught.value.__context__, TimeoutError)


# -- processes of their own --


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("way", ["leaves", "fails", "goes on"])
def test_a_forked_child_that_comes_to_the_end_of_the_block_reports_nothing(way: str) -> None:
    # given a block that forks in a recorded step, and a child that comes to its end as well. It does not end as Python
    # ends: torch's own clearing up hangs in every child of a process that has profiled, with ipyprof or without.
    x, child = torch.ones(8, 8), -1
    try:
        with ipyprof.profile(quiet=True) as run:
            for i in range(40):
                y = torch.tanh(x @ x)
                if i == 5 and not (child := os.fork()):
                    if way == "fails":
                        raise KeyError(y)
                    if way == "leaves":
                        break
                run.step()
    finally:
        if not child:
            os._exit(5 if run.report is None else 6)
    # when both have ended
    status = os.waitpid(child, 0)[1]
    # then the report is the parent's alone, and whole
    assert os.waitstatus_to_exitcode(status) == 5
    assert run.report is not None
    assert (run.report.steps.count, run.report.source.partial) == (3, "")


def test_every_order_of_two_profilers() -> None:
    # given the user's profiler from every phase of a run to every later one (10 runs in a process of their own, 5 s)
    done = run_process(
        [sys.executable, "-m", "tests.faults.orders", "--few"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    # then the process lives, theirs is whole each time, and the next run of ours is right
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "10 orders" in done.stdout
