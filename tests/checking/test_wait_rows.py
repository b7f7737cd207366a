"""Which waits a fault, a busy JobManager or a replacement owns, and the steps between the events of a deployment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.checking.steps import steps
from testbed_runtime.checking.waitcauses import behind_its_input
from testbed_runtime.checking.waits import SILENT, fault_wait, read_waits, without_splits
from testbed_runtime.core.job.splits import NEXT_SPLIT
from testbed_runtime.core.waits import KINDS, Wait
from tests.manifests import trial_entry

NS = 1_000_000_000


def fault(kind: str, *targets: str) -> FaultEffect:
    """A fault `f` over the first 9 s of the history."""
    return FaultEffect(
        fault="f", kind=kind, injected_ns=1000 * NS, ended_ns=1009 * NS, verified=True, residue=False,
        targets=json.dumps(targets), text="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "who", "words"),
    [
        (("tm-0", "tm-1"), "tm-1-1", "tm-1's return (paused by the fault `f`)"),
        (("tm-0", "tm-1"), "tm-2-1", KINDS["stalled"].doc),
        (("jobmanager",), "jobmanager-1", "the JobManager's return (paused by the fault `f`)"),
    ],
)
def test_a_process_that_stood_still_is_the_one_that_the_fault_paused(
    history: Any, targets: tuple[str, ...], who: str, words: str
):
    """One fault may pause several."""
    built = history.empty()
    built.wait("stalled", who, "", (1, 3))
    found = read_waits(built.trial(), trial_entry(), [fault("process.pause", *targets)], history.at(9))
    assert [w.cause for w in found if w.who == who] == [words]


@pytest.mark.parametrize(
    ("kind", "targets", "plane", "since"),
    [
        ("network.latency", ["tm-1"], "data", 5.1),
        ("process.pause", ["tm-1"], "data", 5.1),
        ("network.reset", ["tm-2"], "data", 5.1),
        ("network.reset", ["tm-1->tm-2"], "data", 5.1),
        ("network.reset", ["tm-1"], "rpc", 5.1),
        ("process.kill", ["tm-2"], "data", 5.1),
        ("network.reset", ["tm-1"], "data", 8),
        ("network.reset", ["tm-2", "tm-0"], "data", 8),
        ("network.reset", ["tm-1->tm-0"], "data", 8),
        ("network.partition", [], "data", 8),
        ("process.kill", ["tm-1"], "data", 8),
    ],
)
def test_a_connection_is_waited_for_since_the_newest_fault_that_could_close_it(
    history: Any, kind: str, targets: list[str], plane: str, since: float
):
    """The connection between tm-0 and tm-1 is half-open from 5.1 s on, and something else begins at 8 s."""
    built = history.empty(lambda table, row: row | {"wait": "tm-0-1/1"} if table == "waits" else row)
    built.wait("connection", "count-0", "tm-1-1", (4, 9))
    effects = [
        replace(fault(kind, *targets), injected_ns=history.at(8), plane=plane),
        replace(fault("network.half-open", "tm-1"), fault="half", injected_ns=history.at(5.1)),
    ]
    (found,) = read_waits(built.trial(), trial_entry(), effects, history.at(9.5))[:1]
    assert (found.kind, found.start_ns) == ("connection", history.at(since))


@pytest.mark.parametrize(
    ("kind", "ended", "running", "since"),
    [
        ("network.half-open", 9, 1, 3),
        ("network.half-open", 3.9, 1, 4),
        ("network.reset", 9, 1, 4),  # each new connection is refused at once
        ("process.kill", 9, 1, 3),
        ("process.kill", 9, 3.5, 4),
    ],
)
def test_a_connection_on_which_a_fault_lets_nothing_pass_is_waited_for_since_the_fault(
    history: Any, kind: str, ended: float, running: float, since: float
):
    """It began at 3 s. The gate received from another producer until 4 s, whose task waits for the close since then. A task that ran when its
    producer was killed only finds out then. One that was deployed later was refused."""
    built = history.empty(lambda table, row: row | {"wait": "tm-0-1/1"} if table == "waits" else row)
    built.wait("connection", "count-0", "tm-1-1", (4, 9))
    built.event("task.state", "count-0", running, data={"from": "INITIALIZING", "to": "RUNNING"})
    effect = replace(fault(kind, "tm-1"), injected_ns=history.at(3), ended_ns=history.at(ended))
    (found,) = read_waits(built.trial(), trial_entry(), [effect], history.at(9.5))[:1]
    assert (found.kind, found.start_ns) == ("connection", history.at(since))


def test_a_busy_jobmanager_owns_only_the_kinds_that_it_delays(history: Any):
    """Tasks connect by themselves."""
    built = history.empty()
    for kind in ("slot", "partition"):
        built.wait(kind, "x", "", (1, 3))
    entry = trial_entry({"configuration": {"headgate.jobmanager.service-time": "100 ms"}})
    found = {w.kind: w.cause for w in read_waits(built.trial(), entry, [], history.at(9))}
    assert found == {"slot": "headgate.jobmanager.service-time = 100 ms", "partition": KINDS["partition"].doc}


@pytest.mark.parametrize(
    ("kind", "missed", "cause", "detail"),
    [
        ("process.pause", False, "end of the fault `f`", "process.pause"),
        ("process.pause", True, "tm-1's return (paused by the fault `f`)", ""),
        ("process.kill", False, "end of the fault `f`", "process.kill"),
        ("process.kill", True, "the loss of tm-1 to be noticed", "fault `f`, process.kill"),
        ("frames.drop", True, "end of the fault `f`", "frames.drop"),
    ],
)
def test_a_job_that_did_not_survive_a_fault_waits_for_what_it_stopped(
    kind: str, missed: bool, cause: str, detail: str
):
    """One that survives waits for the end of the fault."""
    found = fault_wait(fault(kind, "tm-1"), 0, NS, missed=missed)
    assert (found.cause, found.detail) == (cause, detail)


@pytest.mark.parametrize(
    ("kind", "missed", "detail"),
    [
        ("frames.drop", False, "frames.drop, b-0 waited for credit of sink-0: o = 2"),
        ("network.latency", False, "network.latency, b-0 waited for credit of sink-0: o = 2"),
        ("process.kill", False, "process.kill, b-0 waited for credit of sink-0: o = 2"),
        ("process.kill", True, "fault `f`, process.kill"),
        *((kind, False, kind) for kind in ("process.pause", "jobmanager.pause", "jobmanager.kill", *SILENT)),
    ],
)
def test_the_sender_that_waited_longest_for_credit_is_named_if_more_credit_could_help(
    kind: str, missed: bool, detail: str
):
    """Three waited for more than half of the fault. A process that stands still returns no credit, and none passes a cut."""
    waits = [
        Wait(wait=f"w/{n}", kind="credit", who=who, what="sink-0", start_ns=0, end_ns=end * NS, option="o", value="2")
        for n, (who, end) in enumerate((("a-0", 6), ("b-0", 9), ("c-0", 7)))
    ]  # fmt: skip
    assert fault_wait(fault(kind, "tm-1"), 0, 10 * NS, waits, missed=missed).detail == detail


@pytest.mark.parametrize(("second", "found"), [((4, 8), "1"), ((4, 6), "0"), ((4, 5), None)])
def test_the_longest_wait_of_the_source_that_lacked_splits_for_half_of_the_time_is_named(
    second: tuple[int, int], found: str | None
):
    """The first wait lasts from 0 to 3 s of 8 s. Another source waited for 3 s, and another wait is for no split."""
    rows = ("0", "a-0", NEXT_SPLIT, (0, 3)), ("1", "a-0", NEXT_SPLIT, second), ("2", "b-0", NEXT_SPLIT, (0, 3)), ("3", "a-0", "", (0, 8))  # fmt: skip
    waits = [
        Wait(wait=name, kind="jobmanager", who=who, what=what, start_ns=a * NS, end_ns=b * NS)
        for name, who, what, (a, b) in rows
    ]
    split = without_splits(waits, 0, 8 * NS)
    assert (None if split is None else split.wait) == found


def test_the_start_of_a_replacement_ends_when_it_begins_to_register_with_the_resourcemanager(history: Any):
    """Neither a later registration with the JobMaster nor another of its waits ends it."""
    built = history.empty()
    built.event("process.exit", "tm-1-1", 2)
    built.event("taskmanager.registered", "tm-1-2", 8)
    built.wait("registration", "tm-1-2", "ResourceManager", (5, 8))
    built.wait("registration", "tm-1-2", "JobMaster", (7, 8.5))
    built.wait("stalled", "tm-1-2", "", (7.5, 9))
    (start,) = [w for w in read_waits(built.trial(), trial_entry(), [], history.at(20)) if w.kind == "start"]
    assert (start.start_ns, start.end_ns) == (history.at(2), history.at(5))


POD = ("Kubernetes", "tm-1-101")


@pytest.mark.parametrize(
    ("pending", "image", "expected"),
    [
        # the seconds of Kubernetes may be up to one before the end of the delay
        ((3.1, 4.1), (4.1, 7.1), [("pending", 4, 4.1), ("image", 4.1, 7.1), ("start", 7.1, 9)]),
        ((5.0, 6.0), (6.0, 7.0), [("pending", 4, 6), ("image", 6, 7), ("start", 7, 9)]),
        # scheduled and started within the same second as it was created
        ((4.0, 4.0), (4.0, 4.0), [("start", 4, 9)]),
        ((4.0, 4.0), (4.0, 9.5), [("image", 4, 9)]),
    ],
)
def test_the_steps_of_a_pod_follow_the_delay_without_gaps(
    history: Any, pending: tuple[float, float], image: tuple[float, float], expected: list[Any]
):
    """Its container starts the process, which registers at 9 s; 2 s of replaceLost end at 4 s."""
    built = history.empty()
    built.event("process.exit", "tm-1-1", 2)
    built.event("taskmanager.registered", "tm-1-101", 9.5)
    built.wait("registration", "tm-1-101", "ResourceManager", (9, 9.5))
    built.wait("pending", *POD, pending)
    built.wait("image", *POD, image)
    entry = trial_entry({"job": {"taskManagers": {"replaceLost": "2 s"}}})
    found = read_waits(built.trial(), entry, [], history.at(20))
    steps = [(w.kind, w.start_ns, w.end_ns) for w in found if w.kind in ("pending", "image", "start")]
    assert steps == [(kind, history.at(a), history.at(b)) for kind, a, b in expected]
    assert [(w.start_ns, w.end_ns) for w in found if w.kind == "replacement"] == [
        (history.at(2), history.at(4))
    ]


def test_a_pod_whose_predecessor_recorded_no_end_was_due_when_it_was_created(history: Any):
    """A deleted pod may end before it has recorded that. Without a registration the steps stay as they were recorded."""
    built = history.empty()
    built.event("taskmanager.registered", "tm-1-101", 9)
    built.wait("image", *POD, (5, 7))
    built.wait("pending", *POD, (3, 5))
    built.wait("pending", "Kubernetes", "tm-2-101", (3, 6), outcome="open")
    found = read_waits(built.trial(), trial_entry(), [], history.at(20))
    assert [(w.kind, w.what, w.start_ns, w.end_ns) for w in found] == [
        ("pending", "tm-1-101", history.at(3), history.at(5)),
        ("pending", "tm-2-101", history.at(3), history.at(6)),
        ("image", "tm-1-101", history.at(5), history.at(7)),
        ("start", "tm-1-101", history.at(7), history.at(9)),
    ]


@pytest.mark.parametrize("kind", ["pod.delete", "pod.evict"])
def test_a_pod_that_a_fault_removes_is_replaced_from_the_fault_on(history: Any, kind: str):
    """It records no end. The start that the supervisor of the next pod recorded begins with its container, and is not there twice."""
    built = history.empty()
    built.event("taskmanager.registered", "tm-1-101", 9.02)
    built.wait("registration", "tm-1-101", "ResourceManager", (9, 9.02))
    built.wait("image", *POD, (2, 5))
    built.wait("start", "supervisor", "tm-1-101", (7, 9.01))
    effect = replace(fault(kind, "tm-1"), injected_ns=history.at(1))
    found = read_waits(
        built.trial(),
        trial_entry({"job": {"taskManagers": {"replaceLost": "2 s"}}}),
        [effect],
        history.at(20),
    )
    assert [(w.kind, w.start_ns, w.end_ns) for w in found if w.kind != "registration"] == [
        ("replacement", history.at(1), history.at(3)),
        ("image", history.at(3), history.at(5)),
        ("start", history.at(5), history.at(9.01)),
    ]


EVENTS = {
    "failover.cancelled": (0.5, 1), "failover.slots": (1.5, 2), "failover.deployed": (3, 3.2), "gate.connected": (3.5, 3.8, 4),
}  # fmt: skip


@pytest.mark.parametrize(
    ("without", "running", "expected"),
    [
        ((), 5, [("cancellation", 0, 1), ("slot", 1, 2), ("deployment", 2, 3), ("partition", 3, 4), ("first-record", 4, 5)]),
        ((), None, [("cancellation", 0, 1), ("slot", 1, 2), ("deployment", 2, 3), ("partition", 3, 4), ("first-record", 4, 9)]),
        # a JobMaster that hears of the deployment after the sinks
        (("failover.deployed",), 5, [("cancellation", 0, 1), ("slot", 1, 2), ("deployment", 2, 4), ("first-record", 4, 5)]),
        # what was not recorded is part of the next step
        (("failover.cancelled",), 5, [("slot", 0, 2), ("deployment", 2, 3), ("partition", 3, 4), ("first-record", 4, 5)]),
        (("gate.connected",), 5, [("cancellation", 0, 1), ("slot", 1, 2), ("deployment", 2, 3), ("first-record", 3, 5)]),
        # a step that did not end lasts until the end, and none follows
        (("gate.connected", "failover.deployed"), None, [("cancellation", 0, 1), ("slot", 1, 2), ("deployment", 2, 9)]),
        (tuple(EVENTS), None, [("cancellation", 0, 9)]),
    ],
)  # fmt: skip
def test_the_steps_of_a_restart_end_with_its_events(
    history: Any, without: tuple[str, ...], running: float | None, expected: list[Any]
):
    """The last cancellation, the last slots and the last connection count, but the first deployment."""
    built = history.empty()
    for kind, moments in EVENTS.items():
        for t in moments if kind not in without else ():
            built.event(kind, "1", t)
    ran = None if running is None else history.at(running)
    found = steps(built.trial(), since=history.at(0), until=history.at(9), restart=True, running_ns=ran)
    assert [(s.kind, s.start_ns, s.end_ns) for s in found] == [(k, history.at(a), history.at(b)) for k, a, b in expected]  # fmt: skip


def test_the_first_start_is_deployed_when_its_last_task_runs(history: Any):
    """Its slots are there when the first task is deployed. Without a first record no deployment is complete."""
    built = history.empty()
    for t, to in ((1, "DEPLOYING"), (1.5, "DEPLOYING"), (2, "RUNNING"), (2.5, "RUNNING"), (3, "RUNNING")):
        built.event("task.state", "sink-0", t, data={"to": to})
    for running, expected in (
        (4, [("slot", 0, 1), ("deployment", 1, 3), ("first-record", 3, 4)]),
        (None, [("slot", 0, 1), ("deployment", 1, 9)]),
    ):
        ran = None if running is None else history.at(running)
        found = steps(built.trial(), since=history.at(0), until=history.at(9), restart=False, running_ns=ran)
        assert [(s.kind, s.start_ns, s.end_ns) for s in found] == [(k, history.at(a), history.at(b)) for k, a, b in expected]  # fmt: skip


PARTITION, ANSWER = KINDS["partition"].doc, "the answer of a channel's producer"


@pytest.mark.parametrize(
    ("kind", "states", "end", "words"),
    [
        ("registration.delay", [(0, "RUNNING"), (1, "CANCELED"), (7, "RUNNING")], 7, f"{PARTITION}, during the fault `f`"),
        ("registration.delay", [(0, "RUNNING")], 7, ANSWER),
        ("network.partition", [(0, "RUNNING"), (1, "CANCELED")], 7, f"{PARTITION}, during the fault `f`"),
        ("network.partition", [(0, "RUNNING")], 7, f"{ANSWER}, during the fault `f`"),
        ("network.partition", [(2.02, "RUNNING")], 12, f"{ANSWER}, during the fault `f`"),
        ("network.partition", [(2.05, "RUNNING")], 4.5, f"{ANSWER}, during the fault `f`"),  # a fiftieth of the wait
        ("network.partition", [(2.051, "RUNNING")], 4.5, f"{PARTITION}, during the fault `f`"),
        ("frames.drop", [(2.15, "RUNNING")], 9.25, f"{PARTITION}, during the fault `f`"),
        ("frames.drop", [(2, "RUNNING")], 9.25, f"{ANSWER}, during the fault `f`"),
        ("frames.drop", [(2, "RUNNING")], 9.26, f"{ANSWER}, which the fault `f` has dropped"),
    ],
)  # fmt: skip
def test_a_producer_that_runs_owes_an_answer_only(history: Any, kind: str, states: Any, end: Any, words: str):
    """The request waits from 2 s on. What a fault has dropped, until 9 s, never comes."""
    built = history.empty()
    for t, state in states:
        built.event("task.state", "map-0", t, attempt=0, data={"from": "", "to": state})
    built.wait("partition", "sink-0", "map-0", (2, end), outcome="cancelled")
    (found,) = [
        w
        for w in read_waits(built.trial(), trial_entry(), [fault(kind)], history.at(20))
        if w.kind == "partition"
    ]
    assert found.cause == words
    assert found.producer_ran is words.startswith(ANSWER)


@pytest.mark.parametrize(
    ("kind", "outcome", "fault_kind", "limited"),
    [
        ("partition", "completed", "network.partition", False),
        ("partition", "completed", "network.half-open", False),
        ("partition", "completed", "network.latency", True),
        ("partition", "expired", "network.partition", True),
        ("restore", "completed", "network.partition", True),
    ],
)
def test_a_request_that_could_not_arrive_had_no_limit(
    history: Any, kind: str, outcome: str, fault_kind: str, *, limited: bool
):
    """Its limit counts from the producer's answer, or at the producer. A request that expired had one, and a slow answer has too."""
    built = history.empty()
    built.wait(kind, "sink-0", "map-0", (2, 7), ("o", "10 s", 22.7), outcome)
    found = read_waits(built.trial(), trial_entry(), [fault(fault_kind)], history.at(20))
    (own,) = (w for w in found if w.kind == kind)
    assert (own.fault, own.option, own.value) == ("f", *(("o", "10 s") if limited else ("", "")))
    assert own.budget_ns == (22_700_000_000 if limited else -1)


