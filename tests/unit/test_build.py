"""From a profile to the report: the keys of the schema, units, and parts that add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ipyprof.analysis.breakdown import PARTS
from ipyprof.analysis.profile import analyse
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.report import build as views
from ipyprof.report.build import build_report
from ipyprof.report.report import Report, Source
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace
from tests.builder import TraceBuilder
from tests.machine import Machine, live

SOURCE = "%%gpuprofile\nfor x in loader:\n    y = model(x)\n    total += y.item()\n"
Body = Callable[[Machine], object]

# DESIGN section 7, key by key.
SECTIONS: dict[str, set[str]] = {
    "device": {"name", "index"},
    "steps": {
        "count", "how", "step_ms", "profiled_step_ms", "overhead", "per_step_ms", "profiled_per_step_ms", "throughput",
    },
    "breakdown": {"kernel", "memcpy", "memset", "communication", "data_loading", "runtime", "cpu", "other"},
    "runtime_detail": {"launch", "sync", "allocator", "other"},
    "utilization": {"nvml", "kernel_busy", "sm_coverage", "mfu", "tensor_core"},
    "environment": {"torch", "cuda", "cupti", "python"},
    "memory": {
        "peak_bytes", "peak_at_ms", "peak_operator", "peak_line", "reserved_peak_bytes", "growth_bytes_per_step",
        "holders",
    },
    "verdict": {
        "cause", "headline", "advice", "recoverable_ms", "predicted_step_ms", "speedup_bound", "confidence", "next",
    },
}  # fmt: skip
ROWS: dict[str, set[str]] = {
    "operators": {
        "name", "calls", "self_device_ms", "total_device_ms", "self_host_ms", "total_host_ms", "share", "shapes",
        "bound", "tensor_core", "amdahl_share",
    },
    "kernels": {"name", "calls", "device_ms", "tensor_core", "bound", "est_occupancy"},
    "lines": {"line", "source", "device_ms", "host_ms", "sync_count", "peak_bytes"},
    "findings": {
        "cause", "status", "recoverable_ms", "predicted_step_ms", "speedup_bound", "where", "sites", "evidence",
        "advice",
    },
    "trust": {"check", "status", "text"},
}  # fmt: skip
TOP = {
    "schema", "source", "environment", "device", "devices", "steps", "breakdown", "runtime_detail",
    "communication_total_ms", "utilization", "operators", "kernels", "lines", "memory", "findings", "verdict", "trust",
    "ranks", "views",
}  # fmt: skip


def reported(trace: Trace, record: LiveRecord | None = None) -> Report:
    profile = analyse(trace, record)
    diagnosis = diagnose(profile)
    return build_report(profile, diagnosis, source=Source(kind="file" if record is None else "live"))


def stepped(body: Body, steps: int = 4) -> Machine:
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            body(machine)
    return machine


def reading(machine: Machine) -> None:
    """Fetch 20; ten times launch and read, 60 of Python each."""
    machine.loader(20)
    for _ in range(10):
        with machine.line(3), machine.op("aten::mm"):
            machine.python(2)
            machine.launch(100, name="gemm")
        with machine.line(4):
            machine.item()
        machine.python(60)


def full() -> Machine:
    """What a live run on a GPU has."""
    machine = stepped(reading)
    machine.builder.memory(1, 1_000_000, 1_000_000, 4_000_000)
    machine.builder.memory(30, 2_000_000, 3_000_000, 4_000_000)
    machine.builder.memory(60, -2_000_000, 1_000_000, 4_000_000)
    return machine


def whole_step(report: Report) -> float:
    values: list[float | None] = list(report.to_dict()["breakdown"].values())
    return sum(value for value in values if value is not None)


# The schema.


def test_every_key_of_the_schema_is_there() -> None:
    plain = reported(full().trace(), live(SOURCE, 1_740)).to_dict()

    assert plain["schema"] == 2
    assert set(plain) >= TOP
    for section, keys in SECTIONS.items():
        assert set(plain[section]) >= keys, section
    for section, keys in ROWS.items():
        assert plain[section], section
        for row in plain[section]:
            assert set(row) >= keys, section
    assert plain["ranks"] is None


def test_report_is_json_and_comes_back_the_same() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))
    text = json.dumps(report.to_dict(), allow_nan=False)

    again = Report.from_dict(json.loads(text))

    assert again.to_dict() == report.to_dict()
    assert again == report
    assert len(json.dumps(report.to_dict()["views"])) < 2_000_000


def test_numbers_of_a_live_run_are_in_milliseconds() -> None:
    """2 + 5 of dispatch, a read that ends 103 after it, 60 of Python: ten times 172, and 20 of fetching."""
    machine = full()
    step = machine.marks[2] - machine.marks[1]
    record = live(SOURCE, step, step + 10, step + 20, items=64.0, unit="samples", profiled_ns=(2_000_000, 2_200_000))

    report = reported(machine.trace(), record)

    assert report.steps.count == 4
    assert report.steps.how == "loop at line 2"
    assert report.steps.step_ms == (step + 10) / 1000
    assert report.steps.per_step_ms == (step / 1000, (step + 10) / 1000, (step + 20) / 1000)
    assert report.steps.profiled_per_step_ms == (2.0, 2.2)
    assert report.steps.profiled_step_ms == 2.1
    assert report.steps.overhead == pytest.approx(2.1 / ((step + 10) / 1000))
    assert report.steps.throughput is not None
    assert report.steps.throughput.value == pytest.approx(64 / ((step + 10) / 1e6))
    assert report.steps.throughput.unit == "samples/s"
    assert report.source.cell == tuple(SOURCE.splitlines())


def test_file_has_no_samples_and_no_overhead() -> None:
    report = reported(full().trace())

    assert report.steps.per_step_ms == ()
    assert report.steps.overhead is None
    assert report.steps.throughput is None
    assert report.steps.how == "4 step marks"
    assert report.verdict.confidence in ("medium", "low")


# Parts that add up.


@pytest.mark.parametrize("step_us", [None, 400, 1_740, 5_000])
def test_breakdown_adds_up_to_the_step(step_us: float | None) -> None:
    report = reported(full().trace(), None if step_us is None else live(SOURCE, step_us))

    assert report.steps.step_ms is not None
    assert whole_step(report) == pytest.approx(report.steps.step_ms, rel=1e-12)


def test_runtime_detail_adds_up_to_runtime() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))

    detail = report.to_dict()["runtime_detail"]
    assert sum(detail.values()) == pytest.approx(report.breakdown.runtime, rel=1e-9)


def test_operators_add_up_to_the_device_total() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))

    assert sum(row.self_device_ms or 0 for row in report.operators) == pytest.approx(10 * 0.101)
    assert sum(row.share or 0 for row in report.operators) == pytest.approx(1)
    product = next(row for row in report.operators if row.name == "aten::mm")
    assert product.calls == 10
    assert product.self_device_ms == pytest.approx(1.0)
    assert product.amdahl_share is not None


def test_amdahl_of_the_only_operator_of_a_busy_gpu_is_nearly_everything() -> None:
    def body(machine: Machine) -> None:
        for _ in range(2):
            with machine.op("aten::mm"):
                machine.launch(500)

    report = reported(stepped(body).trace(), live(SOURCE, 1_002))

    assert report.operators[0].amdahl_share == pytest.approx(1_000 / 1_002, abs=0.01)


@pytest.mark.usefixtures("recording_costs_nothing")
def test_amdahl_of_work_beside_the_host_is_nothing() -> None:
    """100 us of kernel under 900 of Python."""

    def body(machine: Machine) -> None:
        machine.python(890)
        with machine.op("aten::mm"):
            machine.launch(100, own=10)

    report = reported(stepped(body).trace(), live(SOURCE, 900))

    assert report.operators[0].share == 1.0
    assert report.operators[0].amdahl_share == pytest.approx(10 / 900, abs=1e-3)  # its own call


def test_lines_of_the_cell_are_all_listed_with_their_text() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))

    assert [row.source for row in report.lines] == SOURCE.splitlines()
    by_line = {row.line: row for row in report.lines}
    assert by_line[1].host_ms == 0.0
    assert by_line[3].device_ms == pytest.approx(1.0)
    assert by_line[4].sync_count == 10.0


@pytest.mark.usefixtures("recording_costs_nothing")
def test_utilization_is_of_the_unprofiled_step() -> None:
    def body(machine: Machine) -> None:
        machine.launch(300)
        machine.sync(tail=695)

    report = reported(stepped(body).trace(), live(SOURCE, 1_000, utilization=0.97))

    assert report.utilization.nvml == 0.97
    assert report.utilization.kernel_busy == pytest.approx(0.3)
    assert report.utilization.sm_coverage == pytest.approx(0.3 / 132)
    assert report.device is not None
    assert report.device.busy_share == pytest.approx(0.3)


def test_busiest_device_is_the_reports_and_the_others_are_listed() -> None:
    """C1."""

    def body(machine: Machine) -> None:
        for device, us in ((0, 100), (1, 400)):
            machine.launch(us, device=device)
        machine.sync()

    report = reported(stepped(body).trace(), live(SOURCE, 412, device_names={"1": "NVIDIA H100"}))

    assert report.device is not None
    assert (report.device.index, report.device.name) == (1, "NVIDIA H100")
    assert [device.index for device in report.devices] == [0, 1]
    assert all(0 < (device.busy_share or 0) <= 1 for device in report.devices)


# Without what is usually there.


@pytest.mark.usefixtures("recording_costs_nothing")
def test_without_a_gpu_its_parts_are_null_and_the_rest_adds_up() -> None:
    def body(machine: Machine) -> None:
        machine.loader(100)
        with machine.line(3), machine.op("aten::mm"):
            machine.python(900)

    report = reported(
        stepped(body).trace(), live(SOURCE, 1_000, cuda=False, process_memory=((0, 5_000), (1_000_000, 6_000)))
    )

    plain = report.to_dict()["breakdown"]
    assert {key for key, value in plain.items() if value is None} == {
        "kernel", "memcpy", "memset", "communication", "runtime", "unlike_steps",
    }  # fmt: skip
    assert whole_step(report) == pytest.approx(1.0)
    assert report.breakdown.data_loading == pytest.approx(0.1)
    assert report.breakdown.cpu == pytest.approx(0.9)
    assert (report.device, report.communication_total_ms) == (None, None)
    assert report.memory is not None
    assert report.memory.peak_bytes == 6_000  # of the process
    assert report.operators[0].self_device_ms is None
    assert report.operators[0].self_host_ms == pytest.approx(0.9)
    assert report.lines[2].device_ms is None
    assert report.to_dict()["views"]["heartbeat"]["process"] == [5_000, 6_000]


def test_silent_cupti_shows_the_hosts_time_and_no_invented_gpu() -> None:
    """A4: what is not null still adds up."""

    def body(machine: Machine) -> None:
        machine.python(900)
        machine.call("cudaLaunchKernel", 100)

    report = reported(stepped(body).trace(), live(SOURCE, 1_000))

    assert (report.breakdown.kernel, report.breakdown.runtime) == (None, None)
    assert whole_step(report) == pytest.approx(1.0)
    assert report.utilization.kernel_busy is None
    assert any(check.status == "fail" for check in report.trust)


def test_no_step_at_all_has_an_empty_breakdown() -> None:
    """A10."""
    builder = TraceBuilder()
    builder.python("<module>", 0, 100)

    report = reported(builder.trace())

    assert set(report.to_dict()["breakdown"].values()) == {None}
    assert (report.steps.count, report.steps.step_ms) == (0, None)
    assert json.dumps(report.to_dict(), allow_nan=False)


# Views.


def test_each_recorded_step_adds_up_on_the_recorded_clock() -> None:
    machine = full()
    report = reported(machine.trace(), live(SOURCE, 1_740))

    steps: list[dict[str, Any]] = report.to_dict()["views"]["per_step"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    for step, first, second in zip(steps, machine.marks, machine.marks[1:], strict=False):
        assert step["step_ms"] == pytest.approx((second - first) / 1000)
        assert sum(filter(None, step["breakdown"].values())) == pytest.approx(step["step_ms"], rel=1e-12)
        assert {row["name"] for row in step["operators"]} >= {"aten::mm"}


def test_step_without_its_cause_adds_up_to_the_promise() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))

    without = report.to_dict()["views"]["without"]
    assert report.verdict.cause == "host_sync"
    assert without["step_ms"] == report.verdict.predicted_step_ms
    assert sum(filter(None, without["breakdown"].values())) == pytest.approx(without["step_ms"], rel=1e-9)
    assert without["breakdown"]["kernel"] == pytest.approx(1.0, rel=0.02)


def test_healthy_report_has_no_step_without() -> None:
    report = reported(stepped(lambda machine: machine.launch(999)).trace(), live(SOURCE, 1_000))

    assert report.verdict.cause == "compute_bound"
    assert report.views.without is None
    assert report.to_dict()["views"]["timeline"]["bubble"] is None


def test_timeline_lanes_lie_in_the_step_and_do_not_overlap() -> None:
    report = reported(full().trace(), live(SOURCE, 1_740))

    timeline = report.to_dict()["views"]["timeline"]
    assert [lane["kind"] for lane in timeline["lanes"]] == ["host", "device"]
    for lane in timeline["lanes"]:
        for start, end, category, _ in lane["segments"]:
            assert timeline["start_ms"] <= start < end <= timeline["end_ms"]
            assert category in SECTIONS["breakdown"]
    device = timeline["lanes"][1]["segments"]
    assert all(second[0] >= first[1] for first, second in pairwise(device))
    bubble = timeline["bubble"]
    assert bubble["lane"] == "GPU"
    assert 0 <= bubble["start_ms"] < bubble["end_ms"] <= timeline["end_ms"]


def test_bubble_is_the_longest_pause_of_the_gpu_and_says_what_the_host_does() -> None:
    def body(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(200)
        with machine.line(4):
            machine.python(700)

    report = reported(stepped(body).trace(), live(SOURCE, 705))

    bubble = report.to_dict()["views"]["timeline"]["bubble"]
    assert (bubble["start_ms"], bubble["end_ms"]) == (0.205, 0.705)
    assert bubble["text"] == "GPU waits 0.50 ms for the host, line 4"


def test_heartbeat_is_on_the_clock_of_the_marks() -> None:
    machine = full()
    beat = reported(machine.trace(), live(SOURCE, 1_740)).to_dict()["views"]["heartbeat"]

    assert beat["marks_ms"] == pytest.approx([mark / 1000 for mark in [*machine.marks, machine.host]])
    assert max(beat["allocated"]) == 3_000_000
    assert len(beat["time_ms"]) == len(beat["allocated"]) == len(beat["reserved"])


def test_views_stay_small_with_many_steps_and_kernels() -> None:
    """D8: 2 MB at most."""

    def body(machine: Machine) -> None:
        for index in range(400):
            with machine.op(f"aten::op{index}"):
                machine.python(10)
                machine.launch(5 + index % 7, stream=7 + index % 6, name=f"kernel {index}")

    report = reported(stepped(body, 4).trace(), live(SOURCE, 6_000))

    assert len(json.dumps(report.to_dict()["views"])) < 2_000_000
    assert len(report.operators) == 400


# Any program.

kinds = st.sampled_from(
    ["python", "loader", "launch", "mm", "item", "malloc", "free", "copy", "pinned", "graph", "nccl"]
)


@settings(max_examples=60, deadline=None)
@hypothesis.given(
    body=st.lists(st.tuples(kinds, st.integers(1, 900), st.sampled_from([7, 20])), max_size=12),
    steps=st.integers(1, 4),
    step_us=st.one_of(st.none(), st.floats(5, 20_000)),
)
def test_any_program_makes_a_report_that_adds_up(
    body: list[tuple[str, int, int]], steps: int, step_us: float | None
) -> None:
    def run(machine: Machine) -> None:
        machine.python(1)
        for line, (what, us, stream) in enumerate(body, start=3):
            with machine.line(line):
                if what == "python":
                    machine.python(us)
                elif what == "loader":
                    machine.loader(us)
                elif what == "launch":
                    machine.launch(us, stream=stream)
                elif what == "nccl":
                    machine.launch(us, stream=stream, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL()")
                elif what == "mm":
                    with machine.op("aten::mm"):
                        machine.python(3)
                        machine.launch(us, stream=stream)
                elif what == "item":
                    machine.item()
                elif what == "malloc":
                    machine.call("cudaMalloc", us)
                elif what == "free":
                    machine.free(tail=us)
                elif what == "copy":
                    machine.blocking_copy(us, 8_000_000, stream=stream)
                elif what == "pinned":
                    machine.copy(us, 8_000_000, stream=stream)
                else:
                    machine.graph(20, 3, stream=stream)

    report = reported(stepped(run, steps).trace(), None if step_us is None else live(SOURCE, step_us))

    plain = report.to_dict()
    parts = [value for value in plain["breakdown"].values() if value is not None]
    assert sum(parts) == pytest.approx(plain["steps"]["step_ms"], rel=1e-9)
    assert min(parts) >= 0
    assert Report.from_dict(json.loads(json.dumps(plain, allow_nan=False))).to_dict() == plain
    assert all(0 <= (row["share"] or 0) <= 1 for row in plain["operators"])
    assert all(0 <= (row["amdahl_share"] or 0) <= 1 for row in plain["operators"])
    assert all(0 <= (share or 0) <= 1 + 1e-9 for share in plain["utilization"].values())
    for step in plain["views"].get("per_step", ()):
        known = [value for value in step["breakdown"].values() if value is not None]
        assert sum(known) == pytest.approx(step["step_ms"], rel=1e-9)


def test_runtime_is_host_time_where_there_is_no_gpu() -> None:
    """Parts that are not null add up, also where CUDA calls were made and nothing was recorded of the device."""
    parts = dict.fromkeys(PARTS, 0.0) | {"launch": 2e6, "cpu": 3e6, "other": 1e6}

    whole = views.breakdown_ms(parts, gpu=False)

    assert (whole.runtime, whole.cpu, whole.other) == (None, 5.0, 1.0)


# Any file: nothing here follows from how a machine works.

moments = st.integers(0, 2_000)
names = st.sampled_from([
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
    "cudaFree", "cudaMalloc", "cudaGraphLaunch", "cudaStreamWaitEvent", "cuLaunchKernel", "INVALID",
])  # fmt: skip
events = st.one_of(
    st.tuples(st.just("step"), moments, moments, names),
    st.tuples(st.just("op"), moments, moments, names),
    st.tuples(st.just("line"), moments, moments, names),
    st.tuples(st.just("loader"), moments, moments, names),
    st.tuples(st.just("call"), moments, moments, names),
    st.tuples(st.just("kernel"), moments, moments, names),
    st.tuples(st.just("launch"), moments, moments, names),
    st.tuples(st.just("copy"), moments, moments, names),
    st.tuples(st.just("graph"), moments, moments, names),
    st.tuples(st.just("memory"), moments, moments, names),
)


NO_LENGTH = [("step", 0, 0, ""), ("step", 1, 0, ""), ("kernel", 0, 0, "")]


@settings(max_examples=150, deadline=None)
@hypothesis.example(found=NO_LENGTH, step_us=1.0, tid=1)
@hypothesis.example(found=NO_LENGTH, step_us=None, tid=1)
@hypothesis.example(found=NO_LENGTH[:2], step_us=None, tid=1)
@hypothesis.example(found=[("step", 0, 0, ""), ("launch", 0, 0, "")], step_us=0.001, tid=1)
@hypothesis.given(
    found=st.lists(events, min_size=1, max_size=25),
    step_us=st.one_of(st.none(), st.floats(0.5, 10_000)),
    tid=st.integers(1, 2),
)
def test_any_file_makes_a_report_that_adds_up(
    found: list[tuple[str, int, int, str]], step_us: float | None, tid: int
) -> None:
    builder = TraceBuilder()
    builder.op("aten::first", 0, 1)
    for index, (what, at, length, name) in enumerate(found):
        end, other = at + length, (at * 7 + index) % 2_500
        thread = 1 if index % 3 else tid
        if what == "step":
            builder.step(index, at, end)
        elif what == "op":
            builder.op("aten::item" if index % 2 else "aten::mm", at, end, thread)
        elif what == "line":
            builder.line(2 + index % 4, at, end)
        elif what == "loader":
            builder.loader(at, end)
        elif what == "call":
            builder.call(name, at, length, thread)
        elif what == "kernel":
            builder.kernel("stray", at, length, stream=index % 2)
        elif what == "launch":
            builder.launch(at, length % 50, "gemm", other, length, stream=index % 2, device=index % 2, tid=thread)
        elif what == "copy":
            builder.copy(at, length, "HtoD pageable" if index % 2 else "DtoH", other, length, 5_000_000, api=name)
        elif what == "graph":
            builder.graph(at, length % 50, [("a", other, length), ("b", other + 3, length)])
        else:
            builder.memory(at, length, length, 2_000)

    report = reported(builder.trace(), None if step_us is None else live(SOURCE, step_us, loop_is_for=bool(tid - 1)))

    plain = report.to_dict()
    parts = [value for value in plain["breakdown"].values() if value is not None]
    if parts:
        assert sum(parts) == pytest.approx(plain["steps"]["step_ms"], rel=1e-9, abs=1e-9)
        assert min(parts) >= 0
    assert Report.from_dict(json.loads(json.dumps(plain, allow_nan=False))).to_dict() == plain
    assert len(plain["verdict"]["headline"].split()) <= 25
