"""The execution graph: states, attempts, descriptors."""

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.ids import ResultPartitionID, TaskManagerID
from testbed_runtime.core.job.executiongraph import (
    NEXT_STATES,
    NOTHING_TO_RESTORE,
    DeploymentContext,
    ExecutionGraph,
    ExecutionState,
    Restore,
)
from testbed_runtime.core.job.jobgraph import IterationConfig, JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.messages import RescaledExchange
from testbed_runtime.core.job.slots import HeldSlot

S = ExecutionState
GRAPH = JobGraph(
    "j",
    (JobVertex("source", 2, 128), JobVertex("count", 2, 128), JobVertex("sink", 2, 128)),
    (JobEdge("source", "count", "hash"), JobEdge("count", "sink", "forward")),
    seed=7,
)


def graph(epoch=1):
    return ExecutionGraph(GRAPH, "job", epoch=epoch)


def placed(built):
    for task in built.tasks:
        built.assign(task, HeldSlot(built.key(task), f"a{task[1]}", TaskManagerID(task[1], 1)))
    return built


def context(restore=NOTHING_TO_RESTORE):
    return DeploymentContext("job", "leader", 5.0, restore, lambda tm: ("127.0.0.1", 1000 + tm.ordinal))


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_only_flinks_transitions_happen(before, after):
    """Everything else is ignored; from CANCELING a failure or an end is a cancellation."""
    built = graph()
    built.execution(("source", 0)).state = before
    moved = built.transition(("source", 0), after)
    if before is S.CANCELING and after in (S.FAILED, S.FINISHED):
        assert moved is not None
        assert moved.after is S.CANCELED
    else:
        assert (moved is not None) == (after in NEXT_STATES[before])


def test_attempt_ids_follow_from_the_seed_and_differ_between_leaders():
    """The same job has the same ids everywhere; a zombie's are not a successor's."""
    ids = [str(e.attempt) for e in graph().executions]
    assert ids == [str(e.attempt) for e in graph().executions]
    assert not {*ids} & {str(e.attempt) for e in graph(epoch=2).executions}


def test_a_reset_counts_the_attempt_up_and_forgets_the_old_one():
    """Messages of the old attempt find nothing."""
    built = graph()
    task = ("source", 0)
    old = str(built.execution(task).attempt)
    built.execution(task).state = S.FAILED
    built.reset([task])
    assert built.find(old) is None
    assert built.execution(task).attempt.attempt == 1
    assert built.execution(task).state is S.CREATED
    assert built.name_of(old) == ("source-0", 0)


def test_a_running_task_cannot_be_reset():
    """A caller that resets one has a bug."""
    built = graph()
    built.execution(("source", 0)).state = S.RUNNING
    with pytest.raises(LocalProtocolError):
        built.reset([("source", 0)])


def test_a_descriptor_connects_all_to_all_and_forward():
    """Gates name producers' partitions, TaskManagers, addresses and the subpartition."""
    built = placed(graph())
    count = built.descriptor(("count", 1), context())
    assert [(c.producer, c.data_address, c.subpartition) for c in count.gates[0].channels] == [
        ("tm-0-1", ("127.0.0.1", 1000), 1),
        ("tm-1-1", ("127.0.0.1", 1001), 1),
    ]
    source = built.descriptor(("source", 0), context())
    assert source.partitions[0].subpartitions == 2
    assert count.gates[0].channels[0].partition == source.partitions[0].partition
    sink = built.descriptor(("sink", 1), context())
    assert [(c.producer, c.subpartition) for c in sink.gates[0].channels] == [("tm-1-1", 0)]
    assert count.partitions[0].subpartitions == 1
    assert sink.job_vertices == ("source", "count", "sink")


@pytest.mark.parametrize(
    ("changed", "announced"),
    [({}, True), ({"result": "blocking"}, False)],
    ids=["pipelined", "complete"],
)
def test_both_ends_of_a_connection_know_whether_the_end_of_restored_data_is_announced(changed, announced):
    """Not by a result that is read when it is complete."""
    edges = (replace(GRAPH.edges[0], **changed), *GRAPH.edges[1:])
    built = placed(ExecutionGraph(replace(GRAPH, edges=edges), "job", epoch=1))
    source, count = (built.descriptor((name, 0), context()) for name in ("source", "count"))
    assert source.partitions[0].announced_recovery is announced
    assert count.gates[0].announced_recovery is announced
    assert count.partitions[0].announced_recovery


