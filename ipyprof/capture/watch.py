"""Optimizer steps, batches and backward passes while a cell runs, seen without a frame of ours in any traceback.

Each door is private or global torch, guarded, and closed by `Watch.close`; where one is missing, what it shows is
simply not seen. Costs: 0.5 us for an optimizer step, under 0.2 us for a backward pass, 1.2 us for a batch.

* Optimizer: a stand-in for torch's dict of global post hooks, which has ours behind the user's.
* Batches: a data descriptor in place of ``_BaseDataLoaderIter._num_yielded``, which ``__next__`` raises by one when it
  has a batch. Only where ``__next__`` does not do that is the method itself replaced. Another one in place of
  ``_profile_name``, which ``__next__`` reads first, tells when the fetch began.
* Backward: ``torch.autograd._tensor_or_tensors_to_tuple``, which ``backward`` calls first and which does not raise.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.optim.optimizer as optimizer_module
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as loader_module

from ipyprof.capture.loaders import Loaders
from ipyprof.capture.marking import Loop

MOST_CYCLE = 8
WATCHED_CALLS = 8
KEPT_ITERATIONS = 6
LOADER_BATCHES = 3
NOW = 0
NEVER = 2**62


@dataclass(slots=True, eq=False)
class LoopState:
    """One loop while the cell runs; the counts are those of the iteration that runs now.

    A mark of the loop adds one to ``begun`` and has no more to do while ``begun < look_at``.
    """

    loop: Loop
    waited: int = 0  # iterations with a backward pass and no optimizer step
    confirm: int | None = None  # the cycle, if the next iteration has no optimizer step
    ever_begun: int = 0
    iterable: str = ""  # the class that it draws from
    batches: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    backwards: int = 0
    active: bool = False
    look_at: int = NOW
    begun: int = 0
    length: int | None = None
    drawn: int = 0
    fetched: bool = False
    deferred: LoopState | None = None

    def rest(self) -> None:
        """The loop is not running."""
        self.active = False
        self.look_at = NOW
        self.begun = self.drawn = 0
        self.fetched = False
        self.length = self.deferred = None
        self.clear()

    def clear(self) -> None:
        """A new iteration begins."""
        self.batches.clear()
        self.steps.clear()
        self.backwards = 0


class Choice(NamedTuple):
    """A loop that is the step, and its cycle."""

    state: LoopState
    cycle: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules apply: the way is one of ``STEP_WAYS``, ``loop`` the one that the user named."""

    way: str
    loop: Loop | None = None

    @property
    def loops(self) -> bool:
        """A loop may be the step."""
        return self.way in ("auto", "loop")

    @property
    def optimizers(self) -> bool:
        """Steps of an optimizer may be."""
        return self.way in ("auto", "optimizer")


