"""Work of the operators that move bytes: elementwise, copies, reductions, softmax, normalisation, embeddings, lists."""

from __future__ import annotations

from math import prod

from ipyprof.analysis.quantities import Reading, Work, moving
from ipyprof.analysis.tensors import SCALAR_TYPES, Inputs, Tensor, broadcast, dense, promoted


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
