"""What one run measured: which step it speaks of, how far the replay is off, what is missing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ipyprof.analysis.profile import FILE_COST_NS, Profile, analyse
from ipyprof.analysis.replay import device_share
from ipyprof.trace.live import LiveRecord
from tests.builder import TraceBuilder
from tests.machine import Machine, live


def of(machine: Machine, record: LiveRecord | None = None) -> Profile:
    return analyse(machine.trace(), record)


def busy(steps: int = 3) -> Machine:
    """Four kernels of 400 us a step, 20 us of launches: 1,604 us on the device."""
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            for _ in range(4):
                machine.launch(400)
    return machine


def operators(steps: int = 3, count: int = 20) -> Machine:
    """``count`` operators a step of 20 us of host work and a launch of 10 us each, kernels of 2 us: 30 us each."""
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            for _ in range(count):
                with machine.op("aten::add"):
                    machine.python(20)
                    machine.launch(2, own=10)
    return machine


# Which step.


def test_live_step_is_the_median_of_the_baseline() -> None:
    profile = of(busy(), live("", 1_600, 1_610, 1_900))

    assert (profile.step_ns, profile.step_from) == (1_610_000.0, "baseline")


def test_step_of_a_file_is_the_deflated_replay() -> None:
    """C5: the host's marks are 20 us apart, the device's steps 1,604 us."""
    profile = of(busy())

    assert (profile.step_ns, profile.step_from) == (1_604_000.0, "replay")
    assert profile.cost_ns == FILE_COST_NS
    assert profile.profiled_step_ns == 1_604_000.0


def test_host_bound_step_of_a_file_loses_what_recording_cost() -> None:
    """20 operators, 20 launches: 40 events of 2.5 us are taken out of 600 us; the mark is half an event or one."""
    profile = of(operators())

    assert profile.profiled_step_ns == pytest.approx(600_000)
    assert profile.step_ns == pytest.approx(600_000 - 40 * FILE_COST_NS, abs=FILE_COST_NS)


def test_recording_that_made_it_look_host_bound_is_deflated_to_the_baseline() -> None:
    """A17: 600 us recorded, 500 us unprofiled."""
    profile = of(operators(), live("", 500, 500, 500))

    assert profile.overhead == pytest.approx(1.2)
    assert profile.replayed is not None
    assert profile.replayed.step_ns == pytest.approx(500_000, rel=2e-3)
    assert profile.breakdown is not None
    assert sum(profile.breakdown.parts.values()) == pytest.approx(500_000)


def test_profiled_step_of_a_live_run_is_the_median_of_its_samples() -> None:
    profile = of(busy(), live("", 1_604, profiled_ns=(1_700_000, 1_800_000, 2_500_000)))

    assert profile.profiled_step_ns == 1_800_000.0
    assert profile.overhead == pytest.approx(1_800 / 1_604)


def test_no_baseline_no_overhead() -> None:
    assert of(busy()).overhead is None
    assert of(busy(), live("")).overhead is None


def test_single_step_without_a_baseline_is_replayed_once() -> None:
    """A10: 20 us of launches, 1,608 us until the last kernel has ended."""
    profile = of(busy(1))

    assert profile.once
    assert profile.step_ns == 1_608_000.0


def test_single_step_with_a_baseline_repeats() -> None:
    profile = of(busy(1), live("", 1_604))

    assert not profile.once
    assert profile.replayed is not None
    assert profile.replayed.step_ns == 1_604_000.0


def test_no_marks_is_one_step_over_everything() -> None:
    """A10."""
    builder = TraceBuilder()
    builder.launch(0, 5, "gemm", 10, 90)
    profile = analyse(builder.trace())

    assert (profile.steps.count, profile.steps.how, profile.once) == (1, "no step marks", True)
    assert profile.step_ns == 100_000.0


def test_trace_of_python_functions_alone_has_no_step() -> None:
    """A10: no division by zero."""
    builder = TraceBuilder()
    builder.python("<module>", 0, 100)
    profile = analyse(builder.trace())

    assert (profile.steps.count, profile.step_ns, profile.step_from) == (0, None, "none")
    assert (profile.program, profile.breakdown, profile.lines) == (None, None, ())
    assert (profile.has_gpu, profile.silent, profile.error_ns) == (False, False, 0.0)


def test_trace_carries_its_live_record() -> None:
    machine = busy()
    machine.builder.live(live("%%gpuprofile\nfor _ in range(9):", 1_650))

    assert of(machine).step_ns == 1_650_000.0


# The replay's checks.


def test_replay_of_a_fair_recording_fits_exactly() -> None:
    profile = of(busy(), live("", 1_604))

    assert profile.fit_error == pytest.approx(0, abs=1e-9)
    assert profile.error_ns == pytest.approx(0, abs=1e-3)


def test_marks_that_took_time_do_not_count_against_the_fit_of_a_busy_gpu() -> None:
    """100 us between the steps' ranges, hidden behind 1,604 us of kernels."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            for _ in range(4):
                machine.launch(400)
        machine.python(100)

    profile = of(machine, live("", 1_604))

    assert profile.fit_error == pytest.approx(0, abs=1e-9)


