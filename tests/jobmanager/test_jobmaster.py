"""The JobManager in virtual time: placement, deployment, failover, fencing, checkpoints, recovery of itself."""

import asyncio
import json
from functools import partial

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError, HeadgateError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import (
    AcknowledgeCheckpoint,
    CancelJob,
    CommitRecords,
    DeclineCheckpoint,
    RequestJobStatus,
    RequestPartitionState,
    StopWithDrain,
    TriggerCheckpoint,
)
from testbed_runtime.ports.rpc import AskTimeout, RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from tests.jobmanager.harness import (
    COMMIT,
    CONFIGURATION,
    GRAPH,
    Cluster,
    data_of,
    running_job,
    virtually,
)
from tests.jobmanager.test_commit_safety import Swallowing


@virtually
async def test_a_job_is_placed_over_the_lowest_ordinals_and_runs():
    """Two groups of two: four slots on tm-0 … tm-3; tm-4 is to spare."""
    async with Cluster(5) as cluster:
        before = await cluster.status()
        assert (before.state, len(before.taskmanagers), cluster.free_slots) == ("NONE", 5, 5)
        await cluster.submit()
        await cluster.until_running()
        status = await cluster.status()
        assert status.placement == {
            "source-0": "tm-0-1",
            "source-1": "tm-1-1",
            "count-0": "tm-2-1",
            "sink-0": "tm-2-1",
            "count-1": "tm-3-1",
            "sink-1": "tm-3-1",
        }
        assert (status.state, cluster.free_slots, status.restarts) == ("RUNNING", 1, 0)
        states = [
            (data_of(row)["from"], data_of(row)["to"])
            for row in cluster.rows.events("task.state")
            if row["subject"] == "count-0"
        ]
        assert states == [
            ("CREATED", "SCHEDULED"),
            ("SCHEDULED", "DEPLOYING"),
            ("DEPLOYING", "INITIALIZING"),
            ("INITIALIZING", "RUNNING"),
        ]


@virtually
async def test_a_second_job_is_refused_while_one_runs_and_unknown_jobs_are_not_found():
    """One job at a time."""
    async with Cluster(4) as cluster:
        await cluster.submit()
        with pytest.raises(RemoteFailure, match="still running"):
            await cluster.submit()
        with pytest.raises(RemoteFailure, match="Could not find Flink job"):
            await cluster.dispatch(RequestJobStatus("another"))
        assert (await cluster.dispatch(RequestJobStatus("job"))).state == "RUNNING"


@virtually
async def test_a_forward_edge_between_different_parallelisms_is_refused():
    """Flink's words; nothing is stored."""
    async with Cluster(1) as cluster:
        vertices = (*GRAPH.vertices[:2], replace(GRAPH.vertices[2], parallelism=1))
        with pytest.raises(RemoteFailure, match="Forward partitioning does not allow change of parallelism"):
            await cluster.submit(replace(GRAPH, vertices=vertices))
        assert await cluster.blobs.list("") == []


TIMEOUT = "execution.checkpointing.timeout"


def waits_for(cluster, what):
    """The JobMaster's waits for something: kind, outcome, milliseconds, cause and option."""
    rows = [w for w in cluster.rows.table("waits") if (w["who"], w["what"]) == ("JobMaster", what)]
    ms = [round((w["t_ns"] - w["start_ns"]) / 1e6) for w in rows]
    return [(w["kind"], w["outcome"], t, w["cause"], w["option"]) for w, t in zip(rows, ms, strict=True)]


@virtually
async def test_checkpoints_complete_at_the_interval_and_are_committed_into_the_record():
    """Triggered, acknowledged by six, written to the store, completed, notified; delivery rows with the checkpoint."""
    async with Cluster(4, commit=COMMIT) as cluster:
        await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 4)
        rows = cluster.rows.table("checkpoints")
        first = [row for row in rows if row["checkpoint"] == 1]
        assert [row["state"] for row in first] == [
            "triggered",
            *["acknowledged"] * 6,
            "finalizing",
            "completed",
        ]
        numbers = ("duration_ns", "alignment_ns", "state_bytes", "persisted_bytes")
        assert [tuple(round(row[n] / 1e6) if n.endswith("_ns") else row[n] for n in numbers) for row in first] == [
            (0, 0, 0, 0), *[(2, 10, 60, 7)] * 6, (2, 0, 0, 0), (3, 0, 600, 0)
        ]  # fmt: skip
        assert waits_for(cluster, "checkpoint 1") == [
            ("completion", "completed", 0, "", ""),
            ("checkpoint", "completed", 2, "", TIMEOUT),
        ]
        delivered = cluster.rows.table("delivery")
        assert [(r["task"], r["attempt"], r["checkpoint"], r["bitmap"]) for r in delivered] == [
            ("sink-0", 0, 1, b"\x0f"),
            ("sink-1", 0, 1, b"\x0f"),
            ("sink-0", 0, 2, b"\x0f"),
            ("sink-1", 0, 2, b"\x0f"),
        ]
        await cluster.until(lambda: all(1 in tm.notified for tm in cluster.tms))
        assert (await cluster.status()).completed_checkpoints >= 2
        assert cluster.rows.events("stale.rejected") == []


