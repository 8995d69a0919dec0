"""``ipyprof.compare`` and ``python -m ipyprof compare``: reports and files, JSON, pages, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ipyprof
from ipyprof.__main__ import main
from ipyprof.errors import IpyprofError
from ipyprof.report.comparison import compare_reports
from tests.sample_comparisons import fast, slow

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, str]:
    """The JSON of the report before and of the one after."""
    paths = []
    for name, report in (("before.json", slow()), ("after.json", fast())):
        (tmp_path / name).write_text(json.dumps(report.to_dict()))
        paths.append(str(tmp_path / name))
    return paths[0], paths[1]


def test_reports_and_paths_are_compared_alike(saved: tuple[str, str]) -> None:
    # given two reports and their files, when compared in any mixture, then the result is the same
    expected = compare_reports(slow(), fast()).to_dict()
    for before, after in ((slow(), fast()), saved, (slow(), Path(saved[1])), (saved[0], fast())):
        found = ipyprof.compare(before, after).to_dict()
        assert found["headline"] == expected["headline"]
        assert found["parts"] == expected["parts"]


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("sleeping_loader", "data_loading"),
        ("item_between_kernels", "host_sync"),
        ("pageable_copies", "transfer"),
        ("tiny_kernels", "launch_bound"),
    ],
)
def test_recorded_loops_and_their_cures(name: str, promised: str) -> None:
    # given traces of an H200 with a planted cause and without it, when compared
    found = ipyprof.compare(FIXTURES / f"{name}_slow.json.gz", FIXTURES / f"{name}_fixed.json.gz")
    # then the cure is a significant gain, and within 15 % of the bound that the first report promised
    assert found.significance.answer == "faster"
    assert found.promise is not None
    assert found.promise.cause == promised
    assert found.promise.reached <= 1.15 * found.promise.bound


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(IpyprofError, match="load"):
        ipyprof.compare(slow(), 7)  # type: ignore[arg-type]


def test_command_gives_text_json_and_a_page(
    saved: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two files, when compared, then the gain is printed
    assert main(["compare", *saved]) == 0
    assert "Predicted at most 8.1×, reached 8.1×" in capsys.readouterr().out
    # or one object of JSON
    assert main(["compare", *saved, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["significance"]["answer"] == "faster"
    # or a whole page
    page = tmp_path / "card.html"
    assert main(["compare", *saved, "--html", str(page)]) == 0
    assert page.read_text().endswith("</html>\n")
    assert str(page) in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(saved: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    # given a file that is missing, or a page in the place of a file, when compared, then that is refused
    for arguments in ([saved[0], "nothing.json"], [*saved, "--html", saved[1]]):
        assert main(["compare", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert json.loads(Path(saved[1]).read_text())["schema"] == 2
