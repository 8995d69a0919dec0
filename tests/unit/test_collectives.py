"""The collectives of one rank: what they are, when the rank was ready, whether it waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ipyprof.analysis.steps import find_steps
from ipyprof.ranks.collectives import CollectiveKind, collectives_of, step_numbers
from ipyprof.trace.model import Trace
from tests.builder import TraceBuilder
from tests.shared_traces import shared_trace

COMPUTE, NETWORK = 7, 20
MEGA = 1_000_000


def metadata(name: str = "allreduce", elements: int = MEGA, group: str = "0", ranks: str = "[0, 1]") -> dict[str, Any]:
    """What Kineto writes beside a collective."""
    return {
        "Collective name": name,
        "dtype": "BFloat16",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "Process Group Name": group,
        "Process Group Ranks": ranks,
    }


@dataclass(frozen=True)
class Found:
    """The columns of a table of collectives, as lists."""

    kinds: tuple[CollectiveKind, ...]
    kind: list[int]
    step: list[int]
    ready: list[int]
    start: list[int]
    end: list[int]
    joined: list[int]
    exposed: list[int]


def found(source: TraceBuilder | Trace) -> Found:
    trace = source.trace() if isinstance(source, TraceBuilder) else source
    kinds, table = collectives_of(trace, find_steps(trace))
    return Found(kinds, *table.T.tolist())


def backward(kernel: str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", **args: Any) -> TraceBuilder:
    """A kernel until 110, a collective that is launched at 20 and runs from 112 to 200, work behind it at 205."""
    builder = TraceBuilder()
    builder.device()
    builder.step(4, at=0, end=300)
    builder.launch(at=5, dur=5, kernel_name="gemm", kernel_at=10, kernel_dur=100, stream=COMPUTE)
    builder.launch(at=20, dur=5, kernel_name=kernel, kernel_at=112, kernel_dur=88, stream=NETWORK, **args)
    builder.launch(at=30, dur=5, kernel_name="adam", kernel_at=205, kernel_dur=20, stream=COMPUTE)
    return builder


def test_a_collective_is_what_its_metadata_says_and_ready_when_earlier_work_is_done() -> None:
    # given a collective with metadata in step 4 that starts 2 after the kernel launched before it
    one = found(backward(**metadata()))
    # then group, members, size and message are known, and it was ready at the kernel's end; nothing hides any of it
    assert one.kinds == (CollectiveKind(name="allreduce", group="0", members=(0, 1), size=2, message_bytes=2 * MEGA),)
    assert (one.ready, one.start, one.end) == ([110_000], [112_000], [200_000])
    assert (one.step, one.exposed) == ([4], [88_000])


@pytest.mark.parametrize(
    ("kernel", "told", "name", "together"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "_allgather_base", "allgather", True),
        ("ncclDevKernel_Generic(x)", "allgather_into_tensor_coalesced", "allgatherintotensorcoalesced", True),
        ("ncclDevKernel_Generic_4(x)", "_reduce_scatter_base", "reducescatter", True),
        ("rccl_main_kernel(x)", "all_to_allv", "alltoallv", True),
        ("ncclDevKernel_Generic(x)", "reduce", "reduce", False),
        ("ncclDevKernel_Generic(x)", "broadcast", "broadcast", False),
        ("ncclDevKernel_Generic(x)", "barrier", "barrier", True),
    ],
)
def test_the_metadata_tells_the_collective_and_not_the_kernels_name(
    kernel: str, told: str, name: str, together: bool
) -> None:
    """C2: names of several versions mean the same. Of one that may be left early the end says nothing of the clocks."""
    (kind,) = found(backward(kernel, **metadata(told))).kinds

    assert (kind.name, kind.leaves_together) == (name, together)


def test_without_metadata_the_annotation_around_the_launch_tells() -> None:
    """C2, C7: the annotation names it, and its copy on the device is not counted a second time."""
    # given an old file: no metadata on the kernel, an annotation around its launch and one on the device
    builder = backward()
    builder.annotation("nccl:all_reduce", 18, 27, **{"Input Dims": [[1000, 10]], "Input type": ["float"]})
    builder.gpu_annotation("nccl:all_reduce", 112, 200, stream=NETWORK)
    # when its collectives are read
    one = found(builder)
    # then there is one, of that name and size
    assert one.kind == [0]
    assert (one.kinds[0].name, one.kinds[0].message_bytes) == ("allreduce", 40_000)


def test_a_collective_behind_another_one_was_ready_before_it_started() -> None:
    """The second one queues on its stream: 200 to 290, but all it needs was done at 110."""
    builder = backward(**metadata())
    builder.launch(at=26, dur=3, kernel_name="nccl", kernel_at=200, kernel_dur=90, stream=NETWORK)
    builder.events[-1]["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    builder.events[-1]["args"].update(metadata())

    one = found(builder)

    assert one.ready == [110_000, 110_000]
    assert one.start == [112_000, 200_000]


def test_work_that_starts_right_behind_the_end_has_waited_for_it() -> None:
    # given work on an idle stream, launched long before, that starts 5 behind the collective
    waited = found(backward(**metadata()))
    # and the same work behind another kernel that keeps its stream busy
    busy = backward(**metadata())
    busy.launch(at=28, dur=2, kernel_name="gemm", kernel_at=111, kernel_dur=93, stream=COMPUTE)
    # then only the first one waited
    assert waited.joined == [1]
    assert found(busy).joined == [0]


def test_a_host_that_synchronises_has_waited() -> None:
    builder = backward(**metadata())
    builder.events = [event for event in builder.events if event["name"] != "adam"]
    builder.sync(at=40, dur=163)

    assert found(builder).joined == [1]


def test_carried_over_and_pairwise_ones_are_left_out() -> None:
    # given a collective without its launch, and a send
    builder = backward(**metadata())
    builder.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 1, 5, stream=NETWORK)
    builder.launch(at=60, dur=2, kernel_name="ncclDevKernel_SendRecv(x)", kernel_at=210, kernel_dur=5, stream=NETWORK)
    builder.events[-1]["args"].update(metadata("send"))
    # when the collectives are read, then neither is among them
    assert found(builder).kind == [0]


def test_steps_are_numbered_as_their_marks() -> None:
    builder = TraceBuilder()
    builder.step(7, at=0, end=10)
    builder.step(8, at=10, end=20)
    builder.op("aten::mm", at=2, end=4)
    trace = builder.trace()

    assert step_numbers(trace, find_steps(trace)) == (7, 8)


def gloo(*, overlapped: bool) -> TraceBuilder:
    """A rank on the CPU: issued at 1,000, on its own thread from 1,100 to 5,000; the host waits, or works on."""
    builder = TraceBuilder()
    builder.step(0, at=0, end=8_000)
    builder.op("aten::mm", at=100, end=900)
    builder.op("c10d::allreduce_", at=1_000, end=1_050)
    builder.annotation("gloo:all_reduce", 1_100, 5_000, tid=99, **{"Input Dims": [[64]], "Input type": ["float"]})
    if overlapped:
        builder.op("aten::mm", at=1_060, end=6_000)
    builder.op("aten::add_", at=6_100 if overlapped else 5_300, end=7_000)
    builder.metadata(
        distributedInfo={"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}
    )
    return builder


@pytest.mark.parametrize(("overlapped", "waited", "exposed"), [(False, 1, 3_900_000), (True, 0, 0)])
def test_without_a_gpu_the_annotations_of_gloo_are_the_collectives(overlapped: bool, waited: int, exposed: int) -> None:
    """The file has one group: its name and ranks are theirs. A host that works on does not wait."""
    one = found(gloo(overlapped=overlapped))

    assert (one.kinds[0].name, one.kinds[0].group, one.kinds[0].members) == ("allreduce", "0", (0, 1))
    assert (one.ready, one.joined, one.exposed) == ([1_000_000], [waited], [exposed])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tests~data~timeline_analysis~sampled_rank-0.json.gz", {"alltoall", "allreduce", "allgather"}),
        ("history~cpu_only_rank-34_full.pt.trace.json.gz", {"allreduce"}),
    ],
)
def test_real_files_without_metadata(name: str, kinds: set[str]) -> None:
    """C2: a GPU of 128 (torch of 2023), and one of three hundred CPU ranks with Gloo: annotations name them."""
    one = found(shared_trace(f"hta/{name}"))

    assert {kind.name for kind in one.kinds} == kinds
    assert all(ready <= start for ready, start in zip(one.ready, one.start, strict=True))
