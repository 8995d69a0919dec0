"""What follows a recording when the process is one rank of a job: summaries meet on rank 0, which reports on all.

Every rank reduces its own trace to a summary of a few kB and leaves it in the job's store. Rank 0 waits for the others
with an end, finds who is late, and says whose traces are worth keeping; the others drop theirs. No trace is moved.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from msgspec import structs

from ipyprof.analysis.profile import analyse
from ipyprof.capture.recording import Recording
from ipyprof.diagnosis.verdict import diagnose
from ipyprof.formatting import plural, shorten
from ipyprof.options import Options
from ipyprof.ranks.judge import Joint, check, judge, with_ranks
from ipyprof.ranks.summary import RankSummary, summarise
from ipyprof.report.build import build_report
from ipyprof.report.report import Report
from ipyprof.run import Alone, Judge, Run
from ipyprof.show.output import Silent, Surface
from ipyprof.trace.live import LiveRecord

WAIT_S = 60.0
"""A rank that has not come this long after rank 0 is missing."""
WAIT_AFTER_ERROR_S = 5.0
"""The same after an exception, which must not be held up."""
ANSWER_S = 15.0
"""How much longer than rank 0 the others wait for what it decides."""
CONNECT_S = 5.0
_POLL_S = 0.02
_ENDING = ".json"
_PLACE = re.compile(r"^\[[^\]]*\] ")
"""The source file that torch's errors begin with."""
T = TypeVar("T")


def judge_of(options: Options, surface: Surface) -> Judge | None:
    """The judge of a run that is asked for ranks, or ``None`` where the process reports for itself."""
    return None if options.ranks is None else RankOfJob(surface)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among the ranks of its job."""

    rank: int
    size: int


def world() -> World | None:
    """The job that this process is a rank of, or ``None`` for a single process.

    The process group says so, else the environment as ``torchrun`` sets it.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found = World(rank=distributed.get_rank(), size=distributed.get_world_size())
    else:
        rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
            return None
        found = World(rank=int(rank), size=int(size))
    return found if found.size > 1 else None


