"""Everything that was measured, in one object: what every cause looks at and the report is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ipyprof.analysis.breakdown import Breakdown, break_down
from ipyprof.analysis.fusion import Chain, chains
from ipyprof.analysis.lines import line_costs
from ipyprof.analysis.loop import Pace, pace_of
from ipyprof.analysis.memory import MemorySummary, memory_view
from ipyprof.analysis.operators import KernelTable, OperatorTable, kernel_rows, operator_rows
from ipyprof.analysis.program import Program, build_program, loader_spans, with_waits, without_marks
from ipyprof.analysis.replay import COST_LIMIT_NS, DEVICE_LIMIT, Replayed, device_share, follow, replay, solve_cost
from ipyprof.analysis.results import Line
from ipyprof.analysis.roofline import Roofline, device_name, roofline
from ipyprof.analysis.steps import Steps, ends_early, find_steps, recorded_step_ns
from ipyprof.trace.kinds import DEVICE_KINDS, Kind, Role
from ipyprof.trace.live import LiveRecord
from ipyprof.trace.model import Trace

FILE_COST_NS = 2_500.0  # host time that recording one event costs, where no baseline tells (tests/gpu/RESULTS.md)
SOLVE_SHARE = 0.2  # recording that costs less than this share of the step is not solved for
SAME_STEP = 0.003  # two replays within this share have the same step


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One run, measured.

    Attributes:
        step_ns: one typical unprofiled step: the median of the baseline, where batches are waited for the loop's own
            pace, else the deflated replay; ``None`` = no steps.
        step_from: ``baseline``, ``replay`` or ``none``: where ``step_ns`` came from.
        profiled_step_ns: one step as recorded.
        program: what is replayed; ``None`` without steps.
        cost_ns: host time that recording one event cost, solved from the baseline or the default for files.
        drift: how many times as long as the recorded ones the unprofiled steps took, apart from what recording cost:
            the GPU's clock, or the host's speed; 1 = the same.
        replayed: the unedited, deflated replay.
        once: the window is replayed once, not to its steady state: a single step without a baseline.
        fit_error: |replayed − recorded| / recorded over the recorded window, unedited and not deflated.
        devices: indices of the devices that worked.
        silent: API calls launched device work and the file, which is whole, has no record of any.
        lost: launching calls without a device record, where others have one.
        roofline: what bounds each operator, Tensor Cores and MFU, on the device that worked most.
        chains: neighbouring kernels of it that could be one.
        pace: of all unprofiled steps; ``None`` where too few were seen, or from a file.
        recorded_wait_ns: what a recorded step waited for its batch.
    """

    trace: Trace
    live: LiveRecord | None
    steps: Steps
    step_ns: float | None
    step_from: str
    profiled_step_ns: float | None
    program: Program | None
    cost_ns: float
    drift: float
    replayed: Replayed | None
    once: bool
    fit_error: float | None
    breakdown: Breakdown | None
    operators: OperatorTable
    kernels: KernelTable
    memory: MemorySummary
    lines: tuple[Line, ...]
    devices: tuple[int, ...]
    silent: bool
    lost: int
    roofline: Roofline
    chains: tuple[Chain, ...]
    pace: Pace | None = None
    recorded_wait_ns: float = 0.0

    @property
    def unlike_ns(self) -> float:
        """What steps unlike the typical one add to each, on the average."""
        return 0.0 if self.pace is None else self.pace.step_ns - self.pace.typical_ns

    @property
    def loop_ns(self) -> float | None:
        """The loop's own pace: all unprofiled steps divided by their number."""
        return None if self.step_ns is None else self.step_ns + self.unlike_ns

    @property
    def has_gpu(self) -> bool:
        """Device work was recorded."""
        return bool(self.devices)

    @property
    def overhead(self) -> float | None:
        """Recorded step / unprofiled step; ``None`` without a baseline."""
        if self.step_from != "baseline" or not self.step_ns or self.profiled_step_ns is None:
            return None
        waited = 0.0  # recorded steps may be served by a queue that filled in a pause of ours
        if self.pace is not None and self.pace.wait_ns is not None:
            waited = max(self.pace.wait_ns - self.recorded_wait_ns, 0.0)
        return (self.profiled_step_ns + waited) / self.step_ns

    @property
    def error_ns(self) -> float:
        """What the replay itself is wrong by, per step: the worse of its two checks."""
        if self.step_ns is None or self.replayed is None:
            return 0.0
        return max(abs(self.replayed.step_ns - self.step_ns), (self.fit_error or 0.0) * self.step_ns)

    def step_without(self, edited: Program) -> float:
        """ns of one step when the edited program runs instead."""
        return replay(edited, self.cost_ns, once=self.once).step_ns


