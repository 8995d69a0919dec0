"""Another rank makes this one wait. Only the files of several ranks together tell (``ranks/``)."""

from __future__ import annotations

from ipyprof.analysis.profile import Profile
from ipyprof.diagnosis.cause import Cause, Finding
from ipyprof.trace.kinds import Kind

ONE_FILE = "one file of several ranks cannot tell who is late"


class Straggler(Cause):
    id = "straggler"
    name = "a late rank"
    subject = ("A late rank", " holds this step back")
    without = "without the wait"
    checked = "a late rank"

    def find(self, profile: Profile) -> Finding:
        """Cleared in a single process; one file of several cannot tell."""
        world = profile.trace.metadata.get("distributedInfo")
        waits = len(profile.trace.select(Kind.COMMUNICATION)) > 0
        if waits or (isinstance(world, dict) and world.get("world_size", 1) != 1):
            return self.unknown(f"{'waits in collectives; ' if waits else ''}{ONE_FILE}")
        return Finding(cause=self.id, status="cleared", recoverable_ms=0.0, evidence="one process")
