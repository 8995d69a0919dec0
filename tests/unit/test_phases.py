"""Forward, backward, optimizer, loader and the rest, without ranges of the user's."""

from __future__ import annotations

from ipyprof.analysis.program import build_program
from ipyprof.analysis.scopes import PHASES, phase_changes
from ipyprof.analysis.steps import find_steps
from tests.builder import TraceBuilder

NODE = "autograd::engine::evaluate_function: "


def phases_of(builder: TraceBuilder) -> list[tuple[float, str]]:
    """(µs, phase) of each change."""
    trace = builder.trace()
    steps = find_steps(trace)
    found = phase_changes(trace, steps, build_program(trace, steps, None), None)
    assert found is not None
    named = [(at / 1000, PHASES[phase]) for at, phase in zip(found.at.tolist(), found.phase.tolist(), strict=True)]
    return [one for number, one in enumerate(named) if number == 0 or named[number - 1][1] != one[1]]


def training(*, tid: int) -> TraceBuilder:
    """A fetch to 100, a forward operator, nodes from 300 to 500 on a thread, clipping, an optimizer's step."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=1_000)
    builder.loader(0, 100)
    builder.op("aten::mm", 150, 200, sequence=7)
    builder.op(f"{NODE}MmBackward0", 300, 400, tid=tid, sequence=7)
    builder.op(f"{NODE}torch::autograd::AccumulateGrad", 410, 500, tid=tid)
    builder.op("aten::clip", 520, 560)
    builder.annotation("Optimizer.step#SGD.step", 600, 700)
    builder.annotation("Optimizer.zero_grad#SGD.zero_grad", 800, 850)
    return builder


def test_phases_of_a_training_step() -> None:
    # given a step whose backward pass runs on autograd's thread, or on the CPU on the thread of the forward pass
    for tid in (1, 2):
        # when its phases are found, then clipping and what follows the optimizer are of no pass
        assert phases_of(training(tid=tid)) == [
            (0.0, "loader"),
            (100.0, "forward"),
            (300.0, "backward"),
            (500.0, "the rest"),
            (600.0, "optimizer"),
            (700.0, "the rest"),
            (800.0, "optimizer"),
            (850.0, "the rest"),
        ]


def test_two_backward_passes_of_a_step_have_a_forward_pass_each() -> None:
    # given two losses whose backward passes run one after the other, without an optimizer's step between them
    builder = TraceBuilder()
    builder.step(0, at=0, end=1_000)
    for begin in (0, 400):
        builder.op("aten::mm", begin + 50, begin + 100, sequence=begin)
        builder.op(f"{NODE}MmBackward0", begin + 200, begin + 300, tid=2, sequence=begin)
    # when the phases are found
    found = phases_of(builder)
    # then what lies between is forward
    assert found == [
        (0.0, "forward"),
        (200.0, "backward"),
        (300.0, "forward"),
        (600.0, "backward"),
        (700.0, "the rest"),
    ]


def test_a_closure_of_the_optimizer_holds_forward_and_backward() -> None:
    # given an optimizer whose step runs the closure twice, with its own work before each
    builder = TraceBuilder()
    builder.step(0, at=0, end=1_000)
    builder.annotation("Optimizer.step#LBFGS.step", 100, 900)
    for begin in (200, 500):
        builder.op("aten::dot", begin - 50, begin - 20)
        builder.op("aten::mm", begin, begin + 50, sequence=begin)
        builder.op(f"{NODE}MmBackward0", begin + 100, begin + 200, tid=2, sequence=begin)
    # when the phases are found, then the optimizer has only what is neither
    assert phases_of(builder) == [
        (0.0, "the rest"),
        (100.0, "optimizer"),
        (200.0, "forward"),
        (300.0, "backward"),
        (400.0, "optimizer"),
        (500.0, "forward"),
        (600.0, "backward"),
        (700.0, "optimizer"),
        (900.0, "the rest"),
    ]


def test_an_optimizer_inside_the_backward_pass_does_not_end_it() -> None:
    # given a hook that steps an optimizer inside a node
    builder = TraceBuilder()
    builder.step(0, at=0, end=1_000)
    builder.op("aten::mm", 50, 100, sequence=1)
    builder.op(f"{NODE}torch::autograd::AccumulateGrad", 200, 400, tid=2)
    builder.annotation("Optimizer.step#SGD.step", 300, 350, tid=2)
    builder.op(f"{NODE}MmBackward0", 420, 500, tid=2, sequence=1)
    # when the phases are found, then it is of the optimizer, and the pass goes on behind it
    assert phases_of(builder) == [
        (0.0, "forward"),
        (200.0, "backward"),
        (300.0, "optimizer"),
        (350.0, "backward"),
        (500.0, "the rest"),
    ]


def test_no_phases_without_a_backward_pass_and_an_optimizer() -> None:
    # given inference
    builder = TraceBuilder()
    builder.step(0, at=0, end=100)
    builder.op("aten::mm", 10, 50)
    trace = builder.trace()
    steps = find_steps(trace)
    # when its phases are asked for, then nothing is called forward
    assert phase_changes(trace, steps, build_program(trace, steps, None), None) is None
