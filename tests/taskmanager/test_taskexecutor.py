"""Refusals of a TaskExecutor: messages of another leader, and tasks without a slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.messages import (
    CancelTask,
    DisconnectJobManager,
    FailSlot,
    FreeSlot,
    Heartbeat,
    NotifyCheckpointComplete,
    NotifySlotAvailable,
    RequestSlot,
    SetSourceRate,
    SubmitTask,
    TriggerCheckpoint,
)
from testbed_runtime.ports.rpc import RemoteFailure
from testbed_runtime.simulation.loop import run_virtual
from tests.jobmanager.inproc import a_testbed, graph


def running(drive: Any) -> None:
    """Run a job in virtual time, and drive one of its TaskManagers with `ask(message)` in place of the JobManager."""

    async def main() -> None:
        async with a_testbed(taskmanagers=1, slots=3) as bed:
            await bed.submit(graph(groups=("a", "a", "a")))
            await bed.until(lambda s: s.state == "RUNNING" and s.completed_checkpoints >= 1)
            address = bed.rpcs["tm-0"].address

            async def ask(message: Any) -> Any:
                return await bed.client.ask("tm-0", address, "taskexecutor", message, timeout_s=5.0)

            await drive(bed, ask)
            assert (await bed.drain()).state == "FINISHED"

    run_virtual(main())


def descriptor_of(bed: Any) -> Any:
    """The deployment of one running task."""
    return bed.taskmanagers["tm-0"].tasks[0].descriptor


def test_a_slot_is_given_to_the_resourcemanager_at_which_the_taskmanager_is_registered():
    """Another leader's request is refused, and takes no slot."""

    async def drive(bed: Any, ask: Any) -> None:
        running = descriptor_of(bed)
        request = RequestSlot(2, "other", running.job, bed.jobmanager_address, running.leader, "stranger")
        with pytest.raises(RemoteFailure, match="not connected to the resource manager stranger") as caught:
            await ask(request)
        assert caught.value.class_name == "TaskManagerException"
        status = await bed.status()
        assert status.restarts == 0

    running(drive)


def delay_answers(rpc: Any, seconds: float, *, of: str, sent: list[str]) -> None:
    """Let the answers to messages of this class arrive late, and list the classes of all messages that are sent."""
    ask = rpc.ask

    async def delaying(*args: Any, **settings: Any) -> Any:
        name = type(args[3]).__name__
        sent.append(name)
        answer = await ask(*args, **settings)
        await asyncio.sleep(seconds if name == of else 0)
        return answer

    rpc.ask = delaying


def test_J_98_a_taskmanager_that_is_not_registered_gives_no_slot():
    """testIgnoringSlotRequestsIfNotRegistered. A request that overtakes the answer to the registration is refused at once."""

    async def drive(bed: Any, ask: Any) -> None:
        running, executor = descriptor_of(bed), bed.taskmanagers["tm-0"].executor
        leader = executor.resourcemanager.leader
        request = RequestSlot(2, "other", running.job, bed.jobmanager_address, running.leader, leader)
        delay_answers(bed.rpcs["tm-0"], 0.05, of="RegisterTaskManager", sent=[])
        executor.resourcemanager.disconnected(leader)
        began = asyncio.get_running_loop().time()
        with pytest.raises(FlinkError, match="not connected to the resource manager"):
            await executor._request_slot(request)
        assert (asyncio.get_running_loop().time(), executor.counters()["free_slots"]) == (began, 1)
        await bed.until(lambda _: executor.resourcemanager.is_registered)
        assert (await executor._request_slot(request)).accepted

    running(drive)


