"""The demo notebooks, executed in a real kernel on this machine.

    python -m tests.gpu.notebooks [--only N ...] --out DIR

executes each notebook of `demo_notebooks` in a kernel of its own and writes it, executed, to ``DIR``; on a GPU also
the reports that it shows where there is none, to ``DIR/recorded``, and every report, whole, to ``DIR/reports``. It
holds when no cell fails, on a GPU every verdict is the expected one, each notebook is under 1 MB and each report
under 300 kB, no output holds an absolute path or the name of the host, and all of them together take less than 200 s.
The exit code is 0 only then.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "demo_notebooks"
MOST_NOTEBOOK_BYTES = 1_000_000
MOST_REPORT_BYTES = 300_000
MOST_SECONDS = 200.0
CELL_SECONDS = 180
WIDGET = "application/vnd.jupyter.widget-view+json"
# Kept for a closer look in a live panel; the dashboard is drawn without them.
SPARE_VIEWS = ("groups", "memory", "per_step")
SAVE = """\
import json as _json
for _name in {names}:
    with open(f"report_{{_name}}.json", "w") as _file:
        _json.dump(globals()[_name].to_dict(), _file)
"""

_IMAGE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
_ABSOLUTE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|work|usr|opt|var|etc|mnt|srv|Users|private)/[\w.\-/]+")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One notebook.

    Attributes:
        stem: its file's name.
        expected: name of a report in the notebook → its verdict on a GPU: a cause, ``not`` a cause, or ``cause
            cleared`` for a finding that must be cleared. In the notebook's order.
        shown: the reports that are shown where there is no GPU; the first under the notebook's own name.
    """

    stem: str
    expected: Mapping[str, str]
    shown: tuple[str, ...]

    @property
    def recorded(self) -> dict[str, str]:
        """What is appended to the stem → the report that is kept under that name."""
        return {f"_{name}" if at else "": name for at, name in enumerate(self.shown)}