@pytest.mark.parametrize(
    ("kind", "ran", "end"),
    [
        ("", [4], 4),
        ("", [0, 4], 4),
        ("", [0], 2),
        ("", [6.98], 6.98),
        ("", [6.981], 7),
        ("registration.delay", [4], 4),
        ("registration.delay", [0, 4], 4),
        ("registration.delay", [4, 5], 5),
        ("registration.delay", [0], 7),
        ("network.latency", [4], 7),
    ],
)
def test_a_completed_wait_for_a_partition_ended_when_its_producer_ran(
    history: Any, kind: str, ran: list[float], end: float
):
    """Its first data came at 7 s. A fault on the exchange may have delayed them, one on registrations only the producer, each attempt
    of which ended after 0.5 s if the fault began."""
    built = history.empty()
    for t in ran:
        built.event("task.state", "map-0", t, attempt=0, data={"from": "", "to": "RUNNING"})
        if kind:
            built.event("task.state", "map-0", t + 0.5, attempt=0, data={"from": "RUNNING", "to": "CANCELED"})
    built.wait("partition", "sink-0", "map-0", (2, 7))
    found = read_waits(built.trial(), trial_entry(), [fault(kind)] if kind else [], history.at(20))
    assert [w.end_ns for w in found if w.kind == "partition"] == [history.at(end)]


