"""A file that ends early is never judged: what is left looks like a loop with other steps, sound and whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipyprof import saved
from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.causes import CAUSES
from ipyprof.diagnosis.trust import checks, confidence
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.ranks.summary import summarise
from ipyprof.show.words import device_text
from ipyprof.trace.live import LiveRecord, OutOfMemory
from ipyprof.trace.reader import parse_trace
from tests.machine import Machine, live

HOST_RANGES = ("user_annotation", "cpu_op")


def recording(record: LiveRecord | None, *, steps: int = 4, gpu: bool = True) -> bytes:
    """Steps of 4 kernels of 500 us, in Kineto's order: host ranges, then each call with its GPU record."""
    machine = Machine()
    for _ in range(steps):
        with machine.step(), machine.line(3), machine.op("aten::mm"):
            machine.python(100)
            for _ in range(4 if gpu else 0):
                machine.launch(500)
    events = machine.builder.events
    ranges = sorted((event for event in events if event["cat"] in HOST_RANGES), key=lambda event: event["ts"])
    events[:] = [*ranges, *(event for event in events if event["cat"] not in HOST_RANGES)]
    if record is not None:
        machine.builder.live(record)
    return machine.builder.json()


def cut_before(data: bytes, what: bytes, number: int) -> bytes:
    """The file up to this occurrence of a category, from 0."""
    return data[: [found.start() for found in re.finditer(re.escape(b'"cat": "' + what), data)][number]]


def test_the_whole_file_is_judged() -> None:
    verdict = diagnose(analyse(parse_trace(recording(live("", 2_004, 2_004, 2_004))))).verdict

    assert (verdict.cause, verdict.confidence) == ("compute_bound", "high")


def test_no_cut_of_a_file_is_judged() -> None:
    # given
    data = recording(live("", 2_004, 2_004, 2_004))
    first = data.index(b'{"ph": "X"', data.index(b'{"ph": "X"') + 1)
    for at in range(first, len(data), 41):
        # when
        profile = analyse(parse_trace(data[:at]))
        diagnosis = diagnose(profile)
        findings, verdict = diagnosis.findings, diagnosis.verdict
        # then
        assert (verdict.cause, verdict.confidence) == ("inconclusive", "low"), at
        assert {finding.status for finding in findings} == {"unknown"}
        assert {finding.cause for finding in findings} == {cause.id for cause in CAUSES}
        assert verdict.reasons == ("the file ends early",)
        assert confidence(checks(profile)) == ("low", ("the file ends early",))


@pytest.mark.parametrize(
    ("record", "before", "reason"),
    [
        (live("", 2_004), (b"kernel", 9), "the file ends early, and GPU records may be missing"),
        (live("", 2_004), (b"cuda_runtime", 0), "the file ends early, before the GPU's records"),
        (live("", 2_004), (b"cpu_op", 3), "the file ends early, before the GPU's records"),
        (None, (b"kernel", 9), "the file ends early, and GPU records may be missing"),
        (None, (b"cpu_op", 3), "the file ends early, and records may be missing"),
        (live("", 105, cuda=False), (b"cpu_op", 3), "the file ends early, and records may be missing"),
    ],
)
def test_the_sentence_says_what_is_missing(record: LiveRecord | None, before: tuple[bytes, int], reason: str) -> None:
    # given
    data = recording(record, gpu=record is None or record.cuda)
    # when
    verdict = diagnose(analyse(parse_trace(cut_before(data, *before)))).verdict
    # then
    assert verdict.headline == f"Could not tell what holds the step back: {reason}."
    assert len(verdict.headline.split()) <= 25
    assert verdict.advice.startswith("Copy or export the file again.")


def test_a_cut_between_a_launch_and_its_kernel_is_no_silent_gpu() -> None:
    assert not analyse(parse_trace(cut_before(recording(live("", 2_004)), b"kernel", 0))).silent


@pytest.mark.parametrize("before", [(b"kernel", 0), (b"kernel", 9), (b"cuda_runtime", 9), (b"cpu_op", 3)])
def test_no_check_takes_what_is_missing_for_the_loops_own(before: tuple[bytes, int]) -> None:
    """Neither empty steps, nor lost launches, nor a slower or faster run, nor "no record lost"."""
    # given
    data = cut_before(recording(live("", 2_004, 2_004, 2_004)), *before)
    # when
    found = checks(analyse(parse_trace(data)))
    # then
    assert [(check.check, check.status) for check in found] == [("stable", "ok"), ("damage", "warn")]


def test_a_cell_that_ran_out_of_memory_is_told_from_a_cut_file_too() -> None:
    record = live("", 2_004, out_of_memory=OutOfMemory(line=6, tried_bytes=2_000_000))

    verdict = diagnose(analyse(parse_trace(cut_before(recording(record), b"kernel", 9)))).verdict

    assert verdict.headline == "Line 6 ran out of memory: it asked for 2.0 MB."
    assert (verdict.cause, verdict.confidence) == ("inconclusive", "low")


def test_a_page_of_a_cut_file_does_not_say_that_there_is_no_gpu(tmp_path: Path) -> None:
    """The driver saw it at 99 %, and none of its records is in the file."""
    path = tmp_path / "trace.json"
    path.write_bytes(cut_before(recording(live("", 2_004, utilization=0.99)), b"cuda_runtime", 0))

    report = saved.load(path)

    assert report.device is None
    assert device_text(report) == "no GPU work recorded"


@pytest.mark.parametrize(("before", "error"), [((b"kernel", 9), "its file ends early"), (None, "")])
def test_the_summary_of_a_rank_says_that_its_file_was_cut(before: tuple[bytes, int] | None, error: str) -> None:
    data = recording(live("", 2_004))
    data = data if before is None else cut_before(data, *before)

    assert summarise(analyse(parse_trace(data))).error == (error or None)
