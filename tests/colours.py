"""Text as a reader sees it: IPython puts colours into tracebacks, and each version puts them elsewhere."""

from __future__ import annotations

import re


def without_colours(text: str) -> str:
    """The text without ANSI colour codes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
