"""The house, read from its source: which room may import what, no circles, nothing imported late, nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ipyprof"

SHELVES = frozenset({"errors", "files", "formatting", "options"})
"""Modules that any room may use; among each other only downwards."""

ROOMS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset({"errors"}),
    "formatting": frozenset(),
    "options": frozenset({"errors"}),
    # From left to right: nobody looks back, and capture hands on a file and what was measured beside it.
    "trace": SHELVES,
    "capture": SHELVES | {"trace.live", "trace.model"},
    "analysis": SHELVES | {"trace"},
    "diagnosis": SHELVES | {"trace", "analysis"},
    "report": SHELVES | {"trace", "analysis", "diagnosis"},
    "history": frozenset({"report", "trace.writer"}),
    # Of a trace only the file that was kept: the panel hands it on.
    "show": SHELVES | {"report", "history", "diagnosis", "analysis", "trace.writer"},
    "run": SHELVES | {"capture", "trace", "analysis", "diagnosis", "report", "show", "history"},
    "ranks": SHELVES | {"run", "capture", "trace", "analysis", "diagnosis", "report", "show", "history"},
    # The doors.
    "saved": SHELVES | {"trace", "analysis", "diagnosis", "report", "show", "ranks", "run"},
    "api": SHELVES | {"run", "capture", "report", "show", "history", "ranks", "saved"},
    "magic": SHELVES | {"run", "capture", "report", "show", "history", "ranks", "saved", "diagnosis"},
    "doctor": SHELVES | {"api", "capture"},
    "demo": SHELVES,
    "__main__": SHELVES | {"saved", "show", "report", "doctor", "demo", "diagnosis"},
    "__init__": frozenset({"api", "history", "run", "saved", "magic"}),
}
"""Room or top module → the rooms or modules of ours that it may import beside its own."""

DOORS = frozenset({"saved", "api", "magic", "doctor", "demo", "__main__", "__init__"})
ONLY_FROM: dict[str, frozenset[str]] = {"ranks": DOORS, "capture": DOORS | {"run", "ranks"}}
"""Room → the only ones that may import it; `ROOMS` must agree."""

OTHERS: dict[str, frozenset[str]] = {
    "trace": frozenset({"numpy", "msgspec"}),
    "analysis": frozenset({"numpy", "msgspec"}),
    "diagnosis": frozenset({"numpy", "msgspec"}),
    "report": frozenset({"numpy", "msgspec"}),
    # PIL, which matplotlib brings, writes palette PNGs.
    "show": frozenset({"numpy", "msgspec", "matplotlib", "ipywidgets", "IPython", "PIL", "jinja2", "markupsafe"}),
    "capture": frozenset({"torch", "IPython", "msgspec", "pynvml"}),
    "ranks": frozenset({"numpy", "msgspec", "torch"}),
    "run": frozenset({"msgspec"}),
    "saved": frozenset({"msgspec"}),
    "magic": frozenset({"IPython", "traitlets"}),
    "api": frozenset({"IPython", "msgspec"}),
    "demo": frozenset({"IPython", "traitlets", "torch"}),
    "doctor": frozenset({"torch"}),
}
"""Room → the packages outside the standard library that it may import; none where it has no row."""

LATE = frozenset({"torch", "matplotlib", "ipywidgets", "IPython"})
"""What may be imported inside a function: heavy, or absent where only a command line runs."""

LATE_TOO: frozenset[tuple[str, str]] = frozenset(
    {
        ("capture.nvml", "pynvml"),  # an extra: absent in most installations
        ("capture.probes", "resource"),  # not on Windows
        ("demo", "traitlets"),  # IPython brings it
        # Ours, for what they take along. Fewer is better; elsewhere a late import of ours hides an arrow.
        ("__main__", "ipyprof"),  # `doctor` has to work where torch or matplotlib does not
        ("doctor", "ipyprof"),  # the same
        ("magic", "ipyprof"),  # `%load_ext ipyprof` loads no torch
        ("show", "ipyprof"),  # how a report shows itself is registered before it is known where
        ("show.output", "ipyprof"),  # a quiet run draws nothing and loads no matplotlib
    }
)
"""(module, package) beside `LATE`."""


def name_of(path: Path) -> str:
    """The module's name below ``ipyprof``, such as ``trace.reader``; ``__init__`` is the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of all that stands in imports below ``tree``; ``package`` resolves relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")
                base = ".".join([*parent[: len(parent) - node.level + 1], *([base] if base else [])])
            # A name may be a module: `from ipyprof.trace import model`.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def package_of(name: str) -> str:
    """The package that a module's relative imports start from."""
    return ".".join(["ipyprof", *SOURCES[name].relative_to(PACKAGE).parent.parts])


