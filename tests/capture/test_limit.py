"""The limit of a recording where nothing is marked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ipyprof.capture.profiler import Watchdog
from ipyprof.capture.session import Session
from ipyprof.options import Options


def work_until(over: Callable[[], bool], seconds: float = 5.0) -> None:
    """Python that never calls us, until something is over or the time is up."""
    until = time.monotonic() + seconds
    while not over() and time.monotonic() < until:
        pass


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


class TestWatchdog:
    def test_calls_in_the_main_thread_between_two_lines_of_other_code(self) -> None:
        # given a watchdog of 20 ms
        calls: list[threading.Thread] = []
        watchdog = Watchdog(0.02, lambda: calls.append(threading.current_thread()), not_inside="nothing")
        # when the main thread computes
        watchdog.start()
        work_until(lambda: bool(calls))
        watchdog.stop()
        # then it was called there
        assert calls[0] is threading.main_thread()

    def test_calls_again_until_it_is_stopped_and_leaves_no_thread(self) -> None:
        calls: list[int] = []
        watchdog = Watchdog(0.01, lambda: calls.append(1), not_inside="nothing")
        watchdog.start()
        work_until(lambda: len(calls) > 1)
        watchdog.stop()
        so_far = len(calls)
        time.sleep(0.3)
        assert so_far > 1
        assert len(calls) == so_far
        assert "ipyprof limit" not in names()

    def test_does_not_call_inside_the_module_that_it_spares(self) -> None:
        # given a watchdog that spares this module, when only functions of this module run, then it never calls
        calls: list[int] = []
        watchdog = Watchdog(0.01, lambda: calls.append(1), not_inside=__name__)
        watchdog.start()
        work_until(lambda: bool(calls), seconds=0.4)
        watchdog.stop()
        assert calls == []

    def test_in_another_thread_it_does_nothing(self) -> None:
        calls: list[int] = []

        def run() -> None:
            watchdog = Watchdog(0.01, lambda: calls.append(1), not_inside="nothing")
            watchdog.start()
            time.sleep(0.1)
            watchdog.stop()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert calls == []


@pytest.mark.timeout(60)
def test_a_cell_without_marks_is_recorded_no_longer_than_the_limit() -> None:
    # given a cold recording with a limit of 50 ms
    session = Session(Options(limit_s=0.05))
    session.start_cold()
    # when the cell computes for longer and nothing is marked
    work_until(lambda: not session.recording)
    ran_on = not session.recording
    recording = session.finish()
    # then the recording ended while the cell ran, and says so
    assert ran_on
    assert recording.trace_path is not None
    assert recording.live.partial == "stopped after 0.05 s (--limit) in the cell"
    assert "ipyprof limit" not in names()
