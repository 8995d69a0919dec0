"""A real kernel in a process of its own, that is interrupted, restarted and asked what it left on."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]

# What is on at first is what has to be on in the end. The first profile and its panel start threads of IPython's and
# torch's own, so the state is taken behind one.
SETUP = """
%load_ext ipyprof
import os, time, torch, ipyprof
from torch.utils.data import DataLoader, TensorDataset
from tests.faults.state import Before
torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.ones(64, 64) / 64
"""
PROFILE = """
%%gpuprofile -q -o report
for i in range(12):
    y = torch.tanh(x @ x)
"""
RIGHT = "report.steps.count, report.steps.how, report.source.partial"
RIGHT_ANSWER = (3, "loop at line 2", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a cell gave: the name of its error or nothing, the value that it shows, and all that it wrote."""

    error: str
    value: Any
    written: str
    seconds: float


class Kernel:
    """A started kernel with the extension loaded, in the repository's folder."""

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self._client = manager.blocking_client()
        self._client.start_channels()
        self._prepare()

    def run(self, code: str, *, interrupt_after_s: float | None = None, timeout_s: float = 120.0) -> Reply:
        """The reply of a cell; with ``interrupt_after_s`` the kernel gets a SIGINT so long after the cell began.

        Raises:
            TimeoutError: the cell has not come to its end, or the kernel has died.
        """
        asked = self._client.execute(code)
        begun: float | None = None
        pressed = interrupt_after_s is None
        error, value, written = "", None, ""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if not pressed and begun is not None and time.monotonic() - begun >= (interrupt_after_s or 0.0):
                self._manager.interrupt_kernel()
                pressed = True
            try:
                message = self._client.get_iopub_msg(timeout=0.02 if pressed else 0.002)
            except Empty:
                if not self._manager.is_alive():
                    raise TimeoutError("the kernel has died") from None
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                begun = time.monotonic()
            elif kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "error":
                error = content["ename"]
                written += "\n".join(content["traceback"])
            elif kind == "stream":
                written += content["text"]
            elif kind == "status" and content["execution_state"] == "idle":
                return Reply(
                    error=error, value=value, written=written, seconds=time.monotonic() - (begun or time.monotonic())
                )
        raise TimeoutError(f"no answer in {timeout_s:g} s to {code!r}")

    def ask(self, expression: str) -> Any:
        """The value of an expression that prints as a literal.

        Raises:
            AssertionError: it failed.
        """
        reply = self.run(expression)
        assert not reply.error, reply.written
        return ast.literal_eval(reply.value)

    def send(self, code: str) -> None:
        """Begin a cell, and wait for nothing but its begin."""
        asked = self._client.execute(code)
        while True:
            message = self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == asked and message["msg_type"] == "execute_input":
                return

    def restart(self) -> None:
        """Kill the process as it is, and start another one for the same notebook."""
        self._manager.restart_kernel(now=True)
        self._prepare()

    def wrong(self) -> list[str]:
        """What is not as it was, and what is wrong with the next profile; empty where all is well."""
        found = list(self.ask("before.left()"))
        reply = self.run(PROFILE)
        if reply.error or reply.written:
            return [*found, f"the next profile wrote {reply.error} {reply.written[-300:]}"]
        answer = self.ask(RIGHT)
        return found if answer == RIGHT_ANSWER else [*found, f"the next profile said {answer}"]

    def settle(self) -> None:
        """Wait until an interrupt that came behind the end of its cell has gone by."""
        for _ in range(10):
            time.sleep(0.1)
            if self.run("1 + 1").value == "2":
                return
        raise TimeoutError("the kernel answers no more")

    def close(self) -> None:
        """Let the channels go."""
        self._client.stop_channels()

    def _prepare(self) -> None:
        self._client.wait_for_ready(timeout=120)
        for code in (SETUP, PROFILE, "before = Before()"):
            reply = self.run(code)
            assert not reply.error, reply.written


@contextmanager
def started_kernel() -> Iterator[Kernel]:
    """A kernel that ends with the block."""
    manager = KernelManager(kernel_name="python3")
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    with TemporaryDirectory() as own:  # others on this machine have files of ours too
        manager.start_kernel(
            cwd=str(ROOT),
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": own},
            extra_arguments=["--log-level=ERROR"],
        )
        try:
            kernel = Kernel(manager)
            yield kernel
            kernel.close()
        finally:
            manager.shutdown_kernel(now=True)
