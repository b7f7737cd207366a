"""A JobManager that leads while it holds the lease in the checkpoint store, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.leaderelection import INFORMATION_KEY, LEASE_KEY, LeaderInformation, Lease
from testbed_runtime.core.job.messages import RequestJobStatus
from testbed_runtime.jobmanager.jobstore import JobStore
from testbed_runtime.ports.rpc import RecipientUnreachable
from testbed_runtime.store.blobstore import MemoryBlobStore
from tests.jobmanager.harness import COMMIT, GRAPH, Cluster, data_of, virtually

ELECTION = "high-availability.kubernetes.leader-election"
HA = {
    "heartbeat.timeout": "60 s",
    "high-availability.type": "kubernetes",
    f"{ELECTION}.lease-duration": "10 s",
    f"{ELECTION}.renew-deadline": "5 s",
    f"{ELECTION}.retry-period": "1 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "100",
}


class Store(MemoryBlobStore):
    """A store that refuses writes of keys while `refuses` says so, and takes `holds_s` for each, and `reads_s` to read a status."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[str], bool] = lambda key: False
        self.holds_s = 0.0
        self.reads_s = 0.0

    async def get(self, key: str) -> bytes:
        if key.endswith("/status"):
            await asyncio.sleep(self.reads_s)
        return await super().get(key)

    async def put(self, key: str, data: bytes) -> None:
        if self.refuses(key):
            raise OSError(f"{key} refused")
        await asyncio.sleep(self.holds_s)
        await super().put(key, data)

    async def lease(self) -> Lease:
        return msgspec.json.decode(await self.get(LEASE_KEY), type=Lease)


def cluster(count: int = 4, **options: Any) -> tuple[Cluster, Store]:
    store = Store()
    return Cluster(count, HA, blobs=store, **options), store


def granted(cluster: Cluster) -> list[bool]:
    return [data_of(row)["granted"] for row in cluster.rows.events("leadership")]


def waits(cluster: Cluster, *kinds: str) -> list[tuple[Any, ...]]:
    """(kind, outcome, option, seconds) of the election's waits that took any time."""
    return [
        (
            row["kind"],
            row["outcome"],
            row["option"].rpartition(".")[2],
            round((row["t_ns"] - row["start_ns"]) / 1e9, 1),
        )
        for row in cluster.rows.table("waits")
        if row["kind"] in (kinds or ("lease", "leadership")) and row["t_ns"] - row["start_ns"] > 10**6
    ]


async def register_all(cluster: Cluster) -> None:
    for tm in cluster.tms:
        await tm.register()


@virtually
async def test_a_free_lease_is_acquired_before_the_jobmanager_is_ready_and_renewed():
    """It leads at once, publishes its session, and renews every retry-period."""
    made, store = cluster()
    async with made:
        assert granted(made) == [True]
        published = msgspec.json.decode(await store.get(INFORMATION_KEY), type=LeaderInformation)
        assert published.leader == made.manager.leader
        first = await store.lease()
        await asyncio.sleep(20.5)
        now = await store.lease()
        assert (now.holder, now.acquired_s) == (first.holder, first.acquired_s)
        assert now.renewed_s - first.renewed_s == pytest.approx(20)
        assert granted(made) == [True]


@virtually
async def test_without_the_option_there_is_no_lease():
    """No object in the store, no event."""
    async with Cluster(1) as made:
        await asyncio.sleep(30)
        assert await made.blobs.list("leader/") == []
        assert granted(made) == []


