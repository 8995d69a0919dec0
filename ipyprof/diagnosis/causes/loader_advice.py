"""Which change of the loading helps, by what is known of the iterator that the steps drew from.

Each rule is a small function: the advice, or ``None`` where it does not apply. The first of ``RULES`` that applies
gives the advice, so a rule may rely on those above it: below ``one_core`` there are cores to spare, below ``on_gpu``
the dataset may go into another process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from ipyprof.diagnosis import thresholds
from ipyprof.formatting import percent_short, plural, time_text
from ipyprof.trace.live import LoaderSeen

MAIN, WORKERS, PLAIN = "main", "workers", "plain"
NS_PER_MS = 1e6
_ROWS = ("tensors", "array")
_HUGGING_FACE = ("datasets.arrow_dataset", "datasets.iterable_dataset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """How the steps get their batches. Unknown is ``None``.

    Attributes:
        kind: ``main`` (a DataLoader in the main process), ``workers`` (one with worker processes), ``plain`` (any
            other iterator) or empty.
        loader: the DataLoader, as the live run saw it.
        iterable: class that the marked loop draws from; empty where it is not known.
        cores: that the process may use.
        step_ns: the step; fetch_ns: fetching, on the host; rest_ns: the step without it.
        waits_ns: for each batch but the first of an epoch.
        gpu_work: GPU work is launched while a batch is fetched.
        copied: how batches go to the GPU: ``pageable``, ``pinned`` or empty, where nothing is copied.
        pinning_share: of the fetch, 0..1: putting batches into pinned memory.
    """

    kind: str = ""
    loader: LoaderSeen | None = None
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
        size = None if self.loader is None or not self.loader.batched else self.loader.batch_size
        return None if self.batch_ns is None or not size else self.batch_ns / size

    @property
    def workers(self) -> int | None:
        """Worker processes that there are."""
        return None if self.loader is None else self.loader.workers

    @property
    def needed(self) -> int:
        """Processes that make batches as fast as the rest of the step takes them, whatever the cores."""
        # Without workers a batch takes the fetch; with them, so many take the step that waits for them.
        work_ns = self.workers * self.step_ns if self.workers else self.fetch_ns
        return max(2, math.ceil(round(work_ns / max(self.rest_ns, 1.0), 1)))

    @property
    def spare(self) -> int | None:
        """Processes that the cores have room for beside the main one: at least one."""
        return None if self.cores is None else max(math.floor(self.cores) - 1, 1)


Rule = Callable[[Fetching], str | None]


def advice(fetching: Fetching) -> str:
    """The change that the evidence supports: the first rule that applies."""
    return next(text for rule in RULES if (text := rule(fetching)) is not None)


def epoch_share(loader: LoaderSeen | None) -> float | None:
    """Share of all waits, but the first of all, that lie at the start of an epoch; ``None`` under two epochs."""
    if loader is None or loader.epochs < 2 or len(loader.first_waits_ns) < 2:
        return None
    first = mean(loader.first_waits_ns[1:]) * (loader.epochs - 1)
    total = first + loader.waited_ns
    return first / total if total else None


def epoch_start(fetching: Fetching) -> str | None:
    """The waits lie where an epoch starts."""
    loader, share = fetching.loader, epoch_share(fetching.loader)
    if loader is None or share is None or share <= thresholds.EPOCH_START_SHARE:
        return None
    first, later = mean(loader.first_waits_ns[1:]), mean(fetching.waits_ns or (0,))
    waits = f"{time_text(first / NS_PER_MS)} there, {time_text(later / NS_PER_MS)} for each other batch"
    if not loader.workers:
        return (
            f"The wait is at the start of each epoch ({waits}): what the dataset or the sampler prepares there can be "
            "prepared once, before the loop."
        )
    if loader.persistent:
        return (
            f"The wait is at the start of each epoch ({waits}), where the workers begin with nothing made ahead: let "
            "one epoch of the loader run over several passes, with a sampler that repeats."
        )
    return (
        f"The wait is at the start of each epoch ({waits}), where the workers start anew. Keep them: "
        "DataLoader(..., persistent_workers=True)."
    )


def pinned_for_nothing(fetching: Fetching) -> str | None:
    """Pinning is most of the fetch, and no copy uses it."""
    pinned = fetching.loader is not None and fetching.loader.pinned
    if not pinned or fetching.copied or fetching.pinning_share < thresholds.PINNING_SHARE:
        return None
    share = percent_short(fetching.pinning_share)
    return f"Leave out pin_memory=True: it takes {share} of the fetch, and no batch is copied to the GPU."


def on_gpu(fetching: Fetching) -> str | None:
    """What makes the items uses the GPU, which a worker process cannot share."""
    loader = fetching.loader
    if not fetching.gpu_work and not (loader is not None and loader.on_gpu):
        return None
    if loader is not None and loader.holds == "tensors" and loader.batched:
        size = loader.batch_size or 64
        return (
            "The data lie on the GPU, so they cannot go into worker processes, and need none: take whole batches there "
            f"by one index, for rows in torch.randperm(len(x), device=x.device).split({size}): x[rows]."
        )
    return (
        "Making a batch uses the GPU, so it cannot go into worker processes: return CPU tensors there, and move that "
        "work and the copy to the GPU behind the loader; then others can make the next batch meanwhile."
    )


def whole_batches(fetching: Fetching) -> str | None:
    """Rows of a tensor or an array, indexed one by one."""
    loader = fetching.loader
    if loader is None or loader.holds not in _ROWS or not loader.batched or loader.iterable or loader.whole_batches:
        return None
    if loader.batch_size == 1 or loader.own_collate:
        return None
    size = loader.batch_size or 64
    first = "Make it a tensor (torch.from_numpy) and take" if loader.holds == "array" else "Take"
    return (
        "Every row is indexed by itself, and then stacked; workers would only do the same elsewhere. "
        f"{first} a batch by one index: DataLoader(data, batch_size=None, "
        f"sampler=BatchSampler(RandomSampler(data), {size}, drop_last=False))."
    )


def hugging_face_rows(fetching: Fetching) -> str | None:
    """A dataset of Hugging Face that makes Python objects, or is drawn from row by row."""
    if fetching.kind == PLAIN and fetching.iterable.rpartition(".")[0] in _HUGGING_FACE:
        return 'Draw batches, not rows: for batch in dataset.with_format("torch").iter(batch_size=64).'
    loader = fetching.loader
    if loader is None or loader.holds != "huggingface" or loader.formatted != "":
        return None
    return (
        'Let the dataset give tensors: dataset.with_format("torch"). Now it makes Python objects of every row, which '
        "are then turned into tensors one by one."
    )


def cheap_items(fetching: Fetching) -> str | None:
    """Handing a batch over from another process would cost as much as making it."""
    item, batch = fetching.item_ns, fetching.batch_ns
    cheap_item = item is not None and item < thresholds.CHEAP_ITEM_NS
    if batch is None or (not cheap_item and batch >= thresholds.HANDOVER_NS):
        return None
    what = f"An item takes {time_text(item / NS_PER_MS)}" if item is not None else "A batch takes little"
    loader = fetching.loader
    if loader is not None and (loader.whole_batches or loader.own_collate or not loader.batched):
        return (
            f"{what} ({time_text(batch / NS_PER_MS)} a batch): too little for worker processes. Do less per batch in "
            "collate_fn, or draw larger batches."
        )
    return (
        f"{what} ({time_text(batch / NS_PER_MS)} a batch): too little for worker processes. Make the whole batch in "
        "one call, by __getitems__(indices) of the dataset or one index into a tensor."
    )


def one_core(fetching: Fetching) -> str | None:
    """No other process could run beside this one."""
    if fetching.cores is None or fetching.cores >= 2:
        return None
    return (
        "This process may use one core, so worker processes would only share it: do less per item (decode once and "
        "keep the result, smaller inputs), or get more cores. A thread that reads ahead helps where the time is "
        "waiting for a disk or a network."
    )


def uneven(fetching: Fetching) -> str | None:
    """The workers are fast enough, but for a few late batches."""
    workers, waits = fetching.workers, fetching.waits_ns
    if fetching.kind != WORKERS or not workers or len(waits) < 4 * workers or not max(waits):
        return None
    late = sum(wait > max(waits) / 10 for wait in waits)
    # Workers that are too slow give one long wait for each round of the workers; these come more seldom.
    if late * 2 * workers > len(waits):
        return None
    depth = None if fetching.loader is None else fetching.loader.prefetch_factor
    now = f" (now {depth})" if depth else ""
    return (
        f"{plural(late, 'batch')} of {len(waits):,} came late, the others were ready: let more be made ahead, "
        f"prefetch_factor={2 * (depth or 2)}{now}."
    )


def saturated(fetching: Fetching) -> str | None:
    """Every core has a worker."""
    if fetching.kind != WORKERS or not fetching.workers or fetching.cores is None:
        return None
    if fetching.workers < math.floor(fetching.cores):
        return None
    return (
        f"The {plural(math.floor(fetching.cores), 'core')} that this process may use have {fetching.workers} workers "
        "already: do less per item (decode once and keep the result, smaller inputs, augment on the GPU)."
    )


def not_importable(fetching: Fetching) -> str | None:
    """New processes would not find what the notebook defines."""
    loader = fetching.loader
    if fetching.kind != MAIN or loader is None or loader.importable is not False:
        return None
    if loader.start_method in (None, "fork"):
        return None
    return (
        f"Put the dataset's class and collate_fn into a module of their own: workers start by {loader.start_method} "
        f"here, and do not find what a notebook defines. Then load in them: {_call(fetching)}."
    )


def stream(fetching: Fetching) -> str | None:
    """An ``IterableDataset``: workers must share it out among themselves."""
    loader = fetching.loader
    if loader is None or not loader.iterable or fetching.kind not in (MAIN, WORKERS):
        return None
    if loader.holds == "huggingface":
        return (
            f"Load in worker processes: {_call(fetching)}; each takes whole shards, so have as many shards as workers."
        )
    share = "share the items out in the dataset's __iter__ by torch.utils.data.get_worker_info()"
    if fetching.kind == WORKERS:
        return f"Give it more workers: {_call(fetching)} (now {fetching.workers}); {share}."
    return f"Load in worker processes: {_call(fetching)}, and {share}: else each worker gives all of them."


def more_workers(fetching: Fetching) -> str | None:
    """Worker processes that are too slow."""
    if fetching.kind != WORKERS:
        return None
    if not fetching.workers or fetching.cores is None:
        return "The workers are too slow: do less per item, or give them more processes if there are cores for them."
    return (
        f"The workers are too slow, and {plural(math.floor(fetching.cores), 'core')} may be used: {_call(fetching)} "
        f"(now {fetching.workers}). Making more ahead would not help."
    )


def in_the_main_process(fetching: Fetching) -> str | None:
    """A DataLoader without workers."""
    return f"Load in worker processes: {_call(fetching)}." if fetching.kind == MAIN else None


def plain(fetching: Fetching) -> str | None:
    """Any other iterator: it runs between two steps, in their thread."""
    name = {"": "iterator", "generator": "generator"}.get(fetching.iterable, fetching.iterable.rpartition(".")[2])
    return (
        f"The {name} makes each item between two steps. Make the next one meanwhile: in a thread where it waits for a "
        "disk or a network, else in a DataLoader with num_workers."
    )


RULES: tuple[Rule, ...] = (
    epoch_start, pinned_for_nothing, on_gpu, whole_batches, hugging_face_rows, cheap_items, uneven, one_core, saturated,
    not_importable, stream, more_workers, in_the_main_process, plain,
)  # fmt: skip


def _call(fetching: Fetching) -> str:
    """The loader with as many workers as are needed and there is room for, and what goes with them."""
    loader, room = fetching.loader, fetching.spare
    if fetching.kind == WORKERS and fetching.cores is not None:
        room = math.floor(fetching.cores)  # more than now: ``saturated`` has looked
    count = fetching.needed if room is None else min(fetching.needed, room)
    words = [f"num_workers={count if room is not None else min(count, 4)}"]
    if fetching.copied == "pageable" and not (loader is not None and loader.pinned):
        words.append("pin_memory=True")
    if loader is None or (not loader.persistent and loader.epochs != 1):
        words.append("persistent_workers=True")
    return f"DataLoader(..., {', '.join(words)})"
