"""The cell runs as if no magic were there: value, namespace, traceback, source, magics, futures."""

from __future__ import annotations

import ast
import inspect
import linecache
import pickle
import traceback
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.magic import output_can_be_silenced

import __main__
from ipyprof.capture.cell import compile_cell, run_cell
from ipyprof.options import Options
from tests.capture.fake_session import FakeSession, Run, detector_for
from tests.colours import without_colours


@pytest.fixture
def magic(shell: Any) -> Any:
    """The shell with a magic that does nothing but run its cell, and the detectors that it made."""
    made: list[Any] = []

    @output_can_be_silenced
    def profiled(line: str, cell: str | None = None) -> object:
        __tracebackhide__ = "__ipython_bottom__"
        compiled = compile_cell(shell, line if cell is None else cell, line_form=cell is None)
        detector = detector_for(compiled, Options(), FakeSession(record=range(2, 4)))
        made.append(detector)
        return run_cell(shell, compiled, detector=detector)

    profiled.no_var_expand = True  # type: ignore[attr-defined]
    shell.register_magic_function(profiled, "line_cell", "profiled")
    shell.user_ns["made"] = made
    return shell


def ran(shell: Any, cell: str) -> Any:
    """The result of a cell that must not fail."""
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    return result.result


CELLS = [
    "1 + 1",
    "x = 3\nx",
    "x = 3\nx;",
    "x = 3",
    "for i in range(3):\n    i\ni",
    "'text'",
    "None",
    "# only a comment",
    "import math\nmath.pi",
    "def f():\n    '''doc'''\n    return 5\nf()",
    "!echo hello",
    "out = !echo hello\nlist(out)",
    "%time 3 + 4",
    "a, b = 1, 2\n(a, b)",
    "if True:\n    5",
    "print('x'); 7",
    "x = [i for i in range(3)]\nx",
    "def g():\n    return [y for y in range(3)]\ng()",
]


@pytest.mark.parametrize("cell", CELLS)
def test_value_output_and_namespace_are_those_of_the_cell(magic: Any, capsys: Any, cell: str) -> None:
    def outcome(text: str) -> tuple[Any, ...]:
        ran(magic, "'before'")
        capsys.readouterr()
        before = dict(magic.user_ns)
        value = ran(magic, text)
        output = capsys.readouterr().out
        changed = {
            name: repr(magic.user_ns[name])
            for name in magic.user_ns
            if before.get(name, outcome) is not magic.user_ns[name] and not (len(name) > 1 and name.startswith("_"))
        }
        changed = {name: text for name, text in changed.items() if "function" not in text}
        for name in set(magic.user_ns) - set(before):
            del magic.user_ns[name]
        lines = [line for line in output.splitlines() if "time" not in line and "Time" not in line]
        return repr(value), [line.partition("]: ")[2] or line for line in lines], changed

    expected = outcome(cell)
    assert outcome("%%profiled\n" + cell) == expected


def test_underscore_is_the_value(magic: Any) -> None:
    ran(magic, "%%profiled\n6 * 7")
    assert ran(magic, "_") == 42


def test_a_semicolon_hides_the_value(magic: Any, capsys: Any) -> None:
    ran(magic, "%%profiled\n6 * 7;")
    assert capsys.readouterr().out.strip() == ""


@pytest.mark.parametrize(
    ("interactivity", "shown"),
    [
        ("all", ["1", "2", "3"]),
        ("last_expr_or_assign", ["3"]),
        ("last_expr", ["3"]),
        ("none", []),
        ("last", ["3"]),
    ],
)
def test_the_shells_interactivity_is_kept(magic: Any, capsys: Any, interactivity: str, shown: list[str]) -> None:
    magic.ast_node_interactivity = interactivity
    compiled_cell = compile_cell(magic, "1\n2\n3")
    with magic.display_trap:
        value = run_cell(
            magic,
            compiled_cell,
            detector=detector_for(compiled_cell, Options(), FakeSession()),
        )
        if value is not None:
            magic.displayhook(value)
    printed = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("Out")]
    assert printed == shown


def test_an_assignment_is_shown_where_the_shell_shows_it(magic: Any) -> None:
    magic.ast_node_interactivity = "last_expr_or_assign"
    run = Run(magic, "x = 1\nx += 4", Options(), FakeSession())
    assert run.value == 5