class RankOfJob:
    """The judge of one rank. The report is that of all ranks on rank 0, and the rank's own elsewhere.

    A process that is no rank of a job is reported as ever, with a note.

    Args:
        surface: where rank 0 shows itself; the other ranks say only what went wrong.
    """

    def __init__(self, surface: Surface) -> None:
        # Taken now: the block may end after the process group.
        self._world, self._store = world(), job_store()
        self._surface = surface if self.first else Silent()
        self._ended: Callable[[], bool] = bool
        self._met = False
        self._keep = ""  # why this rank's trace is kept
        self._folder = Path(tempfile.gettempdir()) / f"ipyprof-ranks-{os.getpid()}-{time.time_ns() // 1_000_000}"

    @property
    def first(self) -> bool:
        return self._world is None or self._world.rank == 0

    @contextmanager
    def around(self, run: Run, recording: Recording) -> Iterator[None]:
        with termination_deferred() as self._ended:
            try:
                yield
            finally:
                # Nothing was recorded here, or it could not be read: the others are told, and need not wait.
                if not self._met:
                    joint = self._meet(run, None, recording.live)
                    if joint is not None and joint.stopped:
                        self._surface.say(f"ipyprof: {joint.ranks.sentence}.")

    def report(self, run: Run, recording: Recording) -> tuple[Recording, Report]:
        if self._world is None:
            self._world = world()  # the process group was made in the block
        if self._world is None:
            self._met = True
            shown, report = Alone().report(run, recording)
            return shown, _noted(report, "no other rank was found: start the script with torchrun, or leave ranks out")
        live = run.live(recording)
        profile = analyse(run.read(recording), live)
        joint = self._meet(run, with_machine(summarise(profile), live), live)
        report = build_report(profile, diagnose(profile), source=run.source(live))
        if joint is None:
            alone = "the job's store does not answer: this rank alone is shown"
            return recording, _noted(report, alone) if self.first else report
        if joint.stopped and not report.source.partial:
            rank, why = joint.stopped[0]
            source = structs.replace(report.source, partial=f"rank {rank} stopped with {why}")
            report = structs.replace(report, source=source)
        return recording, with_ranks(report, joint, self._world.rank)

    def trace_file(self, run: Run) -> Path | None:
        if self._world is None:
            return run.trace_file
        if not self._keep:
            return None
        target = self._kept_file(run, self._world.rank)
        if run.trace_file is None:
            target.parent.mkdir(mode=0o700, exist_ok=True)
        return target

    def _kept_file(self, run: Run, rank: int) -> Path:
        """Where this rank's trace goes if it is kept: beside ``--trace``, else in a folder for temporary files."""
        if run.trace_file is None:
            return self._folder / f"rank{rank}{_ENDING}.gz"
        head, ending, tail = run.trace_file.name.rpartition(_ENDING)
        return run.trace_file.with_name(f"{head}.rank{rank}{ending}{tail}")

    def _meet(self, run: Run, summary: RankSummary | None, live: LiveRecord) -> Joint | None:
        """What all ranks say together, on rank 0; ``None`` elsewhere, and where the job's store does not answer."""
        self._met = True
        here, store = self._world or world(), self._store if self._store is not None else job_store()
        if here is None or store is None:
            return None
        own = summary or RankSummary(rank=here.rank, error="nothing was recorded")
        own = structs.replace(
            own,
            rank=here.rank,
            world_size=here.size,
            error=live.partial or own.error,
            stopped="" if run.error is None else _words(run.error),
            path=str(self._kept_file(run, here.rank)),
        )
        with suppress(Exception):  # the store went with the process that held it; the rank's own report is there
            meeting = Meeting(here.rank, store)
            if here.rank == 0:
                return self._hear_all(run, meeting, own)
            self._report_to_first(run, meeting, own)
        return None

    def _report_to_first(self, run: Run, meeting: Meeting, own: RankSummary) -> None:
        meeting.send(f"summary/{own.rank}", own)
        wait = WAIT_S + ANSWER_S if run.error is None else WAIT_AFTER_ERROR_S
        answer = meeting.gather(["decision"], dict[int, str], wait, ended=self._ended)
        if answer:
            self._keep = answer["decision"].get(own.rank, "")
        elif run.error is not None:
            # Rank 0 may wait for this one in a collective, and the launcher ends it before it can say anything.
            self._surface.say(f"ipyprof: rank {own.rank} stopped with {own.stopped}; rank 0 has not reported yet.")

    def _hear_all(self, run: Run, meeting: Meeting, own: RankSummary) -> Joint:
        wait = WAIT_S if run.error is None else WAIT_AFTER_ERROR_S
        names = [f"summary/{rank}" for rank in range(1, own.world_size or 1)]
        come = meeting.gather(names, RankSummary, wait, status=self._surface.status, ended=self._ended)
        checks = []
        if missing := len(names) - len(come):
            why = "before the launcher ended the job" if self._ended() else f"within {wait:.0f} s"
            checks.append(check("ranks", f"{plural(missing, 'rank')} did not report {why}"))
        joint = judge([own, *come.values()], checks=checks)
        kept = kept_ranks(joint)
        meeting.send("decision", kept)
        self._keep = kept.get(0, "")
        rows = [structs.replace(one, path=one.path if one.rank in kept else None) for one in joint.ranks.per_rank]
        rows = [structs.replace(one, kept=f"{kept[one.rank]}: {one.path}") if one.rank in kept else one for one in rows]
        return replace(joint, ranks=structs.replace(joint.ranks, per_rank=tuple(rows)))


def kept_ranks(joint: Joint) -> dict[int, str]:
    """rank → why its trace is kept: the late one, the first and the last of those that recorded a step."""
    there = sorted(one.rank for one in joint.ranks.per_rank if one.breakdown and one.rank not in joint.ranks.cpu_only)
    if not there:
        return {}
    late = joint.ranks.straggler
    reasons: dict[int, list[str]] = {} if late is None else {late.rank: ["late"]}
    for rank, why in ((there[0], "first"), (there[-1], "last")):
        reasons.setdefault(rank, []).append(why)
    return {rank: ", ".join(reasons[rank]) for rank in sorted(reasons)}


