"""Each table of the dashboard as data: a function of the report. Page, terminal and panel show the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipyprof.analysis.results import Holder, Kernel, Line, Operator, ScopeRow
from ipyprof.analysis.scopes import MODULE_CLASS, PHASE, RANGE
from ipyprof.formatting import (
    GLUE,
    NOT_MEASURED,
    columns,
    count_cell,
    gain_text,
    percent_cell,
    percent_short,
    percent_whole,
    plural,
    rate_text,
    shorten,
    size_text,
    step_cell,
    time_cell,
    time_text,
    unbroken,
)
from ipyprof.report.report import Report
from ipyprof.show.table import Cell, Column, Row, Table, name_cell
from ipyprof.show.words import (
    BOUND,
    COPIES,
    KERNEL,
    LOADER,
    MEMORY,
    PYTHON,
    STATUS,
    TENSOR_CORE,
    Category,
    Part,
    cause_checked,
    check_rows,
    check_summary,
    has_row,
    leading_line,
    no_operator_ran,
    steps_text,
)

TOP = 10
_MORE = 0.01  # of the step: "if free" beyond an operator's own share is explained from here on
_WRAPS = "white-space:normal"
_BETWEEN = " › "
_PATH_COLUMNS = 44  # the end of a path is what counts: it fits into a browser 800 wide


def _cells(*cells: Cell | str | None) -> tuple[Cell, ...]:
    """Cells; ``None`` is left out."""
    return tuple(Cell(one) if isinstance(one, str) else one for one in cells if one is not None)


def _sum(*cells: Cell | str | None) -> Row:
    return Row(_cells(*cells), rule=True)


# The step


def step_tables(report: Report, parts: Sequence[Part], culprit: Category | None) -> list[Table]:
    """The parts in bar order: what the GPU does, what it waits for, what unlike steps add."""
    step_ms = report.steps.step_ms
    groups = (
        ("GPU works", [part for part in parts if part.category.works]),
        ("GPU waits while the host does", [part for part in parts if part.category.waits]),
        ("Beyond the typical step", [part for part in parts if not part.category.works and not part.category.waits]),
    )
    titles = (
        Column(kind="name", look="width:60%;min-width:0;max-width:none;white-space:normal"),
        Column(title="ms", width=9),
        Column(title="% of step", width=11),
        Column(kind="bar", width=24),
    )
    tables = []
    for name, group in groups:
        if not group:
            continue
        if not any(part.category.works for part in parts):
            name = "The host does"
        rows = [
            Row(
                _cells(
                    Cell(name, bold=True),
                    Cell(step_cell(sum(part.ms for part in group), step_ms), bold=True),
                    Cell(percent_cell(sum(part.share for part in group)), bold=True),
                )
            )
        ]
        for part in group:
            if has_row(part, culprit):
                is_culprit = part.category is culprit
                label = Cell(part.category.label, fill=part.category.fill, chip="bottleneck" if is_culprit else "")
                cells = _cells(label, step_cell(part.ms, step_ms), percent_cell(part.share), Cell(bar=part.share))
                rows.append(Row(cells, lead=is_culprit))
        tables.append(Table(columns=titles, rows=tuple(rows), most=33))
    return tables


# Operators, kernels, lines and groups by their own time


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A row of work per step; ``None`` = not measured. ``bound`` and ``tensor_core`` are empty where they do not apply.

    ``total_ms`` is with what is inside, on the device where it was measured; ``path`` are the names of what is around
    it and its own, empty where nothing is around it.
    """

    name: str
    calls: float | None = None
    device_ms: float | None = None
    host_ms: float | None = None
    bound: str = ""
    tensor_core: str = ""
    total_ms: float | None = None
    amdahl_share: float | None = None
    path: tuple[str, ...] = ()


