"""The phases of a run, what the exported file holds, and that everything is as before afterwards (on the CPU)."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ipyprof.capture import baseline, probes
from ipyprof.capture.profiler import Profiler
from ipyprof.capture.recording import Recording
from ipyprof.capture.session import ALREADY_ON, TAKEN, Session, phases_for
from ipyprof.options import Options


def work() -> None:
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()


def run_loop(session: Session, length: int, body: Callable[[int], object] | None = None) -> None:
    """A loop as the cell runner drives it: the first iteration decides, each later one begins with a mark."""
    for index in range(length):
        if index == 1:
            session.plan(remaining=length - 1)
        if index:
            session.mark(2)
        work()
        if body is not None:
            body(index)
    session.close(2)


def recorded(length: int, body: Callable[[int], object] | None = None, **options: Any) -> Recording:
    """What a session records of a loop."""
    session = Session(Options(**options))
    run_loop(session, length, body)
    return session.finish()


def step_names(path: Path | None) -> list[str]:
    assert path is not None
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]


def names(path: Path | None) -> set[str]:
    assert path is not None
    return {event["name"] for event in json.loads(path.read_text())["traceEvents"]}


class TestPhases:
    @pytest.mark.parametrize(
        ("length", "expected"),
        [
            (None, (2, 2, 3, 1)),
            (100, (2, 2, 3, 1)),
            (8, (2, 2, 3, 1)),
            (7, (1, 2, 3, 1)),
            (6, (1, 1, 3, 1)),
            (5, (1, 1, 2, 1)),
            (4, (1, 1, 1, 1)),
            (3, (1, 1, 1, 0)),
            (2, (1, 0, 1, 0)),
        ],
    )
    def test_a_short_loop_shrinks_as_the_table_says(self, length: int | None, expected: tuple[int, ...]) -> None:
        phases = phases_for(Options(), length=length)
        assert (phases.wait, phases.warmup, phases.active, phases.after) == expected

    def test_stated_options_win(self) -> None:
        phases = phases_for(Options(wait=3, active=4), length=8)
        assert (phases.wait, phases.warmup, phases.active, phases.after) == (3, 1, 4, 0)

    @pytest.mark.parametrize(("length", "active"), [(None, 4), (100, 4), (6, 4)])
    def test_the_recorded_steps_are_whole_cycles(self, length: int | None, active: int) -> None:
        assert phases_for(Options(), length=length, cycle=4).active == active


class TestLoops:
    @pytest.mark.parametrize(
        ("length", "steps", "name", "samples"),
        [
            (2, [1], "none", 0),
            (3, [2], "none", 0),
            (4, [2], "after_first", 1),
            (5, [2, 3], "after_first", 1),
            (6, [2, 3, 4], "after_first", 1),
            (7, [3, 4, 5], "after_first", 1),
            (8, [4, 5, 6], "after_first", 1),
            (9, [4, 5, 6], "after_first", 1),
            (10, [4, 5, 6], "after", 1),
            (11, [4, 5, 6], "after", 2),
            (12, [4, 5, 6], "after", 3),
        ],
    )
    def test_a_loop_of_known_length(self, length: int, steps: list[int], name: str, samples: int) -> None:
        recording = recorded(length)
        assert step_names(recording.trace_path) == [f"ProfilerStep#{index}" for index in steps]
        assert len(recording.live.profiled_ns) == len(steps)
        assert len(recording.live.closing_ns) == len(steps)
        assert all(0 < closing < 50_000_000 for closing in recording.live.closing_ns)
        assert recording.live.baseline == name
        assert len(recording.live.baseline_ns) == samples
        assert recording.live.partial == ""
        assert recording.live.cold is (length == 2)

    def test_a_loop_of_one_iteration_records_nothing_without_a_cold_start(self) -> None:
        recording = recorded(1)
        assert recording.trace_path is None
        assert recording.live.partial == "the cell ended before recording began, after 0 steps"

    @pytest.mark.parametrize(
        ("marks", "cycle", "closes", "error", "partial", "steps"),
        [
            *(
                (n, 1, False, ValueError(), f"ValueError before recording began, after {n} step", None)
                for n in range(4)
            ),
            (9, 1, False, ValueError(), "", [4, 5, 6]),  # behind the recording
            (12, 1, False, None, "", [4, 5, 6]),
            (5, 1, True, None, "the loop ended with 2 of 3 steps", [4, 5]),
            (14, 4, True, None, "", [4, 5, 6, 7]),
        ],
    )
    def test_a_loop_of_unknown_length(
        self, marks: int, cycle: int, closes: bool, error: Exception | None, partial: str, steps: list[int] | None
    ) -> None:
        session = Session(Options())
        session.plan(remaining=None, cycle=cycle)
        for _ in range(marks):
            session.mark()
            work()
        if closes:
            session.close()
        recording = session.finish(error)
        assert recording.live.partial.startswith(partial)
        assert bool(recording.live.partial) is bool(partial)
        assert recording.live.cycle == cycle
        if steps is None:
            assert recording.trace_path is None
        else:
            assert step_names(recording.trace_path) == [f"ProfilerStep#{step}" for step in steps]
        assert session.finish(ValueError()) is recording

    @pytest.mark.parametrize(("at_mark", "where"), [(True, "with 2 of 3 steps"), (False, "in step 2 of 3")])
    def test_the_limit_stops_at_a_mark_and_inside_a_step_when_asked(self, at_mark: bool, where: str) -> None:
        session = Session(Options(limit_s=0.2))
        session.plan(remaining=None)
        for _ in range(5):
            session.mark()
        time.sleep(0.22)
        if at_mark:
            session.mark()
        else:
            session.check_limit()
        assert not session.recording
        assert session.finish().live.partial == f"stopped after 0.2 s (--limit) {where}"

    def test_a_loop_entered_again_goes_on_with_its_phases(self) -> None:
        session = Session(Options())
        session.plan(remaining=None)
        for _epoch in range(4):
            for _ in range(2):
                session.mark()
                work()
            session.close()
        recording = session.finish()
        assert step_names(recording.trace_path) == ["ProfilerStep#4"]

    def test_a_cell_without_a_loop_is_one_cold_step(self) -> None:
        session = Session(Options())
        session.start_cold()
        assert session.recording
        work()
        recording = session.finish()
        assert not session.recording
        assert step_names(recording.trace_path) == ["ProfilerStep#0"]
        assert "aten::matmul" in names(recording.trace_path)
        assert recording.live.cold
        assert recording.live.partial == ""

    def test_a_cold_step_is_over_where_it_is_closed(self) -> None:
        ready: list[object] = []
        session = Session(Options(), on_ready=ready.append)
        session.start_cold()
        work()
        session.close(2)
        torch.ones(3).exp()
        recording = session.finish()
        assert session.over
        assert ready == [recording]
        assert step_names(recording.trace_path) == ["ProfilerStep#0"]
        assert "aten::exp" not in names(recording.trace_path)

    def test_a_dropped_cold_recording_leaves_no_trace_of_itself(self) -> None:
        session = Session(Options())
        session.start_cold()
        torch.ones(3).exp()
        session.drop()
        session.plan(remaining=None)
        for _ in range(9):
            session.mark()
            work()
        session.close()
        recording = session.finish()
        assert len(step_names(recording.trace_path)) == 3
        assert "aten::exp" not in names(recording.trace_path)
        assert not recording.live.cold

    def test_only_recorded_steps_are_marked_recording(self) -> None:
        session = Session(Options())
        seen: list[bool] = []
        run_loop(session, 9, lambda _index: seen.append(session.recording))
        session.finish()
        assert seen == [False] * 4 + [True] * 3 + [False] * 2

    def test_line_ranges_are_recorded_in_recorded_steps_only(self) -> None:
        session = Session(Options())

        def body(index: int) -> None:
            with session.range(index):
                work()

        run_loop(session, 9, body)
        recording = session.finish()
        found = {name for name in names(recording.trace_path) if name.startswith("## line")}
        assert found == {"## line 4", "## line 5", "## line 6"}

    def test_a_range_that_an_interrupt_left_open_ends_with_the_one_around_it(self) -> None:
        session = Session(Options())

        def body(_index: int) -> None:
            if session.recording:
                with session.range(7):
                    session.range(8).__enter__()
                torch.ones(3).exp()

        run_loop(session, 9, body)
        recording = session.finish()

        assert recording.trace_path is not None
        events = json.loads(recording.trace_path.read_text())["traceEvents"]
        inner = [event for event in events if event["name"] == "## line 8"]
        after = [event for event in events if event["name"] == "aten::exp"]
        assert len(inner) == len(after) == 3
        assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in zip(inner, after, strict=True))

    def test_what_was_described_is_kept(self) -> None:
        session = Session(Options(items=32, unit="samples"), source="the cell")
        session.describe(how="loop at line 2", mark="loop", loop_line=2, loop_is_for=True, alternatives=("x",))
        run_loop(session, 9)
        live = session.finish().live
        assert (live.how, live.mark, live.loop_line, live.loop_is_for) == ("loop at line 2", "loop", 2, True)
        assert (live.alternatives, live.source, live.items, live.unit) == (("x",), "the cell", 32, "samples")
        assert live.current_line == 2
        assert not live.cuda
        assert live.environment["torch"] == torch.__version__


class TestReady:
    def test_the_recording_comes_once_while_the_loop_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(baseline, "MOST_STEPS", 20)
        ready: list[int] = []
        position = 0
        session = Session(Options(), on_ready=lambda _recording: ready.append(position))
        session.plan(remaining=None)
        for position in range(1, 200):  # noqa: B007
            session.mark()
        session.close()
        recording = session.finish()
        assert ready == [7 + 20 + 1]  # 2 + 2 + 3 steps, one that does not count, twenty
        assert len(recording.live.baseline_ns) == 20

    def test_slow_steps_need_three_samples_only(self) -> None:
        ready: list[int] = []
        position = 0
        session = Session(Options(), on_ready=lambda _recording: ready.append(position))
        session.plan(remaining=None)
        for position in range(1, 20):
            session.mark()
            if position >= 7:
                time.sleep(0.15)
        session.finish()
        assert ready == [11]
        assert session.over

    def test_at_end_nothing_comes_before_the_end(self) -> None:
        ready: list[object] = []
        session = Session(Options(at_end=True), on_ready=ready.append)
        run_loop(session, 60)
        recording = session.finish()
        assert ready == []
        assert recording.live.baseline == "after"

    def test_a_failing_report_warns_and_does_not_stop_the_cell(self) -> None:
        def fail(_recording: object) -> None:
            raise ZeroDivisionError("no")

        session = Session(Options(), on_ready=fail)
        with pytest.warns(UserWarning, match="the report failed: ZeroDivisionError: no"):
            run_loop(session, 60)
        session.finish()

    def test_an_interrupt_while_the_file_is_removed_comes_after_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recording = recorded(9)
        remove = tempfile.TemporaryDirectory._rmtree  # type: ignore[attr-defined]

        def interrupted(*arguments: Any, **named: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            remove(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(tempfile.TemporaryDirectory, "_rmtree", staticmethod(interrupted))
            with pytest.raises(KeyboardInterrupt):
                recording.discard()
        assert recording.trace_path is not None
        assert not recording.trace_path.parent.exists()
        recording.discard()


class TestEnds:
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
    def test_an_error_in_a_recorded_step_keeps_the_whole_ones(self, error: type[BaseException]) -> None:
        session = Session(Options())

        def body(index: int) -> None:
            if index == 5:
                raise error("here")

        try:
            run_loop(session, 20, body)
        except error as raised:
            recording = session.finish(raised)
        assert recording.live.partial == f"{error.__name__} in step 2 of 3"
        assert step_names(recording.trace_path) == ["ProfilerStep#4"]
        assert "unfinished step 5" in names(recording.trace_path)
        assert len(recording.live.profiled_ns) == 1
        assert not torch.autograd._profiler_enabled()

    def test_the_part_of_a_first_recorded_step_is_no_step(self) -> None:
        # given steps of 20 ms and an error at the start of the first recorded one
        session = Session(Options())

        def body(index: int) -> None:
            if index == 4:
                raise ValueError("here")
            time.sleep(0.02)

        # when it comes
        with pytest.raises(ValueError, match="here") as raised:
            run_loop(session, 50, body)
        recording = session.finish(raised.value)
        # then the fragment is called so, and the steps before the profiler give the time
        live = recording.live
        assert live.partial == "ValueError in step 1 of 3"
        assert step_names(recording.trace_path) == []
        assert "unfinished step 4" in names(recording.trace_path)
        assert live.profiled_ns == ()
        assert not live.cold
        assert live.baseline == "wait"
        assert live.baseline_ns == live.wait_ns
        assert min(live.baseline_ns) >= 20_000_000

    def test_an_error_in_a_cold_cell_keeps_what_there_is(self) -> None:
        session = Session(Options())
        session.start_cold()
        work()
        recording = session.finish(ValueError("here"))
        assert recording.live.partial == "ValueError in the cell"
        assert step_names(recording.trace_path) == ["ProfilerStep#0"]

    def test_a_profiler_that_does_not_start_is_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_self: object) -> None:
            raise RuntimeError("CUPTI says no")

        monkeypatch.setattr(torch.profiler._KinetoProfile, "start_trace", refuse)
        recording = recorded(12)
        assert recording.trace_path is None
        assert ("profiler", "fail", "the profiler did not start: RuntimeError: CUPTI says no") in recording.live.notes
        assert recording.live.partial == "the profiler did not start"
        assert recording.live.baseline == "after"

    def test_a_stop_that_fails_in_its_synchronise_still_switches_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_self: object) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        monkeypatch.setattr(torch.profiler._KinetoProfile, "stop_trace", fail)
        recording = recorded(12)
        assert not torch.autograd._profiler_enabled()
        assert len(step_names(recording.trace_path)) == 3

    def test_a_full_disk_is_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_self: object, _path: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Profiler, "export", fail)
        recording = recorded(12)
        assert recording.trace_path is None
        assert any("No space left" in text for _, _, text in recording.live.notes)


class TestInterrupts:
    @pytest.mark.parametrize(
        "text", ["starting the profiler...", "warming up", "recording 3 steps", "reading the recording"]
    )
    def test_an_interrupt_inside_a_transition_comes_after_it(self, text: str) -> None:
        said: list[str] = []

        def status(now: str) -> None:
            said.append(now)
            if now == text:
                signal.raise_signal(signal.SIGINT)
                said.append("went on")

        session = Session(Options(), status=status)

        def run() -> None:
            run_loop(session, 12)
            session.finish()

        with pytest.raises(KeyboardInterrupt) as caught:
            run()
        session.finish(caught.value)

        assert said[said.index(text) + 1] == "went on"
        assert not torch.autograd._profiler_enabled()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_interrupts_at_random_moments_leave_nothing_on(self) -> None:
        caught = 0
        for attempt in range(40):
            session = Session(Options())
            timer = threading.Timer(0.0004 * attempt, os.kill, (os.getpid(), signal.SIGINT))
            error: BaseException | None = None
            try:
                timer.start()
                run_loop(session, 12)
                session.finish()
                time.sleep(1)
            except KeyboardInterrupt as raised:
                error = raised
                caught += 1
            session.finish(error).discard()
            assert not torch.autograd._profiler_enabled()
        assert caught == 40


class TestOtherProfilers:
    def test_the_users_profiler_inside_a_recorded_step_wins(self) -> None:
        session = Session(Options())
        theirs: list[set[str]] = []

        def body(index: int) -> None:
            if index == 5:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as user:
                    torch.ones(3).exp()
                theirs.append({row.key for row in user.key_averages()})

        run_loop(session, 20, body)
        recording = session.finish()
        assert "aten::exp" in theirs[0]
        assert recording.live.partial == TAKEN
        assert step_names(recording.trace_path) == ["ProfilerStep#4"]
        assert "aten::exp" not in names(recording.trace_path)

    def test_the_users_trace_holds_nothing_of_ours(self) -> None:
        # given a recorded step whose lines have ranges, of which two are open when the user's profiler starts
        session = Session(Options())
        theirs: list[set[str]] = []

        def body(index: int) -> None:
            if index == 5:
                user = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                with session.range(3):
                    with session.range(4):
                        user.start()
                    with session.range(5):
                        torch.ones(3).exp()
                user.stop()
                theirs.append({row.key for row in user.key_averages()})

        # when it has stopped
        run_loop(session, 20, body)
        recording = session.finish()
        # then its trace has the user's work alone, and ours the ranges up to there
        assert "aten::exp" in theirs[0]
        assert [name for name in theirs[0] if name.startswith(("##", "ProfilerStep", "ProfilerMark"))] == []
        assert {"## line 3", "## line 4"} <= names(recording.trace_path)
        assert "## line 5" not in names(recording.trace_path)

    def test_the_users_second_profiler_starts_inside_a_line(self) -> None:
        # given a line that began when no profiler was on, after the user's first one took the session
        session = Session(Options())
        theirs: list[set[str]] = []

        def body(index: int) -> None:
            if index == 5:
                for _ in range(2):
                    user = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                    with session.range(3):
                        user.start()  # torch's own range raises where it ends under another profiler
                    torch.ones(3).exp()
                    user.stop()
                    theirs.append({row.key for row in user.key_averages()})

        # when both have run
        run_loop(session, 20, body)
        session.finish()
        # then both have their work
        assert ["aten::exp" in each for each in theirs] == [True, True]

    def test_a_profiler_of_the_users_that_waits_marks_no_steps_of_ours(self) -> None:
        # given a profiler whose schedule waits around our run: torch writes a range for each of its steps too
        user = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=20, warmup=1, active=1),
        )
        session = Session(Options())
        user.start()
        # when both have counted the same steps
        run_loop(session, 12, lambda _index: user.step())
        user.stop()
        recording = session.finish()
        # then the steps in the file are ours, and theirs have a name of their own
        assert step_names(recording.trace_path) == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
        assert {"ProfilerUser#5", "ProfilerUser#6"} <= names(recording.trace_path)
        assert not any(name.startswith("ProfilerMark") for name in names(recording.trace_path))

    @pytest.mark.skipif(not torch.profiler.itt.is_available(), reason="this torch has no ITT")
    def test_emit_itt_inside_a_recorded_step_wins(self) -> None:
        session = Session(Options())
        ran: list[int] = []

        def body(index: int) -> None:
            if session.recording:
                with torch.autograd.profiler.emit_itt():
                    ran.append(index)

        run_loop(session, 12, body)
        recording = session.finish()
        assert ran == [4]
        assert recording.live.partial == TAKEN

    def test_ours_does_not_start_while_the_users_records(self) -> None:
        session = Session(Options())
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as user:
            run_loop(session, 12)
            recording = session.finish()
        assert recording.trace_path is None
        assert recording.live.taken
        assert recording.live.partial == ALREADY_ON
        assert recording.live.baseline == "after"
        assert "aten::matmul" in {row.key for row in user.key_averages()}

    def test_ours_does_not_start_while_the_users_warms_up(self) -> None:
        session = Session(Options())
        user = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=1),
        )
        user.start()
        run_loop(session, 12)
        recording = session.finish()
        user.step()
        work()
        user.stop()
        assert recording.live.partial == ALREADY_ON
        assert "aten::matmul" in {row.key for row in user.key_averages()}

    def test_a_stopped_profiler_that_is_still_referenced_is_no_conflict(self) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as user:
            work()
        never_started = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        recording = recorded(12)
        assert len(step_names(recording.trace_path)) == 3
        assert user is not never_started

    @pytest.mark.parametrize("at", [3, 5])
    def test_a_run_inside_a_run_gives_one_sentence(self, at: int) -> None:
        outer = Session(Options())
        inner: list[str] = []

        def body(index: int) -> None:
            if index == at:
                nested = Session(Options())
                run_loop(nested, 12)
                inner.append(nested.finish().live.partial)

        run_loop(outer, 20, body)
        recording = outer.finish()
        assert inner == [ALREADY_ON]
        assert len(step_names(recording.trace_path)) == 3


class TestThreads:
    def test_marks_of_another_thread_do_not_count(self) -> None:
        session = Session(Options())
        session.plan(remaining=None)
        for _ in range(4):
            session.mark()
        other = threading.Thread(target=session.mark)
        other.start()
        other.join()
        recording = session.finish()
        assert ("thread", "warn", "a step mark in another thread was not counted") in recording.live.notes
        assert recording.live.partial == "the cell ended in step 1 of 3"

    def test_finishing_in_another_thread_warns_and_the_next_mark_switches_off(self) -> None:
        session = Session(Options())
        session.plan(remaining=None)
        for _ in range(5):
            session.mark()
        found: list[Any] = []

        def finish_elsewhere() -> None:
            other = threading.Thread(target=lambda: found.append(session.finish()))
            other.start()
            other.join()

        with pytest.warns(RuntimeWarning, match="started in another thread"):
            finish_elsewhere()
        assert torch.autograd._profiler_enabled()
        session.mark()

        assert not torch.autograd._profiler_enabled()
        assert found[0].trace_path is None

    def test_many_runs_leave_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

        def held() -> tuple[int, int, int]:
            files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
            return files, threading.active_count(), len(list(tmp_path.iterdir()))

        def run() -> None:
            recorded(9).discard()

        run()
        before = held()
        for _ in range(50):
            run()
        assert held() == before


class TestBaseline:
    @pytest.mark.parametrize(
        ("after", "wait", "profiled", "closed", "expected"),
        [
            ([9, 1, 2], [3], [4], False, ("after", (1, 2))),  # the first began with an idle device
            ([9], [3], [4], False, ("after_first", (9,))),
            ([9, 1, 2, 3], [], [], True, ("after", (1, 2))),  # the last ended with the loop
            ([9, 1], [3], [4], True, ("after_first", (9,))),
            ([9], [3], [4], True, ("after_first", (9,))),
            ([], [3, 4], [4, 4], False, ("wait", (3, 4))),
            ([], [30, 40], [4, 4], False, ("none", ())),  # cold
        ],
    )
    def test_which_samples_are_the_unprofiled_step(
        self, after: list[int], wait: list[int], profiled: list[int], closed: bool, expected: object
    ) -> None:
        assert baseline.choose(after, wait, profiled, closed=closed) == expected

    def test_samples_end_where_the_loop_does(self) -> None:
        laps = baseline.Laps()
        for host_ns, opens in ((0, True), (5, False), (100, True), (107, True)):
            laps.mark(baseline.Stamp(host_ns=host_ns), opens=opens)
        assert laps.durations_ns() == (5, 7)

    @pytest.mark.parametrize(
        ("length", "closing"),
        [
            (8, True),  # the only step behind the recording is the loop's last one
            (9, False),  # the one before it is there as well, and held its fetch
            (12, False),
        ],
    )
    def test_a_sample_that_ended_with_the_loop_says_so(self, length: int, closing: bool) -> None:
        session = Session(Options())
        run_loop(session, length)
        assert session.finish().live.baseline_closing is closing

    def test_the_host_times_of_the_steps_behind_the_recording_are_kept(self) -> None:
        """Without CUDA a sample is host time, and the two are the same."""
        live = recorded(12, lambda _index: time.sleep(0.002)).live
        assert live.baseline == "after"
        assert live.baseline_host_ns[: len(live.baseline_ns)] == live.baseline_ns

    def test_the_samples_are_the_steps_times(self) -> None:
        live = recorded(12, lambda _index: time.sleep(0.02)).live
        assert min(live.baseline_ns) == pytest.approx(20e6, rel=0.2)  # another process may lengthen any but not all
        assert len(live.process_memory) == 4
        assert live.process_memory[0][0] < live.process_memory[-1][0]


class TestSyncLines:
    """The probe on a machine without CUDA: the mode is faked, the warnings are raised by hand."""

    TEXT = "called a synchronizing CUDA operation (Triggered internally at somewhere)"

    @pytest.fixture(autouse=True)
    def fake_mode(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        mode = [0]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda new: mode.__setitem__(0, new))
        return mode

    def synchronize(self, file: str, times: int = 1) -> None:
        code = compile(f"\n\nfor _ in range({times}): warnings.warn({self.TEXT!r})", file, "exec")
        exec(code, {"warnings": warnings, "__warningregistry__": {}})

    def test_it_names_the_line_with_its_count(self, fake_mode: list[int]) -> None:
        probe = probes.SyncLines("<cell>")
        assert probe.start()
        assert fake_mode == [1]
        self.synchronize("<cell>", times=3)
        self.synchronize("other.py")
        sites = probe.stop()
        assert [(site.file, site.line, site.count, site.in_cell) for site in sites] == [
            ("<cell>", 3, 3.0, True),
            ("other.py", 3, 1.0, False),
        ]
        assert fake_mode == [0]

    def test_it_is_off_when_the_user_has_set_the_mode(self, fake_mode: list[int]) -> None:
        fake_mode[0] = 2
        before = warnings.filters
        assert not probes.SyncLines("<cell>").start()
        assert fake_mode == [2]
        assert warnings.filters is before

    def test_the_users_warnings_are_shown_as_before_and_once(self) -> None:
        code = compile("warnings.warn('mine')", "user.py", "exec")
        space = {"warnings": warnings, "__warningregistry__": {}}
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("default")
            exec(code, space)
            probe = probes.SyncLines("<cell>")
            probe.start()
            exec(code, space)
            self.synchronize("<cell>")
            probe.stop()
            exec(code, space)
        assert [str(warning.message) for warning in shown] == ["mine"]

    def test_a_step_that_makes_warnings_errors_is_not_broken(self) -> None:
        probe = probes.SyncLines("<cell>")
        probe.start()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.synchronize("<cell>")
            with pytest.raises(UserWarning, match="mine"):
                warnings.warn("mine", stacklevel=1)
        sites = probe.stop()
        assert [site.count for site in sites] == [1.0]

    def test_filters_that_the_step_adds_stay(self) -> None:
        with warnings.catch_warnings():
            probe = probes.SyncLines("<cell>")
            before = warnings.filters
            probe.start()
            warnings.filterwarnings("ignore", message="added in the step")
            probe.stop()
            assert warnings.filters is before
            assert any(item[1] is not None and "added" in getattr(item[1], "pattern", "") for item in before)

    def test_a_block_that_outlives_the_probe_puts_plain_filters_back(self) -> None:
        with warnings.catch_warnings():
            probe = probes.SyncLines("<cell>")
            before = list(warnings.filters)
            probe.start()
            block = warnings.catch_warnings()
            block.__enter__()
            probe.stop()
            block.__exit__(None, None, None)
            assert list(warnings.filters) == before

    def test_the_session_probes_one_warm_up_step(self) -> None:
        session = Session(Options(), cell_name="<cell>")
        session._profiler = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setattr(baseline, "stamp", lambda: baseline.Stamp(host_ns=time.perf_counter_ns()))
            patch.setattr(torch.cuda, "synchronize", lambda: None)
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            run_loop(session, 12, lambda _index: self.synchronize("<cell>", times=2) if session._probe else None)
            patch.setattr(torch.cuda, "is_initialized", lambda: False)
            recording = session.finish()
        assert recording.live.sync_sites is not None
        assert [(site.line, site.count) for site in recording.live.sync_sites] == [(3, 2.0)]
