"""The causes that lie in the GPU's own work, on recordings of a GPU that never waits."""

from __future__ import annotations

import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.causes import cause_of, misaligned_shapes
from tests.device_work import BF16, FLOAT, HALF, Call, elementwise, product, recorded
from tests.shared_traces import shared_trace

NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
NARROW = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1>(Params)"
SGEMM = "ampere_sgemm_128x128_nn"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x32_cublas"
ELEMENTS = 64_000_000
# One read or write of that many float32 at the measured 4.25 TB/s.
PASS_MS = 4 * ELEMENTS / 4.25e12 * 1e3


# Float32 without Tensor Cores (E10).

SLOW = product(4096, 4096, 4096, 2690, SGEMM, FLOAT)
BF16_MS = 2 * 4096**3 / 779e12 * 1e3


def test_float32_products_without_tensor_cores_are_found() -> None:
    finding = cause_of("tensor_cores").find(recorded([SLOW] * 6))

    assert finding.status == "found"
    assert finding.predicted_step_ms == pytest.approx(6 * (BF16_MS + 0.001))
    assert finding.recoverable_ms == pytest.approx(6 * (2.690 - BF16_MS))
    assert (finding.where.operator, finding.where.line) == ("aten::mm", 3)
    assert [(site.where.operator, site.count, site.status) for site in finding.sites] == [("aten::mm", 6, "found")]
    assert "2.08 ms in TF32 or 1.06 ms in bfloat16" in finding.evidence
    assert finding.advice.startswith("If float32 is not intended")
    assert "torch.set_float32_matmul_precision('high')" in finding.advice


def test_nothing_is_claimed_of_float32_on_tensor_cores() -> None:
    finding = cause_of("tensor_cores").find(recorded([product(4096, 4096, 4096, 350, TF32, FLOAT)] * 6))

    assert (finding.status, finding.recoverable_ms) == ("cleared", 0.0)


def test_nothing_is_claimed_of_16_bits_without_tensor_cores_in_the_name() -> None:
    finding = cause_of("tensor_cores").find(recorded([product(4096, 4096, 4096, 350, "my_kernel")] * 6))

    assert finding.status == "cleared"


def test_kernel_that_does_not_tell_is_unknown() -> None:
    finding = cause_of("tensor_cores").find(recorded([product(4096, 4096, 4096, 2690, "my_kernel", FLOAT)] * 6))

    assert finding.status == "unknown"
    assert "do not tell" in finding.evidence


def test_products_without_shapes_are_unknown() -> None:
    finding = cause_of("tensor_cores").find(recorded([Call("aten::mm", 2690, [], [], SGEMM)] * 6))

    assert finding.status == "unknown"
    assert "shapes were not recorded" in finding.evidence


def test_matrix_times_vector_is_no_case_for_tensor_cores() -> None:
    gemv = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>"

    finding = cause_of("tensor_cores").find(recorded([product(8192, 8192, 1, 60, gemv, FLOAT)] * 6))

    assert finding.status == "cleared"


def test_card_without_the_units_gets_no_advice() -> None:
    finding = cause_of("tensor_cores").find(recorded([SLOW] * 6, device="NVIDIA GeForce GTX 1660 Ti"))

    assert (finding.status, finding.advice) == ("cleared", "")
    assert "no Tensor Cores" in finding.evidence


def test_card_without_bfloat16_is_told_half() -> None:
    finding = cause_of("tensor_cores").find(
        recorded([product(2048, 2048, 2048, 2600, "volta_sgemm_128x64_nn", FLOAT)], device="Tesla T4")
    )

    assert finding.status == "found"
    assert "dtype=torch.float16" in finding.advice
    assert "TF32" not in finding.advice


@pytest.mark.parametrize("module", ["tensor_cores", "misaligned_shapes", "memory_bound"])
def test_unknown_device_is_unknown(module: str) -> None:
    finding = cause_of(module).find(recorded([SLOW], device="NVIDIA H2000"))

    assert (finding.status, finding.recoverable_ms) == ("unknown", None)
    assert "NVIDIA H2000 is not in the table" in finding.evidence


