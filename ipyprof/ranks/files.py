"""Many trace files to one summary each: side by side in processes, so that no trace leaves the process that read it.

Run as a module it is such a process: paths come on standard input, one in a line, and summaries go out as JSON.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from ipyprof.errors import IpyprofError, TraceError
from ipyprof.ranks.summary import UNKNOWN_RANK, RankSummary, summarise

if TYPE_CHECKING:
    from ipyprof.analysis.profile import Profile
    from ipyprof.ranks.judge import Joint
    from ipyprof.ranks.summary import Roll
    from ipyprof.report.report import Report, Source


ENDINGS = (".json", ".json.gz")
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[1])
_DIGITS = re.compile(r"(\d+)")
_ALLOWED = "load() takes a trace, a report, a list of traces, a folder of them, or a pattern such as log/*.json.gz"


def trace_files(what: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that a path means: those of a folder, those of a pattern, else itself. Numbers in names count.

    Raises:
        IpyprofError: a folder or pattern without any trace.
    """
    where = Path(os.fspath(what)).expanduser()
    if where.is_dir():
        found = [path for path in where.iterdir() if path.is_file() and path.name.endswith(ENDINGS)]
        # One level down: a folder for each host.
        found = found or [path for path in where.glob("*/*.json*") if path.is_file() and path.name.endswith(ENDINGS)]
        if not found:
            raise IpyprofError(f"{where} is a folder without .json or .json.gz files", _ALLOWED, "give another one")
    elif not where.exists() and glob.has_magic(str(where)):
        found = [Path(name) for name in glob.glob(str(where), recursive=True) if Path(name).is_file()]
        if not found:
            raise IpyprofError(f"no file is called {where}", _ALLOWED, "check the pattern")
    else:
        return (where,)
    return tuple(sorted(found, key=_natural))


def read_summaries(paths: Sequence[Path], workers: int | None = None) -> tuple[list[RankSummary], list[str]]:
    """(a summary for each readable file in the order given, why each of the others is left out).

    Files are read by as many processes as there are cores, each one at a time: at most that many traces are in memory.

    Args:
        workers: processes; ``None`` = one for each core.
    """
    count = min(workers or cores(), len(paths))
    answers: list[dict[str, Any] | None] = [None] * len(paths)
    if count > 1:
        _read_side_by_side(paths, answers, count)
    for at, path in enumerate(paths):
        if answers[at] is None:
            answers[at] = answer(path)
    whole = [one for one in answers if one is not None]
    found = [RankSummary.from_dict(one["summary"]) for one in whole if "summary" in one]
    return found, [str(one["refused"]) for one in whole if "refused" in one]


def answer(path: Path) -> dict[str, Any]:
    """``{"summary": ...}`` of one file, or ``{"refused": why}``."""
    try:
        return {"summary": _summary(path).to_dict()}
    except TraceError as error:
        return {"refused": str(error)}
    except Exception as failure:  # one odd file must not hide what the others say
        text = " ".join(str(failure).split())
        return {"refused": f"{path} could not be analysed ({type(failure).__name__}: {text})"}


def _summary(path: Path) -> RankSummary:
    from ipyprof.analysis.profile import analyse
    from ipyprof.trace.reader import read_trace

    trace = read_trace(path)
    world = trace.metadata.get("distributedInfo")
    rank = world.get("rank") if isinstance(world, dict) else None
    known = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0
    return summarise(
        analyse(trace),
        rank=rank if known and isinstance(rank, int) else UNKNOWN_RANK,
        rank_from="distributedInfo" if known else "",
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_side_by_side(paths: Sequence[Path], answers: list[dict[str, Any] | None], count: int) -> None:
    """Fill ``answers``; what a process could not answer stays ``None`` and is read here.

    A new interpreter each, not ``multiprocessing``: that would run the user's script again, or copy a process with CUDA
    in it.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for at in sorted(range(len(paths)), key=lambda at: -_size(paths[at])):
        waiting.put(at)
    threads = [threading.Thread(target=_feed, args=(waiting, paths, answers), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _feed(waiting: queue.SimpleQueue[int], paths: Sequence[Path], answers: list[dict[str, Any] | None]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")) if part
    )
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "ipyprof.ranks.files"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    except OSError:
        return
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            while True:
                try:
                    at = waiting.get_nowait()
                except queue.Empty:
                    break
                answers[at] = _asked(process.stdin, process.stdout, paths[at])
                if answers[at] is None:
                    break
        finally:
            process.kill()


def _asked(question: IO[bytes], reply: IO[bytes], path: Path) -> dict[str, Any] | None:
    """A process's answer for one file, or ``None`` where it died on it."""
    try:
        question.write(json.dumps(str(path.absolute())).encode() + b"\n")
        question.flush()
        line = reply.readline()
        found = json.loads(line) if line else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """A key by which ``rank10`` comes after ``rank2``."""
    parts = _DIGITS.split(str(path))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(Path(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()

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
    from ipyprof.ranks.summary import call_the_roll
    from ipyprof.report.report import Source
    from ipyprof.run import now
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
    from ipyprof.ranks.comparison import compare
    from ipyprof.ranks.judge import Joint, rank_checks

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
    from ipyprof.diagnosis.verdict import diagnose
    from ipyprof.ranks.judge import join
    from ipyprof.ranks.report import ranks_value
    from ipyprof.report.build import build_report
    from ipyprof.report.report import Ranks, TrustCheck

    found = diagnose(profile)
    findings, verdict = join(joint, found.findings, found.verdict, shown=shown, has_gpu=profile.has_gpu)
    report = build_report(profile, dataclasses.replace(found, findings=findings, verdict=verdict), source=source)
    trust = tuple(TrustCheck(check=check, status=status, text=text) for check, status, text in joint.notes)
    ranks = msgspec.convert(ranks_value(roll, joint, shown, kept or {}), Ranks)
    return structs.replace(report, ranks=ranks, trust=(*report.trust, *trust))


def short_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Such as ``log/rank0.json and 7 more``."""
    first = os.fspath(paths[0])
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