def test_the_words_of_a_row_do_not_say_whether_a_producer_ran(history: Any):
    """Only the states of its task do: this producer was never deployed."""
    built = history.empty()
    built.wait("partition", "sink-0", "map-0", (2, 7), outcome="failed", cause=ANSWER)
    found = read_waits(built.trial(), trial_entry(), [fault("registration.delay")], history.at(20))
    assert [w.cause for w in found if w.kind == "partition"] == [f"{PARTITION}, during the fault `f`"]


@pytest.mark.parametrize(("later", "expected"), [(1, [(1, 9)]), (2, [(1, 4), (4, 9)])])
def test_a_restart_delay_that_a_merged_failure_divides_is_one_wait(history: Any, later: int, expected: Any):
    """The failure at 4 s belongs to the same restart, or begins the next one."""
    built = history.empty()
    delay = ("restart-strategy.exponential-delay.initial-backoff", "8 s", 8.0)
    built.wait("restart-delay", "JobMaster", "", (1, 4), delay, "cancelled", attempt=1)
    built.wait("restart-delay", "JobMaster", "", (4, 9), delay, "fired", attempt=later)
    found = [
        w for w in read_waits(built.trial(), trial_entry(), [], history.at(20)) if w.kind == "restart-delay"
    ]
    spans = [(history.at(a), history.at(b)) for a, b in expected]
    assert [(w.start_ns, w.end_ns) for w in found] == spans
    assert found[-1].outcome == "fired"
    assert found[0].cause == (KINDS["restart-delay"].doc if later == 1 else f"{delay[0]} = 8 s")


