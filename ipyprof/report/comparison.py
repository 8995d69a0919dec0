"""What a comparison of two reports is made of: plain data. ``compare.py`` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipyprof.report.report import Breakdown
from ipyprof.report.significance import Significance

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One side. ``samples_ms`` are what is compared, per step or per item; ``clock``: ``unprofiled``, ``recorded`` or
    ``none``."""

    label: str
    device: str
    torch: str | None
    how: str
    step_ms: float | None
    samples_ms: tuple[float, ...]
    clock: str
    breakdown: Breakdown
    items: float | None
    cause: str
    headline: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One number of both sides; ``unit`` is ``ms``, ``share``, ``bytes`` or a rate such as ``samples/s``."""

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """after / before, or ``None``."""
        if self.before is None or self.after is None or self.before <= 0:
            return None
        return self.after / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One part of the step or one operator, ms per step. ``state``: changed, same, appeared, vanished, unknown (not
    measured) or unjudged (too few recorded steps to tell)."""

    name: str
    before_ms: float | None
    after_ms: float | None
    state: str

    @property
    def change_ms(self) -> float | None:
        """after − before; what is not there takes no time."""
        if self.state == "unknown":
            return None
        return (self.after_ms or 0.0) - (self.before_ms or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the first report said its cure would gain. ``kind`` is ``at most`` or ``at least``; ``recovered`` is the
    share of the promised time that is gone. ``exceeded``: what was reached is beyond an ``at most`` by a tenth
    and by more than the steps vary."""

    cause: str
    kind: str
    bound: float
    reached: float
    recovered: float | None
    exceeded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Before and after. Make it with ``ipyprof.compare``.

    Attributes:
        per_item: both did a known, different amount of work, so that times are compared per item.
        speedup: before / after of the step, or of the time per item; ``None`` where a step was not measured.
        parts: of the step, in the order of every bar.
        operators: all that differ, the largest change first.
        same_operators: how many do not differ.
        unjudged_operators: how many differ in the mean, with too few recorded steps to tell.
        on_device: operators are compared by device self time, else by host self time; of recorded steps both.
        code: the lines of the cell that differ, each ``(sign, text)``.
        warnings: why the two may not be comparable, each a sentence.
    """

    headline: str
    before: Run
    after: Run
    significance: Significance
    speedup: float | None
    per_item: bool
    promise: Promise | None
    numbers: tuple[Pair, ...]
    parts: tuple[Row, ...]
    operators: tuple[Row, ...]
    same_operators: int
    unjudged_operators: int
    on_device: bool
    code: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    schema: int = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``: the fields of the class, ``schema`` first."""
        from ipyprof.report.codec import encode

        plain: dict[str, Any] = encode(self)
        for rows in (plain["parts"], plain["operators"]):
            for row in rows:
                row["change_ms"] = Row(**row).change_ms
        return {"schema": plain.pop("schema"), **plain}

    def __repr__(self) -> str:
        """Such as ``<Comparison before → after: faster, 57.0 → 15.1 ms>``."""
        from ipyprof.report.compare_words import ARROW, change_text

        return f"<Comparison {self.before.label}{ARROW}{self.after.label}: {change_text(self)}>"

    def __str__(self) -> str:
        """What a terminal shows."""
        from ipyprof.report.compare_text import comparison_text

        return comparison_text(self).rstrip("\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """The text and the card, for the notebook's display system."""
        from ipyprof.report.compare_html import render_comparison
        from ipyprof.report.compare_text import comparison_text

        return {"text/plain": comparison_text(self), "text/html": render_comparison(self)}
