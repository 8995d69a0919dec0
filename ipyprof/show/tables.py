"""The dashboard's tables: operators, ladder, what was checked, explanations, trust. Each function returns HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ipyprof.analysis.results import Line, Operator
from ipyprof.analysis.scopes import MODULE_CLASS, PHASE, RANGE
from ipyprof.formatting import (
    NOT_MEASURED,
    columns,
    count_cell,
    gain_text,
    percent_cell,
    percent_rung,
    percent_whole,
    plural,
    shorten,
    size_text,
    step_cell,
    time_cell,
)
from ipyprof.report.report import Report, TrustCheck
from ipyprof.show.markup import (
    CARD,
    ELLIPSIS,
    MAIN,
    MUTED,
    SMALL,
    bar,
    cell,
    chip,
    code_name,
    columns_row,
    details,
    div,
    escape,
    mono,
    muted,
    note,
    row,
    span,
    table,
    title,
)
from ipyprof.show.words import (
    ACCENT,
    ACCENT_INK,
    BOUND,
    COPIES,
    DRIVER,
    KERNEL,
    LOADER,
    MEMORY,
    PYTHON,
    RULE,
    STATUS,
    TENSOR_CORE,
    TRUST,
    cause_checked,
    check_rows,
    device_state_text,
    judged_columns,
    ladder_lesson,
    leading_line,
    no_operator_ran,
    rungs,
    unjudged_text,
    views_of,
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


LINES_SHOWN = 24
SOURCE_COLUMNS = 92
_NARROW_COLUMNS = 30  # what a browser 800 wide has room for
_COLUMN = 7.25  # pixels of a character of code
_COLUMNS = {"device_ms": 115, "host_ms": 115, "sync_count": 65, "peak_bytes": 85}  # pixels of what stands beside it
_GPU_CAUSES = frozenset(("transfer", "communication", "tensor_cores", "misaligned_shapes", "memory_bound"))
_NO_PEAK = "–"
_COST = "padding-left:4px;padding-right:6px"
_FILLING = f"width:100%;{ELLIPSIS};padding-left:0"


def lines_section(report: Report) -> str:
    """The cell's own lines with device time, host time and syncs; empty where no line was measured."""
    lines = report.lines
    if not lines:
        if report.source.kind == "file":
            return ""
        return title("Your lines") + note(f"Time per line was {NOT_MEASURED}.", 0)
    lead = leading_line(report)
    device, peaks = _measured(lines, "device_ms"), _measured(lines, "peak_bytes")
    syncs = _measured(lines, "sync_count")
    device_total = sum(line.device_ms or 0.0 for line in lines)
    host_total = sum(line.host_ms or 0.0 for line in lines)
    most = max([*(line.device_ms or 0.0 for line in lines), *(line.host_ms or 0.0 for line in lines), 1e-12])
    guilty = _guilty(report.verdict.cause, device=device)
    titles = [cell("", header=True), cell("your cell", header=True, style="padding-left:0")]
    titles += [cell("GPU ms", align="right", header=True, style=_COST), cell("", header=True)] if device else []
    titles += [cell("host ms", align="right", header=True, style=_COST), cell("", header=True)]
    titles += [cell("syncs", align="right", header=True, style=_COST)] if syncs else []
    titles += [cell("peak", align="right", header=True, style=_COST)] if peaks else []
    body = ""
    for kept in _kept_lines(lines, lead):
        if isinstance(kept, int):
            body += row(cell(""), cell(muted(f"⋯ {plural(kept, 'line')} that cost less"), span_columns=len(titles) - 1))
            continue
        leads = kept.line == lead
        edge = f"border-left:3px solid {ACCENT}" if leads else "border-left:3px solid rgba(0,0,0,0)"
        cells = [
            cell(
                span(mono(str(kept.line)), "font-weight:bold" if leads else MUTED),
                align="right",
                style=f"{edge};width:22px;padding:1px 8px 1px 4px",
            ),
            cell(_source(kept.source), style=_FILLING),
        ]
        if device:
            cells += _cost(kept.device_ms, device_total, most, KERNEL.fill, bold=leads and guilty == "device_ms")
        fill = LOADER.fill if leads and report.verdict.cause == "data_loading" else PYTHON.fill
        cells += _cost(kept.host_ms, host_total, most, fill, bold=leads and guilty == "host_ms")
        if syncs:
            number = count_cell(kept.sync_count)
            shown = f"<b>{number}</b>" if leads and guilty == "sync_count" else number
            cells.append(cell(shown, align="right", style=_COST))
        if peaks:
            peak = size_text(kept.peak_bytes) if kept.peak_bytes is not None else muted(_NO_PEAK)
            cells.append(cell(peak, align="right", style=_COST))
        body += row(*cells)
    rule = f"border-top:1px solid {RULE}"
    last = [cell("", style=rule), cell("<b>all lines</b>", style=f"padding-left:0;{rule}")]
    if device:
        last += [
            cell(f"<b>{step_cell(device_total, device_total)}</b>", align="right", style=f"{_COST};{rule}"),
            cell("", style=rule),
        ]
    last += [
        cell(f"<b>{step_cell(host_total, host_total)}</b>", align="right", style=f"{_COST};{rule}"),
        cell("", style=rule),
    ]
    if syncs:
        count = sum(line.sync_count or 0.0 for line in lines)
        last.append(cell(f"<b>{count_cell(count)}</b>", align="right", style=f"{_COST};{rule}"))
    if peaks:
        last.append(cell("", style=rule))
    body += row(*last)
    words = [
        "host ms: the line's own time."
        if not device
        else "GPU ms: the line's work on the GPU as recorded, with the backward pass of what it computed. host ms: the "
        "line's own time, waiting included, also while the GPU works: so it may be more than what can be recovered."
    ]
    if syncs:
        words.append("A sync is a place where Python waits for the GPU.")
    if peaks and any(line.peak_bytes is None for line in lines):
        words.append(f"peak {_NO_PEAK}: nothing was allocated or freed there.")
    head, shown = title("Your lines", "per step"), table(row(*titles), body)
    width = _table_width(lines)
    if width <= MAIN:
        return head + columns_row(shown, div("<br>".join(words), SMALL))
    return head + div(shown + note(" ".join(words)), f"max-width:{width}px")


