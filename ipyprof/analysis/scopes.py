"""Device and host time of one step by phase, by ``record_function`` range and by module.

Device time is on the operators' clock and host time on the lines'. Each piece of device work belongs to one row, so
that the rows of each table add up to the operators' device time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.host_time import host_by_label
from ipyprof.analysis.operators import OperatorTable
from ipyprof.analysis.phases import PHASES, REST, phase_changes
from ipyprof.analysis.program import Program
from ipyprof.analysis.replay import Replayed
from ipyprof.analysis.scope_tree import (
    MODULE_PREFIX,
    ScopeTree,
    annotation_tree,
    launch_scopes,
    module_tree,
    scope_changes,
)
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, LiveRecord, Trace

OUTSIDE_RANGES = "outside any range"
OUTSIDE_MODULES = "outside any module"
_INSTANCE = re.compile(r"_[0-9]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRow:
    """One phase, range or module, per step.

    Attributes:
        within: names of what is around it, the outermost first.
        calls: of the range or module in the recorded steps; ``None`` for phases and for what is outside.
        device_ns: of what no range inside it has; total_device_ns: with those inside it.
        host_ns, total_host_ns: the same of the host, waiting included; ``None`` on a thread that is not followed.
    """

    name: str
    within: tuple[str, ...] = ()
    calls: float | None = None
    device_ns: float
    total_device_ns: float
    host_ns: float | None
    total_host_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """Tables of one step; a table is empty where the file has nothing of its kind.

    Attributes:
        phases: in the order of ``PHASES``, without those that take no time.
        ranges, modules: each one before those inside it, siblings by total time; last what is outside all of them.
        classes: modules of one class inside the same ones taken together.
    """

    phases: tuple[ScopeRow, ...]
    ranges: tuple[ScopeRow, ...]
    modules: tuple[ScopeRow, ...]
    classes: tuple[ScopeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the tables are made from: the arguments of ``scopes``, and the device records that the operators count."""

    trace: Trace
    steps: Steps
    program: Program
    replayed: Replayed
    cost_ns: float
    step_ns: float
    work: Int64
    live: LiveRecord | None


def scopes(
    trace: Trace,
    steps: Steps,
    program: Program,
    replayed: Replayed,
    operators: OperatorTable,
    *,
    cost_ns: float,
    step_ns: float,
    live: LiveRecord | None,
) -> Scopes:
    """The tables of a replayed program.

    Args:
        cost_ns: what recording an event cost; step_ns: the unprofiled step.
    """
    run = Recorded(
        trace=trace,
        steps=steps,
        program=program,
        replayed=replayed,
        cost_ns=cost_ns,
        step_ns=step_ns,
        work=np.flatnonzero(operators.row >= 0),
        live=live,
    )
    modules = _rows(run, module_tree(trace), lambda name: name[len(MODULE_PREFIX) :])
    return Scopes(
        phases=_phases(run),
        ranges=_finished(_rows(run, annotation_tree(trace), str), OUTSIDE_RANGES),
        modules=_finished(modules, OUTSIDE_MODULES),
        classes=_finished(_merged(modules), OUTSIDE_MODULES),
    )


def _phases(run: Recorded) -> tuple[ScopeRow, ...]:
    changes = phase_changes(run.trace, run.steps, run.program, run.live)
    if changes is None:
        return ()
    launch = run.steps.launch[run.work]
    phase = changes.phase[np.maximum(np.searchsorted(changes.at, run.trace.start_ns[launch], side="right") - 1, 0)]
    phase = np.where(np.isin(run.trace.tid[launch], changes.threads), phase, REST)
    device = np.bincount(phase, run.trace.dur_ns[run.work], len(PHASES)) / max(run.steps.count, 1)
    host = host_by_label(
        run.program, run.replayed, run.cost_ns, run.step_ns, changes.at, changes.phase, len(PHASES)
    ).tolist()
    return tuple(
        ScopeRow(name=name, device_ns=own, total_device_ns=own, host_ns=busy, total_host_ns=busy)
        for name, own, busy in zip(PHASES, device.tolist(), host, strict=True)
        if own or busy
    )


@dataclass(slots=True, kw_only=True)
class _Node:
    """A row while it is made; times are its own until ``_finished`` adds up those inside it."""

    name: str
    parent: int
    calls: float
    device_ns: float
    host_ns: float | None


