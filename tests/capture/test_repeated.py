"""``--repeat``: several recordings of one loop, each whole, and what becomes of those that do not fit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ipyprof.capture import baseline
from ipyprof.capture.recording import Recording
from ipyprof.capture.session import TAKEN, Session, repeated_runs
from ipyprof.options import Options


class Loop:
    """A loop as the cell runner drives it: the first iteration decides, each later one begins with a mark.

    Attributes:
        ready: recordings that were handed over, with the number of the mark.
        said: every status.
    """

    def __init__(self, options: Options) -> None:
        self.ready: list[tuple[int, Recording]] = []
        self.said: list[str] = []
        self.at = 0
        self.session: Session = Session(
            options, status=self.said.append, on_ready=lambda recording: self.ready.append((self.at, recording))
        )

    def run(
        self,
        length: int,
        body: Callable[[int], object] = lambda _index: None,
        *,
        known: bool = True,
        closes: bool = True,
        cycle: int = 1,
    ) -> Recording:
        """The recording of a loop of so many iterations; ``known``: its length is, as that of a ``range``."""
        for self.at in range(length):
            if self.at == 1:
                self.session.plan(remaining=length - 1 if known else None, cycle=cycle)
            if self.at:
                self.session.mark(2)
            (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
            body(self.at)
        if closes:
            self.session.close(2)
        return self.session.finish()


def steps_of(recording: Recording) -> list[int]:
    """Numbers of the whole steps in the file."""
    assert recording.trace_path is not None
    names = [event["name"] for event in json.loads(recording.trace_path.read_text())["traceEvents"]]
    return sorted(int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#"))


# -- how a loop is shared out --


@pytest.mark.parametrize(
    ("length", "repeat", "recorded"),
    [
        # 2 wait, 2 warm-up, 3 recorded; one step before each further recording, and one behind the last
        (20, 3, [[4, 5, 6], [10, 11, 12], [16, 17, 18]]),
        (19, 3, [[4, 5, 6], [12, 13, 14]]),
        (14, 2, [[4, 5, 6], [10, 11, 12]]),
        (13, 2, [[4, 5, 6]]),
        (5, 2, [[2, 3]]),
        # what is left is shared out evenly
        (35, 3, [[4, 5, 6], [15, 16, 17], [26, 27, 28]]),
    ],
)
def test_as_many_recordings_are_made_as_fit(length: int, repeat: int, recorded: list[list[int]]) -> None:
    # given a loop of known length, when it has run
    recording = Loop(Options(repeat=repeat)).run(length)
    # then each recording holds its own steps, and those that did not fit are said to be missing
    assert [steps_of(one) for one in recording.every] == recorded
    missing = [text for check, _, text in recording.live.notes if check == "repeat"]
    count = "1 recording was" if len(recorded) == 1 else f"{len(recorded)} recordings were"
    expected = f"--repeat {repeat}: {count} made: the loop is too short for more"
    assert missing == ([] if len(recorded) == repeat else [expected])


def test_a_loop_of_unknown_length_is_timed_between_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a baseline that is complete with six samples, and a loop that could go on for ever
    monkeypatch.setattr(baseline, "MOST_STEPS", 6)
    loop = Loop(Options(repeat=3))
    # when it has run
    recording = loop.run(200, known=False)
    # then four steps lie between two recordings, more behind the last, and the result came at the mark of the last
    assert [steps_of(one) for one in recording.every] == [[4, 5, 6], [13, 14, 15], [22, 23, 24]]
    assert [(at, one is recording) for at, one in loop.ready] == [(32, True)]
    assert loop.session.over
    assert [len(one.live.baseline_ns) for one in recording.every] == [3, 3, 6]


def test_the_steps_between_serve_both_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "MOST_STEPS", 6)
    first, second = Loop(Options(repeat=2)).run(200, known=False).every
    # the sample right behind the stop is in neither
    assert second.live.wait_ns == first.live.baseline_ns
    assert second.live.baseline == "after"
    assert not second.live.cold


def test_a_stated_wait_lies_before_every_recording() -> None:
    recording = Loop(Options(repeat=2, wait=5, warmup=1, active=2)).run(20)
    assert [steps_of(one) for one in recording.every] == [[6, 7], [14, 15]]


def test_at_the_end_nothing_is_handed_over_before() -> None:
    loop = Loop(Options(repeat=2, at_end=True))
    recording = loop.run(40)
    assert loop.ready == []
    assert len(recording.every) == 2
    assert loop.session.finish() is recording


def test_how_the_step_was_found_is_known_to_all() -> None:
    # given a loop that is described once, before its first mark
    loop = Loop(Options(repeat=2, items=4, unit="rows"))
    loop.session.describe(how="loop at line 2", mark="loop", loop_line=2, loop_is_for=True, alternatives=())
    # when it is recorded twice
    recording = loop.run(40)
    # then both say so
    assert [(one.live.how, one.live.items) for one in recording.every] == [("loop at line 2", 4), ("loop at line 2", 4)]


def test_the_status_counts_the_recordings() -> None:
    loop = Loop(Options(repeat=2))
    loop.run(40)
    recorded = [text for text in loop.said if text.startswith("recording")]
    assert recorded == ["recording 3 steps (recording 1 of 2)", "recording 3 steps (recording 2 of 2)"]


def test_accumulation_is_recorded_in_whole_cycles() -> None:
    recording = Loop(Options(repeat=2)).run(60, cycle=4)
    assert [len(steps_of(one)) for one in recording.every] == [4, 4]
    assert [one.live.cycle for one in recording.every] == [4, 4]


# -- ends --


@pytest.mark.parametrize(
    ("at", "whole", "why"),
    [
        (9, 1, "ValueError before recording began, after 9 steps"),
        (10, 1, "ValueError in step 1 of 3"),
        (12, 1, "ValueError in step 3 of 3"),
        (14, 2, "ValueError"),
    ],
)
def test_an_error_keeps_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, at: int, whole: int, why: str, tmp_path: Path
) -> None:
    # given a loop with four steps between its recordings, which fails in or behind the second
    monkeypatch.setattr(baseline, "MOST_STEPS", 3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loop, error = Loop(Options(repeat=3, wait=1, warmup=1)), ValueError("no")

    def fail(index: int) -> None:
        if index == at:
            raise error

    # when it fails
    with pytest.raises(ValueError, match="no"):
        loop.run(100, fail, known=False, closes=False)
    recording = loop.session.finish(error)
    # then every recording that was not cut off is kept, each says what is missing, and no file is left over
    assert len(recording.every) == whole
    assert steps_of(recording) == [2, 3, 4]
    for one in recording.every:
        assert ("repeat", "warn", f"--repeat 3: {_count(whole)} made: {why}") in one.live.notes
    for one in recording.every:
        one.discard()
    assert list(tmp_path.glob("ipyprof-*")) == []


def _count(whole: int) -> str:
    return "1 recording was" if whole == 1 else f"{whole} recordings were"


def repeat_notes(recording: Recording) -> list[str]:
    return [text for check, _, text in recording.live.notes if check == "repeat"]


@pytest.mark.parametrize(
    ("error", "why"),
    [(None, "the cell ended before recording began, after 2 steps"), (ValueError("no"), "ValueError before recording")],
)
def test_none_is_counted_where_none_was_made(error: BaseException | None, why: str) -> None:
    # given a loop of unknown length that ends behind its second mark, when it has ended
    loop = Loop(Options(repeat=3))
    loop.session.plan(remaining=None)
    loop.session.mark(2)
    loop.session.mark(2)
    recording = loop.session.finish(error)
    # then no recording is said to be made
    (told,) = repeat_notes(recording)
    assert told.startswith(f"--repeat 3: no recording was made: {why}")


@pytest.mark.parametrize("at", [10, 12])
def test_the_recording_in_which_memory_ran_out_is_kept(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    # given a loop that is out of memory in the first or the last step of its second recording
    monkeypatch.setattr(baseline, "MOST_STEPS", 3)
    loop = Loop(Options(repeat=3, wait=1, warmup=1))
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    def fail(index: int) -> None:
        if index == at:
            raise error

    with pytest.raises(torch.OutOfMemoryError):
        loop.run(100, fail, known=False, closes=False)
    # when it ends in that
    first, second = loop.session.finish(error).every
    # then the request is that recording's and not told as later, the first one knows nothing of it, and one counts
    assert first.live.out_of_memory is None
    assert second.live.out_of_memory is not None
    assert not second.live.out_of_memory.later
    assert repeat_notes(first) == [f"--repeat 3: 1 recording was made: OutOfMemoryError in step {at - 9} of 3"]


def test_a_short_loop_of_unknown_length_is_recorded_as_often_as_asked() -> None:
    # given sixty steps of two milliseconds, whose number nobody knows, when they are recorded three times
    recording = Loop(Options(repeat=3)).run(60, lambda _index: time.sleep(0.002), known=False)
    # then all three are there, each with a baseline behind it, and the last one's is what is left of the loop
    assert [steps_of(one) for one in recording.every] == [[4, 5, 6], [13, 14, 15], [22, 23, 24]]
    assert [len(one.live.baseline_ns) for one in recording.every] == [3, 3, 33]
    assert [one.live.baseline for one in recording.every] == ["after"] * 3
    assert repeat_notes(recording) == []


def test_memory_that_runs_out_later_is_told_by_every_recording() -> None:
    # given a loop that is out of memory in the warm-up of its second recording
    loop, error = (
        Loop(Options(repeat=2, wait=1)),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
    )
    loop.session.plan(remaining=19)
    for _ in range(9):
        loop.session.mark(2)
    # when it ends in that
    recording = loop.session.finish(error)
    # then the one recording knows of it, as of something that came later
    assert recording.others == ()
    assert recording.live.out_of_memory is not None
    assert recording.live.out_of_memory.later
    assert recording.live.out_of_memory.tried_bytes == 2 * 2**20


def test_the_users_profiler_ends_the_recordings() -> None:
    # given a loop whose body starts a profiler in the second recording
    user: dict[str, Any] = {}

    def body(index: int) -> None:
        if index == 11:
            user["profiler"] = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            user["profiler"].start()
        if index == 13:
            user["profiler"].stop()

    # when it has run
    recording = Loop(Options(repeat=3)).run(30, body)
    # then the first recording stands, the user's profiler has its own steps, and a note says why there is no more
    assert [steps_of(one) for one in recording.every] == [[4, 5, 6]]
    assert ("repeat", "warn", f"--repeat 3: 1 recording was made: {TAKEN}") in recording.live.notes
    assert any(event.key == "aten::mm" for event in user["profiler"].key_averages())


def test_a_profiler_that_does_not_start_again_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from ipyprof.capture.profiler import Profiler

    started: list[int] = []
    start = Profiler.start

    def once(profiler: Profiler) -> None:
        started.append(1)
        if len(started) > 1:
            raise RuntimeError("refused")
        start(profiler)

    monkeypatch.setattr(Profiler, "start", once)
    recording = Loop(Options(repeat=3)).run(40)
    assert [steps_of(one) for one in recording.every] == [[4, 5, 6]]
    assert ("repeat", "warn", "--repeat 3: 1 recording was made: the profiler did not start") in recording.live.notes
    assert len(started) == 2


def test_each_recording_has_the_limit_to_itself() -> None:
    recording = Loop(Options(repeat=2, limit_s=0.1)).run(20, lambda _index: time.sleep(0.06))
    assert len(recording.every) == 2
    assert all(one.live.partial.startswith("stopped after 0.1 s (--limit)") for one in recording.every)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, "the cell ran once; --step cell runs it 21 times"),
        (ValueError("no"), "1 recording was made: ValueError in the cell"),
    ],
)
def test_a_cell_that_runs_once_says_how_to_run_it_often_unless_it_fails(error: Exception | None, why: str) -> None:
    session = Session(Options(repeat=3))
    session.start_cold()
    session.describe(how="the cell, once", mark="cell")
    torch.ones(8, 8) @ torch.ones(8, 8)
    if error is None:
        session.close(1)
    recording = session.finish(error)
    assert repeat_notes(recording) == [f"--repeat 3: {why}"]
    assert recording.others == ()


def test_a_cell_runs_as_often_as_all_recordings_need() -> None:
    assert repeated_runs(Options(repeat=3)) == 21
    assert repeated_runs(Options(repeat=2, wait=1, warmup=0, active=1)) == 4
