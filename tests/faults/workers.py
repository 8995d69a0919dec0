"""Datasets and functions for worker processes, which import them by name."""

from __future__ import annotations

import os
import signal

import torch
from torch.utils.data import Dataset


class Dying(Dataset[torch.Tensor]):
    """Items whose worker dies at one of them: ``exit``, ``kill`` or ``raise``."""

    def __init__(self, way: str, at: int) -> None:
        self._way = way
        self._at = at

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._at:
            if self._way == "exit":
                os._exit(3)
            if self._way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise LookupError("item of a worker")
        return torch.ones(4)


def compute() -> None:
    """Some operators."""
    torch.ones(8, 8) @ torch.ones(8, 8)
