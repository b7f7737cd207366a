"""Tasks under faults: paused and killed TaskManagers, late producers, a JobManager that is gone, sockets and files."""

import asyncio
import gc
import json
from collections import Counter

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.channel import RemoteInputChannel
from testbed_runtime.core.exchange.credit import BufferManager, SequenceViewReader
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.ports.interception import Interception
from testbed_runtime.simulation.loop import run_virtual, spawn
from tests.jobmanager.inproc import a_testbed, graph, run_and_drain
from tests.taskmanager.deployed import driven


class Hook:
    """A registration hook that holds one vertex back."""

    active = True

    def __init__(self, vertex, delay_s=0.0, requests=0):
        self.vertex, self.delay_s, self.requests = vertex, delay_s, requests
        self.seen = {}
        self.changed = asyncio.Event()

    async def before_registration(self, vertex, partition):
        if vertex != self.vertex:
            return
        await asyncio.sleep(self.delay_s)
        while self.seen.get(partition, 0) < self.requests:
            self.changed.clear()
            await self.changed.wait()

    def request_seen(self, partition):
        self.seen[partition] = self.seen.get(partition, 0) + 1
        self.changed.set()


async def started(bed, name, incarnation=1):
    """Start a TaskManager as a process of the virtual loop."""
    loop = asyncio.get_running_loop()
    await spawn(name, bed.add(int(name[3:]), incarnation), name=f"start-{name}")
    return loop


@pytest.mark.parametrize("outcome", ["CANCELED", "FAILED"])
def test_a_task_that_is_ended_before_its_first_step_still_ends(outcome):
    """A TaskExecutor that was busy handles SubmitTask and CancelTask at once: the attempt must not stay CANCELING."""

    async def end(made):
        made.task.start()
        if outcome == "FAILED":
            made.task.fail(FlinkError("FlinkException", "The slot was freed."))
        else:
            made.task.cancel()
        await made.task.wait_ended()

    vertex = JobVertex("work", 1, 128, operator=OperatorConfig())
    made = driven(vertex, end, idle=True)
    assert (made.task.state, made.states, made.ended_at) == (outcome, [outcome], 0)


def test_nothing_of_a_resumed_zombie_is_committed_and_what_it_offers_is_counted():
    """Paused for longer than the heartbeat timeout with an at-least-once sink: its records are rejected, its tasks end."""

    async def main():
        async with a_testbed(taskmanagers=0, slots=1, **{"heartbeat.timeout": "1 s"}) as bed:
            for ordinal in range(5):
                loop = await started(bed, f"tm-{ordinal}")
            await bed.submit(graph(sink=SinkConfig(delivery="at-least-once")))
            await bed.until(lambda s: s.completed_checkpoints >= 2)
            victim = (await bed.status()).placement["sink-0"].rsplit("-", 1)[0]
            await asyncio.sleep(0.13)  # between two flushes
            loop.pause(victim)
            bed.board.pause(victim)
            await bed.until(lambda s: s.restarts == 1 and s.state == "RUNNING")
            await asyncio.sleep(0.7)
            bed.board.resume(victim)
            loop.resume(victim)
            zombie = bed.taskmanagers[victim]
            await asyncio.sleep(1.0)
            assert not zombie.tasks
            assert zombie.segments_in_use == 0
            stale = [e for e in bed.events("stale.rejected") if json.loads(e["data"])["what"] == "record"]
            assert sum(json.loads(e["data"])["count"] for e in stale) > 0
            assert (await bed.drain()).state == "FINISHED"
            lost = bed.events("taskmanager.lost")
            assert lost[0]["text"] in (
                f"Heartbeat of TaskManager with id {victim}-1 timed out.",
                f"The heartbeat of TaskManager with id {victim}-1 timed out.",
            )
            emitted = bed.emitted()
            for source, numbers in bed.delivered().items():
                assert len(numbers) == emitted[source]  # nothing is missing; duplicates are allowed

    run_virtual(main())


