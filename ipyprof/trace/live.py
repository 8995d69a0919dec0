"""What a live run knows beside its trace: measured values, never a judgement."""

from __future__ import annotations

import msgspec


class SyncSite(msgspec.Struct, frozen=True, kw_only=True):
    """A line that made the host wait, seen by the sync-line probe. ``line`` counts from 1; ``count`` is per step."""

    file: str
    line: int
    count: float
    in_cell: bool


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A storage that a name of the notebook reaches.

    ``device`` is -1 for the CPU; ``bytes`` is what the allocator gave for it where it says, else the storage's own
    size. ``role`` is ``parameter``, ``buffer``,
    ``gradient``, ``optimizer state``, ``tensor``, or ``graph``: saved by autograd for the backward pass of the tensor
    named. ``variable`` is the name that ``name`` begins from, ``also`` another variable that holds the same tensor,
    such as the list that a loss was put into.
    """

    address: int
    device: int
    bytes: int
    name: str
    role: str
    variable: str
    also: str = ""


class AllocatorState(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's allocator held of one device when recording ended; bytes, unknown is ``None``.

    ``largest_free_bytes`` is the largest block that it has reserved and not given out; ``device_free_bytes`` and
    ``device_total_bytes`` are the driver's; ``expandable``: the setting ``expandable_segments`` is on.
    ``peak_bytes`` is torch's ``max_memory_allocated`` then, ``peak_before_bytes`` the same when recording began: nobody
    resets the user's statistics, so the peak lies in the recording for certain only where it rose.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int | None = None
    device_free_bytes: int | None = None
    device_total_bytes: int | None = None
    expandable: bool = False
    peak_bytes: int | None = None
    peak_before_bytes: int | None = None


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The request that failed, as torch's message tells it; bytes, unknown is ``None``.

    ``line`` is the cell's; ``device`` is -1 for the CPU; ``free_bytes`` of the device; ``allocated_bytes`` and
    ``unused_bytes`` (reserved, not given out) of torch's allocator then; ``text`` is the message. ``later``: the
    request failed after the recording was over; ``owners`` are then those of that moment, the largest first.
    """

    device: int = 0
    line: int | None = None
    tried_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    unused_bytes: int | None = None
    text: str = ""
    later: bool = False
    owners: tuple[Owner, ...] = ()


class LoaderSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One DataLoader that the cell drew from, and how long its batches were waited for. Unknown is ``None``.

    Attributes:
        iterator: class of torch's iterator, with its module.
        workers: ``num_workers``.
        iterable: an ``IterableDataset``.
        batched: the loader makes batches of single items; false where ``batch_size=None``.
        batch_size: of torch's own batch sampler.
        prefetch_factor, persistent, pinned: the loader's ``prefetch_factor``, ``persistent_workers``, ``pin_memory``.
        dataset: class of the dataset, behind torch's ``Subset``; without a module if the cell defines it.
        holds: ``tensors``, ``array``, ``list``, ``huggingface`` or ``other``: what its items come from.
        whole_batches: the dataset has ``__getitems__``.
        own_collate: the loader's ``collate_fn`` is not torch's.
        formatted: what a Hugging Face dataset makes of its rows, such as ``torch``; empty: Python objects.
        on_gpu: the dataset holds a tensor or a module on a GPU.
        importable: a new process finds the dataset's class and the collate function by their names.
        start_method: how worker processes start.
        batches, epochs: given, and begun, so far.
        first_waits_ns: per epoch, from its begin to its first batch, with the start of the workers; the last 64.
        waits_ns: for every other batch; the last 512.
        waited_ns: for all of these.
    """

    iterator: str
    workers: int | None = None
    iterable: bool | None = None
    batched: bool | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    persistent: bool | None = None
    pinned: bool | None = None
    dataset: str = ""
    holds: str = "other"
    whole_batches: bool | None = None
    own_collate: bool | None = None
    formatted: str | None = None
    on_gpu: bool | None = None
    importable: bool | None = None
    start_method: str | None = None
    batches: int = 0
    epochs: int = 0
    first_waits_ns: tuple[int, ...] = ()
    waits_ns: tuple[int, ...] = ()
    waited_ns: int = 0


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver (NVML) said of the device while steps ran. Not measured is ``None``.

    Attributes:
        missing: why something was not measured, or empty.
        sm_clock_mhz, max_sm_clock_mhz: clock of the multiprocessors, and its maximum.
        slowed_by: what held the clock back, in words; empty where nothing did.
        power_w, power_limit_w: drawn and allowed, in watts.
        pcie_generation, pcie_width, max_pcie_generation, max_pcie_width: of the link.
        others: other processes that compute on the device.
        others_bytes: what they hold of its memory.
        others_busy: share 0..1 of the time in which they computed.
    """

    missing: str = ""
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    slowed_by: tuple[str, ...] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    max_pcie_generation: int | None = None
    max_pcie_width: int | None = None
    others: int | None = None
    others_bytes: int | None = None
    others_busy: float | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several recordings of a loop said.

    ``step_ms`` is its unprofiled step, ``None`` where no step of its own was timed; ``cause`` is its verdict's.
    """

    step_ms: float | None
    cause: str


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """Several recordings of one loop, in order; ``shown`` is the number, from 1, of the one that all the rest tells.

    One more than there are: a further one is shown, which ran out of memory and says nothing of the steps.
    """

    shown: int
    recordings: tuple[Repeat, ...]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Where the loop's thread was seen.

    ``line`` is the cell's outermost line on the stack, ``calls`` the functions between it and the innermost one,
    outermost first; ``file`` (empty: the cell), ``function`` and ``at`` (its line) are of the innermost frame of the
    user's own files; ``leaf`` is the function that ran. ``ns``: its length where it was measured, 0 where one look saw
    it.
    """

    line: int | None = None
    file: str = ""
    function: str = ""
    at: int = 0
    leaf: str = ""
    calls: tuple[str, ...] = ()
    ns: int = 0


