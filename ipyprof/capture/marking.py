"""Two bodies for every loop at the cell's own level: one as written, one with a range around each statement.

    for x in ITER:                      for x in @seen(0, ITER):
        y = f(x)                            if @step 0():
                                                with @range(2): y = f(x)
                                            else:
                                                y = f(x)
                                        @closed(0)

The iterable is not wrapped (``@seen`` returns its argument), so the traceback, the iterator's class and the moment a
generator is closed stay as they are. The names cannot be typed; `ipyprof.capture.steps` puts them into ``builtins``
for the run. The recorded copy has ranges and no marks, so nesting gives depth + 1 copies of a body, not 2 ** depth.
Loops inside functions are left alone: a rewritten one would outlive the cell.
"""

from __future__ import annotations

import ast
import builtins
import copy
import io
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

SEEN = "@seen"
CLOSED = "@closed"
RANGE = "@range"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.While)
_BARE = (
    *_SCOPES,
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.Return,
)
_COMMENT = re.compile(r"#\s*gpuprofile:\s*step\b")
Statements = list[ast.stmt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop at the cell's own level.

    Attributes:
        index: position in text order, from 0; the number in its marks.
        line: line of its ``for`` or ``while``.
        header_end_line: last line before its body, or ``line`` where the body is on it.
        is_for: a ``for``, not a ``while``.
        parent: index of the loop around it, or ``None``.
        has_children: other marked loops are inside it.
        last: no other loop of its own level can come after it.
    """

    index: int
    line: int
    header_end_line: int
    is_for: bool
    parent: int | None
    has_children: bool
    last: bool


def step_name(index: int) -> str:
    """The name in ``builtins`` that the body of loop ``index`` calls at its start."""
    return f"@step {index}"


def find_loops(statements: Sequence[ast.stmt]) -> dict[ast.stmt, Loop]:
    """Each loop at the cell's own level with what is known of it, in text order."""
    found: dict[ast.stmt, Loop] = {}
    _collect(statements, None, last=True, found=found)
    return found


def marked(statements: Sequence[ast.stmt], loops: Mapping[ast.stmt, Loop]) -> Statements:
    """The statements with every loop of ``loops`` in two bodies; the input nodes are not changed."""
    new: Statements = []
    for statement in statements:
        if isinstance(statement, _SCOPES):
            new.append(statement)
        elif isinstance(statement, _LOOPS):
            new.extend(_two_bodies(statement, loops, outermost=loops[statement].parent is None))
        else:
            new.append(_rebuilt(statement, lambda block: marked(block, loops)))
    return new


def ranged(statements: Sequence[ast.stmt]) -> Statements:
    """The statements, each inside ``with @range(line)``, compound ones also inside; the input is not changed.

    ``global`` and ``nonlocal`` stay; `marked` moves them before both bodies.
    """
    new: Statements = []
    for statement in statements:
        if isinstance(statement, _BARE):
            new.append(statement)
            continue
        inner = _rebuilt(statement, ranged)
        if isinstance(statement, ast.Try) or type(statement).__name__ == "TryStar":
            new.append(inner)  # its header does no work
        else:
            item = ast.withitem(context_expr=_call(RANGE, ast.Constant(statement.lineno)), optional_vars=None)
            new.append(_placed(ast.With(items=[item], body=[inner], type_comment=None), statement))
    return new


def step_comments(source: str) -> tuple[int, ...]:
    """Lines with a ``# gpuprofile: step`` comment, in order; strings that hold such text do not count."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return ()
    return tuple(token.start[0] for token in tokens if token.type == tokenize.COMMENT and _COMMENT.search(token.string))


def _collect(statements: Sequence[ast.stmt], parent: int | None, *, last: bool, found: dict[ast.stmt, Loop]) -> None:
    """Add the loops of one block. ``last``: nothing of this level follows the block."""
    holds = [_holds_loop(statement) for statement in statements]
    for position, statement in enumerate(statements):
        if not holds[position]:
            continue
        is_last = last and not any(holds[position + 1 :])
        if isinstance(statement, _LOOPS):
            index = len(found)
            first = statement.body[0]
            found[statement] = Loop(
                index=index,
                line=statement.lineno,
                header_end_line=max(statement.lineno, first.lineno - 1),
                is_for=isinstance(statement, ast.For),
                parent=parent,
                has_children=any(_holds_loop(inner) for inner in statement.body),
                last=is_last and not any(_holds_loop(inner) for inner in statement.orelse),
            )
            _collect(statement.body, index, last=True, found=found)
            _collect(statement.orelse, parent, last=is_last, found=found)
        elif isinstance(statement, (ast.If, ast.Match)):
            for block in _blocks(statement):  # one of them runs: each may hold the last loop
                _collect(block, parent, last=is_last, found=found)
        else:
            blocks = list(_blocks(statement))
            for number, block in enumerate(blocks):
                later = any(_holds_loop(inner) for rest in blocks[number + 1 :] for inner in rest)
                _collect(block, parent, last=is_last and not later, found=found)


def _two_bodies(loop: ast.For | ast.While, loops: Mapping[ast.stmt, Loop], *, outermost: bool) -> Statements:
    index = loops[loop].index
    # `global x` in both copies would come after a use of x in the first; once per outermost loop is enough.
    hoisted = _declarations(loop.body) if outermost else []
    test = _call(step_name(index))
    choice = ast.If(test=test, body=_undeclared(ranged(loop.body)), orelse=_undeclared(marked(loop.body, loops)))
    new: ast.For | ast.While = copy.copy(loop)
    new.body = [*hoisted, _placed(choice, loop)]
    new.orelse = marked(loop.orelse, loops)
    if isinstance(new, ast.For):
        new.iter = _placed(_call(SEEN, ast.Constant(index), new.iter), new.iter)
    closed = _placed(ast.Expr(value=_call(CLOSED, ast.Constant(index))), loop)
    return [new, closed]


def _declarations(statements: Sequence[ast.stmt]) -> Statements:
    found: Statements = []
    for statement in statements:
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            found.append(statement)
        elif not isinstance(statement, _SCOPES):
            for block in _blocks(statement):
                found.extend(_declarations(block))
    return found


def _undeclared(statements: Sequence[ast.stmt]) -> Statements:
    """The statements with ``global`` and ``nonlocal`` replaced by ``pass``, which keeps blocks from being empty."""
    new: Statements = []
    for statement in statements:
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            new.append(_placed(ast.Pass(), statement))
        elif isinstance(statement, _SCOPES):
            new.append(statement)
        else:
            new.append(_rebuilt(statement, _undeclared))
    return new


def _holds_loop(statement: ast.stmt) -> bool:
    if isinstance(statement, _LOOPS):
        return True
    return not isinstance(statement, _SCOPES) and any(
        _holds_loop(inner) for block in _blocks(statement) for inner in block
    )


def _blocks(statement: ast.AST) -> Iterator[Statements]:
    """The statement lists directly inside, in text order, through ``except`` handlers and ``case`` blocks."""
    for name in statement._fields:
        value = getattr(statement, name, None)
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value[0], (ast.ExceptHandler, ast.match_case)):
            for part in value:
                yield part.body


def _rebuilt(statement: ast.stmt, change: Callable[[Statements], Statements]) -> ast.stmt:
    """A shallow copy with every directly contained statement list changed; the statement itself where it has none."""
    new: ast.stmt | None = None
    for name in statement._fields:
        value = getattr(statement, name, None)
        if not isinstance(value, list) or not value:
            continue
        if isinstance(value[0], ast.stmt):
            replacement: list[ast.AST] = [*change(value)]
        elif isinstance(value[0], (ast.ExceptHandler, ast.match_case)):
            replacement = [_with_body(part, change) for part in value]
        else:
            continue
        new = copy.copy(statement) if new is None else new
        setattr(new, name, replacement)
    return statement if new is None else new


def _with_body(part: ast.AST, change: Callable[[Statements], Statements]) -> ast.AST:
    new = copy.copy(part)
    new.body = change(part.body)  # type: ignore[attr-defined]
    return new


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _placed(node: ast.AST, where: ast.AST) -> Any:
    """``node`` with the position of ``where`` on itself and on every new node inside that has none."""
    for inner in ast.walk(node):
        if "lineno" in inner._attributes and not hasattr(inner, "lineno"):
            ast.copy_location(inner, where)
    return node


_MISSING = object()


class Builtins:
    """Owns some names in ``builtins``; `restore` gives each back as it was."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Let ``name`` be ``value`` until `restore`."""
        space = builtins.__dict__
        self._before.setdefault(name, space.get(name, _MISSING))
        space[name] = value

    def restore(self) -> None:
        """Every name as it was before the first `set`."""
        space = builtins.__dict__
        while self._before:
            name, value = self._before.popitem()
            if value is _MISSING:
                space.pop(name, None)
            else:
                space[name] = value


def running_line(filename: str) -> int | None:
    """The line of the statement of the cell ``filename`` that is running, or ``None``."""
    frame: FrameType | None = sys._getframe(1) if filename else None
    while frame is not None and not _is_cell(frame, filename):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def called_by_cell(filename: str, *, through: Collection[str]) -> bool:
    """Whether the caller, leaving out frames of the files ``through``, is a statement of the cell itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in through:
        frame = frame.f_back
    return frame is not None and _is_cell(frame, filename)


def _is_cell(frame: FrameType, filename: str) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_code.co_filename == filename
