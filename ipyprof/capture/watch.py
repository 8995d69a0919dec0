"""Optimizer steps, batches and backward passes while a cell runs, seen without a frame of ours in any traceback.

Each door is private or global torch, guarded, and closed by `Watch.close`; where one is missing, what it shows is
simply not seen. Costs: 0.5 us for an optimizer step, under 0.2 us for a backward pass, 1.2 us for a batch.

* Optimizer: the global post hooks, as `ipyprof.capture.optimizer_hooks` says.
* Batches: a data descriptor in place of ``_BaseDataLoaderIter._num_yielded``, which ``__next__`` raises by one when it
  has a batch. Only where ``__next__`` does not do that is the method itself replaced. Another one in place of
  ``_profile_name``, which ``__next__`` reads first, tells when the fetch began.
* Backward: ``torch.autograd._tensor_or_tensors_to_tuple``, which ``backward`` calls first and which does not raise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as loader_module

from ipyprof.capture.loaders import Loaders
from ipyprof.capture.optimizer_hooks import hook_optimizer_steps, inside_another_step

_COUNTER = "_num_yielded"
_ENTRY = "_profile_name"
_SIZED: tuple[type, ...] = (
    range,
    list,
    tuple,
    dict,
    set,
    frozenset,
    str,
    bytes,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_EXAMPLES: tuple[Any, ...] = (range(1), [], (), {}, set(), range(2**70))
_COUNTED: tuple[type, ...] = tuple(type(iter(example)) for example in _EXAMPLES)


class Watch:
    """Calls ``on_step(optimizer)``, ``on_batch(iterator)`` and ``on_backward()`` until closed, in this thread only.

    Attributes:
        loaders: what the loaders are that gave the batches, and how long each batch was waited for.
    """

    def __init__(
        self, on_step: Callable[[Any], None], on_batch: Callable[[Any], None], on_backward: Callable[[], None]
    ) -> None:
        self.on_step = on_step
        self.on_batch = on_batch
        self._on_backward = on_backward
        self.loaders = Loaders()
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        self._undo_backward: Callable[[], None] = _nothing
        self._watch_optimizers()
        self._watch_batches()
        self._watch_backward()

    def close(self) -> None:
        """Take everything back, the last first."""
        self.forget_backward()
        while self._undo:
            self._undo.pop()()

    def forget_backward(self) -> None:
        """Watch backward passes no longer."""
        self._undo_backward()
        self._undo_backward = _nothing

    def mark_after_fetch(self) -> None:
        """Call ``on_batch`` when a fetch has returned, outside of torch's own range around it."""
        iterator_type = loader_module._BaseDataLoaderIter
        original = iterator_type.__dict__.get("__next__")
        if original is None:
            return
        on_batch, self.on_batch = self.on_batch, _ignore
        thread = self._thread

        def __next__(iterator: Any) -> Any:
            __tracebackhide__ = True
            batch = original(iterator)
            if threading.get_ident() == thread:
                on_batch(iterator)
            return batch

        self._replace(iterator_type, "__next__", __next__, original)

    def _watch_optimizers(self) -> None:
        def stepped(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if threading.get_ident() == self._thread and not inside_another_step(optimizer):
                self.on_step(optimizer)

        self._undo.append(hook_optimizer_steps(stepped))

    def _watch_batches(self) -> None:
        iterator_type = getattr(loader_module, "_BaseDataLoaderIter", None)
        fetch = getattr(iterator_type, "__next__", None)
        if iterator_type is None or fetch is None:
            return
        if _COUNTER not in getattr(getattr(fetch, "__code__", None), "co_names", ()):
            self.mark_after_fetch()
            return
        before = iterator_type.__dict__.get(_COUNTER)
        self._describe(iterator_type, _COUNTER, _Counter(self._began, self._fetched, before), before)
        if iterator_type.__dict__.get(_ENTRY) is None:
            self._describe(iterator_type, _ENTRY, _Entry(self.loaders.entered_ns), None)

    def _describe(self, owner: Any, name: str, descriptor: Any, before: Any) -> None:
        """Put a descriptor into the class, in place of ``before``."""
        setattr(owner, name, descriptor)

        def undo() -> None:
            if owner.__dict__.get(name) is not descriptor:
                return
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _began(self, iterator: Any) -> None:
        if threading.get_ident() == self._thread:
            self.loaders.begun(iterator)

    def _fetched(self, iterator: Any, number: int) -> None:
        if threading.get_ident() == self._thread:
            self.loaders.fetched(iterator, number)
            self.on_batch(iterator)

    def _watch_backward(self) -> None:
        name = "_tensor_or_tensors_to_tuple"
        original = getattr(torch.autograd, name, None)
        if original is None:
            return

        def first_call(*arguments: Any, **keywords: Any) -> Any:
            if threading.get_ident() == self._thread:
                self._on_backward()
            return original(*arguments, **keywords)

        self._replace(torch.autograd, name, first_call, original)
        self._undo_backward = self._undo.pop()

    def _replace(self, owner: Any, name: str, new: Any, original: Any) -> None:
        setattr(owner, name, new)

        def undo() -> None:
            if owner.__dict__.get(name) is new:
                setattr(owner, name, original)

        self._undo.append(undo)


class _Counter:
    """A data descriptor that keeps the attribute in the instance and reports each rise; ``before`` is the outer one.

    An epoch begins where it is made, or falls to zero: it is set to zero once more when the workers have started.
    """

    def __init__(self, began: Callable[[Any], None], fetched: Callable[[Any, int], None], before: Any) -> None:
        self._began = began
        self._fetched = fetched
        self._before = before

    def __get__(self, iterator: Any, _owner: Any = None) -> Any:
        if iterator is None:
            return self
        try:
            return iterator.__dict__[_COUNTER]
        except KeyError:
            raise AttributeError(_COUNTER) from None

    def __set__(self, iterator: Any, value: int) -> None:
        if isinstance(self._before, _Counter):
            self._before.__set__(iterator, value)
        state = iterator.__dict__
        if value:
            state[_COUNTER] = value
            self._fetched(iterator, value)
        else:
            if state.get(_COUNTER) != 0:
                self._began(iterator)
            state[_COUNTER] = value


class _Entry:
    """A data descriptor that keeps the attribute in the instance and writes down when it was last read, by iterator."""

    def __init__(self, read_ns: dict[int, int]) -> None:
        self._read_ns = read_ns

    def __get__(self, iterator: Any, _owner: Any = None) -> Any:
        if iterator is None:
            return self
        self._read_ns[id(iterator)] = time.perf_counter_ns()
        try:
            return iterator.__dict__[_ENTRY]
        except KeyError:
            raise AttributeError(_ENTRY) from None

    def __set__(self, iterator: Any, value: Any) -> None:
        iterator.__dict__[_ENTRY] = value


class Launches:
    """Whether GPU work was launched since the last look that said so. Always yes where there is no GPU to ask.

    Seen by the allocator's count of allocations, or by a stream that is not idle. 50 us a look.
    """

    def __init__(self) -> None:
        self._before = self._allocations()

    def __call__(self) -> bool:
        if not torch.cuda.is_available():
            return True
        now = self._allocations()
        if now is None:
            return True
        if now != self._before:
            self._before = now
            return True
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return False  # asking a stream that is being captured would break the capture
        return not torch.cuda.current_stream().query()

    @staticmethod
    def _allocations() -> int | None:
        """Allocations so far, or ``None`` where they are not counted."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return 0
        try:
            return int(torch.cuda.memory_stats()["allocation.all.allocated"])
        except (KeyError, RuntimeError, NotImplementedError):
            return None


def known_length(iterable: Any) -> int | None:
    """Items still to come from ``iterable``, or ``None``; asks only types whose answer has no side effect."""
    kind = type(iterable)
    if kind in _SIZED or kind in (torch.Tensor, torch.nn.Parameter):
        return len(iterable)
    if kind in _COUNTED:
        return int(iterable.__length_hint__())
    if kind is DataLoader:
        return None if isinstance(iterable.dataset, IterableDataset) else len(iterable)
    if isinstance(iterable, getattr(loader_module, "_BaseDataLoaderIter", ())):
        return batches_left(iterable)
    if kind is enumerate:
        return known_length(iterable.__reduce__()[1][0])
    if kind is zip:
        lengths = [known_length(each) for each in iterable.__reduce__()[1]]
        return None if not lengths or None in lengths else min(length for length in lengths if length is not None)
    if kind.__module__.partition(".")[0] == "tqdm":
        total = getattr(iterable, "total", None)
        return int(total) if isinstance(total, (int, float)) else known_length(getattr(iterable, "iterable", None))
    return None


def batches_left(iterator: Any) -> int | None:
    """Batches that a DataLoader's iterator has not yet given, or ``None`` for an IterableDataset."""
    if isinstance(getattr(iterator, "_dataset", None), IterableDataset):
        return None
    return len(iterator) - int(getattr(iterator, _COUNTER, 0))


def _nothing() -> None:
    """Nothing to take back."""


def _ignore(_iterator: Any) -> None:
    """A batch that is not to be reported here."""
