"""What one holder of memory holds: the names and the kinds that the report speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipyprof.trace.model import Int64, Owner

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
