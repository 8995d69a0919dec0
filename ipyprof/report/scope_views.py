"""``views["groups"]``: rows by phase, ``record_function`` range, module class and module, per unprofiled step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.scopes import ScopeRow, scopes

MS = 1e6
PHASE, RANGE, MODULE_CLASS, MODULE = "phase", "range", "module class", "module"
MOST_ROWS = 400
TORCHS_OWN = "Optimizer."  # torch names these ranges itself, and the phases say the same


def groups(profile: Profile) -> dict[str, list[dict[str, Any]]]:
    """Group → rows ``{"name", "within", "calls", "device_ms", "total_device_ms", "host_ms", "total_host_ms"}``.

    ``within`` are the names of what is around the row, the outermost first; rows stand in the order of the tree, what
    is outside all of them last. ``device_ms`` are a row's own, without those inside it: they add up to the operators'
    device time. Without a GPU device times are ``None``. Only groups that the recording has.
    """
    program, replayed, step = profile.program, profile.replayed, profile.step_ns
    if program is None or replayed is None or step is None:
        return {}
    found = scopes(
        profile.trace,
        profile.steps,
        program,
        replayed,
        profile.operators,
        cost_ns=profile.cost_ns,
        step_ns=step,
        live=profile.live,
    )
    named = any(row.calls is not None and not row.name.startswith(TORCHS_OWN) for row in found.ranges)
    tables = {
        PHASE: found.phases,
        RANGE: found.ranges if named else (),
        MODULE_CLASS: found.classes,
        MODULE: found.modules,
    }
    return {name: [_plain(row, gpu=profile.has_gpu) for row in _largest(rows)] for name, rows in tables.items() if rows}


def _largest(rows: Sequence[ScopeRow]) -> list[ScopeRow]:
    """The rows with the most time, in their order, and one for what the others have of their own, before the last row
    where that is what is outside all of them."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    # A row has at least the time of those inside it, and stands before them: what is around a kept row is kept.
    ranked = sorted(range(len(rows)), key=lambda at: (-rows[at].total_device_ns, -(rows[at].total_host_ns or 0.0), at))
    last = len(rows) - 1 if rows[-1].calls is None else -1
    kept = sorted({*ranked[: MOST_ROWS - 2], *([last] if last >= 0 else [])})
    left = [row for at, row in enumerate(rows) if at not in set(kept)]
    device, host = sum(row.device_ns for row in left), sum(row.host_ns or 0.0 for row in left)
    rest = ScopeRow(
        name=f"{len(left):,} more", device_ns=device, total_device_ns=device, host_ns=host, total_host_ns=host
    )
    shown = [rows[at] for at in kept]
    return [*shown[:-1], rest, shown[-1]] if last >= 0 else [*shown, rest]


def _plain(row: ScopeRow, *, gpu: bool) -> dict[str, Any]:
    return {
        "name": row.name,
        "within": list(row.within),
        "calls": row.calls,
        "device_ms": row.device_ns / MS if gpu else None,
        "total_device_ms": row.total_device_ns / MS if gpu else None,
        "host_ms": None if row.host_ns is None else row.host_ns / MS,
        "total_host_ms": None if row.total_host_ns is None else row.total_host_ns / MS,
    }
