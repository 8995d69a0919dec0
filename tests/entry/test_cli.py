"""The command line: exit codes, one-line errors, JSON, pages; and the demo as a newcomer runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipyprof.__main__ import main
from tests import sample_reports
from tests.entry.test_api import environment


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The JSON of a report."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(sample_reports.sync().to_dict()))
    return path


def test_report_prints_text(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a saved report, when it is shown, then its headline is there
    assert main(["report", str(saved)]) == 0
    assert sample_reports.sync().verdict.headline[:40] in " ".join(capsys.readouterr().out.split())


def test_report_prints_its_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a saved report, when its JSON is asked for, then it is one object with the schema's keys
    assert main(["report", str(saved), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sample_reports.sync().to_dict()


def test_several_files_are_shown_one_after_another(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given two files, when they are shown, then each has its name above it, or is one item of the list
    assert main(["report", str(saved), str(saved)]) == 0
    assert capsys.readouterr().out.count(f"== {saved}\n") == 2
    assert main(["report", str(saved), str(saved), "--json"]) == 0
    assert [item["schema"] for item in json.loads(capsys.readouterr().out)] == [2, 2]


def test_report_writes_a_page(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a saved report, when a page is asked for, then it is written whole and its path is printed
    page = tmp_path / "page.html"
    assert main(["report", str(saved), "--html", str(page)]) == 0
    assert page.read_text().endswith("</html>\n")
    assert capsys.readouterr().out == f"The dashboard as a page: {page}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "report.json"]


def test_list_of_reports_is_read_again(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given the list that two files gave as JSON
    main(["report", str(saved), str(saved), "--json"])
    several = tmp_path / "several.json"
    several.write_text(capsys.readouterr().out)
    # when it is shown, then each report has its number
    assert main(["report", str(several)]) == 0
    shown = capsys.readouterr().out
    assert f"== {several}, 1 of 2\n" in shown
    assert f"== {several}, 2 of 2\n" in shown


def test_input_is_not_overwritten(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given a link to the file that is read, when the page shall go there, then it is refused and the file is whole
    before = saved.read_text()
    link = tmp_path / "link.html"
    link.symlink_to(saved)
    for page in (saved, link):
        assert main(["report", str(saved), "--html", str(page)]) == 2
        assert "that is the file to read" in capsys.readouterr().err
    assert saved.read_text() == before


def test_terminal_of_ascii_gets_the_text(saved: Path) -> None:
    # given a standard output of ASCII, when a report is shown, then unknown signs are replaced
    done = subprocess.run(
        [sys.executable, "-m", "ipyprof", "report", str(saved)],
        capture_output=True,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"Top operators" in done.stdout


def test_closed_pipe_is_silent(saved: Path) -> None:
    # given a reader that is gone, when a report is shown, then nothing is said
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ipyprof", "report", str(saved)],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    os.close(writer)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.json"], "missing.json cannot be opened"),
        (["."], ". is a folder"),
        (["{saved}", "--html", "missing/page.html"], "there is no folder missing"),
        (["{saved}", "{saved}", "--html", "page.html"], "--html with 2 files"),
        (["{saved}", "--html", "/dev/full"], "that is no regular file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(
    saved: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    # given arguments that cannot be served, when they are given
    code = main(["report", *(argument.format(saved=saved) for argument in arguments)])
    # then the code is 2, one line on standard error says why, and nothing is on standard output
    shown = capsys.readouterr()
    assert code == 2
    assert shown.out == ""
    assert shown.err.startswith("ipyprof: ")
    assert told in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["compare"], ["report"]])
def test_unknown_or_missing_command_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    # given no command, or one that is not there, when it is given, then argparse leaves with code 2
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: python -m ipyprof" in capsys.readouterr().err


def test_demo_prints_the_report_and_its_page(tmp_path: Path) -> None:
    # given an empty folder
    done = subprocess.run(
        [sys.executable, "-m", "ipyprof", "demo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    # when the demo ran there
    assert done.returncode == 0, done.stderr
    # then the planted cause and its line are named, the page is there, and the folder is still empty
    page = Path(done.stdout.rsplit("The dashboard as a page: ", 1)[1].strip())
    assert "for pictures, labels in loader:" in done.stdout
    assert "Data loading" in done.stdout
    assert "demo" in page.name
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == []
