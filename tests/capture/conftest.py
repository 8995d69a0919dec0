"""One IPython shell for all tests of this folder, with a fresh namespace for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@pytest.fixture(scope="session")
def only_shell() -> Any:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    return InteractiveShell.instance(config=config)


@pytest.fixture
def shell(only_shell: Any) -> Iterator[Any]:
    only_shell.reset(new_session=False)
    flags, interactivity = only_shell.compile.flags, only_shell.ast_node_interactivity
    yield only_shell
    only_shell.compile.flags = flags
    only_shell.ast_node_interactivity = interactivity
    only_shell.reset(new_session=False)
