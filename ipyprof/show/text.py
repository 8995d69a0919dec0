"""The report as plain text, for terminals and ``text/plain``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ipyprof.analysis.results import Operator
from ipyprof.formatting import (
    GLUE,
    NOT_MEASURED,
    columns,
    count_cell,
    gain_text,
    percent_cell,
    percent_rung,
    percent_short,
    printable,
    rate_text,
    shorten,
    size_text,
    step_cell,
    time_cell,
    time_text,
    unbroken,
)
from ipyprof.ranks.report import collective_lines, kept_text, rank_table, rank_title
from ipyprof.report.repeats import repeats_text
from ipyprof.report.report import Report, plain_values
from ipyprof.show.markup import card, cell, escape, note, row, table, title
from ipyprof.show.memory import failure_lines, is_process, notes
from ipyprof.show.tables import TITLE, scope_lines
from ipyprof.show.words import (
    BOUND,
    STATUS,
    TENSOR_CORE,
    TRUST,
    Rung,
    bound_word,
    cause_checked,
    check_rows,
    check_summary,
    clock_text,
    culprit_of,
    device_state_text,
    device_text,
    facts,
    failed_request,
    has_row,
    judged_columns,
    leading_line,
    limit_words,
    no_operator_ran,
    rungs,
    step_parts,
    steps_text,
    subject,
    unjudged_text,
    unmeasured,
    views_of,
)

TOP = 10
LINES_SHOWN = 12
NARROWEST = 60


def render_text(report: Report, width: int = 80) -> str:
    """The report in lines of at most ``width`` columns (60 at least), the verdict first."""
    width = max(width, NARROWEST)
    parts = [
        _verdict(report, width),
        [line for text in failure_lines(report) for line in wrapped(text, width)],
        _ranks(report, width),
        _step(report, width),
        _operators(report, width),
        _memory(report, width),
        _lines(report, width),
        _scopes(report, width),
        _checks(report, width),
        _trust(report, width),
    ]
    text = "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)
    return printable(text) + "\n"


def _verdict(report: Report, width: int) -> list[str]:
    verdict = report.verdict
    eyebrow = [
        "".join(subject(report)),
        bound_word(report),
        f"confidence {verdict.confidence}",
        device_text(report),
        steps_text(report),
        report.source.name or "",
    ]
    lines = wrapped(" · ".join(part for part in eyebrow if part), width)
    lines += wrapped(verdict.headline, width)
    if report.source.partial:
        lines += wrapped(f"! partial: {report.source.partial}", width)
    lines += wrapped(" · ".join(f"{fact.name} {fact.value}".replace(" ", GLUE) for fact in facts(report)), width)
    lines += wrapped(repeats_text(report), width)
    lines += wrapped(verdict.advice, width)
    if verdict.change is not None:
        for sign, text in zip("-+", verdict.change, strict=True):
            lines += [f"  {sign} {shorten(line.expandtabs(4), width - 4)}" for line in text.splitlines()]
    if verdict.next_text:
        lines += wrapped(verdict.next_text[0].upper() + verdict.next_text[1:] + ".", width)
    if verdict.confidence != "high" and verdict.reasons:
        lines += wrapped(
            f"Why {verdict.confidence} confidence: {'; '.join(reason.rstrip('.') for reason in verdict.reasons)}.",
            width,
        )
    return lines


def _ranks(report: Report, width: int) -> list[str]:
    """What several ranks say together; nothing for a single process."""
    if report.ranks is None:
        return []
    ranks = plain_values(report.ranks)
    said = "" if report.verdict.cause == "straggler" else f": {ranks['sentence']}."
    lines = wrapped(f"{rank_title(ranks)}{said}", width)
    lines += rank_table(ranks, width)
    for text in (*collective_lines(ranks), kept_text(ranks)):
        lines += wrapped(text, width, indent=2) if text else []
    return lines


def _step(report: Report, width: int) -> list[str]:
    step_ms = report.steps.step_ms
    parts = step_parts(report.breakdown, culprit_of(report.verdict.cause))
    if step_ms is None or not parts:
        return [f"One step: {NOT_MEASURED}."]
    lines = [f"One step   {time_text(step_ms)}   ({clock_text(report)[5:]})"]
    room = width - 50
    for part in parts:
        if not has_row(part, culprit_of(report.verdict.cause)):
            continue
        mark = "!" if part.category is culprit_of(report.verdict.cause) else " "
        does = "works" if part.category.works else "waits"
        if all(not one.category.works for one in parts):
            does = ""
        drawn = "█" * round(part.share * room) or ("▏" if part.share > 0 else "")
        amount = f"{step_cell(part.ms, step_ms):>9} ms{percent_cell(part.share):>6} %"
        lines.append(f"{mark} {part.category.label:<18} {does:<6}{amount}  {drawn}")
    missing = unmeasured(report.breakdown)
    if missing:
        reason = " (no GPU)" if report.device is None else ""
        lines += wrapped(f"  {', '.join(category.label for category in missing)}: {NOT_MEASURED}{reason}.", width)
    without = views_of(report).get("without")
    if isinstance(without, dict) and report.verdict.predicted_step_ms is not None:
        gain = report.verdict.recoverable_ms
        lines.append(f"  recoverable: {limit_words(report)} {time_text(gain)}")
    ladder = rungs(report)
    if any(rung.share is not None for rung in ladder):
        lines += wrapped("GPU used: " + " · ".join(map(_rung, ladder)), width)
    lines += wrapped(device_state_text(report), width)
    return lines


def _rung(rung: Rung) -> str:
    why = f" ({rung.words})" if rung.share is None and rung.words else ""
    return f"{rung.name} {percent_rung(rung.share)}{why}"


def _operators(report: Report, width: int) -> list[str]:
    device = any(operator.self_device_ms is not None for operator in report.operators)

    def own(operator: Operator) -> float:
        return (operator.self_device_ms or 0.0) if device else operator.self_host_ms

    ranked = sorted((one for one in report.operators if own(one) > 0), key=own, reverse=True)
    if not ranked:
        return [f"Top operators: {'no operator ran' if no_operator_ran(report) else NOT_MEASURED}."]
    total = sum(own(operator) for operator in ranked)
    bounds, cores = judged_columns(ranked[:TOP]) if device else (False, False)
    judged = (bounds or cores) and width >= 76  # bound and Tensor Cores need 25 columns
    room = min(width - 51, 48) if judged else min(width - 27, 60)
    title = "Top operators, device self time" if device else "Top operators, recorded host time"
    head = f"{padded(title, room + 3)}{'ms':>8}{'%':>7}{'calls':>8}"
    lines = [head + ("  bound by   Tensor Cores" if judged else "")]
    for number, one in enumerate(ranked[:TOP], start=1):
        name = padded(" ".join(printable(one.name).split()), room)
        line = f"{number:>2} {name}{time_cell(own(one), total):>8}{percent_cell(own(one) / total):>7}"
        line += f"{count_cell(one.calls):>8}"
        if judged:
            bound = f"{BOUND.get(one.bound, '?')} {one.bound}"
            core = f"{TENSOR_CORE[one.tensor_core]} {one.tensor_core}" if one.tensor_core in TENSOR_CORE else "n/a"
            line += f"  {bound:<9}  {core}"
        lines.append(line)
    left = ranked[TOP:]
    if left:
        rest = sum(own(operator) for operator in left)
        lines.append(
            f"   {padded(f'{len(left)} more', room)}{time_cell(rest, total):>8}{percent_cell(rest / total):>7}"
        )
    every = "all device time" if device else "all recorded host time"
    lines.append(f"   {padded(every, room)}{time_cell(total, total):>8}{'100.0':>7}")
    if device and not judged and not (bounds and cores):
        lines += [text] if (text := unjudged_text(ranked[:TOP])) else []
    return lines


def _memory(report: Report, width: int) -> list[str]:
    memory = report.memory
    if memory is None:
        return [f"Memory: {NOT_MEASURED}."]
    text = f"Memory peak {size_text(memory.peak_bytes)}"
    if is_process(report):
        text += " of the process"
    if memory.peak_line is not None:
        text += f" at line {memory.peak_line}"
    if memory.peak_operator:
        text += f" in {shorten(' '.join(memory.peak_operator.split()), 60)}"
    if memory.reserved_peak_bytes is not None:
        text += f"; reserved {size_text(memory.reserved_peak_bytes)}"
    growth = memory.growth_bytes_per_step
    if growth is not None:
        text += f"; {size_text(growth)} more after each step" if growth > 0 else "; no growth per step"
    lines = wrapped(f"{text}.", width)
    if memory.holders and failed_request(report) is None:
        held = " · ".join(f"{shorten(holder.name, 40)} {size_text(holder.bytes)}" for holder in memory.holders[:6])
        lines += wrapped(f"At the peak: {held}", width)
    for said in notes(report):
        lines += wrapped(said, width)
    return lines


def _lines(report: Report, width: int) -> list[str]:
    """The lines that cost anything, in the cell's order: the costliest twelve of a long cell."""
    if not report.lines:
        return [] if report.source.kind == "file" else [f"Your lines: {NOT_MEASURED}."]
    lead = leading_line(report)
    device = any(line.device_ms is not None for line in report.lines)
    costly = sorted(
        (line for line in report.lines if line.device_ms or line.host_ms or line.sync_count or line.line == lead),
        key=lambda line: (line.line != lead, -(line.device_ms or 0.0) - (line.host_ms or 0.0)),
    )
    kept = sorted(costly[:LINES_SHOWN], key=lambda line: line.line)
    room = width - 36
    device_total = sum(line.device_ms or 0.0 for line in report.lines)
    host_total = sum(line.host_ms or 0.0 for line in report.lines)
    titles = f"{'GPU ms':>10}{'host ms':>10}{'syncs':>8}" if device else f"{'':>10}{'host ms':>10}"
    lines = [f"{'Your lines with a cost, per step':<{room + 7}}{titles}"]
    for line in kept:
        mark = "!" if line.line == lead else " "
        source = padded(printable(line.source.expandtabs(4).strip("\n")), room)
        gpu = step_cell(line.device_ms, device_total) if device else ""
        syncs = count_cell(line.sync_count) if device and line.sync_count is not None else ""
        lines.append(f"{mark}{line.line:>4}  {source}{gpu:>10}{step_cell(line.host_ms, host_total):>10}{syncs:>8}")
    return lines


