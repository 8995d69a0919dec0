"""Files for the user: there whole or not at all, through links, and never in place of what is no regular file."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ipyprof.errors import OptionError

_HEAD_BYTES = 1 << 16
_CREATE = "create it or give another one"
_OWN_MARKS = {"html": (b"<!DOCTYPE html", b"<html"), "trace": (b'"traceEvents"', b"\x1f\x8b")}


def obstacle(target: Path) -> tuple[str, str] | None:
    """Why ``target`` cannot be written and what to do instead, or ``None`` where nothing is in the way."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        folder = resolved(target).parent
        return None if folder.is_dir() else (f"there is no folder {_shown(target, folder)}", _CREATE)
    except ValueError:  # a NUL
        return "that is no name of a file", "give the name of a file"
    except OSError as failure:  # a loop of links, a file in the place of a folder, a folder that may not be entered
        return f"it cannot be reached ({failure.strerror})", "give another file"
    if stat.S_ISDIR(mode):
        return "that is a folder", "give the name of a file"
    if not stat.S_ISREG(mode):
        return "that is no regular file", "give the name of a file"
    return None


def check_target(name: str, target: Path) -> None:
    """The file of the option ``name`` can be written, and would replace nothing but an earlier one of its kind.

    Raises:
        OptionError: a folder is missing, or what is there is something else.
    """
    found = obstacle(target)
    # A page or trace of an earlier run is replaced; a file of another kind was named by mistake.
    if found is None and name in _OWN_MARKS and holds_other(target, _OWN_MARKS[name]):
        found = f"that file is there and is no {name} file", "give another name, or remove it first"
    if found is not None:
        raise OptionError(f"--{name} {target}", *found)


def holds_other(target: Path, marks: Sequence[bytes]) -> bool:
    """Whether ``target`` is there with something in it, and none of these marks in its first 64 kB."""
    try:
        with target.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return bool(head.strip()) and not any(mark in head for mark in marks)


def folder_obstacle(target: Path) -> tuple[str, str] | None:
    """Why ``target`` cannot be a folder to write in and what to do instead; one that is missing can be made."""
    nearest = resolved(target)
    while not nearest.exists() and nearest.parent != nearest:
        nearest = nearest.parent
    if not nearest.is_dir():
        return f"{nearest} is no folder", "give the name of a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} may not be written", "give another folder"
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

    A link stays a link: the file behind it is written, with the rights that it had. Where the block raises, nothing has
    changed.

    Raises:
        OSError: ``target`` cannot be written, or is there and no regular file.
    """
    found = obstacle(target)
    if found is not None:
        raise OSError(f"{target}: {found[0]}")
    file_behind = resolved(target)
    # A name that nobody can know: in a folder that others write to, a link may lie in wait for one that can be guessed.
    neighbour = file_behind.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            yield file
        with suppress(FileNotFoundError):
            neighbour.chmod(stat.S_IMODE(file_behind.stat().st_mode))
        os.replace(neighbour, file_behind)
    finally:
        neighbour.unlink(missing_ok=True)


def write_text(text: str, target: Path) -> None:
    """``text`` as UTF-8, there whole or not at all.

    Raises:
        OSError: ``target`` cannot be written.
    """
    content = text.encode()
    with whole_file(target) as file:
        file.write(content)


def _shown(target: Path, folder: Path) -> Path:
    """The folder as the user wrote it, except where a link leads elsewhere."""
    return folder if target.is_symlink() else target.parent
