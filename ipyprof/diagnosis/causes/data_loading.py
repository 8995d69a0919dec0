"""The GPU waits for a batch."""

from __future__ import annotations

import math

import numpy as np

from ipyprof.analysis.intervals import inside, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import Cause, Finding, Where, gain_of, measured, top_line
from ipyprof.diagnosis.causes import loader_advice
from ipyprof.diagnosis.causes.loader_advice import MAIN, PLAIN, WORKERS, Fetching, epoch_share
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.kinds import Kind, Role, copy_direction
from ipyprof.trace.live import LoaderSeen
from ipyprof.trace.model import Int64

GPU_WORK = (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.MEMSET)
PINNING = ("aten::pin_memory", "aten::_pin_memory")


class DataLoading(Cause):
    id = "data_loading"
    name = "data loading"
    subject = ("Data loading", " holds this step back")
    without = "without the wait"
    checked = "a batch"
    bound = "IO-bound (data loading)"
    sentence = "{waiting} for the next batch: {cost}; loading in parallel: {best}."
    part = "data_loading"

    def find(self, profile: Profile) -> Finding:
        """Whether the step is shorter when batches come at no time on the main thread."""
        program, replayed = measured(profile)
        fetching = program.gap_host == Host.DATA_LOADING
        if not fetching.any():
            return self.absent(profile, "no loader span and no fetch in the recorded steps")
        gain = gain_of(profile, self.edit(profile, program))
        waits = replayed.call_begin - replayed.gap_begin
        line = top_line(program.gap_line[fetching], waits[fetching])
        host_ns = float(waits[fetching].sum()) / program.steps
        evidence = f"fetching takes {time_text(host_ns / 1e6)} of a step{loader_processes(profile)}{when(profile)}"
        gained = percent_short(gain.share)
        return self.judged(
            profile,
            gain,
            evidence=f"{evidence}; without it the step is {gained} shorter",
            cleared=f"{evidence}, hidden behind the GPU's work: removing it recovers {gained} of the step",
            advice=loading_advice(profile, gain.predicted_ns),
            where=Where(line=line, scope="the loop's fetch"),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Loader time off the main thread."""
        threads = np.asarray(program.threads, np.int64)
        return program.cut(*loader_spans(profile.trace, profile.steps, profile.live, threads), records=False)


def loader_processes(profile: Profile) -> str:
    """Which of torch's iterators was seen, in words; empty when none was."""
    kind, cores = _kind(profile), _cores(profile)
    loader = _loader(profile, kind)
    if kind == MAIN:
        return " in the main process (num_workers=0)"
    if kind != WORKERS:
        return ""
    if loader is None or not loader.workers:
        return ", waiting for worker processes"
    of_cores = "" if cores is None else f" on {plural(math.floor(cores), 'core')}"
    return f", waiting for {plural(loader.workers, 'worker process')}{of_cores}"


def when(profile: Profile) -> str:
    """Where the waits lie, in words, when most are at the start of an epoch; else empty."""
    share = epoch_share(_loader(profile, _kind(profile)))
    if share is None or share <= thresholds.EPOCH_START_SHARE:
        return ""
    return f", {percent_short(share)} of all waits at the start of an epoch"


def loading_advice(profile: Profile, rest_ns: float | None = None) -> str:
    """The change that helps; ``rest_ns``: the step without fetching, else by its parts."""
    return loader_advice.advice(fetching(profile, rest_ns))


def fetching(profile: Profile, rest_ns: float | None = None) -> Fetching:
    """How the steps get their batches, as far as trace and live run tell."""
    trace, steps, live = profile.trace, profile.steps, profile.live
    threads = np.asarray(profile.program.threads if profile.program is not None else (), np.int64)
    kind = _kind(profile)
    loader = _loader(profile, kind)
    spans = trace.select(Kind.LOADER)
    spans = spans[np.isin(trace.tid[spans], threads) & (steps.of_time(trace.start_ns[spans]) >= 0)]
    # A loop may wrap the loader and copy its batches to the GPU: that is not the loader's own work.
    start, end = union(trace.start_ns[spans], trace.end_ns[spans])
    if kind == PLAIN:
        start, end = loader_spans(trace, steps, live, threads)
    waits = tuple(int(wait) for wait in trace.dur_ns[spans]) if loader is None else loader.waits_ns
    step = profile.step_ns or 0.0
    part = profile.breakdown.parts["data_loading"] if profile.breakdown is not None else 0.0
    fetch = _host_ns(profile)
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.tid[calls], threads) & np.isin(trace.role[calls], GPU_WORK)]
    return Fetching(
        kind=kind,
        loader=loader,
        iterable=live.iterable if live is not None else "",
        cores=_cores(profile),
        step_ns=step,
        fetch_ns=float(part) if fetch is None else fetch,
        rest_ns=step - float(part) if rest_ns is None else rest_ns,
        waits_ns=waits,
        gpu_work=bool(inside(start, end, trace.start_ns[calls]).any()),
        copied=_copied(profile),
        pinning_share=_pinning_share(profile, start, end),
    )