def test_a_jobmaster_that_has_not_accepted_the_taskmanager_gets_no_disconnect():
    """TaskExecutor.closeJob disconnects a JobTable.Connection only. A busy JobMaster would otherwise get busier."""

    async def drive(bed: Any, ask: Any) -> None:
        running, executor, rpc = descriptor_of(bed), bed.taskmanagers["tm-0"].executor, bed.rpcs["tm-0"]
        sent: list[str] = []
        delay_answers(rpc, 60, of="RegisterAtJobMaster", sent=sent)
        leader = executor.resourcemanager.leader
        request = RequestSlot(2, "other", "busy", bed.jobmanager_address, running.leader, leader)
        assert (await executor._request_slot(request)).accepted
        await bed.until(lambda _: "RegisterAtJobMaster" in sent)
        await ask(FreeSlot("other", "not needed", running.leader))
        await asyncio.sleep(1)
        assert "DisconnectTaskManager" not in sent

    running(drive)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job": "unknown"}, "there is no JobManager associated for the job unknown"),
        ({"leader": "stranger"}, "the job manager leader id stranger does not match"),
        ({"allocation": "unknown"}, "No task slot allocated for job ID .* and allocation ID unknown"),
    ],
)
def test_a_task_is_refused_without_its_job_its_leader_or_its_slot(change: dict[str, str], text: str):
    """The error says which of them is missing. Nothing is started."""

    async def drive(bed: Any, ask: Any) -> None:
        before = len(bed.taskmanagers["tm-0"].tasks)
        with pytest.raises(RemoteFailure, match=text) as caught:
            await ask(SubmitTask(replace(descriptor_of(bed), attempt="new", **change)))
        assert caught.value.class_name == "TaskSubmissionException"
        assert len(bed.taskmanagers["tm-0"].tasks) == before

    running(drive)


def test_messages_about_an_unknown_attempt_are_refused():
    """A checkpoint is an error, because a source is missing; the others are answered."""

    async def drive(bed: Any, ask: Any) -> None:
        with pytest.raises(RemoteFailure, match="checkpoint request for unknown task gone"):
            await ask(TriggerCheckpoint("gone", 9, 0, "leader", False))
        for message in (
            SetSourceRate("gone", 5.0),
            NotifyCheckpointComplete("gone", 9, "leader"),
            CancelTask("gone", "leader"),
        ):
            assert not (await ask(message)).accepted
        assert (await ask(FreeSlot("gone", "text", "leader"))).accepted

    running(drive)


def test_a_heartbeat_of_a_stranger_is_not_answered_with_what_runs_here():
    """It is refused, and harms nothing."""

    async def drive(bed: Any, ask: Any) -> None:
        for origin in ("resourcemanager", "jobmaster"):
            assert not (await ask(Heartbeat(origin=origin, leader="stranger"))).accepted

    running(drive)


@pytest.mark.parametrize("stalled_s", [0.0, 1.0])
def test_a_stall_extends_the_time_that_a_jobmaster_may_be_silent(stalled_s: float):
    """It could not be heard meanwhile: it is given up as much later."""

    async def main() -> float:
        async with a_testbed(taskmanagers=1, slots=3, **{"heartbeat.interval": "100 ms"}) as bed:
            await bed.submit(graph(groups=("a", "a", "a")))
            await bed.until(lambda s: s.state == "RUNNING" and s.completed_checkpoints >= 1)
            silent = bed.clock.now()
            bed.board.pause("tm-0")
            if stalled_s:
                bed.taskmanagers["tm-0"].executor.extend(stalled_s)
            await asyncio.sleep(5.0)
            (lost,) = (
                row
                for row in bed.events("note")
                if "Heartbeat of JobManager" in row["text"] or "heartbeat of JobManager" in row["text"]
            )
            bed.board.resume("tm-0")
            await bed.until(lambda s: s.state == "RUNNING" and s.restarts > 0)
            return lost["t_ns"] / 1e9 - silent

    assert run_virtual(main()) == pytest.approx(2.0 + stalled_s, abs=0.15)


@pytest.mark.parametrize(("session", "restarts"), [(1, 1), (2, 0)])
def test_a_jobmaster_that_disconnects_fails_the_tasks_of_its_own_session(session: int, restarts: int):
    """The TaskManager connects again and offers its slots. A message of another session changes nothing."""

    async def drive(bed: Any, ask: Any) -> None:
        running = descriptor_of(bed)
        message = DisconnectJobManager(job=running.job, leader=running.leader, session=session, cause="text")
        assert (await ask(message)).accepted
        await asyncio.sleep(1.0)
        status = await bed.until(lambda s: s.state == "RUNNING")
        assert status.restarts == restarts
        done = status.completed_checkpoints
        await bed.until(lambda s: s.completed_checkpoints > done)

    running(drive)


