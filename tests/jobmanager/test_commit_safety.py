"""Checkpoint guarantees when the JobManager, the recorder or a message is lost at the worst moment."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from testbed_runtime.core.job.messages import (
    Acknowledge,
    CancelJob,
    CommitRecords,
    NotifyCheckpointComplete,
    SinkCommit,
    StopWithDrain,
)
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.checkpoints import load_snapshots, snapshot_key
from testbed_runtime.taskmanager.gateway import RecordCommitter
from testbed_runtime.workload.snapshots import SubtaskSnapshot, encode_snapshot
from tests.jobmanager.harness import COMMIT, Cluster, running_job, virtually
from tests.taskmanager.test_task_parts import gateway


class AwayRecorder:
    """The flush of a history sink whose recorder is or is not there."""

    def __init__(self, *, away=False):
        self.away = away
        self.flushes = 0

    async def flush(self):
        self.flushes += 1
        return not self.away


class Swallowing:
    """A CallInterceptor that loses the next messages of one kind."""

    active = True

    def __init__(self, kind, count):
        self.kind = kind
        self.left = count

    async def before_handle(self, endpoint, message):
        del endpoint
        if not isinstance(message, self.kind) or self.left <= 0:
            return True
        self.left -= 1
        return False


async def restart_jobmanager(cluster):
    """Another process on the same store, and TaskManagers that have lost what they ran."""
    await cluster.manager.close()
    await cluster.start_jobmanager()
    for tm in cluster.tms:
        tm.tasks.clear()
        await tm.register()
    await cluster.until(lambda: cluster.rows.events("failover.deployed"))


def triggered(cluster):
    """The ids in the order in which they were triggered."""
    return [r["checkpoint"] for r in cluster.rows.table("checkpoints") if r["state"] == "triggered"]


def committed(rows):
    return Counter((row["task"], row["checkpoint"]) for row in rows)


@virtually
async def test_commits_that_the_recorder_never_acknowledged_are_written_again_by_the_next_leader():
    """This holds for every such checkpoint, not only for the latest."""
    async with Cluster(4, commit=COMMIT) as cluster:
        recorder = AwayRecorder(away=True)
        cluster.rows.flush = recorder.flush
        await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 8)
        await asyncio.sleep(0.2)
        before = committed(cluster.rows.table("delivery"))
        cluster.rows.rows.clear()  # what was spooled died with the process
        recorder.away = False
        await restart_jobmanager(cluster)
        again = committed(cluster.rows.table("delivery"))
        assert {key: again[key] for key in before} == dict(before)


@virtually
async def test_the_commits_of_a_job_that_has_ended_are_written_again_too():
    """The JobManager is killed after the end of the job, before the recorder has acknowledged them. The next one does not wait for it."""
    async with Cluster(4, commit=COMMIT) as cluster:
        cluster.rows.flush = AwayRecorder(away=True).flush
        await cluster.submit()
        await cluster.until(lambda: cluster.rows.table("delivery"))
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until_state("FINISHED")
        await asyncio.sleep(0.2)
        before = committed(cluster.rows.table("delivery"))
        cluster.rows.rows.clear()
        await cluster.manager.close()
        cluster.rows.flush = asyncio.Event().wait
        await cluster.start_jobmanager()
        assert (await cluster.status()).state == "FINISHED"
        assert committed(cluster.rows.table("delivery")) == before


@virtually
async def test_commits_that_are_in_the_record_are_not_written_again():
    """Acknowledged by the recorder, and said so in the store."""
    async with Cluster(4, commit=COMMIT) as cluster:
        await cluster.submit()
        await cluster.until(lambda: len(cluster.rows.table("delivery")) >= 8)
        await asyncio.sleep(0.2)
        before = committed(cluster.rows.table("delivery"))
        cluster.rows.rows.clear()
        await restart_jobmanager(cluster)
        assert not committed(cluster.rows.table("delivery")).keys() & before.keys()


@virtually
async def test_J_133_a_checkpoint_id_is_used_once_also_after_a_restart_of_the_jobmanager():
    """CheckpointIDCounterTestBase.testSerialIncrementAndGet. The ids of checkpoints that were not completed are not used again,
    if the store had them when the JobManager ended."""
    async with Cluster(4, {"execution.checkpointing.max-concurrent-checkpoints": "2"}) as cluster:
        await cluster.submit()
        await cluster.until(lambda: (1, "completed", "") in ended_checkpoints(cluster))
        for tm in cluster.tms:
            tm.acknowledges = False
        await cluster.until(lambda: triggered(cluster) == [1, 2, 3])
        for tm in cluster.tms:
            tm.acknowledges = True
        await restart_jobmanager(cluster)
        await cluster.until(lambda: (4, "completed", "") in ended_checkpoints(cluster))
        assert triggered(cluster)[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("task", ["source-0", "sink-0"])
@pytest.mark.parametrize("states", [[], ["INITIALIZING"]], ids=["DEPLOYING", "INITIALIZING"])
@pytest.mark.parametrize("version", ["1.12", "2.2", "2.3"])
def test_J_145_no_checkpoint_begins_while_a_task_does_not_run_yet(task, states, version):
    """DefaultCheckpointPlanCalculatorTest.testPlanCalculationWhenOneTaskNotRunning: whether that is a source or not."""

    async def main():
        async with Cluster(4, flink_version=version, starts_tasks=False) as cluster:
            await cluster.submit()
            await cluster.until(lambda: sum(len(tm.tasks) for tm in cluster.tms) == 6)
            attempts = {name: cluster.attempt_of(name) for name in (await cluster.status()).tasks}
            late = attempts.pop(task)
            for attempt in attempts.values():
                await cluster.tms[0].report(attempt, "RUNNING")
            for state in states:
                await cluster.tms[0].report(late, state)
            await asyncio.sleep(5.5)
            assert triggered(cluster) == []
            await cluster.tms[0].report(late, "RUNNING")
            await cluster.until(lambda: triggered(cluster) == [1], limit_s=1.1)

    run_virtual(main())


@virtually
async def test_from_2_3_on_the_first_checkpoint_begins_when_the_last_task_runs():
    """However long the others have run by then."""
    configuration = {"execution.checkpointing.interval": "10 s"}
    async with Cluster(4, configuration, flink_version="2.3", starts_tasks=False) as cluster:
        await cluster.submit()
        await cluster.until(lambda: sum(len(tm.tasks) for tm in cluster.tms) == 6)
        *others, last = (cluster.attempt_of(name) for name in (await cluster.status()).tasks)
        for attempt in others:
            await cluster.tms[0].report(attempt, "RUNNING")
        await asyncio.sleep(3)
        assert cluster.rows.table("checkpoints") == []
        await cluster.tms[0].report(last, "RUNNING")
        await cluster.until(lambda: cluster.rows.table("checkpoints"), limit_s=0.1)


@virtually
async def test_a_checkpoint_waits_for_the_record_of_what_an_at_least_once_sink_committed():
    """Else a JobManager that dies takes along rows that no attempt writes again."""
    async with Cluster(4, {"execution.checkpointing.min-pause": "1 s"}) as cluster:
        recorder = AwayRecorder()
        cluster.rows.flush = recorder.flush
        await cluster.submit()
        await cluster.until_running()
        tm, attempt = cluster.running_on("sink-0"), cluster.attempt_of("sink-0")
        assert (await tm.ask("jobmaster", CommitRecords(attempt, tm.leader, 0, COMMIT))).accepted
        stored = []
        put = cluster.blobs.put

        async def watched(key, data):
            if key.endswith("_metadata"):
                stored.append(recorder.flushes)
            await put(key, data)

        cluster.blobs.put = watched
        await cluster.until(lambda: stored)
        assert stored[0] == 1


@virtually
async def test_the_first_row_of_a_commit_has_its_weight():
    """That of all its chunks together. Without a chunk, one empty row has it."""
    chunks = tuple((f"source-{n}", 0, "0f", 0, 0, 0) for n in range(3))
    async with running_job(4) as cluster:
        tm, attempt = cluster.running_on("sink-0"), cluster.attempt_of("sink-0")
        for number, commit in enumerate((SinkCommit(chunks, weight=9), SinkCommit((), weight=2))):
            message = CommitRecords(attempt, tm.leader, number, commit)
            assert (await tm.ask("jobmaster", message)).accepted
        rows = [(row["source"], row["weight"]) for row in cluster.rows.table("delivery")]
        assert rows == [("source-0", 9), ("source-1", 0), ("source-2", 0), ("", 2)]


@virtually
async def test_a_hundred_checkpoints_are_kept_for_a_recorder_that_is_away():
    """Beside the two that are retained anyway. The oldest ones go then, although their commits may not be in the record."""
    async with Cluster(4, {"execution.checkpointing.interval": "20 ms"}, commit=COMMIT) as cluster:
        cluster.rows.flush = AwayRecorder(away=True).flush
        job = await cluster.submit()
        await cluster.until(lambda: len(triggered(cluster)) > 110)
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        await asyncio.sleep(1)
        keys = await cluster.blobs.list(f"jobs/{job}/checkpoints/")
        kept = {number for key in keys if (number := key.split("/")[3]).isdigit()}
        assert len(kept) == 2 + 100


@virtually
async def test_a_task_that_missed_the_final_checkpoint_is_notified_again():
    """There is no later checkpoint, so the task would wait forever."""
    async with running_job(4) as cluster:
        for tm in cluster.tms:
            tm.finishes = False
        deaf = cluster.running_on("source-0")
        deaf.rpc._mailboxes["taskexecutor"]._interceptor = Swallowing(NotifyCheckpointComplete, 2)
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until(lambda: deaf.notified)
        final = max(r["checkpoint"] for r in cluster.rows.table("checkpoints") if r["state"] == "completed")
        assert deaf.notified == [final]


@virtually
async def test_what_failed_checkpoints_left_in_the_store_goes_with_the_older_ones():
    """Only the newest two, and what they refer to, stay."""
    async with Cluster(4, commit=COMMIT) as cluster:
        job = await cluster.submit()
        await cluster.blobs.put(f"jobs/{job}/checkpoints/1/source-0/of-a-late-attempt", b"x")
        await cluster.until(lambda: any(r["checkpoint"] == 4 for r in cluster.rows.table("delivery")))
        await asyncio.sleep(0.2)
        kept = {key.split("/")[3] for key in await cluster.blobs.list(f"jobs/{job}/checkpoints/")}
        assert kept == {"3", "4", "latest"}


@virtually
async def test_J_94_one_retained_checkpoint_leaves_only_the_latest_in_the_store():
    """`execution.checkpointing.num-retained: 1`, also by its older name."""
    async with Cluster(4, {"state.checkpoints.num-retained": "1"}, commit=COMMIT) as cluster:
        job = await cluster.submit()
        await cluster.until(lambda: any(r["checkpoint"] == 4 for r in cluster.rows.table("delivery")))
        await asyncio.sleep(0.2)
        kept = {key.split("/")[3] for key in await cluster.blobs.list(f"jobs/{job}/checkpoints/")}
        assert kept == {"4", "latest"}


@virtually
async def test_J_149_the_next_leader_retains_what_the_one_before_it_has_retained():
    """DefaultCompletedCheckpointStoreTest.testRecoverSortedCheckpoints: the oldest is deleted when the first one of the next leader
    is complete."""
    async with Cluster(4, {"execution.checkpointing.num-retained": "3"}, commit=COMMIT) as cluster:
        job = await cluster.submit()

        async def kept_after(checkpoint):
            await cluster.until(lambda: (checkpoint, "completed", "") in ended_checkpoints(cluster))
            await asyncio.sleep(0.2)
            keys = await cluster.blobs.list(f"jobs/{job}/checkpoints/")
            return sorted({key.split("/")[3] for key in keys if key.endswith("/_metadata")})

        assert await kept_after(5) == ["3", "4", "5"]
        await restart_jobmanager(cluster)
        assert await kept_after(6) == ["4", "5", "6"]
        assert cluster.manager.dispatcher.jobmaster._completed.retained == (4, 5, 6)


class SlowFor(MemoryBlobStore):
    """Takes 5 s for the metadata of one checkpoint."""

    def __init__(self, checkpoint):
        super().__init__()
        self._slow = f"/checkpoints/{checkpoint}/_metadata"

    async def put(self, key, data):
        if key.endswith(self._slow):
            await asyncio.sleep(5.0)
        await super().put(key, data)


CONCURRENT = {"execution.checkpointing.max-concurrent-checkpoints": "3"}


def ended_checkpoints(cluster):
    """The checkpoints that have completed or failed, in that order, with the reason of a failure."""
    rows = cluster.rows.table("checkpoints")
    return [(r["checkpoint"], r["state"], r["reason"]) for r in rows if r["state"] in ("completed", "failed")]


@virtually
async def test_J_34_checkpoints_complete_in_the_order_in_which_the_last_task_acknowledged_them():
    """Each commits once, although the store takes longer for the first one than for those after it."""
    async with Cluster(4, CONCURRENT, commit=COMMIT, blobs=SlowFor(1)) as cluster:
        await cluster.submit()
        await cluster.until(lambda: len(ended_checkpoints(cluster)) >= 3)
        assert ended_checkpoints(cluster)[:3] == [(n, "completed", "") for n in (1, 2, 3)]
        assert max(committed(cluster.rows.table("delivery")).values()) == 1


@virtually
async def test_J_35_a_checkpoint_that_is_acknowledged_while_a_later_one_is_stored_is_subsumed():
    """It never completes: a restart would go back to it although the later one has committed."""
    async with Cluster(4, CONCURRENT, commit=COMMIT, blobs=SlowFor(2)) as cluster:
        for tm in cluster.tms:
            acknowledge = tm.acknowledge

            async def late(attempt, trigger, acknowledge=acknowledge):
                await asyncio.sleep(3.0 if trigger.checkpoint == 1 else 0.0)
                return await acknowledge(attempt, trigger)

            tm.acknowledge = late
        await cluster.submit()
        await cluster.until(lambda: len(ended_checkpoints(cluster)) >= 3)
        ended = [(1, "failed", "CHECKPOINT_SUBSUMED"), (2, "completed", ""), (3, "completed", "")]
        assert sorted(ended_checkpoints(cluster)[:3]) == ended


class HeldDeletions(MemoryBlobStore):
    """Deletes an object only when `go_on` is set."""

    def __init__(self):
        super().__init__()
        self.go_on = asyncio.Event()

    async def delete(self, key):
        await self.go_on.wait()
        await super().delete(key)


@virtually
async def test_J_100_no_checkpoint_begins_while_two_old_ones_are_being_deleted():
    """Two are retained: the first two are deleted when the third and the fourth complete, which is one too many at once."""
    blobs = HeldDeletions()
    async with Cluster(4, blobs=blobs, commit=COMMIT) as cluster:
        await cluster.submit()
        await cluster.until(lambda: (4, "completed", "") in ended_checkpoints(cluster))
        await asyncio.sleep(10.0)
        assert cluster.rows.table("checkpoints")[-1]["checkpoint"] == 4
        blobs.go_on.set()
        await cluster.until(lambda: (6, "completed", "") in ended_checkpoints(cluster))


def test_two_attempts_that_store_the_same_checkpoint_do_not_overwrite_each_other():
    """A zombie of an earlier leader's, after the new leader's attempt."""

    async def main():
        blobs = MemoryBlobStore()
        mine = SubtaskSnapshot(5, "source", 0, 1, 128, next_sequence=700)
        zombies = replace(mine, next_sequence=900)
        keys = [snapshot_key("job", f"graph{n}_vertex_0_0", mine) for n in (2, 1)]
        for key, snapshot in zip(keys, (mine, zombies), strict=True):
            await blobs.put(key, encode_snapshot(snapshot))
        assert await load_snapshots(blobs, tuple(keys)) == [mine, zombies]

    run_virtual(main())


def test_what_is_handed_over_was_answered_and_later_commits_are_not_waited_for():
    """An at-least-once sink's checkpoint is acknowledged only then."""

    async def main():
        gate = asyncio.Event()
        answered = []

        async def take(message):
            await gate.wait()
            answered.append(message.sequence)
            if message.sequence == 1:
                gate.clear()
            return Acknowledge()

        way, close = await gateway({CommitRecords: take})
        committer = RecordCommitter(way, "attempt", lambda error: None)
        committer.commit(SinkCommit())
        committer.commit(SinkCommit())
        waiting = asyncio.create_task(committer.handed_over())
        await asyncio.sleep(0)
        committer.commit(SinkCommit())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        gate.set()
        await waiting
        assert answered == [0, 1]
        gate.set()
        await committer.handed_over()
        assert answered == [0, 1, 2]
        await close()

    run_virtual(main())
