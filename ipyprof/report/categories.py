"""What a step is made of, in words and colours: the same in every view and in both themes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ipyprof.report.report import Breakdown

ACCENT = "#c23a1a"
ACCENT_INK = "#ffffff"
MEMORY = "#6c7480"
MEMORY_INK = "#ffffff"
OUTLINE = "#787878"
TRACK = "rgba(128,128,128,.16)"
RULE = "rgba(128,128,128,.35)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """``keys`` are the breakdown's; ``ink`` is text on ``fill``; ``works``: the GPU works, else it waits."""

    name: str
    keys: tuple[str, ...]
    label: str
    short: str
    fill: str
    ink: str
    works: bool = False


KERNEL = Category(
    name="kernel", keys=("kernel",), label="GPU computes", short="compute", fill="#2869a2", ink="#ffffff", works=True
)
COPIES = Category(
    name="copies",
    keys=("memcpy", "memset"),
    label="GPU copies",
    short="copies",
    fill="#3894bb",
    ink="#111111",
    works=True,
)
COMMUNICATION = Category(
    name="communication",
    keys=("communication",),
    label="Communication",
    short="comm.",
    fill="#a071e1",
    ink="#111111",
    works=True,
)
PYTHON = Category(name="cpu", keys=("cpu",), label="Python, operators", short="Python", fill="#909499", ink="#111111")
RUNTIME = Category(name="runtime", keys=("runtime",), label="CUDA calls", short="CUDA", fill="#8c4d6b", ink="#ffffff")
LOADER = Category(
    name="data_loading", keys=("data_loading",), label="Data loading", short="loader", fill="#bf891d", ink="#111111"
)
OTHER = Category(name="other", keys=("other",), label="Other", short="other", fill="", ink="")

CATEGORIES = (KERNEL, COPIES, COMMUNICATION, PYTHON, RUNTIME, LOADER, OTHER)
BY_KEY = {key: category for category in CATEGORIES for key in category.keys}
BY_NAME = {category.name: category for category in CATEGORIES}

_NEXT_TO_NOTHING = 0.0005  # of the step: below it, "other" would stand there as "< 0.1" and "< 0.1"

# The slice that a cause sits in. Where none is named, no slice is the culprit: the GPU is left without queued work.
_SLICE_OF_CAUSE = {
    "data_loading": LOADER,
    "transfer": COPIES,
    "allocator": RUNTIME,
    "cpu_bound": PYTHON,
    "communication": COMMUNICATION,
    "tensor_cores": KERNEL,
    "misaligned_shapes": KERNEL,
    "memory_bound": KERNEL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step; ``share`` is of the step."""

    category: Category
    ms: float
    share: float


def culprit_of(cause: str) -> Category | None:
    """The slice that ``cause`` sits in, or ``None``."""
    return _SLICE_OF_CAUSE.get(cause)


def breakdown_values(breakdown: Breakdown | Mapping[str, float | None]) -> dict[str, float | None]:
    """The breakdown's eight keys, from the dataclass or from a view."""
    if isinstance(breakdown, Breakdown):
        return {part.name: getattr(breakdown, part.name) for part in fields(breakdown)}
    return {part.name: breakdown.get(part.name) for part in fields(Breakdown)}


def step_parts(breakdown: Breakdown | Mapping[str, float | None], culprit: Category | None = None) -> tuple[Part, ...]:
    """The measured parts in the order of every bar: GPU work, then waits, a waiting ``culprit`` last.

    The culprit last makes the bar without the cause the first bar with its end cut off. Parts that were not measured
    are left out; parts of no length stay.
    """
    values = breakdown_values(breakdown)
    measured = [
        (category, sum(values[key] or 0.0 for key in category.keys))
        for category in CATEGORIES
        if any(values[key] is not None for key in category.keys)
    ]
    if culprit is not None and culprit is not KERNEL:
        measured.sort(key=lambda pair: pair[0] is culprit)
    total = sum(ms for _, ms in measured)
    return tuple(Part(category=category, ms=ms, share=ms / total if total > 0 else 0.0) for category, ms in measured)


def has_row(part: Part, culprit: Category | None) -> bool:
    """Whether a part stands in the step's table: ``culprit`` always, "other" only where it is not next to nothing."""
    if part.category is culprit:
        return True
    return part.share >= _NEXT_TO_NOTHING if part.category is OTHER else part.ms > 0


def unmeasured(breakdown: Breakdown) -> tuple[Category, ...]:
    """The categories of which nothing was measured."""
    values = breakdown_values(breakdown)
    return tuple(category for category in CATEGORIES if all(values[key] is None for key in category.keys))


def waiting_share(breakdown: Breakdown) -> float | None:
    """The share of the step in which the GPU does no work, or ``None`` where its work was not measured."""
    if breakdown.kernel is None:
        return None
    parts = step_parts(breakdown)
    return sum(part.share for part in parts if not part.category.works) if sum(part.ms for part in parts) > 0 else None
