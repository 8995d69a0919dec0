"""Each cause: found with what removing it gains, cleared where the GPU is busy anyway, and not there at all.

All steps are built so that both the step and the step without the cause can be added up by hand, in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.causes import cause_of
from tests.looped import SOURCE, gains, profiled
from tests.machine import Machine, live

pytestmark = pytest.mark.usefixtures("recording_costs_nothing")

# data_loading


def starving(machine: Machine) -> None:
    """Fetch 8,000, launch 5; the kernel of 2,000 ends within the next fetch: 8,005 a step."""
    machine.loader(8_000)
    with machine.line(3):
        machine.launch(2_000)


def fed(machine: Machine) -> None:
    """Fetch 800 beside two kernels of 1,000: 2,002 a step."""
    machine.loader(800)
    with machine.line(3):
        machine.launch(1_000)
        machine.launch(1_000)


def test_loader_the_gpu_waits_for_is_found() -> None:
    """Without it the kernel follows itself after 1 us: 2,001."""
    finding = cause_of("data_loading").find(profiled(starving, 8_005))

    assert gains(finding) == ("found", 6_004.0, 2_001.0)
    assert finding.speedup_bound == pytest.approx(8_005 / 2_001)
    assert finding.where.line == 2
    assert "num_workers=0" in finding.evidence
    assert "num_workers=4" in finding.advice


def test_loader_beside_a_busy_gpu_is_cleared() -> None:
    finding = cause_of("data_loading").find(profiled(fed, 2_002))

    assert gains(finding) == ("cleared", 0.0, 2_002.0)
    assert "0.80 ms" in finding.evidence
    assert finding.advice == ""


def test_no_loader() -> None:
    finding = cause_of("data_loading").find(profiled(lambda machine: machine.launch(100), 101))

    assert gains(finding) == ("cleared", 0.0, 101.0)
    assert finding.evidence == "no loader span and no fetch in the recorded steps"


def test_loader_that_waits_for_workers_is_told_from_one_without() -> None:
    def body(machine: Machine) -> None:
        machine.loader(8_000, name="_MultiProcessingDataLoaderIter.__next__")
        machine.launch(2_000)

    finding = cause_of("data_loading").find(profiled(body, 8_005))

    assert finding.status == "found"
    assert "waiting for worker processes" in finding.evidence
    assert "too slow" in finding.advice


def test_fetch_of_a_plain_generator_is_found_in_a_for_loop() -> None:
    """C6: no span at all, only the time behind the last statement."""

    def body(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(2_000)
        machine.python(8_000)

    finding = cause_of("data_loading").find(profiled(body, 8_005, loop_is_for=True))

    assert gains(finding) == ("found", 6_004.0, 2_001.0)


def test_slow_copy_to_the_gpu_is_no_loading() -> None:
    """C6."""

    def body(machine: Machine) -> None:
        machine.loader(10)
        machine.blocking_copy(5_000, 64_000_000)
        machine.launch(100)

    finding = cause_of("data_loading").find(profiled(body, 5_114))

    assert finding.status == "cleared"


# host_sync


def reading(machine: Machine) -> None:
    """Ten times: launch (kernel 100), a read that returns at 110, 60 of Python: 1,700 a step."""
    for _ in range(10):
        with machine.line(3):
            machine.launch(100)
        with machine.line(4):
            machine.item()
        machine.python(60)


def test_read_that_drains_the_gpu_is_found() -> None:
    """Without it ten kernels follow each other: 1,010."""
    finding = cause_of("host_sync").find(profiled(reading, 1_700))

    assert gains(finding) == ("found", 690.0, 1_010.0)
    assert (finding.where.operator, finding.where.line) == ("aten::item", 4)
    assert [(site.count, site.status) for site in finding.sites] == [(10.0, "found")]
    assert "10 × aten::item → cudaStreamSynchronize, line 4" in finding.evidence
    assert finding.change == ("    total += y.item()", "    total += y.detach()  # a tensor: stays on the GPU")


@pytest.mark.parametrize(
    "text",
    [
        "    if y.item() > 3:",
        "    while y.item() > 3:",
        "    assert y.item() > 3",
        "    print(y.item())",
        "    total += float(y.item())",
        "    bar.set_postfix_str(f'{y.item():.3f}')",
        "    total = y.item() + z.item()",
    ],
)
def test_no_change_is_offered_where_the_tensor_would_be_read_again(text: str) -> None:
    machine = Machine()
    for _ in range(4):
        with machine.step():
            reading(machine)
    record = live(SOURCE.replace("    total += y.item()", text), 1_700)

    finding = cause_of("host_sync").find(analyse(machine.trace(), record))

    assert (finding.status, finding.change) == ("found", None)


def test_read_of_a_busy_gpu_is_cleared() -> None:
    """One read behind 2,000 us of kernel costs 9 of 2,010 us."""

    def body(machine: Machine) -> None:
        machine.launch(2_000)
        machine.item()

    finding = cause_of("host_sync").find(profiled(body, 2_010))

    assert gains(finding) == ("cleared", 9.0, 2_001.0)
    assert "for a GPU that is busy anyway" in finding.evidence
    assert finding.change is None


def test_no_synchronisation() -> None:
    finding = cause_of("host_sync").find(profiled(lambda machine: machine.launch(100), 101))

    assert gains(finding) == ("cleared", 0.0, 101.0)
    assert finding.evidence == "no line waits for the GPU"


def test_plain_synchronise_is_found_without_an_operator() -> None:
    """Launch 5, kernel to 105, back at 107, 93 of Python: 200. Without the wait: 101 on the device, 98 on the host."""

    def body(machine: Machine) -> None:
        machine.launch(100)
        machine.sync()
        machine.python(93)

    finding = cause_of("host_sync").find(profiled(body, 200))

    assert gains(finding) == ("found", 99.0, 101.0)
    assert finding.where.operator == "cudaDeviceSynchronize"
    assert "Do not synchronise" in finding.advice


def test_views_that_feed_a_read_go_with_it_and_other_operators_stay() -> None:
    """``x[0, 1].item()``: two ``aten::select`` of 40 us go; ``aten::add`` before them stays, as it launches."""

    def body(machine: Machine) -> None:
        with machine.op("aten::add"):
            machine.python(50)
            machine.launch(10)
        machine.python(1)
        for _ in range(2):
            with machine.op("aten::select"):
                machine.python(40)
            machine.python(1)
        machine.item()

    profile = profiled(body, 50 + 5 + 1 + 82 + 10)

    assert gains(cause_of("host_sync").find(profile))[2] == 50 + 5 + 1 + 2


def test_each_line_that_reads_is_a_site_of_its_own() -> None:
    def body(machine: Machine) -> None:
        for line, python in ((3, 10), (4, 90)):
            with machine.line(line):
                machine.launch(100)
                machine.item()
                machine.python(python)

    finding = cause_of("host_sync").find(profiled(body, 320))

    assert {site.where.line for site in finding.sites} == {3, 4}
    assert finding.where.line == finding.sites[0].where.line == 4
    assert (finding.sites[0].recoverable_ms or 0) > (finding.sites[1].recoverable_ms or 0)


def test_synchronisation_of_an_allocator_call_is_the_allocators() -> None:
    def body(machine: Machine) -> None:
        machine.launch(100)
        machine.free()

    finding = cause_of("host_sync").find(profiled(body, 155))

    assert finding.evidence == "no line waits for the GPU"


# allocator


def flushing(machine: Machine) -> None:
    """Five times: cudaMalloc 100, launch 5 with a kernel of 100, cudaFree until 50 after it: 5 * 255 a step."""
    for _ in range(5):
        with machine.line(3):
            machine.call("cudaMalloc", 100)
            machine.launch(100)
        with machine.line(5):
            machine.free(tail=50)


def test_allocation_the_gpu_waits_for_is_found() -> None:
    """Without it five kernels follow each other: 505."""
    finding = cause_of("allocator").find(profiled(flushing, 1_275))

    assert gains(finding) == ("found", 770.0, 505.0)
    assert finding.where.line == 5
    assert "5 × cudaMalloc" in finding.evidence
    assert "5 × cudaFree" in finding.evidence
    assert finding.change == ("    torch.cuda.empty_cache()", "")


def test_requests_that_flush_the_cache_are_told_apart_from_a_flush_by_the_program() -> None:
    """E8: memory is capped; a request fails at the driver, the cache goes back, and then it is served."""

    def body(machine: Machine) -> None:
        with machine.line(3), machine.op("aten::empty"):
            machine.call("cudaMalloc", 5)
            machine.free(tail=300)
            machine.call("cudaMalloc", 100)
        machine.launch(100)

    finding = cause_of("allocator").find(profiled(body, 420))

    assert finding.status == "found"
    assert finding.evidence.endswith("4 requests had to flush the cache first")
    assert "expandable_segments" in finding.advice
    assert "requests had to" not in cause_of("allocator").find(profiled(flushing, 1_275)).evidence


def test_what_grows_is_named_where_the_allocator_has_to_ask_for_more_in_every_step() -> None:
    """Each step keeps 100 MB more than the one before, and asks the driver for them."""

    def body(machine: Machine) -> None:
        held = 100_000_000 * len(machine.marks)
        machine.call("cudaMalloc", 300)
        machine.builder.memory(machine.host, 100_000_000, held + 100_000_000, 9_000_000_000, address=held)
        machine.launch(100)

    finding = cause_of("allocator").find(profiled(body, 400))

    assert finding.status == "found"
    assert "100 MB more after each step" in finding.advice
    assert "expandable_segments" not in finding.advice


def test_allocation_beside_a_busy_gpu_is_cleared() -> None:
    def body(machine: Machine) -> None:
        machine.launch(2_000)
        machine.call("cudaMalloc", 400)

    finding = cause_of("allocator").find(profiled(body, 2_001))

    assert gains(finding) == ("cleared", 0.0, 2_001.0)
    assert "1 × cudaMalloc" in finding.evidence


def test_no_allocation() -> None:
    finding = cause_of("allocator").find(profiled(lambda machine: machine.launch(100), 101))

    assert gains(finding) == ("cleared", 0.0, 101.0)
    assert finding.evidence == "no cudaMalloc or cudaFree inside the steps"


def test_memory_that_goes_up_and_down_inside_the_cache_is_cleared_in_so_many_words() -> None:
    """E8: a cache that has settled. 3 GB up and 2 GB down in every step, and no call to the driver."""

    def body(machine: Machine) -> None:
        held = 1_000_000_000 * len(machine.marks)
        machine.builder.memory(machine.host + 1, 3_000_000_000, held + 3_000_000_000, 9_000_000_000)
        machine.launch(100)
        machine.builder.memory(machine.host, -2_000_000_000, held + 1_000_000_000, 9_000_000_000)

    finding = cause_of("allocator").find(profiled(body, 101))

    assert finding.status == "cleared"
    assert finding.evidence == (
        "no cudaMalloc or cudaFree inside the steps: memory goes up and down by 2,000 MB inside the cache, "
        "which costs nothing"
    )


def test_memory_that_only_grows_is_no_saw_tooth() -> None:
    def body(machine: Machine) -> None:
        held = 1_000_000_000 * len(machine.marks)
        machine.builder.memory(machine.host + 1, 1_000_000_000, held, 9_000_000_000)
        machine.launch(100)

    assert cause_of("allocator").find(profiled(body, 101)).evidence == "no cudaMalloc or cudaFree inside the steps"


# transfer


def copying(machine: Machine) -> None:
    """Pageable copy 900, tail 3, launch 5, kernel 100, 1 until the next copy: 1,009 a step."""
    with machine.line(3):
        machine.blocking_copy(900, 8_000_000)
    with machine.line(4):
        machine.launch(100)


def test_pageable_copy_is_found() -> None:
    """At 55 GB/s beside the kernels: 145.455 us and 1 between two copies."""
    finding = cause_of("transfer").find(profiled(copying, 1_009))

    assert gains(finding) == ("found", 862.545, 146.455)
    assert finding.where.line == 3
    assert "8.0 MB to the GPU in a step from pageable memory, 0.90 ms, 8.9 GB/s" in finding.evidence
    assert "pin_memory=True" in finding.advice


def test_copy_beside_a_busy_gpu_is_cleared() -> None:
    def body(machine: Machine) -> None:
        machine.launch(2_000)
        machine.copy(150, 8_000_000, stream=20)

    finding = cause_of("transfer").find(profiled(body, 2_001))

    assert gains(finding) == ("cleared", 0.0, 2_001.0)


def test_no_large_copy() -> None:
    """A read of four bytes is a read."""
    finding = cause_of("transfer").find(profiled(reading, 1_700))

    assert gains(finding) == ("cleared", 0.0, 1_700.0)
    assert finding.evidence.startswith("no copy of 1 MB or more")


def kept_on_the_host(behind: float) -> Callable[[Machine], None]:
    """A kernel of 100, its 8 MB to the host in 900, and Python behind that in the same statement."""

    def body(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(100)
        with machine.line(4):
            with machine.op("aten::to"):
                machine.blocking_copy(900, 8_000_000, direction="DtoH pageable")
            machine.python(behind)

    return body


@pytest.mark.parametrize(("behind", "left"), [(600, 0), (3_000, 2_200)])
def test_giving_back_the_host_tensor_goes_with_its_copy(behind: float, left: float) -> None:
    """8 MB take 800 us at most; what is beyond is the statement's own work with the copy."""
    step = 5 + 100 + 1 + 900 + 3 + behind
    finding = cause_of("transfer").find(profiled(kept_on_the_host(behind), step))

    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms * 1000 == pytest.approx(max(101.0, left + 5 + 5), abs=6)


