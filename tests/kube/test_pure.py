"""The pure parts of a run in a cluster: manifests, readiness, status, report, the client's events."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.api import limits, naming, views
from testbed_runtime.api.compile import compile_testbed
from testbed_runtime.api.kinds import ScenarioRun, Testbed, TestbedResourceSpec
from testbed_runtime.api.status import (
    MAX_ANSWER,
    MAX_TEXT,
    ActiveFault,
    FaultResult,
    JobNow,
    RecoveryResult,
    RunReport,
    ScenarioRunStatus,
    TrialResult,
    read,
    to_json,
)
from testbed_runtime.api.views import Run
from testbed_runtime.checking.prices import prices
from testbed_runtime.core.judgement.metrics import MetricRow
from testbed_runtime.core.judgement.recovery import Recovery, Round, Segment, TrialRecovery
from testbed_runtime.kube import client_run
from testbed_runtime.kube.api import encoded
from testbed_runtime.kube.host import RunAccess, capabilities, readiness, trial_testbed
from testbed_runtime.kube.progress import RunStatus, answer_of, measured, read_report, report_map
from testbed_runtime.ports.hosts import TrialContext
from testbed_runtime.runner import progress as p
from tests.entry.pods import SPEC
from tests.manifests import run_manifest
from tests.metricrows import metric_row
from tests.verdicts import run_verdict

NOW = datetime(2026, 1, 1, tzinfo=UTC)

RUN = Run(
    {
        "apiVersion": naming.API_VERSION,
        "kind": "ScenarioRun",
        "metadata": {"name": "late", "namespace": "shop", "uid": "u-1"},
    }
)
PLACE = RunAccess("shop", "late", "secret", ("late-recorder.shop.svc", 6126), RUN)
TRIAL = TrialContext("late", "main-1", 7)


def made(**spec):
    testbed = compile_testbed(TestbedResourceSpec.model_validate({**SPEC, **spec}), seed=7)
    return trial_testbed(replace(testbed, proxy=True), PLACE, TRIAL)


def condition(kind: str, status: str, message: str = "", generation: int = 1) -> dict:
    condition = {"type": kind, "status": status, "reason": "Because", "message": message}
    return {**condition, "observedGeneration": generation}


def resource(*conditions: dict) -> dict:
    return {"metadata": {"generation": 1}, "status": {"conditions": list(conditions)}}


def test_the_testbed_of_a_trial_waits_for_the_runner_and_records_at_the_runs_recorder():
    """Suspended, with the run's token by reference, the proxy, and the trial's part of the recorder; a valid Testbed."""
    document = made(pods={"packetFaults": True})
    spec = document["spec"]
    assert (spec["jobState"], spec["seed"]) == ("suspended", 7)
    assert spec["recorder"] == "late-recorder.shop.svc:6126/t/main-1"
    assert spec["pods"] == {"packetFaults": True, "proxy": True, "tokenSecret": "late-token"}
    assert document["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert "secret" not in json.dumps(document)
    assert Testbed.model_validate({
        **document, "metadata": {"name": document["metadata"]["name"]}
    }).spec.trial == "main-1"  # fmt: skip


def test_each_trial_has_a_testbed_of_its_own():
    """A repeated trial never uses the pods of the first one."""
    again = trial_testbed(
        compile_testbed(TestbedResourceSpec.model_validate(SPEC), seed=7),
        PLACE,
        TrialContext("late", "main-1-r2", 7),
    )
    assert again["metadata"]["name"] != made()["metadata"]["name"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), (False, "", "the operator has not reconciled it yet")),
        ((condition("Ready", "True"),), (True, "", "the operator has not reconciled it yet")),
        ((condition("Ready", "False", "1 of 3 TaskManagers"),), (False, "", "1 of 3 TaskManagers")),
        ((condition("Ready", "True", "old", 0),), (False, "", "the operator has not reconciled it yet")),
        (
            (condition("Accepted", "False", "job.vertices: empty"),),
            (False, "job.vertices: empty", "the operator has not reconciled it yet"),
        ),
        ((condition("Stalled", "True", "no image"),), (False, "", "it is stalled: no image")),
        (
            ({**condition("Stalled", "True", "NET_ADMIN"), "reason": "NotAdmitted"},),
            (False, "NET_ADMIN", "it is stalled: NET_ADMIN"),
        ),
    ],
)
def test_a_testbed_is_ready_when_its_current_generation_is(conditions, expected):
    """Refused, ready, or what it waits for."""
    assert readiness(views.Testbed(resource(*conditions))) == expected


def test_packets_need_the_agent():
    """Without it the reason names the field to set."""
    assert "nfqueue" in capabilities(packet_faults=True).backends
    assert "packetFaults" in capabilities(packet_faults=False).missing["nfqueue"]


def test_the_status_follows_the_run():
    """Phase, trial, counts; a void trial does not count."""
    status = RunStatus()
    for event in (
        p.RunStarted("late", "x", 2, 10.0),
        p.TrialStarted("main-1", 1, 5.0),
        p.PhaseEntered("main-1", "fault", 4.26),
        p.TrialEnded("main-1", "RUNNING", False, True, reason="the lease lapsed"),
        p.TrialStarted("main-1-r2", 1, 5.0),
        p.TrialEnded("main-1-r2", "FINISHED", True, False),
    ):
        status.apply(event, NOW)
    report = status.report
    assert (report.phase, report.trial, report.trials_done, report.trials_total) == (
        "Running",
        "main-1-r2",
        1,
        2,
    )
    assert [(t.name, t.voided, t.reason) for t in report.trials] == [
        ("main-1", True, "the lease lapsed"),
        ("main-1-r2", False, ""),
    ]
    status.complete("Pass", reason="", text="All hold.")
    assert (status.report.phase, status.report.verdict) == ("Complete", "Pass")


def test_a_run_that_is_suspended_after_a_look_evaluates_no_more():
    """It waits between two trials."""
    status = RunStatus()
    for event in (p.TrialStarted("main-1", 1, 5.0), p.Evaluating("looking"), p.Suspended("suspended: …")):
        status.apply(event, NOW)
    report = status.report
    assert (report.phase, report.trial, report.trial_phase, report.message) == (
        "Running",
        "",
        "",
        "suspended: …",
    )


def test_the_status_names_the_faults_that_act_and_when_they_end():
    """A fault leaves the list when it ends, and with its trial's testbed if its end was not confirmed."""
    status = RunStatus()
    for name in ("slow", "cut"):
        status.apply(p.FaultChanged(name, "network.latency", 5.0), NOW)
    status.apply(p.FaultChanged("slow", "network.latency", None), NOW)
    ends = "2026-01-01T00:00:05+00:00"
    assert status.report.active_faults == (ActiveFault("cut", "network.latency", ends),)
    status.apply(p.TrialEnded("main-1", "RUNNING", False, True, error="healing cut failed"), NOW)
    assert status.report.active_faults == ()


