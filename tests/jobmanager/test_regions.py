"""Jobs of several regions in virtual time: which of them a failure restarts, and which lack slots."""

import asyncio

import pytest

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.messages import Acknowledge, ReleasePartitions
from testbed_runtime.core.job.results import BLOCKING, FULL_RESULT
from testbed_runtime.jobmanager.jobstore import JobStore
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from tests.jobmanager.harness import Cluster, data_of, running_job, virtually
from tests.jobmanager.test_jobmaster import FailingStore, reached

TWO_REGIONS = JobGraph("job", (JobVertex("a", 1, 128, "a"), JobVertex("b", 1, 128, "b")), ())
DELAY = {"restart-strategy.fixed-delay.delay": "2 s"}


@virtually
async def test_J_136_a_failure_restarts_all_tasks_with_the_failover_strategy_full():
    """RestartAllFailoverStrategyTest.testGetTasksNeedingRestart. By default, it restarts its own region."""
    for strategy, restarted in (("region", ["a-0"]), ("full", ["a-0", "b-0"])):
        options = {"jobmanager.execution.failover-strategy": strategy}
        async with Cluster(2, options) as cluster:
            await cluster.submit(TWO_REGIONS)
            await cluster.until_running()
            failed = cluster.running_on("a-0")
            await failed.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "boom")
            await cluster.until_running()
            (started,) = cluster.rows.events("failover.started")
            assert data_of(started)["region"] == restarted
            assert cluster.attempt_of("b-0").endswith("1") == ("b-0" in restarted)


@virtually
async def test_J_175_the_pipelined_results_of_a_finished_task_are_released_when_its_region_restarts():
    """ExecutionPartitionLifecycleTest.testPartitionReleaseOnCancelWhileFinished: a consumer that never requested them would leave them on
    their TaskManager. Those of running tasks are released by the tasks."""
    released = []

    async def release(message):
        released.append(message.partitions)
        return Acknowledge()

    async with running_job(4) as cluster:
        for tm in cluster.tms:
            tm.handlers[ReleasePartitions] = release
        finished, attempt = cluster.running_on("source-0"), cluster.attempt_of("source-0")
        names = tuple(made.partition for made in finished.tasks[attempt].partitions)
        await finished.report(attempt, "FINISHED")
        await asyncio.sleep(1.0)
        assert released == []
        failed = cluster.running_on("sink-0")
        await failed.report(cluster.attempt_of("sink-0"), "FAILED", "IOException", "boom")
        await cluster.until_running()
        assert released == [names]
        assert cluster.attempt_of("source-0") != attempt


@virtually
async def test_the_progress_of_a_task_that_is_being_cancelled_is_refused():
    """Execution.switchToRunning: the TaskManager then ends the task, even if the call to cancel it is lost. The progress of a task that has
    ended is refused too. The report of its end is not."""
    async with running_job(4, DELAY) as cluster:
        tm, attempt = cluster.running_on("count-0"), cluster.attempt_of("count-0")
        assert (await tm.report(attempt, "RUNNING")).accepted
        tm.reports_end = False
        failed = cluster.running_on("source-0")
        await failed.report(cluster.attempt_of("source-0"), "FAILED", "IOException", "boom")
        refused = f"The execution attempt {attempt} was not found."
        states = []
        for state in ("RUNNING", "INITIALIZING", "CANCELED", "RUNNING"):
            states.append((await cluster.status()).tasks["count-0"])
            answer = await tm.report(attempt, state)
            assert (answer.accepted, answer.reason) == (
                (True, "") if state == "CANCELED" else (False, refused)
            )
        assert states == ["CANCELING"] * 3 + ["CANCELED"]


