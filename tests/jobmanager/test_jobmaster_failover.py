"""Failover of a job in virtual time: detection, fencing, milestones, suspects, zombies, incarnations."""

import asyncio
from itertools import pairwise

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.messages import (
    AcknowledgeCheckpoint,
    CancelTask,
    CommitRecords,
    Heartbeat,
)
from testbed_runtime.core.job.results import BLOCKING, BOUNDED, FIRST_RECORD, FULL_RESULT
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.harness import (
    COMMIT,
    GRAPH,
    LOST,
    Cluster,
    ScriptedTaskManager,
    data_of,
    heartbeats_waited_for,
    jobmaster_waits,
    running_job,
    times,
    virtually,
)
from tests.jobmanager.test_commit_safety import Swallowing

ROUND = ("slot", "restart-delay", "cancellation", "fencing")
"""The kinds of waits of a round."""
UNREACHABLE = "heartbeat.interval × heartbeat.rpc-failure-threshold"


@virtually
async def test_a_dead_taskmanager_is_unreachable_within_its_threshold_of_intervals():
    """J-127: JobMasterTest.testTaskManagerBecomesUnreachableTriggersDisconnect. There is no other signal: detection by heartbeats alone,
    in (threshold − 1) … threshold intervals."""
    async with running_job(5) as cluster:
        await asyncio.sleep(2.3)
        died = asyncio.get_running_loop().time()
        victim = cluster.running_on("sink-0")
        await victim.die()
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        assert 1.0 <= started["t"] - died <= 2.25
        assert started["text"] == f"TaskManager with id {victim.resource_id} is no longer reachable."
        assert data_of(started)["taskmanager"] == str(victim.resource_id)
        detector = data_of(started)["detector"]
        assert detector in ("JobMaster", "ResourceManager")
        assert heartbeats_waited_for(cluster) == [
            (detector, str(victim.resource_id), UNREACHABLE, "expired", started["text"], 2.0)
        ]
        assert data_of(started)["wait"] == "heartbeat"
        assert len(data_of(started)["region"]) == 6
        status = await cluster.status()
        assert status.restarts == 1
        assert status.placement["sink-0"] == "tm-4-1"
        assert status.placement["source-0"] == "tm-0-1"


@virtually
async def test_milestones_of_a_failover_come_in_order_and_restore_the_latest_checkpoint():
    """Started, cancelled, slots, attempt, deployed; descriptors name the checkpoint's handles."""
    async with Cluster(5, {"restart-strategy.fixed-delay.delay": "700 ms"}, commit=COMMIT) as cluster:
        job = await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 4)
        await cluster.running_on("count-1").report(
            cluster.attempt_of("count-1"), "FAILED", "IOException", "boom"
        )
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        marks = [
            times(cluster, f"failover.{m}") for m in ("started", "cancelled", "slots", "attempt", "deployed")
        ]
        assert all(len(mark) == 1 for mark in marks)
        assert [m[0] for m in marks] == sorted(m[0] for m in marks)
        assert marks[2][0] - marks[0][0] == pytest.approx(0.7, abs=0.05)
        started = cluster.rows.events("failover.started")[0]
        data = data_of(started)
        found = (started["text"], data["cause_class"], data["detector"], data["wait"])
        assert found == ("boom", "IOException", "Task", "failure-report")
        descriptor = cluster.running_on("count-1").submitted[-1]
        assert descriptor.attempt_number == 1
        assert descriptor.restore_checkpoint == 2
        folder = f"jobs/{job}/checkpoints/2"
        vertex = descriptor.vertex.name
        assert descriptor.restore_handles == (f"{folder}/{vertex}-0", f"{folder}/{vertex}-1")
        states = [data_of(row)["to"] for row in cluster.rows.events("job.state")]
        assert states == ["RUNNING", "RESTARTING", "RUNNING"]
        assert jobmaster_waits(cluster, *ROUND) == [
            ("slot", "4 slots", 1, "slot.request.timeout", "completed", "", 30),
            ("cancellation", "6 tasks", 1, "task.cancellation.timeout", "completed", "", 2),
            ("restart-delay", "", 1, "restart-strategy.fixed-delay.delay", "fired", "", 700),
            ("slot", "4 slots", 2, "slot.request.timeout", "completed", "", 0),
        ]
        first = {wait[1:] for wait in jobmaster_waits(cluster, "deployment")[:7]}
        names = [f"{vertex.name}-{subtask}" for vertex in GRAPH.vertices for subtask in range(2)]
        assert first == {
            ("6 tasks", 1, "", "completed", "", 2),
            *((name, 0, "pekko.ask.timeout", "completed", "", 2) for name in names),
        }