def with_machine(summary: RankSummary, live: LiveRecord) -> RankSummary:
    """The summary with what this process knows of its machine, and what the driver said while the steps ran."""
    gpu = next(iter(live.device_names.values()), None)
    summary = structs.replace(summary, host=socket.gethostname() or None, bus_id=bus_id(), gpu=gpu)
    state = live.device_state
    if state is None:
        return summary
    link = (state.pcie_generation, state.pcie_width, state.max_pcie_generation, state.max_pcie_width)
    return structs.replace(
        summary,
        clock_mhz=state.sm_clock_mhz,
        throttle=state.slowed_by or (),
        pcie=None if None in link else "gen {} x{} of gen {} x{}".format(*link),
    )


def bus_id() -> str | None:
    """PCI bus id of torch's current device, such as ``0000:18:00``, or ``None``."""
    if not torch.cuda.is_initialized():
        return None
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    parts = [getattr(known, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    domain, bus, device = (part if isinstance(part, int) else -1 for part in parts)
    return None if min(domain, bus, device) < 0 else f"{domain:04x}:{bus:02x}:{device:02x}"


def job_store() -> Any | None:
    """The store that all ranks of the job reach, or ``None``. Guarded: the process group's own is a private name."""
    distributed = torch.distributed
    if not distributed.is_available():
        return None
    if distributed.is_initialized():
        with suppress(Exception):  # no such function, or no default group any more
            return distributed.distributed_c10d._get_default_store()
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    # Elsewhere rank 0 opens that port when the process group is made, and nobody listens before.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not address or not port.isdigit():
        return None
    with suppress(Exception):  # nobody listens there
        # The launcher's own store; this connects and never listens.
        return distributed.TCPStore(address, int(port), is_master=False, timeout=timedelta(seconds=CONNECT_S))
    return None


class Meeting:
    """The messages of one run, as compressed JSON in a part of the job's store of their own.

    Making one and sending raise whatever the store raises when it does not answer.
    """

    def __init__(self, rank: int, store: Any) -> None:
        self._store = store
        # The n-th run of each rank belongs together.
        self._folder = f"ipyprof/{store.add(f'ipyprof/runs/{rank}', 1)}"

    def send(self, name: str, message: Any) -> None:
        """Leave a message under a name."""
        self._store.set(f"{self._folder}/{name}", zlib.compress(msgspec.json.encode(message)))

    def gather(
        self,
        names: Sequence[str],
        kind: type[T],
        wait_s: float,
        *,
        status: Callable[[str], None] = lambda _text: None,
        ended: Callable[[], bool] = bool,
    ) -> dict[str, T]:
        """The messages of these names that have come within ``wait_s``, or until the store is gone.

        Args:
            kind: of the messages; another one ends the wait.
            status: is told once a second how many have not come.
            ended: whether there is nothing to wait for any more.
        """
        found: dict[str, T] = {}
        said = time.monotonic()
        end = said + wait_s
        with suppress(Exception):  # the store went with the process that held it
            while True:
                for name in names:
                    key = f"{self._folder}/{name}"
                    if name not in found and self._store.check([key]):
                        found[name] = msgspec.json.decode(zlib.decompress(self._store.get(key)), type=kind)
                now = time.monotonic()
                if len(found) == len(names) or now >= end or ended():
                    break
                if now - said > 1.0:
                    said = now
                    status(f"waiting for {len(names) - len(found)} ranks...")
                time.sleep(_POLL_S)
        return found


@contextmanager
def termination_deferred() -> Iterator[Callable[[], bool]]:
    """A function that says whether this process was asked to end (SIGTERM) in the block; it ends behind the block.

    The launcher ends all ranks within a tenth of a second when one has died, and waits for them for 30 s: enough to say
    what is known. No code of the user's runs in the block. Outside of the main thread, and where there is a handler
    that Python does not know, nothing is changed.
    """
    asked: list[int] = []
    before = signal.getsignal(signal.SIGTERM)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked:
            signal.raise_signal(signal.SIGTERM)


def _noted(report: Report, text: str) -> Report:
    return structs.replace(report, trust=(*report.trust, check("ranks", text)))


def _words(error: BaseException) -> str:
    text = _PLACE.sub("", " ".join(str(error).split()))
    return f"{type(error).__name__}: {shorten(text, 80)}" if text else type(error).__name__
