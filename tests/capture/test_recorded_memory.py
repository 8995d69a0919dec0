"""Real recordings with their memory: torch's CPU allocator stands for a GPU's, so that the whole way is run.

torch records the allocations of the CPU as it does those of a GPU; here their device is renamed before the reader
sees them. Blocks that are older than the recording are missing from its totals, so a training is recorded cold.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from torch.profiler import _KinetoProfile

from ipyprof.analysis.memory import DeviceMemory, MemorySummary, memory_view
from ipyprof.analysis.steps import find_steps
from ipyprof.capture.profiler import Profiler
from ipyprof.options import Options
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.reader import parse_trace
from tests.capture.fake_session import record

SETUP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(64, 256)
"""
TRAINING = """for step in range(12):
    optimizer.zero_grad()
    loss = (model(data) ** 2).mean()
    loss.backward()
    optimizer.step()
"""
PARAMETER_BYTES = 4 * (256 * 512 + 512 + 512 * 256 + 256)


@pytest.fixture(autouse=True)
def memory_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def new(profiler: Any) -> Any:
        return _KinetoProfile(
            activities=profiler._activities(), acc_events=True, record_shapes=True, profile_memory=True
        )

    monkeypatch.setattr(Profiler, "_new", new)


def recorded(shell: Any, setup: str, cell: str) -> tuple[DeviceMemory, LiveRecord]:
    """The memory of a cell that runs after ``setup``."""
    summary, live = summed_up(shell, setup, cell)
    (view,) = summary.devices
    return view, live


def summed_up(shell: Any, setup: str, cell: str) -> tuple[MemorySummary, LiveRecord]:
    """All that is known of a cell's memory."""
    shell.run_cell(setup).raise_error()
    recording, _ = record(shell, cell, Options(wait=1, warmup=1, active=3, at_end=True))
    assert recording.trace_path is not None
    file = json.loads(recording.trace_path.read_text())
    for event in file["traceEvents"]:
        if event.get("name") in ("[memory]", "[OutOfMemory]"):
            event["args"] |= {"Device Type": 1, "Device Id": 0}
    owners = tuple(replace(owner, device=0) for owner in recording.live.owners or ())
    live = replace(recording.live, owners=owners)
    trace = parse_trace(json.dumps(file).encode())
    return memory_view(trace, find_steps(trace, live=True), live), live


def most(view: DeviceMemory, name: str) -> int:
    """What a holder held at the peak."""
    return next(holder.bytes for holder in view.memory.holders if holder.name == name)


def test_gradients_at_the_peak_of_a_training(shell: Any) -> None:
    view, _ = recorded(shell, SETUP, TRAINING)
    assert view.memory.peak_line == 6
    assert 0 < most(view, "gradients of model") <= PARAMETER_BYTES
    assert sum(holder.bytes for holder in view.memory.holders) == view.memory.peak_bytes
    assert view.growing == ()


def test_parameters_and_state_that_the_recording_sees_born(shell: Any) -> None:
    """Models are made in the cell's own steps, and the last one is still there."""
    cell = """for step in range(12):
    model = torch.nn.Linear(256, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    model(data).sum().backward()
    optimizer.step()
"""
    _, live = recorded(shell, SETUP, cell)

    parameters = 4 * (256 * 512 + 512)
    by_role: dict[str, int] = {}
    for owner in live.owners or ():
        if owner.variable in ("model", "optimizer"):
            by_role[owner.role] = by_role.get(owner.role, 0) + owner.bytes
    assert by_role == {
        "parameter": parameters,
        "gradient": parameters,
        "optimizer state": 2 * parameters + 2 * 4,  # two moments, and a step count for each of two parameters
    }


def test_a_list_of_losses_is_the_leak_with_its_bytes_per_step(shell: Any) -> None:
    """E15, recorded."""
    cell = TRAINING.replace("loss.backward()", "loss.backward(retain_graph=True)") + "    losses.append(loss)\n"
    view, _ = recorded(shell, SETUP + "losses = []\n", cell)
    (leak,) = view.growing
    assert (leak.name, leak.line) == ("losses", 4)
    # what the line saves, and the loss itself
    assert leak.bytes == view.memory.growth_bytes_per_step == 4 * 64 * (512 + 512 + 256) + 4


