"""Device and host time of one step by phase, by ``record_function`` range and by module.

Device time is on the operators' clock and host time on the lines'. Each piece of device work belongs to one row, so
that the rows of each table add up to the operators' device time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.attribution import around, backward_nodes, forward_operators, innermost, makers, parents, probe
from ipyprof.analysis.intervals import inside, union
from ipyprof.analysis.lines import host_by_label
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Program, loader_spans
from ipyprof.analysis.results import ScopeRow
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Int64, Trace

MODULE_PREFIX = "nn.Module: "
DEEPEST = 32  # a range deeper than this belongs to the one around it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeTree:
    """Ranges and the tree of their paths. A path is the names of a range and of those around it.

    Attributes:
        event: (e,) int64 index in the trace of each range.
        around: (e,) int64 position of the range around it, -1 = none.
        path: (e,) int64 its path; depth: (e,) int64 how many ranges are around it.
        name: (p,) int64 index into the trace's names of each path's last name.
        parent: (p,) int64 the path around it, -1 = none; always before the path itself.
    """

    event: Int64
    around: Int64
    path: Int64
    depth: Int64
    name: Int64
    parent: Int64


def annotation_tree(trace: Trace) -> ScopeTree:
    """The ``record_function`` ranges, torch's own such as the optimizer's among them; not the steps and loaders."""
    return _tree(trace, trace.select(Kind.ANNOTATION))


def module_tree(trace: Trace) -> ScopeTree:
    """The calls of modules. Only a recording with stacks has them.

    Hooks on every module could record them at any time, but not without changing what runs: a function that
    ``torch.compile`` compiles while they are on is compiled with them, in pieces, and again when they are gone
    (torch 2.13).
    """
    events = trace.select(Kind.PYTHON)
    named = np.array([name.startswith(MODULE_PREFIX) for name in trace.names], bool)
    return _tree(trace, events[named[trace.name[events]]])


def launch_scopes(trace: Trace, steps: Steps, tree: ScopeTree, launch: Int64, thread: int) -> Int64:
    """(m,) int64: the position in the tree of the range that each launching call belongs to, -1 = outside all.

    The innermost around the call on its thread. Autograd's threads have no ranges of their own while ``thread`` waits
    for them: theirs is the one that is open there. Backward work belongs to the range whose forward operator made it,
    unless the backward pass runs in a range that does not hold that operator: then to that one.

    Args:
        launch: (m,) indices of API calls; thread: the one whose ranges hold for autograd's threads.
    """
    if len(tree.event) == 0:
        return np.full(len(launch), -1, np.int64)
    calls, of_call = np.unique(launch, return_inverse=True)
    at = probe(trace.start_ns[calls], trace.end_ns[calls])
    node, made = forward_operators(trace, steps, calls)
    open_there = _holding(trace, tree, at, trace.tid[calls])
    waited_for = (open_there < 0) & (node >= 0) & (trace.tid[calls] != thread)
    open_there[waited_for] = _holding(trace, tree, at[waited_for], np.full(int(waited_for.sum()), thread, np.int64))
    known = np.flatnonzero(made >= 0)
    forward = made[known]
    origin = _holding(trace, tree, probe(trace.start_ns[forward], trace.end_ns[forward]), trace.tid[forward])
    here = open_there[known]
    # The range that is open now may be one of those around the forward operator, also that range itself.
    above = origin.copy()
    level = np.where(here >= 0, tree.depth[np.maximum(here, 0)], -1)
    while (deeper := (above >= 0) & (tree.depth[np.maximum(above, 0)] > level)).any():
        above[deeper] = tree.around[above[deeper]]
    held = above == here
    open_there[known[held]] = origin[held]
    return open_there[of_call]


def scope_changes(trace: Trace, tree: ScopeTree, begin: int, thread: int) -> tuple[Int64, Int64]:
    """(at, path): the instants from ``begin`` on at which the innermost range of a thread changes, and its path.

    Paths are -1 where no range is open.
    """
    mine = tree.event[trace.tid[tree.event] == thread]
    edges = np.concatenate((trace.start_ns[mine], trace.end_ns[mine]))
    at = np.unique(np.append(edges[edges > begin], begin))
    found = _holding(trace, tree, at, np.full(len(at), thread, np.int64))
    return at, np.where(found >= 0, tree.path[np.maximum(found, 0)] if len(tree.path) else -1, -1)


def _holding(trace: Trace, tree: ScopeTree, at: Int64, thread: Int64) -> Int64:
    """(m,) position of the innermost range that holds each instant on its thread, -1 = none."""
    start, end, tid = trace.start_ns[tree.event], trace.end_ns[tree.event], trace.tid[tree.event]
    return innermost(start, end, tid, at, thread, tree.around)


def _tree(trace: Trace, events: Int64) -> ScopeTree:
    around = parents(trace.start_ns[events], trace.end_ns[events], trace.tid[events])
    path, depth = np.full(len(events), -1, np.int64), np.full(len(events), -1, np.int64)
    names, path_parents = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    paths, level = 0, np.flatnonzero(around < 0)
    for number in range(DEEPEST):
        above = np.where(around[level] >= 0, path[np.maximum(around[level], 0)], -1)
        named: Int64 = (above + 1) * len(trace.names) + trace.name[events[level]].astype(np.int64)
        keys, found = np.unique(named, return_inverse=True)
        path[level], depth[level] = paths + found, number
        path_parents.append(keys // len(trace.names) - 1)
        names.append(keys % len(trace.names))
        paths += len(keys)
        waiting = np.flatnonzero((depth < 0) & (around >= 0))
        level = waiting[depth[around[waiting]] == number]
        if len(level) == 0:
            break
    kept = np.flatnonzero(depth >= 0)
    place = np.full(len(events), -1, np.int64)
    place[kept] = np.arange(len(kept))
    return ScopeTree(
        event=events[kept],
        around=np.where(around[kept] >= 0, place[np.maximum(around[kept], 0)], -1),
        path=path[kept],
        depth=depth[kept],
        name=np.concatenate(names),
        parent=np.concatenate(path_parents),
    )


Spans = tuple[Int64, Int64]
FORWARD, BACKWARD, OPTIMIZER, LOADER, REST = range(5)
PHASES = ("forward", "backward", "optimizer", "loader", "the rest")
_STEPPING = ("Optimizer.step#", "## optimizer")
_ZEROING = ("Optimizer.zero_grad#",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanges:
    """Which phase the host is in.

    Attributes:
        at: (c,) int64 ns, sorted: where the phase changes; phase: (c,) int64 index into ``PHASES`` from then on.
        threads: (t,) int64 threads that run these phases; what others launch is of the rest.
    """

    at: Int64
    phase: Int64
    threads: Int64


def phase_changes(trace: Trace, steps: Steps, program: Program, live: LiveRecord | None) -> PhaseChanges | None:
    """The phases of the recorded window; ``None`` where the file has neither a backward pass nor an optimizer's step.

    * backward: from the first to the last node that autograd ran in a row;
    * optimizer: its step and ``zero_grad``. Where a step runs a closure with a backward pass in it (LBFGS, Lightning)
      only what is neither forward nor backward;
    * forward: from the end of the optimizer's step, or of the backward pass, or the step's mark before it, to a
      backward pass; in a closure from the first operator that autograd needs;
    * loader: fetching a batch; the rest: clipping, logging, a step without a backward pass.
    """
    nodes = backward_nodes(trace)
    stepping = _ranges(trace, _STEPPING)
    if len(nodes) == 0 and len(stepping) == 0:
        return None
    made = makers(trace, steps, nodes)
    passes, number = _passes(trace, steps, nodes, made)
    held = np.searchsorted(passes[0], trace.end_ns[stepping]) > np.searchsorted(passes[0], trace.start_ns[stepping])
    closure = held & (around(trace, nodes, stepping) < 0)
    plain, closures = _spans(trace, stepping[~closure]), _spans(trace, stepping[closure])
    threads = np.concatenate((trace.tid[nodes], trace.tid[stepping], _forward_threads(trace, steps, made)))
    painted = (
        (OPTIMIZER, closures),
        (FORWARD, _forward(trace, steps, passes, closures, plain, made, number)),
        (BACKWARD, passes),
        (OPTIMIZER, _joined(plain, _spans(trace, _ranges(trace, _ZEROING)))),
        (LOADER, loader_spans(trace, steps, live, np.asarray(program.threads, np.int64))),
    )
    at = np.unique(np.concatenate(([program.begin], *(edge for _, spans in painted for edge in spans))))
    phase = np.full(len(at), REST, np.int64)
    for label, (start, end) in painted:
        phase[inside(*union(start, end), at)] = label
    return PhaseChanges(at=at, phase=phase, threads=np.unique(threads))


def phase_spans(trace: Trace, steps: Steps) -> tuple[Spans, Spans]:
    """Disjoint (start, end) of the backward passes and of the optimizers' steps on the host."""
    nodes = backward_nodes(trace)
    passes, _ = _passes(trace, steps, nodes, makers(trace, steps, nodes))
    return union(*passes), union(*_spans(trace, _ranges(trace, _STEPPING)))