def test_copy_that_is_a_node_of_a_graph_takes_no_kernels_with_it() -> None:
    """Twenty kernels of 500 and a copy of 100 to the host in one launch: without the copy 10,000 are left."""
    machine = Machine()
    for _ in range(4):
        with machine.step():
            begin = machine.host
            at = max(begin + 10 + 5, machine.ready.get((0, 7), 0.0) + 1)
            nodes = [("node", at + 501 * number, 500.0) for number in range(20)]
            correlation = machine.builder.graph(begin, 10, nodes)
            machine.builder.copy_record("DtoH", at + 20 * 501, 100, 2_000_000, correlation=correlation)
            machine.ready[0, 7] = at + 20 * 501 + 100
            machine.host += 10
    finding = cause_of("transfer").find(analyse(machine.trace(), live(SOURCE, 10_121, 10_121, 10_121)))

    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms > 9.9


@pytest.mark.parametrize(
    ("direction", "words", "cure"),
    [
        ("HtoD pageable", "from pageable memory", "pinned"),
        ("HtoD", "from pinned memory", "stream of its own"),
        ("Memcpy HtoD (Unknown -> Device)", "in a step,", "pinned"),
    ],
)
def test_what_is_said_of_the_hosts_memory_is_known(direction: str, words: str, cure: str) -> None:
    def body(machine: Machine) -> None:
        machine.blocking_copy(900, 8_000_000, direction=direction)
        machine.launch(100)

    finding = cause_of("transfer").find(profiled(body, 1_009))

    assert words in finding.evidence
    assert cure in finding.advice