@pytest.mark.parametrize(
    ("requests", "since"),
    [
        ([(3, 4), (11, 15.1), (14, 15.1)], 11),  # two regions wait for slots
        ([(3, 15.1)], 9),  # it was asked before the JobManager was stopped
        ([(16, 17)], 9),
    ],
)
def test_a_taskmanager_registers_with_the_jobmaster_for_the_first_request_that_still_waits(
    history: Any, requests: list[tuple[float, float]], since: float
):
    """The JobManager is back at 9 s, and the registration ends at 15 s."""
    built = history.empty()
    built.wait("registration", "tm-0-1", "JobMaster", (2, 15))
    for span in requests:
        built.wait("slot", "JobMaster", "4 slots", span)
    effects = [fault("jobmanager.kill", "jobmanager")]
    found = [
        w
        for w in read_waits(built.trial(), trial_entry(), effects, history.at(20))
        if w.kind == "registration"
    ]
    assert [w.start_ns for w in found] == [history.at(since)]


@pytest.mark.parametrize(
    ("what", "kind", "since"), [("JobMaster", "registration", 9), (NEXT_SPLIT, "jobmanager", 2)]
)
def test_a_source_that_waits_for_a_split_does_not_register_again(
    history: Any, what: str, kind: str, since: float
):
    """The JobManager is paused until 9 s, and answers at 12 s."""
    built = history.empty()
    built.wait("jobmanager", "source-0", what, (2, 12), attempt=0)
    effect = fault("jobmanager.pause", "jobmanager")
    found = read_waits(built.trial(), trial_entry(), [effect], history.at(20))
    (asked,) = [w for w in found if w.who == "source-0"]
    assert (asked.kind, asked.start_ns) == (kind, history.at(since))
    split = without_splits(found, history.at(2), history.at(12))
    assert (split is not None) == (what == NEXT_SPLIT)
    assert split is None or "paused by the fault `f`" in split.cause


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], [f"{KINDS['first-record'].doc}, during the fault `f`"]),
        ([("sink-0", 5)], []),
        ([("sink-0", 1)], [f"{KINDS['first-record'].doc}, during the fault `f`"]),  # of a deployment before
        ([("sink-0", 5), ("sink-3", 1)], [f"{KINDS['first-record'].doc}, during the fault `f`"]),
    ],
)
def test_a_sink_without_keys_waits_for_no_record(
    history: Any, records: list[tuple[str, float]], words: list[str]
):
    """Sink 3 was closed without a record. It waited for none if it never gets one, while another sink did."""
    built = history.empty()
    for task, t in records:
        built.event("sink.first-record", task, t, attempt=0)
    built.wait("first-record", "sink-3", "", (2, 18), outcome="cancelled", attempt=0)
    found = read_waits(built.trial(), trial_entry(), [fault("network.latency", "tm-1")], history.at(20))
    assert [w.cause for w in found] == words


