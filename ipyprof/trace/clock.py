"""Times of a file as integer nanoseconds, exact for the digits that the file has."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np

from ipyprof.trace.model import Int64, UInt8

UNKNOWN_NS = np.iinfo(np.int64).min
"""The time of an event whose text is missing or no time."""

LATEST_NS = 1 << 62
"""Times beyond this, in the year 2116, are damage."""

_MOST_DIGITS = 15
_SEPARATOR = ord(",")
_DOT = ord(".")
_ZERO = ord("0")


def nanoseconds(texts: list[msgspec.Raw]) -> Int64:
    """(n,) int64 ns of times in microseconds as the file writes them; ``UNKNOWN_NS`` where a text is no time.

    A float would not do: at today's Unix time in microseconds a float64 has steps of 250 ns.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b",".join([*texts, b""])
    characters = np.frombuffer(joined, np.uint8)
    digits = characters - _ZERO
    width = joined.index(b",") + 1
    if len(joined) == width * len(texts):
        times = _of_one_layout(characters.reshape(-1, width).T, digits.reshape(-1, width).T)
        if times is not None:
            return times
    marks = np.flatnonzero(digits > 9)
    is_dot = characters[marks] == _DOT
    ends = marks[~is_dot]
    if len(ends) != len(texts) or not np.all(characters[ends] == _SEPARATOR):
        return np.fromiter([_by_decimal(bytes(text)) for text in texts], np.int64, len(texts))
    starts = np.append(0, ends[:-1] + 1)[: len(texts)]
    dots = marks[is_dot]
    owners = np.searchsorted(ends, dots)
    lengths = ends - starts
    wholes = lengths.copy()
    wholes[owners] = dots - starts[owners]
    # A file has few layouts: characters before the dot and in all.
    layouts = wholes * 1024 + np.minimum(lengths, 1023)
    times = np.full(len(texts), UNKNOWN_NS, np.int64)
    for layout in np.flatnonzero(np.bincount(layouts)).tolist():
        whole, length = divmod(layout, 1024)
        rows = np.flatnonzero(layouts == layout)
        if 0 < whole <= _MOST_DIGITS + 1 and length - whole - 1 <= _MOST_DIGITS:
            if len(rows) == len(texts):
                columns = digits.reshape(-1, length + 1).T
            else:
                columns = digits[starts[rows] + np.arange(length)[:, np.newaxis]]
            times[rows] = _by_digits(columns, whole, length)
        else:
            times[rows] = [_by_decimal(bytes(texts[row])) for row in rows.tolist()]
    return times


def _of_one_layout(characters: UInt8, digits: UInt8) -> Int64 | None:
    """(k,) ns of texts that have dot and end where the first has them, or ``None`` where they are not so alike.

    Both arrays are (length + 1, k): one row per place, the last one for the separator.
    """
    length = len(characters) - 1
    found = np.flatnonzero(characters[:, 0] == _DOT)
    whole = int(found[0]) if len(found) else length
    if not 0 < whole <= _MOST_DIGITS + 1 or length - whole - 1 > _MOST_DIGITS:
        return None
    wrong = digits > 9
    wrong[whole] = characters[whole] != (_DOT if whole < length else _SEPARATOR)
    wrong[length] = characters[length] != _SEPARATOR
    return None if wrong.any() else _by_digits(digits, whole, length)


def _by_digits(columns: UInt8, whole: int, length: int) -> Int64:
    """(k,) ns of texts of one layout: ``whole`` digits, and when ``length`` is larger a dot and more digits.

    ``columns`` is (length or more, k): one row per place, one column per text.
    """
    value = np.zeros(columns.shape[1], np.int64)
    for place in range(whole):
        value *= 10
        value += columns[place]
    fraction = np.zeros(columns.shape[1], np.int64)
    for place in range(whole + 1, length):
        fraction *= 10
        fraction += columns[place]
    decimals = max(length - whole - 1, 0)
    if decimals > 3:
        scale = 10 ** (decimals - 3)
        fraction = (fraction + scale // 2) // scale
    else:
        fraction *= 10 ** (3 - decimals)
    return value * 1000 + fraction


def _by_decimal(text: bytes) -> int:
    try:
        time = Decimal(text.decode("ascii", "replace").strip('" ')) * 1000
    except InvalidOperation:
        return UNKNOWN_NS
    if not time.is_finite() or abs(time) >= LATEST_NS:
        return UNKNOWN_NS
    return int(time.to_integral_value())