def _rows(run: Recorded, tree: ScopeTree, shown: Callable[[str], str]) -> list[_Node]:
    """One node per path, each behind the one around it; the last one is what is outside. Empty without ranges."""
    paths, count = len(tree.name), max(run.steps.count, 1)
    if paths == 0:
        return []
    trace, thread = run.trace, _followed(run, tree)
    found = launch_scopes(trace, run.steps, tree, run.steps.launch[run.work], thread)
    path = np.where(found >= 0, tree.path[np.maximum(found, 0)], paths)
    device = (np.bincount(path, trace.dur_ns[run.work], paths + 1) / count).tolist()
    at, current = scope_changes(trace, tree, run.program.begin, thread)
    current = np.where(current >= 0, current, paths)
    host = host_by_label(run.program, run.replayed, run.cost_ns, run.step_ns, at, current, paths + 1).tolist()
    called = run.steps.of_time(trace.start_ns[tree.event]) >= 0
    calls = (np.bincount(tree.path[called], minlength=paths) / count).tolist()
    followed = np.bincount(tree.path[trace.tid[tree.event] == thread], minlength=paths) > 0
    nodes = [
        _Node(
            name=shown(trace.names[name]),
            parent=parent,
            calls=calls[at],
            device_ns=device[at],
            host_ns=host[at] if followed[at] else None,
        )
        for at, (name, parent) in enumerate(zip(tree.name.tolist(), tree.parent.tolist(), strict=True))
    ]
    return [*nodes, _Node(name="", parent=-1, calls=0.0, device_ns=device[paths], host_ns=host[paths])]


def _followed(run: Recorded, tree: ScopeTree) -> int:
    """The thread whose ranges divide the host's time: the marking one; without marks the one with most time in them."""
    threads = run.trace.tid[tree.event]
    marked = bool((run.trace.kind == Kind.STEP).any())
    here = np.isin(threads, run.program.threads)
    if marked or not here.any():
        return run.steps.thread
    distinct, number = np.unique(threads[here], return_inverse=True)
    spent = np.bincount(number, run.trace.dur_ns[tree.event[here]])
    return int(distinct[np.argmax(spent)])


def _merged(nodes: list[_Node]) -> list[_Node]:
    """The nodes with instances of a class in one place taken together: ``Linear_3`` and ``Linear_4`` are ``Linear``."""
    merged: list[_Node] = []
    known: dict[tuple[int, str], int] = {}
    place: list[int] = []
    for node in nodes[:-1]:
        name = _INSTANCE.sub("", node.name)
        key = (place[node.parent] if node.parent >= 0 else -1, name)
        at = known.setdefault(key, len(merged))
        place.append(at)
        if at == len(merged):
            merged.append(_Node(name=name, parent=key[0], calls=0.0, device_ns=0.0, host_ns=None))
        one = merged[at]
        one.calls += node.calls
        one.device_ns += node.device_ns
        if node.host_ns is not None:
            one.host_ns = (one.host_ns or 0.0) + node.host_ns
    return merged + nodes[-1:]


def _finished(nodes: list[_Node], outside: str) -> tuple[ScopeRow, ...]:
    """The rows of nodes that have any time or call, in the order of ``Scopes``."""
    if not nodes:
        return ()
    device = [node.device_ns for node in nodes]
    host = [node.host_ns for node in nodes]
    children: list[list[int]] = [[] for _ in nodes]
    for at in range(len(nodes) - 1, -1, -1):
        parent, own = nodes[at].parent, host[at]
        if parent >= 0:
            children[parent].append(at)
            device[parent] += device[at]
            host[parent] = own if host[parent] is None else (host[parent] or 0.0) + (own or 0.0)
    last = len(nodes) - 1

    def weight(at: int) -> tuple[float, float, str]:
        return -device[at], -(host[at] or 0.0), nodes[at].name

    rows: list[ScopeRow] = []
    outermost = sorted((at for at in range(last) if nodes[at].parent < 0), key=weight, reverse=True)
    stack: list[tuple[int, tuple[str, ...]]] = [(at, ()) for at in outermost]
    while stack:
        at, within = stack.pop()
        node = nodes[at]
        if not (node.calls or device[at] or host[at]):
            continue
        rows.append(
            ScopeRow(
                name=node.name,
                within=within,
                calls=node.calls,
                device_ns=node.device_ns,
                total_device_ns=device[at],
                host_ns=node.host_ns,
                total_host_ns=host[at],
            )
        )
        inside = sorted(children[at], key=weight, reverse=True)
        stack += [(child, (*within, node.name)) for child in inside]
    rest = nodes[last]
    if rest.device_ns or rest.host_ns:
        rows.append(
            ScopeRow(
                name=outside,
                device_ns=rest.device_ns,
                total_device_ns=rest.device_ns,
                host_ns=rest.host_ns,
                total_host_ns=rest.host_ns,
            )
        )
    return tuple(rows)