def _table_width(lines: Sequence[Line]) -> int:
    """How wide the table is, in pixels, to show the longest line of code: from ``MAIN`` to the whole card."""
    code = [line.source.expandtabs(4).rstrip() for line in lines if not line.source.startswith("%")]
    longest = max((columns(text) for text in code), default=0)
    numbers = sum(width for name, width in _COLUMNS.items() if _measured(lines, name))
    return min(max(round(min(longest, SOURCE_COLUMNS) * _COLUMN) + 50 + numbers, MAIN), CARD)


def lines_height(report: Report) -> int:
    """About how many pixels ``lines_section`` takes."""
    if not report.lines:
        return 40
    height = 62 + 18 * len(_kept_lines(report.lines, leading_line(report)))
    return height + (40 if _table_width(report.lines) > MAIN else 0)


def _guilty(cause: str, *, device: bool) -> str:
    """The column whose number the verdict speaks of: bold on its line."""
    if not device:
        return "host_ms"
    return "device_ms" if cause in _GPU_CAUSES else "sync_count" if cause == "host_sync" else "host_ms"


def _measured(lines: Sequence[Line], name: str) -> bool:
    return any(getattr(line, name) is not None for line in lines)


def _source(source: str) -> str:
    """One line of code with its indentation, the full line on hover where a narrow page may shorten it."""
    line = source.expandtabs(4).rstrip("\n")
    short = shorten(line, SOURCE_COLUMNS)
    whole = line.strip()[:1000] if columns(line) > _NARROW_COLUMNS else ""
    return span(mono(short, indent=True), "white-space:nowrap", title=whole)


def _cost(ms: float | None, total: float, most: float, fill: str, *, bold: bool) -> list[str]:
    number = step_cell(ms, total)
    drawn = bar(ms / most, fill, width="38px") if ms else ""
    return [
        cell(f"<b>{number}</b>" if bold else number, align="right", style=_COST),
        cell(drawn, style="padding:1px 4px 1px 0;width:38px"),
    ]


def _kept_lines(lines: Sequence[Line], lead: int | None) -> list[Line | int]:
    """All lines of a short cell; of a long one the costliest, with the number of lines left out between them."""
    if len(lines) <= LINES_SHOWN:
        return list(lines)
    ranked = sorted(
        lines,
        key=lambda line: (
            line.line != lead,
            -((line.device_ms or 0.0) + (line.host_ms or 0.0) + (line.sync_count or 0.0) * 1e-6),
        ),
    )
    chosen = {line.line for line in ranked[: LINES_SHOWN - 6]}
    kept: list[Line | int] = []
    left_out = 0
    for line in lines:
        if line.line in chosen:
            if left_out:
                kept.append(left_out)
            left_out = 0
            kept.append(line)
        else:
            left_out += 1
    return [*kept, left_out] if left_out else kept


