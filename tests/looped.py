"""Loops of equal steps for the causes' tests, and what a finding gains, in microseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipyprof.analysis.profile import Profile, analyse
from ipyprof.diagnosis.cause import Finding
from tests.machine import Machine, live

SOURCE = "%%gpuprofile\nfor x in loader:\n    y = model(x)\n    total += y.item()\n    torch.cuda.empty_cache()\n"


def profiled(body: Callable[[Machine], object], step_us: float | None, steps: int = 4, **known: Any) -> Profile:
    """Recorded steps of this body; ``step_us`` is their unprofiled length (``None``: read from a file)."""
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            body(machine)
    record = None if step_us is None else live(SOURCE, step_us, step_us, step_us, **known)
    return analyse(machine.trace(), record)


def gains(finding: Finding) -> tuple[str, float, float]:
    """(status, recoverable us, predicted us)."""
    assert finding.recoverable_ms is not None
    assert finding.predicted_step_ms is not None
    return finding.status, round(finding.recoverable_ms * 1000, 3), round(finding.predicted_step_ms * 1000, 3)