def analyse(trace: Trace, live: LiveRecord | None = None) -> Profile:
    """All numbers of a trace. ``live`` is what a live run knows beside it; without, what the file carries of it."""
    live = live if live is not None else trace.live
    steps = find_steps(trace, live=live is not None)
    profiled = recorded_step_ns(trace, steps)
    if live is not None and live.profiled_ns and steps.count:
        profiled = typical_step_ns(live.profiled_ns, live.cycle)
    baseline = typical_step_ns(live.baseline_ns, live.cycle) if live is not None else None
    pace = _pace(live, baseline)
    devices = tuple(sorted({int(device) for device in trace.device[trace.select(*DEVICE_KINDS)].tolist()}))
    launches = trace.select(Kind.CALL)
    launches = launches[np.isin(trace.role[launches], (Role.LAUNCH, Role.GRAPH_LAUNCH))]
    program = build_program(trace, steps, live) if steps.count else None
    step, source, cost, replayed, fit, breakdown, drift = baseline, "baseline", 0.0, None, None, None, 1.0
    once = steps.count < 2 and baseline is None
    lines: tuple[Line, ...] = ()
    recorded_wait = 0.0
    if program is not None:
        fit = _fit_error(trace, program)
        if live is not None:
            program = without_marks(program, trace, steps, live)
        if pace is not None and pace.wait_ns is not None:
            program, recorded_wait = with_waits(program, pace.wait_ns)
            baseline = step = pace.typical_ns
        # The only interval behind the stop began with an idle device: it is one step and the filling of the queue.
        from_idle = live is not None and live.baseline == "after_first"
        sampled = program
        if live is not None and live.baseline_closing:
            sampled = program.cut(*loader_spans(trace, steps, live, np.asarray(program.threads)), records=False)
        # Where the device is the limit, how fast the host is shows only where it runs ahead.
        ahead = _ahead(sampled, _host_ns(live))
        cost = FILE_COST_NS if baseline is None else _cost(sampled, baseline, ahead, from_idle=from_idle)
        replayed = replay(program, cost, once=once)
        if baseline is not None and not from_idle:
            program, replayed, drift = follow(program, cost, baseline)
        if cost < ahead:
            cost, replayed = _behind_the_device(program, cost, ahead, replayed)
        if baseline is None:
            step, source = replayed.step_ns, "replay"
        else:
            step = replayed.step_ns if from_idle else baseline
        breakdown = break_down(trace, program, replayed, step)
        lines = line_costs(trace, steps, program, replayed, step)
    busiest = breakdown.device if breakdown is not None and breakdown.device >= 0 else None
    operators = operator_rows(trace, steps, busiest)
    roof = roofline(trace, operators, device_name(trace, live, -1 if busiest is None else busiest), step)
    return Profile(
        trace=trace,
        live=live,
        steps=steps,
        step_ns=step,
        step_from=source if step is not None else "none",
        profiled_step_ns=profiled,
        program=program,
        cost_ns=cost,
        drift=drift,
        replayed=replayed,
        once=once,
        fit_error=fit,
        breakdown=breakdown,
        operators=operators,
        kernels=kernel_rows(trace, steps, busiest),
        memory=memory_view(trace, steps, live),
        lines=lines,
        devices=devices,
        silent=len(launches) > 0 and not devices and not ends_early(trace),
        lost=_lost(trace, steps) if devices else 0,
        roofline=roof,
        chains=chains(trace, roof, steps.step),
        pace=pace,
        recorded_wait_ns=recorded_wait,
    )


def _pace(live: LiveRecord | None, baseline: float | None) -> Pace | None:
    """The loop's pace in a process without CUPTI, where the steps before its start tell what it costs."""
    attached = 1.0 if live is None or live.attached is None else live.attached
    found = pace_of(live, None if baseline is None else baseline * attached)
    if found is None or attached == 1.0 or found.wait_ns is not None:
        return found
    typical = found.typical_ns / attached
    return replace(found, typical_ns=typical, step_ns=typical + found.step_ns - found.typical_ns)


def typical_step_ns(samples: Sequence[int], cycle: int) -> float | None:
    """The median of per-step samples in ns; with accumulation the median over whole cycles, per iteration.

    Samples within a cycle differ: only its last iteration steps the optimizer. ``None`` without samples.
    """
    return float(median(_iterations(samples, cycle) or samples)) if samples else None


