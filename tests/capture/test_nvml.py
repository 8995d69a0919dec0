"""What NVML says of the device: with a driver that answers, one that does not, and one that is lost in the middle."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ipyprof.capture import nvml
from ipyprof.trace.live import DeviceState

LOST, NOT_SUPPORTED = 15, 3
SECOND = 1_000_000_000


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({LOST: "GPU is lost", NOT_SUPPORTED: "Not Supported"}.get(value, "?"))
        self.value = value


class Driver:
    """A fake ``pynvml``: ``answers`` by name, a value or a failure; ``calls`` is what was asked, in order."""

    NVML_GPU_UTILIZATION_SAMPLES, NVML_PROCESSOR_CLK_SAMPLES, NVML_TOTAL_POWER_SAMPLES = 1, 5, 0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.open = 0
        self.samples: dict[int, list[tuple[float, int]]] = {}
        self.answers: dict[str, Any] = {
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetClockInfo": 1_690,
            "nvmlDeviceGetMaxClockInfo": 1_980,
            "nvmlDeviceGetPowerUsage": 698_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": 4,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetComputeRunningProcesses": [process(os.getpid(), 5_000)],
            "nvmlDeviceGetProcessUtilization": NVMLError(NOT_SUPPORTED),
        }

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"device {index}"

    def nvmlDeviceGetSamples(self, _handle: str, kind: int, _since_us: int) -> tuple[int, list[Any]]:
        self.calls.append(f"samples {kind}")
        return 0, [
            SimpleNamespace(timeStamp=round(at_s * 1e6), sampleValue=SimpleNamespace(uiVal=value))
            for at_s, value in self.samples.get(kind, [])
        ]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.answers:
            raise AttributeError(name)

        def asked(_handle: str, *_arguments: Any) -> Any:
            self.calls.append(name)
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return asked


def process(pid: int, held: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=held)


def busy(pid: int, percent: int, at_s: float = 1.0) -> Any:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=round(at_s * 1e6))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """CUDA is in use, the driver answers, and host time and driver time begin together."""
    fake = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace())
    monkeypatch.setattr(time, "time_ns", time.perf_counter_ns)
    monkeypatch.setattr(nvml, "_unix_us", lambda window: (window[0] // 1000, window[1] // 1000))
    return fake


def read(*windows_s: tuple[float, float]) -> tuple[float | None, DeviceState | None]:
    """A whole run whose phases with steps lie between these times."""
    reader = nvml.DeviceReader()
    reader.open()
    reader.look()
    return reader.finish([(round(begin * SECOND), round(end * SECOND)) for begin, end in windows_s])


def state_of(*windows_s: tuple[float, float]) -> DeviceState:
    state = read(*windows_s)[1]
    assert state is not None
    return state


def test_everything_that_the_driver_tells(driver: Driver) -> None:
    # given a driver that answers, when it is asked
    state = state_of()
    # then all is known, in our units
    assert state == DeviceState(
        sm_clock_mhz=1_690,
        max_sm_clock_mhz=1_980,
        slowed_by=("software power cap",),
        power_w=698.0,
        power_limit_w=700.0,
        pcie_generation=4,
        pcie_width=8,
        max_pcie_generation=5,
        max_pcie_width=16,
        others=0,
        others_bytes=0,
        others_busy=0.0,
    )
    # and NVML is closed as often as it was opened
    assert driver.open == 0


def test_samples_of_the_steps_go_before_the_reading_at_their_end(driver: Driver) -> None:
    driver.samples = {5: [(0.5, 1_980), (1.2, 1_700), (1.5, 1_710), (1.7, 1_700)], 0: [(1.1, 600_000), (1.6, 700_000)]}
    state = state_of((1, 2))
    assert (state.sm_clock_mhz, state.power_w) == (1_700, 650.0)


def test_utilisation_is_of_whole_samples_in_the_first_phase_that_has_one(driver: Driver) -> None:
    """The sample at 3.1 began before its phase; the phase before it holds one sample, whose begin is not known."""
    driver.samples = {1: [(1.5, 20), (2.9, 10), (3.1, 30), (3.3, 90), (3.5, 70), (4.5, 0)]}
    assert read((1, 2), (3, 4))[0] == pytest.approx(0.8)
    assert read((1, 2))[0] is None
    assert read()[0] is None


def test_a_clock_that_idles_is_not_the_steps(driver: Driver) -> None:
    driver.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x1
    state = state_of()
    assert (state.sm_clock_mhz, state.power_w, state.slowed_by) == (None, None, None)
    assert state.max_sm_clock_mhz == 1_980


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x20 | 0x4, ("software power cap", "software thermal slowdown")),
        (0x48, ("hardware slowdown", "hardware thermal slowdown")),
        (0x80, ("hardware power brake",)),
        (0x2, ("clocks set by a user",)),
    ],
)
def test_what_slows_the_clock_in_words(driver: Driver, bits: int, words: tuple[str, ...]) -> None:
    driver.answers["nvmlDeviceGetCurrentClocksEventReasons"] = bits
    assert set(state_of().slowed_by or ()) == set(words)
    driver.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = bits  # the older name
    del driver.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    assert set(state_of().slowed_by or ()) == set(words)


def test_other_processes_are_counted_and_never_named(driver: Driver) -> None:
    # given two others, one of which works
    driver.answers["nvmlDeviceGetComputeRunningProcesses"] = [
        process(os.getpid(), 5_000), process(11, 300), process(12, 400),
    ]  # fmt: skip
    driver.answers["nvmlDeviceGetProcessUtilization"] = [
        busy(os.getpid(), 90), busy(11, 0), busy(12, 20), busy(12, 40, 1.5), busy(12, 100, 9.0),
    ]  # fmt: skip
    # when it is asked while steps ran from 0.5 to 2 s
    state = state_of((0.5, 2))
    # then their number, memory and the busiest one's share are known
    assert (state.others, state.others_bytes, state.others_busy) == (2, 700, pytest.approx(0.3))
    assert not any("Name" in call for call in driver.calls)


@pytest.mark.parametrize(
    ("listed", "known"),
    [
        ([], (None, None, None)),  # the driver shows no processes here
        ([process(77, 100)], (0, 0, None)),  # a container: this is we, by the host's number
        ([process(77, 100), process(78, 50)], (1, None, None)),
        ([process(os.getpid(), None), process(78, None)], (1, None, None)),
    ],
)
def test_other_processes_where_the_driver_tells_less(
    driver: Driver, listed: list[Any], known: tuple[Any, Any, Any]
) -> None:
    driver.answers["nvmlDeviceGetComputeRunningProcesses"] = listed
    state = state_of((0, 1))
    assert (state.others, state.others_bytes, state.others_busy) == known


def test_a_question_that_is_not_supported_leaves_the_others(driver: Driver) -> None:
    driver.answers["nvmlDeviceGetPowerUsage"] = NVMLError(NOT_SUPPORTED)
    del driver.answers["nvmlDeviceGetMaxPcieLinkWidth"]
    state = state_of()
    assert (state.power_w, state.max_pcie_width, state.missing) == (None, None, "")
    assert state.sm_clock_mhz == 1_690


def test_a_device_that_is_lost_in_the_middle(driver: Driver) -> None:
    # given a driver that stops answering at the width of the link
    driver.answers["nvmlDeviceGetCurrPcieLinkWidth"] = NVMLError(LOST)
    # when it is asked
    utilization, state = read((0, 1))
    # then what it said before is kept, the reason stands beside it, and it is asked no more
    assert state is not None
    assert (utilization, state.sm_clock_mhz, state.pcie_width, state.others) == (None, 1_690, None, None)
    assert state.missing == "the driver stopped answering: GPU is lost"
    assert driver.calls[-1] == "nvmlDeviceGetCurrPcieLinkWidth"
    assert driver.open == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [("nvmlInit", "the driver does not answer"), ("nvmlDeviceGetHandleByIndex", "the driver does not know the device")],
)
def test_a_driver_that_does_not_answer(driver: Driver, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    def refuse(*_arguments: object) -> None:
        raise NVMLError(NOT_SUPPORTED)

    monkeypatch.setattr(driver, name, refuse, raising=False)
    assert read() == (None, DeviceState(missing=f"{why}: Not Supported"))
    assert driver.open == 0


def test_without_the_package(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read((0, 1)) == (None, DeviceState(missing="the nvml extra is not installed"))


def test_without_cuda_nothing_is_asked(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert read((0, 1)) == (None, None)
    assert (driver.calls, driver.open) == ([], 0)


def test_a_device_that_is_used_late_is_asked_at_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = nvml.DeviceReader()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    reader.open()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    reader.look()
    state = reader.finish([])[1]
    assert state is not None
    assert state.sm_clock_mhz == 1_690
    assert driver.open == 0
