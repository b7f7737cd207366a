"""The JobManager in virtual time: what silence, suspects and refused or unfreed slots lead to."""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.ids import TaskManagerID
from testbed_runtime.core.job.messages import (
    DisconnectJobManager,
    FailSlot,
    Heartbeat,
    NotifySlotAvailable,
    OfferSlots,
    RegisterAtJobMaster,
    RegisterTaskManager,
    RequestSlot,
    SlotReport,
    StopWithDrain,
)
from testbed_runtime.core.job.slots import needed_slots
from testbed_runtime.ports.rpc import RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.harness import (
    GRAPH,
    Cluster,
    data_of,
    heartbeats_waited_for,
    running_job,
    times,
    virtually,
)


@virtually
async def test_a_stall_of_the_jobmanager_itself_gives_up_no_taskmanager():
    """Paused for longer than heartbeat.timeout: the answers were there, it could not read them. It does not make up for the heartbeats
    that it has not sent: one follows at once, and the next ones a whole interval after each other (HeartbeatManagerSenderImpl.run)."""
    async with running_job(4) as cluster:
        await asyncio.sleep(1.25)
        asyncio.get_running_loop().pause("jobmanager")
        await asyncio.sleep(8.0)
        asyncio.get_running_loop().resume("jobmanager")
        resumed = asyncio.get_running_loop().time()
        for tm in cluster.tms:
            tm.asked_at.clear()
        await asyncio.sleep(5.5)
        for tm in cluster.tms:
            assert [at - resumed for at in tm.asked_at] == pytest.approx([0, 1, 2, 3, 4, 5], abs=0.01)
        (stall,) = cluster.rows.events("loop.stall")
        assert data_of(stall)["seconds"] == pytest.approx(8.0, abs=0.2)
        assert cluster.rows.events("taskmanager.lost") == []
        assert (await cluster.status()).state == "RUNNING"


@virtually
async def test_silence_of_a_taskmanager_is_found_between_timeout_minus_interval_and_timeout():
    """B7: (timeout − interval, timeout + 0.5 s] from the pause on."""
    for offset in (0.1, 0.5, 0.9):
        async with running_job(5) as cluster:
            await asyncio.sleep(2 + offset)
            victim = cluster.running_on("count-0")
            began = asyncio.get_running_loop().time()
            cluster.switchboard.pause(victim.rpc.name)
            await cluster.until(lambda: cluster.rows.events("failover.started"))
            (at,) = times(cluster, "failover.started")
            assert 4.0 < at - began <= 5.5
            (wait,) = heartbeats_waited_for(cluster)
            assert wait[1:4] == (str(victim.resource_id), "heartbeat.timeout", "expired")
            assert wait[4:] == (f"The heartbeat of TaskManager with id {victim.resource_id} timed out.", 5.0)
            cluster.switchboard.resume(victim.rpc.name)


@virtually
async def test_a_taskmanager_that_is_heard_of_late_was_waited_for():
    """It was silent for more than half of the timeout, by both endpoints."""
    async with running_job(4) as cluster:
        await asyncio.sleep(2.5)
        cluster.switchboard.pause(cluster.tms[0].rpc.name)
        await asyncio.sleep(3.0)
        cluster.switchboard.resume(cluster.tms[0].rpc.name)
        await asyncio.sleep(1.0)
        waits = heartbeats_waited_for(cluster)
        assert {wait[:5] for wait in waits} == {
            (who, "tm-0-1", "heartbeat.timeout", "completed", "") for who in ("JobMaster", "ResourceManager")
        }
        assert all(3.0 < wait[5] < 4.0 for wait in waits)


