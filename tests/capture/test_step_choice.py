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
        shell.user_ns.update(names)
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


def test_of_epochs_and_batches_the_batches_are_the_step(cells: Setup) -> None:
    run = cells.run(
        "for epoch in range(3):\n    for x, y in loader(5):\n        train_step(x, y)\n    seen.append(epoch)"
    )
    assert run.how == "loop at line 3"
    assert run.described["alternatives"][0] == "the loop at line 2: --loop 2"
    assert run.log == ["plan 14 1", *["mark 3"] * 14, "close 3"]


def test_without_a_loader_one_optimizer_step_makes_the_loop_the_step(cells: Setup) -> None:
    run = cells.run(
        "for epoch in range(2):\n    for i in range(50):\n        train_step(x, x[:, :1])\nfor i in range(3): i"
    )
    assert run.how == "loop at line 3"
    assert run.log == ["plan 99 1", *["mark 3"] * 99, "close 3"]


def test_a_loop_that_trains_on_the_same_batch_is_the_step(cells: Setup) -> None:
    body = "    opt.zero_grad()\n    loss = loss_of(x, x[:, :1])\n    loss.backward()\n    opt.step()"
    run = cells.run(f"for i in range(100):\n{body}")
    assert run.how == "loop at line 2"
    assert run.log == ["plan 99 1", *["mark 2"] * 99, "close 2"]


def test_a_batch_that_was_drawn_before_the_loop_does_not_matter(cells: Setup) -> None:
    run = cells.run(
        "x, y = next(iter(loader(3)))\nfor e in range(2):\n    for i in range(50):\n        train_step(x, y)"
    )
    assert run.how == "loop at line 4"


@pytest.mark.parametrize("source", ["range(20)", "loader(20)"])
def test_a_gan_that_steps_both_once_is_its_loop(cells: Setup, source: str) -> None:
    run = cells.run(f"for batch in {source}:\n    opt_d.step()\n    opt_g.step()")
    assert (run.how, run.session.planned) == ("loop at line 2", (19, 1))


@pytest.mark.parametrize("source", ["range(20)", "loader(20)"])
def test_a_gan_that_steps_d_five_times_is_its_loop(cells: Setup, source: str) -> None:
    cells.shell.ex("def critic():\n    for _ in range(5): opt_d.step()")
    run = cells.run(f"for batch in {source}:\n    critic()\n    opt_g.step()")
    assert (run.how, run.session.planned) == ("loop at line 2", (19, 1))


@pytest.mark.parametrize("source", ["range(20)", "loader(20)"])
def test_a_gan_with_a_loop_for_d_is_its_outer_loop(cells: Setup, source: str) -> None:
    run = cells.run(f"for batch in {source}:\n    for _ in range(5):\n        opt_d.step()\n    opt_g.step()")
    assert (run.how, run.session.planned) == ("loop at line 2", (19, 1))


def test_a_short_inner_loop_of_the_only_optimizer_is_the_step(cells: Setup) -> None:
    run = cells.run("for epoch in range(10):\n    for i in range(5):\n        opt.step()")
    assert run.how == "loop at line 3"
    assert run.log == ["plan 45 1", *["mark 3"] * 45, "close 3"]


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


def test_accumulation_as_long_as_an_epoch_is_seen_in_the_second(cells: Setup) -> None:
    cell = (
        "for e in range(9):\n    for i, (a, b) in enumerate(loader(4)):\n"
        "        loss_of(a, b).backward()\n        if i == 3:\n            opt.step()"
    )
    run = cells.run(cell)
    assert run.how == "loop at line 3, 4 iterations to an optimizer step"


def test_an_optimizer_step_that_the_scaler_skips_is_no_cycle(cells: Setup) -> None:
    cell = "for i, (a, b) in enumerate(loader(60)):\n    loss_of(a, b).backward()\n    if i > 1:\n        opt.step()"
    run = cells.run(cell)
    assert (run.how, run.session.planned) == ("loop at line 2", (56, 1))