def test_no_task_announces_the_end_of_restored_data_in_a_job_with_an_iteration():
    """Flink's tasks of an iteration restore nothing."""
    source, count, sink = GRAPH.vertices
    head = replace(count, iteration=IterationConfig("count"))
    built = placed(ExecutionGraph(replace(GRAPH, vertices=(source, head, sink)), "job", epoch=1))
    assert not built.descriptor(("source", 0), context()).partitions[0].announced_recovery


def test_all_consumers_share_the_names_of_a_producer_until_it_restarts():
    """A name is made once for the consumers of a deployment; a restarted producer has another partition and TaskManager."""
    built = placed(graph())
    for task in built.tasks:
        built.execution(task).state = S.FAILED
    before = [built.descriptor(("count", n), context()).gates[0].channels[0] for n in range(2)]
    built.reset(built.tasks)
    for task in built.tasks:
        built.assign(task, HeldSlot(built.key(task), f"b{task[1]}", TaskManagerID(task[1], 2)))
    after = built.descriptor(("count", 0), context()).gates[0].channels[0]
    assert before[0].partition is before[1].partition
    assert after.partition == str(built.partition(GRAPH.edges[0], 0)) != before[0].partition
    assert (before[0].producer, after.producer) == ("tm-0-1", "tm-0-2")


def test_a_descriptor_carries_all_handles_of_its_vertex():
    """Rescaling needs them, because a subtask may restore parts of several handles."""
    built = placed(graph())
    made = built.descriptor(("count", 0), context(Restore(4, {"count": ("h0", "h1")})))
    assert (made.restore_checkpoint, made.restore_handles) == (4, ("h0", "h1"))


def test_the_consumers_of_a_rescaled_exchange_restore_what_its_producers_had_not_sent():
    """Data in flight belongs to channels of the earlier job. An exchange with the same parallelism at both ends keeps its own."""
    built, handles = placed(graph()), {"source": ("s0", "s1"), "count": ("c0", "c1", "c2")}
    restore = context(Restore(4, handles, {"source": 2, "count": 3, "sink": 2}))
    source, count, sink = (built.descriptor((name, 0), restore) for name in ("source", "count", "sink"))
    assert [count.gates[0].rescaled, sink.gates[0].rescaled] == [
        RescaledExchange(3, 2, 0, ("s0", "s1")),
        RescaledExchange(2, 3, 0, ("c0", "c1", "c2")),
    ]
    assert [made.partitions[0].rescaled for made in (source, count)] == [True, True]
    for same in ({}, {"source": 2, "count": 2, "sink": 2}):
        made = built.descriptor(("count", 0), context(Restore(4, handles, same)))
        assert (made.gates[0].rescaled, made.partitions[0].rescaled) == (None, False)


def test_the_producer_of_a_partition_is_found_in_whatever_attempt():
    """The failover of a data consumption error restarts that producer."""
    built = placed(graph())
    partition = built.descriptor(("source", 1), context()).partitions[0].partition
    assert built.producer_of(ResultPartitionID.parse(partition)) == ("source", 1)


def test_checkpoints_start_at_sources_or_behind_finished_ones():
    """Finished tasks take no part."""
    built = graph()
    for task in built.tasks:
        built.execution(task).state = S.RUNNING
    assert built.to_trigger() == [("source", 0), ("source", 1)]
    for index in range(2):
        built.execution(("source", index)).state = S.FINISHED
    assert built.to_trigger() == [("count", 0), ("count", 1)]


def test_a_job_is_partly_finished_until_all_of_its_sources_have_finished():
    """Then it is about to end by itself."""
    built = graph()
    found = [built.partly_finished]
    for index in range(2):
        finish(built, ("source", index))
        found.append(built.partly_finished)
    assert found == [False, True, False]


