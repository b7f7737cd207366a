"""The limit for a job's start follows from its options and from the faults before its submission."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from testbed_runtime.api.compile import compile_run
from testbed_runtime.api.validate import validate
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SourceConfig
from testbed_runtime.core.options import Options
from testbed_runtime.core.trial.plan import TrialPlan
from testbed_runtime.core.trial.startlimit import BASE_S, MOST_S, partition_budget_s, start_limit
from tests.runner.conftest import SCENARIO


def plan(tmp_path: Any, version: str = "2.x", late: str = "", **configuration: str) -> TrialPlan:
    """A plan whose producers register late: the fault begins before the submission and lasts `late`."""
    document = yaml.safe_load(SCENARIO)
    testbed = document["spec"]["testbed"]
    testbed["flinkVersion"] = version
    testbed["flinkConfiguration"] |= configuration
    if late:
        document["spec"]["faults"] = [
            {"name": "late", "at": "deploy", "duration": late, "target": {"taskManagers": {}}, "registration": {"delay": {"delay": "3 s"}}}
        ]  # fmt: skip
    return compile_run(validate(document).valid(), scenario_folder=tmp_path).trials[-1]


def test_a_job_without_faults_before_its_submission_has_the_base(tmp_path: Any):
    """Budgets matter only if something delays the start."""
    assert start_limit(plan(tmp_path)).seconds == BASE_S


@pytest.mark.parametrize(("maximum", "budget"), [("10 s", 22.7), ("60 s", 162.3), ("240 s", 649.5)])
def test_the_budget_of_partition_requests_before_1_19(maximum: str, budget: float):
    """Flink's documentation names 22.7, 162 and 650 s: 100 ms doubled up to the maximum, and the maximum once more."""
    options = Options({"taskmanager.network.request-backoff.max": maximum}, flink_version="1.12")
    assert partition_budget_s(options) == pytest.approx(budget, rel=0.01)


def test_the_budget_of_partition_requests_since_1_19():
    """The request waits at the producer, again while the sum is below twice the maximum backoff."""
    assert partition_budget_s(Options({})) == 20.0


def test_a_late_producer_may_use_its_whole_budget_once_more(tmp_path: Any):
    """The fault's time, then one deployment with its ask timeout, slots, partition requests and restart delay."""
    config = {
        "taskmanager.network.request-backoff.max": "60 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "7 s",
        "slot.request.timeout": "50 s",
        "akka.ask.timeout": "11 s",
    }
    limit = start_limit(plan(tmp_path, "1.12", "40 s", **config))
    assert limit.seconds == pytest.approx(60 + 40 + 162.3 + 7 + 50 + 11)
    assert "faults before the submission 40.0 s" in limit.text
    assert "partition requests 162 s" in limit.text


def test_the_service_time_of_every_deployment_counts(tmp_path: Any):
    """Three tasks with a deployment, its answer and two reports each, at 20 s for each message."""
    slow = {"headgate.jobmanager.service-time": "20 s"}
    assert start_limit(plan(tmp_path, **slow)).seconds == pytest.approx(60 + 3 * 4 * 20)


def test_the_limit_is_limited(tmp_path: Any):
    """A budget of days is no reason to wait for days."""
    endless = {"taskmanager.network.request-backoff.max": "10 d"}
    assert start_limit(plan(tmp_path, "1.12", "40 s", **endless)).seconds == MOST_S
    assert partition_budget_s(Options(endless, flink_version="1.12")) == MOST_S


def test_the_last_end_of_several_early_faults_counts(tmp_path: Any):
    """They begin together. A fault after the submission delays no start."""
    one = plan(tmp_path, "1.12", "40 s")
    [fault] = one.faults
    shorter = replace(fault, name="shorter", duration_s=25.0)
    later = replace(fault, name="later", duration_s=99.0, before_submit=False)
    several = replace(one, faults=(shorter, fault, later))
    assert start_limit(several) == start_limit(one)
    assert start_limit(replace(one, faults=(later,))).seconds == BASE_S


def test_a_job_with_a_blocking_result_first_has_to_write_it(tmp_path: Any):
    """The slowest of its sources decides: 3,000 records at 20 a second take 150 s."""
    one = plan(tmp_path)
    sources = [SourceConfig(records_per_second=rate, limit=3000) for rate in (100.0, 20.0)]
    vertices = (
        *(JobVertex(f"s{i}", 1, 128, source=source) for i, source in enumerate(sources)),
        JobVertex("sink", 1, 128),
    )
    edges = tuple(
        JobEdge(f"s{i}", "sink", result=result) for i, result in enumerate(("blocking", "pipelined"))
    )
    job = JobGraph("j", vertices, edges)
    limit = start_limit(replace(one, testbed=replace(one.testbed, job=job)))
    assert (limit.seconds, limit.text) == (210.0, "210 s (base 60 s, blocking results 150 s)")
