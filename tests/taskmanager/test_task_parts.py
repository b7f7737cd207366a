"""The small parts of a TaskManager: slots, the flusher, waiting, requests about missing producers, the gateway."""

import asyncio

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.messages import (
    Acknowledge,
    CommitRecords,
    PartitionState,
    SinkCommit,
    UpdateTaskExecutionState,
)
from testbed_runtime.core.options import Options
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.connections import PeerWatch, WaitScope
from testbed_runtime.taskmanager.gateway import JobMasterGateway, RecordCommitter, StateReports
from testbed_runtime.taskmanager.output import OutputFlusher
from testbed_runtime.taskmanager.partition_requests import judge_producer
from testbed_runtime.taskmanager.slots import TaskSlotTable
from testbed_runtime.taskmanager.stream import reached_at
from testbed_runtime.taskmanager.waiting import ServiceTime, Wakeup
from testbed_runtime.transport.mailbox import SleepingCpu
from testbed_runtime.transport.rpc_memory import MemoryRpc, Switchboard


def waits_in(rows):
    """A WaitLog on the running loop that keeps its rows in a list."""

    class Sink:
        def append(self, table, **row):
            rows.append(row)

        async def flush(self):
            return True

    return WaitLog(Sink(), "tm-0-1", asyncio.get_running_loop().time)


def seconds_of(row):
    return round((row["t_ns"] - row["start_ns"]) / 1e9, 3)


# ---- slots


def test_a_slot_goes_to_one_allocation_and_the_same_request_twice_is_one():
    """Case J-29. Occupied and impossible slots are refused in words."""
    slots = TaskSlotTable(2, 10.0)
    first = slots.allocate(0, "a", "job", 5.0)
    assert slots.allocate(0, "a", "job", 6.0) is first
    assert (slots.free, first.deadline) == (1, 15.0)
    for allocation, job in (("b", "job"), ("a", "other")):
        with pytest.raises(
            FlinkError, match=r"Occupied.*slot 0 has already been allocated for a different job"
        ):
            slots.allocate(0, allocation, job, 5.0)
    with pytest.raises(
        FlinkError, match=r"allocationId a is already assigned to job job with subtask index 0"
    ):
        slots.allocate(1, "a", "job", 5.0)
    with pytest.raises(FlinkError, match="there are 2"):
        slots.allocate(2, "b", "job", 5.0)


def test_a_slot_that_does_not_become_active_in_time_expires():
    """Cases J-30 and J-31: taskmanager.slot.timeout. Active ones never do."""
    slots = TaskSlotTable(3, 10.0)
    slots.allocate(1, "a", "job", 0.0)
    slots.allocate(0, "b", "job", 1.0)
    assert slots.next_deadline() == 10.0
    assert slots.mark_active("a", "job")
    assert not slots.mark_active("a", "other")
    assert not slots.mark_active("c", "job")
    assert slots.next_deadline() == 11.0
    assert [s.allocation for s in slots.expired(11.0)] == ["b"]
    slots.release("b")
    assert slots.next_deadline() is None
    assert [s.index for s in slots.of_job("job")] == [1]


def test_a_slot_that_is_offered_again_has_a_new_deadline():
    """TaskSlot.markInactive: an active one and one that was only allocated, but none that is about to be free."""
    slots = TaskSlotTable(3, 10.0)
    for index, allocation in enumerate(("active", "offered", "releasing")):
        slots.allocate(index, allocation, "job", 0.0)
    slots.mark_active("active", "job")
    slots.mark_releasing("releasing")
    for allocation in ("active", "offered", "releasing"):
        slots.mark_inactive(allocation, 6.0)
    assert [(s.allocation, s.deadline) for s in slots.expired(16.0)] == [("active", 16.0), ("offered", 16.0)]


# ---- the flusher


def flushes(interval_s, *touches, phase=0.0):
    """Times of the flushes, for writes at these times."""
    found = []

    async def main():
        loop = asyncio.get_running_loop()
        begin = loop.time()
        flusher = OutputFlusher(interval_s, lambda: found.append(round(loop.time() - begin, 6)), phase=phase)
        for touch in touches:
            await asyncio.sleep(begin + touch - loop.time())
            flusher.touched()
        await asyncio.sleep(1.0)
        flusher.close()

    run_virtual(main())
    return found


def test_the_flusher_ticks_only_while_something_is_written():
    """Ticks of 100 ms from the first write; an idle task has no timer; missed ticks are skipped."""
    assert flushes(0.1, 0.0, 0.05) == [0.1]
    assert flushes(0.1, 0.0, 0.55) == [0.1, 0.6]


