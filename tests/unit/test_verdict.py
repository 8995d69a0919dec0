"""One sentence out of all findings: what heads it, what comes next, when it is healthy and when it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ipyprof.analysis.loop import Pace
from ipyprof.analysis.profile import Profile, analyse
from ipyprof.analysis.results import UnlikeSteps
from ipyprof.diagnosis import causes
from ipyprof.diagnosis.cause import Cause, Finding, Site, Verdict, Where
from ipyprof.diagnosis.causes import CAUSES, cause_of
from ipyprof.diagnosis.causes.compute_bound import healthy_headline
from ipyprof.diagnosis.verdict import diagnose
from tests.builder import TraceBuilder
from tests.machine import Machine, live

SOURCE = "%%gpuprofile\nfor x in loader:\n    y = model(x)\n    total += y.item()\n    torch.cuda.empty_cache()\n"
Body = Callable[[Machine], object]

MOST_WORDS = 25


def profiled(body: Body, step_us: float | None, *, steps: int = 4, pause: float = 1, **known: Any) -> Profile:
    machine = Machine(pause=pause)
    for _ in range(steps):
        with machine.step():
            body(machine)
    record = None if step_us is None else live(SOURCE, step_us, step_us, step_us, **known)
    return analyse(machine.trace(), record)


def judge(body: Body, step_us: float | None, **known: Any) -> tuple[dict[str, Finding], Verdict]:
    return judged(profiled(body, step_us, **known))


def judged(profile: Profile) -> tuple[dict[str, Finding], Verdict]:
    diagnosis = diagnose(profile)
    assert len(diagnosis.verdict.headline.split()) <= MOST_WORDS, diagnosis.verdict.headline
    return {finding.cause: finding for finding in diagnosis.findings}, diagnosis.verdict


def tiny(machine: Machine) -> None:
    """600 us of launching 20 kernels of 2 us."""
    for _ in range(20):
        with machine.op("aten::add"):
            machine.python(20)
            machine.launch(2, own=10)


def starving(machine: Machine) -> None:
    machine.loader(8_000)
    with machine.line(3):
        machine.launch(2_000)


# What heads it.


@pytest.mark.usefixtures("recording_costs_nothing")
def test_verdict_is_the_findings_numbers() -> None:
    findings, verdict = judge(starving, 8_005)

    finding = findings["data_loading"]
    assert (verdict.cause, verdict.bound) == ("data_loading", "IO-bound (data loading)")
    assert (verdict.recoverable_ms, verdict.predicted_step_ms) == (finding.recoverable_ms, finding.predicted_step_ms)
    assert (verdict.speedup_bound, verdict.advice) == (finding.speedup_bound, finding.advice)
    assert (verdict.confidence, verdict.reasons) == ("high", ())
    assert "Line 2" in verdict.headline
    assert "6.00 of 8.01 ms (75 %)" in verdict.headline.replace("8.00 ms", "8.01 ms")
    assert "at most 4.0×" in verdict.headline


def test_every_cause_is_looked_at_and_verdicts_are_no_findings() -> None:
    findings, _ = judge(starving, 8_005)

    assert set(findings) == {cause.id for cause in CAUSES}
    assert {finding.status for finding in findings.values()} <= {"found", "cleared", "unknown"}


def test_one_process_has_no_collectives_and_no_straggler() -> None:
    findings, _ = judge(starving, 8_005)

    communication, straggler = findings["communication"], findings["straggler"]
    assert (communication.status, communication.evidence) == ("cleared", "no collective in the recorded steps")
    assert (straggler.status, straggler.evidence) == ("cleared", "one process")


def test_findings_come_found_first_and_then_by_gain() -> None:
    ordered = diagnose(profiled(starving, 8_005)).findings

    rank = {"found": 0, "cleared": 1, "unknown": 2}
    keys = [(rank[finding.status], -(finding.recoverable_ms or 0.0)) for finding in ordered]
    assert keys == sorted(keys)


def test_ranking_is_by_recovered_time_and_not_by_the_length_of_a_call() -> None:
    """3,000 us in cudaMalloc beside the kernels, 1,500 of Python while the GPU is idle."""

    def body(machine: Machine) -> None:
        machine.launch(4_000)
        machine.call("cudaMalloc", 3_000)
        machine.sync()
        machine.python(1_500)

    findings, verdict = judge(body, 5_507)

    assert findings["allocator"].status == "cleared"
    assert verdict.cause == "cpu_bound"


def test_residual_cause_alone_heads_the_verdict() -> None:
    _, verdict = judge(tiny, 600)

    assert verdict.cause == "launch_bound"
    assert verdict.recoverable_ms == pytest.approx(0.56)


def test_specific_cause_with_fifteen_percent_goes_before_the_residual_one() -> None:
    """cudaMalloc of 150 in 750 us: 20 %; one graph would gain 560."""

    def body(machine: Machine) -> None:
        tiny(machine)
        machine.call("cudaMalloc", 150)

    findings, verdict = judge(body, 750)

    assert (findings["launch_bound"].recoverable_ms or 0) > (findings["allocator"].recoverable_ms or 0)
    assert verdict.cause == "allocator"


def test_small_specific_cause_stays_behind_the_residual_one() -> None:
    """cudaMalloc of 60 in 660 us: 9 %, and far from half of what one graph gains."""

    def body(machine: Machine) -> None:
        tiny(machine)
        machine.call("cudaMalloc", 60)

    findings, verdict = judge(body, 660)

    assert findings["allocator"].status == "found"
    assert verdict.cause == "launch_bound"


def given(cause: str, recoverable_ms: float) -> Cause:
    """A cause that finds this much in a step of 1 ms, and changes nothing."""
    finding = Finding(
        cause=cause,
        status="found",
        recoverable_ms=recoverable_ms,
        predicted_step_ms=1 - recoverable_ms,
        speedup_bound=1 / (1 - recoverable_ms),
    )

    class Planted(Cause):
        id = cause

        def find(self, profile: Profile) -> Finding:
            return finding

    return Planted()


@pytest.mark.parametrize(
    ("gains", "first"),
    [
        ({"allocator": 0.16, "launch_bound": 0.80}, "allocator"),  # over 15 % of the step
        ({"allocator": 0.14, "launch_bound": 0.27}, "allocator"),  # over half of the graph's gain
        ({"allocator": 0.14, "launch_bound": 0.29}, "launch_bound"),  # neither
        ({"allocator": 0.30, "transfer": 0.40, "launch_bound": 0.20}, "transfer"),  # the largest
        ({"allocator": 0.06, "transfer": 0.07}, "transfer"),  # no residual one
        ({"host_sync": 0.06, "launch_bound": 0.80}, "host_sync"),  # no graph holds a read
        ({"allocator": 0.07, "host_sync": 0.06, "launch_bound": 0.80}, "host_sync"),
        ({"data_loading": 0.16, "host_sync": 0.06, "launch_bound": 0.80}, "data_loading"),
    ],
)
def test_rules_of_the_ranking(gains: dict[str, float], first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "CAUSES", tuple(given(cause, gain) for cause, gain in gains.items()))

    _, verdict = judge(lambda machine: machine.launch(999), 1_000)

    assert verdict.cause == first


def test_small_sync_inside_what_a_graph_would_hold_goes_first() -> None:
    """A wait of 50 in 650 us: 8 %, but no graph can hold it."""

    def body(machine: Machine) -> None:
        tiny(machine)
        machine.stream_sync(tail=50)

    findings, verdict = judge(body, 650)

    assert (findings["launch_bound"].recoverable_ms or 0) > 5 * (findings["host_sync"].recoverable_ms or 0)
    assert verdict.cause == "host_sync"


def test_sync_goes_before_the_graph_also_when_another_specific_cause_is_larger() -> None:
    """cudaMalloc of 60 does not go before the graph; the wait of 50 must."""

    def body(machine: Machine) -> None:
        tiny(machine)
        machine.stream_sync(tail=50)
        machine.call("cudaMalloc", 60)

    findings, verdict = judge(body, 710)

    assert (findings["allocator"].recoverable_ms or 0) > (findings["host_sync"].recoverable_ms or 0)
    assert verdict.cause == "host_sync"


# What is next.


def test_next_is_what_remains_once_the_first_is_cured() -> None:
    """Fetch 8,000, Python 3,000, a kernel of 1,000: the loader goes first, then Python."""

    def body(machine: Machine) -> None:
        machine.loader(8_000)
        machine.python(3_000)
        machine.launch(1_000)

    _, verdict = judge(body, 11_005)

    assert (verdict.cause, verdict.next) == ("data_loading", "cpu_bound")
    assert (verdict.next_text or "").startswith("then Python")


def test_nothing_is_next_once_the_gpu_is_busy() -> None:
    _, verdict = judge(starving, 8_005)

    assert verdict.next is None
    assert verdict.next_text == "then the GPU's own work"


# Healthy.


def kernels(us: float) -> Body:
    """Nine kernels: too few for a graph."""

    def body(machine: Machine) -> None:
        for _ in range(9):
            machine.launch(us)

    return body


def test_busy_gpu_is_not_waiting() -> None:
    findings, verdict = judge(kernels(95), 900, pause=5)

    assert (verdict.cause, verdict.confidence) == ("compute_bound", "high")
    assert "not waiting" in verdict.headline
    assert "95 %" in verdict.headline
    assert verdict.bound.startswith("GPU-bound")
    assert verdict.predicted_step_ms == pytest.approx(0.855, rel=2e-3)
    assert "compute_bound" not in findings


def test_nearly_busy_gpu_is_healthy_with_medium_confidence() -> None:
    _, verdict = judge(kernels(83), 900, pause=17)

    assert (verdict.cause, verdict.confidence) == ("compute_bound", "medium")
    assert "nearly busy" in verdict.reasons[0]


def test_idle_gpu_without_a_cause_cannot_be_told() -> None:
    """Pauses of 20 us between kernels of 60: a quarter of the step, and nothing explains it."""
    _, verdict = judge(kernels(60), 720, pause=20)

    assert (verdict.cause, verdict.confidence, verdict.recoverable_ms) == ("inconclusive", "low", None)
    assert "75%" in verdict.headline.replace(" %", "%")


def test_exposed_copies_do_not_make_a_gpu_busy() -> None:
    """Device to device copies fill half the step: no compute."""

    def body(machine: Machine) -> None:
        machine.launch(500)
        machine.copy(500, 8_000_000, direction="DtoD")

    _, verdict = judge(body, 1_002)

    assert verdict.cause == "inconclusive"


def test_collectives_are_not_said_to_be_one_process() -> None:
    findings, _ = judge(lambda machine: machine.launch(900, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"), 901)

    assert findings["straggler"].status == "unknown"
    assert findings["communication"].status == "cleared"  # nothing is there that could hide it
    assert "one file cannot tell which rank is late" in findings["communication"].evidence


def test_ranks_are_not_said_to_be_one_process() -> None:
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(900)
    machine.builder.metadata(distributedInfo={"rank": 0, "world_size": 4})

    straggler = judged(analyse(machine.trace(), live(SOURCE, 901)))[0]["straggler"]

    assert straggler.status == "unknown"
    assert "one file of several ranks" in straggler.evidence


def test_graph_launches_are_not_launch_bound() -> None:
    """A15: one launch for twenty kernels that fill the step."""
    findings, verdict = judge(lambda machine: machine.graph(20, 49), 1_000)

    assert verdict.cause == "compute_bound"
    assert findings["launch_bound"].evidence == "all kernels are launched as graphs"


def test_gpu_busy_unprofiled_is_healthy_though_its_recording_looks_launch_bound() -> None:
    """A17: 40 operators of 30 us recorded for 40 kernels of 20; unprofiled 840 us, all of it kernels and pauses."""

    def body(machine: Machine) -> None:
        for _ in range(40):
            with machine.op("aten::mm"):
                machine.python(20)
                machine.launch(20, own=10)

    findings, verdict = judge(body, 840)
    assert verdict.cause == "compute_bound"
    assert findings["launch_bound"].status == "cleared"

    _, of_the_recording = judge(body, 1_200)
    assert of_the_recording.cause == "launch_bound"


def test_long_recorded_step_lowers_the_confidence() -> None:
    """A17: hedged where the unprofiled step is less than half of the recorded one."""
    _, verdict = judge(tiny, 280)

    assert verdict.cause == "launch_bound"
    assert verdict.confidence == "medium"
    assert any("2.1 times as long" in reason for reason in verdict.reasons)


# When it cannot be told.


def test_replay_that_does_not_fit_is_not_believed() -> None:
    """Kernels a millisecond late for no reason: the causes that would be found are unknown."""
    builder = TraceBuilder()
    builder.device()
    for step in range(4):
        at = 10_000 * step
        builder.step(step, at, at + 10_000)
        builder.loader(at, at + 5_000)
        builder.launch(at + 5_000, 5, "a", at + 5_005, 100)
        builder.launch(at + 5_010, 5, "b", at + 8_000, 100)
        builder.sync(at + 5_020, 3_085)
    profile = analyse(builder.trace(), live(SOURCE, 10_000, 10_000))
    assert (profile.fit_error or 0) > 0.03

    findings, verdict = judged(profile)

    assert (verdict.cause, verdict.confidence) == ("inconclusive", "low")
    assert "found" not in {finding.status for finding in findings.values()}
    loading = findings["data_loading"]
    assert loading.status == "unknown"
    assert loading.evidence.startswith("the replay misses the recording by 29 %")


def test_one_recorded_step_is_judged_with_low_confidence() -> None:
    """A10."""
    findings, verdict = judge(starving, None, steps=1)

    assert (verdict.cause, verdict.confidence) == ("data_loading", "low")
    assert "a single step" in verdict.reasons
    assert findings["data_loading"].recoverable_ms == pytest.approx(8.0, rel=1e-3)


def test_no_step_at_all() -> None:
    builder = TraceBuilder()
    builder.python("<module>", 0, 100)

    findings, verdict = judged(analyse(builder.trace()))

    assert (verdict.cause, verdict.recoverable_ms) == ("inconclusive", None)
    assert "no step was recorded" in verdict.headline
    assert {finding.status for finding in findings.values()} == {"unknown"}


def test_launches_without_records_name_the_usual_reasons() -> None:
    """A3, A4."""
    findings, verdict = judge(lambda machine: machine.call("cudaLaunchKernel", 5), 100)

    assert (verdict.cause, verdict.confidence) == ("inconclusive", "low")
    assert "launched but none was recorded" in verdict.headline
    assert all(word in verdict.advice for word in ("permission", "CUPTI", "WSL"))
    assert {finding.evidence for finding in findings.values()} == {"GPU work was launched but none was recorded"}


def on_the_cpu(body: Body, step_us: float | None, **known: Any) -> tuple[dict[str, Finding], Verdict]:
    return judge(body, step_us, cuda=False, **known)


@pytest.mark.usefixtures("recording_costs_nothing")
def test_without_a_gpu_a_slow_fetch_is_the_verdict() -> None:
    def body(machine: Machine) -> None:
        machine.loader(300)
        with machine.line(3):
            machine.python(700)

    findings, verdict = on_the_cpu(body, 1_000)

    assert (verdict.cause, verdict.recoverable_ms, verdict.speedup_bound) == ("data_loading", None, None)
    assert "Line 2" in verdict.headline
    assert "GPU time is not available" in verdict.headline
    assert verdict.reasons == ("no GPU: the gain was not replayed",)
    loading = findings.pop("data_loading")
    assert (loading.status, loading.recoverable_ms, loading.where.line) == ("found", None, 2)
    assert "30 % of the step" in loading.evidence
    assert {(finding.status, finding.evidence) for finding in findings.values()} == {("unknown", "no GPU")}


def test_without_a_gpu_the_largest_line_is_named() -> None:
    def body(machine: Machine) -> None:
        machine.loader(100)
        with machine.line(3):
            machine.python(200)
        with machine.line(4):
            machine.python(700)

    _, verdict = on_the_cpu(body, 1_000)

    assert (verdict.cause, verdict.recoverable_ms) == ("cpu_bound", None)
    assert verdict.headline.startswith("Line 4 ")


def test_without_a_gpu_one_step_is_not_enough() -> None:
    _, verdict = on_the_cpu(lambda machine: machine.python(100), None, steps=1)

    assert verdict.cause == "inconclusive"
    assert "at least two" in verdict.headline


# The sentence.

amounts = st.floats(min_value=1e-4, max_value=1e7, allow_nan=False)


@settings(max_examples=400, deadline=None)
@hypothesis.given(
    cause=st.sampled_from([cause.id for cause in CAUSES]),
    step_ms=amounts,
    share=st.floats(min_value=0, max_value=0.999),
    line=st.one_of(st.none(), st.integers(1, 99_999)),
    count=st.floats(min_value=0, max_value=1e6),
    period=st.one_of(st.none(), st.floats(1, 1e4)),
    named=st.sampled_from(
        ["evaluate", "the start of an epoch", "garbage collection", "something too short to be seen"]
    ),
)
def test_headline_of_any_finding_has_at_most_25_words(
    cause: str, step_ms: float, share: float, line: int | None, count: float, period: float | None, named: str
) -> None:
    where = Where(line=line)
    finding = Finding(
        cause=cause,
        status="found",
        recoverable_ms=step_ms * share,
        predicted_step_ms=step_ms * (1 - share),
        speedup_bound=1 / (1 - share),
        where=where,
        sites=(Site(where=where, status="found", count=count, recoverable_ms=None),),
    )
    profile = replace(ANY, step_ns=step_ms * 1e6)
    if cause == "unlike_steps":  # its count is that of the loop
        what = named if line is None else f"line {line}" if count < 2 else "evaluate"
        each = UnlikeSteps(what=what, line=line, period=period, count=int(count), ms=step_ms * count)
        pace = Pace(step_ns=step_ms * 1e6, typical_ns=0.0, wait_ns=None, unlike=(each,), steps=100, served=False)
        profile = replace(profile, pace=pace)
    sentence = cause_of(cause).headline(profile, finding)

    assert len(sentence.split()) <= MOST_WORDS, sentence
    assert sentence.endswith(".")
    assert line is None or cause == "launch_bound" or f"Line {line} " in sentence


@settings(max_examples=200, deadline=None)
@hypothesis.given(step_ms=amounts, busy=st.floats(min_value=0.5, max_value=1.0))
def test_healthy_headline_has_at_most_25_words(step_ms: float, busy: float) -> None:
    assert len(healthy_headline(replace(ANY, step_ns=step_ms * 1e6), busy).split()) <= MOST_WORDS


actions = st.sampled_from(["python", "loader", "launch", "tiny", "item", "malloc", "free", "copy", "sync", "graph"])


@settings(max_examples=60, deadline=None)
@hypothesis.given(
    body=st.lists(st.tuples(actions, st.integers(1, 2_000)), max_size=12),
    steps=st.integers(1, 4),
    step_us=st.one_of(st.none(), st.floats(1, 20_000)),
)
def test_any_program_gets_a_verdict_of_at_most_25_words(
    body: list[tuple[str, int]], steps: int, step_us: float | None
) -> None:
    def run(machine: Machine) -> None:
        machine.python(1)
        for line, (what, us) in enumerate(body, start=3):
            with machine.line(line):
                if what == "python":
                    machine.python(us)
                elif what == "loader":
                    machine.loader(us)
                elif what == "launch":
                    machine.launch(us)
                elif what == "tiny":
                    tiny(machine)
                elif what == "item":
                    machine.item()
                elif what == "malloc":
                    machine.call("cudaMalloc", us)
                elif what == "free":
                    machine.free(tail=us)
                elif what == "copy":
                    machine.blocking_copy(us, 8_000_000)
                elif what == "graph":
                    machine.graph(20, 3)
                else:
                    machine.sync()

    profile = profiled(run, step_us, steps=steps)
    findings, verdict = judged(profile)

    assert verdict.cause in {"compute_bound", "inconclusive", *(cause.id for cause in CAUSES)}
    for finding in findings.values():
        assert finding.status in ("found", "cleared", "unknown")
        assert finding.evidence
        if finding.recoverable_ms is not None and finding.predicted_step_ms is not None:
            assert finding.recoverable_ms >= 0
            assert finding.predicted_step_ms > 0


ANY = profiled(lambda machine: machine.launch(100), 101)


def cpu_steps(step_us: float, recorded_us: float, **known: Any) -> Profile:
    machine = Machine()
    for _ in range(3):
        with machine.step(), machine.line(3):
            machine.python(recorded_us)
    return analyse(machine.trace(), live(SOURCE, step_us, step_us, step_us, **known))


@pytest.mark.parametrize(
    ("step_us", "recorded_us", "reason"),
    [
        (5, 5, "a step of 5 µs is shorter than what marking it takes"),
        (300, 3_000, "recording made the step 10 times as long"),
        (3_000, 300, "of the step is not explained by the recording"),
        (7_000, 31_000, "the recorded steps are 343 % off the unprofiled ones"),
    ],
)
def test_without_a_gpu_a_recording_of_something_else_is_no_verdict(
    step_us: float, recorded_us: float, reason: str
) -> None:
    recorded_ns = int(recorded_us * 1000)

    verdict = diagnose(cpu_steps(step_us, recorded_us, profiled_ns=(recorded_ns,) * 3)).verdict

    assert verdict.cause == "inconclusive"
    assert reason in verdict.headline


def test_step_without_length_is_no_verdict_and_no_error() -> None:
    builder = TraceBuilder()
    builder.step(0, 10, 10)
    builder.step(1, 10, 10)

    findings, verdict = judged(analyse(builder.trace()))

    assert verdict.cause == "inconclusive"
    assert {finding.status for finding in findings.values()} == {"unknown"}


def test_without_the_launches_of_most_work_nothing_is_claimed() -> None:
    """A step that waits 8,000 us for the GPU, whose work of 7,900 was launched by nothing in the file."""
    machine = Machine()
    for _ in range(3):
        with machine.step():
            machine.launch(100)
            machine.builder.kernel("unknown", machine.host + 200, 7_900, stream=9)
            machine.python(200)
            machine.builder.sync(machine.host, 8_000)
            machine.python(8_000)

    findings, verdict = judged(analyse(machine.trace()))

    assert (verdict.cause, verdict.confidence) == ("inconclusive", "low")
    assert "the launches of 99 % of the GPU's work are not in the file" in verdict.headline
    assert not [finding for finding in findings.values() if finding.status == "found"]
