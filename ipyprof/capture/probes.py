"""Measurements beside the trace, each optional: lines that synchronise, process memory, versions."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, SupportsIndex

import torch

from ipyprof.capture.looking import NOT_THE_USERS
from ipyprof.trace.live import SyncSite

_SYNC_TEXT = "synchronizing CUDA operation"
_MODE_TEXT = "Synchronization debug mode is a prototype"


class _Matcher:
    """Stands in a warnings filter for a regular expression: counts what it sees, shows nothing of it."""

    def __init__(self, seen: Callable[[FrameType], None]) -> None:
        self._seen = seen
        self.on = True

    def match(self, text: str) -> bool:
        if not self.on:
            return False
        if _SYNC_TEXT in text:
            self._seen(sys._getframe(1))
            return True
        return _MODE_TEXT in text


class _Filters(list[Any]):
    """The warnings filters with ours kept in front, also in the copies that ``catch_warnings`` makes.

    Otherwise a step that records warnings, or makes them errors, would meet those of the probe.
    """

    def __init__(self, ours: tuple[Any, ...], others: Iterable[Any]) -> None:
        super().__init__([ours, *others])
        self._ours: tuple[Any, ...] | None = ours

    def insert(self, index: SupportsIndex, item: Any) -> None:
        super().insert(int(index) if self._ours is None else max(1, int(index)), item)

    def __getitem__(self, key: Any) -> Any:
        if self._ours is not None and key == slice(None):
            return _Filters(self._ours, self.others())
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        keeps = self._ours is not None and key == slice(None)
        super().__setitem__(key, [self._ours, *value] if keeps else value)

    def others(self) -> list[Any]:
        """Every filter but ours."""
        return [item for item in self if item is not self._ours]

    def give_up(self) -> None:
        """Be an ordinary list without our filter."""
        others, self._ours = self.others(), None
        self[:] = others


class SyncLines:
    """The lines that made the host wait for the GPU, by torch's sync-debug mode, while it is on.

    Costs 1.0 to 7.6 times the step where synchronisations are many: for a step that is thrown away. An explicit
    ``torch.cuda.synchronize()`` is not seen. The user's warnings are shown as before: the filter is put in without
    raising the version of the filters, so that no "shown once" register is cleared, and it matches torch's two
    messages only.
    """

    def __init__(self, cell_name: str) -> None:
        self._cell_name = cell_name
        self._counts: Counter[tuple[str, int]] = Counter()
        self._matcher = _Matcher(self._saw)
        self._original: Any = None
        self._filters: _Filters | None = None

    def start(self) -> bool:
        """Whether the probe is on. It is not where the user has set the mode, or CUDA is not in use."""
        if not torch.cuda.is_initialized() or torch.cuda.get_sync_debug_mode() != 0:
            return False
        self._original = warnings.filters
        self._filters = _Filters(("ignore", self._matcher, Warning, None, 0), self._original)
        warnings.filters = self._filters
        try:
            torch.cuda.set_sync_debug_mode(1)
        except BaseException:
            self._restore_filters()
            raise
        return True

    def stop(self) -> tuple[SyncSite, ...]:
        """The sites seen since ``start``, most frequent first; mode and filters are as before."""
        try:
            if self._filters is not None and torch.cuda.get_sync_debug_mode() == 1:
                torch.cuda.set_sync_debug_mode(0)
        finally:
            self._restore_filters()
        return tuple(
            SyncSite(file=file, line=line, count=float(count), in_cell=file == self._cell_name)
            for (file, line), count in self._counts.most_common()
        )

    def _restore_filters(self) -> None:
        filters, self._filters = self._filters, None
        self._matcher.on = False
        if filters is None:
            return
        self._original[:] = filters.others()  # filters that the step added stay
        now: Any = warnings.filters
        if now is filters:
            warnings.filters = self._original
        elif isinstance(now, _Filters):  # inside the user's catch_warnings, which will put ``filters`` back
            now.give_up()
        filters.give_up()

    def _saw(self, frame: FrameType | None) -> None:
        innermost = frame
        while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
            frame = frame.f_back
        at = frame or innermost
        if at is not None:
            self._counts[at.f_code.co_filename, at.f_lineno] += 1


def process_bytes() -> int | None:
    """Resident memory of this process in bytes; its peak where the system tells no more; ``None`` where nothing."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, str | None]:
    """Versions of torch, cuda, cupti, python and ipyprof; unknown is ``None``."""
    packages = ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu13", "nvidia-cuda-cupti-cu12")
    cupti = next((found for name in packages if (found := package_version(name)) is not None), None)
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cupti": cupti,
        "python": platform.python_version(),
        "ipyprof": package_version("ipyprof"),
    }


def package_version(name: str) -> str | None:
    """The version of an installed package, or ``None``."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def device_names() -> dict[str, str]:
    """Index → name of the devices that torch sees; empty while CUDA is not in use (asking would start it)."""
    if not torch.cuda.is_initialized():
        return {}
    return {str(index): torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}


def gpu_was_used() -> bool:
    """Whether anything was ever allocated on a GPU by this process. Starts nothing, changes no statistics."""
    if not torch.cuda.is_initialized():
        return False
    try:
        return any(
            torch.cuda.memory_stats(index).get("allocation.all.allocated", 0) > 0
            for index in range(torch.cuda.device_count())
        )
    except RuntimeError:
        return True


def usable_cores(root: Path = Path("/")) -> float | None:
    """Cores that this process may use: its affinity, or the quota of its control group where that is less.

    ``None`` where the system tells neither. ``root`` is where ``proc`` and ``sys`` lie.
    """
    try:
        cores: float | None = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        cores = None if os.cpu_count() is None else float(os.cpu_count() or 1)
    quotas = [quota for quota in _quotas(root) if quota > 0]
    return min([*quotas, *([] if cores is None else [cores])], default=None)


def _quotas(root: Path) -> Iterator[float]:
    """The quota in cores of every control group around this process that has one."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path, *_ = [*line.split(":", 2), "", ""]
        base = root / "sys/fs/cgroup"
        if controllers:
            if "cpu" not in controllers.split(","):
                continue
            base = base / "cpu" if (base / "cpu").is_dir() else base / controllers
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            with suppress(ValueError, ZeroDivisionError):  # no such file, or no limit
                quota, period = " ".join(_text(folder / file) for file in files).split()
                yield int(quota) / int(period)
            if folder == base:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
