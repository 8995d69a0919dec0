"""What names mean."""

from __future__ import annotations

import pytest

from ipyprof.trace.kinds import Kind, Role, call_role, copy_direction, event_kind

FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.OPERATOR),
        ("Operator", "aten::mm", Kind.OPERATOR),
        ("user_annotation", "forward", Kind.ANNOTATION),
        ("gpu_user_annotation", "forward", Kind.GPU_ANNOTATION),
        ("cuda_runtime", "cudaLaunchKernel", Kind.CALL),
        ("cuda_driver", "cuLaunchKernel", Kind.CALL),
        ("Runtime", "cudaLaunchKernel", Kind.CALL),
        ("cuda_runtime", "hipLaunchKernel", Kind.CALL),
        ("kernel", "ampere_sgemm_128x64_nn", Kind.KERNEL),
        ("Kernel", "ampere_sgemm_128x64_nn", Kind.KERNEL),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.MEMCPY),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", Kind.MEMCPY),
        ("kernel", "CopyHostToDevice", Kind.MEMCPY),
        ("gpu_memset", "Memset (Device)", Kind.MEMSET),
        ("Memset", "Memset (Device)", Kind.MEMSET),
        ("python_function", "train.py(3): step", Kind.PYTHON),
        ("cuda_sync", "Stream Sync", Kind.CUDA_SYNC),
        ("overhead", "Activity Buffer Request", Kind.OTHER),
        ("Trace", "PyTorch Profiler (0)", Kind.OTHER),
        ("", "anything", Kind.OTHER),
    ],
)
def test_category_decides_the_kind(category: str, name: str, kind: Kind) -> None:
    assert event_kind(category, name) is kind


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", FETCH, Kind.LOADER),
        ("user_annotation", FETCH, Kind.LOADER),
        ("Operator", FETCH, Kind.LOADER),
        ("cpu_op", "_SingleProcessDataLoaderIter.__next__", Kind.LOADER),
        ("python_function", "<torch.DataLoaderIter.__next__>", Kind.LOADER),
        ("gpu_user_annotation", FETCH, Kind.GPU_ANNOTATION),
        ("cpu_op", "## line 12", Kind.LINE),
        ("user_annotation", "## line 3", Kind.LINE),
        ("user_annotation", "## forward ##", Kind.ANNOTATION),
        ("gpu_user_annotation", "## line 3", Kind.GPU_ANNOTATION),
        ("user_annotation", "ProfilerStep#12", Kind.STEP),
        ("cpu_op", "ProfilerStep#12", Kind.STEP),
        ("user_annotation", "ProfilerStep*", Kind.ANNOTATION),
        ("gpu_user_annotation", "ProfilerStep#12", Kind.GPU_ANNOTATION),
    ],
)
def test_marks_are_known_by_name_on_the_host_only(category: str, name: str, kind: Kind) -> None:
    assert event_kind(category, name) is kind


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "rccl_main_kernel",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
        "void deep_ep::internode::dispatch<false, 4>(int4*)",
        "multimem_all_reduce_kernel<c10::BFloat16>",
    ],
)
def test_a_collective_kernel_is_communication(name: str) -> None:
    assert event_kind("kernel", name) is Kind.COMMUNICATION


@pytest.mark.parametrize("name", ["my_nccl_like_thing", "my_rccl_test", "not_deep_ep::x", "all_reduce_loss_kernel"])
def test_a_kernel_that_only_sounds_like_a_collective_is_a_kernel(name: str) -> None:
    assert event_kind("kernel", name) is Kind.KERNEL


def test_a_host_event_with_the_name_of_a_collective_is_no_communication() -> None:
    assert event_kind("user_annotation", "ncclKernel_AllReduce") is Kind.ANNOTATION


ROLES = {
    Role.LAUNCH: [
        "cudaLaunchKernel",
        "cudaLaunchKernel_ptsz",
        "cudaLaunchKernelExC",
        "cudaLaunchKernelExC_v11060",
        "cudaLaunchCooperativeKernel",
        "cudaLaunchCooperativeKernelMultiDevice",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz",
        "cuLaunchCooperativeKernel",
        "hipLaunchKernel",
        "hipExtLaunchKernel",
        "hipModuleLaunchKernel",
        "hipExtModuleLaunchKernel",
    ],
    Role.GRAPH_LAUNCH: ["cudaGraphLaunch", "cudaGraphLaunch_v10000", "cuGraphLaunch", "hipGraphLaunch"],
    Role.COPY: [
        "cudaMemcpy",
        "cudaMemcpyAsync",
        "cudaMemcpy2DAsync",
        "cudaMemcpyPeerAsync",
        "cudaMemcpyToSymbolAsync",
        "cuMemcpyHtoDAsync_v2",
        "hipMemcpyWithStream",
        "hipMemcpyAsync",
    ],
    Role.MEMSET: ["cudaMemset", "cudaMemsetAsync", "cuMemsetD8Async", "hipMemsetAsync"],
    Role.SYNC_DEVICE: ["cudaDeviceSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize"],
    Role.SYNC_STREAM: ["cudaStreamSynchronize", "cuStreamSynchronize_ptsz", "hipStreamSynchronize"],
    Role.SYNC_EVENT: ["cudaEventSynchronize", "cuEventSynchronize", "hipEventSynchronize"],
    Role.ALLOC: [
        "cudaMalloc",
        "cudaMallocAsync",
        "cudaMallocManaged",
        "cudaMallocFromPoolAsync_v11020",
        "cuMemAlloc_v2",
        "cuMemAllocAsync",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemAddressReserve",
        "hipMalloc",
    ],
    Role.FREE: ["cudaFree", "cudaFreeAsync", "cuMemFree_v2", "cuMemUnmap", "cuMemRelease", "hipFree"],
    Role.HOST_ALLOC: [
        "cudaHostAlloc",
        "cudaMallocHost",
        "cudaFreeHost",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "hipHostMalloc",
        "hipHostFree",
    ],
    Role.EVENT_RECORD: ["cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord", "hipEventRecord"],
    Role.STREAM_WAIT: ["cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"],
    Role.OTHER: [
        "INVALID",
        "cudaGetDevice",
        "cudaEventQuery",
        "cudaEventCreateWithFlags",
        "cudaStreamIsCapturing",
        "cudaFuncGetAttributes",
        "cudaHostGetDevicePointer",
        "cudaGraphInstantiate",
        "cudaLaunchHostFunc",
        "cudaMemGetInfo",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "LaunchKernel",
        "custom",
    ],
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in ROLES.items() for name in names])
def test_role_of_an_api_call(role: Role, name: str) -> None:
    assert call_role(name) is role


@pytest.mark.parametrize(
    ("name", "direction", "pageable"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", True),
        ("Memcpy HtoD (Pinned -> Device)", "HtoD", False),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("Memcpy DtoH (Device -> Pageable)", "DtoH", True),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", False),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoH (Pinned -> Pinned)", "HtoH", False),
        ("CopyHostToDevice", "HtoD", None),
        ("CopyDeviceToHost", "DtoH", None),
        ("CopyDeviceToDevice", "DtoD", None),
        ("hipMemcpyHostToHost", "HtoH", None),
        ("Memcpy Unknown (Unknown -> Unknown)", "unknown", None),
        ("", "unknown", None),
    ],
)
def test_direction_of_a_copy(name: str, direction: str, pageable: bool | None) -> None:
    assert copy_direction(name) == (direction, pageable)
