"""Group E of the cases: why is my training slow, where the cause is known. The others stand with their cause."""

from __future__ import annotations

import pytest

from ipyprof.diagnosis.causes import cause_of
from ipyprof.diagnosis.causes.host_sync import change_of
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.trace.live import SyncSite
from tests.looped import gains, profiled
from tests.machine import Machine

pytestmark = pytest.mark.usefixtures("recording_costs_nothing")

TRAINER = SyncSite(
    file="/opt/env/lib/python3.12/site-packages/transformers/trainer.py", line=2134, count=3, in_cell=False
)
CLIPPER = SyncSite(file="/home/someone/project/clip.py", line=9, count=1, in_cell=False)


def ten_reads(machine: Machine) -> None:
    """Ten reads spread through the step: 50 of GPU work before each, and 100 of launches behind."""
    for _ in range(10):
        with machine.line(3):
            machine.launch(50)
        with machine.line(4):
            machine.item()
        machine.python(95)


def test_e1_reads_of_the_loss_are_named_with_operator_and_count() -> None:
    # given a step with ten reads behind kernels that the GPU finishes at once
    profile = profiled(ten_reads, 10 * (5 + 1 + 50 + 1 + 1 + 2 + 1 + 95))
    # when it is judged
    finding = cause_of("host_sync").find(profile)
    verdict = diagnose(profile).verdict
    # then the cause is the read, its operator and how often it happens
    assert verdict.cause == "host_sync"
    assert (finding.where.operator, finding.where.line) == ("aten::item", 4)
    assert finding.evidence.startswith("10 × aten::item → cudaStreamSynchronize, line 4")
    assert "Line 4 leaves the GPU without work 10 times per step" in verdict.headline


def test_e2_a_check_on_the_norm_names_the_operator_that_nobody_wrote() -> None:
    # given one `if norm > 1:` between backward and optimizer, which reads a value without .item()
    def body(machine: Machine) -> None:
        with machine.line(3):
            for _ in range(10):
                machine.launch(40)
        with machine.line(4), machine.op("aten::is_nonzero"):
            machine.python(1)
            machine.item()
        with machine.line(5):
            for _ in range(60):
                machine.launch(4)

    profile = profiled(body, 800)
    # when it is looked at
    finding = cause_of("host_sync").find(profile)
    # then the read of the condition is named, and the cure is one for a condition
    assert finding.status == "found"
    assert (finding.where.operator, finding.where.line) == ("aten::is_nonzero", 4)
    assert "torch.where" in finding.advice


def test_e9_an_optimizer_over_thousands_of_small_tensors_is_launch_bound() -> None:
    # given 200 parameters, each with four kernels of 2 us behind 15 us of dispatch, at the line of the optimizer
    def body(machine: Machine) -> None:
        with machine.line(3):
            machine.launch(300)
        with machine.line(4):
            for _ in range(200):
                for _ in range(4):
                    with machine.op("aten::addcdiv_"):
                        machine.python(10)
                        machine.launch(2, own=5)

    profile = profiled(body, 12_005)
    # when it is judged
    finding = cause_of("launch_bound").find(profile)
    verdict = diagnose(profile).verdict
    # then launches are the cause, in the optimizer's line, and nothing else is found
    assert (verdict.cause, finding.where.line) == ("launch_bound", 4)
    assert gains(finding)[0] == "found"
    assert cause_of("host_sync").find(profile).status == "cleared"


def test_e14_waits_that_leave_little_idle_promise_little() -> None:
    # given fifteen reads a step, each behind 200 of GPU work that is queued ahead, and 10 of Python behind each
    def body(machine: Machine) -> None:
        for _ in range(15):
            with machine.line(3):
                machine.launch(190)
            with machine.line(4):
                machine.item()
            machine.python(10)

    profile = profiled(body, 15 * (5 + 1 + 190 + 1 + 1 + 2 + 1 + 10))
    # when it is looked at
    finding = cause_of("host_sync").find(profile)
    # then the bound is the idle part behind the reads, not the time that they wait
    assert finding.recoverable_ms is not None
    assert finding.recoverable_ms <= 15 * (5 + 1 + 1 + 2 + 1 + 10 + 1) / 1000
    assert sum(site.count for site in finding.sites) == 15


