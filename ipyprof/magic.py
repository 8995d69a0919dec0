"""``%%gpuprofile`` and ``%gpuprofile``: parse the line, run the code, hand out the report."""

# mypy: disable-error-code="misc, untyped-decorator"
# IPython has no types.

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments
from traitlets import Bool

from ipyprof import history
from ipyprof.errors import IpyprofError, OptionError
from ipyprof.files import check_target, write_text
from ipyprof.options import STEP_WAYS, Options
from ipyprof.show.output import WIDEST, surface_for, takes_rich_output, write_page

if TYPE_CHECKING:
    from ipyprof.report.comparison import Comparison
    from ipyprof.report.report import Report


_TOKEN = re.compile(r"""(?:[^\s"']+|"[^"]*"|'[^']*')+""")
_QUOTED = re.compile(r"""(["'])(.*?)\1""")
_ON_OFF = argparse.BooleanOptionalAction


@magics_class
class GpuProfile(Magics):
    """The magic and its lasting default: ``%config GpuProfile.static = True`` leaves the panel out."""

    static = Bool(False, help="Leave out the panel of widgets; the dashboard is shown all the same.").tag(config=True)

    @output_can_be_silenced
    @no_var_expand
    @magic_arguments()
    @argument("--wait", type=int, help="Steps before the profiler starts (default 2, fewer in a short loop).")
    @argument("--warmup", type=int, help="Steps that the profiler runs and discards (default 2).")
    @argument("--active", type=int, help="Steps that are recorded (default 3).")
    @argument("--repeat", type=int, help="Recordings in one run, each judged (default 1).")
    @argument("--step", choices=STEP_WAYS, help="Where a step ends (default auto: what happens decides).")
    @argument("--loop", type=int, metavar="LINE", help="The loop on this line is the step; line 1 is the magic line.")
    @argument("--limit", type=float, metavar="SECONDS", help="Recording stops by itself after this (default 30).")
    @argument("--at-end", action="store_true", default=None, help="Show the report when the cell ends, not before.")
    @argument("--shapes", action=_ON_OFF, help="Record the shapes of operator inputs (default yes).")
    @argument("--memory", action=_ON_OFF, help="Record allocations (default yes).")
    @argument("--stack", action="store_true", default=None, help="Record Python stacks; slows the recorded steps.")
    @argument("--items", type=float, metavar="N", help="Items of work in one step, for the throughput.")
    @argument("--unit", metavar="NAME", help="What an item is, such as samples or tokens.")
    @argument("-o", dest="output", metavar="NAME", help="Keep the report under this name.")
    @argument("-q", dest="quiet", action="store_true", default=None, help="Show nothing; use it with -o.")
    @argument("--static", action=_ON_OFF, help="Leave out the panel of widgets.")
    @argument("--trace", metavar="FILE", help="Write the trace to this .json or .json.gz file.")
    @argument("--html", metavar="FILE", help="Write the dashboard to this file.")
    @argument("--memory-snapshot", metavar="FILE", help="Write torch's own snapshot, for pytorch.org/memory_viz.")
    @argument("--logdir", metavar="DIR", help="Write the trace into this folder, named as TensorBoard looks for it.")
    @argument("--ranks", choices=("auto",), help="This kernel is one rank of a job: rank 0 reports on all at the end.")
    @argument("--name", help="A title for this run, kept in the trace and in the list of runs.")
    @argument("--compare", action="store_true", default=None, help="Compare two runs: the last two, or A B behind it.")
    @argument("--load", metavar="PATH", help="Show a saved trace or report, or the traces of several ranks (a folder).")
    @argument("--list", action="store_true", default=None, help="List the last ten runs of this session.")
    @argument("--explain", nargs="?", const="", metavar="TOPIC", help="Explain a cause, or how the profiler works.")
    @line_cell_magic
    def gpuprofile(self, line: str, cell: str | None = None) -> object:
        """Run a cell or a statement and show what holds its step back.

        The cell runs as if the magic were not there. A few steps of its loop are recorded with torch.profiler; the
        report comes as soon as they are read, while a long loop goes on.

        Examples::

          %%gpuprofile
          for x, y in loader:
              train_step(x, y)

          %%gpuprofile --items 64 --unit samples -o report
          for x, y in loader:
              train_step(x, y)

          %gpuprofile model(x)

          %%gpuprofile --step cell --active 5
          y = model(x)

          %%gpuprofile --loop 3 --trace step.json.gz --html step.html
          for epoch in range(2):
              for x, y in loader:
                  train_step(x, y)

          %gpuprofile --list
          %gpuprofile --load log/ -o report
          %gpuprofile --compare before after
          %gpuprofile --explain data_loading

        """
        __tracebackhide__ = "__ipython_bottom__"
        from ipyprof.capture.cell import compile_cell

        if self._shown(line, cell):
            return None
        options, code = self._asked(line, cell)
        try:
            compiled = compile_cell(self.shell, code, line_form=cell is None)
        except SyntaxError as error:
            # IPython shows every frame of it; those below this one are the compiler's and ours.
            raise error.with_traceback(None) from None
        return _run(self.shell, options, f"%%gpuprofile {line}".rstrip(), compiled, line_form=cell is None)

    def _shown(self, line: str, cell: str | None) -> bool:
        """Whether the line asks for something to look at, which is shown then, instead of a run.

        Raises:
            UsageError: one line that says what is wrong.
        """
        words, names = self._words_and_names(line)
        given = {
            name: value for name, value in vars(self.gpuprofile.parser.parse_args(words)).items() if value is not None
        }
        asked = [name for name in ("compare", "load", "list", "explain") if name in given]
        if not asked:
            return False

        takes = {"compare": ("output", "quiet", "html"), "load": ("output", "quiet", "static", "html")}
        allowed = takes.get(asked[0], ())
        others = [name for name in given if name != asked[0] and name not in allowed]
        if cell is not None or others or (names and asked[0] != "compare"):
            what = "a cell" if cell is not None else f"--{others[0]}" if others else repr(names[0])
            raise UsageError(f"%gpuprofile --{asked[0]} runs nothing and does not take {what}.")
        try:
            if asked[0] == "list":
                show_runs(self.shell)
            elif asked[0] == "load":
                self._load(given)
            elif asked[0] == "explain":
                show_explanation(self.shell, given["explain"])
            else:
                self._compare(names, given)
        except (IpyprofError, OSError) as error:
            raise UsageError(str(error)) from None
        return True

    def _words_and_names(self, line: str) -> tuple[list[str], list[str]]:
        """The options, and the words between and behind them where ``--compare`` is one; else all the rest is one."""
        parser = self.gpuprofile.parser
        words, rest = split_line(line, parser)
        names = []
        while rest and parser.parse_args(words).compare:
            found = _TOKEN.match(rest)
            if found is None:
                raise UsageError(f"a quote is not closed: {rest}")
            names.append(_QUOTED.sub(r"\2", found.group()))
            more, rest = split_line(rest[found.end() :], parser)
            words += more
        return words, [*names, rest] if rest else names

    def _load(self, given: dict[str, Any]) -> None:
        """Show the report of a saved file, or of several ranks' files; it is kept under the name of ``-o``."""
        from ipyprof.saved import load

        page = Options(html=given.get("html"), output=given.get("output"))
        if page.html is not None:
            check_target("html", page.html)
        report = load(given["load"])
        history.remember(report)
        static = given.get("static", self.static)
        surface_for(self.shell, quiet=given.get("quiet", False), static=static).show(report)
        if page.html is not None:
            write_page(report, page.html)
        _keep(self.shell, page, report)

    def _compare(self, names: list[str], given: dict[str, Any]) -> None:
        """Show two runs side by side; the comparison is kept under the name of ``-o``."""

        page = Options(html=given.get("html"), output=given.get("output"))
        found = show_comparison(self.shell, names, quiet=given.get("quiet", False), page=page.html)
        _keep(self.shell, page, found)

    def _asked(self, line: str, cell: str | None) -> tuple[Options, str]:
        """The options, and the code to run.

        Raises:
            UsageError: one line that says what is wrong.
        """
        from ipyprof.run import check_targets

        parser = self.gpuprofile.parser
        words, rest = split_line(line, parser)
        given = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
        if "limit" in given:
            given["limit_s"] = given.pop("limit")
        given.setdefault("static", self.static)
        try:
            options = Options(**given)
            check_targets(options)
        except OptionError as error:
            raise UsageError(str(error)) from None
        if cell is not None and rest:
            raise UsageError(f"{rest!r} is no option of %%gpuprofile; the code goes on the lines below it.")
        code = rest if cell is None else cell
        if not code.strip():
            raise UsageError("there is nothing to run: %gpuprofile takes a statement, %%gpuprofile a cell below it.")
        return options, code


