"""How far operators are from the device's ceilings, MFU, and Tensor Cores by evidence."""

from __future__ import annotations

import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.analysis.roofline import RooflineRow, list_dtype
from tests.device_work import BF16, FLOAT, HALF, Call, elementwise, product, recorded
from tests.shared_traces import shared_trace

NVJET = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
SGEMM = "ampere_sgemm_128x128_nn"


def row(*calls: Call, **known: object) -> RooflineRow:
    profile = recorded(calls, **known)  # type: ignore[arg-type]
    return next(row for row in profile.roofline.rows if row.name == calls[0].name)


def test_row_sums_work_over_its_calls_and_steps() -> None:
    found = row(product(4096, 4096, 4096, 200, NVJET), product(4096, 4096, 4096, 200, NVJET), steps=3)

    assert found.flops == 6 * 2 * 4096**3
    assert found.bytes == 6 * 3 * 2 * 4096**2
    assert found.device_ns == 6 * 200_000
    assert found.achieved_flops == 2 * 4096**3 / 200e-6
    assert found.achieved_bandwidth == 3 * 2 * 4096**2 / 200e-6


def test_large_product_is_bound_by_compute_at_the_measured_rate() -> None:
    found = row(product(4096, 4096, 4096, 200, NVJET), steps=2)

    assert found.bound == "compute"
    assert found.roof_ns == pytest.approx(2 * 2 * 4096**3 / 779e12 * 1e9)


def test_thin_product_is_bound_by_memory() -> None:
    found = row(product(16, 8192, 8192, 40, NVJET), steps=2)

    assert found.bound == "memory"
    assert found.roof_ns == pytest.approx(2 * 2 * (16 * 8192 + 8192**2 + 16 * 8192) / 4.25e12 * 1e9)


def test_elementwise_operator_is_bound_by_memory() -> None:
    found = row(elementwise("aten::mul", 64_000_000, 121))

    assert (found.bound, found.tensor_core) == ("memory", "n/a")


def test_operator_far_from_both_ceilings_is_bound_by_neither() -> None:
    assert row(product(64, 64, 64, 5, NVJET)).bound == "unknown"


def test_device_that_is_not_known_has_no_bounds_and_no_mfu() -> None:
    found = recorded([product(4096, 4096, 4096, 200, NVJET)], device="NVIDIA H2000").roofline

    assert (found.ceilings, found.device, found.mfu, found.mfu_text) == (None, "NVIDIA H2000", None, "")
    assert (found.rows[0].bound, found.rows[0].roof_ns) == ("unknown", None)
    assert found.rows[0].achieved_flops == 2 * 4096**3 / 200e-6


def test_operator_without_shapes_has_no_work() -> None:
    found = row(Call("aten::mm", 200, [], [], NVJET))

    assert (found.flops, found.bytes, found.bound, found.tensor_core) == (None, None, "unknown", "yes")


def test_copies_over_the_link_are_not_the_operators_work() -> None:
    found = row(Call("aten::copy_", 200, [[64_000_000], [64_000_000]], [FLOAT, FLOAT], "kernel"))

    assert found.bytes == 4 * 2 * 4 * 64_000_000


# MFU.


def test_mfu_is_the_steps_products_against_the_dense_peak() -> None:
    # 4096³ in 199 us and a pause of 1 us: a step of 200 us.
    found = recorded([product(4096, 4096, 4096, 199, NVJET)]).roofline

    assert found.mfu == pytest.approx(2 * 4096**3 / (200e-6 * 989.4e12))
    assert found.mfu_text == "bf16 dense peak 989 TFLOP/s (NVIDIA H200 data sheet)"


def test_mfu_is_held_against_the_dtype_of_most_operations() -> None:
    calls = [product(4096, 4096, 4096, 2700, SGEMM, FLOAT), product(512, 512, 512, 5, NVJET)]

    assert recorded(calls).roofline.mfu_text.startswith("fp32 dense peak 67 TFLOP/s")


