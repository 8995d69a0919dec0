"""The dashboard's tables: operators, ladder, what was checked, explanations, trust. Each function returns HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipyprof.formatting import (
    NOT_MEASURED,
    count_cell,
    gain_text,
    percent_cell,
    percent_rung,
    plural,
    time_cell,
)
from ipyprof.report.categories import ACCENT, ACCENT_INK, COPIES, KERNEL, MEMORY, PYTHON, RULE
from ipyprof.report.markup import (
    ELLIPSIS,
    MUTED,
    SMALL,
    bar,
    cell,
    chip,
    code_name,
    details,
    div,
    escape,
    muted,
    note,
    row,
    table,
    title,
)
from ipyprof.report.report import Operator, Report, TrustCheck
from ipyprof.report.rungs import DRIVER, rungs
from ipyprof.report.words import (
    BOUND,
    STATUS,
    TENSOR_CORE,
    TRUST,
    cause_checked,
    check_rows,
    device_state_text,
    judged_columns,
    ladder_lesson,
    no_operator_ran,
    unjudged_text,
)

TOP = 10
_NAME_COLUMNS = 48
_MORE = 0.01  # of the step: "if free" beyond an operator's own share is explained from here on
# The name takes what the other columns leave, and ends in an ellipsis where that is not enough.
_NAME = f"width:38%;{ELLIPSIS}"
_WRAPS = "white-space:normal"
# Its width is given and not that of its longest word, which may be a kernel's name and is broken where it must be.
_EVIDENCE = "width:60%;max-width:0;min-width:190px;word-wrap:break-word;vertical-align:top"
_AT_MOST = (
    "The step is replayed on the recorded kernels and calls, once as it was and once without the cause. The "
    "difference is what a perfect cure would gain: the new step takes at least that long, so the speed-up is at "
    "most that factor. A long call is not a large gain: what counts is how long the GPU then has nothing to do. Where "
    "the cure does more than the replay takes out, such as fusing kernels, it says “at least”."
)
_READING = (
    "All times are of one step without the profiler, from one mark to the next; where the clock of the slower "
    "recording is meant, it says “recorded”: the host times of operators are on it, and may add up to more than the "
    "step. The parts of a step do not overlap and add up to it: GPU work comes first, and what the host does counts "
    "only while the GPU waits. Self time is an operator's own, without the operators it calls. “If free” is by replay: "
    "less than the operator's share where the host holds the step back, more where its calls keep the GPU waiting. "
    "▲ compute: limited by arithmetic. ▬ memory: limited by bytes moved. "
    "▪ launch: shorter than the call that starts it. ⇄ copy: moves data. ● yes: the kernels use Tensor Cores. A dot "
    "is zero; what was not measured says so."
)
_HEALTHY = (
    "“Healthy” means: looked, and no wait costs 5 % of the step. “Could not tell” is another answer, with its reason."
)


def on_device(operators: Sequence[Operator]) -> bool:
    """Whether device time was measured for any of them; else tables rank by host time."""
    return any(operator.self_device_ms is not None for operator in operators)


def operators_table(report: Report, *, limit: int = TOP) -> str:
    """The operators with the most self time, ranked; device time where there is any, else host time.

    Both are as recorded, and the title and the sum say so: recording makes host time longer, and leaves kernels.
    """
    operators = report.operators
    device = on_device(operators)

    def own(operator: Operator) -> float:
        return (operator.self_device_ms or 0.0) if device else operator.self_host_ms

    what = "device self time in one recorded step, % of all GPU time"
    what = what if device else "host self time in one recorded step: no GPU time"
    head = title("Top operators on the GPU" if device else "Top operators on the host", what if operators else "")
    ranked = sorted(operators, key=own, reverse=True)
    ranked = [operator for operator in ranked if own(operator) > 0]
    if not ranked:
        return head + note("No operator ran." if no_operator_ran(report) else f"Operators were {NOT_MEASURED}.", 0)
    total = sum(own(operator) for operator in ranked)
    shown, rest = ranked[:limit], ranked[limit:]
    amdahl = device and any(operator.amdahl_share is not None for operator in shown)
    titles = [
        _tight("", header=True),
        _tight("operator", style=_NAME, header=True),
        _tight("self time", header=True),
        _tight("ms", align="right", header=True),
        _tight("%", align="right", header=True),
        _tight("calls", align="right", header=True),
    ]
    bounds, cores = judged_columns(shown) if device else (False, False)
    titles += [_tight("bound by", header=True)] if bounds else []
    titles += [_tight("Tensor Cores", style=_WRAPS, header=True)] if cores else []
    if amdahl:
        titles.append(_tight("if free", align="right", header=True))
    body = ""
    for number, operator in enumerate(shown, start=1):
        fill = PYTHON if not device else COPIES if operator.bound == "copy" else KERNEL
        cells = [
            _tight(muted(str(number)), align="right", style="width:18px;padding-left:0"),
            _tight(code_name(operator.name, _NAME_COLUMNS), style=_NAME),
            _tight(bar(own(operator) / own(shown[0]), fill.fill), style="min-width:48px"),
            _tight(time_cell(own(operator), total), align="right"),
            _tight(percent_cell(own(operator) / total), align="right"),
            _tight(count_cell(operator.calls), align="right"),
        ]
        if bounds:
            mark = BOUND.get(operator.bound)
            bound = f"{mark} {escape(operator.bound)}" if mark else muted("? unknown")
            cells.append(_tight(bound, style="white-space:nowrap"))
        if cores:
            core = TENSOR_CORE.get(operator.tensor_core)
            used = f"{core} {escape(operator.tensor_core)}" if core else muted("n/a")
            cells.append(_tight(used, style="white-space:nowrap"))
        if amdahl:
            gain = percent_cell(operator.amdahl_share)
            gain = f"≤ {gain}" if gain[0].isdigit() else gain
            cells.append(_tight(gain, align="right"))
        body += row(*cells)
    if rest:
        left = sum(own(operator) for operator in rest)
        body += row(
            _tight(""),
            _tight(muted(f"{len(rest):,} more"), span_columns=2),
            _tight(time_cell(left, total), align="right"),
            _tight(percent_cell(left / total), align="right"),
        )
    line = f"border-top:1px solid {RULE}"
    body += row(
        _tight("", style=line),
        _tight(f"<b>all {'device' if device else 'recorded host'} time</b>", style=line, span_columns=2),
        _tight(f"<b>{time_cell(total, total)}</b>", align="right", style=line),
        _tight("<b>100.0</b>", align="right", style=line),
        _tight("", style=line, span_columns=len(titles) - 5),
    )
    text = head + table(row(*titles), body)
    notes = []
    if amdahl:
        above = any((one.amdahl_share or 0.0) - _own_share(one, report) > _MORE for one in shown)
        notes.append(
            "<b>if free</b>: % of the step gained at most if it took no time on GPU and host"
            + ("; above its own share the GPU waits for its calls." if above else ".")
        )
    if device and not (bounds and cores):
        notes.append(escape(unjudged_text(shown)))
    if notes:
        text += note(" ".join(notes), 2)
    return text


def _own_share(operator: Operator, report: Report) -> float:
    return (operator.self_device_ms or 0.0) / (report.steps.step_ms or math.inf)


def ladder(report: Report) -> str:
    """How much of the GPU is used, from the driver's number down to arithmetic; empty without a GPU."""
    steps = rungs(report)
    if not steps:
        return ""
    text = title("How much of the GPU is used")
    for rung in steps:
        name = div(escape(rung.name), "flex:0 0 92px")
        if rung.share is None:
            why = f"{NOT_MEASURED}: {rung.words}" if rung.words else NOT_MEASURED
            missing = div(escape(why), f"{SMALL};flex:1 1 60px;min-width:0;{MUTED}")
            text += div(name + missing, "display:flex;gap:10px;align-items:baseline;line-height:16px;margin-top:4px")
            continue
        fill = MEMORY if rung.name == DRIVER else KERNEL.fill
        line = name + div(f"<b>{percent_rung(rung.share)}</b>", "flex:0 0 46px;text-align:right")
        line += div(bar(rung.share, fill, track=True), "flex:1 1 60px;min-width:0")
        text += div(line, "display:flex;gap:10px;align-items:center;line-height:16px;margin-top:4px")
        text += div(escape(rung.words), f"{SMALL};line-height:15px;{MUTED}")
    driver = device_state_text(report)
    text += div(escape(driver), f"{SMALL};margin-top:5px;word-wrap:break-word") if driver else ""
    lesson = ladder_lesson(report)
    return text + (note(escape(lesson), 6) if lesson else "")


