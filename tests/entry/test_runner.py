"""The runner pod's own parts. Whole runs: tests/kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed_runtime.cli import telemetry
from testbed_runtime.entry.runner import _trace_sent


def test_an_error_of_the_exporter_does_not_cost_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The run is judged already. Its log says what happened."""

    def fail(folder: Path) -> str:
        raise ConnectionError(f"no route for {folder.name}")

    monkeypatch.setattr(telemetry, "export", fail)
    assert _trace_sent(tmp_path / "run") == "the trace was not sent: ConnectionError: no route for run"
