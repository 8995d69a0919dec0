"""Files that were cut, damaged, packed or written by others: read as far as they go, with a mark, or refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ipyprof import saved
from ipyprof.errors import TraceError
from ipyprof.show.text import render_text
from ipyprof.trace import reader as pieces
from ipyprof.trace import reader as source
from ipyprof.trace.columns import FAR_OFF
from ipyprof.trace.kinds import Kind
from ipyprof.trace.reader import parse_trace, read_trace
from tests.builder import TraceBuilder

EARLY = pieces.ENDS_EARLY


def events(count: int) -> list[dict[str, Any]]:
    """Operators one after another, with a name that needs several bytes and a nested argument."""
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"前向::{number % 7}",
            "pid": 1,
            "tid": 1,
            "ts": 10 * number,
            "dur": 5,
            "args": {"Input Dims": [[2, 3], []], "other": {"ph": [{"x": 1}, {"ph": 2}]}},
        }
        for number in range(count)
    ]


def text(count: int, *, indent: int | None = None, ascii_only: bool = False, **top: Any) -> bytes:
    whole = {"schemaVersion": 1, "traceEvents": events(count), **top}
    return json.dumps(whole, indent=indent, ensure_ascii=ascii_only).encode()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces for a small text."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1_000)


# Pieces.


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_pieces_give_the_columns_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, indent: int | None, listed: bool
) -> None:
    # given
    whole = json.loads(text(100, traceName="t"))
    data = json.dumps(whole["traceEvents"] if listed else whole, indent=indent).encode()
    # when
    trace = parse_trace(data)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 30)
    single = parse_trace(data)
    # then
    assert trace.start_ns.tolist() == single.start_ns.tolist() == [10_000 * number for number in range(100)]
    assert trace.name.tolist() == single.name.tolist()
    assert (trace.names, trace.details, trace.metadata) == (single.names, single.details, single.metadata)
    assert trace.damage == single.damage == {}


@pytest.mark.usefixtures("small_pieces")
def test_text_that_looks_like_the_end_of_an_event_does_not_mislead() -> None:
    # given lists of objects in the arguments that look like events
    rows = events(60)
    for row in rows:
        row["args"] = {"nested": [{"ph": "X", "a": {}}, {"ph": "X", "a": {}}] * 9, "External id": 7}
    # when
    trace = parse_trace(json.dumps({"traceEvents": rows}).encode())
    # then
    assert (len(trace), trace.damage, set(trace.external_id.tolist())) == (60, {}, {7})


@pytest.mark.usefixtures("small_pieces")
def test_another_list_after_the_events_is_no_event() -> None:
    data = text(60, others=events(60))
    assert (len(parse_trace(data)), parse_trace(data).damage) == (60, {})


# Cut files.


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("share", [0.3, 0.5, 0.77, 0.999])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_cut_file_is_read_up_to_the_cut(share: float, indent: int | None) -> None:
    # given
    data = text(200, indent=indent)
    cut = data[: int(len(data) * share)]
    # when
    trace = parse_trace(cut)
    # then
    assert 0.9 * share * 200 - 2 < len(trace) <= 200
    assert trace.damage == {EARLY: len(trace)}
    assert trace.start_ns.tolist() == [10_000 * number for number in range(len(trace))]


def test_every_cut_of_a_small_file_is_read_or_refused() -> None:
    data = text(3)
    first = data.index(b'}, {"ph": "X"') + 1
    for at in range(1, len(data)):
        if at < first:
            with pytest.raises(TraceError, match=r"cut off|broken JSON|no JSON"):
                parse_trace(data[:at])
        else:
            assert parse_trace(data[:at]).damage.get(EARLY, 0) >= 1


def test_a_cut_in_the_middle_of_a_character() -> None:
    data = text(5)
    at = data.rindex("前".encode()) + 1
    assert parse_trace(data[:at]).damage == {EARLY: 4}


@pytest.mark.parametrize("rest", [b"1.", b"-", b"12", b"1e", b"1.5e-"])
def test_a_cut_in_the_middle_of_a_number(rest: bytes) -> None:
    """Not to the decoder: to it a number that ends in its point is broken, not cut."""
    # given
    data = text(5)
    at = data.rindex(b'"ts": ') + len(b'"ts": ')
    # then
    assert parse_trace(data[:at] + rest).damage == {EARLY: 4}


def test_zero_bytes_in_the_middle_are_no_repaired_text() -> None:
    """A disk leaves them where it wrote nothing: what they took is not known."""
    # given events 20 to 39 of 60 overwritten, so that two half events become one
    data = text(60)
    first, last = (data.index(f'"ts": {10 * number}'.encode()) for number in (20, 40))
    data = data[:first] + b"\0" * (last - first) + data[last:]
    # when
    trace = parse_trace(data)
    # then
    assert (len(trace), trace.damage) == (40, {pieces.HOLES: 1})


def test_a_cut_gzip_is_read_up_to_the_cut(tmp_path: Path) -> None:
    # given names that do not pack well, so that the cut loses something
    rows = events(2_000)
    for row in rows:
        row["name"] = os.urandom(12).hex()
    packed = gzip.compress(json.dumps({"traceEvents": rows}).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    # when
    trace = read_trace(path)
    # then
    assert 500 < len(trace) < 1_500
    assert trace.damage == {EARLY: len(trace)}


def test_a_cut_file_says_so_under_trust(tmp_path: Path) -> None:
    # given
    builder = TraceBuilder()
    for number in range(5):
        at = number * 1_000
        builder.step(number, at, at + 1_000)
        builder.launch(at + 10, 5, "kernel", at + 20, 900)
    data = builder.json()
    path = tmp_path / "trace.json"
    path.write_bytes(data[: data.index(b"ProfilerStep#4")])
    # when
    report = saved.load(path)
    # then
    assert report.steps.count == 4
    damage = [check.text for check in report.trust if check.check == "damage"]
    assert damage == [f"{EARLY}: 12"]
    assert report.verdict.confidence != "high"
    assert "the file ends early" in " ".join(render_text(report).split())


# Damage in the middle.


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "damage", [b'"quote" in a name', b"a line\\q", b"nothing}} {", b'", "args": {"x": [1, 2}', b'"}, "']
)
def test_only_the_damaged_event_is_lost(damage: bytes, indent: int | None) -> None:
    # given one name that breaks the JSON (pytorch/kineto PR 1459, pytorch#98432)
    rows = events(100)
    rows[50]["name"] = "BROKEN"
    data = json.dumps({"traceEvents": rows}, indent=indent).encode().replace(b"BROKEN", damage)
    if damage == b"nothing}} {":
        data = data.replace(b'"nothing', b"nothing")
    # when
    trace = parse_trace(data)
    # then
    assert len(trace) == 99
    assert sum(trace.damage.values()) >= 1
    assert 500_000 not in trace.start_ns.tolist()


def test_broken_utf8_in_arguments_is_replaced() -> None:
    data = json.dumps(
        {
            "note": "MARK",
            "traceEvents": [
                {**events(1)[0], "args": {"Input Dims": [[1]], "Input type": ["MARK"], "Concrete Inputs": ["MARK"]}}
            ],
        }
    ).encode()
    trace = parse_trace(data.replace(b"MARK", b"a\xff"))
    details = trace.detail_of(0)
    assert details is not None
    assert (details.dtypes, details.concrete, trace.metadata) == (("a�",), ("a�",), {"note": "a�"})


# Packed files.


def test_a_packed_file_that_unpacks_without_measure_is_refused() -> None:
    # given a thousandth of 200 MB
    bomb = gzip.compress(b" " * 200_000_000, 1)
    assert len(bomb) < 1_000_000
    # then
    with pytest.raises(TraceError, match=r"unpacks to more than .* as no trace does; .*gunzip"):
        source.unpack(bomb, "bomb.gz")


def test_members_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FREE_BYTES", 1_000)
    monkeypatch.setattr(source, "MOST_RATIO", 1)
    with pytest.raises(TraceError, match="unpacks to more than"):
        source.unpack(gzip.compress(b"x" * 600) * 2, "two.gz")


def test_what_a_trace_packs_to_is_far_from_the_bound() -> None:
    data = text(50_000)
    assert source.unpack(gzip.compress(data, 9), "trace.gz") == data


def test_many_small_members_are_read_in_linear_time() -> None:
    data = text(2_000)
    packed = b"".join(gzip.compress(data[at : at + 20]) for at in range(0, len(data), 20))
    assert source.unpack(packed, "members.gz") == data


def test_padding_after_a_member_is_no_member() -> None:
    data = text(2)
    assert source.unpack(gzip.compress(data) + b"\0" * 100_000, "padded.gz") == data


def test_a_device_is_refused() -> None:
    with pytest.raises(TraceError, match="is no regular file"):
        source.read_bytes(Path("/dev/zero"))


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(TraceError, match="cannot be opened"):
        source.read_bytes(Path("a\0b"))


# Numbers.


@pytest.mark.parametrize(
    "args",
    [
        '{"correlation": "12"}',
        '{"correlation": 99999999999999999999999}',
        '{"External id": 1.5}',
        '{"External id": null}',
        '{"bytes": 1e400}',
        '{"memory bandwidth (GB/s)": inf, "est. achieved occupancy %": 1e999}',
        '{"est. achieved occupancy %": 1' + "0" * 400 + "}",
        '{"grid": [1' + "0" * 5_000 + ", 1, 1]}",
        '{"grid": {"x": 1}, "block": "no", "stream": "0x0", "device": 1e30}',
    ],
)
def test_numbers_of_any_size_are_read_or_cost_their_event(args: str, tmp_path: Path) -> None:
    # given
    rows = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{at},"dur":3,"args":{given}}}'
        for at, given in ((0, "{}"), (10, args), (20, "{}"))
    )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents":[{rows}]}}')
    # when
    trace = read_trace(path)
    # then
    assert 2 <= len(trace) <= 3
    assert saved.load(path).verdict.headline


def test_numbers_as_text_are_numbers() -> None:
    row = {**events(1)[0], "ts": "123.456", "dur": "2.5", "args": {"correlation": "12"}}
    trace = parse_trace(json.dumps([row]).encode())
    assert (trace.origin_ns, trace.dur_ns.tolist(), trace.correlation.tolist()) == (123_456, [2_500], [12])


@pytest.mark.parametrize("name", ["## line 99999999999999999999999", "ProfilerStep#99999999999999999999"])
def test_a_number_that_no_line_and_no_step_has_is_part_of_a_name(name: str) -> None:
    trace = parse_trace(json.dumps([{**events(1)[0], "name": name}]).encode())
    assert trace.kind.tolist() == [Kind.OPERATOR]


@pytest.mark.parametrize("live", [{"loop_line": 10**30}, {"device_names": {"first": "H200"}}])
def test_a_live_record_with_absurd_values_is_damage(live: dict[str, Any]) -> None:
    trace = parse_trace(text(1, ipyprof=live))
    assert (trace.live, trace.damage) == (None, {"a live record of another version": 1})


def test_sizes_that_no_tensor_has_are_not_multiplied() -> None:
    # given shapes whose product is no number any more
    row = {**events(1)[0], "args": {"Input Dims": [[10**400, 2], [3]], "Input type": ["float", "float"]}}
    # when
    details = parse_trace(json.dumps([row]).encode()).detail_of(0)
    # then
    assert details is not None
    assert details.shapes == ((None, 2), (3,))


@pytest.mark.parametrize("far", [4e15, -4e15, 1e13])
def test_an_event_far_off_is_left_out_and_counted(far: float) -> None:
    # given one time that is no time of this recording, and a memory record as well
    rows = events(10)
    rows[4]["ts"] = far
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    rows += [{**memory, "ts": at, "args": {"Total Allocated": 8, "Device Id": 0, "Device Type": 1}} for at in (20, far)]
    # when
    trace = parse_trace(json.dumps(rows).encode())
    # then
    assert (len(trace), trace.damage) == (9, {FAR_OFF: 1})
    assert trace.memory.time_ns.tolist() == [20_000]
    assert int(trace.end_ns.max()) == 95_000
