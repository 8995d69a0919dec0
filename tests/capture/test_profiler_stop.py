"""What torch does with the events when a recording stops."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.profiler import profile

from ipyprof.capture.profiler import Profiler, ProfilerState
from ipyprof.options import Options


def test_stopping_does_not_go_through_the_events_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a torch whose own pass over the events fails, as 2.13 does on a name that is not UTF-8
    def fails(*_arguments: object, **_options: object) -> None:
        raise UnicodeDecodeError("utf-8", b"\xb0", 0, 1, "invalid start byte")

    monkeypatch.setattr(profile, "_parse_kineto_results", fails)
    profiler = Profiler(Options(), cuda=False, give_way=lambda: None, late=lambda: None)
    profiler.start()
    torch.ones(2).add_(1)
    # when the recording is stopped, then it can be exported
    assert profiler.stop()
    assert profiler.state is ProfilerState.STOPPED
    profiler.abandon()
