"""One look at what holds memory: names of the notebook, torch's allocator, and the request that failed.

The lives of the blocks come from ``profile_memory``: each of its records has the address, the thread and the time, so
that operator and line follow, and it is on anyway. The allocator's own history would tell frames of Python too, and
costs more; recorded step, unprofiled = 1, median of five (H200, torch 2.11):

    =============================  ======  ==========  =================
    workload                       shapes  + history   + profile_memory
    =============================  ======  ==========  =================
    280 tiny kernels               1.29    1.47        1.34
    GPT-2, batch 1 × 64            1.56    1.82        1.76
    =============================  ======  ==========  =================

Taken where recording stops, outside of every timed step, and again when the cell ends in an error, whose frames hold
memory too. Costs 3 us an object of the notebook and 30 us a tensor (two busy cores), at most 0.5 s; and the copy of the
allocator's list of blocks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from ipyprof.capture.namespaces import namespaces, users_file
from ipyprof.capture.notes import Notes
from ipyprof.capture.out_of_memory import out_of_memory
from ipyprof.capture.owners import owners_of
from ipyprof.options import Options
from ipyprof.trace.model import AllocatorState, LiveRecord, OutOfMemory

_KEPT = 2_000
_NO_PEAKS: Mapping[int, int] = {}
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class Holdings:
    """The looks of one run. A part that fails is left out and becomes a note.

    Args:
        known: fields of a ``LiveRecord``, which get ``owners``, ``owners_complete``, ``allocator``, ``out_of_memory``.
        over: nothing is recorded any more.
    """

    def __init__(self, known: dict[str, Any], options: Options, notes: Notes, *, over: bool = False) -> None:
        self._known = known
        self._options = options
        self._notes = notes
        self._over = over
        self._peaks: dict[int, int] = {}

    def begin(self) -> None:
        """Recording is about to begin."""
        self._over = False
        if self._options.memory:
            self._peaks = self._notes.shielded(peaks_so_far) or {}

    def stop(self) -> None:
        """Recording is over: what holds memory now, unless the error that ended it was looked at. Once."""
        self._over = True
        if self._options.memory and "owners" not in self._known:
            self._look(self._known, None, self._peaks)

    def look_at_error(self, error: BaseException | None, cell_name: str) -> None:
        """What holds memory when the cell ends in an error, of a request that failed also without ``options.memory``.

        After a recording what it ended with stays: an error that comes later puts only its own holders beside it.

        Args:
            cell_name: the file name that the cell is compiled under.
        """
        failed = None if error is None else self._notes.shielded(out_of_memory, error, cell_name)
        if failed is not None and self._over:
            then: dict[str, Any] = {}
            self._look(then, error)
            fields = {name: getattr(failed, name) for name in OutOfMemory.__struct_fields__}
            failed = OutOfMemory(**{**fields, "later": True, "owners": (then["owners"] or ())[:_KEPT]})
            self._known["allocator"] = then["allocator"]
        elif error is not None and (failed is not None or self._options.memory) and "owners" not in self._known:
            self._look(self._known, error, self._peaks)
        if failed is not None:
            self._known["out_of_memory"] = failed

    def _look(self, known: dict[str, Any], error: BaseException | None, before: Mapping[int, int] = _NO_PEAKS) -> None:
        known["allocator"], sizes = self._notes.shielded(allocator_states, before) or ((), {})
        known["owners"], known["owners_complete"] = self._notes.shielded(_owners, error, sizes) or (None, True)


def peaks_so_far() -> dict[int, int]:
    """Device to ``max_memory_allocated``, of devices in use. Nothing is started, and no statistics change."""
    if not torch.cuda.is_initialized():
        return {}
    return {device: torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())}


def live_of_failure(options: Options, error: BaseException) -> LiveRecord | None:
    """The record of a cell whose recording was handed out before it ran out of memory; ``None`` for other errors."""
    notes = Notes()
    known: dict[str, Any] = {"cuda": torch.cuda.is_initialized()}
    Holdings(known, options, notes).look_at_error(error, users_file(error))
    return LiveRecord(**known, notes=notes.as_tuple()) if "out_of_memory" in known else None


def _owners(error: BaseException | None, sizes: dict[tuple[int, int], tuple[int, int]]) -> Any:
    with namespaces(error) as spaces:
        return owners_of(spaces.given, sizes, around=spaces.around, results=spaces.results)


def allocator_states(
    before: Mapping[int, int] = _NO_PEAKS,
) -> tuple[tuple[AllocatorState, ...], dict[tuple[int, int], tuple[int, int]]]:
    """(states, sizes): each device in use, and (device, address) to (bytes, bytes asked for) of each block given out.

    Both empty where CUDA is not in use. Nothing is started, and no statistics change.

    Args:
        before: ``peaks_so_far()`` at an earlier moment, from which on a peak counts.
    """
    if not torch.cuda.is_initialized():
        return (), {}
    largest: dict[int, int] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    try:
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:  # an allocator without blocks, such as cudaMallocAsync
        segments = []
    for segment in segments:
        device, address = segment["device"], segment["address"]
        largest.setdefault(device, 0)
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                largest[device] = max(largest[device], block["size"])
            elif block["state"] == "active_allocated":
                asked = block.get("requested_size") or block["size"]  # came with torch 2.1
                sizes[device, address] = block["size"], min(asked, block["size"])
            address += block["size"]
    expandable = any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _SETTINGS)
    states = []
    for device in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(device)
        if not reserved:
            continue
        free, total = _driver(device)
        states.append(
            AllocatorState(
                device=device,
                allocated_bytes=torch.cuda.memory_allocated(device),
                reserved_bytes=reserved,
                largest_free_bytes=largest.get(device),
                device_free_bytes=free,
                device_total_bytes=total,
                expandable=expandable,
                peak_bytes=torch.cuda.max_memory_allocated(device) if device in before else None,
                peak_before_bytes=before.get(device),
            )
        )
    return tuple(states), sizes


def _driver(device: int) -> tuple[int | None, int | None]:
    try:
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    except RuntimeError:
        return None, None
