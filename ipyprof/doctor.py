"""``python -m ipyprof doctor``: can ipyprof do its work here, and where it cannot, what to do.

The checks judge plain facts (``ipyprof.capture.checkup``) and three recordings that are made on the spot through the
same path as a cell's. Three, since the faults of some CUDA versions show from the second recording of a process on.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ipyprof.capture.checkup import Machine

RECORDINGS = 3
KERNELS = 20
TESTED = "torch 2.11 with CUDA 13.0, and torch 2.13 on the CPU"
_SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
_WIDTH = 100
_LEAST_TEMPORARY_BYTES = 2_000_000_000
"""A recording of 30 s writes some hundred MB of JSON, and exporting holds a second copy for a moment."""

# CUDA versions with a known fault in CUPTI: (first, last, what happens, source).
KNOWN_BAD: tuple[tuple[tuple[int, int], tuple[int, int], str], ...] = (
    (
        (12, 6),
        (12, 9),
        "the second and later recordings of one process may lose their first kernels or place them at wrong times "
        "(pytorch#192021, pytorch#175790)",
    ),
)
_PERMISSION = (
    "allow GPU tracing: the driver option NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN for a container; "
    "under WSL update the Windows driver"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the answer.

    Attributes:
        name: what was looked at.
        status: ``ok``; ``warn``: ipyprof works, with this limit; ``fail``: it cannot do its main job.
        found: what was found.
        todo: what to do, empty where nothing is.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one recording on the spot gave.

    Attributes:
        launched: kernels that were launched in it at least.
        kernels: kernels that it holds.
        operators: calls of operators that it holds.
        doubts: what its report's trust section warns of that has to do with records and clocks.
        error: why there is none, empty where there is one.
    """

    launched: int = 0
    kernels: int = 0
    operators: int = 0
    doubts: tuple[str, ...] = ()
    error: str = ""


def check_up(say: Callable[[str], None] = lambda _text: None) -> tuple[Check, ...]:
    """All checks of this process, in order. ``say`` gets a line before what takes seconds. torch is imported here."""
    say("looking at the installation...")
    try:
        from ipyprof.capture import checkup
    except ImportError as failure:
        todo = "install torch for your machine: https://pytorch.org/get-started/locally"
        return (Check(name="torch", status="fail", found=f"cannot be imported: {failure}", todo=todo),)
    machine = checkup.look()
    say("recording (the first start of CUPTI takes seconds)..." if machine.devices else "recording...")
    return tuple(judge(machine, [_record() for _ in range(RECORDINGS)]))


def judge(machine: Machine, recordings: Sequence[Recording]) -> Iterator[Check]:
    """The checks of these facts."""
    yield from _versions(machine)
    yield _cuda(machine)
    yield from _known_bad(machine)
    yield from _recordings(machine, recordings)
    yield from _permission(machine, recordings)
    yield from _driver(machine)
    yield from _variables(machine)
    yield _widgets(machine)
    yield _temporary(machine)


def rendered(checks: Sequence[Check]) -> str:
    """The answer as text: a line per check, and under it what to do."""
    name_width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines += _wrapped(f"{_SIGNS[check.status]} {check.name:{name_width}}  {check.found}", name_width + 4)
        if check.todo:
            lines += _wrapped(f"{'':{name_width + 4}}→ {check.todo}", name_width + 6)
    failed, warned = (sum(check.status == status for check in checks) for status in ("fail", "warn"))
    if failed:
        lines.append("ipyprof cannot do its main job here yet.")
    else:
        lines.append("ipyprof works here" + (", with the limits marked by !." if warned else "."))
    return "\n".join(lines)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=" " * indent, drop_whitespace=True, replace_whitespace=False,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _record() -> Recording:
    """One recording through the public door."""
    from ipyprof import api
    from ipyprof.capture import checkup

    try:
        with api.profile(quiet=True, at_end=True, name="doctor") as run:
            launched = checkup.work(KERNELS)
    except Exception as failure:
        return Recording(error=" ".join(f"{type(failure).__name__}: {failure}".split()))
    if (report := run.report) is None:
        return Recording(launched=launched, error="no report came of it")
    return Recording(
        launched=launched,
        kernels=round(sum(kernel.calls for kernel in report.kernels)),
        operators=round(sum(operator.calls for operator in report.operators)),
        doubts=tuple(
            check.text for check in report.trust if check.check in ("records", "clocks") and check.status != "ok"
        ),
    )


