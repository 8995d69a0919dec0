"""The utilisation ladder as data: from the driver's number down to arithmetic; what each counts, or why it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from ipyprof.analysis.operators import GRAPH_ROW
from ipyprof.report.report import Report

DRIVER = "nvidia-smi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One share of the step or of a peak; ``words``: what it counts, or, where ``share`` is ``None``, why not."""

    name: str
    share: float | None
    words: str


def rungs(report: Report) -> tuple[Rung, ...]:
    """From ``nvidia-smi`` to MFU; empty without a GPU."""
    use = report.utilization
    if report.device is None and use.kernel_busy is None:
        return ()
    found = [
        (DRIVER, use.nvml, "some kernel was running, as the driver samples it"),
        ("GPU computes", use.kernel_busy, "time in kernels; the rest is waiting"),
        ("SMs covered", use.sm_coverage, "weighted by how many SMs had work"),
        ("Tensor Cores", use.tensor_core, "time in kernels that use them"),
        ("MFU", use.mfu, "useful arithmetic, of the data sheet's dense peak"),
    ]
    lacking = {
        DRIVER: _no_driver(report),
        "SMs covered": "kernels without their grid",
        "MFU": _no_arithmetic(report),
    }
    return tuple(
        Rung(name=name, share=share, words=words if share is not None else lacking.get(name, ""))
        for name, share, words in found
        if share is not None or name != "Tensor Cores"  # told for each operator, where it can be told
    )


def _no_driver(report: Report) -> str:
    state = report.views.get("device_state")
    if not isinstance(state, dict):
        return "not in a trace" if report.source.kind == "file" else "the driver was not asked"
    return str(state.get("missing") or "") or "the steps ended before the driver's next sample"


def _no_arithmetic(report: Report) -> str:
    if any(one.tensor_core in ("yes", "no", "unknown") for one in report.operators):
        shapes = any(one.shapes for one in report.operators)
        return "the peak of this device or precision is not known" if shapes else "input shapes were not recorded"
    if any(one.name == GRAPH_ROW for one in report.operators):
        return "a CUDA graph has no shapes"
    return "no product, convolution or attention ran"
