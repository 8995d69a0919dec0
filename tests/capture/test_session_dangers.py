"""What has killed a process before, each in a process of its own: two profilers in every order, threads, workers."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

_SETUP = """
import json, tempfile, threading, torch
from torch.profiler import ProfilerActivity, profile, schedule
from ipyprof.capture.session import Session
from ipyprof.options import Options

CPU = [ProfilerActivity.CPU]

def work():
    (torch.ones(8, 8) @ torch.ones(8, 8)).sum().item()

def run_loop(session, length, body=lambda index: None):
    for index in range(length):
        if index == 1:
            session.plan(remaining=length - 1)
        if index:
            session.mark(2)
        work()
        body(index)
    session.close(2)

def steps(recording):
    if recording.trace_path is None:
        return None
    events = json.loads(recording.trace_path.read_text())["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]

def theirs(user):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:  # Kineto renames over it: never a device
        user.export_chrome_trace(file.name)
        open(file.name, "a").close()
    return any(row.key == "aten::exp" for row in user.key_averages())

def second_run():
    session = Session(Options())
    run_loop(session, 12)
    return steps(session.finish())

WHOLE = ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
session = Session(Options())
"""

_SCENARIOS = {
    "theirs starts in our warm-up": """
        def body(index):
            if index == 3:
                with profile(activities=CPU) as user:
                    torch.ones(3).exp()
                assert theirs(user)
        run_loop(session, 12, body)
        recording = session.finish()
        assert recording.trace_path is None and recording.live.taken
        assert second_run() == WHOLE
    """,
    "theirs starts in our warm-up and outlives the run": """
        user = profile(activities=CPU)
        run_loop(session, 12, lambda index: user.start() if index == 3 else None)
        recording = session.finish()
        torch.ones(3).exp()
        user.stop()
        assert theirs(user)
        assert recording.live.partial == "your cell started its own profiler"
        assert second_run() == WHOLE
    """,
    "theirs starts in our recording and outlives the run": """
        user = profile(activities=CPU)
        run_loop(session, 12, lambda index: user.start() if index == 5 else None)
        recording = session.finish()
        torch.ones(3).exp()
        user.stop()
        assert theirs(user)
        assert steps(recording) == ["ProfilerStep#4"]
        assert second_run() == WHOLE
    """,
    "theirs is scheduled around ours and reaches its warm-up in our recording": """
        with profile(activities=CPU, schedule=schedule(wait=5, warmup=1, active=1, repeat=1)) as user:
            run_loop(session, 12, lambda index: (user.step(), torch.ones(3).exp()))
            recording = session.finish()
        assert theirs(user)
        assert steps(recording) == []  # theirs came in the middle of the first recorded step
        assert second_run() == WHOLE
    """,
    "theirs comes after our recording and before our export": """
        def body(index):
            if index == 8:
                with profile(activities=CPU) as user:
                    torch.ones(3).exp()
                assert theirs(user)
        run_loop(session, 12, body)
        recording = session.finish()
        assert steps(recording) == WHOLE
    """,
    "theirs is on while we export": """
        user = profile(activities=CPU)
        run_loop(session, 12, lambda index: user.start() if index == 8 else None)
        recording = session.finish()
        torch.ones(3).exp()
        user.stop()
        assert theirs(user)
        assert steps(recording) == WHOLE
    """,
    "theirs in every recorded step": """
        def body(index):
            with profile(activities=CPU) as user:
                torch.ones(3).exp()
            assert theirs(user)
        run_loop(session, 12, body)
        session.finish()
        assert second_run() == WHOLE
    """,
    "theirs in another thread during our recording": """
        def other():
            with profile(activities=CPU) as user:
                torch.ones(3).exp()
            assert theirs(user)
        def body(index):
            if index == 5:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
        run_loop(session, 12, body)
        recording = session.finish()
        assert recording.trace_path is None and recording.live.taken
        assert not torch.autograd._profiler_enabled()
        assert second_run() == WHOLE
    """,
    "theirs in another thread outlives our run": """
        begun, end, results = threading.Event(), threading.Event(), []
        def other():
            with profile(activities=CPU) as user:
                torch.ones(3).exp()
                begun.set()
                end.wait()
            results.append(theirs(user))
        thread = threading.Thread(target=other)
        def body(index):
            if index == 5:
                thread.start()
                begun.wait()
        run_loop(session, 12, body)
        recording = session.finish()
        end.set()
        thread.join()
        assert results == [True]
        assert recording.trace_path is None and recording.live.taken
        session.finish()
        assert not torch.autograd._profiler_enabled()
        assert second_run() == WHOLE
    """,
    "theirs in another thread during our warm-up": """
        def other():
            with profile(activities=CPU) as user:
                torch.ones(3).exp()
            assert theirs(user)
        def body(index):
            if index == 3:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
        run_loop(session, 12, body)
        recording = session.finish()
        assert recording.trace_path is None and recording.live.taken
        assert second_run() == WHOLE
    """,
    "ours ended in another thread": """
        session.plan(remaining=None)
        for _ in range(5):
            session.mark()
            work()
        thread = threading.Thread(target=session.finish)
        thread.start()
        thread.join()
        session.mark()
        assert not torch.autograd._profiler_enabled()
        assert second_run() == WHOLE
    """,
    "ours ended in another thread in warm-up": """
        session.plan(remaining=None)
        for _ in range(3):
            session.mark()
            work()
        thread = threading.Thread(target=session.finish)
        thread.start()
        thread.join()
        session.finish()
        assert second_run() == WHOLE
    """,
    "the owner thread dies while ours is on": """
        def begin():
            session.plan(remaining=None)
            for _ in range(5):
                session.mark()
                work()
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        recording = session.finish()
        assert recording.trace_path is None
        assert second_run() == WHOLE
    """,
    "torch's switch is turned behind our back": """
        def body(index):
            if index == 5:
                torch.autograd._disable_profiler()
        run_loop(session, 12, body)
        recording = session.finish()
        assert recording.trace_path is None and recording.live.taken
        assert second_run() == WHOLE
    """,
    "a loader with forked workers": """
        from torch.utils.data import DataLoader
        for _ in range(2):
            session = Session(Options())
            batches = iter(DataLoader(range(24), batch_size=2, num_workers=2, multiprocessing_context="fork"))
            run_loop(session, 12, lambda index: next(batches))
            assert steps(session.finish()) == WHOLE
            del batches
    """,
}


@pytest.mark.parametrize("name", _SCENARIOS)
def test_the_process_lives_and_both_sides_get_their_due(name: str) -> None:
    code = _SETUP + textwrap.dedent(_SCENARIOS[name]) + "\nprint('lived')\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "lived"


def test_no_word_of_blocks_that_are_older_than_the_recording() -> None:
    # given a process whose CPU blocks of before are freed while memory is recorded
    script = """
import torch
from torch.profiler import ProfilerActivity, _KinetoProfile
from ipyprof.capture.profiler import have_block_warning_over
have_block_warning_over((ProfilerActivity.CPU,))
block = torch.empty(4096)
profiler = _KinetoProfile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
profiler.prepare_trace(); profiler.start_trace()
del block
profiler.stop_trace()
import sys; print("said", file=sys.stderr)
"""
    # when it has run
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    # then torch said nothing of it, and the descriptor is the process's own again
    assert "unknown size" not in done.stderr
    assert "said" in done.stderr