def breaks(room: str, full_name: str) -> bool:
    """Whether this room must not import that name."""
    top, _, rest = full_name.partition(".")
    if top in sys.stdlib_module_names:
        return False
    if top != "ipyprof":
        return top not in OTHERS.get(room, ())
    if not rest or rest == "__version__":
        return False
    return not any(rest == one or rest.startswith(f"{one}.") for one in ROOMS[room] | {room})


def late(name: str, tree: ast.AST) -> set[str]:
    """What the functions of a module import."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {full for node in functions for full in imported(node, package_of(name))}


def too_late(name: str, tree: ast.AST) -> set[str]:
    """What of `late` is neither heavy nor excepted."""
    tops = {full: full.partition(".")[0] for full in late(name, tree)}
    return {full for full, top in tops.items() if top not in LATE and (name, top) not in LATE_TOO}


def graph() -> dict[str, set[str]]:
    """Module → the modules of ours that it imports, at its top, inside functions and for type checking."""
    arrows: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        arrows[name] = set()
        for full in imported(tree, package_of(name)):
            below = full.removeprefix("ipyprof.")
            target = below if below in TREES else below.rpartition(".")[0]
            if full.startswith("ipyprof.") and target in TREES and target != name:
                arrows[name].add(target)
    return arrows


def circles(arrows: Mapping[str, set[str]]) -> list[str]:
    """The modules that no order of loading can serve: each reaches itself."""
    left = {name: set(targets) for name, targets in arrows.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    # What only leads into a circle is not part of it.
    while outer := left.keys() - set().union(*left.values()):
        for name in outer:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("name", TREES)
def test_room_imports_only_what_its_row_allows(name: str) -> None:
    # given a module of a room, when its imports are read, then the room is in the table and none breaks its row
    room = name.split(".")[0]
    assert room in ROOMS
    assert sorted(full for full in set(imported(TREES[name], package_of(name))) if breaks(room, full)) == []


@pytest.mark.parametrize("name", TREES)
def test_functions_import_only_what_is_heavy(name: str) -> None:
    # given a module, when the imports inside its functions are read, then they are torch, matplotlib and front ends
    assert sorted(too_late(name, TREES[name])) == []


def test_no_circle_of_imports() -> None:
    # given all imports, those inside functions and for type checking too, then no module reaches itself
    assert circles(graph()) == []


def test_ranks_and_capture_are_entered_through_their_doors() -> None:
    # given the table of rooms, when it is read the other way, then only the named ones may enter
    for room, allowed in ONLY_FROM.items():
        entering = {one for one, targets in ROOMS.items() if any(target.split(".")[0] == room for target in targets)}
        assert entering <= allowed


def test_the_exceptions_are_needed() -> None:
    # given the table of exceptions, when the functions are read, then each is still used
    used = {(name, full.partition(".")[0]) for name, tree in TREES.items() for full in late(name, tree)}
    assert used >= LATE_TOO


@pytest.mark.parametrize(
    ("room", "full_name"),
    [
        ("trace", "ipyprof.analysis.steps"),
        ("analysis", "ipyprof.diagnosis.cause.Finding"),
        ("analysis", "torch"),
        ("report", "ipyprof.capture.session"),
        ("report", "ipyprof.show.html"),
        ("run", "ipyprof.ranks.files"),
        ("capture", "ipyprof.trace.reader.read"),
        ("options", "numpy"),
    ],
)
def test_a_breach_is_seen(room: str, full_name: str) -> None:
    # given an import that looks back or too far, when it is judged, then it is a breach
    assert breaks(room, full_name)


def test_a_circle_a_late_and_a_relative_import_are_seen() -> None:
    # given three modules in a circle, one that leads into it and one behind it, then the three are named
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == ["a", "b", "c"]
    # given a function with a relative import, then it is resolved and told
    tree = ast.parse("def f():\n    import torch\n    from ..show import html")
    assert too_late("analysis.steps", tree) == {"ipyprof.show.html"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    # given a fresh interpreter, when it imports ipyprof, then nothing that takes time comes along
    heavy = ("torch", "matplotlib", "ipywidgets", "IPython", "numpy", "msgspec", "jinja2", "asyncio", "PIL", "pandas")
    code = f"import ipyprof, sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []
