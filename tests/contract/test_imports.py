"""Which room may import what, read from the source, and what ``import ipyprof`` loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "ipyprof"

EVERYTHING = frozenset({"*"})
COMPUTING = frozenset({"numpy"})

OURS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset(),
    "options": frozenset({"errors"}),
    "formatting": frozenset(),
    "trace": frozenset({"errors", "files"}),
    "analysis": frozenset({"errors", "trace"}),
    # Findings and views write numbers the same way, so that one module stands beside the rooms.
    "diagnosis": frozenset({"errors", "formatting", "trace", "analysis", "ranks"}),
    "report": frozenset({"errors", "formatting", "trace", "analysis", "diagnosis", "show", "ranks"}),
    "show": frozenset(
        {"errors", "formatting", "files", "trace", "analysis", "diagnosis", "report", "history", "run", "ranks"}
    ),
    "capture": frozenset({"errors", "options", "trace.model", "trace.live"}),
    **dict.fromkeys(("__init__", "__main__", "api", "magic", "run", "demo", "doctor", "history", "ranks"), EVERYTHING),
}
"""Room or module → the rooms or modules of ours that it may import beside its own."""

OTHERS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "files": frozenset(),
    "options": frozenset(),
    "formatting": frozenset(),
    "trace": COMPUTING | {"msgspec"},
    "analysis": COMPUTING,
    "diagnosis": COMPUTING,
    "report": COMPUTING | {"msgspec"},
    # PIL, which matplotlib brings, writes palette PNGs.
    "show": COMPUTING | {"matplotlib", "ipywidgets", "IPython", "PIL"},
    "capture": frozenset({"torch", "IPython", "pynvml", "msgspec"}),
    **dict.fromkeys(("__init__", "__main__", "api", "magic", "run", "demo", "doctor", "history", "ranks"), EVERYTHING),
}
"""Room or module → the packages outside the standard library that it may import."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """The module's name below ``ipyprof``, such as ``trace.reader``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports_of(tree: ast.AST, package: str) -> Iterator[str]:
    """Full names of all that a module imports, inside functions too; ``package`` resolves relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")
                base = ".".join([*parent[: len(parent) - node.level + 1], *([base] if base else [])])
            # The names may be modules: `from ipyprof.trace import model`.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(room: str, imported: str) -> bool:
    """Whether this room must not import that name."""
    top, _, rest = imported.partition(".")
    if top in sys.stdlib_module_names:
        return False
    if top != "ipyprof":
        return "*" not in OTHERS[room] and top not in OTHERS[room]
    if not rest or rest == "__version__":
        return False
    # A room may import itself, and whatever is allowed or lies below what is allowed.
    allowed = OURS[room] | {room}
    return "*" not in allowed and not any(rest == one or rest.startswith(f"{one}.") for one in allowed)


@pytest.mark.parametrize("path", MODULES, ids=[module_name(path) for path in MODULES])
def test_room_imports_only_what_its_row_allows(path: Path) -> None:
    # given a module of a room
    name = module_name(path)
    room = name.split(".")[0]
    package = ".".join(["ipyprof", *path.relative_to(PACKAGE).parent.parts])
    # when its imports are read
    imported = set(imports_of(ast.parse(path.read_text(encoding="utf-8")), package))
    # then the room is in the table and none of them breaks its row
    assert room in OURS
    assert sorted(one for one in imported if breaches(room, one)) == []


@pytest.mark.parametrize(
    ("room", "imported"),
    [
        ("trace", "ipyprof.analysis.steps"),
        ("analysis", "ipyprof.diagnosis.cause.Finding"),
        ("analysis", "torch"),
        ("report", "ipyprof.capture.session"),
        ("capture", "ipyprof.trace.reader.read"),
        ("options", "numpy"),
    ],
)
def test_contract_sees_a_breach(room: str, imported: str) -> None:
    # given an import that looks back or too far, when it is judged, then it is a breach
    assert breaches(room, imported)


def test_relative_imports_are_resolved() -> None:
    # given a relative import in a module of ipyprof.analysis
    tree = ast.parse("from ..show import html\nfrom . import steps")
    # when its imports are read, then they carry their full names
    assert list(imports_of(tree, "ipyprof.analysis")) == ["ipyprof.show.html", "ipyprof.analysis.steps"]


def test_importing_the_package_loads_no_heavy_library() -> None:
    # given a fresh interpreter
    code = "import sys, ipyprof; print(sorted({'torch', 'matplotlib', 'ipywidgets'} & set(sys.modules)))"
    # when it imports ipyprof
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    # then neither torch nor matplotlib nor ipywidgets is loaded
    assert done.stdout.strip() == "[]"