class Evidence:
    """The counts and the rules. ``launched()`` says whether work was launched since it last said so."""

    def __init__(self, loops: Sequence[Loop], rules: Rules, launched: Callable[[], bool]) -> None:
        self.states = [LoopState(loop) for loop in loops]
        self.anchor: int | None = None
        self.any_step = False
        self.any_batch = False
        self._rules = rules
        self._launched = launched
        self._stack: list[LoopState] = []
        self._pending: LoopState | None = None
        self._since_steps: dict[int, int] = {}
        self._since_batches: dict[int, int] = {}
        self._since_backwards = 0
        self._first_step_in = 0

    # -- what happened --

    def loop_starts(self, index: int, length: int | None) -> LoopState:
        """A loop is about to fetch its first item, or a ``while`` has entered its first iteration."""
        state = self.states[index]
        self._leave_to(state.loop.parent)
        state.rest()
        state.active, state.length = True, length
        self._stack.append(state)
        return state

    def iteration_begins(self, state: LoopState) -> Choice | None:
        """This loop, where it is chosen from its new iteration on, or ``None``. ``state.begun`` counts that one."""
        if not state.active:
            state = self.loop_starts(state.loop.index, None)
            state.begun = 1
        self._leave_to(state.loop.index)
        state.ever_begun += 1
        choice = self._iteration_ended(state) if self._is_second(state) else None
        if choice is None and self._pending is state:
            choice = Choice(state, 1)
        state.clear()
        state.look_at = self._next_look(state)
        if self._rules.loops:
            self._since_steps.clear()
            self._since_batches.clear()
            self._since_backwards = 0
        return choice

    def loop_ends(self, index: int) -> None:
        """The loop is over, by its end or by ``break``."""
        state = self.states[index]
        if not state.active:
            return
        if state.waited and state.confirm is None:
            if state.steps:
                state.confirm = state.waited + 1
            elif state.backwards:
                state.waited += 1
        self._leave_to(state.loop.parent)

    def optimizer_stepped(self, key: int) -> bool:
        """Whether this call is the anchor's, and so the first mark of optimizer steps."""
        self.any_step = True
        for state in self._stack:
            state.steps[key] = state.steps.get(key, 0) + 1
            state.look_at = NOW
        if self._stack and not self._since_steps:
            self._first_step_in = self._stack[0].begun
        self._since_steps[key] = self._since_steps.get(key, 0) + 1
        if not self._rules.optimizers:
            return False
        if self.anchor is not None:
            return key == self.anchor
        return self._since_steps[key] >= 2 and key == self._anchor()

    def batch_drawn(self, key: int, *, in_function: bool) -> bool:
        """Whether batches are the steps, and this one is the first mark.

        ``in_function``: not drawn by a statement of the cell itself, such as ``batches = list(loader)``.
        """
        self.any_batch = True
        for state in self._stack:
            state.batches[key] = state.batches.get(key, 0) + 1
            state.drawn += 1
            state.look_at = NOW
            state.fetched |= state.begun == 0
        count = self._since_batches[key] = self._since_batches.get(key, 0) + 1
        if self._rules.way == "loader":  # asked for
            return count >= 2
        if self._rules.way != "auto" or count < LOADER_BATCHES:
            return False
        return in_function and not self.any_step and (not self._since_backwards or count > MOST_CYCLE)

    def backward_ran(self) -> None:
        """A backward pass began."""
        self._since_backwards += 1
        for state in self._stack:
            state.backwards += 1
            state.look_at = NOW

    # -- what is known of the loops --

    def innermost(self) -> LoopState | None:
        """The innermost loop that is running."""
        return self._stack[-1] if self._stack else None

    def around(self, state: LoopState) -> list[LoopState]:
        """The loops around ``state``, from the inside out."""
        found = []
        parent = state.loop.parent
        while parent is not None:
            found.append(self.states[parent])
            parent = self.states[parent].loop.parent
        return found

    def remaining(self, state: LoopState) -> int | None:
        """Iterations still to come with the one that begins now, over all loops around; ``None`` if unknown."""
        if state.length is None:
            return None
        total, each = state.length - state.begun + 1, state.length
        for outer in self.around(state):
            if outer.length is None:
                return None
            total += (outer.length - outer.begun) * each
            each *= outer.length
        return total

    def is_outermost(self, state: LoopState) -> bool:
        """Whether rule c may choose this loop: the last one, in no loop but such of length 1."""
        if not state.loop.last:
            return False
        return all(outer.length == 1 and outer.loop.last for outer in self.around(state))

    def is_single(self, state: LoopState) -> bool:
        """Whether this loop is known to have one iteration in all."""
        return all(each.length == 1 for each in (state, *self.around(state)))

    # -- the rules --

    def _next_look(self, state: LoopState) -> int:
        """The iteration whose beginning must be looked at although nothing happened before it."""
        if state.waited or self._rules.loop is state.loop:
            return NOW
        if self.is_outermost(state):
            return state.begun + 1 if state.begun < 8 else 2 * state.begun  # a hot loop that launches nothing
        return NEVER

    def _is_second(self, state: LoopState) -> bool:
        return state.begun > 1 or (self._rules.loop is state.loop and state.ever_begun > 1)

    def _iteration_ended(self, state: LoopState) -> Choice | None:
        if self._rules.loop is not None:
            return self._settled(state) if state.loop is self._rules.loop else None
        if not self._rules.loops or self.anchor is not None:
            return None
        counts = state.batches if self._stack[0].drawn else state.steps
        if 1 in counts.values() or state.waited:  # a
            outer = self._may_be_whole(state)
            if outer is None:
                return self._settled(state)
            outer.deferred = state
            return None
        if state.deferred is not None:
            if 1 in state.steps.values():
                return self._settled(state)
            self._pending = state.deferred  # chosen when its next iteration begins
            self._pending.look_at = NOW
            return None
        if self._rules.optimizers and self._since_steps and min(self._since_steps.values()) >= 2:  # b
            self.anchor = _steps_least(self._since_steps)
            return None
        inner_cycle = any(each.confirm for each in self.states if each.loop.parent == state.loop.index)
        if self.is_outermost(state) and not inner_cycle and not (state.length == 1 and state.loop.has_children):  # c
            return self._settled(state) if self._launched() else None
        return None

    def _settled(self, state: LoopState) -> Choice | None:
        """The choice of this loop, or ``None`` while its cycle is not known and there is time to see it."""
        left = self.remaining(state)
        has_time = left is None or left > KEPT_ITERATIONS
        cycle = 1
        if state.confirm is not None:
            cycle = 1 if state.steps else state.confirm
        elif state.steps and state.waited:
            cycle = state.waited + 1
            if has_time:
                state.confirm = cycle
                return None
        elif state.backwards and not state.steps and has_time and state.waited < MOST_CYCLE:
            state.waited += 1
            return None
        return Choice(state, cycle if cycle <= MOST_CYCLE else 1)

    def _may_be_whole(self, state: LoopState) -> LoopState | None:
        """The loop around, when its iteration and not this one may be the step."""
        if state.loop.parent is None or state.length is None or state.length > MOST_CYCLE or state.fetched:
            return None
        outer = self.states[state.loop.parent]
        return outer if outer.length is None or outer.begun < outer.length else None

    def _anchor(self) -> int | None:
        """The optimizer that steps least, once enough was seen."""
        calls = sum(self._since_steps.values())
        if calls < WATCHED_CALLS:
            if min(self._since_steps.values()) < 2:
                return None
            batches = sum(self._since_batches.values())
            inside = bool(self._stack) and self._stack[0].begun == self._first_step_in
            if batches < 2 and (inside or batches):
                return None
        return _steps_least(self._since_steps)

    def _leave_to(self, index: int | None) -> None:
        """Loops inside of loop ``index`` are over (an exception may have left them); ``None``: all are."""
        while self._stack and self._stack[-1].loop.index != index:
            self._stack.pop().rest()


