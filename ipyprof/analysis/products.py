"""Work of the operators that multiply matrices: products, convolutions, attention, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ipyprof.analysis.quantities import Product, Reading, Work
from ipyprof.analysis.tensors import ELEMENT_BYTES, Inputs, Tensor

BACKWARD_PRODUCTS = 2.5  # attention's backward has five products where forward has two: scores are computed again
OUTPUT_OF_FP8 = 2  # bytes: torch's scaled products give bfloat16 or half


def product_work(product: Product, *, extra_bytes: float = 0.0, short: str) -> Work:
    """The work of a product: A and B read once, C written once."""
    size = ELEMENT_BYTES[product.dtype]
    m, n, k = product.m, product.n, product.k
    inputs, output = m * k + k * n, m * n
    out_size = OUTPUT_OF_FP8 if size == 1 else size
    return Work(
        kind="gemm",
        flops=2.0 * product.batch * m * n * k,
        bytes=float(product.batch * (inputs * size + output * out_size)) + extra_bytes,
        dtype=short,
        product=product,
    )


def _gemm(first: int, *, added: bool = False) -> Reading:
    """Reads a product whose A is argument ``first``; ``added``: argument 0 is read and added."""

    def read(name: str, inputs: Inputs) -> Work | None:
        a, b = inputs.tensor(first), inputs.tensor(first + 1)
        if a is None or b is None or len(a.shape) not in (2, 3) or len(b.shape) != len(a.shape):
            return None
        batch = a.shape[0] if len(a.shape) == 3 else 1
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        if b.shape[-2] != k or (len(b.shape) == 3 and b.shape[0] != batch):
            return None
        addend = inputs.tensor(0) if added else None
        return _product(a, b, batch=batch, m=m, n=n, k=k, extra=addend.nbytes if addend is not None else 0)

    return read


def _linear(name: str, inputs: Inputs) -> Work | None:
    """``linear(input, weight, bias)`` where it launches kernels itself."""
    a, weight = inputs.tensor(0), inputs.tensor(1)
    if a is None or weight is None or len(weight.shape) != 2 or not a.shape or a.shape[-1] != weight.shape[1]:
        return None
    rows = prod(a.shape[:-1])
    flat = Tensor(shape=(rows, a.shape[-1]), strides=None, dtype=a.dtype)
    strides = None if weight.strides is None else (weight.strides[1], weight.strides[0])
    turned = Tensor(
        shape=(weight.shape[1], weight.shape[0]), strides=strides or (1, weight.shape[1]), dtype=weight.dtype
    )
    bias = inputs.tensor(2)
    return _product(flat, turned, batch=1, m=rows, n=weight.shape[0], k=a.shape[-1], extra=bias.nbytes if bias else 0)


def _matmul(name: str, inputs: Inputs) -> Work | None:
    """``matmul`` where it launches kernels itself: equal batches, or a matrix on the right."""
    a, b = inputs.tensor(0), inputs.tensor(1)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        return None
    if len(b.shape) == 2:
        flat = Tensor(shape=(prod(a.shape[:-1]), a.shape[-1]), strides=None, dtype=a.dtype)
        return _product(flat, b, batch=1, m=flat.shape[0], n=b.shape[1], k=b.shape[0])
    if a.shape[:-2] != b.shape[:-2]:
        return None
    return _product(a, b, batch=prod(a.shape[:-2]), m=a.shape[-2], n=b.shape[-1], k=a.shape[-1])


def _vector(first: int) -> Reading:
    """``mv`` and ``addmv``: a matrix times a vector."""

    def read(name: str, inputs: Inputs) -> Work | None:
        a, b = inputs.tensor(first), inputs.tensor(first + 1)
        if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 1 or a.shape[1] != b.shape[0]:
            return None
        return _product(a, b, batch=1, m=a.shape[0], n=1, k=a.shape[1])

    return read


def _product(a: Tensor, b: Tensor, *, batch: int, m: int, n: int, k: int, extra: int = 0) -> Work | None:
    if 0 in (batch, m, n, k) or "complex" in a.dtype:
        return None
    loaded = (*_loaded(a, "m", "k"), *_loaded(b, "k", "n"), *((("n", n),) if m > 1 else ()))
    product = Product(batch=batch, m=m, n=n, k=k, dtype=a.dtype, loaded=tuple(dict.fromkeys(loaded)))
    return product_work(product, extra_bytes=float(extra), short=a.short)


def _loaded(tensor: Tensor, row: str, column: str) -> tuple[tuple[str, int], ...]:
    """The dimension that lies together in memory, with the distance between its rows."""
    if len(tensor.shape) < 2:
        return ()
    rows, columns = tensor.shape[-2:]
    over_rows, over_columns = tensor.strides[-2:] if tensor.strides is not None else (columns, 1)
    if over_columns == 1 and rows > 1:
        return ((column, over_rows),)
    if over_rows == 1 and columns > 1:
        return ((row, over_columns),)
    return ()


# Arguments of the convolutions: weight is argument 1; where stride, padding and dilation lie.
_CONVOLUTIONS = {
    "cudnn_convolution": (3, 2, 4),
    "cudnn_convolution_relu": (3, 4, 5),
    "miopen_convolution": (4, 3, 5),
    "miopen_depthwise_convolution": (4, 3, 5),
    "_convolution": (3, 4, 5),
    "convolution": (3, 4, 5),
    "conv2d": (3, 4, 5),
    "_conv_depthwise2d": (4, 5, 6),
    "conv_depthwise3d": (4, 5, 6),
}
# Whose argument 6 says that they are transposed.
TRANSPOSABLE = ("aten::convolution", "aten::_convolution")


def _convolution(name: str, inputs: Inputs) -> Work | None:
    """A convolution's forward, from what it reads, its weights and its geometry."""
    at_stride, at_padding, at_dilation = _CONVOLUTIONS[name.removeprefix("aten::")]
    image, weight = inputs.tensor(0), inputs.tensor(1)
    if image is None or weight is None or len(weight.shape) < 3 or len(image.shape) != len(weight.shape):
        return None
    if name in TRANSPOSABLE and inputs.value(6) is True:
        return _convolved(image, weight, outputs=image.elements, written=image.elements)
    stride, padding, dilation = (_spread(inputs.sizes(at), image) for at in (at_stride, at_padding, at_dilation))
    if stride is None or padding is None or dilation is None or 0 in stride:
        return None
    out = [
        (size + 2 * pad - step * (kernel - 1) - 1) // move + 1
        for size, pad, step, kernel, move in zip(
            image.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    outputs = image.shape[0] * weight.shape[0] * prod(max(size, 0) for size in out)
    return _convolved(image, weight, outputs=outputs, written=outputs)


def _convolved(image: Tensor, weight: Tensor, *, outputs: int, written: int, times: int = 1) -> Work:
    """Each of ``outputs`` is a sum over one filter; ``times`` such convolutions."""
    moved = image.nbytes + weight.nbytes + written * ELEMENT_BYTES[image.dtype]
    return Work(
        kind="convolution",
        flops=2.0 * times * outputs * prod(weight.shape[1:]),
        bytes=float(times * moved),
        dtype=image.short,
    )


def _convolution_backward(name: str, inputs: Inputs) -> Work | None:
    """Gradients of input and weight: each costs what forward did."""
    gradient, image, weight = (inputs.tensor(at) for at in range(3))
    if gradient is None or image is None or weight is None:
        return None
    mask = inputs.value(10)
    wanted = sum(map(bool, mask[:2])) if isinstance(mask, list) and len(mask) == 3 else 2
    turned = inputs.value(7) is True
    outputs = image.elements if turned else gradient.elements
    return _convolved(image, weight, outputs=outputs, written=gradient.elements, times=wanted)


def _spread(values: Sequence[int] | None, image: Tensor) -> tuple[int, ...] | None:
    """One value per spatial dimension; a single one stands for all."""
    spatial = len(image.shape) - 2
    if values is None or len(values) not in (1, spatial):
        return None
    return tuple(values) * spatial if len(values) == 1 else tuple(values)


# name → (position of the query, position of is_causal, heads are the second dimension, backward)
_ATTENTION = {
    "_flash_attention_forward": (0, 8, False, False),
    "_scaled_dot_product_flash_attention": (0, 4, True, False),
    "_efficient_attention_forward": (0, 9, False, False),
    "_scaled_dot_product_efficient_attention": (0, 6, True, False),
    "_cudnn_attention_forward": (0, 10, True, False),
    "_scaled_dot_product_cudnn_attention": (0, 6, True, False),
    "_scaled_dot_product_attention_flash": (0, 4, True, False),
    "flash_attn::_flash_attn_forward": (0, 5, False, False),
    "_flash_attention_backward": (1, 11, False, True),
    "_scaled_dot_product_flash_attention_backward": (1, 11, True, True),
    "_efficient_attention_backward": (1, 14, False, True),
    "_scaled_dot_product_efficient_attention_backward": (1, 11, True, True),
    "_cudnn_attention_backward": (1, 14, True, True),
    "_scaled_dot_product_cudnn_attention_backward": (1, 14, True, True),
    "flash_attn::_flash_attn_backward": (1, 11, False, True),
}


def _attention(name: str, inputs: Inputs) -> Work | None:
    """Fused attention: scores never reach memory; a causal mask halves the products."""
    first, at_causal, heads_second, backward = _ATTENTION[name.removeprefix("aten::")]
    query, key, value = (inputs.tensor(first + at) for at in range(3))
    # Batches of different lengths come as three dimensions: their products depend on the lengths.
    if query is None or key is None or value is None:
        return None
    if {len(query.shape), len(key.shape), len(value.shape)} != {4}:
        return None
    batch, heads, length = query.shape[0], query.shape[1 if heads_second else 2], query.shape[2 if heads_second else 1]
    keys = key.shape[2 if heads_second else 1]
    causal = inputs.value(at_causal)
    scores = float(batch * heads * length * keys)
    if causal and length == keys:
        scores *= (length + 1) / (2 * length)
    forward = 2.0 * scores * (query.shape[3] + value.shape[3])
    moved = query.nbytes * 2 + key.nbytes + value.nbytes
    # Backward reads the four and the output's gradient, and writes three gradients.
    moved = moved + query.nbytes * 2 + key.nbytes + value.nbytes if backward else moved
    return Work(
        kind="attention",
        flops=forward * (BACKWARD_PRODUCTS if backward else 1.0),
        bytes=float(moved),
        dtype=query.short,
    )


PRODUCT_OPERATORS: dict[str, Reading] = {
    "mm": _gemm(0),
    "bmm": _gemm(0),
    "_int_mm": _gemm(0),
    "_scaled_mm": _gemm(0),
    "addmm": _gemm(1, added=True),
    "_addmm_activation": _gemm(1, added=True),
    "baddbmm": _gemm(1, added=True),
    "addbmm": _gemm(1, added=True),
    "addmm_": _gemm(1, added=True),
    "baddbmm_": _gemm(1, added=True),
    "mv": _vector(0),
    "addmv": _vector(1),
    "addmv_": _vector(1),
    "linear": _linear,
    "matmul": _matmul,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_ATTENTION, _attention),
}
"""Bare operator name (without ``aten::``) → how its work is read."""
