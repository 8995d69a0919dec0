"""Host ranges that nest (``record_function`` scopes, modules): their paths, and which one each launch belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.backward import forward_operators
from ipyprof.analysis.nesting import innermost, parents, probe
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
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
