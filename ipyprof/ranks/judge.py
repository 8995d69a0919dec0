"""What several ranks say together: who is there, the sentence, the finding, and the verdict of the joint report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from ipyprof.diagnosis.cause import Finding, Verdict, Where
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.ranks.straggler import Comparison, compare
from ipyprof.ranks.summary import MS, UNKNOWN_RANK, RankSummary
from ipyprof.report.report import Rank, Ranks, Report, Straggler, TrustCheck

CAUSE = "straggler"
SHOWN = 6
CLOCK_SHARE = 0.01
"""Clocks that are off by more than this share of the step are a warning: a delay is found from 5 % on."""
_IN_NAME = re.compile(r"rank[-_ .]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ANOTHER_HAS_GONE = re.compile(r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote|nccl", re.IGNORECASE)
"""What collectives say on the other ranks when one rank is gone."""


class Words(NamedTuple):
    """What is said of a late rank, by what it has more of."""

    takes: str
    bound: str
    advice: str


_WORDS = {
    "loader": Words(
        "its loader takes",
        "IO-bound (one rank's data loading)",
        "Feed {} as fast as the others: the same storage, as many workers, shards of equal size.",
    ),
    "compute": Words(
        "its GPU computes",
        "GPU-bound (one rank's compute)",
        "Give {} no more work than the others: equal batches, no evaluation or logging on one rank only.",
    ),
    "slow_gpu": Words(
        "its GPU takes",
        "GPU-bound (one rank's clock)",
        "Look at the GPU of {}: clock, power cap, temperature, other processes (nvidia-smi -q -d CLOCK,PERFORMANCE).",
    ),
    "copies": Words(
        "its GPU copies for",
        "IO-bound (one rank's copies)",
        "Find what only {} copies: a checkpoint, a read-back for logging, a slower PCIe link.",
    ),
    "runtime": Words(
        "its CUDA calls take",
        "CPU-bound (one rank's CUDA calls)",
        "Look at the calls of {}: allocations, synchronisations, a busy CPU on its host.",
    ),
    "host": Words(
        "its Python takes",
        "CPU-bound (one rank's Python)",
        "Find what only {} does in Python: logging, checkpoints, evaluation, a busy CPU on its host.",
    ),
}
_ON_CPU = _WORDS["compute"]._replace(takes="its operators take", bound="CPU-bound (one rank's compute)")
_UNSEEN = Words("", "unknown", "Record {} alone and look where its step differs from the others'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """What several ranks say together.

    Attributes:
        ranks: for the report, all but ``shown``.
        finding: of the cause ``straggler``.
        late: who is late and why, in one sentence without its full stop: ``ranks.sentence`` without who stopped.
        bound, confidence: of a verdict that is this finding; high needs a rank's own verdict that is.
        checks: for ``trust``.
        stopped: (rank, exception in words) of ranks that ended by one, those first whose error is their own.
    """

    ranks: Ranks
    finding: Finding
    late: str
    bound: str
    confidence: str
    checks: tuple[TrustCheck, ...]
    stopped: tuple[tuple[int, str], ...]

    @property
    def shown(self) -> Rank:
        """The rank whose step tells most: the late one, else the first that was compared."""
        rows, late = self.ranks.per_rank, self.ranks.straggler
        return next((one for one in rows if late is not None and one.rank == late.rank), rows[0])


def judge(summaries: Sequence[RankSummary], *, checks: Sequence[TrustCheck] = ()) -> Joint:
    """Who of these ranks is late, with what could make that wrong.

    Of several summaries of one rank the first is used; a rank without device work among ranks with it is not compared.

    Args:
        summaries: at least one; ``UNKNOWN_RANK`` is replaced by the number in the file's name, else by the place.
        checks: what else there is to say.
    """
    numbered, by_order = _numbered(summaries)
    by_rank: dict[int, list[RankSummary]] = {}
    for one in numbered:
        by_rank.setdefault(one.rank, []).append(one)
    chosen = [by_rank[rank][0] for rank in sorted(by_rank)]
    gpu = any(one.has_gpu for one in chosen)
    compared = [one for one in chosen if one.has_gpu or not gpu]
    left_out = [one for one in chosen if gpu and not one.has_gpu]
    sizes = {one.world_size for one in chosen if one.world_size}
    found = compare(compared)
    ranks = structs.replace(
        found.ranks,
        count=len(chosen),
        missing=tuple(rank for rank in range(max([*sizes, max(by_rank) + 1])) if rank not in by_rank),
        world_size=max(sizes, default=None),
        cpu_only=tuple(one.rank for one in left_out),
        duplicates=tuple(rank for rank, same in sorted(by_rank.items()) if same[1:]),
        per_rank=(*found.ranks.per_rank, *(one.row() for one in left_out)),
    )
    found = replace(found, ranks=ranks)
    stopped = sorted(
        ((one.rank, one.stopped) for one in compared if one.stopped),
        key=lambda one: (_ANOTHER_HAS_GONE.search(one[1]) is not None, one[0]),
    )
    late = _late_text(found, gpu=gpu)
    sentence = late
    if stopped:
        more = f" ({len(stopped) - 1} more stopped)" if stopped[1:] else ""
        sentence = f"rank {stopped[0][0]} stopped with {stopped[0][1]}{more}; {late}"
    who = [
        *_who(ranks),
        *(_duplicate(by_rank[rank]) for rank in ranks.duplicates),
        *_what_else(ranks, compared, by_order, disagree=len(sizes) > 1),
    ]
    return Joint(
        ranks=structs.replace(ranks, sentence=sentence),
        finding=_finding(found, sentence, gpu=gpu),
        late=late,
        bound=_words(ranks.straggler, gpu=gpu).bound,
        confidence=_confidence(found),
        checks=(*who, *_how(found, compared), *checks),
        stopped=tuple(stopped),
    )


def with_ranks(report: Report, joint: Joint, shown: int) -> Report:
    """The report of the rank ``shown`` with what all ranks say put in.

    A late rank heads the verdict: what one rank waits for behind it is not the others' time. Otherwise the verdict of
    the shown rank stands.
    """
    others = [_compared(one, joint, shown) for one in report.findings if one.cause != CAUSE]
    order = {"found": 0, "cleared": 1, "unknown": 2}
    findings = sorted((joint.finding, *others), key=lambda one: (order[one.status], -(one.recoverable_ms or 0.0)))
    joined = structs.replace(
        report,
        findings=tuple(findings),
        ranks=structs.replace(joint.ranks, shown=shown),
        trust=(*report.trust, *joint.checks),
    )
    if joint.finding.status != "found":
        return joined
    own, finding = report.verdict, joint.finding
    on_gpu = report.breakdown.kernel is not None
    verdict = Verdict(
        cause=CAUSE,
        headline=f"{joint.late[0].upper()}{joint.late[1:]}.",
        advice=finding.advice,
        bound=joint.bound,
        recoverable_ms=finding.recoverable_ms,
        predicted_step_ms=finding.predicted_step_ms,
        speedup_bound=finding.speedup_bound,
        confidence="medium" if joint.confidence == "high" and own.confidence != "high" else joint.confidence,
        reasons=(*own.reasons, *(check.text for check in joint.checks if check.status != "ok")),
        next=own.cause if on_gpu and own.cause not in ("compute_bound", "inconclusive") else None,
    )
    return structs.replace(joined, verdict=verdict, views=structs.replace(report.views, without=None))


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


def _numbered(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], list[str]]:
    """(every summary with its rank, the paths of those whose rank is only their place)."""
    named = [_by_name(one) for one in summaries]
    taken = {one.rank for one in named}
    free = (number for number in range(2 * len(named)) if number not in taken)
    by_order = [one.path or "" for one in named if one.rank == UNKNOWN_RANK]
    return [structs.replace(one, rank=next(free)) if one.rank == UNKNOWN_RANK else one for one in named], by_order


def _by_name(one: RankSummary) -> RankSummary:
    found = _IN_NAME.findall(_file(one.path)) if one.rank == UNKNOWN_RANK else ()
    return structs.replace(one, rank=int(found[-1])) if found else one


def _late_text(found: Comparison, *, gpu: bool) -> str:
    ranks, late = found.ranks, found.ranks.straggler
    if late is not None:
        head = f"rank {late.rank} is late by {time_text(late.late_ms)}"
        return f"{head} on {late.steps_late} of {plural(ranks.steps, 'step')}: {_because(late, gpu=gpu)}"
    if ranks.state == "unknown":
        gone = ranks.count < 2 and ranks.missing
        return f"could not tell who is late: {f'rank {number_list(ranks.missing)} missing' if gone else found.reason}"
    most, usual = (time_text(max(ms, 0.0)) for ms in (found.worst_ms, found.usual_ms))
    if ranks.state == "varying":
        share = _share(found.worst_ms, found)
        return f"no rank is the late one: on each step another rank is late, by at most {most}{share}"
    compared = sum(1 for one in ranks.per_rank if one.late_ms is not None)
    behind = f"{usual}{_share(found.usual_ms, found)} behind the others"
    at_most = f", at most {most}" if most != usual else ""
    return f"{plural(compared, 'rank')} are balanced: the latest is {behind}{at_most}"


def _because(late: Straggler, *, gpu: bool) -> str:
    if late.cause is None:
        return "its recording does not show why"
    same = " for the same kernels" if late.cause == "slow_gpu" else ""
    takes = _words(late, gpu=gpu).takes
    text = f"{takes} {time_text(late.own_ms)}{same}, the others' {time_text(late.others_ms)}"
    if late.cause == "compute" and gpu and late.more_kernels >= 0.5:
        text += f", with {plural(round(late.more_kernels), 'more kernel')}"
    return text


def _words(late: Straggler | None, *, gpu: bool) -> Words:
    cause = None if late is None else late.cause
    return _ON_CPU if cause == "compute" and not gpu else _WORDS.get(cause or "", _UNSEEN)


def _share(ms: float, found: Comparison) -> str:
    """A delay as a share of the recorded step it is part of, in brackets."""
    return f" ({percent_short(max(ms, 0.0) / found.recorded_ms)} of the step)" if found.recorded_ms else ""


def _finding(found: Comparison, sentence: str, *, gpu: bool) -> Finding:
    ranks, late, step_ms = found.ranks, found.ranks.straggler, found.ranks.step_ms
    if ranks.state == "unknown":
        return Finding(cause=CAUSE, status="unknown", evidence=found.reason)
    if ranks.state == "varying":
        # Each step waits for its own late rank; what curing all of them would gain is not known.
        return Finding(cause=CAUSE, status="unknown", evidence=sentence)
    if late is None or step_ms is None:
        return Finding(
            cause=CAUSE,
            status="cleared",
            recoverable_ms=0.0,
            predicted_step_ms=step_ms,
            speedup_bound=1.0,
            evidence=sentence,
        )
    rest = max(step_ms - late.recoverable_ms, 1e-6)
    others = f"; next: {_some(late.others)}" if late.others else ""
    clock = f"; its GPU ran at {late.clock}" if late.clock else ""
    return Finding(
        cause=CAUSE,
        status="found",
        recoverable_ms=late.recoverable_ms,
        predicted_step_ms=rest,
        speedup_bound=step_ms / rest,
        where=Where(scope=f"rank {late.rank}"),
        evidence=f"{sentence}{clock}{others}",
        advice=_words(late, gpu=gpu).advice.format(f"rank {late.rank}"),
    )


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:5])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{f' and {len(ranks) - 5} more' if len(ranks) > 5 else ''}"


def _confidence(found: Comparison) -> str:
    """High where all ranks were compared by collectives that agree on more than one step.

    Low where nothing in the late rank's recording explains the delay.
    """
    ranks, late = found.ranks, found.ranks.straggler
    if ranks.steps < 2 or (late is not None and late.cause is None):
        return "low"
    return "medium" if ranks.missing or found.unmatched else "high"


def _compared(finding: Finding, joint: Joint, shown: int) -> Finding:
    """What one rank says of its collectives, where several have been compared."""
    if finding.cause != "communication" or joint.ranks.state == "unknown":
        return finding
    evidence = finding.evidence.replace("; one file cannot tell which rank is late", "")
    late = joint.ranks.straggler
    if late is not None and late.rank != shown:
        evidence += f"; rank {shown} waits there for rank {late.rank}"
    return structs.replace(finding, evidence=evidence)


def _check(check: str, text: str, status: str = "warn") -> TrustCheck:
    return TrustCheck(check=check, status=status, text=text)


def _who(ranks: Ranks) -> Iterator[TrustCheck]:
    if ranks.missing:
        of = f" of {ranks.world_size}" if ranks.world_size else ""
        noun = "rank" if len(ranks.missing) == 1 else "ranks"
        yield _check("ranks", f"{ranks.count}{of} ranks are there, {noun} {number_list(ranks.missing)} missing")
    elif ranks.count > 1:
        yield _check("ranks", f"{ranks.count} of {ranks.count} ranks are there", "ok")


def _duplicate(same: Sequence[RankSummary]) -> TrustCheck:
    used, *others = (_file(one.path) for one in same)
    text = f"more than one file of rank {same[0].rank}: {used} is used, left out: {', '.join(others)}"
    return _check("ranks", text)


def _what_else(
    ranks: Ranks, compared: Sequence[RankSummary], by_order: Sequence[str], *, disagree: bool
) -> Iterator[TrustCheck]:
    if ranks.cpu_only:
        text = f"no GPU work in the recording of rank {number_list(ranks.cpu_only)}: not compared"
        yield _check("ranks", text)
    if by_order and ranks.count > 1:
        files = ", ".join(_file(path) for path in by_order[:3])
        yield _check("ranks", f"no rank in the file or its name, numbered in order: {files}")
    if disagree:
        yield _check("ranks", "the files are of worlds of several sizes")
    for one in compared:
        if one.stopped:
            yield _check("ranks", f"rank {one.rank} stopped with {one.stopped}")
        if one.error:
            yield _check("ranks", f"rank {one.rank}: {one.error}")


def _how(found: Comparison, compared: Sequence[RankSummary]) -> Iterator[TrustCheck]:
    clocks, steps = found.clocks, found.ranks.steps
    if clocks is not None and clocks.residual_ns is not None:
        off, ends = clocks.residual_ns / MS, plural(clocks.ends, "collective")
        if clocks.common:
            text = f"the ranks share one clock; the ends of {ends} lie within ±{time_text(off)}"
            yield _check("rank clocks", text, "ok")
        else:
            bad = off > CLOCK_SHARE * (found.ranks.step_ms or math.inf)
            yield _check(
                "rank clocks", f"clocks aligned on the ends of {ends}, ±{time_text(off)}", "warn" if bad else "ok"
            )
    if found.apart:
        yield _check("rank clocks", f"rank {number_list(found.apart)} shares no collective with the others")
    if steps and len({one.steps for one in compared}) > 1:
        yield _check("rank steps", f"the ranks recorded different steps; {steps} are common and compared")
    if found.unmatched:
        yield _check("collectives", f"{plural(found.unmatched, 'collective')} without a partner on another rank")
    if found.skipped_start is not None:
        rank, ms = found.skipped_start
        text = f"rank {rank} entered the first collective {time_text(ms)} late, as its profiler started: left out"
        yield _check("profiler start", text, "ok")
    if any(not kind.group for one in compared for kind in one.kinds):
        yield _check("collectives", "the recording does not name the process groups: matched by order alone")


def _file(path: str | None) -> str:
    return (path or "").replace("\\", "/").rsplit("/", 1)[-1] or "a process"