def _passes(trace: Trace, steps: Steps, nodes: Int64, made: Int64) -> tuple[Spans, Int64]:
    """(spans of the backward passes in time order, (k,) the pass of each node).

    A pass lasts from the first to the last node without a step's mark between them, an optimizer's step or an operator
    of the forward pass's thread; those inside a node are of the backward pass.

    Args:
        nodes: (k,) all of ``backward_nodes``; made: (k,) their ``makers``.
    """
    others = trace.select(Kind.OPERATOR)
    is_node = np.zeros(len(trace), bool)
    is_node[nodes] = True
    others = others[np.isin(trace.tid[others], _forward_threads(trace, steps, made)) & ~is_node[others]]
    others = np.concatenate((others, _ranges(trace, _STEPPING)))
    others = others[around(trace, nodes, others) < 0]
    cuts = np.sort(np.concatenate((trace.start_ns[others], steps.marks_ns)))
    stretch = np.searchsorted(cuts, trace.start_ns[nodes], side="right")
    _, first, number = np.unique(stretch, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, number, trace.end_ns[nodes])
    return (trace.start_ns[nodes[first]], last), number.astype(np.int64)


def _forward_threads(trace: Trace, steps: Steps, made: Int64) -> Int64:
    """Threads of the forward operators; the marking one where no node knows its operator."""
    found = np.unique(trace.tid[made[made >= 0]])
    return found if len(found) else np.array([steps.thread], np.int64)


