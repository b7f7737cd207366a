"""A study of seconds: scenario 04 without its variants, and two values of the backoff that decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from testbed_runtime.api import naming

LATE_PRODUCER = Path(__file__).resolve().parents[2] / "scenarios" / "04-late-producer" / "scenario.yaml"
SMALL_BACKOFF, LARGE_BACKOFF = "400 ms", "3200 ms"
"""100 + 200 + 400 = 700 ms of retries, and 6300 ms: the producer is 3 s late."""


def small_scenario() -> dict[str, Any]:
    """It keeps its fault, which decides how long its start takes."""
    document: dict[str, Any] = yaml.safe_load(LATE_PRODUCER.read_text())
    spec = document["spec"]
    del spec["variants"]
    spec["testbed"]["flinkVersion"] = "1.12"  # whose consumers ask again and again
    spec["testbed"]["flinkConfiguration"]["restart-strategy"] = "none"
    spec["testbed"]["taskManagers"]["replicas"] = 2  # one producer, one consumer
    for vertex in spec["testbed"]["job"]["vertices"]:
        vertex["parallelism"] = 1
    spec["timeline"] = {"warmUp": "1 s", "baseline": "2 s", "observation": "2 s", "drain": "30 s"}
    return document


def small_study(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {
        "scenarios": [{"name": "late-producer"}],
        "options": [
            {"key": "taskmanager.network.request-backoff.max", "values": [SMALL_BACKOFF, LARGE_BACKOFF]}
        ],
        "objectives": [{"metric": "partition.retries"}],
        "require": [{"metric": "job.state", "equals": "RUNNING"}, {"metric": "delivery.lost", "equals": 0}],
        "budget": {"runs": 2},
    }
    return {
        "apiVersion": naming.API_VERSION,
        "kind": "TuningStudy",
        "metadata": {"name": name},
        "spec": {**wanted, **spec},
    }