def _run(shell: Any, options: Options, magic_line: str, compiled: Any, *, line_form: bool) -> object:
    """The value of the cell's last expression. What it raises goes through, after the report of the steps so far."""
    __tracebackhide__ = "__ipython_bottom__"
    from ipyprof.capture.cell import run_cell
    from ipyprof.ranks.job import judge_of
    from ipyprof.run import Run

    surface = surface_for(shell, quiet=options.quiet, static=options.static)
    with Run(
        options,
        surface,
        filename=compiled.filename,
        source=compiled.source if line_form else magic_line + compiled.source,
        loops=compiled.loops,
        text=compiled.text,
        judge=judge_of(options, surface),
        keep=partial(_keep, shell, options),
    ) as detector:
        return run_cell(shell, compiled, detector=detector)


def _keep(shell: Any, options: Options, report: object) -> None:
    """Keep the report, or ``None``, under the name of ``-o``."""
    if options.output is not None:
        shell.user_ns[options.output] = report


def split_line(line: str, parser: argparse.ArgumentParser) -> tuple[list[str], str]:
    """The leading options as words without their quotes, and the raw rest of the line.

    Splitting the rest as well would change ``f("a  b")``. A word ``--`` ends the options.

    Raises:
        UsageError: a quote is not closed.
    """
    takes_value = {
        text: action.nargs != 0 for action in parser._actions for text in action.option_strings
    }  # argparse has no public list of its options
    words: list[str] = []
    rest = line.strip()
    value_follows = False
    while rest and (value_follows or rest.startswith("-")):
        found = _TOKEN.match(rest)
        if found is None:
            raise UsageError(f"a quote is not closed: {rest}")
        word = _QUOTED.sub(r"\2", found.group())
        rest = rest[found.end() :].lstrip()
        if not value_follows and word == "--":
            break
        words.append(word)
        value_follows = not value_follows and takes_value.get(_full_name(word, takes_value), False)
    return words, rest