def test_the_line_form_is_the_raw_rest_of_the_line(magic: Any) -> None:
    assert ran(magic, "%profiled 'a  b' + \"  {1}  $x\"") == "a  b  {1}  $x"


def test_a_magic_inside_runs(magic: Any) -> None:
    assert ran(magic, "%%profiled\n%%profiled\nx = 5\nx") == 5


# -- tracebacks --


def cell_frames(shell: Any, error: BaseException) -> list[tuple[str, int | None]]:
    """(label, line) of the frames that are cells."""
    names = shell.compile._filename_map
    return [
        (f"In[{names[frame.filename]}]", frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename in names
    ]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%profiled\n1 / 0", 2),
        ("%%profiled\n\n\nx = 1\n1 / 0", 5),
        ("%%profiled\nfor i in range(9):\n    x = i\n    1 / (5 - i)", 4),
        ("%%profiled\nfor i in range(9):\n    x = i\n    1 / (2 - i)", 4),
        ("%profiled 1 / 0", 1),
        ("%%profiled\n    1 / 0", 2),
    ],
)
def test_the_traceback_names_the_line_of_the_cell(magic: Any, capsys: Any, cell: str, line: int) -> None:
    number = magic.execution_count
    result = magic.run_cell(cell, store_history=True)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    frames = cell_frames(magic, result.error_in_exec)
    assert (f"In[{number}]", line) in frames[1:]
    shown = without_colours(capsys.readouterr().out)
    assert shown.count("ZeroDivisionError: division by zero") == 1
    assert "capture" not in shown  # no frame of ours


def test_an_error_inside_a_line_magic_is_as_without_ours(magic: Any, capsys: Any) -> None:
    # an old IPython's %time shows the error itself and goes on
    plain = magic.run_cell("x = 1\n%time 1 / 0", store_history=True)
    ours = magic.run_cell("%%profiled\n%time 1 / 0", store_history=True)
    assert type(ours.error_in_exec) is type(plain.error_in_exec)
    shown = without_colours(capsys.readouterr().out)
    assert shown.count("ZeroDivisionError: division by zero") == 2
    assert shown.count(", line 2") == 2 * (plain.error_in_exec is not None)
    assert "capture" not in shown


def test_the_cells_own_line_is_the_last_frame(magic: Any, capsys: Any) -> None:
    magic.run_cell("%%profiled\nfor i in range(9):\n    if i == 4:\n        raise KeyError('mine')", store_history=True)
    shown = without_colours(capsys.readouterr().out)
    assert f"Cell In[{magic.execution_count - 1}], line 4" in shown
    assert "----> 4         raise KeyError('mine')" in shown
    assert shown.rindex("Cell In[") == shown.rindex(f"Cell In[{magic.execution_count - 1}], line 4")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_the_cell_raises_goes_through_unchanged(shell: Any, kind: type[BaseException]) -> None:
    error = kind("as it was")
    shell.user_ns["error"] = error
    with pytest.raises(kind) as caught:
        Run(shell, "for i in range(5):\n    if i == 3:\n        raise error", Options(), FakeSession())
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)


def test_a_syntax_error_is_the_shells_and_nothing_has_run(magic: Any, capsys: Any) -> None:
    result = magic.run_cell("%%profiled\nx = 1\ny = = 2", store_history=True)
    assert isinstance(result.error_in_exec, SyntaxError)
    assert result.error_in_exec.lineno == 3
    assert "x" not in magic.user_ns
    assert magic.user_ns["made"] == []
    shown = without_colours(capsys.readouterr().out)
    assert f"Cell In[{magic.execution_count - 1}], line 3" in shown


@pytest.mark.parametrize("cell", ["x = 1\nbreak", "return 5", "def f():\n    x = 1\n    global x"])
def test_code_that_parses_and_does_not_compile_has_not_run_either(magic: Any, cell: str) -> None:
    with pytest.raises(SyntaxError):
        compile_cell(magic, cell)
    assert "x" not in magic.user_ns


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1\nawait f()",
        "x = 1\nasync for i in f():\n    pass",
        "x = 1\nasync with f():\n    pass",
        "x = [i async for i in f()]",
        "x = 1\nfor i in range(3):\n    await f()",
    ],
)
def test_await_at_the_top_level_is_refused_in_one_line(magic: Any, cell: str) -> None:
    with pytest.raises(UsageError, match=r"await .* `with ipyprof\.profile\(\):`") as caught:
        compile_cell(magic, cell)
    assert "\n" not in str(caught.value)
    assert "x" not in magic.user_ns


