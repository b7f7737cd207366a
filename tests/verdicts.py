"""Verdicts as verdict.json has them: what a test leaves out has its default."""

from __future__ import annotations

from typing import Any

from msgspec import convert
from msgspec.structs import replace

from testbed_runtime.core.judgement.verdict import Judged, RunVerdict


def judged(**fields: Any) -> Judged:
    return convert({"text": "asked", "verdict": "Pass", **fields}, Judged)


def run_verdict(verdict: str = "Pass", *, expectations: Any = (), **fields: Any) -> RunVerdict:
    """`expectations`: as dicts."""
    items = tuple(judged(**item) for item in expectations)
    return replace(convert({"verdict": verdict, **fields}, RunVerdict), judged=items)