def test_mfu_counts_no_elementwise_operations() -> None:
    assert recorded([elementwise("aten::mul", 64_000_000, 121)]).roofline.mfu is None


# Tensor Cores.


def test_tensor_core_share_is_of_the_step() -> None:
    calls = [product(4096, 4096, 4096, 199, NVJET), elementwise("aten::mul", 64_000_000, 199)]

    assert recorded(calls).roofline.tensor_core_share == pytest.approx(199 / 400)


def test_rate_over_the_plain_peak_proves_use_where_the_name_does_not_tell() -> None:
    # 687 TFLOP/s in bfloat16, where the other units reach 134.
    found = recorded([product(4096, 4096, 4096, 200, "my_kernel")]).roofline

    assert found.rows[0].tensor_core == "yes"
    assert found.kernel_tensor_core["my_kernel"] == "yes"
    assert found.tensor_core_share == pytest.approx(200 / 201)


def test_rate_below_the_plain_peak_proves_nothing() -> None:
    found = recorded([product(4096, 4096, 4096, 2000, "my_kernel")]).roofline

    assert found.rows[0].tensor_core == "unknown"
    assert found.tensor_core_share is None


def test_float32_over_its_plain_peak_runs_in_tf32() -> None:
    found = recorded([product(4096, 4096, 4096, 500, "my_kernel", FLOAT)]).roofline

    assert (found.rows[0].tensor_core, found.groups[0].unit) == ("yes", "tf32")


def test_fast_convolution_proves_nothing() -> None:
    # Winograd's way needs fewer operations than are counted.
    shapes = [[64, 256, 56, 56], [256, 256, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "False"]
    call = Call("aten::cudnn_convolution", 3000, shapes, [FLOAT, FLOAT] + [""] * 7, "my_conv", concrete=concrete)

    assert row(call).tensor_core == "unknown"


def test_helpers_do_not_hide_what_the_main_kernel_shows() -> None:
    kernels = [("nvjet_sm90_tst_128x128_64x6_2x2_h_bz_splitK_NTT", 40.0), ("cublasLt::splitKreduce_kernel<32>", 5.0)]

    assert row(Call("aten::mm", 0, [[768, 4096], [4096, 768]], [BF16, BF16], kernels=kernels)).tensor_core == "yes"


def test_kernels_are_bound_by_what_their_calls_are() -> None:
    calls = [product(4096, 4096, 4096, 200, NVJET), elementwise("aten::mul", 64_000_000, 121)]
    found = recorded(calls).roofline

    assert found.kernel_bound == {NVJET: "compute", calls[1].kernel: "memory"}


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<c10::BFloat16, 2, 1, 0>>",
            BF16,
        ),
        ("void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>", FLOAT),
        ("void at::native::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>", HALF),
        ("my_kernel", None),
    ],
)
def test_element_type_of_lists_comes_from_the_kernels_name(kernel: str, dtype: str | None) -> None:
    assert list_dtype(kernel) == dtype


def test_real_elementwise_file_reaches_under_half_of_its_bandwidth() -> None:
    found = analyse(shared_trace("tracelens/elem_01_add_poor_bw.json.gz")).roofline

    add = next(row for row in found.rows if row.name == "aten::add")
    assert add.achieved_bandwidth == pytest.approx(1.91e12, rel=0.01)
    assert (add.bound, found.ceilings is not None and found.ceilings.name) == ("memory", "MI300X")


def test_real_mixture_of_experts_uses_tensor_cores_and_is_far_from_every_ceiling() -> None:
    found = analyse(shared_trace("tracelens/moe_nv_01_many_experts_few_tokens.json.gz")).roofline

    rows = {row.name: row for row in found.rows}
    assert {rows[name].tensor_core for name in ("aten::bmm", "aten::mm")} == {"yes"}
    assert rows["aten::bmm"].flops == 3 * 2 * (2 * 32 * 512 * 1024)
    assert rows["aten::mm"].bound == "unknown"
    assert found.mfu is not None
    assert found.mfu < 0.01
