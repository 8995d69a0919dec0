"""What a training step does when: forward, backward, optimizer, the loader, and the rest, on the host's clock.

No ranges of the user's are needed: autograd's nodes are the backward pass, torch marks each optimizer's step and
``zero_grad``, and a forward pass is what goes before a backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.backward import backward_nodes, makers
from ipyprof.analysis.intervals import inside, union
from ipyprof.analysis.nesting import around
from ipyprof.analysis.program import Program, loader_spans
from ipyprof.analysis.steps import Steps
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, LiveRecord, Trace

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
