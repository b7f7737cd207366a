"""Failovers that a longer wait would have avoided, from waits and faults made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.checking.avoidable import until_refusals_end, with_enough
from testbed_runtime.checking.failovers import Cause
from testbed_runtime.checking.faults import FaultEffect
from testbed_runtime.core.judgement.recovery import Round, Segment
from testbed_runtime.core.waits import Outcome, Wait
from tests.manifests import trial_entry

NS = 1_000_000_000
BACKOFF = "taskmanager.network.request-backoff.max"
ASK, HEARTBEAT, CHECKPOINT = "pekko.ask.timeout", "heartbeat.timeout", "execution.checkpointing.timeout"


def at(seconds: float) -> int:
    return round(seconds * NS)


def effect(name: str, kind: str, start: float, end: float | None, *targets: str, **more: Any) -> FaultEffect:
    return FaultEffect(
        fault=name, kind=kind, verified=True, injected_ns=at(start), ended_ns=None if end is None else at(end),
        residue=False, targets=json.dumps(targets), text="", **more,
    )  # fmt: skip


def wait(
    kind: str,
    option: str,
    span: tuple[float, float],
    budget: float = 5.0,
    who: str = "JobMaster",
    what: str = "tm-1-1",
    **more: Any,
) -> Wait:
    return Wait(
        wait=f"{who}/{kind}/{span}", kind=kind, who=who, what=what, start_ns=at(span[0]), end_ns=at(span[1]),
        option=option, value="5 s", budget_ns=at(budget), **({"outcome": Outcome.EXPIRED} | more),
    )  # fmt: skip


def failure(t_ns: int) -> Cause:
    return Cause(t_ns=t_ns, text="", cause_class="", detector="JobMaster", taskmanager="")


def enough_s(waits: list[Wait], *given: Any, **more: Any) -> float | None:
    """Return how long the first wait would have had to last, in a round that it ended."""
    part = judged(waits, *given, **more)
    assert (part.enough_ns < 0) == (part.budget_ns < 0)
    assert part.budget_ns in (-1, waits[0].budget_ns)
    return None if part.enough_ns < 0 else part.enough_ns / NS


def judged(
    waits: list[Wait],
    effects: list[FaultEffect],
    asked: dict[str, dict[str, Any]],
    *,
    failed: float | None = None,
    segment: dict[str, Any] | None = None,
    configuration: dict[str, str] | None = None,
    places: dict[str, str] | None = None,
    until: float | None = None,
) -> Segment:
    """Return the segment of the first wait, in a round that it ended. `asked`: the faults of the manifest."""
    first = waits[0]
    own = {
        "kind": first.kind, "phase": "detect", "who": first.who, "what": first.what, "start_ns": first.start_ns + at(0.1),
        "end_ns": first.end_ns, "option": first.option, "value": first.value, "outcome": str(first.outcome), "text": "x",
    } | (segment or {})  # fmt: skip
    end_ns = first.end_ns if until is None else at(until)
    known = Round(number=1, start_ns=0, end_ns=end_ns, segments=(Segment(**own),))
    entry = trial_entry(
        {
            "configuration": {"heartbeat.interval": "1 s"} | (configuration or {}),
            "faults": [{"name": name, "params": {}, **more} for name, more in asked.items()],
        }
    )
    moment = first.end_ns if failed is None else at(failed)
    (found,) = with_enough([known], [failure(moment)], waits, effects, entry, places=lambda _: places or {})
    (part,) = found.segments
    return part


LATE = [effect("late", "registration.delay", 0, 30)]
ASKED = {"late": {"duration_s": 30, "params": {"delay_s": 12.0}}}
PARTITION = [wait("partition", BACKOFF, (10, 15), fault="late")]


@pytest.mark.parametrize(
    ("effects", "asked", "enough"),
    [
        (LATE, ASKED, 12.02),
        (LATE, {"late": {"duration_s": 30, "params": {"delay_s": 40.0}}}, 20.0),
        (LATE, {"late": {"duration_s": 30}}, 20.0),  # delayed by attempts
        (LATE, {"late": {"duration_s": 60, "params": {"delay_s": 12.0}}}, None),  # healed with its trial
        (LATE, {"late": {"duration_s": 30.2, "params": {"delay_s": 12.0}}}, 12.02),
        (
            [effect("late", "registration.delay", 9, 30)],
            {"late": {"duration_s": 30, "params": {"delay_s": 12.0}}},
            None,
        ),
        ([effect("late", "registration.delay", 0, None)], ASKED, None),
        ([effect("late", "registration.delay", 0, 30, voided=True)], ASKED, None),
        ([effect("late", "network.latency", 0, 30)], ASKED, None),
        ([effect("other", "registration.delay", 0, 30)], ASKED, None),
        ([effect("late", "registration.delay", 0, 14)], {"late": {"duration_s": 14}}, None),  # it was not why
    ],
)
def test_a_late_producer_registers_after_its_delay_or_at_the_end_of_the_fault(
    effects: list[FaultEffect], asked: dict[str, Any], enough: float | None
):
    """Its deployment, with which the requests begin, was at 10 s."""
    assert enough_s(PARTITION, effects, asked) == enough


@pytest.mark.parametrize(
    ("more", "enough"),
    [
        ({}, 12.02),
        ({"failed": 15.1}, 12.02),
        ({"failed": 14.9}, 12.02),
        ({"failed": 15.101}, None),  # another failure
        ({"failed": 14.899}, None),
        ({"segment": {"outcome": "completed"}}, None),
        ({"segment": {"option": ""}}, None),
        ({"segment": {"what": "map-0"}}, None),
        ({"segment": {"end_ns": at(14.9)}}, None),
    ],
)
def test_only_the_wait_that_caused_a_failover_is_looked_at(more: dict[str, Any], enough: float | None):
    """A part of the path that ends with another wait, or that caused nothing, is none."""
    assert enough_s(PARTITION, LATE, ASKED, **more) == enough


def test_a_wait_that_its_budget_already_allows_is_not_too_short():
    """A request of 1.19 or later may wait longer than its budget, so this one would not always have helped."""
    longer = [wait("partition", BACKOFF, (10, 15), 12.02, fault="late")]
    assert enough_s(longer, LATE, ASKED) is None
    assert enough_s([wait("partition", BACKOFF, (10, 15), 12.01, fault="late")], LATE, ASKED) == 12.02
    assert enough_s([wait("partition", BACKOFF, (10, 15), -1, fault="late")], LATE, ASKED) is None


@pytest.mark.parametrize(
    ("kind", "fault", "enough"),
    [
        ("deployment", "rpc.delay", 20.0),
        ("jobmanager", "rpc.delay", 20.0),
        ("checkpoint", "store.slow", 20.0),
        ("checkpoint", "store.failing", None),
        ("slot", "rpc.delay", None),
        ("deployment", "registration.delay", None),
    ],
)
def test_messages_and_calls_that_a_fault_delays_are_answered_after_its_end(
    kind: str, fault: str, enough: float | None
):
    """How long a mailbox needs for each of them is not known before."""
    option = CHECKPOINT if kind == "checkpoint" else ASK
    waits = [wait(kind, option, (10, 15), fault="slow")]
    asked = {"slow": {"duration_s": 30, "params": {"delay_s": 3.0}}}
    assert enough_s(waits, [effect("slow", fault, 0, 30)], asked) == enough


@pytest.mark.parametrize(
    ("method", "third", "more", "enough"),
    [
        ("SubmitTask", (40, 46), {}, 12.02),  # later, as the fourth
        ("SubmitTask", (15.9, 22), {}, 18.02),
        ("SubmitTask", (16, 22), {}, 12.02),
        ("SubmitTask", (4, 10), {}, 12.02),
        ("SubmitTask", (4, 10.1), {}, 18.02),
        ("SubmitTask", (10, 16), {"option": CHECKPOINT}, 12.02),
        ("SubmitTask", (10, 16), {"kind": "restore"}, 12.02),
        ("SubmitTask", (10, 15.9), {}, 12.02),  # handled before its delay was over, so it was not delayed
        ("SubmitTask", (10, 16), {"what": "map-1"}, 12.02),  # submitted again
        ("CancelTask", (10, 16), {}, 50.0),  # until the fault ends
        (None, (10, 16), {}, 50.0),
    ],
)
def test_a_submission_waits_only_for_those_to_its_own_taskmanager(
    method: str | None, third: tuple[float, float], more: dict[str, Any], enough: float
):
    """Each of two TaskManagers handles one message after the other, 6 s each. One of them got two or three, the other one a task."""
    tasks = {"map-0": "tm-0", "map-1": "tm-0", "map-2": "tm-0", "map-3": "tm-1"}
    waits = [wait("deployment", ASK, (10, 16), 6.0, what=task, fault="slow") for task in tasks]
    waits[2] = replace(wait("deployment", ASK, third, 6.0, what="map-2", fault="slow"), **more)
    asked = {"slow": {"duration_s": 60, "params": {"delay_s": 6.0, "method": method}}}
    assert enough_s(waits, [effect("slow", "rpc.delay", 0, 60)], asked, places=tasks) == enough


def test_a_checkpoint_waits_for_its_own_writes_only():
    """Each takes 7 s longer, and the longest checkpoint before the fault took 2 s: a timeout need not last until the fault ends."""
    before = [
        wait("checkpoint", CHECKPOINT, span, outcome=Outcome.COMPLETED) for span in ((1, 2), (3, 5), (6, 12))
    ]
    waits = [wait("checkpoint", CHECKPOINT, (10, 15), fault="slow"), *before]
    asked = {"slow": {"duration_s": 24, "params": {"delay_s": 7.0}}}
    assert enough_s(waits, [effect("slow", "store.slow", 6, 30)], asked) == 9.02


@pytest.mark.parametrize(
    ("before", "enough"), [((), 20.0), ((5,), 12.5), ((0, 5), 10.0), ((0, 5.03), 12.485)]
)
def test_checkpoints_that_expired_one_after_the_other_share_the_time(
    before: tuple[float, ...], enough: float
):
    """The store is slow until 30 s, and a checkpoint from 10 to 15 s fails the job. With a longer timeout, each of those before it would
    have lasted longer too."""
    waits = [wait("checkpoint", CHECKPOINT, (begin, 5 + 5 * (begin >= 5)), fault="slow") for begin in before]
    waits = [wait("checkpoint", CHECKPOINT, (10, 15), fault="slow"), *waits]
    asked = {"slow": {"duration_s": 30, "params": {"delay_s": 3.0}}}
    assert enough_s(waits, [effect("slow", "store.slow", 0, 30)], asked) == enough


@pytest.mark.parametrize(
    ("ended", "sent_again", "asked", "enough"),
    [(29, 0, 29, 19.0), (29.1, 0, 29.1, 35.0), (29.1, 0.1, 29, 19.0), (14, 0, 14, None), (29, 5, 29, None)],
)
def test_a_connection_is_made_when_its_handshake_is_sent_again_after_the_fault(
    ended: float, sent_again: float, asked: float, enough: float | None
):
    """Linux repeats a SYN 11, 19 and 35 s after the first one. How long bytes of other connections took does not matter to it, but a fault that
    was healed before its time has no known end."""
    cut = effect("cut", "network.partition", 0, ended, "tm-0->tm-1", sent_again_ns=at(sent_again))
    waits = [wait("connection", "taskmanager.network.netty.client.connectTimeoutSec", (10, 15), fault="cut")]
    assert enough_s(waits, [cut], {"cut": {"duration_s": asked}}) == enough


GC = effect("gc", "process.pause", 10.1, 17, "tm-1")
BEATS = wait("heartbeat", HEARTBEAT, (10, 15))


@pytest.mark.parametrize(
    ("effects", "enough"),
    [
        ([GC], 7.0),
        ([effect("gc", "process.pause", 10.1, 17, "tm-2")], None),
        ([effect("gc", "process.pause", 10.1, None, "tm-1")], None),
        ([GC, effect("kill", "process.kill", 16, 17, "tm-1")], None),
        ([GC, effect("kill", "process.kill", 17, 18, "tm-1")], None),
        ([GC, effect("kill", "process.kill", 17.1, 18, "tm-1")], 7.0),
        ([GC, effect("kill", "pod.delete", 16, 17, "tm-2")], 7.0),
        ([GC, effect("jm", "jobmanager.kill", 16, 17, "jobmanager")], None),
        ([GC, effect("kill", "process.kill", 9, 10, "tm-1")], 7.0),  # the process before it
        ([GC, effect("kill", "process.kill", 9, 10.1, "tm-1")], None),
        ([GC, effect("kill", "process.kill", 9, None, "tm-1")], None),
        ([GC, effect("jm", "jobmanager.kill", 9, 10, "jobmanager")], 7.0),
        ([effect("gc", "process.pause", 10.1, 14.9, "tm-1")], None),
        # the next heartbeat comes up to an interval after the end
        ([effect("gc", "heartbeats.mute", 10.1, 17, "tm-1")], 8.0),
        ([effect("gc", "network.partition", 10.1, 17, "tm-1", plane="rpc")], 8.0),
        # what TCP sends again is there then
        ([effect("gc", "network.partition", 10.1, 17, "tm-1", sent_again_ns=NS // 5, plane="rpc")], 7.0),
        ([effect("gc", "network.partition", 10.1, 17, "tm-1", plane="data")], None),
        ([GC, effect("mute", "heartbeats.mute", 10.1, 19, "tm-1")], 10.0),
        ([effect("gc", "process.kill", 10.1, 17, "tm-1")], None),
        # another fault keeps it silent after that
        ([GC, effect("two", "process.pause", 17, 20, "tm-1")], 10.0),
        ([GC, effect("two", "process.pause", 17.1, 20, "tm-1")], 7.0),
        ([GC, effect("two", "process.pause", 16, 20, "tm-2")], 7.0),
        ([GC, effect("two", "process.pause", 16, 17, "tm-1")], 7.0),
        ([GC, effect("two", "process.pause", 16, None, "tm-1")], None),
        ([GC, effect("two", "network.latency", 16, 20, "tm-1")], 7.0),
        ([GC, effect("two", "heartbeats.mute", 16, 20, "tm-1")], 11.0),
        (
            [
                GC,
                effect("three", "process.pause", 19, 21, "tm-1"),
                effect("two", "process.pause", 16, 20, "tm-1"),
            ],
            11.0,
        ),
        (
            [
                GC,
                effect("two", "process.pause", 16, 20, "tm-1"),
                effect("kill", "process.kill", 19, 20, "tm-1"),
            ],
            None,
        ),
        (
            [
                effect("gc", "heartbeats.mute", 10.1, 17, "tm-1"),
                effect("two", "heartbeats.mute", 18, 20, "tm-1"),
            ],
            11.0,
        ),
        (
            [
                effect("gc", "heartbeats.mute", 10.1, 17, "tm-1"),
                effect("two", "heartbeats.mute", 18.1, 20, "tm-1"),
            ],
            8.0,
        ),
        # it closes the data connections too, so the job fails anyway
        ([effect("half", "network.half-open", 10.1, 17, "tm-1", plane="rpc")], 8.0),
        ([effect("half", "network.half-open", 10.1, 17, "tm-1", plane="both")], None),
        ([GC, effect("reset", "network.reset", 9, 10.1, "tm-0->tm-1")], None),
        ([GC, effect("reset", "network.reset", 9, 10, "tm-0->tm-1")], 7.0),
        ([GC, effect("reset", "network.reset", 16, 17, "tm-0->tm-2")], 7.0),
    ],
)
def test_a_process_that_a_fault_silences_answers_again_after_it(
    effects: list[FaultEffect], enough: float | None
):
    """One that was killed does not. The last heartbeat was at 10 s."""
    asked = {e.fault: {"duration_s": ((e.ended_ns or 0) - (e.injected_ns or 0)) / NS} for e in effects}
    assert enough_s([BEATS], effects, asked) == enough


def slow(
    name: str = "slow", target: str = "tm-1", kind: str = "network.latency", plane: str = "rpc"
) -> FaultEffect:
    """A fault that delays what passes from 5 to 30 s."""
    return effect(name, kind, 5, 30, target, plane=plane)


@pytest.mark.parametrize(
    ("effects", "asked", "enough"),
    [
        ([slow()], {"params": {"latency_s": 3.0}}, 7.0),  # an interval, the request, and its answer
        ([slow()], {"params": {"latency_s": 2.0}}, None),  # the budget of 5 s is enough
        ([slow()], {"params": {"latency_s": 2.001}}, 5.002),
        ([slow()], {"params": {"latency_s": 6.0}, "direction": "to"}, 7.0),
        ([slow()], {"params": {"latency_s": 6.0}, "direction": "both"}, 13.0),
        ([slow()], {"params": {"latency_s": 6.0, "mode": "round-trip"}}, 7.0),
        ([slow(plane="both")], {"params": {"latency_s": 3.0}}, 7.0),
        ([slow(plane="data")], {"params": {"latency_s": 3.0}}, None),
        ([slow(target="tm-2")], {"params": {"latency_s": 3.0}}, None),
        ([slow(kind="network.bandwidth")], {"params": {"latency_s": 3.0}}, None),
        ([slow(), slow("other", kind="network.bandwidth")], {"params": {"latency_s": 3.0}}, 7.0),
        ([slow(), slow("other", target="tm-2")], {"params": {"latency_s": 3.0}}, 7.0),
        ([slow(), slow("other")], {"params": {"latency_s": 3.0}}, 13.0),
        ([slow(), effect("kill", "process.kill", 17, 18, "tm-1")], {"params": {"latency_s": 3.0}}, None),
        ([slow(), effect("kill", "process.kill", 17.001, 18, "tm-1")], {"params": {"latency_s": 3.0}}, 7.0),
    ],
)
def test_a_heartbeat_that_is_delayed_comes_late(
    effects: list[FaultEffect], asked: dict[str, Any], enough: float | None
):
    """The next request is sent after an interval. A TaskManager that was killed until then never answers."""
    assert enough_s([BEATS], effects, {e.fault: asked for e in effects}) == enough


def test_heartbeats_are_missing_since_the_first_wait_for_them():
    """The JobMaster heard of the TaskManager before the ResourceManager did: its timeout would have been the next one."""
    asked = {"gc": {"duration_s": 6.9}}
    before = wait("heartbeat", HEARTBEAT, (9.5, 15), who="ResourceManager", outcome=Outcome.CANCELLED)
    other = wait("heartbeat", HEARTBEAT, (9.0, 15), what="tm-2-1", outcome=Outcome.CANCELLED)
    ended = wait("heartbeat", HEARTBEAT, (8.0, 9), who="ResourceManager", outcome=Outcome.COMPLETED)
    assert enough_s([BEATS, before, other, ended], [GC], asked) == 7.5


@pytest.mark.parametrize(("lost", "enough"), [((10, 15), 13.0), ((9.5, 15), 13.5), ((9, 10.1), 8.0)])
def test_heartbeats_are_missing_since_the_first_loss_in_a_silence(lost: tuple[float, float], enough: float):
    """The TaskManager registered again at 15 s, and was still muted until 22 s. Only a limit that avoids the first loss avoids the second one."""
    again, before = wait("heartbeat", HEARTBEAT, (15, 20)), wait("heartbeat", HEARTBEAT, lost)
    mute = effect("mute", "heartbeats.mute", 10.1, 22, "tm-1")
    assert enough_s([again, before], [mute], {"mute": {"duration_s": 11.9}}) == enough


@pytest.mark.parametrize(
    ("kind", "span", "budget", "tolerated", "enough"),
    [
        ("process.pause", (11, 15), 5.9, "0", None),
        ("process.pause", (11, 15), 6.0, "0", 7.0),
        ("process.pause", (11, 15), 5.9, "2", 7.0),
        ("process.pause", (9, 11), 5.9, "0", 7.0),  # it had completed before
        ("process.pause", (15, 16), 1.0, "0", 7.0),  # it began after the loss
        ("process.pause", (11, 15), -1, "0", 7.0),
        ("heartbeats.mute", (11, 15), 5.9, "0", 8.0),  # which delays no checkpoint
    ],
)
def test_a_checkpoint_that_expires_meanwhile_fails_the_job_anyway(
    kind: str, span: tuple[float, float], budget: float, tolerated: str, enough: float | None
):
    """The process answers again at 17 s, and its loss ended the checkpoint at 15 s."""
    checkpoint = wait("checkpoint", CHECKPOINT, span, budget, outcome=Outcome.FAILED)
    silent, asked = effect("gc", kind, 10.1, 17, "tm-1"), {"gc": {"duration_s": 6.9}}
    chosen = {"execution.checkpointing.tolerable-failed-checkpoints": tolerated}
    assert enough_s([BEATS, checkpoint], [silent], asked, configuration=chosen) == enough


def test_a_taskmanager_that_hears_nothing_of_the_jobmanager_waits_for_it():
    """Its own wait names the JobManager as what it waits for."""
    mute = effect("mute", "heartbeats.mute", 10.1, 17, "tm-1")
    given_up = wait("jobmanager", HEARTBEAT, (10, 15), who="tm-1-1", what="ResourceManager")
    assert enough_s([given_up], [mute], {"mute": {"duration_s": 6.9}}) == 8.0


@pytest.mark.parametrize(
    ("span", "place", "enough"),
    [
        ((11, 15), "tm-1", None),
        ((11, 15), "tm-2", 7.0),
        ((12.1, 15), "tm-1", 7.0),  # it would have expired after the return
        ((9, 11), "tm-1", 7.0),  # it had been acknowledged
    ],
)
def test_a_deployment_that_expires_meanwhile_fails_the_job_anyway(
    span: tuple[float, float], place: str, enough: float | None
):
    """The process answers again at 17 s, and its loss ended the deployment of a task to it at 15 s."""
    deployed = wait("deployment", "pekko.ask.timeout", span, 4.9, what="map-0", outcome=Outcome.CANCELLED)
    found = enough_s([BEATS, deployed], [GC], {"gc": {"duration_s": 6.9}}, places={"map-0": place})
    assert found == enough


def test_a_product_of_options_is_not_enough_by_itself():
    """heartbeat.timeout would have ended the wait instead."""
    product = wait("heartbeat", "heartbeat.interval × heartbeat.rpc-failure-threshold", (10, 15))
    assert enough_s([product], [GC], {"gc": {"duration_s": 6.9}}) is None


LEASE = "high-availability.kubernetes.leader-election.lease-duration"
MISSED = wait("heartbeat", HEARTBEAT, (9.5, 18.1), who="tm-1-1", what="JobMaster")
RENEWED = wait("lease", LEASE, (9, 18), who="jobmanager", what="")


@pytest.mark.parametrize(
    ("waits", "more", "expected"),
    [
        ([MISSED], {}, (HEARTBEAT, 8.5)),
        ([RENEWED], {}, (LEASE, 9.0)),
        ([MISSED, replace(MISSED, who="tm-2-1", start_ns=at(9.2))], {}, (HEARTBEAT, 8.8)),  # the first one that would expire
        ([MISSED, RENEWED], {}, None),  # a higher value of one of them would not have helped
        ([replace(MISSED, what="ResourceManager")], {}, None),  # that costs no failover
        ([replace(MISSED, option="heartbeat.interval × heartbeat.rpc-failure-threshold")], {}, None),
        ([replace(MISSED, outcome=Outcome.CANCELLED)], {}, None),
        ([replace(MISSED, start_ns=at(4.9))], {}, None),  # it had expired before the pause
        ([replace(MISSED, start_ns=at(13.1))], {}, None),  # it expired after the pause
        ([], {}, None),
        ([MISSED], {"failed": 18.09}, (HEARTBEAT, 8.5)),
        ([MISSED], {"failed": 18.2}, None),
        ([MISSED], {"asked": 60}, None),  # healed with its trial
        ([MISSED], {"kind": "process.pause"}, None),
        ([MISSED], {"fault": "other"}, None),
        ([MISSED], {"span": (10, 17.98)}, (HEARTBEAT, 8.5)),
        ([MISSED], {"span": (10, 17.97)}, None),  # the pause goes on
        ([MISSED], {"span": (18, 18.05)}, None),  # the pause is over
        ([RENEWED], {"begun": 14}, None),  # it had expired before
        ([RENEWED], {"begun": 14, "before": 14.1}, (LEASE, 9.0)),  # in a pause that went on
        ([RENEWED], {"begun": 14, "before": 14}, None),
        ([MISSED], {"lost": 9.9}, (HEARTBEAT, 8.5)),  # the job has recovered from that
        ([MISSED], {"lost": 10}, None),  # it has to restart anyway
        ([MISSED], {"lost": 18}, None),
        ([MISSED], {"lost": 18.1}, (HEARTBEAT, 8.5)),
        ([MISSED], {"paused": 8.5}, (HEARTBEAT, 8.5)),  # with the higher limit, that pause is not noticed
        ([MISSED], {"paused": 8.6}, None),
        ([MISSED], {"paused": 8.5, "by": "network.partition"}, (HEARTBEAT, 8.5)),
        ([MISSED], {"paused": 8.6, "by": "network.partition"}, None),
        ([MISSED], {"paused": 8.6, "by": "network.partition", "plane": "data"}, (HEARTBEAT, 8.5)),
        ([RENEWED], {"paused": 50}, (LEASE, 9.0)),
        ([RENEWED], {"paused": 50.1}, None),  # longer than heartbeat.timeout
        ([MISSED], {"lost": 18, "loses": "jobmanager.kill"}, None),
        ([MISSED], {"lost": 18, "loses": "process.pause"}, None),  # it may have lasted longer than the limit
        ([MISSED], {"lost": 18, "loses": "frames.drop"}, (HEARTBEAT, 8.5)),
    ],
)  # fmt: skip
def test_a_pause_of_the_jobmanager_names_the_only_limit_that_expired_in_it(
    waits: list[Wait], more: dict[str, Any], expected: tuple[str, float] | None
):
    """TaskManagers miss its heartbeats, or its lease runs out. Another fault lasted at the same time, and a TaskManager is killed later."""
    since = more.get("begun", 10)
    asked = trial_entry({"faults": [{"name": "gc", "duration_s": more.get("asked", 18 - since)}]})
    begun, ended = more.get("span", (10, 18))
    part = Segment(
        kind="jobmanager", phase="detect", start_ns=at(begun), end_ns=at(ended), outcome="completed", text="x",
        fault=more.get("fault", "gc"),
    )  # fmt: skip
    known = Round(number=1, start_ns=part.start_ns, end_ns=part.end_ns, segments=(part,))
    pause = effect("gc", more.get("kind", "jobmanager.pause"), since, 18, "jobmanager")
    lost = more.get("lost", 30)
    effects = [
        effect("slow", "network.latency", 0, 30),
        pause,
        effect("kill", more.get("loses", "process.kill"), lost, 31, "tm-2"),
    ]
    if "paused" in more:
        short = effect("short", more.get("by", "process.pause"), 11, 11 + more["paused"], "tm-4")
        effects.append(replace(short, plane=more.get("plane", "both")))
    if "before" in more:
        effects.append(effect("before", "jobmanager.pause", 8, more["before"], "jobmanager"))
    (found,) = with_enough([known], [failure(at(more.get("failed", ended)))], waits, effects, asked)
    (one,) = found.segments
    if expected is None:
        assert one == part
    else:
        option, enough = expected
        assert (one.expired, one.budget_ns, one.enough_ns) == (f"{option} = 5 s", at(5), at(enough))


def of_option(start: float, end: float, option: str = "delay", **more: Any) -> Segment:
    known = {"kind": "restart-delay", "phase": "slots", "outcome": "fired", "text": option, **more}
    return Segment(start_ns=at(start), end_ns=at(end), option=option, **known)


@pytest.mark.parametrize(
    ("last", "saved"),
    [
        (of_option(19, 21.5), (0.0, 1.5)),
        (of_option(19, 23.5), (0.0, 3.5)),
        (of_option(19, 20), (0.0, 0.0)),
        (of_option(19, 22.6, "other"), (None, 2.6)),
        (of_option(19, 21, "", kind="partition", outcome="completed", fault="late"), (1.0, None)),
        (of_option(19, 21, "", kind="partition", outcome="completed", fault="other"), (None, None)),
        (of_option(20, 21), (None, None)),  # the fault had ended in the wait before
        (of_option(19, 19.9), (None, None)),
    ],
)
def test_restarts_in_a_fault_save_only_what_comes_after_its_end(
    last: Segment, saved: tuple[float | None, float | None]
):
    """A delay from 8 to 10 s, a request that gives up at 15 s, and what lasts over the end of the fault at 20 s. All waits for one option together
    save no more than that."""
    first, given_up = (
        of_option(8, 10),
        of_option(10, 15, BACKOFF, kind="partition", outcome="expired", who="JobMaster", what="tm-1-1"),
    )
    gap = of_option(15, last.start_ns / NS, "", kind="slot", outcome="completed")
    rounds = [Round(number=1, start_ns=0, end_ns=last.end_ns, segments=(first, given_up, gap, last))]
    late = wait("partition", BACKOFF, (10, 15), fault="late", cause="c")
    (found,) = until_refusals_end(rounds, [], [late], [effect("late", "registration.delay", 0, 20)])
    parts = (found.segments[0], found.segments[-1])
    known = tuple(None if s.slack_ns < 0 else s.slack_ns / NS for s in parts)
    assert known == saved
    assert {s.next for s in parts if s.slack_ns >= 0} <= {"c"}
    assert found.segments[1].slack_ns == -1
    before = replace(first, start_ns=at(-1))  # it began before the fault
    again = [replace(rounds[0], segments=(before, *rounds[0].segments[1:]))]
    (found,) = until_refusals_end(again, [], [late], [effect("late", "registration.delay", 0, 20)])
    assert found.segments[0].slack_ns == -1


@pytest.mark.parametrize(
    ("again", "place", "until", "slack_s"),
    [
        ((), "tm-1", 15, 1.0),
        ((), "tm-1", 16, 1.5),  # the restart took 1 s
        ((15,), "tm-1", 15, 5 - 8 / 3),
        ((15,), "tm-1", 16, 5 - 6 / 3),
        ((16,), "tm-1", 15, 5 - 6 / 3),
        ((15, 16.9), "tm-1", 15, 5 - 8 / 4),
        ((16.9,), "tm-1", 15, 5 - 4.2 / 3),
        ((17,), "tm-1", 15, 1.0),  # after the fault, because of another one
        ((1,), "tm-1", 15, 1.0),  # before it
        ((), "tm-1", 23, -1),
        ((), "tm-2", 15, -1),
    ],
)
def test_a_shorter_timeout_lets_a_muted_taskmanager_be_lost_once_more(
    again: tuple[float, ...], place: str, until: float, slack_s: float
):
    """It would have been heard again after 8 s, and was lost after 5 s each time. Three losses fit into 8 s below 2.67 s, and
    below less if the job restarts between them, or after them `until` the recovery ended."""
    more = [wait("heartbeat", HEARTBEAT, (begin, begin + 5)) for begin in again]
    mute = effect("mute", "heartbeats.mute", 10.1, 17, "tm-1")
    asked = {"mute": {"duration_s": 6.9}}
    found = judged([BEATS, *more], [mute], asked, places={"map-0": place}, until=until)
    assert found.slack_ns == pytest.approx(round(slack_s * NS) if slack_s >= 0 else -1, abs=1)
    assert found.next == ("tm-1 to be lost once more, during the fault `mute`" if slack_s >= 0 else "")


@pytest.mark.parametrize(
    ("missed", "muted_at", "place", "replicas", "slack_s"),
    [
        ((13.5,), 8, "tm-1", 2, 2.5),
        ((13.5, 15.5), 8, "tm-1", 2, 0.5),
        ((16.02,), 8, "tm-1", 2, 0),  # together with the end of the delay
        ((12.02, 16.03), 8, "tm-1", 2, -1),  # the loss before it, and one after the restart
        ((13.5,), 8, "tm-2", 2, -1),
        ((13.5,), 8, "tm-1", 3, -1),  # the earlier restart does without it
        ((15.5,), 12.5, "tm-1", 2, -1),  # it would have come before the mute
    ],
)
def test_a_restart_on_a_muted_taskmanager_fails_until_its_last_loss(
    missed: tuple[float, ...], muted_at: float, place: str, replicas: int, slack_s: float
):
    """The delay is from 12 to 16 s. An earlier restart of a job without a spare TaskManager would have failed with each loss in it."""
    delay = of_option(12, 16)
    waits = [wait("heartbeat", HEARTBEAT, (end - 3, end)) for end in missed]
    mute = effect("mute", "heartbeats.mute", muted_at, 17, "tm-1")
    job = {"vertices": [{"parallelism": 2}], "taskManagers": {"replicas": replicas, "slots": 1}}
    known = Round(number=1, start_ns=0, end_ns=at(18), segments=(delay,))
    (found,) = with_enough(
        [known], [], waits, [mute], trial_entry(job=job), places=lambda _: {"map-0": place}
    )
    assert found.segments[0].slack_ns == (round(slack_s * NS) if slack_s >= 0 else -1)
    assert found.segments[0].next == (
        "tm-1 to be lost once more, during the fault `mute`" if slack_s >= 0 else ""
    )
