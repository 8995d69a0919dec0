"""The loop's own pace, from made-up steps."""

from __future__ import annotations

import pytest

from ipyprof.analysis.loop import account_of, pace_of
from ipyprof.trace.live import LiveRecord, LoopStep, Sample, WholeLoop

MS = 1_000_000
EVALUATE = Sample(line=5, calls=("evaluate", "forward"), function="evaluate", at=9)
WORK = Sample(line=3, calls=("work",), function="work", at=2)


def live(steps: list[LoopStep], samples: tuple[tuple[int, Sample], ...] = (), **more: int) -> LiveRecord:
    whole = sum(step.ns for step in steps)
    return LiveRecord(
        loop=WholeLoop(cell_ns=whole + 7 * MS, before_ns=4 * MS, steps=tuple(steps), samples=samples, **more)
    )


def test_alike_steps_have_one_pace() -> None:
    pace = pace_of(live([LoopStep(ns=5 * MS)] * 50), 5.0 * MS)
    assert pace is not None
    assert (pace.step_ns, pace.typical_ns, pace.wait_ns, pace.unlike) == (5 * MS, 5 * MS, None, ())


def test_an_evaluation_every_20th_step_is_named_with_its_period() -> None:
    # given 5 ms a step and 180 ms more in every 20th, which the sampler saw
    steps = [LoopStep(ns=(185 if at % 20 == 19 else 5) * MS) for at in range(110)]
    samples = tuple((at, EVALUATE if at % 20 == 19 else WORK) for at in range(110))
    pace = pace_of(live(steps, samples), 5.0 * MS)
    # then a step is 5 + 180 / 20 ms, whatever part of a period the window ends with
    assert pace is not None
    assert pace.step_ns == pytest.approx(14 * MS, rel=0.02)
    (one,) = pace.unlike
    assert (one.what, one.line, one.period, one.count) == ("evaluate", 5, 20, 5)
    # and the account adds up
    account = account_of(live(steps, samples), pace)
    assert account is not None
    unlike = sum(one.ms for one in account.unlike)
    parts = account.before_ms + account.typical_ms + unlike + account.between_ms + account.ours_ms
    assert parts == pytest.approx(account.cell_ms)


def test_a_host_that_runs_ahead_adds_nothing() -> None:
    """Without a read the host is quick until the launch queue is full, and then waits in single steps."""
    steps = [LoopStep(ns=(40 if at % 10 == 9 else 1) * MS) for at in range(100)]
    pace = pace_of(live(steps), 5.0 * MS)
    assert pace is not None
    assert pace.step_ns == pytest.approx(5 * MS, rel=0.01)


def queued(count: int, *, ns: int, made_ns: int) -> list[LoopStep]:
    """Steps that a queue serves while all workers make a batch every ``made_ns``."""
    return [LoopStep(ns=ns, waited_ns=10_000, ready=30, made=at * ns // made_ns, all_busy=True) for at in range(count)]


def test_steps_that_a_full_queue_served_have_the_pace_of_the_workers() -> None:
    pace = pace_of(live(queued(60, ns=5 * MS, made_ns=10 * MS)), 5.0 * MS)
    assert pace is not None
    assert pace.served
    assert pace.step_ns == pytest.approx(10 * MS, rel=0.05)
    assert pace.wait_ns == pytest.approx(5 * MS, rel=0.1)


def test_workers_that_keep_up_do_not_set_the_pace() -> None:
    pace = pace_of(live(queued(60, ns=5 * MS, made_ns=5 * MS)), 5.0 * MS)
    assert pace is not None
    assert (pace.served, pace.step_ns) == (False, 5 * MS)


def test_waits_in_bursts_count_by_their_mean() -> None:
    """Four workers that end together: one step of four waits."""
    steps = [
        LoopStep(ns=(34 if at % 4 == 0 else 4) * MS, waited_ns=(30 if at % 4 == 0 else 0) * MS) for at in range(80)
    ]
    pace = pace_of(live(steps), 4.0 * MS)
    assert pace is not None
    assert pace.step_ns == pytest.approx(11.5 * MS, rel=0.02)
    assert pace.unlike == ()


def test_epoch_starts_are_told_apart_from_waits() -> None:
    steps = [
        LoopStep(
            ns=(55 if at % 10 == 0 else 5) * MS, waited_ns=(50 if at % 10 == 0 else 0) * MS, epoch_start=at % 10 == 0
        )
        for at in range(60)
    ]
    pace = pace_of(live(steps), 5.0 * MS)
    assert pace is not None
    assert pace.step_ns == pytest.approx(10 * MS, rel=0.03)
    assert pace.unlike[0].what == "the start of an epoch"


def test_steps_behind_our_pauses_and_too_few_of_them_say_nothing() -> None:
    assert pace_of(live([LoopStep(ns=5 * MS)] * 2), 5.0 * MS) is None
    assert pace_of(LiveRecord(), 5.0 * MS) is None
    steps = [LoopStep(ns=5 * MS)] * 20 + [LoopStep(ns=900 * MS, behind_pause=True)] + [LoopStep(ns=5 * MS)] * 20
    pace = pace_of(live(steps, first_after=20), 5.0 * MS)
    assert pace is not None and pace.step_ns == 5 * MS
