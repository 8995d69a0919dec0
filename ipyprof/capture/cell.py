"""Compile and run the code of a cell as if no magic were there: same namespace, value, traceback and source.

The text is registered with the shell's compiler, one blank line for the magic's own line in front, so that tracebacks
and ``inspect.getsource`` know it. As IPython does, each statement is compiled by itself; here all of them before the
first one runs. A statement has up to three codes: as written, with marked loops, and with a range around everything
(`ipyprof.capture.marking`). Where the rewritten ones do not compile, such as past CPython's limit of nested blocks, the
statement runs as written.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

from ipyprof.capture.marking import Loop, find_loops, marked, ranged
from ipyprof.capture.steps import StepDetector

_AWAIT = "await at the top level of a profiled cell is not supported; use `with ipyprof.profile():` around it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One statement. ``mode`` is ``exec``, ``eval`` (its value is the cell's) or ``single`` (it displays)."""

    line: int
    mode: str
    plain: CodeType
    marked: CodeType | None
    ranged: CodeType | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCell:
    """A cell that is ready to run.

    Attributes:
        filename: what its code is compiled as.
        source: its text as typed; line 1 is the magic line, left empty (in the line form the statement itself).
        text: its text as compiled, with magics translated; same lines.
        loops: its own loops, in text order.
        parts: its statements.
    """

    filename: str
    source: str
    text: str
    loops: tuple[Loop, ...]
    parts: tuple[Part, ...]


def compile_cell(shell: Any, cell: str, *, line_form: bool = False) -> CompiledCell:
    """The compiled cell. Nothing has run.

    Args:
        shell: the ``InteractiveShell``.
        cell: the text below the magic line, or with ``line_form`` the raw rest of the line.

    Raises:
        SyntaxError: the cell's own, with its line.
        UsageError: it awaits at its top level.
    """
    blank = len(cell) - len(cell.lstrip()) if not cell.isspace() else 0
    # Leading blank lines are dropped by `transform_cell`.
    above = cell[:blank].count("\n") + (0 if line_form else 1)
    text = "\n" * above + shell.transform_cell(cell)
    filename = shell.compile.cache(text, _running_number(shell), raw_code=cell)
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename=filename))
    nodes = _interactive_nodes(tree.body, shell.ast_node_interactivity)
    loops = find_loops([node for node, _ in nodes])
    plain = [_compiled(shell, node, [node], mode, filename) for node, mode in nodes]
    if any(code.co_flags & inspect.CO_COROUTINE for code in plain):
        raise UsageError(_AWAIT)
    parts = tuple(
        Part(
            line=node.lineno,
            mode=mode,
            plain=code,
            marked=_attempt(shell, partial(marked, loops=loops), node, mode, filename) if loops else None,
            ranged=_attempt(shell, ranged, node, mode, filename) if mode == "exec" else None,
        )
        for (node, mode), code in zip(nodes, plain, strict=True)
    )
    source = cell if line_form else "\n" + cell
    return CompiledCell(filename=filename, source=source, text=text, loops=tuple(loops.values()), parts=parts)


def run_cell(shell: Any, compiled: CompiledCell, *, detector: StepDetector | None) -> object:
    """The value of the cell's last expression, for the shell to display; ``None`` without one.

    What the cell raises goes through unchanged. The session is not finished here; without a detector nothing is
    measured.
    """
    __tracebackhide__ = "__ipython_bottom__"
    value: object = None
    with shell.builtin_trap, detector or nullcontext():
        for number in range(1 if detector is None else detector.runs):
            if detector is not None:
                detector.run_begins(number)
            ranges = detector.range if detector is not None and detector.wants_ranges else None
            with_marks = detector is not None and detector.wants_marks
            for part in compiled.parts:
                value = None
                if part.mode == "eval":
                    with nullcontext() if ranges is None else ranges(part.line):
                        value = eval(part.plain, shell.user_global_ns, shell.user_ns)
                else:
                    code = part.ranged if ranges is not None else part.marked if with_marks else None
                    exec(code or part.plain, shell.user_global_ns, shell.user_ns)
        if detector is not None:
            detector.cell_ended()
    return value


def _interactive_nodes(statements: Sequence[ast.stmt], interactivity: str) -> list[tuple[ast.stmt, str]]:
    """Each statement with its mode, by the shell's ``ast_node_interactivity``."""
    statements = list(statements)
    if not statements:
        return []
    if interactivity == "last_expr_or_assign":
        name = _assigned_name(statements[-1])
        if name is not None:
            shown = ast.Expr(value=ast.Name(id=name, ctx=ast.Load()))
            statements.append(ast.fix_missing_locations(ast.copy_location(shown, statements[-1])))
        interactivity = "last_expr"
    before = "single" if interactivity == "all" else "exec"
    nodes = [(statement, before) for statement in statements]
    final = statements[-1]
    if interactivity != "none":
        if isinstance(final, ast.Expr):
            nodes[-1] = (final, "eval")
        elif interactivity == "last":
            nodes[-1] = (final, "single")
    return nodes


def _assigned_name(statement: ast.stmt) -> str | None:
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        target = statement.target
    return target.id if isinstance(target, ast.Name) else None


def _compiled(shell: Any, node: ast.stmt, body: Sequence[ast.stmt], mode: str, filename: str) -> CodeType:
    """The code, compiled by the shell's own compiler, which keeps and applies ``from __future__`` imports."""
    tree: ast.AST
    if isinstance(node, ast.Expr) and mode == "eval":
        tree = ast.Expression(body=node.value)
    elif mode == "single":
        tree = ast.Interactive(body=list(body))
    else:
        tree = ast.Module(body=list(body), type_ignores=[])
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT):
        code: CodeType = shell.compile(tree, filename, mode)
    return code


def _attempt(
    shell: Any, change: Callable[[list[ast.stmt]], list[ast.stmt]], node: ast.stmt, mode: str, filename: str
) -> CodeType | None:
    """The code of the changed statement, or ``None`` where it cannot be compiled or is an expression."""
    if mode == "eval":
        return None
    try:
        return _compiled(shell, node, change([node]), mode, filename)
    except (SyntaxError, RecursionError, ValueError, MemoryError):
        return None


def _running_number(shell: Any) -> int:
    """The number of the cell that runs the magic; the shell's counter has moved on or stands still."""
    known: Mapping[str, int] = getattr(shell.compile, "_filename_map", None) or {}  # private to IPython
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename in known:
            return int(known[frame.f_code.co_filename])
    return max(int(shell.execution_count) - 1, 0)
