"""What several ranks say together: who is there, the sentence, the finding, and the verdict of the joint report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_ALONE = "could not tell who is late: rank {} missing"
_UNSEEN = Words("", "unknown", "Record {} alone and look where its step differs from the others'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """What several ranks say together.

    Attributes:
        ranks: for the report, all but ``shown``.
        comparison: of those that can be compared.
        finding: of the cause ``straggler``.
        checks: for ``trust``.
        stopped: (rank, exception in words) of ranks that ended by one, those first whose error is their own.
    """

    ranks: Ranks
    comparison: Comparison
    finding: Finding
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
    by_rank: dict[int, list[RankSummary]] = {}
    numbered, by_order = _numbered(summaries)
    for one in numbered:
        by_rank.setdefault(one.rank, []).append(one)
    chosen = [by_rank[rank][0] for rank in sorted(by_rank)]
    gpu = any(one.has_gpu for one in chosen)
    compared = [one for one in chosen if one.has_gpu or not gpu]
    left_out = [one for one in chosen if gpu and not one.has_gpu]
    sizes = {one.world_size for one in chosen if one.world_size}
    found = compare(compared)
    missing = tuple(rank for rank in range(max([*sizes, max(by_rank) + 1])) if rank not in by_rank)
    sentence = _late_text(found) if len(chosen) > 1 or not missing else _ALONE.format(number_list(missing))
    stopped = sorted(
        ((one.rank, one.stopped) for one in compared if one.stopped),
        key=lambda one: (_ANOTHER_HAS_GONE.search(one[1]) is not None, one[0]),
    )
    if stopped:
        more = f" ({len(stopped) - 1} more stopped)" if stopped[1:] else ""
        sentence = f"rank {stopped[0][0]} stopped with {stopped[0][1]}{more}; {sentence}"
    ranks = structs.replace(
        found.ranks,
        count=len(chosen),
        missing=missing,
        world_size=max(sizes, default=None),
        cpu_only=tuple(one.rank for one in left_out),
        duplicates=tuple(rank for rank, same in sorted(by_rank.items()) if same[1:]),
        per_rank=(*found.ranks.per_rank, *(one.row() for one in left_out)),
        sentence=sentence,
    )
    who = _who(ranks, by_rank, by_order, compared, worlds=len(sizes))
    return Joint(
        ranks=ranks,
        comparison=found,
        finding=_finding(found, sentence),
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
    own, finding, text = report.verdict, joint.finding, _late_text(joint.comparison)
    on_gpu = report.breakdown.kernel is not None
    verdict = Verdict(
        cause=CAUSE,
        headline=f"{text[0].upper()}{text[1:]}.",
        advice=finding.advice,
        bound=_words(joint.comparison).bound,
        recoverable_ms=finding.recoverable_ms,
        predicted_step_ms=finding.predicted_step_ms,
        speedup_bound=finding.speedup_bound,
        confidence=_confidence(joint, own.confidence),
        reasons=(*own.reasons, *(one.text for one in joint.checks if one.status != "ok")),
        next=own.cause if on_gpu and own.cause not in ("compute_bound", "inconclusive") else None,
    )
    return structs.replace(joined, verdict=verdict, views=structs.replace(report.views, without=None))


def check(name: str, text: str, status: str = "warn") -> TrustCheck:
    """A check for ``trust``."""
    return TrustCheck(check=name, status=status, text=text)


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
    """(every summary with its rank, the files of those whose rank is only their place)."""
    named, by_order = [], []
    for one in summaries:
        in_name = _IN_NAME.findall(_file(one.path)) if one.rank == UNKNOWN_RANK else ()
        named.append(structs.replace(one, rank=int(in_name[-1])) if in_name else one)
    taken = {one.rank for one in named}
    free = (number for number in range(2 * len(named)) if number not in taken)
    for at, one in enumerate(named):
        if one.rank == UNKNOWN_RANK:
            by_order.append(_file(one.path))
            named[at] = structs.replace(one, rank=next(free))
    return named, by_order


def _late_text(found: Comparison) -> str:
    """Who is late and why, in one sentence without its full stop."""
    ranks, late = found.ranks, found.ranks.straggler
    if late is not None:
        head = f"rank {late.rank} is late by {time_text(late.late_ms)}"
        return f"{head} on {late.steps_late} of {plural(ranks.steps, 'step')}: {_because(found, late)}"
    if ranks.state == "unknown":
        return f"could not tell who is late: {found.reason}"
    most, usual = (time_text(max(ms, 0.0)) for ms in (found.worst_ms, found.usual_ms))
    if ranks.state == "varying":
        share = _share(found.worst_ms, found)
        return f"no rank is the late one: on each step another rank is late, by at most {most}{share}"
    compared = sum(1 for one in ranks.per_rank if one.late_ms is not None)
    behind = f"{usual}{_share(found.usual_ms, found)} behind the others"
    at_most = f", at most {most}" if most != usual else ""
    return f"{plural(compared, 'rank')} are balanced: the latest is {behind}{at_most}"


def _because(found: Comparison, late: Straggler) -> str:
    if late.cause is None:
        return "its recording does not show why"
    same = " for the same kernels" if late.cause == "slow_gpu" else ""
    text = f"{_words(found).takes} {time_text(late.own_ms)}{same}, the others' {time_text(late.others_ms)}"
    if found.gpu and late.more_kernels >= 0.5:
        text += f", with {plural(round(late.more_kernels), 'more kernel')}"
    return text


def _words(found: Comparison) -> Words:
    cause = None if found.ranks.straggler is None else found.ranks.straggler.cause
    return _ON_CPU if cause == "compute" and not found.gpu else _WORDS.get(cause or "", _UNSEEN)


def _share(ms: float, found: Comparison) -> str:
    """A delay as a share of the recorded step it is part of, in brackets."""
    return f" ({percent_short(max(ms, 0.0) / found.recorded_ms)} of the step)" if found.recorded_ms else ""


def _finding(found: Comparison, sentence: str) -> Finding:
    state, late, step_ms = found.ranks.state, found.ranks.straggler, found.ranks.step_ms
    if state in ("unknown", "varying"):
        # Where ranks are late in turn, each step waits for its own; what curing all of them would gain is not known.
        return Finding(cause=CAUSE, status="unknown", evidence=found.reason or sentence)
    gained = 0.0 if late is None else late.recoverable_ms
    rest = None if step_ms is None else max(step_ms - gained, 1e-6)
    finding = Finding(
        cause=CAUSE,
        status="cleared",
        recoverable_ms=gained,
        predicted_step_ms=rest,
        speedup_bound=step_ms / rest if step_ms and rest else 1.0,
        evidence=sentence,
    )
    if late is None or step_ms is None:
        return finding
    others = f"; next: rank {number_list(late.others)}" if late.others else ""
    clock = f"; its GPU ran at {late.clock}" if late.clock else ""
    return structs.replace(
        finding,
        status="found",
        where=Where(scope=f"rank {late.rank}"),
        evidence=f"{sentence}{clock}{others}",
        advice=_words(found).advice.format(f"rank {late.rank}"),
    )


def _confidence(joint: Joint, of_rank: str) -> str:
    """High where all ranks were compared by collectives that agree on more than one step; a file's is medium.

    Low where nothing in the late rank's recording explains the delay.
    """
    ranks = joint.ranks
    if ranks.steps < 2 or (ranks.straggler is not None and ranks.straggler.cause is None):
        return "low"
    return "high" if of_rank == "high" and not ranks.missing and not joint.comparison.unmatched else "medium"


def _compared(finding: Finding, joint: Joint, shown: int) -> Finding:
    """What one rank says of its collectives, where several have been compared."""
    if finding.cause != "communication" or joint.ranks.state == "unknown":
        return finding
    evidence = finding.evidence.replace("; one file cannot tell which rank is late", "")
    late = joint.ranks.straggler
    if late is not None and late.rank != shown:
        evidence += f"; rank {shown} waits there for rank {late.rank}"
    return structs.replace(finding, evidence=evidence)


def _who(
    ranks: Ranks,
    by_rank: Mapping[int, Sequence[RankSummary]],
    by_order: Sequence[str],
    compared: Sequence[RankSummary],
    *,
    worlds: int,
) -> Iterator[TrustCheck]:
    """Who is there. ``by_order``: files whose rank is only their place; ``worlds``: sizes that the files say."""
    if ranks.missing:
        of = f" of {ranks.world_size}" if ranks.world_size else ""
        noun = "rank" if len(ranks.missing) == 1 else "ranks"
        yield check("ranks", f"{ranks.count}{of} ranks are there, {noun} {number_list(ranks.missing)} missing")
    elif ranks.count > 1:
        yield check("ranks", f"{ranks.count} of {ranks.count} ranks are there", "ok")
    for rank in ranks.duplicates:
        used, *others = (_file(one.path) for one in by_rank[rank])
        text = f"more than one file of rank {rank}: {used} is used, left out: {', '.join(others)}"
        yield check("ranks", text)
    if ranks.cpu_only:
        text = f"no GPU work in the recording of rank {number_list(ranks.cpu_only)}: not compared"
        yield check("ranks", text)
    if by_order and ranks.count > 1:
        yield check("ranks", f"no rank in the file or its name, numbered in order: {', '.join(by_order[:3])}")
    if worlds > 1:
        yield check("ranks", "the files are of worlds of several sizes")
    for one in compared:
        if one.stopped:
            yield check("ranks", f"rank {one.rank} stopped with {one.stopped}")
        if one.error:
            yield check("ranks", f"rank {one.rank}: {one.error}")


def _how(found: Comparison, compared: Sequence[RankSummary]) -> Iterator[TrustCheck]:
    clocks, steps = found.clocks, found.ranks.steps
    if clocks is not None and clocks.residual_ns is not None:
        off, ends = clocks.residual_ns / MS, plural(clocks.ends, "collective")
        if clocks.common:
            text = f"the ranks share one clock; the ends of {ends} lie within ±{time_text(off)}"
            yield check("rank clocks", text, "ok")
        else:
            bad = off > CLOCK_SHARE * (found.ranks.step_ms or math.inf)
            yield check(
                "rank clocks", f"clocks aligned on the ends of {ends}, ±{time_text(off)}", "warn" if bad else "ok"
            )
    if found.apart:
        yield check("rank clocks", f"rank {number_list(found.apart)} shares no collective with the others")
    if steps and len({one.steps for one in compared}) > 1:
        yield check("rank steps", f"the ranks recorded different steps; {steps} are common and compared")
    if found.unmatched:
        yield check("collectives", f"{plural(found.unmatched, 'collective')} without a partner on another rank")
    if found.skipped_start is not None:
        rank, ms = found.skipped_start
        text = f"rank {rank} entered the first collective {time_text(ms)} late, as its profiler started: left out"
        yield check("profiler start", text, "ok")
    if any(not kind.group for one in compared for kind in one.kinds):
        yield check("collectives", "the recording does not name the process groups: matched by order alone")


def _file(path: str | None) -> str:
    return (path or "").replace("\\", "/").rsplit("/", 1)[-1] or "a process"