def test_a_job_with_exchanges_is_one_region_and_forward_alone_splits():
    """Regions follow the connections."""
    assert len(graph().regions.region(("source", 0))) == 6
    forward = JobGraph("f", GRAPH.vertices[:2], (JobEdge("source", "count", "forward"),))
    built = ExecutionGraph(forward, "f", epoch=1)
    assert built.regions.region(("source", 1)) == [("source", 1), ("count", 1)]


def batch(*, partitioning="hash"):
    """`source` ═ blocking ⇒ `count` → `sink`, and `other` → `count`."""
    vertices = tuple(JobVertex(name, 2, 128) for name in ("source", "other", "count", "sink"))
    edges = (
        JobEdge("source", "count", partitioning, "blocking", "on-full-result"),
        JobEdge("other", "count", "forward"),
        JobEdge("count", "sink", "forward"),
    )
    return ExecutionGraph(JobGraph("b", vertices, edges), "job", epoch=1)


def finish(built, *tasks):
    for task in tasks:
        built.execution(task).state = S.FINISHED


def test_a_pipelined_region_waits_until_its_blocking_inputs_are_complete():
    """All subtasks of the producer, and also for a source of the region."""
    built = batch()
    assert built.incomplete_inputs() == {"other", "count", "sink"}
    finish(built, ("source", 0))
    assert built.incomplete_inputs() == {"other", "count", "sink"}
    finish(built, ("source", 1))
    assert built.incomplete_inputs() == set()
    assert not graph().has_blocking


@pytest.mark.parametrize(("partitioning", "first"), [("hash", []), ("forward", [("source", 0)])])
def test_a_blocking_result_is_consumed_when_the_regions_of_all_its_readers_have_finished(partitioning, first):
    """A reader that has FINISHED reads again if the rest of its region fails."""
    built = batch(partitioning=partitioning)
    finish(built, ("source", 0), ("source", 1), ("other", 0), ("count", 0))
    assert built.consumed_by(("count", 0)) == {}
    finish(built, ("sink", 0))
    assert list(built.consumed_by(("sink", 0))) == first
    finish(built, ("other", 1), ("count", 1), ("sink", 1))
    assert ("source", 1) in built.consumed_by(("sink", 1))
    assert built.blocking_results(("source", 1)) == [built.partition(built.graph.edges[0], 1)]
    assert built.blocking_results(("source", 1), "sink") == built.blocking_results(("other", 0)) == []


def blocking_exchange(consumers, *, more=()):
    """One producer, and consumers that each read its whole blocking result."""
    vertices = (JobVertex("source", 1, 8), JobVertex("count", consumers, 8), *more)
    edges = (
        JobEdge("source", "count", "hash", result="blocking"),
        *(JobEdge("count", v.name, "hash") for v in more),
    )
    return ExecutionGraph(JobGraph("b", vertices, edges), "job", epoch=1)


def test_J_99_a_blocking_result_is_released_when_all_regions_that_read_it_have_finished():
    """RegionPartitionGroupReleaseStrategyTest: one consumer; a region of two operators; one of two consumers; and one that has
    restarted since."""
    source = ("source", 0)
    one = blocking_exchange(1)
    finish(one, source, ("count", 0))
    assert list(one.consumed_by(("count", 0))) == [source]
    region = blocking_exchange(1, more=(JobVertex("sink", 1, 8),))
    finish(region, source, ("count", 0))
    assert region.consumed_by(("count", 0)) == {}
    finish(region, ("sink", 0))
    assert list(region.consumed_by(("sink", 0))) == [source]
    two = blocking_exchange(2)
    finish(two, source, ("count", 0))
    assert two.consumed_by(("count", 0)) == {}
    finish(two, ("count", 1))
    two.reset([("count", 1)])
    assert two.consumed_by(("count", 0)) == {}
    finish(two, ("count", 1))
    assert list(two.consumed_by(("count", 1))) == [source]


def test_a_blocking_all_to_all_exchange_links_every_pair():
    """The result of each producer may be lost alone."""
    lost = batch().regions.to_restart([("count", 1)], available=lambda producer, _: producer != ("source", 1))
    assert lost == [("source", 1), *((n, i) for n in ("other", "count", "sink") for i in (0, 1))]
