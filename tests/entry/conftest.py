"""A shell without a front end, and a report that needs no recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ipyprof import history


@pytest.fixture(scope="session")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> InteractiveShell:
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config, ipython_dir=str(tmp_path_factory.mktemp("ipython")))
    shell.run_cell("%load_ext ipyprof").raise_error()
    return shell


@pytest.fixture
def shell(_shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """An IPython shell with the extension loaded, ``torch`` and a 64 × 64 ``x``, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    history.forget()
    _shell.reset(new_session=False)
    _shell.run_cell("import torch\nx = torch.ones(64, 64) / 64").raise_error()
    yield _shell
    history.forget()
