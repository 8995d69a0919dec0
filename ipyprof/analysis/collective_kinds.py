"""What a collective is: its group, name and size, from metadata or the annotation around its launch.

Never from the kernel's name: that says neither the collective nor the group (NVIDIA/nccl#2196), only the algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64, Trace

BACKEND = re.compile(r"^(nccl|gloo|rccl|xccl|mpi|ucc):")
PAIRWISE = re.compile(r"send|recv|wait|^coalesced$", re.IGNORECASE)
_ALGORITHM = re.compile(r"(?<![A-Za-z])(RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|PAT)(?![A-Za-z])")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?![A-Za-z0-9])")

# What moves over the busiest link, as a multiple of the message, for n ranks (nccl-tests, PERFORMANCE.md).
_TWICE, _ONCE, _ALL = "twice", "once", "all"
_BUS = {
    "allreduce": _TWICE,
    "allgather": _ONCE,
    "reducescatter": _ONCE,
    "alltoall": _ONCE,
    "broadcast": _ALL,
    "reduce": _ALL,
}
_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
_TYPE_BYTES = {
    "double": 8, "long": 8, "int64": 8, "cfloat": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4,
    "bfloat16": 2, "half": 2, "short": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "long int": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """What one collective is. Unknown is ``None``, of a group ``""``.

    Attributes:
        group: name of the process group; members: its ranks, sorted.
        name: such as ``allreduce``: lower case, without underscores and without the backend.
        elements: of the larger of input and output; dtype: as the file writes it.
        size: ranks in the group.
        algorithm: such as ``RING LL``, from the kernel's name.
    """

    group: str
    members: tuple[int, ...] | None
    name: str
    elements: int | None
    dtype: str | None
    size: int | None
    algorithm: str | None

    @property
    def message_bytes(self) -> int | None:
        """Size of the message, or ``None``."""
        known = (self.dtype or "").lower().removeprefix("c10::")
        each = _TYPE_BYTES.get(known, 1 if known.startswith("float8") else None)
        return None if each is None or self.elements is None else each * self.elements

    @property
    def leaves_together(self) -> bool:
        """No rank can leave it before all have entered."""
        return self.name.startswith(_TOGETHER)

    def bus_bytes_per_s(self, latency_ns: float) -> float | None:
        """Bus bandwidth when the collective takes ``latency_ns``, or ``None``."""
        way = next((way for name, way in _BUS.items() if self.name.startswith(name)), None)
        size, moved = self.size, self.message_bytes
        if way is None or size is None or size < 2 or moved is None or latency_ns <= 0:
            return None
        others = (size - 1) / size
        return {_TWICE: 2 * others, _ONCE: others, _ALL: 1.0}[way] * moved / (latency_ns / 1e9)


def is_collective_annotation(name: str) -> bool:
    """Whether a host annotation of this name is a collective of a backend."""
    return BACKEND.match(name) is not None


def annotations_of(trace: Trace) -> Int64:
    """Host annotations of collectives, in time order."""
    spans = trace.select(Kind.ANNOTATION)
    named = np.array([is_collective_annotation(name) for name in trace.names], bool)
    chosen: Int64 = spans[named[trace.name[spans]]]
    return chosen


def kind_of(trace: Trace, record: int | None, annotation: int | None) -> CollectiveKind:
    """What a device record is, by its own metadata, else by the annotation around its launch; or what this is."""
    detail = trace.detail_of(record) if record is not None else None
    told: Mapping[str, Any] = detail.collective if detail is not None and detail.collective else {}
    name = str(told.get("Collective name", ""))
    elements = [value for key in ("In msg nelems", "Out msg nelems") if isinstance(value := told.get(key), int)]
    dtype = told.get("dtype")
    if annotation is not None and not told:
        name = BACKEND.sub("", trace.names[trace.name[annotation]])
        about = trace.detail_of(annotation)
        shape = about.shapes[0] if about is not None and about.shapes else None
        if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape):
            elements = [int(np.prod(shape))]
        dtype = about.dtypes[0] if about is not None and about.dtypes else None
    group = str(told.get("Process Group Name", "")) or _only_group(trace)
    members = _members(trace, group, told.get("Process Group Ranks"))
    size = told.get("Group size")
    kernel = trace.names[trace.name[record]].split("(")[0] if record is not None else ""
    return CollectiveKind(
        group=group,
        members=members,
        name=re.sub(r"[_\W]|base", "", name.lower().split(" ")[0]) or "collective",
        elements=max(elements) if elements else None,
        dtype=dtype if isinstance(dtype, str) and dtype else None,
        size=size if isinstance(size, int) and size > 0 else len(members) if members is not None else None,
        algorithm=" ".join(found.group(1) for how in (_ALGORITHM, _PROTOCOL) if (found := how.search(kernel))) or None,
    )


def _groups(trace: Trace) -> list[Mapping[str, Any]]:
    world = trace.metadata.get("distributedInfo")
    groups = world.get("pg_config") if isinstance(world, dict) else None
    return [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []


def _only_group(trace: Trace) -> str:
    """The name of the file's group where it has one only, else ``""``."""
    groups = _groups(trace)
    return str(groups[0].get("pg_name", "")) if len(groups) == 1 else ""


def _members(trace: Trace, group: str, text: object) -> tuple[int, ...] | None:
    """The ranks of a group: from the event's text where it is whole, else from the file's list of groups."""
    if isinstance(text, str) and re.fullmatch(r"\[\d+(, ?\d+)*\]", text):
        return tuple(sorted(int(rank) for rank in text[1:-1].split(",")))
    for one in _groups(trace):
        ranks = one.get("ranks")
        if str(one.get("pg_name", "")) == group and isinstance(ranks, list) and ranks:
            return tuple(sorted(rank for rank in ranks if isinstance(rank, int)))
    return None


def distinct(kinds: list[CollectiveKind]) -> tuple[tuple[CollectiveKind, ...], Int64]:
    numbers: dict[CollectiveKind, int] = {}
    column = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
    return tuple(numbers), np.asarray(column, np.int64)