TITLE = "Where in the model"
ROWS_SHOWN = 12
LINES_SHOWN_SCOPE_SECTION = 6
SMALLEST = 0.01  # of the time; smaller rows are counted only
_NAME_SCOPE_SECTION = f"width:44%;{ELLIPSIS};padding-left:0"
_RANGE_CALL = 'torch.profiler.record_function("name")'
_TREES = ((MODULE_CLASS, "Modules", "module"), (RANGE, "Ranges", "range"))
Row = Mapping[str, Any]


def scopes_section(report: Report) -> str:
    """A folded part with a table of phases and the largest modules and ranges; empty where none was recorded."""
    groups = _groups(report)
    if not any(groups.get(name) for name in (PHASE, MODULE_CLASS, RANGE)):
        return ""
    main = _phase_table(groups[PHASE]) if groups.get(PHASE) else ""
    for name, heading, word in _TREES:
        if groups.get(name):
            main += div(_tree_table(groups[name], heading, word), "margin-top:8px" if main else "")
    words = []
    if groups.get(PHASE):
        words.append(
            "forward: everything up to the backward pass, copies of the batch included. optimizer: its step and "
            "zero_grad. the rest: such as clipping, logging."
        )
    if groups.get(MODULE_CLASS) or groups.get(RANGE):
        words.append(
            "GPU ms: with all that runs inside, and with the backward pass of what it computed, unless that runs in a "
            "range of its own. own: without what is inside. host ms: of the host while it is in there."
        )
    words.append(hint(report))
    beside = "".join(note(text, 21 if at == 0 else 4) for at, text in enumerate(words) if text)
    return details(TITLE, columns_row(main, beside), more=summary(report))


def summary(report: Report) -> str:
    """Such as ``GPU time: forward 32 %, backward 66 %, optimizer 2 %``; plain text."""
    groups = _groups(report)
    rows = groups.get(PHASE) or [one for one in groups.get(MODULE_CLASS) or groups.get(RANGE) or () if _depth(one) == 0]
    device = _on_device(rows)
    total = sum(_own(one, device) for one in rows) if groups.get(PHASE) else _total(groups, device)
    shares = [(one["name"], _inner(one, device) / total) for one in rows if total > 0]
    shares = [(name, share) for name, share in shares if share >= SMALLEST]
    if not groups.get(PHASE):
        shares = shares[:3]
    said = ", ".join(f"{shorten(' '.join(name.split()), 40)} {percent_whole(share)}" for name, share in shares)
    return f"{'GPU' if device else 'host'} time: {said}" if said else ""


def hint(report: Report) -> str:
    """How to have what this recording does not name; HTML."""
    groups = _groups(report)
    missing = []
    if not groups.get(MODULE_CLASS):
        missing.append(f"modules by name: record with {mono('--stack')}")
    if not groups.get(RANGE):
        missing.append(f"parts of your own: {mono(_RANGE_CALL)} around them")
    return f"Not recorded: {'; '.join(missing)}." if missing else ""


def scope_lines(report: Report) -> list[tuple[str, str, str, str]]:
    """(name, ms, percent, kind) of the phases and the largest modules and ranges, for the text; names are indented."""
    groups = _groups(report)
    lines = []
    for name in (PHASE, MODULE_CLASS, RANGE):
        rows = groups.get(name) or ()
        device = _on_device(rows)
        total = sum(_own(one, device) for one in rows)
        if total <= 0:
            continue
        kept = (
            [one for one in rows if _inner(one, device) > 0]
            if name == PHASE
            else _kept(rows, device, LINES_SHOWN_SCOPE_SECTION)
        )
        for one in kept:
            ms = _inner(one, device)
            label = "  " * _depth(one) + " ".join(str(one["name"]).split())
            lines.append((label, time_cell(ms, total), percent_cell(ms / total), name))
    return lines


