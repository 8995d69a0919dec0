"""Everything in this folder needs CUDA: marked ``gpu``, skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder, and skips them without CUDA."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    import torch

    skip = pytest.mark.skip(reason="needs CUDA")
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(skip)
