"""DESIGN's table of cells, one test a row, and the loops around it: which step is chosen, and how many marks."""

from __future__ import annotations

import builtins
import contextlib
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizer_module
from IPython.core.error import UsageError
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ipyprof.capture.watch import Launches, known_length
from ipyprof.options import Options
from tests.capture.fake_session import FakeSession, Run


def loader(batches: int, **keywords: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(batches * 2, 4), torch.randn(batches * 2, 1)), batch_size=2, **keywords)


class Shard(DataLoader[Any]):
    """Fetches one batch ahead, as accelerate does."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


class Setup:
    """What the cells of these tests find in their namespace."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.session = FakeSession()
        model = nn.Linear(4, 1)
        names: dict[str, Any] = {
            "torch": torch,
            "model": model,
            "loader": loader,
            "opt": torch.optim.SGD(model.parameters(), lr=0.01),
            "opt_d": torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.01),
            "opt_g": torch.optim.Adam(nn.Linear(4, 1).parameters(), lr=0.01),
            "x": torch.randn(4, 4),
            "seen": [],
        }
        names["scheduler"] = torch.optim.lr_scheduler.StepLR(names["opt"], step_size=3)
        names["ahead"] = Shard(TensorDataset(torch.ones(20, 4), torch.ones(20, 1)), batch_size=2)
        shell.user_ns.update(names)
        shell.ex("def critic():\n    for _ in range(5): opt_d.step()")
        shell.ex("def loss_of(x, y): return ((model(x) - y) ** 2).mean()")
        shell.ex("def train_step(x, y):\n    opt.zero_grad(); loss = loss_of(x, y); loss.backward(); opt.step()")
        shell.ex("def train(batches):\n    for x, y in batches: train_step(x, y)")
        shell.ex("def predict(batches):\n    with torch.no_grad():\n        return [model(x) for x, y in batches]")

    def run(self, cell: str, session: FakeSession | None = None, launched: Any = None, **options: Any) -> Run:
        self.session = session or FakeSession()
        keywords = {} if launched is None else {"launched": launched}
        return Run(self.shell, cell, Options(**options), self.session, **keywords)


@pytest.fixture
def cells(shell: Any) -> Setup:
    return Setup(shell)


# -- the table --


def test_a_loop_over_a_loader_is_the_step(cells: Setup) -> None:
    run = cells.run("for x, y in loader(10):\n    train_step(x, y)")
    assert run.described == {
        "how": "loop at line 2",
        "mark": "loop",
        "loop_line": 2,
        "loop_is_for": True,
        "alternatives": ("the steps of SGD: --step optimizer", "the batches: --step loader"),
    }
    assert run.log == ["plan 9 1", *["mark 2"] * 9, "close 2"]


@pytest.mark.parametrize(
    ("iterable", "remaining"),
    [
        ("enumerate(loader(10))", 9),
        ("zip(range(20), loader(10))", 9),
        ("zip(loader(10), loader(10))", 9),
        ("list(loader(10))", 9),
        ("(batch for batch in loader(10))", None),
        ("iter(loader(10))", 9),
    ],
)
def test_what_wraps_the_loader_does_not_matter(cells: Setup, iterable: str, remaining: int | None) -> None:
    run = cells.run(f"for epoch in range(1):\n    for _ in {iterable}:\n        train_step(x, x[:, :1])")
    assert run.how == "loop at line 3"
    assert run.session.planned == (remaining, 1)
    assert run.log[-1] == "close 3"