def test_a_slot_that_no_jobmaster_has_accepted_keeps_its_deadline_when_the_jobmaster_disconnects():
    """TaskExecutor.disconnectJobManagerConnection marks active slots as inactive, no others."""

    async def drive(bed: Any, ask: Any) -> None:
        executor, running = bed.taskmanagers["tm-0"].executor, descriptor_of(bed)
        active = [slot.allocation for slot in executor._slots.of_job(running.job, active=True)]
        executor._slots.allocate(2, "offered", running.job, asyncio.get_running_loop().time())
        marked, mark = [], executor._slots.mark_inactive

        def noting(allocation: str, now: float) -> None:
            marked.append(allocation)
            mark(allocation, now)

        executor._slots.mark_inactive = noting
        message = DisconnectJobManager(job=running.job, leader=running.leader, session=1, cause="text")
        assert (await ask(message)).accepted
        assert marked == active
        await bed.until(lambda s: s.state == "RUNNING" and s.restarts > 0)

    running(drive)


@pytest.mark.parametrize(("asked_s", "restarts"), [(60.0, 1), (-60.0, 0)], ids=["later", "before the offer"])
def test_J_61_a_slot_that_the_jobmaster_does_not_hold_is_freed(asked_s: float, restarts: int):
    """Its heartbeat does not name the slot, although it was sent after the slot was accepted."""

    async def drive(bed: Any, ask: Any) -> None:
        running = descriptor_of(bed)
        now = bed.clock.now() + asked_s
        assert (await ask(Heartbeat("jobmanager", running.leader, asked_at=now, allocations=()))).accepted
        await asyncio.sleep(1.0)
        status = await bed.until(lambda s: s.state == "RUNNING" and len(s.placement) == 6)
        assert (status.restarts > 0) == bool(restarts)

    running(drive)


def test_J_33_a_slot_that_is_given_back_with_tasks_is_available_when_they_have_ended():
    """TaskExecutor.freeSlotInternal notifies the ResourceManager, which would learn it with the next heartbeat only."""

    async def drive(bed: Any, ask: Any) -> None:
        executor, rpc = bed.taskmanagers["tm-0"].executor, bed.rpcs["tm-0"]
        allocation, available = descriptor_of(bed).allocation, []
        before = rpc.ask

        async def noting(*args: Any, **settings: Any) -> Any:
            if isinstance(args[3], NotifySlotAvailable):
                available.append((args[3].allocation, len(executor._tasks._running_in(allocation))))
            return await before(*args, **settings)

        rpc.ask = noting
        executor._give_back(executor._slots.get(allocation), "text")
        assert available == []
        await bed.until(lambda s: s.restarts > 0 and set(s.tasks.values()) == {"RUNNING"})
        assert available[0] == (allocation, 0)

    running(drive)


def test_J_61_a_slot_that_the_jobmaster_holds_and_the_taskmanager_does_not_is_failed():
    """With the next heartbeat. The tasks in it fail with Flink's text, and the job goes on in another slot."""

    async def drive(bed: Any, ask: Any) -> None:
        executor, lost = bed.taskmanagers["tm-0"].executor, descriptor_of(bed)
        slot = executor._slots.release(lost.allocation)
        await bed.until(lambda s: s.state == "RUNNING" and s.restarts == 1)
        text = f"Slot {slot.index} on TaskExecutor tm-0-1 is not allocated by job {lost.job}."
        assert bed.events("failover.started")[0]["text"] == text
        stranger = FailSlot("tm-0-1", lost.leader, "unknown", "text")
        address = bed.jobmanager_address
        await bed.client.ask("jobmanager", address, "jobmaster", stranger, timeout_s=5.0)
        assert (await bed.status()).restarts == 1

    running(drive)