@virtually
async def test_a_lease_that_cannot_be_renewed_costs_the_leadership_and_one_restart():
    """After renew-deadline the job is suspended and nothing answers. When the store accepts writes again, the next session
    recovers the job from its checkpoint with the next attempts."""
    made, store = cluster(commit=COMMIT)
    async with made:
        job = await made.submit()
        await made.until(lambda: made.rows.table("delivery"))
        before, since = made.manager.leader, asyncio.get_running_loop().time()
        store.refuses = lambda key: True
        await made.until(lambda: granted(made) == [True, False])
        assert 3.9 < asyncio.get_running_loop().time() - since < 5.1
        assert data_of(made.rows.events("job.state")[-1])["to"] == "SUSPENDED"
        with pytest.raises(RecipientUnreachable):
            await made.status()
        await asyncio.sleep(3)
        store.refuses = lambda key: False
        await made.until(lambda: granted(made) == [True, False, True])
        await register_all(made)
        await made.until_running()
        jobmaster = made.manager.dispatcher.jobmaster
        assert jobmaster is not None
        assert (jobmaster.job, made.manager.leader != before) == (job, True)
        assert {e.attempt.attempt for e in jobmaster.graph.executions} == {1}
        (started,) = made.rows.events("failover.started")
        data = data_of(started)
        assert (data["wait"], data["delay_option"], data["delay_s"]) == ("lease", "", 0)
        assert started["text"] == (
            f"Job leader for job id {job} lost leadership. The lease was not renewed within "
            f"{ELECTION}.renew-deadline = 5 s."
        )
        assert waits(made)[0] == ("lease", "expired", "renew-deadline", 5.0)
        assert waits(made)[1][:2] == ("leadership", "completed")


@virtually
async def test_a_renewal_that_takes_longer_than_the_deadline_has_failed():
    """The process was paused while it wrote the lease, or the store is slow. It gives up as soon as the write is done."""
    made, store = cluster()
    async with made:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.5)
        began = (await store.lease()).renewed_s + 1
        store.holds_s = 7.0
        await made.until(lambda: loop.time() > began)
        store.holds_s = 0.0
        await made.until(lambda: granted(made) == [True, False, True])
        assert loop.time() == pytest.approx(began + 7, abs=0.02)
        assert waits(made) == [("lease", "expired", "renew-deadline", 7.0)]


@virtually
async def test_attempts_are_numbered_on_when_the_store_did_not_hear_of_them():
    """The next session knows them from the session before."""
    await attempts_are_numbered_on(losses=1)


@virtually
async def test_attempts_are_numbered_on_when_the_leadership_is_lost_again_before_the_recovery():
    """The session between knows nothing that the first one did not."""
    await attempts_are_numbered_on(losses=2)


async def attempts_are_numbered_on(losses: int) -> None:
    """Two attempts with the same number would be one in the history. The store refuses the status, but not the lease. The second
    loss comes while the job is being recovered."""
    made, store = cluster(5)
    async with made:
        await made.submit()
        await made.until_running()
        store.refuses = lambda key: key.endswith("/status")
        victim = made.running_on("sink-1")
        await victim.die()
        made.tms.remove(victim)
        await made.until(lambda: made.rows.events("failover.deployed"))
        for loss in range(losses):
            store.refuses = lambda key: True
            await made.until(lambda: granted(made)[-1:] == [False])
            store.reads_s = 30.0 if loss < losses - 1 else 0.0
            store.refuses = lambda key: False
            await made.until(lambda: granted(made)[-1:] == [True])
        await register_all(made)
        await made.until_running()
        jobmaster = made.manager.dispatcher.jobmaster
        assert jobmaster is not None
        assert min(e.attempt.attempt for e in jobmaster.graph.executions) >= 2
        numbers = [row["subject"] for row in made.rows.events("failover.started")]
        assert len(set(numbers)) == len(numbers) == 2


@virtually
async def test_a_result_that_the_store_did_not_hear_of_is_kept_when_the_leadership_is_lost():
    """The next session has it from the session before, with its cause, and writes it."""
    made, store = cluster()
    made.configuration["restart-strategy.type"] = "none"
    async with made:
        job = await made.submit()
        await made.until_running()
        store.refuses = lambda key: True
        await made.running_on("sink-0").report(made.attempt_of("sink-0"), "FAILED", "Exception", "boom")
        await made.until_state("FAILED")
        before = await made.status()
        await made.until(lambda: granted(made) == [True, False])
        assert (await JobStore(store).status(job)).state == "RUNNING"
        store.refuses = lambda key: False
        await made.until(lambda: granted(made) == [True, False, True])
        await asyncio.sleep(1)
        after, stored = await made.status(), await JobStore(store).status(job)
        assert (after.state, after.cause_class, after.cause) == ("FAILED", before.cause_class, before.cause)
        assert (stored.state, stored.cause) == ("FAILED", before.cause)
        assert "boom" in before.cause


