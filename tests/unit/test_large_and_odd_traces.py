"""What a trace may hold without end: names, nesting, Python functions, cycles. Time stays linear in the events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ipyprof.report.build import report_of
from ipyprof.report.report import Report, Source
from ipyprof.show.html import render_page
from ipyprof.trace.kinds import Kind
from ipyprof.trace.reader import parse_trace

Events = list[dict[str, Any]]


def event(at: float, dur: float, name: str, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur, "args": args}


def step(count: int) -> Events:
    """Two marks around everything, and a launch with its kernel in each."""
    half = count * 10 // 2
    found = [
        event(0, half, "ProfilerStep#1", "user_annotation"),
        event(half, half, "ProfilerStep#2", "user_annotation"),
    ]
    for number, at in enumerate((5, half + 5), 1):
        found.append(event(at, 2, "cudaLaunchKernel", "cuda_runtime", correlation=number))
        kernel = event(at + 3, 9, "k", "kernel", correlation=number, device=0, stream=7)
        found.append({**kernel, "pid": 0, "tid": 7})
    return found


def distinct_names(count: int) -> Events:
    return step(count) + [event(10 * at, 5, f"aten::op{at}") for at in range(count)]


def distinct_kernels(count: int) -> Events:
    found = step(count)
    for at in range(count // 2):
        found.append(event(20 * at + 6, 2, "cudaLaunchKernel", "cuda_runtime", correlation=at + 10))
        kernel = event(
            20 * at + 9, 7, f"kernel{at}", "kernel", correlation=at + 10, device=0, stream=7, grid=[at, 1, 1]
        )
        found.append({**kernel, "pid": 0, "tid": 7})
    return found


def python_functions(count: int) -> Events:
    """Functions in functions, 200 deep, with the parents that Kineto writes."""
    depth = 200
    found = step(count)
    for at in range(count):
        level = at % depth
        begin = (at // depth) * depth * 10 + level
        call = event(begin, 10 * depth - 2 * level, f"file.py({level}): f{level}", "python_function")
        call["args"] = {"Python id": at, "Python parent id": at - 1}
        found.append(call)
    return found


def nested(count: int) -> Events:
    """One operator inside the other, all the way down."""
    return step(count) + [event(at, 10 * count - 2 * at, "aten::f") for at in range(count)]


def cyclic_parents(count: int) -> Events:
    found = python_functions(count)
    for call in found:
        if "Python id" in call["args"]:
            call["args"]["Python parent id"] = call["args"]["Python id"]
    return found


def same_instant(count: int) -> Events:
    return step(count) + [event(50, 0, "aten::f", **{"External id": 7}) for _ in range(count)]


def threads(count: int) -> Events:
    return step(count) + [{**event(10 * at, 5, "aten::f"), "tid": at + 100} for at in range(count)]


def synchronisations(count: int) -> Events:
    """Reads of one value, each with its copy."""
    found = step(count)
    for at in range(count // 3):
        begin = 30 * at + 20
        found.append(event(begin, 25, "aten::item"))
        found.append(event(begin + 1, 3, "cudaMemcpyAsync", "cuda_runtime", correlation=at + 10))
        copy = event(begin + 4, 2, "Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", correlation=at + 10, bytes=2_000_000)
        found.append({**copy, "pid": 0, "tid": 7})
        found.append(event(begin + 5, 4, "cudaStreamSynchronize", "cuda_runtime", correlation=0))
    return found


def report(events: Events) -> Report:
    data = json.dumps({"traceEvents": events}).encode()
    return report_of(parse_trace(data), Source(kind="file", path="trace.json"))


MAKERS: tuple[Callable[[int], Events], ...] = (
    *(distinct_names, distinct_kernels, python_functions, nested, cyclic_parents, same_instant, threads),
    synchronisations,
)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_time_is_linear_in_the_events(make: Callable[[int], Events]) -> None:
    # given the same trace in two sizes; a quadratic part would take 64 times as long for 8 times the events
    def seconds(count: int) -> float:
        data = json.dumps({"traceEvents": make(count)}).encode()
        least = float("inf")
        for _ in range(2):
            begin = time.process_time()
            report_of(parse_trace(data), Source(kind="file", path="trace.json"))
            least = min(least, time.process_time() - begin)
        return least

    # when
    small, large = seconds(2_500), seconds(20_000)
    # then
    assert large < 24 * max(small, 0.02), f"{small:.3f} s for 2,500 events, {large:.3f} s for 20,000"


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_page_stays_small(make: Callable[[int], Events]) -> None:
    assert len(render_page(report(make(3_000)))) < 300_000


def test_a_name_of_a_megabyte_is_shortened_on_the_page() -> None:
    found = distinct_kernels(100)
    found[3]["name"] = "void kernel<" + "T_" * 500_000
    found[6]["name"] = "$" * 1_000_000
    assert len(render_page(report(found))) < 300_000


def test_python_functions_cost_no_details() -> None:
    trace = parse_trace(json.dumps(python_functions(1_000)).encode())
    assert set(trace.detail[trace.select(Kind.PYTHON)].tolist()) == {-1}
    assert trace.select(Kind.PYTHON).dtype == np.int64


@pytest.mark.parametrize("depth", [5, 100])
def test_a_recursive_operator_counts_once_at_any_depth(depth: int) -> None:
    # given aten::f in aten::f, with one aten::g around the innermost five, and a kernel launched in the middle
    found = step(1_000)
    for level in range(depth):
        found.append(event(1_000 + level, 2_000 - 2 * level, "aten::g" if level == depth - 5 else "aten::f"))
    found.append(event(1_990, 1, "cudaLaunchKernel", "cuda_runtime", correlation=9))
    kernel = event(1_995, 100, "deep", "kernel", correlation=9, device=0, stream=7)
    found.append({**kernel, "pid": 0, "tid": 7})
    # when
    rows = {row.name: row for row in report(found).operators}
    # then each operator has the kernel once, per step of two
    assert rows["aten::f"].total_device_ms == rows["aten::g"].total_device_ms == pytest.approx(0.05)