@pytest.mark.usefixtures("recording_costs_nothing")
def test_marks_that_took_time_do_not_count_against_the_fit_of_a_waiting_gpu() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(300)
            machine.launch(50)
        machine.python(100)

    profile = of(machine, live("", 305))

    assert profile.fit_error == pytest.approx(0, abs=1e-9)
    assert profile.replayed is not None
    assert profile.replayed.step_ns == pytest.approx(305_000)


def test_pause_that_nothing_explains_shows_in_the_fit() -> None:
    """A stream with work stands still for 1 ms: the model has no reason for it."""
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.launch(0, 5, "a", 5, 995)
    builder.launch(10, 5, "b", 2_000, 1_000)

    profile = analyse(builder.trace())

    assert profile.fit_error == pytest.approx(980 / 3_000, abs=1e-6)  # all but the 20 us a pause may last


def test_error_is_the_worse_of_the_two_checks() -> None:
    """The device takes 1,604 us, the baseline is 1,000: no clock changes that much, 604 us off. The window fits."""
    profile = of(busy(), live("", 1_000))

    assert profile.fit_error == pytest.approx(0, abs=1e-9)
    assert profile.error_ns == pytest.approx(604_000)
    assert profile.drift == 1.0


# Unprofiled steps that ran slower, and what recording cost then.


def test_longer_unprofiled_step_of_a_busy_gpu_is_a_slower_gpu() -> None:
    """Kernels of 400 us take 424: a clock that fell by 6 %."""
    profile = of(busy(), live("", 1_700))

    assert profile.drift == pytest.approx(1.06, abs=2e-3)
    assert profile.error_ns < 2_000
    assert profile.breakdown is not None
    assert profile.breakdown.parts["kernel"] == pytest.approx(1_696_000, rel=2e-3)


@pytest.mark.usefixtures("recording_costs_nothing")
def test_longer_unprofiled_step_of_a_waiting_gpu_is_a_slower_host() -> None:
    profile = of(operators(), live("", 720, 720, 720))

    assert (profile.step_ns, profile.cost_ns) == (720_000.0, 0.0)
    assert profile.drift == pytest.approx(1.2, rel=2e-3)
    assert profile.breakdown is not None
    assert profile.breakdown.parts["kernel"] == pytest.approx(40_000, rel=2e-3)


def test_recording_that_is_a_small_part_of_the_step_costs_what_it_usually_does() -> None:
    """One launch in 10,005 us: no baseline could tell its cost from the spread of the steps."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(10_000)
            machine.launch(50)

    assert of(machine, live("", 10_005)).cost_ns == FILE_COST_NS


def test_gpu_that_is_busy_at_the_usual_cost_became_slower_and_not_the_recording_cheaper() -> None:
    """600 us recorded, 500 without its cost: less than 20 kernels of 27 us. Unprofiled 600: kernels of 29."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            for _ in range(20):
                with machine.op("aten::mm"):
                    machine.python(20)
                    machine.launch(27, own=10)

    profile = of(machine, live("", 600))

    assert profile.cost_ns == FILE_COST_NS
    assert profile.drift == pytest.approx(29 / 27, rel=2e-3)
    assert profile.breakdown is not None
    assert profile.breakdown.parts["kernel"] == pytest.approx(20 * 29_000, rel=2e-3)


# The only sample behind the recording.


def fetching() -> Machine:
    """295 us of Python, launch 5, kernel 50, then a fetch of 100: 400 us a step, 350 from an idle GPU to the end.

    Half of the fetch lies beside the kernel.
    """
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.python(295)
            machine.launch(50)
            machine.loader(100)
    return machine


def test_sample_that_ended_with_the_loop_is_a_step_without_its_fetch() -> None:
    profile = of(fetching(), live("", 350, baseline="after_first", baseline_closing=True))

    assert (profile.step_ns, profile.step_from) == (400_000.0, "baseline")
    assert (profile.cost_ns, profile.drift) == (0.0, 1.0)
    assert profile.breakdown is not None
    assert profile.breakdown.parts["data_loading"] == pytest.approx(50_000)


def test_sample_behind_the_stop_that_did_not_end_the_loop_holds_its_fetch() -> None:
    profile = of(fetching(), live("", 400, baseline="after_first"))

    assert profile.step_ns == 400_000.0
    assert profile.breakdown is not None
    assert profile.breakdown.parts["data_loading"] == pytest.approx(50_000)


def test_sample_taken_for_a_whole_step_makes_recording_look_expensive() -> None:
    """The same 350 us with the fetch in them: 50 us are put down to recording."""
    profile = of(fetching(), live("", 350, baseline="after_first"))

    assert profile.cost_ns > FILE_COST_NS
    assert profile.step_ns == pytest.approx(350_000, rel=2e-3)


# What is missing.


def test_launches_without_any_record_are_silent() -> None:
    """A3, A4: not "the GPU is idle"."""
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.call("cudaLaunchKernel", 10, 5)
    profile = analyse(builder.trace())

    assert (profile.silent, profile.has_gpu, profile.devices) == (True, False, ())


