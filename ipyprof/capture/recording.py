"""What one run of the profiler leaves: the exported trace in a directory of its own, and the live record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ipyprof.capture import baseline, nvml, probes
from ipyprof.capture.cores import usable_cores
from ipyprof.capture.notes import Notes
from ipyprof.capture.profiler import Profiler
from ipyprof.capture.recorded import RecordedSteps
from ipyprof.trace.model import LiveRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The result of one run.

    Attributes:
        trace_path: Kineto's JSON in a temporary directory, or ``None`` where nothing was recorded.
        live: what the run knows beside the trace; its notes say why there is no trace.
        directory: owns the file, which goes with it.
    """

    trace_path: Path | None
    live: LiveRecord
    directory: TemporaryDirectory[str] | None = None

    def discard(self) -> None:
        """Remove the file. Calling it again does nothing."""
        if self.directory is not None:
            self.directory.cleanup()


def export(profiler: Profiler, *, unfinished: int | None) -> tuple[Path, TemporaryDirectory[str]]:
    """The exported trace and the directory that owns it.

    ``unfinished`` is the step that was cut off: its span is renamed, so that every ``ProfilerStep#`` is a whole step.

    Raises:
        Exception: whatever the export raises; no file is left then.
    """
    directory = TemporaryDirectory(prefix="ipyprof-")
    path = Path(directory.name) / "trace.json"
    try:
        profiler.export(path)
        if unfinished is not None:
            text = path.read_bytes()
            path.write_bytes(text.replace(b'"ProfilerStep#%d"' % unfinished, b'"unfinished step %d"' % unfinished))
    except BaseException:
        directory.cleanup()
        raise
    return path, directory


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
