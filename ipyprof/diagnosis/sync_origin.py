"""Where waits for the GPU come from that no line of the cell makes itself: a Trainer, an optimizer, a module's file.

Torch's sync-debug mode names file and line in a warm-up step; the trace names neither. The two are counted apart: the
mode does not see an explicit ``torch.cuda.synchronize()``.
"""

from __future__ import annotations

import re

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.finding import Site, Where
from ipyprof.formatting import plural

NAMED = 2  # places in the evidence; the sites hold all
_ANOTHER_CELL = re.compile(r"ipykernel_\d+|<ipython-input|<stdin>|<string>")


def outside_the_cell(profile: Profile) -> tuple[Site, ...]:
    """One site per file and line outside the cell, the most frequent first; empty where the probe did not look.

    The file is its name with the folder that it lies in (``transformers/trainer.py``), or ``another cell``. What
    curing one of them would gain is not measured.
    """
    if profile.live is None or profile.live.sync_sites is None:
        return ()
    sites = (
        Site(
            where=Where(file=file_name(one.file), line=one.line), status="unknown", count=one.count, recoverable_ms=None
        )
        for one in profile.live.sync_sites
        if not one.in_cell
    )
    return tuple(sorted(sites, key=lambda site: -site.count))


def origin_text(sites: tuple[Site, ...]) -> str:
    """``; outside the cell in transformers/trainer.py line 2134 (3 per step) and 2 more places``, or nothing."""
    if not sites:
        return ""
    named = [f"{site.where.file} line {site.where.line} ({site.count:.0f} per step)" for site in sites[:NAMED]]
    more = len(sites) - len(named)
    rest = f" and {plural(more, 'more place')}" if more else ""
    return f"; outside the cell in {', '.join(named)}{rest}"


def file_name(path: str) -> str:
    """The file's name with its folder; a path of the kernel's own is ``another cell``."""
    if _ANOTHER_CELL.search(path):
        return "another cell"
    return "/".join(re.split(r"[\\/]", path)[-2:])
