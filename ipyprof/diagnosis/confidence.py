"""How far a verdict can be trusted, with the reasons: what the checks of ``trust`` leave of it."""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.trust import LEVELS, checks


def confidence(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """(``high``, ``medium`` or ``low``; the reasons why it is not high, each a sentence part)."""
    lowering = [check for check in checks(profile) if check.leaves != LEVELS[-1]]
    level = min((LEVELS.index(check.leaves) for check in lowering), default=len(LEVELS) - 1)
    return LEVELS[level], tuple(check.reason or check.text for check in lowering)


__all__ = ["LEVELS", "confidence"]
