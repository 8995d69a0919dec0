"""What one operator call does at least, as data: FLOPs, bytes, and the tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ipyprof.analysis.tensors import Inputs, Tensor

PRODUCTS = frozenset({"gemm", "convolution", "attention"})
"""Kinds that multiply matrices: they count for MFU and Tensor Cores."""

MOVING = frozenset({"elementwise", "copy", "norm", "softmax", "reduction", "optimizer", "fused"})
"""Kinds whose time is moving bytes: neighbours could be one kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """C[batch, m, n] = A[batch, m, k] · B[batch, k, n].

    ``loaded`` names each dimension that memory is read or written along, with the distance in elements between two rows
    of it: only these have to be multiples for wide loads. ``dtype`` is the recorder's name of A's dtype.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    loaded: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call does at least.

    Attributes:
        kind: ``gemm``, ``convolution``, ``attention``, ``norm``, ``softmax``, ``elementwise``, ``reduction``,
            ``embedding``, ``copy``, ``optimizer`` or ``fused`` (a generated kernel).
        flops: operations; a multiply and add are two.
        bytes: to and from device memory.
        dtype: ``fp64``, ``fp32``, ``fp16``, ``bf16``, ``fp8`` or ``other``: of a product's inputs, else of the output.
        reads, writes: the tensors, where the kind moves bytes; empty for products.
        product: the matrix dimensions of ``gemm``.
        in_place: the output is an input, so it must be written whatever follows.
        relayout: a copy between two orders of the same elements.
    """

    kind: str
    flops: float
    bytes: float
    dtype: str
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    product: Product | None = None
    in_place: bool = False
    relayout: bool = False


Reading = Callable[[str, Inputs], Work | None]
"""(operator name, inputs) → its work."""


def moving(
    kind: str,
    reads: tuple[Tensor, ...],
    writes: tuple[Tensor, ...],
    *,
    flops: float | None = None,
    in_place: bool = False,
    relayout: bool = False,
    passes: int = 1,
) -> Work:
    """The work of an operator that moves bytes; ``passes`` over what it reads; one FLOP per element by default."""
    moved = passes * sum(tensor.nbytes for tensor in reads) + sum(tensor.nbytes for tensor in writes)
    shown = writes[0] if writes else reads[0]
    largest = max((tensor.elements for tensor in (*reads, *writes)), default=0)
    return Work(
        kind=kind,
        flops=float(largest if flops is None else flops),
        bytes=float(moved),
        dtype=shown.short,
        reads=reads,
        writes=writes,
        in_place=in_place,
        relayout=relayout,
    )