def test_a_restarted_runner_keeps_the_trials_of_the_one_before():
    """Their status entries stay."""
    trial = TrialResult(name="main-1", job_state="FINISHED")
    assert RunStatus(RunReport(trials=(trial,), phase="Running", message="x")).report.trials_done == 1


def test_recovery_and_faults_of_the_status_are_those_of_the_newest_trial_that_counts():
    """Taken from its metric rows."""
    fault = {"name": "kill", "backend": "supervisor", "why": "signals"}
    trials = [
        {"trial": "a-1", "faults": [fault]},
        {"trial": "a-2", "voided": True, "faults": [fault]},
    ]

    def row(metric: str, value: float, text: str = "") -> MetricRow:
        return metric_row(metric, value, text=text, trial="a-1")

    rows = [
        row("recovery.detect", 1.23456), row("delivery.lost", 0.0), row("delivery.duplicated", 3.0),
        row("fault.verified", 1.0, "kill"), row("fault.residue", 0.0),
    ]  # fmt: skip
    assert measured(run_manifest(trials), rows, {}) == {
        "recovery": RecoveryResult(trial="a-1", phases={"detect": 1.235}),
        "delivery": {"lost": 0, "duplicated": 3},
        "faults": (FaultResult(**fault, verified=True, residue=""),),
    }


