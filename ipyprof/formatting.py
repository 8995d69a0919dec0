"""The only place with unit strings, percent signs and rounding."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

NOT_MEASURED = "not measured"
ZERO = "·"
MINUS = "−"
TIMES = "×"
GLUE = "\u00a0"
_NUMBER = re.compile(r"(\d) ((?:%|ms|µs|s|[kMGT]?B)(?!\w))")


def time_text(ms: float | None) -> str:
    """A time with its unit and three figures: ``257 ms``, ``31.6 ms``, ``3.80 ms``, ``35 µs``, ``12.3 s``."""
    if ms is None:
        return NOT_MEASURED
    size = abs(ms)
    if size >= 9_999.5:
        return _signed(f"{ms / 1000:,.1f} s")
    if size >= 99.95:
        return _signed(f"{ms:,.0f} ms")
    if size >= 9.995:
        return _signed(f"{ms:.1f} ms")
    if size >= 0.0995 or size == 0:
        return _signed(f"{ms:.2f} ms")
    return _signed(f"{ms * 1000:.0f} µs" if size >= 0.00095 else f"{ms * 1000:.2f} µs")


def times_text(times: Sequence[float]) -> str:
    """Times in a row, the unit once where it is the same: ``12.0, 12.1, 12.4 ms``; ``990 µs, 1.02 ms``."""
    texts = [time_text(ms).rpartition(" ")[::2] for ms in times]
    units = {unit for _, unit in texts}
    if len(units) == 1:
        return f"{', '.join(number for number, _ in texts)} {units.pop()}"
    return ", ".join(" ".join(text) for text in texts)


def time_cell(ms: float | None, total: float | None) -> str:
    """A time without its unit, for a column whose total is ``total``: one decimal from 100 ms on, else two."""
    if ms is None:
        return NOT_MEASURED
    return _cell(ms, 1 if total is not None and abs(total) >= 100 else 2)


def step_cell(ms: float | None, total: float | None) -> str:
    """A part of a step without its unit, in a column whose total is ``total``: with the decimals of ``time_text``, so
    that one cost reads the same in a sentence and in a table. One from 10 ms on, else two."""
    if ms is None:
        return NOT_MEASURED
    return _cell(ms, 1 if total is not None and abs(total) >= 9.995 else 2)


def gain_text(ms: float | None, largest: float) -> str:
    """A gain with its unit, in a column whose largest is ``largest``, as ``step_cell``; zero is written out:
    ``0.00 ms``."""
    if ms is None:
        return NOT_MEASURED
    return _signed(f"{ms:,.1f} ms" if largest >= 9.995 else f"{ms:.2f} ms")


def tick_text(ms: float, step: float) -> str:
    """A time on an axis whose ticks are ``step`` ms apart, with just enough decimals."""
    decimals = next((n for n in range(6) if abs(round(step, n) - step) < step * 1e-3), 6)
    return "0" if abs(ms) < step * 1e-6 else _signed(f"{ms:,.{decimals}f} ms")


def percent_whole(share: float | None) -> str:
    """A share as whole percent, for bars and pies: ``88 %``; under half a percent ``< 1 %``."""
    if share is None:
        return NOT_MEASURED
    return "< 1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def percent_short(share: float | None) -> str:
    """A share as percent with two figures below 10: ``33 %``, ``5.9 %``, ``0.6 %``."""
    if share is None:
        return NOT_MEASURED
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def percent_rung(share: float | None) -> str:
    """As ``percent_short``; what is not zero never reads as zero: ``< 0.1 %``."""
    return "< 0.1 %" if share is not None and 0 < share < 0.0005 else percent_short(share)


def percent_cell(share: float | None) -> str:
    """A share as percent with one decimal, without its sign, for a table: ``87.7``."""
    return NOT_MEASURED if share is None else _cell(share * 100, 1)


def speedup_text(factor: float | None) -> str:
    """A factor: ``12×``, ``8.1×``, ``1.04×``."""
    if factor is None:
        return NOT_MEASURED
    return f"{factor:,.0f}{TIMES}" if factor >= 9.95 else f"{factor:.{1 if factor >= 1.095 else 2}f}{TIMES}"


def size_text(size: float | None) -> str:
    """A size with its unit, MB = 10⁶ bytes: ``85.9 GB``, ``3,215 MB``, ``72.4 MB``, ``8.2 kB``, ``512 bytes``."""
    if size is None:
        return NOT_MEASURED
    amount = abs(size)
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if amount >= 9_999.5 * unit / 1e3:  # four figures of the smaller unit still read well
            return _signed(f"{size / unit:,.{1 if amount < 999.95 * unit else 0}f} {name}")
    if amount >= 99.95e6:
        return _signed(f"{size / 1e6:,.0f} MB")
    if amount >= 99_950:
        return _signed(f"{size / 1e6:.1f} MB")
    if amount >= 1_000:
        return _signed(f"{size / 1e3:.1f} kB")
    return _signed(f"{size:.0f} bytes")


def size_tick(size: float) -> str:
    """A size on an axis: ``3 GB``, ``0.5 GB``, ``50 MB``, ``20 kB``; zero without a unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit * 0.999:
            return f"{size / unit:,.4g} {name}"
    return f"{size:.4g} bytes" if size else "0"