@virtually
async def test_stop_with_drain_takes_a_final_checkpoint_and_finishes():
    """Then the slots are given back."""
    async with running_job(4, commit=COMMIT) as cluster:
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until_state("FINISHED")
        await cluster.until(lambda: all(tm.free for tm in cluster.tms))
        status = await cluster.status()
        assert (status.state, status.cause, cluster.free_slots) == ("FINISHED", "", 4)
        await cluster.submit()
        await cluster.until_running()


@virtually
async def test_the_job_waits_for_a_replacement_when_no_slot_is_to_spare():
    """failover.slots comes with the new TaskManager."""
    async with running_job(4) as cluster:
        old = cluster.running_on("sink-1")
        await old.die()
        cluster.tms.remove(old)
        await asyncio.sleep(10)
        assert cluster.rows.events("failover.cancelled")
        assert not cluster.rows.events("failover.slots")
        await cluster.add(TaskManagerID(old.resource_id.ordinal, 2))
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))


@virtually
async def test_a_job_without_slots_fails_after_the_slot_request_timeout():
    """J-131: DefaultSchedulerTest.failJobIfNotEnoughResources. PhysicalSlotRequestBulkCheckerImpl ends the wait, as in Flink 2.3."""
    text = "Slot request bulk is not fulfillable! Could not allocate the required slot within slot request timeout"
    options = {"slot.request.timeout": "4 s", "restart-strategy.type": "none"}
    async with Cluster(3, options) as cluster:
        began = asyncio.get_running_loop().time()
        await cluster.submit()
        await asyncio.sleep(3)
        waits_for = "a slot for each task: 4 slots (for 3.0 s, slot.request.timeout = 4 s)"
        assert (await cluster.status()).waits_for == waits_for
        await cluster.until_state("FAILED")
        assert asyncio.get_running_loop().time() - began == pytest.approx(4, abs=0.1)
        status = await cluster.status()
        assert (status.cause_class, status.cause) == ("NoResourceAvailableException", text)
        assert cluster.free_slots == 3


@virtually
async def test_the_job_fails_when_its_restarts_are_used_up():
    """J-130: DefaultSchedulerTest.failJobIfCannotRestart. The first cause's class and text stay the job's cause; the event says what
    suppressed the recovery."""
    options = {"restart-strategy.fixed-delay.attempts": "1"}
    async with Cluster(4, options) as cluster:
        await cluster.submit()
        for _ in range(2):
            await cluster.until_running()
            await cluster.running_on("count-1").report(
                cluster.attempt_of("count-1"),
                "FAILED",
                "PartitionNotFoundException",
                "Partition x not found.",
            )
        await cluster.until_state("FAILED")
        status = await cluster.status()
        assert (status.cause_class, status.cause) == ("PartitionNotFoundException", "Partition x not found.")
        assert status.restarts == 1
        text = cluster.rows.events("job.state")[-1]["text"]
        assert text.startswith("Recovery is suppressed by FixedDelayRestartBackoffTimeStrategy(")
        assert "Partition x not found." in text
        ended = data_of(cluster.rows.events("job.state")[-1])
        assert ended["root"] == "PartitionNotFoundException: Partition x not found."
        assert ended["wait"] == "partition"


