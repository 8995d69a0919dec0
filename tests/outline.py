"""What a fragment of HTML holds."""

from __future__ import annotations

import html.parser
import re

VOID = {"img", "br", "meta"}


class Outline(html.parser.HTMLParser):
    """Tags, attributes and text of a fragment; ``open`` holds what was not closed."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.words: list[str] = []
        self.sources: list[str] = []
        self.alts: list[str] = []
        self.feed(re.sub(r"<span>([$\\])</span>", r"\1", markup))  # kept apart so that it is not typeset
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        values = dict(attrs)
        if tag == "img":
            self.sources.append(values.get("src") or "")
            self.alts.append(values.get("alt") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())