def test_other_makers_matrix_units_are_not_judged() -> None:
    assert cause_of("tensor_cores").find(recorded([SLOW], device="AMD Instinct MI300X")).status == "unknown"


def test_small_share_is_cleared_with_its_share() -> None:
    finding = cause_of("tensor_cores").find(
        recorded([product(1024, 1024, 1024, 43, SGEMM, FLOAT), product(8192, 8192, 8192, 1450, NVJET)])
    )

    assert finding.status == "cleared"
    assert "of the step" in finding.evidence


# Shapes that load badly (E11).


def test_4093_is_found_and_takes_the_time_of_4096() -> None:
    finding = cause_of("misaligned_shapes").find(recorded([product(4093, 4093, 4093, 891, NARROW)] * 8))

    assert finding.status == "found"
    assert finding.predicted_step_ms == pytest.approx(8 * (BF16_MS + 0.001))
    assert "aten::mm with size 4093" in finding.evidence
    assert "one or two elements at a time" in finding.evidence
    assert finding.advice == "Pad 4093 to 4096: it may tile better; how much depends on the card and the library."
    assert "Tensor Core" not in finding.evidence + finding.advice


def test_vocabulary_is_padded_to_a_multiple_of_64() -> None:
    # 8192 tokens of 768 to a vocabulary of 50257, at a quarter of the ceiling.
    head = product(8192, 768, 50257, 3200, NARROW)

    finding = cause_of("misaligned_shapes").find(recorded([head, product(8192, 8192, 8192, 1450, NVJET)]))

    padded_ms = 2 * 8192 * 768 * 50304 / 779e12 * 1e3
    assert finding.status == "found"
    assert finding.recoverable_ms == pytest.approx(3.2 - padded_ms)
    assert "Pad 50257 to 50304" in finding.advice
    assert "may" in finding.advice


def test_vocabulary_near_its_ceiling_is_left_alone() -> None:
    finding = cause_of("misaligned_shapes").find(recorded([product(8192, 768, 50257, 900, NARROW)]))

    assert (finding.status, finding.recoverable_ms) == ("cleared", 0.0)


def test_rows_that_no_load_runs_along_may_be_odd() -> None:
    finding = cause_of("misaligned_shapes").find(recorded([product(4093, 4096, 4096, 891, NVJET)] * 8))

    assert finding.status == "cleared"


def test_rows_that_are_padded_already_are_left_alone() -> None:
    call = Call("aten::mm", 891, [[4096, 4093], [4093, 4096]], [BF16, BF16], NVJET, strides=[[4096, 1], [4096, 1]])

    assert cause_of("misaligned_shapes").find(recorded([call] * 8)).status == "cleared"


def test_float32_without_tensor_cores_is_not_called_misaligned() -> None:
    finding = cause_of("misaligned_shapes").find(recorded([product(4093, 4093, 4093, 2690, SGEMM, FLOAT)] * 8))

    assert finding.status == "cleared"


def test_tf32_needs_multiples_of_four() -> None:
    odd = cause_of("misaligned_shapes").find(recorded([product(4094, 4094, 4094, 1800, TF32, FLOAT)] * 8))
    even = cause_of("misaligned_shapes").find(recorded([product(4092, 4092, 4092, 1800, TF32, FLOAT)] * 8))

    assert (odd.status, even.status) == ("found", "cleared")


def test_small_products_wait_for_other_things_than_loads() -> None:
    assert cause_of("misaligned_shapes").find(recorded([product(4096, 512, 10, 12, NARROW)] * 8)).status == "cleared"
    assert cause_of("misaligned_shapes").find(recorded([product(127, 127, 127, 6, NARROW)] * 8)).status == "cleared"