@virtually
async def test_connections_are_named_in_the_failure_of_a_task_of_the_same_region():
    """The second report, from a task that is being cancelled, adds its suspect too."""
    async with running_job(6) as cluster:
        await asyncio.sleep(2.3)
        victims = [cluster.running_on("source-0"), cluster.running_on("source-1")]
        for victim in victims:
            await victim.die()
        for name, victim in zip(("count-0", "count-1"), victims, strict=True):
            await cluster.running_on(name).report_lost_connection(cluster.attempt_of(name), victim)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert len(cluster.rows.events("failover.attempt")) == 1
        assert len(cluster.rows.events("failover.started")) == 1


@virtually
async def test_a_refused_slot_is_asked_for_again():
    """The TaskManager was just freeing it."""
    async with Cluster(4) as cluster:
        cluster.tms[2].refusals = 2
        await cluster.submit()
        await cluster.until_running()
        assert (await cluster.status()).placement["count-0"] == "tm-2-1"


@virtually
async def test_J_154_a_refused_slot_is_requested_again_after_the_delay_with_another_allocation():
    """AbstractFineGrainedSlotManagerITCase.testSlotRequestFailure. The other slots are not requested again."""
    async with Cluster(4, {"slotmanager.requirement-check.delay": "50 ms"}) as cluster:
        tm = cluster.tms[2]
        tm.refusals = 1
        await cluster.submit()
        await cluster.until_running()
        assert [len(tm.requested_at) for tm in cluster.tms] == [1, 1, 2, 1]
        first, second = tm.requested_at
        assert round(1000 * (second - first)) == 50 + 2
        assert len(tm.allocated) == 1


@virtually
async def test_J_174_a_slot_that_its_taskmanager_has_reported_is_not_requested_again():
    """AbstractFineGrainedSlotManagerITCase.testAllocationUpdatesIgnoredIfSlotMarkedAsAllocatedAfterSlotReport: the request
    times out later."""
    async with Cluster(4) as cluster:
        tm = cluster.tms[2]
        request = tm.handlers[RequestSlot]

        async def unanswered(message):
            await request(message)
            return asyncio.get_running_loop().create_future()

        tm.handlers[RequestSlot] = unanswered
        await cluster.submit()
        await cluster.until_running()
        await asyncio.sleep(5.0)
        assert [len(tm.requested_at) for tm in cluster.tms] == [1, 1, 1, 1]
        assert cluster.manager.resourcemanager._table.free == 0


@pytest.mark.parametrize(("delay", "together"), [("50 ms", True), ("0 ms", False)])
def test_J_153_slots_are_allocated_after_the_delay_since_the_first_change(delay: str, together: bool):
    """FineGrainedSlotManagerTest.testRequirementCheckOnlyTriggeredOnce: a TaskManager that registers meanwhile gives its slot at the
    same time, a later one after another 50 ms. Without a delay, each slot is allocated at once."""

    async def drive() -> None:
        options = {"slotmanager.requirement-check.delay": delay, "slot.request.max-interval": "0 ms"}
        async with Cluster(2, options) as cluster:
            now = asyncio.get_running_loop().time
            await asyncio.sleep(1.0)
            await cluster.submit()
            third = await cluster.add(TaskManagerID(2, 1))
            await asyncio.sleep(0.2)
            registered = now()
            fourth = await cluster.add(TaskManagerID(3, 1))
            await cluster.until_running()
            asked = [at for tm in (*cluster.tms[:2], third) for at in tm.requested_at]
            assert len(asked) == 3
            assert (max(asked) == min(asked)) is together
            (last,) = fourth.requested_at
            assert (0.05 < last - registered < 0.06) is together
            assert last - registered < 0.06

    run_virtual(drive())


@virtually
async def test_a_taskmanager_that_is_watched_again_while_heartbeats_are_due_gets_one_each_interval():
    """The message that sends the heartbeats is in the mailbox when the only TaskManager is watched again."""
    async with Cluster(1) as cluster:
        (tm,), sender = cluster.tms, cluster.manager.resourcemanager.heartbeats

        def again():
            sender.unwatch(tm.resource_id)
            sender.watch(tm.resource_id, tm.rpc.address)
            tm.asked_at.clear()

        asyncio.get_running_loop().call_at(sender._timer._handle.when(), again)
        await asyncio.sleep(5.5)
        assert [later - at for at, later in pairwise(tm.asked_at)] == pytest.approx([1] * 4, abs=0.01)