def test_await_inside_a_function_is_fine(magic: Any) -> None:
    assert ran(magic, "%%profiled\nasync def f():\n    await g()\nf.__name__") == "f"


# -- source, classes, futures --


def test_getsource_knows_functions_and_classes(magic: Any) -> None:
    ran(magic, "%%profiled\n\ndef f(x):\n    return x + 1\nclass C:\n    def m(self):\n        return 2")
    assert inspect.getsource(magic.user_ns["f"]) == "def f(x):\n    return x + 1\n"
    assert inspect.getsource(magic.user_ns["C"].m) == "    def m(self):\n        return 2\n"


def test_a_function_made_in_a_recorded_step_has_its_source(magic: Any) -> None:
    ran(magic, "%%profiled\nfor i in range(4):\n    def f(x):\n        return x + i\n    f(1)")
    assert inspect.getsource(magic.user_ns["f"]) == "    def f(x):\n        return x + i\n"


def test_classes_pickle(magic: Any) -> None:
    ran(magic, "%%profiled\nclass Kept:\n    pass\nkept = Kept()")
    kept = magic.user_ns["kept"]
    assert type(kept).__module__ == magic.user_ns["__name__"]
    __main__.Kept = magic.user_ns["Kept"]  # type: ignore[attr-defined]
    try:
        assert type(pickle.loads(pickle.dumps(kept))) is type(kept)
    finally:
        del __main__.Kept  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", ["", "y = 1\n"])
def test_a_future_import_holds_for_the_cell_and_the_next(magic: Any, before: str) -> None:
    ran(magic, f"%%profiled\n{before}from __future__ import annotations\ndef f(x: Nothing): pass")
    ran(magic, "def g(x: Nothing): pass")
    assert magic.user_ns["f"].__annotations__ == magic.user_ns["g"].__annotations__ == {"x": "Nothing"}


def test_a_docstring_like_first_line_is_harmless(magic: Any) -> None:
    assert ran(magic, "%%profiled\n'''text'''\n5") == 5


def test_globals_of_the_cell_shows_no_name_of_ours(magic: Any) -> None:
    names = ran(magic, "%%profiled\nfor i in range(3):\n    found = [n for n in globals() if n.startswith('@')]\nfound")
    assert names == []


def test_an_ast_transformer_of_the_shell_is_applied(magic: Any) -> None:
    class Doubling(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            return ast.copy_location(ast.Constant(node.value * 2), node) if isinstance(node.value, int) else node

    transformer = Doubling()
    magic.ast_transformers.append(transformer)
    try:
        assert Run(magic, "x = 21\nx", Options(), FakeSession()).value == 42
    finally:
        magic.ast_transformers.remove(transformer)


def test_a_cell_of_nineteen_loops_inside_each_other_runs_as_written(magic: Any) -> None:
    depth = 19
    cell = "\n".join("    " * level + f"for i{level} in range(1):" for level in range(depth))
    compiled_cell = compile_cell(magic, cell + "\n" + "    " * depth + "x = 5\nx")
    assert compiled_cell.parts[0].marked is None
    assert (
        run_cell(
            magic,
            compiled_cell,
            detector=detector_for(compiled_cell, Options(), FakeSession()),
        )
        == 5
    )


def test_the_source_has_the_magic_line_first(magic: Any) -> None:
    compiled_cell = compile_cell(magic, "\n%time x = 1\nfor i in 'ab':\n    pass")
    assert compiled_cell.source.splitlines() == ["", "", "%time x = 1", "for i in 'ab':", "    pass"]
    assert compiled_cell.text.splitlines()[3:] == ["for i in 'ab':", "    pass"]
    assert [loop.line for loop in compiled_cell.loops] == [4]
    assert "".join(linecache.getlines(compiled_cell.filename)) == compiled_cell.text


def test_a_mark_in_a_function_names_the_line_of_the_cell(magic: Any) -> None:
    session = FakeSession()
    magic.user_ns["session"] = session
    Run(magic, "def inner():\n    for i in range(4):\n        user_step()\nx = 1\ninner()", Options(), session)
    assert session.log[-1] == "mark 6"