def test_backward_without_any_optimizer_waits_eight_iterations_at_most(cells: Setup) -> None:
    run = cells.run("for a, b in loader(60):\n    loss_of(a, b).backward()")
    assert (run.how, run.session.planned) == ("loop at line 2", (51, 1))


def test_a_training_function_in_an_epoch_loop_is_its_optimizer(cells: Setup) -> None:
    cells.shell.user_ns["scheduler"] = torch.optim.lr_scheduler.StepLR(cells.shell.user_ns["opt"], step_size=3)
    run = cells.run("data = loader(5)\nfor epoch in range(10):\n    train(data)\n    scheduler.step()")
    assert run.described["how"] == "optimizer steps"
    assert run.described["mark"] == "optimizer"
    assert run.described["loop_line"] is None
    assert run.log == ["plan None 1", *["mark 4"] * 49]


def test_a_training_function_without_a_loader_is_its_optimizer(cells: Setup) -> None:
    run = cells.run("for epoch in range(10):\n    train([(x, x[:, :1])] * 5)")
    assert run.log == ["plan None 1", *["mark 3"] * 45]
    assert run.how == "optimizer steps"


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


def test_lbfgs_calls_its_closure_many_times_and_is_one_step(cells: Setup) -> None:
    cells.shell.ex("lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=4)")
    cell = "def closure():\n    lbfgs.zero_grad(); loss = loss_of(x, x[:, :1]); loss.backward(); return loss\n"
    run = cells.run(cell + "for i in range(20):\n    lbfgs.step(closure)")
    assert (run.how, run.session.planned) == ("loop at line 4", (19, 1))


def test_prediction_over_a_loader_is_its_batches(cells: Setup) -> None:
    run = cells.run("out = predict(loader(10))")
    assert run.described["how"] == "batches"
    assert run.described["mark"] == "loader"
    assert run.log == ["start_cold", "drop", "plan 7 1", *["mark 2"] * 8]


def test_a_loop_without_training_is_the_step(cells: Setup) -> None:
    run = cells.run("for i in range(20):\n    x = x @ x")
    assert run.how == "loop at line 2"
    assert run.log == ["plan 19 1", *["mark 2"] * 19, "close 2"]


def test_a_loop_without_training_is_the_outermost_one(cells: Setup) -> None:
    run = cells.run("for i in range(20):\n    x = x @ x\n    for w in (1, 2):\n        x = x * w")
    assert run.how == "loop at line 2"
    assert run.log == ["plan 19 1", *["mark 2"] * 19, "close 2"]


def test_of_two_loops_without_training_the_last_is_the_step(cells: Setup) -> None:
    run = cells.run("for p in model.parameters():\n    p.data.normal_()\nfor b in [x] * 10:\n    model(b)")
    assert run.how == "loop at line 4"
    assert run.described["alternatives"] == ("the loop at line 2: --loop 2",)
    assert run.log == ["plan 9 1", *["mark 4"] * 9, "close 4"]


def test_a_while_loop_is_the_step(cells: Setup) -> None:
    run = cells.run("n = 0\nwhile n < 10:\n    x = x @ x\n    n += 1")
    assert run.how == "loop at line 3"
    assert run.described["loop_is_for"] is False
    assert run.log == ["plan None 1", *["mark 3"] * 9, "close 3"]


def test_a_while_loop_that_trains_is_the_step(cells: Setup) -> None:
    run = cells.run("n = 0\nwhile n < 10:\n    train_step(x, x[:, :1])\n    n += 1\nfor i in range(2): pass")
    assert run.log == ["plan None 1", *["mark 3"] * 9, "close 3"]


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


@pytest.mark.parametrize("length", range(2, 13))
@pytest.mark.parametrize("body", ["train_step(x, x[:, :1])", "model(x)"])
def test_every_iteration_but_the_deciding_one_begins_with_a_mark(cells: Setup, length: int, body: str) -> None:
    run = cells.run(f"for i in range({length}):\n    {body}")
    assert run.log == [f"plan {length - 1} 1", *["mark 2"] * (length - 1), "close 2"]