@virtually
async def test_the_events_of_a_failover_say_what_happened():
    """Each has what the judgement reads: the cause with its wait, the region, the delay, and each state of a task with its place."""
    async with running_job(4, {"restart-strategy.fixed-delay.delay": "700 ms"}) as cluster:
        await cluster.running_on("count-0").report(
            cluster.attempt_of("count-0"), "FAILED", "IOException", "boom"
        )
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        rows = [row for row in cluster.rows.rows if row["table"] == "events"]
        cause = {
            "cause_class": "IOException",
            "wait": "failure-report",
            "taskmanager": "",
            "detector": "Task",
        }
        region = [f"{vertex}-{n}" for vertex in ("source", "count", "sink") for n in range(2)]
        delay = {"delay_option": "restart-strategy.fixed-delay.delay", "delay_s": 0.7, "counted": True}
        failover = [
            (r["kind"], r["subject"], r["text"], data_of(r))
            for r in rows
            if r["kind"].startswith("failover.")
        ]
        assert failover == [
            ("failover.failure", "1", "boom", {**cause, "task": "count-0", "ended": 0, "restarted": True}),
            ("failover.started", "1", "boom", {**cause, **delay, "region": region}),
            ("failover.cancelled", "1", "", {}),
            ("failover.slots", "1", "", {}),
            ("failover.attempt", "1", "", {"attempt": 1}),
            ("failover.deployed", "1", "", {}),
        ]
        states = [
            (r["attempt"], r["text"], *data_of(r).values())
            for r in rows
            if (r["kind"], r["subject"]) == ("task.state", "count-0")
        ]
        place = str(cluster.running_on("count-0").resource_id)
        started = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
        assert states == [
            *(
                (0, "", before, after, place if n else "", "")
                for n, (before, after) in enumerate(pairwise(started))
            ),
            (0, "boom", "RUNNING", "FAILED", place, "IOException"),
            *(
                (1, "", before, after, place if n else "", "")
                for n, (before, after) in enumerate(pairwise(started))
            ),
        ]


@virtually
async def test_a_lost_connection_to_a_dead_peer_waits_for_its_verdict_and_deploys_once():
    """Fenced: the failover starts at once, the deployment only when the dead slots are gone."""
    async with running_job(5) as cluster:
        await asyncio.sleep(2.3)
        victim = cluster.running_on("source-1")
        witness = cluster.running_on("count-0")
        await victim.die()
        await witness.report_lost_connection(cluster.attempt_of("count-0"), victim)
        died = asyncio.get_running_loop().time()
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        assert started["t"] - died <= 0.1
        assert data_of(started)["taskmanager"] == str(victim.resource_id)
        assert data_of(started)["wait"] == "connection"
        (slots,) = times(cluster, "failover.slots")
        assert 1.0 <= slots - died <= 2.25
        assert len(cluster.rows.events("failover.attempt")) == 1
        assert (await cluster.status()).placement["source-1"] == "tm-4-1"
        # the report was answered a millisecond later, and the slots took 6 ms and the delay of 50 ms since the loss
        lost, ms = str(victim.resource_id), round(1000 * (slots - died)) + 1 - 56
        assert jobmaster_waits(cluster, *ROUND)[1:] == [
            ("fencing", lost, 1, UNREACHABLE, "expired", LOST.format(lost), ms),
            ("cancellation", "6 tasks", 1, UNREACHABLE, "expired", "", ms),
            ("slot", "4 slots", 2, "slot.request.timeout", "completed", "", 56),
        ]


