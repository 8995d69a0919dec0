"""Which hand timings of the fixed form may be compared with a prediction, on a host that changes its speed.

A shared host has two speeds or more (5,000 small CPU operators take 15 or 29 ms on the machine of the results) and
changes between them within seconds. The replay predicts the step of the host that was recorded; a fixed form that was
timed while the host ran at another speed is another machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from tests.gpu.stepped import same_speed


def fixed_step_ms(slow: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[float, bool]:
    """(the fixed form's step in ms, whether it was timed at the speed at which the slow form was recorded).

    The median over the hand timings at that speed; over all where there is none, or where the speed changed during the
    recording. NaN without timings.
    """
    hand, paces, pace = fixed.get("hand_ms") or [], fixed.get("paces_ms") or [], slow.get("pace_ms")
    if pace is not None and len(paces) == len(hand):
        same = [step for step, at in zip(hand, paces, strict=True) if same_speed(at, pace)]
        if same:
            return median(same), True
    return float(fixed.get("step_ms", float("nan"))), False