def _iterations(samples: Sequence[int], cycle: int) -> list[float]:
    """Of each whole cycle of the samples what an iteration takes."""
    return [sum(samples[at : at + cycle]) / cycle for at in range(0, len(samples) - cycle + 1, cycle)]


def _host_ns(live: LiveRecord | None) -> float | None:
    """The least host time that an unprofiled step took, from mark to mark; ``None`` = not measured."""
    return None if live is None else min(_iterations(live.baseline_host_ns, live.cycle), default=None)


def _cost(program: Program, step_ns: float, ahead_ns: float, *, from_idle: bool) -> float:
    """What recording an event cost, solved from the baseline.

    Where it can only be a small part of the step, the rest of the step varies by more than it, and the usual cost is
    the better guess unless the baseline asks for a higher one. Where the device is the limit with it, a longer step is
    a slower device.

    Args:
        ahead_ns: what it cost by the host that ran ahead.
    """
    if not from_idle:
        usual = replay(program, FILE_COST_NS)
        small = program.events / program.steps * FILE_COST_NS < SOLVE_SHARE * step_ns
        if usual.step_ns <= step_ns and device_share(program, usual) >= DEVICE_LIMIT:
            return ahead_ns
        if usual.step_ns <= step_ns and small:
            return FILE_COST_NS
    return solve_cost(program, step_ns, from_idle=from_idle)


def _ahead(program: Program, host_ns: float | None) -> float:
    """The least cost of an event with which the host's work fits into ``host_ns``, and no less than the usual one."""
    if host_ns is None or not program.events:
        return FILE_COST_NS
    recorded_ns = float(program.gap.sum() + program.own.sum()) / program.steps
    least = (recorded_ns - host_ns) * program.steps / program.events
    return min(max(least, FILE_COST_NS), COST_LIMIT_NS)


def _behind_the_device(program: Program, cost_ns: float, ahead_ns: float, replayed: Replayed) -> tuple[float, Replayed]:
    """The cost of an event, and its replay, where the device is the limit.

    There the step says nothing of how fast the host is: solving stops as soon as the host is no slower than the device,
    and edits of device work would find nothing to gain. The cost by the host that ran ahead is taken where it changes
    no step.
    """
    if device_share(program, replayed) < DEVICE_LIMIT:
        return cost_ns, replayed
    ahead = replay(program, ahead_ns)
    same = abs(ahead.step_ns - replayed.step_ns) <= SAME_STEP * replayed.step_ns
    return (ahead_ns, ahead) if same else (cost_ns, replayed)


def _fit_error(trace: Trace, program: Program) -> float:
    """How far the unedited replay of the recorded window is from the recording, as a share of it."""
    last = int(trace.end_ns[program.record].max()) if len(program.record) else program.stop
    window = max(last, program.stop) - program.begin
    return abs(replay(program, once=True).first_pass_ns - window) / max(window, 1)


def _lost(trace: Trace, steps: Steps) -> int:
    """Launching calls in the recorded steps whose device record is missing."""
    calls = trace.select(Kind.CALL)
    calls = calls[
        np.isin(trace.role[calls], (Role.LAUNCH, Role.GRAPH_LAUNCH)) & (steps.of_time(trace.start_ns[calls]) >= 0)
    ]
    found = np.zeros(len(trace), bool)
    found[steps.launch[steps.launch >= 0]] = True
    # A runtime call and the driver call inside it share the record of one of them.
    known = np.isin(trace.correlation[calls], trace.correlation[trace.select(*DEVICE_KINDS)])
    return int((~found[calls] & ~known).sum())


def amdahl_shares(
    trace: Trace, program: Program, replayed: Replayed, cost_ns: float, table: OperatorTable, count: int, *, once: bool
) -> tuple[float, ...]:
    """(count,) shares 0..1 of the step, for the first ``count`` rows: by replay without the work and calls of each.

    Less than the row's share of device time where that work runs beside the host's, more where the host waits for it;
    0 where the recorded steps have no length.
    """
    if replayed.step_ns <= 0:
        return (0.0,) * len(table.rows[:count])
    shares: list[float] = []
    row_of = table.row[program.record]
    events = trace.select(Kind.OPERATOR)
    for index, row in enumerate(table.rows[:count]):
        edited = replace(program, dur=np.where(row_of == index, 0.0, program.dur))
        mine = events[np.isin(trace.name[events], [at for at, name in enumerate(trace.names) if name == row.name])]
        edited = edited.cut(trace.start_ns[mine], trace.end_ns[mine], records=False)
        gained = replayed.step_ns - replay(edited, cost_ns, once=once).step_ns
        shares.append(min(max(gained / replayed.step_ns, 0.0), 1.0))
    return tuple(shares)
