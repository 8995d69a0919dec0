"""The errors that ipyprof raises for what a user gave it."""

from __future__ import annotations


class IpyprofError(ValueError):
    """What was given, what is allowed, what to do: three parts, one sentence or two.

    Args:
        given: what ipyprof was given, quoted where it is text.
        allowed: what it accepts there.
        todo: the next thing to do.
    """

    def __init__(self, given: str, allowed: str, todo: str) -> None:
        super().__init__(f"{given}; {allowed}; {todo}.")
        self.given = given
        self.allowed = allowed
        self.todo = todo


class TraceError(IpyprofError):
    """A file that cannot be read as a profiler trace."""


class OptionError(IpyprofError):
    """An option with a value that is not allowed."""
