"""The recurrence of a replay item by item: slow, and plain enough to be checked by reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.attribution import LAUNCH_TO_START_NS, Act, Float
from ipyprof.analysis.program import Program
from ipyprof.analysis.recurrence import BETWEEN_RECORDS_NS


@dataclass(slots=True, kw_only=True)
class Plain:
    """Where host and device are after some passes, and the times of the last one."""

    host: float
    ready: list[float]
    ring: list[float]
    launched: int
    start: list[float]
    end: list[float]
    gap_begin: list[float]
    call_begin: list[float]
    call_end: list[float]


def opened(program: Program) -> Plain:
    """The recorded initial state."""
    records, begin = len(program.dur), float(program.begin)
    return Plain(
        host=begin,
        ready=[max(at, begin) if at > -np.inf else at for at in program.ready.tolist()],
        ring=[-np.inf] * program.queue,
        launched=0,
        start=[-np.inf] * records,
        end=[-np.inf] * records,
        gap_begin=[],
        call_begin=[],
        call_end=[],
    )


def advance(program: Program, gap: Float, own: Float, state: Plain, *, deflated: bool) -> None:
    """One pass."""
    state.gap_begin, state.call_begin, state.call_end = [], [], []
    for item in range(len(gap)):
        state.gap_begin.append(state.host)
        state.host += float(gap[item])
        state.call_begin.append(state.host)
        act = int(program.act[item])
        if act == Act.LAUNCH:
            _launch(program, item, float(own[item]), state, deflated=deflated)
        else:
            state.host = max(state.host, _awaited(program, item, act, state, deflated=deflated)) + float(own[item])
        state.call_end.append(state.host)


def _launch(program: Program, item: int, own: float, state: Plain, *, deflated: bool) -> None:
    place = state.launched % program.queue if program.queue else 0
    if program.queue:
        state.host = max(state.host, state.ring[place])
    at = state.host + own if program.at_end[item] else state.host
    state.host += own
    for record in range(int(program.first[item]), int(program.last[item])):
        _run(program, record, at, state, other=int(program.depends[record]), deflated=deflated)
    if program.queue:
        state.ring[place] = state.start[int(program.first[item])]
        state.launched += 1


def _awaited(program: Program, item: int, act: int, state: Plain, *, deflated: bool) -> float:
    target = int(program.target[item])
    if act == Act.SYNC_DEVICE:
        return max(state.ready)
    if act == Act.SYNC_STREAM:
        return state.ready[target]
    if act == Act.SYNC_RECORD:
        return state.end[target]
    if act == Act.BLOCKING_COPY:
        record = int(program.first[item])
        _run(program, record, state.host, state, other=-1, deflated=deflated)
        return state.end[record]
    return -np.inf


def _run(program: Program, record: int, at: float, state: Plain, *, other: int, deflated: bool) -> None:
    """The record starts behind its launch, behind its stream, and behind the record that it depends on."""
    stream, depends = int(program.stream[record]), int(program.depends[record]) >= 0
    pause, latency = float(program.pause[record]), float(LAUNCH_TO_START_NS)
    if program.idle[record] and not depends:
        pause, latency = BETWEEN_RECORDS_NS, float(program.latency[record])
    if deflated and program.graph[record]:
        pause = min(pause, 0.0)
    if depends:
        pause = BETWEEN_RECORDS_NS
    begin = max(at + latency, state.ready[stream] + pause)
    if other >= 0:
        begin = max(begin, state.end[other] + float(program.pause[record]))
    state.start[record], state.end[record] = begin, begin + float(program.dur[record])
    state.ready[stream] = max(state.ready[stream], state.end[record])