def work_of(row: Operator | Kernel | Line | ScopeRow, *, shapes: bool = False) -> Work:
    """``row`` as work; with ``shapes`` an operator's name goes on with them."""
    if isinstance(row, Operator):
        return Work(
            name=f"{row.name}  {row.shapes}" if shapes and row.shapes else row.name,
            calls=row.calls,
            device_ms=row.self_device_ms,
            host_ms=row.self_host_ms,
            bound=row.bound,
            tensor_core=row.tensor_core,
            amdahl_share=row.amdahl_share,
        )
    if isinstance(row, Kernel):
        return Work(
            name=row.name, calls=row.calls, device_ms=row.device_ms, bound=row.bound, tensor_core=row.tensor_core
        )
    if isinstance(row, Line):
        return Work(name=f"{row.line:>3}  {row.source}", device_ms=row.device_ms, host_ms=row.host_ms)
    path = (*row.within, row.name)
    return Work(
        name=_BETWEEN.join(path),
        calls=row.calls,
        device_ms=row.device_ms,
        host_ms=row.host_ms,
        total_ms=row.total_host_ms if row.device_ms is None else row.total_device_ms,
        path=path if len(path) > 1 else (),
    )


def operators_table(report: Report) -> Table:
    """The ten operators with the most self time; device time where there is any, else host time.

    Both are as recorded, and the title and the sum say so: recording makes host time longer, and leaves kernels.
    """
    rows = [work_of(one) for one in report.operators]
    device = any(one.device_ms is not None for one in rows)
    ranked = sorted((one for one in rows if _own(one, device) > 0), key=lambda one: -_own(one, device))
    if not ranked:
        missing = "No operator ran." if no_operator_ran(report) else f"Operators were {NOT_MEASURED}."
        return Table(
            title=f"Top operators on the {'GPU' if device else 'host'}", heading="Top operators", empty=missing
        )
    shown, notes = ranked[:TOP], []
    if any(one.amdahl_share is not None for one in shown):
        step_ms = report.steps.step_ms or math.inf
        above = any((one.amdahl_share or 0.0) - (one.device_ms or 0.0) / step_ms > _MORE for one in shown)
        notes.append(
            "“If free”: % of the step gained at most if it took no time on GPU and host"
            + ("; above its own share the GPU waits for its calls." if above else ".")
        )
    if device:
        notes.append(_unjudged_text(shown))
    return work_table(
        ranked,
        ranked,
        title="Top operators on the GPU" if device else "Top operators on the host",
        more="device self time in one recorded step, % of all GPU time"
        if device
        else "host self time in one recorded step: no GPU time",
        heading="Top operators, device self time" if device else "Top operators, recorded host time",
        total=f"all {'device' if device else 'recorded host'} time",
        notes=tuple(filter(None, notes)),
    )


def work_table(
    rows: Sequence[Work],
    every: Sequence[Work],
    *,
    title: str,
    more: str,
    heading: str = "",
    total: str = "",
    limit: int = TOP,
    host: bool = False,
    notes: tuple[str, ...] = (),
) -> Table:
    """The first ``limit`` of ``rows``; percent are of all rows, ``every``.

    Args:
        total: name of the last row; else it counts the rows.
        host: with columns of host time and of what is inside; else with what would be gained.
    """
    device = any(one.device_ms is not None for one in every)
    if not rows:
        return Table(title=title, more=more, empty="Nothing has such a name." if every else f"This was {NOT_MEASURED}.")
    whole, whole_host = sum(_own(one, device) for one in every), sum(one.host_ms or 0.0 for one in every)
    shown = rows[:limit]
    longest = max(_own(one, device) for one in rows) or 1.0
    bounds, cores = _judged_columns(shown) if device else (False, False)
    free = device and not host and any(one.amdahl_share is not None for one in shown)
    inner = host and any(one.path and one.total_ms is not None for one in every)
    titles = [
        Column(width=3, look="width:18px"),
        Column(title="operator" if not host else "", kind="name", width=1),
        Column(kind="bar", width=0, title="" if host else "self time"),
        Column(title="GPU ms" if host and device else "host ms" if host else "ms"),
        Column(title="%", width=7),
        *([Column(title="host ms")] if host and device else []),
        Column(title="calls"),
        *([Column(title="with inner", look=_WRAPS)] if inner else []),
        *([Column(title="bound by", kind="text", width=11, least=76)] if bounds else []),
        *([Column(title="Tensor Cores", kind="text", width=14, least=76, look=_WRAPS)] if cores else []),
        *([Column(title="if free", width=0)] if free else []),
    ]
    body = []
    for number, one in enumerate(shown, start=1):
        fill = PYTHON if not device else COPIES if one.bound == "copy" else KERNEL
        gain = percent_cell(one.amdahl_share)
        cells = _cells(
            Cell(str(number), faint=True),
            _path_cell(one.path) if one.path else name_cell(one.name, 60 if host else 48),
            Cell(bar=_own(one, device) / longest, fill=fill.fill),
            time_cell(_own(one, device), whole),
            percent_cell(_own(one, device) / whole if whole else None),
            ("" if one.host_ms is None else time_cell(one.host_ms, whole_host)) if host and device else None,
            "" if one.calls is None else count_cell(one.calls),
            time_cell(one.total_ms, whole) if inner else None,
            _mark(BOUND, one.bound) if bounds else None,
            _mark(TENSOR_CORE, one.tensor_core) if cores else None,
            (f"≤ {gain}" if gain[0].isdigit() else gain) if free else None,
        )
        body.append(Row(cells))
    left, last = rows[limit:], len(titles) - 5
    if left and total:
        ms = sum(_own(one, device) for one in left)
        rest = (Cell(f"{len(left):,} more", faint=True, span=2), time_cell(ms, whole), percent_cell(ms / whole))
        body.append(Row(_cells("", *rest, Cell(span=last))))
    ms = sum(_own(one, device) for one in rows)
    more_rows = f"{len(left):,} more; " if left else ""
    name = total or f"{more_rows}{plural(len(rows), 'row')} of {len(every):,}"
    share = percent_cell(ms / whole if whole else None)
    body.append(_sum("", Cell(name, span=2), time_cell(ms, whole), share, Cell(span=last)))
    return Table(title=title, more=more, heading=heading, columns=tuple(titles), rows=tuple(body), notes=notes, most=48)