def test_a_loop_of_length_one_is_recorded_cold(cells: Setup) -> None:
    run = cells.run("for x, y in loader(1):\n    train_step(x, y)\nafter = 1")
    assert run.how == "loop at line 2, once"
    assert run.log == ["start_cold", "close 2"]
    assert run.session.ranges == [3]


def test_an_empty_loop_is_no_step(cells: Setup) -> None:
    run = cells.run("for i in range(0):\n    model(x)")
    assert (run.how, run.log) == ("no step found", [])


def test_a_loop_of_unknown_length_with_one_iteration_is_no_step(cells: Setup) -> None:
    run = cells.run("for i in (each for each in [1]):\n    model(x)")
    assert (run.how, run.log) == ("no step found", [])


def test_an_outer_loop_of_length_one_gives_way_to_the_inner(cells: Setup) -> None:
    run = cells.run("for epoch in range(1):\n    for w in [x] * 6:\n        w @ w")
    assert run.log == ["plan 5 1", *["mark 3"] * 5, "close 3"]


def test_two_epochs_of_three_are_six_steps(cells: Setup) -> None:
    run = cells.run("for epoch in range(2):\n    for x, y in loader(3):\n        train_step(x, y)")
    assert run.log == ["plan 5 1", *["mark 3"] * 5, "close 3"]


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


def test_an_exception_leaves_the_last_step_open(cells: Setup) -> None:
    with pytest.raises(ZeroDivisionError):
        cells.run("for i in range(10):\n    1 / (4 - i)")
    assert cells.session.log == ["plan 9 1", *["mark 2"] * 4]


def test_an_exception_in_backward_goes_through(cells: Setup) -> None:
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
        cells.run("for i in range(10):\n    model(x).backward()")
    assert cells.session.described[0]["how"] == "no step found"


def test_an_exception_in_a_cell_without_a_loop_says_what_it_was(cells: Setup) -> None:
    with pytest.raises(ZeroDivisionError):
        cells.run("model(x)\n1 / 0")
    assert cells.session.log == ["start_cold"]
    assert cells.session.described[0]["how"] == "the cell, once"


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


def test_a_training_function_in_a_loop_of_one_drops_the_cold_recording(cells: Setup) -> None:
    run = cells.run("for epoch in range(1):\n    train(loader(10))")
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 3"] * 9]


def test_a_new_optimizer_for_every_fold_goes_on_with_the_marks(cells: Setup) -> None:
    cells.shell.ex("def fold():\n    own = torch.optim.SGD(model.parameters())\n    for i in range(4): own.step()")
    run = cells.run("def folds():\n    for i in range(5): fold()\nfolds()")
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 4"] * 19]


def test_a_first_look_at_a_batch_is_no_step(cells: Setup) -> None:
    run = cells.run("for x, y in loader(9):\n    break\nfor x, y in loader(8):\n    train_step(x, y)")
    assert (run.how, run.session.planned) == ("loop at line 4", (7, 1))


def test_an_exception_that_the_cell_catches_inside_the_loop_is_a_step_like_others(cells: Setup) -> None:
    run = cells.run("for i in range(6):\n    try:\n        1 / (i - 3)\n    except ZeroDivisionError:\n        pass")
    assert run.log == ["plan 5 1", *["mark 2"] * 5, "close 2"]


def test_a_loop_that_is_left_by_an_exception_may_be_entered_again(cells: Setup) -> None:
    cell = (
        "for attempt in range(3):\n    try:\n"
        "        for n, (x, y) in enumerate(loader(9)):\n            1 / (n - 2 + attempt * 9)"
    )
    run = cells.run(cell + "\n    except ZeroDivisionError:\n        pass")
    assert run.how == "loop at line 4"
    assert run.log == ["plan 26 1", *["mark 4"] * 20, "close 4"]


