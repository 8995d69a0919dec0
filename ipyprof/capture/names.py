"""The names that a marked cell calls, in ``builtins`` while it runs.

``builtins`` and not the user's namespace, where the cell's ``globals()`` would show them. They cannot be typed.
"""

from __future__ import annotations

import builtins
from typing import Any

_MISSING = object()


class Builtins:
    """Owns some names in ``builtins``; `restore` gives each back as it was."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Let ``name`` be ``value`` until `restore`."""
        space = builtins.__dict__
        self._before.setdefault(name, space.get(name, _MISSING))
        space[name] = value

    def restore(self) -> None:
        """Every name as it was before the first `set`."""
        space = builtins.__dict__
        while self._before:
            name, value = self._before.popitem()
            if value is _MISSING:
                space.pop(name, None)
            else:
                space[name] = value
