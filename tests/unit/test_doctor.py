"""``python -m ipyprof doctor``: what each fact of a machine leads to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ipyprof.__main__ import main
from ipyprof.capture.checkup import Machine, look
from ipyprof.doctor import KERNELS, Check, Recording, judge, rendered

GOOD = Machine(
    python="3.12.3",
    packages={
        "torch": "2.11.0+cu130",
        "numpy": "2.1.0",
        "ipywidgets": "8.1.5",
        "ipykernel": "7.0",
        "nvidia-ml-py": "13",
    },
    required=("torch", "numpy>=1.26", "ipywidgets>=7.7"),
    cuda="13.0",
    rocm=None,
    devices=(("NVIDIA H200", "sm_90"),),
    architectures=("sm_80", "sm_90"),
    cuda_error="",
    activities=("CPU", "CUDA"),
    driver="580.1",
    nvml_missing="",
    admin_only=False,
    wsl=False,
    variables={},
    temporary_bytes=10**11,
)
FULL = Recording(launched=KERNELS, kernels=KERNELS + 1, operators=KERNELS + 1)
EMPTY = replace(FULL, kernels=0)


def judged(recordings: list[Recording] | None = None, **changes: Any) -> dict[str, Check]:
    """The checks by name, of a good machine with these changes."""
    return {check.name: check for check in judge(replace(GOOD, **changes), recordings or [FULL] * 3)}


def test_good_machine_has_nothing_to_do() -> None:
    # given a machine where everything answers
    checks = judged()
    # then no check has anything to do
    assert {check.status for check in checks.values()} == {"ok"}
    assert not any(check.todo for check in checks.values())
    assert checks["recording"].found == "21, 21, 21 kernels in 3 recordings of 20 launches or more"


@pytest.mark.parametrize(
    ("changes", "recordings", "name", "status", "found"),
    [
        ({"packages": {**GOOD.packages, "numpy": "1.24.4"}}, None, "versions", "fail", "too old for numpy>=1.26"),
        ({"cuda": None, "devices": ()}, None, "GPU", "warn", "built without CUDA"),
        ({"devices": (), "cuda_error": "driver too old"}, None, "GPU", "warn", "does not start: driver too old"),
        ({"devices": (("RTX 5090", "sm_120"),)}, None, "GPU", "fail", "no kernels for sm_120"),
        ({"cuda": "12.8"}, None, "CUPTI version", "warn", "pytorch#192021"),
        ({"activities": ("CPU",)}, None, "recording", "fail", "cannot record the GPU"),
        ({}, [Recording(error="RuntimeError: refused")], "recording", "fail", "RuntimeError: refused"),
        ({}, [EMPTY] * 3, "recording", "fail", "CUPTI does not answer: 0, 0, 0 kernels"),
        ({}, [FULL, replace(FULL, kernels=3), FULL], "recording", "fail", "CUPTI loses records: 21, 3, 21"),
        ({}, [FULL, replace(FULL, doubts=("clock shifted",))], "recording", "warn", "clock shifted"),
        ({}, [replace(FULL, operators=0)], "recording", "fail", "recorded no operator"),
        ({"admin_only": True}, [EMPTY], "permission", "fail", "administrators only"),
        ({"wsl": True}, [EMPTY], "platform", "warn", "Windows Subsystem for Linux"),
        ({"variables": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}}, [EMPTY], "LD_LIBRARY_PATH", "warn", "CUPTI"),
        ({"driver": None, "nvml_missing": "the nvml extra is not installed"}, None, "NVML", "warn", "not measured"),
        ({"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, None, "CUDA_LAUNCH_BLOCKING", "warn", "waits for its kernel"),
        ({"packages": {"torch": "2.11.0"}}, None, "panel", "warn", "ipywidgets is not installed"),
        ({"temporary_bytes": None}, None, "temporary files", "fail", "cannot be written"),
        ({"temporary_bytes": 10**9}, None, "temporary files", "warn", "1.0 GB free"),
    ],
)
def test_each_fault_is_named_with_what_to_do(
    changes: dict[str, Any], recordings: list[Recording] | None, name: str, status: str, found: str
) -> None:
    # given a machine with one fault
    check = judged(recordings, **changes)[name]
    # then it is named, weighed, and followed by what to do
    assert check.status == status
    assert found in check.found
    assert check.todo


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": {"CUDA_LAUNCH_BLOCKING": "0"}},  # switched off
        {"variables": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}},  # kernels are recorded
        {"admin_only": True, "wsl": True},  # the same
        {"devices": (("RTX 4090", "sm_89"),)},  # runs what was built for sm_80
        {"devices": (("RTX 5090", "sm_120"),), "architectures": ("sm_90", "compute_90")},  # compiled when loaded
    ],
)
def test_what_does_no_harm_is_not_reported(changes: dict[str, Any]) -> None:
    # given a fact that is a fault elsewhere, then nothing is to be done
    assert {check.status for check in judged(**changes).values()} == {"ok"}


def test_text_wraps_and_ends_with_the_answer() -> None:
    # given a check that failed
    text = rendered([Check(name="recording", status="fail", found="word " * 40, todo="do this")])
    # then lines are short, what to do stands under it, and the last line says what it comes to
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("✗ recording  word")
    assert lines[-2].strip() == "→ do this"
    assert lines[-1] == "ipyprof cannot do its main job here yet."


def test_command_records_here(capsys: pytest.CaptureFixture[str]) -> None:
    # given this machine, when the command runs
    code = main(["doctor"])
    # then it recorded three times, and its exit code says whether a check failed
    out = capsys.readouterr().out
    assert "3 recordings" in out
    assert code == int("✗" in out)


def test_facts_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # given a folder for temporary files that is not there, and a variable
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    # when the machine is looked at
    machine = look()
    # then both are known
    assert machine.temporary_bytes is None
    assert machine.variables["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "torch" in machine.packages and "CPU" in machine.activities
