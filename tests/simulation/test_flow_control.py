"""The modes of flow control on one job: what `scenarios/09-flow-control` claims in numbers that have no metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.history.reader import read_trial
from testbed_runtime.runner.progress import Sample
from tests.collecting import Collected
from tests.simulation.simulating import run_document

SCENARIO = Path(__file__).parents[2] / "scenarios" / "09-flow-control"
NEIGHBOUR = SCENARIO.with_name("11-stalled-neighbour")


def events(folder: Path, variant: str, kind: str) -> list[dict[str, Any]]:
    """Run one variant. Return its events of a kind, with their data, and their times in seconds after the first record."""
    run_document(loading.load(SCENARIO).document, folder, variants=[variant])
    trial = read_trial(folder / "history" / f"{variant}-1", run="simulated", trial=f"{variant}-1")
    rows = trial.rows("events")
    first = next(row["t_ns"] for row in rows if row["kind"] == "sink.first-record")
    return [
        {**row, "data": json.loads(row["data"] or "{}"), "t_s": (row["t_ns"] - first) / 1e9}
        for row in rows
        if row["kind"] == kind
    ]


def test_without_flow_control_the_queue_overflows_after_five_seconds(tmp_path: Path):
    """2 MB/s in, 1 MB/s out: 1 MB/s is left over, so 5 MB are full after 5 s."""
    states = events(tmp_path, "none-unbounded", "job.state")
    failed = next(state for state in states if state["data"]["to"] == "FAILING")
    assert failed["data"]["cause_class"] == "OutOfMemoryError"
    assert failed["t_s"] == pytest.approx(5.0, abs=0.3)


def test_a_bounded_queue_drops_what_does_not_fit_and_never_grows_beyond_its_limit(tmp_path: Path):
    """The queue holds 5 MB at most; the surplus of 1000 records/s is dropped from then on."""
    (closed,) = events(tmp_path, "none-dropping", "receive-queue.closed")
    assert 4_990_000 < closed["data"]["largest_bytes"] <= 5_000_000
    assert closed["data"]["dropped"] == pytest.approx(1000 * (closed["t_s"] - 10), abs=2000)


def test_watermarks_stop_and_free_the_source_again_and_again(tmp_path: Path):
    """The queue of 10 MB reaches 9 MB after 9 s at 1 MB/s, and is down at 4 MB after 5 s more."""
    rates = events(tmp_path, "watermark", "source.rate")
    assert [rate["data"]["records_per_second"] for rate in rates][:2] == [0.0, -1.0]
    times = [rate["t_s"] for rate in rates]
    assert times[0] == pytest.approx(9.0, abs=0.5)
    assert times[1] - times[0] == pytest.approx(5.0, abs=0.8)


@pytest.mark.parametrize(("variant", "shown"), [("credit", True), ("tcp", False)])
def test_progress_shows_credits_only_where_the_exchange_has_credit(
    tmp_path: Path, variant: str, shown: bool
) -> None:
    """In legacy mode a reader may always send: its unlimited credit is no number to show."""
    progress = Collected()
    run_document(loading.load(NEIGHBOUR).document, tmp_path, variants=[variant], progress=progress)
    running = [e for e in progress.events if isinstance(e, Sample) and e.job_state == "RUNNING"]
    assert any("credits" in sample.job.counters for sample in running) is shown
