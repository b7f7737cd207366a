"""The connections of a TaskExecutor: when it registers again, what it offers, and which waits it records."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.job.limits import option_limit, reachability_limit
from testbed_runtime.core.job.messages import (
    Acknowledge,
    OfferSlots,
    RegisterAtJobMaster,
    RegisterTaskManager,
    RegistrationResult,
    SlotOfferResult,
    SlotReport,
)
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable, RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.connections import (
    JobConnection,
    PeerWatch,
    ResourceManagerConnection,
    WaitScope,
)
from testbed_runtime.taskmanager.gateway import JobMasterGateway
from testbed_runtime.taskmanager.slots import TaskSlotTable
from tests.taskmanager.rows import NamedRows

T0_S = 1000.0
"""The time at which a virtual loop begins."""
OPTIONS = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "cluster.registration.initial-timeout": "100 ms",
    "cluster.registration.error-delay": "2 s",
    "cluster.registration.refused-registration-delay": "3 s",
    "taskmanager.registration.timeout": "20 s",
}
DOWN, LATE, BROKEN = (
    RecipientUnreachable("refused"),
    AskTimeout("late"),
    RemoteFailure("Exception", "no leader"),
)
REGISTRATION = RegisterTaskManager("tm-0-1", ("tm-0", 1), 1)
REFUSED, REJECTED = RegistrationResult("failure"), RegistrationResult("rejection", reason="unknown job")


def leader(name: str) -> RegistrationResult:
    return RegistrationResult("success", name)


class Peer(NamedRows):
    """A JobManager that gives these answers to registrations, the last one again and again, and what a TaskManager does."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)
        self.offers: deque[Any] = deque()
        self.reports: deque[Any] = deque()
        """The answers to slot reports. The others are acknowledged."""
        self.reported: list[SlotReport] = []
        self.done: list[tuple[Any, ...]] = []
        """The calls and callbacks, with times in ms."""
        self.waits: list[tuple[Any, ...]] = []
        """Kind, peer, begin and end in seconds, option and outcome."""
        self.causes: list[str] = []
        log = WaitLog(self, "tm-0-1", asyncio.get_running_loop().time)
        self.scope = WaitScope(Options(OPTIONS), log, "tm-0-1")

    def did(self, *what: Any) -> None:
        self.done.append((*what, round((asyncio.get_running_loop().time() - T0_S) * 1000)))

    def append(self, table: str, **row: Any) -> None:
        assert (table, row["who"]) == ("waits", "tm-0-1")
        times = (round(row[name] / 1e9 - T0_S, 3) for name in ("start_ns", "t_ns"))
        self.waits.append((row["kind"], row["what"], *times, row["option"], row["outcome"]))
        self.causes.append(row["cause"])

    async def ask(
        self, peer: str, address: Any, endpoint: str, message: Any, *, timeout_s: float, call_id: str = ""
    ) -> Any:
        offer = isinstance(message, OfferSlots)
        if isinstance(message, SlotReport):
            answer = self.reports.popleft() if self.reports else Acknowledge()
            self.reported.append(message)
        else:
            self.did(("offer", message.slots) if offer else "register", round(timeout_s * 1000))
            answers = self.offers if offer else self.answers
            answer = answers.popleft() if len(answers) > 1 or offer else answers[0]
        if callable(answer):
            answer = answer(self)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, AskTimeout):
            await asyncio.sleep(timeout_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def resourcemanager(self) -> ResourceManagerConnection:
        given: Any = self
        return ResourceManagerConnection(
            given, ("jobmanager", 1), self.scope, message=lambda: REGISTRATION, allocations=lambda: ((0, "x"),),
            on_fatal=lambda text: self.did("fatal", text),
            on_given_up=lambda message: self.did("given up", message.cause),
        )  # fmt: skip

    def job(self, *allocations: str, lost: Any = None, given_up: Any = None) -> JobConnection:
        """A connection to the JobMaster of `job`, with these slots."""
        slots = TaskSlotTable(8, 100.0)
        for index, allocation in enumerate(allocations):
            slots.allocate(index, allocation, "job", T0_S)
        self.slots = slots
        given: Any = self
        gateway = JobMasterGateway(given, ("jobmanager", 1), "job", "a", "tm-0-1", 0.5)
        return JobConnection(
            gateway,
            RegisterAtJobMaster("tm-0-1", ("tm", 1), ("tm", 2), "job", "a", 7),
            slots,
            scope=self.scope,
            on_lost=lambda connection: self.did("lost"),
            on_slot_refused=lambda slot, cause: self.did("refused", slot.allocation, cause),
            on_slot_gone=lambda connection, allocation, cause: self.did("gone", allocation, cause),
            lost=lost,
            given_up=given_up,
        )


def during(seconds: float, act: Any, *steps: tuple[float, Any], answers: Any) -> Peer:
    """The peer after this time. `act` makes the connection; steps are called with it, each after some seconds."""

    async def main() -> Peer:
        peer = Peer(*answers)
        connection = act(peer)
        for at, step in steps:
            asyncio.get_running_loop().call_later(at, step, connection)
        await asyncio.sleep(seconds)
        await connection.close()
        await asyncio.sleep(30.0)
        return peer

    return run_virtual(main())


def registering(peer: Peer) -> ResourceManagerConnection:
    connection = peer.resourcemanager()
    connection.connect()
    return connection


def registered(leader: str) -> Any:
    return lambda connection: connection.on_heartbeat(leader)


# ---- the ResourceManager


def test_a_taskmanager_registers_once_however_often_it_is_asked():
    """J-91: testSimpleSuccessfulRegistration. The wait for it ends with the answer."""
    peer = during(1.0, registering, (0.0, lambda c: c.connect()), answers=[leader("a")])
    assert peer.done == [("register", 100, 0)]
    assert peer.waits == [
        ("registration", "ResourceManager", 0.0, 0.0, "taskmanager.registration.timeout", "completed")
    ]


@pytest.mark.parametrize(
    ("answer", "times", "option"),
    [
        (LATE, [0, 100], ""),
        (DOWN, [0, 500], ""),
        (BROKEN, [0, 2000], "cluster.registration.error-delay"),
        (REFUSED, [0, 3000], "cluster.registration.refused-registration-delay"),
    ],
    ids=["timeout", "unreachable", "error", "refused"],
)
def test_a_registration_is_tried_again_after_a_delay_by_its_outcome(
    answer: Any, times: list[int], option: str
):
    """J-92: testRetryOnError, testRetryConnectOnFailure. A delay decides when the wait ends. A timeout doubles, without a pause."""
    peer = during(10.0, registering, answers=[answer, leader("a")])
    timeouts = [100, 200 if answer is LATE else 100]
    assert peer.done[:2] == [("register", timeout, at) for timeout, at in zip(timeouts, times, strict=True)]
    expected = (option or "taskmanager.registration.timeout", "fired" if option else "completed")
    assert peer.waits[0] == ("registration", "ResourceManager", 0.0, times[1] / 1000, *expected)


def test_a_rejected_taskmanager_terminates():
    """J-93: testRegistrationRejection. With the reason, also of its wait."""
    peer = during(10.0, registering, answers=[REJECTED])
    text = (
        "The TaskExecutor's registration at the ResourceManager pekko.tcp://flink@jobmanager:1/user/rpc/resourcemanager has been "
        "rejected: Rejected TaskExecutor registration at the ResourceManager because: unknown job"
    )
    assert peer.done == [("register", 100, 0), ("fatal", text, 0)]
    assert (peer.waits[0][-1], peer.causes) == ("failed", ["unknown job"])


def test_a_taskmanager_that_cannot_register_in_time_terminates():
    """J-102: testMaximumRegistrationDuration. After taskmanager.registration.timeout, which its wait has spent."""
    peer = during(30.0, registering, answers=[DOWN])
    assert peer.done[-1][0] == "fatal"
    assert "maximum registration duration 20 s" in peer.done[-1][1]
    assert peer.done[-1][2] == 20_000
    assert len(peer.done) == 41
    assert peer.waits == [
        ("registration", "ResourceManager", 0.0, 20.0, "taskmanager.registration.timeout", "expired")
    ]


@pytest.mark.parametrize(
    ("answer", "last"),
    [(REFUSED, ("register", 100, 18_000)), (LATE, ("register", 12_800, 12_700))],
    ids=["delay", "attempt"],
)
def test_the_time_to_register_ends_during_a_delay_or_an_attempt(answer: Any, last: Any):
    """J-102: testMaximumRegistrationDuration. Its timer waits for neither."""
    peer = during(30.0, registering, answers=[answer])
    assert peer.done[-2] == last
    assert (peer.done[-1][0], peer.done[-1][2]) == ("fatal", 20_000)


def test_a_taskmanager_registers_again_when_the_resourcemanager_falls_silent():
    """J-103: testMaximumRegistrationDurationAfterConnectionLoss. The wait is that for the JobManager, since it was heard of last. It
    was there all the time if it answers at once."""
    peer = during(6.4, registering, (1.0, registered("a")), (1.5, registered("b")), answers=[leader("a")])
    text = "The heartbeat of ResourceManager with id a timed out."
    assert peer.done == [("register", 100, 0), ("given up", text, 6000), ("register", 100, 6000)]
    assert peer.waits[1:] == [
        ("heartbeat", "ResourceManager", 1.0, 6.0, "heartbeat.timeout", "expired"),
        ("jobmanager", "ResourceManager", 1.0, 6.0, "heartbeat.timeout", "expired"),
    ]
    late = during(9.0, registering, (1.0, registered("a")), answers=[leader("a"), DOWN, leader("b")])
    assert late.waits[2] == ("jobmanager", "ResourceManager", 1.0, 6.5, "", "completed")
    never = during(40.0, registering, (1.0, registered("a")), answers=[leader("a"), DOWN])
    option = "taskmanager.registration.timeout"
    assert never.waits[2] == ("jobmanager", "ResourceManager", 1.0, 26.0, option, "expired")


@pytest.mark.parametrize(
    ("step", "registrations"),
    [
        (lambda c: c.disconnected("a"), 2),
        (lambda c: c.disconnected("b"), 1),
        (lambda c: c.disconnected(""), 1),
        (lambda c: c.on_leader("b"), 2),
        (lambda c: c.on_leader("a"), 1),
        (lambda c: c.extend(5.0), 2),
        (lambda c: c.extend(4.9), 1),
    ],
    ids=["disconnected", "by another", "by none", "new leader", "known leader", "long stall", "stall"],
)
def test_a_taskmanager_registers_again_when_it_was_given_up(step: Any, registrations: int):
    """J-104: testReconnectionAttemptIfExplicitlyDisconnected, testTriggerRegistrationOnLeaderChange. Its ResourceManager gave it up, or
    there is a new one. After a stall of a whole timeout it was given up too."""
    peer = during(4.0, registering, (1.0, step), answers=[leader("a")])
    assert [what for what, *_ in peer.done].count("register") == registrations


@pytest.mark.parametrize(
    ("failure", "after_s"),
    [(LATE, 10.0), (BROKEN, 0.0), (DOWN, 0.0)],
    ids=["timeout", "error", "unreachable"],
)
def test_a_taskmanager_whose_slot_report_fails_disconnects_and_registers_again(failure: Any, after_s: float):
    """TaskExecutor.establishResourceManagerConnection. The report names its registration and the slots that are allocated."""

    def act(peer: Peer) -> ResourceManagerConnection:
        peer.reports.append(failure)
        return registering(peer)

    answers = [RegistrationResult("success", "a", registration=n) for n in (3, 4)]
    beats = [(at, registered("a")) for at in (3.0, 6.0, 9.0, 12.0)]
    peer = during(12.5, act, *beats, answers=answers)
    text = "Failed to send initial slot report to ResourceManager."
    at = round(after_s * 1000)
    assert peer.done == [("register", 100, 0), ("given up", text, at), ("register", 100, at)]
    assert peer.reported == [SlotReport("tm-0-1", "a", n, ((0, "x"),)) for n in (3, 4)]
    expired = ("registration", "ResourceManager", 0.0, 10.0, "pekko.ask.timeout", "expired")
    assert peer.waits.count(expired) == (failure is LATE)


def test_a_new_leader_replaces_a_registration_that_is_in_progress():
    """It is not waited for."""
    peer = during(1.0, registering, (0.5, lambda c: c.on_leader("b")), answers=[BROKEN, leader("b")])
    assert [at for *_, at in peer.done] == [0, 500]


def test_a_heartbeat_counts_only_from_the_leader_at_which_a_taskmanager_is_registered():
    """Others get no answer, as in Flink."""

    async def main() -> None:
        connection = Peer(leader("a")).resourcemanager()
        assert not connection.on_heartbeat("")
        assert not connection.is_registered
        connection.connect()
        await connection.registered()
        assert connection.is_registered
        assert [connection.on_heartbeat(name) for name in ("a", "b", "")] == [True, False, False]
        connection.disconnected("a")
        assert not connection.is_registered
        assert not connection.on_heartbeat("a")
        await connection.close()

    run_virtual(main())


def test_a_late_heartbeat_is_a_wait_that_ended_well():
    """More than half of the timeout was used up."""
    peer = during(5.0, registering, (2.6, registered("a")), (4.0, registered("a")), answers=[leader("a")])
    assert peer.waits[1:] == [("heartbeat", "ResourceManager", 0.0, 2.6, "heartbeat.timeout", "completed")]


def test_a_watch_that_is_started_again_counts_from_then_on():
    """A new connection to the same peer; the silence is reported once."""

    async def main() -> list[float]:
        silent: list[float] = []
        now = asyncio.get_running_loop().time
        watch = PeerWatch(Peer(leader("a")).scope, "JobMaster", lambda: silent.append(now() - T0_S))
        watch.start()
        await asyncio.sleep(2.0)
        watch.start()
        await asyncio.sleep(20.0)
        return silent

    assert run_virtual(main()) == [7.0]


# ---- the JobMaster


def offering(*allocations: str, offers: Any = (), lost: bool = False) -> Any:
    def act(peer: Peer) -> JobConnection:
        peer.offers.extend(offers)
        wait = peer.scope.away("JobMaster", T0_S - 9.0) if lost else None
        connection = peer.job(*allocations, lost=wait)
        connection.offer()
        return connection

    return act


def both(first: str, second: str) -> tuple[Any, ...]:
    return ("offer", ((0, first), (1, second)))


def test_the_slots_of_a_job_are_offered_when_its_jobmaster_is_registered():
    """Those that it takes are active and not offered again; the others are freed."""
    act = offering("x", "y", offers=[SlotOfferResult(("x",)), SlotOfferResult(("y",))])
    peer = during(1.0, act, (0.5, lambda c: c.offer()), answers=[leader("a")])
    cause = "The slot was rejected by the JobManager."
    offered = [("register", 100, 0), (both("x", "y"), 500, 0), ("refused", "y", cause, 0)]
    assert peer.done == [*offered, (("offer", ((1, "y"),)), 500, 500)]
    assert [(s.allocation, s.active) for s in peer.slots.of_job("job")] == [("x", True), ("y", True)]
    assert peer.waits[0] == ("registration", "JobMaster", 0.0, 0.0, "", "completed")


def test_slots_are_offered_again_after_a_timeout_and_freed_after_another_failure():
    """J-105: testOfferSlotToJobMasterAfterTimeout. Without a pause: the ask timeout was one. A job without slots offers nothing."""
    act = offering("x", "y", offers=[LATE, SlotOfferResult(("x", "y"))])
    peer = during(1.0, act, answers=[leader("a")])
    assert [at for *_, at in peer.done] == [0, 0, 500]
    for error in (DOWN, BROKEN):
        peer = during(1.0, offering("x", "y", offers=[error]), answers=[leader("a")])
        assert peer.done[2:] == [("refused", name, str(error), 0) for name in ("x", "y")]
    assert [d[0] for d in during(1.0, offering(), answers=[leader("a")]).done] == ["register"]


def test_a_slot_that_became_active_or_free_during_a_failed_offer_is_not_freed():
    """The JobMaster has deployed a task into it, or another has it."""

    def fail(peer: Peer) -> Exception:
        peer.slots.mark_active("x", "job")
        peer.slots.release("y")
        return DOWN

    peer = during(1.0, offering("x", "y", offers=[fail]), answers=[leader("a")])
    assert [d[0] for d in peer.done] == ["register", ("offer", ((0, "x"), (1, "y")))]


def accepting(*allocations: str, after_s: float) -> Any:
    """An answer to an offer that comes after some time."""
    return lambda peer: asyncio.sleep(after_s, SlotOfferResult(allocations))


@pytest.mark.parametrize(
    ("first", "second", "kept"), [((), ("x", "y"), ["x", "y"]), (("x",), (), [])], ids=["J-59", "J-60"]
)
def test_J_59_J_60_only_the_answer_to_the_last_offer_counts(
    first: tuple[str, ...], second: tuple[str, ...], kept: list[str]
):
    """A slot that comes while an offer is on its way is offered at once, together with the others."""

    def allocate(connection: JobConnection) -> None:
        connection._slots.allocate(1, "y", "job", T0_S)
        connection.offer()

    offers = [accepting(*first, after_s=0.2), accepting(*second, after_s=0.2)]
    peer = during(1.0, offering("x", offers=offers), (0.1, allocate), answers=[leader("a")])
    offered = [(("offer", ((0, "x"),)), 500, 0), (both("x", "y"), 500, 100)]
    assert peer.done[1:3] == offered
    assert [slot.allocation for slot in peer.slots.of_job("job", active=True)] == kept
    refused = [name for kind, name, *_ in peer.done[3:] if kind == "refused"]
    assert refused == [name for name in ("x", "y") if name not in kept]


def test_the_answer_to_an_earlier_offer_says_when_a_slot_was_accepted_that_a_task_has_activated():
    """The last offer does not have that slot. Without this time, a heartbeat that does not name it any more would not free it."""

    def activate(connection: JobConnection) -> None:
        connection._slots.mark_active("x", "job")
        connection._slots.allocate(1, "y", "job", T0_S)
        connection.offer()

    def accepted(name: str, at: float) -> Any:
        return lambda peer: asyncio.sleep(0.2, SlotOfferResult((name,), at))

    offers = [accepted("x", 3.0), accepted("y", 4.0)]
    peer = during(1.0, offering("x", offers=offers), (0.1, activate), answers=[leader("a")])
    assert [d[1] for d in peer.done if d[0] == "refused"] == []
    assert [s.allocation for s in peer.slots.unused("job", ((1, "y"),), asked_at=3.5)] == ["x"]


def test_the_timeout_of_an_offer_is_ignored_after_a_later_one():
    """The later one has the same slot."""
    offers = [LATE, accepting("x", after_s=0.9)]
    peer = during(2.0, offering("x", offers=offers), (0.1, lambda c: c.offer()), answers=[leader("a")])
    assert [at for *_, at in peer.done] == [0, 0, 100]
    assert [slot.active for slot in peer.slots.of_job("job")] == [True]


@pytest.mark.parametrize("act", [TaskSlotTable.release, TaskSlotTable.mark_releasing])
def test_an_accepted_slot_that_was_freed_meanwhile_is_failed_at_the_jobmaster(act: Any):
    """It is free already, or when its last task has ended (TaskExecutor.handleAcceptedSlotOffers)."""
    offers = [accepting("x", "y", after_s=0.2)]
    step = (0.1, lambda c: act(c._slots, "x"))
    peer = during(1.0, offering("x", "y", offers=offers), step, answers=[leader("a")])
    assert peer.done[2:] == [("gone", "x", "Could not mark slot x active.", 200)]
    assert [slot.allocation for slot in peer.slots.of_job("job", active=True)] == ["y"]


def test_a_jobmaster_that_rejects_the_registration_gets_no_slots():
    """They are freed, and the wait has failed."""
    peer = during(1.0, offering("x", "y"), answers=[REJECTED])
    cause = "JobManager job has rejected the registration."
    assert peer.done[1:] == [("refused", name, cause, 0) for name in ("x", "y")]
    assert (peer.waits[0][-1], peer.causes) == ("failed", ["unknown job"])


def test_a_registration_at_a_jobmaster_is_tried_again_after_the_delay_of_an_error_also_if_it_is_unreachable():
    """In Flink the leader election says which address is right."""
    peer = during(5.0, offering(), answers=[DOWN, leader("a")])
    assert [at for *_, at in peer.done] == [0, 2000]
    assert peer.waits[0][2:] == (0.0, 2.0, "cluster.registration.error-delay", "fired")


def test_a_jobmaster_is_lost_when_it_falls_silent():
    """J-106: testHeartbeatTimeoutWithJobManager. Heartbeats of another leader do not count."""
    steps = [(1.0, registered("a")), (2.0, registered("b"))]
    peer = during(9.0, offering(), *steps, answers=[leader("a")])
    assert peer.done[1:] == [("lost", 6000)]
    stalled = during(4.0, offering(), (1.0, lambda c: c.extend(5.0)), answers=[leader("a")])
    assert stalled.done[1:] == [("lost", 1000)]
    given_up = during(9.0, offering(), (1.0, lambda c: c.stop_watching()), answers=[leader("a")])
    assert given_up.done[1:] == []


def test_a_jobmaster_is_established_from_its_answer_until_it_is_given_up():
    """Before it, and afterwards, its heartbeats get no answer."""

    async def main() -> None:
        connection = Peer(leader("a")).job()
        assert (connection.established, connection.on_heartbeat("a")) == (False, False)
        connection.offer()
        await asyncio.sleep(0.1)
        assert (connection.established, connection.on_heartbeat("a")) == (True, True)
        assert (connection.job, connection.session) == ("job", 7)
        connection.stop_watching()
        assert (connection.established, connection.on_heartbeat("a")) == (False, False)
        await connection.close()

    run_virtual(main())


def test_the_wait_for_a_lost_jobmaster_goes_on_with_the_connection_to_the_next():
    """It ends with its registration; a connection that ends before hands it over."""
    peer = during(1.0, offering(lost=True), answers=[leader("a")])
    assert peer.waits == [("jobmanager", "JobMaster", -9.0, 0.0, "", "completed")]
    handed: list[Any] = []
    peer = during(1.0, offering(lost=True), (0.5, lambda c: handed.append(c.hand_over())), answers=[BROKEN])
    assert (peer.waits, [wait.kind for wait in handed]) == ([], ["jobmanager"])
    cancelled = during(1.0, offering(lost=True), answers=[BROKEN])
    assert cancelled.waits == [("jobmanager", "JobMaster", -9.0, 1.0, "", "cancelled")]


@pytest.mark.parametrize(
    ("lost", "answer"), [(False, BROKEN), (True, leader("a"))], ids=["a first connection", "it has ended"]
)
def test_only_an_open_wait_for_a_jobmaster_is_handed_over(lost: bool, answer: Any):
    """Another wait belongs to its connection."""
    handed: list[Any] = []
    step = (0.5, lambda c: handed.append(c.hand_over()))
    during(1.0, offering(lost=lost), step, answers=[answer])
    assert handed == [None]


@pytest.mark.parametrize(
    ("answer", "option"),
    [(BROKEN, "heartbeat.interval × heartbeat.rpc-failure-threshold"), (leader("a"), "heartbeat.timeout")],
    ids=["never connected", "connected"],
)
def test_the_limit_after_which_a_jobmaster_was_given_up_is_handed_over_with_the_wait(
    answer: Any, option: str
):
    """It belongs to the JobMaster before this one for as long as this one has not answered."""
    limits: list[Any] = []

    def act(peer: Peer) -> JobConnection:
        unreachable = reachability_limit(peer.scope.options)
        connection = peer.job(lost=peer.scope.away("JobMaster", T0_S - 9.0), given_up=unreachable)
        connection.offer()
        return connection

    during(1.0, act, (0.5, lambda c: limits.append(c.given_up)), answers=[answer])
    assert [limit.option for limit in limits] == [option]


def test_an_answer_to_an_earlier_session_does_not_count():
    """It was sent before the peer was connected again, and fails later."""
    lost: list[str] = []

    async def main() -> None:
        scope = Peer(leader("a")).scope
        watch = PeerWatch(scope, "JobMaster", lambda: lost.append("lost"))
        watch.start()
        before = watch.session
        watch.start()
        for _ in range(9):
            watch.on_answered(before, reached=False)
        assert lost == []
        for _ in range(2):
            watch.on_answered(watch.session, reached=False)
        assert watch.session is None

    run_virtual(main())
    assert lost == ["lost"]


@pytest.mark.parametrize(("away_s", "outcome"), [(5.29, "expired"), (5.31, "completed")])
def test_a_peer_that_answers_a_while_after_it_was_given_up_had_to_be_waited_for(away_s: float, outcome: str):
    """0.3 s: sooner, the heartbeat timeout decided how long it took."""
    rows: list[str] = []
    sink: Any = SimpleNamespace(append=lambda table, **row: rows.append(row["outcome"]))
    scope = WaitScope(Options(OPTIONS), WaitLog(sink, "tm-0-1", lambda: away_s), "tm-0-1")
    attempt: Any = SimpleNamespace(option="")
    given_up = option_limit(scope.options, "heartbeat.timeout")
    scope.registered(scope.away("JobMaster", 0.0), attempt, given_up)
    assert rows == [outcome]


def test_a_peer_whom_no_answer_reaches_was_unreachable_and_one_that_is_silent_was_not():
    """The limit that gave it up is that of heartbeats without an answer; the wait began when an answer reached it last."""

    async def main() -> list[tuple[bool, str, float]]:
        found: list[tuple[bool, str, float]] = []
        rows: list[dict[str, Any]] = []
        clock = asyncio.get_running_loop().time
        sink: Any = SimpleNamespace(append=lambda table, **row: rows.append(row))
        scope = WaitScope(Options(OPTIONS), WaitLog(sink, "tm-0-1", clock), "tm-0-1")
        watch = PeerWatch(scope, "JobMaster", lambda: None)
        for unreachable in (True, False):
            watch.start()
            began = clock()
            await asyncio.sleep(1.0)
            watch.on_heartbeat()
            watch.on_answered(watch.session, reached=True)
            await asyncio.sleep(1.0)
            for _ in range(2 if unreachable else 0):
                watch.on_answered(watch.session, reached=False)
            await asyncio.sleep(20.0)
            (row,) = rows[-1:]
            found.append((watch.unreachable, row["option"], row["start_ns"] / 1e9 - began))
            assert watch.given_up.option == row["option"]
            assert (len(rows), row["outcome"]) == (2 - unreachable, "expired")
        return found

    unreachable, silent = run_virtual(main())
    assert unreachable == (True, "heartbeat.interval × heartbeat.rpc-failure-threshold", pytest.approx(1.0))
    assert silent == (False, "heartbeat.timeout", pytest.approx(1.0))
