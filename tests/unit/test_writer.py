"""A trace file with the live record beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipyprof.errors import TraceError
from ipyprof.trace.live import LiveRecord, SyncSite
from ipyprof.trace.reader import read_trace
from ipyprof.trace.writer import write_trace
from tests.builder import TraceBuilder

LIVE = LiveRecord(
    source="%%gpuprofile\nx = 1\n",
    baseline_ns=(1, 2),
    sync_sites=(SyncSite(file="cell", line=2, count=1.0, in_cell=True),),
    notes=(("clock", "ok", "fine"),),
)


def test_the_live_record_comes_back() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1)
    builder.live(LIVE)
    trace = builder.trace()
    assert trace.live == LIVE
    assert "ipyprof" not in trace.metadata


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("from_file", [False, True])
def test_a_written_trace_reads_as_before_with_its_live_record(tmp_path: Path, name: str, from_file: bool) -> None:
    # given
    builder = TraceBuilder()
    builder.launch(0, 5, "k", 6, 2)
    builder.metadata(record_shapes=1)
    plain = builder.json()
    kineto = tmp_path / "kineto.json"
    kineto.write_bytes(plain)
    # when
    write_trace(kineto if from_file else plain, LIVE, tmp_path / name)
    # then
    trace = read_trace(tmp_path / name)
    assert trace.live == LIVE
    assert trace.start_ns.tolist() == builder.trace().start_ns.tolist()
    assert trace.metadata == builder.trace().metadata
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["kineto.json", name])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    target.write_text("old")
    with pytest.raises(TraceError, match="no JSON object"):
        write_trace(b"[]", LIVE, target)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("trace.json", "old")]
