"""What can make the numbers wrong: each check, when it is quiet and when it speaks, and what it does to confidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ipyprof.analysis.profile import Profile, analyse
from ipyprof.diagnosis.trust import checks, confidence, shifted, unprofiled_spread
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.trace.live import AllocatorState, LiveRecord
from ipyprof.trace.reader import BROKEN, ENDS_EARLY, HOLES, REPAIRED, UNFIT
from tests.builder import TraceBuilder
from tests.machine import Machine, live

Body = Callable[[Machine], object]


def busy(machine: Machine) -> None:
    machine.launch(500)
    machine.launch(500)


def profiled(body: Body = busy, *samples_us: float, steps: int = 3, **known: Any) -> Profile:
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            body(machine)
    return analyse(machine.trace(), live("", *samples_us, **known))


def of_a_file(builder: TraceBuilder) -> Profile:
    return analyse(builder.trace())


def said(profile: Profile) -> dict[str, tuple[str, str]]:
    """check → (status, text)."""
    return {check.check: (check.status, check.text) for check in checks(profile)}


def test_sound_run_has_nothing_but_ok() -> None:
    profile = profiled(busy, 1_002, 1_002, 1_002)

    assert said(profile) == {
        "stable": ("ok", "3 unprofiled steps within 0.0 %"),
        "records": ("ok", "no record lost, none carried over"),
        "clocks": ("ok", "host and GPU clocks agree"),
        "replay": ("ok", "replay fits the recording within 0.0 %"),
        "overhead": ("ok", "recording made the step 0 % longer"),
    }
    assert confidence(checks(profile)) == ("high", ())


def test_no_step_fails() -> None:
    builder = TraceBuilder()
    builder.python("<module>", 0, 100)

    assert said(of_a_file(builder))["steps"] == ("fail", "no step was recorded")


def test_no_marks_warn_and_mean_low_confidence() -> None:
    """A10."""
    builder = TraceBuilder()
    builder.launch(0, 5, "gemm", 10, 90)
    profile = of_a_file(builder)

    assert said(profile)["steps"] == ("warn", "no step marks: everything is taken as one step")
    assert confidence(checks(profile))[0] == "low"
    assert "no step marks in the file" in confidence(checks(profile))[1]


def test_file_has_medium_confidence_at_most() -> None:
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, 1_000 * step, 1_000 * step + 1_000)
        builder.launch(1_000 * step, 5, "gemm", 1_000 * step + 5, 990)
    profile = of_a_file(builder)

    assert confidence(checks(profile)) == ("medium", ("from a file: no unprofiled steps to compare with",))
    assert said(profile)["baseline"] == ("warn", "from a file: no unprofiled steps to compare with")
    assert "overhead" not in said(profile)


@pytest.mark.parametrize(
    ("samples", "spread"),
    [
        ((100, 100, 100), 0.0),
        ((90, 100, 110), 0.2),
        ((100, 100), None),
        ((50, *[100] * 18, 900), 0.0),  # one outlier at each end of twenty
    ],
)
def test_spread_of_the_unprofiled_steps(samples: tuple[float, ...], spread: float | None) -> None:
    assert unprofiled_spread(profiled(busy, *samples)) == (None if spread is None else pytest.approx(spread))


def test_unstable_steps_warn_and_lower_the_confidence() -> None:
    profile = profiled(busy, 802, 1_002, 1_302)

    assert said(profile)["stable"] == ("warn", "3 unprofiled steps within 50 %")
    assert confidence(checks(profile)) == ("medium", ("unprofiled steps vary by 50 %",))


def test_step_without_gpu_work_is_named_and_lowers_the_confidence() -> None:
    machine = Machine()
    for step in range(4):
        with machine.step():
            machine.python(10)
            if step != 1:
                busy(machine)
    profile = analyse(machine.trace(), live("", 760))

    assert said(profile)["empty steps"] == ("warn", "step 2 launched no GPU work")
    assert "step 2 launched no GPU work" in confidence(checks(profile))[1]


def test_cold_and_partial_and_single_lower_the_confidence() -> None:
    cold = profiled(busy, 1_002, cold=True)
    partial = profiled(busy, 1_002, partial="stopped after 30 s")
    single = profiled(busy, steps=1)

    assert said(cold)["cold"][0] == said(partial)["partial"][0] == "warn"
    assert said(partial)["partial"][1] == "stopped after 30 s"
    assert [confidence(checks(profile))[0] for profile in (cold, partial, single)] == ["low", "medium", "low"]
    assert "a single step" in confidence(checks(single))[1]


def test_one_sample_right_behind_the_recording_is_medium() -> None:
    level, reasons = confidence(checks(profiled(busy, 1_002, baseline="after_first")))

    assert (level, len(reasons)) == ("medium", 1)


def test_live_run_without_a_baseline_is_medium_and_says_so() -> None:
    profile = profiled(busy)

    assert said(profile)["overhead"] == ("warn", "no unprofiled step was timed: overhead not measured")
    assert confidence(checks(profile)) == ("medium", ("no unprofiled step was timed",))


def test_silent_cupti_fails() -> None:
    """A3, A4: launched and not recorded, which is not idle."""
    profile = profiled(lambda machine: machine.call("cudaLaunchKernel", 5), 100)

    assert said(profile)["records"] == ("fail", "GPU work was launched but none was recorded")
    assert "clocks" not in said(profile)
    assert "replay" not in said(profile)


def test_no_gpu_has_no_checks_of_records() -> None:
    profile = profiled(lambda machine: machine.python(100), 100, cuda=False)

    assert set(said(profile)) == {"overhead"}


def test_lost_records_warn_and_lower_the_confidence() -> None:
    def body(machine: Machine) -> None:
        busy(machine)
        machine.call("cudaLaunchKernel", 5)

    profile = profiled(body, 1_002)

    assert said(profile)["records"] == ("warn", "3 launches without a GPU record")
    assert confidence(checks(profile)) == ("medium", ("3 launches without a GPU record",))


@pytest.mark.parametrize(("record", "status"), [(live("", 1_002), "warn"), (None, "ok")])
def test_carried_over_records_warn_in_a_live_run_only(record: LiveRecord | None, status: str) -> None:
    machine = Machine()
    machine.builder.kernel("earlier", 0, 700)
    machine.ready[0, 7] = 700.0
    for _ in range(3):
        with machine.step():
            busy(machine)

    profile = analyse(machine.trace(), record)

    text = "1 GPU record carried over from before the recording, in no mean"
    assert said(profile)["carried over"] == (status, text)
    assert "records" not in said(profile)
    assert (text in confidence(checks(profile))[1]) == (status == "warn")


def test_kernels_before_their_launch_fail_the_clocks() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.launch(100, 5, "a", 50, 10)
    builder.launch(200, 5, "b", 205, 10)

    assert said(of_a_file(builder))["clocks"] == ("fail", "1 kernel before the launch: host and GPU clocks disagree")


def test_a_few_kernels_before_their_launch_lower_the_confidence_only() -> None:
    """One of thirty."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.step(1, 1_000, 2_000)
    for at in range(30):
        builder.launch(60 * at, 5, "a", 60 * at + 7 - 50 * (at == 12), 20)
    profile = of_a_file(builder)

    level, reasons = confidence(checks(profile))

    assert (level, shifted(profile)) == ("low", False)
    assert "1 kernel before the launch: host and GPU clocks disagree" in reasons