def _versions(machine: Machine) -> Iterator[Check]:
    installed = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    old = [wish for wish in machine.required if not _fulfilled(wish, machine.packages)]
    found = f"Python {machine.python}, {installed}"
    if old:
        todo = f"pip install {' '.join(map(repr, old))}"
        yield Check(name="versions", status="fail", found=f"{found}; too old for {', '.join(old)}", todo=todo)
    else:
        yield Check(name="versions", status="ok", found=f"{found}; tested with {TESTED}")


def _fulfilled(wish: str, packages: dict[str, str]) -> bool:
    """Whether a requirement such as ``numpy>=1.26`` holds; one of a package that is not looked at does."""
    match = re.match(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?", wish)
    if match is None or match[2] is None or match[1] not in packages:
        return True
    return _numbers(packages[match[1]]) >= _numbers(match[2])


def _numbers(version: str) -> tuple[int, ...]:
    """The release part of a version: (2, 11, 0) of ``2.11.0+cu130``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _cuda(machine: Machine) -> Check:
    if machine.cuda is None and machine.rocm is None:
        todo = "for a GPU, install torch with CUDA: https://pytorch.org/get-started/locally"
        found = "this torch was built without CUDA: reports speak of the CPU"
        return Check(name="GPU", status="warn", found=found, todo=todo)
    build = f"CUDA {machine.cuda}" if machine.cuda is not None else f"ROCm {machine.rocm}"
    if not machine.devices:
        reason = machine.cuda_error or "no GPU is visible"
        todo = "look at nvidia-smi: a driver that is too old for this CUDA, a container without --gpus, or an empty "
        found = f"torch was built for {build}, but it does not start: {reason}; reports speak of the CPU"
        return Check(name="GPU", status="warn", found=found, todo=f"{todo}CUDA_VISIBLE_DEVICES")
    names = ", ".join(f"{name} ({capability})" for name, capability in machine.devices)
    if machine.rocm is not None:
        todo = "saved traces of ROCm are read; live recordings on it are not tested"
        return Check(name="GPU", status="warn", found=f"{names}, {build}", todo=todo)
    foreign = sorted({one for _, one in machine.devices if not _covered(one, machine.architectures)})
    if foreign:
        found = f"{names}, {build}; torch has no kernels for {', '.join(foreign)}"
        return Check(name="GPU", status="fail", found=found, todo="install a torch that was built for this GPU")
    return Check(name="GPU", status="ok", found=f"{names}, {build}")


def _covered(capability: str, architectures: Sequence[str]) -> bool:
    """Whether kernels built for one of these run here: the same major number and no higher minor one, or older PTX."""
    if not architectures:
        return True  # not told
    own = _capability(capability)
    return any(
        (theirs[0] == own[0] and theirs[1] <= own[1]) or (name.startswith("compute_") and theirs <= own)
        for name in architectures
        for theirs in (_capability(name),)
    )


def _capability(name: str) -> tuple[int, int]:
    """(9, 0) of ``sm_90`` or ``compute_90a``."""
    digits = re.sub(r"\D", "", name)
    return (int(digits[:-1] or 0), int(digits[-1:] or 0))


def _known_bad(machine: Machine) -> Iterator[Check]:
    if machine.cuda is None or not machine.devices:
        return
    version = _numbers(machine.cuda)[:2]
    for first, last, fault in KNOWN_BAD:
        if first <= version <= last:
            todo = "use a torch built for CUDA 13, or restart the kernel before a profile that looks odd"
            yield Check(name="CUPTI version", status="warn", found=f"CUDA {machine.cuda}: {fault}", todo=todo)


def _recordings(machine: Machine, recordings: Sequence[Recording]) -> Iterator[Check]:
    name = "recording"
    if machine.devices and "CUDA" not in machine.activities:
        todo = "install a torch whose profiler was built with CUPTI (the wheels of pytorch.org are)"
        yield Check(name=name, status="fail", found="this torch cannot record the GPU", todo=todo)
        return
    errors = [recording.error for recording in recordings if recording.error]
    if errors:
        todo = "if another profiler is on in this process or a debugger holds the GPU, end it and try again"
        yield Check(name=name, status="fail", found=errors[0], todo=todo)
        return
    calls = ", ".join(str(recording.operators) for recording in recordings)
    if not any(recording.operators for recording in recordings):
        yield Check(name=name, status="fail", found="torch's profiler recorded no operator", todo="reinstall torch")
        return
    if not machine.devices:
        yield Check(name=name, status="ok", found=f"{calls} calls of operators in {len(recordings)} recordings (CPU)")
        return
    kernels = ", ".join(str(recording.kernels) for recording in recordings)
    found = f"{kernels} kernels in {len(recordings)} recordings of {recordings[0].launched} launches or more"
    if not any(recording.kernels for recording in recordings):
        yield Check(name=name, status="fail", found=f"CUPTI does not answer: {found}", todo=_PERMISSION)
    elif any(recording.kernels < recording.launched for recording in recordings):
        todo = "restart the kernel before each profile; torch built for CUDA 13 does not show this"
        yield Check(name=name, status="fail", found=f"CUPTI loses records: {found}", todo=todo)
    elif doubts := list(dict.fromkeys(doubt for recording in recordings for doubt in recording.doubts)):
        todo = "restart the kernel before a profile whose report warns of this"
        yield Check(name=name, status="warn", found=f"{found}; {'; '.join(doubts)}", todo=todo)
    else:
        yield Check(name=name, status="ok", found=found)


def _permission(machine: Machine, recordings: Sequence[Recording]) -> Iterator[Check]:
    """Only where kernels are missing does the driver's setting matter: tracing needs no counters on most systems."""
    if not machine.devices or any(recording.kernels for recording in recordings):
        return
    if machine.admin_only:
        found = "the driver gives profiling to administrators only (RmProfilingAdminOnly: 1)"
        yield Check(name="permission", status="fail", found=found, todo=_PERMISSION)
    if "cuda" in machine.variables.get("LD_LIBRARY_PATH", "").lower():
        found = "holds a folder of CUDA: its CUPTI may be found in place of torch's own (pytorch#118982)"
        yield Check(name="LD_LIBRARY_PATH", status="warn", found=found, todo="unset it and try again")
    if machine.wsl:
        yield Check(name="platform", status="warn", found="Windows Subsystem for Linux", todo=_PERMISSION)


def _driver(machine: Machine) -> Iterator[Check]:
    if not machine.devices:
        return
    if machine.nvml_missing:
        missing = "clock, power, PCIe link and other processes are not measured"
        todo = "pip install nvidia-ml-py" if "nvidia-ml-py" not in machine.packages else "look at nvidia-smi"
        yield Check(name="NVML", status="warn", found=f"{machine.nvml_missing}: {missing}", todo=todo)
    else:
        yield Check(name="NVML", status="ok", found=f"answers; driver {machine.driver}")


def _variables(machine: Machine) -> Iterator[Check]:
    """Settings that change what is measured."""
    said = {
        "CUDA_LAUNCH_BLOCKING": (
            "every launch waits for its kernel: the GPU idles between kernels in every program",
            "unset it before you measure",
        ),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": (
            "every tensor calls cudaMalloc: the verdict will be the allocator",
            "unset it before you measure",
        ),
        "CUDA_INJECTION64_PATH": (
            "another tool traces this process; only one may use CUPTI",
            "start without Nsight Systems or that tool",
        ),
        "NVTX_INJECTION64_PATH": (
            "another tool traces this process; only one may use CUPTI",
            "start without Nsight Systems or that tool",
        ),
        "KINETO_USE_DAEMON": (
            "a daemon may start torch's profiler from outside; only one can be on",
            "unset it if reports say that another profiler was on",
        ),
    }
    for name, (meaning, todo) in said.items():
        if machine.variables.get(name, "0") not in ("0", ""):
            yield Check(name=name, status="warn", found=f"is set: {meaning}", todo=todo)


def _widgets(machine: Machine) -> Check:
    version = machine.packages.get("ipywidgets")
    if version is None or "ipykernel" not in machine.packages:
        missing = "ipywidgets" if version is None else "ipykernel"
        found = f"{missing} is not installed here: notebooks show the page, without the panel"
        return Check(name="panel", status="warn", found=found, todo=f"pip install {missing}")
    return Check(name="panel", status="ok", found=f"ipywidgets {version}")


def _temporary(machine: Machine) -> Check:
    name = "temporary files"
    if machine.temporary_bytes is None:
        todo = "set TMPDIR to a folder that can be written"
        return Check(name=name, status="fail", found="the folder cannot be written", todo=todo)
    found = f"{machine.temporary_bytes / 1e9:.1f} GB free"
    if machine.temporary_bytes < _LEAST_TEMPORARY_BYTES:
        todo = "a long recording may need more: set TMPDIR to a larger disk, or use a smaller --active"
        return Check(name=name, status="warn", found=found, todo=todo)
    return Check(name=name, status="ok", found=found)
