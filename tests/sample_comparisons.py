"""Reports before and after a cure, as a comparison gets them; the starvation of the samples and its cure."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ipyprof.analysis.results import Breakdown, Operator, Utilization
from ipyprof.diagnosis.cause import Verdict
from ipyprof.report.report import Report, Throughput
from tests.sample_reports import starvation


def slow() -> Report:
    """257 ms a step, 225 of them waiting for the loader; 64 images a step."""
    return named(starvation(), "before")


def fast() -> Report:
    """The same loop with worker processes: 31.6 ms a step, one operator faster, Python longer."""
    base = starvation()

    def faster(row: Operator) -> Operator:
        return structs.replace(row, self_device_ms=1.06) if row.name == "aten::copy_" else row

    steps = tuple(
        structs.replace(
            step, breakdown=structs.replace(step.breakdown, memcpy=0.8), operators=tuple(map(faster, step.operators))
        )
        for step in base.views.per_step
    )
    cell = tuple(line.replace("in train_loader:", "in fast_loader:") for line in base.source.cell)
    return structs.replace(
        base,
        source=structs.replace(base.source, name="after", cell=cell),
        steps=structs.replace(
            base.steps,
            step_ms=31.6,
            per_step_ms=(31.2, 31.6, 32.1),
            throughput=Throughput(value=64 / 31.6 * 1000, unit="img/s"),
        ),
        breakdown=Breakdown(
            kernel=15.2, memcpy=0.8, memset=0.0, communication=0.0, data_loading=0.0, runtime=2.7, cpu=12.9, other=0.0
        ),
        utilization=Utilization(nvml=0.5, kernel_busy=0.481, sm_coverage=0.4, mfu=0.05),
        operators=tuple(map(faster, base.operators)),
        verdict=Verdict(
            cause="launch_bound",
            headline="The GPU waits for launches of short kernels: 12.0 of 31.6 ms (38 %).",
            advice="",
            confidence="high",
        ),
        views=structs.replace(base.views, per_step=steps),
    )


def named(report: Report, name: str | None) -> Report:
    """The report under another title, with 64 images a step exactly."""
    steps = report.steps
    rate = Throughput(value=64 / steps.step_ms * 1000, unit="img/s") if steps.step_ms else None
    return structs.replace(
        report,
        source=structs.replace(report.source, name=name),
        steps=structs.replace(steps, throughput=rate),
    )


def timed(report: Report, *samples: float, **steps: Any) -> Report:
    """The report with other unprofiled samples, their median as the step."""
    middle, rate = sorted(samples)[len(samples) // 2], report.steps.throughput
    if rate is not None and report.steps.step_ms is not None:  # the same work in each step
        rate = structs.replace(rate, value=rate.value * report.steps.step_ms / middle)
    given = {"step_ms": middle, "throughput": rate, **steps}
    return structs.replace(report, steps=structs.replace(report.steps, per_step_ms=samples, **given))
