"""The allocator's own snapshot, for pytorch.org/memory_viz: every allocation of the run with its Python frames."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch

from ipyprof.errors import OptionError

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
