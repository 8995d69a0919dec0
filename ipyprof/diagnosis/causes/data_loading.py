"""The GPU waits for a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import numpy as np

from ipyprof.analysis.intervals import inside, union
from ipyprof.analysis.profile import Profile
from ipyprof.analysis.program import Host, Program, loader_spans
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.cause import NS_PER_MS, Cause, Finding, Where, gain_of, measured, top_line
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.kinds import Kind, Role, copy_direction
from ipyprof.trace.live import LoaderSeen
from ipyprof.trace.model import Int64

MAIN, WORKERS, PLAIN = "main", "workers", "plain"
ITERATORS = {MAIN: "_SingleProcessDataLoaderIter", WORKERS: "_MultiProcessingDataLoaderIter"}
GPU_WORK = (Role.LAUNCH, Role.GRAPH_LAUNCH, Role.COPY, Role.MEMSET)
PINNING = ("aten::pin_memory", "aten::_pin_memory")
UNSEEN = LoaderSeen(iterator="", batched=True)


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
        fetch = program.gap_host == Host.DATA_LOADING
        if not fetch.any():
            return self.absent(profile, "no loader span and no fetch in the recorded steps")
        gain = gain_of(profile, self.edit(profile, program))
        waits = (replayed.call_begin - replayed.gap_begin)[fetch]
        seen = fetching(profile, gain.predicted_ns)
        evidence = f"fetching takes {time_text(seen.fetch_ns / NS_PER_MS)} of a step{_processes(seen)}"
        share = epoch_share(seen.loader)
        if share is not None and share > thresholds.EPOCH_START_SHARE:
            evidence += f", {percent_short(share)} of all waits at the start of an epoch"
        gained = percent_short(gain.share)
        return self.judged(
            profile,
            gain,
            evidence=f"{evidence}; without it the step is {gained} shorter",
            cleared=f"{evidence}, hidden behind the GPU's work: removing it recovers {gained} of the step",
            advice=advice_on(seen),
            where=Where(line=top_line(program.gap_line[fetch], waits), scope="the loop's fetch"),
        )

    def edit(self, profile: Profile, program: Program) -> Program:
        """Loader time off the main thread."""
        threads = np.asarray(program.threads, np.int64)
        return program.cut(*loader_spans(profile.trace, profile.steps, profile.live, threads), records=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How the steps get their batches.

    Attributes:
        kind: ``main`` (a DataLoader in the main process), ``workers`` (one with worker processes) or ``plain`` (any
            other iterator).
        loader: the DataLoader, as the live run saw it; ``UNSEEN`` from a file.
        iterable: class that the marked loop draws from; empty where it is not known.
        cores: that the process may use, ``None`` = not known.
        step_ns: the step; fetch_ns: fetching, on the host; rest_ns: the step without it.
        waits_ns: for each batch but the first of an epoch.
        gpu_work: GPU work is launched while a batch is fetched.
        copied: how batches go to the GPU: ``pageable``, ``pinned`` or empty, where nothing is copied.
        pinning_share: of the fetch, 0..1: putting batches into pinned memory.
    """

    kind: str = PLAIN
    loader: LoaderSeen = UNSEEN
    iterable: str = ""
    cores: float | None = None
    step_ns: float
    fetch_ns: float
    rest_ns: float
    waits_ns: tuple[int, ...] = ()
    gpu_work: bool = False
    copied: str = ""
    pinning_share: float = 0.0

    @property
    def batch_ns(self) -> float | None:
        """What making a batch takes in the main process."""
        return float(mean(self.waits_ns)) if self.kind == MAIN and self.waits_ns else None

    @property
    def item_ns(self) -> float | None:
        """What making an item takes in the main process; ``None`` where the loader does not make batches of items."""
        size = self.loader.batch_size if self.loader.batched else None
        return self.batch_ns / size if self.batch_ns is not None and size else None

    @property
    def whole_cores(self) -> int | None:
        return None if self.cores is None else math.floor(self.cores)

    @property
    def call(self) -> str:
        """The loader with as many workers as are needed and there is room for, and what goes with them."""
        loader = self.loader
        # Without workers a batch takes the fetch; with them, so many take the step that waits for them.
        work_ns = loader.workers * self.step_ns if loader.workers else self.fetch_ns
        count = max(2, math.ceil(round(work_ns / max(self.rest_ns, 1.0), 1)))
        room = 4
        if self.whole_cores is not None:  # workers that are there need more, and share with the main process already
            room = self.whole_cores if self.kind == WORKERS else max(self.whole_cores - 1, 1)
        words = [f"num_workers={min(count, room)}"]
        if self.copied == "pageable" and not loader.pinned:
            words.append("pin_memory=True")
        if not loader.persistent and loader.epochs != 1:
            words.append("persistent_workers=True")
        return f"DataLoader(..., {', '.join(words)})"