# Where waits come from that no line of the cell makes itself.


def test_waits_of_a_trainer_are_named_by_its_file_and_line() -> None:
    # given a probe that saw three reads a step in a Trainer and one in a module of the user's
    finding = cause_of("host_sync").find(profiled(ten_reads, 1_600, sync_sites=(CLIPPER, TRAINER)))
    # then the places are in the evidence, the most frequent first, without the path of the machine
    assert finding.evidence.startswith(
        "10 × aten::item → cudaStreamSynchronize, line 4; outside the cell in transformers/trainer.py line 2134 "
        "(3 per step), project/clip.py line 9 (1 per step)"
    )
    assert [(site.where.file, site.where.line, site.count) for site in finding.sites[-2:]] == [
        ("transformers/trainer.py", 2134, 3),
        ("project/clip.py", 9, 1),
    ]


def test_lines_of_the_cell_are_not_named_twice() -> None:
    # given a probe that saw the cell's own line, when the finding is made, then only the trace's site is there
    own = SyncSite(file="the cell", line=4, count=10, in_cell=True)
    finding = cause_of("host_sync").find(profiled(ten_reads, 1_600, sync_sites=(own,)))
    assert "outside" not in finding.evidence
    assert len(finding.sites) == 1


@pytest.mark.parametrize("path", ["/tmp/ipykernel_4711/1093.py", "<ipython-input-3-0f>", "C:\\Temp\\ipykernel_7\\8.py"])
def test_a_function_of_another_cell_is_called_so(path: str) -> None:
    # given a wait in a function that another cell defined, when it is named, then no path of the kernel is shown
    elsewhere = SyncSite(file=path, line=2, count=1, in_cell=False)
    finding = cause_of("host_sync").find(profiled(ten_reads, 1_600, sync_sites=(elsewhere,)))
    assert "outside the cell in another cell line 2 (1 per step)" in finding.evidence


def test_further_places_are_counted() -> None:
    # given four places, when they are told, then two are named and the others counted
    sites = tuple(SyncSite(file=f"a/{name}.py", line=1, count=2, in_cell=False) for name in "pqrs")
    assert (
        cause_of("host_sync").find(profiled(ten_reads, 1_600, sync_sites=sites)).evidence.count("line 1 (2 per step)")
        == 2
    )
    assert "and 2 more places" in cause_of("host_sync").find(profiled(ten_reads, 1_600, sync_sites=sites)).evidence


# The diff of the user's own line.


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("total += loss.item()", "total += loss.detach()  # a tensor: stays on the GPU"),
        ("losses.append(loss.item())", "losses.append(loss.detach())  # a tensor: stays on the GPU"),
        ("seen[k] = x.mean().item()", "seen[k] = x.mean().detach()  # a tensor: stays on the GPU"),
        ("total += loss.item() / steps", None),
        ("text = json.dumps(loss.item())", None),
        ("log(loss.item())", None),
        ("if loss.item() > 3:", None),
    ],
)
def test_diff_is_given_only_where_a_tensor_serves_as_well(line: str, after: str | None) -> None:
    # given a line that reads a value, when the change is asked for, then it keeps no graph and breaks no call
    change = change_of(line, 1)
    assert (None if change is None else change[1]) == after


LOOP = "%%gpuprofile\nseen = []\nfor x in batches:\n    seen.append(x.mean().item())\n"


@pytest.mark.parametrize(
    ("rest", "changed"),
    [
        ("print(sum(seen))", True),  # once, after the loop
        ("    optimizer.step()", True),
        ('    text = " ".join([f"{value:.4f}" for value in seen[-60:]])', False),
        ("    if len(seen) > 3: break", False),
        ("    !date", False),  # no Python: not known
    ],
)
def test_diff_is_not_given_where_the_loop_looks_at_what_is_kept(rest: str, changed: bool) -> None:
    # given a loop that keeps what it reads, when another line uses that, then a tensor would be read there
    assert (change_of(LOOP + rest, 4) is not None) == changed