def test_no_cuda_at_all_is_not_silent() -> None:
    """A4: must differ from a CUPTI that says nothing."""
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.op("aten::mm", 10, 90)
    profile = analyse(builder.trace())

    assert (profile.silent, profile.has_gpu) == (False, False)


def test_launches_without_a_record_are_counted() -> None:
    machine = busy(2)
    machine.builder.call("cudaLaunchKernel", 12, 1)
    machine.builder.call("cudaGraphLaunch", 13, 1)
    machine.builder.call("cudaMemsetAsync", 14, 1)
    profile = of(machine)

    assert (profile.lost, profile.silent) == (2, False)


def test_driver_call_inside_a_launch_is_not_lost() -> None:
    machine = busy(1)
    machine.builder.call("cuLaunchKernel", 1, 1)
    machine.builder.events[-1]["args"]["correlation"] = 1

    assert of(machine).lost == 0


def test_every_device_that_worked_is_listed() -> None:
    """C1."""
    machine = Machine()
    for _ in range(2):
        with machine.step():
            for device in (0, 3):
                machine.launch(100 + device, device=device)
    profile = of(machine, live("", 104))

    assert profile.devices == (0, 3)
    assert profile.breakdown is not None
    assert profile.breakdown.device == 3


def test_backward_on_another_thread_counts_in_its_step() -> None:
    """C13: the device's own mark covers the first kernel only."""
    machine = Machine()
    for step in range(3):
        with machine.step():
            begin = machine.host
            machine.launch(100)
            machine.builder.gpu_annotation(f"ProfilerStep#{step}", begin + 5, begin + 105)
            with machine.thread(2):
                for _ in range(19):
                    machine.launch(1_000)
    profile = of(machine, live("", 19_120))

    assert profile.step_ns == 19_120_000.0
    assert profile.profiled_step_ns == 19_120_000.0
    assert profile.breakdown is not None
    assert profile.breakdown.parts["kernel"] == pytest.approx(19_100_000)


def test_live_recording_without_a_whole_step_has_the_baseline_and_no_parts() -> None:
    """The only step was cut off: what there is of it is not taken for a step."""
    builder = TraceBuilder()
    builder.annotation("unfinished step 5", 0, 100)
    builder.launch(10, 5, "a", 20, 30)

    profile = analyse(builder.trace(), live("", 50_600))

    assert profile.steps.count == 0
    assert profile.step_ns == 50_600_000
    assert profile.breakdown is None


# How fast the host is where the device sets the pace.

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def exchanging(events: int = 100) -> Machine:
    """Kernels of 1,200, then a collective of 700 that the next step waits for; 1,500 of Python with operators in it.

    The first kernel of the window waited for no collective, so three of four steps take 1,902: 1,725 on average.
    """
    machine = Machine()
    for _ in range(4):
        with machine.step():
            machine.launch(1_200, stream=7)
            machine.wait_event(20, on=7)
            machine.launch(700, stream=20, name=ALL_REDUCE)
            machine.wait_event(7, on=20)
            for _ in range(events):
                with machine.op("aten::add"):
                    machine.python(15)
    return machine


def test_streams_that_wait_for_each_other_keep_the_device_busy_together() -> None:
    """One stream works 1,200 of a step, and the other one 700."""
    profile = of(exchanging(), live("", 1_726))

    assert profile.program is not None and profile.replayed is not None
    assert device_share(profile.program, profile.replayed) > 0.99
    # so the usual cost of an event holds, and not the one with which the host would take all of the step
    assert profile.cost_ns == FILE_COST_NS


def test_host_that_was_seen_to_run_ahead_is_that_fast() -> None:
    """The host needs 1,519 a step in the recording, and 1,059 without the profiler: 460 for 105 events."""
    record = replace(live("", 1_726), baseline_host_ns=(1_726_000, 1_059_000, 1_500_000))
    profile = of(exchanging(), record)

    assert profile.program is not None
    recorded = float(profile.program.gap.sum() + profile.program.own.sum()) / profile.program.steps
    events = profile.program.events / profile.program.steps
    assert profile.cost_ns == pytest.approx((recorded - 1_059_000) / events)
    assert 4_000 < profile.cost_ns < 4_600


def test_host_time_of_an_accumulating_loop_counts_over_whole_cycles() -> None:
    """Iterations of 600 and 1,400, of which one is the optimizer's: 1,000 each."""
    record = replace(live("", 1_726), baseline_host_ns=(600_000, 1_400_000, 600_000, 1_400_000), cycle=2)
    alone = replace(record, baseline_host_ns=(1_000_000, 1_000_000))

    assert of(exchanging(), record).cost_ns == of(exchanging(), alone).cost_ns


@pytest.mark.parametrize("step_us", [1_700, 1_726, 1_860])
def test_how_fast_the_host_was_seen_to_be_holds_for_a_faster_device_and_a_slower_one(step_us: float) -> None:
    """Steps shorter than the recorded ones, equal, and longer: the GPU's clock changed, and the host did not."""
    record = replace(live("", step_us), baseline_host_ns=(1_059_000,))

    assert of(exchanging(), record).cost_ns == pytest.approx(4_396, abs=1)