@virtually
async def test_a_checkpoint_that_cannot_be_stored_during_a_restart_fails_the_job_again():
    """DefaultScheduler.handleGlobalFailure: it does not matter that a task has failed meanwhile. The later failure restarts all tasks."""

    class Slow(FailingStore):
        async def put(self, key, data):
            await asyncio.sleep(1.0 if self.failing and key.endswith(self.refused) else 0.0)
            await super().put(key, data)

    blobs = Slow(MemoryBlobStore())
    blobs.failing = True
    async with Cluster(4, {"restart-strategy.fixed-delay.delay": "10 s"}, blobs=blobs) as cluster:
        await cluster.submit()
        await cluster.until(lambda: reached(cluster, 1, "finalizing"))
        await asyncio.sleep(0.1)
        tm, attempt = cluster.running_on("count-0"), cluster.attempt_of("count-0")
        await tm.report(attempt, "FAILED", "IOException", "boom")
        await cluster.until(lambda: len(cluster.rows.events("failover.started")) == 2)
        blobs.failing = False
        first, second = cluster.rows.events("failover.started")
        assert (first["text"], round(second["t"] - first["t"], 1)) == ("boom", 0.9)
        assert second["text"].startswith("Exceeded checkpoint tolerable failure threshold.")
        await cluster.until_running()
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["2"]


@virtually
async def test_a_region_that_is_being_deployed_is_not_restarted_by_the_failure_of_another_one():
    """DefaultScheduler restarts the vertices of the later failure only. Each restart is complete when its own region runs."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        first = cluster.running_on("a-0")
        first.starts_tasks = False
        await first.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "first")
        await asyncio.sleep(3.0)
        slow = cluster.attempt_of("a-0")
        assert slow in first.tasks
        second = cluster.running_on("b-0")
        await second.report(cluster.attempt_of("b-0"), "FAILED", "IOException", "second")
        await asyncio.sleep(3.0)
        assert (cluster.attempt_of("a-0"), (await cluster.status()).tasks["b-0"]) == (slow, "RUNNING")
        regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
        assert regions == [["a-0"], ["b-0"]]
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["2"]
        for state in ("INITIALIZING", "RUNNING"):
            await first.report(slow, state)
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["2", "1"]
        assert (await cluster.status()).state == "RUNNING"


@virtually
async def test_J_170_each_region_restarts_after_its_own_delay_and_the_job_runs_after_the_last_one():
    """DefaultSchedulerTest.jobStatusIsRestartingIfOneVertexIsWaitingForRestart."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        await cluster.running_on("a-0").report(cluster.attempt_of("a-0"), "FAILED", "IOException", "first")
        await asyncio.sleep(1.5)
        await cluster.running_on("b-0").report(cluster.attempt_of("b-0"), "FAILED", "IOException", "second")
        states = [(await cluster.status()).state]
        await asyncio.sleep(0.6)
        assert (await cluster.status()).tasks == {"a-0": "RUNNING", "b-0": "FAILED"}
        states.append((await cluster.status()).state)
        await cluster.until_running()
        states.append((await cluster.status()).state)
        assert states == ["RESTARTING", "RESTARTING", "RUNNING"]
        regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
        assert regions == [["a-0"], ["b-0"]]
        assert (await cluster.status()).restarts == 2


