"""FLOPs and bytes that one operator call needs at least, from its recorded shapes, strides and dtypes.

Bytes count every distinct input element read once and every output element written once. Only the innermost operator
that launched the kernels has work; a name or a shape that is not known has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ipyprof.trace.model import Details

# Bytes of one element, by the name that torch's recorder writes.
ELEMENT_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
    "long int": 8, "long": 8, "int64_t": 8, "int": 4, "short int": 2, "short": 2,
    "bool": 1, "unsigned char": 1, "signed char": 1, "char": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip

# Short names of the float dtypes that ceilings are known for.
SHORT_NAMES = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip

# ``ScalarType`` numbers, as operators write a dtype argument.
SCALAR_TYPES = {5: "c10::Half", 6: "float", 7: "double", 15: "c10::BFloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a call.

    Attributes:
        shape: its sizes; () = one element.
        strides: in elements, or ``None`` where they were not recorded.
        dtype: as the recorder names it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str

    @property
    def elements(self) -> int:
        """Elements as the operator sees them."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of distinct elements: a dimension of stride 0 (an expanded tensor) is read once."""
        sizes = self.shape
        if self.strides is not None and len(self.strides) == len(self.shape):
            sizes = tuple(size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0)
        return prod(sizes) * ELEMENT_BYTES[self.dtype]

    @property
    def short(self) -> str:
        """``fp32``, ``bf16`` and so on; ``other`` for what no ceiling is known for."""
        return SHORT_NAMES.get(self.dtype, "other")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The recorded arguments of a call, by position; ``list_dtype`` is that of lists, which the recorder leaves out."""

    details: Details
    list_dtype: str | None = None

    @property
    def count(self) -> int:
        """Number of arguments."""
        return len(self.details.shapes or ())

    def tensor(self, at: int) -> Tensor | None:
        """The tensor at a position; ``None`` where there is no tensor or its dtype is not known."""
        shapes, dtypes = self.details.shapes or (), self.details.dtypes or ()
        if at >= len(shapes) or at >= len(dtypes) or dtypes[at] not in ELEMENT_BYTES:
            return None
        shape = shapes[at]
        if not _is_sizes(shape):
            return None
        strides = _at(self.details.strides, at)
        return Tensor(
            shape=tuple(shape),
            strides=tuple(strides) if _is_sizes(strides) and len(strides) == len(shape) else None,
            dtype=dtypes[at],
        )

    def tensors(self, *, most: int | None = None) -> list[Tensor]:
        """All tensors that are no lists, in order, of the first ``most`` arguments."""
        count = self.count if most is None else min(most, self.count)
        found = [self.tensor(at) for at in range(count)]
        return [tensor for tensor in found if tensor is not None]

    def shapes_of_list(self, at: int) -> list[tuple[int, ...]]:
        """The shapes of a list of tensors; empty where they were not recorded."""
        shapes = _at(self.details.shapes, at)
        if not isinstance(shapes, tuple) or not shapes or not all(_is_sizes(shape) for shape in shapes):
            return []
        return [tuple(shape) for shape in shapes]

    def value(self, at: int) -> Any:
        """A recorded number, truth value or list of numbers; ``None`` where it was not recorded."""
        text = _at(self.details.concrete, at)
        if not isinstance(text, str) or not text:
            return None
        if text in ("True", "False"):
            return text == "True"
        try:
            if text.startswith("["):
                return json.loads(text.replace("True", "true").replace("False", "false"))
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            return None

    def sizes(self, at: int) -> tuple[int, ...] | None:
        """A recorded list of whole numbers, ``None`` where it was not recorded."""
        value = self.value(at)
        if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return tuple(value)
        return None


def broadcast(tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
    """The common shape; ``None`` where they do not fit."""
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    shape = [1] * rank
    for tensor in tensors:
        for at, size in enumerate(tensor.shape, start=rank - len(tensor.shape)):
            if size != 1 and shape[at] not in (1, size):
                return None
            shape[at] = size if size != 1 else shape[at]
    return tuple(shape)


def promoted(tensors: Sequence[Tensor]) -> str:
    """The result's dtype: the widest of the tensors with dimensions; a number makes integers float."""
    wide = [tensor.dtype for tensor in tensors if tensor.shape] or [tensor.dtype for tensor in tensors]
    widest = max(wide, key=_width)
    numbers = [tensor.dtype for tensor in tensors if not tensor.shape]
    if widest not in SHORT_NAMES and any(number in SHORT_NAMES for number in numbers):
        return "float"
    return widest


