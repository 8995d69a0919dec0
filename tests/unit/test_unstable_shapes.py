"""New shapes: torch.compile at work in the recorded steps, and convolutions that try algorithms out."""

from __future__ import annotations

import pytest

from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.verdict import diagnose
from tests.looped import gains, profiled
from tests.machine import Machine

pytestmark = pytest.mark.usefixtures("recording_costs_nothing")

NOTHING = "nothing was compiled and no convolution tried algorithms out"


def compile_for(machine: Machine, us: float) -> None:
    """What torch.compile's own ranges look like: one in the other, on the thread that launches."""
    begin = machine.host
    machine.python(us)
    machine.builder.annotation("entire_frame_compile (dynamo_timed)", begin, machine.host, machine.tid)
    machine.builder.annotation("backend_compile (dynamo_timed)", begin + us / 4, machine.host - us / 4, machine.tid)


def compiling(machine: Machine) -> None:
    """3,000 of compiling and a launch of 5; the kernel of 100 runs beside the next one: 3,005 a step."""
    with machine.line(3):
        compile_for(machine, 3_000)
        machine.launch(100)


# torch.compile.


def test_compiling_in_every_step_is_found() -> None:
    """Without it the kernel follows itself: 101."""
    finding = cause_of("unstable_shapes").find(profiled(compiling, 3_005))

    assert gains(finding) == ("found", 2_904.0, 101.0)
    assert (finding.where.operator, finding.where.line) == ("torch.compile", 3)
    assert finding.evidence == "torch.compile compiles anew in the recorded steps, 3.00 ms of a step"
    assert "dynamic=True" in finding.advice


def test_compiling_heads_the_verdict() -> None:
    verdict = diagnose(profiled(compiling, 3_005)).verdict

    assert (verdict.cause, verdict.bound) == ("unstable_shapes", "CPU-bound (new shapes)")
    assert verdict.headline.startswith("Line 3 keeps the GPU waiting while new shapes are prepared: 2.90 of 3.00 ms")


def test_compiling_beside_a_busy_gpu_is_cleared() -> None:
    def body(machine: Machine) -> None:
        machine.launch(5_000)
        compile_for(machine, 3_000)

    finding = cause_of("unstable_shapes").find(profiled(body, 5_001))

    assert gains(finding) == ("cleared", 0.0, 5_001.0)


def test_compiling_on_another_thread_is_not_waited_for() -> None:
    def body(machine: Machine) -> None:
        begin = machine.host
        machine.builder.annotation("async_compile.wait (dynamo_timed)", begin, begin + 3_000, 9)
        machine.launch(100)

    finding = cause_of("unstable_shapes").find(profiled(body, 101))

    assert (finding.status, finding.evidence) == ("cleared", NOTHING)


def test_compiling_is_no_python_of_the_users() -> None:
    finding = cause_of("cpu_bound").find(profiled(compiling, 3_005))

    assert "no stretch" in finding.evidence


def test_python_beside_the_compiling_is_counted_alone() -> None:
    """3,000 of compiling and 500 of Python in one stretch: without the Python 3,005."""

    def body(machine: Machine) -> None:
        with machine.line(3):
            compile_for(machine, 3_000)
            machine.python(500)
        machine.launch(100)

    profile = profiled(body, 3_505)

    assert gains(cause_of("cpu_bound").find(profile)) == ("found", 500.0, 3_005.0)
    assert gains(cause_of("unstable_shapes").find(profile)) == ("found", 3_000.0, 505.0)


def first_call(machine: Machine) -> None:
    """What torch.compile's ranges leave open: 200 in the frame around them, 1,400 to set up the new region."""
    with machine.line(3):
        begin = machine.host
        compile_for(machine, 3_000)
        machine.python(200)
        machine.builder.annotation("dynamo", begin, machine.host, machine.tid)
        begin = machine.host
        machine.python(1_400)
        machine.launch(1_000)
        machine.builder.annotation("Torch-Compiled Region: 0/1", begin, machine.host, machine.tid)


def test_what_follows_the_compiling_goes_with_it() -> None:
    """Without all of it the kernel of 1,000 follows itself."""
    assert gains(cause_of("unstable_shapes").find(profiled(first_call, 4_605))) == ("found", 3_604.0, 1_001.0)


