"""A TaskManager that receives heartbeats, but whose answers do not reach the JobManager."""

import asyncio
import json

import pytest

from testbed_runtime.core.job.messages import DisconnectTaskExecutor, DisconnectTaskManager
from testbed_runtime.jobmanager.client import JobClient
from testbed_runtime.ports.rpc import AskTimeout, RecipientUnreachable
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.harness import Cluster, running_job, virtually
from tests.jobmanager.inproc import a_testbed, graph

HEARTBEATS = {"heartbeat.interval": "1 s", "heartbeat.timeout": "60 s"}


UNREACHABLE, LOST = RecipientUnreachable("refused"), AskTimeout("lost with the connection")


def lose_answers(rpc, endpoint, count, error=UNREACHABLE):
    """Lose the next heartbeats that are sent to this endpoint."""
    ask, left = rpc.ask, count

    async def losing(*args, **settings):
        nonlocal left
        if type(args[3]).__name__ == "Heartbeat" and args[2] == endpoint and left:
            left -= 1
            raise error
        return await ask(*args, **settings)

    rpc.ask = losing


@pytest.mark.parametrize(("threshold", "lost", "restarts"), [(1, 1, 1), (2, 2, 1), (2, 1, 0), (-1, 9, 0)])
def test_J_37_a_jobmaster_that_answers_do_not_reach_is_given_up(threshold, lost, restarts):
    """The TaskManager disconnects long before heartbeat.timeout, fails its tasks and registers again."""

    async def main():
        async with a_testbed(**HEARTBEATS, **{"heartbeat.rpc-failure-threshold": str(threshold)}) as bed:
            await bed.submit(graph(rate=100.0))
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            lose_answers(bed.rpcs["tm-0"], "jobmaster", lost)
            await asyncio.sleep(4.5)
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            assert (await bed.status()).restarts == restarts
            leader = bed.manager.leader
            text = f"JobManager with id {leader} is no longer reachable."
            notes = [r["text"] for r in bed.events("note") if r["subject"] == "tm-0-1"]
            assert notes.count(text) == restarts
            causes = [json.loads(r["data"])["cause_class"] for r in bed.events("failover.started")]
            assert causes == ["TaskManagerException"] * restarts
            waits = [r for r in bed.rows("waits") if (r["who"], r["kind"]) == ("tm-0-1", "heartbeat")]
            option = "heartbeat.interval × heartbeat.rpc-failure-threshold"
            near_miss = (threshold, lost) == (2, 1)
            ended = ["expired"] * restarts + ["completed"] * near_miss
            assert [(r["what"], r["option"], r["outcome"]) for r in waits] == [
                ("JobMaster", option, e) for e in ended
            ]
            assert all(lost < (r["t_ns"] - r["start_ns"]) / 1e9 + 0.1 for r in waits), (
                "since an answer arrived last"
            )
            assert (await bed.drain()).state == "FINISHED"

    run_virtual(main())


@virtually
async def test_answers_that_are_lost_with_their_connection_do_not_count():
    """Flink's TaskManager does not hear that they are lost."""
    async with a_testbed(**HEARTBEATS, **{"heartbeat.rpc-failure-threshold": "1"}) as bed:
        await bed.submit(graph(rate=100.0))
        await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
        lose_answers(bed.rpcs["tm-0"], "jobmaster", 2, LOST)
        await asyncio.sleep(4.5)
        assert (await bed.status()).restarts == 0
        assert (await bed.drain()).state == "FINISHED"


@pytest.mark.parametrize(("version", "restarts"), [("1.19", 0), ("1.20", 1), ("2.x", 1)])
def test_J_38_a_resourcemanager_that_answers_do_not_reach_is_disconnected_and_registered_at_again(
    version, restarts
):
    """It also passes the disconnection on to the job from 1.20 on, so that the tasks there fail. Before, they go on."""

    async def main():
        async with a_testbed(version=version, **HEARTBEATS) as bed:
            await bed.submit(graph(rate=100.0))
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            lose_answers(bed.rpcs["tm-0"], "resourcemanager", 2)
            await asyncio.sleep(5.0)
            waits = [r for r in bed.rows("waits") if r["who"] == "tm-0-1" and r["what"] == "ResourceManager"]
            assert [r["kind"] for r in waits] == ["registration", "heartbeat", "jobmanager"]
            assert bed.taskmanagers["tm-0"].is_registered
            await bed.until(lambda s: set(s.tasks.values()) == {"RUNNING"})
            assert (await bed.status()).restarts == restarts
            text = f"ResourceManager with id {bed.manager.leader} is no longer reachable."
            assert [r["text"] for r in bed.events("failover.started")] == [text] * restarts
            registered = [r["subject"] for r in bed.events("taskmanager.registered")]
            assert sorted(registered) == ["tm-0-1", "tm-0-1", "tm-1-1", "tm-2-1"]
            assert (await bed.drain()).state == "FINISHED"

    run_virtual(main())


def test_J_97_a_silent_resourcemanager_is_disconnected_and_registered_at_again():
    """testHeartbeatTimeoutWithResourceManager: no heartbeat passes in either direction."""

    async def main():
        short = {"heartbeat.interval": "1 s", "heartbeat.timeout": "3 s"}
        async with a_testbed(**short) as bed:
            manager = bed.manager.resourcemanager
            manager.heartbeats.close()
            await asyncio.sleep(3.5)
            texts = {r["subject"]: r["text"] for r in bed.events("note")}
            text = f"The heartbeat of ResourceManager with id {bed.manager.leader} timed out."
            assert texts == dict.fromkeys(("tm-0-1", "tm-1-1", "tm-2-1"), text)
            assert len(bed.events("taskmanager.registered")) == 6
            assert manager.taskmanagers == ("tm-0-1", "tm-1-1", "tm-2-1")
            assert all(tm.is_registered for tm in bed.taskmanagers.values())

    run_virtual(main())


@virtually
async def test_a_disconnection_that_the_resourcemanager_relays_waits_in_the_jobmasters_mailbox():
    """A TaskManager gives the ResourceManager up and then the JobMaster. Its own message is in the mailbox before the relayed one."""
    async with running_job(4) as cluster:
        tm = cluster.running_on("source-0")
        rid, leader = str(tm.resource_id), cluster.manager.leader
        relayed = DisconnectTaskExecutor(
            rid, leader, tm.registration, "The heartbeat of ResourceManager timed out.", "heartbeat"
        )
        direct = DisconnectTaskManager(
            rid, leader, 0, "TimeoutException", "The heartbeat of JobManager timed out."
        )
        await asyncio.gather(tm.ask("resourcemanager", relayed), tm.ask("jobmaster", direct))
        await cluster.until(lambda: cluster.rows.events("failover.started"))
        (started,) = cluster.rows.events("failover.started")
        assert started["text"] == direct.cause


@virtually
async def test_a_client_waits_two_seconds_for_the_status_of_a_paused_jobmanager():
    """Then its caller may ask again."""
    async with Cluster(1) as cluster:
        cluster.switchboard.pause("jobmanager")
        began = asyncio.get_running_loop().time()
        with pytest.raises(AskTimeout):
            await JobClient(cluster.client, cluster.address).status()
        assert asyncio.get_running_loop().time() - began == pytest.approx(2)
        cluster.switchboard.resume("jobmanager")
