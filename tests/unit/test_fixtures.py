"""Loops recorded on an H200 by ``tests/record.py``: what is said of them, with what the live run knew and without."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

import ipyprof
from ipyprof.analysis.profile import Profile, analyse
from ipyprof.diagnosis.causes import CAUSES
from ipyprof.diagnosis.thresholds import FIT_SHARE
from ipyprof.report.report import Report
from ipyprof.show.html import render_html
from ipyprof.trace.reader import read_trace

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FIXTURES.glob("*.json.gz"))
WAITING_CAUSES = {cause.id for cause in CAUSES if not cause.works} - {"straggler"}

# The planted cause, and what the line says that holds it.
PLANTED = {
    "empty_cache_slow": ("allocator", "torch.cuda.empty_cache()"),
    "item_between_kernels_slow": ("host_sync", ".item()"),
    "pageable_copies_slow": ("transfer", ".to(device)"),
    "sleeping_loader_slow": ("data_loading", "for tokens in loader"),
    "tiny_kernels_slow": ("launch_bound", "y = y * 1.0001"),
}
NOT_WAITING = (
    "ahead_products_slow",
    "gpt2_training_slow",
    "item_between_kernels_fixed",
    "pageable_copies_fixed",
    "sleeping_loader_fixed",
    "tiny_kernels_fixed",
)


def path_of(name: str) -> Path:
    return FIXTURES / f"{name}.json.gz"


@cache
def reported(name: str) -> Report:
    return ipyprof.load(path_of(name))


@cache
def measured(name: str) -> Profile:
    return analyse(read_trace(path_of(name)))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """The reports of the same files without our key: what any ``torch.profiler`` would have written."""
    folder = tmp_path_factory.mktemp("bare")
    reports = {}
    for name in NAMES:
        plain = json.loads(gzip.decompress(path_of(name).read_bytes()))
        del plain["ipyprof"]
        (folder / f"{name}.json").write_text(json.dumps(plain))
        reports[name] = ipyprof.load(folder / f"{name}.json")
    return reports


def found(report: Report) -> set[str]:
    return {finding.cause for finding in report.findings if finding.status == "found"}


def test_every_recorded_loop_is_looked_at() -> None:
    assert sorted((*PLANTED, *NOT_WAITING)) == NAMES


@pytest.mark.parametrize("name", PLANTED)
def test_planted_cause_is_the_verdict(name: str) -> None:
    assert reported(name).verdict.cause == PLANTED[name][0]


@pytest.mark.parametrize("name", PLANTED)
def test_line_of_the_planted_cause_is_named(name: str) -> None:
    report = reported(name)
    cause, text = PLANTED[name]

    (finding,) = (finding for finding in report.findings if finding.cause == cause)

    line = finding.where.line
    assert line is not None
    assert text in report.source.cell[line - 1]
    assert cause == "launch_bound" or report.verdict.headline.startswith(f"Line {line} ")


@pytest.mark.parametrize("name", NOT_WAITING)
def test_gpu_that_does_not_wait_is_not_said_to(name: str) -> None:
    report = reported(name)

    assert found(report) & WAITING_CAUSES == set()
    assert report.verdict.cause not in {*WAITING_CAUSES, "inconclusive"}


def test_gpu_whose_clock_fell_behind_the_recording_is_followed() -> None:
    """The samples of this loop rise from 0.78 to 0.89 ms within 60 ms, its kernels with them."""
    profile = measured("item_between_kernels_fixed")

    assert profile.drift == pytest.approx(1.147, abs=0.01)
    assert profile.error_ns < 0.01 * (profile.step_ns or 0)


@pytest.mark.parametrize("name", NAMES)
def test_breakdown_adds_up_to_the_unprofiled_step(name: str) -> None:
    report = reported(name)

    parts = [value for value in report.to_dict()["breakdown"].values() if value is not None]

    assert report.steps.step_ms is not None
    assert sum(parts) == pytest.approx(report.steps.step_ms, rel=1e-9)
    assert min(parts) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_unedited_replay_fits_the_recording(name: str) -> None:
    fit = measured(name).fit_error

    assert fit is not None
    assert fit < FIT_SHARE


@pytest.mark.parametrize("name", NAMES)
def test_live_run_has_samples_and_an_overhead(name: str) -> None:
    steps = reported(name).steps

    assert len(steps.per_step_ms) >= 3
    assert steps.overhead is not None


@pytest.mark.parametrize("name", NAMES)
def test_file_is_small(name: str) -> None:
    assert path_of(name).stat().st_size <= 200_000


@pytest.mark.parametrize("name", NAMES)
def test_report_is_json_and_comes_back(name: str) -> None:
    plain = reported(name).to_dict()

    assert Report.from_dict(json.loads(json.dumps(plain, allow_nan=False))).to_dict() == plain


@pytest.mark.parametrize("name", NAMES)
def test_dashboard_is_rendered_and_small(name: str) -> None:
    report = reported(name)

    markup = render_html(report)

    assert report.verdict.headline.split(":")[0] in markup
    assert len(markup.encode()) < 300_000


# The same files without our key.


@pytest.mark.parametrize("name", PLANTED)
def test_file_alone_names_the_planted_cause_and_is_not_sure(name: str, bare: dict[str, Report]) -> None:
    verdict = bare[name].verdict

    assert verdict.cause == PLANTED[name][0]
    assert verdict.confidence != "high"
    assert verdict.reasons[0] == "from a file: no unprofiled steps to compare with"


@pytest.mark.parametrize("name", NOT_WAITING)
def test_file_alone_does_not_invent_a_wait(name: str, bare: dict[str, Report]) -> None:
    report = bare[name]

    assert found(report) & WAITING_CAUSES == set()
    assert report.verdict.cause not in {*WAITING_CAUSES, "inconclusive"}
    assert report.verdict.confidence != "high"


@pytest.mark.parametrize("name", NAMES)
def test_file_alone_adds_up_to_its_own_estimate(name: str, bare: dict[str, Report]) -> None:
    report = bare[name]

    assert (report.source.kind, report.steps.per_step_ms, report.steps.overhead) == ("file", (), None)
    assert report.steps.step_ms is not None
    parts = [value for value in report.to_dict()["breakdown"].values() if value is not None]
    assert sum(parts) == pytest.approx(report.steps.step_ms, rel=1e-9)
