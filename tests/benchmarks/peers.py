"""Other tools on the same file, where the benchmark's extra has installed them."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

Run = Callable[[Path], object]


def installed() -> dict[str, tuple[Run, float]]:
    """Name → (one run on a file, how many times faster ipyprof should be)."""
    peers: dict[str, tuple[Run, float]] = {}
    if importlib.util.find_spec("hta") is not None:
        peers["HolisticTraceAnalysis, load and breakdown"] = (holistic_trace_analysis, 5.0)
    if importlib.util.find_spec("torch_tb_profiler") is not None:
        peers["torch-tb-profiler, parse and process"] = (tb_profiler, 8.0)
    return peers


def holistic_trace_analysis(path: Path) -> object:
    """Its trace and temporal breakdown."""
    from hta.trace_analysis import TraceAnalysis

    with _quiet():
        analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
        return analysis.get_temporal_breakdown(visualize=False)


def tb_profiler(path: Path) -> object:
    """What its overview is made of."""
    from torch_tb_profiler.profiler.data import RunProfileData

    with _quiet(), tempfile.TemporaryDirectory() as cache:
        return RunProfileData.parse("worker", "span", str(path), cache)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