def test_the_direction_that_takes_longer_is_named_with_its_own_numbers() -> None:
    """4 MB there in 100, 200 MB back in 5,000."""

    def body(machine: Machine) -> None:
        machine.blocking_copy(100, 4_000_000, direction="HtoD pageable")
        machine.launch(10)
        machine.blocking_copy(5_000, 200_000_000, direction="DtoH pageable")

    finding = cause_of("transfer").find(profiled(body, 5_150))

    assert finding.evidence.startswith("200 MB to the host in a step, 5.00 ms, 40.0 GB/s")
    assert "after the loop" in finding.advice


def test_an_operator_behind_a_copy_to_the_host_is_no_release() -> None:
    def body(machine: Machine) -> None:
        kept_on_the_host(0)(machine)
        with machine.op("aten::sort"):
            machine.python(500)

    finding = cause_of("transfer").find(profiled(body, 5 + 100 + 1 + 900 + 3 + 500))

    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms * 1000 > 500


def test_copy_to_the_host_is_not_made() -> None:
    """Kernel 100 from +5, copy 900 from +106, back at 1,009. Without: 101."""

    def body(machine: Machine) -> None:
        machine.launch(100)
        machine.blocking_copy(900, 8_000_000, direction="DtoH pageable")

    finding = cause_of("transfer").find(profiled(body, 1_009))

    assert gains(finding) == ("found", 908.0, 101.0)
    assert "to the host" in finding.evidence
    assert "copy it to the host once" in finding.advice