def _scopes(report: Report, width: int) -> list[str]:
    """Phases, and the largest modules and ranges with what runs inside them; nothing where none was recorded."""
    rows = scope_lines(report)
    if not rows:
        return []
    room = min(width - 20, 60)
    side = "GPU" if report.device is not None else "host"
    lines = [f"{padded(f'{TITLE}, {side} time', room)}{'ms':>10}{'%':>8}"]
    before = "phase"
    for name, ms, percent, kind in rows:
        lines += [f"  by {kind}"] if kind != before else []
        before = kind
        lines.append(f"  {padded(printable(name), room - 2)}{ms:>10}{percent:>8}")
    return lines


def _checks(report: Report, width: int) -> list[str]:
    lines = [f"What was checked: {check_summary(report)}"]
    largest = max((finding.recoverable_ms or 0.0 for finding in report.findings), default=0.0)
    for one in check_rows(report):
        mark, word = STATUS.get(one.status, ("?", one.status))
        names = cause_checked(one.causes[0]) if len(one.causes) == 1 else ", ".join(one.causes)
        gain = "" if not one.gain_ms else f", at most {gain_text(one.gain_ms, largest)}"
        text = f"{mark} {word:<8} {names}{gain}" + (f": {one.evidence}" if one.evidence else "")
        lines += wrapped(text, width, indent=11)
    return lines


