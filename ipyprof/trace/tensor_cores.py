"""What a kernel's name tells of Tensor Cores: the only place that knows these names."""

from __future__ import annotations

import re
from functools import lru_cache

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