def _judged_columns(operators: Sequence[Work]) -> tuple[bool, bool]:
    """Whether anything is known of what bounds ``operators``, and of their use of Tensor Cores.

    A column without a single judgement is left out, and a sentence says so. That a copy is a copy is no judgement.
    """
    return (
        any(operator.bound in ("compute", "memory", "launch") for operator in operators),
        any(operator.tensor_core in ("yes", "no") for operator in operators),
    )


def _unjudged_text(operators: Sequence[Work]) -> str:
    """Such as ``Bound by, Tensor Cores: not measured.``; empty where both columns are shown or do not apply."""
    bounds, cores = _judged_columns(operators)
    cores = cores or all(operator.tensor_core == "n/a" for operator in operators)
    missing = [name for name, known in (("bound by", bounds), ("Tensor Cores", cores)) if not known]
    text = ", ".join(missing)
    return f"{text[0].upper()}{text[1:]}: {NOT_MEASURED}." if missing else ""


def _own(one: Work, device: bool) -> float:
    return (one.device_ms if device else one.host_ms) or 0.0


def _mark(marks: dict[str, str], word: str) -> Cell:
    return Cell(f"{marks[word]}{GLUE}{word}") if word in marks else Cell("n/a" if word == "n/a" else "?", faint=True)


def _path_cell(path: tuple[str, ...]) -> Cell:
    """A path as code; of a long one the end, with the whole of it on hover."""
    whole = _BETWEEN.join(path)
    if columns(whole) <= _PATH_COLUMNS:
        return name_cell(whole, _PATH_COLUMNS)
    kept = path[-1:]
    while columns(_BETWEEN.join(("…", *path[-len(kept) - 1 :]))) <= _PATH_COLUMNS:
        kept = path[-len(kept) - 1 :]
    return name_cell(_BETWEEN.join(("…", *kept)), _PATH_COLUMNS, whole=whole)


# Lines of the cell

LINES_SHOWN = 24
SOURCE_COLUMNS = 92
_NARROW_COLUMNS = 30  # what a browser 800 wide has room for
_GPU_CAUSES = frozenset(("transfer", "communication", "tensor_cores", "misaligned_shapes", "memory_bound"))
_NO_PEAK = "–"