def segment(kind: str, start_s: float, end_s: float, **owner: str) -> Segment:
    return Segment(kind=kind, phase="detect", start_ns=int(start_s * 1e9), end_ns=int(end_s * 1e9), **owner)


def test_the_status_has_the_rounds_of_each_outage_with_their_owners():
    """Round 1 lasts 5 s of the heartbeat timeout; round 2 waits 2 s + 1 s for one delay and 0.5 s for a cause: 8.5 s."""
    timeout = {"option": "heartbeat.timeout", "value": "5 s", "text": "heartbeat.timeout = 5 s"}
    delay = {"option": "restart.delay", "value": "1 s", "text": "restart.delay = 1 s"}
    rounds = (
        Round(number=1, start_ns=0, end_ns=5 * 10**9, cause="killed", ended_by="failure",
              segments=(segment("heartbeat", 0, 5, **timeout),)),
        Round(number=2, start_ns=5 * 10**9, end_ns=int(8.5e9), segments=(
            segment("delay", 5, 7, **delay), segment("deploy", 7, 7.5, text="deployment"),
            segment("delay", 7.5, 8.5, **delay))),
    )  # fmt: skip
    outage = Recovery(fault="kill", effect_ns=0, end_ns=int(8.5e9), downtime_s=8.0, rounds=rounds,
                      prices=prices(s for r in rounds for s in r.segments))  # fmt: skip
    found = measured(
        run_manifest([{"trial": "a-1"}]), [], {"a-1": TrialRecovery(trial="a-1", recoveries=(outage,))}
    )
    report = read(RunReport, json.loads(json.dumps(to_json(RunReport(**found)))))
    [one] = report.recovery.outages
    assert (one.seconds, one.downtime_seconds, one.fault) == (8.5, 8.0, "kill")
    assert [(o.option, o.value, o.seconds) for o in one.owners] == [
        ("heartbeat.timeout", "5 s", 5.0), ("restart.delay", "1 s", 3.0), ("", "", 0.5)
    ]  # fmt: skip
    assert [(r.number, r.seconds, [o.seconds for o in r.owners]) for r in one.rounds] == [
        (1, 5.0, [5.0]), (2, 3.5, [3.0, 0.5])
    ]  # fmt: skip
    assert "kill" in one.summary


def test_the_status_has_the_lines_of_the_answer_within_bounds():
    """Only these lines have the savings of lower values, and the intervals of several trials."""
    lines = ["main-1: down 1.72 s", "main-1: heartbeat: a lower value saves at most 700 ms"]
    assert answer_of(run_verdict(answer=lines)) == tuple(lines)
    assert answer_of(run_verdict()) == ()
    *long, rest = answer_of(run_verdict(answer=["x" * (MAX_TEXT + 1)] * (MAX_ANSWER + 1)))
    assert {len(line) for line in long} == {MAX_TEXT}
    assert (len(long), rest) == (MAX_ANSWER - 1, "… and 2 more lines in the report")


def test_a_status_with_the_recovery_of_an_earlier_release_can_be_read():
    """There it was a map from phase to seconds."""
    old = {"phase": "Complete", "recovery": {"detect": 1.2}}
    assert read(ScenarioRunStatus, old).recovery == RecoveryResult()