def test_a_shifted_gpu_clock_is_no_idle_gpu() -> None:
    """A1, B10: every kernel 40 ms before its launch: nothing is claimed."""
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, 50_000 + 1_000 * step, 51_000 + 1_000 * step)
        for at in range(10):
            builder.launch(50_000 + 1_000 * step + 90 * at, 5, "a", 10_000 + 1_000 * step + 90 * at, 20)

    diagnosis = diagnose(of_a_file(builder))

    assert diagnosis.verdict.cause == "inconclusive"
    assert "host and GPU clocks disagree" in diagnosis.verdict.headline
    assert not [finding for finding in diagnosis.findings if finding.status == "found"]


def test_a_launch_that_loads_its_kernel_is_no_shifted_clock() -> None:
    """The call takes 9 ms, the kernel starts at its end."""
    builder = TraceBuilder()
    for step in range(2):
        builder.step(step, 20_000 * step, 20_000 * step + 20_000)
        builder.launch(20_000 * step + 10, 9_000, "a", 20_000 * step + 9_015, 100)

    assert said(analyse(builder.trace(), live("", 20_000)))["clocks"][0] == "ok"


def test_small_jitter_of_the_clocks_is_fine() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.launch(100, 5, "a", 85, 10)

    assert said(of_a_file(builder))["clocks"][0] == "ok"


def test_gpu_clock_that_drifted_away_warns() -> None:
    """A1: after a synchronisation the first kernel starts 8 ms late, and nothing is queued before it."""
    builder = TraceBuilder()
    for step in range(2):
        builder.step(step, 20_000 * step, 20_000 * step + 20_000)
        builder.launch(20_000 * step + 10, 5, "a", 20_000 * step + 8_010, 100)
    profile = analyse(builder.trace(), live("", 20_000))

    status, text = said(profile)["clocks"]
    assert status == "warn"
    assert text == "the first kernel starts 8.00 ms after its launch: the GPU clock looks shifted"


