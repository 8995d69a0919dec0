"""What an event, a call or a kernel name means: the only place that knows names."""

from __future__ import annotations

import enum
import re
from functools import lru_cache


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
    r"|rccl|mscclKernel|mscclpp"
    r"|cross_device_reduce_|quickreduce::|userbuffers_"  # vLLM, SGLang, AITER, Transformer Engine
    r"|(?:one|two)ShotAllReduceKernel|allreduce_fusion_kernel"  # TensorRT-LLM, FlashInfer
    r"|(?:(?:multimem|one_shot|two_shot)_)+(?:all_(?:reduce|gather)|reduce_scatter)"
    r"|c10d::(?:symmetric_memory|nvshmem_extension)::"
    r"|nvshmem"
    r"|(?:barrier|sync|alltoall|broadcast|fcollect|rdxn|reducescatter)_on_stream_kernel"  # NVSHMEM's own
    r"|deep_ep::|(?:\w+::)*ep::(?:internode|intranode)"  # DeepEP under any namespace
    r")"
)

# ROCm writes copies and fills in the category of kernels.
_ROCM_COPY = re.compile(r"Copy(Host|Device)To(Host|Device)")
_ROCM_FILL = re.compile(r"FillBuffer\b")


# Of accelerators whose records nothing here reads: how their categories, or the names of their processes, begin.
_ACCELERATORS = (
    ("Ascend Hardware", "NPU"), ("mtia_", "MTIA"), ("xpu_", "XPU"), ("hpu_", "HPU"), ("privateuse1_", "PrivateUse1"),
)  # fmt: skip


def accelerator(text: str) -> str:
    """The accelerator that this category or name of a process is of, where its records are not read; else empty.

    Example:
        >>> accelerator("mtia_ccp_events")
        'MTIA'
    """
    return next((name for begin, name in _ACCELERATORS if text.startswith(begin)), "")


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


YES, NO, UNKNOWN, NONE = "yes", "no", "unknown", "n/a"
"""Proven used, proven not used, the name does not say, and not a product at all (``n/a``)."""

# Helpers of products and attention: they multiply nothing themselves.
_HELPER = re.compile(
    r"splitK_?reduce|ReduceSplitK|PostGSU|nchwToNhwc|nhwcToNchw|compute\w*OffsetsKernel|generateWinogradTiles"
    r"|winograd(?:Forward|Wgrad|Dgrad)\w+4x4|epilogue::impl::globalKernel|compute_dot_do_o|convert_dq_to_16bits"
    r"|reduce_wgrad_nchw"
    r"|flash_bwd_(?:dot_do_o|convert)|flash_fwd_splitkv_combine|batched_transpose|SubTensorOp|cudnn::.*(?:scalePacked|kern_precompute)",
    re.IGNORECASE,
)
_USED = re.compile(
    r"nvjet_"  # cuBLAS on Hopper and later
    r"|tensor_?op(?!eration)"  # CUTLASS 2 and 3
    r"|wgmma|gmma|hmma|imma|dmma|utcmma|tcgen05"  # the units' instructions
    # volta_h884gemm, turing_fp16_s1688gemm, ampere_bf16_s16816gemm: the shape of one instruction.
    r"|(?:^|[^a-z])[shid](?:884|1688|16816|161616|16832|8816)(?:gemm|cudnn|fprop|dgrad|wgrad|_|$)"
    r"|tf32f32|tf32tf32|_tf32_|tf32gemm"
    r"|xmma_\w*?(?:f16f16|bf16bf16|e4m3|e5m2|i8i8)"  # cuBLAS and cuDNN xmma
    r"|_tensor\d+x\d+x\d+"
    r"|(?:^|[^a-z])flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|flash::(?:enable_sm|device_kernel)"
    r"|_flash_(?:fprop|bprop)"
    r"|fmha_cutlass[FB]_(?:f16|bf16)\w*sm(?:7[05]|8|9)"
    r"|fmha_v2_"
    r"|deep_gemm::",
    re.IGNORECASE,
)
_NOT_USED = re.compile(
    r"simt"  # CUTLASS on CUDA cores
    r"|ffma"  # xmma on CUDA cores
    r"|(?:^|[^a-z0-9])(?:maxwell|volta|turing|ampere|ada|hopper|blackwell)_(?:\w*?_)?[sd]gemm"
    r"|(?:^|[^a-z0-9])(?:maxwell|volta|turing|ampere|ada|hopper|blackwell)_(?:\w*?_)?[sd]cudnn"
    r"|(?:implicit|explicit|precomputed)_convolve_sgemm"
    r"|magma_?(?:blas)?_?sgemm|(?:^|[^a-z])g?[cz]gemm_|(?:^|[^a-z])sgemm_(?:largek|\d+x)"
    r"|(?:wgrad_alg\d|dgrad)_engine"
    r"|(?:^|[^a-z])gemv|gemvx|gemvNSP|dot_kernel|gemmk1_kernel|gemmSN_"
    r"|fmha_cutlass[FB]_\w*sm50",
    re.IGNORECASE,
)

# Kernels that multiply no matrices, so that the question does not arise.
_NO_PRODUCT = re.compile(
    r"elementwise_kernel|reduce_kernel|softmax|layer_norm|batch_norm|bn_(?:fw|bw)|multi_tensor_apply|CatArray"
    r"|DeviceRadixSort|^Mem(?:cpy|set)|^nccl|fbgemm_gpu::|split_embedding|fft2d_|spin_kernel|transpose_\w+2\w+|^triton_(?:poi|red|per)_",
    re.IGNORECASE,
)

# torch's own kernels are no products, but for those that it generates from CUTLASS or takes from flash attention.
_OWN = ("void at::native::", "at::native::", "void at_cuda_detail::", "void cub::", "void thrust::")
_OWN_PRODUCTS = ("cutlass", "flash", "fmha", "gemm", "GEMM", "conv")


@lru_cache(maxsize=4096)
def tensor_core_evidence(kernel_name: str) -> str:
    """``yes``, ``no``, ``unknown`` or ``n/a`` for one kernel, from its name alone.

    ``unknown`` where the name does not say, as for Triton templates and other makers' kernels; helpers of a product are
    ``n/a``.

    Example:
        >>> tensor_core_evidence("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
        'yes'
        >>> tensor_core_evidence("volta_sgemm_128x64_nn")
        'no'
        >>> tensor_core_evidence("triton_tem_fused_mm_0")
        'unknown'
    """
    if kernel_name.startswith(_OWN) and not any(word in kernel_name for word in _OWN_PRODUCTS):
        return NONE
    if _HELPER.search(kernel_name):
        return NONE
    if _USED.search(kernel_name) and not _NOT_USED_FIRST.search(kernel_name):
        return YES
    if _NOT_USED.search(kernel_name):
        return NO
    return NONE if _NO_PRODUCT.search(kernel_name) else UNKNOWN


# CUTLASS and xmma write the data's type beside the instruction: these two words settle it.
_NOT_USED_FIRST = re.compile(r"simt|ffma", re.IGNORECASE)
_MISALIGNED = re.compile(r"_align([12])\b|_align([12])>")


def loads_unaligned(kernel_name: str) -> bool:
    """Whether the name says that the kernel loads one or two elements at a time (CUTLASS ``align1``, ``align2``).

    Example:
        >>> loads_unaligned("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1")
        True
    """
    return _MISALIGNED.search(kernel_name) is not None