def test_tqdm_around_the_loader_does_not_matter(cells: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bar:
        """As tqdm: an iterable with a total."""

        __module__ = "tqdm.std"

        def __init__(self, iterable: Any) -> None:
            self.iterable, self.total = iterable, len(iterable)

        def __iter__(self) -> Any:
            yield from self.iterable

    cells.shell.user_ns["tqdm"] = Bar
    run = cells.run("for x, y in tqdm(loader(10)):\n    train_step(x, y)")
    assert (run.how, run.session.planned) == ("loop at line 2", (9, 1))


def loop(line: int, marks: int, *, left: int | None = -1) -> list[str]:
    """The log of a run whose steps are those of a loop; ``left``: of known length unless ``None``."""
    return [f"plan {marks if left == -1 else left} 1", *[f"mark {line}"] * marks, f"close {line}"]


def events(line: int, marks: int, *, cold: bool = False) -> list[str]:
    """The log of a run whose marks are the optimizer's steps, of which nobody knows how many come."""
    return [*(["start_cold", "drop"] if cold else []), "plan None 1", *[f"mark {line}"] * marks]


TRAIN = "train_step(x, x[:, :1])"
FOLD = "def fold():\n    own = torch.optim.SGD(model.parameters())\n    for i in range(4): own.step()"
LEFT = """for attempt in range(3):
    try:
        for n, (x, y) in enumerate(loader(9)):
            1 / (n - 2 + attempt * 9)
    except ZeroDivisionError:
        pass"""
CLOSURE = """lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)
def closure():
    lbfgs.zero_grad(); loss = loss_of(x, x[:, :1]); loss.backward(); return loss
for i in range(20):
    lbfgs.step(closure)"""
OTHER_THREAD = """import threading
def other():
    for i in range(20): opt.step()
t = threading.Thread(target=other)
t.start(); t.join()"""
OPTIMIZER, BATCHES, CALL = "optimizer steps", "batches", "ipyprof.step()"


@pytest.mark.parametrize(
    ("cell", "how", "log"),
    [
        # epochs and batches
        (
            "for e in range(3):\n    for x, y in loader(5):\n        train_step(x, y)\n    seen.append(e)",
            3,
            loop(3, 14),
        ),
        (f"for e in range(2):\n    for i in range(50):\n        {TRAIN}\nfor i in range(3): i", 3, loop(3, 99)),
        (f"for i in range(100):\n    {TRAIN}", 2, loop(2, 99)),
        (f"x, y = next(iter(loader(3)))\nfor e in range(2):\n    for i in range(50):\n        {TRAIN}", 4, loop(4, 99)),
        ("for e in range(2):\n    for x, y in loader(3):\n        train_step(x, y)", 3, loop(3, 5)),
        ("for x, y in loader(9):\n    break\nfor x, y in loader(8):\n    train_step(x, y)", 4, loop(4, 7)),
        ("batches = list(loader(10))\nfor x, y in batches:\n    model(x)", 3, loop(3, 9)),
        ("for x, y in ahead:\n    train_step(x, y)", 2, loop(2, 9, left=None)),
        (LEFT, 4, loop(4, 20, left=26)),
        # several optimizers
        ("for b in loader(20):\n    opt_d.step()\n    opt_g.step()", 2, loop(2, 19)),
        ("for b in range(20):\n    opt_d.step()\n    opt_g.step()", 2, loop(2, 19)),
        ("for b in range(20):\n    critic()\n    opt_g.step()", 2, loop(2, 19)),
        ("for b in loader(20):\n    critic()\n    opt_g.step()", 2, loop(2, 19)),
        ("for b in range(20):\n    for _ in range(5):\n        opt_d.step()\n    opt_g.step()", 2, loop(2, 19)),
        ("for b in loader(20):\n    for _ in range(5):\n        opt_d.step()\n    opt_g.step()", 2, loop(2, 19)),
        ("for e in range(10):\n    for i in range(5):\n        opt.step()", 3, loop(3, 45)),
        (CLOSURE, 5, loop(5, 19)),
        # a training function
        ("data = loader(5)\nfor e in range(10):\n    train(data)\n    scheduler.step()", OPTIMIZER, events(4, 49)),
        ("for e in range(10):\n    train([(x, x[:, :1])] * 5)", OPTIMIZER, events(3, 45)),
        ("for e in range(1):\n    train(loader(10))", OPTIMIZER, events(3, 9, cold=True)),
        ("train(ahead)", OPTIMIZER, events(2, 9, cold=True)),
        (f"{FOLD}\ndef folds():\n    for i in range(5): fold()\nfolds()", OPTIMIZER, events(7, 19, cold=True)),
        ("out = predict(loader(10))", BATCHES, ["start_cold", "drop", "plan 7 1", *["mark 2"] * 8]),
        # no training
        ("for i in range(20):\n    x = x @ x", 2, loop(2, 19)),
        ("for i in range(20):\n    x = x @ x\n    for w in (1, 2):\n        x = x * w", 2, loop(2, 19)),
        ("for p in model.parameters():\n    p.data.normal_()\nfor b in [x] * 10:\n    model(b)", 4, loop(4, 9)),
        ("n = 0\nwhile n < 10:\n    x = x @ x\n    n += 1", 3, loop(3, 9, left=None)),
        (f"n = 0\nwhile n < 10:\n    {TRAIN}\n    n += 1\nfor i in range(2): pass", 3, loop(3, 9, left=None)),
        (
            "for i in range(6):\n    try:\n        1 / (i - 3)\n    except ZeroDivisionError:\n        pass",
            2,
            loop(2, 5),
        ),
        # one iteration or none
        ("for x, y in loader(1):\n    train_step(x, y)\nafter = 1", "loop at line 2, once", ["start_cold", "close 2"]),
        ("for i in range(0):\n    model(x)", "no step found", []),
        ("for i in (each for each in [1]):\n    model(x)", "no step found", []),
        ("for e in range(1):\n    for w in [x] * 6:\n        w @ w", 3, loop(3, 5)),
        (OTHER_THREAD, "the cell, once", ["start_cold", "close 1"]),
        # calls
        (f"for i in range(10):\n    {TRAIN}\n    user_step()", CALL, ["plan 9 1", *["mark 4"] * 10]),
        ("def go():\n    for i in range(6):\n        user_step()\ngo()", CALL, events(5, 6, cold=True)),
        *(
            (f"for i in range({n}):\n    {body}", 2, loop(2, n - 1))
            for n in range(2, 13)
            for body in (TRAIN, "model(x)")
        ),
    ],
)
def test_which_step_is_chosen_and_where_it_is_marked(cells: Setup, cell: str, how: str | int, log: list[str]) -> None:
    """``how`` is the line of the loop where it is one."""
    run = cells.run(cell)
    assert run.how == (f"loop at line {how}" if isinstance(how, int) else how)
    assert run.log == log


NESTED = "for e in range(4):\n    for x, y in loader(3):\n        train_step(x, y)"


@pytest.mark.parametrize(
    ("cell", "options", "how", "log"),
    [
        (NESTED, {"loop": 2}, 2, loop(2, 3)),
        (NESTED.replace(":", ":  # gpuprofile: step", 1), {}, 2, loop(2, 3)),
        ("for p in range(4):\n    x = x * 1\nfor i in range(9):\n    model(x)", {"loop": 2}, 2, loop(2, 3)),
        ("for i in range(5):\n    for j in range(1):\n        model(x)", {"loop": 3}, 3, loop(3, 4)),
        ("for e in range(5):\n    train(loader(4))", {"step": "loop"}, 2, loop(2, 4)),
        (f"for i in range(6):\n    {TRAIN}", {"step": "call"}, "no step found", []),
        ("for i in range(10):\n    opt_d.step()\n    opt_g.step()", {"step": "optimizer"}, OPTIMIZER, events(4, 9)),
        ("for i in range(10):\n    critic()\n    opt_g.step()", {"step": "optimizer"}, OPTIMIZER, events(4, 9)),
        (f"for x, y in loader(10):\n    {TRAIN}", {"step": "loader"}, BATCHES, ["plan 8 1", *["mark 2"] * 9]),
        (
            "seen.append(1)",
            {"step": "cell", "wait": 0, "warmup": 0, "active": 1},
            "the cell, once",
            ["start_cold", "close 1"],
        ),
    ],
)
def test_what_the_user_asks_for_is_the_step(
    cells: Setup, cell: str, options: dict[str, Any], how: str | int, log: list[str]
) -> None:
    run = cells.run(cell, **options)
    assert run.how == (f"loop at line {how}" if isinstance(how, int) else how)
    assert run.log == log


@pytest.mark.parametrize(
    ("cell", "how", "planned"),
    [
        (
            "for e in range(9):\n    for i, (a, b) in enumerate(loader(4)):\n"
            "        loss_of(a, b).backward()\n        if i == 3:\n            opt.step()",
            "loop at line 3, 4 iterations to an optimizer step",
            (31, 4),
        ),
        # a scaler skips the first steps: no cycle
        (
            "for i, (a, b) in enumerate(loader(60)):\n    loss_of(a, b).backward()\n    if i > 1:\n        opt.step()",
            "loop at line 2",
            (56, 1),
        ),
        ("for a, b in loader(60):\n    loss_of(a, b).backward()", "loop at line 2", (51, 1)),
    ],
)
def test_cycles_that_are_long_broken_or_none(cells: Setup, cell: str, how: str, planned: tuple[int, int]) -> None:
    run = cells.run(cell)
    assert (run.how, run.session.planned) == (how, planned)


@pytest.mark.parametrize("cycle", [2, 4, 8])
@pytest.mark.parametrize("source", ["enumerate(loader(60))", "enumerate([(x, x[:, :1])] * 60)"])
def test_accumulation_is_its_loop_with_the_cycle(cells: Setup, cycle: int, source: str) -> None:
    cell = (
        f"for i, (a, b) in {source}:\n    loss_of(a, b).backward()\n    if (i + 1) % {cycle} == 0:\n        opt.step()"
    )
    run = cells.run(cell)
    assert run.how == f"loop at line 2, {cycle} iterations to an optimizer step"
    assert run.session.planned == (60 - cycle - 1, cycle)
    assert run.session.marks == 60 - cycle - 1


TRAINER = """
class Args:
    accumulation = {accumulation}
class Callbacks:
    def on_step_end(self): pass
class Trainer:
    def __init__(self, model, optimizer, loader, args): self.__dict__.update(locals())
    def training_step(self, batch): loss_of(*batch).backward()
    def ahead(self, batches):
        batches = iter(batches)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch
    def train(self):
        for epoch in range(4):
            for number, batch in enumerate(self.ahead(self.loader)):
                self.training_step(batch)
                if (number + 1) % self.args.accumulation == 0:
                    self.optimizer.step(); self.optimizer.zero_grad()
                    Callbacks().on_step_end()
"""


@pytest.mark.parametrize(("accumulation", "steps"), [(1, 40), (2, 20), (5, 8)])
def test_a_trainer_is_its_optimizer(cells: Setup, accumulation: int, steps: int) -> None:
    cells.shell.run_cell(TRAINER.format(accumulation=accumulation))
    run = cells.run("trainer = Trainer(model, opt, loader(10), Args())\ntrainer.train()")
    assert run.how == "optimizer steps"
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 3"] * (steps - 1)]


def test_a_fit_with_closures_and_a_validation_before_it_is_its_optimizer(cells: Setup) -> None:
    cells.shell.run_cell(
        "class Fit:\n"
        "    def closure(self):\n"
        "        opt.zero_grad(); loss = loss_of(*self.batch); loss.backward(); return loss\n"
        "    def fit(self, training, validation):\n"
        "        with torch.no_grad():\n"
        "            for number, (a, b) in enumerate(validation):\n"
        "                model(a)\n"
        "                if number == 1: break\n"
        "        for self.batch in training: opt.step(self.closure)\n"
    )
    run = cells.run("Fit().fit(loader(20), loader(5))")
    assert run.how == "optimizer steps"
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 2"] * 19]


def test_a_cell_without_a_loop_is_one_cold_step(cells: Setup) -> None:
    run = cells.run("y = model(x)")
    assert run.log == ["start_cold", "close 1"]
    assert run.described == {
        "how": "the cell, once",
        "mark": "cell",
        "loop_line": None,
        "loop_is_for": False,
        "alternatives": ("the cell, run 7 times as %%timeit does: --step cell",),
    }
    assert run.session.ranges == [2]


# -- loops of all lengths --


def test_an_epoch_that_goes_on_after_the_last_batch_does_not_lengthen_the_last_step(cells: Setup) -> None:
    cells.shell.user_ns["log"] = cells.session.log
    run = cells.run(
        "for e in range(2):\n    for x, y in loader(3):\n        train_step(x, y)\n    note('validation')",
        FakeLog(cells),
    )
    assert run.log[-3:] == ["mark 3", "close 3", "validation"]


class FakeLog(FakeSession):
    """A fake session whose log the cell can write to, by ``note(text)``."""

    def __init__(self, cells: Setup, **keywords: Any) -> None:
        super().__init__(**keywords)
        cells.shell.user_ns["note"] = self.log.append


# -- how a loop is left --


@pytest.mark.parametrize(
    ("cell", "marks"),
    [
        ("for i in range(10):\n    model(x)\n    if i == 4:\n        break", 4),
        ("for i in range(10):\n    if i % 2:\n        continue\n    model(x)", 9),
        ("for i in range(6):\n    model(x)\nelse:\n    done = True", 5),
        ("while True:\n    model(x)\n    seen.append(1)\n    if len(seen) == 6:\n        break", 5),
        (
            (
                "def numbers():\n    for i in range(9):\n        if i == 6:\n"
                "            return\n        yield i\nfor i in numbers():\n    model(x)"
            ),
            5,
        ),
        ("with torch.no_grad():\n    for i in range(6):\n        model(x)", 5),
        ("try:\n    for i in range(6):\n        model(x)\nfinally:\n    pass", 5),
        ("if True:\n    for i in range(6):\n        model(x)", 5),
    ],
)
def test_the_last_step_is_closed_behind_the_loop(cells: Setup, cell: str, marks: int) -> None:
    run = cells.run(cell)
    assert run.session.marks == marks
    assert run.log[-1].startswith("close")


@pytest.mark.parametrize(
    ("cell", "error", "how", "log"),
    [
        ("for i in range(10):\n    1 / (4 - i)", ZeroDivisionError, "loop at line 2", ["plan 9 1", *["mark 2"] * 4]),
        ("for i in range(10):\n    model(x).backward()", RuntimeError, "no step found", []),
        ("model(x)\n1 / 0", ZeroDivisionError, "the cell, once", ["start_cold"]),
    ],
)
def test_an_exception_leaves_the_last_step_open(
    cells: Setup, cell: str, error: type[Exception], how: str, log: list[str]
) -> None:
    with pytest.raises(error, match=r"division by zero|only for scalar outputs"):
        cells.run(cell)
    assert cells.session.log == log
    assert cells.session.described[0]["how"] == how


class Failing(torch.utils.data.Dataset[torch.Tensor]):
    """Raises for item 8."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8:
            raise LookupError("item 8")
        return torch.ones(2)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_in_the_loader_goes_through(cells: Setup, workers: int) -> None:
    cells.shell.user_ns["data"] = DataLoader(Failing(), batch_size=2, num_workers=workers)
    with pytest.raises(LookupError, match="item 8") as caught:
        cells.run("for batch in data:\n    batch + 1")
    assert cells.session.log == ["plan 9 1", *["mark 2"] * 3]
    files = [entry.path for entry in caught.traceback]
    assert not any(str(path).endswith("watch.py") for path in files)


# -- what the rules meet --


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda: range(7), 7),
        (lambda: [1, 2], 2),
        (lambda: {1: 2}.items(), 1),
        (lambda: torch.ones(5, 2), 5),
        (lambda: enumerate([1, 2, 3]), 3),
        (lambda: zip(range(9), [1, 2], strict=False), 2),
        (lambda: zip(range(9), (n for n in "abc"), strict=False), None),
        (lambda: enumerate(loader(4)), 4),
        (lambda: iter(loader(4)), 4),
        (lambda: loader(4), 4),
        (lambda: (n for n in range(3)), None),
        (lambda: map(str, range(3)), None),
        (lambda: type("Own", (list,), {"__len__": lambda self: 99})(), None),
        (lambda: 5, None),
    ],
)
def test_the_length_is_known_where_asking_is_harmless(make: Any, length: int | None) -> None:
    assert known_length(make()) == length


def test_asking_for_the_length_takes_nothing() -> None:
    for iterable in (enumerate("abc"), zip("abc", "def", strict=True), iter([1, 2, 3])):
        known_length(iterable)
        assert len(list(iterable)) == 3


# -- explicit ways --


TWO_LOOPS = "for i in range(4):\n    while False:\n        pass\n    model(x)"


@pytest.mark.parametrize(
    ("cell", "options", "text"),
    [
        (
            TWO_LOOPS,
            {"loop": 5},
            "^--loop 5: no loop of the cell begins on that line; its loops are on lines 2 and 3.$",
        ),
        ("model(x)", {"loop": 2}, "the cell has no loop of its own"),
        ("model(x)", {"step": "loop"}, "the cell has no loop of its own"),
        ("for i in 'ab': i\nx = 1  # gpuprofile: step", {}, "not on a loop of the cell; its only loop is on line 2"),
        ("for i in 'a': i # gpuprofile: step\nfor i in 'b': i # gpuprofile: step", {}, "is on lines 2, 3"),
    ],
)
def test_a_mistake_is_one_line(cells: Setup, cell: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        cells.run(cell, **options)
    assert "\n" not in str(caught.value)
    assert cells.session.log == []


def test_a_call_after_another_choice_is_noted_once(cells: Setup) -> None:
    run = cells.run("for i in range(6):\n    train_step(x, x[:, :1])\nuser_step()\nuser_step()")
    assert [status for _, status, _ in run.detector.notes] == ["warn"]


def test_a_wrapper_that_fires_twice_counts_once(cells: Setup) -> None:
    cells.shell.run_cell(
        "class Wrapper(torch.optim.Optimizer):\n"
        "    def __init__(self, inner):\n        super().__init__(inner.param_groups, {}); self.inner = inner\n"
        "    def step(self, closure=None):\n        self.inner.step()\n"
        "wrapped = Wrapper(opt)\n"
        "def many():\n    for i in range(10): wrapped.step()"
    )
    run = cells.run("many()")
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 2"] * 9]


def test_an_iterable_dataset_has_no_known_length(cells: Setup) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(torch.ones(12, 4))

    cells.shell.user_ns["data"] = DataLoader(Endless(), batch_size=2)
    run = cells.run("for x in data:\n    model(x)")
    assert run.session.planned == (None, 1)
    assert run.session.marks == 5


def test_step_cell_runs_the_cell_many_times(cells: Setup) -> None:
    session = FakeSession(record=range(3, 6))
    run = cells.run("seen.append(1)\nlen(seen)", session, step="cell")
    assert (run.how, run.value) == ("the cell, 7 times", 7)
    assert run.log == ["plan 6 1", *["mark 1"] * 6, "close 1"]
    assert session.ranges == [2, 3] * 3


# -- recorded steps, work, ends --


@pytest.mark.parametrize(
    ("cell", "options", "ranges"),
    [
        ("for i in range(8):\n    y = model(x)\n    for j in range(2):\n        z = y + j", {}, [3, 4, 5, 5] * 2),
        ("for i in range(9):\n    opt.step()\n    y = 1", {"step": "optimizer"}, [3, 4] * 2),
    ],
)
def test_only_recorded_steps_run_with_ranges(
    cells: Setup, cell: str, options: dict[str, Any], ranges: list[int]
) -> None:
    session = FakeSession(record=range(3, 5))
    cells.run(cell, session, **options)
    assert session.ranges == ranges


@pytest.mark.parametrize("cell", ["for i in range(50):\n    model(x)", "train(loader(50))"])
def test_a_session_that_is_over_still_gets_the_marks_for_its_clock(cells: Setup, cell: str) -> None:
    run = cells.run(cell, FakeSession(over_after=5))
    assert run.session.marks == 49
    assert run.detector.notes == []


class Gpu:
    """A GPU as far as `Launches` asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated, self.idle, self.capturing = 5, True, False
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"allocation.all.allocated": self.allocated})
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self)

    def query(self) -> bool:
        assert not self.capturing
        return self.idle


