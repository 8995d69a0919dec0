"""Another rank makes this one wait: what several ranks say together, as a sentence, a finding and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ipyprof.diagnosis.cause import Finding, Verdict, Where
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.ranks.comparison import Comparison, Why
from ipyprof.ranks.summary import Roll

SHOWN = 6
CLOCK_SHARE = 0.01
"""Clocks that are off by more than this share of the step are a warning: a delay is found from 5 % on."""
Note = tuple[str, str, str]


def rank_checks(roll: Roll, comparison: Comparison) -> tuple[Note, ...]:
    """Checks that apply, each (check, status, text)."""
    return (*_who(roll), *_how(roll, comparison))


def number_list(ranks: Sequence[int]) -> str:
    """Such as ``1–6, 9``: runs of numbers joined, at most six parts shown."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    return ", ".join(parts[:SHOWN]) + (f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else "")


def _who(roll: Roll) -> Iterator[Note]:
    count = len(roll.ranks) + len(roll.cpu_only)
    if roll.missing:
        of = f" of {roll.world_size}" if roll.world_size else ""
        noun = "rank" if len(roll.missing) == 1 else "ranks"
        text = f"{count}{of} ranks are there, {noun} {number_list(roll.missing)} missing"
        yield "ranks", "warn", text
    elif count > 1:
        yield "ranks", "ok", f"{count} of {count} ranks are there"
    for rank, used, others in roll.duplicates:
        files = ", ".join(_file(path) for path in others)
        yield "ranks", "warn", f"more than one file of rank {rank}: {_file(used)} is used, left out: {files}"
    if roll.cpu_only:
        ranks = number_list([one.rank for one in roll.cpu_only])
        yield "ranks", "warn", f"no GPU work in the recording of rank {ranks}: not compared"
    if roll.by_order and count > 1:
        files = ", ".join(_file(path) for path in roll.by_order[:3])
        yield "ranks", "warn", f"no rank in the file or its name, numbered in order: {files}"
    if roll.disagree:
        yield "ranks", "warn", "the files are of worlds of several sizes"
    for one in roll.ranks:
        if one.stopped:
            yield "ranks", "warn", f"rank {one.rank} stopped with {one.stopped}"
        if one.error:
            yield "ranks", "warn", f"rank {one.rank}: {one.error}"


def _how(roll: Roll, comparison: Comparison) -> Iterator[Note]:
    clocks = comparison.clocks
    if clocks is not None and clocks.residual_ns is not None:
        off = time_text(clocks.residual_ns / 1e6)
        bad = bool(comparison.step_ns) and clocks.residual_ns > CLOCK_SHARE * (comparison.step_ns or 0.0)
        if clocks.common:
            text = f"the ranks share one clock; the ends of {plural(clocks.ends, 'collective')} lie within ±{off}"
            yield "rank clocks", "ok", text
        else:
            text = f"clocks aligned on the ends of {plural(clocks.ends, 'collective')}, ±{off}"
            yield "rank clocks", "warn" if bad else "ok", text
    if comparison.apart:
        yield "rank clocks", "warn", f"rank {number_list(comparison.apart)} shares no collective with the others"
    numbers = {one.steps for one in roll.ranks}
    if len(numbers) > 1 and comparison.steps:
        yield "rank steps", "warn", f"the ranks recorded different steps; {comparison.steps} are common and compared"
    if comparison.unmatched:
        yield "collectives", "warn", f"{plural(comparison.unmatched, 'collective')} without a partner on another rank"
    if comparison.skipped_start is not None:
        rank, ns = comparison.skipped_start
        text = f"rank {rank} entered the first collective {time_text(ns / 1e6)} late, as its profiler started: left out"
        yield "profiler start", "ok", text
    if roll.ranks and any(not kind.group for one in roll.ranks for kind in one.kinds):
        yield "collectives", "warn", "the recording does not name the process groups: matched by order alone"


def _file(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1] or "a process"


