"""A file's bytes as columns."""

from __future__ import annotations

import gc
import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipyprof.errors import TraceError
from ipyprof.trace.kinds import Kind, Role
from ipyprof.trace.model import Trace
from ipyprof.trace.reader import parse_trace, read_trace
from tests.builder import TraceBuilder

REAL = Path(__file__).parents[3] / "shared" / "traces"


def one(trace: Trace, name: str) -> int:
    """The index of the only event of this name."""
    rows = np.flatnonzero(trace.name == trace.names.index(name))
    assert len(rows) == 1
    return int(rows[0])


def event(**values: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 10, "dur": 5, **values}


def read(*events: dict[str, Any], **top: Any) -> Trace:
    return parse_trace(json.dumps({**top, "traceEvents": list(events)}).encode())


# Columns.


def test_columns_of_a_launch_and_its_kernel() -> None:
    # given
    builder = TraceBuilder()
    external = builder.op("aten::mm", at=1000, end=1040, tid=3, shapes=[[2, 3], [3, 4]], sequence=8)
    correlation = builder.launch(1020.5, 5, "gemm", 1050.125, 30, stream=9, grid=(4, 2, 1), block=(64, 1, 1), tid=3)
    # when
    trace = builder.trace()
    # then
    assert trace.start_ns.tolist() == [0, 20_500, 50_125]
    assert trace.dur_ns.tolist() == [40_000, 5_000, 30_000]
    assert trace.kind.tolist() == [Kind.OPERATOR, Kind.CALL, Kind.KERNEL]
    assert trace.role.tolist() == [Role.OTHER, Role.LAUNCH, Role.OTHER]
    assert [trace.names[index] for index in trace.name] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert trace.tid.tolist() == [3, 3, 9]
    assert trace.device.tolist() == [-1, -1, 0]
    assert trace.stream.tolist() == [-1, -1, 9]
    assert trace.correlation.tolist() == [0, correlation, correlation]
    assert trace.external_id.tolist() == [external, external, external]
    assert trace.sequence.tolist() == [8, -1, -1]
    assert trace.origin_ns == 1_000_000
    assert trace.damage == {}


def test_columns_have_the_types_of_the_contract() -> None:
    builder = TraceBuilder()
    builder.launch(0, 1, "k", 2, 1)
    trace = builder.trace()
    types = {
        name: getattr(trace, name).dtype.name
        for name in ("start_ns", "dur_ns", "kind", "role", "name", "pid", "tid", "device", "stream", "detail")
    }
    assert types == {
        "start_ns": "int64",
        "dur_ns": "int64",
        "kind": "uint8",
        "role": "uint8",
        "name": "int32",
        "pid": "int64",
        "tid": "int64",
        "device": "int32",
        "stream": "int64",
        "detail": "int32",
    }


def test_events_are_sorted_by_start_then_longest_first() -> None:
    builder = TraceBuilder()
    builder.op("inner", at=10, end=20)
    builder.op("late", at=30, end=31)
    builder.op("outer", at=10, end=40)
    trace = builder.trace()
    assert [trace.names[index] for index in trace.name] == ["outer", "inner", "late"]


def test_only_complete_events_become_rows() -> None:
    trace = read(event(), event(ph="i"), event(ph="B"), {"ph": "M", "name": "process_name", "pid": 1})
    assert len(trace) == 1


@pytest.mark.parametrize(
    ("category", "args", "device", "stream"),
    [
        ("kernel", {"device": 1, "stream": 20}, 1, 20),
        ("Kernel", {}, 3, 7),
        ("gpu_user_annotation", {}, 3, 7),
        ("cuda_sync", {"device": 1, "stream": -1}, 1, -1),
        ("cuda_runtime", {"stream": "0x0"}, -1, -1),
        ("cpu_op", {"device": 1, "stream": 20}, -1, -1),
    ],
)
def test_place_comes_from_arguments_else_from_pid_and_tid(
    category: str, args: dict[str, Any], device: int, stream: int
) -> None:
    trace = read(event(cat=category, pid=3, tid=7, args=args))
    assert (trace.device.tolist(), trace.stream.tolist()) == ([device], [stream])


