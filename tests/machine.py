"""A fake host and a fake GPU: what the host does is simulated call by call and written down as a recording would be.

The rules are those of the hardware as FACTS has them: work starts 5 us after its launch began, 1 us after the work
before it on its stream; a synchronisation returns when what it waits for is done; nothing else holds the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace
from tests.builder import TraceBuilder

LATENCY = 5.0
PAUSE = 1.0
STREAM = 7


class Machine:
    """Times are in microseconds. ``host`` is the clock of the launching threads, ``ready`` when each stream is free.

    Args:
        pause: what lies between two pieces of work of one stream.

    Example:
        >>> machine = Machine()
        >>> with machine.step():
        ...     machine.python(10)
        ...     machine.launch(100)
        >>> machine.host, machine.ready[(0, 7)]
        (15.0, 115.0)
    """

    def __init__(self, *, pause: float = PAUSE) -> None:
        self.pause = pause
        self.builder = TraceBuilder()
        self.builder.device()
        self.host = 0.0
        self.ready: dict[tuple[int, int], float] = {}
        self.marks: list[float] = []
        self.tid = 1
        self._held: dict[tuple[int, int], float] = {}

    # What the host does.

    @contextmanager
    def step(self) -> Iterator[None]:
        """One recorded step."""
        begin = self.host
        self.marks.append(begin)
        yield
        self.builder.step(len(self.marks) - 1, begin, self.host)

    @contextmanager
    def line(self, number: int) -> Iterator[None]:
        """A statement of the cell."""
        begin = self.host
        yield
        self.builder.line(number, begin, self.host)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        """An operator."""
        begin = self.host
        yield
        self.builder.op(name, begin, self.host, self.tid)

    @contextmanager
    def thread(self, tid: int) -> Iterator[None]:
        """Calls of another thread, such as autograd's, while the first one waits for it."""
        before, self.tid = self.tid, tid
        yield
        self.tid = before

    def python(self, us: float) -> None:
        """The host computes."""
        self.host += us

    def loader(self, us: float, name: str = "_SingleProcessDataLoaderIter.__next__") -> None:
        """A fetch of a DataLoader."""
        self.builder.loader(self.host, self.host + us, name=name)
        self.host += us

    def call(self, name: str, us: float) -> None:
        """An API call that waits for nothing."""
        self.builder.call(name, self.host, us, self.tid)
        self.host += us

    # What the GPU is given.

    def launch(
        self, kernel: float, *, own: float = 5, stream: int = STREAM, device: int = 0, name: str = "kernel"
    ) -> None:
        """A kernel."""
        at = self._begin(self.host, stream, device)
        self.builder.launch(self.host, own, name, at, kernel, stream=stream, device=device, tid=self.tid)
        self.ready[device, stream] = at + kernel
        self.host += own

    def graph(self, count: int, kernel: float, *, own: float = 10, stream: int = STREAM) -> None:
        """One launch of a graph with ``count`` kernels; it is handed over when the call ends."""
        at = self._begin(self.host + own, stream, 0)
        nodes = [("node", at + index * (kernel + PAUSE), kernel) for index in range(count)]
        self.builder.graph(self.host, own, nodes, stream=stream, tid=self.tid)
        self.ready[0, stream] = at + count * (kernel + PAUSE) - PAUSE
        self.host += own

    def copy(self, us: float, nbytes: int, *, direction: str = "HtoD", own: float = 5, stream: int = STREAM) -> None:
        """A copy that runs beside the host."""
        at = self._begin(self.host, stream, 0)
        self.builder.copy(self.host, own, direction, at, us, nbytes, stream=stream, tid=self.tid)
        self.ready[0, stream] = at + us
        self.host += own

    def blocking_copy(
        self, us: float, nbytes: int, *, direction: str = "HtoD pageable", tail: float = 3, stream: int = STREAM
    ) -> None:
        """A copy from or to pageable memory: the call returns ``tail`` after its end."""
        at = self._begin(self.host, stream, 0)
        end = at + us + tail
        self.builder.copy(self.host, end - self.host, direction, at, us, nbytes, stream=stream, tid=self.tid)
        self.ready[0, stream] = at + us
        self.host = end

    def wait_event(self, stream: int, on: int, *, own: float = 2) -> None:
        """Work of ``stream`` that is launched from now on starts behind what ``on`` has now."""
        self.call("cudaStreamWaitEvent", own)
        self._held[0, stream] = max(self._held.get((0, stream), 0.0), self.ready.get((0, on), 0.0))

    # Where the host waits.

    def sync(self, *, tail: float = 2, api: str = "cudaDeviceSynchronize") -> None:
        """Wait for the whole device."""
        self._wait(max(self.ready.values(), default=0.0), tail, api)

    def stream_sync(self, stream: int = STREAM, *, tail: float = 2) -> None:
        """Wait for one stream."""
        self._wait(self.ready.get((0, stream), 0.0), tail, "cudaStreamSynchronize")

    def event_sync(self, stream: int = STREAM, *, tail: float = 2) -> None:
        """Wait for an event behind what the stream has now."""
        self._wait(self.ready.get((0, stream), 0.0), tail, "cudaEventSynchronize")

    def free(self, *, tail: float = 50) -> None:
        """``cudaFree``: waits for the device, then works."""
        self.sync(tail=tail, api="cudaFree")

    def item(self) -> None:
        """``tensor.item()``: a copy of four bytes and the wait for it, 1 us of Python before and behind."""
        with self.op("aten::item"):
            self.python(1)
            with self.op("aten::_local_scalar_dense"):
                self.copy(1, 4, direction="DtoH")
                self.stream_sync()
            self.python(1)

    # What comes out.

    @property
    def end(self) -> float:
        """When host and GPU are done."""
        return max([self.host, *self.ready.values()])

    def trace(self) -> Trace:
        """The recording."""
        return self.builder.trace()

    def _begin(self, at: float, stream: int, device: int) -> float:
        lane = (device, stream)
        begin = max(at + LATENCY, self.ready.get(lane, float("-inf")) + self.pause)
        return max(begin, self._held.pop(lane, 0.0))

    def _wait(self, until: float, tail: float, api: str) -> None:
        end = max(self.host, until) + tail
        self.builder.sync(self.host, end - self.host, api, self.tid)
        self.host = end


def live(source: str, *samples_us: float, loop_line: int | None = 2, **values: Any) -> LiveRecord:
    """What a live run would know: a ``for`` loop at ``loop_line`` whose unprofiled steps took ``samples_us``."""
    known: dict[str, Any] = {
        "source": source,
        "how": f"loop at line {loop_line}",
        "mark": "loop",
        "loop_line": loop_line,
        "cuda": True,
        "baseline": "after" if samples_us else "none",
        "baseline_ns": tuple(round(us * 1000) for us in samples_us),
    }
    return LiveRecord(**{**known, **values})
