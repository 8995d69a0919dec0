"""The request that failed, from the error's words; and what a run keeps of it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ipyprof.capture.memory import out_of_memory, read_message
from ipyprof.options import Options
from ipyprof.trace.live import LiveRecord, OutOfMemory
from tests.capture.fake_session import record

GIB, MIB = 2**30, 2**20
NEW = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which 5.50 GiB is "
    "free. Process 123 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has 134.49 GiB memory "
    "in use. Of the allocated memory 130.00 GiB is allocated by PyTorch, with 256.00 MiB allocated in private pools "
    "(e.g., CUDA Graphs), and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)


def test_the_message_of_torch_2() -> None:
    found = read_message(NEW, line=4)
    assert (found.device, found.line) == (1, 4)
    assert (found.tried_bytes, found.free_bytes) == (20 * GIB, 5.5 * GIB)
    assert found.capacity_bytes == round(139.81 * GIB)
    assert (found.allocated_bytes, found.unused_bytes) == (130 * GIB, 512 * MIB)


def test_a_limit_below_the_devices_memory_is_what_counts() -> None:
    limited = NEW.replace("in use. Of the", "in use. 131.00 GiB allowed; Of the")
    found = read_message(limited)
    assert (found.capacity_bytes, found.free_bytes) == (131 * GIB, GIB // 2)


def test_the_message_of_the_cpu() -> None:
    found = read_message(CPU)
    assert (found.device, found.tried_bytes) == (-1, 4_000_000_000_000)


def test_a_request_on_the_cpu_is_held_against_the_machine() -> None:
    found = out_of_memory(RuntimeError(CPU), "")
    assert found is not None
    assert found.capacity_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_message_without_numbers_gives_none() -> None:
    assert read_message("CUDA error: out of memory") == OutOfMemory(text="CUDA error: out of memory")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(NEW),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_errors_that_are_out_of_memory(error: BaseException) -> None:
    assert out_of_memory(error, "") is not None


@pytest.mark.parametrize("error", [None, ValueError("out of memory"), RuntimeError("size mismatch"), RuntimeError()])
def test_errors_that_are_not(error: BaseException | None) -> None:
    assert out_of_memory(error, "") is None


def test_an_error_whose_class_hides_its_message_is_read_all_the_same() -> None:
    class Odd(torch.OutOfMemoryError):
        def __str__(self) -> str:
            raise AssertionError("the user's code was called")

    found = out_of_memory(Odd("CUDA out of memory. Tried to allocate 1.00 KiB."), "")
    assert found is not None
    assert found.tried_bytes == 1024


CELL = """
import torch
kept = [torch.zeros(1000)]

def forward(step):
    hidden = torch.zeros(5_000)
    if step == FAIL:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
        )

for step in range(12):
    forward(step)
"""


def run(shell: Any, cell: str, **options: Any) -> tuple[LiveRecord, BaseException | None]:
    """What a run keeps of a cell, and what the cell raised."""
    recording, raised = record(shell, cell, Options(wait=1, warmup=1, active=2, at_end=True, **options))
    return recording.live, raised


@pytest.mark.parametrize("fail", [0, 1, 2, 3, 4])
def test_a_request_that_fails_is_kept_in_every_phase(shell: Any, fail: int) -> None:
    live, error = run(shell, CELL.replace("FAIL", str(fail)))
    assert type(error) is torch.OutOfMemoryError
    assert live.out_of_memory is not None
    assert (live.out_of_memory.tried_bytes, live.out_of_memory.capacity_bytes) == (2 * GIB, 8 * GIB)
    assert live.out_of_memory.line == 9
    assert live.owners is not None
    assert {"kept[0]", "hidden (in forward)"} <= {owner.name for owner in (*live.owners, *live.out_of_memory.owners)}


def test_the_owners_of_a_recording_are_those_at_its_end(shell: Any) -> None:
    """A failure behind the recording has its own."""
    live, _ = run(shell, CELL.replace("FAIL", "4") + "    kept.append(torch.zeros(step + 1))\n")
    assert live.owners is not None and live.out_of_memory is not None
    assert live.out_of_memory.later
    names = [{owner.name for owner in owners} for owners in (live.owners, live.out_of_memory.owners)]
    assert "hidden (in forward)" in names[1] - names[0]


RAISED_AGAIN = """
import torch
def fail():
    hidden = torch.zeros(5_000)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
for step in range(12):
    try:
        fail()
    except torch.OutOfMemoryError as error:
        raise AGAIN
"""


@pytest.mark.parametrize("again", ["", "error", "RuntimeError('batch too large') from error", "ValueError('no')"])
def test_a_request_that_is_caught_and_raised_again_is_the_same(shell: Any, again: str) -> None:
    live, _ = run(shell, RAISED_AGAIN.replace("raise AGAIN", f"raise {again}".rstrip()))
    assert live.out_of_memory is not None
    assert (live.out_of_memory.tried_bytes, live.out_of_memory.line) == (2 * GIB, 6)
    assert "hidden (in fail)" in {owner.name for owner in live.owners or ()}


def test_another_error_is_none(shell: Any) -> None:
    live, error = run(shell, "for step in range(12):\n    1 / (step - 2)\n")
    assert type(error) is ZeroDivisionError
    assert live.out_of_memory is None


def test_without_memory_nothing_is_looked_at(shell: Any) -> None:
    live, _ = run(shell, "for step in range(12):\n    kept = [step]\n", memory=False)
    assert live.owners is None


@pytest.mark.parametrize("fail", [0, 1, 2, 3, 4])
def test_a_request_that_fails_is_kept_without_memory_too(shell: Any, fail: int) -> None:
    """What no allocation tells, the names in the notebook and the error still do."""
    live, _ = run(shell, CELL.replace("FAIL", str(fail)), memory=False)
    failed = live.out_of_memory
    assert failed is not None
    assert (failed.tried_bytes, failed.line, failed.later) == (2 * GIB, 9, fail == 4)
    owners = failed.owners if failed.later else live.owners
    assert {"kept[0]", "hidden (in forward)"} <= {owner.name for owner in owners or ()}


def test_a_whole_run_names_what_the_cell_holds(shell: Any) -> None:
    live, _ = run(shell, "import torch\nkept = []\nfor step in range(12):\n    kept.append(torch.zeros(1000))\n")
    assert live.owners is not None
    held = [owner.bytes for owner in live.owners if owner.variable == "kept"]
    assert held == [4000] * 4
