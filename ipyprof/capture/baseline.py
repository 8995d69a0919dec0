"""Per-step samples without the profiler: one CUDA event per mark, read at the end; wall clock without CUDA."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from ipyprof.capture import torch_doors as doors

# When the baseline after the recording is complete: half a second, and never fewer than three steps. A count of steps
# alone is too short for short steps: 20 steps of 3 ms end before the GPU's clock has settled behind the pause of the
# stop (3.09 ms at first, 3.43 ms from the 17th step on, on an H200).
ENOUGH_NS = 500_000_000
MOST_STEPS = 2_000
LEAST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """One mark: host time in ns, and the CUDA event recorded there with its device, where there is one."""

    host_ns: int
    event: Any = None
    device: int = -1


def stamp() -> Stamp:
    """A stamp of now. Nothing waits; no event while a stream is capturing or before CUDA is in use."""
    event, device = None, -1
    if torch.cuda.is_initialized() and not doors.stream_is_capturing():
        try:
            event, device = torch.cuda.Event(enable_timing=True), torch.cuda.current_device()
            event.record()
        except RuntimeError:  # a CUDA error of the user's own work: it comes up in their next call
            event, device = None, -1
    return Stamp(host_ns=time.perf_counter_ns(), event=event, device=device)


class Laps:
    """The samples between marks that follow each other.

    Attributes:
        closed: the last sample ended with the loop, so that it holds no fetch of a next batch.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Stamp, Stamp]] = []
        self._last: Stamp | None = None
        self.closed = False

    def __len__(self) -> int:
        return len(self._pairs)

    def mark(self, at: Stamp, *, opens: bool = True) -> None:
        """End the open sample at this mark, and begin the next one unless ``opens`` is false."""
        if self._last is not None:
            self._pairs.append((self._last, at))
        self._last = at if opens else None
        self.closed = not opens

    def pause(self) -> None:
        """Forget the open sample."""
        self._last = None

    def settled(self) -> Laps:
        """The samples but the first, which began with an idle device: those before the next recording."""
        laps = Laps()
        laps._pairs = self._pairs[1:]
        return laps

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Host time of the first and the last mark that bound a sample, or ``None``."""
        return (self._pairs[0][0].host_ns, self._pairs[-1][1].host_ns) if self._pairs else None

    def durations_ns(self) -> tuple[int, ...]:
        """One duration per sample, in order. Waits for the last event. Samples that cannot be read are left out."""
        found = (_duration_ns(begin, end) for begin, end in self._pairs)
        return tuple(duration for duration in found if duration is not None)

    def host_ns(self) -> tuple[int, ...]:
        """Host time from mark to mark, one per sample, in order. Waits for nothing."""
        return tuple(end.host_ns - begin.host_ns for begin, end in self._pairs)


def _duration_ns(begin: Stamp, end: Stamp) -> int | None:
    if begin.event is None and end.event is None:
        return end.host_ns - begin.host_ns
    if begin.event is None or end.event is None or begin.device != end.device:
        return None
    try:
        end.event.synchronize()
        elapsed_ms: float = begin.event.elapsed_time(end.event)
        return round(elapsed_ms * 1e6)
    except RuntimeError:
        return None


def enough(laps: Laps, *, cycle: int = 1, least_ns: int = ENOUGH_NS) -> bool:
    """Whether the baseline after the recording is complete. The first sample does not count; whole cycles only.

    Args:
        cycle: iterations in one optimizer cycle.
        least_ns: host time that the samples take at least.
    """
    window = laps.window_ns
    counted = len(laps) - 1
    if window is None or counted < LEAST_STEPS or counted % cycle:
        return False
    return counted >= MOST_STEPS or window[1] - window[0] >= least_ns


COLD = 2  # first steps of a loop, which search algorithms and fill caches
LEAST_BEFORE = 5
QUICKER = 0.97  # a loop that the attached CUPTI slows down by less than this is told as before by the steps behind it


def choose(
    after_ns: Sequence[int],
    wait_ns: Sequence[int],
    profiled_ns: Sequence[int],
    *,
    closed: bool = False,
    first: bool = False,
) -> tuple[str, tuple[int, ...]]:
    """Which samples describe the unprofiled step, as (name, samples in ns).

    ``before``: the steps before the ``first`` profiler of the process, where those behind it are slower: CUPTI stays
    attached, and costs every launch (1.2 times the step of a loop that waits for the host, on an H200).
    ``after``: the steps after the recording, without the first one, which began with an idle device, and with
    ``closed`` without the last one, which holds no fetch; ``after_first``: only the first one is there; ``wait``: the
    steps before the profiler, when they are not cold (slower than the recorded ones); else ``none``.
    """
    settled = tuple(after_ns[1:-1] if closed else after_ns[1:])
    before = tuple(wait_ns[COLD:])
    if first and len(before) >= LEAST_BEFORE and settled and median(before) < QUICKER * median(settled):
        return "before", before
    if settled:
        return "after", settled
    if after_ns:
        return "after_first", (after_ns[0],)
    if wait_ns and (not profiled_ns or median(wait_ns) <= median(profiled_ns)):
        return "wait", tuple(wait_ns)
    return "none", ()


def attached(after_ns: Sequence[int], wait_ns: Sequence[int]) -> float:
    """How many times as long the steps take behind the recording as before it."""
    return median(after_ns[1:]) / max(median(wait_ns[COLD:]), 1)
