"""The two bodies do what the one did, and mark what they should."""

from __future__ import annotations

import ast
import builtins
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from types import FrameType
from typing import Any

import pytest

from ipyprof.capture.marking import CLOSED, RANGE, SEEN, Loop, find_loops, marked, ranged, step_comments, step_name


class Marks:
    """The names that marked code calls; the answers of the steps come from ``answers``, over and over."""

    def __init__(self, *answers: bool) -> None:
        self.log: list[str] = []
        self._answers = cycle(answers or (False,))

    @contextmanager
    def installed(self, count: int) -> Iterator[None]:
        names: dict[str, Any] = {SEEN: self.seen, CLOSED: self.closed, RANGE: self.range}
        names |= {step_name(index): lambda index=index: self.step(index) for index in range(count)}
        vars(builtins).update(names)
        try:
            yield
        finally:
            for name in names:
                del vars(builtins)[name]

    def seen(self, index: int, iterable: Any) -> Any:
        self.log.append(f"seen {index}")
        return iterable

    def step(self, index: int) -> bool:
        self.log.append(f"step {index}")
        return next(self._answers)

    def closed(self, index: int) -> None:
        self.log.append(f"closed {index}")

    @contextmanager
    def range(self, line: int) -> Iterator[None]:
        self.log.append(f"line {line}")
        yield


def loops_of(source: str) -> list[Loop]:
    return list(find_loops(ast.parse(source).body).values())


def run_marked(source: str, marks: Marks, *, rewrite: bool = True) -> dict[str, Any]:
    """The namespace that the source leaves, run with two bodies or as written."""
    tree = ast.parse(source)
    loops = find_loops(tree.body)
    if rewrite:
        tree.body = marked(tree.body, loops)
    space: dict[str, Any] = {}
    with marks.installed(len(loops)):
        exec(compile(tree, "<cell>", "exec"), space)
    return space


def plain_values(space: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in space.items() if name != "__builtins__" and not callable(value)}


_SOURCES = """
# -- break
out = []
for i in range(9):
    if i == 4:
        break
    out.append(i)
else:
    out.append('else')
# -- continue
out = []
for i in range(9):
    if i % 2:
        continue
    out.append(i)
else:
    out.append('else')
# -- star
out = []
for a, *b in ['abc', 'de']:
    out.append((a, b))
    *c, d = b
# -- walrus
out = []
for i in range(4):
    if (n := i * 2) > 2:
        out.append(n)
# -- del
for i in range(3):
    x = i
    y = x
    del x
# -- try
out = []
for i in (1, 0, 2):
    try:
        out.append(1 / i)
    except ZeroDivisionError as e:
        out.append('no')
    else:
        out.append('else')
    finally:
        out.append('finally')
# -- break in finally
out = []
for i in range(5):
    try:
        if i == 2:
            break
    finally:
        out.append(i)
# -- with
from contextlib import suppress
out = []
for i in (1, 0, 2):
    with suppress(ZeroDivisionError):
        out.append(1 / i)
        out.append('after')
# -- match
out = []
for p in [(1, 2), (3,), 'x']:
    match p:
        case (a, b):
            out.append(a + b)
        case (a,) if a > 1:
            out.append(a)
        case _:
            out.append('?')
# -- while else
out = []
n = 0
while n < 3:
    n += 1
    out.append(n)
else:
    out.append('else')
# -- while break
n = 0
while True:
    n += 1
    if n == 5:
        break
# -- global
n = 0
for i in range(3):
    m = n
    def f():
        global n
        n += 1
    f()
for i in range(2):
    global k
    k = i
    for j in range(2):
        global q
        q = j + k
# -- global first
for i in range(3):
    if i:
        global g
        g = i
# -- only global
for i in range(3):
    global h
# -- nested
out = []
for i in range(3):
    for j in range(2):
        while j < 1:
            j += 1
            out.append((i, j))
            if i == 1:
                break
        else:
            continue
        out.append('broken')
# -- class
out = []
for i in range(3):
    class C:
        value = i
        for k in range(2):
            pass
    out.append((C.value, C.k))
# -- import
for i in range(2):
    import math
    from os import path as p
    x = math.pi
# -- annotated
x: int = 0
for i in range(3):
    x: int = i
    x += 1
# -- generator
def g():
    got = []
    for i in range(3):
        got.append((yield i))
    return got
it = g()
out = [next(it)]
for v in 'ab':
    out.append(it.send(v))
# -- one line
out = []
for i in range(3): out.append(i); out.append(-i)
# -- loop in else
out = []
for i in range(2):
    pass
else:
    for j in range(2):
        out.append(j)
# -- loop in if
out = []
if True:
    for i in range(2):
        out.append(i)
else:
    for i in 'ab':
        out.append(i)
# -- lambda
fs = []
for i in range(3):
    fs.append((lambda i=i: i))
out = [f() for f in fs]
"""
SOURCES = {name: source for name, _, source in (part.partition("\n") for part in _SOURCES.split("# -- ")[1:])}


