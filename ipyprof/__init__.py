"""Profile a notebook cell on the GPU and say what holds its step back.

%load_ext ipyprof

%%gpuprofile
for x, y in loader:
    loss = train_step(x, y)
"""

from __future__ import annotations

from typing import Any

from ipyprof.api import compare, last_report, load, profile, step

__version__ = "0.1.0"

__all__ = ["__version__", "compare", "last_report", "load", "load_ipython_extension", "profile", "step"]


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext ipyprof`` calls: register ``%%gpuprofile``. Prints nothing and imports no torch."""
    from ipyprof import magic as magics

    magics.load(shell)