def test_the_flushers_of_two_tasks_tick_together_only_once():
    """The first tick comes a whole interval after the first write, as in Flink. The second one comes sooner by the task's phase."""
    writes = (0.0, 0.105, 0.205, 0.305)
    assert flushes(0.1, *writes) == [0.1, 0.2, 0.3, 0.4]
    assert flushes(0.1, *writes, phase=0.3) == [0.1, 0.17, 0.27, 0.37]
    assert flushes(0.1, *writes, phase=0.9) == [0.1, 0.11, 0.21, 0.31]


def test_the_runs_of_a_flusher_are_counted_without_its_timer():
    """As Flink's thread runs: at each tick, whether something was written or not."""

    async def main():
        loop = asyncio.get_running_loop()
        begin = loop.time()
        flusher = OutputFlusher(0.1, lambda: None, phase=0.3)
        assert flusher.runs(begin + 1.0) == 0
        flusher.touched()
        assert [flusher.runs(begin + t) for t in (0.09, 0.101, 0.169, 0.171, 0.271, 1.071)] == [
            0,
            1,
            1,
            2,
            3,
            11,
        ]
        ticks = [0.1, 0.17, 0.27]
        assert [flusher.tick_after(begin + t) - begin for t in (0.05, 0.101, 0.2)] == pytest.approx(ticks)
        flusher.close()

    run_virtual(main())


def test_a_buffer_timeout_of_zero_flushes_each_write_and_a_negative_one_never():
    """As execution.buffer-timeout says."""
    assert flushes(0.0, 0.1, 0.2) == [0.1, 0.2]
    assert flushes(-0.001, 0.1) == []


# ---- waiting


def test_a_wakeup_before_the_wait_counts_once():
    """Nothing that happened between two waits is lost; a time limit needs no wakeup."""

    async def main():
        loop = asyncio.get_running_loop()
        wakeup = Wakeup()
        wakeup.set()
        await wakeup.wait()
        begin = loop.time()
        await wakeup.wait(begin + 2.0)
        assert loop.time() == begin + 2.0
        assert not loop._cancelled_timers, "a timer that has fired is not cancelled"
        loop.call_later(1.0, wakeup.set)
        await wakeup.wait(begin + 10.0)
        assert loop.time() == begin + 3.0

    run_virtual(main())


def test_service_time_is_paid_in_whole_steps_and_adds_up():
    """A hundred buffers of 300 µs take 30 ms."""

    async def main():
        from testbed_runtime.process.clock import LoopClock

        loop = asyncio.get_running_loop()
        service, begin = ServiceTime(SleepingCpu(), LoopClock("sim")), loop.time()
        for _ in range(100):
            await service.spend(0.0003)
        assert abs(loop.time() - begin - 0.030) < 0.0011

    run_virtual(main())


def test_a_peer_is_watched_until_it_was_silent_for_the_timeout():
    """Short stalls of our own extend the deadline, long ones do not."""

    def silence(stall_s):
        found = []
        rows = []

        async def main():
            loop = asyncio.get_running_loop()
            begin = loop.time()
            options = Options({"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"})
            scope = WaitScope(options, waits_in(rows), "tm-0-1")
            watch = PeerWatch(scope, "JobMaster", lambda: found.append(loop.time() - begin))
            watch.start()
            await asyncio.sleep(2.0)
            watch.on_heartbeat()
            watch.extend(stall_s)
            await asyncio.sleep(20.0)
            watch.stop()

        run_virtual(main())
        return found, [
            (r["kind"], r["who"], r["what"], r["option"], r["outcome"], seconds_of(r)) for r in rows
        ]

    expired = ("heartbeat", "tm-0-1", "JobMaster", "heartbeat.timeout", "expired")
    assert silence(0.0) == ([7.0], [(*expired, 5.0)])
    assert silence(1.5) == ([8.5], [(*expired, 6.5)])
    # at once: the peer has given us up, whatever of it is still on its way. The stall is recorded, not the peer's silence
    assert silence(6.0) == ([2.0], [])


# ---- producers that are not there


@pytest.mark.parametrize(
    ("state", "class_name"),
    [
        *((state, None) for state in ("SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING", "FINISHED")),
        *((state, "CancelTaskException") for state in ("CANCELING", "CANCELED", "FAILED")),
        ("CREATED", "IllegalStateException"),
    ],
)
def test_J_151_a_consumer_asks_again_ends_or_fails_by_its_producers_state(state, class_name):
    """RemoteChannelStateChecker's table."""
    verdict = judge_producer(PartitionState(state), "p", "e")
    assert (verdict.class_name if verdict else None) == class_name
    if state == "CREATED":
        assert verdict.message == "Producer with attempt ID e of partition p in unexpected state CREATED."


def test_J_151_a_question_that_timed_out_asks_again_and_a_disposed_producer_ends_the_consumer():
    """The last two rows."""
    assert judge_producer(None, "p", "e") is None
    gone = judge_producer(PartitionState("RUNNING", disposed=True), "p", "e")
    assert gone.class_name == "CancelTaskException"
    assert gone.message == "Execution e producing partition p has already been disposed."


