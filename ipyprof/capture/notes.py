"""What a run has to say beside its numbers, and the rule that a failure of ours is such a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Notes:
    """Sentences for the trust section, each ``(check, status, text)``, in order and without repeats."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str, str], None] = {}

    def add(self, check: str, status: str, text: str) -> None:
        """Keep one; ``status`` is ``ok``, ``warn`` or ``fail``."""
        self._notes[check, status, text] = None

    def failed(self, status: str, failure: Exception) -> None:
        """Keep a failure of ours."""
        self.add("capture", status, f"{type(failure).__name__}: {failure}")

    def shielded(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What ``act`` returns, or ``None`` with a note when it fails."""
        try:
            return act(*arguments, **named)
        except Exception as failure:
            self.failed("warn", failure)
            return None

    def as_tuple(self) -> tuple[tuple[str, str, str], ...]:
        """All of them."""
        return tuple(self._notes)