@pytest.mark.parametrize(
    ("timeout", "words"),
    [
        ("0 ms", KINDS["first-record"].doc),
        ("2 s", KINDS["first-record"].doc),
        ("2001 ms", "execution.buffer-timeout.interval = 2001 ms"),
        ("", "a full buffer or a checkpoint"),
    ],
)
def test_a_first_record_waits_for_the_flush_of_its_buffer(history: Any, timeout: str, words: str):
    """Nothing was busy for the 2 s until it. Without a timeout, only full buffers are sent."""
    built = history.empty()
    built.wait("first-record", "sink-0", "", (2, 4), attempt=0)
    option = {"interval": timeout} if timeout else {"enabled": "false"}
    entry = trial_entry(
        {"configuration": {f"execution.buffer-timeout.{key}": value for key, value in option.items()}}
    )
    (found,) = read_waits(built.trial(), entry, [], history.at(20))
    assert words in found.cause


@pytest.mark.parametrize(
    ("killed", "replaced", "noticed"),
    [
        ("tm-1", (2, 5), (0, 2)),
        ("tm-1", (0.005, 5), None),
        ("tm-1", (0.006, 5), (0, 0.006)),
        ("tm-2", (2, 5), None),
    ],
)
def test_a_supervisor_that_notices_an_exit_late_has_the_time_before_the_replacement(
    history: Any, killed: str, replaced: tuple[float, float], noticed: tuple[float, float] | None
):
    """The replacement begins when the supervisor has noticed the exit, up to 5 ms after the kill on an idle machine."""
    built = history.empty()
    built.wait("replacement", "supervisor", "tm-1-2", replaced)
    found = read_waits(built.trial(), trial_entry(), [fault("process.kill", killed)], history.at(9))
    (coming,) = (w for w in found if w.kind == "replacement")
    before = [w for w in found if w.wait in coming.after]
    assert [(w.start_ns, w.end_ns) for w in before] == ([tuple(map(history.at, noticed))] if noticed else [])
    assert all(w.cause == "the supervisor to notice that tm-1 has ended" for w in before)