def test_lookup_that_found_nothing_goes_with_the_compiling() -> None:
    """400 of looking through the shapes so far, 50 until it begins; the 60 of Python before stay."""

    def body(machine: Machine) -> None:
        machine.python(60)
        begin = machine.host
        machine.python(400)
        machine.builder.annotation("TorchDynamo Cache Lookup", begin, machine.host, machine.tid)
        machine.python(50)
        compile_for(machine, 3_000)
        machine.launch(10)

    assert gains(cause_of("unstable_shapes").find(profiled(body, 3_515))) == ("found", 3_450.0, 65.0)


def test_lookup_that_found_its_code_stays() -> None:
    """It is followed by a launch, not by the compiling."""

    def body(machine: Machine) -> None:
        begin = machine.host
        machine.python(400)
        machine.builder.annotation("TorchDynamo Cache Lookup", begin, machine.host, machine.tid)
        machine.launch(10)
        compile_for(machine, 3_000)

    assert gains(cause_of("unstable_shapes").find(profiled(body, 3_405))) == ("found", 3_000.0, 405.0)


def test_compiled_region_of_long_ago_stays() -> None:
    """Its 1,400 come behind a launch of something else: they are no set-up."""

    def body(machine: Machine) -> None:
        compile_for(machine, 3_000)
        machine.launch(100)
        begin = machine.host
        machine.python(1_400)
        machine.launch(100)
        machine.builder.annotation("Torch-Compiled Region: 0/0", begin, machine.host, machine.tid)

    assert gains(cause_of("unstable_shapes").find(profiled(body, 4_410))) == ("found", 3_000.0, 1_410.0)


# Convolutions.


def searching(machine: Machine) -> None:
    """A convolution that tries an algorithm for 600, waits for it, and launches 100.

    From the wait's end to the next one's: launch 5, then 20 of dispatch, the trial behind the kernel before it.
    """
    with machine.line(3), machine.op("aten::cudnn_convolution"):
        machine.python(20)
        machine.launch(600)
        machine.stream_sync()
        machine.launch(100)


SEARCHING_US = 5 + 100 + 1 + 600 + 2


def test_convolution_that_waits_inside_is_found() -> None:
    """Without the trial the kernel of 100 follows itself."""
    finding = cause_of("unstable_shapes").find(profiled(searching, SEARCHING_US))

    assert gains(finding) == ("found", SEARCHING_US - 101.0, 101.0)
    assert (finding.where.operator, finding.where.line) == ("aten::cudnn_convolution", 3)
    assert finding.evidence.startswith("convolutions try algorithms out for new shapes in the recorded steps")
    assert "cudnn.benchmark = False" in finding.advice


def test_memory_that_the_search_gives_back_goes_with_it() -> None:
    """The workspace of the trial is freed behind its wait, for 900."""

    def body(machine: Machine) -> None:
        with machine.op("aten::cudnn_convolution"):
            machine.launch(600)
            machine.stream_sync()
            machine.free(tail=900)
            machine.launch(100)

    assert gains(cause_of("unstable_shapes").find(profiled(body, 5 + 100 + 1 + 600 + 2 + 900)))[2] == 101.0


def test_steady_convolution_is_not_there() -> None:
    def body(machine: Machine) -> None:
        with machine.op("aten::cudnn_convolution"):
            machine.python(20)
            machine.launch(700)

    finding = cause_of("unstable_shapes").find(profiled(body, 701))

    assert (finding.status, finding.recoverable_ms, finding.evidence) == ("cleared", 0.0, NOTHING)


def test_wait_behind_a_convolution_is_not_its_own() -> None:
    def body(machine: Machine) -> None:
        with machine.op("aten::cudnn_convolution"):
            machine.launch(700)
        machine.stream_sync()

    assert cause_of("unstable_shapes").find(profiled(body, 707)).evidence == NOTHING


def test_wait_in_another_operator_is_no_search() -> None:
    def body(machine: Machine) -> None:
        machine.launch(700)
        machine.item()

    assert cause_of("unstable_shapes").find(profiled(body, 710)).evidence == NOTHING