@virtually
async def test_failovers_are_numbered_on_when_a_restart_was_not_counted():
    """The next session of the process begins after the last number, not after the count."""
    made, store = cluster(5)
    async with made:
        await made.submit()
        await made.until_running()
        jobmaster = made.manager.dispatcher.jobmaster
        assert jobmaster is not None
        jobmaster._failovers.strategy = Merging(jobmaster._failovers.strategy)
        await (victim := made.running_on("sink-1")).die()
        made.tms.remove(victim)
        await made.until(lambda: made.rows.events("failover.deployed"))
        assert (await made.status()).restarts == 0
        store.refuses = lambda key: True
        await made.until(lambda: granted(made)[-1:] == [False])
        store.refuses = lambda key: False
        await made.until(lambda: granted(made)[-1:] == [True])
        await register_all(made)
        await made.until_running()
        started = [(row["subject"], data_of(row)["counted"]) for row in made.rows.events("failover.started")]
        assert started == [("1", False), ("2", True)]
        assert (await made.status()).restarts == 1


class Merging:
    """A restart strategy that merges each failure, however late."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def notify_failure(self, now: float) -> bool:
        self._strategy.notify_failure(now)
        return False


@virtually
async def test_the_commits_of_a_checkpoint_are_appended_once_by_a_process_that_leads_again():
    """Readers take a commit that one process made twice for a duplicate."""
    made, store = cluster(commit=COMMIT)
    store.refuses = lambda key: key.endswith("/_recorded")
    async with made:
        await made.submit()
        await made.until(lambda: len(made.rows.table("delivery")) >= 4)
        store.refuses = lambda key: True
        await made.until(lambda: granted(made) == [True, False])
        store.refuses = lambda key: key.endswith("/_recorded")
        await made.until(lambda: granted(made) == [True, False, True])
        await register_all(made)
        await made.until_running()
        rows = [(row["task"], row["checkpoint"]) for row in made.rows.table("delivery")]
        assert len(rows) == len(set(rows))


@virtually
async def test_the_lease_of_a_dead_jobmanager_is_waited_for():
    """It expires lease-duration after its last renewal; the next JobManager takes it at its next attempt, with the seconds of
    both options."""
    made, store = cluster(0)
    loop = asyncio.get_running_loop()
    await store.put(LEASE_KEY, msgspec.json.encode(Lease("dead", loop.time() - 9, loop.time() - 2, 3)))
    async with made:
        assert granted(made) == []
        with pytest.raises(RecipientUnreachable):
            await made.client.ask(
                "jobmanager", made.address, "dispatcher", RequestJobStatus(""), timeout_s=1.0
            )
        await made.until(lambda: granted(made) == [True])
        lease = await store.lease()
        assert (lease.holder != "dead", lease.transitions) == (True, 4)
        (expiry, retry) = waits(made)
        assert expiry == ("leadership", "expired", "lease-duration", 8.0)
        assert (retry[:3], retry[3] <= 2.2) == (("leadership", "fired", "retry-period"), True)


@virtually
async def test_a_lease_that_its_holder_releases_is_no_longer_waited_for():
    """The wait ends when the lease is acquired, not when it would have expired: no wait ends before it began."""
    made, store = cluster(0)
    loop = asyncio.get_running_loop()
    await store.put(LEASE_KEY, msgspec.json.encode(Lease("other", loop.time() - 9, loop.time(), 3)))
    async with made:
        await asyncio.sleep(2.0)
        await store.put(LEASE_KEY, msgspec.json.encode(Lease("", loop.time(), loop.time(), 3)))
        await made.until(lambda: granted(made) == [True])
        ends = [(row["start_ns"], row["t_ns"]) for row in made.rows.table("waits")]
        assert all(start <= end <= loop.time() * 1e9 for start, end in ends), ends
        ((kind, outcome, option, seconds),) = waits(made)
        assert (kind, outcome, option, 2.0 <= seconds <= 4.5) == (
            "leadership",
            "completed",
            "lease-duration",
            True,
        )


@virtually
async def test_a_jobmanager_that_ends_releases_the_lease_for_the_next_one():
    """The next one does not wait for its expiry, and recovers the job."""
    made, store = cluster()
    async with made:
        await made.submit()
        await made.until_running()
        await made.manager.close()
        assert (await store.lease()).holder == ""
        await made.start_jobmanager()
        assert granted(made) == [True, True]
        await register_all(made)
        await made.until_running()
        assert waits(made) == []


@virtually
async def test_a_leader_whose_lease_another_contender_holds_stops_at_its_next_renewal():
    """It contends again, and leads again when that lease has expired."""
    made, store = cluster()
    async with made:
        await made.submit()
        await made.until_running()
        loop = asyncio.get_running_loop()
        await store.put(LEASE_KEY, msgspec.json.encode(Lease("other", loop.time(), loop.time())))
        await made.until(lambda: granted(made) == [True, False])
        await made.until(lambda: granted(made) == [True, False, True])
        (started,) = made.rows.events("failover.started")
        assert started["text"].endswith("lost leadership. Another contender holds the lease.")
        assert [row[:3] for row in waits(made)] == [
            ("leadership", "expired", "lease-duration"),
            ("leadership", "fired", "retry-period"),
        ]


@virtually
async def test_a_job_of_application_mode_is_submitted_once_by_whatever_session_leads_first():
    """A JobManager that starts while another lease lasts submits it later; the session after that recovers it."""
    made, store = cluster(0)
    loop = asyncio.get_running_loop()
    await store.put(LEASE_KEY, msgspec.json.encode(Lease("dead", loop.time(), loop.time())))
    async with made:
        await made.manager.submit_first(GRAPH, {})
        assert made.manager.dispatcher.jobmaster is None
        await made.until(lambda: granted(made) == [True])
        for ordinal in range(4):
            await made.add(TaskManagerID(ordinal, 1))
        await made.until(lambda: made.manager.dispatcher.jobmaster is not None)
        await made.until_running()
        store.refuses = lambda key: key == LEASE_KEY
        await made.until(lambda: granted(made) == [True, False])
        store.refuses = lambda key: False
        await made.until(lambda: granted(made) == [True, False, True])
        await register_all(made)
        await made.until_running()
        assert len([key for key in await store.list("jobs/") if key.endswith("/graph")]) == 1


def fatal_errors(made: Any) -> tuple[Any, list[str]]:
    """Return the leadership of the JobManager, and the list to which its fatal errors will be added."""
    fatal: list[str] = []
    leadership = made.manager._leadership
    assert leadership is not None
    leadership._on_fatal = fatal.append
    return leadership, fatal


@virtually
async def test_a_session_that_cannot_recover_its_job_ends_the_process():
    """As in Flink, where it is a fatal error."""
    made, store = cluster()
    async with made:
        await made.submit()
        await made.until_running()
        _, fatal = fatal_errors(made)
        store.refuses = lambda key: True
        await made.until(lambda: granted(made) == [True, False])
        store.refuses = lambda key: key != LEASE_KEY
        await made.until(lambda: bool(fatal))
        assert fatal[0].startswith("Exception during leader election of the JobManager occurred: jobs/")


@virtually
async def test_an_error_in_the_election_itself_ends_the_process():
    """Without its task, nothing would renew the lease or contend for it."""
    made, store = cluster()
    async with made:
        await made.submit()
        await made.until_running()
        leadership, fatal = fatal_errors(made)

        async def broken(why: str) -> None:
            raise RuntimeError(why)

        leadership._on_revoke = broken
        store.refuses = lambda key: key == LEASE_KEY
        await made.until(lambda: bool(fatal))
        assert "RuntimeError('The lease was not renewed" in fatal[0]
