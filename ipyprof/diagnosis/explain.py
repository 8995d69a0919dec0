"""What a cause is and how it is cured, and how the profiler works: Markdown for notebooks, text for terminals."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

PROFILER = "profiler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of an explanation: plain sentences, paragraphs apart by an empty line, and code below them."""

    title: str
    text: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """``topic`` is a cause's identifier or ``profiler``; ``bound`` the word people ask for, or empty."""

    topic: str
    title: str
    bound: str
    parts: tuple[Part, ...]


def cause(
    topic: str, title: str, bound: str, *, shows: str, why: str, cure: str, before: str, after: str, then: str = ""
) -> Explanation:
    """The explanation of a cause: what the timeline shows, why, the cure with an example, and how to see it worked."""
    parts = [
        Part(title="What the timeline shows", text=shows),
        Part(title="Why it costs time", text=why),
        Part(title="The cure", text=cure),
    ]
    if before:
        parts += [Part(title="Before", text="", code=before), Part(title="After", text="", code=after)]
    if then:
        parts.append(Part(title="How to see that it worked", text=then))
    return Explanation(topic=topic, title=title, bound=bound, parts=tuple(parts))


def markdown(told: Explanation) -> str:
    """The explanation as Markdown, code in fences."""
    lines = [f"### {told.title}", ""]
    if told.bound:
        lines += [f"`{told.topic}` · **{told.bound}**", ""]
    for part in told.parts:
        lines += [f"**{part.title}**", ""]
        lines += [*_paragraphs(part.text), ""] if part.text else []
        lines += (
            ["```python" if not part.code.startswith("$") else "```console", part.code.strip("\n"), "```", ""]
            if part.code
            else []
        )
    return "\n".join(lines).rstrip() + "\n"


def plain_text(told: Explanation, width: int = 80) -> str:
    """The explanation in lines of at most ``width`` columns; code stays as it is, indented."""
    lines = [told.title, "=" * len(told.title)]
    if told.bound:
        lines.append(f"{told.topic} · {told.bound}")
    for part in told.parts:
        lines += ["", f"{part.title}:"]
        for paragraph in _paragraphs(part.text) if part.text else ():
            if paragraph:
                lines += textwrap.wrap(
                    paragraph.replace("`", ""), width - 2, initial_indent="  ", subsequent_indent="  "
                )
        lines += [f"    {line}".rstrip() for line in part.code.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Paragraphs on one line each, with an empty line between them."""
    found = [" ".join(one.split()) for one in re.split(r"\n\s*\n", text.strip())]
    return [line for one in found for line in (one, "")][:-1]
