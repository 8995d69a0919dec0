"""What can make the numbers wrong, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import thresholds
from ipyprof.diagnosis.confidence import drift_text, unprofiled_spread
from ipyprof.formatting import overhead_text, percent_short, plural, time_text

CLOCK_BACKWARDS_NS = -20_000  # kernels this long before their launch: the two clocks disagree (small ones are jitter)


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
    empty = [step + 1 for step in range(count) if profile.has_gpu and not bool((profile.steps.step == step).any())]
    if empty:
        text = f"step {', '.join(map(str, empty))} launched no GPU work"
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
    program = profile.program
    if program is None or not profile.has_gpu or len(program.record) == 0:
        return
    launch = profile.steps.launch[program.record]
    delay = profile.trace.start_ns[program.record] - profile.trace.start_ns[launch]
    early = int((delay < CLOCK_BACKWARDS_NS).sum())
    # After a synchronisation the queue is empty, so the first kernel starts within microseconds of its launch.
    first = float(delay[0])
    if early:
        text = f"{plural(early, 'kernel')} before the launch: host and GPU clocks disagree"
        yield Check(check="clocks", status="fail", text=text)
    elif profile.live is not None and first > 5e6:
        text = f"the first kernel starts {time_text(first / 1e6)} after its launch: the GPU clock looks shifted"
        yield Check(check="clocks", status="warn", text=text)
    else:
        yield Check(check="clocks", status="ok", text="host and GPU clocks agree")


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
        text = f"unprofiled steps ran {drift_text(profile.drift)} than the recorded ones (GPU clock or host)"
        yield Check(check="drift", status=status, text=text)


def _memory(profile: Profile) -> Iterator[Check]:
    missing = sum(device.unexplained for device in profile.memory.devices)
    if missing:
        verb = "does" if missing == 1 else "do"
        text = f"{plural(missing, 'memory record')} {verb} not add up: the heartbeat may be incomplete"
        yield Check(check="memory", status="warn", text=text)


def _damage(profile: Profile) -> Iterator[Check]:
    for reason, count in profile.trace.damage.items():
        yield Check(check="damage", status="warn", text=f"{reason}: {count}")


def _notes(profile: Profile) -> Iterator[Check]:
    for check, status, text in profile.live.notes if profile.live is not None else ():
        yield Check(check=check, status=status, text=text)


LOOKS: tuple[Callable[[Profile], Iterator[Check]], ...] = (
    _steps, _records, _clocks, _replay, _overhead, _drift, _memory, _damage, _notes,
)  # fmt: skip

__all__ = ["Check", "checks"]
