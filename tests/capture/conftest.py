"""One IPython shell for all tests of this folder, with a fresh namespace for each; no file of a recording is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ipyprof.capture import session


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


@pytest.fixture(autouse=True)
def recordings_are_discarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[Any] = []
    export = session.export

    def kept(*arguments: Any, **named: Any) -> Any:
        made.append(export(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(session, "export", kept)
    yield
    for _, directory in made:
        directory.cleanup()