def test_a_report_goes_through_its_config_map_unchanged(tmp_path):
    """The page is compressed, the texts are not."""
    texts = {"report.html": "<p>ü</p>" * 1000, "report.md": "# x", "junit.xml": "<x/>", "verdict.json": "{}"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = report_map(RUN, tmp_path)
    assert found["metadata"]["name"] == "late-report"
    assert {n: d.decode() for n, d in read_report(found).items()} == texts


def test_what_does_not_fit_into_the_report_s_config_map_is_named(tmp_path, monkeypatch):
    """The verdict fits; for any other file the text names the recorder."""
    monkeypatch.setattr("testbed_runtime.kube.progress.MAX_REPORT_BYTES", 100)
    texts = {"report.html": random.Random(1).randbytes(200).hex(), "report.md": "x" * 101, "junit.xml": "<x/>", "verdict.json": "{}"}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = read_report(report_map(RUN, tmp_path))
    assert set(files) == {"verdict.json", "junit.xml", "too-large"}
    assert "/files/report.md, /files/report.html" in files["too-large"].decode()


def test_the_clients_events_are_those_of_a_local_run():
    """Derived from two statuses, and each one once."""
    before = ScenarioRunStatus(phase="Running")
    after = ScenarioRunStatus(
        phase="Running",
        trial="main-1",
        trial_phase="fault",
        remaining_seconds=3.0,
        job_state="RUNNING",
        message="fault kill",
    )
    kinds = [type(e) for e in client_run.events_of(before, after)]
    assert kinds == [p.TrialStarted, p.PhaseEntered, p.Notice, p.Sample]
    assert client_run.events_of(after, after) == []
    assert p.Sample not in map(type, client_run.events_of(before, replace(after, job_state="")))
    ended = TrialResult(name="main-1", job_state="FINISHED")
    done = replace(after, phase="Evaluating", trial="", trial_phase="", message="", trials=(ended,))
    assert client_run.events_of(after, done) == [
        p.TrialEnded("main-1", "FINISHED", True, False, "", ""),
        p.Evaluating("evaluating the history"),
    ]


def test_the_numbers_of_a_job_reach_the_terminal_through_the_status_of_its_run():
    """Without the counters that no line shows. The next trial begins without numbers."""
    counters = {"records_per_s": 511.23456, "credits": 2.0, "lag_s": 0.01, "records_in": 9.0}
    job = JobNow(running_tasks=2, total_tasks=3, restarts=1, checkpoints=4, counters=counters)
    sample = p.Sample(5.0, "RUNNING", job)
    status = RunStatus()
    status.apply(p.TrialStarted("main-1", 1, 9.0), NOW)
    before = read(ScenarioRunStatus, to_json(status.report))
    status.apply(sample, NOW)
    shown = {"records_per_s": 511.235, "credits": 2.0, "lag_s": 0.01}
    after = read(ScenarioRunStatus, to_json(status.report))
    assert client_run.events_of(before, after)[-1] == replace(sample, job=replace(job, counters=shown))
    ends = [
        p.TrialStarted("main-2", 2, 9.0),
        p.TrialEnded("main-1", "FINISHED", True, False),
        p.Evaluating("evaluating"),
    ]
    for end in ends:
        status.apply(sample, NOW)
        status.apply(end, NOW)
        left = to_json(status.report)
        assert (left["job"], left.get("jobState"), left.get("remainingSeconds")) == ({}, None, None)


def test_a_run_between_two_trials_is_in_no_phase_of_a_trial():
    """The operator sees by that that a suspended run waits."""
    status = RunStatus()
    for event in (p.TrialStarted("main-1", 1, 9.0), p.PhaseEntered("main-1", "dispose", None)):
        status.apply(event, NOW)
    assert status.report.trial_phase == "dispose"
    status.apply(p.TrialEnded("main-1", "FINISHED", True, False), NOW)
    assert (status.report.phase, status.report.trial_phase) == ("Running", "")


def test_the_run_of_a_document_is_valid_and_its_name_is_short_enough():
    """Also for a scenario with the longest name. A week after its end it is deleted, because pipelines delete nothing."""
    document = {
        "metadata": {"name": "s" * 60},
        "spec": {"testbed": SPEC, "timeline": {}, "faults": [], "expect": []},
    }
    name = client_run.run_name("s" * 60)
    assert len(name) <= limits.MAX_RUN_NAME
    found = client_run.manifest(document, name=name, namespace="shop", variants=["a"], control=False)
    checked = ScenarioRun.model_validate({**found, "metadata": {"name": name}})
    assert (checked.spec.control, checked.spec.variants) == (False, ["a"])
    assert checked.spec.ttl_seconds_after_finished == 7 * 24 * 3600


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5))
@example({"report.md": "a heavy 💥, a \x7f, a \x9f and a \ufeff"})
def test_a_request_body_is_both_json_and_yaml(document: dict[str, str]):
    """The API server parses an apply as YAML, whose escape rules differ from JSON's."""
    sent = encoded({"data": document})
    assert json.loads(sent) == yaml.safe_load(sent) == {"data": document}
