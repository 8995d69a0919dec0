"""What torch's allocator says of its blocks, on a snapshot as torch gives it: there is no GPU here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipyprof.capture.memory import Holdings, allocator_states
from ipyprof.capture.recording import Notes
from ipyprof.options import Options
from ipyprof.trace.live import AllocatorState

SEGMENTS = [
    {
        "device": 0,
        "address": 1_000,
        "blocks": [
            {"state": "active_allocated", "size": 512, "requested_size": 4},
            {"state": "inactive", "size": 2_048, "requested_size": 0},
            {"state": "active_allocated", "size": 1_024},
            {"state": "active_pending_free", "size": 512, "requested_size": 512},
        ],
    },
    {"device": 0, "address": 9_000, "blocks": [{"state": "inactive", "size": 1_536, "requested_size": 0}]},
]


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    answers: dict[str, Any] = {
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "memory_snapshot": lambda: SEGMENTS,
        "memory_reserved": lambda device: 5_632,
        "memory_allocated": lambda device: 1_536,
        "mem_get_info": lambda device: (70_000, 90_000),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    # The guard of every test asks for this mode where CUDA is in use.
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    return monkeypatch


def test_blocks_come_with_what_was_given(one_gpu: pytest.MonkeyPatch) -> None:
    _, sizes = allocator_states()
    assert sizes == {(0, 1_000): 512, (0, 3_560): 1_024}


def test_the_state_has_the_largest_piece_that_is_free(one_gpu: pytest.MonkeyPatch) -> None:
    one_gpu.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    states, _ = allocator_states()
    assert states == (
        AllocatorState(
            device=0, allocated_bytes=1_536, reserved_bytes=5_632, largest_free_bytes=2_048, device_free_bytes=70_000,
            device_total_bytes=90_000, expandable=True,
        ),
    )  # fmt: skip


def test_an_allocator_without_blocks_has_its_totals_all_the_same(one_gpu: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise RuntimeError("cudaMallocAsync does not yet support cacheInfo")

    one_gpu.setattr(torch.cuda, "memory_snapshot", refuse)
    states, sizes = allocator_states()
    assert sizes == {}
    assert (states[0].reserved_bytes, states[0].largest_free_bytes) == (5_632, None)


def test_the_peak_is_torchs_own_now_and_when_recording_began(one_gpu: pytest.MonkeyPatch) -> None:
    """The user's statistics are read and never reset."""
    one_gpu.setattr(torch.cuda, "max_memory_allocated", lambda device: 4_096)
    states, _ = allocator_states({0: 2_048})
    assert (states[0].peak_bytes, states[0].peak_before_bytes) == (4_096, 2_048)


def test_a_run_tells_the_peak_at_both_ends_of_its_recording(one_gpu: pytest.MonkeyPatch) -> None:
    peaks = iter([2_048, 4_096])
    one_gpu.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    holdings = Holdings(Options(), Notes())
    holdings.begin()
    holdings.stop()
    (state,) = holdings.fields["allocator"]
    assert (state.peak_before_bytes, state.peak_bytes) == (2_048, 4_096)


def test_without_memory_nothing_is_asked(one_gpu: pytest.MonkeyPatch) -> None:
    holdings = Holdings(Options(memory=False), Notes())
    holdings.begin()
    holdings.stop()
    assert holdings.fields == {}


def test_without_cuda_there_is_nothing_to_ask() -> None:
    assert allocator_states() == ((), {})
