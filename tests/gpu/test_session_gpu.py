"""The session on a real GPU: baseline against hand timing, whole traces, named sync lines, three runs alike."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from ipyprof.capture.recording import Recording
from ipyprof.capture.session import Session
from ipyprof.options import Options

pytestmark = pytest.mark.gpu

LOOP = 400  # half a second and more: a GPU that was idle runs its first tenths of a second at a higher clock


def run_loop(session: Session, body: Callable[[], object], length: int = LOOP) -> Recording:
    for index in range(length):
        if index == 1:
            session.plan(remaining=length - 1)
        if index:
            session.mark(2)
        body()
    session.close(2)
    return session.finish()


def events_of(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def by_correlation(events: list[dict[str, Any]], *categories: str) -> dict[int, dict[str, Any]]:
    return {event["args"]["correlation"]: event for event in events if event.get("cat") in categories}


def launches(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    found = by_correlation(events, "cuda_runtime", "cuda_driver")
    return {key: event for key, event in found.items() if "LaunchKernel" in event["name"]}


def hand_timed_ms(body: Callable[[], object], steps: int = LOOP) -> float:
    """Time per step between two synchronisations."""
    for _ in range(3):
        body()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        body()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


@pytest.fixture
def product() -> Callable[[], torch.Tensor]:
    """Eight products of 4096³ in bf16: the host runs far ahead of the GPU."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64

    def body() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y @ x
        return y

    return body


def test_the_baseline_is_the_hand_timed_step(product: Callable[[], torch.Tensor]) -> None:
    by_hand, by_session = [], []
    for _ in range(3):
        by_hand.append(hand_timed_ms(product))
        recording = run_loop(Session(Options()), product)
        assert recording.live.baseline == "after"
        by_session.append(median(recording.live.baseline_ns) / 1e6)
        recording.discard()

    assert median(by_session) == pytest.approx(median(by_hand), rel=0.05)


def test_the_baseline_of_a_host_bound_loop_is_the_hand_timed_step() -> None:
    x = torch.zeros(1000, device="cuda")

    def body() -> None:
        for _ in range(280):
            x.add_(1)

    by_hand, by_session = [], []
    for _ in range(3):
        by_hand.append(hand_timed_ms(body))
        recording = run_loop(Session(Options()), body)
        by_session.append(median(recording.live.baseline_ns) / 1e6)
        recording.discard()

    assert median(by_session) == pytest.approx(median(by_hand), rel=0.15)


def test_every_launch_has_its_kernel_and_every_kernel_its_launch(product: Callable[[], torch.Tensor]) -> None:
    recording = run_loop(Session(Options()), product)

    events = events_of(recording.trace_path)
    kernels = by_correlation(events, "kernel")
    launched = launches(events)
    steps = [event for event in events if event.get("cat") == "user_annotation" and "ProfilerStep#" in event["name"]]

    assert len(steps) == 3
    assert len(kernels) == 24
    assert set(launched) == set(kernels)
    assert recording.live.cuda
    assert recording.live.device_names["0"] == torch.cuda.get_device_name(0)
    recording.discard()


def test_one_product_without_a_synchronise_is_recorded() -> None:
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    session = Session(Options())

    session.start_cold()
    y = x @ x
    recording = session.finish()

    assert len(by_correlation(events_of(recording.trace_path), "kernel")) == 1
    assert y.shape == x.shape
    recording.discard()


def test_lines_that_synchronise_are_named() -> None:
    x = torch.randn(256, 256, device="cuda")
    code = compile(
        "y = x @ x\ny.sum().item()\nif y[0, 0] > 0: pass\nfloat(y[1, 1])\nfloat(y[1, 1])\n", "<cell>", "exec"
    )

    recording = run_loop(Session(Options(), cell_name="<cell>"), lambda: exec(code, {"x": x}))

    sites = recording.live.sync_sites
    assert sites is not None
    assert {(site.line, site.count) for site in sites} == {(2, 1.0), (3, 1.0), (4, 1.0), (5, 1.0)}
    assert all(site.in_cell for site in sites)
    assert torch.cuda.get_sync_debug_mode() == 0
    recording.discard()