def test_copy_and_the_synchronise_behind_it_are_one() -> None:
    """E12: asynchronous call, then a wait in the same operator: both go, and it is no host_sync."""

    def body(machine: Machine) -> None:
        with machine.op("aten::copy_"):
            machine.blocking_copy(900, 8_000_000)
            machine.stream_sync(tail=40)
        machine.launch(100)

    profile = profiled(body, 1_049)

    assert gains(cause_of("transfer").find(profile))[2] == 146.455
    assert cause_of("host_sync").find(profile).evidence == "no line waits for the GPU"


# cpu_bound


def computing(machine: Machine) -> None:
    """500 of Python, launch 5: 505 a step; the kernel of 100 runs beside."""
    with machine.line(3):
        machine.python(500)
    with machine.line(4):
        machine.launch(100)


def test_python_the_gpu_waits_for_is_found() -> None:
    finding = cause_of("cpu_bound").find(profiled(computing, 505))

    assert gains(finding) == ("found", 404.0, 101.0)
    assert finding.where.line == 3
    assert [(site.where.line, site.count) for site in finding.sites] == [(3, 1.0)]
    assert "0.50 ms of host work per step" in finding.evidence


def test_python_beside_a_busy_gpu_is_cleared() -> None:
    def body(machine: Machine) -> None:
        computing(machine)
        machine.launch(400)
        machine.launch(400)

    finding = cause_of("cpu_bound").find(profiled(body, 903))

    assert gains(finding) == ("cleared", 0.0, 903.0)


