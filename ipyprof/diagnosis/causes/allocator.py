"""The GPU waits for cudaMalloc and cudaFree."""

from __future__ import annotations

import numpy as np

from ipyprof.analysis.memory import RETRIED
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Bool, Host, Program
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Cause, Finding, Where, gain_of, measured, source_line, top_lines
from ipyprof.diagnosis.memory import growth_advice
from ipyprof.formatting import percent_short, plural, size_text, time_text

RETRY_ADVICE = (
    "Memory is nearly full or in pieces: preallocate and copy_ into buffers, pad to a few sizes, let go of what is not "
    "needed, or start Python with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)


class Allocator(Cause):
    id = "allocator"
    name = "memory allocation"
    subject = ("The memory allocator", " holds this step back")
    without = "without the calls"
    checked = "cudaMalloc, cudaFree"
    bound = "CPU-bound (memory allocation)"
    sentence = "{waiting} for memory allocation: {cost}; without it, {best}."
    part = "runtime"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when the caching allocator has what it needs."""
        program, replayed = measured(profile)
        calls = allocating(program)
        if not calls.any():
            return self.absent(profile, f"no cudaMalloc or cudaFree inside the steps{_saw_tooth(profile)}")
        gain = gain_of(profile, self.edit(profile, program))
        spent = replayed.call_end - replayed.call_begin
        lines = top_lines(program.call_line[calls], spent[calls])
        flushing = [line for line in lines if "empty_cache" in source_line(profile, line)]
        line = next(iter(flushing or lines), None)
        names, counts = np.unique(profile.trace.name[program.event[calls]], return_counts=True)
        each = ", ".join(
            f"{count / program.steps:.0f} × {profile.trace.names[name]}"
            for name, count in sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1])[:3]
        )
        total = time_text(float(spent[calls].sum()) / program.steps / 1e6)
        retries = sum(call.what == RETRIED for call in profile.memory.calls)
        total += f"; {plural(retries, 'request')} had to flush the cache first" if retries else ""
        text = source_line(profile, line)
        return self.judged(
            profile,
            gain,
            evidence=f"{each} in a step, {total}",
            cleared=f"{each} in a step, {total}; removing them recovers {percent_short(gain.share)} of the step",
            advice=_advice(profile, flushes=bool(flushing), retries=retries),
            where=Where(operator=profile.trace.names[int(names[np.argmax(counts)])], line=line),
            change=(text, "") if flushing and text.strip().endswith("empty_cache()") else None,
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """The same steps with those calls at no time."""
        return program.without_calls(allocating(program))


def allocating(program: Program) -> Bool:
    """(k,) bool: items that take memory from the driver or give it back."""
    calls: Bool = (program.call_host == Host.ALLOCATOR) & (program.event >= 0)
    return calls


def _advice(profile: Profile, *, flushes: bool, retries: int) -> str:
    """What to do, by what made the allocator ask: a flush by the program, what grows, too little memory."""
    if flushes:
        return "Do not call torch.cuda.empty_cache() inside the loop."
    memory = profile.memory
    growth = () if memory.busiest is None else growth_advice(memory.devices[memory.busiest].growing)
    if growth:
        return growth[0]
    if retries:
        return RETRY_ADVICE
    return (
        "Keep memory in the allocator: no empty_cache in the loop, preallocate and copy_ into buffers, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    )


def _saw_tooth(profile: Profile) -> str:
    """That memory goes up and down in every step without a call to the driver, in words; empty where it does not."""
    memory = profile.memory
    if memory.busiest is None or profile.steps.count < 1:
        return ""
    allocated = np.array(memory.devices[memory.busiest].heartbeat.allocated)
    falls = int((np.maximum.accumulate(allocated) - allocated).max())
    if falls < thresholds.LARGE_COPY_BYTES:
        return ""
    return f": memory goes up and down by {size_text(falls)} inside the cache, which costs nothing"
