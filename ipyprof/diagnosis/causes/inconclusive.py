"""Nothing can be said of the step, and why: another answer than healthy."""

from __future__ import annotations

from ipyprof.diagnosis.cause import Cause


class Inconclusive(Cause):
    id = "inconclusive"
    name = "not measured"
    subject = ("? Could not tell", "")
    checked = "not measured"
