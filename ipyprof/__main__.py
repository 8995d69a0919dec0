"""``python -m ipyprof``: ``demo``, ``report``, ``compare`` and ``doctor``. An error is one line, exit code 2."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ipyprof import __version__, files
from ipyprof.errors import IpyprofError, OptionError
from ipyprof.files import check_target, write_text
from ipyprof.saved import compare, load_all
from ipyprof.show.output import write_page


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0; 1 after a check that failed; 2 after an error that was told."""
    asked = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the text has signs that not every terminal has
    try:
        if asked.command == "compare":
            code = _compare(asked.before, asked.after, as_json=asked.json, page=asked.html)
        elif asked.command == "doctor":
            code = _doctor()
        else:
            code = _demo() if asked.command == "demo" else _report(asked.files, as_json=asked.json, page=asked.html)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has enough
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush when Python exits
        return 0
    except (IpyprofError, OSError) as error:
        print(f"ipyprof: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ipyprof", description="Say what holds a training step back.")
    parser.add_argument("--version", action="version", version=f"ipyprof {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="profile a small training cell here, on the GPU if there is one")
    commands.add_parser("doctor", help="whether ipyprof can do its work here, and what to do where it cannot")
    report = commands.add_parser("report", help="the report of a saved trace, or a saved report")
    report.add_argument("files", nargs="+", metavar="FILE", help="a trace (.json or .json.gz), or the JSON of reports")
    report.add_argument("--json", action="store_true", help="print JSON; a list where there are several files")
    report.add_argument("--html", type=Path, metavar="FILE", help="write the dashboard to this file")
    comparison = commands.add_parser("compare", help="two runs side by side: what changed, and whether it is real")
    for name in ("before", "after"):
        comparison.add_argument(name, metavar=name.upper(), help="a trace (.json or .json.gz), or the JSON of a report")
    comparison.add_argument("--json", action="store_true", help="print JSON")
    comparison.add_argument("--html", type=Path, metavar="FILE", help="write the card to this file")
    return parser


def _doctor() -> int:
    from ipyprof.doctor import check_up, rendered

    checks = check_up(lambda text: print(text, file=sys.stderr))
    print(rendered(checks))
    return int(any(check.status == "fail" for check in checks))


def _demo() -> int:
    from ipyprof.demo import run_demo

    page = run_demo()
    print(f"The dashboard as a page: {page}")
    return 0


def _report(paths: Sequence[str], *, as_json: bool, page: Path | None) -> int:
    from ipyprof.show.text import render_text

    if page is not None:
        if len(paths) > 1:
            raise OptionError(f"--html with {len(paths)} files", "a page shows one report", "give one file")
        if files.same_file(page, Path(paths[0]).expanduser()):
            raise OptionError(f"--html {page}", "that is the file to read", "give another name")
        check_target("html", page)
    loaded = [(path, load_all(path)) for path in paths]
    reports = [report for _, some in loaded for report in some]
    if page is not None and len(reports) > 1:
        raise OptionError(f"--html with {len(reports)} reports", "a page shows one report", "give a file of one")
    if page is not None:
        write_page(reports[0], page)
    if as_json:
        plain = [report.to_dict() for report in reports]
        print(json.dumps(plain[0] if len(plain) == 1 else plain, allow_nan=False))
    elif page is not None:
        print(f"The dashboard as a page: {page}")
    else:
        for path, some in loaded:
            for number, report in enumerate(some, 1):
                if len(reports) > 1:
                    print(f"== {path}" + (f", {number} of {len(some)}" if len(some) > 1 else ""))
                print(render_text(report))
    return 0


def _compare(before: str, after: str, *, as_json: bool, page: Path | None) -> int:
    from ipyprof.show.comparison import comparison_page, comparison_text

    if page is not None:
        if any(files.same_file(page, Path(path).expanduser()) for path in (before, after)):
            raise OptionError(f"--html {page}", "that is a file to read", "give another name")
        check_target("html", page)
    found = compare(before, after)
    if page is not None:
        write_text(comparison_page(found), page)
    if as_json:
        print(json.dumps(found.to_dict(), allow_nan=False))
    elif page is not None:
        print(f"The comparison as a page: {page}")
    else:
        print(comparison_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