def test_a_pause_shorter_than_the_timeout_costs_no_failover():
    """The stall is recorded, and no heartbeat is judged by it."""

    async def main():
        async with a_testbed(taskmanagers=0, slots=1, **{"heartbeat.timeout": "3 s"}) as bed:
            for ordinal in range(4):
                loop = await started(bed, f"tm-{ordinal}")
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 1)
            victim = (await bed.status()).placement["work-1"].rsplit("-", 1)[0]
            loop.pause(victim)
            bed.board.pause(victim)
            await asyncio.sleep(1.5)
            bed.board.resume(victim)
            loop.resume(victim)
            await asyncio.sleep(1.0)
            status = await bed.drain()
            assert (status.state, status.restarts) == ("FINISHED", 0)
            assert [e["subject"] for e in bed.events("loop.stall")] == [f"{victim}-1"]
            bed.assert_exact()

    run_virtual(main())


def test_a_taskmanager_without_its_jobmanager_ends_its_tasks_and_registers_again():
    """Nothing arrives at the JobMaster, which gives it up and says so: it ends its tasks, frees its
    slots after taskmanager.slot.timeout, and registers as soon as somebody answers. The job restarts once."""

    async def main():
        options = {"heartbeat.timeout": "1 s", "taskmanager.slot.timeout": "1 s"}
        async with a_testbed(**options) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints >= 1)
            # what is sent to it stays away; what it sends arrives until it gives up
            bed.board.pause("jobmanager")
            await asyncio.sleep(3.5)
            assert all(not t.tasks for t in bed.taskmanagers.values())
            assert all(t.counters()["free_slots"] == 2 for t in bed.taskmanagers.values())
            texts = {
                e["text"].partition("eartbeat of TaskManager with id ")[2]
                for e in bed.events("failover.started")
            }
            assert texts <= {f"{t.resource_id} timed out." for t in bed.taskmanagers.values()}
            bed.board.resume("jobmanager")
            await bed.until(lambda s: s.restarts >= 1 and s.state == "RUNNING")
            seen = (await bed.status()).completed_checkpoints
            await bed.until(lambda s: s.completed_checkpoints > seen)
            assert (await bed.status()).restarts == 1
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()

    run_virtual(main())


LATE = {"restart-strategy.type": "none", "execution.checkpointing.interval": ""}


@pytest.mark.parametrize(
    ("version", "initial", "largest", "timeout", "delay_s", "survives"),
    [
        ("1.12", "50 ms", "100 ms", "10 s", 1.0, False),
        ("1.12", "50 ms", "1000 ms", "10 s", 1.0, True),
        ("2.x", "50 ms", "150 ms", "200 ms", 1.0, False),
        ("2.x", "50 ms", "1000 ms", "200 ms", 1.0, True),
    ],
    ids=["1.12-small", "1.12-large", "2.x-small", "2.x-large"],
)
def test_a_late_producer_is_found_within_the_request_budget_or_fails_the_job(
    version, initial, largest, timeout, delay_s, survives
):
    """Both generations of the request backoff."""
    configuration = {
        **LATE,
        "taskmanager.network.request-backoff.initial": initial,
        "taskmanager.network.request-backoff.max": largest,
        "taskmanager.network.partition-request-timeout": timeout,
    }

    async def main():
        interception = Interception(registration=Hook("source", delay_s))
        settings = {"slots": 1, "taskmanagers": 4, "interception": interception}
        async with a_testbed(version=version, **settings, **configuration) as bed:
            await bed.submit(graph())
            status = await bed.until(
                lambda s: (
                    s.state == "FAILED"
                    or (set(s.tasks.values()) == {"RUNNING"} and s.counters.get("records_in", 0) > 0)
                )
            )
            requests = [json.loads(e["data"]) for e in bed.events("partition.request")]
            assert max(r["request"] for r in requests) > 1
            if survives:
                assert status.state == "RUNNING"
                await bed.drain()
                bed.assert_exact()
            else:
                assert status.cause_class == "PartitionNotFoundException"
                assert status.cause.startswith("Partition ")
                assert status.cause.endswith(" not found.")

    run_virtual(main())


def test_a_producer_may_be_late_by_a_number_of_requests():
    """The hook hears of each request that found nothing."""
    configuration = {**LATE, "taskmanager.network.request-backoff.initial": "50 ms"}

    async def main():
        hook = Hook("source", requests=2)
        interception = Interception(registration=hook)
        settings = {"slots": 1, "taskmanagers": 4, "interception": interception}
        async with a_testbed(version="1.12", **settings, **configuration) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.counters.get("records_in", 0) > 0)
            assert min(hook.seen.values()) >= 2
            await bed.drain()
            bed.assert_exact()

    run_virtual(main())