SAVED_BYTES = 4 * 64 * (512 + 512 + 256)  # by a forward pass and the square of its output
ALL_LOSSES = TRAINING.replace("loss.backward()", "loss.backward(retain_graph=True)")
IN_A_FUNCTION = (
    "def train():\n    losses = []\n"
    + "".join(f"    {line}\n" for line in f"{ALL_LOSSES}    losses.append(loss)\n".splitlines())
    + "train()\n"
)


@pytest.mark.parametrize(
    ("more", "cell", "name", "size"),
    [
        ("losses = []; log = {}", f"{ALL_LOSSES}    last = log['loss'] = loss; losses.append(loss)", "losses", 4),
        ("total = 0", f"{ALL_LOSSES}    total += loss", "total", 0),
        ("", IN_A_FUNCTION, "losses (in train)", 4),
        ("steps = {}", f"{ALL_LOSSES}    steps[step] = {{'loss': loss}}", "steps", 4),
        ("def steps():\n    kept = []\n    while True:\n        kept.append((model(data) ** 2).mean())\n        yield\n"
         "running = steps()", "for step in range(12):\n    next(running)", "running", 4),
    ],
)  # fmt: skip
def test_what_keeps_the_losses_is_the_leak_whatever_it_is(
    shell: Any, more: str, cell: str, name: str, size: int
) -> None:
    """E15: several names for a loss, a sum, a function whose marks are the optimizer's steps, a generator."""
    view, _ = recorded(shell, f"{SETUP}{more}\n", f"{cell}\n")
    assert [(leak.name, leak.bytes) for leak in view.growing] == [(name, SAVED_BYTES + size)]
    assert view.memory.growth_bytes_per_step == SAVED_BYTES + size


def test_a_sum_of_detached_losses_is_no_leak(shell: Any) -> None:
    """E15, the counterpart."""
    view, _ = recorded(shell, f"{SETUP}total = 0\n", f"{TRAINING}    total += loss.detach()\n")
    assert view.growing == ()


def test_a_leak_is_named_in_a_notebook_that_holds_too_much_to_look_at(shell: Any) -> None:
    more = "losses = []\nrows = [[{'a': [1], 'b': (i, j)} for i in range(300)] for j in range(300)]\n"
    view, live = recorded(shell, SETUP + more, f"{ALL_LOSSES}    losses.append(loss)\n")
    assert not live.owners_complete
    assert [(leak.name, leak.bytes) for leak in view.growing] == [("losses", SAVED_BYTES + 4)]


def test_detached_losses_are_four_bytes_a_step(shell: Any) -> None:
    view, _ = recorded(shell, SETUP + "losses = []\n", TRAINING + "    losses.append(loss.detach())\n")
    assert [(leak.name, leak.bytes) for leak in view.growing] == [("losses", 4)]


def test_a_request_that_fails_in_the_forward_pass_shows_its_activations(shell: Any) -> None:
    cell = """def train(step):
    hidden = model(data)
    if step == 3:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    hidden.sum().backward()
    optimizer.step()
for step in range(12):
    train(step)
"""
    view, live = recorded(shell, SETUP, cell)

    held = {holder.name: holder for holder in view.memory.holders}
    assert live.out_of_memory is not None
    assert live.out_of_memory.line == 5
    # the input of the second layer and of GELU, and the output that the failed function still holds
    assert held["activations of line 9"].bytes == 4 * 64 * (512 + 512 + 256)


REFUSED = """for step in range(12):
    optimizer.zero_grad()
    try:
        torch.empty(10**15)
    except RuntimeError:
        pass
    model(data).sum().backward()
    optimizer.step()
"""


def test_a_request_that_fails_and_is_caught_is_told_with_its_line(shell: Any) -> None:
    """The three recorded steps have one each."""
    summary, live = summed_up(shell, SETUP, REFUSED)
    (refused,) = summary.refused
    assert live.out_of_memory is None
    assert (refused.line, refused.operator, refused.count) == (5, "aten::empty", 3)
    assert (refused.step, refused.asked_bytes) == (1, 4 * 10**15)


def test_the_request_that_ends_the_cell_is_not_among_the_caught(shell: Any) -> None:
    cell = REFUSED.replace("        pass", "        if step == 4:\n            raise")
    summary, live = summed_up(shell, SETUP, cell)
    (refused,) = summary.refused
    assert live.out_of_memory is not None
    assert not live.out_of_memory.later
    assert (live.out_of_memory.line, live.out_of_memory.tried_bytes) == (5, 4 * 10**15)
    assert refused.count == 2