@virtually
async def test_a_request_is_not_put_off_by_one_that_adds_nothing():
    """DefaultDeclarativeSlotPool.increaseResourceRequirementsBy returns at once without an increment."""
    async with Cluster(4) as cluster:
        await asyncio.sleep(1.0)
        asked = asyncio.get_running_loop().time()
        await cluster.submit()
        await asyncio.sleep(0.01)
        cluster.manager.resourcemanager.request(needed_slots(GRAPH))
        await cluster.until_running()
        (at,) = {at for tm in cluster.tms for at in tm.requested_at}
        assert round(1000 * (at - asked)) == 20 + 50 + 2


@pytest.mark.parametrize(
    ("version", "waits"),
    [
        ("1.15", []),
        ("1.20", [("ResourceManager", "slotmanager.requirement-check.delay", 50)]),
        (
            "2.0",
            [
                ("JobMaster", "slot.request.max-interval", 20),
                ("ResourceManager", "slotmanager.requirement-check.delay", 50),
            ],
        ),
    ],
)
def test_J_160_slots_are_requested_and_allocated_after_the_delays_of_the_version(version: str, waits: list):
    """DefaultDeclarativeSlotPoolTest.testIncreasingResourceRequirementsWillSendResourceRequirementNotification. Each delay is a wait of
    its option, and a change of what is free alone is none."""

    async def drive() -> None:
        async with Cluster(4, flink_version=version) as cluster:
            await asyncio.sleep(1.0)
            asked = asyncio.get_running_loop().time()
            await cluster.submit()
            await cluster.until_running()
            (at,) = {at for tm in cluster.tms for at in tm.requested_at}
            assert round(1000 * (at - asked)) == sum(ms for *_, ms in waits) + 2
            rows = [r for r in cluster.rows.table("waits") if r["kind"] == "slot-request"]
            found = [(r["who"], r["option"], round((r["t_ns"] - r["start_ns"]) / 1e6)) for r in rows]
            assert found == waits

    run_virtual(drive())


@virtually
async def test_J_160_a_change_of_the_requested_slots_puts_off_their_request():
    """DefaultDeclarativeSlotPool.doDeclareResourceRequirements: the interval begins again. What is no longer needed is not requested."""
    async with Cluster(4) as cluster:
        await asyncio.sleep(1.0)
        await cluster.submit()
        resourcemanager = cluster.manager.resourcemanager
        for _ in range(3):
            await asyncio.sleep(0.015)
            resourcemanager.request([("late", 0)])
            resourcemanager.request([("later", 0)])
            resourcemanager.cancel_requests()
            cluster.manager.dispatcher.jobmaster._scheduler.request_slots()
        changed = asyncio.get_running_loop().time()
        await cluster.until_running()
        (at,) = {at for tm in cluster.tms for at in tm.requested_at}
        assert round(1000 * (at - changed)) == 20 + 50 + 1
        assert sum(len(tm.allocated) for tm in cluster.tms) == 4


@virtually
async def test_the_free_slots_are_allocated_first_and_the_others_as_they_become_free():
    """A job that needs four slots holds the three that there are. It starts with the fourth, and requests no other again."""
    async with Cluster(3) as cluster:
        await cluster.submit()
        await asyncio.sleep(1.0)
        assert cluster.free_slots == 0
        assert [len(tm.allocated) for tm in cluster.tms] == [1, 1, 1]
        assert [tm.submitted for tm in cluster.tms] == [[], [], []]
        await cluster.add(TaskManagerID(3, 1))
        await cluster.until_running()
        assert [len(tm.requested_at) for tm in cluster.tms] == [1, 1, 1, 1]


