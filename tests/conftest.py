"""What every test gets: a guard that fails the test which leaves something of ours on, and the skip of GPU tests."""

from __future__ import annotations

import builtins
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

# Put there by IPython when a shell exists; a shell lives as long as the process.
_SHELL_NAMES = {"get_ipython", "display", "_", "__IPYTHON__", "exit", "quit", "execfile", "runfile"}
_SHELL_THREADS = ("IPythonHistorySavingThread", "asyncio_", "ThreadPoolExecutor", "pytest_timeout")


def _torch_state() -> dict[str, Any]:
    """What capture may switch on in torch; empty while torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or "torch.autograd.profiler" not in sys.modules:
        return {}
    autograd_profiler = sys.modules["torch.autograd.profiler"]
    state: dict[str, Any] = {
        "profiler on": torch.autograd._profiler_enabled(),
        "_prepare_profiler": autograd_profiler._prepare_profiler,
        "_enable_profiler": autograd_profiler._enable_profiler,
    }
    if (optimizer := sys.modules.get("torch.optim.optimizer")) is not None:
        for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
            state[name] = list(getattr(optimizer, name, {}))
    if (loader := sys.modules.get("torch.utils.data.dataloader")) is not None:
        state["_BaseDataLoaderIter"] = dict(vars(loader._BaseDataLoaderIter))
    state["_tensor_or_tensors_to_tuple"] = getattr(torch.autograd, "_tensor_or_tensors_to_tuple", None)
    if torch.cuda.is_initialized():
        state["sync-debug mode"] = torch.cuda.get_sync_debug_mode()
    return state


def _figures() -> list[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else list(pyplot.get_fignums())


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(_SHELL_THREADS)}


def _late_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads that are still there after two seconds."""
    end = time.monotonic() + 2
    while (extra := _threads() - before) and time.monotonic() < end:
        time.sleep(0.02)
    return extra


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails the test that leaves a profiler, a door, hooks, a mode, filters, names, figures or threads behind."""
    torch_before, figures, threads = _torch_state(), _figures(), _threads()
    names, modules = set(vars(builtins)), len(sys.modules)
    filters, shows = list(warnings.filters), warnings.showwarning
    yield
    left: list[str] = []
    torch_after = _torch_state()
    for name, value in torch_after.items():
        first = torch_before.get(name, _clean_value(name, value))
        if value != first:
            left.append(_difference(name, first, value))
    if extra_names := set(vars(builtins)) - names - _SHELL_NAMES:
        left.append(f"names in builtins: {sorted(extra_names)}")
    if type(warnings.filters) is not list:
        left.append(f"warnings.filters is a {type(warnings.filters).__name__}")
    if list(warnings.filters) != filters and len(sys.modules) == modules:  # an import may add filters
        left.append("warnings.filters changed")
    if warnings.showwarning is not shows:
        left.append("warnings.showwarning changed")
    if _figures() != figures:
        left.append(f"pyplot figures: {_figures()}")
    if extra := _late_threads(threads):
        left.append(f"threads: {sorted(thread.name for thread in extra)}")
    assert not left, "left behind: " + "; ".join(left)


def _difference(name: str, first: Any, value: Any) -> str:
    """What changed, in words; of a class only the attributes that did."""
    if isinstance(first, dict) and isinstance(value, dict):
        changed = {key for key in first.keys() | value.keys() if first.get(key, first) is not value.get(key, value)}
        return f"{name}: {', '.join(sorted(changed))} changed"
    return f"{name}: {first!r} became {value!r}"


def _clean_value(name: str, value: Any) -> Any:
    """What a part of torch that was imported during the test has when nothing of ours is on."""
    if name == "profiler on":
        return False
    if name == "sync-debug mode":
        return 0
    if name.startswith("_global_optimizer"):
        return []
    if name in ("_prepare_profiler", "_enable_profiler"):
        return getattr(sys.modules["torch"]._C._autograd, name, value)
    return value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; torch is imported only when such tests were collected."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