def words_job(port, path="counts"):
    """Words from a socket, windows of 5 s, lines in a file."""
    return JobGraph(
        "words",
        (
            JobVertex("lines", 1, 128, "a", source=SourceConfig(kind="socket", socket=f"127.0.0.1:{port}")),
            JobVertex("count", 2, 128, "b", operator=OperatorConfig("window", window_s=5.0)),
            JobVertex("out", 1, 128, "c", sink=SinkConfig(kind="file", path=path)),
        ),
        (JobEdge("lines", "count", "hash"), JobEdge("count", "out", "rebalance")),
        seed=1,
    )


class _Words:
    """A server that sends these words to every client."""

    def __init__(self, text):
        self.text = text

    def on_connected(self, connection):
        connection.send([self.text.encode()])
        connection.close()

    def on_data(self, data):
        pass

    def on_writable(self):
        pass

    def on_closed(self, error):
        pass


def test_words_from_a_socket_are_counted_in_windows_and_written_to_a_file():
    """The documents' example: the file shows (word,count), and only when a checkpoint is complete."""

    async def main():
        async with a_testbed() as bed:
            listener = await bed.network.listen(lambda: _Words("to be or\nnot to be"), ("127.0.0.1", 9999))
            await bed.submit(words_job(9999))
            status = await bed.until(lambda s: s.state in ("FINISHED", "FAILED"))
            assert status.state == "FINISHED", status
            parts = [await bed.blobs.get(key) for key in await bed.blobs.list("counts/part-")]
            lines = sorted(b"".join(parts).decode().split())
            assert lines == ["(be,2)", "(not,1)", "(or,1)", "(to,2)"]
            await listener.close()

    run_virtual(main())


def test_a_socket_without_a_server_fails_the_task_with_the_address():
    """The cause says where it could not connect."""

    async def main():
        async with a_testbed(**LATE) as bed:
            await bed.submit(words_job(9999))
            status = await bed.until(lambda s: s.state == "FAILED")
            assert status.cause_class == "ConnectException"
            assert "127.0.0.1:9999" in status.cause

    run_virtual(main())


@pytest.mark.parametrize(
    ("version", "state", "cause"),
    [("1.14", "FAILED", "RemoteTransportException"), ("1.15", "CANCELED", "Exception"), ("2.x", "CANCELED", "Exception")],
)  # fmt: skip
def test_a_task_that_reads_a_failed_producer_leaves_the_failover_to_it(version, state, cause):
    """It notices before the producer reports. From 1.15 on the failover waits for that report and has its cause."""

    async def main():
        async with a_testbed(version=version, slots=1, taskmanagers=4) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints > 1)
            tasks = {t.name: t for manager in bed.taskmanagers.values() for t in manager.tasks}
            remote = FlinkError("RemoteTransportException", "Error at remote task manager")
            remote.__cause__ = FlinkError("ProducerFailedException", "boom")
            tasks["work-0"].fail(remote)
            await tasks["work-0"].wait_ended()
            await asyncio.sleep(0.05)
            reached = {
                json.loads(e["data"])["to"]
                for e in bed.events("task.state")
                if (e["subject"], e["attempt"]) == ("work-0", 0)
            }
            assert state in reached
            assert bool(bed.events("failover.started")) is (state == "FAILED")
            tasks["source-0"].fail(FlinkError("Exception", "boom"))
            await bed.until(lambda s: s.restarts == 1 and set(s.tasks.values()) == {"RUNNING"})
            started = [json.loads(e["data"])["cause_class"] for e in bed.events("failover.started")]
            assert started == [cause]
            await bed.drain()
            bed.assert_exact()

    run_virtual(main())


