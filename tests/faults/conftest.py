"""The shell of the entry tests."""

from __future__ import annotations

from tests.entry.conftest import _shell, shell

__all__ = ["_shell", "shell"]