def count_cell(count: float | None) -> str:
    """A count per step: ``1,024``, ``2.5``, ``·`` for zero."""
    if count is None:
        return NOT_MEASURED
    if count == 0:
        return ZERO
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 else f"{count:,.1f}"


def rate_text(value: float, unit: str) -> str:
    """A throughput: ``249 img/s``, ``2,025 img/s``, ``795k tokens/s``, ``1.20M tokens/s``."""
    if value >= 999_500:
        number = f"{value / 1e6:,.2f}M" if value < 9.995e6 else f"{value / 1e6:,.0f}M"
    elif value >= 99_950:
        number = f"{value / 1e3:.0f}k"
    else:
        number = f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"
    return f"{number} {shorten(unit, 20)}"


def overhead_text(overhead: float) -> str:
    """What recording did to the step: ``47 % longer``."""
    change = overhead - 1
    return f"{abs(change) * 100:.0f} % {'longer' if change >= 0 else 'shorter'}"


def clock_text(mhz: int | None, most_mhz: int | None) -> str:
    """A clock and its maximum: ``1,700 of 1,980 MHz``, ``1,980 MHz``; empty where it is not known."""
    if mhz is None:
        return ""
    return f"{mhz:,} MHz" if most_mhz is None or mhz == most_mhz else f"{mhz:,} of {most_mhz:,} MHz"


def power_text(watts: float | None, limit_watts: float | None) -> str:
    """Power and its limit: ``690 of 700 W``, ``690 W``; empty where it is not known."""
    if watts is None:
        return ""
    return f"{watts:,.0f} W" if limit_watts is None else f"{watts:,.0f} of {limit_watts:,.0f} W"


def link_text(now: tuple[int | None, int | None], most: tuple[int | None, int | None]) -> str:
    """Generation and width of a PCIe link and what it could be: ``PCIe 4 ×8 of 5 ×16``, ``PCIe 5 ×16``."""
    if now[0] is None or now[1] is None:
        return ""
    text = f"PCIe {now[0]} {TIMES}{now[1]}"
    return text if None in most or now == most else f"{text} of {most[0]} {TIMES}{most[1]}"


def plural(count: int, word: str) -> str:
    """``1 step``, ``3 steps``, ``2 launches``."""
    ending = "es" if word.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{ending}"


def unbroken(text: str) -> str:
    """``text`` with each number and its unit kept on one line."""
    return _NUMBER.sub(rf"\1{GLUE}\2", text)


def shorten(text: str, width: int) -> str:
    """The first characters that fit ``width`` columns, with an ellipsis where something was left out."""
    if columns(text) <= width:
        return text
    kept = ""
    used = 1
    for character in text:
        used += columns(character)
        if used > width:
            break
        kept += character
    return kept + "…"


def columns(text: str) -> int:
    """Terminal columns that ``text`` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""These turn the direction of what follows: a name with one would show another text than it holds."""


def printable(text: str) -> str:
    """``text`` with ``�`` for what damaged and hostile names hold: control characters, lone surrogates, turned text."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in "\t\n" or (unicodedata.category(character) not in ("Cc", "Cs") and character not in _TURNING)
        else "�"
        for character in text
    )


def _cell(value: float, decimals: int) -> str:
    if value == 0:
        return ZERO
    smallest = 10.0**-decimals
    if abs(value) < smallest / 2:
        return f"< {smallest:.{decimals}f}" if value > 0 else ZERO
    return _signed(f"{value:,.{decimals}f}")


def _signed(text: str) -> str:
    return text.replace("-", MINUS, 1)