class LoopStep(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One unprofiled step of the loop, mark to mark, by the host's clock; what ipyprof itself took is left out.

    ``waited_ns`` is what its batches were waited for, ``epoch_start``: one of them was the first of its epoch.
    ``ready`` batches lay ready in the loader's queue at its end, ``made`` were made since the loop began;
    ``all_busy``: every worker of the loader was at work then. ``behind_pause``: one of ours lies right before it.
    """

    ns: int
    waited_ns: int = 0
    epoch_start: bool = False
    ready: int = -1
    made: int = -1
    all_busy: bool = False
    behind_pause: bool = False


class WholeLoop(msgspec.Struct, frozen=True, kw_only=True):
    """Every unprofiled step of the loop, and the rest of the cell's time.

    Attributes:
        cell_ns: wall time of the cell; before_ns: before the loop's first mark; behind_ns: behind its last.
        ours_ns: our own pauses in it, recorded and warm-up steps left out.
        profiled_ns, profiled_steps: steps of warm-up and recording.
        steps: the unprofiled ones, in order.
        first_after: index of the first one behind the recording.
        more_steps, more_ns: further steps that were not kept one by one.
        samples: (index of the step, sample).
    """

    cell_ns: int
    before_ns: int = 0
    behind_ns: int = 0
    ours_ns: int = 0
    profiled_ns: int = 0
    profiled_steps: int = 0
    steps: tuple[LoopStep, ...] = ()
    first_after: int = 0
    more_steps: int = 0
    more_ns: int = 0
    samples: tuple[tuple[int, Sample], ...] = ()


class LiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a live run knows that its trace does not carry. Saved in the trace under the key ``ipyprof``.

    Attributes:
        source: the cell's text, line 1 is the magic line; empty for scripts.
        how: which way found the step, in words: ``loop at line 2``, ``optimizer steps``, ``the cell, once``.
        mark: ``loop``, ``optimizer``, ``loader``, ``call`` or ``cell``: what a mark was.
        loop_line: line of the marked loop, or ``None``.
        loop_is_for: the marked loop is a ``for``, so the time between the last statement of the body and the next
            mark is its fetch.
        alternatives: other loops or ways there were, each a sentence with the option that chooses it.
        current_line: line of the cell that was running when recording began; its cost where no range was recorded.
        baseline_ns: unprofiled per-step samples, in order; CUDA events, wall clock without CUDA.
        baseline: ``after``, ``after_first`` (only the interval right behind the stop), ``wait``, or ``none``.
        baseline_closing: the only sample ended with the loop, so that it holds no fetch of a next batch.
        baseline_host_ns: host time from mark to mark in those steps; shorter than a sample where the host runs ahead.
        wait_ns: the samples before the profiler, in order.
        profiled_ns: per-step samples of the recorded steps.
        closing_ns: per recorded step, what the mark that ended it took before the end of the step's range.
        cycle: iterations in one optimizer cycle (accumulation), else 1.
        partial: why the recording ended early, or empty.
        cold: the recorded steps are the first ones of the loop.
        taken: the user's own profiler took the session: no trace.
        cuda: a GPU was in use.
        environment: versions: torch, cuda, cupti, python, ipyprof; unknown is ``None``.
        device_names: index → name for the devices torch sees.
        sync_sites: from the sync-line probe; ``None`` = not looked.
        utilization: NVML's share 0..1 while steps ran, or ``None``.
        device_state: what else NVML said; ``None`` without CUDA.
        loaders: the DataLoaders that gave batches, the one that was waited for longest first.
        iterable: class that the marked loop draws from, such as ``generator``; empty where there is no such loop.
        cores: that the process may use.
        process_memory: (ns since recording began, resident bytes) samples without CUDA.
        owners: storages by notebook name when recording ended, the largest first; ``None`` = not looked.
        owners_complete: the look was not cut off by one of its limits.
        allocator: torch's allocator then, per device in use.
        out_of_memory: the request that the cell failed with, or ``None``.
        notes: sentences for the trust section, each ``(check, status, text)``.
        items: work per step, or ``None``; unit: its name.
        name: the run's title, or ``None``.
        repeats: what all recordings of the loop said, where there were several.
        loop: every unprofiled step of the loop; ``None`` = no loop was marked.
        profiled_before: a profiler of ours ran in this process before: CUPTI stays attached, and costs every launch.
        attached: how many times as long unprofiled steps take behind the recording as before it, where that was seen.
    """

    version: int = 1
    source: str = ""
    how: str = ""
    mark: str = "cell"
    loop_line: int | None = None
    loop_is_for: bool = False
    alternatives: tuple[str, ...] = ()
    current_line: int | None = None
    baseline_ns: tuple[int, ...] = ()
    baseline: str = "none"
    baseline_closing: bool = False
    baseline_host_ns: tuple[int, ...] = ()
    wait_ns: tuple[int, ...] = ()
    profiled_ns: tuple[int, ...] = ()
    closing_ns: tuple[int, ...] = ()
    cycle: int = 1
    partial: str = ""
    cold: bool = False
    taken: bool = False
    cuda: bool = False
    environment: dict[str, str | None] = {}
    device_names: dict[str, str] = {}
    sync_sites: tuple[SyncSite, ...] | None = None
    utilization: float | None = None
    device_state: DeviceState | None = None
    loaders: tuple[LoaderSeen, ...] = ()
    iterable: str = ""
    cores: float | None = None
    process_memory: tuple[tuple[int, int], ...] = ()
    owners: tuple[Owner, ...] | None = None
    owners_complete: bool = True
    allocator: tuple[AllocatorState, ...] = ()
    out_of_memory: OutOfMemory | None = None
    notes: tuple[tuple[str, str, str], ...] = ()
    items: float | None = None
    unit: str = "items"
    name: str | None = None
    repeats: Repeats | None = None
    loop: WholeLoop | None = None
    profiled_before: bool = False
    attached: float | None = None