def _trust(report: Report, width: int) -> list[str]:
    checks = sorted(report.trust, key=lambda one: one.status == "ok")
    text = f"Trust: {report.verdict.confidence}. " + "  ".join(
        f"{TRUST.get(one.status, '?')} {one.text}" for one in checks
    )
    return wrapped(text, width)


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most ``width`` columns; wide characters count two."""
    lines: list[str] = []
    whole = unbroken(printable(text))
    for line in textwrap.wrap(whole, width, subsequent_indent=" " * indent, break_on_hyphens=False):
        lines += _split(line.replace(GLUE, " "), width)
    return lines


def _split(line: str, width: int) -> Iterable[str]:
    while columns(line) > width:
        kept = shorten(line, width + 1)[:-1]
        yield kept
        line = line[len(kept) :]
    yield line


def padded(text: str, width: int) -> str:
    """``text`` shortened or filled to ``width`` columns."""
    short = shorten(text, width)
    return short + " " * (width - columns(short))


_TITLES = ("number", "name", "step", "throughput", "GPU computes", "holds it back", "steps")
EMPTY = "No run of this session is kept yet."
_HINT = "Compare two of them by name or number, such as %gpuprofile --compare {} {}."


def runs_bundle(runs: Sequence[tuple[int, Report]]) -> dict[str, str]:
    """``text/plain`` and ``text/html`` of the runs with their numbers, in the given order."""
    return {"text/plain": runs_text(runs), "text/html": _runs_html(runs)}


def runs_text(runs: Sequence[tuple[int, Report]]) -> str:
    """One line per run, with a head; a sentence where there is none."""
    if not runs:
        return EMPTY + "\n"
    rows = [_TITLES, *(_cells(number, report) for number, report in runs)]
    widths = [min(max(len(one[at]) for one in rows), 24) for at in range(len(_TITLES))]
    lines = ["  ".join(padded(text, width) for text, width in zip(one, widths, strict=True)).rstrip() for one in rows]
    return "\n".join([*lines, *([_hint(runs)] if len(runs) > 1 else [])]) + "\n"


def _runs_html(runs: Sequence[tuple[int, Report]]) -> str:
    head = title("Runs of this session", "the last ten" if len(runs) == 10 else "")
    if not runs:
        return card(head + note(escape(EMPTY), 0))
    titles = row(*(cell(name, header=True) for name in _TITLES))
    body = ""
    for number, report in runs:
        *short, steps = _cells(number, report)
        body += row(*(cell(escape(text), style="white-space:nowrap") for text in short), cell(escape(steps)))
    return card(head + table(titles, body) + (note(escape(_hint(runs))) if len(runs) > 1 else ""))


def _cells(number: int, report: Report) -> tuple[str, ...]:
    rate = report.steps.throughput
    return (
        str(number),
        shorten(report.source.name or "·", 24),
        time_text(report.steps.step_ms),
        "·" if rate is None else rate_text(rate.value, rate.unit),
        percent_short(report.utilization.kernel_busy),
        "out of memory" if failed_request(report) is not None else report.verdict.cause,
        steps_text(report),
    )


def _hint(runs: Sequence[tuple[int, Report]]) -> str:
    return _HINT.format(*(str(number) for number, _ in runs[-2:]))
