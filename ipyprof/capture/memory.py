"""Who holds memory when a recording ends or the cell fails, what torch's allocator says then, and its history."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from msgspec import structs

from ipyprof.capture.looking import causes_of, frames_of, has_base, part_of
from ipyprof.capture.owners import namespaces, owners_of, users_file
from ipyprof.capture.recording import Notes
from ipyprof.errors import OptionError
from ipyprof.options import Options
from ipyprof.trace.live import AllocatorState, LiveRecord, OutOfMemory

_TEXT = 300
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB|TiB|B)\b"

_PARTS = {
    "tried_bytes": rf"[Tt]ried to allocate {_SIZE}",
    "capacity_bytes": rf"total capacity of {_SIZE}",
    "free_bytes": rf"of which {_SIZE} is free",
    "allocated_bytes": rf"{_SIZE} is allocated by PyTorch",
    "unused_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_WORDS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def out_of_memory(error: BaseException | None, cell_name: str) -> OutOfMemory | None:
    """The failed request behind an error, also where the error was raised from it; ``None`` for any other error.

    Args:
        error: what the cell raised.
        cell_name: the file name that the cell is compiled under; the line is of this file.
    """
    for one in reversed(causes_of(error)):
        arguments = part_of(one, "args")  # the message, without asking the error's own class for it
        text = arguments[0] if arguments and type(arguments[0]) is str else ""
        if _ran_out(one, text):
            lines = [line for raised in (error, one) for frame, line in frames_of(raised)
                     if frame.f_code.co_filename == cell_name]  # fmt: skip
            return read_message(text, line=lines[-1] if lines else None)
    return None


def _ran_out(error: BaseException, text: str) -> bool:
    kind = type(error)
    if has_base(kind, torch.OutOfMemoryError) or has_base(kind, MemoryError):
        return True
    return has_base(kind, RuntimeError) and any(word in text for word in _WORDS)


def read_message(text: str, *, line: int | None = None) -> OutOfMemory:
    """What torch's message says of the request; parts that it lacks are ``None``.

    Example:
        >>> read_message("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has").tried_bytes
        2147483648
    """
    sizes: dict[str, Any] = {name: _size(pattern, text) for name, pattern in _PARTS.items()}
    allowed = _size(rf"{_SIZE} allowed;", text)
    if allowed is not None:  # a limit below the device's memory, such as set_per_process_memory_fraction
        sizes["capacity_bytes"] = allowed
        room = allowed - (sizes["allocated_bytes"] or 0) - (sizes["unused_bytes"] or 0)
        sizes["free_bytes"] = max(min(room, sizes["free_bytes"] or room), 0)
    device = re.search(r"\bGPU (\d+)", text)
    on_cpu = "CPUAllocator" in text or "DefaultCPU" in text
    if on_cpu and sizes["capacity_bytes"] is None:
        sizes["capacity_bytes"] = _machine_bytes()
    return OutOfMemory(
        device=-1 if on_cpu else int(device.group(1)) if device is not None else 0,
        line=line,
        **sizes,
        text=" ".join(text.split())[:_TEXT],
    )


def _size(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else round(float(found.group(1)) * _UNITS[found.group(2)])


def _machine_bytes() -> int | None:
    """The memory of this machine, ``None`` where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


_KEPT = 2_000
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_NO_PEAKS: Mapping[int, int] = {}


class Holdings:
    """The looks of one run. A part that fails is left out and becomes a note.

    Args:
        over: nothing is recorded any more.

    Attributes:
        fields: of a ``LiveRecord``: ``owners``, ``owners_complete``, ``allocator``, ``out_of_memory``, as far as known.
    """

    def __init__(self, options: Options, notes: Notes, *, over: bool = False) -> None:
        self.fields: dict[str, Any] = {}
        self._options = options
        self._notes = notes
        self._over = over
        self._peaks: dict[int, int] = {}

    def begin(self) -> None:
        """Recording is about to begin."""
        self._over = False
        if self._options.memory and torch.cuda.is_initialized():
            self._peaks = self._notes.shielded(_peaks) or {}

    def stop(self) -> None:
        """Recording is over: what holds memory now, unless the error that ended it was looked at. Once."""
        self._over = True
        if self._options.memory and "owners" not in self.fields:
            self.fields |= self._look(None, self._peaks)

    def look_at_error(self, error: BaseException | None, cell_name: str) -> None:
        """What holds memory when the cell ends in an error, of a request that failed also without ``options.memory``.

        After a recording what it ended with stays: an error that comes later puts only its own holders beside it.

        Args:
            cell_name: the file name that the cell is compiled under.
        """
        failed = None if error is None else self._notes.shielded(out_of_memory, error, cell_name)
        if failed is not None and self._over:
            then = self._look(error, _NO_PEAKS)
            failed = structs.replace(failed, later=True, owners=(then["owners"] or ())[:_KEPT])
            self.fields["allocator"] = then["allocator"]
        elif error is not None and (failed is not None or self._options.memory) and "owners" not in self.fields:
            self.fields |= self._look(error, self._peaks)
        if failed is not None:
            self.fields["out_of_memory"] = failed

    def _look(self, error: BaseException | None, before: Mapping[int, int]) -> dict[str, Any]:
        states, sizes = self._notes.shielded(allocator_states, before) or ((), {})
        owners, complete = self._notes.shielded(_owners, error, sizes) or (None, True)
        return {"allocator": states, "owners": owners, "owners_complete": complete}


def live_of_failure(options: Options, error: BaseException) -> LiveRecord | None:
    """The record of a cell whose recording was handed out before it ran out of memory; ``None`` for other errors."""
    notes = Notes()
    holdings = Holdings(options, notes)
    holdings.look_at_error(error, users_file(error))
    if "out_of_memory" not in holdings.fields:
        return None
    return LiveRecord(**holdings.fields, cuda=torch.cuda.is_initialized(), notes=notes.as_tuple())


def _owners(error: BaseException | None, sizes: Mapping[tuple[int, int], int]) -> Any:
    with namespaces(error) as spaces:
        return owners_of(spaces, sizes)


def _peaks() -> dict[int, int]:
    """Device to ``max_memory_allocated``. No statistics change."""
    return {device: torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())}


def allocator_states(
    before: Mapping[int, int] = _NO_PEAKS,
) -> tuple[tuple[AllocatorState, ...], dict[tuple[int, int], int]]:
    """(states, sizes): each device in use, and (device, address) to the bytes of each block given out.

    Both empty where CUDA is not in use. Nothing is started, and no statistics change.

    Args:
        before: ``max_memory_allocated`` of each device at an earlier moment, from which on a peak counts.
    """
    if not torch.cuda.is_initialized():
        return (), {}
    largest: dict[int, int] = {}
    sizes: dict[tuple[int, int], int] = {}
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
                sizes[device, address] = block["size"]
            address += block["size"]
    expandable = any("expandable_segments:true" in os.environ.get(name, "").lower() for name in _SETTINGS)
    states = []
    for device in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(device)
        if not reserved:
            continue
        try:
            free, total = torch.cuda.mem_get_info(device)
        except RuntimeError:
            free = total = None
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
        OptionError: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise OptionError(
            f"--memory-snapshot {target}",
            "only the CUDA allocator keeps a history, and there is no CUDA device here",
            "leave it out",
        )


def history_on() -> bool:
    """Whether a history is kept already; where torch does not say, whether there are entries."""
    known = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(known()) if known is not None else any(torch.cuda.memory._snapshot().get("device_traces", ()))