def dense(shape: tuple[int, ...], dtype: str) -> Tensor:
    """A new tensor as an operator allocates it."""
    return Tensor(shape=shape, strides=None, dtype=dtype)


_ORDER = ("bool", "unsigned char", "signed char", "char", "short int", "short", "int", "long int", "long", "int64_t")


def _width(dtype: str) -> tuple[int, int]:
    if "complex" in dtype:
        return 3, ELEMENT_BYTES[dtype]
    # Half with bfloat16 gives float; it does not occur in one operator of a sound program.
    return (2, ELEMENT_BYTES[dtype]) if dtype in SHORT_NAMES else (1, _ORDER.index(dtype))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(size, int) for size in value)


def _at(values: Sequence[Any] | None, at: int) -> Any:
    return values[at] if values is not None and at < len(values) else None


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


def _names(text: str) -> list[str]:
    return text.split()


# Grouped by the number of leading arguments that may be tensors; what follows is an output given by the caller.
_UNARY = _names("""
    abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan sigmoid
    relu gelu silu mish erf erfc erfinv reciprocal floor ceil round trunc frac sign sgn square hardtanh
    hardswish hardsigmoid leaky_relu elu selu celu softplus threshold logit nan_to_num bitwise_not logical_not
    isnan isinf isfinite positive clamp_min clamp_max log_sigmoid_forward softshrink hardshrink tril triu roll
    flip
    """)
_BINARY = _names("""
    add sub mul div rsub true_divide floor_divide remainder fmod pow atan2 maximum minimum fmax fmin hypot eq ne
    lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__
    masked_fill gelu_backward silu_backward tanh_backward sigmoid_backward threshold_backward elu_backward
    leaky_relu_backward hardtanh_backward hardswish_backward hardsigmoid_backward softplus_backward
    mish_backward native_dropout_backward copysign xlogy logaddexp prelu
    """)
_TERNARY = _names("where addcmul addcdiv lerp clamp")
_TRUTH = frozenset(_names("eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite"))
_FILLS = _names("fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_")
_REDUCTIONS = _names("""
    sum mean amax amin max min prod var std var_mean std_mean norm linalg_vector_norm argmax argmin all any
    logsumexp nansum count_nonzero aminmax
    """)
_FOREACH = _names("add sub mul div addcmul addcdiv sqrt lerp neg abs exp pow zero copy norm maximum reciprocal")


def _elementwise(arity: int) -> Reading:
    def read(name: str, inputs: Inputs) -> Work | None:
        given = inputs.tensors(most=arity)
        shape = broadcast(given) if given else None
        if shape is None:
            return None
        bare = name.removeprefix("aten::")
        in_place = bare.endswith("_") and not bare.endswith("__")
        dtype = "bool" if bare.removesuffix("_") in _TRUTH else promoted(given)
        if bare.startswith("where"):
            dtype = promoted(given[1:]) if len(given) > 1 else dtype
        if in_place:
            dtype, shape = given[0].dtype, given[0].shape
        return moving("elementwise", _dimensioned(given), (dense(shape, dtype),), in_place=in_place)

    return read