def test_padded_sizes() -> None:
    assert misaligned_shapes.padded_size(50257, "bf16") == 50304
    assert misaligned_shapes.padded_size(4093, "bf16") == 4096
    assert misaligned_shapes.padded_size(77, "bf16") == 80
    assert misaligned_shapes.padded_size(77, "fp8") == 80


# Kernels that move bytes.


def chain(*names: str, us: float = 121, elements: int = ELEMENTS) -> list[Call]:
    return [elementwise(f"aten::{name}", elements, us) for name in names]


def test_chain_of_elementwise_kernels_reads_and_writes_once() -> None:
    finding = cause_of("memory_bound").find(recorded(chain("mul", "tanh", "add")))

    assert finding.status == "found"
    # The host launches three kernels still: two pauses of 1 us beside the fused time and its own.
    assert finding.predicted_step_ms == pytest.approx(2 * PASS_MS + 0.003)
    assert [(site.where.operator, site.count) for site in finding.sites] == [("mul → tanh → add", 1)]
    assert "at least" in finding.evidence
    assert "torch.compile" in finding.advice


def test_what_gradients_may_need_is_still_written() -> None:
    # Three writes and one read are left of three and three, and a backward kernel of two reads and a write.
    backward = elementwise("aten::tanh_backward", 1_000_000, 3, inputs=2)
    finding = cause_of("memory_bound").find(
        recorded([*chain("mul", "tanh", "add"), product(4096, 4096, 4096, 180, NVJET), backward])
    )

    assert finding.recoverable_ms == pytest.approx(3 * 0.121 - 4 * PASS_MS)


def test_one_kernel_at_its_bandwidth_has_nothing_to_gain() -> None:
    finding = cause_of("memory_bound").find(recorded(chain("mul")))

    assert (finding.status, finding.recoverable_ms) == ("cleared", 0.0)


def test_one_slow_kernel_could_run_at_the_bandwidth() -> None:
    finding = cause_of("memory_bound").find(recorded(chain("mul", us=400)))

    assert finding.recoverable_ms == pytest.approx(0.4 - 2 * PASS_MS)


def test_the_same_call_again_may_work_on_another_tensor() -> None:
    assert cause_of("memory_bound").find(recorded(chain("mul", "mul", "mul"))).status == "cleared"


def test_a_pattern_that_comes_round_is_a_chain_each_time() -> None:
    finding = cause_of("memory_bound").find(recorded(chain("mul", "add", "mul", "add")))

    assert finding.predicted_step_ms == pytest.approx(2 * 2 * PASS_MS + 0.004)
    assert [(site.where.operator, site.count) for site in finding.sites] == [("mul → add", 2)]


def test_product_between_ends_the_chain() -> None:
    calls = [*chain("mul"), product(4096, 4096, 4096, 180, NVJET), *chain("add")]

    assert cause_of("memory_bound").find(recorded(calls)).status == "cleared"


