"""What is seen of the DataLoaders that a cell draws from, without a call into the user's code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

import ipyprof
from ipyprof.capture import loaders as loaders_module
from ipyprof.capture import probes
from ipyprof.capture.loaders import Loaders, drawn_name, on_gpu
from ipyprof.capture.probes import usable_cores
from ipyprof.capture.watch import Watch
from ipyprof.options import Options
from ipyprof.trace.live import LoaderSeen
from tests.capture.fake_session import FakeSession, Run

ROWS = torch.arange(12.0).reshape(6, 2)


class Clock:
    """A clock that is set by hand, in ns."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Hostile(Dataset[int]):
    """A dataset that cannot stand to be asked anything but its items."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def __getattr__(self, name: str) -> Any:
        if name == "__getitems__":  # torch itself asks for it
            raise AttributeError(name)
        raise RuntimeError(f"asked for {name}")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Gathering(Hostile):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class Moving(Dataset[int]):
    """Its items would be made on a GPU."""

    def __init__(self) -> None:
        self.device = torch.device("cuda")

    def __getitem__(self, index: int) -> int:
        return index


class Sleeping(Dataset[int]):
    """20 ms for each item."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


def _ignore(*_event: object) -> None:
    """No event matters here."""


def seen_by(loader: Any, *, epochs: int = 1) -> LoaderSeen:
    """What a run sees that draws all batches of this loader."""
    watch = Watch(_ignore, _ignore, lambda: None)
    try:
        for _ in range(epochs):
            for _ in loader:
                pass
        (seen,) = watch.loaders.seen()
        return seen
    finally:
        watch.close()


def test_loader_of_tensors_in_the_main_process() -> None:
    # given a loader over rows of a tensor, when it is drawn from twice
    seen = seen_by(DataLoader(TensorDataset(ROWS), batch_size=2), epochs=2)
    # then all that its own attributes say is known, and each epoch's first wait is apart
    assert seen.iterator == "torch.utils.data.dataloader._SingleProcessDataLoaderIter"
    assert (seen.workers, seen.iterable, seen.batched, seen.batch_size) == (0, False, True, 2)
    assert (seen.prefetch_factor, seen.persistent, seen.pinned) == (None, None, False)
    assert (seen.dataset, seen.holds) == ("torch.utils.data.dataset.TensorDataset", "tensors")
    assert (seen.whole_batches, seen.own_collate, seen.on_gpu, seen.importable) == (False, False, False, True)
    assert (seen.batches, seen.epochs) == (6, 2)
    assert (len(seen.first_waits_ns), len(seen.waits_ns)) == (2, 4)
    assert seen.waited_ns == sum(seen.waits_ns) > 0


