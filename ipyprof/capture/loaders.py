"""What the DataLoaders that the cell draws from are, and how long each batch was waited for.

Objects are read as ``ipyprof.capture.looking`` says: no code of the user's is called. What cannot be read that way is
``None``.

Cost: 0.3 us for a batch, and 0.1 ms at the first batch of each loader, more where its dataset holds many objects.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, Subset, TensorDataset, default_collate, default_convert

from ipyprof.capture.looking import class_dict_of, has_base, mro_of, names_of, root_of, text_of
from ipyprof.trace.live import LoaderSeen

KEPT_WAITS = 512
KEPT_EPOCHS = 64
LOOKED_AT = 1_000  # objects of a dataset that are searched for tensors on a GPU
_COLLATES = (default_collate, default_convert)
_HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset")  # many have a package of this name themselves
_BUILTIN = (list, tuple, dict)
_TENSORS = (torch.Tensor, torch.nn.Parameter)


class _Loader:
    """One loader while the cell runs: what it is, and the waits for its batches in ns."""

    __slots__ = ("batches", "epochs", "facts", "first", "later", "later_total")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.batches = self.epochs = self.later_total = 0
        self.first: deque[int] = deque(maxlen=KEPT_EPOCHS)
        self.later: deque[int] = deque(maxlen=KEPT_WAITS)


class Loaders:
    """Gets each beginning, entry and batch of torch's DataLoader iterators, in the thread of the cell.

    Attributes:
        on: nothing is counted once it is false.
        waited: is told each wait: the iterator, ns, whether an epoch began with it.
        entered_ns: id of an iterator → when its fetch began.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.on = True
        self.waited: Callable[[Any, int, bool], None] = _ignore
        self._clock = clock
        self._loaders: dict[tuple[int, type, Any], _Loader] = {}
        self._started: dict[int, int] = {}  # id of an iterator → when its epoch began
        self._current: dict[int, _Loader] = {}  # id of an iterator → its loader
        self.entered_ns: dict[int, int] = {}

    def begun(self, iterator: Any) -> None:
        """An epoch begins: the iterator is made or reset, and its workers have not yet started."""
        if self.on:
            self._started[id(iterator)] = self._clock()

    def fetched(self, iterator: Any, number: int) -> None:
        """A fetch has its batch, the ``number``-th of its epoch, from 1."""
        if not self.on:
            return
        now, identity = self._clock(), id(iterator)
        entered = self.entered_ns.pop(identity, None)
        loader = self._current.get(identity)
        if number == 1 or loader is None:
            try:
                loader = self._current[identity] = self._of(iterator)
            except Exception:  # would reach the user's code
                self.on = False
                return
        loader.batches += 1
        if number == 1:
            begun = self._started.pop(identity, entered)
            loader.epochs += 1
            if begun is not None:
                loader.first.append(now - begun)
                self.waited(iterator, now - begun, True)
        elif entered is not None:
            loader.later.append(now - entered)
            loader.later_total += now - entered
            self.waited(iterator, now - entered, False)

    def _of(self, iterator: Any) -> _Loader:
        """The loader of an iterator: each epoch has an iterator of its own unless the workers persist."""
        state = _attributes_of(iterator)
        key = (id(state.get("_dataset")), type(iterator), state.get("_num_workers"))
        loader = self._loaders.get(key)
        if loader is None:
            loader = self._loaders[key] = _Loader(_facts(iterator))
        return loader

    def seen(self) -> tuple[LoaderSeen, ...]:
        """Every loader that gave a batch, the one that was waited for longest first."""
        ranked = sorted(self._loaders.values(), key=lambda loader: -(loader.later_total + sum(loader.first)))
        return tuple(
            LoaderSeen(
                **loader.facts,
                batches=loader.batches,
                epochs=loader.epochs,
                first_waits_ns=tuple(loader.first),
                waits_ns=tuple(loader.later),
                waited_ns=loader.later_total,
            )
            for loader in ranked
        )


def _ignore(_iterator: Any, _ns: int, _first: bool) -> None:
    """Nobody asked."""


