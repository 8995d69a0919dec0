"""The explanations: one per cause and verdict, with the words people ask for, as Markdown and as text."""

from __future__ import annotations

import ast
import importlib
import pkgutil

import pytest

from ipyprof.diagnosis import causes
from ipyprof.diagnosis.explain import BY_TOPIC, PROFILER, TOPICS, markdown, plain_text
from ipyprof.diagnosis.verdict import CAUSES

VERDICTS = {"compute_bound", "inconclusive"}
DISEASES = sorted(set(TOPICS) - VERDICTS - {PROFILER})


def causes_of_modules() -> set[str]:
    """The ``CAUSE`` of every module of the room that has one."""
    modules = [
        importlib.import_module(f"ipyprof.diagnosis.causes.{one.name}") for one in pkgutil.iter_modules(causes.__path__)
    ]
    return {module.CAUSE for module in modules if hasattr(module, "CAUSE")}


def test_every_cause_is_explained_and_nothing_else() -> None:
    # given the modules of the causes, when their identifiers are collected
    causes = causes_of_modules()
    # then each has an explanation, and what else is explained are the verdicts and the profiler
    assert causes >= {module.CAUSE for module in CAUSES}
    assert set(TOPICS) == causes | VERDICTS | {PROFILER, "straggler"}


@pytest.mark.parametrize("topic", DISEASES)
def test_a_disease_has_sight_reason_cure_and_example(topic: str) -> None:
    # given a disease, when its parts are read, then none is missing
    told = BY_TOPIC[topic]
    assert told.topic == topic
    assert told.bound
    assert [part.title for part in told.parts] == [
        "What the timeline shows",
        "Why it costs time",
        "The cure",
        "Before",
        "After",
        "How to see that it worked",
    ]
    assert all(part.text or part.code for part in told.parts)


@pytest.mark.parametrize("topic", DISEASES)
def test_examples_are_python(topic: str) -> None:
    # given the code before and after, when compiled, then both are Python, and they differ
    before, after = (part.code for part in BY_TOPIC[topic].parts if part.code)
    ast.parse(before)
    ast.parse(after)
    assert before != after


def test_the_words_that_people_ask_for_are_there() -> None:
    bounds = " ".join(told.bound for told in BY_TOPIC.values())
    assert "IO-bound" in bounds and "CPU-bound" in bounds
    assert "GPU-bound (compute)" in bounds and "GPU-bound (bandwidth)" in bounds


def test_the_profiler_is_explained_from_the_operator_to_the_time_stamp() -> None:
    # given the explanation of the profiler, when read, then each idea and both commands are there
    text = " ".join(plain_text(BY_TOPIC[PROFILER], 100).split())
    for word in (
        "cudaLaunchKernel",
        "CUPTI",
        "correlation number",
        "Kineto",
        "runs ahead",
        "warmup",
        "observer effect",
        "Self and total",
        "1 / ((1 − p) + p / s)",
        "nsys profile --trace=cuda,nvtx,osrt",
        "ncu --set full --kernel-name regex:my_kernel",
    ):
        assert word.lower() in text.lower()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("width", [60, 80])
def test_text_keeps_its_width(topic: str, width: int) -> None:
    # given any explanation, when written as text, then sentences keep the width; code stays whole
    told = BY_TOPIC[topic]
    code = {f"    {line}" for part in told.parts for line in part.code.splitlines()}
    lines = plain_text(told, width).splitlines()
    assert all(len(line) <= width for line in lines if line not in code and set(line) != {"="} and line != told.title)
    assert "`" not in plain_text(told, width)


@pytest.mark.parametrize("topic", TOPICS)
def test_markdown_closes_its_fences(topic: str) -> None:
    # given any explanation, when written as Markdown, then it begins with its title and every fence is closed
    told = BY_TOPIC[topic]
    text = markdown(told)
    assert text.startswith(f"### {told.title}\n")
    assert text.count("```") == 2 * sum(bool(part.code) for part in told.parts)