def test_no_long_stretch_of_python() -> None:
    def body(machine: Machine) -> None:
        for _ in range(10):
            machine.python(60)
            machine.launch(10)

    finding = cause_of("cpu_bound").find(profiled(body, 650))

    assert gains(finding) == ("cleared", 0.0, 650.0)
    assert "no stretch" in finding.evidence


def test_operator_that_computes_on_the_cpu_is_host_work() -> None:
    """``aten::randn`` on the CPU: 500 us inside an operator without any call."""

    def body(machine: Machine) -> None:
        with machine.op("aten::randn"):
            machine.python(500)
        machine.launch(100)

    assert gains(cause_of("cpu_bound").find(profiled(body, 505))) == ("found", 404.0, 101.0)


def test_fetching_is_not_counted_as_python_too() -> None:
    finding = cause_of("cpu_bound").find(profiled(starving, 8_005))

    assert "no stretch" in finding.evidence


def test_dispatch_of_an_operator_is_no_python() -> None:
    def body(machine: Machine) -> None:
        with machine.op("aten::mm"):
            machine.python(300)
            machine.launch(100)

    assert "no stretch" in cause_of("cpu_bound").find(profiled(body, 305)).evidence


# launch_bound


def tiny(machine: Machine) -> None:
    """Twenty times 20 of dispatch and a launch of 10, kernels of 2: 600 a step."""
    for _ in range(20):
        with machine.line(3), machine.op("aten::add"):
            machine.python(20)
            machine.launch(2, own=10)


def test_kernels_shorter_than_their_launch_are_found() -> None:
    """One graph: 20 kernels of 2 without a pause."""
    finding = cause_of("launch_bound").find(profiled(tiny, 600))

    assert gains(finding) == ("found", 560.0, 40.0)
    assert finding.evidence == "20 launches in a step, one every 30 µs; the median kernel runs 2 µs"
    assert finding.where.line == 3


def test_launches_beside_a_busy_gpu_are_cleared() -> None:
    """The pauses between twenty kernels of 200 are all there is to gain: 20 of 4,020."""

    def body(machine: Machine) -> None:
        for _ in range(20):
            machine.launch(200)

    finding = cause_of("launch_bound").find(profiled(body, 4_020))

    assert gains(finding) == ("cleared", 20.0, 4_000.0)
    assert "recovers 0.5 % of the step" in finding.evidence


def test_a_single_launch_beside_a_busy_gpu_is_cleared() -> None:
    finding = cause_of("launch_bound").find(profiled(lambda machine: machine.launch(100), 101))

    assert finding.status == "cleared"
    assert finding.evidence.startswith("1 launch in a step, ")


def test_a_single_launch_behind_much_dispatch_is_launch_bound() -> None:
    """One compiled region of 80 and its kernel of 5 in a step of 90: a graph's launch of 10 is all that must stay."""

    def body(machine: Machine) -> None:
        with machine.line(3), machine.op("Torch-Compiled Region: 0/0"):
            machine.python(80)
            machine.launch(5, own=10)

    profile = profiled(body, 90)

    assert gains(cause_of("launch_bound").find(profile)) == ("found", 80.0, 10.0)
    assert cause_of("cpu_bound").find(profile).status == "cleared"


def test_python_around_a_single_launch_is_not_the_launch() -> None:
    """90 of Python for a kernel of 5: too short to count among many launches, and nearly all of this step."""

    def body(machine: Machine) -> None:
        with machine.line(3):
            machine.python(90)
            machine.launch(5, own=10)

    profile = profiled(body, 100)

    assert gains(cause_of("cpu_bound").find(profile)) == ("found", 90.0, 10.0)
    assert cause_of("launch_bound").find(profile).status == "cleared"


