"""What can make the numbers wrong, checked one by one, and what each leaves of the verdict's confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.steps import ends_early
from ipyprof.diagnosis import device_state, thresholds
from ipyprof.diagnosis.clocks import clocks
from ipyprof.formatting import overhead_text, percent_short, plural, size_text
from ipyprof.trace.pieces import BROKEN, BROKEN_END, ENDS_EARLY, HOLES, REPAIRED

NAMED_STEPS = 8
LEVELS = ("low", "medium", "high")
_LEAVES = {"ok": "high", "warn": "medium", "fail": "low"}
_UNCOUNTED = frozenset({BROKEN, BROKEN_END, ENDS_EARLY, HOLES})
"""Damage of which nobody knows how many events it took: one broken stretch may hold any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: ``status`` is ``ok``, ``warn`` or ``fail``.

    Attributes:
        text: what was seen.
        reason: the same as a reason for less confidence, where that takes other words.
        grave: a warning that leaves as little confidence as a failure.
    """

    check: str
    status: str
    text: str
    reason: str = ""
    grave: bool = False

    @property
    def leaves(self) -> str:
        """The highest confidence of a verdict with it: ``high`` where it is ok, lower for any other status."""
        return "low" if self.grave else _LEAVES.get(self.status, "medium")


def checks(profile: Profile) -> tuple[Check, ...]:
    """All checks that apply, in the order in which they are shown.

    Of a file that ends early only what does not come from its records: steps, launches and the replay of a part are
    those of another loop.
    """
    looks = NOT_OF_RECORDS if ends_early(profile.trace) else LOOKS
    return tuple(check for look in looks for check in look(profile))


def drift_text(drift: float) -> str:
    """How the unprofiled steps ran against the recorded ones: ``12 % slower``, ``20 % faster``."""
    return f"{percent_short(abs(drift - 1))} {'slower' if drift > 1 else 'faster'}"


def unprofiled_spread(profile: Profile) -> float | None:
    """(90th − 10th percentile) / median of the unprofiled samples; ``None`` under three of them."""
    samples = sorted(profile.live.baseline_ns) if profile.live is not None else []
    if len(samples) < 3:
        return None
    low, high = samples[len(samples) // 10], samples[-1 - len(samples) // 10]
    return (high - low) / median(samples)


def _kind_of_run(profile: Profile) -> Iterator[Check]:
    live = profile.live
    if profile.once and not ends_early(profile.trace):
        text = "a single step was recorded"
        yield Check(check="single step", status="warn", text=text, reason="a single step", grave=True)
    if live is not None and live.cold:
        reason = "the recorded steps are the first ones: cold"
        yield Check(check="cold", status="warn", text="the first steps were recorded: cold", reason=reason, grave=True)
    if live is None:
        yield Check(check="baseline", status="warn", text="from a file: no unprofiled steps to compare with")
    elif profile.step_from == "replay":
        reason = "no unprofiled step was timed"
        yield Check(check="overhead", status="warn", text=f"{reason}: overhead not measured", reason=reason)
    elif live.baseline == "after_first":
        yield Check(check="baseline", status="warn", text="one unprofiled step only, right behind the recording")
    if live is not None and live.partial:
        yield Check(check="partial", status="warn", text=live.partial, reason="the recording ended early")


def _steps(profile: Profile) -> Iterator[Check]:
    count = profile.steps.count
    if count == 0:
        yield Check(check="steps", status="fail", text="no step was recorded")
        return
    if profile.steps.how == "no step marks":
        text, reason = "no step marks: everything is taken as one step", "no step marks in the file"
        yield Check(check="steps", status="warn", text=text, reason=reason, grave=True)
    worked = np.bincount(profile.steps.step[profile.steps.step >= 0], minlength=count)
    empty = (np.flatnonzero(worked == 0) + 1).tolist() if profile.has_gpu else []
    if empty:
        more = f" and {len(empty) - NAMED_STEPS} more" if len(empty) > NAMED_STEPS else ""
        text = f"step {', '.join(map(str, empty[:NAMED_STEPS]))}{more} launched no GPU work"
        yield Check(check="empty steps", status="warn", text=text)


def _stable(profile: Profile) -> Iterator[Check]:
    spread = unprofiled_spread(profile)
    if spread is not None:
        samples = len(profile.live.baseline_ns) if profile.live is not None else 0
        bad = spread > thresholds.UNSTABLE_SHARE
        yield Check(
            check="stable",
            status="warn" if bad else "ok",
            text=f"{plural(samples, 'unprofiled step')} within {percent_short(spread)}",
            reason=f"unprofiled steps vary by {percent_short(spread)}",
        )


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
        yield Check(check="clocks", status=found[0], text=found[1], grave=found[0] != "ok")


def _replay(profile: Profile) -> Iterator[Check]:
    error = profile.fit_error
    bad = error is not None and error > thresholds.FIT_SHARE
    if error is not None and (bad or profile.has_gpu):
        text = f"replay fits the recording within {percent_short(error)}"
        reason = f"the replay misses the recording by {percent_short(error)}"
        yield Check(check="replay", status="warn" if bad else "ok", text=text, reason=reason, grave=bad)
    if profile.step_ns and profile.replayed is not None:
        off = abs(profile.replayed.step_ns - profile.step_ns) / profile.step_ns
        if off > thresholds.FIT_SHARE:
            text = f"the replayed step is {percent_short(off)} off the unprofiled one"
            yield Check(check="replayed step", status="warn", text=text)


def _overhead(profile: Profile) -> Iterator[Check]:
    overhead = profile.overhead
    if overhead is not None:
        yield Check(
            check="overhead",
            status="warn" if overhead > thresholds.OVERHEAD_WARN else "ok",
            text=f"recording made the step {overhead_text(overhead)}",
            reason=f"recording made the step {overhead:.1f} times as long",
        )


def _drift(profile: Profile) -> Iterator[Check]:
    change = abs(profile.drift - 1)
    # Where unprofiled steps and replay differ by less, they do not differ.
    if change > thresholds.FIT_SHARE:
        ran = f"unprofiled steps ran {drift_text(profile.drift)}, apart from what recording costs"
        status = "warn" if change > thresholds.DRIFT_SHARE else "ok"
        yield Check(check="drift", status=status, text=f"{ran} (GPU clock or host)", reason=f"the {ran}")


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
    yield from _peaks(profile)
    refused = sum(one.count for one in profile.memory.refused)
    if refused:
        text = f"{plural(refused, 'request')} for memory failed in the recorded steps, and the cell went on"
        yield Check(check="out of memory", status="warn", text=text)


def _peaks(profile: Profile) -> Iterator[Check]:
    """Whether the heartbeat's peak is torch's own, where torch's lies in the recording: a thread may be missing."""
    states = {state.device: state for state in profile.live.allocator} if profile.live is not None else {}
    same = []
    for view in profile.memory.devices:
        state = states.get(view.device)
        if state is None or state.peak_bytes is None:
            continue
        lacking = state.peak_bytes - view.peak_bytes
        if abs(lacking) <= thresholds.SAME_PEAK_BYTES:
            same.append(view.device)
        elif lacking > 0 and state.peak_bytes > (state.peak_before_bytes or 0):
            text = (
                f"torch's own peak of GPU {view.device} is {size_text(state.peak_bytes)}, the heartbeat's "
                f"{size_text(view.peak_bytes)}: allocations are missing, such as those of other threads"
            )
            yield Check(check="memory peak", status="warn", text=text)
    if same:
        text = "the heartbeat's peak agrees with torch.cuda.max_memory_allocated()"
        yield Check(check="memory peak", status="ok", text=text)


def _damage(profile: Profile) -> Iterator[Check]:
    for what, count in profile.trace.damage.items():
        yield Check(
            check="damage",
            status="ok" if what == REPAIRED else "warn",  # repaired text keeps all its events
            text=f"{what}: {count}",
            reason="the file ends early" if what == ENDS_EARLY else "",
            grave=what in _UNCOUNTED,
        )


def _notes(profile: Profile) -> Iterator[Check]:
    for check, status, text in profile.live.notes if profile.live is not None else ():
        yield Check(check=check, status=status, text=text)


LOOKS: tuple[Callable[[Profile], Iterator[Check]], ...] = (
    _kind_of_run, _steps, _stable, _records, _clocks, _replay, _overhead, _drift, _device, _memory, _damage, _notes,
)  # fmt: skip
NOT_OF_RECORDS: tuple[Callable[[Profile], Iterator[Check]], ...] = (_kind_of_run, _stable, _device, _damage, _notes)

__all__ = ["LEVELS", "Check", "checks", "drift_text", "unprofiled_spread"]