@virtually
async def test_a_text_that_mentions_a_taskmanager_does_not_make_it_a_suspect():
    """Only the structured cause counts: the TaskManager that the text names is not blamed and holds nothing up."""
    async with running_job(4) as cluster:
        mentioned = cluster.running_on("source-1").resource_id
        await cluster.running_on("count-0").report(
            cluster.attempt_of("count-0"), "FAILED", "RemoteTransportException", LOST.format(mentioned)
        )
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        assert data_of(started)["taskmanager"] == ""


@virtually
async def test_a_structured_cause_makes_its_taskmanager_a_suspect_whatever_the_text_says():
    """No deployment before the verdict on the dead TaskManager, although no text names it."""
    async with running_job(5) as cluster:
        await asyncio.sleep(2.3)
        victim = cluster.running_on("source-1")
        await victim.die()
        await cluster.running_on("count-0").report(
            cluster.attempt_of("count-0"),
            "FAILED",
            "PartitionConnectionException",
            "Connection for partition p not reachable.",
            lost_taskmanager=str(victim.resource_id),
        )
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        assert data_of(started)["taskmanager"] == str(victim.resource_id)
        assert len(cluster.rows.events("failover.attempt")) == 1


@virtually
async def test_without_fencing_the_job_is_deployed_to_the_dead_slot_again_and_again():
    """headgate.restart.fence-dead-slots = false: Flink's behaviour."""
    options = {"headgate.restart.fence-dead-slots": "false", "restart-strategy.fixed-delay.delay": "50 ms"}
    async with running_job(5, options) as cluster:
        await asyncio.sleep(2.3)
        victim = cluster.running_on("source-1")
        await victim.die()
        await cluster.running_on("count-0").report_lost_connection(cluster.attempt_of("count-0"), victim)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert len(cluster.rows.events("failover.attempt")) > 5
        assert (await cluster.status()).restarts == len(cluster.rows.events("failover.attempt"))


@pytest.mark.parametrize(
    ("fenced", "lost", "waits_s"), [("false", 100, 12.0), ("false", 3, 9.0), ("true", 4, 24.0)]
)
def test_J_134_a_task_whose_cancel_calls_are_not_answered_counts_as_cancelled(fenced, lost, waits_s):
    """ExecutionVertexCancelTest.testCancelCallFails. Flink calls four times, each until pekko.ask.timeout (3 s). With fenced dead slots,
    the JobMaster calls until it is answered, after pauses as long."""

    async def main():
        options = {"headgate.restart.fence-dead-slots": fenced, "heartbeat.timeout": "60 s"}
        async with running_job(4, options) as cluster:
            deaf = cluster.running_on("source-1")
            deaf.rpc._mailboxes["taskexecutor"]._interceptor = Swallowing(CancelTask, lost)
            began = asyncio.get_running_loop().time()
            await cluster.running_on("count-0").report(
                cluster.attempt_of("count-0"), "FAILED", "IOException", "boom"
            )
            await cluster.until(lambda: cluster.rows.events("failover.cancelled"))
            assert times(cluster, "failover.cancelled")[0] - began == pytest.approx(waits_s, abs=0.1)

    run_virtual(main())


@virtually
async def test_a_suspect_that_still_answers_does_not_hold_the_restart_up():
    """A reset connection between two healthy TaskManagers."""
    async with running_job(4, {"heartbeat.interval": "10 s", "heartbeat.timeout": "50 s"}) as cluster:
        suspect = cluster.running_on("source-1")
        began = asyncio.get_running_loop().time()
        await cluster.running_on("count-0").report_lost_connection(cluster.attempt_of("count-0"), suspect)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert asyncio.get_running_loop().time() - began < 0.5
        assert cluster.rows.events("taskmanager.lost") == []
        cause = LOST.format(suspect.resource_id)
        assert jobmaster_waits(cluster, "fencing") == [
            ("fencing", str(suspect.resource_id), 1, "", "completed", cause, 2)
        ]


