"""The GPU waits for a batch."""

from __future__ import annotations

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.diagnosis.finding import Finding, Where
from ipyprof.diagnosis.judge import absent, gain_of, judged, top_lines
from ipyprof.formatting import percent_short, time_text
from ipyprof.trace.kinds import Kind

CAUSE = "data_loading"


def edit(profile: Profile, program: Program) -> Program:
    """Loader time off the main thread."""
    threads = np.asarray(program.threads, np.int64)
    return program.cut(*loader_spans(profile.trace, profile.steps, profile.live, threads), records=False)


def find(profile: Profile) -> Finding:
    """Whether the step is shorter when batches come at no time on the main thread."""
    program = profile.program
    assert program is not None and profile.replayed is not None and profile.breakdown is not None
    fetching = program.gap_host == Host.DATA_LOADING
    if not fetching.any():
        return absent(profile, CAUSE, "no loader span and no fetch in the recorded steps")
    gain = gain_of(profile, edit(profile, program))
    waits = profile.replayed.call_begin - profile.replayed.gap_begin
    lines = top_lines(program.gap_line[fetching], waits[fetching])
    host_ns = float(waits[fetching].sum()) / program.steps
    processes = loader_processes(profile)
    evidence = f"fetching takes {time_text(host_ns / 1e6)} of a step{processes}"
    gained = percent_short(gain.share)
    return judged(
        profile,
        CAUSE,
        gain,
        evidence=f"{evidence}; without it the step is {gained} shorter",
        cleared=f"{evidence}, hidden behind the GPU's work: removing it recovers {gained} of the step",
        advice=advice(profile),
        where=Where(line=lines[0] if lines else None, scope="the loop's fetch"),
    )


def loader_processes(profile: Profile) -> str:
    """Which of torch's iterators was seen, in words; empty when none was."""
    names = {profile.trace.names[name] for name in np.unique(profile.trace.name[profile.trace.select(Kind.LOADER)])}
    if any("_SingleProcessDataLoaderIter" in name for name in names):
        return " in the main process (num_workers=0)"
    if any("_MultiProcessingDataLoaderIter" in name for name in names):
        return ", waiting for worker processes"
    return ""


def advice(profile: Profile) -> str:
    where = loader_processes(profile)
    if "main process" in where:
        return "Load in worker processes: DataLoader(..., num_workers=4, pin_memory=True, persistent_workers=True)."
    if "worker" in where:
        return "The workers are too slow: do less per item, or give them more processes or a higher prefetch_factor."
    return "Prepare the next item while the GPU works: a DataLoader with num_workers, or a thread that prefetches."