def test_tensors_of_other_sizes_are_no_chain() -> None:
    calls = [*chain("mul"), *chain("add", elements=ELEMENTS // 2, us=60.5)]

    assert cause_of("memory_bound").find(recorded(calls)).status == "cleared"


def attention(*, dtype: str = BF16) -> list[Call]:
    """64 heads of 1024 × 64: scores of 134 MB are written, scaled, normalised and read."""
    size = [64, 1024, 1024]
    flat = "void at::native::vectorized_elementwise_kernel<4>"
    return [
        Call("aten::bmm", 60, [[64, 1024, 64], [64, 64, 1024]], [dtype, dtype], NVJET),
        Call("aten::mul", 65, [size, []], [dtype, "double"], flat),
        Call("aten::_softmax", 90, [size, [], []], [dtype, "Scalar", "Scalar"], "softmax_warp_forward"),
        Call("aten::bmm", 60, [size, [64, 1024, 64]], [dtype, dtype], NVJET),
    ]


def test_attention_written_out_loses_what_lies_between_its_products() -> None:
    finding = cause_of("memory_bound").find(recorded(attention()))

    assert finding.status == "found"
    assert finding.recoverable_ms == pytest.approx(0.065 + 0.090 - 0.002)
    assert "scaled_dot_product_attention" in finding.advice


def test_softmax_of_something_else_is_no_attention() -> None:
    calls = [product(4096, 4096, 4096, 180, NVJET), *attention()[1:3], product(4096, 4096, 4096, 180, NVJET)]

    finding = cause_of("memory_bound").find(recorded(calls))

    assert "scaled_dot_product_attention" not in finding.advice


def test_a_product_of_the_step_before_made_no_scores_of_this_one() -> None:
    scores, *others = attention()

    finding = cause_of("memory_bound").find(recorded([*others, scores]))

    assert "scaled_dot_product_attention" not in finding.advice


def test_copies_between_layouts_name_channels_last() -> None:
    shapes = [[64, 256, 56, 56], [256, 256, 1, 1], [], [], [], [], [], [], []]
    concrete = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    kernels = [("void cudnn::ops::nchwToNhwcKernel<__half>", 60.0), ("ampere_fp16_s16816gemm_fp16_128x128", 100.0)]
    call = Call("aten::cudnn_convolution", 0, shapes, [HALF, HALF] + [""] * 7, concrete=concrete, kernels=kernels)

    finding = cause_of("memory_bound").find(recorded([call] * 3))

    assert finding.recoverable_ms == pytest.approx(3 * 0.060)
    assert "channels_last" in finding.advice


def test_no_shapes_is_unknown() -> None:
    assert cause_of("memory_bound").find(recorded([Call("aten::mul", 400, [], [])])).status == "unknown"


# Edits.


@pytest.mark.parametrize(
    ("module", "calls"),
    [
        ("tensor_cores", [SLOW] * 6),
        ("misaligned_shapes", [product(4093, 4093, 4093, 891, NARROW)] * 8),
        ("memory_bound", chain("mul", "tanh", "add")),
    ],
)
def test_edit_gives_the_predicted_step(module: str, calls: list[Call]) -> None:
    profile = recorded(calls)
    finding = cause_of(module).find(profile)

    assert profile.program is not None
    edited = cause_of(module).edit(profile, profile.program)

    assert profile.step_without(edited) / 1e6 == pytest.approx(finding.predicted_step_ms)


@pytest.mark.parametrize("module", ["tensor_cores", "misaligned_shapes", "memory_bound"])
def test_edit_without_the_cause_changes_nothing(module: str) -> None:
    profile = recorded([product(8192, 8192, 8192, 1450, NVJET)])

    assert profile.program is not None
    assert (cause_of(module).edit(profile, profile.program).dur == profile.program.dur).all()


def test_slow_host_leaves_less_to_gain() -> None:
    # From a file: nothing tells that the host is faster than it was recorded.
    profile = recorded([SLOW] * 6, baseline=False)

    finding = cause_of("tensor_cores").find(profile)

    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms >= 6 * BF16_MS


# Real files.


def test_real_attention_written_out_is_found_with_its_cure() -> None:
    profile = analyse(
        shared_trace("tracelens/tests~traces~h100~facebook_timesformer-base-finetuned-k400__1016002.json.gz")
    )

    finding = cause_of("memory_bound").find(profile)

    assert finding.status == "found"
    assert "scaled_dot_product_attention" in finding.advice
    assert "3137" in cause_of("misaligned_shapes").find(profile).evidence


def test_real_vision_model_in_bfloat16_is_not_told_to_use_tensor_cores() -> None:
    profile = analyse(shared_trace("tracelens/tests~traces~h100~Falconsai_nsfw_image_detection__1016002.json.gz"))

    assert cause_of("tensor_cores").find(profile).status == "cleared"
    assert cause_of("misaligned_shapes").find(profile).status == "cleared"