@virtually
async def test_a_paused_taskmanager_times_out_and_what_it_offers_later_is_rejected():
    """J-128: JobMasterTest.testHeartbeatTimeoutWithTaskManager. The zombie's acknowledgement and records are counted; it registers again
    and its slot is free."""
    async with Cluster(5, commit=COMMIT) as cluster:
        await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 2)
        victim = cluster.running_on("sink-0")
        attempt = cluster.attempt_of("sink-0")
        began = asyncio.get_running_loop().time()
        cluster.switchboard.pause(victim.rpc.name)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        assert 4.0 < started["t"] - began <= 5.5
        rid = victim.resource_id
        assert started["text"] in (
            f"Heartbeat of TaskManager with id {rid} timed out.",
            f"The heartbeat of TaskManager with id {rid} timed out.",
        )
        assert data_of(started)["wait"] == "heartbeat"
        committed = len(cluster.rows.table("delivery"))
        async with asyncio.timeout(10):  # the ResourceManager has a timer of its own
            while str(victim.resource_id) in (await cluster.status()).taskmanagers:
                await asyncio.sleep(0.1)
        cluster.switchboard.resume(victim.rpc.name)
        message = AcknowledgeCheckpoint(attempt, 3, "", 0, 0, COMMIT)
        assert not (await victim.ask("jobmaster", message)).accepted
        flush = CommitRecords(attempt, victim.leader, 0, COMMIT)
        assert not (await victim.ask("jobmaster", flush)).accepted
        stale = [
            (row["subject"], row["attempt"], data_of(row)) for row in cluster.rows.events("stale.rejected")
        ]
        assert ("sink-0", 0, {"what": "acknowledgement", "count": 1}) in stale
        assert ("sink-0", 0, {"what": "record", "count": 4}) in stale
        assert all(row["attempt"] == 1 for row in cluster.rows.table("delivery")[committed:])
        assert str(rid) not in (await cluster.status()).taskmanagers
        await victim.register()
        assert cluster.free_slots == 1


@pytest.mark.parametrize("version", ["1.12", "1.13", "1.19", "1.20", "2.x"])
def test_J_28_whether_a_resourcemanager_takes_a_silent_taskmanager_from_the_job_depends_on_the_version(
    version,
):
    """ResourceManager.closeTaskManagerConnection. Where it does not, the TaskManager registers again with its slot."""
    disconnects = version not in ("1.13", "1.19")

    async def scenario():
        async with running_job(4, flink_version=version) as cluster:
            silent = cluster.running_on("source-0")
            silent.answers = ("jobmaster",)
            await cluster.until(lambda: cluster.rows.events("taskmanager.lost"))
            (lost,) = cluster.rows.events("taskmanager.lost")
            assert data_of(lost)["detector"] == "ResourceManager"
            await asyncio.sleep(1.0)
            assert len(cluster.rows.events("failover.started")) == disconnects
            if disconnects:
                return
            await silent.register()
            assert cluster.free_slots == 0
            silent.answers = ()
            await cluster.until(lambda: len(cluster.rows.events("taskmanager.lost")) == 3)
            assert len(cluster.rows.events("failover.started")) == 1

    run_virtual(scenario())


