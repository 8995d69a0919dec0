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
memory too. Costs 3 us an object of the notebook and 30 us a tensor (two busy cores), at most 0.4 s; and the copy of the
allocator's list of blocks.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from ipyprof.capture.namespaces import namespaces, users_file
from ipyprof.capture.notes import Notes
from ipyprof.capture.out_of_memory import out_of_memory
from ipyprof.capture.owners import owners_of
from ipyprof.options import Options
from ipyprof.trace.model import AllocatorState, LiveRecord, OutOfMemory

_KEPT = 2_000
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def look(known: dict[str, Any], options: Options, notes: Notes, error: BaseException | None = None) -> None:
    """Put ``owners``, ``owners_complete`` and ``allocator`` into the fields of a ``LiveRecord``, once.

    Nothing without ``options.memory``; a part that fails is left out and becomes a note.

    Args:
        error: what the cell ended with: its frames hold memory.
    """
    if not options.memory or "owners" in known:
        return
    known["allocator"], sizes = notes.shielded(allocator_states) or ((), {})
    known["owners"], known["owners_complete"] = notes.shielded(_owners, error, sizes) or (None, True)


def look_at_error(
    known: dict[str, Any], options: Options, notes: Notes, cell_name: str, error: BaseException | None
) -> None:
    """As ``look``, when the cell ends in an error; where that is a request that failed, ``out_of_memory`` too.

    After a recording what it ended with stays: an error that comes later puts only its own holders beside it.

    Args:
        cell_name: the file name that the cell is compiled under.
    """
    if error is None or not options.memory:
        return
    failed = notes.shielded(out_of_memory, error, cell_name)
    if failed is None:
        look(known, options, notes, error)
        return
    if "owners" not in known:
        look(known, options, notes, error)
        known["out_of_memory"] = failed
        return
    then: dict[str, Any] = {}
    look(then, options, notes, error)
    fields = {name: getattr(failed, name) for name in OutOfMemory.__struct_fields__}
    known["out_of_memory"] = OutOfMemory(**{**fields, "later": True, "owners": (then["owners"] or ())[:_KEPT]})
    known["allocator"] = then["allocator"]


def live_of_failure(options: Options, error: BaseException) -> LiveRecord | None:
    """The record of a cell whose recording was handed out before it ran out of memory; ``None`` for other errors."""
    notes = Notes()
    known: dict[str, Any] = {"cuda": torch.cuda.is_initialized()}
    look_at_error(known, options, notes, users_file(error), error)
    return LiveRecord(**known, notes=notes.as_tuple()) if "out_of_memory" in known else None


def _owners(error: BaseException | None, sizes: dict[tuple[int, int], tuple[int, int]]) -> Any:
    with namespaces(error) as spaces:
        return owners_of(spaces.given, sizes, results=spaces.results)


def allocator_states() -> tuple[tuple[AllocatorState, ...], dict[tuple[int, int], tuple[int, int]]]:
    """(states, sizes): each device in use, and (device, address) to (bytes, bytes asked for) of each block given out.

    Both empty where CUDA is not in use. Nothing is started, and no statistics change.
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
            )
        )
    return tuple(states), sizes


def _driver(device: int) -> tuple[int | None, int | None]:
    try:
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    except RuntimeError:
        return None, None