def _forward(
    trace: Trace, steps: Steps, passes: Spans, closures: Spans, plain: Spans, made: Int64, number: Int64
) -> Spans:
    """(p,) start and end of what goes before each backward pass."""
    begin, end = passes
    first = np.iinfo(np.int64).min
    start = np.full(len(begin), first, np.int64)
    for edges in (steps.marks_ns, plain[1], closures[1], end):
        before = np.concatenate(([first], np.sort(edges)))
        start = np.maximum(start, before[np.searchsorted(before, begin, side="right") - 1])
    needed = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    found = made >= 0
    np.minimum.at(needed, number[found], trace.start_ns[made[found]])
    # In a closure the optimizer's own work lies before the forward pass.
    closing = inside(*union(*closures), begin)
    start = np.where(closing, np.minimum(np.maximum(start, needed), begin), start)
    return start, begin


def _ranges(trace: Trace, prefixes: tuple[str, ...]) -> Int64:
    """(r,) indices of the operators and annotations whose name begins so."""
    events = trace.select(Kind.OPERATOR, Kind.ANNOTATION)
    begins = np.array([name.startswith(prefixes) for name in trace.names], bool)
    found: Int64 = events[begins[trace.name[events]]]
    return found


def _spans(trace: Trace, events: Int64) -> Spans:
    return trace.start_ns[events], trace.end_ns[events]


def _joined(one: Spans, other: Spans) -> Spans:
    return np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1]))