def test_each_replacement_belongs_to_the_last_kill_before_it(history: Any):
    """The process is killed at 0, 3 and 6 s, and ends by itself at 8.5 s. Its kill at 3 s came before the supervisor noticed the first one."""
    built = history.empty()
    for span in ((4, 5), (7, 8), (8.5, 9)):
        built.wait("replacement", "supervisor", "tm-1-2", span)
    kills = [
        replace(fault("process.kill", "tm-1"), fault=f"kill {t}", injected_ns=history.at(t))
        for t in (0, 3, 6)
    ]
    found = read_waits(built.trial(), trial_entry(), kills, history.at(9))
    noticed = [(w.start_ns, w.end_ns) for w in found if w.kind == "start"]
    assert noticed == [(history.at(3), history.at(4)), (history.at(6), history.at(7))]


PRODUCT_LIMIT = ("heartbeat.interval × heartbeat.rpc-failure-threshold", "1 s × 2", 2.0)


@pytest.mark.parametrize(
    ("losses", "killed", "since"),
    [
        ({"tm-1-1": 8}, ("tm-1",), 5),
        ({"tm-1-1": 7.995}, ("tm-1",), 5),
        ({"tm-1-1": 7.994}, ("tm-1",), 2),  # the cancellation went on after that loss
        ({"tm-1-1": 8, "tm-2-1": 8}, ("tm-1", "tm-2"), 5),
        ({"tm-1-1": 8, "tm-2-1": 8}, ("tm-1",), 2),  # the other one did not answer before
        ({"tm-1-1": 8}, ("tm-2",), 2),
    ],
)
def test_a_cancellation_waits_for_failing_calls_only_from_the_kill_on(
    history: Any, losses: dict[str, float], killed: tuple[str, ...], since: float
):
    """Tasks have been cancelled since 2 s. At 5 s processes are killed, and the cancellation ends at 8 s with the loss of TaskManagers."""
    built = history.empty()
    built.wait("cancellation", "JobMaster", "2 tasks", (2, 8), PRODUCT_LIMIT, "expired")
    for name, end in losses.items():
        built.wait("heartbeat", "JobMaster", name, (1, end), PRODUCT_LIMIT, "expired")
    effects = [replace(fault("process.kill", *killed), injected_ns=history.at(5), ended_ns=history.at(6))]
    found = read_waits(built.trial(), trial_entry(), effects, history.at(9.5))
    own = sorted((w for w in found if w.kind == "cancellation"), key=lambda w: w.start_ns)
    before = [] if since == 2 else [(history.at(2), history.at(since), "", -1, "completed")]
    limited = (history.at(since), history.at(8), PRODUCT_LIMIT[0], 2 * NS, "expired")
    assert [(w.start_ns, w.end_ns, w.option, w.budget_ns, w.outcome) for w in own] == [*before, limited]
    assert len({w.wait for w in own}) == len(own)
    beats = {w.what: w.start_ns for w in found if w.kind == "heartbeat"}
    assert beats == {name: history.at(5 if name[:4] in killed else 1) for name in losses}


