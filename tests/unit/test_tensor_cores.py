"""Tensor Core evidence from kernel names."""

from __future__ import annotations

import pytest

from ipyprof.trace.kinds import loads_unaligned, tensor_core_evidence

USED = """
nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT
nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN
nvjet_qqtst_128x256_128x5_1x2_h_bz_coopA_TNT
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(cutlass_80::Params)
void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>(cutlass_80::Params)
void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>(cutlass_75::Params)
cutlass3x_sm90_tensorop_s64x256x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn_align8_warpspecialized
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::MainloopSm90TmaGmmaWarpSpecialized>>
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x64x32_stage3_warpsize2x2x1_tensor16x8x8_kernel
sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8_kernel_cudnn
volta_h884gemm_256x128_ldg8_nn
volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn
volta_s884cudnn_fp16_256x64_ldg8_relu_exp_interior_nhwc_tn_v1
turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn
turing_h1688gemm_128x128_ldg8_nn
ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn
ampere_h16816gemm_128x128_ldg8_stages_32x5_nn
ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn
void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>>
void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<64>
cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0
fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)
"""
NOT_USED = """
ampere_sgemm_128x64_nn
volta_sgemm_128x64_nn
maxwell_sgemm_128x64_tn
volta_fp16_sgemm_fp16_128x64_nn
ampere_sgemm_32x32_sliced1x4_nn
void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(cutlass_80_simt_sgemm_256x128_8x4_nn_align1::Params)
sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8_stage3_warpsize4x1x1_ffma_aligna4_alignc4_execute_kernel__51_cublas
cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1
void implicit_convolve_sgemm<float, float, 128, 6, 7, 3, 3, 5, 1, false, false, true>
void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>
void sgemm_largek_lds64<true, false, 5, 5, 4, 4, 4, 34>
"""
NOT_TOLD = """
triton_tem_fused_addmm_0
_attn_fwd
Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1
_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3
my_own_matmul_kernel
fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)
"""
NO_PRODUCT = """
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >
void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*, float const*)
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false, float>
void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>
void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::AgentScanPolicy<128, 15, long>>
triton_poi_fused_add_0
Memset (Device)
Memcpy DtoD (Device -> Device)
"""


def names(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("name", names(USED))
def test_name_proves_use(name: str) -> None:
    assert tensor_core_evidence(name) == "yes"


@pytest.mark.parametrize("name", names(NOT_USED))
def test_name_proves_that_they_are_not_used(name: str) -> None:
    assert tensor_core_evidence(name) == "no"


@pytest.mark.parametrize("name", names(NOT_TOLD))
def test_name_does_not_tell(name: str) -> None:
    assert tensor_core_evidence(name) == "unknown"


@pytest.mark.parametrize("name", names(NO_PRODUCT))
def test_kernel_is_no_product(name: str) -> None:
    assert tensor_core_evidence(name) == "n/a"


@pytest.mark.parametrize(
    ("name", "unaligned"),
    [
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>(Params)", True),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2", True),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8", False),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", False),
    ],
)
def test_name_tells_narrow_loads(name: str, unaligned: bool) -> None:
    assert loads_unaligned(name) is unaligned