def test_details_of_a_kernel() -> None:
    builder = TraceBuilder()
    builder.kernel("k", 0, 1, grid=(4, 2, 1), block=(64, 1, 1), occupancy=25)
    trace = builder.trace()
    details = trace.detail_of(0)
    assert details is not None
    assert (details.grid, details.block, details.occupancy) == ((4, 2, 1), (64, 1, 1), 0.25)
    assert details.moved_bytes is None


def test_an_occupancy_of_zero_is_unknown() -> None:
    builder = TraceBuilder()
    builder.kernel("nvjet_tst", 0, 1, occupancy=0)
    details = builder.trace().detail_of(0)
    assert details is not None
    assert details.occupancy is None


def test_details_of_a_copy() -> None:
    builder = TraceBuilder()
    builder.copy(0, 5, "HtoD pageable", 2, 3, nbytes=4096)
    trace = builder.trace()
    row = one(trace, "Memcpy HtoD (Pageable -> Device)")
    details = trace.detail_of(row)
    assert details is not None
    assert details.moved_bytes == 4096


def test_details_of_an_operator() -> None:
    builder = TraceBuilder()
    builder.op(
        "aten::cat",
        0,
        1,
        shapes=[[[2, 3], [4, 3]], []],
        strides=[[[3, 1], [3, 1]], []],
        dtypes=["TensorList", "Scalar"],
        concrete=["", "0"],
    )
    details = builder.trace().detail_of(0)
    assert details is not None
    assert details.shapes == (((2, 3), (4, 3)), ())
    assert details.strides == (((3, 1), (3, 1)), ())
    assert details.dtypes == ("TensorList", "Scalar")
    assert details.concrete == ("", "0")


def test_details_of_a_collective() -> None:
    builder = TraceBuilder()
    args: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 1024, "Group size": 2, "dtype": "Float"}
    builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 0, 1, **args)
    details = builder.trace().detail_of(0)
    assert details is not None
    assert details.collective == args


def test_equal_arguments_share_their_details() -> None:
    builder = TraceBuilder()
    for at in (0, 10, 20):
        builder.op("aten::mm", at, at + 5, shapes=[[2, 2], [2, 2]])
    builder.op("aten::mm", 30, 35, shapes=[[9, 2], [2, 2]])
    trace = builder.trace()
    assert len(trace.details) == 2
    assert len(set(trace.detail[:3].tolist())) == 1


def test_an_operator_without_shapes_has_no_details() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1)
    assert builder.trace().detail.tolist() == [-1]


# Ids.


def test_large_ids_keep_apart_as_negative_numbers() -> None:
    trace = read(
        event(ts=0, args={"External id": 2**64 - 1, "correlation": 2**63}),
        event(ts=1, args={"External id": 2**63 + 1, "correlation": 2**63 - 1}),
    )
    assert trace.external_id.tolist() == [-1, -(2**63) + 1]
    assert trace.correlation.tolist() == [-(2**63), 2**63 - 1]


def test_text_ids_are_negative_and_the_same_for_the_same_text() -> None:
    trace = read(event(ts=0, pid="Spans", tid="a"), event(ts=1, pid="Spans", tid="b"), event(ts=2, pid="12", tid="a"))
    assert trace.pid[0] == trace.pid[1] < 0
    assert trace.tid[0] == trace.tid[2] < 0
    assert trace.tid[1] not in (trace.tid[0], trace.pid[0])
    assert trace.pid[2] == 12


# Times.


