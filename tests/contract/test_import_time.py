"""``import ipyprof`` is what every notebook pays for: nothing heavy comes along."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "matplotlib", "ipywidgets", "IPython", "numpy", "msgspec", "asyncio", "PIL", "pandas")


def test_import_takes_nothing_heavy_along() -> None:
    code = f"import ipyprof, sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.split() == []
