"""Frozen dataclasses to plain JSON values and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ipyprof.errors import IpyprofError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Plain dicts, lists, numbers, text and ``None``: what ``json.dumps`` takes.

    Tuples become lists; numpy numbers and arrays become Python's; a number that is not finite was not measured, so it
    becomes ``None`` (JSON has no word for it).
    """
    return _finite(msgspec.to_builtins(value, enc_hook=_plain, str_keys=True))


def decode(kind: type[T], data: Any, what: str) -> T:
    """A ``kind`` from plain values as ``encode`` makes them. Keys that ``kind`` does not know are ignored, so that a
    report of a later version with the same schema number can be read.

    Args:
        what: name of what is read, for the error, such as ``"a report"``.

    Raises:
        IpyprofError: a key is missing or a value has the wrong type.
    """
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: a lone surrogate in a number's place
        raise IpyprofError(
            f"{what} that does not fit: {error}", "every key of the schema has its type", "write it again with ipyprof"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # numpy arrays and numbers, without importing numpy here
        return value.tolist()
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a report holds no {type(value).__name__}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
