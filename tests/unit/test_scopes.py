"""Device and host time by range and module: every table adds up, and backward work goes to what made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from ipyprof.analysis.profile import Profile, analyse
from ipyprof.analysis.results import ScopeRow
from ipyprof.analysis.scopes import MOST_ROWS, OUTSIDE_MODULES, OUTSIDE_RANGES, groups
from ipyprof.trace.model import Trace
from tests.machine import Machine, live
from tests.shared_traces import shared_trace

NODE = "autograd::engine::evaluate_function: MmBackward0"
SOURCE = "%%gpuprofile\nfor x in data:\n    train(x)\n"


def scopes_of(trace: Trace, *samples_us: float) -> tuple[dict[str, tuple[ScopeRow, ...]], Profile]:
    profile = analyse(trace, live(SOURCE, *samples_us) if samples_us else None)
    return groups(profile), profile


def total_ms(values: Iterable[float | None]) -> float:
    return sum(value or 0.0 for value in values)


@contextmanager
def scope(machine: Machine, name: str, *, module: bool = False) -> Iterator[None]:
    begin = machine.host
    yield
    if module:
        machine.builder.python(f"nn.Module: {name}", begin, machine.host, machine.tid)
    else:
        machine.builder.annotation(name, begin, machine.host, machine.tid)


@contextmanager
def operator(machine: Machine, sequence: int, name: str = "aten::mm") -> Iterator[None]:
    begin = machine.host
    yield
    machine.builder.op(name, begin, machine.host, machine.tid, sequence=sequence)


def device_us(rows: tuple[ScopeRow, ...]) -> dict[str, tuple[float, float]]:
    """Path → (own, with inner) device µs."""
    times = [[round(1000 * (ms or 0.0), 6) for ms in (row.device_ms, row.total_device_ms)] for row in rows]
    return {"/".join((*row.within, row.name)): (own, total) for row, (own, total) in zip(rows, times, strict=True)}


def model_step(machine: Machine, step: int, *, module: bool, backward: str = "") -> None:
    """Outer has 10, Inner in it 100; the backward pass 300 for Inner and 30 for Outer, on autograd's thread."""
    with scope(machine, "Outer_0" if module else "outer", module=module):
        with operator(machine, 2 * step + 1):
            machine.launch(10)
        with scope(machine, "Inner_0" if module else "inner", module=module), operator(machine, 2 * step + 2):
            machine.launch(100)
    begin = machine.host
    with machine.thread(2):
        for number, kernel in ((2 * step + 2, 300), (2 * step + 1, 30)):
            with operator(machine, number, NODE):
                machine.launch(kernel)
    if backward:
        machine.builder.annotation(backward, begin, machine.host)
    machine.launch(5)
    machine.sync()


@pytest.mark.parametrize("module", [False, True])
def test_backward_goes_to_the_range_or_module_of_its_forward(module: bool) -> None:
    # given two nested ranges, or modules, and a backward pass outside of both
    machine = Machine()
    for step in range(2):
        with machine.step():
            model_step(machine, step, module=module)
    # when they are measured
    found, profile = scopes_of(machine.trace())
    rows = found["module" if module else "range"]
    # then each has its own backward work, the outer one that of the inner one in its total, and all work is in a row
    outer, inner = ("Outer_0", "Outer_0/Inner_0") if module else ("outer", "outer/inner")
    outside = OUTSIDE_MODULES if module else OUTSIDE_RANGES
    assert device_us(rows) == {outer: (40.0, 440.0), inner: (400.0, 400.0), outside: (5.0, 5.0)}
    operators_ms = total_ms(row.self_device_ms for row in profile.operators.rows)
    assert total_ms(row.device_ms for row in rows) == pytest.approx(operators_ms)


def test_a_range_around_the_backward_pass_keeps_it() -> None:
    # given ranges for the forward pass, and one around the backward pass
    machine = Machine()
    for step in range(2):
        with machine.step():
            model_step(machine, step, module=False, backward="backward")
    # when they are measured
    found, _ = scopes_of(machine.trace())
    # then what runs in it is its own
    assert device_us(found["range"]) == {
        "outer": (10.0, 110.0),
        "outer/inner": (100.0, 100.0),
        "backward": (330.0, 330.0),
        OUTSIDE_RANGES: (5.0, 5.0),
    }


def test_a_range_around_both_passes_does_not_hold_the_backward_back() -> None:
    # given one range around the whole step, which holds both passes
    machine = Machine()
    for step in range(2):
        with machine.step(), scope(machine, "step"):
            model_step(machine, step, module=False)
    # when it is measured, then backward work still finds the range of its forward
    found, _ = scopes_of(machine.trace())
    assert device_us(found["range"]) == {
        "step": (5.0, 445.0),
        "step/outer": (40.0, 440.0),
        "step/outer/inner": (400.0, 400.0),
    }


