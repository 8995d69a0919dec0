"""New input shapes make the step search algorithms or compile anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ipyprof.analysis.intervals import coverage_before, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Act, Bool, Host, Program
from ipyprof.diagnosis.cause import Cause, Finding, Where, gain_of, measured, top_line
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import Kind
from ipyprof.trace.model import Int64

COMPILE_MARK = "(dynamo_timed)"  # what torch.compile calls the ranges of its own work while a profiler is on
COMPILE_FRAMES = frozenset(("dynamo", "entire_frame_compile"))  # and those around them
COMPILED_REGION = "Torch-Compiled Region: "
CACHE_LOOKUP = "TorchDynamo Cache Lookup"
CONVOLUTIONS = frozenset(
    (
        "aten::cudnn_convolution",
        "aten::miopen_convolution",
        "aten::convolution_backward",
        "aten::cudnn_convolution_relu",
    )
)
WAITS = (Act.SYNC_DEVICE, Act.SYNC_STREAM, Act.SYNC_RECORD)


class UnstableShapes(Cause):
    id = "unstable_shapes"
    name = "new shapes"
    subject = ("Changing shapes", " hold this step back")
    without = "with steady shapes"
    checked = "changing shapes"
    bound = "CPU-bound (new shapes)"
    sentence = "{waiting} while new shapes are prepared: {cost}; with known shapes, {best}."

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when its shapes are known from the steps before."""
        program, _ = measured(profile)
        compiled, tried = compiling(profile), searching(profile)
        if len(compiled[0]) == 0 and len(tried[0]) == 0:
            return self.absent(profile, "nothing was compiled and no convolution tried algorithms out")
        gain = gain_of(profile, self.edit(profile, program))
        start, end = union(np.concatenate((compiled[0], tried[0])), np.concatenate((compiled[1], tried[1])))
        spent = (coverage_before(start, end, program.call_to) - coverage_before(start, end, program.gap_from)).astype(
            float
        )
        line = top_line(program.call_line, spent)
        mainly_compiled = int((compiled[1] - compiled[0]).sum()) >= int((tried[1] - tried[0]).sum())
        what = "torch.compile compiles anew" if mainly_compiled else "convolutions try algorithms out for new shapes"
        evidence = (
            f"{what} in the recorded steps, {time_text(float((end - start).sum()) / program.steps / 1e6)} of a step"
        )
        return self.judged(
            profile,
            gain,
            evidence=evidence,
            cleared=f"{evidence}; without it the step is {percent_short(gain.share)} shorter",
            advice="Give the step few shapes: pad or bucket the inputs, or torch.compile(model, dynamic=True)."
            if mainly_compiled
            else "Give the step few shapes: pad or bucket the inputs; or set torch.backends.cudnn.benchmark = False.",
            where=Where(operator="torch.compile" if mainly_compiled else "aten::cudnn_convolution", line=line),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """The steady step: nothing is compiled and no algorithm is tried out."""
        compiled, tried = compiling(profile), searching(profile)
        return program.cut(
            np.concatenate((compiled[0], tried[0])), np.concatenate((compiled[1], tried[1])), records=True
        )


def compiling(profile: Profile) -> tuple[Int64, Int64]:
    """Disjoint (start, end) of torch.compile's own work on the launching threads.

    With it goes the lookup that found nothing compiled (it tries every shape so far), and what the first call of a
    region that was just compiled does before it launches anything: it sets itself up (1.4 ms in torch 2.11).
    """
    program = profile.program
    assert program is not None
    start, end = union(*_ranges(profile, lambda name: COMPILE_MARK in name or name in COMPILE_FRAMES))
    if len(start) == 0:
        return start, end
    calls = np.append(np.sort(program.call_from[program.event >= 0]), program.stop)
    asked, answered = _ranges(profile, lambda name: name == CACHE_LOOKUP)
    begun, _ = _ranges(profile, lambda name: name.startswith(COMPILED_REGION))
    then = np.minimum(np.searchsorted(start, answered), len(start) - 1)
    failed = (start[then] >= answered) & _no_call(calls, answered, start[then])
    last = np.maximum(np.searchsorted(end, begun, side="right") - 1, 0)
    fresh = (end[last] <= begun) & _no_call(calls, end[last], begun)
    launches = calls[np.minimum(np.searchsorted(calls, begun[fresh]), len(calls) - 1)]
    return union(
        np.concatenate((start, asked[failed], begun[fresh])), np.concatenate((end, start[then[failed]], launches))
    )


def _ranges(profile: Profile, wanted: Callable[[str], bool]) -> tuple[Int64, Int64]:
    """(start, end) of the ranges with such names on the launching threads, in time order."""
    trace, program = profile.trace, profile.program
    assert program is not None
    named = np.array([wanted(name) for name in trace.names], bool)
    events = trace.select(Kind.OPERATOR, Kind.ANNOTATION)
    events = events[named[trace.name[events]] & np.isin(trace.tid[events], program.threads)]
    return trace.start_ns[events], trace.end_ns[events]


def _no_call(calls: Int64, since: Int64, until: Int64) -> Bool:
    """Whether no API call (sorted starts) lies in each [since, until)."""
    none: Bool = np.searchsorted(calls, since) == np.searchsorted(calls, until)
    return none


def searching(profile: Profile) -> tuple[Int64, Int64]:
    """Disjoint (start, end) from the begin of a convolution to the last wait inside it: it tries algorithms out.

    A convolution that knows its algorithm launches it and waits for nothing. Memory that the search gives back behind
    its last wait belongs to it.
    """
    trace, program = profile.trace, profile.program
    assert program is not None
    named = np.array([name in CONVOLUTIONS for name in trace.names], bool)
    events = trace.select(Kind.OPERATOR)
    events = events[named[trace.name[events]]]
    waits = np.isin(program.act, WAITS) & (program.event >= 0) & (program.call_host == Host.SYNC)
    ends_search = waits | ((program.call_host == Host.ALLOCATOR) & (program.event >= 0))
    start: list[int] = []
    end: list[int] = []
    # Calls are in time order: those inside an operator are few, and next to each other.
    first = np.searchsorted(program.call_from, trace.start_ns[events])
    last = np.searchsorted(program.call_to, trace.end_ns[events], side="right")
    for event, low, high in zip(events.tolist(), first.tolist(), last.tolist(), strict=True):
        calls = slice(low, high)
        inside = trace.tid[program.event[calls]] == trace.tid[event]
        if (inside & waits[calls]).any():
            start.append(int(trace.start_ns[event]))
            end.append(int(program.call_to[calls][inside & ends_search[calls]].max()))
    return union(np.asarray(start, np.int64), np.asarray(end, np.int64))
