"""The steps of a deployment whose producers have blocking results."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.faults import FaultEffect, check_faults
from testbed_runtime.checking.steps import blocking_producers, steps
from testbed_runtime.checking.waits import read_waits
from testbed_runtime.core.waits import KINDS
from tests.manifests import trial_entry

NS = 1_000_000_000
WORK = "the work of `map`, whose consumers are deployed when it has finished"


@pytest.mark.parametrize(
    ("finished", "running", "last"),
    [
        (6.0, 7.0, [("deployment", 2, ""), ("first-record", 6, WORK), ("partition", 6.5, ""), ("first-record", 7, "")]),
        (None, None, [("deployment", 2, ""), ("first-record", 9, WORK)]),
    ],
)  # fmt: skip
def test_the_time_of_a_blocking_producer_is_its_own(history: Any, finished: Any, running: Any, last: Any):
    """Its consumers are deployed when it has FINISHED, after a restart as after a start; until then it works."""
    built = history.empty()
    for t, task, state in (
        (1.0, "map-0", "DEPLOYING"),
        (2.0, "map-0", "RUNNING"),
        (finished and 5.0, "map-1", "FINISHED"),  # the last one counts
        (finished, "map-0", "FINISHED"),
    ):
        if t is not None:
            built.event("task.state", task, t, attempt=0, data={"from": "", "to": state})
    for kind, t in (("slots", 1.0), ("deployed", 2.0)):
        built.event(f"failover.{kind}", "1", t)
    if finished:
        built.event("task.state", "sink-0", 6.2, attempt=0, data={"from": "", "to": "RUNNING"})
        built.event("gate.connected", "sink-0", 6.5, attempt=0)
    for restart in (True, False):
        found = steps(
            built.trial(), since=history.at(0), until=history.at(9), restart=restart,
            running_ns=history.at(running) if running else None, producers=frozenset({"map"}),
        )  # fmt: skip
        ends = [(s.kind, (s.end_ns - history.start) / NS, s.cause if s.cause == WORK else "") for s in found]
        assert [e for e in ends if e[0] not in ("cancellation", "slot")] == last


def test_the_manifest_names_the_vertices_with_blocking_results(history: Any):
    """Others are pipelined."""
    edges = [
        {"from": "a", "to": "b", "result": "blocking"},
        {"from": "b", "to": "c", "result": "pipelined"},
        {"from": "c", "to": "d"},
    ]
    assert blocking_producers(history.entry(job={"edges": edges})) == {"a"}
    assert blocking_producers(trial_entry()) == frozenset()


def test_the_fault_of_a_wait_is_the_one_that_was_active_for_most_of_it(history: Any):
    """A store that is slow for 8 s explains a restore of 2 s, and a reset of 200 ms within it does not."""
    built = history.empty()
    for name, kind, start, end in (("slow", "store.slow", 1.0, 9.0), ("reset", "network.reset", 4.0, 4.2)):
        for t, state in ((start, "injected"), (start, "verified"), (end, "ended")):
            built.add("supervisor", "faults", t, fault=name, kind=kind, state=state, targets=["tm-1"])
    built.wait("restore", "count-0", "1", (4.1, 6.1))
    trial, faults = (
        built.trial(),
        [
            {"name": n, "kind": k, "targets": ["tm-1"], "params": {}}
            for n, k in (("slow", "store.slow"), ("reset", "network.reset"))
        ],
    )
    entry = history.entry(faults=faults)
    found = read_waits(trial, entry, check_faults(trial, entry), history.at(9))
    (restore,) = [w for w in found if w.kind == "restore"]
    assert restore.fault == "slow"


@pytest.mark.parametrize(
    ("kind", "of_traffic", "ended", "blamed"),
    [
        ("restore", "network.latency", 9.0, "exact"),
        ("restore", "network.latency", 5.1, "exact"),  # half of the wait
        ("restore", "network.latency", 5.0, "traffic"),
        ("partition", "frames.delay", 9.0, "exact"),
        ("checkpoint", "network.latency", 9.0, "exact"),
    ],
)
def test_a_fault_on_what_was_waited_for_comes_before_one_on_all_traffic(
    history: Any, kind: str, of_traffic: str, ended: float, blamed: str
):
    """The wait lasts from 4.1 s to 6.1 s. The fault on the traffic lasts longer, and is named last."""
    built, family = history.empty(), "registration.delay" if kind == "partition" else "store.slow"
    built.wait(kind, "count-0", "source-0", (4.1, 6.1))
    effects = [
        FaultEffect(
            fault=name, kind=of, injected_ns=history.at(start), ended_ns=history.at(end), verified=True, residue=False,
            targets='["tm-1"]', text="",
        )
        for name, of, start, end in (("exact", family, 2.0, ended), ("traffic", of_traffic, 1.0, 9.0))
    ]  # fmt: skip
    found = read_waits(built.trial(), trial_entry(), effects, history.at(9))
    assert [w.fault for w in found if w.kind == kind] == [blamed]


DELAYED = "restart-strategy.fixed-delay.delay = 10 s"
MILESTONES = {
    "failover.started": {"region": ["count-0"]},
    "task.state": {"from": "CREATED", "to": "SCHEDULED"},
}


@pytest.mark.parametrize(
    ("delay_s", "milestones", "expected"),
    [
        (10.0, ["failover.started"], [("cancellation", 2.0, KINDS["cancellation"].doc)]),
        (10.0, ["failover.started", "failover.cancelled"], [("restart-delay", 2.0, DELAYED)]),
        (0.0, ["failover.started", "failover.cancelled"], [("fencing", 2.5, KINDS["fencing"].doc)]),
        (10.0, ["failover.started", "failover.cancelled", "task.state"], [("slot", 3.0, KINDS["slot"].doc)]),
        # the tasks restore their state, as no fault makes their deployment slow
        (10.0, ["failover.started", "failover.cancelled", "task.state", "failover.slots"], []),
        (10.0, ["failover.started", "failover.cancelled", "task.state", "failover.slots", "failover.deployed"], []),
        (10.0, ["task.state"], []),
    ],
)  # fmt: skip
def test_a_killed_jobmanager_waited_for_the_next_step_of_its_restart(
    history: Any, delay_s: float, milestones: list[str], expected: Any
):
    """Its milestones are half a second apart, and it was killed at 5 s, so it could not record the wait. The next one recovers the job
    at 7 s."""
    built = history.empty()
    for number, kind in enumerate(milestones):
        subject = "count-0" if kind == "task.state" else "1"
        delay = {"delay_s": delay_s, "delay_option": "restart-strategy.fixed-delay.delay"}
        facts = MILESTONES.get(kind, {}) | (delay if kind == "failover.started" else {})
        built.event(kind, subject, 2 + number / 2, data=facts)
        if kind == "failover.started":
            built.event("job.state", "1", 2, data={"from": "RUNNING", "to": "RESTARTING"})
    built.add("supervisor", "events", 5.0, kind="process.exit", subject="jobmanager-1")
    built.add("tm-1-1", "events", 7.0, kind="failover.started", subject="2")
    entry = history.entry()
    chosen = {**entry.configuration, "restart-strategy.fixed-delay.delay": f"{delay_s:g} s"}
    entry = replace(entry, configuration=chosen)
    found = read_waits(built.trial(), entry, (), history.at(9))
    assert [(w.kind, (w.start_ns - history.start) / NS, w.cause) for w in found] == expected
    assert all(w.end_ns == history.at(7) for w in found)


def test_a_killed_jobmanager_waited_for_tasks_that_a_fault_deployed_late(history: Any):
    """It had slots at 3 s and was killed at 5 s, while each SubmitTask took 3 s. The kill itself made none of them late."""
    built = history.empty()
    for number, kind in enumerate(("failover.started", "failover.cancelled", "failover.slots")):
        built.event(kind, "1", 2 + number / 2)
    faults = [("slow", "rpc.delay", "tm-0", 1.0), ("kill", "jobmanager.kill", "jobmanager", 4.9)]
    for name, kind, target, begun in faults:
        for t, state in ((begun, "injected"), (begun, "verified"), (9.0, "ended")):
            built.add("supervisor", "faults", t, fault=name, kind=kind, state=state, targets=[target])
    built.add("supervisor", "events", 5.0, kind="process.exit", subject="jobmanager-1")
    for count, deployments in ((2, ["slow"]), (1, [])):
        planned = [{"name": n, "kind": k, "targets": [t], "params": {}} for n, k, t, _ in faults[-count:]]
        entry, trial = history.entry(faults=planned), built.trial()
        effects = [e for e in check_faults(trial, entry) if e.fault in {f["name"] for f in planned}]
        found = read_waits(trial, entry, effects, history.at(9))
        assert [w.fault for w in found if w.kind == "deployment"] == deployments


def test_a_cancellation_ended_with_its_own_restart(history: Any):
    """The next restart has nothing to cancel, and begins when the round ends: that is no cancellation of the first one."""
    built = history.empty()
    for number, t in (("1", 1.0), ("2", 5.0)):
        built.event("failover.started", number, t)
        built.event("failover.cancelled", number, t)
    found = steps(built.trial(), since=history.at(1), until=history.at(5), restart=True, running_ns=None)
    assert [s.kind for s in found] == ["slot"]


INTERVAL, ENABLED = "execution.buffer-timeout.interval", "execution.buffer-timeout.enabled"
DOC = KINDS["first-record"].doc


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({}, DOC),
        ({INTERVAL: "5 s"}, DOC),
        ({INTERVAL: "6 s"}, "records in buffers that are not full, which execution.buffer-timeout.interval = 6 s had not flushed yet"),
        ({ENABLED: "false"}, "a full buffer or a checkpoint, which alone send records without execution.buffer-timeout.enabled"),
    ],
)  # fmt: skip
def test_a_first_record_may_be_in_a_buffer_that_nothing_has_flushed_yet(
    history: Any, options: dict[str, str], cause: str
):
    """The sink waited for 5 s, and no operator was at work. A shorter interval would have flushed the buffer."""
    built = history.empty()
    built.wait("first-record", "sink-0", "", (1.0, 6.0), attempt=0)
    entry = history.entry(configuration=options)
    (found,) = [w for w in read_waits(built.trial(), entry, (), history.at(9)) if w.kind == "first-record"]
    assert found.cause == cause


def test_the_wait_for_an_input_names_it(history: Any):
    """A consumer of a blocking result is deployed with it."""
    built = history.empty()
    built.wait("input", "JobMaster", "result of map", (1.0, 2.0))
    (found,) = read_waits(built.trial(), trial_entry(), (), history.at(9))
    assert found.cause == "the result of map, with which its consumers are deployed"


@pytest.mark.parametrize(
    ("to", "took_s", "worked_s", "cause"),
    [
        ("sink", 5, 0.0, "the end of a window of `window`"),
        ("sink", 5, 4.0, "the work of `window` before the first new record at a sink"),
        ("sink", 0.2, 0.0, KINDS["first-record"].doc),
        ("source", 5, 0.0, KINDS["first-record"].doc),
    ],
)
def test_the_first_record_behind_a_window_waits_for_its_end(
    history: Any, to: str, took_s: float, worked_s: float, cause: str
):
    """Unless the window's operator was at work, or the source sends to the sink itself, too."""
    vertices = [{"name": n, "parallelism": 1, "kind": k, "role": r} for n, k, r in (
        ("source", "generated", "source"), ("window", "window", "operator"), ("sink", "ledger", "sink"),
    )]  # fmt: skip
    edges = [{"from": "source", "to": "window"}, {"from": "window", "to": "sink"}]
    if to == "source":
        edges.append({"from": "source", "to": "sink"})
    built = history.empty()
    for t, share in ((1.0, 0), (1 + took_s, worked_s)):
        built.add(
            "tm-0-1",
            "tasks",
            t,
            task="window-0",
            vertex="window",
            attempt=0,
            role="operator",
            busy_ns=round(share * NS),
        )
    built.wait("first-record", "sink-0", "", (1.0, 1 + took_s), attempt=0)
    entry = history.entry(job={"vertices": vertices, "edges": edges})
    (found,) = [w for w in read_waits(built.trial(), entry, (), history.at(9)) if w.kind == "first-record"]
    assert found.cause == cause
