"""Bugs that a simulated run once found: a row each, with one line why. A seed of the swarm that fails becomes a row here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from testbed_runtime.cli import loading
from tests.simulation.simulating import run_document
from tests.simulation.swarming import scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"

ROWS: list[tuple[str | int, list[str], str]] = [
    (
        "05-slow-ask",
        ["staged-small"],
        "An attempt that was cancelled before its first step stayed CANCELING, and the job FAILING.",
    ),
    (
        "02-taskmanager-killed",
        ["downstream", "upstream"],
        "The dead of the first trial took the process of the same name in the second one along.",
    ),
    (
        "03-taskmanager-paused",
        ["long-timeout"],
        "A stopped process went on to take what its peers sent, and the run did not end after its resume.",
    ),
    (
        "04-late-producer",
        ["old-small"],
        "A registration that was held back until the job had failed did not count as late.",
    ),
]
"""(a scenario of this repository, or a seed of the swarm; its variants; why it is here)."""
TWO_PIPELINES = """
apiVersion: headgate.dev/v1alpha1
kind: Scenario
metadata: {name: two-pipelines}
spec:
  hypothesis: One of two pipelines ends, and there are no periodic checkpoints.
  testbed:
    taskManagers: {replicas: 2, slots: 2}
    job:
      vertices:
        - {name: a, slotSharingGroup: a, source: {recordsPerSecond: 500, limit: 1000}}
        - {name: sink-a, slotSharingGroup: b, sink: ledger}
        - {name: b, slotSharingGroup: c, source: {recordsPerSecond: 500}}
        - {name: sink-b, slotSharingGroup: d, sink: ledger}
      edges: [{from: a, to: sink-a, partitioning: hash}, {from: b, to: sink-b, partitioning: hash}]
  timeline: {warmUp: 1 s, baseline: 4 s, observation: 5 s, drain: 10 s}
  expect: [{metric: job.state, equals: RUNNING}, {metric: delivery.lost, equals: 0}]
"""


@pytest.mark.virtual
@pytest.mark.parametrize(("found", "variants", "why"), ROWS, ids=[str(row[0]) for row in ROWS])
def test_a_run_that_once_went_wrong_passes(
    found: str | int, variants: list[str], why: str, tmp_path: Path
) -> None:
    """See `why`."""
    document = scenario(found) if isinstance(found, int) else loading.load(SCENARIOS / found).document
    result, complaints = run_document(document, tmp_path, variants=variants)
    assert (result.verdict.verdict, complaints) == ("Pass", []), why


@pytest.mark.virtual
def test_a_sink_that_ends_without_periodic_checkpoints_leaves_a_sound_history(tmp_path: Path) -> None:
    """It commits without a checkpoint when its bounded input ends. The final checkpoint of the other pipeline comes later."""
    result, complaints = run_document(yaml.safe_load(TWO_PIPELINES), tmp_path)
    assert (result.verdict.verdict, complaints) == ("Pass", [])
