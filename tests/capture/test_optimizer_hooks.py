"""The hook behind every optimizer's step, beside steps and hooks of the user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizer_module

from ipyprof.capture.watch import hook_optimizer_steps, inside_another_step

register = optimizer_module.register_optimizer_step_post_hook


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = optimizer_module._global_optimizer_post_hooks
    held = dict(before)
    yield
    assert optimizer_module._global_optimizer_post_hooks is before
    assert dict(before) == held


def step() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()


def test_it_is_called_until_it_is_taken_out() -> None:
    seen: list[str] = []
    take_out = hook_optimizer_steps(lambda optimizer, *_: seen.append(type(optimizer).__name__))
    step()
    take_out()
    step()
    assert seen == ["SGD"]


def test_two_are_taken_out_in_any_order() -> None:
    seen: list[int] = []
    first = hook_optimizer_steps(lambda *_: seen.append(1))
    second = hook_optimizer_steps(lambda *_: seen.append(2))
    step()
    first()
    step()
    second()
    assert seen == [1, 2, 2]


def test_a_step_under_way_in_another_thread_is_not_disturbed() -> None:
    # given a step of another thread that is inside a hook of the user's
    inside, go_on, failed = threading.Event(), threading.Event(), list[Exception]()

    def wait(*_: Any) -> None:
        inside.set()
        assert go_on.wait(10)

    def other() -> None:
        try:
            step()
        except Exception as error:
            failed.append(error)

    def step_around(act: Callable[[], Any]) -> Any:
        inside.clear()
        go_on.clear()
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
        result = act()
        go_on.set()
        thread.join()
        return result

    handle = register(wait)
    # when ours is put in, and when it is taken out
    take_out = step_around(lambda: hook_optimizer_steps(lambda *_: None))
    step_around(take_out)
    handle.remove()
    # then the step ends as it would have
    assert failed == []


def test_the_users_handles_work_from_before_until_after() -> None:
    # given a hook of before the run, and one of during it
    seen: list[str] = []
    before = register(lambda *_: seen.append("before"))
    gone = register(lambda *_: seen.append("gone"))
    take_out = hook_optimizer_steps(lambda *_: seen.append("ours"))
    during = register(lambda *_: seen.append("during"))
    # when one is removed during the run and the others after it
    gone.remove()
    step()
    take_out()
    step()
    before.remove()
    during.remove()
    step()
    # then each was called from its registration to its removal
    assert seen == ["before", "during", "ours", "before", "during"]


def test_without_the_dict_the_public_function_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Handle:
        def remove(self) -> None:
            calls.append("removed")

    def registered(_hook: object) -> Handle:
        calls.append("registered")
        return Handle()

    with monkeypatch.context() as patch:
        patch.delattr(optimizer_module, "_global_optimizer_post_hooks")
        patch.setattr(optimizer_module, "register_optimizer_step_post_hook", registered)
        hook_optimizer_steps(print)()
    assert calls == ["registered", "removed"]


def test_step_that_calls_that_of_its_class_is_one() -> None:
    # given a class of an optimizer of its own, whose base class was used before
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    step()
    optimizer = Own([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    seen: list[bool] = []
    take_out = hook_optimizer_steps(lambda stepped, *_: seen.append(inside_another_step(stepped)))
    # when it steps
    try:
        optimizer.step()
        step()
    finally:
        take_out()
    # then the call of its base class is inside another one, and the step of a second optimizer is not
    assert seen == [True, False, False]