def test_replay_that_does_not_fit_warns() -> None:
    profile = replace(profiled(busy, 1_002), fit_error=0.07)

    assert said(profile)["replay"] == ("warn", "replay fits the recording within 7.0 %")
    assert confidence(checks(profile)) == ("low", ("the replay misses the recording by 7.0 %",))


def test_baseline_that_the_replay_misses_lowers_the_confidence() -> None:
    """1,002 us of kernels and pauses cannot pass in 700: no clock rises that much."""
    level, reasons = confidence(checks(profiled(busy, 700)))

    assert level == "medium"
    assert reasons == ("the replayed step is 43 % off the unprofiled one",)


@pytest.mark.parametrize(
    ("step_us", "check", "level"),
    [
        (1_022, None, "high"),  # 2 %: as far apart as medians of the same step
        (
            1_082,
            ("ok", "unprofiled steps ran 8.0 % slower, apart from what recording costs (GPU clock or host)"),
            "high",
        ),
        (
            1_202,
            ("warn", "unprofiled steps ran 20 % slower, apart from what recording costs (GPU clock or host)"),
            "medium",
        ),
    ],
)
def test_unprofiled_steps_that_ran_slower_are_said(step_us: float, check: tuple[str, str] | None, level: str) -> None:
    """Two kernels of 500 us and pauses of 1: all but the pauses takes longer."""
    profile = profiled(busy, step_us)

    assert said(profile).get("drift") == check
    assert profile.error_ns < 0.002 * step_us * 1000
    slower = "the unprofiled steps ran 20 % slower, apart from what recording costs"
    assert confidence(checks(profile)) == (level, () if level == "high" else (slower,))


def test_unprofiled_steps_that_ran_faster_are_said() -> None:
    profile = profiled(busy, 882)

    assert said(profile)["drift"] == (
        "warn",
        "unprofiled steps ran 12 % faster, apart from what recording costs (GPU clock or host)",
    )


def test_unprofiled_steps_that_are_too_slow_to_follow_are_an_error_of_the_replay() -> None:
    """Neither a clock nor a host makes 1,002 us last 3,000."""
    profile = profiled(busy, 3_000)

    assert profile.drift == 1.0
    assert confidence(checks(profile))[0] == "medium"
    assert confidence(checks(profile))[1][0] == "the replayed step is 67 % off the unprofiled one"


@pytest.mark.parametrize(
    ("profiled_ns", "check", "level", "reasons"),
    [
        (1_262_520, ("ok", "recording made the step 26 % longer"), "high", ()),  # measured and taken out
        (
            2_505_000,  # A17
            ("warn", "recording made the step 150 % longer"),
            "medium",
            ("recording made the step 2.5 times as long",),
        ),
    ],
)
def test_large_overhead_warns_and_is_hedged(
    profiled_ns: int, check: tuple[str, str], level: str, reasons: tuple[str, ...]
) -> None:
    profile = profiled(busy, 1_002, profiled_ns=(profiled_ns,))

    assert said(profile)["overhead"] == check
    assert confidence(checks(profile)) == (level, reasons)


def test_memory_records_that_do_not_add_up_warn() -> None:
    machine = Machine()
    with machine.step():
        busy(machine)
        machine.python(100)
    machine.builder.memory(10, 1_000, 1_000, 2_000)
    machine.builder.memory(20, 1_000, 9_000, 20_000)

    found = said(analyse(machine.trace(), live("", 1_002)))

    assert found["memory"] == ("warn", "1 memory record does not add up: the heartbeat may be incomplete")


def with_peak(torchs_own: int, before: int | None = None) -> dict[str, tuple[str, str]]:
    """What is said of a recording whose heartbeat peaks at 100 MB."""
    machine = Machine()
    with machine.step():
        busy(machine)
        machine.python(100)
    machine.builder.memory(10, 60_000_000, 100_000_000, 200_000_000)
    machine.builder.memory(20, -60_000_000, 40_000_000, 200_000_000)
    state = AllocatorState(
        device=0, allocated_bytes=0, reserved_bytes=0, peak_bytes=torchs_own, peak_before_bytes=before
    )
    return said(analyse(machine.trace(), live("", 1_002, allocator=(state,))))


@pytest.mark.parametrize("before", [0, 100_000_000])
@pytest.mark.parametrize("torchs_own", [100_000_000, 101_000_000])
def test_a_peak_that_is_torchs_own_too_is_ok(torchs_own: int, before: int) -> None:
    """C11."""
    found = with_peak(torchs_own, before)

    assert found["memory peak"] == ("ok", "the heartbeat's peak agrees with torch.cuda.max_memory_allocated()")


def test_a_peak_that_rose_while_recorded_and_is_missing_warns() -> None:
    found = with_peak(180_000_000, 100_000_000)

    assert found["memory peak"] == (
        "warn",
        "torch's own peak of GPU 0 is 180 MB, the heartbeat's 100 MB: allocations are missing, such as those of other "
        "threads",
    )


