"""FLOPs and bytes that one operator call needs at least, from its recorded shapes, strides and dtypes.

Bytes count every distinct input element read once and every output element written once. Only the innermost operator
that launched the kernels has work; a name or a shape that is not known has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ipyprof.analysis.tensors import Inputs, Tensor
from ipyprof.trace.model import Details

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
        dtype: ``fp64``, ``fp32``, ``fp16``, ``bf16``, ``fp8`` or ``other``: what a product multiplies, else the output's.
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


def operator_work(name: str, details: Details | None, list_dtype: str | None = None) -> Work | None:
    """The work of one call of the operator ``name``; ``None`` = not known.

    Args:
        list_dtype: dtype of its lists of tensors, as the recorder would write it; without, such operators are not known.

    Example:
        >>> shapes = ((4096, 4096), (4096, 4096))
        >>> work = operator_work("aten::mm", Details(shapes=shapes, dtypes=("c10::BFloat16", "c10::BFloat16")))
        >>> work.flops == 2 * 4096**3, work.bytes == 3 * 2 * 4096**2
        (True, True)
    """
    if details is None or not details.shapes or not details.dtypes:
        return None
    reading = _reading(name)
    return None if reading is None else reading(name, Inputs(details, list_dtype))


def _reading(name: str) -> Reading | None:
    # Imported here: those modules build ``Work``.
    from ipyprof.analysis.movement import MOVEMENT, generated
    from ipyprof.analysis.products import PRODUCT_OPERATORS

    if name.startswith("triton_"):
        return generated
    bare = name.removeprefix("aten::")
    return PRODUCT_OPERATORS.get(bare) or MOVEMENT.get(bare) or MOVEMENT.get(bare.removesuffix("_"))


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
