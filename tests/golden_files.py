"""Texts that were looked at once and kept. ``IPYPROF_GOLDEN=write pytest`` writes them anew: look at the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """Fails where ``text`` is not what the file of this name holds."""
    path = FOLDER / name
    if os.environ.get("IPYPROF_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs: IPYPROF_GOLDEN=write writes it anew"


def without_pictures(html: str) -> str:
    """``html`` with one element per line and each image as its alt text: versions of matplotlib draw differently."""
    named = re.sub(r'<img src="data:image/png;base64,[A-Za-z0-9+/=]*" alt="([^"]*)"[^>]*>', r"[picture: \1]", html)
    return named.replace("><", ">\n<") + "\n"
