"""The cancellation of a job: in which states, how it ends, and what it gives back."""

import asyncio

import pytest

from testbed_runtime.core.job.messages import CancelJob, StopWithDrain
from testbed_runtime.jobmanager.state import RETRY_S, Cause
from testbed_runtime.ports.rpc import RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from tests.jobmanager.harness import COMMIT, Cluster, data_of, running_job, virtually
from tests.jobmanager.test_jobmaster import FailingStore


@virtually
async def test_cancel_ends_every_task_and_then_the_job():
    """CANCELLING, CANCELED."""
    async with running_job(4) as cluster:
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        states = [data_of(row)["to"] for row in cluster.rows.events("job.state")]
        assert states == ["RUNNING", "CANCELLING", "CANCELED"]


@pytest.mark.parametrize(("attempts", "before"), [("0", "FAILING"), ("1", "RESTARTING")])
def test_J_140_a_job_that_is_cancelled_while_it_fails_or_restarts_waits_for_its_tasks(attempts, before):
    """ExecutionGraphRestartTest.testCancelWhileFailing and testCancelWhileRestarting,
    DefaultSchedulerTest.cancelWhileRestartingShouldWaitForRunningTasks. It ends CANCELED, also if a task fails meanwhile."""

    async def main():
        options = {"restart-strategy.fixed-delay.attempts": attempts}
        async with running_job(4, options, reports_end=False) as cluster:
            tm, failed = cluster.running_on("source-0"), cluster.attempt_of("source-0")
            await tm.report(failed, "FAILED", "IOException", "boom")
            assert (await cluster.status()).state == before
            await cluster.dispatch(CancelJob(""))
            others = [n for n, state in (await cluster.status()).tasks.items() if state == "CANCELING"]
            assert len(others) == 5
            for name in others:
                assert (await cluster.status()).state == "CANCELLING"
                await tm.report(cluster.attempt_of(name), "FAILED", "IOException", "late")
            status = await cluster.status()
            assert (status.state, set(status.tasks.values())) == ("CANCELED", {"CANCELED", "FAILED"})

    run_virtual(main())


@virtually
async def test_J_135_a_job_that_was_cancelled_may_be_cancelled_again():
    """DispatcherTest.testCancellationOfCanceledTerminalDoesNotThrowException."""
    async with running_job(4) as cluster:
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        assert (await cluster.dispatch(CancelJob(""))).accepted


@virtually
async def test_J_135_a_job_that_has_ended_otherwise_cannot_be_cancelled():
    """DispatcherTest.testCancellationOfNonCanceledTerminalJobFailsWithAppropriateException. In Flink's words."""
    async with running_job(4, commit=COMMIT) as cluster:
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until_state("FINISHED")
        job = cluster.manager.dispatcher.jobmaster.job
        refusal = rf"Flink job \({job}\) was not canceled, but instead FINISHED"
        with pytest.raises(RemoteFailure, match=refusal) as refused:
            await cluster.dispatch(CancelJob(""))
        assert refused.value.class_name == "FlinkJobTerminatedWithoutCancellationException"


@virtually
async def test_a_job_that_has_ended_keeps_its_result_when_the_jobmanager_restarts():
    """As in Flink's JobResultStore. It is neither run, stopped nor cancelled again, and another job may be submitted."""
    async with running_job(4, {"restart-strategy.type": "none"}) as cluster:
        await cluster.running_on("sink-0").report(cluster.attempt_of("sink-0"), "FAILED", "Exception", "x")
        await cluster.until_state("FAILED")
        before, job = await cluster.status(), cluster.manager.dispatcher.jobmaster.job
        await cluster.manager.close()
        await cluster.start_jobmanager()
        after = await cluster.status()
        assert (after.state, after.cause, after.restarts) == (before.state, before.cause, before.restarts)
        assert (await cluster.dispatch(StopWithDrain(""))).accepted
        with pytest.raises(RemoteFailure, match=rf"Flink job \({job}\) was not canceled, but instead FAILED"):
            await cluster.dispatch(CancelJob(""))
        assert (await cluster.status()).state == "FAILED"
        await cluster.submit()
        assert (await cluster.status()).state != "FAILED"


@virtually
async def test_a_result_that_the_store_refuses_is_written_when_it_accepts_writes_again():
    """No later change of the job would write it."""
    blobs = FailingStore(MemoryBlobStore(), "/status")
    async with running_job(4, blobs=blobs) as cluster:
        blobs.failing = True
        await cluster.dispatch(CancelJob(""))
        await cluster.until_state("CANCELED")
        await asyncio.sleep(7)
        blobs.failing = False
        await asyncio.sleep(RETRY_S)
        await cluster.manager.close()
        await cluster.start_jobmanager()
        assert (await cluster.status()).state == "CANCELED"


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002])
@pytest.mark.parametrize("ends", ["CANCELED", "FAILED"])
def test_J_139_slots_that_were_requested_are_given_back_when_the_job_ends(after_s, ends):
    """ExecutionGraphRestartTest.testCancelAllPendingRequestWhileCanceling and testCancelAllPendingRequestWhileFailing. The next job
    gets them."""

    async def main():
        async with Cluster(4, {"restart-strategy.type": "none"}) as cluster:
            await cluster.submit()
            await asyncio.sleep(after_s)
            if ends == "CANCELED":
                await cluster.dispatch(CancelJob(""))
            else:
                jobmaster = cluster.manager.dispatcher.jobmaster
                jobmaster._fail(("source", 0), Cause("IOException", "boom", "Task"))
            await cluster.until_state(ends)
            await cluster.until(lambda: cluster.free_slots == 4)
            assert [tm.allocated for tm in cluster.tms] == [{}] * 4
            await cluster.submit()
            await cluster.until_running()

    run_virtual(main())


@virtually
async def test_a_restart_delay_that_the_end_of_the_record_interrupts_is_cancelled():
    """Only then does it belong to its option."""
    delay = "restart-strategy.fixed-delay.delay"
    async with running_job(4, {delay: "1 h"}) as cluster:
        await cluster.running_on("sink-0").report(cluster.attempt_of("sink-0"), "FAILED", "IOException")
        await asyncio.sleep(5)
    (wait,) = [w for w in cluster.rows.table("waits") if w["kind"] == "restart-delay"]
    assert (wait["option"], wait["outcome"]) == (delay, "cancelled")