def loading_advice(profile: Profile) -> str:
    """The change that helps, where nothing was replayed."""
    return advice_on(fetching(profile))


def fetching(profile: Profile, rest_ns: float | None = None) -> Fetching:
    """How the steps get their batches; ``rest_ns``: the step without fetching, else by its parts."""
    trace, steps, live, program = profile.trace, profile.steps, profile.live, profile.program
    threads = np.asarray(program.threads if program is not None else (), np.int64)
    fetch_ns = part_ns = profile.breakdown.parts["data_loading"] if profile.breakdown is not None else 0.0
    if program is not None and profile.replayed is not None:
        waits = profile.replayed.call_begin - profile.replayed.gap_begin
        fetch_ns = float(waits[program.gap_host == Host.DATA_LOADING].sum()) / program.steps
    kind, loader = _iterator(profile, fetch_ns)
    spans = trace.select(Kind.LOADER)
    spans = spans[np.isin(trace.tid[spans], threads) & (steps.of_time(trace.start_ns[spans]) >= 0)]
    # A loop may wrap the loader and copy its batches to the GPU: that is not the loader's own work.
    start, end = union(trace.start_ns[spans], trace.end_ns[spans])
    if kind == PLAIN:
        start, end = loader_spans(trace, steps, live, threads)
    calls = trace.select(Kind.CALL)
    calls = calls[np.isin(trace.tid[calls], threads) & np.isin(trace.role[calls], GPU_WORK)]
    cores = live.cores if live is not None else None
    step_ns = profile.step_ns or 0.0
    return Fetching(
        kind=kind,
        loader=loader,
        iterable=live.iterable if live is not None else "",
        cores=cores if cores is not None and math.isfinite(cores) and cores > 0 else None,  # a file may say anything
        step_ns=step_ns,
        fetch_ns=fetch_ns,
        rest_ns=step_ns - part_ns if rest_ns is None else rest_ns,
        waits_ns=tuple(trace.dur_ns[spans].tolist()) if loader is UNSEEN else loader.waits_ns,
        gpu_work=bool(inside(start, end, trace.start_ns[calls]).any()),
        copied=_copied(profile),
        pinning_share=_pinning_share(profile, start, end),
    )


def _iterator(profile: Profile, fetch_ns: float) -> tuple[str, LoaderSeen]:
    """(kind, loader) that most of the fetching is: by its spans in the trace, and of those the live run saw."""
    trace, live = profile.trace, profile.live
    time = dict.fromkeys(ITERATORS, 0)
    for index in trace.select(Kind.LOADER).tolist():
        for kind, iterator in ITERATORS.items():
            time[kind] += int(trace.dur_ns[index]) if iterator in trace.names[trace.name[index]] else 0
    if not any(time.values()):
        return PLAIN, UNSEEN
    kind = max(time, key=lambda kind: time[kind])
    # The loader that was waited for longest, of those of this kind.
    loaders = live.loaders if live is not None else ()
    loader = next((loader for loader in loaders if bool(loader.workers) == (kind == WORKERS)), UNSEEN)
    if live is not None and live.iterable == "generator":
        # A generator of the user's may draw from a loader and do more than that, or start its workers anew.
        more = fetch_ns * profile.steps.count > 2 * sum(time.values())
        if more and (epoch_share(loader) or 0.0) <= thresholds.EPOCH_START_SHARE:
            return PLAIN, UNSEEN
    return kind, loader


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


def epoch_share(loader: LoaderSeen) -> float | None:
    """Share of all waits, but the first of all, that lie at the start of an epoch; ``None`` under two epochs."""
    if loader.epochs < 2 or len(loader.first_waits_ns) < 2:
        return None
    first = mean(loader.first_waits_ns[1:]) * (loader.epochs - 1)
    total = first + loader.waited_ns
    return first / total if total else None