def test_the_channels_of_a_failed_task_are_freed_without_garbage_collection():
    """A large task has thousands of them. The connection that failed the task keeps the error, but not the task."""

    async def main():
        async with a_testbed(slots=1, taskmanagers=5) as bed:
            await bed.submit(graph())
            await bed.until(lambda s: s.completed_checkpoints > 1)
            victim = (await bed.status()).placement["source-0"].rsplit("-", 1)[0]
            gc.collect()
            channels = alive(RemoteInputChannel, BufferManager, SequenceViewReader)
            gc.disable()
            try:
                for pump in list(bed.taskmanagers[victim].environment.server._pumps):
                    pump.abort(reset=True)
                await bed.until(lambda s: s.restarts == 1 and set(s.tasks.values()) == {"RUNNING"})
                await asyncio.sleep(1)
                assert alive(RemoteInputChannel, BufferManager, SequenceViewReader) == channels
            finally:
                gc.enable()
            await bed.drain()

    run_virtual(main())


def alive(*types):
    return Counter(type(found).__name__ for found in gc.get_objects() if type(found) in types)


def test_too_few_network_buffers_fail_the_job_with_the_options_to_raise():
    """J-21: Flink's text."""
    configuration = {
        **LATE,
        "taskmanager.memory.network.min": "16 kb",
        "taskmanager.memory.network.max": "16 kb",
    }

    async def main():
        async with a_testbed(**configuration) as bed:
            await bed.submit(graph())
            status = await bed.until(lambda s: s.state == "FAILED")
            assert status.cause.startswith("Insufficient number of network buffers: required ")

    run_virtual(main())


@pytest.mark.parametrize(("version", "taskmanagers", "slots", "fails"), [("1.12", 4, 1, True), ("1.13", 4, 1, True), ("1.13", 1, 4, False), ("1.14", 4, 1, False), ("1.20", 4, 1, False)])  # fmt: skip
def test_before_1_14_a_task_with_a_remote_channel_fails_without_exclusive_buffers(
    version, taskmanagers, slots, fails
):
    """Flink's text. Local channels have no exclusive buffers in any version."""
    configuration = {**LATE, "taskmanager.network.memory.buffers-per-channel": "0"}

    async def main():
        async with a_testbed(version=version, slots=slots, taskmanagers=taskmanagers, **configuration) as bed:
            await bed.submit(graph(limit=200))
            status = await bed.until(lambda s: s.state in ("FAILED", "FINISHED"))
            expected = (
                ("FAILED", "Number of buffers to request must be larger than 0.")
                if fails
                else ("FINISHED", "")
            )
            assert (status.state, status.cause) == expected

    run_virtual(main())


def test_the_legacy_mode_runs_a_job_without_credit():
    """`taskmanager.network.credit-model: false`."""

    async def main():
        async with a_testbed(slots=1, taskmanagers=4, **{"taskmanager.network.credit-model": "false"}) as bed:
            await run_and_drain(bed, graph())
            bed.assert_exact()

    run_virtual(main())


def test_a_slow_sink_makes_back_pressure_and_loses_nothing():
    """Service time: the sources are back-pressured, lag grows, and after the drain everything is there."""

    async def main():
        async with a_testbed(slots=1, taskmanagers=4) as bed:
            job = graph(rate=4000.0, operator=OperatorConfig("map", service_time_s=0.002))
            await bed.submit(job)
            await bed.until(lambda s: s.completed_checkpoints >= 2)
            await asyncio.sleep(3)
            rows = [r for r in bed.rows("tasks") if r["role"] == "source"]
            assert max(r["backpressured_ns"] for r in rows) > 1e9
            assert max(r["lag_ns"] for r in rows) > 1e9
            assert (await bed.drain()).state == "FINISHED"
            bed.assert_exact()

    run_virtual(main())


def test_a_source_that_is_held_up_falls_further_behind_with_every_sample():
    """Lag is taken when it is sampled: while nothing can be emitted at all, it grows as fast as time does."""

    async def main():
        async with a_testbed(slots=1, taskmanagers=4) as bed:
            job = graph(rate=4000.0, operator=OperatorConfig("map", service_time_s=1.0))
            await bed.submit(job)
            await bed.until(lambda s: s.state == "RUNNING")
            await asyncio.sleep(8)
            rows = [r for r in bed.rows("tasks") if r["task"] == "source-0"][-20:]
            assert rows[-1]["records_out"] == rows[0]["records_out"]
            grown = (rows[-1]["lag_ns"] - rows[0]["lag_ns"]) / (rows[-1]["t_ns"] - rows[0]["t_ns"])
            assert 0.95 < grown < 1.05

    run_virtual(main())
