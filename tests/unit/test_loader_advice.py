"""Each rule of the advice on loading: when it speaks, what it says, and that the wrong cure is not named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.cause import Finding
from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.causes.data_loading import epoch_share
from ipyprof.trace.live import LoaderSeen
from tests.looped import SOURCE, profiled
from tests.machine import Machine, live

pytestmark = pytest.mark.usefixtures("recording_costs_nothing")

MS = 1_000_000
MAIN_NAME = "_SingleProcessDataLoaderIter.__next__"
WORKERS_NAME = "_MultiProcessingDataLoaderIter.__next__"


def starving(machine: Machine, name: str = MAIN_NAME) -> None:
    """Fetch 8 ms in front of 2 ms of GPU work."""
    machine.loader(8_000, name=name)
    with machine.line(3):
        machine.launch(2_000)


def waiting(machine: Machine) -> None:
    """The same, for worker processes."""
    starving(machine, WORKERS_NAME)


def between_the_steps(machine: Machine) -> None:
    """The same, by an iterator that is no DataLoader."""
    with machine.line(3):
        machine.launch(2_000)
    machine.python(8_000)


def copying(machine: Machine) -> None:
    """The same, and a pageable copy behind it."""
    machine.loader(8_000)
    with machine.line(3):
        machine.blocking_copy(100, 2_000_000)
        machine.launch(2_000)


def seen(**known: Any) -> LoaderSeen:
    """A loader of ordinary items in the main process, 8 ms for each batch of 16, one epoch so far."""
    ordinary: dict[str, Any] = {
        "iterator": "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
        "workers": 0,
        "iterable": False,
        "batched": True,
        "batch_size": 16,
        "pinned": False,
        "dataset": "Pictures",
        "whole_batches": False,
        "own_collate": False,
        "on_gpu": False,
        "importable": True,
        "start_method": "fork",
        "batches": 21,
        "epochs": 1,
        "first_waits_ns": (9 * MS,),
        "waits_ns": (8 * MS,) * 20,
        "waited_ns": 160 * MS,
    }
    return LoaderSeen(**{**ordinary, **known})


def of_workers(count: int = 2, **known: Any) -> LoaderSeen:
    """The same with worker processes."""
    return seen(**{"workers": count, "prefetch_factor": 2, "persistent": False, **known})


def found(
    loader: LoaderSeen | None, body: Callable[[Machine], object] = starving, *, cores: float | None = 16.0, **known: Any
) -> Finding:
    """The finding of a live run that drew from this loader."""
    step_us = 8_114 if body is copying else 8_005
    loaders = () if loader is None else (loader,)
    finding = cause_of("data_loading").find(profiled(body, step_us, loaders=loaders, cores=cores, **known))
    assert finding.status == "found"
    return finding


def test_workers_for_a_loader_in_the_main_process() -> None:
    # given a loader without workers that is awaited for 8 ms in front of 2 ms of work, and cores to spare
    finding = found(seen())
    # then as many workers are named as make batches in time, without what one epoch and no copy do not need
    assert finding.advice == "Load in worker processes: DataLoader(..., num_workers=4)."
    assert "in the main process (num_workers=0)" in finding.evidence


def test_no_more_workers_than_cores() -> None:
    assert "num_workers=2" in found(seen(), cores=3.0).advice


def test_pinned_memory_only_with_a_pageable_copy() -> None:
    assert "pin_memory" not in found(seen()).advice
    assert "pin_memory=True" in found(seen(), copying).advice
    assert "pin_memory" not in found(seen(pinned=True), copying).advice


def test_workers_are_kept_where_there_are_several_epochs() -> None:
    several = seen(epochs=2, first_waits_ns=(9 * MS, 9 * MS))

    assert "persistent_workers=True" in found(several).advice


def test_wait_at_the_start_of_an_epoch_is_the_start_of_the_workers() -> None:
    # given ten epochs whose first batch takes 300 ms, and 0.1 ms for all others
    loader = of_workers(epochs=10, first_waits_ns=(300 * MS,) * 10, waits_ns=(MS // 10,) * 200, waited_ns=20 * MS)
    # when it is judged
    finding = found(loader, waiting)
    # then the workers are to be kept, and no more of them are asked for
    assert "persistent_workers=True" in finding.advice
    assert "300 ms there, 0.10 ms for each other batch" in finding.advice
    assert "num_workers" not in finding.advice
    assert "99 % of all waits at the start of an epoch" in finding.evidence


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (of_workers(persistent=True), "a sampler that repeats"),
        (seen(), "prepared once, before the loop"),
    ],
)
def test_wait_at_the_start_of_an_epoch_without_workers_that_start(loader: LoaderSeen, words: str) -> None:
    known: dict[str, Any] = {
        "epochs": 3,
        "first_waits_ns": (300 * MS,) * 3,
        "waits_ns": (1_000,) * 9,
        "waited_ns": 9_000,
    }
    plain = {name: getattr(loader, name) for name in loader.__struct_fields__}
    finding = found(LoaderSeen(**{**plain, **known}), waiting if loader.workers else starving)

    assert words in finding.advice
    assert "persistent_workers=True" not in finding.advice
    assert "num_workers" not in finding.advice


def test_waits_all_along_are_no_start_of_an_epoch() -> None:
    loader = of_workers(epochs=2, first_waits_ns=(300 * MS, 20 * MS), waited_ns=160 * MS)

    assert epoch_share(loader) == pytest.approx(20 / 180)
    assert "start of" not in found(loader, waiting).advice


def test_pinning_for_nothing() -> None:
    # given a fetch that is three quarters pinning, and no copy to the GPU
    def pinning(machine: Machine) -> None:
        begin = machine.host
        machine.loader(8_000)
        machine.builder.op("aten::pin_memory", begin + 1_000, begin + 7_000)
        with machine.line(3):
            machine.launch(2_000)

    finding = found(seen(pinned=True), pinning)
    # then it is to be left out, and workers are no cure
    assert finding.advice == "Leave out pin_memory=True: it takes 75 % of the fetch, and no batch is copied to the GPU."


def test_pinning_that_a_copy_uses_stays() -> None:
    def pinned(machine: Machine) -> None:
        begin = machine.host
        machine.loader(8_000)
        machine.builder.op("aten::pin_memory", begin + 1_000, begin + 7_000)
        with machine.line(3):
            machine.copy(100, 2_000_000)
            machine.launch(2_000)

    assert (
        "Leave out" not in cause_of("data_loading").find(profiled(pinned, 8_100, loaders=(seen(pinned=True),))).advice
    )


def test_tensors_on_the_gpu_never_go_into_workers() -> None:
    finding = found(seen(holds="tensors", on_gpu=True, batch_size=512))

    assert "split(512): x[rows]" in finding.advice
    assert "num_workers" not in finding.advice


def test_items_made_on_the_gpu_never_go_into_workers() -> None:
    """Seen in the trace alone: a launch within the fetch."""

    def launching(machine: Machine) -> None:
        begin = machine.host
        machine.launch(10)
        machine.python(8_000 - 5)
        machine.builder.loader(begin, machine.host, name=MAIN_NAME)
        with machine.line(3):
            machine.launch(2_000)

    finding = found(seen(), launching)

    assert "it cannot go into worker processes" in finding.advice
    assert "num_workers" not in finding.advice


def test_a_copy_behind_the_loader_is_not_the_loaders_work() -> None:
    """A wrapper of the loader that copies each batch to the GPU: the loader may have workers."""

    def wrapped(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(2_000)
        machine.loader(8_000)
        machine.copy(100, 2_000_000)

    finding = found(seen(), wrapped, loop_is_for=True)

    assert "num_workers" in finding.advice


@pytest.mark.parametrize("workers", [0, 4])
def test_rows_of_a_tensor_are_taken_as_a_batch(workers: int) -> None:
    loader = seen(workers=workers, holds="tensors", batch_size=512, dataset="torch.utils.data.dataset.TensorDataset")
    finding = found(loader, waiting if workers else starving)

    assert "sampler=BatchSampler(RandomSampler(data), 512, drop_last=False)" in finding.advice
    assert "num_workers" not in finding.advice


def test_the_change_for_rows_of_a_tensor_gives_the_same_batches() -> None:
    """The advice is code: it is run."""
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    by_row = [[part.tolist() for part in batch] for batch in DataLoader(data, batch_size=4)]
    sampler = BatchSampler(SequentialSampler(data), 4, drop_last=False)
    at_once = [[part.tolist() for part in batch] for batch in DataLoader(data, batch_size=None, sampler=sampler)]

    assert at_once == by_row


def test_an_array_becomes_a_tensor_first() -> None:
    assert "torch.from_numpy" in found(seen(holds="array")).advice


@pytest.mark.parametrize(
    "known", [{"whole_batches": True}, {"batched": False}, {"batch_size": 1}, {"own_collate": True}, {"iterable": True}]
)
def test_rows_are_not_blamed_where_they_are_not_indexed_one_by_one(known: dict[str, Any]) -> None:
    assert "BatchSampler" not in found(seen(holds="tensors", **known)).advice


def test_python_objects_of_a_hugging_face_dataset() -> None:
    python = found(seen(holds="huggingface", formatted="", whole_batches=True))
    tensors = found(seen(holds="huggingface", formatted="torch", whole_batches=True))

    assert 'with_format("torch")' in python.advice
    assert "num_workers" not in python.advice
    assert tensors.advice == "Load in worker processes: DataLoader(..., num_workers=4)."


def test_rows_of_a_hugging_face_dataset_drawn_one_by_one() -> None:
    finding = found(None, between_the_steps, loop_is_for=True, iterable="datasets.arrow_dataset.Dataset")

    assert ".iter(batch_size=64)" in finding.advice


def test_items_of_microseconds_never_go_into_workers() -> None:
    # given 512 items in 4 ms, 7.8 us each
    finding = found(seen(batch_size=512, waits_ns=(4 * MS,) * 20))
    # then the batch is to be made in one call
    assert "An item takes 8 µs (4.00 ms a batch)" in finding.advice
    assert "__getitems__" in finding.advice
    assert "num_workers" not in finding.advice


def test_batches_of_microseconds_never_go_into_workers() -> None:
    finding = found(seen(batched=False, batch_size=None, waits_ns=(MS // 2,) * 20))

    assert "too little for worker processes" in finding.advice
    assert "num_workers" not in finding.advice
    assert "__getitems__" not in finding.advice


def test_cheap_items_that_come_as_a_batch_already() -> None:
    finding = found(seen(batch_size=512, waits_ns=(4 * MS,) * 20, whole_batches=True))

    assert "collate_fn" in finding.advice
    assert "__getitems__" not in finding.advice


@pytest.mark.parametrize(("cores", "body"), [(1.0, starving), (0.5, starving), (1.5, waiting)])
def test_no_workers_on_one_core(cores: float, body: Callable[[Machine], object]) -> None:
    finding = found(of_workers() if body is waiting else seen(), body, cores=cores)

    assert finding.advice.startswith("This process may use one core")
    assert "num_workers" not in finding.advice


@pytest.mark.parametrize("cores", [float("inf"), float("nan"), -1.0, 0.0])
def test_cores_that_are_no_number_of_cores_are_unknown(cores: float) -> None:
    assert found(seen(), cores=cores).advice == found(seen(), cores=None).advice


def test_no_workers_on_one_core_for_a_generator() -> None:
    finding = found(None, between_the_steps, cores=1.0, loop_is_for=True, iterable="generator")

    assert "may use one core" in finding.advice
    assert "num_workers" not in finding.advice


def test_late_batches_need_a_longer_queue_not_more_workers() -> None:
    # given two workers, and one batch in twenty that is awaited
    waits = ((10_000,) * 19 + (160 * MS,)) * 4
    finding = found(of_workers(waits_ns=waits), waiting)
    # then more is to be made ahead
    assert finding.advice == (
        "4 batches of 80 came late, the others were ready: let more be made ahead, prefetch_factor=4 (now 2)."
    )


def test_one_wait_in_each_round_of_the_workers_is_no_late_batch() -> None:
    """Two workers that are too slow: they end together, so that every second batch is awaited."""
    waits = (16 * MS, 10_000) * 20
    finding = found(of_workers(waits_ns=waits), waiting)

    assert "prefetch_factor" not in finding.advice
    assert "num_workers=8" in finding.advice


@pytest.mark.parametrize(("workers", "cores"), [(8, 8.0), (8, 4.0), (2, 2.5)])
def test_no_more_workers_where_every_core_has_one(workers: int, cores: float) -> None:
    finding = found(of_workers(workers), waiting, cores=cores)

    assert f"have {workers} workers already" in finding.advice
    assert "num_workers" not in finding.advice


def test_more_workers_where_there_are_cores() -> None:
    # given two workers that make a batch in 8 ms together, in front of 2 ms of work
    finding = found(of_workers(2, epochs=2, first_waits_ns=(MS, MS)), waiting)
    # then four times as many, and kept
    assert "num_workers=8, persistent_workers=True" in finding.advice
    assert "16 cores may be used" in finding.advice
    assert "2 worker processes on 16 cores" in finding.evidence


def test_more_workers_up_to_the_cores() -> None:
    assert "num_workers=5" in found(of_workers(2), waiting, cores=5.0).advice


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"importable": False, "start_method": "spawn"}, True),
        ({"importable": False, "start_method": "forkserver"}, True),
        ({"importable": False, "start_method": "fork"}, False),
        ({"importable": True, "start_method": "spawn"}, False),
        ({"importable": None, "start_method": "spawn"}, False),
    ],
)
def test_classes_of_a_notebook_move_to_a_module_before_they_are_spawned(known: dict[str, Any], told: bool) -> None:
    finding = found(seen(**known))

    assert ("into a module of their own" in finding.advice) is told
    assert "num_workers=4" in finding.advice


def test_a_stream_is_shared_out() -> None:
    finding = found(seen(iterable=True))

    assert "num_workers=4" in finding.advice
    assert "get_worker_info()" in finding.advice
    assert "get_worker_info()" not in found(seen()).advice


def test_a_stream_with_workers_is_shared_out() -> None:
    finding = found(of_workers(iterable=True), waiting)

    assert "num_workers=8) (now 2)" in finding.advice
    assert "get_worker_info()" in finding.advice


def test_a_stream_of_hugging_face_has_shards() -> None:
    finding = found(seen(iterable=True, holds="huggingface", formatted=None))

    assert "shards" in finding.advice
    assert "get_worker_info()" not in finding.advice


def test_a_plain_generator_is_prepared_in_a_thread() -> None:
    finding = found(None, between_the_steps, loop_is_for=True, iterable="generator")

    assert finding.advice.startswith("The generator makes each item between two steps.")
    assert "pin_memory" not in finding.advice


def test_a_generator_that_does_more_than_its_loader_is_no_loader() -> None:
    """1 ms in a DataLoader, 7 in the generator around it."""

    def around(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(2_000)
        machine.python(7_000)
        machine.loader(1_000)

    finding = found(seen(), around, loop_is_for=True, iterable="generator")

    assert finding.advice.startswith("The generator")


def test_workers_that_a_generator_starts_anew_are_kept() -> None:
    """Their start lies in the generator, outside of the fetch of the first batch."""

    def around(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(2_000)
        machine.python(7_000)
        machine.loader(1_000, name=WORKERS_NAME)

    loader = of_workers(epochs=9, first_waits_ns=(300 * MS,) * 9, waits_ns=(1_000,) * 20, waited_ns=20_000)
    finding = found(loader, around, loop_is_for=True, iterable="generator")

    assert "persistent_workers=True" in finding.advice


def test_start_of_workers_in_a_loop_over_a_loader_is_the_loaders() -> None:
    def starting(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(2_000)
        machine.python(7_000)
        machine.loader(1_000, name=WORKERS_NAME)

    finding = found(of_workers(), starting, loop_is_for=True, iterable="torch.utils.data.dataloader.DataLoader")

    assert "waiting for 2 worker processes" in finding.evidence
    assert "num_workers=8" in finding.advice


def test_a_file_tells_the_class_only() -> None:
    # given the same steps from a file, when they are judged
    main = cause_of("data_loading").find(profiled(starving, None))
    workers = cause_of("data_loading").find(profiled(waiting, None))
    # then nothing is said of cores or epochs
    assert main.advice == "Load in worker processes: DataLoader(..., num_workers=4, persistent_workers=True)."
    assert workers.advice == (
        "The workers are too slow: do less per item, or give them more processes if there are cores for them."
    )


def test_what_the_live_run_saw_survives_a_saved_trace() -> None:
    # given a trace that carries what was seen of its loader
    machine = Machine()
    for _ in range(4):
        with machine.step():
            starving(machine)
    record = live(SOURCE, 8_005, 8_005, loaders=(seen(iterable=True),), cores=16.0, iterable="tqdm.std.tqdm")
    machine.builder.live(record)
    # when the file is read
    profile = analyse(machine.trace())
    # then the advice is that of the live run
    assert profile.live == record
    assert "get_worker_info()" in cause_of("data_loading").find(profile).advice
