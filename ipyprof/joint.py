"""One report of several ranks: from their files, or from the summaries of a running job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipyprof.errors import IpyprofError

if TYPE_CHECKING:
    from ipyprof.analysis.profile import Profile
    from ipyprof.analysis.rank_roll import Roll
    from ipyprof.diagnosis.straggler import Joint
    from ipyprof.report.report import Report, Source

Note = tuple[str, str, str]

_ANOTHER_HAS_GONE = re.compile(r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote|nccl", re.IGNORECASE)
"""What collectives say on the other ranks when one rank is gone."""


def load_ranks(paths: Sequence[Path], name: str) -> Report:
    """The report of several ranks' files; its step is that of the late rank, or of the first rank.

    Args:
        name: what the user called them, for the report.

    Raises:
        IpyprofError: none of the files is a trace.
    """
    from ipyprof.analysis.profile import analyse
    from ipyprof.analysis.rank_roll import call_the_roll
    from ipyprof.delivery import now
    from ipyprof.rank_files import read_summaries
    from ipyprof.report.report import Source
    from ipyprof.trace.reader import read_trace

    summaries, refused = read_summaries(paths)
    if not summaries:
        raise IpyprofError(
            f"none of {len(paths)} files is a trace ({refused[0]})",
            "load() reads what torch.profiler exports",
            "give the traces of the ranks",
        )
    roll = call_the_roll(summaries)
    joint = judge(roll, notes=[("files", "warn", f"left out: {why}") for why in refused])
    late = joint.comparison.straggler
    shown = next((one for one in roll.ranks if late is not None and one.rank == late.rank), roll.ranks[0])
    profile = analyse(read_trace(shown.path))
    source = Source(kind="file", path=name, created=now())
    return build(roll, joint, profile, shown.rank, source)


def judge(roll: Roll, *, notes: Sequence[Note] = ()) -> Joint:
    """Who of these ranks is late, with what could make that wrong."""
    from ipyprof.analysis.ranks import compare
    from ipyprof.diagnosis.rank_trust import rank_checks
    from ipyprof.diagnosis.straggler import Joint

    comparison = compare(roll.ranks)
    return Joint(
        comparison=comparison,
        count=len(roll.ranks) + len(roll.cpu_only),
        missing=roll.missing,
        world_size=roll.world_size,
        cpu_only=tuple(one.rank for one in roll.cpu_only),
        notes=(*rank_checks(roll, comparison), *notes),
        gpu=any(one.has_gpu for one in roll.ranks),
        stopped=_stopped(roll),
    )


def _stopped(roll: Roll) -> tuple[tuple[int, str], ...]:
    """Ranks that ended by an exception, those first whose error is not that another rank has gone."""
    stopped = [(one.rank, one.stopped) for one in roll.ranks if one.stopped]
    return tuple(sorted(stopped, key=lambda one: (bool(_ANOTHER_HAS_GONE.search(one[1])), one[0])))


def build(
    roll: Roll,
    joint: Joint,
    profile: Profile,
    shown: int,
    source: Source,
    *,
    kept: Mapping[int, str] | None = None,
) -> Report:
    """The report of the shown rank with what all ranks say in it.

    Args:
        shown: the rank that ``profile`` is of.
        kept: rank → why its trace was kept, and where.
    """
    from ipyprof.diagnosis.straggler import join
    from ipyprof.diagnosis.verdict import diagnose
    from ipyprof.report.build import build_report
    from ipyprof.report.ranks import ranks_value
    from ipyprof.report.report import TrustCheck

    findings, verdict = join(joint, *diagnose(profile), shown=shown, has_gpu=profile.has_gpu)
    report = build_report(profile, findings, verdict, source=source)
    trust = tuple(TrustCheck(check=check, status=status, text=text) for check, status, text in joint.notes)
    return replace(report, ranks=ranks_value(roll, joint, shown, kept or {}), trust=(*report.trust, *trust))


def short_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Such as ``log/rank0.json and 7 more``."""
    first = os.fspath(paths[0])
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
