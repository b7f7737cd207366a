"""Asks that time out because the JobManager's one mailbox is busy, and what recovery.json says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed_runtime.cli import loading
from testbed_runtime.core.documents import RECOVERY_FILE
from tests.simulation.simulating import run_document

LARGE = Path(__file__).parents[1] / "data" / "large-job.yaml"


def busy(folder: Path, ask_timeout: str) -> Any:
    """Run 360 tasks at 2 ms for each message. Return the first start as recovery.json has it, and the verdict."""
    document = loading.load(LARGE).document
    configuration = document["spec"]["testbed"]["flinkConfiguration"]
    configuration |= {"akka.ask.timeout": ask_timeout, "headgate.jobmanager.service-time": "2 ms"}
    document["spec"]["testbed"]["taskManagers"] = {"replicas": 3, "slots": 40, "replaceLost": "Never"}
    for vertex in document["spec"]["testbed"]["job"]["vertices"]:
        vertex["parallelism"] = 120
    run_document(document, folder)
    return json.loads((folder / RECOVERY_FILE).read_text())["main-1"]["start"]


def test_a_report_behind_the_deployments_expires_and_the_option_owns_its_seconds(tmp_path: Path):
    """360 tasks: a report waits behind 360 deployments and 360 answers, 720 × 2 ms = 1.44 s. 1 s is too short."""
    start = busy(tmp_path, "1 s")
    assert (start["recovered"], start["reason"]) == (False, "JobFailed")
    failed = start["rounds"][-1]
    assert failed["failure"] == "Ask timed out on [Actor[akka://flink/user/rpc/jobmaster]] after [1000 ms]"
    expired = [s for s in failed["segments"] if s["option"] == "akka.ask.timeout"]
    assert [(s["value"], s["outcome"], (s["end_ns"] - s["start_ns"]) / 1e9) for s in expired] == [("1 s", "expired", pytest.approx(1.0))]  # fmt: skip


def test_an_ask_timeout_above_the_queue_lets_the_same_job_start(tmp_path: Path):
    """The longest ask of 1.44 s is the margin of a timeout of 2 s."""
    start = busy(tmp_path, "2 s")
    assert start["recovered"]
    margins = {m["option"]: m for m in start["margins"]}
    assert margins["akka.ask.timeout"]["budget_s"] == 2.0
    assert 0.7 < margins["akka.ask.timeout"]["waited_s"] < 1.45
