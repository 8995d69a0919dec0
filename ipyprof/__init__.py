"""Profile a notebook cell on the GPU and say what holds its step back.

%load_ext ipyprof

%%gpuprofile
for x, y in loader:
    loss = train_step(x, y)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipyprof.api import profile
    from ipyprof.history import last as last_report
    from ipyprof.run import step
    from ipyprof.saved import compare, load

__version__ = "0.1.0"

__all__ = ["__version__", "compare", "last_report", "load", "load_ipython_extension", "profile", "step"]

# The one lazy point: importing the package loads neither torch nor anything else that takes time.
_PUBLIC = {
    "compare": ("saved", "compare"),
    "last_report": ("history", "last"),
    "load": ("saved", "load"),
    "profile": ("api", "profile"),
    "step": ("run", "step"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, inside = _PUBLIC[name]
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), inside)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext ipyprof`` calls: register ``%%gpuprofile``. Prints nothing and imports no torch."""
    import_module(f"{__name__}.magic").load(shell)
