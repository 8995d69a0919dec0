"""One report of several recordings of a loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Verdict
from ipyprof.diagnosis.trust import LEVELS, Check
from ipyprof.formatting import percent_short, plural, times_text
from ipyprof.report.report import Report, TrustCheck
from ipyprof.trace.live import Repeat, Repeats


def choose(recordings: Sequence[Repeat], whole: Sequence[bool]) -> int:
    """Index of the recording that stands for all.

    Among those with the most frequent cause it is the one whose step is nearest to the median of all steps; the earlier
    of two. One that ended early is only taken where all did.

    Args:
        recordings: at least one, in order.
        whole: of each, whether it did not end early.
    """
    taken = [at for at, complete in enumerate(whole) if complete] or list(range(len(recordings)))
    counts = Counter(recordings[at].cause for at in taken)
    most = max(counts.values())
    typical = _typical(recordings)

    def distance(at: int) -> float:
        step = recordings[at].step_ms
        # Rounded, so that of two the first is as near as the second.
        return float("inf") if step is None or not typical else round(abs(step - typical) / typical, 6)

    return min((at for at in taken if counts[recordings[at].cause] == most), key=distance)


def sentence(repeats: Repeats) -> str:
    """Such as ``3 recordings: step 12.0, 12.1, 12.4 ms; verdict the same in 3 of 3``."""
    count = len(repeats.recordings)
    steps = _steps(repeats.recordings)
    told = f"step {times_text(steps)}" if steps else "no step was timed without the profiler"
    if steps and len(steps) < count:
        told += f" ({count - len(steps)} not measured)"
    causes = Counter(one.cause for one in repeats.recordings)
    if count == 1:
        verdict = f"verdict {next(iter(causes))}"
    elif len(causes) == 1:
        verdict = f"verdict the same in {count} of {count}"
    else:
        verdict = "verdict " + ", ".join(f"{cause} in {times} of {count}" for cause, times in causes.most_common())
    return f"{plural(count, 'recording')}: {told}; {verdict}"


def check(repeats: Repeats) -> Check:
    """The same as a check, with the number of the recording that is shown."""
    status = "warn" if _doubts(repeats) else "ok"
    cut_off = ", which ran out of memory," if repeats.shown > len(repeats.recordings) else ""
    return Check(check="repeat", status=status, text=f"{sentence(repeats)}; number {repeats.shown}{cut_off} is shown")


def judged(verdict: Verdict, repeats: Repeats) -> Verdict:
    """The verdict of the recording that is shown, with less confidence where the others say something else."""
    doubts = _doubts(repeats)
    if not doubts:
        return verdict
    same = sum(one.cause == verdict.cause for one in repeats.recordings)
    most = 1 if 2 * same > len(repeats.recordings) else 0
    level = LEVELS[min(LEVELS.index(verdict.confidence), most)]
    return replace(verdict, confidence=level, reasons=(*verdict.reasons, *doubts))


def _doubts(repeats: Repeats) -> tuple[str, ...]:
    """What differs between the recordings, each a part of a sentence."""
    doubts = []
    causes = [one.cause for one in repeats.recordings]
    if len(set(causes)) > 1:
        doubts.append(f"the recordings disagree: {', '.join(causes)}")
    steps, typical = _steps(repeats.recordings), _typical(repeats.recordings)
    spread = (max(steps) - min(steps)) / typical if typical else 0.0
    if spread > thresholds.UNSTABLE_SHARE:
        doubts.append(f"the recordings' steps vary by {percent_short(spread)}")
    return tuple(doubts)


def _steps(recordings: Sequence[Repeat]) -> list[float]:
    return [one.step_ms for one in recordings if one.step_ms is not None]


def _typical(recordings: Sequence[Repeat]) -> float | None:
    steps = _steps(recordings)
    return median(steps) if steps else None


def put_together(reports: Sequence[Report]) -> Repeats:
    """What the recordings said, and which of them is to be shown.

    The steps behind a recording are its own; those before it are the earlier one's and counted there. A last one that
    ran out of memory is shown and says nothing of the steps, as long as there are others.

    Args:
        reports: of the single recordings, in order.
    """
    whole = reports[:-1] if len(reports) > 1 and _failed_while_recorded(reports[-1]) else reports
    recordings = tuple(
        Repeat(
            step_ms=report.steps.step_ms if at == 0 or report.steps.baseline.startswith("after") else None,
            cause=report.verdict.cause,
        )
        for at, report in enumerate(whole)
    )
    shown = choose(recordings, [not report.source.partial for report in whole]) if len(whole) == len(reports) else -1
    return Repeats(shown=shown % len(reports) + 1, recordings=recordings)


def _failed_while_recorded(report: Report) -> bool:
    failed = report.failed_request
    return failed is not None and not failed.later


def with_repeats(report: Report, repeats: Repeats) -> Report:
    """The report of the shown recording with what all of them say."""
    said = check(repeats)
    return replace(
        report,
        repeats=repeats,
        verdict=judged(report.verdict, repeats),
        trust=(*report.trust, TrustCheck(check=said.check, status=said.status, text=said.text)),
    )


def repeats_text(report: Report) -> str:
    """One line of what several recordings said; empty for a single one."""
    return "" if report.repeats is None else f"{sentence(report.repeats)}."
