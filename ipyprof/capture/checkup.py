"""What this machine and this installation are, as plain facts: for ``python -m ipyprof doctor``, which judges them."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ipyprof.capture.nvml import DeviceReader
from ipyprof.capture.probes import package_version

PACKAGES = ("ipyprof", "torch", "ipython", "ipykernel", "ipywidgets", "matplotlib", "numpy", "msgspec", "nvidia-ml-py")
VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "KINETO_USE_DAEMON",
    "LD_LIBRARY_PATH",
)
_DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts, unjudged; ``None`` is "not known".

    Attributes:
        python: version of Python.
        packages: version of each of ``PACKAGES`` that is installed.
        required: the version requirements of ipyprof itself, such as ``numpy>=1.26``.
        cuda: CUDA version that torch was built for; ``None`` without.
        rocm: ROCm version that torch was built for; ``None`` without.
        devices: (name, compute capability as ``sm_90``) of each GPU that torch can use.
        architectures: what torch's kernels were compiled for, such as ``sm_90``.
        cuda_error: why CUDA does not start, empty where it does or where torch was built without.
        activities: what this torch says its profiler can record, such as ``CPU`` and ``CUDA``.
        driver: version of NVIDIA's driver.
        nvml_missing: why NVML does not answer, empty where it does.
        admin_only: the driver gives performance counters to administrators only.
        wsl: Windows Subsystem for Linux.
        variables: those of ``VARIABLES`` that are set.
        temporary_bytes: free space in the folder for temporary files; ``None`` where it cannot be written.
    """

    python: str
    packages: dict[str, str]
    required: tuple[str, ...]
    cuda: str | None
    rocm: str | None
    devices: tuple[tuple[str, str], ...]
    architectures: tuple[str, ...]
    cuda_error: str
    activities: tuple[str, ...]
    driver: str | None
    nvml_missing: str
    admin_only: bool | None
    wsl: bool
    variables: dict[str, str]
    temporary_bytes: int | None


def look() -> Machine:
    """The facts of this process. Starts CUDA where torch has it."""
    devices, cuda_error = _devices()
    reader = DeviceReader()
    try:
        driver, nvml_missing = reader.driver()
    finally:
        reader.close()
    return Machine(
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := package_version(name)) is not None},
        required=_required(),
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        devices=devices,
        architectures=tuple(torch.cuda.get_arch_list()) if devices else (),
        cuda_error=cuda_error,
        activities=tuple(sorted(activity.name for activity in torch.profiler.supported_activities())),
        driver=driver,
        nvml_missing=nvml_missing,
        admin_only=_admin_only(),
        wsl="microsoft" in platform.release().lower(),
        variables={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        temporary_bytes=_temporary_bytes(),
    )


def work(count: int) -> int:
    """How many kernels a recording of this call must hold at least: ``count`` small additions, waited for."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    value = torch.zeros(4096, device=device)
    for _ in range(count):
        value = value + 1
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    return count


def _required() -> tuple[str, ...]:
    """Without the extras, whose requirements carry a marker; empty in a checkout that is not installed."""
    try:
        return tuple(line for line in metadata.requires("ipyprof") or () if ";" not in line)
    except metadata.PackageNotFoundError:
        return ()


def _devices() -> tuple[tuple[tuple[str, str], ...], str]:
    if torch.version.cuda is None and torch.version.hip is None:
        return (), ""
    try:
        torch.cuda.init()
        found = []
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            found.append((torch.cuda.get_device_name(index), f"sm_{major}{minor}"))
        return tuple(found), ""
    except Exception as failure:  # torch raises RuntimeError, AssertionError and errors of its own
        return (), " ".join(str(failure).split())


def _admin_only() -> bool | None:
    try:
        settings = _DRIVER_SETTINGS.read_text()
    except OSError:
        return None
    values: dict[str, Any] = dict(line.split(": ", 1) for line in settings.splitlines() if ": " in line)
    return values.get("RmProfilingAdminOnly") == "1" if "RmProfilingAdminOnly" in values else None


def _temporary_bytes() -> int | None:
    try:
        with tempfile.TemporaryDirectory(prefix="ipyprof-") as folder:
            return shutil.disk_usage(folder).free
    except OSError:
        return None