# ---- the gateway


async def gateway(handlers):
    """A task's way to a JobMaster with these handlers."""
    board = Switchboard()
    jobmanager, taskmanager = MemoryRpc("jobmanager", board), MemoryRpc("tm-0", board)
    await jobmanager.start()
    await taskmanager.start()
    if handlers:
        jobmanager.serve("jobmaster", handlers)

    async def close():
        await taskmanager.close()
        await jobmanager.close()

    return JobMasterGateway(taskmanager, jobmanager.address, "job", "leader", "tm-0-1", 1.0), close


def report(state):
    return UpdateTaskExecutionState("attempt", state, "tm-0-1")


def test_states_are_reported_one_after_the_other():
    """However long the JobMaster takes for each."""

    async def main():
        seen = []

        async def slow(message):
            await asyncio.sleep(0.3)
            seen.append(message.state)
            return Acknowledge()

        way, close = await gateway({UpdateTaskExecutionState: slow})
        refused = []
        reports = StateReports(
            way, refused.append, lambda kind, state: waits_in([]).begin(kind, "map-0", state)
        )
        for state in ("DEPLOYING", "INITIALIZING", "RUNNING"):
            reports.send(report(state))
        await reports.drained()
        assert seen == ["DEPLOYING", "INITIALIZING", "RUNNING"]
        assert not refused
        await close()

    run_virtual(main())


def test_each_report_has_an_ask_timeout_of_its_own():
    """It runs from the change of state, as in Flink: the second of two that a busy JobMaster handles in 0.7 s each expires
    after the 1 s of the gateway, not 1 s after the answer to the first."""

    async def main():
        async def slow(message):
            await asyncio.sleep(0.7)
            return Acknowledge()

        way, close = await gateway({UpdateTaskExecutionState: slow})
        clock = asyncio.get_running_loop().time
        refused = []
        reports = StateReports(
            way,
            lambda error: refused.append((error.class_name, clock())),
            lambda kind, state: waits_in([]).begin(kind, "map-0", state),
        )
        begun = clock()
        reports.send(report("INITIALIZING"))
        reports.send(report("RUNNING"))
        await reports.drained()
        assert refused == [("TimeoutException", pytest.approx(begun + 1.0))]
        await close()

    run_virtual(main())


@pytest.mark.parametrize(("state", "errors"), [("RUNNING", ["ExecutionGraphException"]), ("FAILED", [])])
def test_a_refused_state_fails_the_task_unless_it_has_ended(state, errors):
    """As TaskExecutor.updateTaskExecutionState does."""

    async def main():
        async def refuse(message):
            return Acknowledge(accepted=False, reason="unknown attempt")

        way, close = await gateway({UpdateTaskExecutionState: refuse})
        refused = []
        reports = StateReports(
            way, refused.append, lambda kind, state: waits_in([]).begin(kind, "map-0", state)
        )
        reports.send(report(state))
        await reports.drained()
        assert [error.class_name for error in refused] == errors
        await close()

    run_virtual(main())


def test_commits_are_sent_until_they_are_answered_and_counted_when_refused():
    """In order; a JobMaster that is away for a while loses none."""

    async def main():
        seen = []

        async def take(message):
            seen.append(message.sequence)
            return Acknowledge(accepted=message.sequence != 2)

        board = Switchboard()
        jobmanager, taskmanager = MemoryRpc("jobmanager", board), MemoryRpc("tm-0", board)
        await jobmanager.start()
        await taskmanager.start()
        way = JobMasterGateway(taskmanager, jobmanager.address, "job", "leader", "tm-0-1", 1.0)
        committer = RecordCommitter(way, "attempt", lambda error: None)
        for _ in range(3):
            committer.commit(SinkCommit())
        await asyncio.sleep(1.0)
        assert not seen
        jobmanager.serve("jobmaster", {CommitRecords: take})
        await committer.close()
        assert seen == [0, 1, 2]
        assert committer.rejected == 1
        await taskmanager.close()
        await jobmanager.close()

    run_virtual(main())


def test_a_committer_does_not_wait_for_ever_for_a_jobmaster_that_is_gone():
    """The grace is bounded."""

    async def main():
        way, close = await gateway({})
        committer = RecordCommitter(way, "attempt", lambda error: None)
        committer.commit(SinkCommit())
        begin = asyncio.get_running_loop().time()
        await committer.close()
        assert asyncio.get_running_loop().time() - begin < 5.5
        await close()

    run_virtual(main())


def test_a_timer_is_due_when_the_task_wakes_up_for_it():
    """A task in virtual time once asked the same timer forever: the wake-up was rounded to a nanosecond before it."""
    timers = [10**10 + 1_000_000_007 * n for n in range(1000)]
    assert any(int(due / 1e9 * 1e9) < due for due in timers)
    assert all(due <= int(reached_at(due) * 1e9) <= due + 1 for due in timers)
