"""What the driver said of the GPU while steps ran, judged and in words."""

from __future__ import annotations

from typing import Any

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis import thresholds
from ipyprof.formatting import (
    NOT_MEASURED,
    clock_text,
    link_text,
    percent_short,
    percent_whole,
    plural,
    power_text,
    size_text,
)
from ipyprof.trace.model import DeviceState

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


def view(profile: Profile) -> dict[str, Any] | None:
    """The numbers, and ``text``: one line for under the ladder. ``None`` where the driver was not asked."""
    state = state_of(profile)
    if state is None:
        return None
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    held = state.slowed_by
    return {"text": device_line(state), **fields, "slowed_by": None if held is None else list(held)}


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
