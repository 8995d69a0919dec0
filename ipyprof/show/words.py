"""The words for causes, ratings and marks that text and dashboard share."""

from __future__ import annotations

from dataclasses import dataclass

from ipyprof.analysis.operators import GRAPH_ROW
from ipyprof.analysis.results import Account, Breakdown
from ipyprof.diagnosis.cause import Finding
from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.trust import device_line
from ipyprof.formatting import (
    NOT_MEASURED,
    TIMES,
    percent_short,
    percent_whole,
    plural,
    printable,
    rate_text,
    shorten,
    speedup_text,
    time_text,
    times_text,
)
from ipyprof.report.report import Report

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

    @property
    def waits(self) -> bool:
        """The GPU waits; of what unlike steps add, neither is known."""
        return not self.works and self.name != "unlike_steps"


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
UNLIKE = Category(
    name="unlike_steps", keys=("unlike_steps",), label="Unlike steps", short="unlike", fill="#4f8f5b", ink="#111111"
)
PYTHON = Category(name="cpu", keys=("cpu",), label="Python, operators", short="Python", fill="#909499", ink="#111111")
RUNTIME = Category(name="runtime", keys=("runtime",), label="CUDA calls", short="CUDA", fill="#8c4d6b", ink="#ffffff")
LOADER = Category(
    name="data_loading", keys=("data_loading",), label="Data loading", short="loader", fill="#bf891d", ink="#111111"
)
OTHER = Category(name="other", keys=("other",), label="Other", short="other", fill="", ink="")
CATEGORIES = (KERNEL, COPIES, COMMUNICATION, PYTHON, RUNTIME, LOADER, UNLIKE, OTHER)
BY_KEY = {key: category for category in CATEGORIES for key in category.keys}
BY_NAME = {category.name: category for category in CATEGORIES}
UNLIKE_SHARE = 0.05  # the loop's own pace and the typical step are told apart from here on
_NEXT_TO_NOTHING = 0.0005  # of the step: below it, "other" would stand there as "< 0.1" and "< 0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step; ``share`` is of the step."""

    category: Category
    ms: float
    share: float


def culprit_of(cause: str) -> Category | None:
    """The slice that ``cause`` sits in, or ``None``: the GPU is left without queued work."""
    return BY_KEY.get(cause_of(cause).part or "")


def step_parts(breakdown: Breakdown, culprit: Category | None = None) -> tuple[Part, ...]:
    """The measured parts in the order of every bar: GPU work, then waits, a waiting ``culprit`` last.

    The culprit last makes the bar without the cause the first bar with its end cut off. Parts that were not measured
    are left out; parts of no length stay.
    """
    measured = [(category, ms) for category in CATEGORIES if (ms := _ms(breakdown, category)) is not None]
    measured = [(category, ms) for category, ms in measured if category is not UNLIKE or ms > 0]
    if culprit is not None and culprit is not KERNEL:
        measured.sort(key=lambda pair: pair[0] is culprit)
    total = sum(ms for _, ms in measured)
    return tuple(Part(category=category, ms=ms, share=ms / total if total > 0 else 0.0) for category, ms in measured)


def _ms(breakdown: Breakdown, category: Category) -> float | None:
    values = [getattr(breakdown, key) for key in category.keys]
    return None if all(one is None for one in values) else sum(one or 0.0 for one in values)


def has_row(part: Part, culprit: Category | None) -> bool:
    """Whether a part stands in the step's table: ``culprit`` always, "other" only where it is not next to nothing."""
    if part.category is culprit:
        return True
    return part.share >= _NEXT_TO_NOTHING if part.category is OTHER else part.ms > 0


def unmeasured(breakdown: Breakdown) -> tuple[Category, ...]:
    """The categories of which nothing was measured."""
    return tuple(one for one in CATEGORIES if one is not UNLIKE and _ms(breakdown, one) is None)


def waiting_share(breakdown: Breakdown) -> float | None:
    """The share of the step in which the GPU does no work, or ``None`` where its work was not measured."""
    if breakdown.kernel is None:
        return None
    parts = step_parts(breakdown)
    return sum(part.share for part in parts if part.category.waits) if sum(part.ms for part in parts) > 0 else None


