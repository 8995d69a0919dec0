"""FLOPs and bytes of one operator call, from what its recording says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyprof.analysis.work import ELEMENT_BYTES, MOVEMENT, PRODUCT_OPERATORS, Inputs, Work, operator_work
from ipyprof.trace.kinds import Kind
from tests.device_work import BF16, FLOAT, HALF, details
from tests.shared_traces import shared_trace


def work(name: str, shapes: Any, dtypes: Any, strides: Any = None, concrete: Any = None, **known: Any) -> Work:
    found = operator_work(name, details(shapes, dtypes, strides, concrete), **known)
    assert found is not None
    return found


# Products.


def test_product_counts_two_operations_and_three_matrices() -> None:
    found = work("aten::mm", [[16, 32], [32, 8]], [BF16, BF16])

    assert (found.kind, found.flops, found.bytes, found.dtype) == (
        "gemm",
        2 * 16 * 32 * 8,
        2 * (16 * 32 + 32 * 8 + 16 * 8),
        "bf16",
    )


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "flops", "nbytes"),
    [
        ("aten::addmm", [[8], [16, 32], [32, 8], [], []], [FLOAT] * 3 + ["Scalar"] * 2, 8192, 4 * (896 + 8)),
        ("aten::bmm", [[4, 16, 32], [4, 32, 8]], [HALF, HALF], 4 * 8192, 4 * 2 * 896),
        ("aten::baddbmm", [[4, 16, 8], [4, 16, 32], [4, 32, 8]], [HALF] * 3, 4 * 8192, 4 * 2 * 896 + 4 * 16 * 8 * 2),
        ("aten::mv", [[16, 32], [32]], [FLOAT, FLOAT], 2 * 16 * 32, 4 * (16 * 32 + 32 + 16)),
        ("aten::linear", [[2, 8, 32], [8, 32], [8]], [FLOAT] * 3, 8192, 4 * (896 + 8)),
        ("aten::matmul", [[2, 8, 32], [32, 8]], [FLOAT] * 2, 8192, 4 * 896),
        ("aten::_scaled_mm", [[16, 32], [32, 8]], ["c10::Float8_e4m3fn"] * 2, 8192, 16 * 32 + 32 * 8 + 2 * 16 * 8),
    ],
)
def test_products_of_all_names(name: str, shapes: Any, dtypes: Any, flops: int, nbytes: int) -> None:
    found = work(name, shapes, dtypes)

    assert (found.flops, found.bytes) == (flops, nbytes)


def test_only_dimensions_that_lie_together_in_memory_are_loaded_along() -> None:
    # A is a transposed weight, B contiguous, as in a weight's gradient: neither is loaded along k.
    found = work("aten::mm", [[50257, 4096], [4096, 768]], [BF16, BF16], [[1, 50257], [768, 1]])

    assert found.product is not None
    assert found.product.loaded == (("m", 50257), ("n", 768))


def test_padded_rows_are_loaded_at_their_padded_distance() -> None:
    found = work("aten::mm", [[128, 4093], [4093, 64]], [BF16, BF16], [[4096, 1], [64, 1]])

    assert found.product is not None
    assert found.product.loaded == (("k", 4096), ("n", 64))


def test_product_whose_inner_sizes_disagree_has_no_work() -> None:
    assert operator_work("aten::mm", details([[16, 32], [31, 8]], [BF16, BF16])) is None


# Convolution.

GEOMETRY = ["ScalarList"] * 3 + ["Scalar"] * 4
CONCRETE = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]


def test_convolution_counts_its_outputs_times_its_filter() -> None:
    # 32 × 32 with padding 1, stride 2 and a filter of 3 × 3 gives 16 × 16.
    shapes = [[8, 3, 32, 32], [64, 3, 3, 3], [], [], [], [], [], [], []]
    found = work("aten::cudnn_convolution", shapes, [FLOAT, FLOAT, *GEOMETRY], concrete=CONCRETE)

    outputs = 8 * 64 * 16 * 16
    assert found.kind == "convolution"
    assert found.flops == 2 * outputs * 3 * 3 * 3
    assert found.bytes == 4 * (8 * 3 * 32 * 32 + 64 * 3 * 3 * 3 + outputs)


def test_grouped_convolution_counts_the_channels_of_one_group() -> None:
    shapes = [[8, 64, 16, 16], [64, 1, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "64", "False", "False", "True"]
    found = work("aten::cudnn_convolution", shapes, [FLOAT, FLOAT, *GEOMETRY], concrete=concrete)

    assert found.flops == 2 * 8 * 64 * 16 * 16 * 9


@pytest.mark.parametrize(("mask", "times"), [("[True, True, False]", 2), ("[False, True, True]", 1)])
def test_convolution_backward_counts_the_gradients_that_are_asked_for(mask: str, times: int) -> None:
    shapes = [[8, 64, 16, 16], [8, 3, 32, 32], [64, 3, 3, 3], [], [], [], [], [], [], [], []]
    concrete = ["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = work("aten::convolution_backward", shapes, [FLOAT] * 3 + [""] * 8, concrete=concrete)

    assert found.flops == times * 2 * 8 * 64 * 16 * 16 * 27


def test_convolution_without_recorded_geometry_has_no_work() -> None:
    shapes = [[8, 3, 32, 32], [64, 3, 3, 3], [], [], [], [], [], [], []]

    assert operator_work("aten::cudnn_convolution", details(shapes, [FLOAT, FLOAT, *GEOMETRY])) is None


# Attention.


def flash(causal: str, sizes: list[int]) -> Work:
    concrete = ["", "", "", "", "", "64", "64", "0.", causal, "False"]
    return work("aten::_flash_attention_forward", [sizes] * 3 + [[]] * 7, [BF16] * 3 + [""] * 7, concrete=concrete)


def test_attention_counts_two_products_and_moves_no_scores() -> None:
    found = flash("False", [2, 64, 8, 32])  # batch, length, heads, size of a head

    assert found.kind == "attention"
    assert found.flops == 4 * 2 * 8 * 64 * 64 * 32
    assert found.bytes == 4 * 2 * (2 * 64 * 8 * 32)


def test_causal_attention_does_half_of_the_products() -> None:
    assert flash("True", [2, 64, 8, 32]).flops == flash("False", [2, 64, 8, 32]).flops * 65 / 128


def test_cudnn_attention_has_its_heads_second() -> None:
    concrete = ["", "", "", "", "", "", "64", "64", "True", "0.", "False", "False", ""]
    shapes = [[2, 8, 64, 32]] * 3 + [[]] * 10
    found = work("aten::_cudnn_attention_forward", shapes, [BF16] * 3 + [""] * 10, concrete=concrete)

    assert found.flops == 4 * 2 * 8 * 64 * 64 * 32


def test_attention_backward_forms_the_scores_again() -> None:
    concrete = [""] * 11 + ["64", "64", "0.", "False"]
    shapes = [[2, 8, 64, 32]] * 5 + [[]] * 10
    found = work("aten::_cudnn_attention_backward", shapes, [BF16] * 5 + [""] * 10, concrete=concrete)

    assert found.flops == 2.5 * 4 * 2 * 8 * 64 * 64 * 32


def test_attention_over_batches_of_different_lengths_has_no_work() -> None:
    shapes = [[130, 8, 32]] * 3 + [[]] * 7

    assert operator_work("aten::_flash_attention_forward", details(shapes, [BF16] * 3 + [""] * 7)) is None


# What moves bytes.


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "nbytes"),
    [
        ("aten::relu", [[1000]], [FLOAT], 8000),
        ("aten::mul", [[1000], []], [FLOAT, "double"], 8000),
        ("aten::add", [[1000], [1000], []], [FLOAT, BF16, "Scalar"], 4000 + 2000 + 4000),
        ("aten::add", [[10, 100], [100], []], [FLOAT, FLOAT, "Scalar"], 4000 + 400 + 4000),
        ("aten::add_", [[1000], [1000], []], [BF16, FLOAT, "Scalar"], 2000 + 4000 + 2000),
        ("aten::gt", [[1000], []], [FLOAT, "Scalar"], 4000 + 1000),
        ("aten::where", [[1000], [1000], [1000]], ["bool", FLOAT, FLOAT], 1000 + 4000 + 4000 + 4000),
        ("aten::div", [[1000], []], ["long int", FLOAT], 8000 + 4000),
        ("aten::zero_", [[1000]], [FLOAT], 4000),
        ("aten::copy_", [[1000], [1000], []], [BF16, FLOAT, "Scalar"], 2000 + 4000),
        ("aten::native_dropout", [[1000], [], []], [FLOAT, "Scalar", "Scalar"], 4000 + 4000 + 1000),
        ("aten::embedding", [[50000, 64], [8, 16]], [FLOAT, "long int"], 2 * 128 * 64 * 4 + 128 * 8),
    ],
)
def test_bytes_are_each_input_once_and_each_output_once(name: str, shapes: Any, dtypes: Any, nbytes: int) -> None:
    assert work(name, shapes, dtypes).bytes == nbytes


def test_expanded_tensor_is_read_once() -> None:
    found = work("aten::div", [[64, 1000], []], [FLOAT, "long int"], strides=[[0, 0], []])

    assert found.bytes == 4 + 64 * 1000 * 4


def test_output_given_by_the_caller_is_not_read() -> None:
    shapes = [[1000], [1000], [], [1000]]

    assert work("aten::add", shapes, [FLOAT, FLOAT, "Scalar", FLOAT]).bytes == 12000


def test_reduction_writes_what_is_left() -> None:
    found = work("aten::sum", [[128, 768], [], []], [FLOAT, "ScalarList", "Scalar"], concrete=["", "[0]", "True"])

    assert (found.kind, found.bytes) == ("reduction", 4 * (128 * 768 + 768))


def test_copy_between_two_orders_is_a_relayout_and_a_cast_is_none() -> None:
    shapes = [[8, 16, 32], [8, 16, 32], []]
    order = work("aten::copy_", shapes, [BF16, BF16, "Scalar"], strides=[[512, 32, 1], [512, 1, 16], []])
    cast = work("aten::copy_", shapes, [BF16, FLOAT, "Scalar"], strides=[[512, 32, 1], [512, 32, 1], []])

    assert (order.relayout, cast.relayout) == (True, False)


def test_softmax_reads_and_writes_once() -> None:
    found = work("aten::_softmax", [[64, 1000], [], []], [BF16, "Scalar", "Scalar"], concrete=["", "-1", "False"])

    assert (found.kind, found.bytes) == ("softmax", 2 * 2 * 64 * 1000)


def test_softmax_that_gives_float_writes_more() -> None:
    found = work("aten::_softmax", [[64, 1000], [], []], [BF16, "Scalar", "Scalar"], concrete=["", "-1", "True"])

    assert found.bytes == (2 + 4) * 64 * 1000


def test_layer_norm_reads_once_and_batch_norm_in_training_twice() -> None:
    layer = work(
        "aten::native_layer_norm", [[64, 1000], [], [1000], [1000], []], [FLOAT, "ScalarList", FLOAT, FLOAT, "Scalar"]
    )
    batch = work(
        "aten::cudnn_batch_norm",
        [[8, 64, 16, 16], [64], [64], [64], [64], [], [], []],
        [FLOAT] * 5 + ["Scalar"] * 3,
        concrete=["", "", "", "", "", "True", "0.1", "1e-05"],
    )

    assert layer.bytes == 4 * (2 * 64_000 + 2 * 1000)
    assert batch.bytes == 4 * (3 * 8 * 64 * 256 + 4 * 64)


def test_lists_have_no_work_until_their_dtype_is_known() -> None:
    lists = details([[[100], [200]], [[100], [200]], []], ["TensorList", "TensorList", "Scalar"])

    assert operator_work("aten::_foreach_add_", lists) is None
    found = operator_work("aten::_foreach_add_", lists, FLOAT)
    assert found is not None
    assert found.bytes == 3 * 4 * 300


def test_fused_optimizer_writes_all_but_the_gradients() -> None:
    lists = [[[100], [200]]] * 4
    found = work("aten::_fused_adamw_", lists, ["TensorList"] * 4, list_dtype=FLOAT)

    assert found.bytes == (4 + 3) * 4 * 300


def test_cat_reads_all_and_writes_all() -> None:
    found = work("aten::cat", [[[8, 32], [8, 32]], []], ["TensorList", "Scalar"], concrete=["", "1"], list_dtype=HALF)

    assert found.bytes == 2 * 2 * 2 * 8 * 32


def test_generated_kernel_moves_its_arguments() -> None:
    found = work("triton_poi_fused_add_0", [[1000], [1000], [1000], []], [BF16] * 3 + ["Scalar"])

    assert (found.kind, found.bytes) == ("fused", 6000)


@pytest.mark.parametrize("name", ["aten::topk", "my_library::kernel", "triton_tem_fused_mm_0"])
def test_operator_that_is_not_known_has_no_work(name: str) -> None:
    assert operator_work(name, details([[16, 32]], [FLOAT])) is None


def test_call_without_shapes_or_dtypes_has_no_work() -> None:
    assert operator_work("aten::mm", None) is None
    assert operator_work("aten::mm", details([[16, 32], [32, 8]], None)) is None
    assert operator_work("aten::relu", details([[16, 32]], ["a new dtype"])) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("-1", -1),
        ("0.", 0.0),
        ("[2, 2]", [2, 2]),
        ("[True, False]", [True, False]),
        ("", None),
        ("?", None),
    ],
)
def test_recorded_values(text: str, value: object) -> None:
    assert Inputs(details([[]], ["Scalar"], concrete=[text])).value(0) == value


SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 8, 64]), max_size=5)
ARGUMENT = st.one_of(SIZES, st.lists(SIZES, max_size=3))
DTYPE = st.sampled_from([*ELEMENT_BYTES, "Scalar", "ScalarList", "TensorList", "", "a new dtype"])
TEXT = st.sampled_from(
    ["", "True", "False", "-1", "0", "[0]", "[]", "[1, 1]", "[0, 0]", "[True]", "nan", "[[1]]", "15", "{}"]
)


@settings(max_examples=500, deadline=None)
@given(
    name=st.sampled_from([f"aten::{name}" for name in (*MOVEMENT, *PRODUCT_OPERATORS)]),
    shapes=st.lists(ARGUMENT, max_size=12),
    dtypes=st.lists(DTYPE, max_size=12),
    strides=st.one_of(st.none(), st.lists(ARGUMENT, max_size=12)),
    concrete=st.one_of(st.none(), st.lists(TEXT, max_size=12)),
)
def test_no_recording_breaks_it(name: str, shapes: Any, dtypes: Any, strides: Any, concrete: Any) -> None:
    found = operator_work(name, details(shapes, dtypes, strides, concrete), FLOAT)

    assert found is None or (found.flops >= 0 and found.bytes >= 0)


# Real files.


@pytest.mark.parametrize(
    ("file", "operator", "flops", "nbytes"),
    [
        ("gemm_01_compute_few_tiles", "aten::mm", 2 * 256 * 131072 * 512, 2 * (768 * 131072 + 256 * 512)),
        ("gemm_03_compute_misaligned", "aten::mm", 2 * 4097**3, 3 * 2 * 4097**2),
        ("elem_01_add_poor_bw", "aten::add", 8192**2, 3 * 4 * 8192**2),
    ],
)
def test_real_file(file: str, operator: str, flops: int, nbytes: int) -> None:
    trace = shared_trace(f"tracelens/{file}.json.gz")
    calls = [event for event in trace.select(Kind.OPERATOR) if trace.names[trace.name[event]] == operator]

    found = {operator_work(operator, trace.detail_of(int(event))) for event in calls}

    assert [(each.flops, each.bytes) for each in found if each is not None] == [(flops, nbytes)]