@pytest.mark.parametrize("version", ["1.15", "1.16", "2.x"])
def test_a_new_incarnation_replaces_the_old_one_at_once(version):
    """J-129: JobMasterTest.testJobMasterDisconnectsOldTaskExecutorIfNewSessionIsSeen. A restarted TaskManager does not wait for its
    predecessor's heartbeats."""

    async def scenario():
        async with running_job(4, flink_version=version) as cluster:
            old = cluster.running_on("sink-1")
            await old.die()
            cluster.tms.remove(old)
            await cluster.add(TaskManagerID(old.resource_id.ordinal, 2))
            await cluster.until(lambda: cluster.rows.events("failover.deployed"))
            (started,) = cluster.rows.events("failover.started")
            name = "" if version == "1.15" else f"{old.resource_id} "
            assert f"A registered TaskManager {name}re-registered with a new session id." in started["text"]
            assert (await cluster.status()).placement["sink-1"] == f"tm-{old.resource_id.ordinal}-2"
            await asyncio.sleep(7)
            lost = [row["subject"] for row in cluster.rows.events("taskmanager.lost")]
            assert lost == [str(old.resource_id)], "no heartbeat of its predecessor is missed later"

    run_virtual(scenario())


@virtually
async def test_a_task_whose_failure_report_was_lost_fails_with_the_next_heartbeat():
    """Its TaskManager no longer reports it (Flink's DefaultExecutionDeploymentReconciler). Nothing else would start a failover."""
    async with running_job(4) as cluster:
        attempt = cluster.attempt_of("count-0")
        owner = cluster.running_on("count-0")
        del owner.tasks[attempt]
        ended = asyncio.get_running_loop().time()
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        (started,) = cluster.rows.events("failover.started")
        text = f"Execution {attempt} is unexpectedly no longer running on task executor {owner.resource_id}."
        assert (data_of(started)["cause_class"], started["text"]) == ("FlinkException", text)
        assert started["t"] - ended <= 1.1
        (wait,) = [row for row in cluster.rows.table("waits") if row["cause"] == text]
        assert (wait["kind"], wait["option"], wait["outcome"]) == ("heartbeat", "heartbeat.interval", "fired")
        assert (await cluster.status()).restarts == 1


@virtually
async def test_a_task_that_no_execution_stands_for_is_cancelled():
    """A lost cancellation of an attempt that was replaced, for example."""
    async with running_job(4) as cluster:
        owner = cluster.running_on("count-0")
        stray = cluster.attempt_of("count-0") + "_stray"
        owner.tasks[stray] = owner.submitted[-1]
        await cluster.until(lambda: stray not in owner.tasks)
        assert (await cluster.status()).restarts == 0


@virtually
async def test_a_cancelled_task_that_is_gone_counts_as_cancelled_although_its_report_was_lost():
    """The failover does not wait for the next cancellation, one ask timeout later."""
    async with running_job(4, {"pekko.ask.timeout": "60 s"}) as cluster:
        owner = cluster.running_on("sink-1")
        owner.reports_end = False
        await cluster.running_on("count-0").report(
            cluster.attempt_of("count-0"), "FAILED", "IOException", "boom"
        )
        began = asyncio.get_running_loop().time()
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert asyncio.get_running_loop().time() - began < 5


@virtually
async def test_an_answer_to_the_heartbeat_of_an_earlier_leader_says_nothing_of_the_tasks():
    """It may come late, and its clock may be that of another machine."""
    async with running_job(4) as cluster:
        owner = cluster.running_on("count-0")
        late = Heartbeat(str(owner.resource_id), "an earlier leader", {}, asked_at=1e9)
        await owner.ask("jobmaster", late)
        await asyncio.sleep(3)
        assert (await cluster.status()).restarts == 0


@pytest.mark.parametrize(("result", "deployment"), [(BLOCKING, FULL_RESULT), (BOUNDED, FIRST_RECORD)])
def test_J_27_a_consumer_that_was_never_scheduled_is_not_restarted(result, deployment):
    """It waits for its input and keeps its attempt, however often its producer fails."""
    job = JobGraph(
        "job",
        (JobVertex("source", 1, 128, "a"), JobVertex("sink", 1, 128, "b")),
        (JobEdge("source", "sink", result=result, deployment=deployment),),
    )

    async def main():
        async with Cluster(2) as cluster:
            await cluster.submit(job)
            graph = cluster.manager.dispatcher.jobmaster.graph
            source, sink = ("source", 0), ("sink", 0)
            for failed in range(3):
                await cluster.until(lambda: graph.execution(source).state.value == "RUNNING")
                assert graph.execution(source).attempt.attempt == failed
                attempt = cluster.attempt_of("source-0")
                await cluster.running_on("source-0").report(attempt, "FAILED", "IOException")
            await cluster.until(lambda: graph.execution(source).state.value == "RUNNING")
            regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
            assert regions == [["source-0"]] * 3
            assert graph.execution(sink).attempt.attempt == 0
            assert graph.execution(sink).state.value == "CREATED"
            what = "full result of `source`" if result == BLOCKING else "first record of `source`"
            waits = [row for row in cluster.rows.table("waits") if row["kind"] == "input"]
            assert [(row["what"], row["outcome"]) for row in waits] == [(what, "cancelled")] * 3

    run_virtual(main())