def _kind(profile: Profile) -> str:
    """Which iterator most of the fetching is: by its spans in the trace, else by what the live run saw."""
    trace = profile.trace
    spans = trace.select(Kind.LOADER)
    time = {MAIN: 0, WORKERS: 0}
    for index in spans.tolist():
        name = trace.names[trace.name[index]]
        for kind, iterator in ((MAIN, "_SingleProcessDataLoaderIter"), (WORKERS, "_MultiProcessingDataLoaderIter")):
            time[kind] += int(trace.dur_ns[index]) if iterator in name else 0
    if any(time.values()):
        best = max(time, key=lambda kind: time[kind])
        total = _host_ns(profile)
        if profile.live is None or profile.live.iterable != "generator" or total is None:
            return best
        # A generator of the user's may draw from a loader and do more than that, or start its workers anew.
        whole = total * profile.steps.count <= 2 * sum(time.values())
        anew = (epoch_share(_loader(profile, best)) or 0.0) > thresholds.EPOCH_START_SHARE
        return best if whole or anew else PLAIN
    return PLAIN


def _loader(profile: Profile, kind: str) -> LoaderSeen | None:
    """The loader that was waited for longest, of those of this kind."""
    loaders = profile.live.loaders if profile.live is not None and kind != PLAIN else ()
    return next((loader for loader in loaders if bool(loader.workers) == (kind == WORKERS)), None)


def _cores(profile: Profile) -> float | None:
    """The cores that the process may use; what a damaged file says is no number of cores."""
    cores = profile.live.cores if profile.live is not None else None
    return cores if cores is not None and math.isfinite(cores) and cores > 0 else None


def _host_ns(profile: Profile) -> float | None:
    """Fetching on the host per step, in the replay; ``None`` without one."""
    program, replayed = profile.program, profile.replayed
    if program is None or replayed is None:
        return None
    waits = replayed.call_begin - replayed.gap_begin
    return float(waits[program.gap_host == Host.DATA_LOADING].sum()) / program.steps


def _copied(profile: Profile) -> str:
    """``pageable``, ``pinned`` or empty: how the steps' batches go to the GPU."""
    trace = profile.trace
    names = {trace.names[name] for name in np.unique(trace.name[trace.select(Kind.MEMCPY)])}
    found = {pageable for direction, pageable in map(copy_direction, names) if direction == "HtoD"}
    return "pageable" if True in found else "pinned" if found else ""


def _pinning_share(profile: Profile, start: Int64, end: Int64) -> float:
    """Share of the fetches, 0..1, in operators that put a batch into pinned memory."""
    trace = profile.trace
    operators = trace.select(Kind.OPERATOR)
    pins = np.asarray([index for index, name in enumerate(trace.names) if name in PINNING], np.int64)
    operators = operators[np.isin(trace.name[operators], pins)]
    operators = operators[inside(start, end, trace.start_ns[operators])]
    pinned = union(trace.start_ns[operators], trace.end_ns[operators])
    whole = int((end - start).sum())
    return float((pinned[1] - pinned[0]).sum()) / whole if whole else 0.0
