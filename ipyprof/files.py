"""Files for the user: there whole or not at all, through links, and never in place of what is no regular file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_CREATE = "create it or give another one"


def obstacle(target: Path) -> tuple[str, str] | None:
    """Why ``target`` cannot be written and what to do instead, or ``None`` where nothing is in the way."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        folder = resolved(target).parent
        return None if folder.is_dir() else (f"there is no folder {_shown(target, folder)}", _CREATE)
    except OSError as failure:  # a loop of links, a file in the place of a folder, a folder that may not be entered
        return f"it cannot be reached ({failure.strerror})", "give another file"
    if stat.S_ISDIR(mode):
        return "that is a folder", "give the name of a file"
    if not stat.S_ISREG(mode):
        return "that is no regular file", "give the name of a file"
    return None


def resolved(target: Path) -> Path:
    """The file behind ``target``: absolute, with all links followed."""
    return Path(os.path.realpath(target))


def same_file(one: Path, other: Path) -> bool:
    """Whether both names lead to one file, or would."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return resolved(one) == resolved(other)


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``target`` when the block ends; what was there stays until then.

    A link stays a link: the file behind it is written. Where the block raises, nothing has changed.

    Raises:
        OSError: ``target`` cannot be written, or is there and no regular file.
    """
    found = obstacle(target)
    if found is not None:
        raise OSError(f"{target}: {found[0]}")
    file_behind = resolved(target)
    neighbour = file_behind.with_name(f".{file_behind.name}.{os.getpid()}.part")
    try:
        with neighbour.open("wb") as file:
            yield file
        os.replace(neighbour, file_behind)
    finally:
        neighbour.unlink(missing_ok=True)


def _shown(target: Path, folder: Path) -> Path:
    """The folder as the user wrote it, except where a link leads elsewhere."""
    return folder if target.is_symlink() else target.parent
