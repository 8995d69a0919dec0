"""A hook behind every optimizer's step that is put in and taken out while other threads step.

torch iterates over its dict of global hooks in each step, so the dict must not change under a step of another thread,
and it must stay the one that the handles of the user's own hooks refer to. So the module's name for it is bound to a
stand-in that gives the hooks of both and passes every change on to the dict.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch.optim.optimizer as optimizer_module

Hook = Callable[[Any, Any, Any], None]

_NAME = "_global_optimizer_post_hooks"
MOST_FRAMES = 8  # between a step and that of its base class: the step itself and a few decorators


class _StandIn(OrderedDict[int, Hook]):
    """torch's dict of hooks with ours behind them in ``values``, which torch asks; holds nothing itself."""

    def __init__(self, users: dict[int, Hook]) -> None:
        super().__init__()
        self.users = users
        self.ours: tuple[Hook, ...] = ()

    def values(self) -> Any:
        """The hooks at this moment, so that a step under way is not disturbed."""
        return [*self.users.values(), *self.ours]

    def keys(self) -> Any:
        """The user's, as they are."""
        return self.users.keys()

    def items(self) -> Any:
        """The user's, as they are."""
        return self.users.items()

    def __setitem__(self, key: int, hook: Hook) -> None:
        self.users[key] = hook

    def __getitem__(self, key: int) -> Hook:
        return self.users[key]

    def __delitem__(self, key: int) -> None:
        del self.users[key]

    def __contains__(self, key: object) -> bool:
        return key in self.users

    def __iter__(self) -> Any:
        return iter(self.users)

    def __len__(self) -> int:
        return len(self.users)


# Kept for the life of the process: handles of hooks that the user registers during a run refer to it, weakly.
_stand_ins: dict[int, _StandIn] = {}


def hook_optimizer_steps(hook: Hook) -> Callable[[], None]:
    """The function that takes the hook out again. Where torch has no such hooks, the hook is never called."""
    users = getattr(optimizer_module, _NAME, None)
    if not isinstance(users, dict):
        register = getattr(optimizer_module, "register_optimizer_step_post_hook", None)
        return _nothing if register is None else register(hook).remove
    stand_in = users if isinstance(users, _StandIn) else _stand_ins.setdefault(id(users), _StandIn(users))
    stand_in.ours = (*stand_in.ours, hook)
    setattr(optimizer_module, _NAME, stand_in)

    def take_out() -> None:
        stand_in.ours = tuple(other for other in stand_in.ours if other is not hook)
        if not stand_in.ours and getattr(optimizer_module, _NAME, None) is stand_in:
            setattr(optimizer_module, _NAME, stand_in.users)

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


def _nothing() -> None:
    """Nothing to take out."""