def test_nanoseconds_of_today_in_unix_time_survive() -> None:
    data = b'{"traceEvents":[' + b",".join(
        b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%s,"dur":0.003}' % time
        for time in (b"1712195495519689.047", b"1712195495519689.048", b"1712195495519690")
    )
    trace = parse_trace(data + b"]}")
    assert trace.start_ns.tolist() == [0, 1, 953]
    assert trace.dur_ns.tolist() == [3, 3, 3]
    assert trace.origin_ns == 1712195495519689047


def test_the_base_is_kept() -> None:
    trace = read(event(ts=7), baseTimeNanoseconds=1_700_000_000_000_000_000)
    assert (trace.base_ns, trace.origin_ns) == (1_700_000_000_000_000_000, 7_000)


# The rest of a file.


def test_memory_records_are_sorted_and_the_cpu_is_device_minus_one() -> None:
    builder = TraceBuilder()
    builder.op("aten::empty", 0, 50)
    builder.memory(20, -512, 1024, 4096, device=1)
    builder.memory(10, 512, 1536, 4096, device=-1)
    memory = builder.trace().memory
    assert memory.time_ns.tolist() == [10_000, 20_000]
    assert memory.device.tolist() == [-1, 1]
    assert memory.delta_bytes.tolist() == [512, -512]
    assert memory.allocated_bytes.tolist() == [1536, 1024]
    assert memory.reserved_bytes.tolist() == [4096, 4096]


def test_a_file_without_memory_records_has_empty_arrays() -> None:
    builder = TraceBuilder()
    builder.op("aten::empty", 0, 50)
    trace = builder.trace()
    assert len(trace.memory.time_ns) == 0


def test_devices_and_metadata() -> None:
    builder = TraceBuilder()
    builder.device("NVIDIA H200", 132, capability=(9, 0), total_bytes=150)
    builder.metadata(record_shapes=1, distributedInfo={"rank": 1})
    builder.op("aten::mm", 0, 1, tid=5)
    trace = builder.trace()
    (device,) = trace.devices
    assert (device.index, device.name, device.sm_count, device.compute_capability, device.total_bytes) == (
        0,
        "NVIDIA H200",
        132,
        (9, 0),
        150,
    )
    assert trace.metadata == {"schemaVersion": 1, "record_shapes": 1, "distributedInfo": {"rank": 1}}


def test_metadata_stands_before_and_after_the_events() -> None:
    events = json.dumps([event(args={"Input Dims": [[1], [2]], "Input type": ["float", "int"]})])
    text = (
        f'{{"mine": {{"traceEvents": 1}}, "traceEvents": {events}, "lists": [1, [2]], "yours": "x", "traceName": "t"}}'
    )
    assert parse_trace(text.encode()).metadata == {
        "mine": {"traceEvents": 1},
        "lists": [1, [2]],
        "yours": "x",
        "traceName": "t",
    }


def test_large_metadata_is_left_out() -> None:
    assert read(event(), big="x" * 100_000, small=1).metadata == {"small": 1}


# Damage.


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"dur": None}, "events with a value of the wrong type"),
        ({"dur": -1}, "events that end before they start"),
        ({"dur": 2e12}, "events of more than eleven days"),
        ({"ts": None}, "events without a start"),
        ({"ts": [1, 2]}, "events without a start"),
        ({"name": 5}, "events with a value of the wrong type"),
    ],
)
def test_a_broken_event_is_skipped_and_counted(broken: dict[str, Any], reason: str) -> None:
    trace = read(event(ts=1), event(ts=2, **{key: value for key, value in broken.items() if key != "ts"}) | broken)
    assert len(trace) == 1
    assert trace.damage == {reason: 1}


def test_an_event_without_a_duration_is_skipped_and_counted() -> None:
    broken = event()
    del broken["dur"]
    trace = read(event(), broken)
    assert (len(trace), trace.damage) == (1, {"events without a duration": 1})


