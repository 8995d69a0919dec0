"""How many steps each phase of a run gets."""

from __future__ import annotations

from dataclasses import dataclass

from ipyprof.options import Options

# What a short loop gives up first, with what is left of it. From 2/2/3/1 this gives, for loops of 7 down to 2:
# 1/2/3/1, 1/1/3/1, 1/1/2/1, 1/1/1/1, 1/1/1/0, 1/0/1/0.
_GIVEN_UP = (("wait", 1), ("warmup", 1), ("active", 1), ("after", 0), ("warmup", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Steps before the profiler, steps it discards, steps it records, steps wanted after it (1 or 0)."""

    wait: int
    warmup: int
    active: int
    after: int

    @property
    def cold(self) -> bool:
        """Whether the first steps of the loop are the recorded ones."""
        return self.warmup == 0 and self.wait <= 1


def phases_for(options: Options, *, length: int | None, cycle: int = 1) -> Phases:
    """The phases of a loop of ``length`` steps (``None``: unknown). What the options state is kept.

    Recorded steps are a whole number of cycles: with accumulation the optimizer steps every ``cycle``-th time.
    """
    default = {"wait": 2, "warmup": 2, "active": 3, "after": 1}
    stated = {
        name: value
        for name, value in (("wait", options.wait), ("warmup", options.warmup), ("active", options.active))
        if value is not None
    }
    steps = default | stated
    steps["active"] = -(-steps["active"] // cycle) * cycle
    if length is not None:
        for name, least in _GIVEN_UP:
            least = cycle if name == "active" else least
            stride = cycle if name == "active" else 1
            while name not in stated and sum(steps.values()) > length and steps[name] - stride >= least:
                steps[name] -= stride
    return Phases(**steps)
