"""Checkpoints that the JobMaster has aborted before their barriers reach a task."""

import asyncio
from types import SimpleNamespace

import pytest

from testbed_runtime.core.job.jobgraph import OperatorConfig
from testbed_runtime.core.job.messages import CancelJob, DeclineCheckpoint
from testbed_runtime.core.job.statememory import StateBackendConfig
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.store.statefiles import MemoryStateFiles
from testbed_runtime.taskmanager.checkpoints import Begun, TakenSnapshot, TaskCheckpoints
from testbed_runtime.taskmanager.localstate import LocalState
from testbed_runtime.taskmanager.statefiles import AttemptFiles, StateBackend
from testbed_runtime.workload.snapshots import StateFile, SubtaskSnapshot
from tests.jobmanager.inproc import a_testbed, graph

EXPIRES = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.timeout": "300 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "execution.checkpointing.max-concurrent-checkpoints": "50",  # and so many aborted ones are remembered
    "taskmanager.memory.segment-size": "4 kb",
}


class NotingStore(MemoryBlobStore):
    """Notes the vertices of the snapshots that are stored, by checkpoint."""

    def __init__(self):
        super().__init__()
        self.stored = {}

    async def put(self, key, data):
        await super().put(key, data)
        checkpoint, _, task = key.partition("/checkpoints/")[2].partition("/")
        self.stored.setdefault(checkpoint, set()).add(task.partition("-")[0])


class NotingInterceptor:
    """A CallInterceptor that notes the declines of the sinks: checkpoint and reason."""

    active = True

    def __init__(self):
        self.graph = None
        """The execution graph whose declines are noted."""
        self.declined = set()

    async def before_ask(self, link, endpoint, message):
        return True

    async def before_handle(self, endpoint, message):
        del endpoint
        if isinstance(message, DeclineCheckpoint) and self.graph.find(message.attempt).task[0] == "sink":
            self.declined.add((str(message.checkpoint), message.reason))
        return True


@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_LEAST_ONCE"])
def test_I_09_I_10_a_task_takes_no_snapshot_for_a_checkpoint_that_was_aborted_before_its_barrier(mode):
    """The barrier waits behind a backlog until the checkpoint has expired. The sink gets a cancellation instead of it."""
    slow = OperatorConfig("keyed-count", service_time_s=0.002)

    async def main():
        store, noting = NotingStore(), NotingInterceptor()
        settings = EXPIRES | {"execution.checkpointing.mode": mode}
        async with a_testbed(blobs=store, calls=noting, **settings) as bed:
            await bed.submit(graph(rate=2000.0, operator=slow))
            noting.graph = bed.manager.dispatcher.jobmaster.graph
            begun = bed.clock.now()
            await bed.until(lambda _: bed.clock.now() > begun + 8.0)
            failed = [str(r["checkpoint"]) for r in bed.rows("checkpoints") if r["state"] == "failed"]
            arrived = failed[:-1]  # the barrier of the last one may still be on its way
            assert len(arrived) >= 4
            assert all(store.stored[checkpoint] == {"source"} for checkpoint in arrived)
            reason = "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER"
            assert noting.declined >= {(checkpoint, reason) for checkpoint in arrived}
            await bed.ask(CancelJob(bed.job))
            await bed.until(lambda s: s.state == "CANCELED")

    run_virtual(main())


class Acknowledged:
    """The gateway of a task: keeps what goes to its JobMaster."""

    def __init__(self):
        self.sent = []

    async def tell(self, message):
        self.sent.append((type(message).__name__, message.checkpoint))


class HeldStore(MemoryBlobStore):
    """Keeps every put waiting for 10 s."""

    async def put(self, key, data):
        await asyncio.sleep(10.0)
        await super().put(key, data)


def checkpoints(version="2.x", *, blobs=None, gateway=None, backend="hashmap"):
    """The checkpoints of a task."""
    given = {"state.backend.type": backend, "execution.checkpointing.incremental": "true"}
    options = Options(given, flink_version=version)
    disk = StateBackend(StateBackendConfig.of(options, 1), MemoryStateFiles())
    files = AttemptFiles(disk, job="job", attempt="attempt", allocation="slot")
    descriptor = SimpleNamespace(job="job", attempt="attempt")
    made = TaskCheckpoints(
        descriptor, blobs=blobs, local=LocalState(), files=files, gateway=gateway, options=options
    )
    return made, files


def test_I_09_a_checkpoint_that_has_begun_or_ended_cannot_be_aborted_any_more():
    """The notification may cross the barrier, or a cancellation from a producer."""
    task, _ = checkpoints()
    assert task.begin(1) is Begun.SNAPSHOT
    task.abort(1)
    task.abandon(2)
    task.abort(2)
    assert task.begin(3) is Begun.SNAPSHOT
    task.abort(4)
    assert task.begin(4) is Begun.ABORTED
    assert task.begin(5) is Begun.SNAPSHOT


def test_a_barrier_behind_that_of_a_later_checkpoint_does_nothing():
    """SubtaskCheckpointCoordinatorImpl.checkpointState: "Out of order checkpoint barrier (aborted previously?)"."""
    task, _ = checkpoints()
    assert task.begin(2) is Begun.SNAPSHOT
    assert [task.begin(c) for c in (1, 2)] == [Begun.OUT_OF_ORDER] * 2
    task.abandon(4)
    assert [task.begin(c) for c in (3, 4, 5)] == [Begun.OUT_OF_ORDER] * 2 + [Begun.SNAPSHOT]


