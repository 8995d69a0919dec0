"""A recording of torch: end of the loop to the dashboard, against the table that torch prints."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path


def live_seconds(steps: int = 400, device: str = "cpu", *, table: bool = True) -> tuple[int, float, float | None]:
    """(events, seconds of export, reading, report and dashboard, seconds of ``key_averages().table()`` or ``None``)."""
    import torch

    from ipyprof.report.build import report_of
    from ipyprof.report.report import Source
    from ipyprof.show.html import bundle
    from ipyprof.trace.reader import read_trace

    model = torch.nn.Sequential(*(layer for _ in range(8) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    batch = torch.randn(16, 32, device=device)
    with torch.profiler.profile(record_shapes=True) as profiler:
        for number in range(steps):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        begin = time.perf_counter()
        profiler.export_chrome_trace(str(path))
        trace = read_trace(path)
        bundle(report_of(trace, Source(kind="file", path=str(path))))
        ours = time.perf_counter() - begin
    if not table:
        return len(trace), ours, None
    begin = time.perf_counter()
    profiler.key_averages().table()
    return len(trace), ours, time.perf_counter() - begin
