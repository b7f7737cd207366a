"""The ResourceManager of a standalone cluster, which starts no TaskManagers."""

import asyncio

import pytest

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import FreeSlot
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.harness import Cluster, jobmaster_waits, running_job, virtually

STANDALONE = "resourcemanager.standalone.start-up-time"


@pytest.mark.parametrize(("version", "state"), [("1.12", "RUNNING"), ("1.13", "FAILED"), ("2.x", "FAILED")])
def test_a_standalone_resourcemanager_fails_requests_that_it_cannot_fulfil_after_its_start_up(version, state):
    """StandaloneResourceManagerTest.testStartupPeriod. A request is not failed before, and the wait belongs to the option."""

    async def main():
        options = {STANDALONE: "4 s", "restart-strategy.type": "none"}
        async with Cluster(3, options, flink_version=version) as cluster:
            await asyncio.sleep(1)
            await cluster.submit()
            await asyncio.sleep(2.9)
            assert (await cluster.status()).state == "RUNNING"
            await asyncio.sleep(0.2)
            status = await cluster.status()
            assert status.state == state
            if state == "RUNNING":
                return
            text = "Could not acquire the minimum required resources."
            assert (status.cause_class, status.cause) == ("NoResourceAvailableException", text)
            (wait,) = jobmaster_waits(cluster, "slot")
            assert wait[3:5] == (STANDALONE, "expired")
            assert cluster.free_slots == 3

    run_virtual(main())


@virtually
async def test_after_its_start_up_a_standalone_resourcemanager_fails_each_restart_that_lacks_a_slot():
    """Each failure counts, until the TaskManager is replaced."""
    options = {STANDALONE: "4 s", "restart-strategy.fixed-delay.delay": "1 s"}
    async with running_job(4, options) as cluster:
        await asyncio.sleep(5)
        old = cluster.running_on("sink-1")
        await old.die()
        cluster.tms.remove(old)
        await cluster.until(lambda: len(cluster.rows.events("failover.started")) == 4)
        expired = [wait for wait in jobmaster_waits(cluster, "slot") if wait[4] == "expired"]
        assert {(wait[3], wait[-1]) for wait in expired} == {(STANDALONE, 70)}
        await cluster.add(TaskManagerID(old.resource_id.ordinal, 2))
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))


@virtually
async def test_a_slot_that_its_taskmanager_has_not_freed_yet_is_no_missing_one():
    """The JobMaster alone has lost the TaskManager, which takes its time to free the slot."""
    async with running_job(4, {STANDALONE: "4 s"}) as cluster:
        await asyncio.sleep(5)
        slow = cluster.running_on("sink-1")
        free, both = slow.handlers[FreeSlot], slow.answers

        async def free_late(message):
            await asyncio.sleep(0.5)
            return await free(message)

        slow.handlers[FreeSlot], slow.answers = free_late, ("resourcemanager",)
        await cluster.until(lambda: cluster.rows.events("taskmanager.lost"))
        slow.answers = both
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert [wait[4] for wait in jobmaster_waits(cluster, "slot")].count("expired") == 0
        assert len(cluster.rows.events("failover.started")) == 1
