"""The checkpoint that the JobMaster takes when the data of all tasks has ended, and a stop that is refused."""

from __future__ import annotations

import asyncio

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.jobgraph import JobGraph, JobVertex
from testbed_runtime.core.job.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
    StopWithDrain,
    TriggerCheckpoint,
)
from testbed_runtime.jobmanager.jobstore import JobStore
from tests.jobmanager.harness import Cluster, running_job, virtually

RARE = {"execution.checkpointing.interval": "1 h", "execution.checkpointing.min-pause": "30 min"}
TASKS = tuple(f"{vertex}-{subtask}" for vertex in ("source", "count", "sink") for subtask in (0, 1))


async def end(cluster: Cluster, *names: str) -> list[bool]:
    """The data of these subtasks ends. Return whether the JobMaster accepted it."""
    tm = cluster.tms[0]
    answers = [await tm.ask("jobmaster", NotifyEndOfData(cluster.attempt_of(name))) for name in names]
    await asyncio.sleep(1)
    return [answer.accepted for answer in answers]


def triggered(cluster: Cluster) -> list[int]:
    return [r["checkpoint"] for r in cluster.rows.table("checkpoints") if r["state"] == "triggered"]


@virtually
async def test_J_96_tasks_that_restart_after_the_end_of_their_data_have_to_end_again():
    """testRestoreVertexEndOfDataListener: those of the attempts before do not count, and are not known any more."""
    async with running_job(4, RARE) as cluster:
        await end(cluster, *TASKS[:-1], *TASKS[:-1])
        assert triggered(cluster) == []
        await end(cluster, TASKS[-1])
        assert triggered(cluster) == [1]
        old = cluster.attempt_of("count-0")
        await cluster.running_on("count-0").report(old, "FAILED", "Exception", "x")
        await cluster.until_running()
        answer = await cluster.tms[0].ask("jobmaster", NotifyEndOfData(old))
        assert not answer.accepted
        assert await end(cluster, *TASKS[1:]) == [True] * 5
        assert triggered(cluster) == [1]
        await end(cluster, TASKS[0])
        assert triggered(cluster) == [1, 2]


@virtually
async def test_the_end_of_all_data_waits_for_a_checkpoint_in_progress():
    """As many as may be at a time are pending: CheckpointRequestDecider queues the request."""
    async with running_job(4, {"execution.checkpointing.interval": "2 s"}, acknowledges=False) as cluster:
        await cluster.until(lambda: triggered(cluster))
        await end(cluster, *TASKS)
        assert triggered(cluster) == [1]


@virtually
async def test_a_stop_has_its_final_checkpoint_and_needs_no_other_one():
    """Its data ends before the final checkpoint."""
    async with running_job(4, RARE, finishes=False) as cluster:
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until(lambda: triggered(cluster))
        await end(cluster, *TASKS)
        assert triggered(cluster) == [1]


@virtually
async def test_a_stop_that_is_refused_later_is_not_wanted_after_a_restart_of_the_jobmanager() -> None:
    """It came while the job restarted after a task had finished, and version 1.13 takes no checkpoint then."""
    job = JobGraph("job", (JobVertex("a", 1, 128, "a"), JobVertex("b", 1, 128, "b")), ())
    delay = {"restart-strategy.fixed-delay.delay": "2 s"}
    async with Cluster(2, delay, flink_version="1.13") as cluster:
        identity = await cluster.submit(job)
        store = JobStore(cluster.blobs)
        await cluster.until_running()
        for name, state in (("a-0", "FINISHED"), ("b-0", "FAILED")):
            await cluster.running_on(name).report(cluster.attempt_of(name), state)
        await cluster.dispatch(StopWithDrain(""))
        await asyncio.sleep(1)
        assert (await store.status(identity)).draining
        await asyncio.sleep(2)
        assert "Not all required tasks" in (await cluster.status()).stop_refused
        assert not (await store.status(identity)).draining


@virtually
async def test_the_final_checkpoint_of_a_stop_needs_no_task_that_is_ending():
    """It was triggered when the task had nothing left to do, or its report was on its way. Nothing restarts: in a job without other
    checkpoints, all records would be emitted again."""
    async with running_job(4, acknowledges=False, finishes=False) as cluster:
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until(lambda: triggered(cluster))
        number, ending = triggered(cluster)[-1], ("source-0", "count-0")
        for name in ending:
            task, attempt = cluster.running_on(name), cluster.attempt_of(name)
            closing = DeclineCheckpoint(attempt, number, "CHECKPOINT_DECLINED_TASK_CLOSING")
            ended = DeclineCheckpoint(attempt, number, "CHECKPOINT_DECLINED_TASK_NOT_READY")
            await task.ask("jobmaster", closing)
            await task.report(attempt, "FINISHED")
            await task.ask("jobmaster", ended)
        for name in set(TASKS) - set(ending):
            done = AcknowledgeCheckpoint(cluster.attempt_of(name), number, "handle", 1, 0.0)
            await cluster.running_on(name).ask("jobmaster", done)
        await asyncio.sleep(1)
        rows = [r for r in cluster.rows.table("checkpoints") if r["checkpoint"] == number and not r["task"]]
        assert [r["state"] for r in rows] == ["triggered", "finalizing", "completed"]
        assert (await cluster.status()).restarts == 0


@virtually
async def test_the_final_checkpoint_of_a_stop_needs_no_task_whose_end_is_reported_late():
    """The TaskManager does not know the task any more when it is asked for the checkpoint, and its report arrives seconds later."""

    async def ended(message: TriggerCheckpoint) -> Acknowledge:
        raise FlinkError("CheckpointException", f"unknown task {message.attempt}")

    async with running_job(4, RARE, acknowledges=False, finishes=False) as cluster:
        late = cluster.running_on("source-0")
        late.handlers[TriggerCheckpoint] = ended
        own = {name for name in TASKS if cluster.running_on(name) is late}
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until(lambda: triggered(cluster))
        (number,) = triggered(cluster)
        await asyncio.sleep(3)
        for name in set(TASKS) - own:
            done = AcknowledgeCheckpoint(cluster.attempt_of(name), number, "handle", 1, 0.0)
            await cluster.running_on(name).ask("jobmaster", done)
        for name in own:
            await late.report(cluster.attempt_of(name), "FINISHED")
        await asyncio.sleep(1)
        rows = [r for r in cluster.rows.table("checkpoints") if not r["task"]]
        assert [r["state"] for r in rows] == ["triggered", "finalizing", "completed"]
        assert (await cluster.status()).restarts == 0