def test_work_on_the_gpu_is_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocation, or a stream at work, which is not asked in a capture."""
    gpu = Gpu(monkeypatch)
    launched = Launches()
    assert not launched()
    gpu.allocated += 1
    assert launched()
    assert not launched()
    gpu.idle = False
    assert launched()
    gpu.capturing = True
    assert not launched()


def test_a_loop_that_launches_nothing_is_not_the_step(cells: Setup) -> None:
    run = cells.run("for i in range(9):\n    i\ntrain(loader(9))", launched=lambda: False)
    assert run.how == "optimizer steps"


def test_a_loop_that_launches_nothing_is_looked_at_less_and_less(cells: Setup) -> None:
    looks: list[int] = []
    cells.run("for i in range(100_000):\n    pass", launched=lambda: bool(looks.append(1)))
    assert len(looks) < 25


# -- what must not happen --


class Broken(FakeSession):
    def mark(self, line: int | None = None) -> None:
        raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(
    "cell",
    [
        ("for i in range(9):\n    train_step(x, x[:, :1])\n    seen.append(i)"),
        "train(loader(9)); seen.extend(range(9))",
    ],
)
def test_a_fault_of_ours_never_reaches_the_cell(cells: Setup, cell: str) -> None:
    run = cells.run(cell, Broken())
    assert cells.shell.user_ns["seen"] == list(range(9))
    assert run.detector.notes == [("steps", "fail", "the step marks were switched off: RuntimeError: a fault of ours")]


def test_a_length_that_raises_is_an_unknown_length(cells: Setup) -> None:
    class Sampler(list[int]):
        def __len__(self) -> int:
            raise TypeError("no length")

    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, sampler=Sampler(range(8)))
    cells.shell.user_ns["data"] = data
    assert cells.run("for (x,) in data:\n    model(x)").session.planned == (None, 1)


def state_of_torch() -> dict[str, Any]:
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    return {
        "hooks": dict(optimizer_module._global_optimizer_post_hooks),
        "iterator": dict(vars(base)),
        "autograd": dict(vars(torch.autograd)),
        "builtins": dict(vars(builtins)),
    }


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("for x, y in loader(9):\n    train_step(x, y)", {}),
        ("train(loader(9))", {}),
        ("predict(loader(9))", {}),
        ("for x, y in loader(9):\n    train_step(x, y)\n    1 / 0", {}),
        ("for x, y in loader(9):\n    raise KeyboardInterrupt", {}),
        ("for i in range(3):\n    model(x)", {"step": "cell"}),
        ("for x, y in loader(9):\n    user_step()", {"step": "call"}),
    ],
)
def test_everything_is_as_before(cells: Setup, cell: str, options: dict[str, Any]) -> None:
    before = state_of_torch()
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt):
        cells.run(cell, **options)
    after = state_of_torch()
    assert {name: value for name, value in after["builtins"].items() if name.startswith("@")} == {}
    assert set(after["builtins"]) - {"_"} == set(before["builtins"]) - {"_"}
    for name in ("hooks", "iterator", "autograd"):
        assert after[name] == before[name], name


def test_a_run_inside_a_run_gives_the_names_back(cells: Setup) -> None:
    inner = FakeSession()

    def nested() -> None:
        Run(cells.shell, "for i in range(5):\n    i", Options(), inner)

    cells.shell.user_ns["nested"] = nested
    run = cells.run("for i in range(6):\n    x = x @ x\n    if i == 2:\n        nested()")
    assert inner.marks == 4
    assert run.log == ["plan 5 1", *["mark 2"] * 5, "close 2"]


def test_a_detector_needs_no_module_of_ours_in_the_namespace(cells: Setup) -> None:
    before = set(cells.shell.user_ns)
    cells.run("for i in range(3):\n    model(x)")
    assert set(cells.shell.user_ns) - before == {"i", "user_step"}
