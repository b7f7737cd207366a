"""The buffers that a job needs, computed from its topology, and the same as the pools then ask for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import UserError
from testbed_runtime.core.job.bufferplan import buffer_plan, enough_memory, groups_each
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex
from testbed_runtime.core.job.results import BLOCKING
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import NETWORK, process_memory

SEGMENT = 32 * 1024


def job(*parallelism: int, partitioning: str = "hash") -> JobGraph:
    """A chain of vertices v0 → v1 → …"""
    vertices = tuple(JobVertex(f"v{i}", p, 128) for i, p in enumerate(parallelism))
    edges = tuple(JobEdge(f"v{i}", f"v{i + 1}", partitioning) for i in range(len(parallelism) - 1))
    return JobGraph("job", vertices, edges)


def test_an_all_to_all_exchange_needs_two_buffers_a_channel_and_one_a_subpartition():
    """2 TaskManagers × 2 slots, 4 → 4: each has 2 partitions of 4 + 1, and 2 gates of 2 × 2 remote channels + 1 floating:
    2 × 5 + 2 × (2 × 2 + 1) = 20. At most 2 × (4 × 2 + 8) + 2 × (2 × 2 + 8) = 56."""
    plan = buffer_plan(job(4, 4), 2, 2, Options({}))
    assert plan.channels == 16
    assert {(t.tasks, t.remote_channels, t.local_channels) for t in plan.taskmanagers} == {(4, 4, 4)}
    assert {(t.exclusive, t.required, t.maximum) for t in plan.taskmanagers} == {(8, 20, 56)}
    assert (plan.available, plan.missing) == (4096, 0)


def test_channels_grow_with_the_square_of_the_parallelism():
    """Twice the parallelism, four times the channels; a forward edge has one a subtask."""
    assert [buffer_plan(job(n, n), 1, 64, Options({})).channels for n in (8, 16, 32)] == [64, 256, 1024]
    assert buffer_plan(job(32, 32, partitioning="forward"), 1, 64, Options({})).channels == 32


def test_a_local_forward_exchange_needs_no_exclusive_buffers():
    """One subtask each in one slot: a partition of 1 + 1 and a gate of one floating buffer."""
    (only,) = buffer_plan(job(1, 1, partitioning="forward"), 1, 1, Options({})).taskmanagers
    assert (only.exclusive, only.required) == (0, 3)


@pytest.mark.parametrize(("version", "expected"), [("2.x", (1000, 2008, 0)), ("1.16", (1, 8, 2))])
def test_the_gate_of_a_blocking_result_requires_at_most_1000_buffers(
    version: str, expected: tuple[int, int, int]
):
    """1000 producers in slots of another TaskManager. From 1.17 on, their channels have no exclusive buffers. From 1.15 on, the
    result is sorted."""
    graph = job(1000, 1)
    graph = replace(graph, edges=tuple(replace(edge, result=BLOCKING) for edge in graph.edges))
    plan = buffer_plan(graph, 1, 1000, Options({}, flink_version=version))
    (exchange,) = plan.exchanges
    gate = exchange.gate
    assert (gate.min_floating, gate.max_floating, gate.exclusive_per_channel) == expected
    assert exchange.partition == (512, 512)


@pytest.mark.parametrize(
    ("version", "partition", "required"), [("2.x", (512, 512), 4 * 512 + 4), ("1.14", (5, 4096), 4 * 5 + 4)]
)
def test_a_sorted_blocking_result_requires_512_buffers(
    version: str, partition: tuple[int, int], required: int
):
    """4 → 4 on one TaskManager: 4 results and 4 gates of one floating buffer. Before 1.15, results are not sorted."""
    graph = job(4, 4)
    graph = replace(graph, edges=tuple(replace(edge, result=BLOCKING) for edge in graph.edges))
    plan = buffer_plan(graph, 1, 4, Options({}, flink_version=version))
    assert plan.exchanges[0].partition == partition
    assert plan.worst.required == required


def test_tasks_are_planned_where_the_jobmanager_places_them():
    """2 TaskManagers × 2 slots, 2 → 2: one subtask of each vertex on both, or all on the first."""
    for even, expected in (("true", [(2, 1), (2, 1)]), ("false", [(4, 0), (0, 0)])):
        options = Options({"cluster.evenly-spread-out-slots": even})
        plan = buffer_plan(job(2, 2), 2, 2, options)
        assert [(t.tasks, t.remote_channels) for t in plan.taskmanagers] == expected


@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        ({"process.size": "1728m", "network.max": "1m", "network.min": "1m"}, {"network.max"}),
        ({"process.size": "1728m"}, {"network.fraction"}),
        ({"process.size": "1728m", "network.max": "150m"}, {"network.fraction", "network.max"}),
        ({"process.size": "1000m", "network.min": "1m"}, {"network.fraction", "process.size"}),
        ({"flink.size": "600m", "network.min": "1m"}, {"network.fraction", "flink.size"}),
    ],
)
def test_the_options_to_raise_suffice(sizes, keys):
    """With the proposed values the TaskManager has 4,000 more buffers; the process grows only if no fraction suffices."""
    options = Options({f"taskmanager.memory.{key}": value for key, value in sizes.items()})
    need = process_memory(options).network // SEGMENT + 4000
    proposal = enough_memory(options, need)
    assert {key.removeprefix("taskmanager.memory.") for key in proposal} == keys
    assert process_memory(options.with_values(proposal)).network >= need * SEGMENT


def test_no_proposal_is_made_for_more_than_any_process_has():
    """A million times the buffers of the process."""
    assert enough_memory(Options({}), 4096 * 10**6) == {}


def test_the_guides_job_needs_more_than_a_fifth_and_fits_into_three_tenths():
    """8 slots of 54 × 8, 400 subtasks, one all-to-all exchange: 8 × 401 + 8 × (2 × 392 + 1) = 9,488 buffers. Ten of them are
    94,880: more than 14745.6 MB × 0.2 / 32 KB = 94,371, less than × 0.3 = 141,557."""
    flink = {"taskmanager.memory.flink.size": "15461882265b", "taskmanager.memory.managed.fraction": "0.25"}
    fifth = Options({**flink, f"{NETWORK}.fraction": "0.2", f"{NETWORK}.max": "3g"})
    plan = buffer_plan(job(*[400] * 11), 54, 8, fifth)
    assert (plan.worst.required, plan.available, plan.missing) == (94_880, 94_371, 509)
    tenths = fifth.with_values({f"{NETWORK}.fraction": "0.3", f"{NETWORK}.max": "5g"})
    plan = buffer_plan(job(*[400] * 11), 54, 8, tenths)
    assert (plan.available, plan.missing) == (141_557, 0)


def test_too_few_slots_are_refused():
    """4 subtasks in one sharing group need 4 slots."""
    with pytest.raises(UserError, match="the job needs 4 slots, and 3 TaskManagers have 3"):
        buffer_plan(job(4, 4), 3, 1, Options({}))


def test_key_groups_are_shared_out_by_range():
    """128 groups over 3 subtasks: 42 or 43 each."""
    assert groups_each(JobVertex("v", 3, 128)) == (42, 43)


@pytest.mark.parametrize("missing", [8_000, 20_000])
def test_a_process_grows_by_as_few_eighths_of_its_size_as_suffice(missing: int):
    """600 MB grow by 75 MB each. With one eighth less, it would have to grow again."""
    flink = "taskmanager.memory.flink.size"
    options = Options({flink: "600m", f"{NETWORK}.min": "1m"})
    need = process_memory(options).network // SEGMENT + missing
    proposed = int(enough_memory(options, need)[flink].removesuffix(" mb"))
    assert proposed % 75 == 0
    assert flink in enough_memory(options.with_values({flink: f"{proposed - 75}m"}), need)