@virtually
async def test_a_busy_jobmaster_lets_asks_of_taskmanagers_time_out():
    """Service time × many deployments: the report of a task waits behind them."""
    wide = replace(GRAPH, vertices=tuple(replace(v, parallelism=20) for v in GRAPH.vertices))
    # a JobManager that is busy for so long also sends its heartbeats late
    slow = {"headgate.jobmanager.service-time": "50 ms", "heartbeat.timeout": "60 s"}
    async with Cluster(4, slow, slots=10) as cluster:
        await cluster.submit(wide)
        await cluster.until(lambda: cluster.tms[0].submitted)
        probe = RequestPartitionState(str(_some_partition(cluster)))
        with pytest.raises(AskTimeout):
            await cluster.tms[0].ask("jobmaster", probe, timeout_s=1.0)
        await cluster.until_running()
        (wait,) = [row for row in cluster.rows.table("waits") if row["what"] == "60 tasks"]
        # each task is submitted, and each answer is handled
        assert (wait["option"], wait["budget_ns"]) == ("headgate.jobmanager.service-time", 6_000_000_000)


def _some_partition(cluster):
    jobmaster = cluster.manager.dispatcher.jobmaster
    return jobmaster.graph.partition(GRAPH.edges[0], 0)


@virtually
async def test_a_deployment_that_is_not_answered_fails_with_flinks_words():
    """J-132: DefaultSchedulerTest.restartAfterDeploymentFails. A busy TaskExecutor: the ask times out, the attempt fails, the next one
    comes."""
    asked = "Ask timed out on [Actor[akka://flink/user/rpc/taskexecutor]]"
    await _check_unanswered("1.12", "AskTimeoutException", "akka.ask.timeout", f"2000 ms: {asked}")
    await _check_unanswered(
        "2.3", "TimeoutException", "pekko.ask.timeout", "PT2S: Invocation of [RemoteRpcInvocation("
    )


async def _check_unanswered(version, class_name, option, text):
    async with Cluster(5, {"pekko.ask.timeout": "2 s"}, flink_version=version) as cluster:
        cluster.tms[3].service_time_s = 0.0
        await cluster.submit()
        await cluster.until_running()
        failing = cluster.running_on("count-1")

        async def stuck(message):
            await asyncio.sleep(3)

        failing.handlers[type(_submit())] = stuck
        await failing.report(cluster.attempt_of("count-1"), "FAILED", "IOException", "boom")
        await cluster.until(lambda: len(cluster.rows.events("failover.attempt")) >= 2)
        failed = [
            row
            for row in cluster.rows.events("task.state")
            if data_of(row)["to"] == "FAILED" and data_of(row)["cause_class"] == class_name
        ]
        assert f"not responding after a rpcTimeout of {text}" in failed[0]["text"]
        assert cluster.rows.events("rpc.timeout")
        expired = [
            row
            for row in cluster.rows.table("waits")
            if row["kind"] == "deployment" and row["outcome"] == "expired"
        ]
        assert {row["option"] for row in expired} == {option}
        assert "deployment" in [data_of(row)["wait"] for row in cluster.rows.events("failover.failure")]


def _submit():
    from testbed_runtime.core.job.messages import SubmitTask

    return SubmitTask(None)


@virtually
async def test_partition_states_are_reported_and_unknown_partitions_are_disposed():
    """J-126: JobMasterTest.testRequestPartitionState. A consumer that found no partition learns the producer's state, and whether the
    partition is disposed."""
    async with running_job(4) as cluster:
        partition = str(_some_partition(cluster))
        tm = cluster.running_on("count-0")
        state = await tm.ask("jobmaster", RequestPartitionState(partition))
        assert (state.state, state.disposed) == ("RUNNING", False)
        await tm.report(cluster.attempt_of("count-0"), "FAILED", "IOException", "boom")
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert (await tm.ask("jobmaster", RequestPartitionState(partition))).disposed


@virtually
async def test_a_checkpoint_that_expires_fails_the_job_unless_tolerated():
    """Tolerable 0: the whole job restarts with Flink's text; declines count too."""
    async with Cluster(4, {"execution.checkpointing.timeout": "500 ms"}) as cluster:
        for tm in cluster.tms:
            tm.acknowledges = False
        await cluster.submit()
        await cluster.until(lambda: cluster.rows.events("failover.started"))
        (failed,) = [row for row in cluster.rows.table("checkpoints") if row["state"] == "failed"]
        assert (failed["reason"], failed["duration_ns"]) == ("CHECKPOINT_EXPIRED", 500_000_000)
        cause = "Checkpoint expired before completing."
        assert waits_for(cluster, "checkpoint 1") == [("checkpoint", "expired", 500, cause, TIMEOUT)]
        started = cluster.rows.events("failover.started")[0]
        assert started["text"].startswith("Exceeded checkpoint tolerable failure threshold.")
        assert data_of(started)["cause_class"] == "FlinkRuntimeException"
        assert data_of(started)["wait"] == "checkpoint"