def test_a_loop_without_synchronisations_names_no_line(product: Callable[[], torch.Tensor]) -> None:
    recording = run_loop(Session(Options()), product)

    assert recording.live.sync_sites == ()
    recording.discard()


def test_three_runs_in_one_process_see_the_same_delay() -> None:
    x = torch.randn(4_000_000, device="cuda")
    index = torch.randint(0, 4_000_000, (4_000_000,), device="cuda")

    def body() -> None:
        x[index].sum()
        torch.cuda.synchronize()

    delays_us = []
    for _ in range(3):
        recording = run_loop(Session(Options()), body)
        events = events_of(recording.trace_path)
        kernels = by_correlation(events, "kernel")
        delays_us.append(median(kernels[key]["ts"] - event["ts"] for key, event in launches(events).items()))
        recording.discard()

    assert min(delays_us) > 0
    assert max(delays_us) - min(delays_us) < 10


def test_marks_inside_a_graph_capture_do_not_break_it() -> None:
    x = torch.zeros(1000, device="cuda")
    session = Session(Options())
    session.plan(remaining=None)
    graph = torch.cuda.CUDAGraph()

    with torch.cuda.graph(graph):
        session.mark()
        x.add_(1)
    for _ in range(12):
        session.mark()
        graph.replay()
    session.close()
    recording = session.finish()

    assert len(by_correlation(events_of(recording.trace_path), "kernel")) > 0
    torch.cuda.synchronize()
    assert x[0].item() == 12
    recording.discard()


def test_an_out_of_memory_error_keeps_the_whole_steps() -> None:
    session = Session(Options())
    session.plan(remaining=None)
    x = torch.randn(256, 256, device="cuda")
    error: BaseException | None = None
    try:
        for index in range(12):
            session.mark()
            x @ x
            if index == 5:
                torch.empty(1 << 50, device="cuda")
    except torch.OutOfMemoryError as raised:
        error = raised

    recording = session.finish(error)

    assert recording.live.partial == "OutOfMemoryError in step 3 of 3"
    assert len(recording.live.profiled_ns) == 2
    assert not torch.autograd._profiler_enabled()
    recording.discard()


def test_marks_outside_the_recording_cost_nothing_measurable() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    session = Session(Options())
    run_loop(session, lambda: x @ x, 60).discard()

    def with_marks() -> None:
        for _ in range(10):
            x @ x
        session.mark()

    def without() -> None:
        for _ in range(10):
            x @ x

    ratios = [hand_timed_ms(with_marks, 200) / hand_timed_ms(without, 200) for _ in range(7)]

    assert median(ratios) <= 1.01


def test_the_driver_tells_the_utilisation(product: Callable[[], torch.Tensor]) -> None:
    pytest.importorskip("pynvml")
    recording = run_loop(Session(Options()), product, 400)

    share, state = recording.live.utilization, recording.live.device_state

    assert share is None or 0.5 < share <= 1
    assert state is not None
    assert state.missing == ""
    assert state.max_sm_clock_mhz is not None
    assert state.sm_clock_mhz is None or 0 < state.sm_clock_mhz <= state.max_sm_clock_mhz
    assert state.power_w is None or state.power_w > 0
    recording.discard()


def test_peak_statistics_and_mode_are_the_users(product: Callable[[], torch.Tensor]) -> None:
    torch.cuda.set_sync_debug_mode(1)
    peak = torch.cuda.max_memory_allocated()
    try:
        recording = run_loop(Session(Options()), product)

        assert torch.cuda.get_sync_debug_mode() == 1
        assert torch.cuda.max_memory_allocated() >= peak
        assert recording.live.sync_sites is None
        recording.discard()
    finally:
        torch.cuda.set_sync_debug_mode(0)
