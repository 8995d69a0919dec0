"""A recording of many allocations and frees, read and given to their holders."""

from __future__ import annotations

import random
import time

from ipyprof.analysis.memory import memory_view
from ipyprof.analysis.steps import find_steps
from ipyprof.trace.live import LiveRecord, Owner
from ipyprof.trace.reader import parse_trace
from tests.builder import TraceBuilder
from tests.heap import Heap

STEPS = 3
ALIVE = 500
LINES = 30
PARAMETERS = 600


def recording(entries: int) -> tuple[bytes, LiveRecord]:
    """(the file, what the run knows beside it) of a loop that allocates and frees in operators and lines."""
    chance = random.Random(0)
    builder = TraceBuilder()
    heap = Heap(builder, held=10**9)
    names = [f"model.{number}.weight" for number in range(PARAMETERS)]
    owners = [
        Owner(address=heap.older(1024), device=0, bytes=1024, name=name, role="parameter", variable="model")
        for name in names
    ]
    at = 0
    for step in range(STEPS):
        begin, alive = at, list[int]()
        for number in range(entries // STEPS // 2):
            at += 2
            if number % 20 == 0:
                builder.op(f"aten::op{number % 97}", at, at + 38)
            if number % 400 == 0:
                builder.line(2 + number // 400 % LINES, at, at + 798)
            alive.append(heap.alloc(at + 1, 512 * chance.randint(1, 2_000)))
            if len(alive) > ALIVE:
                heap.free(at + 1.5, alive.pop(chance.randrange(len(alive))))
        for address in alive:
            at += 1
            heap.free(at, address)
        builder.step(step, at=begin, end=at + 1)
        at += 1
    return builder.json(), LiveRecord(owners=tuple(owners))


def entries_seconds(entries: int, rounds: int = 3) -> tuple[int, float]:
    """(entries read, least seconds from the file's text to the holders at every point of the heartbeat)."""
    data, live = recording(entries)
    seconds, found = float("inf"), 0
    for _ in range(rounds):
        begin = time.process_time()
        trace = parse_trace(data)
        (device,) = memory_view(trace, find_steps(trace, live=True), live).devices
        seconds = min(seconds, time.process_time() - begin)
        assert device.moments is not None
        found = len(trace.memory.time_ns)
    return found, seconds