def _phase_table(rows: Sequence[Row]) -> str:
    device = _on_device(rows)
    total, host_total = sum(_own(one, device) for one in rows), sum(one["host_ms"] or 0.0 for one in rows)
    longest = max((_own(one, device) for one in rows), default=0.0) or 1.0
    titles = [_cell("", header=True, style=_NAME_SCOPE_SECTION), _cell("", header=True)]
    titles += [_number("GPU ms", header=True), _number("%", header=True)] if device else []
    titles += [_number("host ms", header=True)] + ([] if device else [_number("%", header=True)])
    body = ""
    for one in rows:
        share = percent_cell(_own(one, device) / total if total else None)
        cells = [
            _cell(code_name(str(one["name"]), 48), style=_NAME_SCOPE_SECTION),
            _cell(bar(_own(one, device) / longest, (KERNEL if device else PYTHON).fill), style="min-width:60px"),
        ]
        cells += [_number(time_cell(one["device_ms"], total)), _number(share)] if device else []
        cells += [_number(time_cell(one["host_ms"], host_total))] + ([] if device else [_number(share)])
        body += row(*cells)
    return title("Phases", "one step") + table(row(*titles), body)


def _tree_table(rows: Sequence[Row], heading: str, word: str) -> str:
    device = _on_device(rows)
    total, host_total = sum(_own(one, device) for one in rows), sum(one["host_ms"] or 0.0 for one in rows)
    kept = _kept(rows, device, ROWS_SHOWN)
    names = ("GPU ms", "%", "own", "host ms", "calls") if device else ("host ms", "%", "own", "calls")
    titles = [_cell(word, header=True, style=_NAME_SCOPE_SECTION), _cell("", header=True)]
    titles += [_number(name, header=True) for name in names]
    body = ""
    for one in kept:
        ms = _inner(one, device)
        cells = [
            _cell("&nbsp;" * (5 * min(_depth(one), 8)) + code_name(str(one["name"]), 48), style=_NAME_SCOPE_SECTION),
            _cell(bar(ms / total if total else 0.0, (KERNEL if device else PYTHON).fill), style="min-width:60px"),
            _number(time_cell(ms, total)),
            _number(percent_cell(ms / total if total else None)),
            _number(time_cell(_own(one, device), total)),
        ]
        cells += [_number(_host(one, host_total))] if device else []
        cells.append(_number(count_cell(one["calls"]) if one["calls"] is not None else ""))
        body += row(*cells)
    left = len(rows) - len(kept)
    if left:
        rule = f"border-top:1px solid {RULE}"
        body += row(_cell(muted(f"{left:,} smaller ones"), style=rule, span_columns=len(titles)))
    more = "one step; instances of a class together" if word == "module" else "one step"
    return title(heading, more) + table(row(*titles), body)


def _kept(rows: Sequence[Row], device: bool, limit: int) -> list[Row]:
    """The rows with the most time inside, in the order of the tree; a kept one is never without those around it."""
    total = sum(_own(one, device) for one in rows)
    ranked = sorted(range(len(rows)), key=lambda at: (-_inner(rows[at], device), at))
    large = [at for at in ranked if total > 0 and _inner(rows[at], device) >= SMALLEST * total]
    return [rows[at] for at in sorted(large[:limit])]


def _groups(report: Report) -> Mapping[str, Sequence[Row]]:
    groups = views_of(report).get("groups")
    return groups if isinstance(groups, Mapping) else {}


def _total(groups: Mapping[str, Sequence[Row]], device: bool) -> float:
    rows = groups.get(MODULE_CLASS) or groups.get(RANGE) or ()
    return sum(_own(one, device) for one in rows)


def _on_device(rows: Sequence[Row]) -> bool:
    return any(one["device_ms"] is not None for one in rows)


def _own(one: Row, device: bool) -> float:
    return float((one["device_ms"] if device else one["host_ms"]) or 0.0)


def _inner(one: Row, device: bool) -> float:
    return float((one["total_device_ms"] if device else one["total_host_ms"]) or 0.0)


def _host(one: Row, total: float) -> str:
    return "" if one["total_host_ms"] is None else time_cell(one["total_host_ms"], total)


def _depth(one: Row) -> int:
    return len(one["within"])


def _cell(content: str, *, style: str = "", span_columns: int = 1, header: bool = False) -> str:
    return cell(content, style=f"padding:1px 6px;{style}", span_columns=span_columns, header=header)


def _number(content: str, *, header: bool = False) -> str:
    return cell(content, align="right", style="padding:1px 6px", header=header)