def _facts(iterator: Any) -> dict[str, Any]:
    """The fields of ``LoaderSeen`` that are no measurement."""
    state = _attributes_of(iterator)
    dataset = state.get("_dataset")
    workers, kind, sampler = state.get("_num_workers"), state.get("_dataset_kind"), state.get("_index_sampler")
    size = _attributes_of(sampler).get("batch_size") if has_base(type(sampler), BatchSampler) else None
    source = _without_subsets(dataset)
    parts = (type(source), state.get("_collate_fn"))
    return {
        "iterator": _name(type(iterator)),
        "workers": _typed(workers, int),
        "iterable": None if kind is None else kind == 1 or has_base(type(dataset), IterableDataset),
        "batched": _typed(state.get("_auto_collation"), bool),
        "batch_size": _typed(size, int),
        "prefetch_factor": _typed(state.get("_prefetch_factor"), int),
        "persistent": _typed(state.get("_persistent_workers"), bool) if workers else None,
        "pinned": _typed(state.get("_pin_memory"), bool),
        "dataset": _name(type(source)),
        "holds": holds(source),
        "whole_batches": _defines(type(source), "__getitems__") is not None,
        "own_collate": all(state["_collate_fn"] is not one for one in _COLLATES) if "_collate_fn" in state else None,
        "formatted": _formatted(source),
        "on_gpu": on_gpu(dataset),
        "importable": all(_is_importable(part) for part in parts if part is not None),
        "start_method": _start_method(),
    }


def holds(dataset: Any) -> str:
    """What a dataset's items come from: ``tensors``, ``array``, ``list``, ``huggingface``; else ``other``."""
    kind = type(dataset)
    if kind in _TENSORS or (has_base(kind, TensorDataset) and _defines(kind, "__getitem__") is TensorDataset):
        return "tensors"
    if root_of(kind) == "numpy":
        return "array"
    if text_of(kind, "__module__") in _HUGGING_FACE:
        return "huggingface"
    return "list" if kind in _BUILTIN else "other"


def on_gpu(dataset: Any) -> bool | None:
    """Whether a dataset holds a tensor or a module on a GPU, or names one as a device.

    ``None`` where there was too much to look at.
    """
    waiting: deque[Any] = deque([dataset])
    looked: set[int] = set()
    while waiting:
        one = waiting.popleft()
        if id(one) in looked:
            continue
        if len(looked) == LOOKED_AT:
            return None
        looked.add(id(one))
        kind = type(one)
        if kind in _TENSORS:
            if one.is_cuda:
                return True
        elif kind is torch.device or kind is str:
            if str(one).partition(":")[0] == "cuda":
                return True
        elif kind is dict:
            waiting.extend(islice(one.values(), 64))
        elif kind in (list, tuple):
            waiting.extend(islice(one, 64))
        elif one is dataset or has_base(kind, torch.utils.data.Dataset) or has_base(kind, torch.nn.Module):
            waiting.extend(islice(_attributes_of(one).values(), 64))
    return False


def drawn_name(iterable: Any) -> str:
    """The class that a loop draws from, such as ``generator`` or ``datasets.arrow_dataset.Dataset``; tqdm and
    ``enumerate`` are looked through."""
    for _ in range(4):
        kind = type(iterable)
        if kind is enumerate:
            iterable = iterable.__reduce__()[1][0]
        elif root_of(kind) == "tqdm":
            iterable = _attributes_of(iterable).get("iterable")
        else:
            break
    return _name(type(iterable))


def _without_subsets(dataset: Any) -> Any:
    """What torch's own ``Subset`` (``random_split`` makes it) takes its items from."""
    for _ in range(8):
        if type(dataset) is not Subset:
            break
        dataset = _attributes_of(dataset).get("dataset")
    return dataset


def _formatted(dataset: Any) -> str | None:
    """What a Hugging Face dataset makes of its rows, such as ``torch``; empty for Python objects."""
    state = _attributes_of(dataset)
    if text_of(type(dataset), "__module__") not in _HUGGING_FACE or "_format_type" not in state:
        return None
    return str(_typed(state["_format_type"], str) or "")


def _is_importable(part: Any) -> bool:
    """Whether a class or function can be found by name in a new process: not so one of a notebook or a function."""
    if type(part) is FunctionType:
        return part.__module__ != "__main__" and "<" not in part.__qualname__
    kind = part if has_base(type(part), type) else type(part)
    return text_of(kind, "__module__") != "__main__" and "<" not in text_of(kind, "__qualname__")


def _start_method() -> str | None:
    """How worker processes start, without settling it: asking the usual way would fix the default for good."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen is not None:
        return str(chosen)
    if sys.platform != "linux":
        return "spawn"
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def _attributes_of(one: Any) -> dict[str, Any]:
    return dict(names_of(one))


def _defines(kind: type, name: str) -> type | None:
    """The class of ``kind``'s order that defines ``name``, or ``None``."""
    return next((base for base in mro_of(kind) if name in class_dict_of(base)), None)


def _name(kind: type) -> str:
    """``generator``, ``torch.utils.data.dataset.TensorDataset``: without the module for builtins and the notebook."""
    module, name = text_of(kind, "__module__"), text_of(kind, "__qualname__")
    return name if module in ("builtins", "__main__", "") else f"{module}.{name}"


def _typed(value: Any, kind: type) -> Any:
    """The value where it is of exactly this type, else ``None``."""
    return value if type(value) is kind else None
