"""What ``%gpuprofile`` shows without running anything: a comparison, the list of runs, an explanation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipyprof import api, history
from ipyprof.delivery import check_target, write_text
from ipyprof.errors import OptionError
from ipyprof.surface import WIDEST, takes_rich_output

if TYPE_CHECKING:
    from ipyprof.report.comparison import Comparison
    from ipyprof.report.report import Report

_KEEP_TWO = "profile two runs first, or give two names, numbers or files"


def show_comparison(shell: Any, names: Sequence[str], *, quiet: bool = False, page: Path | None = None) -> Comparison:
    """The comparison of two runs of this session, or of files; shown, and written to ``page``.

    Args:
        names: none (the last two runs), one (compared with the last run) or two: titles, numbers or paths.

    Raises:
        OptionError: more than two names, too few runs, or a name of nothing.
        IpyprofError: a file that cannot be read.
        OSError: ``page`` cannot be written.
    """
    from ipyprof.report.compare import compare_reports
    from ipyprof.report.compare_html import comparison_page
    from ipyprof.report.compare_text import comparison_text

    if page is not None:
        check_target("html", page)
    found = compare_reports(*_two(names))
    if page is not None:
        write_text(comparison_page(found), page)
    if not quiet:
        present(shell, found._repr_mimebundle_(), comparison_text(found, _columns()))
    return found


def show_runs(shell: Any) -> None:
    """The kept runs of this session with their numbers."""
    from ipyprof.report.run_list import runs_bundle, runs_text

    runs = history.numbered()
    present(shell, runs_bundle(runs), runs_text(runs))


def show_explanation(shell: Any, topic: str) -> None:
    """What a cause is, why it costs time and how it is cured; or how the profiler works.

    Raises:
        OptionError: a topic that is none, with those there are.
    """
    from ipyprof.diagnosis.explain import markdown, plain_text
    from ipyprof.diagnosis.explanations import BY_TOPIC, TOPICS

    if topic not in TOPICS:
        raise OptionError(f"--explain {topic}".rstrip(), f"it takes one of {', '.join(TOPICS)}", "give one of them")
    told = BY_TOPIC[topic]
    text = plain_text(told, _columns())
    present(shell, {"text/plain": text, "text/markdown": markdown(told)}, text)


def present(shell: Any, bundle: Mapping[str, str], text: str) -> None:
    """The bundle where the front end takes one, else the text."""
    if takes_rich_output(shell):
        from IPython.display import display

        display(dict(bundle), raw=True)
    else:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)


def _two(names: Sequence[str]) -> tuple[Report, Report]:
    kept = history.reports()
    if len(names) > 2:
        raise OptionError(f"--compare {' '.join(names)}", "it takes two runs", "put names with blanks in quotes")
    if len(names) == 2:
        return _report(names[0]), _report(names[1])
    if len(kept) < 2 - len(names):
        have = "no run" if not kept else "one run"
        raise OptionError("--compare", f"{have} of this session is kept", _KEEP_TWO)
    return (_report(names[0]) if names else kept[-2]), kept[-1]


def _report(name: str) -> Report:
    found = history.find(name)
    if found is not None:
        return found
    if Path(name).expanduser().exists():
        return api.load(name)
    known = [f"{number}" + (f" ({one.source.name})" if one.source.name else "") for number, one in history.numbered()]
    kept = ", ".join(known) or "none"
    raise OptionError(f"--compare {name}", f"the kept runs are {kept}", "give a name, a number or a file")


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)
