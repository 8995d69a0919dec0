"""Which forward operator a piece of backward work belongs to."""

from __future__ import annotations

import numpy as np

from ipyprof.analysis.nesting import around
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, Trace

NODE_PREFIX = "autograd::engine::evaluate_function"


def forward_times(trace: Trace, steps: Steps, calls: Int64) -> Int64:
    """(c,) int64: for each API call made in a backward node, the start of the forward operator that made the node.

    -1 where the call is in no backward node or the node has no forward operator in the file (AccumulateGrad has none).
    Nodes and operators share autograd's sequence number, which counts per thread: the forward operator is the last
    one started with that number on the forward thread, before the node ran.

    Args:
        calls: (c,) indices of API calls.
    """
    result = np.full(len(calls), -1, np.int64)
    operators = trace.select(Kind.OPERATOR)
    is_node = np.array([name.startswith(NODE_PREFIX) for name in trace.names], bool)[trace.name[operators]]
    nodes = operators[is_node]
    if len(nodes) == 0 or len(calls) == 0:
        return result
    node_of = around(trace, nodes, calls)
    forward = operators[~is_node & (trace.sequence[operators] >= 0)]
    forward = forward[around(trace, nodes, forward) < 0]
    forward = forward[trace.tid[forward] == _forward_thread(trace, steps, nodes, forward)]
    if len(forward) == 0:
        return result
    made = _last_before(trace, forward, nodes)
    known = node_of >= 0
    found = made[np.maximum(node_of, 0)]
    known &= found >= 0
    result[known] = trace.start_ns[found[known]]
    return result


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
