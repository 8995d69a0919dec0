"""The inputs of one recorded operator call as tensors: elements, bytes, dtypes and values."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


__all__ = ["ELEMENT_BYTES", "SCALAR_TYPES", "Inputs", "Tensor", "broadcast", "dense", "promoted"]