@virtually
async def test_a_slot_that_is_lost_while_a_job_waits_for_others_is_requested_again():
    """The TaskManager of one of three slots is lost. Two others register, and the job starts with them."""
    async with Cluster(3) as cluster:
        await cluster.submit()
        await asyncio.sleep(1.0)
        await cluster.tms[1].die()
        await cluster.until(lambda: cluster.rows.events("taskmanager.lost"))
        for ordinal in (3, 4):
            await cluster.add(TaskManagerID(ordinal, 1))
        await cluster.until_running()
        placed = set((await cluster.status()).placement.values())
        assert placed == {"tm-0-1", "tm-2-1", "tm-3-1", "tm-4-1"}
        assert (await cluster.status()).restarts == 0


@virtually
async def test_a_dead_taskmanager_that_is_not_noticed_yet_gives_its_slot_to_another():
    """The slot request does not reach it: it gets no more until it answers."""
    async with Cluster(5, {"heartbeat.interval": "10 s", "heartbeat.timeout": "50 s"}) as cluster:
        await asyncio.sleep(0.1)
        await cluster.tms[1].die()
        await cluster.submit()
        await cluster.until_running()
        placed = set((await cluster.status()).placement.values())
        assert placed == {"tm-0-1", "tm-2-1", "tm-3-1", "tm-4-1"}
        assert (await cluster.status()).restarts == 0


@virtually
async def test_a_slot_that_could_not_be_freed_is_freed_when_the_taskmanager_answers_again():
    """Paused at the end of a job: its slot is not handed out before it has confirmed."""
    async with running_job(4, {"heartbeat.timeout": "60 s", "pekko.ask.timeout": "1 s"}) as cluster:
        await cluster.dispatch(StopWithDrain(""))
        await cluster.until_state("FINISHED")
        cluster.switchboard.pause("tm-3")
        await asyncio.sleep(5)
        assert cluster.free_slots >= 3
        cluster.switchboard.resume("tm-3")
        await asyncio.sleep(3)
        assert cluster.free_slots == 4


@virtually
async def test_a_slot_that_its_taskmanager_does_not_know_any_more_is_replaced():
    """SubmitTask is refused: the allocation is given up, the next attempt gets a new one."""
    from testbed_runtime.core.job.messages import SubmitTask

    async with running_job(5) as cluster:
        tm = cluster.running_on("sink-0")
        forgotten = tm.submitted[-1].allocation
        take = tm.handlers[SubmitTask]

        async def refuse(message):
            if message.descriptor.allocation == forgotten:
                raise FlinkError("TaskSubmissionException", f"No task slot allocated for {forgotten}.")
            return await take(message)

        tm.handlers[SubmitTask] = refuse
        await tm.report(cluster.attempt_of("sink-0"), "FAILED", "IOException", "boom")
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert cluster.running_on("sink-0").submitted[-1].allocation != forgotten
        assert len(cluster.rows.events("failover.attempt")) == 2


@virtually
async def test_a_message_of_another_leader_is_fenced_off():
    """Registration and offers."""

    async with Cluster(4) as cluster:
        job = await cluster.submit()
        with pytest.raises(RemoteFailure, match="Fencing token mismatch"):
            await cluster.tms[0].ask("jobmaster", OfferSlots("tm-0-1", job, "old", ()))


@virtually
async def test_older_incarnations_are_rejected():
    """tm-0-1 after tm-0-2."""
    async with Cluster(1) as cluster:
        await cluster.add(TaskManagerID(0, 2))
        message = RegisterTaskManager("tm-0-1", cluster.tms[1].rpc.address, 1)
        answer = await cluster.tms[1].ask("resourcemanager", message)
        assert (answer.outcome, answer.reason) == ("rejection", "TaskManager tm-0-2 has replaced tm-0-1.")