@virtually
async def test_a_region_that_fails_while_the_next_restart_waits_has_a_restart_of_its_own():
    """It was still being deployed when the other region failed."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        first = cluster.running_on("a-0")
        first.starts_tasks = False
        await first.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "first")
        await asyncio.sleep(3.0)
        await cluster.running_on("b-0").report(cluster.attempt_of("b-0"), "FAILED", "IOException", "second")
        first.starts_tasks = True
        await first.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "third")
        await cluster.until_running()
        regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
        assert regions == [["a-0"], ["b-0"], ["a-0"]]
        failures = [data_of(row)["ended"] for row in cluster.rows.events("failover.failure")]
        assert failures == [0, 0, 1]
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["2", "3"]


@virtually
async def test_J_171_the_last_restart_of_a_task_is_the_one_that_restarts_it():
    """ExecutionVertexVersionerTest.getUnmodifiedVertices*: a failed checkpoint restarts both regions, one of which is being deployed by
    a restart before. A failure of one region then leaves the other one to its restart."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        first, second = cluster.running_on("a-0"), cluster.running_on("b-0")
        first.starts_tasks = second.starts_tasks = False
        await first.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "first")
        await asyncio.sleep(3.0)
        jobmaster = cluster.manager.dispatcher.jobmaster
        assert jobmaster is not None
        jobmaster._on_checkpoints_failed(
            "FlinkRuntimeException", "Exceeded checkpoint tolerable failure threshold."
        )
        await asyncio.sleep(3.0)
        slow = cluster.attempt_of("b-0")
        first.starts_tasks = True
        await first.report(cluster.attempt_of("a-0"), "FAILED", "IOException", "third")
        await asyncio.sleep(3.0)
        assert slow in second.tasks
        for state in ("INITIALIZING", "RUNNING"):
            await second.report(slow, state)
        assert (cluster.attempt_of("a-0")[-1], cluster.attempt_of("b-0")) == ("3", slow)
        ended = [data_of(row)["ended"] for row in cluster.rows.events("failover.failure")]
        assert ended == [0, 1, 2]
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["3", "2"]