@virtually
async def test_a_declined_checkpoint_fails_and_the_next_one_is_triggered():
    """Tolerated."""
    async with Cluster(4, {"execution.checkpointing.tolerable-failed-checkpoints": "5"}) as cluster:
        for tm in cluster.tms:
            tm.acknowledges = False
        await cluster.submit()
        await cluster.until(lambda: any(r["state"] == "triggered" for r in cluster.rows.table("checkpoints")))
        decline = DeclineCheckpoint(cluster.attempt_of("count-0"), 1, "CHECKPOINT_DECLINED_TASK_NOT_READY")
        assert (await cluster.running_on("count-0").ask("jobmaster", decline)).accepted
        for tm in cluster.tms:
            tm.acknowledges = True
        await cluster.until(lambda: any(r["state"] == "completed" for r in cluster.rows.table("checkpoints")))
        states = [(r["checkpoint"], r["state"], r["reason"]) for r in cluster.rows.table("checkpoints")]
        assert (1, "failed", "CHECKPOINT_DECLINED_TASK_NOT_READY") in states
        ((kind, outcome, _, cause, _),) = waits_for(cluster, "checkpoint 1")
        assert (kind, outcome, cause) == ("checkpoint", "failed", "Checkpoint was declined (tasks not ready)")
        notified = sorted(a for tm in cluster.tms for a in tm.aborted)
        assert notified == sorted((attempt, 1) for tm in cluster.tms for attempt in tm.tasks)
        assert (2, "completed", "") in states


@virtually
async def test_J_64_a_job_restarts_if_a_task_declines_the_final_checkpoint_of_its_stop():
    """However many failures are tolerated. The stop is tried again afterwards."""
    async with running_job(4, {"execution.checkpointing.tolerable-failed-checkpoints": "5"}) as cluster:
        for tm in cluster.tms:
            tm.acknowledges = False
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until(lambda: any(r["state"] == "triggered" for r in cluster.rows.table("checkpoints")))
        number = cluster.rows.table("checkpoints")[-1]["checkpoint"]
        decline = DeclineCheckpoint(
            cluster.attempt_of("count-0"), number, "CHECKPOINT_DECLINED_TASK_NOT_READY"
        )
        for tm in cluster.tms:
            tm.acknowledges = True
        await cluster.running_on("count-0").ask("jobmaster", decline)
        await cluster.until_state("FINISHED")
        (started,) = cluster.rows.events("failover.started")
        assert started["text"] == "Checkpoint was declined (tasks not ready)"
        assert data_of(started)["cause_class"] == "CheckpointException"
        assert len(data_of(started)["region"]) == 6


@virtually
async def test_one_declined_checkpoint_too_many_of_a_task_that_has_finished_fails_no_job():
    """DefaultExecutionGraph.failGlobalIfExecutionIsStillRunning."""
    async with Cluster(4) as cluster:
        for tm in cluster.tms:
            tm.acknowledges = False
        await cluster.submit()
        await cluster.until(partial(reached, cluster, 1, "triggered"))
        owner, attempt = cluster.running_on("sink-0"), cluster.attempt_of("sink-0")
        await owner.report(attempt, "FINISHED")
        await owner.ask("jobmaster", DeclineCheckpoint(attempt, 1, "CHECKPOINT_DECLINED"))
        assert reached(cluster, 1, "failed")
        assert cluster.rows.events("failover.started") == []


@pytest.mark.parametrize(
    ("answer", "reason", "after_s"),
    [
        (FlinkError("CheckpointException", "unknown task"), "TASK_CHECKPOINT_FAILURE", 0.0),
        (FlinkError("Exception", "broken"), "TRIGGER_CHECKPOINT_FAILURE", 0.0),
        (None, "TRIGGER_CHECKPOINT_FAILURE", 3.0),
    ],
    ids=["unknown task", "error", "no answer"],
)
def test_whether_a_trigger_that_no_task_gets_aborts_its_checkpoint_depends_on_the_version(
    answer, reason, after_s
):
    """FLINK-21246, CheckpointCoordinator.triggerTasks: also if it is not answered within pekko.ask.timeout (3 s). Before 1.14, the
    checkpoint expires (after 4 s)."""

    async def refuse(message):
        raise answer

    async def main(version):
        options = {
            "execution.checkpointing.timeout": "4 s",
            "execution.checkpointing.tolerable-failed-checkpoints": "5",
        }
        async with Cluster(4, options, flink_version=version) as cluster:
            for tm in cluster.tms:
                if answer is not None:
                    tm.handlers[TriggerCheckpoint] = refuse
                else:
                    tm.rpc._mailboxes["taskexecutor"]._interceptor = Swallowing(TriggerCheckpoint, 2)
            await cluster.submit()
            await cluster.until(partial(reached, cluster, 1, "failed"))
            began, failed = (
                next(r for r in cluster.rows.table("checkpoints") if r["state"] == state)
                for state in ("triggered", "failed")
            )
            return failed["reason"], round(failed["t"] - began["t"], 1)

    assert run_virtual(main("1.13")) == ("CHECKPOINT_EXPIRED", 4.0)
    assert run_virtual(main("1.14")) == (reason, after_s)