@virtually
async def test_J_161_a_taskmanager_whose_address_cannot_be_connected_is_not_registered():
    """ResourceManagerTaskExecutorTest.testRegisterTaskExecutorFromInvalidAddress, and the JobMaster in the same way: the TaskExecutor is to
    try again later."""
    async with running_job(4) as cluster:
        known = cluster.manager.resourcemanager.taskmanagers
        (tm, *_) = cluster.tms
        job = tm.submitted[-1].job
        nowhere = ("127.0.0.1", 1)
        at_resourcemanager = RegisterTaskManager("tm-9-1", nowhere, 1)
        at_jobmaster = RegisterAtJobMaster("tm-9-1", nowhere, nowhere, job, tm.leader)
        for endpoint, message in (("resourcemanager", at_resourcemanager), ("jobmaster", at_jobmaster)):
            answer = await tm.ask(endpoint, message)
            assert answer.outcome == "failure"
            assert answer.reason == (
                "Could not connect to rpc endpoint under address pekko.tcp://flink@127.0.0.1:1/user/rpc/taskexecutor."
            )
        await asyncio.sleep(10)
        assert cluster.manager.resourcemanager.taskmanagers == known
        assert not cluster.rows.events("taskmanager.lost")


@virtually
async def test_J_162_a_registration_that_was_overtaken_by_another_one_is_declined():
    """ResourceManagerTaskExecutorTest.testDelayedRegisterTaskExecutor: the later one stays valid. Its TaskExecutor answers, and the first
    one's only after it was paused."""
    async with Cluster(2) as cluster:
        first, second = cluster.tms
        cluster.switchboard.pause(first.rpc.name)
        message = RegisterTaskManager("tm-5-1", first.rpc.address, 1)
        slow = asyncio.get_running_loop().create_task(second.ask("resourcemanager", message))
        await asyncio.sleep(1.0)
        answer = await second.ask("resourcemanager", RegisterTaskManager("tm-5-1", second.rpc.address, 1))
        assert answer.outcome == "success"
        cluster.switchboard.resume(first.rpc.name)
        declined = await slow
        assert (declined.outcome, declined.reason) == (
            "failure",
            "Decline outdated task executor registration.",
        )
        report = SlotReport("tm-5-1", answer.leader, answer.registration)
        assert (await second.ask("resourcemanager", report)).accepted


@virtually
async def test_the_slots_of_a_taskmanager_are_available_when_it_has_reported_them():
    """ResourceManager.sendSlotReport follows the answer to the registration, so a slot request cannot overtake it. A report of an
    earlier registration is refused."""
    async with Cluster(4) as cluster:
        (tm, *_) = cluster.tms
        rid = str(tm.resource_id)
        message = RegisterTaskManager(rid, tm.rpc.address, 1)
        answer = await tm.ask("resourcemanager", message)
        await cluster.submit()
        await asyncio.sleep(1.0)
        status = await cluster.status()
        assert (status.taskmanagers, cluster.free_slots) == (("tm-1-1", "tm-2-1", "tm-3-1"), 0)
        assert [len(tm.allocated) for tm in cluster.tms] == [0, 1, 1, 1]
        report = SlotReport(rid, answer.leader, answer.registration)
        text = f"Unknown TaskManager registration id {tm.registration}."
        with pytest.raises(RemoteFailure, match=text):
            await tm.ask("resourcemanager", replace(report, registration=tm.registration))
        await tm.ask("resourcemanager", report)
        await cluster.until_running()


@virtually
async def test_registering_again_does_not_extend_the_heartbeat_timeout():
    """HeartbeatManagerImpl.monitorTarget changes nothing for a TaskManager that it watches already."""
    async with Cluster(1) as cluster:
        (silent,) = cluster.tms
        silent.answers = ()
        await asyncio.sleep(4.5)
        await silent.register()
        await asyncio.sleep(1.0)
        assert [row["subject"] for row in cluster.rows.events("taskmanager.lost")] == ["tm-0-1"]


