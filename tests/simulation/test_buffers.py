"""Every run ends with a count of the network buffers that did not return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from tests.simulation.simulating import run_document

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def leaked(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.rglob("metrics.json")
    return [row for row in json.loads(path.read_text()) if row["metric"] == "buffers.leaked"]


def test_a_segment_that_does_not_return_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One segment is dropped on its way back to its pool: Fail, and the verdict names the TaskManager."""
    recycle, lost = NetworkBufferPool.recycle, []

    def drop_one(pool: NetworkBufferPool, segment: Any) -> None:
        if lost:
            recycle(pool, segment)
        lost.append(segment)

    monkeypatch.setattr(NetworkBufferPool, "recycle", drop_one)
    result, _ = run_document(loading.load(SCENARIOS / "06-no-fault").document, tmp_path)
    assert len(lost) > 1
    (row,) = leaked(tmp_path)
    assert (row["value"], row["text"][:3]) == (1, "tm-")
    bad = [e.metric for e in result.verdict.judged if e.verdict == "Fail"]
    assert (result.verdict.verdict, bad) == ("Fail", ["buffers.leaked"])


def test_no_segment_leaks_when_a_taskmanager_is_killed(tmp_path: Path) -> None:
    """The survivors count 0, and the killed one does not count."""
    document = loading.load(SCENARIOS / "02-taskmanager-killed").document
    result, _ = run_document(document, tmp_path, variants=["upstream"])
    (row,) = leaked(tmp_path)
    assert (result.verdict.verdict, row["value"]) == ("Pass", 0)
