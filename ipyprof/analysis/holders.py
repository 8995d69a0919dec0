"""Whose bytes they are: every block that is allocated at an instant, given to one holder. They add up to the total.

A block that is still there at the end belongs to the name that reaches it then. One that was freed during the recording
belongs to what its life says:

* born outside the backward pass and freed in it: an activation, of the line that made it;
* born in the backward pass and alive after it: a gradient;
* at the address, of the size and from the operator of a block that has a name at the end: that name's, one step
  earlier (the allocator gives a steady loop the same addresses);
* alive across a step mark: a result of its line, kept;
* else a temporary of its operator.

The allocator's blocks are larger than what was asked for: rounded up to 512 bytes, and a large block keeps a remainder
of up to 1 MiB that is not worth splitting. Where the tensor's own size is known (it has a name at the end, or it is a
gradient of a parameter that has), that difference is a row of its own, so that holders match their tensors.

What autograd saved for a tensor of the notebook is that tensor's once the step that made it is over: a graph that a
list of losses keeps is a leak, the same graph inside its step is activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.allocations import NEVER, Lifetimes, growth_of, matched
from ipyprof.analysis.attribution import NODE_PREFIX
from ipyprof.trace.live import Owner
from ipyprof.trace.model import Int64, Trace

UNREACHABLE = "allocated before recording, not reachable from the notebook"
BEFORE = "allocated before recording"  # where no look at the notebook's names was taken
MISSING = "records are missing"
ROUNDED = "allocation rounding: blocks larger than their tensors"
PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer state"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
RESULTS = "results"
TENSORS = "tensors"
GRAPHS = "graphs"
REST = "rest"
OTHERS = "others"
ROUNDING = "rounding"
ROLES = {
    "parameter": PARAMETERS,
    "buffer": PARAMETERS,
    "gradient": GRADIENTS,
    "optimizer state": OPTIMIZER,
    "tensor": TENSORS,
    "graph": GRAPHS,
}
WORDS = {
    "parameter": "parameters of {}",
    "buffer": "buffers of {}",
    "gradient": "gradients of {}",
    "optimizer state": "state of {}",
    "tensor": "{}",
    "graph": "graph kept by {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one holder holds at an instant.

    Attributes:
        name: as in the notebook, such as ``parameters of model``, or ``activations of line 4``.
        role: one of the constants of this module, such as ``ACTIVATIONS``.
        line: the cell's line that allocated most of it, ``None`` = before the recording, or no line.
        parts: (name, bytes) of what it consists of, by layer, the largest first.
    """

    name: str
    role: str
    bytes: int
    line: int | None
    parts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Who holds what over time: ``bytes[i, j]`` (int64) of ``names[j]`` at ``time_ns[i]``, ns since the first mark."""

    time_ns: Int64
    names: tuple[str, ...]
    bytes: Int64


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


def held_by_name(owners: Sequence[Owner], device: int) -> tuple[Holding, ...]:
    """What names reach on a device, by holder, the largest first: where no recording says more.

    The graph of a variable's own tensor, such as ``loss``, is the running step's: activations. That of a tensor in a
    container is one that was kept.
    """
    sizes: dict[tuple[str, str], int] = {}
    for owner in owners:
        if owner.device == device:
            variable = owner.also or owner.variable if owner.role == "graph" else owner.variable
            key = WORDS.get(owner.role, "{}").format(variable), ROLES.get(owner.role, TENSORS)
            if owner.name == f"graph of {owner.variable}" and not owner.also:
                key = f"{ACTIVATIONS} behind {owner.variable}", ACTIVATIONS
            sizes[key] = sizes.get(key, 0) + owner.bytes - owner.rounding
            sizes[ROUNDED, ROUNDING] = sizes.get((ROUNDED, ROUNDING), 0) + owner.rounding
    found = [Holding(name=name, role=role, bytes=size, line=None) for (name, role), size in sizes.items() if size]
    return tuple(sorted(found, key=lambda holding: -holding.bytes))


MOST_PARTS = 12
MOST_CELLS = 4_000_000  # of the table that ``moments`` makes: 32 MB
_Twins = Mapping[tuple[int, int, str | None], Owner]  # by address, size and operator
_LOCAL = " (in "  # names of a function's locals carry their function


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    name: str
    role: str


class Ownership:
    """The blocks of one device with their holders; ``at`` and ``growing`` ask it.

    Args:
        trace, blocks: of the recording.
        owners: what names reached at its end, of this device; ``None`` = not looked.
        failed_step: the step that ran out of memory: what its forward pass left is held by the graph of that step.
    """

    def __init__(
        self, trace: Trace, blocks: Lifetimes, owners: Sequence[Owner] | None, *, failed_step: int | None = None
    ) -> None:
        self._failed_step = failed_step
        self._blocks = blocks
        self._labels: list[_Label] = []
        self._numbers: dict[_Label, int] = {}
        self._rest = self._number(UNREACHABLE if owners is not None else BEFORE, REST)
        self._rounded = self._number(ROUNDED, ROUNDING)
        self._owner_names: list[str] = [""] * len(blocks.born)
        self._keepers: dict[int, str] = {}
        self._twin_of: dict[int, Owner] = {}
        self._gradients = self._gradients_name(owners or ())
        lives = blocks.died == NEVER
        by_address = {owner.address: owner for owner in owners or ()}
        living = {address: at for at, address in enumerate(blocks.address.tolist()) if lives[at]}
        # Names whose storage the recording saw no birth of were there before it.
        self._static = _fitting(
            [owner for owner in by_address.values() if owner.address not in living],
            blocks.total(len(blocks.time_ns) - 1) - int(blocks.size[lives].sum()),
        )
        self._static_label = [self._of_owner(owner) for owner in self._static]
        # What a block is inside the step of its birth, and afterwards.
        self._inside = np.full(len(blocks.born), self._rest, np.int64)
        self._later = self._inside.copy()
        named = {at: owner for address, at in living.items() if (owner := by_address.get(address)) is not None}
        twins = {
            (owner.address, int(blocks.size[at]), operator): owner
            for at, owner in named.items()
            if owner.role != "graph" and _LOCAL not in owner.variable
            for operator in (None, self._operator(trace, at))
        }
        crossing = self._crossing()
        for at in range(len(blocks.born)):
            owner = named.get(at)
            if owner is not None:
                self._owner_names[at] = owner.name
                if ROLES.get(owner.role) in (TENSORS, GRAPHS):
                    self._keepers[at] = owner.also or owner.variable
            inside, later = self._judged(trace, at, owner, twins, bool(crossing[at]))
            self._inside[at], self._later[at] = inside, later
        self._places = [(int(blocks.line[at]), self._operator(trace, at)) for at in range(len(blocks.born))]
        self._name_results(named)
        self._rounding = self._roundings(named, owners or ())
        self._net = blocks.size - self._rounding

    def at(self, record: int, step: int) -> tuple[Holding, ...]:
        """The holders right after a record (-1 = before the first), the largest first; they add up to the total.

        Args:
            step: the recorded step that this instant lies in; blocks born in it count as of inside the step.
        """
        alive, label, size, missing = self._sizes(record, step)
        lines = self._lines(alive, label)
        parts = self._parts(alive, label)
        found = [
            Holding(
                name=one.name,
                role=one.role,
                bytes=int(size[number]),
                line=lines.get(number),
                parts=tuple(sorted(parts.get(number, {}).items(), key=lambda part: -part[1])[:MOST_PARTS]),
            )
            for number, one in enumerate(self._labels)
            if size[number]
        ]
        if missing:
            found.append(Holding(name=MISSING, role=REST, bytes=missing, line=None))
        return tuple(sorted(found, key=lambda holding: -holding.bytes))

    def most_moments(self) -> int:
        """How many records ``moments`` takes at most."""
        return MOST_CELLS // len(self._labels)

    def moments(self, records: Int64, steps: Int64, at_ns: Int64, most: int) -> Moments:
        """The holders at several records, which lie at ``at_ns``: the ``most`` largest by name, the others as one.

        Args:
            records, steps: (k,) int64, sorted, as for ``at``; k at most ``most_moments()``.
        """
        table = self._table(records, steps)
        labels = [label.name for label in self._labels] + [MISSING]
        distinct = sorted(set(labels))
        column = {name: at for at, name in enumerate(distinct)}
        held = np.zeros((len(records), len(distinct)), np.int64)
        for at, name in enumerate(labels):
            held[:, column[name]] += table[:, at]
        peaks = np.abs(held).max(axis=0, initial=0)
        order = [at for at in np.argsort(-peaks, kind="stable").tolist() if peaks[at]]
        names = [distinct[at] for at in order[:most]]
        shown = held[:, order[:most]]
        if len(order) > most:
            names.append(OTHERS)
            shown = np.column_stack((shown, held[:, order[most:]].sum(axis=1)))
        return Moments(time_ns=at_ns, names=tuple(names), bytes=shown)

    def growing(self, marks: Sequence[int], steps: int = 1) -> tuple[Holding, ...]:
        """Holders that hold more at every mark, with the median bytes that each step adds; the largest first.

        Blocks of a variable and of the graphs that it keeps count together, under the variable's name; a tensor that
        is in a list too counts for the list. What grows for some steps and then stays, a cache that fills, does not
        grow.

        Args:
            marks: records at which steps begin; under three say nothing.
            steps: steps from one of these marks to the next.
        """
        if len(marks) < 3:
            return ()
        blocks = self._blocks
        names = [self._keepers.get(at, self._labels[label].name) for at, label in enumerate(self._later.tolist())]
        distinct = sorted(set(names))
        place = {name: at for at, name in enumerate(distinct)}
        group = np.array([place[name] for name in names], np.int64)
        found = []
        for at, size, mine in growth_of(blocks, group, self._places, marks):
            line = _heaviest(blocks.line[mine], blocks.size[mine])
            roles = {self._labels[label].role for label in self._later[mine].tolist()}
            role = GRAPHS if GRAPHS in roles else self._labels[int(self._later[mine[0]])].role
            found.append(Holding(name=distinct[at], role=role, bytes=size // steps, line=line))
        return tuple(sorted(found, key=lambda holding: -holding.bytes))

    # -- labels --

    def _number(self, name: str, role: str) -> int:
        label = _Label(name=name, role=role)
        if label not in self._numbers:
            self._numbers[label] = len(self._labels)
            self._labels.append(label)
        return self._numbers[label]

    def _of_owner(self, owner: Owner) -> int:
        return self._number(WORDS.get(owner.role, "{}").format(owner.variable), ROLES.get(owner.role, TENSORS))

    def _gradients_name(self, owners: Sequence[Owner]) -> str:
        """What to call a gradient that no name reaches any more: the only model's, where there is one."""
        for role in ("gradient", "parameter"):
            variables = {owner.variable for owner in owners if owner.role == role}
            if variables:
                return WORDS["gradient"].format(*variables) if len(variables) == 1 else GRADIENTS
        return GRADIENTS

    def _judged(
        self,
        trace: Trace,
        at: int,
        owner: Owner | None,
        twins: Mapping[tuple[int, int, str | None], Owner],
        crosses: bool,
    ) -> tuple[int, int]:
        """(inside its step, afterwards): the labels of one block."""
        blocks = self._blocks
        line = int(blocks.line[at])
        forward = blocks.born[at] >= 0 and not blocks.in_backward[at] and not blocks.in_optimizer[at]
        activation = self._number(_of_line(ACTIVATIONS, line), ACTIVATIONS) if forward else -1
        if owner is not None:
            own = self._of_owner(owner)
            loose = owner.role == "graph" or (owner.role == "tensor" and _LOCAL in owner.variable)
            return (activation if loose and forward else own), own
        left = blocks.died[at] == NEVER and blocks.step[at] == self._failed_step
        if forward and (blocks.dies_in_backward[at] or left):
            return activation, activation
        operator = self._operator(trace, at)
        # What was born before the recording has no operator to compare.
        twin = twins.get((*_place(blocks, at), None if blocks.born[at] < 0 else operator))
        if twin is not None and blocks.died[at] < NEVER:
            self._twin_of[at] = twin
            own = self._of_owner(twin)
            return own, own
        if blocks.born[at] < 0:
            return self._rest, self._rest
        if blocks.in_backward[at] and not blocks.dies_in_backward[at]:
            own = self._number(self._gradients, GRADIENTS)
            return own, own
        if blocks.died[at] == NEVER:
            kept = self._number(f"kept by {_of_line('', line)}{f' ({operator})' if operator else ''}", RESULTS)
            return kept, kept
        if crosses:
            kept = self._number(_of_line(RESULTS, line), RESULTS)
            return kept, kept
        own = self._number(f"temporaries of {operator}" if operator else TEMPORARIES, TEMPORARIES)
        return own, own

    def _name_results(self, named: Mapping[int, Owner]) -> None:
        """A result that lived into the next step was the variable's whose tensor now comes from the same place.

        So ``history = torch.cat([history, new])`` is one holder that grows, though each step makes another tensor.
        """
        blocks, makers = self._blocks, dict[tuple[int, str], str]()
        for at, owner in named.items():
            if owner.role == "tensor" and blocks.born[at] >= 0 and _LOCAL not in owner.variable:
                place = self._places[at]
                makers[place] = "" if makers.get(place, owner.variable) != owner.variable else owner.variable
        for at, label in enumerate(self._later.tolist()):
            if self._labels[label].role == RESULTS and blocks.died[at] < NEVER:
                variable = makers.get(self._places[at])
                if variable:
                    self._keepers[at] = variable

    def _operator(self, trace: Trace, at: int) -> str:
        operator = int(self._blocks.operator[at])
        if operator < 0:
            return ""
        name: str = trace.names[trace.name[operator]]
        return name.removeprefix(NODE_PREFIX).removeprefix(": ")

    def _crossing(self) -> Int64:
        """(b,) whether each block lives across a step mark."""
        blocks = self._blocks
        died_step = np.zeros(len(blocks.born), np.int64)
        freed = np.flatnonzero(blocks.died < NEVER)
        starts = np.array([step for step in np.unique(blocks.step).tolist() if step >= 0], np.int64)
        first = {int(step): int(blocks.born[blocks.step == step].min()) for step in starts}
        bounds = np.array(sorted(first.values()), np.int64)
        died_step[freed] = np.searchsorted(bounds, blocks.died[freed], side="right")
        born_step = np.searchsorted(bounds, blocks.born, side="right")
        return ((blocks.died < NEVER) & (died_step > born_step)).astype(np.int64)

    # -- rounding --

    def _roundings(self, named: Mapping[int, Owner], owners: Sequence[Owner]) -> Int64:
        """(b,) bytes of each block that are more than its tensor's, as far as the tensor is known."""
        blocks = self._blocks
        found = np.zeros(len(blocks.born), np.int64)
        gradients: dict[int, list[int]] = {}
        for at, label in enumerate(self._later.tolist()):
            owner = named.get(at) or self._twin_of.get(at)
            if owner is not None:
                found[at] = min(owner.rounding, int(blocks.size[at]))
            elif self._labels[label].role == GRADIENTS:
                gradients.setdefault(int(blocks.step[at]), []).append(at)
        sizes = [owner.bytes - owner.rounding for owner in owners if owner.role == "parameter"]
        for mine in gradients.values():
            for at, asked in matched(mine, blocks.size[mine].tolist(), sizes):
                found[at] = int(blocks.size[at]) - asked
        return found

    # -- sums --

    def _sizes(self, record: int, step: int) -> tuple[Int64, Int64, Int64, int]:
        """(blocks alive, the label of each, bytes by label, bytes too many for the total, as a negative number)."""
        blocks = self._blocks
        alive = np.flatnonzero(blocks.alive(record))
        label = np.where(blocks.step[alive] == step, self._inside[alive], self._later[alive])
        size = np.bincount(label, self._net[alive], len(self._labels)).astype(np.int64)
        size[self._rounded] += int(self._rounding[alive].sum())
        size += self._static_sizes()
        unknown = blocks.total(record) - int(size.sum())
        size[self._rest] += max(unknown, 0)
        return alive, label, size, min(unknown, 0)

    def _static_sizes(self) -> Int64:
        """Bytes by label of what was there before the recording and still is."""
        size = np.zeros(len(self._labels), np.int64)
        for number, owner in zip(self._static_label, self._static, strict=True):
            size[number] += owner.bytes - owner.rounding
            size[self._rounded] += owner.rounding
        return size

    def _table(self, records: Int64, steps: Int64) -> Int64:
        """(k, labels + 1) int64: ``_sizes`` at each record, what is too many in the last column."""
        blocks, count = self._blocks, len(records)
        change = np.zeros((count + 1, len(self._labels) + 1), np.int64)
        since, until = np.searchsorted(records, blocks.born), np.searchsorted(records, blocks.died)
        for begin, end, label, size in (
            (since, until, self._later, self._net),
            (since, until, np.full(len(since), self._rounded), self._rounding),
            # In the rows of the step of its birth a block goes by another label.
            (*self._first_rows(since, until, steps), self._inside, self._net),
            (*self._first_rows(since, until, steps), self._later, -self._net),
        ):
            np.add.at(change, (begin, label), size)
            np.subtract.at(change, (end, label), size)
        held = np.cumsum(change, axis=0)[:count]
        held[:, :-1] += self._static_sizes()
        unknown = blocks.allocated_bytes[records + 1] - held.sum(axis=1)
        held[:, self._rest] += np.maximum(unknown, 0)
        held[:, -1] = np.minimum(unknown, 0)
        return held

    def _first_rows(self, since: Int64, until: Int64, steps: Int64) -> tuple[Int64, Int64]:
        """(begin, end) of each block's rows that lie in the step of its birth; the same where there are none."""
        born = self._blocks.step
        begin = np.maximum(since, np.searchsorted(steps, born, side="left"))
        end = np.minimum(until, np.searchsorted(steps, born, side="right"))
        return begin, np.maximum(begin, end)

    def _lines(self, alive: Int64, label: Int64) -> dict[int, int]:
        """The line that allocated most of each label's bytes."""
        found: dict[int, int] = {}
        for number in np.unique(label).tolist():
            mine = alive[label == number]
            line = _heaviest(self._blocks.line[mine], self._blocks.size[mine])
            if line is not None:
                found[number] = line
        return found

    def _parts(self, alive: Int64, label: Int64) -> dict[int, dict[str, int]]:
        """Bytes by layer of what has a name with layers."""
        found: dict[int, dict[str, int]] = {}
        rows = [
            (number, self._owner_names[at], int(self._net[at]))
            for number, at in zip(label.tolist(), alive.tolist(), strict=True)
            if self._owner_names[at]
        ]
        rows += [
            (number, one.name, one.bytes - one.rounding)
            for number, one in zip(self._static_label, self._static, strict=True)
        ]
        for number, name, size in rows:
            layer = layer_of(name)
            if layer:
                own = found.setdefault(number, {})
                own[layer] = own.get(layer, 0) + size
        return found


def _of_line(what: str, line: int) -> str:
    if not what:
        return f"line {line}" if line else "no line of the cell"
    return f"{what} of line {line}" if line else what


def _place(blocks: Lifetimes, at: int) -> tuple[int, int]:
    return int(blocks.address[at]), int(blocks.size[at])


def _heaviest(line: Int64, size: Int64) -> int | None:
    """The line with most bytes, 0 left out; ``None`` without any."""
    known = line > 0
    if not known.any():
        return None
    return int(np.argmax(np.bincount(line[known], size[known])))


def _fitting(owners: list[Owner], room: int) -> list[Owner]:
    """The owners, the largest first, as far as there is room: what does not fit is not this allocator's memory."""
    kept = []
    for owner in sorted(owners, key=lambda owner: -owner.bytes):
        if owner.bytes <= room:
            kept.append(owner)
            room -= owner.bytes
    return kept