@virtually
async def test_a_region_whose_task_is_cancelled_unexpectedly_restarts_beside_the_one_that_waits():
    """Its TaskManager has cancelled it while the restart of the other region was delayed."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        await cluster.running_on("a-0").report(cluster.attempt_of("a-0"), "FAILED", "IOException", "first")
        await cluster.running_on("b-0").report(cluster.attempt_of("b-0"), "CANCELED")
        await cluster.until_running()
        regions = [data_of(row)["region"] for row in cluster.rows.events("failover.started")]
        assert regions == [["a-0"], ["b-0"]]


ATTEMPTS, STRATEGY = "restart-strategy.fixed-delay.attempts", "jobmanager.execution.failover-strategy"
FORWARD_ONLY = JobGraph(
    "job",
    (JobVertex("v1", 2, 128, "main"), JobVertex("v2", 2, 128, "main")),
    (JobEdge("v1", "v2", "forward"),),
)


@pytest.mark.parametrize(
    ("job", "options", "failed", "state"),
    [
        (FORWARD_ONLY, {ATTEMPTS: "1"}, ["v1-0", "v1-1"], "FAILED"),
        (FORWARD_ONLY, {ATTEMPTS: "2"}, ["v1-0", "v1-1"], "RESTARTING"),
        (FORWARD_ONLY, {ATTEMPTS: "1", STRATEGY: "full"}, ["v1-0"], "RESTARTING"),
        (
            FORWARD_ONLY,
            {ATTEMPTS: "1", STRATEGY: "full", "restart-strategy.fixed-delay.delay": "0 s"},
            ["v1-0"],
            "RUNNING",
        ),
        (TWO_REGIONS, {ATTEMPTS: "1"}, ["a-0", "b-0"], "FAILED"),
    ],
    ids=["regions", "enough attempts", "full", "full, at once", "regions of one task"],
)
def test_J_137_each_region_that_gets_no_slot_in_time_fails(job, options, failed, state):
    """DefaultSchedulerTest.restartVerticesOnSlotAllocationTimeout: two regions of two tasks, or of one. The restart strategy counts both, unless the
    first failure restarts both."""

    async def main():
        configuration = {"slot.request.timeout": "10 s"} | DELAY | options
        async with Cluster(0, configuration) as cluster:
            await cluster.submit(job)
            await asyncio.sleep(11.0)
            assert [data_of(row)["task"] for row in cluster.rows.events("failover.failure")] == failed
            assert (await cluster.status()).state == state

    run_virtual(main())


@virtually
async def test_a_region_that_still_has_its_slots_does_not_fail_for_want_of_slots():
    """Both regions restart, and one of them has lost its TaskManager."""
    async with Cluster(2, DELAY | {"slot.request.timeout": "10 s", ATTEMPTS: "9"}) as cluster:
        await cluster.submit(FORWARD_ONLY)
        await cluster.until_running()
        victim = cluster.running_on("v1-0")
        await victim.die()
        cluster.tms.remove(victim)
        await cluster.until(lambda: cluster.rows.events("failover.cancelled"))
        await cluster.running_on("v1-1").report(cluster.attempt_of("v1-1"), "FAILED", "IOException", "second")
        await asyncio.sleep(13.0)
        failures = [(data_of(row)["task"], row["text"]) for row in cluster.rows.events("failover.failure")]
        assert [task for task, text in failures if "within slot request timeout" in text] == ["v1-0"]


@virtually
async def test_a_region_with_its_slots_is_deployed_while_another_one_of_the_same_vertices_waits_for_slots():
    """Its own producer has a slot."""
    async with Cluster(2, DELAY) as cluster:
        await cluster.submit(FORWARD_ONLY)
        await cluster.until_running()
        victim = cluster.running_on("v1-0")
        await victim.die()
        cluster.tms.remove(victim)
        await asyncio.sleep(10.0)
        await cluster.running_on("v1-1").report(cluster.attempt_of("v1-1"), "FAILED", "IOException", "second")
        await asyncio.sleep(3.0)
        tasks = (await cluster.status()).tasks
        assert tasks == {"v1-0": "SCHEDULED", "v2-0": "SCHEDULED", "v1-1": "RUNNING", "v2-1": "RUNNING"}


@virtually
async def test_a_region_that_waits_for_slots_is_deployed_while_another_one_waits_for_its_delay():
    """It keeps its attempt and its request, and the other region keeps its slot."""
    async with Cluster(2, {"restart-strategy.fixed-delay.delay": "5 s"}) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        victim = cluster.running_on("a-0")
        await victim.die()
        cluster.tms.remove(victim)
        await cluster.until(lambda: cluster.rows.events("failover.cancelled"))
        await asyncio.sleep(6.0)
        assert (await cluster.status()).tasks["a-0"] == "SCHEDULED"
        waiting = cluster.attempt_of("a-0")
        await cluster.running_on("b-0").report(cluster.attempt_of("b-0"), "FAILED", "IOException", "second")
        await cluster.add(TaskManagerID(victim.resource_id.ordinal, 2))
        await asyncio.sleep(1.0)
        assert (await cluster.status()).tasks == {"a-0": "RUNNING", "b-0": "FAILED"}
        await cluster.until_running()
        assert cluster.attempt_of("a-0") == waiting
        assert [row["subject"] for row in cluster.rows.events("failover.deployed")] == ["1", "2"]


@virtually
async def test_the_slots_of_a_region_that_fails_again_are_not_those_of_another_one_that_waits_for_slots():
    """Both lost their TaskManager. The requests of one expire later, because it restarted later."""
    options = DELAY | {"slot.request.timeout": "6 s", ATTEMPTS: "9"}
    async with Cluster(2, options) as cluster:
        await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        for name in ("a-0", "b-0"):
            victim = cluster.running_on(name)
            await victim.die()
            cluster.tms.remove(victim)
            await asyncio.sleep(3.0)
        loop = asyncio.get_running_loop()
        expired: list[tuple[str, float]] = []
        while len(expired) < 4:
            await cluster.until(lambda: len(_without_slots(cluster)) > len(expired))
            expired.append((_without_slots(cluster)[-1], loop.time()))
        assert [name for name, _ in expired] == ["a-0", "b-0"] * 2
        assert expired[2][1] - expired[0][1] == pytest.approx(8.0, abs=0.1)


def _without_slots(cluster: Cluster) -> list[str]:
    """Return the tasks that failed for want of slots."""
    rows = cluster.rows.events("failover.failure")
    return [data_of(row)["task"] for row in rows if "Slot request bulk" in row["text"]]


@virtually
async def test_a_region_does_not_wait_for_a_suspect_of_another_one():
    """The TaskManager that one region names is silent. Another one has neither failed because of it nor has a slot there."""
    vertices = tuple(JobVertex(name, 1, 128, name) for name in "abc")
    silent = {"heartbeat.timeout": "20 s", "heartbeat.rpc-failure-threshold": "-1"}
    async with Cluster(4, {**silent, "restart-strategy.fixed-delay.delay": "100 ms"}) as cluster:
        await cluster.submit(JobGraph("job", vertices, ()))
        await cluster.until_running()
        a, b, c = (cluster.running_on(name) for name in ("a-0", "b-0", "c-0"))
        cluster.switchboard.pause(b.rpc.name)
        await a.report_lost_connection(cluster.attempt_of("a-0"), b)
        await c.report(cluster.attempt_of("c-0"), "FAILED", "IOException", "its own")
        await asyncio.sleep(1.0)
        assert (await cluster.status()).tasks == {"a-0": "FAILED", "b-0": "RUNNING", "c-0": "RUNNING"}


@virtually
async def test_a_producer_of_a_full_result_that_still_runs_is_not_restarted_with_another_one():
    """Their consumer waits for both results."""
    edges = (JobEdge(name, "sink", result=BLOCKING, deployment=FULL_RESULT) for name in ("a", "b"))
    job = JobGraph("job", tuple(JobVertex(name, 1, 128, name) for name in ("a", "b", "sink")), tuple(edges))
    async with Cluster(3) as cluster:
        await cluster.submit(job)
        await cluster.until(lambda: sum(len(tm.tasks) for tm in cluster.tms) == 2)
        await asyncio.sleep(0.5)
        await cluster.running_on("a-0").report(cluster.attempt_of("a-0"), "FAILED", "IOException")
        await asyncio.sleep(1)
        assert (await cluster.status()).tasks == {"a-0": "RUNNING", "b-0": "RUNNING", "sink-0": "CREATED"}
        assert [data_of(row)["region"] for row in cluster.rows.events("failover.started")] == [["a-0"]]


@virtually
async def test_the_store_knows_of_a_restart_before_its_delay_is_over():
    """A JobManager that is killed meanwhile counts it."""
    async with Cluster(2, DELAY) as cluster:
        job = await cluster.submit(TWO_REGIONS)
        await cluster.until_running()
        failed, attempt = cluster.running_on("a-0"), cluster.attempt_of("a-0")
        assert (await failed.report(attempt, "FAILED", "IOException", "first")).accepted
        await asyncio.sleep(0.5)
        status = await JobStore(cluster.blobs).status(job)
        assert (status.state, status.restarts, status.cause) == ("RESTARTING", 1, "first")


@virtually
async def test_vertices_that_wait_for_the_same_result_share_the_wait():
    """Two equal rows would count as a damaged history."""
    full = {"result": BLOCKING, "deployment": FULL_RESULT}
    names = ("one", "two", "left", "right")
    edges = (JobEdge(source, name, **full) for name in names[2:] for source in names[:2])
    job = JobGraph("job", tuple(JobVertex(name, 1, 128, name) for name in names), tuple(edges))
    async with Cluster(4) as cluster:
        await cluster.submit(job)
        graph = cluster.manager.dispatcher.jobmaster.graph

        def states():
            return [graph.execution((name, 0)).state.value for name in names]

        await cluster.until(lambda: states()[:2] == ["RUNNING", "RUNNING"])
        await asyncio.sleep(1)
        await cluster.running_on("one-0").report(cluster.attempt_of("one-0"), "FINISHED")
        await asyncio.sleep(1)
        await cluster.running_on("two-0").report(cluster.attempt_of("two-0"), "FINISHED")
        await cluster.until(lambda: states()[2:] == ["RUNNING"] * 2)
    rows = [row for row in cluster.rows.table("waits") if row["kind"] == "input"]
    found = [(row["what"], row["outcome"]) for row in rows]
    assert found == [("full result of `one` and the full result of `two`", "completed")]
