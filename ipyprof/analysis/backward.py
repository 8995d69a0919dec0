"""Which forward operator a piece of backward work belongs to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ipyprof.analysis.nesting import around, parents
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, Trace

NODE_PREFIX = "autograd::engine::evaluate_function"


def forward_times(trace: Trace, steps: Steps, calls: Int64) -> Int64:
    """(c,) int64: for each API call made in a backward node, the start of the forward operator that made the node.

    -1 as in ``forward_operators``.
    """
    made = forward_operators(trace, steps, calls)[1]
    return np.where(made >= 0, trace.start_ns[np.maximum(made, 0)], -1)


def forward_operators(trace: Trace, steps: Steps, calls: Int64) -> tuple[Int64, Int64]:
    """((c,) the backward node around each API call, (c,) the forward operator that made it): indices of events.

    -1 where the call is in no backward node, or the node has no forward operator in the file. Of nested nodes the
    outermost counts: a backward pass inside a node, such as a reentrant checkpoint's, is of what made that node.

    Args:
        calls: (c,) indices of API calls.
    """
    nodes = backward_nodes(trace)
    if len(nodes) == 0 or len(calls) == 0:
        return np.full(len(calls), -1, np.int64), np.full(len(calls), -1, np.int64)
    node_of = around(trace, nodes, calls)
    outer = parents(trace.start_ns[nodes], trace.end_ns[nodes], trace.tid[nodes])
    outermost = np.where(outer >= 0, outer, np.arange(len(nodes)))
    while (further := outermost[outermost] != outermost).any():
        outermost[further] = outermost[outermost[further]]
    made = makers(trace, steps, nodes)
    known, place = node_of >= 0, outermost[np.maximum(node_of, 0)]
    return np.where(known, nodes[place], -1), np.where(known, made[place], -1)


def backward_nodes(trace: Trace) -> Int64:
    """(k,) indices of the nodes that autograd ran, in time order."""
    operators = trace.select(Kind.OPERATOR)
    return operators[_is_node(trace, operators)]


def makers(trace: Trace, steps: Steps, nodes: Int64) -> Int64:
    """(k,) int64: the forward operator that made each backward node, -1 = none (AccumulateGrad has none).

    Nodes and operators share autograd's sequence number, which counts per thread: the forward operator is the last
    one started with that number on the forward thread, before the node ran.

    Args:
        nodes: (k,) all of ``backward_nodes``.
    """
    forward = trace.select(Kind.OPERATOR)
    forward = forward[~_is_node(trace, forward) & (trace.sequence[forward] >= 0)]
    forward = forward[around(trace, nodes, forward) < 0]
    forward = forward[trace.tid[forward] == _forward_thread(trace, steps, nodes, forward)]
    if len(forward) == 0:
        return np.full(len(nodes), -1, np.int64)
    return _last_before(trace, forward, nodes)


def _is_node(trace: Trace, operators: Int64) -> npt.NDArray[np.bool_]:
    """(k,) whether each operator is a node that autograd ran."""
    return np.array([name.startswith(NODE_PREFIX) for name in trace.names], bool)[trace.name[operators]]


def _forward_thread(trace: Trace, steps: Steps, nodes: Int64, forward: Int64) -> int:
    """The thread whose operators share most sequence numbers with the nodes; ties go to the marking thread."""
    numbers = np.unique(trace.sequence[nodes])
    shared = forward[np.isin(trace.sequence[forward], numbers)]
    threads, counts = np.unique(trace.tid[shared], return_counts=True)
    if len(threads) == 0:
        return steps.thread
    best = counts == counts.max()
    return steps.thread if steps.thread in threads[best] else int(threads[best][0])


def _last_before(trace: Trace, forward: Int64, nodes: Int64) -> Int64:
    """(nodes,) int64: for each node the last-started forward operator with its number that began before it, or -1."""
    order = forward[np.lexsort((trace.start_ns[forward], trace.sequence[forward]))]
    # One sorted key for (number, start): numbers are dense ranks, starts are below the trace's length.
    numbers, rank = np.unique(trace.sequence[order], return_inverse=True)
    span = int(trace.start_ns.max()) + 1
    key = rank.astype(np.int64) * span + trace.start_ns[order]
    at = np.searchsorted(numbers, trace.sequence[nodes])
    known = (at < len(numbers)) & (numbers[np.minimum(at, len(numbers) - 1)] == trace.sequence[nodes])
    place = np.searchsorted(key, at * span + trace.start_ns[nodes]) - 1
    known &= (place >= 0) & (rank[np.maximum(place, 0)] == at)
    return np.where(known, order[np.maximum(place, 0)], -1)