@pytest.mark.parametrize("answers", [(False,), (True,), (False, True), (True, True, False)])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_two_bodies_do_what_the_one_did(source: str, answers: tuple[bool, ...]) -> None:
    expected = plain_values(run_marked(source, Marks(), rewrite=False))
    assert plain_values(run_marked(source, Marks(*answers))).keys() == expected.keys()
    seen = plain_values(run_marked(source, Marks(*answers)))
    assert [repr(seen[name]) for name in expected if name not in ("it", "fs", "math", "p")] == [
        repr(expected[name]) for name in expected if name not in ("it", "fs", "math", "p")
    ]


def test_an_iteration_begins_with_a_mark_and_the_loop_ends_with_one() -> None:
    marks = Marks()
    run_marked("for i in range(2):\n    x = i\ny = 1", marks)
    assert marks.log == ["seen 0", "step 0", "step 0", "closed 0"]


def test_a_while_loop_has_no_fetch_to_see() -> None:
    marks = Marks()
    run_marked("n = 0\nwhile n < 2:\n    n += 1", marks)
    assert marks.log == ["step 0", "step 0", "closed 0"]


def test_the_recorded_body_has_ranges_and_no_marks() -> None:
    marks = Marks(True)
    run_marked("for i in range(1):\n    x = i\n    for j in range(2):\n        if j:\n            y = j", marks)
    assert marks.log == ["seen 0", "step 0", "line 2", "line 3", "line 4", "line 4", "line 5", "closed 0"]


def test_the_iterable_itself_is_what_the_loop_gets() -> None:
    closings: list[str] = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            closings.append("closed")

    tree = ast.parse("for i in numbers():\n    if i == 2: break\nclosings.append('after')")
    tree.body = marked(tree.body, find_loops(tree.body))
    with Marks().installed(1):
        exec(compile(tree, "<cell>", "exec"), {"numbers": numbers, "closings": closings})
    assert closings == ["closed", "after"]


def test_loops_inside_functions_are_left_alone() -> None:
    source = "def f():\n    for i in range(3): pass\nclass C:\n    for i in range(3): pass\n[i for i in range(3)]"
    assert loops_of(source) == []
    assert ast.unparse(ast.Module(marked(ast.parse(source).body, {}), [])) == ast.unparse(ast.parse(source))


def test_the_nodes_of_the_input_are_not_changed() -> None:
    tree = ast.parse("for i in range(3):\n    with open('x') as f:\n        for j in f:\n            print(j)")
    before = ast.dump(tree, include_attributes=True)
    marked(tree.body, find_loops(tree.body))
    ranged(tree.body)
    assert ast.dump(tree, include_attributes=True) == before


def test_nesting_gives_one_copy_more_a_level() -> None:
    depth = 8
    source = "\n".join("    " * level + f"for i{level} in range(1):" for level in range(depth))
    tree = ast.parse(source + "\n" + "    " * depth + "leaf()")
    text = ast.unparse(ast.Module(marked(tree.body, find_loops(tree.body)), []))
    assert text.count("leaf()") == depth + 1