def _processes(seen: Fetching) -> str:
    """Which of torch's iterators was seen, in words; empty when none was."""
    if seen.kind == MAIN:
        return " in the main process (num_workers=0)"
    if seen.kind == PLAIN:
        return ""
    if not seen.loader.workers:
        return ", waiting for worker processes"
    of_cores = "" if seen.whole_cores is None else f" on {plural(seen.whole_cores, 'core')}"
    return f", waiting for {plural(seen.loader.workers, 'worker process')}{of_cores}"


def advice_on(seen: Fetching) -> str:
    """The change that the evidence supports: the first rule that applies.

    So a rule may rely on those above it: below ``_one_core`` there are cores to spare, below ``_on_gpu`` the dataset
    may go into another process.
    """
    return next(text for rule in RULES if (text := rule(seen)))


def _epoch_start(seen: Fetching) -> str | None:
    loader, share = seen.loader, epoch_share(seen.loader)
    if share is None or share <= thresholds.EPOCH_START_SHARE:
        return None
    first, later = mean(loader.first_waits_ns[1:]), mean(seen.waits_ns or (0,))
    waits = f"{time_text(first / NS_PER_MS)} there, {time_text(later / NS_PER_MS)} for each other batch"
    cure = ", where the workers start anew. Keep them: DataLoader(..., persistent_workers=True)."
    if not loader.workers:
        cure = ": what the dataset or the sampler prepares there can be prepared once, before the loop."
    elif loader.persistent:
        cure = (
            ", where the workers begin with nothing made ahead: let one epoch of the loader run over several passes, "
            "with a sampler that repeats."
        )
    return f"The wait is at the start of each epoch ({waits}){cure}"


def _pinned_for_nothing(seen: Fetching) -> str | None:
    if not seen.loader.pinned or seen.copied or seen.pinning_share < thresholds.PINNING_SHARE:
        return None
    share = percent_short(seen.pinning_share)
    return f"Leave out pin_memory=True: it takes {share} of the fetch, and no batch is copied to the GPU."


def _on_gpu(seen: Fetching) -> str | None:
    """A worker process cannot share the GPU."""
    loader = seen.loader
    if not seen.gpu_work and not loader.on_gpu:
        return None
    if loader.holds == "tensors" and loader.batched:
        return (
            "The data lie on the GPU, so they cannot go into worker processes, and need none: take whole batches there "
            f"by one index, for rows in torch.randperm(len(x), device=x.device).split({loader.batch_size or 64}): "
            "x[rows]."
        )
    return (
        "Making a batch uses the GPU, so it cannot go into worker processes: return CPU tensors there, and move that "
        "work and the copy to the GPU behind the loader; then others can make the next batch meanwhile."
    )


def _row_by_row(seen: Fetching) -> str | None:
    """Rows of a tensor or an array, indexed one by one."""
    loader = seen.loader
    one_by_one = loader.batched and loader.batch_size != 1 and not (loader.iterable or loader.whole_batches)
    if loader.holds not in ("tensors", "array") or not one_by_one or loader.own_collate:
        return None
    first = "Make it a tensor (torch.from_numpy) and take" if loader.holds == "array" else "Take"
    return (
        "Every row is indexed by itself, and then stacked; workers would only do the same elsewhere. "
        f"{first} a batch by one index: DataLoader(data, batch_size=None, "
        f"sampler=BatchSampler(RandomSampler(data), {loader.batch_size or 64}, drop_last=False))."
    )


def _hugging_face_rows(seen: Fetching) -> str | None:
    if seen.kind == PLAIN and seen.iterable.startswith(("datasets.arrow_dataset.", "datasets.iterable_dataset.")):
        return 'Draw batches, not rows: for batch in dataset.with_format("torch").iter(batch_size=64).'
    if seen.loader.holds != "huggingface" or seen.loader.formatted != "":
        return None
    return (
        'Let the dataset give tensors: dataset.with_format("torch"). Now it makes Python objects of every row, which '
        "are then turned into tensors one by one."
    )


