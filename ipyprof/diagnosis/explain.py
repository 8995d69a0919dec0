"""What a cause is and how it is cured, and how the profiler works: Markdown for notebooks, text for terminals."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from ipyprof.diagnosis.causes import CAUSES, VERDICTS, cause_of

PROFILER = "profiler"
TOPICS = (*(cause.id for cause in (*CAUSES, *VERDICTS)), PROFILER)


def page(topic: str) -> str:
    """The explanation as Markdown: of a cause, a verdict, or ``profiler``; empty where there is none."""
    if topic == PROFILER:
        return Path(__file__).with_name("profiler.md").read_text(encoding="utf-8")
    return cause_of(topic).page


def plain_text(markdown: str, width: int = 80) -> str:
    """A page in lines of at most ``width`` columns: titles without their marks; code stays as it is, indented."""
    lines: list[str] = []
    for at, part in enumerate(markdown.split("```")):
        if at % 2:
            lines += [
                f"    {line}".rstrip() for line in part.strip("\n").splitlines()[1:]
            ]  # the first names the language
            continue
        for block in filter(None, re.split(r"\n\s*\n", part.strip())):
            text = re.sub(r"[`*]", "", " ".join(block.split()))
            if block.startswith("### "):
                lines += [text[4:], "=" * len(text[4:])]
            elif re.fullmatch(r"\*\*.*\*\*", block):
                lines += ["", f"{text}:"]
            elif re.fullmatch(r"`\w+` · \*\*.*\*\*", block):
                lines.append(text)
            else:
                lines += textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines) + "\n"