def _full_name(word: str, known: dict[str, bool]) -> str:
    """The option that ``word`` abbreviates, as argparse reads it, or ``word``."""
    if word in known or not word.startswith("--"):
        return word
    whole = [text for text in known if text.startswith(word)]
    return whole[0] if len(whole) == 1 else word


def load(shell: Any) -> None:
    """Register the magic with a shell. Loading it again replaces it and keeps its lasting default."""
    before = [one for one in shell.configurables if type(one).__name__ == GpuProfile.__name__]
    shell.configurables[:] = [one for one in shell.configurables if one not in before]
    magic = GpuProfile(shell=shell)
    if before:
        magic.static = before[-1].static
    shell.register_magics(magic)


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
    from ipyprof.report.comparison import compare_reports
    from ipyprof.show.comparison import comparison_page, comparison_text

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
    from ipyprof.show.html import runs_bundle
    from ipyprof.show.text import runs_text

    runs = history.numbered()
    present(shell, runs_bundle(runs), runs_text(runs))


def show_explanation(shell: Any, topic: str) -> None:
    """What a cause is, why it costs time and how it is cured; or how the profiler works.

    Raises:
        OptionError: a topic that is none, with those there are.
    """
    from ipyprof.diagnosis.explain import TOPICS, page, plain_text

    if topic not in TOPICS:
        raise OptionError(f"--explain {topic}".rstrip(), f"it takes one of {', '.join(TOPICS)}", "give one of them")
    markdown = page(topic)
    text = plain_text(markdown, _columns())
    present(shell, {"text/plain": text, "text/markdown": markdown}, text)


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
        from ipyprof.saved import load

        return load(name)
    known = [f"{number}" + (f" ({one.source.name})" if one.source.name else "") for number, one in history.numbered()]
    kept = ", ".join(known) or "none"
    raise OptionError(f"--compare {name}", f"the kept runs are {kept}", "give a name, a number or a file")


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)