@virtually
async def test_J_32_a_slot_that_its_taskmanager_has_freed_is_allocated_again_with_the_next_heartbeat():
    """The slot report of a heartbeat does not have it, whatever became of the offer."""
    async with Cluster(4) as cluster:
        cluster.tms[0].withheld = 1
        began = asyncio.get_running_loop().time()
        await cluster.submit()
        await cluster.until_running()
        assert asyncio.get_running_loop().time() - began < 3.0


@virtually
async def test_J_141_a_taskmanager_registers_at_the_jobmaster_of_its_own_job_only():
    """JobMasterTest.testJobMasterRejectsTaskExecutorRegistrationIfJobIdsAreNotEqual. In Flink's words."""
    async with running_job(4) as cluster:
        (tm, *_) = cluster.tms
        message = RegisterAtJobMaster(str(tm.resource_id), tm.rpc.address, tm.data, "other", tm.leader)
        answer = await tm.ask("jobmaster", message)
        text = "The JobManager is not responsible for job other. Maybe the TaskManager used outdated connection information."
        assert (answer.outcome, answer.reason) == ("rejection", text)


@virtually
async def test_J_142_a_repeated_registration_with_the_same_session_is_acknowledged():
    """JobMasterTest.testJobMasterAcknowledgesDuplicateTaskExecutorRegistrations. Its tasks go on, unlike with another session."""
    async with running_job(4) as cluster:
        (tm, *_) = cluster.tms
        job = cluster.manager.dispatcher.jobmaster.job
        message = RegisterAtJobMaster(str(tm.resource_id), tm.rpc.address, tm.data, job, tm.leader)
        answers = [await tm.ask("jobmaster", message) for _ in range(2)]
        assert [answer.outcome for answer in answers] == ["success", "success"]
        assert cluster.rows.events("failover.failure") == []
        assert (await tm.ask("jobmaster", replace(message, session=1))).outcome == "success"
        assert len(cluster.rows.events("failover.failure")) == 1


@virtually
async def test_J_143_slots_of_a_taskmanager_that_is_not_connected_are_not_accepted():
    """DeclarativeSlotPoolServiceTest.testSlotOfferingOfUnknownTaskManagerIsIgnored. With Flink's text."""
    async with running_job(5) as cluster:
        spare = next(tm for tm in cluster.tms if not tm.allocated)
        leader = cluster.tms[0].leader
        message = OfferSlots(str(spare.resource_id), "job", leader, ((0, "allocation"),))
        with pytest.raises(RemoteFailure, match=f"Unknown TaskManager {spare.resource_id}"):
            await spare.ask("jobmaster", message)


@virtually
async def test_J_33_a_taskmanager_that_frees_a_slot_makes_it_available_at_once():
    """TaskExecutor.freeSlotInternal notifies the ResourceManager. Another TaskManager cannot free it."""
    async with Cluster(4, {"heartbeat.interval": "60 s", "heartbeat.timeout": "600 s"}) as cluster:
        first, other, *_ = cluster.tms
        first.withheld = 1
        await cluster.submit()
        await asyncio.sleep(1.0)
        (slot,) = cluster.manager.resourcemanager._table._taskmanagers[first.resource_id].slots
        message = NotifySlotAvailable(str(other.resource_id), first.leader, slot.allocation)
        await other.ask("resourcemanager", message)
        assert (await cluster.status()).state == "RUNNING"
        assert cluster.free_slots == 0
        await first.ask("resourcemanager", replace(message, resource_id=str(first.resource_id)))
        began = asyncio.get_running_loop().time()
        await cluster.until_running()
        assert asyncio.get_running_loop().time() - began < 1.0


