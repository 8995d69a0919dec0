"""A fake clock: traces built event by event, written as Kineto writes them and read by the real reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ipyprof.trace.kinds import LINE_PREFIX, STEP_PREFIX
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace
from ipyprof.trace.reader import parse_trace

HOST_PID = 1000

COPY_NAMES = {
    "HtoD": "Memcpy HtoD (Pinned -> Device)",
    "HtoD pageable": "Memcpy HtoD (Pageable -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pinned)",
    "DtoH pageable": "Memcpy DtoH (Device -> Pageable)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
    "PtoP": "Memcpy PtoP (Device -> Device)",
}


class TraceBuilder:
    """Builds a trace in microseconds of a fake clock; the trace that comes out is in nanoseconds.

    Events may be added in any order. The trace's time zero is its earliest event. Calls and device records get the
    external id of the innermost operator around the call on the same thread, as Kineto gives it; methods that make
    a call return its correlation.

    Example:
        >>> builder = TraceBuilder()
        >>> builder.device()
        >>> builder.step(0, at=0, end=100)
        >>> external_id = builder.op("aten::mm", at=10, end=40)
        >>> correlation = builder.launch(at=20, dur=5, kernel_name="gemm", kernel_at=50, kernel_dur=30)
        >>> trace = builder.trace()
        >>> len(trace), int(trace.end_ns.max())
        (4, 100000)
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._top: dict[str, Any] = {"schemaVersion": 1}
        self._devices: list[dict[str, Any]] = []
        self._live: LiveRecord | None = None
        self._last_correlation = 0
        self._last_external = 0
        self._last_flow = 0

    # Host ranges.

    def step(self, number: int, at: float, end: float, tid: int = 1) -> None:
        """The mark ``ProfilerStep#number``."""
        self.annotation(f"{STEP_PREFIX}{number}", at, end, tid)

    def line(self, number: int, at: float, end: float, tid: int = 1) -> None:
        """The range of line ``number`` of the cell."""
        self.op(f"{LINE_PREFIX}{number}", at, end, tid)

    def loader(self, at: float, end: float, tid: int = 1, name: str = "_SingleProcessDataLoaderIter.__next__") -> None:
        """One fetch of a DataLoader."""
        self.annotation(f"enumerate(DataLoader)#{name}", at, end, tid)

    def annotation(self, name: str, at: float, end: float, tid: int = 1, **args: Any) -> None:
        """A ``record_function`` range; ``args`` are written as they are."""
        self._add("user_annotation", name, at, end - at, tid, {"External id": self._next_external(), **args})

    def op(
        self,
        name: str,
        at: float,
        end: float,
        tid: int = 1,
        *,
        shapes: Sequence[Any] | None = None,
        strides: Sequence[Any] | None = None,
        dtypes: Sequence[str] | None = None,
        concrete: Sequence[str] | None = None,
        sequence: int | None = None,
        forward_thread: int | None = None,
        **args: Any,
    ) -> int:
        """The external id of a new operator. ``sequence`` is autograd's number; ``args`` are written as they are."""
        external = self._next_external()
        known: dict[str, Any] = {
            "External id": external,
            "Input Dims": shapes,
            "Input Strides": strides,
            "Input type": dtypes,
            "Concrete Inputs": concrete,
            "Sequence number": sequence,
            "Fwd thread id": forward_thread,
        }
        written = {key: value for key, value in known.items() if value is not None}
        self._add("cpu_op", name, at, end - at, tid, {**written, **args})
        return external

    def python(self, name: str, at: float, end: float, tid: int = 1) -> None:
        """A Python function of a recording with stacks."""
        self._add("python_function", name, at, end - at, tid, {})

    # API calls and device work.

    def call(self, name: str, at: float, dur: float, tid: int = 1) -> int:
        """The correlation of a new CUDA or HIP API call; ``cu...`` names are driver calls."""
        self._last_correlation += 1
        category = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        self._add(category, name, at, dur, tid, {"correlation": self._last_correlation})
        return self._last_correlation

    def sync(self, at: float, dur: float, api: str = "cudaDeviceSynchronize", tid: int = 1) -> int:
        """The correlation of a call that waits."""
        return self.call(api, at, dur, tid)

    def launch(
        self,
        at: float,
        dur: float,
        kernel_name: str,
        kernel_at: float,
        kernel_dur: float,
        *,
        stream: int = 7,
        device: int = 0,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
        occupancy: float = 50,
        api: str = "cudaLaunchKernel",
        tid: int = 1,
        **args: Any,
    ) -> int:
        """The correlation of a launch and its kernel. ``occupancy`` is in percent, as the file has it."""
        correlation = self.call(api, at, dur, tid)
        self.kernel(
            kernel_name,
            kernel_at,
            kernel_dur,
            stream=stream,
            device=device,
            grid=grid,
            block=block,
            occupancy=occupancy,
            correlation=correlation,
            **args,
        )
        return correlation

    def graph(
        self,
        at: float,
        dur: float,
        kernels: Sequence[tuple[str, float, float]],
        *,
        stream: int = 7,
        device: int = 0,
        tid: int = 1,
    ) -> int:
        """The correlation of one graph launch with its kernels, each (name, at, dur)."""
        correlation = self.call("cudaGraphLaunch", at, dur, tid)
        for name, kernel_at, kernel_dur in kernels:
            self.kernel(name, kernel_at, kernel_dur, stream=stream, device=device, correlation=correlation)
        return correlation

    def kernel(
        self,
        name: str,
        at: float,
        dur: float,
        *,
        stream: int = 7,
        device: int = 0,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
        occupancy: float = 50,
        correlation: int = 0,
        **args: Any,
    ) -> None:
        """A kernel; without a correlation its launch is not in the file (carried over)."""
        known = {"grid": list(grid), "block": list(block), "est. achieved occupancy %": occupancy}
        self._device_work("kernel", name, at, dur, stream, device, correlation, {**known, **args})

    def copy(
        self,
        at: float,
        dur: float,
        direction: str,
        gpu_at: float,
        gpu_dur: float,
        nbytes: int,
        *,
        stream: int = 7,
        device: int = 0,
        api: str = "cudaMemcpyAsync",
        tid: int = 1,
    ) -> int:
        """The correlation of a copy and its device record.

        ``direction`` is a key of ``COPY_NAMES`` (pinned unless it says ``pageable``) or a whole device name.
        """
        correlation = self.call(api, at, dur, tid)
        self.copy_record(direction, gpu_at, gpu_dur, nbytes, correlation=correlation, stream=stream, device=device)
        return correlation

    def copy_record(
        self,
        direction: str,
        gpu_at: float,
        gpu_dur: float,
        nbytes: int,
        *,
        correlation: int,
        stream: int = 7,
        device: int = 0,
    ) -> None:
        """The device record of a copy alone, such as a node of a graph; ``direction`` as for ``copy``."""
        name = COPY_NAMES.get(direction, direction)
        self._device_work("gpu_memcpy", name, gpu_at, gpu_dur, stream, device, correlation, {"bytes": nbytes})

    def fill(
        self,
        at: float,
        dur: float,
        gpu_at: float,
        gpu_dur: float,
        nbytes: int,
        *,
        stream: int = 7,
        device: int = 0,
        tid: int = 1,
    ) -> int:
        """The correlation of a memset and its device record."""
        correlation = self.call("cudaMemsetAsync", at, dur, tid)
        args = {"bytes": nbytes}
        self._device_work("gpu_memset", "Memset (Device)", gpu_at, gpu_dur, stream, device, correlation, args)
        return correlation

    def gpu_annotation(self, name: str, at: float, end: float, *, stream: int = 7, device: int = 0) -> None:
        """The device's copy of an annotation."""
        self._write("gpu_user_annotation", name, at, end - at, device, stream, {})

    def cuda_sync(self, name: str, at: float, dur: float, *, stream: int = 7, device: int = 0) -> None:
        """A synchronisation as the device saw it, such as ``Stream Sync``."""
        self._write("cuda_sync", name, at, dur, device, stream, {"device": device, "stream": stream})

    # The rest of a file.

    def memory(
        self,
        at: float,
        delta: int,
        allocated: int,
        reserved: int,
        device: int = 0,
        *,
        address: int = 140000000000000,
        tid: int = 1,
        name: str = "[memory]",
    ) -> None:
        """One ``[memory]`` record, or an ``[OutOfMemory]`` one; ``device`` -1 is the CPU."""
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": name,
                "pid": HOST_PID,
                "tid": tid,
                "ts": at,
                "args": {
                    "Total Reserved": reserved,
                    "Total Allocated": allocated,
                    "Bytes": delta,
                    "Addr": address,
                    "Device Id": device,
                    "Device Type": 0 if device < 0 else 1,
                },
            }
        )

    def flow(self, forward_at: float, backward_at: float, *, forward_tid: int = 1, backward_tid: int = 2) -> None:
        """A forward to backward link between the operators that start at these times."""
        self._last_flow += 1
        for phase, tid, at in (("s", forward_tid, forward_at), ("f", backward_tid, backward_at)):
            event = {"ph": phase, "id": self._last_flow, "pid": HOST_PID, "tid": tid, "ts": at}
            self.events.append({**event, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"})

    def thread_name(self, tid: int, name: str) -> None:
        """The name of a host thread."""
        event = {"name": "thread_name", "ph": "M", "ts": 0, "pid": HOST_PID, "tid": tid}
        self.events.append({**event, "args": {"name": name}})

    def device(
        self,
        name: str = "NVIDIA H200",
        sms: int = 132,
        *,
        index: int | None = None,
        capability: tuple[int, int] = (9, 0),
        total_bytes: int = 150_000_000_000,
    ) -> None:
        """A device of ``deviceProperties``; the index counts up by itself."""
        self._devices.append(
            {
                "id": len(self._devices) if index is None else index,
                "name": name,
                "totalGlobalMem": total_bytes,
                "computeMajor": capability[0],
                "computeMinor": capability[1],
                "numSms": sms,
            }
        )

    def metadata(self, **values: Any) -> None:
        """Other top-level keys, such as ``record_shapes=1`` or ``baseTimeNanoseconds=...``."""
        self._top.update(values)

    def live(self, record: LiveRecord) -> None:
        """What a live run saved beside the trace."""
        self._live = record

    def json(self) -> bytes:
        """The file's bytes."""
        top: dict[str, Any] = dict(self._top)
        if self._devices:
            top["deviceProperties"] = self._devices
        if self._live is not None:
            top["ipyprof"] = msgspec.to_builtins(self._live)
        return json.dumps({**top, "traceEvents": self._with_external_ids()}).encode()

    def trace(self) -> Trace:
        """The trace that the reader makes of it."""
        return parse_trace(self.json())

    def _add(self, category: str, name: str, at: float, dur: float, tid: int, args: dict[str, Any]) -> None:
        self._write(category, name, at, dur, HOST_PID, tid, args)

    def _write(self, category: str, name: str, at: float, dur: float, pid: int, tid: int, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": dur}
        self.events.append({**event, "args": args})

    def _device_work(
        self,
        category: str,
        name: str,
        at: float,
        dur: float,
        stream: int,
        device: int,
        correlation: int,
        args: dict[str, Any],
    ) -> None:
        known = {"device": device, "context": 1, "stream": stream, "correlation": correlation}
        self._write(category, name, at, dur, device, stream, {**known, **args})

    def _next_external(self) -> int:
        self._last_external += 1
        return self._last_external

    def _with_external_ids(self) -> list[dict[str, Any]]:
        operators = [event for event in self.events if event.get("cat") in ("cpu_op", "user_annotation")]
        external: dict[int, int] = {}
        for event in self.events:
            if event.get("cat") not in ("cuda_runtime", "cuda_driver"):
                continue
            around = [
                operator
                for operator in operators
                if operator["tid"] == event["tid"]
                and operator["ts"] <= event["ts"]
                and event["ts"] + event["dur"] <= operator["ts"] + operator["dur"]
                and not operator["name"].startswith((STEP_PREFIX, LINE_PREFIX))
            ]
            if around:
                innermost = max(around, key=lambda operator: (operator["ts"], -operator["dur"]))
                external[event["args"]["correlation"]] = innermost["args"]["External id"]
        written = []
        for event in self.events:
            correlation = event.get("args", {}).get("correlation", 0)
            if correlation in external:
                args = {"External id": external[correlation], **event["args"]}
                written.append({**event, "args": args})
            else:
                written.append(event)
        return written