def _cheap_items(seen: Fetching) -> str | None:
    """Handing a batch over from another process would cost as much as making it."""
    item, batch, loader = seen.item_ns, seen.batch_ns, seen.loader
    cheap_item = item is not None and item < thresholds.CHEAP_ITEM_NS
    if batch is None or (not cheap_item and batch >= thresholds.HANDOVER_NS):
        return None
    what = "A batch takes little" if item is None else f"An item takes {time_text(item / NS_PER_MS)}"
    cure = "Make the whole batch in one call, by __getitems__(indices) of the dataset or one index into a tensor."
    if loader.whole_batches or loader.own_collate or not loader.batched:
        cure = "Do less per batch in collate_fn, or draw larger batches."
    return f"{what} ({time_text(batch / NS_PER_MS)} a batch): too little for worker processes. {cure}"


def _uneven(seen: Fetching) -> str | None:
    """The workers are fast enough, but for a few late batches."""
    workers, waits = seen.loader.workers, seen.waits_ns
    if seen.kind != WORKERS or not workers or len(waits) < 4 * workers or not max(waits):
        return None
    late = sum(wait > max(waits) / 10 for wait in waits)
    # Workers that are too slow give one long wait for each round of the workers; these come more seldom.
    if late * 2 * workers > len(waits):
        return None
    depth = seen.loader.prefetch_factor
    now = f" (now {depth})" if depth else ""
    return (
        f"{plural(late, 'batch')} of {len(waits):,} came late, the others were ready: let more be made ahead, "
        f"prefetch_factor={2 * (depth or 2)}{now}."
    )


def _one_core(seen: Fetching) -> str | None:
    if seen.cores is None or seen.cores >= 2:
        return None
    return (
        "This process may use one core, so worker processes would only share it: do less per item (decode once and "
        "keep the result, smaller inputs), or get more cores. A thread that reads ahead helps where the time is "
        "waiting for a disk or a network."
    )


def _every_core_has_a_worker(seen: Fetching) -> str | None:
    workers, cores = seen.loader.workers, seen.whole_cores
    if seen.kind != WORKERS or not workers or cores is None or workers < cores:
        return None
    return (
        f"The {plural(cores, 'core')} that this process may use have {workers} workers already: do less per item "
        "(decode once and keep the result, smaller inputs, augment on the GPU)."
    )


def _not_importable(seen: Fetching) -> str | None:
    """New processes would not find what the notebook defines."""
    start = seen.loader.start_method
    if seen.kind != MAIN or seen.loader.importable is not False or start in (None, "fork"):
        return None
    return (
        f"Put the dataset's class and collate_fn into a module of their own: workers start by {start} here, and do not "
        f"find what a notebook defines. Then load in them: {seen.call}."
    )


def _stream(seen: Fetching) -> str | None:
    """An ``IterableDataset``: workers must share it out among themselves."""
    if not seen.loader.iterable or seen.kind == PLAIN:
        return None
    if seen.loader.holds == "huggingface":
        return f"Load in worker processes: {seen.call}; each takes whole shards, so have as many shards as workers."
    share = "share the items out in the dataset's __iter__ by torch.utils.data.get_worker_info()"
    if seen.kind == WORKERS:
        return f"Give it more workers: {seen.call} (now {seen.loader.workers}); {share}."
    return f"Load in worker processes: {seen.call}, and {share}: else each worker gives all of them."


def _more_workers(seen: Fetching) -> str | None:
    if seen.kind != WORKERS:
        return None
    if not seen.loader.workers or seen.whole_cores is None:
        return "The workers are too slow: do less per item, or give them more processes if there are cores for them."
    return (
        f"The workers are too slow, and {plural(seen.whole_cores, 'core')} may be used: {seen.call} "
        f"(now {seen.loader.workers}). Making more ahead would not help."
    )


def _main_process(seen: Fetching) -> str | None:
    return f"Load in worker processes: {seen.call}." if seen.kind == MAIN else None


def _plain(seen: Fetching) -> str | None:
    """Any other iterator: it runs between two steps, in their thread."""
    name = {"": "iterator", "generator": "generator"}.get(seen.iterable, seen.iterable.rpartition(".")[2])
    return (
        f"The {name} makes each item between two steps. Make the next one meanwhile: in a thread where it waits for a "
        "disk or a network, else in a DataLoader with num_workers."
    )


RULES: tuple[Callable[[Fetching], str | None], ...] = (
    _epoch_start, _pinned_for_nothing, _on_gpu, _row_by_row, _hugging_face_rows, _cheap_items, _uneven, _one_core,
    _every_core_has_a_worker, _not_importable, _stream, _more_workers, _main_process, _plain,
)  # fmt: skip