def lines_table(report: Report) -> Table:
    """The cell's own lines with device time, host time, syncs and the peak of memory; of a file without rows."""
    lines = report.lines
    if not lines:
        return Table(title="Your lines", empty="" if report.source.kind == "file" else f"Time was {NOT_MEASURED}.")
    lead = leading_line(report)
    device, syncs, peaks = (
        any(getattr(line, name) is not None for line in lines) for name in ("device_ms", "sync_count", "peak_bytes")
    )
    device_total = sum(line.device_ms or 0.0 for line in lines)
    host_total = sum(line.host_ms or 0.0 for line in lines)
    most = max([*(line.device_ms or 0.0 for line in lines), *(line.host_ms or 0.0 for line in lines), 1e-12])
    cause = report.verdict.cause
    guilty = "host_ms" if not device else "device_ms" if cause in _GPU_CAUSES else "host_ms"
    guilty = "sync_count" if device and cause == "host_sync" else guilty
    titles = [
        Column(width=4, look="width:22px"),
        Column(title="your cell", kind="name", width=1, look="width:100%"),
        *([Column(title="GPU ms", width=10), Column(kind="bar", width=0, look="width:38px")] if device else []),
        Column(title="host ms", width=10),
        Column(kind="bar", width=0, look="width:38px"),
        *([Column(title="syncs")] if syncs else []),
        *([Column(title="peak", width=11, least=90)] if peaks else []),
    ]
    body = []
    for one in _kept_lines(lines, lead):
        if isinstance(one, int):
            left = Cell(f"⋯ {plural(one, 'line')} that cost less", faint=True, span=len(titles) - 1)
            body.append(Row(_cells("", left)))
            continue
        leads = one.line == lead
        fill = LOADER if leads and cause == "data_loading" else PYTHON

        def cost(ms: float | None, total: float, *, bold: bool) -> Cell:
            return Cell(step_cell(ms, total), bold=bold)

        code = one.source.expandtabs(4).rstrip("\n")
        whole = code.strip()[:1000] if columns(code) > _NARROW_COLUMNS else ""
        cells = _cells(
            Cell(str(one.line), code=True, bold=leads, faint=not leads),
            Cell(shorten(code, SOURCE_COLUMNS), code=True, hover=whole),
            cost(one.device_ms, device_total, bold=leads and guilty == "device_ms") if device else None,
            Cell(bar=(one.device_ms or 0.0) / most, fill=KERNEL.fill) if device else None,
            cost(one.host_ms, host_total, bold=leads and guilty == "host_ms"),
            Cell(bar=(one.host_ms or 0.0) / most, fill=fill.fill),
            Cell(count_cell(one.sync_count), bold=leads and guilty == "sync_count") if syncs else None,
            (size_text(one.peak_bytes) if one.peak_bytes is not None else _NO_PEAK) if peaks else None,
        )
        body.append(Row(cells, lead=leads))
    total = (
        "",
        "all lines",
        step_cell(device_total, device_total) if device else None,
        "" if device else None,
        step_cell(host_total, host_total),
        "",
        count_cell(sum(line.sync_count or 0.0 for line in lines)) if syncs else None,
        "" if peaks else None,
    )
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
    return Table(
        title="Your lines",
        more="per step",
        heading="Your lines, per step",
        columns=tuple(titles),
        rows=(*body, _sum(*total)),
        notes=tuple(words),
        most=SOURCE_COLUMNS,
    )


def widest_line(report: Report) -> int:
    """Characters of the longest line of code that is shown."""
    code = (line.source.expandtabs(4).rstrip() for line in report.lines if not line.source.startswith("%"))
    return min(max(map(columns, code), default=0), SOURCE_COLUMNS)


def _kept_lines(lines: Sequence[Line], lead: int | None) -> list[Line | int]:
    """All lines of a short cell; of a long one the costliest, with the number of lines left out between them."""
    if len(lines) <= LINES_SHOWN:
        return list(lines)

    def cost(line: Line) -> float:
        return (line.device_ms or 0.0) + (line.host_ms or 0.0) + (line.sync_count or 0.0) * 1e-6

    ranked = sorted(lines, key=lambda line: (line.line != lead, -cost(line)))
    chosen = {line.line for line in ranked[: LINES_SHOWN - 6]}
    kept: list[Line | int] = []
    for line in lines:
        if line.line in chosen:
            kept.append(line)
        elif kept and isinstance(kept[-1], int):
            kept[-1] += 1
        else:
            kept.append(1)
    return kept


# Phases, modules and ranges