@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize(
    "source",
    [
        "for i in range(3):\n    x = 1\n    y = (1 +\n         1 / (i - 1))",
        "for i in range(3):\n    if 1 / (i - 1):\n        pass",
        "for i in range(3):\n    try:\n        1 / (i - 1)\n    finally:\n        x = 1",
        "for i in 5:\n    pass",
        "n = 1\nwhile 1 / n:\n    n -= 1",
    ],
)
def test_a_traceback_is_the_same_to_the_column(source: str, answer: bool) -> None:
    def positions(rewrite: bool) -> list[Any]:
        try:
            run_marked(source, Marks(answer), rewrite=rewrite)
        except Exception as error:
            summary = traceback.TracebackException.from_exception(error)
            return [
                (frame.lineno, getattr(frame, "colno", None), getattr(frame, "end_colno", None), frame.name)
                for frame in summary.stack
                if frame.filename == "<cell>"
            ]
        raise AssertionError("nothing was raised")

    assert positions(True) == positions(False)


def test_a_debugger_sees_the_same_lines() -> None:
    source = (
        "out = []\nfor i in range(3):\n    out.append(i)\n    for j in range(2):\n        out.append(j)\nout.append(9)"
    )

    def lines(rewrite: bool) -> list[int]:
        seen: list[int] = []

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and frame.f_code.co_filename == "<cell>":
                seen.append(frame.f_lineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            run_marked(source, Marks(), rewrite=rewrite)
        finally:
            sys.settrace(before)
        return seen

    assert lines(True) == lines(False)


# -- what is known of the loops --


def test_a_loop_knows_its_place() -> None:
    loops = loops_of("for i in a:\n    while b:\n        pass\n\nfor k in (\n    c\n):\n    pass")
    assert loops == [
        Loop(index=0, line=1, header_end_line=1, is_for=True, parent=None, has_children=True, last=False),
        Loop(index=1, line=2, header_end_line=2, is_for=False, parent=0, has_children=False, last=True),
        Loop(index=2, line=5, header_end_line=7, is_for=True, parent=None, has_children=False, last=True),
    ]


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("for a in x: pass\nfor b in x: pass", [False, True]),
        ("if x:\n    for a in x: pass\nelse:\n    for b in x: pass", [True, True]),
        ("if x:\n    for a in x: pass\n    for b in x: pass\nelse:\n    for c in x: pass", [False, True, True]),
        ("try:\n    for a in x: pass\nfinally:\n    for b in x: pass", [False, True]),
        ("with x:\n    for a in x: pass\nprint()", [True]),
        ("for a in x: pass\nelse:\n    for b in x: pass", [False, True]),
        ("match x:\n    case 1:\n        for a in x: pass\n    case 2:\n        for b in x: pass", [True, True]),
        ("def f():\n    for a in x: pass\nfor b in x: pass\ndef g():\n    for c in x: pass", [True]),
    ],
)
def test_the_last_loop_is_the_one_that_none_can_follow(source: str, last: list[bool]) -> None:
    assert [loop.last for loop in loops_of(source)] == last


def test_past_the_limit_of_nested_blocks_compile_says_so() -> None:
    source = "\n".join("    " * level + "while True:" for level in range(19)) + "\n" + "    " * 19 + "break"
    tree = ast.parse(source)
    compile(tree, "<cell>", "exec")
    with pytest.raises(SyntaxError, match="too many statically nested blocks"):
        compile(ast.Module(marked(tree.body, find_loops(tree.body)), []), "<cell>", "exec")


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("for i in x:  # gpuprofile: step\n    pass", (1,)),
        ("for i in x:  #gpuprofile:step now\n    pass", (1,)),
        ("a = '# gpuprofile: step'\n", ()),
        ("a = 1  # gpuprofile: steps\n", ()),
        ("# gpuprofile: step\nfor i in x: pass  # gpuprofile: step", (1, 2)),
        ("a = (", ()),
    ],
)
def test_comments_are_found_by_the_tokenizer(source: str, lines: tuple[int, ...]) -> None:
    assert step_comments(source) == lines
