"""What can make the numbers wrong, checked one by one, and what each leaves of the verdict's confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ipyprof.analysis.profile import Profile
from ipyprof.analysis.steps import ends_early
from ipyprof.diagnosis import thresholds
from ipyprof.formatting import (
    NOT_MEASURED,
    clock_text,
    link_text,
    overhead_text,
    percent_short,
    percent_whole,
    plural,
    power_text,
    size_text,
    time_text,
)
from ipyprof.trace.live import DeviceState
from ipyprof.trace.reader import BROKEN, ENDS_EARLY, HOLES, REPAIRED


def clocks(profile: Profile) -> tuple[str, str] | None:
    """(``ok``, ``warn`` or ``fail``; a sentence), or ``None`` where no kernel has its launch in the steps."""
    program = profile.program
    if program is None or not profile.has_gpu or len(program.record) == 0:
        return None
    early = _early(profile)
    if early:
        return "fail", f"{plural(early, 'kernel')} before the launch: host and GPU clocks disagree"
    late = _late_ns(profile)
    if late > thresholds.CLOCK_LATE_NS:
        return "warn", f"the first kernel starts {time_text(late / 1e6)} after its launch: the GPU clock looks shifted"
    return "ok", "host and GPU clocks agree"


def shifted(profile: Profile) -> bool:
    """Whether the clocks are so far apart that the GPU's idle time is unknown; a few early kernels are not enough."""
    program = profile.program
    if program is None or not profile.has_gpu or len(program.record) == 0:
        return False
    most = _early(profile) > thresholds.CLOCK_EARLY_SHARE * len(program.record)
    return most or _late_ns(profile) > thresholds.CLOCK_LATE_NS


def _early(profile: Profile) -> int:
    """Kernels that start before their launch by more than jitter."""
    program, trace = profile.program, profile.trace
    assert program is not None
    delay = trace.start_ns[program.record] - trace.start_ns[profile.steps.launch[program.record]]
    return int((delay < -thresholds.CLOCK_EARLY_NS).sum())


def _late_ns(profile: Profile) -> float:
    """How long after its launch call the first kernel of a live run starts; 0 in a file.

    A live run synchronises before it records, so that the queue is empty then. A call itself may take long: it loads
    the kernel.
    """
    program, trace = profile.program, profile.trace
    assert program is not None
    if profile.live is None:
        return 0.0
    first = program.record[0]
    return float(trace.start_ns[first] - trace.end_ns[profile.steps.launch[first]])