SCOPES_SHOWN = 12
SMALLEST = 0.01  # of the time; smaller rows are counted only
_TREES = ((PHASE, "Phases"), (MODULE_CLASS, "Modules"), (RANGE, "Ranges"))
_RANGE_CALL = 'torch.profiler.record_function("name")'


def scope_tables(report: Report) -> list[Table]:
    """Phases, and the largest modules and ranges with what runs inside them; empty where none was recorded."""
    groups = report.views.groups
    return [_tree_table(groups[name], title, phases=name == PHASE) for name, title in _TREES if groups.get(name)]


def scope_summary(report: Report) -> str:
    """Such as ``GPU time: forward 32 %, backward 66 %, optimizer 2 %``."""
    groups = report.views.groups
    phases = groups.get(PHASE) or ()
    tree = phases or groups.get(MODULE_CLASS) or groups.get(RANGE) or ()
    device = _on_device(tree)
    total = sum(_alone(one, device) for one in tree)
    shares = [(one.name, _inside(one, device) / total) for one in tree if total > 0 and not one.within]
    shares = [(name, share) for name, share in shares if share >= SMALLEST]
    shares = shares if phases else shares[:3]
    said = ", ".join(f"{shorten(' '.join(name.split()), 40)} {percent_whole(share)}" for name, share in shares)
    return f"{'GPU' if device else 'host'} time: {said}" if said else ""


def scope_words(report: Report) -> list[str]:
    """What the columns mean, and how to have what this recording does not name."""
    groups, words, missing = report.views.groups, [], []
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
    if not groups.get(MODULE_CLASS):
        missing.append("modules by name: record with --stack")
    if not groups.get(RANGE):
        missing.append(f"parts of your own: {_RANGE_CALL} around them")
    return [*words, *([f"Not recorded: {'; '.join(missing)}."] if missing else [])]


def _tree_table(rows: Sequence[ScopeRow], title: str, *, phases: bool) -> Table:
    device = _on_device(rows)
    total, host_total = sum(_alone(one, device) for one in rows), sum(one.host_ms or 0.0 for one in rows)
    ranked = sorted(rows, key=lambda one: -_inside(one, device))
    large = [one for one in ranked if phases or (total > 0 and _inside(one, device) >= SMALLEST * total)][:SCOPES_SHOWN]
    kept = [one for one in rows if any(one is other for other in large)]
    fill = (KERNEL if device else PYTHON).fill
    titles = [
        Column(kind="name", width=1),
        Column(kind="bar", width=0),
        Column(title="GPU ms" if device else "host ms", width=10),
        Column(title="%"),
        *([] if phases else [Column(title="own", width=0)]),
        *([Column(title="host ms", width=0)] if device else []),
        *([] if phases else [Column(title="calls", width=0)]),
    ]
    body = []
    for one in kept:
        ms, host_ms = _inside(one, device), one.host_ms if phases else one.total_host_ms
        cells = _cells(
            name_cell(one.name, 48, indent=min(len(one.within), 8)),
            Cell(bar=ms / total if total else 0.0, fill=fill),
            time_cell(ms, total),
            percent_cell(ms / total if total else None),
            None if phases else time_cell(_alone(one, device), total),
            ("" if host_ms is None else time_cell(host_ms, host_total)) if device else None,
            None if phases else "" if one.calls is None else count_cell(one.calls),
        )
        body.append(Row(cells))
    if len(kept) < len(rows):
        left = Cell(f"{len(rows) - len(kept):,} smaller ones", faint=True, span=len(titles))
        body.append(Row((left,), rule=True))
    more = "one step; instances of a class together" if title == "Modules" else "one step"
    return Table(title=title, more=more, columns=tuple(titles), rows=tuple(body))


def _on_device(rows: Iterable[ScopeRow]) -> bool:
    return any(one.device_ms is not None for one in rows)


def _alone(one: ScopeRow, device: bool) -> float:
    return (one.device_ms if device else one.host_ms) or 0.0


def _inside(one: ScopeRow, device: bool) -> float:
    return (one.total_device_ms if device else one.total_host_ms) or _alone(one, device)


# What was checked