def test_graph_launch_is_not_launch_bound() -> None:
    """A15: one launch, twenty kernels."""
    finding = cause_of("launch_bound").find(profiled(lambda machine: machine.graph(20, 4), 100))

    assert gains(finding) == ("cleared", 0.0, 100.0)
    assert finding.evidence == "all kernels are launched as graphs"


def test_graph_keeps_the_loader_the_wait_and_long_python() -> None:
    """500 of fetching, 300 of Python, and the read stay: only launches and short gaps go."""

    def body(machine: Machine) -> None:
        machine.loader(500)
        for _ in range(10):
            machine.python(10)
            machine.launch(1)
        machine.python(300)
        machine.sync(tail=2)

    finding = cause_of("launch_bound").find(profiled(body, 952))

    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms * 1000 == pytest.approx(500 + 10 + 300 + 2)


def test_graph_takes_the_operators_between_two_launches_with_it() -> None:
    """150 of dispatch before each of ten launches: far longer than the Python that would stay."""

    def body(machine: Machine) -> None:
        for _ in range(10):
            with machine.op("aten::layer_norm"):
                machine.python(150)
                machine.launch(20, own=10)

    assert gains(cause_of("launch_bound").find(profiled(body, 1_600))) == ("found", 1_400.0, 200.0)


# Found or cleared.


def losing(share: float) -> Callable[[Machine], None]:
    """A synchronisation that costs this share of a step of 1,000 us, and keeps the GPU idle for it."""

    def body(machine: Machine) -> None:
        machine.launch(1_000 * (1 - share) - 1)
        machine.sync(tail=1_000 * share - 4)

    return body


@pytest.mark.parametrize(("share", "status"), [(0.045, "cleared"), (0.055, "found")])
def test_found_needs_five_percent_of_the_step(share: float, status: str) -> None:
    finding = cause_of("host_sync").find(profiled(losing(share), 1_000))

    assert finding.recoverable_ms == pytest.approx(share)
    assert finding.status == status


@pytest.mark.parametrize(("share", "status"), [(0.07, "cleared"), (0.10, "found")])
def test_without_a_baseline_found_needs_eight_percent(share: float, status: str) -> None:
    assert cause_of("host_sync").find(profiled(losing(share), None)).status == status


@pytest.mark.parametrize(("off", "status"), [(0.03, "found"), (0.05, "unknown")])
def test_found_needs_twice_the_replays_error(off: float, status: str) -> None:
    """80 us of 1,000 are gained; the replay is 30 or 50 us off."""
    profile = replace(profiled(losing(0.08), 1_000), fit_error=off)

    assert profile.error_ns == pytest.approx(off * 1_000_000)
    assert cause_of("host_sync").find(profile).status == status


def test_slower_gpu_of_the_unprofiled_steps_is_no_error_of_the_replay() -> None:
    """The kernel fills 92 % of the step, so it is the one that takes longer; the wait's 80 us stay."""
    profile = profiled(losing(0.08), 1_045)

    assert profile.error_ns < 1_045
    assert gains(cause_of("host_sync").find(profile))[:2] == ("found", pytest.approx(80))


def test_slower_host_of_the_unprofiled_steps_loses_more_to_the_loader() -> None:
    """Fetch 8,000 and launch 5, 1.25 times as long: 10,006. Without the fetch the kernel follows itself: 2,001."""
    finding = cause_of("data_loading").find(profiled(starving, 10_006.25))

    status, recovered, predicted = gains(finding)
    assert status == "found"
    assert recovered == pytest.approx(8_005.25, rel=2e-3)
    assert predicted == pytest.approx(2_001, rel=6e-3)


def test_slower_host_takes_its_operators_with_it() -> None:
    """300 us of dispatch, 1.4 times as long, are still no Python."""

    def body(machine: Machine) -> None:
        for _ in range(4):
            with machine.op("aten::mm"):
                machine.python(300)
                machine.launch(10, own=10)

    profile = profiled(body, 1_736)

    assert profile.drift == pytest.approx(1.4, rel=2e-3)
    assert "no stretch" in cause_of("cpu_bound").find(profile).evidence


def test_gain_never_exceeds_the_step() -> None:
    """The baseline is far shorter than the loader's recorded time."""
    finding = cause_of("data_loading").find(profiled(starving, 2_500))

    assert finding.recoverable_ms is not None
    assert 0 <= finding.recoverable_ms < 2.5
    assert finding.predicted_step_ms is not None
    assert finding.predicted_step_ms > 0