@pytest.mark.parametrize(
    "damaged", [b'"x": NaN', b'"x": [1, -inf]', b'"name": "\xff\xfe"', b'"name": "tab\there"', b'"x": Infinity']
)
def test_text_that_is_not_json_is_repaired_and_counted(damaged: bytes) -> None:
    data = json.dumps({"traceEvents": [event(args={"y": 1})]}).encode().replace(b'"y": 1', damaged)
    trace = parse_trace(data)
    assert (len(trace), trace.damage) == (1, {"text that is not valid JSON, repaired": 1})


# Forms of a file.


def test_array_form_gzip_and_byte_order_mark_are_told_by_content(tmp_path: Path) -> None:
    plain = json.dumps([event()]).encode()
    for content in (plain, b"\xef\xbb\xbf" + plain, gzip.compress(plain), b"\n " + plain):
        path = tmp_path / "trace.txt"
        path.write_bytes(content)
        assert len(read_trace(path)) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"PK\x03\x04zip", "no JSON"),
        (b"<html></html>", "no JSON"),
        (b'{"traceEvents": [{"ph": "X"', "is cut off after 27 bytes"),
        (b'{"traceEvents": [}', "broken JSON"),
        (b'{"a": 1}', "without the key 'traceEvents' (its keys: 'a')"),
        (b"{}", "its keys: none"),
        (b'{"traceEvents": 3}', "that is no list"),
        (b'{"traceEvents": []}', "without any complete event"),
        (b'{"rocprofiler-sdk-tool": []}', "rocprof's results"),
        (b'{"schema": "1.1.1", "nodes": []}', "execution trace"),
        (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "a list of 2 records that are no events"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply"),
        (b"[1, 2]", "a list of 2 records that are no events"),
        (b"\x1f\x8b broken", "broken gzip"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:10] + b"\xff" * 20, "broken gzip"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(says)) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_path_that_does_not_open_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(TraceError, match="cannot be opened"):
            read_trace(path)


def test_a_live_record_of_another_form_is_damage() -> None:
    trace = read(event(), ipyprof={"source": 5})
    assert (trace.live, trace.damage) == (None, {"a live record of another version": 1})


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collecting: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        read(event())
        assert gc.isenabled() is collecting
        with pytest.raises(TraceError):
            parse_trace(b"{}")
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()


# Real files.


def real_files() -> list[tuple[str, int | None]]:
    """Path below the folder, and the number of kernels that its README states."""
    if not (REAL / "README.md").exists():
        return []
    stated = dict(re.findall(r"^\| (\S+) \| .*?kernels=(\d+)", (REAL / "README.md").read_text(), re.MULTILINE))
    paths = sorted(str(path.relative_to(REAL)) for path in REAL.rglob("*.gz"))
    return [(path, int(stated[path]) if path in stated else None) for path in paths]


@pytest.mark.skipif(not real_files(), reason="the folder of real traces is absent")
@pytest.mark.parametrize(("path", "kernels"), real_files())
def test_a_real_file_reads_soundly_or_is_refused(path: str, kernels: int | None) -> None:
    if "rocprof~" in path or "memory_timeline" in path:
        with pytest.raises(TraceError):
            read_trace(REAL / path)
        return
    trace = read_trace(REAL / path)
    assert trace.damage == ({"not read: MTIA records": 2136} if "mtia_" in path else {})
    assert trace.start_ns.min() == 0
    assert bool(np.all(np.diff(trace.start_ns) >= 0))
    assert trace.dur_ns.min() >= 0
    assert bool(np.all(trace.device[np.isin(trace.kind, (Kind.KERNEL, Kind.COMMUNICATION))] >= 0))
    if kernels is not None:
        assert len(trace.select(Kind.KERNEL, Kind.COMMUNICATION)) == kernels


def test_gzip_members_of_one_file_are_one_trace(tmp_path: Path) -> None:
    data = json.dumps({"traceEvents": [event()]}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))
    assert len(read_trace(path)) == 1


def test_a_gzip_file_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(json.dumps({"traceEvents": [event()]}).encode()))
    packed[-8:-4] = zlib.crc32(b"other").to_bytes(4, "little")
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="broken gzip"):
        read_trace(path)
