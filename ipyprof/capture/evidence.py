"""What happened in the cell so far, and which of DESIGN's rules a to c came true first. Knows no torch.

Batches and optimizers are told apart by a key each. Every active loop counts what its current iteration held; a
second set of counts begins anew with every iteration of any marked loop (rule b).

Beyond the letter of the rules, each for a case that was met:

* Backward without an optimizer step suggests accumulation: the choice waits for the step, so that the cycle is known
  (at most 8 iterations, only while 6 are left). One more iteration tells a cycle from a step that GradScaler skipped.
* A short loop (8 or fewer) inside another may be a part of its step: five times D, then G; four micro-batches, then
  the optimizer. The choice waits for the iteration around it.
* An optimizer that fires twice inside one iteration, or after a single batch, may be D of such a pair: rule b then
  waits for a second batch, for eight calls, or for the end of the iteration.
* Libraries fetch ahead and try validation first (two batches): a loader is the step at its third batch in a row.
* A loop of known length 1 is transparent: the loops inside it count as outermost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ipyprof.capture.marking import Loop

MOST_CYCLE = 8
WATCHED_CALLS = 8
KEPT_ITERATIONS = 6
LOADER_BATCHES = 3
NOW = 0
NEVER = 2**62


class LoopState:
    """One loop while the cell runs; the counts are those of the iteration that runs now.

    A mark of the loop adds one to ``begun`` and has no more to do while ``begun < look_at``.
    """

    __slots__ = (
        "active",
        "backwards",
        "batches",
        "begun",
        "confirm",
        "deferred",
        "drawn",
        "ever_begun",
        "fetched",
        "iterable",
        "length",
        "look_at",
        "loop",
        "steps",
        "waited",
    )

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.waited = 0  # iterations with a backward pass and no optimizer step
        self.confirm: int | None = None  # the cycle, if the next iteration has no optimizer step
        self.ever_begun = 0
        self.iterable = ""  # the class that it draws from
        self.batches: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.rest()

    def rest(self) -> None:
        """The loop is not running."""
        self.active = False
        self.look_at = NOW
        self.begun = 0
        self.length: int | None = None
        self.drawn = 0
        self.fetched = False
        self.deferred: LoopState | None = None
        self.clear()

    def clear(self) -> None:
        """A new iteration begins."""
        self.batches.clear()
        self.steps.clear()
        self.backwards = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A loop that is the step, its cycle, and whether its next iteration begins right now."""

    state: LoopState
    cycle: int
    now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which rules apply. ``loop`` is the index of the loop that the user named."""

    loops: bool
    optimizers: bool
    loaders: bool
    loop: int | None = None
    loader_batches: int = LOADER_BATCHES


class Evidence:
    """The counts and the rules. ``launched()`` says whether work was launched since it last said so."""

    def __init__(self, loops: Sequence[Loop], rules: Rules, launched: Callable[[], bool]) -> None:
        self.states = [LoopState(loop) for loop in loops]
        self.anchor: int | None = None
        self.any_step = False
        self.any_batch = False
        self._rules = rules
        self.launched = launched
        self._stack: list[LoopState] = []
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
        """The loop that the end of its previous iteration chose, or ``None``. ``state.begun`` counts the new one."""
        if not state.active:
            state = self.loop_starts(state.loop.index, None)
            state.begun = 1
        self._leave_to(state.loop.index)
        state.ever_begun += 1
        choice = self._iteration_ended(state) if self._is_second(state) else None
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
        if not self._rules.loaders or count < self._rules.loader_batches:
            return False
        if not self._rules.loops:  # asked for
            return True
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
        if state.waited or self._rules.loop == state.loop.index:
            return NOW
        if self.is_outermost(state):
            return state.begun + 1 if state.begun < 8 else 2 * state.begun  # a hot loop that launches nothing
        return NEVER

    def _is_second(self, state: LoopState) -> bool:
        return state.begun > 1 or (self._rules.loop == state.loop.index and state.ever_begun > 1)

    def _iteration_ended(self, state: LoopState) -> Choice | None:
        if self._rules.loop is not None:
            return self._settled(state) if state.loop.index == self._rules.loop else None
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
            return Choice(state=state.deferred, cycle=1, now=False)
        if self._rules.optimizers and self._since_steps and min(self._since_steps.values()) >= 2:  # b
            self.anchor = _steps_least(self._since_steps)
            return None
        inner_cycle = any(each.confirm for each in self.states if each.loop.parent == state.loop.index)
        if self.is_outermost(state) and not inner_cycle and not (state.length == 1 and state.loop.has_children):  # c
            return self._settled(state) if self.launched() else None
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
        return Choice(state=state, cycle=cycle if cycle <= MOST_CYCLE else 1, now=True)

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
