"""The request that ran out of memory, read from the error that the cell ended with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import torch

from ipyprof.capture.namespaces import part_of
from ipyprof.capture.objects import mro_of
from ipyprof.trace.model import OutOfMemory

_MOST_CAUSES = 8
_TEXT = 300
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB|TiB|B)\b"
# Each in the words of torch 2.x first, of torch 1.x behind it.
_PARTS = {
    "tried_bytes": (rf"[Tt]ried to allocate {_SIZE}", rf"you tried to allocate {_SIZE}"),
    "capacity_bytes": (rf"total capacity of {_SIZE}", rf"{_SIZE} total capacity"),
    "free_bytes": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "allocated_bytes": (rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated"),
    "unused_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
}
_ALLOWED = rf"{_SIZE} allowed;"
_RESERVED = re.compile(rf"{_SIZE} reserved in total by PyTorch")
_DEVICE = re.compile(r"\bGPU (\d+)")
_WORDS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def out_of_memory(error: BaseException | None, cell_name: str) -> OutOfMemory | None:
    """The failed request behind an error, also where the error was raised from it; ``None`` for any other error.

    Args:
        error: what the cell raised.
        cell_name: the file name that the cell is compiled under; the line is of this file.
    """
    for one in _causes(error):
        text = _text_of(one)
        if not _ran_out(one, text):
            continue
        line = _line(one, cell_name)
        line = _line(error, cell_name) if line is None else line
        return read_message(text, line=line, machine_bytes=_machine_bytes())
    return None


def _machine_bytes() -> int | None:
    """The memory of this machine, ``None`` where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def read_message(text: str, *, line: int | None = None, machine_bytes: int | None = None) -> OutOfMemory:
    """What torch's message says of the request; parts that this version of the message lacks are ``None``.

    ``machine_bytes`` is the machine's memory, against which a request on the CPU stands.

    Example:
        >>> read_message("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has").tried_bytes
        2147483648
    """
    sizes = {name: _first(patterns, text) for name, patterns in _PARTS.items()}
    reserved = _first((_RESERVED.pattern,), text)
    if sizes["unused_bytes"] is None and reserved is not None and sizes["allocated_bytes"] is not None:
        sizes["unused_bytes"] = reserved - sizes["allocated_bytes"]
    allowed = _first((_ALLOWED,), text)
    if allowed is not None:  # a limit below the device's memory, such as set_per_process_memory_fraction
        sizes["capacity_bytes"] = allowed
        room = allowed - (sizes["allocated_bytes"] or 0) - (sizes["unused_bytes"] or 0)
        sizes["free_bytes"] = max(min(room, sizes["free_bytes"] or room), 0)
    device = _DEVICE.search(text)
    on_cpu = "CPUAllocator" in text or "DefaultCPU" in text
    return OutOfMemory(
        device=-1 if on_cpu else int(device.group(1)) if device is not None else 0,
        line=line,
        tried_bytes=sizes["tried_bytes"],
        capacity_bytes=machine_bytes if on_cpu and sizes["capacity_bytes"] is None else sizes["capacity_bytes"],
        free_bytes=sizes["free_bytes"],
        allocated_bytes=sizes["allocated_bytes"],
        unused_bytes=sizes["unused_bytes"],
        text=" ".join(text.split())[:_TEXT],
    )


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        found = re.search(pattern, text)
        if found is not None:
            return round(float(found.group(1)) * _UNITS[found.group(2)])
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from, the innermost first."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < _MOST_CAUSES and all(error is not one for one in chain):
        chain.append(error)
        error = part_of(error, "__cause__") or part_of(error, "__context__")
    yield from reversed(chain)


def _ran_out(error: BaseException, text: str) -> bool:
    known = [one for one in (getattr(torch, "OutOfMemoryError", None), torch.cuda.OutOfMemoryError, MemoryError) if one]
    bases = mro_of(type(error))
    if any(base is one for base in bases for one in known):
        return True
    return any(base is RuntimeError for base in bases) and any(word in text for word in _WORDS)


def _text_of(error: BaseException) -> str:
    """The message, without asking the error's own class for it."""
    arguments = part_of(error, "args")
    return arguments[0] if arguments and type(arguments[0]) is str else ""


def _line(error: BaseException | None, cell_name: str) -> int | None:
    """The cell's line that the innermost of its frames in the traceback stands on."""
    line = None
    trace = None if error is None else part_of(error, "__traceback__")
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == cell_name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
