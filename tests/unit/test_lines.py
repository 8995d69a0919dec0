"""What each line of the cell costs in one step."""

from __future__ import annotations

import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.analysis.results import Line
from tests.machine import Machine, live

SOURCE = "%%gpuprofile\nfor x in data:\n    y = model(x)\n    loss = y.item()\n"


def costs(machine: Machine, *samples_us: float) -> dict[int, Line]:
    return {cost.line: cost for cost in analyse(machine.trace(), live(SOURCE, *samples_us)).lines}


def two_lines() -> Machine:
    """Line 3: 20 of Python, a launch of 5 (kernel 100). Line 4: a read. 30 between the statements' end and the mark."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            with machine.line(3):
                machine.python(20)
                machine.launch(100)
            with machine.line(4):
                machine.item()
            machine.python(30)
    return machine


def test_host_time_waits_and_device_time_by_line() -> None:
    """The read copies from +101 to +102 behind the kernel's start and returns 3 us later: after 105 us."""
    machine = two_lines()
    step = machine.marks[2] - machine.marks[1]

    found = costs(machine, step)

    assert {line: cost.host_ms for line, cost in found.items()} == pytest.approx({2: 0.030, 3: 0.025, 4: 0.105})
    assert {line: cost.device_ms for line, cost in found.items()} == {2: 0.0, 3: 0.1, 4: 0.001}
    assert {line: cost.sync_count for line, cost in found.items()} == {2: 0.0, 3: 0.0, 4: 1.0}


def test_lines_together_take_the_hosts_step() -> None:
    machine = two_lines()
    profile = analyse(machine.trace(), live(SOURCE, 140, 140))

    assert profile.replayed is not None
    whole = min(profile.replayed.host_step_ns / 1e6, 0.14)
    assert sum(cost.host_ms or 0.0 for cost in profile.lines) == pytest.approx(whole, rel=1e-9)


def test_lines_never_take_more_than_the_unprofiled_step() -> None:
    """A sleep cannot be deflated: 160 us recorded, 60 unprofiled."""
    found = costs(two_lines(), 60)

    assert sum(cost.host_ms or 0.0 for cost in found.values()) == pytest.approx(0.06)


def test_lines_together_have_all_device_time() -> None:
    assert sum(cost.device_ms or 0.0 for cost in costs(two_lines(), 160).values()) == pytest.approx(0.101)


def test_backward_goes_to_the_line_of_its_forward() -> None:
    """Line 3 made the node that line 4's ``backward()`` runs on another thread."""
    machine = Machine()
    for step in range(2):
        with machine.step():
            with machine.line(3):
                begin = machine.host
                machine.launch(50)
                machine.builder.op("aten::mm", begin, machine.host, sequence=10 + step)
            with machine.line(4):
                with machine.thread(2):
                    begin = machine.host
                    machine.launch(200)
                    name = "autograd::engine::evaluate_function: MmBackward0"
                    machine.builder.op(name, begin, machine.host, 2, sequence=10 + step, forward_thread=1)
                machine.sync()
    found = costs(machine, 260)

    assert {line: cost.device_ms for line, cost in found.items() if line > 2} == {3: 0.25, 4: 0.0}
    assert found[4].sync_count == 1.0


def test_no_lines_without_ranges_in_a_file() -> None:
    machine = Machine()
    with machine.step():
        machine.launch(10)

    assert analyse(machine.trace()).lines == ()


def test_line_that_runs_when_recording_begins_takes_what_no_range_has() -> None:
    """Steps marked inside a function: the cell stands at one line all the time."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(60)
            machine.launch(10)
    record = live(SOURCE, 65, mark="optimizer", loop_line=None, current_line=3)

    found = {cost.line: cost for cost in analyse(machine.trace(), record).lines}

    assert list(found) == [3]
    assert found[3].host_ms == pytest.approx(0.065)
    assert found[3].device_ms == 0.01
