"""The versions that are promised are the versions that are tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = "python -m pip install -e '.[test]' && python -m pytest -n auto"


def test_lowest_versions_are_the_bounds_of_the_package() -> None:
    # given the bounds of the package's requirements
    listed = re.search(r"^dependencies = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert listed is not None
    bounds = dict(re.findall(r'"([\w.-]+)>=([\d.]+)"', listed[1]))
    # when the versions are read that .ci/run tests
    tested = dict(re.findall(r"^([\w.-]+)==([\d.]+)$", (ROOT / "tests/lowest.txt").read_text(), re.MULTILINE))
    # then they are the first ones that each bound allows
    assert {name: f"{bound}.0" for name, bound in bounds.items()} == tested


def test_ci_runs_the_command_of_the_readme() -> None:
    # given the command that the README gives, then it is what .ci/run calls
    assert TESTS in (ROOT / "README.md").read_text()
    assert TESTS in (ROOT / ".ci/run").read_text()
