"""Recorded loops that keep the GPU busy, from a list of operator calls with their shapes and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipyprof.analysis.profile import Profile, analyse
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Details
from tests.builder import TraceBuilder

BF16, HALF, FLOAT = "c10::BFloat16", "c10::Half", "float"
PAUSE_US = 1.0


@dataclass(frozen=True)
class Call:
    """One operator call and its kernel of ``us`` microseconds; ``kernels`` are (name, us) where it has several."""

    name: str
    us: float
    shapes: Sequence[Any]
    dtypes: Sequence[str]
    kernel: str = "kernel"
    strides: Sequence[Any] | None = None
    concrete: Sequence[str] | None = None
    kernels: Sequence[tuple[str, float]] = ()

    @property
    def work(self) -> Sequence[tuple[str, float]]:
        return self.kernels or ((self.kernel, self.us),)


def product(m: int, k: int, n: int, us: float, kernel: str, dtype: str = BF16) -> Call:
    """``aten::mm`` of contiguous matrices."""
    return Call("aten::mm", us, [[m, k], [k, n]], [dtype, dtype], kernel, strides=[[k, 1], [n, 1]])


def elementwise(name: str, elements: int, us: float, *, inputs: int = 1, dtype: str = FLOAT) -> Call:
    """An elementwise operator over flat tensors."""
    shapes, dtypes = [[elements]] * inputs, [dtype] * inputs
    return Call(name, us, shapes, dtypes, "void at::native::vectorized_elementwise_kernel<4>", strides=[[1]] * inputs)


def recorded(calls: Sequence[Call], *, steps: int = 4, device: str = "NVIDIA H200", baseline: bool = True) -> Profile:
    """The profile of ``steps`` equal steps, the host running ahead of a GPU that works without a break."""
    builder = TraceBuilder()
    builder.device(device)
    host = ready = 0.0
    for step in range(steps):
        begin = host
        for call in calls:
            at = host
            inside = at + 2
            for kernel, us in call.work:
                start = max(inside + 5, ready + PAUSE_US)
                builder.launch(inside, 3, kernel, start, us)
                ready = start + us
                inside += 4
            builder.op(
                call.name,
                at,
                inside,
                shapes=call.shapes,
                dtypes=call.dtypes,
                strides=call.strides,
                concrete=call.concrete,
            )
            builder.line(3, at, inside)
            host = inside
        builder.step(step, begin, host)
    step_us = sum(us + PAUSE_US for call in calls for _, us in call.work)
    source = "%%gpuprofile\nfor x in data:\n    y = model(x)\n"
    samples = (round(step_us * 1000),) * 5
    live = LiveRecord(source=source, mark="loop", loop_line=2, baseline="after", baseline_ns=samples, cuda=True)
    return analyse(builder.trace(), live if baseline else None)


def details(shapes: Any, dtypes: Any, strides: Any = None, concrete: Any = None) -> Details:
    """The arguments of one call."""

    def frozen(value: Any) -> Any:
        return tuple(frozen(item) for item in value) if isinstance(value, (list, tuple)) else value

    return Details(shapes=frozen(shapes), dtypes=frozen(dtypes), strides=frozen(strides), concrete=frozen(concrete))
