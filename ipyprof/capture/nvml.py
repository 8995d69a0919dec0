"""What the driver says of the GPU while steps run: utilisation, clocks, what holds them back, power, link, neighbours.

Needs the ``nvml`` extra; every answer is optional, and where none comes the reason is kept. Nothing runs beside the
steps: the driver keeps samples of its own (six a second or more), which are read at the end, and the rest is asked for
at the mark where the run is complete, while the GPU still has the last steps' work or has just finished it.

Costs: opening NVML about 20 ms, once, where CUPTI starts; the questions are asked when no step is timed any more.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import torch

from ipyprof.trace.live import DeviceState

NOT_INSTALLED = "the nvml extra is not installed"
# Bits of nvmlClocksEventReasons in nvml.h, in words; 0x1, idle, slows nothing.
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x2: "clocks set by a user",
    0x10: "sync boost",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability limit",
}
IDLE = 0x1
# Return codes of nvml.h after which nothing more will be answered: uninitialised, no driver, GPU lost, reset, unknown.
_GONE = frozenset({1, 9, 15, 16, 999})


class DeviceReader:
    """Asks NVML about torch's current device. Opened once, before the steps that count; closed by ``finish``."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._missing = ""
        self._now: dict[str, Any] | None = None

    def open(self) -> None:
        """Start NVML; nothing where CUDA is not in use or NVML was started."""
        if self._nvml is not None or self._missing or not torch.cuda.is_initialized():
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pynvml
        except Exception:
            self._missing = NOT_INSTALLED
            return
        try:
            pynvml.nvmlInit()
        except Exception as failure:
            self._missing = f"the driver does not answer: {_words(failure)}"
            return
        self._nvml = pynvml
        try:
            self._handle = _handle(pynvml, torch.cuda.current_device())
        except Exception as failure:
            self._missing = f"the driver does not know the device: {_words(failure)}"

    def look(self) -> None:
        """Ask for all that is true only now: nothing waits for the GPU here."""
        self.open()
        if self._handle is None:
            return
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        idle = bits is not None and bool(bits & IDLE)
        power = self._ask("nvmlDeviceGetPowerUsage")
        self._now = {
            # What holds an idle clock is not what held it in the steps.
            "slowed_by": None if bits is None or idle else tuple(name for bit, name in REASONS.items() if bits & bit),
            "sm_clock_mhz": None if idle else self._ask("nvmlDeviceGetClockInfo", of=1),
            "power_w": None if power is None or idle else power / 1000,
            "pcie_generation": self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "pcie_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
        }

    def finish(self, windows: Sequence[tuple[int, int]]) -> tuple[float | None, DeviceState | None]:
        """(utilisation as a share 0..1, all else), and NVML is closed. (``None``, ``None``) where CUDA is not in use.

        Args:
            windows: (begin, end) in ``perf_counter_ns`` of phases with steps, the preferred one first. The first that
                holds a sample counts; what lies between phases (the start of CUPTI) is no step.
        """
        if not torch.cuda.is_initialized() and self._nvml is None and not self._missing:
            return None, None
        try:
            percent = self._typical("NVML_GPU_UTILIZATION_SAMPLES", mean, windows, whole=True)
            known = self._state(windows)
            return None if percent is None else percent / 100, DeviceState(**known, missing=self._missing)
        finally:
            self.close()

    def driver(self) -> tuple[str | None, str]:
        """(version of NVIDIA's driver, why it is not known)."""
        self.open()
        if self._nvml is None:
            return None, self._missing or "CUDA is not in use"
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion()), self._missing
        except Exception as failure:
            return None, f"the driver does not answer: {_words(failure)}"

    def close(self) -> None:
        """Let NVML go. Calling it again does nothing."""
        nvml, self._nvml, self._handle = self._nvml, None, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except Exception:  # it has gone by itself
                return

    def _state(self, windows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        known = dict(self._now or {})
        clock = self._typical("NVML_PROCESSOR_CLK_SAMPLES", median, windows)
        power = self._typical("NVML_TOTAL_POWER_SAMPLES", mean, windows)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        if clock:
            known["sm_clock_mhz"] = round(clock)
        if power:
            known["power_w"] = power / 1000
        return {
            **known,
            "max_sm_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", of=1),
            "power_limit_w": None if limit is None else limit / 1000,
            "max_pcie_generation": self._ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_pcie_width": self._ask("nvmlDeviceGetMaxPcieLinkWidth"),
            **self._others(windows),
        }

    def _others(self, windows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """How many other processes compute on the device, what they hold, and whether they work. Never who they are.

        In a container the driver may count processes by the host's numbers: then this process is one of them, and
        which one is not known.
        """
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses")
        held = {process.pid: process.usedGpuMemory for process in listed or ()}
        if not held:
            return {}  # not even this process: the driver does not show them here
        own = os.getpid()
        if own not in held:
            return {"others": len(held) - 1, "others_bytes": 0 if len(held) == 1 else None}
        others = [size for pid, size in held.items() if pid != own]
        total = None if None in others else sum(others)
        busy = self._others_busy(own, windows) if others else 0.0
        return {"others": len(others), "others_bytes": total, "others_busy": busy}

    def _others_busy(self, own: int, windows: Sequence[tuple[int, int]]) -> float | None:
        """Share of the time in which another process computed, of the busiest of them; ``None`` = not told."""
        if not windows:
            return None
        first_us, last_us = _unix_us(windows[0])
        samples = self._ask("nvmlDeviceGetProcessUtilization", of=first_us)
        if not samples:
            return None
        shares: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid != own and first_us <= sample.timeStamp <= last_us:
                shares.setdefault(sample.pid, []).append(sample.smUtil)
        return max((mean(values) / 100 for values in shares.values()), default=0.0)

    def _typical(
        self,
        name: str,
        typical: Callable[[list[int]], float],
        windows: Sequence[tuple[int, int]],
        *,
        whole: bool = False,
    ) -> float | None:
        """The typical value of the driver's samples in the first window that has one, or ``None``.

        Args:
            whole: a sample speaks of the time since the one before, so both must lie in the window.
        """
        for window in windows:
            first_us, last_us = _unix_us(window)
            kind = getattr(self._nvml, name, None)
            answer = None if kind is None else self._ask("nvmlDeviceGetSamples", of=(kind, first_us))
            samples = [one for one in (() if answer is None else answer[1]) if first_us <= one.timeStamp <= last_us]
            if values := [one.sampleValue.uiVal for one in samples[whole:]]:
                return float(typical(values))
        return None

    def _ask(self, *names: str, of: Any = ()) -> Any:
        """The answer of the first of these functions that this pynvml has, or ``None``."""
        function = next((one for name in names if (one := getattr(self._nvml, name, None)) is not None), None)
        if function is None or self._handle is None:
            return None
        try:
            return function(self._handle, *(of if isinstance(of, tuple) else (of,)))
        except Exception as failure:
            if getattr(failure, "value", None) in _GONE:
                self._missing = f"the driver stopped answering: {_words(failure)}"
                self._handle = None
            return None


def _unix_us(window: tuple[int, int]) -> tuple[int, int]:
    """A window of ``perf_counter_ns`` on the driver's clock."""
    offset_ns = time.time_ns() - time.perf_counter_ns()
    return (window[0] + offset_ns) // 1000, (window[1] + offset_ns) // 1000


def _words(failure: Exception) -> str:
    """A failure in words: NVML's own text, else its type."""
    return " ".join(str(failure).split()) or type(failure).__name__


def _handle(pynvml: Any, device: int) -> Any:
    """NVML's handle of torch's device: by its UUID, since ``CUDA_VISIBLE_DEVICES`` renumbers them."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return pynvml.nvmlDeviceGetHandleByIndex(device)
