"""The planted suite: pairs of cells of which the slow one carries a known cause, and healthy cells that carry none.

    python -m tests.gpu.planted --tuning --out DIR

Every expectation stands in ``pairs_*.py`` and ``healthy.py`` and was written down before the first run.
"""

from __future__ import annotations

from tests.gpu.planted import pairs_compute, pairs_host, pairs_launch, pairs_loading, pairs_memory, pairs_models
from tests.gpu.planted.healthy import HEALTHY
from tests.gpu.planted.pairs_later import LATER
from tests.gpu.workloads import Workload

PAIRS: tuple[Workload, ...] = (
    *pairs_loading.PAIRS,
    *pairs_host.PAIRS,
    *pairs_memory.PAIRS,
    *pairs_launch.PAIRS,
    *pairs_compute.PAIRS,
    *pairs_models.PAIRS,
)

PLANTED: tuple[Workload, ...] = (*PAIRS, *HEALTHY, *LATER)


def half_of(workload: Workload) -> str:
    """``tuning``, ``held-out`` or ``later``."""
    return "later" if workload in LATER else "held-out" if workload.held_out else "tuning"


__all__ = ["HEALTHY", "LATER", "PAIRS", "PLANTED", "half_of"]