def _steps_least(counts: dict[int, int]) -> int:
    """The key with the fewest steps; of equals the one that came last."""
    least = min(counts.values())
    return [key for key, count in counts.items() if count == least][-1]


Hook = Callable[[Any, Any, Any], None]
_NAME = "_global_optimizer_post_hooks"
MOST_FRAMES = 8  # between a step and that of its base class: the step itself and a few decorators


class _StandIn(UserDict[int, Hook]):
    """torch's dict of hooks with ours behind them in ``values``, which torch asks; all else is the user's, as it is."""

    def __init__(self, users: dict[int, Hook]) -> None:
        self.data = users
        self.ours: tuple[Hook, ...] = ()

    def values(self) -> Any:
        """The hooks at this moment, so that a step under way is not disturbed."""
        return [*self.data.values(), *self.ours]


# Kept for the life of the process: handles of hooks that the user registers during a run refer to it, weakly.
_stand_ins: dict[int, _StandIn] = {}


def hook_optimizer_steps(hook: Hook) -> Callable[[], None]:
    """The function that takes the hook out again. Where torch has no such hooks, the hook is never called."""
    users = getattr(optimizer_module, _NAME, None)
    if not isinstance(users, (dict, _StandIn)):
        register = getattr(optimizer_module, "register_optimizer_step_post_hook", None)
        return _nothing if register is None else register(hook).remove
    stand_in = users if isinstance(users, _StandIn) else _stand_ins.setdefault(id(users), _StandIn(users))
    stand_in.ours = (*stand_in.ours, hook)
    setattr(optimizer_module, _NAME, stand_in)

    def take_out() -> None:
        stand_in.ours = tuple(other for other in stand_in.ours if other is not hook)
        if not stand_in.ours and getattr(optimizer_module, _NAME, None) is stand_in:
            setattr(optimizer_module, _NAME, stand_in.data)

    return take_out


def inside_another_step(optimizer: Any) -> bool:
    """Whether the step that calls the hook now was called by another one of the same optimizer; to be asked in a hook.

    torch wraps ``step`` in every class of which there was an instance, so that a class whose ``step`` calls that of its
    base is heard twice for one step. 0.4 us.
    """
    step = sys._getframe(2)
    frame = step.f_back
    for _ in range(MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code is step.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


_COUNTER = "_num_yielded"
_ENTRY = "_profile_name"
_SIZED: tuple[type, ...] = (
    *(range, list, tuple, dict, set, frozenset, str, bytes),
    *(type({}.keys()), type({}.values()), type({}.items())),
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

        self._put(iterator_type, "__next__", __next__, original)

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
        self._put(iterator_type, _COUNTER, _Counter(self._began, self._fetched, before), before)
        if iterator_type.__dict__.get(_ENTRY) is None:
            self._put(iterator_type, _ENTRY, _Entry(self.loaders.entered_ns), None)

    def _put(self, owner: Any, name: str, new: Any, before: Any) -> None:
        """Let ``owner`` have ``new`` under this name in place of ``before``; ``None`` = it had nothing."""
        setattr(owner, name, new)

        def undo() -> None:
            if owner.__dict__.get(name) is not new:
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

        self._put(torch.autograd, name, first_call, original)
        self._undo_backward = self._undo.pop()


class _Attribute:
    """A data descriptor that keeps the attribute in the instance."""

    name: str

    def __get__(self, iterator: Any, _owner: Any = None) -> Any:
        if iterator is None:
            return self
        try:
            return iterator.__dict__[self.name]
        except KeyError:
            raise AttributeError(self.name) from None

    def __set__(self, iterator: Any, value: Any) -> None:
        iterator.__dict__[self.name] = value


class _Counter(_Attribute):
    """Reports each rise; ``before`` is the outer one.

    An epoch begins where it is made, or falls to zero: it is set to zero once more when the workers have started.
    """

    name = _COUNTER

    def __init__(self, began: Callable[[Any], None], fetched: Callable[[Any, int], None], before: Any) -> None:
        self._began = began
        self._fetched = fetched
        self._before = before

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


class _Entry(_Attribute):
    """Writes down when it was last read, by iterator."""

    name = _ENTRY

    def __init__(self, read_ns: dict[int, int]) -> None:
        self._read_ns = read_ns

    def __get__(self, iterator: Any, _owner: Any = None) -> Any:
        if iterator is not None:
            self._read_ns[id(iterator)] = time.perf_counter_ns()
        return super().__get__(iterator)


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