@virtually
async def test_I_65_the_notification_of_an_abortion_names_the_latest_completed_checkpoint():
    """The task may have missed its notification (1.15 and later)."""
    tolerant = {"execution.checkpointing.tolerable-failed-checkpoints": "5"}
    for version, named in (("1.14", 0), ("2.x", 1)):
        async with Cluster(4, tolerant, flink_version=version) as cluster:
            await cluster.submit()
            await cluster.until(partial(reached, cluster, 1, "completed"))
            for tm in cluster.tms:
                tm.acknowledges = False
            await cluster.until(partial(reached, cluster, 2, "triggered"))
            decline = DeclineCheckpoint(cluster.attempt_of("count-0"), 2, "CHECKPOINT_DECLINED")
            await cluster.running_on("count-0").ask("jobmaster", decline)
            await cluster.until(lambda: any(tm.named_completed for tm in cluster.tms))
            assert {latest for tm in cluster.tms for latest in tm.named_completed} == {named}


def reached(cluster, checkpoint, state):
    return any(
        (r["checkpoint"], r["state"]) == (checkpoint, state) for r in cluster.rows.table("checkpoints")
    )


class FailingStore:
    """A BlobStore that refuses metadata, or other keys, on demand."""

    def __init__(self, inner, refused="_metadata"):
        self.inner = inner
        self.failing = False
        self.refused = refused

    async def put(self, key, data):
        if self.failing and key.endswith(self.refused):
            raise OSError("no space left on device")
        await self.inner.put(key, data)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@virtually
async def test_a_store_that_refuses_the_metadata_fails_the_checkpoint_and_commits_nothing():
    """FINALIZE_CHECKPOINT_FAILURE."""
    blobs = FailingStore(MemoryBlobStore())
    blobs.failing = True
    options = {"execution.checkpointing.tolerable-failed-checkpoints": "5"}
    async with Cluster(4, options, blobs=blobs, commit=COMMIT) as cluster:
        await cluster.submit()
        await cluster.until(lambda: any(r["state"] == "failed" for r in cluster.rows.table("checkpoints")))
        reasons = [r["reason"] for r in cluster.rows.table("checkpoints") if r["state"] == "failed"]
        assert reasons == ["FINALIZE_CHECKPOINT_FAILURE"]
        assert cluster.rows.table("delivery") == []
        blobs.failing = False
        await cluster.until(lambda: cluster.rows.table("delivery"))


@virtually
async def test_a_store_that_refuses_the_status_is_noted_and_the_job_goes_on():
    """The next change writes it."""
    blobs = FailingStore(MemoryBlobStore(), "/status")
    async with running_job(4, blobs=blobs) as cluster:
        blobs.failing = True
        await cluster.running_on("count-0").report(
            cluster.attempt_of("count-0"), "FAILED", "IOException", "boom"
        )
        await cluster.until(lambda: cluster.rows.events("note"))
        assert {row["text"] for row in cluster.rows.events("note")} == {
            "The job's status cannot be stored: no space left on device"
        }
        blobs.failing = False
        await cluster.until_running()
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        await cluster.manager.close()
        (key,) = [key for key in await blobs.list("jobs/") if key.endswith("/status")]
        assert json.loads(await blobs.get(key))["state"] == "CANCELED"