@virtually
async def test_a_failover_ends_no_wait_for_inputs_of_another_region():
    """The wait for the result of the source that runs lasts until it is complete. The failed one is deployed before the next wait
    for its result begins."""
    full = {"result": BLOCKING, "deployment": FULL_RESULT}
    names = ("one", "two", "after-one", "after-two", "last")
    job = JobGraph(
        "job",
        tuple(JobVertex(name, 1, 128, name) for name in names),
        (
            JobEdge("one", "after-one", **full),
            JobEdge("two", "after-two", **full),
            JobEdge("one", "last", **full),
            JobEdge("two", "last", **full),
        ),
    )
    async with Cluster(5) as cluster:
        await cluster.submit(job)
        graph = cluster.manager.dispatcher.jobmaster.graph

        def states():
            return [graph.execution((name, 0)).state.value for name in names]

        await cluster.until(lambda: states() == ["RUNNING", "RUNNING", "CREATED", "CREATED", "CREATED"])
        await asyncio.sleep(1)
        await cluster.running_on("one-0").report(cluster.attempt_of("one-0"), "FAILED", "IOException")
        await cluster.until(lambda: len(cluster.rows.events("failover.deployed")) == 1)
        await cluster.running_on("two-0").report(cluster.attempt_of("two-0"), "FINISHED")
        await cluster.until(lambda: states()[3] == "RUNNING")
        await asyncio.sleep(1)
        await cluster.running_on("one-0").report(cluster.attempt_of("one-0"), "FINISHED")
        await cluster.until(lambda: states()[2:] == ["RUNNING"] * 3)
    rows = [row for row in cluster.rows.table("waits") if row["kind"] == "input"]
    assert [(row["what"], row["outcome"], row["attempt"]) for row in rows] == [
        ("full result of `one`", "cancelled", 1),
        ("full result of `one` and the full result of `two`", "cancelled", 1),
        ("full result of `two`", "completed", 1),
        ("full result of `one`", "completed", 2),
        ("full result of `one` and the full result of `two`", "completed", 2),
    ]


@virtually
async def test_a_wait_for_inputs_begins_when_a_producer_in_its_restart_delay_is_deployed_too():
    """One producer gets the slot that it waited for while the other one waits for its restart."""
    full = {"result": BLOCKING, "deployment": FULL_RESULT}
    names = ("one", "two", "last")
    edges = (JobEdge("one", "last", **full), JobEdge("two", "last", **full))
    job = JobGraph("job", tuple(JobVertex(name, 1, 128, name) for name in names), edges)
    async with Cluster(2, {"restart-strategy.fixed-delay.delay": "4 s"}) as cluster:
        await cluster.submit(job)
        graph = cluster.manager.dispatcher.jobmaster.graph

        def states():
            return [graph.execution((name, 0)).state.value for name in names]

        await cluster.until(lambda: states() == ["RUNNING", "RUNNING", "CREATED"])
        old = cluster.running_on("one-0")
        await old.die()
        cluster.tms.remove(old)
        await cluster.until(lambda: states()[0] == "SCHEDULED")
        await cluster.running_on("two-0").report(cluster.attempt_of("two-0"), "FAILED", "IOException")
        await cluster.add(TaskManagerID(old.resource_id.ordinal, 2))
        await cluster.until(lambda: states() == ["RUNNING", "FAILED", "CREATED"])
        await cluster.until(lambda: states() == ["RUNNING", "RUNNING", "CREATED"])
        await asyncio.sleep(1)
    rows = [row for row in cluster.rows.table("waits") if row["kind"] in ("input", "restart-delay")]
    ended = max(row["t_ns"] for row in rows if row["kind"] == "restart-delay")
    assert [row["start_ns"] >= ended for row in rows if row["kind"] == "input"] == [False, True]


