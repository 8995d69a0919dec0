"""The change of a line that reads a value of the GPU only to keep it: keep the tensor, where that serves as well."""

from __future__ import annotations

import ast
import re

# Where a tensor in place of the number would be read all the same.
_READS_AGAIN = re.compile(
    r"""\b(?:if|while|assert|elif|in|not|and|or)\b|\b(?:print|float|int|bool|str|format|round|range)\(|f["']|%"""
)


def change_of(source: str, line: int) -> tuple[str, str] | None:
    """(the cell's line, the line without its read); ``None`` where that is not plainly possible.

    It is possible where the statement only stores what it reads, ``total += loss.item()``, and nothing else in the
    same loop looks at what was stored: a line that formats or compares it would then do the waiting.

    Args:
        source: the text of the cell; line: counted from 1.
    """
    lines = source.splitlines()
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    if text.strip() in ("torch.cuda.synchronize()", "torch.cuda.synchronize();"):
        return text, ""
    if text.count(".item()") != 1 or _READS_AGAIN.search(text):
        return None
    kept = _kept_in(text)
    if kept is None or _looked_at(lines, line, kept):
        return None
    return text, text.replace(".item()", ".detach()") + "  # a tensor: stays on the GPU"


def _kept_in(text: str) -> str | None:
    """The variable in which the statement stores what it reads."""
    try:
        statement = ast.parse(text.strip()).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and _is_read(statement.value):
        return _variable(statement.targets[0])
    if isinstance(statement, ast.AugAssign) and _is_read(statement.value):
        return _variable(statement.target)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        return _variable(call.func.value) if len(call.args) == 1 and _is_read(call.args[0]) else None
    return None


def _is_read(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "item"


def _variable(target: ast.expr) -> str | None:
    """``seen`` of ``seen``, ``seen[k]`` and ``seen.list``."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def _looked_at(lines: list[str], line: int, name: str) -> bool:
    """Whether another line of the outermost loop around this one, or of the cell without a loop, uses the variable."""
    shell = ("%", "!", "?")
    plain = ["pass" if text.startswith(shell) else text for text in lines]
    try:
        tree: ast.AST = ast.parse("\n".join(plain))
    except (SyntaxError, ValueError, RecursionError):
        return True  # not known, so no change is proposed
    loops = (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    around = [node for node in loops if node.lineno < line <= (node.end_lineno or 0)]
    within = min(around, key=lambda node: node.lineno) if around else tree
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node.lineno != line
        for node in ast.walk(within)
    )