def checks_table(report: Report) -> Table:
    """Every cause that was looked at, with its gain and evidence."""
    largest = max((finding.recoverable_ms or 0.0 for finding in report.findings), default=0.0)
    body = []
    for one in check_rows(report):
        mark, word = STATUS.get(one.status, ("?", one.status))
        found = one.status == "found"
        result = Cell(f"{mark} {word}", chip="whole" if one.leading else "", bold=found)
        name = cause_checked(one.causes[0]) if len(one.causes) == 1 else ", ".join(one.causes)
        gain = gain_text(one.gain_ms, largest)
        gain = f"≤ {gain}" if len(one.causes) > 1 and one.gain_ms else gain
        body.append(Row(_cells(result, Cell(name, bold=found), gain, one.evidence)))
    return Table(
        title="What was checked",
        more=check_summary(report),
        heading=f"What was checked: {check_summary(report)} (ms: gain, at most)",
        columns=(
            Column(title="result", kind="text", width=11, look="white-space:nowrap"),
            Column(title="cause", kind="text"),
            Column(title="gain, at most"),
            Column(title="evidence", kind="long"),
        ),
        rows=tuple(body),
        empty="Nothing was checked.",
    )


# Who holds memory

HOLDERS_SHOWN = 14
PARTS_SHOWN = 3


def holders_table(holders: Sequence[Holder], parts: dict[str, tuple[tuple[str, int], ...]]) -> Table:
    """The holders with their bytes, share, line, and the largest layers."""
    total = sum(one.bytes for one in holders)
    if total <= 0:
        return Table()
    lines = any(one.line for one in holders)
    largest = max(one.bytes for one in holders)
    body = []
    for one in holders[:HOLDERS_SHOWN]:
        layers = " · ".join(
            f"{shorten(layer, 40)} {percent_whole(size / max(one.bytes, 1))}"
            for layer, size in parts.get(one.name, ())[:PARTS_SHOWN]
        )
        name = " ".join(one.name.split())
        cells = _cells(
            Cell(shorten(name, 64), code=True, hover=name if columns(name) > 64 else "", below=unbroken(layers)),
            Cell(bar=max(one.bytes, 0) / largest, fill=MEMORY),
            size_text(one.bytes),
            percent_cell(one.bytes / total),
            (str(one.line) if one.line else "") if lines else None,
        )
        body.append(Row(cells))
    rest = sum(one.bytes for one in holders[HOLDERS_SHOWN:])
    if rest:
        left = Cell(f"{len(holders) - HOLDERS_SHOWN} more", faint=True)
        body.append(Row(_cells(left, "", size_text(rest), percent_cell(rest / total), "" if lines else None)))
    return Table(
        columns=(
            Column(kind="name", width=1, look="width:66%"),
            Column(kind="bar", width=0, look="width:56px"),
            Column(title="size", width=12),
            Column(title="%"),
            *([Column(title="line", width=6)] if lines else []),
        ),
        rows=(*body, _sum("all", "", size_text(total), "100.0", "" if lines else None)),
    )


# Runs of the session


def runs_table(runs: Sequence[tuple[int, Report]]) -> Table:
    """The kept runs with their numbers, in the given order."""
    names = ("number", "name", "step", "throughput", "GPU computes", "holds it back", "steps")
    body = []
    for number, report in runs:
        rate = report.steps.throughput
        cells = (
            str(number),
            shorten(report.source.name or "·", 24),
            time_text(report.steps.step_ms),
            "·" if rate is None else rate_text(rate.value, rate.unit),
            percent_short(report.utilization.kernel_busy),
            "out of memory" if report.failed_request is not None else report.verdict.cause,
            steps_text(report),
        )
        body.append(cells)
    widths = [min(max(columns(one[at]) for one in (names, *body)), 24) + 2 for at in range(len(names))]
    hint = "Compare two of them by name or number, such as %gpuprofile --compare {} {}."
    return Table(
        title="Runs of this session",
        more="the last ten" if len(runs) == 10 else "",
        heading=" ",
        columns=tuple(Column(title=name, kind="text", width=wide) for name, wide in zip(names, widths, strict=True)),
        rows=tuple(Row(_cells(*cells)) for cells in body),
        notes=(hint.format(*(str(number) for number, _ in runs[-2:])),) if len(runs) > 1 else (),
        empty="No run of this session is kept yet.",
    )
