"""Trace files of several ranks: which they are, and one summary each, read side by side in processes.

No trace leaves the process that read it. Run as a module this is such a process: it reads the files that its arguments
name and prints for each, in a line of JSON, its summary or why it is left out.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec

from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.errors import IpyprofError, TraceError
from ipyprof.ranks.judge import check, judge, with_ranks
from ipyprof.ranks.summary import RankSummary, summarise
from ipyprof.report.build import build_report
from ipyprof.report.report import Report, Source
from ipyprof.trace.reader import read_trace

ENDINGS = (".json", ".json.gz")
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_DIGITS = re.compile(r"(\d+)")
_ALLOWED = "load() takes a trace, a report, a list of traces, a folder of them, or a pattern such as log/*.json.gz"


def load_ranks(paths: Sequence[Path], source: Source) -> Report:
    """The report of several ranks' files; its step is that of the late rank, or of the first rank.

    Raises:
        IpyprofError: none of the files is a trace.
    """
    answers = read_summaries(paths)
    summaries = [one for one in answers if isinstance(one, RankSummary)]
    refused = [one for one in answers if isinstance(one, str)]
    if not summaries:
        raise IpyprofError(
            f"none of {len(paths)} files is a trace ({refused[0]})",
            "load() reads what torch.profiler exports",
            "give the traces of the ranks",
        )
    left_out = [check("files", f"left out: {why}") for why in refused]
    joint = judge(summaries, checks=left_out)
    profile = analyse(read_trace(joint.shown.path or ""))
    return with_ranks(build_report(profile, diagnose(profile), source=source), joint, joint.shown.rank)


def trace_files(what: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that a path means: those of a folder, those of a pattern, else itself. Numbers in names count.

    Raises:
        IpyprofError: a folder or pattern without any trace.
    """
    where = Path(os.fspath(what)).expanduser()
    if where.is_dir():
        # One level down: a folder for each host.
        found = _traces(where.iterdir()) or _traces(where.glob("*/*.json*"))
        if not found:
            raise IpyprofError(f"{where} is a folder without .json or .json.gz files", _ALLOWED, "give another one")
    elif not where.exists() and glob.has_magic(str(where)):
        found = [Path(name) for name in glob.glob(str(where), recursive=True) if Path(name).is_file()]
        if not found:
            raise IpyprofError(f"no file is called {where}", _ALLOWED, "check the pattern")
    else:
        return (where,)
    return tuple(sorted(found, key=_natural))


def short_name(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Such as ``log/rank0.json and 7 more``."""
    first = os.fspath(paths[0])
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def read_summaries(paths: Sequence[Path], workers: int | None = None) -> list[RankSummary | str]:
    """For each file in the order given its summary, or why it is left out.

    Files are read by ``workers`` processes (one for each core), each one at a time: at most that many traces are in
    memory.
    """
    count = min(workers or _cores(), len(paths))
    read = _read_side_by_side(paths, count) if count > 1 else {}
    return [read[path] if path in read else summary_of_file(path) for path in paths]


def summary_of_file(path: Path) -> RankSummary | str:
    """The summary of one file, or why it is left out."""
    try:
        return summarise(analyse(read_trace(path)))
    except TraceError as error:
        return str(error)
    except Exception as failure:  # one odd file must not hide what the others say
        return f"{path} could not be analysed ({type(failure).__name__}: {' '.join(str(failure).split())})"


def main() -> None:
    """Read the files that the arguments name."""
    for name in sys.argv[1:]:
        sys.stdout.buffer.write(msgspec.json.encode(summary_of_file(Path(name))) + b"\n")
        sys.stdout.flush()


def _read_side_by_side(paths: Sequence[Path], count: int) -> dict[Path, RankSummary | str]:
    """What so many processes could read; a process that died, or could not be started, leaves files out.

    A new interpreter each, not ``multiprocessing``: that would run the user's script again, or copy a process with CUDA
    in it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGE_PARENT, os.environ.get("PYTHONPATH"))))
    by_size = sorted(paths, key=lambda path: path.stat().st_size if path.is_file() else 0, reverse=True)
    found: dict[Path, RankSummary | str] = {}
    with ExitStack() as on:
        started: list[tuple[subprocess.Popen[bytes], list[Path], IO[bytes]]] = []
        for share in (by_size[at::count] for at in range(count)):
            answers: IO[bytes] = on.enter_context(tempfile.TemporaryFile())
            command = [sys.executable, "-m", "ipyprof.ranks.files", *(str(path.absolute()) for path in share)]
            try:
                process = subprocess.Popen(command, stdout=answers, stderr=subprocess.DEVNULL, env=environment)
            except OSError:
                break
            on.enter_context(process)
            on.callback(process.kill)
            started.append((process, share, answers))
        for process, share, written in started:
            process.wait()
            written.seek(0)
            whole = [line for line in written if line.endswith(b"\n")]
            found.update(
                zip(share, (msgspec.json.decode(line, type=RankSummary | str) for line in whole), strict=False)
            )
    return found


def _traces(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.is_file() and path.name.endswith(ENDINGS)]


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """A key by which ``rank10`` comes after ``rank2``."""
    parts = _DIGITS.split(str(path))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


if __name__ == "__main__":
    main()
