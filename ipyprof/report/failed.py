"""The request for memory that the cell ended with, as the report has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipyprof.report.report import Report


def memory_facts(report: Report) -> Mapping[str, Any]:
    """``views["memory"]``, empty where there is none."""
    facts = report.views.get("memory")
    return facts if isinstance(facts, Mapping) else {}


def failed_request(report: Report) -> Mapping[str, Any] | None:
    """The request for memory that the cell ended with, or ``None``."""
    failed = memory_facts(report).get("out_of_memory")
    return failed if isinstance(failed, Mapping) else None


def failed_while_recorded(report: Report) -> bool:
    """Whether that request ended the recording itself, so that the heartbeat leads up to it."""
    failed = failed_request(report)
    return failed is not None and not failed.get("later")
