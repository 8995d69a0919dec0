"""FLOPs and bytes that one operator call needs at least, from its recorded shapes, strides and dtypes.

Bytes count every distinct input element read once and every output element written once. Only the innermost operator
that launched the kernels has work; a name or a shape that is not known has none.
"""

from __future__ import annotations

from ipyprof.analysis.movement import MOVEMENT, generated
from ipyprof.analysis.products import PRODUCT_OPERATORS
from ipyprof.analysis.quantities import MOVING, PRODUCTS, Product, Reading, Work
from ipyprof.analysis.tensors import Inputs
from ipyprof.trace.model import Details


def operator_work(name: str, details: Details | None, list_dtype: str | None = None) -> Work | None:
    """The work of one call of the operator ``name``; ``None`` = not known.

    Args:
        list_dtype: dtype of its lists of tensors, as the recorder writes it; without, they have no work.

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
    if name.startswith("triton_"):
        return generated
    bare = name.removeprefix("aten::")
    return PRODUCT_OPERATORS.get(bare) or MOVEMENT.get(bare) or MOVEMENT.get(bare.removesuffix("_"))


__all__ = ["MOVING", "PRODUCTS", "Product", "Work", "operator_work"]
