"""The one promise that is fuzzed: whatever is in a file, its outcome is a report on a page or one of our own errors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from ipyprof import saved
from ipyprof.errors import IpyprofError
from ipyprof.show.html import render_page
from ipyprof.show.text import render_text

REPORT, REFUSED = "report", "refused"


def outcome(data: bytes, path: Path) -> str:
    """``report`` or ``refused``, for a file of these bytes at ``path``. Everything else that is raised is a fault.

    The page, the text and the JSON of a report are made as well; a warning of numpy's or Python's is a fault too.
    """
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            reports = saved.load_all(path)
        except IpyprofError as refusal:
            if "\n" in str(refusal):
                raise AssertionError(f"a refusal of several lines: {refusal}") from refusal
            return REFUSED
        for report in reports:
            page = render_page(report)
            assert "<script" not in page, "a script on the page"
            render_text(report)
            json.dumps(report.to_dict(), allow_nan=False).encode("utf-8", "surrogatepass")
    return REPORT
