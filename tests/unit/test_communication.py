"""Collectives: exposed ones are waited for, overlapped ones are not; one file is one rank's view."""

from __future__ import annotations

import pytest

from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.verdict import diagnose
from tests.looped import gains, profiled
from tests.machine import Machine

pytestmark = pytest.mark.usefixtures("recording_costs_nothing")

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMPUTE, NETWORK = 7, 20


def exposed(machine: Machine) -> None:
    """600 of kernels, then a collective of 400 that the kernel of 100 waits for: 1,101 a step."""
    with machine.line(3):
        machine.launch(600, stream=COMPUTE)
    with machine.line(4):
        machine.wait_event(NETWORK, on=COMPUTE)
        machine.launch(400, stream=NETWORK, name=ALL_REDUCE)
        machine.wait_event(COMPUTE, on=NETWORK)
    machine.launch(100, stream=COMPUTE)


def overlapped(machine: Machine) -> None:
    """A collective of 400 beside a kernel of 600: 601 a step."""
    machine.launch(600, stream=COMPUTE)
    machine.launch(400, stream=NETWORK, name=ALL_REDUCE)


def test_collective_the_gpu_waits_for_is_found() -> None:
    """Beside the kernels it takes no time of its own: 600, 100 and two pauses."""
    finding = cause_of("communication").find(profiled(exposed, 1_101))

    assert gains(finding) == ("found", 399.0, 702.0)
    assert finding.where.line == 4
    assert (finding.where.operator or "").startswith("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    assert finding.evidence.startswith("1 collective in a step, 0.40 ms, of which 0.40 ms beside no other work")
    assert "bucket_cap_mb" in finding.advice


def test_collective_the_gpu_waits_for_heads_the_verdict() -> None:
    diagnosis = diagnose(profiled(exposed, 1_101))
    findings, verdict = diagnosis.findings, diagnosis.verdict

    assert (verdict.cause, verdict.bound) == ("communication", "communication-bound")
    assert verdict.headline.startswith("Line 4 keeps the GPU waiting in collectives: 0.40 of 1.10 ms (36 %)")
    assert {finding.cause: finding.status for finding in findings}["straggler"] == "unknown"


def test_collective_beside_the_kernels_is_cleared() -> None:
    finding = cause_of("communication").find(profiled(overlapped, 601))

    assert gains(finding) == ("cleared", 0.0, 601.0)
    assert "hiding them recovers 0.0 % of the step" in finding.evidence


def test_a_host_that_waits_for_a_collective_does_not_wait_for_a_hidden_one() -> None:
    """DDP's timing of its first steps: 300, 400, what the host needs to launch again, and 200; hidden, 300 and 200."""

    def body(machine: Machine) -> None:
        machine.launch(300, stream=COMPUTE)
        machine.wait_event(NETWORK, on=COMPUTE)
        machine.launch(400, stream=NETWORK, name=ALL_REDUCE)
        machine.event_sync(NETWORK)
        machine.launch(200, stream=COMPUTE)

    finding = cause_of("communication").find(profiled(body, 908))

    assert gains(finding) == ("found", 406.0, 502.0)


def test_collective_that_is_longer_than_all_else_is_not_hidden_by_it() -> None:
    """A collective of 900 between kernels of 100 and 50: 1,051; beside them 901."""

    def body(machine: Machine) -> None:
        machine.launch(100, stream=COMPUTE)
        machine.wait_event(NETWORK, on=COMPUTE)
        machine.launch(900, stream=NETWORK, name=ALL_REDUCE)
        machine.wait_event(COMPUTE, on=NETWORK)
        machine.launch(50, stream=COMPUTE)

    assert gains(cause_of("communication").find(profiled(body, 1_051))) == ("found", 150.0, 901.0)


def test_no_collective() -> None:
    finding = cause_of("communication").find(profiled(lambda machine: machine.launch(100), 101))

    assert gains(finding) == ("cleared", 0.0, 101.0)
    assert finding.evidence == "no collective in the recorded steps"
