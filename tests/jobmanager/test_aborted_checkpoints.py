"""Checkpoints that the JobMaster has aborted before their barriers reach a task."""

from types import SimpleNamespace

import pytest

from testbed_runtime.core.job.jobgraph import OperatorConfig
from testbed_runtime.core.job.messages import CancelJob, DeclineCheckpoint
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.store.blobstore import MemoryBlobStore
from testbed_runtime.taskmanager.checkpoints import MAX_ABORTED, TaskCheckpoints
from tests.jobmanager.inproc import a_testbed, graph

EXPIRES = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.timeout": "300 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
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


def checkpoints():
    """The checkpoints of a task that stores nothing."""

    class Files:
        def unpin(self, checkpoint):
            del checkpoint

    descriptor = SimpleNamespace(job="job", attempt="attempt")
    return TaskCheckpoints(descriptor, blobs=None, local=None, files=Files(), gateway=None)


def test_I_09_a_checkpoint_that_has_begun_or_ended_cannot_be_aborted_any_more():
    """The notification may cross the barrier, or a cancellation from a producer."""
    task = checkpoints()
    assert task.begin(1)
    task.abort(1)
    task.abandon(2)
    task.abort(2)
    assert task.begin(3)
    task.abort(4)
    assert not task.begin(4)
    assert task.begin(5)


def test_I_11_a_task_remembers_the_last_128_aborted_checkpoints():
    """While it stands still, one checkpoint after the other expires."""
    task = checkpoints()
    for checkpoint in range(1, 300):
        task.abort(checkpoint)
    remembered = range(300 - MAX_ABORTED, 300)
    assert [c for c in range(170, 302) if not task.begin(c)] == list(remembered)
