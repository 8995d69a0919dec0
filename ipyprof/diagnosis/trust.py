"""What can make the numbers wrong, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import device_state, thresholds
from ipyprof.diagnosis.clocks import clocks
from ipyprof.diagnosis.confidence import drift_text, unprofiled_spread
from ipyprof.formatting import overhead_text, percent_short, plural

NAMED_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: ``status`` is ``ok``, ``warn`` or ``fail``."""

    check: str
    status: str
    text: str


def checks(profile: Profile) -> tuple[Check, ...]:
    """All checks that apply, in the order in which they are shown."""
    return tuple(check for look in LOOKS for check in look(profile))


def _steps(profile: Profile) -> Iterator[Check]:
    count = profile.steps.count
    live = profile.live
    if count == 0:
        yield Check(check="steps", status="fail", text="no step was recorded")
        return
    if profile.steps.how == "no step marks":
        yield Check(check="steps", status="warn", text="no step marks: everything is taken as one step")
    spread = unprofiled_spread(profile)
    if spread is not None:
        samples = len(live.baseline_ns) if live is not None else 0
        bad = spread > thresholds.UNSTABLE_SHARE
        yield Check(
            check="stable",
            status="warn" if bad else "ok",
            text=f"{plural(samples, 'unprofiled step')} within {percent_short(spread)}",
        )
    worked = np.bincount(profile.steps.step[profile.steps.step >= 0], minlength=count)
    empty = (np.flatnonzero(worked == 0) + 1).tolist() if profile.has_gpu else []
    if empty:
        more = f" and {len(empty) - NAMED_STEPS} more" if len(empty) > NAMED_STEPS else ""
        text = f"step {', '.join(map(str, empty[:NAMED_STEPS]))}{more} launched no GPU work"
        yield Check(check="empty steps", status="warn", text=text)
    if live is not None and live.cold:
        yield Check(check="cold", status="warn", text="the first steps were recorded: cold")
    if live is not None and live.partial:
        yield Check(check="partial", status="warn", text=live.partial)


def _records(profile: Profile) -> Iterator[Check]:
    if profile.silent:
        yield Check(check="records", status="fail", text="GPU work was launched but none was recorded")
        return
    if not profile.has_gpu:
        return
    if profile.lost:
        yield Check(check="records", status="warn", text=f"{plural(profile.lost, 'launch')} without a GPU record")
    carried = len(profile.steps.carried)
    if not profile.lost and not carried:
        yield Check(check="records", status="ok", text="no record lost, none carried over")
    elif carried:
        status = "warn" if profile.live is not None else "ok"
        text = f"{plural(carried, 'GPU record')} carried over from before the recording, in no mean"
        yield Check(check="carried over", status=status, text=text)


def _clocks(profile: Profile) -> Iterator[Check]:
    found = clocks(profile)
    if found is not None:
        yield Check(check="clocks", status=found[0], text=found[1])


def _replay(profile: Profile) -> Iterator[Check]:
    if profile.fit_error is None or not profile.has_gpu:
        return
    bad = profile.fit_error > thresholds.FIT_SHARE
    text = f"replay fits the recording within {percent_short(profile.fit_error)}"
    yield Check(check="replay", status="warn" if bad else "ok", text=text)


def _overhead(profile: Profile) -> Iterator[Check]:
    overhead = profile.overhead
    if overhead is not None:
        status = "warn" if overhead > 1.1 else "ok"
        yield Check(check="overhead", status=status, text=f"recording made the step {overhead_text(overhead)}")
    elif profile.step_ns is not None and profile.live is not None and profile.step_from != "baseline":
        yield Check(check="overhead", status="warn", text="no unprofiled step was timed: overhead not measured")


def _drift(profile: Profile) -> Iterator[Check]:
    change = abs(profile.drift - 1)
    if change > thresholds.FIT_SHARE:
        status = "warn" if change > thresholds.DRIFT_SHARE else "ok"
        text = f"unprofiled steps ran {drift_text(profile.drift)}, apart from what recording costs (GPU clock or host)"
        yield Check(check="drift", status=status, text=text)


def _device(profile: Profile) -> Iterator[Check]:
    state = device_state.state_of(profile)
    if state is None:
        return
    for check, said in (
        ("throttling", device_state.throttling(state)),
        ("other processes", device_state.other_processes(state)),
    ):
        if said is not None:
            yield Check(check=check, status=said[0], text=said[1])


def _memory(profile: Profile) -> Iterator[Check]:
    missing = sum(device.unexplained for device in profile.memory.devices)
    if missing:
        verb = "does" if missing == 1 else "do"
        text = f"{plural(missing, 'memory record')} {verb} not add up: the heartbeat may be incomplete"
        yield Check(check="memory", status="warn", text=text)
    refused = sum(one.count for one in profile.memory.refused)
    if refused:
        text = f"{plural(refused, 'request')} for memory failed in the recorded steps, and the cell went on"
        yield Check(check="out of memory", status="warn", text=text)


def _damage(profile: Profile) -> Iterator[Check]:
    for reason, count in profile.trace.damage.items():
        yield Check(check="damage", status="warn", text=f"{reason}: {count}")


def _notes(profile: Profile) -> Iterator[Check]:
    for check, status, text in profile.live.notes if profile.live is not None else ():
        yield Check(check=check, status=status, text=text)


LOOKS: tuple[Callable[[Profile], Iterator[Check]], ...] = (
    _steps, _records, _clocks, _replay, _overhead, _drift, _device, _memory, _damage, _notes,
)  # fmt: skip

__all__ = ["Check", "checks"]
