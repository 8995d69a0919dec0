"""Whose bytes they are: every block that is allocated at an instant, given to one holder. They add up to the total.

A block that is still there at the end belongs to the name that reaches it then. One that was freed during the recording
belongs to what its life says:

* born outside the backward pass and freed in it: an activation, of the line that made it;
* born in the backward pass and alive after it: a gradient;
* at the address, of the size and from the operator of a block that has a name at the end: that name's, one step
  earlier (the allocator gives a steady loop the same addresses);
* alive across a step mark: a result of its line, kept;
* else a temporary of its operator.

What autograd saved for a tensor of the notebook is that tensor's once the step that made it is over: a graph that a
list of losses keeps is a leak, the same graph inside its step is activations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ipyprof.analysis.allocations import NEVER, Lifetimes
from ipyprof.analysis.attribution import NODE_PREFIX
from ipyprof.analysis.results import Holder
from ipyprof.trace.live import Owner
from ipyprof.trace.model import Int64, Trace

UNREACHABLE = "allocated before recording, not reachable from the notebook"
BEFORE = "allocated before recording"  # where no look at the notebook's names was taken
MISSING = "records are missing"
OTHERS = "other holders"
PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer state"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
RESULTS = "results"
TENSORS = "tensors"
GRAPHS = "graphs"
REST = "rest"
_OF_ROLE = {
    "parameter": (PARAMETERS, "parameters of {}"),
    "buffer": (PARAMETERS, "buffers of {}"),
    "gradient": (GRADIENTS, "gradients of {}"),
    "optimizer state": (OPTIMIZER, "state of {}"),
    "graph": (GRAPHS, "graph kept by {}"),
}
MOST_HOLDERS = 40
MOST_PARTS = 12
_LOCAL = " (in "  # names of a function's locals carry their function
_Label = tuple[str, str]  # name and role
_Place = tuple[int, str]  # line and operator of a block's birth
_Twins = Mapping[tuple[int, int, str | None], Owner]  # by address, size and operator


def layer_of(name: str) -> str:
    """The layer in a parameter's, gradient's or state's name: up to the first number, or the first part.

    Example:
        >>> layer_of("model.transformer.h.0.attn.weight.grad"), layer_of("optimizer: exp_avg of model.head.weight")
        ('model.transformer.h.0', 'model.head')
    """
    inner = name.split(" of ")[-1].removesuffix(".grad").split(".")[:-1]
    for at, part in enumerate(inner):
        if part.isdecimal():
            return ".".join(inner[: at + 1])
    return ".".join(inner[:2])


def largest(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """The largest, and the others as one behind them, so that they still add up."""
    ranked = sorted(holders, key=lambda one: -one.bytes)
    shown, rest = ranked[:MOST_HOLDERS], ranked[MOST_HOLDERS:]
    if rest:
        shown.append(Holder(name=f"{len(rest)} {OTHERS}", role=REST, bytes=sum(one.bytes for one in rest)))
    return tuple(shown)


def held_by_name(owners: Sequence[Owner], device: int) -> tuple[Holder, ...]:
    """What names reach on a device, by holder: where no recording says more.

    The graph of a variable's own tensor, such as ``loss``, is the running step's: activations. That of a tensor in a
    container is one that was kept.
    """
    sizes: Counter[_Label] = Counter()
    for owner in owners:
        if owner.device == device:
            if owner.name == f"graph of {owner.variable}" and not owner.also:
                label = f"{ACTIVATIONS} behind {owner.variable}", ACTIVATIONS
            else:
                label = _label(owner, owner.also or owner.variable if owner.role == "graph" else owner.variable)
            sizes[label] += owner.bytes
    return tuple(Holder(name=name, role=role, bytes=size) for (name, role), size in sizes.most_common() if size)


def _label(owner: Owner, variable: str) -> _Label:
    role, words = _OF_ROLE.get(owner.role, (TENSORS, "{}"))
    return words.format(variable), role


class Ownership:
    """The blocks of one device with their holders; ``at``, ``parts`` and ``growing`` ask it.

    Args:
        trace, blocks: of the recording.
        owners: what names reached at its end, of this device; ``None`` = not looked.
        failed_step: the step that ran out of memory: what its forward pass left is held by the graph of that step.
    """

    def __init__(
        self, trace: Trace, blocks: Lifetimes, owners: Sequence[Owner] | None, *, failed_step: int | None = None
    ) -> None:
        self._blocks, self._failed_step = blocks, failed_step
        self._numbers: dict[_Label, int] = {}
        self._rest = self._number(UNREACHABLE if owners is not None else BEFORE, REST)
        self._gradients = _gradients_name(owners or ())
        count = len(blocks.born)
        self._operators = [_operator(trace, blocks, at) for at in range(count)]
        by_address = {owner.address: owner for owner in owners or ()}
        lives = np.flatnonzero(blocks.died == NEVER)
        living = dict(zip(blocks.address[lives].tolist(), lives.tolist(), strict=True))
        named = {at: by_address[address] for address, at in living.items() if address in by_address}
        # Names whose storage the recording saw no birth of were there before it.
        room = blocks.total(len(blocks.time_ns) - 1) - int(blocks.size[lives].sum())
        older = _fitting([owner for owner in by_address.values() if owner.address not in living], room)
        self._older = [(self._number(*_label(owner, owner.variable)), owner) for owner in older]
        self._owner_names = {at: owner.name for at, owner in named.items()}
        twins = {
            (owner.address, int(blocks.size[at]), operator): owner
            for at, owner in named.items()
            if owner.role != "graph" and _LOCAL not in owner.variable
            for operator in (None, self._operators[at])
        }
        # What a block is inside the step of its birth, and afterwards.
        crossing = _crossing(blocks)
        judged = [self._judged(at, named.get(at), twins, crosses=bool(crossing[at])) for at in range(count)]
        self._inside, self._later = np.array(judged, np.int64).reshape(count, 2).T
        self._keepers = self._keeping(named)

    def at(self, record: int, step: int) -> tuple[Holder, ...]:
        """The holders right after a record (-1 = before the first), the largest first; they add up to the total.

        Args:
            step: the recorded step that this instant lies in; blocks born in it count as of inside the step.
        """
        blocks = self._blocks
        alive, label = self._alive(record, step)
        size = np.bincount(label, blocks.size[alive], len(self._numbers)).astype(np.int64)
        for number, owner in self._older:
            size[number] += owner.bytes
        unknown = blocks.total(record) - int(size.sum())
        size[self._rest] += max(unknown, 0)
        found = []
        for (name, role), number in self._numbers.items():
            if size[number]:
                mine = alive[label == number]
                line = _heaviest(blocks.line[mine], blocks.size[mine])
                found.append(Holder(name=name, role=role, bytes=int(size[number]), line=line))
        if unknown < 0:
            found.append(Holder(name=MISSING, role=REST, bytes=unknown))
        return largest(found)

    def parts(self, record: int, step: int) -> dict[str, tuple[tuple[str, int], ...]]:
        """Holder → (layer, bytes) pairs, the largest first, of those with several layers; as for ``at``."""
        alive, label = self._alive(record, step)
        rows = [
            (number, self._owner_names[at], int(self._blocks.size[at]))
            for number, at in zip(label.tolist(), alive.tolist(), strict=True)
            if at in self._owner_names
        ]
        rows += [(number, owner.name, owner.bytes) for number, owner in self._older]
        layers: dict[int, Counter[str]] = {}
        for number, name, size in rows:
            if layer := layer_of(name):
                layers.setdefault(number, Counter())[layer] += size
        names = [name for name, _ in self._numbers]
        return {
            names[number]: tuple(own.most_common(MOST_PARTS)) for number, own in sorted(layers.items()) if len(own) > 1
        }

    def growing(self, marks: Sequence[int], steps: int = 1) -> tuple[Holder, ...]:
        """Holders that hold more at every mark, with the median bytes that each step adds; the largest first.

        Blocks of a variable and of the graphs that it keeps count together, under the variable's name; a tensor that
        is in a list too counts for the list. What grows for some steps and then stays, a cache that fills, does not
        grow. The newest blocks are often held by another name than those before: ``loss`` is not in the list yet when
        the look is taken, ``x`` is the newest of what a cache keeps. Where all memory grows, they count for the group
        that kept what came from their place in the steps before.

        Args:
            marks: records at which steps begin; under three say nothing.
            steps: steps from one of these marks to the next.
        """
        if len(marks) < 3:
            return ()
        blocks, labels = self._blocks, list(self._numbers)
        names = [self._keepers.get(at, labels[label][0]) for at, label in enumerate(self._later.tolist())]
        distinct = sorted(set(names))
        place = {name: at for at, name in enumerate(distinct)}
        group = np.array([place[name] for name in names], np.int64)
        grown = _grown(blocks, group, len(distinct), marks)
        total = np.diff([blocks.total(mark) for mark in marks])
        if total[-1] > 0 and np.median(total) > 0:
            places = list(zip(blocks.line.tolist(), self._operators, strict=True))
            grown |= _grown(blocks, _carried_on(blocks, group, places, marks), len(distinct), marks)
        found = []
        for at, (size, mine) in sorted(grown.items()):
            roles = [labels[label][1] for label in self._later[mine].tolist()]
            line = _heaviest(blocks.line[mine], blocks.size[mine])
            role = GRAPHS if GRAPHS in roles else roles[0]
            found.append(Holder(name=distinct[at], role=role, bytes=size // steps, line=line))
        return largest(found)

    def _number(self, name: str, role: str) -> int:
        return self._numbers.setdefault((name, role), len(self._numbers))

    def _alive(self, record: int, step: int) -> tuple[Int64, Int64]:
        """(blocks that are there, the label of each)."""
        alive = np.flatnonzero(self._blocks.alive(record))
        return alive, np.where(self._blocks.step[alive] == step, self._inside[alive], self._later[alive])

    def _judged(self, at: int, owner: Owner | None, twins: _Twins, *, crosses: bool) -> tuple[int, int]:
        """(inside its step, afterwards): the labels of one block."""
        blocks, operator = self._blocks, self._operators[at]
        line, old, lives = int(blocks.line[at]), blocks.born[at] < 0, blocks.died[at] == NEVER
        forward = not (old or blocks.in_backward[at] or blocks.in_optimizer[at])
        activation = self._number(_of_line(ACTIVATIONS, line), ACTIVATIONS) if forward else -1
        if owner is not None:
            own = self._number(*_label(owner, owner.variable))
            loose = owner.role == "graph" or (owner.role == "tensor" and _LOCAL in owner.variable)
            return (activation if loose and forward else own), own
        if forward and (blocks.dies_in_backward[at] or (lives and blocks.step[at] == self._failed_step)):
            return activation, activation
        # What was born before the recording has no operator to compare.
        twin = twins.get((int(blocks.address[at]), int(blocks.size[at]), None if old else operator))
        if twin is not None and not lives:
            own = self._number(*_label(twin, twin.variable))
        elif old:
            own = self._rest
        elif blocks.in_backward[at] and not blocks.dies_in_backward[at]:
            own = self._number(self._gradients, GRADIENTS)
        elif lives:
            place = f"line {line}" if line else "no line of the cell"
            own = self._number(f"kept by {place}{f' ({operator})' if operator else ''}", RESULTS)
        elif crosses:
            own = self._number(_of_line(RESULTS, line), RESULTS)
        else:
            own = self._number(f"{TEMPORARIES} of {operator}" if operator else TEMPORARIES, TEMPORARIES)
        return own, own

    def _keeping(self, named: Mapping[int, Owner]) -> dict[int, str]:
        """Block → the variable that keeps it, where that is another name than its label's.

        A result that lived into the next step was the variable's whose tensor now comes from the same place: so
        ``history = torch.cat([history, new])`` is one holder that grows, though each step makes another tensor.
        """
        blocks, labels = self._blocks, list(self._numbers)
        found: dict[int, str] = {}
        makers: dict[_Place, set[str]] = {}
        for at, owner in named.items():
            if labels[self._later[at]][1] in (TENSORS, GRAPHS):
                found[at] = owner.also or owner.variable
            if owner.role == "tensor" and blocks.born[at] >= 0 and _LOCAL not in owner.variable:
                makers.setdefault((int(blocks.line[at]), self._operators[at]), set()).add(owner.variable)
        for at in np.flatnonzero(blocks.died < NEVER).tolist():
            variables = makers.get((int(blocks.line[at]), self._operators[at]), set())
            if labels[self._later[at]][1] == RESULTS and len(variables) == 1:
                (found[at],) = variables
        return found


def _operator(trace: Trace, blocks: Lifetimes, at: int) -> str:
    """The operator that allocated a block, empty = none."""
    event = int(blocks.operator[at])
    name: str = trace.names[trace.name[event]] if event >= 0 else ""
    return name.removeprefix(NODE_PREFIX).removeprefix(": ")


def _gradients_name(owners: Sequence[Owner]) -> str:
    """What to call a gradient that no name reaches any more: the only model's, where there is one."""
    for role in ("gradient", "parameter"):
        variables = {owner.variable for owner in owners if owner.role == role}
        if variables:
            return f"{GRADIENTS} of {variables.pop()}" if len(variables) == 1 else GRADIENTS
    return GRADIENTS