def test_loader_with_workers() -> None:
    loader = DataLoader(
        TensorDataset(ROWS),
        batch_size=3,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    seen = seen_by(loader, epochs=2)
    assert (seen.workers, seen.prefetch_factor, seen.persistent) == (1, 3, True)
    assert (seen.batches, seen.epochs, len(seen.first_waits_ns)) == (4, 2, 2)


@pytest.mark.parametrize(
    ("loader", "fields"),
    [
        (lambda: DataLoader(Stream(), batch_size=2), {"iterable": True, "holds": "other", "batch_size": 2}),
        (lambda: DataLoader(TensorDataset(ROWS), batch_size=None), {"batched": False, "batch_size": None}),
        (lambda: DataLoader([1, 2, 3]), {"holds": "list", "dataset": "list"}),
        (lambda: DataLoader(ROWS), {"holds": "tensors"}),  # type: ignore[arg-type]
        (lambda: DataLoader(ROWS.numpy()), {"holds": "array", "dataset": "numpy.ndarray"}),  # type: ignore[arg-type]
        (lambda: DataLoader(Gathering()), {"whole_batches": True}),
        (lambda: DataLoader(Moving(), sampler=range(3)), {"on_gpu": True}),
        (lambda: DataLoader([1], collate_fn=lambda rows: rows), {"importable": False, "own_collate": True}),
        (lambda: DataLoader(random_split(TensorDataset(ROWS), [4, 2])[0]), {"holds": "tensors", "on_gpu": False}),
    ],
)
def test_what_is_known_of_a_loader(loader: Callable[[], Any], fields: dict[str, Any]) -> None:
    seen = seen_by(loader())
    assert {name: getattr(seen, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("module", "known"),
    [("datasets.arrow_dataset", ("huggingface", "torch")), ("datasets.pictures", ("other", None))],
)
def test_a_hugging_face_dataset_is_told_from_a_package_of_that_name(
    module: str, known: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Moving, "__module__", module)
    dataset = Moving()
    dataset._format_type = "torch"  # type: ignore[attr-defined]
    seen = seen_by(DataLoader(dataset, sampler=range(3)))
    assert (seen.holds, seen.formatted) == known


def test_user_code_is_not_called() -> None:
    # given a dataset whose attributes raise, when its loader is drawn from
    seen = seen_by(DataLoader(Hostile(), batch_size=2))
    # then it is described all the same
    assert (seen.holds, seen.whole_batches, seen.on_gpu, seen.batches) == ("other", False, False, 2)


def test_a_large_dataset_is_not_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders_module, "LOOKED_AT", 3)
    assert on_gpu([torch.zeros(1) for _ in range(5)]) is None
    assert on_gpu([torch.zeros(1)]) is False


def test_waits_are_told_by_epoch() -> None:
    # given a worker start of 900 ns and fetches of 100, 10 and 20
    clock = Clock()
    loaders = Loaders(clock)
    (iterator,) = [iter(DataLoader(TensorDataset(ROWS)))]

    def fetch(number: int, wait: int) -> None:
        loaders.entered_ns[id(iterator)] = clock.now
        clock.now += wait
        loaders.fetched(iterator, number)
        clock.now += 5_000  # the step

    loaders.begun(iterator)
    clock.now += 900
    for number, wait in ((1, 100), (2, 10), (3, 20)):
        fetch(number, wait)
    # when it is asked, then the first batch's wait holds the start, and no wait holds a step
    (seen,) = loaders.seen()
    assert (seen.first_waits_ns, seen.waits_ns, seen.waited_ns) == ((1_000,), (10, 20), 30)


def test_nothing_is_counted_once_it_is_off() -> None:
    loaders = Loaders()
    loaders.on = False
    loaders.fetched(iter(DataLoader([1])), 1)
    assert loaders.seen() == ()


def test_the_loader_that_was_waited_for_longest_comes_first() -> None:
    clock = Clock()
    loaders = Loaders(clock)
    for size, wait in ((1, 10), (2, 50)):
        iterator = iter(DataLoader(TensorDataset(ROWS), batch_size=size))
        loaders.entered_ns[id(iterator)] = clock.now
        clock.now += wait
        loaders.fetched(iterator, 1)
        other = iter(DataLoader(TensorDataset(ROWS.clone()), batch_size=size))
        loaders.fetched(other, 1)
    assert next(seen.batch_size for seen in loaders.seen()) == 2


@pytest.mark.parametrize(
    ("iterable", "name"),
    [
        ((x for x in ()), "generator"),
        ([], "list"),
        (enumerate(x for x in ()), "generator"),
        (zip((), (), strict=False), "zip"),
    ],
)
def test_name_of_what_a_loop_draws_from(iterable: Any, name: str) -> None:
    assert drawn_name(iterable) == name


def test_a_loop_over_a_generator_is_told_to_the_session(shell: Any) -> None:
    # given a cell that draws from a generator, when it ran
    run = Run(shell, "for x in (n for n in range(9)):\n    x + 1", Options(), FakeSession())
    # then the session knows the class, and that there was no loader
    assert (run.session.iterable, run.session.loaders()) == ("generator", ())


def test_a_loop_over_a_loader_is_told_to_the_session(shell: Any) -> None:
    shell.user_ns["data"] = DataLoader(TensorDataset(ROWS), batch_size=1)
    run = Run(shell, "for x in data:\n    pass", Options(), FakeSession())
    (seen,) = run.session.loaders()
    assert run.session.iterable == "torch.utils.data.dataloader.DataLoader"
    assert (seen.dataset, seen.batches) == ("torch.utils.data.dataset.TensorDataset", 6)


def test_batches_are_counted_until_the_cell_ends(shell: Any) -> None:
    shell.user_ns["data"] = DataLoader(TensorDataset(ROWS), batch_size=1)
    run = Run(shell, "for x in data:\n    pass", Options(), FakeSession(over_after=2))
    (seen,) = run.session.loaders()
    assert seen.batches == len(ROWS)


def test_classes_of_the_cell_cannot_be_imported_by_a_new_process(shell: Any) -> None:
    cell = """
from torch.utils.data import DataLoader, Dataset
class Mine(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return index
for x in DataLoader(Mine()):
    pass
"""
    run = Run(shell, cell, Options(), FakeSession())
    (seen,) = run.session.loaders()
    assert (seen.dataset, seen.importable) == ("Mine", False)


# Cores


def root(path: Path, **files: str) -> Path:
    """A fake root with these files; two underscores are a slash."""
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="ascii")
    return path


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16.0),
        ({"proc__self__cgroup": "0::/pod/one\n", "sys__fs__cgroup__pod__cpu_dot_max": "250000 100000\n"}, 2.5),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu_dot_max": "max 100000\n"}, 16.0),
        ({"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__cpu_dot_max": "nonsense\n"}, 16.0),
        (
            {
                "proc__self__cgroup": "4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
                "sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us": "100000\n",
                "sys__fs__cgroup__cpu__cpu_dot_cfs_period_us": "100000\n",
            },
            1.0,
        ),
        (
            {
                "proc__self__cgroup": "4:cpu:/\n",
                "sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__cpu_dot_cfs_period_us": "100000\n",
            },
            16.0,
        ),
    ],
)
def test_cores_are_the_affinity_or_a_smaller_quota(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    assert usable_cores(root(tmp_path, **files)) == cores


def test_cores_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) is None


def test_a_profiled_loop_gets_the_advice_for_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the iterator to the sentence, on the CPU."""
    # given a loop that does nothing but wait for its items, and eight cores
    monkeypatch.setattr(probes, "usable_cores", lambda: 8.0)
    data = DataLoader(Sleeping(), sampler=range(12))
    # when it is profiled
    with ipyprof.profile(quiet=True, wait=1, warmup=1, active=3) as run:
        for _ in data:
            pass
    # then the workers that there are cores for are named, and nothing that one epoch without a copy does not need
    assert run.report.verdict.cause == "data_loading"
    assert run.report.verdict.advice == "Load in worker processes: DataLoader(..., num_workers=7)."
