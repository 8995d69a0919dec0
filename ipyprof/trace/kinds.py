"""What an event, a call or a kernel name means: the only place that knows names."""

from __future__ import annotations

import enum
import re


class Kind(enum.IntEnum):
    """What an event is. Device work is ``KERNEL`` to ``COMMUNICATION``."""

    OPERATOR = 0
    ANNOTATION = 1
    STEP = 2
    LINE = 3
    LOADER = 4
    CALL = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    COMMUNICATION = 9
    GPU_ANNOTATION = 10
    PYTHON = 11
    CUDA_SYNC = 12
    OTHER = 13


DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COMMUNICATION)


class Role(enum.IntEnum):
    """What a CUDA or HIP API call does to host and device."""

    OTHER = 0
    LAUNCH = 1
    GRAPH_LAUNCH = 2
    COPY = 3
    MEMSET = 4
    SYNC_DEVICE = 5
    SYNC_STREAM = 6
    SYNC_EVENT = 7
    ALLOC = 8
    FREE = 9
    HOST_ALLOC = 10
    EVENT_RECORD = 11
    STREAM_WAIT = 12


LINE_PREFIX = "## line "
STEP_PREFIX = "ProfilerStep#"
LOADER_PREFIX = "enumerate(DataLoader)#"

# Category as the file has it -> kind before the name is looked at. The capitalised ones are of torch 1.8 to 1.12.
CATEGORY_KINDS: dict[str, Kind] = {
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "Runtime": Kind.CALL,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "python_function": Kind.PYTHON,
    "cuda_sync": Kind.CUDA_SYNC,
    "overhead": Kind.OTHER,
}

# More digits than these are no line of a cell and no step: the name is from somewhere else.
_LINE = re.compile(re.escape(LINE_PREFIX) + r"[0-9]{1,7}(?!\S)")
_STEP = re.compile(re.escape(STEP_PREFIX) + r"[0-9]{1,15}(?!\S)")

# The word must begin with the library's own prefix: kernels of users may hold the word anywhere else.
_COLLECTIVE = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"nccl(?:Dev)?Kernel_"
    r"|nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|SendRecv)\w*Kernel"
    r"|rccl"
    r"|cross_device_reduce_"
    r"|(?:multimem|one_shot|two_shot)_all_(?:reduce|gather)"
    r"|deep_ep::"
    r")"
)

# ROCm writes copies and fills in the category of kernels.
_ROCM_COPY = re.compile(r"Copy(Host|Device)To(Host|Device)")
_ROCM_FILL = re.compile(r"FillBuffer\b")


def event_kind(category: str, name: str) -> Kind:
    """What the event of this category and name is; ``Kind.OTHER`` for a category that nothing here needs."""
    kind = CATEGORY_KINDS.get(category, Kind.OTHER)
    if kind in (Kind.OPERATOR, Kind.ANNOTATION, Kind.PYTHON):
        if name.startswith(LOADER_PREFIX) or "DataLoaderIter.__next__" in name:
            return Kind.LOADER
        if kind is not Kind.PYTHON:
            if _LINE.match(name):
                return Kind.LINE
            if _STEP.match(name):
                return Kind.STEP
    elif kind is Kind.KERNEL:
        if _COLLECTIVE.search(name):
            return Kind.COMMUNICATION
        if _ROCM_COPY.match(name):
            return Kind.MEMCPY
        if _ROCM_FILL.match(name):
            return Kind.MEMSET
    return kind


# Versions of one call: per-thread default streams, ABI versions.
_SUFFIX = re.compile(r"(?:_ptsz|_ptds|_spt|_v\d+)+$")
_LIBRARY = re.compile(r"^(?:cuda|cu|hip)(?=[A-Z])")

# First match wins; names are without library prefix and suffix. cuda, cu and hip agree on the rest of nearly all.
_ROLES: tuple[tuple[re.Pattern[str], Role], ...] = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"(?:Module|Ext|ExtModule)?Launch(?:Cooperative)?(?:Kernel\w*|Grid\w*)?$", Role.LAUNCH),
        (r"GraphLaunch$", Role.GRAPH_LAUNCH),
        (r"(?:MallocHost|HostAlloc|HostMalloc|FreeHost|HostFree|HostRegister|HostUnregister)$", Role.HOST_ALLOC),
        (r"Mem(?:HostAlloc|AllocHost|FreeHost|HostRegister|HostUnregister)$", Role.HOST_ALLOC),
        (r"(?:Ext)?Malloc\w*$", Role.ALLOC),
        (r"Mem(?:Alloc\w*|Create|Map\w*|AddressReserve|SetAccess)$", Role.ALLOC),
        (r"Free(?:Async|Array|MipmappedArray)?$", Role.FREE),
        (r"Mem(?:Free\w*|Unmap|Release|AddressFree)$", Role.FREE),
        (r"Memcpy\w*$", Role.COPY),
        (r"Memset\w*$", Role.MEMSET),
        (r"(?:Device|Ctx|Thread)Synchronize$", Role.SYNC_DEVICE),
        (r"StreamSynchronize$", Role.SYNC_STREAM),
        (r"EventSynchronize$", Role.SYNC_EVENT),
        (r"EventRecord(?:WithFlags)?$", Role.EVENT_RECORD),
        (r"StreamWaitEvent$", Role.STREAM_WAIT),
    )
)


def call_role(name: str) -> Role:
    """What the CUDA or HIP API call of this name does; ``Role.OTHER`` where it is a query or unknown."""
    bare, found = _LIBRARY.subn("", _SUFFIX.sub("", name))
    if not found:
        return Role.OTHER
    return next((role for pattern, role in _ROLES if pattern.match(bare)), Role.OTHER)


_DIRECTION = re.compile(r"\b(HtoD|DtoH|DtoD|PtoP|HtoH)\b")
_LONG_DIRECTION = re.compile(r"(Host|Device)To(Host|Device)")


def copy_direction(name: str) -> tuple[str, bool | None]:
    """Direction of a device copy, and whether its host memory is pageable.

    The direction is ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, ``HtoH`` or ``unknown``; pageable is ``None`` where the
    name does not say or no host memory takes part.

    Example:
        >>> copy_direction("Memcpy HtoD (Pageable -> Device)")
        ('HtoD', True)
        >>> copy_direction("CopyDeviceToHost")
        ('DtoH', None)
    """
    short = _DIRECTION.search(name)
    if short:
        direction = short.group(1)
    else:
        long = _LONG_DIRECTION.search(name)
        direction = f"{long.group(1)[0]}to{long.group(2)[0]}" if long else "unknown"
    if "Pageable" in name:
        return direction, True
    return direction, False if "Pinned" in name else None
