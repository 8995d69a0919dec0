"""The benchmark's long traces are sound: each tile is the recording again, and nothing of one belongs to another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ipyprof import saved
from ipyprof.trace.kinds import DEVICE_KINDS, Kind
from ipyprof.trace.reader import read_trace
from tests.benchmarks.tile import tiled

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "tiny_kernels_fixed.json.gz"


def test_tiles_repeat_the_recording(tmp_path: Path) -> None:
    # given
    single = read_trace(FIXTURE)
    work = len(single.select(*DEVICE_KINDS))
    target = tmp_path / "tiled.json"
    # when
    written = tiled(FIXTURE, 4_000, target)
    trace = read_trace(target)
    tiles = len(trace.select(*DEVICE_KINDS)) // work
    # then
    assert written >= 4_000
    assert tiles > 1
    assert trace.damage == {}
    assert len(trace.select(*DEVICE_KINDS)) == tiles * work
    steps = [trace.names[name] for name in trace.name[trace.select(Kind.STEP)]]
    assert len(set(steps)) == len(steps) == tiles * len(single.select(Kind.STEP))
    calls = trace.correlation[trace.select(Kind.CALL)]
    per_tile = len(single.select(Kind.CALL))
    first = set(calls[:per_tile].tolist()) - {0}
    assert first and not first & set(calls[per_tile:].tolist())
    assert bool(np.all(np.diff(trace.start_ns) >= 0))


def test_a_tiled_trace_has_the_breakdown_of_its_recording(tmp_path: Path) -> None:
    # given
    single = saved.load(FIXTURE)
    # when
    target = tmp_path / "tiled.json"
    tiled(FIXTURE, 2_000, target)
    report = saved.load(target)
    # then
    assert single.breakdown.kernel is not None and report.breakdown.kernel is not None
    assert report.breakdown.kernel > 0
    kernels = {row.name for row in single.kernels}
    assert {row.name for row in report.kernels} == kernels