def checks_table(report: Report) -> str:
    """Every cause that was looked at, with its gain and evidence."""
    if not report.findings:
        return note("Nothing was checked.")
    titles = row(
        cell("result", header=True, style="padding-left:0"),
        cell("cause", header=True),
        cell("gain, at most", align="right", header=True),
        cell("evidence", header=True),
    )
    body = ""
    largest = max((finding.recoverable_ms or 0.0 for finding in report.findings), default=0.0)
    for one in check_rows(report):
        mark, word = STATUS.get(one.status, ("?", one.status))
        result = f"{mark} {escape(word)}"
        if one.leading:
            result = chip(f"{mark} {word}", ACCENT, ACCENT_INK)
        elif one.status == "found":
            result = f"<b>{result}</b>"
        name = cause_checked(one.causes[0]) if len(one.causes) == 1 else ", ".join(one.causes)
        name = f"<b>{escape(name)}</b>" if one.status == "found" else escape(name)
        gain = gain_text(one.gain_ms, largest)
        if len(one.causes) > 1 and one.gain_ms:
            gain = f"≤ {gain}"
        body += row(
            cell(result, style="padding-left:0;white-space:nowrap;vertical-align:top"),
            cell(name, style="vertical-align:top"),
            cell(gain, align="right", style="vertical-align:top"),
            cell(escape(one.evidence), style=_EVIDENCE),
        )
    return table(titles, body)