def _crossing(blocks: Lifetimes) -> Int64:
    """(b,) whether each block was born in one step and freed in a later one; a step begins with its first birth."""
    steps = np.unique(blocks.step[blocks.step >= 0]).tolist()
    bounds = np.array(sorted(int(blocks.born[blocks.step == step].min()) for step in steps), np.int64)
    later = np.searchsorted(bounds, blocks.died, side="right") > np.searchsorted(bounds, blocks.born, side="right")
    return ((blocks.died < NEVER) & later).astype(np.int64)


def _of_line(what: str, line: int) -> str:
    return f"{what} of line {line}" if line else what


def _heaviest(line: Int64, size: Int64) -> int | None:
    """The line with most bytes, 0 left out; ``None`` without any."""
    known = line > 0
    return int(np.argmax(np.bincount(line[known], size[known]))) if known.any() else None


def _fitting(owners: Sequence[Owner], room: int) -> list[Owner]:
    """The owners, the largest first, as far as there is room: what does not fit is not this allocator's memory."""
    kept = []
    for owner in sorted(owners, key=lambda owner: -owner.bytes):
        if owner.bytes <= room:
            kept.append(owner)
            room -= owner.bytes
    return kept


def _grown(blocks: Lifetimes, group: Int64, count: int, marks: Sequence[int]) -> dict[int, tuple[int, Int64]]:
    """Group → (median change, its blocks at the last mark), of those that grow from each mark to the next."""
    held = [np.bincount(group[alive], blocks.size[alive], count) for alive in map(blocks.alive, marks)]
    change = np.diff(np.array(held).astype(np.int64), axis=0)
    alive = blocks.alive(marks[-1])
    return {
        at: (int(np.median(change[:, at])), np.flatnonzero((group == at) & alive))
        for at in np.flatnonzero((change > 0).all(axis=0)).tolist()
    }


def _carried_on(blocks: Lifetimes, group: Int64, places: Sequence[_Place], marks: Sequence[int]) -> Int64:
    """(b,) the groups, where blocks of the last interval go with what is still there of their place's earlier ones.

    Blocks of the same size come first; where none is of the same size, as with lengths that vary, any size will do.
    """
    there = np.flatnonzero(blocks.alive(marks[-1]) & (blocks.born > marks[0]))
    earlier: dict[tuple[_Place, int], Counter[int]] = {}
    newest: dict[_Place, list[int]] = {}
    for at in there.tolist():
        place = places[at]
        if not any(place):
            continue
        if blocks.born[at] > marks[-2]:
            newest.setdefault(place, []).append(at)
            continue
        for size in (int(blocks.size[at]), 0):
            earlier.setdefault((place, size), Counter())[int(group[at])] += 1
    found: Int64 = group.copy()
    for place, mine in newest.items():
        same = [at for at in mine if (place, int(blocks.size[at])) in earlier]
        for at in same or mine:
            known = earlier.get((place, int(blocks.size[at]) if same else 0))
            if known is not None:
                found[at] = known.most_common(1)[0][0]
    return found
