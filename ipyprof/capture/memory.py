"""The request that ran out of memory, read from the error that the cell ended with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ipyprof.capture.notes import Notes
from ipyprof.capture.owners import mro_of, namespaces, owners_of, part_of, users_file
from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.trace.live import AllocatorState, LiveRecord, OutOfMemory

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


MOST_ENTRIES = 100_000


class MemoryHistory:
    """While it is on, torch keeps the history of its allocator; at the end the snapshot is written.

    A history that the user has switched on stays as it is, and is what is written.

    Args:
        target: file of the snapshot, or ``None``: then this does nothing.
        say: gets one line where the file could not be written.

    Raises:
        OptionError: on entering, where there is no CUDA allocator to ask.
    """

    def __init__(self, target: Path | None, say: Callable[[str], None]) -> None:
        self._target = None if target is None else target.absolute()
        self._say = say
        self._ours = False

    def __enter__(self) -> MemoryHistory:
        if self._target is not None:
            check_snapshot(self._target)
            if not history_on():
                torch.cuda.memory._record_memory_history(
                    enabled="all", context="all", stacks="python", max_entries=MOST_ENTRIES
                )
                self._ours = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._target is None:
            return
        try:
            self._write(self._target)
        except Exception as failure:
            self._say(f"ipyprof could not write the memory snapshot: {type(failure).__name__}: {failure}")
        finally:
            if self._ours:
                self._ours = False
                torch.cuda.memory._record_memory_history(enabled=None)

    def _write(self, target: Path) -> None:
        """There whole or not at all."""
        part = target.with_name(f".{target.name}.part")
        try:
            torch.cuda.memory._dump_snapshot(str(part))
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


def check_snapshot(target: Path) -> None:
    """Before anything runs: there is an allocator that can be asked.

    Raises:
        OptionError: there is no CUDA device, or this torch keeps no history.
    """
    if not torch.cuda.is_available():
        raise OptionError(
            f"--memory-snapshot {target}",
            "only the CUDA allocator keeps a history, and there is no CUDA device here",
            "leave it out",
        )
    if not hasattr(torch.cuda.memory, "_record_memory_history") or not hasattr(torch.cuda.memory, "_dump_snapshot"):
        raise OptionError(
            f"--memory-snapshot {target}", "the history came with torch 2.1", "use a newer torch or leave it out"
        )


def history_on() -> bool:
    """Whether a history is kept already; where torch does not say, whether there are entries."""
    known = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if known is not None:
        return bool(known())
    return any(torch.cuda.memory._snapshot().get("device_traces", ()))
