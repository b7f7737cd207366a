"""A run's folder: the names of its folders and results. And the JSON documents for scripts: these results and the output of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HISTORY_FOLDER = "history"
"""Has a folder for each trial, with its tables."""
FILES_FOLDER = "files"
"""Has `<trial>/<path of the sink>/part-<subtask>-<checkpoint>`, and the kept checkpoints."""
LOGS_FOLDER = "logs"
METRICS_FILE = "metrics.json"
TIMESERIES_FILE = "timeseries.json"
RECOVERY_FILE = "recovery.json"
"""{trial id: TrialRecovery}."""
TRACE_FILE = "trace.json"
"""One trace of all trials."""
VERDICT_FILE = "verdict.json"
COMPARISON_FILE = "comparison.json"
"""The variants of the run, compared by core.judgement.comparison."""
PAGE_FILE, SUMMARY_FILE, JUNIT_FILE = "report.html", "report.md", "junit.xml"
"""The report."""

SCHEMA = 1
"""Changes when a field is renamed, removed or gets another meaning. A new field does not change it."""


def versioned(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its schema number in front."""
    return {"schema": SCHEMA, **content}
