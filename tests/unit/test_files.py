"""What is written for the user: whole or not at all, through links, never in place of what is no regular file."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

import pytest

from ipyprof import files
from ipyprof.errors import OptionError
from ipyprof.files import check_target


def write(target: Path, content: bytes = b"new") -> None:
    with files.whole_file(target) as file:
        file.write(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_is_there_whole(tmp_path: Path) -> None:
    write(tmp_path / "page.html")
    assert (names(tmp_path), (tmp_path / "page.html").read_bytes()) == (["page.html"], b"new")


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path, failure: type[BaseException]) -> None:
    # given
    target = tmp_path / "page.html"
    target.write_bytes(b"old")

    def broken() -> None:
        with files.whole_file(target) as file:
            file.write(b"half of the ne")
            raise failure

    # when
    with pytest.raises(failure):
        broken()
    # then
    assert (names(tmp_path), target.read_bytes()) == (["page.html"], b"old")


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    target = tmp_path / "page.html"
    target.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    # when
    with pytest.raises(OSError, match="No space left"):
        write(target)
    # then
    assert (names(tmp_path), target.read_bytes()) == (["page.html"], b"old")


def test_a_link_stays_and_the_file_behind_it_is_written(tmp_path: Path) -> None:
    # given
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_bytes(b"old")
    link.symlink_to(real)
    # when
    write(link)
    # then
    assert link.is_symlink()
    assert real.read_bytes() == b"new"


def test_a_link_to_nowhere_makes_the_file_there(tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "later.html")
    write(link)
    assert (link.is_symlink(), (tmp_path / "later.html").read_bytes()) == (True, b"new")


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path: Path) -> None:
    # given a folder, a pipe, a loop of links, a device, a folder that is not there, a file as folder
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "null").symlink_to("/dev/null")
    before = names(tmp_path)
    for target in ("folder", "pipe", "loop", "null", "absent/page.html", "file/page.html"):
        assert files.obstacle(tmp_path / target) is not None
        with pytest.raises(OSError, match=r"page\.html|folder|pipe|loop|null"):
            write(tmp_path / target)
    assert names(tmp_path) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("name", ["a\nb.html", "-o.html", "~.html", "$HOME.html", "sp ace.html", ".hidden", "前.html"])
def test_odd_names_are_names(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert names(tmp_path) == [name]


def test_a_name_with_a_nul_is_refused(tmp_path: Path) -> None:
    assert files.obstacle(tmp_path / "a\0b") is not None
    with pytest.raises(OSError, match="a"):
        write(tmp_path / "a\0b")


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name"):
        write(tmp_path / ("x" * 300))
    assert names(tmp_path) == []


def test_a_link_in_the_place_of_the_half_written_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given somebody else's link under the very name that the half-written file gets
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / ".guessed.part").symlink_to(victim)
    # when
    with pytest.raises(FileExistsError):
        write(tmp_path / "page.html")
    # then
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "page.html").exists()


def test_the_rights_of_an_old_file_stay(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_bytes(b"old")
    target.chmod(0o640)
    write(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_rights(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write(tmp_path / "page.html")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("html", b"import torch\n", True),
        ("html", b'{"cells": []}', True),
        ("html", b"", False),
        ("html", b"<!DOCTYPE html>\n<p>", False),
        ("trace", b'{"cells": []}', True),
        ("trace", b'{"ipyprof": {}, "traceEvents": []}', False),
        ("trace", b"\x1f\x8b\x08", False),
    ],
)
def test_a_file_of_another_kind_is_not_overwritten(tmp_path: Path, name: str, content: bytes, refused: bool) -> None:
    target = tmp_path / "file"
    target.write_bytes(content)
    if refused:
        with pytest.raises(OptionError, match="that file is there and is no"):
            check_target(name, target)
    else:
        check_target(name, target)
    assert target.read_bytes() == content