@virtually
async def test_J_62_a_taskmanager_whose_last_slot_has_failed_is_freed_and_disconnected():
    """JobMaster.internalFailAllocation: the tasks in the slot fail, and no other slot of the job is there."""
    async with running_job(5) as cluster:
        owner = cluster.running_on("sink-0")
        (allocation,) = owner.allocated
        causes = []

        async def disconnected(message):
            causes.append(message.cause)

        owner.handlers[DisconnectJobManager] = disconnected
        message = FailSlot(str(owner.resource_id), owner.leader, allocation, "text")
        await owner.ask("jobmaster", message)
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert causes == [f"No more slots registered at JobMaster {owner.resource_id}."]
        assert allocation in owner.free
        (started,) = cluster.rows.events("failover.started")
        assert (started["text"], data_of(started)["cause_class"]) == ("text", "FlinkException")
        assert cluster.running_on("sink-0").submitted[-1].allocation != allocation


@virtually
async def test_a_taskmanager_with_another_slot_of_the_job_stays_connected():
    """Only the tasks in the failed slot fail."""
    async with running_job(3, slots=2) as cluster:
        owner = next(tm for tm in cluster.tms if len(tm.allocated) == 2)
        disconnected = []
        owner.handlers[DisconnectJobManager] = disconnected.append
        failed, kept = owner.allocated
        await owner.ask("jobmaster", FailSlot(str(owner.resource_id), owner.leader, failed, "text"))
        await cluster.until(lambda: cluster.rows.events("failover.deployed"))
        assert (disconnected, kept in owner.allocated) == ([], True)


@virtually
async def test_a_taskmanager_that_answers_the_resourcemanager_gets_slots_again():
    """Nothing is allocated there until then."""
    async with Cluster(1) as cluster:
        cluster.manager.resourcemanager.suspend(cluster.tms[0].resource_id)
        assert cluster.free_slots == 0
        await asyncio.sleep(1.1)
        assert cluster.free_slots == 1


@virtually
async def test_J_62_a_slot_of_a_taskmanager_that_is_not_connected_cannot_fail():
    """Nor one that the job does not hold, nor with another leader."""
    async with running_job(5) as cluster:
        owner = cluster.running_on("sink-0")
        other = next(tm for tm in cluster.tms if tm is not owner)
        (allocation,) = owner.allocated
        for message in (
            FailSlot(str(other.resource_id), owner.leader, allocation, "text"),
            FailSlot("tm-9-1", owner.leader, allocation, "text"),
            FailSlot(str(owner.resource_id), owner.leader, "unknown", "text"),
        ):
            assert (await owner.ask("jobmaster", message)).accepted
        with pytest.raises(RemoteFailure, match="Fencing token mismatch"):
            await owner.ask("jobmaster", FailSlot(str(owner.resource_id), "old", allocation, "text"))
        assert cluster.rows.events("failover.started") == []


@virtually
async def test_J_63_heartbeats_of_the_jobmaster_name_the_slots_that_it_holds():
    """With their indices (AllocatedSlotReport)."""
    async with Cluster(4) as cluster:
        tm = cluster.tms[0]
        answer, named = tm.handlers[Heartbeat], []

        async def heard(message):
            if message.origin == "jobmanager":
                named.append(message.allocations)
            return await answer(message)

        tm.handlers[Heartbeat] = heard
        await cluster.submit()
        await cluster.until_running()
        await asyncio.sleep(2.5)
        assert set(named) == {tm.slot_report}
        assert len(tm.slot_report) == 1


@virtually
async def test_a_busy_jobmaster_says_what_keeps_it_busy():
    """TaskManagers repeat their registrations faster than it answers them, so it never gets the slots of its job."""
    async with Cluster(4, {"headgate.jobmanager.service-time": "300 ms"}) as cluster:
        await cluster.submit()
        await asyncio.sleep(60)
        waits_for = (await cluster.status()).waits_for
        assert waits_for.startswith("a slot for each task: 4 slots (for ")
        assert "s without a break; each takes headgate.jobmanager.service-time = 300 ms" in waits_for