@virtually
async def test_at_least_once_commits_are_recorded_once_each():
    """A repeated flush is one flush; checkpoint −1."""
    async with running_job(4) as cluster:
        tm, attempt = cluster.running_on("sink-0"), cluster.attempt_of("sink-0")
        for sequence in (0, 0, 1):
            message = CommitRecords(attempt, tm.leader, sequence, COMMIT)
            assert (await tm.ask("jobmaster", message)).accepted
        assert [(r["task"], r["checkpoint"]) for r in cluster.rows.table("delivery")] == [("sink-0", -1)] * 2
        other = CommitRecords(attempt, "another leader", 2, COMMIT)
        assert not (await tm.ask("jobmaster", other)).accepted


@virtually
async def test_a_killed_jobmanager_goes_on_from_the_store():
    """The same job, the latest checkpoint, attempts that count on; nothing is committed twice."""
    async with Cluster(4, {"execution.checkpointing.min-pause": "1 s"}, commit=COMMIT) as cluster:
        job = await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 4)
        await asyncio.sleep(0.1)
        zombie = cluster.attempt_of("sink-0")
        await cluster.manager.close()
        committed = len(cluster.rows.table("delivery"))
        await cluster.start_jobmanager()
        for tm in cluster.tms:
            tm.tasks.clear()
            await tm.register()
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        status = await cluster.status()
        assert (status.state, status.restarts) == ("RUNNING", 1)
        assert cluster.manager.dispatcher.jobmaster.job == job
        descriptor = cluster.running_on("sink-0").submitted[-1]
        assert (descriptor.attempt_number, descriptor.restore_checkpoint) == (1, 2)
        assert cluster.attempt_of("sink-0") != zombie
        message = AcknowledgeCheckpoint(zombie, 3, "", 0, 0, COMMIT)
        assert not (await cluster.tms[0].ask("jobmaster", message)).accepted
        assert len(cluster.rows.table("delivery")) == committed
        (started,) = cluster.rows.events("failover.started")
        assert (data_of(started)["detector"], data_of(started)["wait"]) == ("JobManager", "jobmanager")


@virtually
async def test_a_job_that_has_ended_is_not_taken_up_again():
    """And its end is not forgotten by the store."""
    async with running_job(4) as cluster:
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        await asyncio.sleep(0.1)
        await cluster.manager.close()
        await cluster.start_jobmanager()
        assert cluster.manager.dispatcher.jobmaster is None


@virtually
async def test_a_damaged_store_is_said_plainly():
    """The key and what is wrong."""
    async with Cluster(4) as cluster:
        job = await cluster.submit()
        await cluster.until_running()
        await cluster.manager.close()
        await cluster.blobs.put(f"jobs/{job}/graph", b"{")
        with pytest.raises(HeadgateError, match=f"jobs/{job}/graph in the blob store cannot be read"):
            await cluster.start_jobmanager()


@virtually
async def test_live_counters_come_with_the_heartbeats():
    """Sums, and the largest lag."""
    async with running_job(4) as cluster:
        await asyncio.sleep(1.5)
        counters = (await cluster.status()).counters
        assert (counters["records_out"], counters["lag_s"]) == (40.0, 3.0)


@virtually
async def test_one_timer_sends_the_heartbeats_to_all_taskmanagers():
    """Each interval since the JobManager started, also to one that registered in between."""
    async with Cluster(2) as cluster:
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(0.4)
        await cluster.add(TaskManagerID(2, 1))
        for tm in cluster.tms:
            tm.asked_at.clear()
        await asyncio.sleep(3)
        asked = [[round(at - started, 1) for at in tm.asked_at] for tm in cluster.tms]
        assert asked == [[1.0, 2.0, 3.0]] * 3


@pytest.mark.parametrize(("version", "earliest", "latest"), [("2.2", 0.1, 9.9), ("2.3", -0.01, 0.01)])
def test_the_first_checkpoint_comes_at_a_drawn_moment_of_the_first_interval_until_2_2(
    version, earliest, latest
):
    """As soon as all tasks run from 2.3 on. The next ones follow at the interval."""

    async def test():
        async with running_job(
            5, {"execution.checkpointing.interval": "10 s"}, flink_version=version
        ) as cluster:
            running = asyncio.get_running_loop().time()
            await asyncio.sleep(25)
            rows = [row for row in cluster.rows.table("checkpoints") if row["state"] == "triggered"]
            first, second = (row["t"] - running for row in rows[:2])
            assert earliest < first < latest
            assert second - first == pytest.approx(10, abs=0.01)

    run_virtual(test())


def test_the_configuration_of_the_harness_is_what_the_tests_speak_of():
    """Intervals of 1 s, threshold 2."""
    assert CONFIGURATION["heartbeat.interval"] == "1 s"