CAUSE = "straggler"
ONE_FILE = "one file of several ranks cannot tell who is late"
_OWN = {
    "loader": "its loader takes",
    "compute": "its GPU computes",
    "slow_gpu": "its GPU takes",
    "copies": "its GPU copies for",
    "runtime": "its CUDA calls take",
    "host": "its Python takes",
}
_BOUND = {
    "loader": "IO-bound (one rank's data loading)",
    "compute": "GPU-bound (one rank's compute)",
    "slow_gpu": "GPU-bound (one rank's clock)",
    "copies": "IO-bound (one rank's copies)",
    "runtime": "CPU-bound (one rank's CUDA calls)",
    "host": "CPU-bound (one rank's Python)",
}
_ADVICE = {
    "loader": "Feed {rank} as fast as the others: the same storage, as many workers, shards of equal size.",
    "compute": "Give {rank} no more work than the others: equal batches, no evaluation or logging on one rank only.",
    "slow_gpu": "Look at the GPU of {rank}: clock, power cap, temperature, other processes "
    "(nvidia-smi -q -d CLOCK,PERFORMANCE).",
    "copies": "Find what only {rank} copies: a checkpoint, a read-back for logging, a slower PCIe link.",
    "runtime": "Look at the calls of {rank}: allocations, synchronisations, a busy CPU on its host.",
    "host": "Find what only {rank} does in Python: logging, checkpoints, evaluation, a busy CPU on its host.",
    "": "Record {rank} alone and look where its step differs from the others'.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """What was compared, beside the comparison itself.

    Attributes:
        comparison: of the ranks that have a summary.
        count: ranks that were read; missing: ranks of the world that were not; world_size: or ``None``.
        cpu_only: ranks without device work among ranks with it, left out of the comparison.
        notes: trust checks, each ``(check, status, text)``.
        gpu: the compared ranks have device work.
        stopped: (rank, exception in words) of ranks that ended by one.
    """

    comparison: Comparison
    count: int
    missing: tuple[int, ...] = ()
    world_size: int | None = None
    cpu_only: tuple[int, ...] = ()
    notes: tuple[tuple[str, str, str], ...] = ()
    gpu: bool = True
    stopped: tuple[tuple[int, str], ...] = ()


def sentence(joint: Joint) -> str:
    """Who is late and why, in one sentence without its full stop."""
    if joint.stopped:
        rank, error = joint.stopped[0]
        more = f" ({len(joint.stopped) - 1} more stopped)" if len(joint.stopped) > 1 else ""
        return f"rank {rank} stopped with {error}{more}; {sentence(replace(joint, stopped=()))}"
    found = joint.comparison
    late = found.straggler
    if late is not None:
        head = f"rank {late.rank} is late by {time_text(late.late_ns / 1e6)}"
        return f"{head} on {late.steps_late} of {plural(found.steps, 'step')}: {_because(late.why, gpu=joint.gpu)}"
    if found.state == "unknown":
        gone = joint.count < 2 and joint.missing
        return f"could not tell who is late: {f'rank {number_list(joint.missing)} missing' if gone else found.reason}"
    most = time_text(max(found.worst_ns, 0.0) / 1e6)
    if found.state == "varying":
        most += _share(found, found.worst_ns)
        return f"no rank is the late one: on each step another rank is late, by at most {most}"
    usual = time_text(max(found.usual_ns, 0.0) / 1e6)
    behind = f"{usual}{_share(found, found.usual_ns)} behind the others"
    return (
        f"{plural(_compared(joint), 'rank')} are balanced: the latest is {behind}"
        f"{f', at most {most}' if most != usual else ''}"
    )


def _share(found: Comparison, late_ns: float) -> str:
    """A delay as a share of the recorded step it is part of, in brackets."""
    step_ns = found.recorded_step_ns
    return f" ({percent_short(max(late_ns, 0.0) / step_ns)} of the step)" if step_ns else ""


def phase_of(joint: Joint) -> str | None:
    """``loader``, ``forward``, ``backward`` or ``optimizer``: where the late rank loses its time, or ``None``."""
    late = joint.comparison.straggler
    return None if late is None else late.why.phase or None


def find(joint: Joint) -> Finding:
    """The finding that several ranks give."""
    found = joint.comparison
    step_ms = None if not found.step_ns else found.step_ns / 1e6
    late = found.straggler
    if found.state == "unknown":
        return Finding(cause=CAUSE, status="unknown", evidence=found.reason)
    if late is None or step_ms is None:
        text = sentence(joint)
        if found.state == "varying":
            # Each step waits for its own late rank; what curing all of them would gain is not known.
            return Finding(cause=CAUSE, status="unknown", evidence=text)
        return Finding(
            cause=CAUSE,
            status="cleared",
            recoverable_ms=0.0,
            predicted_step_ms=step_ms,
            speedup_bound=1.0,
            evidence=text,
        )
    gained = late.recoverable_ns / 1e6
    rest = max(step_ms - gained, 1e-6)
    more = f"; next: {_ranks(found.others)}" if found.others else ""
    clock = f"; its GPU ran at {late.why.clock}" if late.why.clock else ""
    return Finding(
        cause=CAUSE,
        status="found",
        recoverable_ms=gained,
        predicted_step_ms=rest,
        speedup_bound=step_ms / rest,
        where=Where(scope=f"rank {late.rank}"),
        evidence=sentence(joint) + clock + more,
        advice=_ADVICE[late.why.cause].format(rank=f"rank {late.rank}"),
    )


def join(
    joint: Joint, findings: Sequence[Finding], verdict: Verdict, *, shown: int, has_gpu: bool
) -> tuple[tuple[Finding, ...], Verdict]:
    """One rank's findings and verdict with what all ranks say put in.

    A late rank heads the verdict: what one rank waits for behind it is not the others' time. Otherwise the verdict of
    the shown rank stands.

    Args:
        shown: the rank whose findings these are.
    """
    mine = find(joint)
    others = [_compared_finding(finding, joint, shown) for finding in findings if finding.cause != CAUSE]
    order = {"found": 0, "cleared": 1, "unknown": 2}
    ranked = sorted([mine, *others], key=lambda one: (order[one.status], -(one.recoverable_ms or 0.0)))
    late = joint.comparison.straggler
    if mine.status != "found" or late is None:
        return tuple(ranked), verdict
    text = sentence(replace(joint, stopped=()))
    follows = verdict.cause if has_gpu and verdict.cause not in ("compute_bound", "inconclusive") else None
    reasons = (*verdict.reasons, *(text for _, status, text in joint.notes if status != "ok"))
    return tuple(ranked), structs.replace(
        verdict,
        cause=CAUSE,
        headline=f"{text[0].upper()}{text[1:]}.",
        advice=mine.advice,
        change=None,
        bound=_bound(late.why.cause, gpu=joint.gpu),
        recoverable_ms=mine.recoverable_ms,
        predicted_step_ms=mine.predicted_step_ms,
        speedup_bound=mine.speedup_bound,
        confidence=_confidence(joint, verdict.confidence),
        reasons=reasons,
        next=follows,
        next_ms=None,
        next_text=None,
    )


def _bound(cause: str, *, gpu: bool) -> str:
    if cause == "compute" and not gpu:
        return "CPU-bound (one rank's compute)"
    return _BOUND.get(cause, "unknown")


def _because(why: Why, *, gpu: bool) -> str:
    if not why.cause:
        return "its recording does not show why"
    words = "its operators take" if why.cause == "compute" and not gpu else _OWN[why.cause]
    same = " for the same kernels" if why.cause == "slow_gpu" else ""
    text = f"{words} {time_text(why.own_ns / 1e6)}{same}, the others' {time_text(why.others_ns / 1e6)}"
    if why.cause == "compute" and gpu and why.more_kernels >= 0.5:
        text += f", with {plural(round(why.more_kernels), 'more kernel')}"
    return text


def _compared_finding(finding: Finding, joint: Joint, shown: int) -> Finding:
    """What one rank says of its collectives, where several have been compared."""
    if finding.cause != "communication" or joint.comparison.state == "unknown":
        return finding
    evidence = finding.evidence.replace("; one file cannot tell which rank is late", "")
    late = joint.comparison.straggler
    if late is None or late.rank == shown:
        return structs.replace(finding, evidence=evidence)
    evidence += f"; rank {shown} waits there for rank {late.rank}"
    return structs.replace(finding, evidence=evidence)


def _confidence(joint: Joint, of_rank: str) -> str:
    """High where all ranks were compared by collectives that agree on more than one step; a file's is medium.

    Low where nothing in the late rank's recording explains the delay.
    """
    late = joint.comparison.straggler
    if late is not None and not late.why.cause:
        return "low"
    whole = not joint.missing and joint.comparison.steps > 1 and not joint.comparison.unmatched
    if not whole:
        return "low" if joint.comparison.steps < 2 else "medium"
    return "high" if of_rank == "high" else "medium"


def _compared(joint: Joint) -> int:
    return len(joint.comparison.late_ns)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:5])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{f' and {len(ranks) - 5} more' if len(ranks) > 5 else ''}"