STATUS = {"found": ("!", "found"), "cleared": ("✓", "cleared"), "unknown": ("?", "unknown")}
TRUST = {"ok": "✓", "warn": "!", "fail": "✗"}
BOUND = {"compute": "▲", "memory": "▬", "launch": "▪", "copy": "⇄"}
TENSOR_CORE = {"yes": "●", "no": "○", "unknown": "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number under the headline."""

    name: str
    value: str
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """Findings that say the same, in one row."""

    status: str
    causes: tuple[str, ...]
    gain_ms: float | None
    evidence: str
    leading: bool


def subject(report: Report) -> tuple[str, str]:
    """What the eyebrow says: its subject, and how the sentence goes on. A request that failed goes before the cause."""
    return ("! Out of memory", "") if report.failed_request is not None else cause_of(report.verdict.cause).subject


def brief(report: Report) -> str:
    """The run's title, what holds it back and the cost: ``before: data_loading, 42.8 of 57.0 ms``."""
    name = f"{shorten(printable(' '.join(report.source.name.split())), 40)}: " if report.source.name else ""
    cause = "out of memory" if report.failed_request is not None else report.verdict.cause
    cost, step_ms = report.verdict.recoverable_ms, report.steps.step_ms
    if cause in ("out of memory", "compute_bound", "inconclusive") or cost is None or step_ms is None:
        return f"{name}{cause}, step {time_text(step_ms)}"
    return f"{name}{cause}, {times_text((cost, step_ms)).replace(', ', ' of ')}"


def cause_name(cause: str) -> str:
    """``cause`` as the next bottleneck."""
    return cause_of(cause).name


def cause_checked(cause: str) -> str:
    """``cause`` in the list of what was checked: the identifier and a word or two."""
    checked = cause_of(cause).checked
    return f"{cause}: {checked}" if checked and checked != cause else cause


def bound_word(report: Report) -> str:
    """``IO-bound``, ``CPU-bound``, ``GPU-bound (compute)``: what people ask for; empty where it is unknown.

    It is also empty where the cell ran out of memory, which is then what stands there.
    """
    bound = report.verdict.bound
    if bound == "unknown" or report.failed_request is not None:
        return ""
    return bound if bound.startswith("GPU") else bound.split(" (")[0]


def device_text(report: Report) -> str:
    """The device's name, or that there is none, or that none of its work was recorded: the driver saw it work."""
    if report.device is not None:
        return report.device.name
    if report.utilization.nvml is not None:
        return "no GPU work recorded"
    return "no GPU in the file" if report.source.kind == "file" else "no GPU: the CPU is shown"


def steps_text(report: Report) -> str:
    """Such as ``3 steps of the loop at line 2``."""
    steps = report.steps
    how = steps.how
    text = plural(steps.count, "step")
    if how.startswith("loop"):
        text = f"{text} of the {how}"
    elif how:
        text = f"{text}, {how}"
    return f"{text}, over cycles of {steps.cycle}" if steps.cycle > 1 else text


def without_name(report: Report) -> str:
    """The step without the verdict's cause in two or three words: ``without the reads``."""
    return cause_of(report.verdict.cause).without


def without_label(report: Report) -> str:
    """The same as the view says it, at more length: ``without waiting for the loader``.

    What is not taken away but done otherwise keeps its name: ``as one graph``, ``on Tensor Cores``.
    """
    name, without = without_name(report), report.views.without
    if not name.startswith("without") or without is None or not without.label:
        return name
    label = without.label
    return label[0].lower() + label[1:] if label.lower().startswith("without") else f"without {label}"


def now_text(report: Report) -> str:
    """What the step time stands for: unprofiled, estimated or recorded."""
    steps = report.steps
    if report.source.kind == "file" and steps.overhead is None:
        return "estimated without the profiler"
    if steps.overhead is not None or (report.breakdown.kernel is None and steps.per_step_ms):
        return "without the profiler"
    return "no baseline: as recorded"


def clock_text(report: Report) -> str:
    """The same as the name of the bar."""
    return f"Now, {now_text(report)}"


def unmeasured_text(report: Report) -> str:
    """Such as ``GPU computes, GPU copies: not measured (no GPU).``; empty where every part was measured."""
    names = ", ".join(category.label for category in unmeasured(report.breakdown))
    return f"{names}: {NOT_MEASURED}{' (no GPU)' if report.device is None else ''}." if names else ""


def facts(report: Report) -> tuple[Fact, ...]:
    """The five numbers under the headline; what was not measured says so."""
    verdict = report.verdict
    throughput = report.steps.throughput
    waiting = waiting_share(report.breakdown)
    parts = step_parts(report.breakdown)
    if throughput is not None:
        fourth = Fact(name="throughput", value=rate_text(throughput.value, throughput.unit))
    elif waiting is not None:
        fourth = Fact(name="GPU waits", value=percent_whole(waiting))
    elif report.device is None and parts:
        largest = max(parts, key=lambda part: part.ms)
        fourth = Fact(name=largest.category.label, value=percent_whole(largest.share))
    else:
        fourth = _missing("GPU waits")
    if verdict.next is not None:
        gain = "" if verdict.next_ms is None else f", {time_text(verdict.next_ms)}"
        fifth = Fact(name="next bottleneck", value=f"{cause_name(verdict.next)}{gain}")
    elif verdict.cause == "inconclusive" or verdict.predicted_step_ms is None or report.device is None:
        fifth = _missing("next bottleneck")
    else:
        least = "5 %" if report.steps.baseline != "none" else "8 %"
        value = f"none above {least}" if verdict.cause == "compute_bound" else "the GPU's own work"
        fifth = Fact(name="next bottleneck", value=value)
    step, predicted = report.steps.step_ms, verdict.predicted_step_ms
    return (
        _missing("step now") if step is None else Fact(name="step now", value=time_text(step)),
        _missing(without_name(report))
        if predicted is None
        else Fact(name=without_name(report), value=remaining_text(report, predicted)),
        _speedup(report),
        fourth,
        fifth,
    )


def _speedup(report: Report) -> Fact:
    verdict, step = report.verdict, report.steps.step_ms
    bound = verdict.speedup_bound
    if bound is None and verdict.speedup_range is not None and verdict.predicted_step_ms and step:
        bound = step / verdict.predicted_step_ms
    if bound is None:
        return _missing("speed-up")
    words = limit_words(report) if verdict.speedup_range is None else "about"
    return Fact(name="speed-up", value=f"{words} {speedup_text(bound)}")


def more_facts(report: Report) -> tuple[str, ...]:
    """Sentences below the facts: the typical step, what cures like this one reached, where the cell's time went."""
    steps, reached, told = report.steps, report.verdict.speedup_range, []
    if steps.step_ms and steps.typical_step_ms and abs(steps.step_ms / steps.typical_step_ms - 1) >= UNLIKE_SHARE:
        told.append(f"{time_text(steps.step_ms)} a step: {time_text(steps.typical_step_ms)} typically.")
    if reached is not None:
        told.append(f"Cures like it reached {speedup_text(reached[0]).rstrip(TIMES)} to {speedup_text(reached[1])}.")
    return (*told, *([account_text(report.account)] if report.account is not None else []))


def account_text(account: Account) -> str:
    """Where the cell's time went: ``Cell 12.3 s = 1.20 s before the loop + 0.40 s in 80 typical steps + ...``."""
    parts = [
        (account.before_ms, "before the loop"),
        (account.typical_ms, f"in {plural(account.typical_steps, 'typical step')}"),
        *((one.ms, f"more in {plural(one.count, 'step')}: {one.what}") for one in account.unlike),
        (account.between_ms, "between and behind the loops"),
        (account.ours_ms, "our own pauses"),
    ]
    return (
        f"Cell {time_text(account.cell_ms)} = {' + '.join(f'{time_text(ms)} {what}' for ms, what in parts if ms > 0)}."
    )


def limit_words(report: Report) -> str:
    """``at most``, or ``at least`` where the cure does more than what the replay takes out."""
    return "at least" if cause_of(report.verdict.cause).at_least else "at most"


def remaining_text(report: Report, step_ms: float) -> str:
    """The step that remains, with the sign of the bound: ``≥ 3.05 ms``."""
    return f"{'≤' if cause_of(report.verdict.cause).at_least else '≥'} {time_text(step_ms)}"


def check_rows(report: Report) -> tuple[CheckRow, ...]:
    """Found first, the verdict's cause before all; then cleared by gain, then unknown. Equal evidence shares a row."""
    order = {"found": 0, "cleared": 1, "unknown": 2}
    lead = report.verdict.cause
    ranked = sorted(
        report.findings,
        key=lambda one: (order.get(one.status, 3), one.cause != lead, -(one.recoverable_ms or 0.0)),
    )
    rows: list[CheckRow] = []
    for finding in ranked:
        previous = rows[-1] if rows else None
        if previous is not None and _same(previous, finding):
            gains = [gain for gain in (previous.gain_ms, finding.recoverable_ms) if gain is not None]
            rows[-1] = CheckRow(
                status=previous.status,
                causes=(*previous.causes, finding.cause),
                gain_ms=max(gains) if gains else None,
                evidence=previous.evidence,
                leading=False,
            )
        else:
            rows.append(
                CheckRow(
                    status=finding.status,
                    causes=(finding.cause,),
                    gain_ms=finding.recoverable_ms,
                    evidence=finding.evidence,
                    leading=finding.status == "found" and finding.cause == lead,
                )
            )
    return tuple(rows)


def check_summary(report: Report) -> str:
    """Such as ``1 found · 5 cleared · 1 unknown``."""
    counts = {status: sum(finding.status == status for finding in report.findings) for status in STATUS}
    return " · ".join(f"{count} {status}" for status, count in counts.items())


def leading_line(report: Report) -> int | None:
    """The line that the verdict names, or ``None``."""
    for finding in report.findings:
        if finding.cause == report.verdict.cause and finding.status == "found":
            return finding.where.line
    return None


def no_operator_ran(report: Report) -> bool:
    """Whether a live recording saw the host and no operator: there were none, and nothing is missing."""
    seen = report.source.kind == "live" and report.breakdown.cpu is not None
    return seen and not report.operators and not report.kernels


def device_state_text(report: Report) -> str:
    """One line on clock, power, link and other processes while steps ran; empty where the driver was not asked."""
    state = report.views.device_state
    return "" if state is None else device_line(state)


def ladder_lesson(report: Report) -> str:
    """What the utilisation ladder of this run tells, in a sentence or two."""
    busy = report.utilization.kernel_busy
    if busy is None:
        return ""
    if busy < 0.5:
        return "The GPU computes for less than half of the step: faster kernels would hardly show."
    if busy >= 0.85:
        if report.utilization.mfu is None:
            return "“100 %” would only say that some kernel was running, not how much of the GPU it uses."
        return (
            "“100 %” only says that some kernel was running. MFU counts arithmetic; 40 to 50 % is well-tuned training."
        )
    return f"The GPU computes {percent_short(busy)} of the step: get the rest back before you make its kernels faster."


def _same(row: CheckRow, finding: Finding) -> bool:
    return (
        row.status == finding.status
        and row.status != "found"
        and bool(row.evidence)
        and row.evidence == finding.evidence
        and (row.gain_ms is None) == (finding.recoverable_ms is None)
    )


def _missing(name: str) -> Fact:
    return Fact(name=name, value=NOT_MEASURED, measured=False)


DRIVER = "nvidia-smi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One share of the step or of a peak; ``words``: what it counts, or, where ``share`` is ``None``, why not."""

    name: str
    share: float | None
    words: str


def rungs(report: Report) -> tuple[Rung, ...]:
    """From ``nvidia-smi`` to MFU; empty without a GPU."""
    use = report.utilization
    if report.device is None and use.kernel_busy is None:
        return ()
    found = [
        (DRIVER, use.nvml, "some kernel was running, as the driver samples it"),
        ("GPU computes", use.kernel_busy, "time in kernels; the rest is waiting"),
        ("SMs covered", use.sm_coverage, "weighted by how many SMs had work"),
        ("Tensor Cores", use.tensor_core, "time in kernels that use them"),
        ("MFU", use.mfu, "useful arithmetic, of the data sheet's dense peak"),
    ]
    lacking = {
        DRIVER: _no_driver(report),
        "SMs covered": "kernels without their grid",
        "MFU": _no_arithmetic(report),
    }
    return tuple(
        Rung(name=name, share=share, words=words if share is not None else lacking.get(name, ""))
        for name, share, words in found
        if share is not None or name != "Tensor Cores"  # told for each operator, where it can be told
    )


def _no_driver(report: Report) -> str:
    state = report.views.device_state
    if state is None:
        return "not in a trace" if report.source.kind == "file" else "the driver was not asked"
    return state.missing or "the steps ended before the driver's next sample"


def _no_arithmetic(report: Report) -> str:
    if any(one.tensor_core in ("yes", "no", "unknown") for one in report.operators):
        shapes = any(one.shapes for one in report.operators)
        return "the peak of this device or precision is not known" if shapes else "input shapes were not recorded"
    if any(one.name == GRAPH_ROW for one in report.operators):
        return "a CUDA graph has no shapes"
    return "no product, convolution or attention ran"