def test_backward_inside_a_node_goes_to_what_made_the_outer_node() -> None:
    """A reentrant checkpoint: the numbers of the inner pass are those of autograd's thread."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            with scope(machine, "first"), operator(machine, 1):
                machine.launch(10)
            with scope(machine, "checkpoint"), operator(machine, 2, "CheckpointFunction"):
                machine.launch(20)
            with machine.thread(2), operator(machine, 2, NODE):
                machine.python(5)
                with operator(machine, 1, NODE):
                    machine.launch(100)
            machine.sync()

    found, _ = scopes_of(machine.trace())

    assert device_us(found["range"])["checkpoint"] == (120.0, 120.0)


def test_instances_of_one_class_in_one_place_are_one_row() -> None:
    # given a model that calls two instances of a class
    machine = Machine()
    for _ in range(2):
        with machine.step():
            with scope(machine, "Net_0", module=True):
                for number in (0, 1):
                    with scope(machine, f"Linear_{number}", module=True), machine.op("aten::mm"):
                        machine.launch(10 + number)
            machine.sync()
    # when the classes are measured
    found, _ = scopes_of(machine.trace())
    # then both are in one row, and the instances in one each
    assert device_us(found["module class"]) == {
        "Net": (0.0, 21.0),
        "Net/Linear": (21.0, 21.0),
        OUTSIDE_MODULES: (0.0, 0.0),
    }
    assert [row.calls for row in found["module class"]] == [1.0, 2.0, None]
    assert device_us(found["module"])["Net_0/Linear_1"] == (11.0, 11.0)


def test_host_time_of_a_gap_is_divided_where_the_range_ends() -> None:
    """No call lies at the edge: 30 us of Python inside the range and 70 behind it are one gap of the replay.

    Recording the range cost 1.25 us at either edge and each launch 2.5; the 102.5 us that remain take the step's 110.
    """
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(20)
            with scope(machine, "prepare"):
                machine.python(30)
            machine.python(70)
            machine.launch(20)
    step = machine.marks[2] - machine.marks[1]

    found, profile = scopes_of(machine.trace(), step, step)

    host = {row.name: row.host_ms for row in found["range"]}
    assert profile.replayed is not None and profile.step_ns is not None
    assert host["prepare"] == pytest.approx((0.030 - 0.00125) * 110 / 102.5)
    assert total_ms(host.values()) == pytest.approx(min(profile.replayed.host_step_ns, profile.step_ns) / 1e6)


def test_host_time_on_a_thread_that_is_not_followed_is_not_measured() -> None:
    # given a range of autograd's thread, such as a collective's
    machine = Machine()
    for _ in range(2):
        with machine.step():
            with machine.thread(2), scope(machine, "nccl:all_reduce"):
                machine.launch(50)
            machine.sync()
    # when it is measured, then its device time is known and its host time is not
    found, _ = scopes_of(machine.trace())
    rows = [(row.name, row.device_ms, row.host_ms) for row in found["range"]]
    assert rows[0] == ("nccl:all_reduce", 0.05, None)


def test_phases_have_all_device_time() -> None:
    # given a training step with an optimizer
    machine = Machine()
    for step in range(2):
        with machine.step():
            model_step(machine, step, module=False)
            with scope(machine, "Optimizer.step#SGD.step"):
                machine.launch(7)
    # when it is measured
    found, _ = scopes_of(machine.trace())
    # then each phase has what was launched in it; the kernel of 5 behind the backward pass is of none
    expected = {"forward": 0.11, "backward": 0.33, "optimizer": 0.007, "the rest": 0.005}
    assert {row.name: row.device_ms for row in found["phase"]} == expected


def test_ranges_that_nest_without_end_are_cut_and_lose_nothing() -> None:
    # given a range that opens itself 200 times
    machine = Machine()
    with machine.step():
        begin = machine.host
        machine.python(500)
        for depth in range(200):
            machine.builder.annotation("again", begin + depth, begin + 500 - depth)
        machine.builder.launch(begin + 250, 1, "kernel", begin + 260, 40)
    # when it is measured, then the deepest that is kept has the work
    found, _ = scopes_of(machine.trace())
    assert max(len(row.within) for row in found["range"]) == 31
    assert found["range"][0].total_device_ms == total_ms(row.device_ms for row in found["range"]) == 0.04


@pytest.mark.parametrize(
    "name",
    [
        "tracelens/history~mi300~ddp_resnet18_no_pool.train_resnet18.json.gz",
        "tracelens/tests~traces~mi300~resnet_act_checkpoint.json.gz",
        "tracelens/tests~traces~h100~Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "hta/tests~data~ns_resolution_trace~rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        "nccl-h200/ddp_balanced_rank0.json.gz",
    ],
)
def test_tables_of_real_files_add_up_to_the_operators(name: str) -> None:
    found, profile = scopes_of(shared_trace(name))
    device = total_ms(row.self_device_ms for row in profile.operators.rows)

    assert found
    for rows in found.values():
        assert total_ms(row.device_ms for row in rows) == pytest.approx(device, rel=1e-9)
        if len(rows) < MOST_ROWS:  # else what is in the row for the others may be inside a kept one
            assert total_ms(row.total_device_ms for row in rows if not row.within) == pytest.approx(device, rel=1e-9)


def test_modules_of_a_real_file_have_their_backward_pass() -> None:
    """ResNet-18 recorded with stacks: its convolutions' backward pass takes most of the step."""
    found, _ = scopes_of(shared_trace("tracelens/history~mi300~ddp_resnet18_no_pool.train_resnet18.json.gz"))

    net = found["module class"][0]

    assert net.name == "ResNet"
    assert (net.total_device_ms or 0.0) > 0.99 * total_ms(row.device_ms for row in found["module class"])
