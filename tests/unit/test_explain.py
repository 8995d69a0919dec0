"""Each cause and verdict has a page beside it, with the words people ask for; a terminal shows it as text."""

from __future__ import annotations

import ast
import re

import pytest

from ipyprof.diagnosis.causes import CAUSES, VERDICTS, cause_of
from ipyprof.diagnosis.explain import PROFILER, TOPICS, page, plain_text

PARTS = [
    "What the timeline shows", "Why it costs time", "The cure", "Before", "After", "How to see that it worked",
]  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_cause_has_sight_reason_cure_and_an_example_that_is_python(cause) -> None:  # type: ignore[no-untyped-def]
    assert re.findall(r"^\*\*(.*)\*\*$", cause.page, re.MULTILINE) == PARTS
    assert f"`{cause.id}` · **" in cause.page
    if cause.bound != "unknown":  # a late rank's is that of what holds it up
        assert cause.bound.split(" (")[0] in cause.page
    before, after = re.findall(r"```python\n(.*?)```", cause.page, re.DOTALL)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))


def test_verdicts_and_the_profiler_are_explained_and_nothing_else() -> None:
    assert set(TOPICS) == {cause.id for cause in (*CAUSES, *VERDICTS)} | {PROFILER}
    text = page(PROFILER)
    for word in ("cudaLaunchKernel", "CUPTI", "correlation number", "Kineto", "nsys profile", "ncu --set full"):
        assert word in text
    assert page("nothing") == "" and cause_of("nothing").name == "nothing"


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("width", [60, 80])
def test_text_keeps_its_width(topic: str, width: int) -> None:
    # given any page, when written as text, then sentences keep the width; code stays whole
    text = plain_text(page(topic), width)
    assert page(topic).count("```") % 2 == 0
    assert all(len(line) <= width for line in text.splitlines()[2:] if not line.startswith("    "))
    assert "`" not in text and "**" not in text
