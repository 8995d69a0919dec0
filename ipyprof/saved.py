"""Reports of what was saved: a trace, a report, the traces of several ranks. No torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike

import msgspec

import ipyprof.show  # noqa: F401 (registers how reports show themselves)
from ipyprof.errors import IpyprofError
from ipyprof.ranks.files import load_ranks, short_name, trace_files
from ipyprof.report.build import now, report_of
from ipyprof.report.comparison import Comparison, compare_reports
from ipyprof.report.report import Report, Source
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.reader import parse_trace, read_bytes

_REPORT_KEYS = {"schema", "verdict", "breakdown"}
"""What tells a report from other JSON."""


def load(path: str | PathLike[str] | Sequence[str | PathLike[str]]) -> Report:
    """The report of a saved trace, or a saved report; the file's content tells which, plain or gz.

    Several traces, one of each rank of a job, make one report that says who is late and why. The rank is that of
    ``distributedInfo``, else of the file's name (``rank3``), else the place in the list, and the report says so.

    A trace that ``--trace`` wrote carries the cell and what was measured beside the trace, so its numbers, lines and
    verdict are those of the live report. It carries the title (``--name``), but of the options only ``items`` and
    ``unit``.

    Args:
        path: of one file; or the traces of several ranks: a list, a folder, or a pattern such as ``log/*.json.gz``.

    Raises:
        IpyprofError: the file is neither, with what was found. ``TraceError``, one of its kinds, for traces.

    Example:
        >>> ipyprof.load("step.json.gz").verdict.cause  # doctest: +SKIP
        'host_sync'
    """
    if isinstance(path, (list, tuple)):
        return _load_several(path)
    if not isinstance(path, (str, PathLike)):
        raise IpyprofError(
            f"load({type(path).__name__})", "load() takes a path or a list of paths", "give one of the two"
        )
    reports = load_all(path)
    if len(reports) != 1:
        raise IpyprofError(
            f"{os.fspath(path)} holds {len(reports)} reports",
            "load() gives one report",
            "show them with python -m ipyprof report",
        )
    return reports[0]


def compare(before: Report | str | PathLike[str], after: Report | str | PathLike[str]) -> Comparison:
    """What changed between two runs: step time and whether its change is real, parts, operators, throughput, memory.

    Nothing is refused: what makes the two hard to compare (another device, another torch, other work per step, no
    unprofiled steps) is in ``warnings``.

    Args:
        before, after: reports, or paths of saved traces or reports.

    Raises:
        IpyprofError: a file that is neither a trace nor a report.

    Example:
        >>> ipyprof.compare("before.json.gz", "after.json.gz").headline  # doctest: +SKIP
        'Predicted at most 8.1×, reached 8.1×: a step takes 31.6 ms instead of 257 ms.'
    """
    one, other = (given if isinstance(given, Report) else load(given) for given in (before, after))
    return compare_reports(one, other)


def _load_several(paths: Sequence[str | PathLike[str]]) -> Report:
    """The report of a list of files, folders and patterns."""
    if not paths or not all(isinstance(path, (str, PathLike)) for path in paths):
        raise IpyprofError(
            "load([])" if not paths else f"load() with a list of {type(paths[0]).__name__}",
            "a list holds the paths of the ranks' traces",
            "give one path for each rank",
        )
    found = [file for path in paths for file in trace_files(path)]
    return load(found[0]) if len(found) == 1 else load_ranks(found, _of_files(short_name(found)))


def load_all(path: str | PathLike[str]) -> tuple[Report, ...]:
    """As ``load``, and all reports of a list of them."""
    found = trace_files(path)
    if len(found) > 1:
        return (load_ranks(found, _of_files(os.fspath(path))),)
    data = read_bytes(found[0])
    saved = _saved_reports(data)
    if saved is not None:
        return saved
    trace = parse_trace(data, str(found[0]))
    live = trace.live
    if live is None:
        return (report_of(trace, _of_files(str(found[0]))),)
    source = Source(
        kind="live",
        path=str(found[0]),
        name=live.name,
        cell=tuple(live.source.splitlines()),
        options=_kept_options(live),
        created=now(),
        partial=live.partial,
    )
    return (report_of(trace, source),)


def _of_files(name: str) -> Source:
    return Source(kind="file", path=name, created=now())


def _kept_options(live: LiveRecord) -> str:
    """The options that a live record carries, as ``Options.as_text`` writes them."""
    kept = (("items", live.items, None), ("unit", live.unit, "items"))
    return " ".join(f"{name}={value!r}" for name, value, default in kept if value != default)


def _saved_reports(data: bytes) -> tuple[Report, ...] | None:
    """The reports in the JSON text of one or of a list, or ``None`` where it is something else.

    Raises:
        IpyprofError: a report of another schema, or a damaged one.
    """
    if b'"traceEvents"' in data or b'"verdict"' not in data or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    several = plain if isinstance(plain, list) else [plain]
    if not several or not all(isinstance(one, dict) and one.keys() >= _REPORT_KEYS for one in several):
        return None
    return tuple(Report.from_dict(one) for one in several)
