"""How many cores this process may use, which in a container is fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


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
            if controllers:
                yield _share(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
            else:
                quota, period, *_ = [*_text(folder / "cpu.max").split(), "", ""]
                yield _share(quota, period)
            if folder == base:
                break


def _share(quota: str, period: str) -> float:
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return -1.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