@virtually
async def test_a_full_result_is_read_again_until_it_is_lost_with_its_taskmanager():
    """A consumer that fails restarts alone. With the TaskManager of its producer, the producer restarts too."""
    job = JobGraph(
        "job",
        (JobVertex("source", 1, 128, "a"), JobVertex("sink", 1, 128, "b")),
        (JobEdge("source", "sink", result=BLOCKING, deployment=FULL_RESULT),),
    )
    async with Cluster(3) as cluster:
        await cluster.submit(job)
        graph = cluster.manager.dispatcher.jobmaster.graph

        def states():
            return [graph.execution((name, 0)).state.value for name in ("source", "sink")]

        await cluster.until(lambda: states() == ["RUNNING", "CREATED"])
        await cluster.running_on("source-0").report(cluster.attempt_of("source-0"), "FINISHED")
        await cluster.until(lambda: states() == ["FINISHED", "RUNNING"])
        (wait,) = [row for row in cluster.rows.table("waits") if row["kind"] == "input"]
        assert (wait["what"], wait["outcome"]) == ("full result of `source`", "completed")
        await cluster.running_on("sink-0").report(cluster.attempt_of("sink-0"), "FAILED", "IOException")
        await cluster.until(lambda: states() == ["FINISHED", "RUNNING"])
        await (victim := cluster.running_on("source-0")).die()
        cluster.tms.remove(victim)
        await cluster.until(lambda: cluster.rows.events("taskmanager.lost"))
        await cluster.running_on("sink-0").report(cluster.attempt_of("sink-0"), "FAILED", "IOException")
        await cluster.until(lambda: states() == ["RUNNING", "CREATED"])
        regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
        assert regions == [["sink-0"], ["source-0", "sink-0"]]
    outcomes = [row["outcome"] for row in cluster.rows.table("waits") if row["kind"] == "input"]
    assert outcomes == ["completed", "open"], "a sink that restarts alone waits for no input"


@virtually
async def test_a_taskmanager_is_suspected_once_and_only_while_the_job_knows_it():
    """Two tasks lost their connections to a dead TaskManager, and one to a TaskManager of an earlier job."""
    async with running_job(5) as cluster:
        await asyncio.sleep(2.3)
        victim = cluster.running_on("source-1")
        await victim.die()
        for name in ("count-0", "count-1"):
            await cluster.running_on(name).report_lost_connection(cluster.attempt_of(name), victim)
        stranger = ScriptedTaskManager(TaskManagerID(9, 1), cluster.switchboard, cluster.address)
        await cluster.running_on("sink-0").report_lost_connection(cluster.attempt_of("sink-0"), stranger)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        suspects = [row["what"] for row in cluster.rows.table("waits") if row["kind"] == "fencing"]
        assert suspects == [str(victim.resource_id)]


@virtually
async def test_a_task_whose_taskmanager_refuses_its_cancellation_is_not_waited_for():
    """It does not know the attempt any more, and reports nothing."""
    async with running_job(4) as cluster:
        owner = cluster.running_on("sink-1")

        async def refused(message):
            raise FlinkError("TaskException", f"Cannot find task to stop for execution {message.attempt}.")

        owner.handlers[CancelTask] = refused
        owner.reports_end = False
        await cluster.running_on("count-0").report(cluster.attempt_of("count-0"), "FAILED", "IOException")
        await cluster.until(lambda: cluster.rows.events("failover.cancelled"), limit_s=0.5)