@pytest.mark.parametrize(
    ("share", "span", "more", "works"),
    [
        (0.5, (4, 8), {}, True),
        (0.4, (4, 8), {}, False),
        (1, (4, 4.25), {}, True),
        (1, (4, 4.2), {}, False),  # no longer than usual
        (1, (4, 8), {"who": "sink-0"}, False),
        (1, (4, 8), {"kind": "partition"}, False),
        (1, (4, 8), {"option": "o"}, False),
        (1, (4, 8), {"fault": "f"}, False),
    ],
)
def test_a_task_that_works_on_its_input_notices_later_that_a_connection_was_closed(
    history: Any, share: float, span: tuple[float, float], more: dict[str, str], *, works: bool
):
    """It is sampled every 50 ms, and works for a share of the time."""
    built = history.empty()
    for tick in range(201):
        busy = round(share * tick * NS / 20)
        built.add("tm-0-1", "tasks", tick / 20, task="count-0", vertex="count", role="operator", busy_ns=busy)
    wait = Wait(wait="w", kind="connection", who="count-0", what="tm-1-1", start_ns=history.at(span[0]), end_ns=history.at(span[1]), cause="c")  # fmt: skip
    wait = replace(wait, **more)
    words = "the work of `count` on its input, before it notices the close of a connection"
    assert behind_its_input(built.trial(), wait) == (replace(wait, cause=words) if works else wait)