LESSONS = (
    Lesson(
        "01_first_profile",
        {"report": "cpu_bound", "lean": "cpu_bound", "exported": "cpu_bound", "after": "not cpu_bound"},
        ("report", "after"),
    ),
    Lesson(
        "02_data_starvation",
        {"before": "data_loading", "half": "data_loading", "after": "not data_loading"},
        ("before", "after"),
    ),
    Lesson(
        "03_item_harmful_and_harmless",
        {"before": "host_sync", "after": "not host_sync", "harmless": "host_sync cleared", "unread": "not host_sync"},
        ("before", "after", "harmless"),
    ),
    Lesson("04_attention_against_flash", {"before": "memory_bound", "after": "not memory_bound"}, ("before", "after")),
    Lesson(
        "05_tiny_kernels",
        {"before": "launch_bound", "after": "not launch_bound", "compiled": "not data_loading"},
        ("before", "after"),
    ),
    Lesson(
        "06_memory_churn",
        {"before": "allocator", "after": "not allocator", "growing": "not data_loading"},
        ("before", "after", "growing"),
    ),
    Lesson(
        "07_shapes_and_tensor_cores",
        {
            "before": "misaligned_shapes",
            "after": "not misaligned_shapes",
            "float32": "tensor_cores",
            "autocast": "not tensor_cores",
        },
        ("before", "after", "float32"),
    ),
    Lesson("08_five_step_checkup", {"before": "data_loading", "after": "not data_loading"}, ("before", "after")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """An executed notebook, its reports' dictionaries by name, how long it took, and why it stopped or empty."""

    notebook: Any
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    seconds: float = 0.0
    error: str = ""


def execute(lesson: Lesson, recordings: Path = NOTEBOOKS / "recorded") -> Executed:
    """The lesson's notebook after a kernel of its own ran it, in a new folder with ``recordings`` beside it."""
    begun = time.monotonic()
    notebook = nbformat.read(NOTEBOOKS / f"{lesson.stem}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(SAVE.format(names=list(lesson.expected))))
    error = ""
    with tempfile.TemporaryDirectory(prefix="ipyprof-lesson-") as name:
        folder = Path(name)
        if recordings.is_dir():
            shutil.copytree(recordings, folder / "recorded")
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            resources={"metadata": {"path": name}},
        )
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        try:
            client.execute(env=os.environ | {"PYTHONPATH": paths})
        except CellExecutionError as raised:
            error = f"a cell failed: {raised.ename}: {raised.evalue}"
        except Exception as raised:
            error = f"the notebook did not run: {raised!r}"
        files = {one: folder / f"report_{one}.json" for one in lesson.expected}
        reports = {one: json.loads(file.read_text()) for one, file in files.items() if file.exists()}
    notebook.cells.pop()
    _without_panels(notebook)
    return Executed(notebook=notebook, reports=reports, seconds=time.monotonic() - begun, error=error)


def _without_panels(notebook: Any) -> None:
    """Take the panels out: without their kernel each would be an error message. The text in their place stays."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(WIDGET, None)


def verdict_failures(lesson: Lesson, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with the verdicts, in words; each report must be there, whatever it says."""
    failures = []
    for name, expected in lesson.expected.items():
        report = reports.get(name)
        if report is None:
            failures.append(f"no report {name}")
            continue
        cause = report["verdict"]["cause"]
        if expected.endswith(" cleared"):
            wanted = expected.removesuffix(" cleared")
            found = {one["cause"]: one["status"] for one in report["findings"]}
            held, cause = found.get(wanted) == "cleared", f"{cause} with {wanted} {found.get(wanted)}"
        elif expected.startswith("not "):
            held = cause != expected.removeprefix("not ")
        else:
            held = cause == expected
        if not held:
            failures.append(f"{name} is called {cause}, expected {expected}")
    return failures


def output_failures(notebook: Any, private: Sequence[str] = ()) -> list[str]:
    """What the outputs hold that they must not: absolute paths, and any of the ``private`` texts as a word."""
    failures = []
    for number, text in _outputs(notebook):
        seen = _IMAGE.sub("", text)
        found = [match.group() for match in _ABSOLUTE.finditer(seen)]
        found += [word for word in private if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", seen)]
        failures += [f"cell {number} shows {one!r}" for one in sorted(set(found))]
    return failures


def private_words() -> tuple[str, ...]:
    """What must not leave this machine: its name and the places of this checkout and of temporary files."""
    host = socket.gethostname()
    user = getpass.getuser()
    words = [host, str(ROOT), tempfile.gettempdir(), *([user] if user != "root" else [])]
    return tuple(word for word in words if len(word) > 3 and word != "localhost")


def size_failures(notebook: Any) -> list[str]:
    """Whether the notebook is too large to be passed on."""
    size = len(nbformat.writes(notebook).encode())
    return [] if size < MOST_NOTEBOOK_BYTES else [f"the notebook has {size:,} bytes"]


def _outputs(notebook: Any) -> Iterator[tuple[int, str]]:
    """(number of the cell, text of one output): whatever a reader of the file can see."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            texts = [output.get("text", ""), *output.get("traceback", ())]
            texts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
            yield from ((number, text) for text in texts if isinstance(text, str))


def small(report: Mapping[str, Any]) -> bytes:
    """The report as JSON for the repository, without what only a live panel needs where it would be too large."""
    plain = dict(report)
    for view in (None, *SPARE_VIEWS):
        plain["views"] = {name: value for name, value in plain["views"].items() if name != view}
        data = json.dumps(plain, separators=(",", ":")).encode()
        if len(data) < MOST_REPORT_BYTES:
            break
    return data + b"\n"


def run(lesson: Lesson, out: Path) -> tuple[Executed, list[str]]:
    """The executed notebook, which is in ``out`` now, and in words what does not hold."""
    done = execute(lesson)
    nbformat.write(done.notebook, out / f"{lesson.stem}.ipynb")
    failures = [done.error] if done.error else []
    failures += size_failures(done.notebook) + output_failures(done.notebook, private_words())
    on_device = {name: report for name, report in done.reports.items() if report["device"] is not None}
    if on_device:
        failures += verdict_failures(lesson, done.reports)
        (out / "recorded").mkdir(exist_ok=True)
        (out / "reports").mkdir(exist_ok=True)
        for name, report in on_device.items():
            (out / "reports" / f"{lesson.stem}_{name}.json").write_text(json.dumps(report))
        for part, name in lesson.recorded.items():
            if name in on_device:
                data = small(on_device[name])
                (out / "recorded" / f"{lesson.stem}{part}.json").write_bytes(data)
                if len(data) > MOST_REPORT_BYTES:
                    failures.append(f"the report {name} has {len(data):,} bytes")
    elif not done.error:
        failures += [f"no report {name}" for name in lesson.expected if name not in done.reports]
    return done, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when all holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.notebooks", description="Execute the demo notebooks.")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="the numbers of the notebooks to run")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the executed notebooks go")
    asked = parser.parse_args(arguments)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    total, held = 0.0, True
    for number, lesson in enumerate(LESSONS, 1):
        if asked.only and number not in asked.only:
            continue
        done, failures = run(lesson, out)
        total += done.seconds
        held = held and not failures
        size = (out / f"{lesson.stem}.ipynb").stat().st_size
        print(f"{lesson.stem}: {done.seconds:.1f} s, {size / 1e3:,.0f} kB, {'holds' if not failures else 'FAILS'}")
        for name, report in done.reports.items():
            print(f"    {name}: {report['verdict']['headline']}")
        for failure in failures:
            print(f"    ! {failure}", flush=True)
    print(f"in all {total:.1f} s")
    if total >= MOST_SECONDS:
        print(f"    ! that is more than {MOST_SECONDS:.0f} s")
    return 0 if held and total < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
