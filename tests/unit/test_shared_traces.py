"""Every real trace of the folder beside the repository: a report on a page, or a refusal of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipyprof import saved
from ipyprof.errors import TraceError
from ipyprof.show.html import render_page
from ipyprof.show.text import render_text
from tests.shared_traces import FOLDER

NO_TRACES = ("908_results", "memory_timeline")
"""Results of rocprof, and a memory timeline: other tools' files."""


def files() -> list[str]:
    return sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.gz")) if FOLDER.is_dir() else []


@pytest.mark.skipif(not files(), reason="the folder of real traces is absent")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", files())
def test_a_real_trace_is_a_report_or_refused(name: str) -> None:
    path: Path = FOLDER / name
    if any(other in name for other in NO_TRACES):
        with pytest.raises(TraceError) as caught:
            saved.load(path)
        assert str(caught.value).count("\n") == 0
        return
    # when
    report = saved.load(path)
    # then it is whole, its parts add up, and every output takes it
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["verdict"]["headline"]
    damage = [check["text"] for check in plain["trust"] if check["check"] == "damage"]
    assert damage == (["not read: MTIA records: 2136"] if "mtia_" in name else [])
    parts = [value for value in plain["breakdown"].values() if value is not None]
    if plain["steps"]["step_ms"] is not None and parts:
        assert sum(parts) == pytest.approx(plain["steps"]["step_ms"], rel=1e-6, abs=1e-6)
    assert len(render_page(report)) < 300_000
    assert render_text(report).endswith("\n")