def explanations(report: Report) -> str:
    """Two folded texts for who sees the page for the first time."""
    texts = [("What do “at most” and “at least” mean?", _AT_MOST), ("How to read this page", _READING)]
    if report.verdict.cause in ("compute_bound", "inconclusive"):
        texts.insert(0, ("Healthy is not the same as “found nothing”", _HEALTHY))
    look = f"{SMALL};max-width:760px"
    return "".join(details(name, div(escape(text), look)) for name, text in texts)


def trust_section(report: Report, *, folded: bool) -> str:
    """The confidence and what could lower it; ``folded`` folds what is in order and leaves warnings open."""
    checks = report.trust
    good = [one for one in checks if one.status == "ok"]
    bad = [one for one in checks if one.status != "ok"]
    head = f"<b>Trust: {escape(report.verdict.confidence)}.</b>"

    def words(group: Sequence[TrustCheck]) -> str:
        return " &nbsp; ".join(f"{TRUST.get(one.status, '?')}&nbsp;{escape(one.text)}" for one in group)

    look = f"{SMALL};word-wrap:break-word"
    if not folded or not good:
        return div(" &nbsp; ".join(part for part in (head, words(bad), words(good)) if part), look)
    fold = details(f"{plural(len(good), 'check')} in order", div(words(good), look))
    return div(" &nbsp; ".join(part for part in (head, words(bad)) if part), look) + fold


def _tight(content: str, *, align: str = "left", style: str = "", span_columns: int = 1, header: bool = False) -> str:
    """A cell of a table with many columns."""
    look = f"padding:1px 6px;{style}"
    return cell(content, align=align, style=look, span_columns=span_columns, header=header)