def test_I_11_until_1_16_a_task_remembers_the_last_128_aborted_checkpoints():
    """While it stands still, one checkpoint after the other expires."""
    task, _ = checkpoints("1.16")
    for checkpoint in range(1, 300):
        task.abort(checkpoint)
    remembered = range(300 - 128, 300)
    assert [c for c in range(170, 302) if task.begin(c) is Begun.ABORTED] == list(remembered)


def test_I_11_from_1_17_on_a_task_takes_forgotten_checkpoints_for_aborted():
    """It remembers one. The one before it is neither remembered nor old enough (checkAndClearAbortedStatus)."""
    task, _ = checkpoints("1.17")
    for checkpoint in range(1, 300):
        task.abort(checkpoint)
    assert [c for c in range(295, 302) if task.begin(c) is Begun.ABORTED] == [295, 296, 297, 299]


def test_I_11_the_abortion_that_a_task_was_notified_of_first_is_forgotten_first():
    """Also if that checkpoint is the later one: Flink keeps the notifications in their order."""
    task, _ = checkpoints("1.16")
    for checkpoint in (500, *range(1, 129)):
        task.abort(checkpoint)
    assert [task.begin(c) for c in (1, 128, 500)] == [Begun.ABORTED, Begun.ABORTED, Begun.SNAPSHOT]
    task, _ = checkpoints("1.16")
    for checkpoint in (500, *range(1, 128)):
        task.abort(checkpoint)
    assert task.begin(1) is Begun.ABORTED  # it is forgotten then, and leaves room for the next one
    task.abort(128)
    assert task.begin(500) is Begun.ABORTED
    task, _ = checkpoints("1.17")
    task.abort(5)
    task.abort(4)
    assert [task.begin(c) for c in (4, 5)] == [Begun.ABORTED, Begun.SNAPSHOT]


def taken(checkpoint, *files, before=None):
    runs = tuple((StateFile(name, len(name)),) for name in files)
    return TakenSnapshot(SubtaskSnapshot(checkpoint, "count", 0, 1, 128, runs=runs), before=before)


def test_I_63_an_abortion_cancels_the_snapshot_that_is_being_stored():
    """testNotifyCheckpointAbortedDuringAsyncPhase: it is neither stored nor acknowledged nor declined, and the next one is."""

    async def main():
        store, gateway = HeldStore(), Acknowledged()
        task, _ = checkpoints(blobs=store, gateway=gateway)
        assert task.begin(1) is Begun.SNAPSHOT
        task.start(taken(1))
        await asyncio.sleep(5.0)
        task.abort(1)
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(task.drained(), 0.1) is None
        assert task.begin(2) is Begun.SNAPSHOT
        task.start(taken(2))
        await task.drained()
        assert gateway.sent == [("AcknowledgeCheckpoint", 2)]
        assert await store.list("") == ["jobs/job/checkpoints/2/count-0/attempt"]

    run_virtual(main())


def test_I_63_an_abortion_cancels_a_snapshot_whose_barriers_have_not_all_arrived():
    """An unaligned checkpoint is stored when they have, and not at all if it was aborted meanwhile."""

    async def main():
        store, gateway = MemoryBlobStore(), Acknowledged()
        task, _ = checkpoints(blobs=store, gateway=gateway)
        assert task.begin(1) is Begun.SNAPSHOT
        task.abort(1)
        task.start(taken(1))
        await task.drained()
        assert (gateway.sent, await store.list("")) == ([], [])

    run_virtual(main())


def test_an_aborted_checkpoint_whose_barriers_come_after_those_of_the_next_one_is_not_stored():
    """Several checkpoints may be in progress at a time. A cancelled one leaves nothing to remember."""

    async def main():
        store, gateway = MemoryBlobStore(), Acknowledged()
        task, _ = checkpoints(blobs=store, gateway=gateway)
        for checkpoint in (1, 2, 3):
            assert task.begin(checkpoint) is Begun.SNAPSHOT
            task.abort(checkpoint)
        task.abandon(3)
        for checkpoint in (1, 2):
            task.start(taken(checkpoint))
        await task.drained()
        assert (gateway.sent, await store.list("")) == ([], [])

    run_virtual(main())


def test_I_64_an_abortion_after_the_acknowledgement_changes_nothing():
    """testNotifyCheckpointAbortedAfterAsyncPhase: the task remembers nothing of it."""

    async def main():
        gateway = Acknowledged()
        task, _ = checkpoints(blobs=MemoryBlobStore(), gateway=gateway)
        assert task.begin(1) is Begun.SNAPSHOT
        task.start(taken(1))
        await task.drained()
        task.abort(1)
        assert task.begin(2) is Begun.SNAPSHOT
        assert gateway.sent == [("AcknowledgeCheckpoint", 1)]

    run_virtual(main())


def test_what_later_checkpoints_refer_to_is_stored_although_its_checkpoint_was_aborted():
    """Files of keyed state, and what a sink commits with the next checkpoint."""

    async def main():
        store, gateway = HeldStore(), Acknowledged()
        task, files = checkpoints(blobs=store, gateway=gateway, backend="rocksdb")
        files.write("1.sst", b"state")

        async def before():
            await store.put("staged", b"records")

        assert task.begin(1) is Begun.SNAPSHOT
        task.start(taken(1, "1.sst", before=before))
        await asyncio.sleep(15.0)
        task.abort(1)
        assert task.begin(2) is Begun.SNAPSHOT
        task.start(taken(2, "1.sst"))
        await task.drained()
        assert gateway.sent == [("AcknowledgeCheckpoint", 2)]
        stored = await store.list("")
        of_first, of_second = (f"jobs/job/checkpoints/{n}/count-0/attempt" for n in (1, 2))
        assert stored == [of_first + ".1.sst", of_second, "staged"]

    run_virtual(main())
