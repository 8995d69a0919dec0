"""What the step detector needs of a session: one call per step boundary."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ipyprof.trace.model import LoaderSeen


class Session(Protocol):
    """What a detector needs of `ipyprof.capture.session.Session`, which never raises into the user's code."""

    @property
    def recording(self) -> bool:
        """True only while steps are recorded."""

    @property
    def over(self) -> bool:
        """True when no mark changes anything any more."""

    def start_cold(self) -> None:
        """Record at once, without a baseline."""

    def drop(self) -> None:
        """Forget a cold recording; the phases begin at the next mark."""

    def plan(self, *, remaining: int | None, cycle: int = 1) -> None:
        """Before the first mark, once: steps still to come, with the one that starts at that mark."""

    def mark(self, line: int | None = None) -> None:
        """A step ends here and the next one begins."""

    def close(self, line: int | None = None) -> None:
        """The last step ends here and none begins."""

    def check_limit(self) -> None:
        """Stop a recording that has run for too long."""

    def describe(
        self, *, how: str, mark: str, loop_line: int | None, loop_is_for: bool, alternatives: tuple[str, ...]
    ) -> None:
        """Keep how the step was found."""

    def draws(self, iterable: str, loaders: Callable[[], tuple[LoaderSeen, ...]]) -> None:
        """Keep what the steps draw from; ``loaders`` is asked at the end."""

    def range(self, line: int) -> AbstractContextManager[Any]:
        """A range around one statement of the cell; it records nothing while no step is recorded."""