PHASE, RANGE, MODULE_CLASS, MODULE = "phase", "range", "module class", "module"
OUTSIDE_RANGES = "outside any range"
OUTSIDE_MODULES = "outside any module"
MOST_ROWS = 400
_TORCHS_OWN = "Optimizer."  # torch names these ranges itself, and the phases say the same
_INSTANCE = re.compile(r"_[0-9]+$")
MS = 1e6  # ns


def groups(profile: Profile) -> dict[str, tuple[ScopeRow, ...]]:
    """Group → rows of one step; only groups that the recording has.

    Phases stand in the order of ``PHASES``, without those that take no time. Ranges and modules stand each before
    those inside it, siblings by total time; last what is outside all of them. Of a class, modules inside the same ones
    are taken together.
    """
    if profile.program is None or profile.replayed is None or profile.step_ns is None:
        return {}
    ranges = _finished(_rows(profile, annotation_tree(profile.trace), str), OUTSIDE_RANGES, gpu=profile.has_gpu)
    named = any(row.calls is not None and not row.name.startswith(_TORCHS_OWN) for row in ranges)
    modules = _rows(profile, module_tree(profile.trace), lambda name: name[len(MODULE_PREFIX) :])
    tables = {
        PHASE: _phases(profile),
        RANGE: ranges if named else [],
        MODULE_CLASS: _finished(_merged(modules), OUTSIDE_MODULES, gpu=profile.has_gpu),
        MODULE: _finished(modules, OUTSIDE_MODULES, gpu=profile.has_gpu),
    }
    return {name: tuple(_largest(rows)) for name, rows in tables.items() if rows}


def _largest(rows: list[ScopeRow]) -> list[ScopeRow]:
    """The rows with the most time, in their order, and one for what the others have of their own, before the last row
    where that is what is outside all of them."""
    if len(rows) <= MOST_ROWS:
        return rows
    # A row has at least the time of those inside it, and stands before them: what is around a kept row is kept.
    ranked = sorted(
        range(len(rows)), key=lambda at: (-(rows[at].total_device_ms or 0.0), -(rows[at].total_host_ms or 0.0), at)
    )
    last = len(rows) - 1 if rows[-1].calls is None else -1
    kept = {*ranked[: MOST_ROWS - 2], *([last] if last >= 0 else [])}
    left = [row for at, row in enumerate(rows) if at not in kept]
    gpu = rows[0].device_ms is not None
    rest = _row(
        f"{len(left):,} more",
        sum(row.device_ms or 0.0 for row in left) if gpu else None,
        sum(row.host_ms or 0.0 for row in left),
    )
    shown = [rows[at] for at in sorted(kept)]
    return [*shown[:-1], rest, shown[-1]] if last >= 0 else [*shown, rest]


def _row(name: str, device_ms: float | None, host_ms: float | None) -> ScopeRow:
    """A row with nothing inside it."""
    return ScopeRow(name=name, device_ms=device_ms, total_device_ms=device_ms, host_ms=host_ms, total_host_ms=host_ms)


def _work(profile: Profile) -> Int64:
    """The device records that the operators count."""
    return np.flatnonzero(profile.operators.row >= 0)


def _host_ns(profile: Profile, at: Int64, label: Int64, labels: int) -> list[float]:
    """Host time by label, as in ``host_by_label``."""
    assert profile.program is not None and profile.replayed is not None and profile.step_ns is not None
    found: list[float] = host_by_label(
        profile.program, profile.replayed, profile.cost_ns, profile.step_ns, at, label, labels
    ).tolist()
    return found


def _phases(profile: Profile) -> list[ScopeRow]:
    trace, steps = profile.trace, profile.steps
    assert profile.program is not None
    changes = phase_changes(trace, steps, profile.program, profile.live)
    if changes is None:
        return []
    work = _work(profile)
    launch = steps.launch[work]
    phase = changes.phase[np.maximum(np.searchsorted(changes.at, trace.start_ns[launch], side="right") - 1, 0)]
    phase = np.where(np.isin(trace.tid[launch], changes.threads), phase, REST)
    device = np.bincount(phase, trace.dur_ns[work], len(PHASES)) / max(steps.count, 1)
    host = _host_ns(profile, changes.at, changes.phase, len(PHASES))
    return [
        _row(name, own / MS if profile.has_gpu else None, busy / MS)
        for name, own, busy in zip(PHASES, device.tolist(), host, strict=True)
        if own or busy
    ]