@pytest.mark.parametrize(("torchs_own", "before"), [(180_000_000, 180_000_000), (40_000_000, 30_000_000)])
def test_a_peak_from_before_or_statistics_that_the_cell_reset_say_nothing(torchs_own: int, before: int) -> None:
    assert "memory peak" not in with_peak(torchs_own, before)


def test_damage_and_notes_are_shown() -> None:
    profile = profiled(busy, 1_002, notes=(("profiler", "warn", "your cell started its own profiler"),))
    damaged = replace(profile, trace=replace(profile.trace, damage={"negative duration": 3}))

    found = said(damaged)

    assert found["profiler"] == ("warn", "your cell started its own profiler")
    assert found["damage"] == ("warn", "negative duration: 3")


@pytest.mark.parametrize(
    ("what", "level", "reasons"),
    [
        (REPAIRED, "high", ()),
        (UNFIT, "medium", (f"{UNFIT}: 3",)),
        (BROKEN, "low", (f"{BROKEN}: 3",)),
        (HOLES, "low", (f"{HOLES}: 3",)),
        (ENDS_EARLY, "low", ("the file ends early",)),
    ],
)
def test_damage_lowers_as_far_as_it_is_not_known_what_is_missing(
    what: str, level: str, reasons: tuple[str, ...]
) -> None:
    # given a sound run whose file was damaged
    profile = profiled(busy, 1_002, 1_002, 1_002)
    damaged = replace(profile, trace=replace(profile.trace, damage={what: 3}))
    # then
    assert confidence(checks(damaged)) == (level, reasons)
    assert said(damaged)["damage"] == ("ok" if level == "high" else "warn", f"{what}: 3")


@pytest.mark.parametrize(
    ("status", "level"), [("ok", "high"), ("warn", "medium"), ("fail", "low"), ("not one of ours", "medium")]
)
def test_notes_lower_by_their_status(status: str, level: str) -> None:
    profile = profiled(busy, 1_002, notes=(("profiler", status, "told by the run"),))

    assert confidence(checks(profile)) == (level, () if level == "high" else ("told by the run",))


def with_everything(profile: Profile) -> Profile:
    """The profile of a run in which all that is looked at went wrong, but the clocks and the GPU."""
    live = msgspec.structs.replace(
        profile.live or LiveRecord(),
        cold=True,
        partial="stopped after 30 s",
        baseline_ns=(500_000, 900_000, 2_000_000),
        notes=(("profiler", "warn", "told by the run"),),
    )
    trace = replace(profile.trace, damage={REPAIRED: 1, UNFIT: 2})
    return replace(profile, live=live, trace=trace, once=True, lost=2, fit_error=0.2, drift=1.3, step_ns=300_000.0)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(lambda: profiled(busy, 1_002, 1_002, 1_002), id="sound"),
        pytest.param(lambda: profiled(busy), id="no baseline"),
        pytest.param(lambda: profiled(busy, 1_002, baseline="after_first"), id="one interval"),
        pytest.param(lambda: profiled(busy, 1_202, 1_002, 700), id="unstable"),
        pytest.param(lambda: profiled(lambda machine: machine.call("cudaLaunchKernel", 5), 100), id="silent"),
        pytest.param(lambda: profiled(lambda machine: machine.python(100), 100, cuda=False), id="no GPU"),
        pytest.param(lambda: with_everything(profiled(busy, 1_002)), id="everything"),
    ],
)
def test_what_warns_lowers_and_what_lowers_warns(profile: Callable[[], Profile]) -> None:
    # given
    measured = profile()
    # when
    found = checks(measured)
    level, reasons = confidence(checks(measured))
    # then the warnings are the reasons, one for one, and the lowest that one leaves is the level
    warnings = [check for check in found if check.status != "ok"]
    assert reasons == tuple(check.reason or check.text for check in warnings)
    assert all(check.leaves != "high" for check in warnings)
    assert level == min((check.leaves for check in found), key=("low", "medium", "high").index)


def test_everything_at_once_is_told_in_the_order_of_the_checks() -> None:
    assert confidence(checks(with_everything(profiled(busy, 1_002)))) == (
        "low",
        (
            "a single step",
            "the recorded steps are the first ones: cold",
            "the recording ended early",
            "unprofiled steps vary by 167 %",
            "2 launches without a GPU record",
            "the replay misses the recording by 20 %",
            "the replayed step is 234 % off the unprofiled one",
            "recording made the step 3.3 times as long",
            "the unprofiled steps ran 30 % slower, apart from what recording costs",
            f"{UNFIT}: 2",
            "told by the run",
        ),
    )