# A card at its power limit runs as fast as it can; these are no state to measure in.
FAULTS = frozenset(
    {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake"}
)


def state_of(profile: Profile) -> DeviceState | None:
    """The state, or ``None``: from a file without our key, or without CUDA."""
    return profile.live.device_state if profile.live is not None else None


def clock_held(state: DeviceState) -> str:
    """``1,700 of 1,980 MHz (86 %): software power cap``, or empty where nothing held the clock back."""
    if not state.slowed_by:
        return ""
    clock = _clock(state)
    return f"{clock}: {', '.join(state.slowed_by)}" if clock else ", ".join(state.slowed_by)


def throttling(state: DeviceState) -> tuple[str, str] | None:
    """(``ok`` or ``warn``, what is said of the clock), or ``None`` where neither clock nor reason was measured.

    A low clock that nothing held back is that of a GPU with little to do.
    """
    clock, share = _clock(state), _share(state)
    if share is None and state.slowed_by is None:
        return None
    low = share is not None and share < thresholds.CLOCK_SHARE and state.slowed_by != ()
    status = "warn" if low or not FAULTS.isdisjoint(state.slowed_by or ()) else "ok"
    held = clock_held(state)
    if held:
        text = f"SM clock {held}" if clock else f"SM clock held back: {held}"
    elif not clock:
        text = "nothing held the SM clock back"
    elif state.slowed_by is None:
        text = f"SM clock {clock}" + (", why is not known" if low else "")
    else:
        text = f"SM clock {clock}, not held back"
    return status, text


def other_processes(state: DeviceState) -> tuple[str, str] | None:
    """(``ok`` or ``warn``, how many there are and what they do), or ``None`` where the driver does not tell."""
    if state.others is None:
        return None
    if state.others == 0:
        return "ok", "no other process on the GPU"
    text = plural(state.others, "other process")
    text += " on the GPU" if state.others_bytes is None else f" with {size_text(state.others_bytes)} of the GPU"
    if state.others_busy is None:
        subject = "it computes" if state.others == 1 else "they compute"
        return "warn", f"{text}; whether {subject} is {NOT_MEASURED}"
    if state.others_busy < thresholds.OTHERS_BUSY_SHARE:
        return "ok", f"{text}, not computing"
    return "warn", f"{text}, computing {percent_short(state.others_busy)} of the time"


def device_line(state: DeviceState) -> str:
    """Clock, what held it back, power, link and other processes; what is missing with the reason."""
    clock, held = _clock(state), clock_held(state)
    others = other_processes(state)
    parts = [
        f"SM clock {held or clock}" if clock else held,
        power_text(state.power_w, state.power_limit_w),
        link_text((state.pcie_generation, state.pcie_width), (state.max_pcie_generation, state.max_pcie_width)),
        "" if others is None or not state.others else others[1],
    ]
    text = " · ".join(part for part in parts if part)
    if not text:
        reason = f" ({state.missing})" if state.missing else ""
        return f"Clock, power, PCIe link, other processes: {NOT_MEASURED}{reason}."
    return f"{text}. The rest: {NOT_MEASURED} ({state.missing})." if state.missing else f"{text}."


def _share(state: DeviceState) -> float | None:
    if state.sm_clock_mhz is None or not state.max_sm_clock_mhz:
        return None
    return state.sm_clock_mhz / state.max_sm_clock_mhz


def _clock(state: DeviceState) -> str:
    share = _share(state)
    text = clock_text(state.sm_clock_mhz, state.max_sm_clock_mhz)
    return text if share is None or share >= 0.995 else f"{text} ({percent_whole(share)})"


NAMED_STEPS = 8
LEVELS = ("low", "medium", "high")
_LEAVES = {"ok": "high", "warn": "medium", "fail": "low"}
_UNCOUNTED = frozenset({BROKEN, ENDS_EARLY, HOLES})
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
        # Workers that end together let one step of several wait: that is no unrest, and the mean is their pace.
        bursts = profile.pace is not None and profile.pace.wait_ns is not None
        bad = spread > thresholds.UNSTABLE_SHARE and not bursts
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


def _pace(profile: Profile) -> Iterator[Check]:
    """What of the unprofiled steps is not as in a process that never profiled."""
    live, pace = profile.live, profile.pace
    if live is not None and live.attached is not None and (pace is None or pace.wait_ns is None):
        text = f"CUPTI stays attached: steps behind the recording take {live.attached:.2f} times as long as before it"
        yield Check(check="attached", status="ok", text=text)
    if live is not None and live.profiled_before:
        text = "an earlier profile left CUPTI attached, which costs every launch until the kernel restarts"
        yield Check(check="attached", status="ok", text=text)
    if pace is not None and pace.served:
        text = "a queue that filled in our pauses served the steps: their pace is that of the loader's workers"
        yield Check(check="served", status="ok", text=text)


def _device(profile: Profile) -> Iterator[Check]:
    state = state_of(profile)
    if state is None:
        return
    for check, said in (
        ("throttling", throttling(state)),
        ("other processes", other_processes(state)),
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
        lacking = state.peak_bytes - view.memory.peak_bytes
        if abs(lacking) <= thresholds.SAME_PEAK_BYTES:
            same.append(view.device)
        elif lacking > 0 and state.peak_bytes > (state.peak_before_bytes or 0):
            text = (
                f"torch's own peak of GPU {view.device} is {size_text(state.peak_bytes)}, the heartbeat's "
                f"{size_text(view.memory.peak_bytes)}: allocations are missing, such as those of other threads"
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
    _kind_of_run, _steps, _stable, _records, _clocks, _replay, _overhead, _drift, _pace, _device, _memory, _damage,
    _notes,
)  # fmt: skip
NOT_OF_RECORDS: tuple[Callable[[Profile], Iterator[Check]], ...] = (_kind_of_run, _stable, _device, _damage, _notes)


def confidence(checked: Sequence[Check]) -> tuple[str, tuple[str, ...]]:
    """(``high``, ``medium`` or ``low``; the reasons why it is not high, each a sentence part)."""
    lowering = [check for check in checked if check.leaves != LEVELS[-1]]
    level = min((LEVELS.index(check.leaves) for check in lowering), default=len(LEVELS) - 1)
    return LEVELS[level], tuple(check.reason or check.text for check in lowering)
