"""What the analysis tests share."""

from __future__ import annotations

import pytest

from ipyprof.analysis import profile as profile_module


@pytest.fixture
def recording_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For numbers that are added up by hand: the built recordings cost nothing, so the usual cost is 0 too."""
    monkeypatch.setattr(profile_module, "FILE_COST_NS", 0.0)
