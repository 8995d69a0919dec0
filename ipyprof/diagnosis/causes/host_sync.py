"""The host waits for the GPU, and then the GPU runs dry because nothing is queued."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Host, Program
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, Finding, Site, Where, gain_of, is_found, measured, source_line
from ipyprof.diagnosis.causes.transfer import copies, operator_of
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.kinds import DEVICE_KINDS, Kind
from ipyprof.trace.model import Int64

NAMED = 2  # places in the evidence; the sites hold all
_ANOTHER_CELL = re.compile(r"ipykernel_\d+|<ipython-input|<stdin>|<string>")


class HostSync(Cause):
    id = "host_sync"
    name = "reads of a value"
    subject = ("Host waits for the GPU", ", then the GPU waits for the host")
    without = "without the reads"
    checked = "reads of a value"
    bound = "CPU-bound (the host waits for the GPU, then the GPU for the host)"
    sentence = "{place} leaves the GPU without work{times}: {cost}; without the wait, {best}."
    nobody = "A wait"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when the host does not wait for the GPU."""
        program, replayed = measured(profile)
        syncs = synchronising(profile, program)
        if len(syncs.items) == 0:
            return self.absent(profile, "no line waits for the GPU")
        gain = gain_of(profile, _without(profile, program, syncs))
        sites = _sites(profile, program, syncs)
        first = sites[0]
        waited = float((replayed.call_end - replayed.call_begin)[syncs.items].sum()) / program.steps
        count = len(syncs.items) / program.steps
        at = f", line {first.where.line}" if first.where.line else ""
        outside = outside_the_cell(profile)
        what = f"{count:.0f} × {first.where.operator} → {_call_name(profile, program, syncs)}{at}{origin_text(outside)}"
        return self.judged(
            profile,
            gain,
            evidence=f"{what}; the GPU has nothing queued after each",
            cleared=f"{what}: the host waits {time_text(waited / NS_PER_MS)} per step for a GPU that is busy anyway; "
            f"removing it recovers {percent_short(gain.share)} of the step",
            advice=_advice(first.where.operator or "", source_line(profile, first.where.line)),
            where=first.where,
            sites=sites + outside,
            change=None if profile.live is None else change_of(profile.live.source, first.where.line or 0),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """The same steps without the syncing operators, their small copies, and the views that feed them."""
        return _without(profile, program, synchronising(profile, program))


def outside_the_cell(profile: Profile) -> tuple[Site, ...]:
    """One site per file and line outside the cell, the most frequent first; empty where the probe did not look.

    The file is its name with the folder that it lies in (``transformers/trainer.py``), or ``another cell``. What
    curing one of them would gain is not measured.
    """
    if profile.live is None or profile.live.sync_sites is None:
        return ()
    sites = (
        Site(
            where=Where(file=file_name(one.file), line=one.line), status="unknown", count=one.count, recoverable_ms=None
        )
        for one in profile.live.sync_sites
        if not one.in_cell
    )
    return tuple(sorted(sites, key=lambda site: -site.count))


def origin_text(sites: tuple[Site, ...]) -> str:
    """``; outside the cell in transformers/trainer.py line 2134 (3 per step) and 2 more places``, or nothing."""
    if not sites:
        return ""
    named = [f"{site.where.file} line {site.where.line} ({site.count:.0f} per step)" for site in sites[:NAMED]]
    more = len(sites) - len(named)
    rest = f" and {plural(more, 'more place')}" if more else ""
    return f"; outside the cell in {', '.join(named)}{rest}"


def file_name(path: str) -> str:
    """The file's name with its folder; a path of the kernel's own is ``another cell``."""
    if _ANOTHER_CELL.search(path):
        return "another cell"
    return "/".join(re.split(r"[\\/]", path)[-2:])


# Where a tensor in place of the number would be read all the same.
_READS_AGAIN = re.compile(
    r"""\b(?:if|while|assert|elif|in|not|and|or)\b|\b(?:print|float|int|bool|str|format|round|range)\(|f["']|%"""
)


def change_of(source: str, line: int) -> tuple[str, str] | None:
    """(the cell's line, the line without its read); ``None`` where that is not plainly possible.

    It is possible where the statement only stores what it reads, ``total += loss.item()``, and nothing else in the
    same loop looks at what was stored: a line that formats or compares it would then do the waiting.

    Args:
        source: the text of the cell; line: counted from 1.
    """
    lines = source.splitlines()
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    if text.strip() in ("torch.cuda.synchronize()", "torch.cuda.synchronize();"):
        return text, ""
    if text.count(".item()") != 1 or _READS_AGAIN.search(text):
        return None
    kept = _kept_in(text)
    if kept is None or _looked_at(lines, line, kept):
        return None
    return text, text.replace(".item()", ".detach()") + "  # a tensor: stays on the GPU"


def _kept_in(text: str) -> str | None:
    """The variable in which the statement stores what it reads."""
    try:
        statement = ast.parse(text.strip()).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and _is_read(statement.value):
        return _variable(statement.targets[0])
    if isinstance(statement, ast.AugAssign) and _is_read(statement.value):
        return _variable(statement.target)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return _variable(call.func.value) if len(call.args) == 1 and _is_read(call.args[0]) else None
    return None


def _is_read(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "item"


def _variable(target: ast.expr) -> str | None:
    """``seen`` of ``seen``, ``seen[k]`` and ``seen.list``."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def _looked_at(lines: list[str], line: int, name: str) -> bool:
    """Whether another line of the outermost loop around this one, or of the cell without a loop, uses the variable."""
    shell = ("%", "!", "?")
    plain = ["pass" if text.startswith(shell) else text for text in lines]
    try:
        tree: ast.AST = ast.parse("\n".join(plain))
    except (SyntaxError, ValueError, RecursionError):
        return True  # not known, so no change is proposed
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    around = [node for node in loops if node.lineno < line <= (node.end_lineno or 0)]
    within = min(around, key=lambda node: node.lineno) if around else tree
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node.lineno != line
        for node in ast.walk(within)
    )


WAITING = (Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD, Act.BLOCKING_COPY)

# Operators that only look at a tensor differently: they launch nothing and exist here only to feed the read.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("select", "slice", "view", "reshape", "_reshape_alias", "as_strided", "squeeze", "unsqueeze", "detach"),
        *("alias", "narrow", "t", "transpose", "permute", "expand"),
    )
)
FEEDING_VIEWS = 3
LINES_REPLAYED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncs:
    """The synchronising calls of the recorded steps.

    Attributes:
        items: (s,) host item of each; operator: (s,) the operator event that is removed with it, -1 = only the call.
        line: (s,) line of the cell.
    """

    items: Int64
    operator: Int64
    line: Int64


def synchronising(profile: Profile, program: Program) -> Syncs:
    """Synchronising calls that are no part of a large copy and no allocator call, with the operator to remove."""
    waiting = np.isin(program.act, WAITING) & (program.event >= 0) & (program.call_host != Host.ALLOCATOR)
    large = copies(profile, program)
    waiting &= ~large.waits
    waiting[large.items] = False
    items = np.flatnonzero(waiting)
    if len(items) == 0:
        empty = np.empty(0, np.int64)
        return Syncs(items=empty, operator=empty, line=empty)
    operator = _whole_operator(profile, operator_of(profile, program, items))
    return Syncs(items=items, operator=operator, line=program.call_line[items])


def _without(profile: Profile, program: Program, syncs: Syncs) -> Program:
    bare = np.zeros(len(program.act), bool)
    bare[syncs.items[syncs.operator < 0]] = True
    start, end = _spans(profile, syncs.operator[syncs.operator >= 0])
    return program.without_calls(bare).cut(start, end, records=True)


def _spans(profile: Profile, operators: Int64) -> tuple[Int64, Int64]:
    """(start, end) of the operators and of the views right before them that only feed them."""
    trace = profile.trace
    operators = np.unique(operators)
    start, end = list(trace.start_ns[operators].tolist()), list(trace.end_ns[operators].tolist())
    outer = trace.select(Kind.OPERATOR)
    outer = outer[profile.operators.parent[outer] < 0]
    calls = np.sort(trace.start_ns[trace.select(Kind.CALL)])
    for thread in np.unique(trace.tid[operators]).tolist():
        mine = outer[trace.tid[outer] == thread]
        place = {int(event): at for at, event in enumerate(mine.tolist())}
        for operator in operators[trace.tid[operators] == thread].tolist():
            at = place.get(operator, 0)
            for before in mine[max(at - FEEDING_VIEWS, 0) : at][::-1].tolist():
                inside = np.searchsorted(calls, [trace.start_ns[before], trace.end_ns[before]])
                if trace.names[trace.name[before]] not in VIEWS or inside[0] != inside[1]:
                    break
                start.append(int(trace.start_ns[before]))
                end.append(int(trace.end_ns[before]))
    return np.asarray(start, np.int64), np.asarray(end, np.int64)


def _whole_operator(profile: Profile, inner: Int64) -> Int64:
    """(s,) int64: the outermost operator around each sync that launches no kernel of its own, -1 = there is none."""
    trace, parent = profile.trace, profile.operators.parent
    device = trace.select(*DEVICE_KINDS)
    working = device[(trace.kind[device] == Kind.KERNEL) | (trace.kind[device] == Kind.COMMUNICATION)]
    launch = profile.steps.launch[working]
    launch = launch[launch >= 0]
    threads = trace.tid[launch]
    launched = {thread: np.sort(trace.start_ns[launch[threads == thread]]) for thread in np.unique(threads).tolist()}

    def works(event: int) -> bool:
        starts = launched.get(int(trace.tid[event]))
        if starts is None:
            return False
        first, last = np.searchsorted(starts, [trace.start_ns[event], trace.end_ns[event]])
        return bool(last > first)

    result = np.full(len(inner), -1, np.int64)
    for at, event in enumerate(inner.tolist()):
        while event >= 0 and not works(event):
            result[at] = event
            event = int(parent[event])
    return result


def _sites(profile: Profile, program: Program, syncs: Syncs) -> tuple[Site, ...]:
    """One site per line and operator name, the most expensive first."""
    names = [profile.trace.names[profile.trace.name[event]] if event >= 0 else "" for event in syncs.operator.tolist()]
    calls = [profile.trace.names[profile.trace.name[event]] for event in program.event[syncs.items].tolist()]
    labels = [name or call for name, call in zip(names, calls, strict=True)]
    groups: dict[tuple[int, str], list[int]] = {}
    for at, key in enumerate(zip(syncs.line.tolist(), labels, strict=True)):
        groups.setdefault(key, []).append(at)
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    sites: list[tuple[float, Site]] = []
    for rank, ((line, label), members) in enumerate(ranked):
        gain = None
        if rank < LINES_REPLAYED:
            some = Syncs(items=syncs.items[members], operator=syncs.operator[members], line=syncs.line[members])
            gain = gain_of(profile, _without(profile, program, some))
        site = Site(
            where=Where(operator=label, line=line or None),
            status="unknown" if gain is None else "found" if is_found(profile, gain) else "cleared",
            count=len(members) / program.steps,
            recoverable_ms=None if gain is None else gain.recoverable_ns / NS_PER_MS,
        )
        sites.append((-1.0 if gain is None else gain.recoverable_ns, site))
    return tuple(site for _, site in sorted(sites, key=lambda pair: -pair[0]))


def _call_name(profile: Profile, program: Program, syncs: Syncs) -> str:
    names, counts = np.unique(profile.trace.name[program.event[syncs.items]], return_counts=True)
    return profile.trace.names[int(names[np.argmax(counts)])]


def _advice(operator: str, text: str) -> str:
    """The cure for this operator in this line of the cell."""
    decides = operator == "aten::is_nonzero" or _DECIDES.search(text) is not None
    if operator in ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"):
        if decides:
            return "Choose on the GPU, with torch.where instead of if, so that the host need not know the value."
        return "Keep the value on the GPU and read it once, after the loop."
    if operator in ("aten::nonzero", "aten::masked_select", "aten::index", "aten::unique"):
        return "The size of the result depends on the data: use torch.where or multiply by the mask."
    if operator.startswith(("cuda", "hip", "cu")):
        return "Do not synchronise inside the loop: CUDA waits by itself where a value is needed."
    return "Read the value once, after the loop, or every hundredth step."


_DECIDES = re.compile(r"^\s*(if|elif|while|assert)\b")