def _dimensioned(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Without the numbers that torch passes as tensors without dimensions."""
    return tuple(tensor for tensor in tensors if tensor.shape) or tuple(tensors)


def _fill(name: str, inputs: Inputs) -> Work | None:
    target = inputs.tensor(0)
    return None if target is None else moving("elementwise", (), (target,), in_place=True)


def _dropout(name: str, inputs: Inputs) -> Work | None:
    """``native_dropout`` and ``_fused_dropout``: the output and its mask."""
    given = inputs.tensor(0)
    if given is None:
        return None
    return moving("elementwise", (given,), (dense(given.shape, given.dtype), dense(given.shape, "bool")))


def _copy(name: str, inputs: Inputs) -> Work | None:
    """``copy_(to, from)``."""
    target, source = inputs.tensor(0), inputs.tensor(1)
    if target is None or source is None:
        return None
    return moving("copy", (source,), (target,), in_place=False, relayout=_reordered(source, target))


def _reordered(source: Tensor, target: Tensor) -> bool:
    """Whether the same elements lie in another order; a cast in the same order is none."""
    read, written = source.strides, target.strides
    if read is None or written is None or source.shape != target.shape or 0 in read:
        return False
    real = [at for at, size in enumerate(source.shape) if size > 1]
    return sorted(real, key=lambda at: -read[at]) != sorted(real, key=lambda at: -written[at])


def _cat(name: str, inputs: Inputs) -> Work | None:
    """``cat(tensors, dim)``: all read, all written."""
    shapes = [shape for shape in inputs.shapes_of_list(0) if shape]
    if not shapes or inputs.list_dtype is None:
        return None
    dim = inputs.value(1) or 0
    rank = len(shapes[0])
    if not isinstance(dim, int) or not -rank <= dim < rank or any(len(shape) != rank for shape in shapes):
        return None
    at = dim % rank
    whole = tuple(sum(shape[at] for shape in shapes) if axis == at else shapes[0][axis] for axis in range(rank))
    reads = tuple(dense(shape, inputs.list_dtype) for shape in shapes)
    return moving("copy", reads, (dense(whole, inputs.list_dtype),), relayout=True)


def _reduction(name: str, inputs: Inputs) -> Work | None:
    given = inputs.tensor(0)
    if given is None:
        return None
    output = _reduced(inputs, given)
    return moving("reduction", (given,), () if output is None else (output,), flops=float(given.elements))


def _reduced(inputs: Inputs, given: Tensor) -> Tensor | None:
    """The output of ``sum(input, dims, keepdim)``; ``None`` where its dimensions were not recorded."""
    if inputs.count < 2:
        return dense((), given.dtype)
    dims = inputs.sizes(1)
    if dims is None:
        one = inputs.value(1)
        if not isinstance(one, int) or isinstance(one, bool):
            return None
        dims = (one,)
    rank = len(given.shape)
    if any(not -rank <= dim < rank for dim in dims):
        return None
    gone = {dim % rank for dim in dims} if dims else set(range(rank))
    keep = inputs.value(2) is True
    shape = tuple(1 if at in gone else size for at, size in enumerate(given.shape) if keep or at not in gone)
    return dense(shape, given.dtype)


def _softmax(name: str, inputs: Inputs) -> Work | None:
    given = inputs.tensor(0)
    if given is None:
        return None
    dtype = "float" if inputs.value(2) is True else given.dtype
    return moving("softmax", (given,), (dense(given.shape, dtype),), flops=5.0 * given.elements)


def _softmax_backward(name: str, inputs: Inputs) -> Work | None:
    gradient, output = inputs.tensor(0), inputs.tensor(1)
    if gradient is None or output is None:
        return None
    number = inputs.value(3)
    dtype = SCALAR_TYPES.get(number, gradient.dtype) if isinstance(number, int) else gradient.dtype
    return moving("softmax", (gradient, output), (dense(gradient.shape, dtype),), flops=4.0 * gradient.elements)


def _norm(backward: bool, passes: int) -> Reading:
    """Normalisation over the first tensor (backward: the first two), with its small statistics and weights.

    Batch and group norm need their statistics before they can write: what they read, they read twice.
    """

    def read(name: str, inputs: Inputs) -> Work | None:
        given = inputs.tensor(0)
        if given is None:
            return None
        same = [tensor for tensor in inputs.tensors() if tensor.shape == given.shape]
        large = same[: 2 if backward else 1]
        small = tuple(tensor for tensor in inputs.tensors() if tensor.elements < given.elements)
        moved = passes * sum(tensor.nbytes for tensor in large) + sum(tensor.nbytes for tensor in small)
        output = dense(given.shape, given.dtype)
        return Work(
            kind="norm",
            flops=(10.0 if backward else 5.0) * given.elements,
            bytes=float(moved + output.nbytes),
            dtype=given.short,
            reads=tuple(large),
            writes=(output,),
        )

    return read


def _batch_norm(name: str, inputs: Inputs) -> Work | None:
    """Batch norm forward: one pass with stored statistics, two in training."""
    training = next((inputs.value(at) for at in (5, 3) if isinstance(inputs.value(at), bool)), True)
    return _norm(False, 2 if training else 1)(name, inputs)


def _embedding(name: str, inputs: Inputs) -> Work | None:
    """Rows of a table: ``embedding(table, rows)``, ``index_select(table, dim, rows)``."""
    table, rows = inputs.tensor(0), inputs.tensor(2 if name.endswith("index_select") else 1)
    if table is None or rows is None or len(table.shape) != 2:
        return None
    if name.endswith("index_select") and inputs.value(1) not in (0, None):
        return None
    taken = dense((*rows.shape, table.shape[1]), table.dtype)
    return Work(
        kind="embedding", flops=0.0, bytes=float(2 * taken.nbytes + rows.nbytes), dtype=table.short, writes=(taken,)
    )


def _embedding_backward(name: str, inputs: Inputs) -> Work | None:
    """``embedding_dense_backward(gradient, rows, size of the table, ...)``: every row's gradient added to its place."""
    gradient, rows = inputs.tensor(0), inputs.tensor(1)
    size = inputs.value(2)
    if gradient is None or rows is None or not gradient.shape:
        return None
    touched = min(rows.elements, size) if isinstance(size, int) and size > 0 else rows.elements
    written = dense((touched, gradient.shape[-1]), gradient.dtype)
    return Work(
        kind="embedding",
        flops=float(gradient.elements),
        bytes=float(gradient.nbytes + rows.nbytes + written.nbytes),
        dtype=gradient.short,
        writes=(written,),
    )


def _gather(name: str, inputs: Inputs) -> Work | None:
    """``gather(input, dim, index)``: as many elements as the index has."""
    given, index = inputs.tensor(0), inputs.tensor(2)
    if given is None or index is None:
        return None
    taken = dense(index.shape, given.dtype)
    return Work(
        kind="embedding", flops=0.0, bytes=float(2 * taken.nbytes + index.nbytes), dtype=given.short, writes=(taken,)
    )


def _foreach(name: str, inputs: Inputs) -> Work | None:
    """``_foreach_*`` over lists: every list read, one written."""
    lists = _lists(inputs)
    if not lists:
        return None
    return moving("optimizer", lists, (lists[0],), in_place=name.endswith("_"))


def _fused_optimizer(name: str, inputs: Inputs) -> Work | None:
    """``_fused_*`` over parameters, gradients and states: all read, all but the gradients written."""
    lists = _lists(inputs)
    lists = tuple(each for each in lists if each.elements >= lists[0].elements)  # without the step counts
    if len(lists) < 2:
        return None
    return moving("optimizer", lists, (lists[0], *lists[2:]), in_place=True)


def _lists(inputs: Inputs) -> tuple[Tensor, ...]:
    """Each list of tensors as one tensor."""
    if inputs.list_dtype is None:
        return ()
    found = (inputs.shapes_of_list(at) for at in range(inputs.count))
    return tuple(dense((sum(map(prod, shapes)),), inputs.list_dtype) for shapes in found if shapes)


def generated(name: str, inputs: Inputs) -> Work | None:
    """A generated Triton kernel: its arguments are what it reads and writes, each at least once."""
    if name.startswith("triton_tem_"):
        return None
    given = [tensor for tensor in inputs.tensors() if tensor.shape]
    if not given:
        return None
    # The last tensor is its output.
    return moving("fused", tuple(given[:-1]), (given[-1],), in_place=True)


MOVEMENT: dict[str, Reading] = {
    **dict.fromkeys(_UNARY, _elementwise(1)),
    **dict.fromkeys(_BINARY, _elementwise(2)),
    **dict.fromkeys(_TERNARY, _elementwise(3)),
    **dict.fromkeys(_FILLS, _fill),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_names("native_dropout _fused_dropout"), _dropout),
    "copy_": _copy,
    "cat": _cat,
    **dict.fromkeys(_names("_softmax _log_softmax"), _softmax),
    **dict.fromkeys(_names("_softmax_backward_data _log_softmax_backward_data"), _softmax_backward),
    **dict.fromkeys(_names("native_layer_norm _fused_rms_norm rms_norm"), _norm(False, 1)),
    **dict.fromkeys(_names("native_layer_norm_backward _fused_rms_norm_backward"), _norm(True, 1)),
    "native_group_norm": _norm(False, 2),
    "native_group_norm_backward": _norm(True, 2),
    **dict.fromkeys(
        _names("native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit"), _batch_norm
    ),
    **dict.fromkeys(
        _names("native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"), _norm(True, 2)
    ),
    **dict.fromkeys(_names("embedding index_select"), _embedding),
    "embedding_dense_backward": _embedding_backward,
    "gather": _gather,
    **dict.fromkeys([f"_foreach_{name}" for name in _FOREACH], _foreach),
    **dict.fromkeys(_names("_fused_adam _fused_adamw _fused_sgd _fused_adagrad"), _fused_optimizer),
}
"""Bare operator name, without ``aten::`` and the underscore of in-place forms → how its work is read."""


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