@dataclass(slots=True, kw_only=True)
class _Node:
    """A row while it is made; times are its own until ``_finished`` adds up those inside it."""

    name: str
    parent: int
    calls: float = 0.0
    device_ns: float = 0.0
    host_ns: float | None = None


def _rows(profile: Profile, tree: ScopeTree, shown: Callable[[str], str]) -> list[_Node]:
    """One node per path, each behind the one around it; the last one is what is outside. Empty without ranges."""
    paths, count = len(tree.name), max(profile.steps.count, 1)
    if paths == 0:
        return []
    assert profile.program is not None
    trace, work, thread = profile.trace, _work(profile), _followed(profile, tree)
    found = launch_scopes(trace, profile.steps, tree, profile.steps.launch[work], thread)
    path = np.where(found >= 0, tree.path[np.maximum(found, 0)], paths)
    device = (np.bincount(path, trace.dur_ns[work], paths + 1) / count).tolist()
    at, current = scope_changes(trace, tree, profile.program.begin, thread)
    host = _host_ns(profile, at, np.where(current >= 0, current, paths), paths + 1)
    called = profile.steps.of_time(trace.start_ns[tree.event]) >= 0
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
    return [*nodes, _Node(name="", parent=-1, device_ns=device[paths], host_ns=host[paths])]


def _followed(profile: Profile, tree: ScopeTree) -> int:
    """The thread whose ranges divide the host's time: the marking one; without marks the one with most time in them."""
    assert profile.program is not None
    threads = profile.trace.tid[tree.event]
    here = np.isin(threads, profile.program.threads)
    if (profile.trace.kind == Kind.STEP).any() or not here.any():
        return profile.steps.thread
    distinct, number = np.unique(threads[here], return_inverse=True)
    spent = np.bincount(number, profile.trace.dur_ns[tree.event[here]])
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
            merged.append(_Node(name=name, parent=key[0]))
        one = merged[at]
        one.calls += node.calls
        one.device_ns += node.device_ns
        if node.host_ns is not None:
            one.host_ns = (one.host_ns or 0.0) + node.host_ns
    return merged + nodes[-1:]


def _finished(nodes: list[_Node], outside: str, *, gpu: bool) -> list[ScopeRow]:
    """The rows of nodes that have any time or call, in the order of ``groups``."""
    if not nodes:
        return []
    device = [node.device_ns for node in nodes]
    host = [node.host_ns for node in nodes]
    children: list[list[int]] = [[] for _ in nodes]
    for at in range(len(nodes) - 1, -1, -1):
        parent, own = nodes[at].parent, host[at]
        if parent >= 0:
            children[parent].append(at)
            device[parent] += device[at]
            host[parent] = own if host[parent] is None else (host[parent] or 0.0) + (own or 0.0)

    def weight(at: int) -> tuple[float, float, str]:
        return -device[at], -(host[at] or 0.0), nodes[at].name

    def in_ms(ns: float | None) -> float | None:
        return None if ns is None else ns / MS

    rows: list[ScopeRow] = []
    outermost = sorted((at for at, node in enumerate(nodes[:-1]) if node.parent < 0), key=weight, reverse=True)
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
                device_ms=node.device_ns / MS if gpu else None,
                total_device_ms=device[at] / MS if gpu else None,
                host_ms=in_ms(node.host_ns),
                total_host_ms=in_ms(host[at]),
            )
        )
        stack += [(child, (*within, node.name)) for child in sorted(children[at], key=weight, reverse=True)]
    rest = nodes[-1]
    if rest.device_ns or rest.host_ns:
        rows.append(_row(outside, rest.device_ns / MS if gpu else None, in_ms(rest.host_ns)))
    return rows