class Shard(DataLoader[Any]):
    """Fetches one batch ahead, as accelerate does."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


def test_a_loader_that_fetches_ahead_is_no_step_of_its_own(cells: Setup) -> None:
    cells.shell.user_ns["data"] = Shard(TensorDataset(torch.ones(20, 4), torch.ones(20, 1)), batch_size=2)
    run = cells.run("for x, y in data:\n    train_step(x, y)")
    assert run.log == ["plan None 1", *["mark 2"] * 9, "close 2"]
    run = cells.run("train(data)")
    assert run.how == "optimizer steps"


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


def test_a_named_loop_is_the_step_whatever_it_holds(cells: Setup) -> None:
    run = cells.run("for epoch in range(4):\n    for x, y in loader(3):\n        train_step(x, y)", loop=2)
    assert run.log == ["plan 3 1", *["mark 2"] * 3, "close 2"]


def test_a_named_first_loop_is_the_step(cells: Setup) -> None:
    run = cells.run("for p in range(4):\n    x = x * 1\nfor i in range(9):\n    model(x)", loop=2)
    assert run.log == ["plan 3 1", *["mark 2"] * 3, "close 2"]


def test_a_named_inner_loop_of_length_one_goes_over_the_outer(cells: Setup) -> None:
    run = cells.run("for i in range(5):\n    for j in range(1):\n        model(x)", loop=3)
    assert run.log == ["plan 4 1", *["mark 3"] * 4, "close 3"]


def test_a_comment_names_the_loop(cells: Setup) -> None:
    run = cells.run("for e in range(4):  # gpuprofile: step\n    for x, y in loader(3):\n        train_step(x, y)")
    assert run.how == "loop at line 2"


def test_a_named_line_without_a_loop_is_a_mistake_in_one_line(cells: Setup) -> None:
    with pytest.raises(UsageError) as caught:
        cells.run("for i in range(4):\n    while False:\n        pass\n    model(x)", loop=5)
    assert str(caught.value) == "--loop 5: no loop of the cell begins on that line; its loops are on lines 2 and 3."
    assert cells.session.log == []


@pytest.mark.parametrize(
    ("cell", "options", "text"),
    [
        ("model(x)", {"loop": 2}, "the cell has no loop of its own"),
        ("model(x)", {"step": "loop"}, "the cell has no loop of its own"),
        ("for i in 'ab': i\nx = 1  # gpuprofile: step", {}, "not on a loop of the cell; its only loop is on line 2"),
        ("for i in 'a': i # gpuprofile: step\nfor i in 'b': i # gpuprofile: step", {}, "is on lines 2, 3"),
    ],
)
def test_other_mistakes_are_one_line_too(cells: Setup, cell: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        cells.run(cell, **options)
    assert "\n" not in str(caught.value)


def test_calls_are_the_steps_as_soon_as_there_is_one(cells: Setup) -> None:
    run = cells.run("for i in range(10):\n    train_step(x, x[:, :1])\n    user_step()")
    assert run.described["how"] == "ipyprof.step()"
    assert run.described["mark"] == "call"
    assert run.log == ["plan 9 1", *["mark 4"] * 10]


def test_calls_in_a_function_are_the_steps(cells: Setup) -> None:
    run = cells.run("def go():\n    for i in range(6):\n        user_step()\ngo()")
    assert run.log == ["start_cold", "drop", "plan None 1", *["mark 5"] * 6]


def test_a_call_after_another_choice_is_noted_once(cells: Setup) -> None:
    run = cells.run("for i in range(6):\n    train_step(x, x[:, :1])\nuser_step()\nuser_step()")
    assert [status for _, status, _ in run.detector.notes] == ["warn"]


def test_step_call_waits_for_a_call(cells: Setup) -> None:
    run = cells.run("for i in range(6):\n    train_step(x, x[:, :1])", step="call")
    assert (run.how, run.log) == ("no step found", [])


def test_step_optimizer_marks_the_anchor(cells: Setup) -> None:
    run = cells.run("for i in range(10):\n    opt_d.step()\n    opt_g.step()", step="optimizer")
    assert run.how == "optimizer steps"
    assert run.log == ["plan None 1", *["mark 4"] * 9]


def test_step_optimizer_takes_the_one_that_steps_least(cells: Setup) -> None:
    cell = "for i in range(10):\n    for j in range(5):\n        opt_d.step()\n    opt_g.step()"
    run = cells.run(cell, step="optimizer")
    assert run.log == ["plan None 1", *["mark 5"] * 9]


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


def test_step_loader_marks_the_batches(cells: Setup) -> None:
    run = cells.run("for x, y in loader(10):\n    train_step(x, y)", step="loader")
    assert run.how == "batches"
    assert run.log == ["plan 8 1", *["mark 2"] * 9]


def test_an_iterable_dataset_has_no_known_length(cells: Setup) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(torch.ones(12, 4))

    cells.shell.user_ns["data"] = DataLoader(Endless(), batch_size=2)
    run = cells.run("for x in data:\n    model(x)")
    assert run.session.planned == (None, 1)
    assert run.session.marks == 5


def test_step_loop_never_takes_the_optimizer(cells: Setup) -> None:
    run = cells.run("for epoch in range(5):\n    train(loader(4))", step="loop")
    assert run.log == ["plan 4 1", *["mark 2"] * 4, "close 2"]


def test_step_cell_runs_the_cell_many_times(cells: Setup) -> None:
    session = FakeSession(record=range(3, 6))
    run = cells.run("seen.append(1)\nlen(seen)", session, step="cell")
    assert (run.how, run.value) == ("the cell, 7 times", 7)
    assert run.log == ["plan 6 1", *["mark 1"] * 6, "close 1"]
    assert session.ranges == [2, 3] * 3


def test_step_cell_with_one_run_is_cold(cells: Setup) -> None:
    run = cells.run("seen.append(1)", step="cell", wait=0, warmup=0, active=1)
    assert run.log == ["start_cold", "close 1"]


# -- recorded steps, work, ends --


def test_only_recorded_steps_run_with_ranges(cells: Setup) -> None:
    session = FakeSession(record=range(3, 5))
    cells.run("for i in range(8):\n    y = model(x)\n    for j in range(2):\n        z = y + j", session)
    assert session.ranges == [3, 4, 5, 5] * 2


def test_recorded_optimizer_steps_in_a_loop_run_with_ranges(cells: Setup) -> None:
    session = FakeSession(record=range(3, 5))
    cells.run("for i in range(9):\n    opt.step()\n    y = 1", session, step="optimizer")
    assert session.ranges == [3, 4, 3, 4]


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


def test_an_allocation_on_the_gpu_is_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    launched = Launches()
    assert not launched()
    gpu.allocated += 1
    assert launched()
    assert not launched()


def test_a_stream_at_work_is_a_launch_and_is_not_asked_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    launched = Launches()
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


def test_marks_of_a_session_that_is_over_cost_no_call(cells: Setup) -> None:
    run = cells.run("for i in range(50):\n    model(x)", FakeSession(over_after=5))
    assert run.log == ["plan 49 1", *["mark 2"] * 5]


def test_batches_that_are_drawn_beforehand_are_no_steps(cells: Setup) -> None:
    run = cells.run("batches = list(loader(10))\nfor x, y in batches:\n    model(x)")
    assert (run.how, run.session.planned) == ("loop at line 3", (9, 1))


def test_a_session_that_is_over_in_an_optimizer_hook_harms_nothing(cells: Setup) -> None:
    run = cells.run("train(loader(50))", FakeSession(over_after=5))
    assert run.session.marks == 5
    assert run.detector.notes == []


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


def test_events_of_other_threads_are_no_steps(cells: Setup) -> None:
    cell = (
        "import threading\ndef other():\n    for i in range(20): opt.step()\n"
        "t = threading.Thread(target=other)\nt.start(); t.join()"
    )
    assert cells.run(cell).how == "the cell, once"


def test_a_detector_needs_no_module_of_ours_in_the_namespace(cells: Setup) -> None:
    before = set(cells.shell.user_ns)
    cells.run("for i in range(3):\n    model(x)")
    assert set(cells.shell.user_ns) - before == {"i", "user_step"}
