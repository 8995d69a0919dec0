"""What one run of the profiler leaves: the exported trace in a directory of its own, and the live record."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipyprof.capture import baseline, nvml, probes
from ipyprof.capture.cores import usable_cores
from ipyprof.capture.notes import Notes
from ipyprof.capture.profiler import Profiler
from ipyprof.capture.recorded import RecordedSteps, name_steps
from ipyprof.trace.model import LiveRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The result of one run.

    Attributes:
        trace_path: Kineto's JSON in a temporary directory, or ``None`` where nothing was recorded.
        live: what the run knows beside the trace; its notes say why there is no trace.
        directory: owns the file, which goes with it.
        others: further recordings of the same loop (``--repeat``), in order; none of them has others.
    """

    trace_path: Path | None
    live: LiveRecord
    directory: TemporaryDirectory[str] | None = None
    others: tuple[Recording, ...] = ()

    @property
    def every(self) -> tuple[Recording, ...]:
        """This one and the others."""
        return self, *self.others

    def discard(self) -> None:
        """Remove the file, but not those of the others. Calling it again does nothing."""
        if self.directory is not None:
            self.directory.cleanup()


class HandOver:
    """Gives the complete recording to the caller, once; ``on_ready`` is ``None`` where nobody waits for it."""

    def __init__(self, on_ready: Callable[[Recording], None] | None) -> None:
        self._on_ready = on_ready

    def give(self, recording: Recording | None) -> None:
        """Nothing happens without a recording. A failure is a warning: at a mark it would reach the user's code."""
        if recording is None:
            return
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            try:
                on_ready(recording)
            except Exception as failure:
                warnings.warn(f"ipyprof: the report failed: {type(failure).__name__}: {failure}", stacklevel=2)


def export(profiler: Profiler, *, unfinished: int | None) -> tuple[Path, TemporaryDirectory[str]]:
    """The exported trace and the directory that owns it.

    ``unfinished`` is the step that was cut off.

    Raises:
        OSError: torch wrote no file. It says nothing of that: on a full disk it gives up in silence.
        Exception: whatever the export raises; no file is left then.
    """
    directory = TemporaryDirectory(prefix="ipyprof-")
    path = Path(directory.name) / "trace.json"
    try:
        profiler.export(path)
        if not path.exists():
            free = shutil.disk_usage(path.parent).free
            raise OSError(
                f"torch wrote no trace; {free / 1e6:,.1f} MB are free in {tempfile.gettempdir()}: make room, or set "
                "TMPDIR to a folder on another disk"
            )
        name_steps(path, unfinished=unfinished)
    except BaseException:
        directory.cleanup()
        raise
    return path, directory


def exported(
    profiler: Profiler, notes: Notes, *, unfinished: int | None
) -> tuple[Path | None, TemporaryDirectory[str] | None]:
    """As ``export``; (``None``, ``None``) with a note where that failed."""
    try:
        return export(profiler, unfinished=unfinished)
    except Exception as failure:
        text = f"the recording could not be written: {type(failure).__name__}: {failure}"
        notes.add("profiler", "fail", text)
        return None, None


def live_record(
    known: Mapping[str, Any],
    wait: baseline.Laps,
    steps: RecordedSteps,
    after: baseline.Laps,
    device: nvml.DeviceReader,
    notes: Notes,
) -> LiveRecord:
    """The record of a run: ``known`` holds its fields that are no measurement. A probe that fails becomes a note.

    ``loaders`` in ``known`` is asked here; ``device`` is closed.
    """
    ask_loaders = known.get("loaders", tuple)
    wait_ns, after_ns, profiled_ns = (laps.durations_ns() for laps in (wait, after, steps.laps))
    name, samples = baseline.choose(after_ns, wait_ns, profiled_ns, closed=after.closed)
    windows = [window for laps in (after, wait, steps.laps) if (window := laps.window_ns)]
    utilization, state = notes.shielded(device.finish, windows) or (None, None)
    fields: dict[str, Any] = {**known, "loaders": notes.shielded(ask_loaders) or ()}
    return LiveRecord(
        **fields,
        baseline_ns=samples,
        baseline=name,
        baseline_closing=name == "after_first" and after.closed and len(after_ns) == 1,
        baseline_host_ns=after.settled().host_ns() if name == "after" else (),
        wait_ns=wait_ns,
        profiled_ns=profiled_ns,
        closing_ns=tuple(steps.closing_ns),
        cuda=bool(notes.shielded(probes.gpu_was_used)),
        environment=notes.shielded(probes.versions) or {},
        device_names=notes.shielded(probes.device_names) or {},
        utilization=utilization,
        device_state=state,
        cores=notes.shielded(usable_cores),
        process_memory=tuple(steps.memory),
        notes=notes.as_tuple(),
    )
