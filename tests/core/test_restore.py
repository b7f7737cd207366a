"""Which jobs can start from the checkpoint of another job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.core.job.restore import in_flight_problems, restore_problems, with_max_parallelism

KEPT = JobGraph(
    "job",
    (
        JobVertex("source", 2, 128, source=SourceConfig()),
        JobVertex("map", 2, 128, operator=OperatorConfig("map")),
        JobVertex("count", 2, 128, operator=OperatorConfig("keyed-count")),
        JobVertex("window", 2, 128, operator=OperatorConfig("window", window_s=5)),
        JobVertex("sink", 2, 128, sink=SinkConfig()),
    ),
    (),
)
MISMATCH = (
    "Failed to rollback to checkpoint/savepoint 7. Max parallelism mismatch between checkpoint/savepoint state and new "
    "program. Cannot map operator count with max parallelism 128 to new program with max parallelism 256. This indicates "
    "that the program has been changed in a non-compatible way after the checkpoint/savepoint."
)
NOT_AVAILABLE = (
    "Failed to rollback to checkpoint/savepoint 7. Cannot map checkpoint/savepoint state for operator {} to the new "
    "program, because the operator is not available in the new program."
)


def changed(name: str, **changes: object) -> JobGraph:
    """The kept job with another vertex."""
    vertices = (replace(v, **changes) if v.name == name else v for v in KEPT.vertices)  # type: ignore[arg-type]
    return replace(KEPT, vertices=tuple(vertices))


def without(name: str) -> JobGraph:
    return replace(KEPT, vertices=tuple(v for v in KEPT.vertices if v.name != name))


def problems(wanted: JobGraph, *, drained: bool = True) -> list[str]:
    return restore_problems(7, drained=drained, kept=KEPT, wanted=wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        KEPT,
        replace(KEPT, seed=2),
        changed("count", parallelism=3),
        changed("window", parallelism=1),
        changed("sink", parallelism=3, max_parallelism=512),
        changed("map", max_parallelism=256),
        without("map"),
        replace(
            KEPT, vertices=(*KEPT.vertices, JobVertex("more", 1, 64, operator=OperatorConfig("keyed-count")))
        ),
    ],
)
def test_a_job_whose_state_fits_can_start(wanted: JobGraph):
    """Key groups move to other subtasks, vertices without state may come and go, a new vertex starts empty."""
    assert problems(wanted) == []


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (changed("count", max_parallelism=256), MISMATCH),
        (without("count"), NOT_AVAILABLE.format("count")),
        (changed("count", operator=OperatorConfig("map")), NOT_AVAILABLE.format("count")),
        (without("source"), NOT_AVAILABLE.format("source")),
        (changed("source", parallelism=3), "source: a source needs the parallelism and the settings that it had"),
        (
            changed("source", source=SourceConfig(records_per_second=5)),
            "source: a source needs the parallelism and the settings that it had",
        ),
        (
            changed("source", source=SourceConfig(limit=10, splits=2)),
            "source: input splits are not part of a checkpoint, so they would be read again",
        ),
        (
            changed("sink", sink=SinkConfig("file")),
            "sink: the files that a file sink has staged are not kept with the checkpoint",
        ),
        (
            changed("count", operator=OperatorConfig("window")),
            "count: a window cannot read the state of another operator",
        ),
        (
            changed("window", operator=OperatorConfig("window", window_s=6)),
            "window: a window cannot read the state of another operator",
        ),
        (
            replace(KEPT, vertices=(*KEPT.vertices, JobVertex("more", 1, 64, source=SourceConfig()))),
            "more: a source needs the parallelism and the settings that it had",
        ),
    ],
)  # fmt: skip
def test_a_job_whose_state_does_not_fit_is_refused(wanted: JobGraph, text: str):
    """With Flink's reason where Flink has one."""
    assert problems(wanted) == [text]


def test_a_vertex_without_a_max_parallelism_takes_that_of_the_checkpoint():
    """StateAssignmentOperation.checkParallelismPreconditions. It cannot have more subtasks than the state has key groups."""
    wanted = changed("count", parallelism=100, max_parallelism=256, max_parallelism_computed=True)
    assert problems(wanted) == []
    assert with_max_parallelism(wanted, KEPT) == changed(
        "count", parallelism=100, max_parallelism=128, max_parallelism_computed=True
    )
    assert (
        with_max_parallelism(changed("count", max_parallelism=256), KEPT).vertex("count").max_parallelism
        == 256
    )
    stateless = changed("map", max_parallelism=256, max_parallelism_computed=True)
    assert with_max_parallelism(stateless, KEPT) == stateless
    assert problems(
        changed("count", parallelism=129, max_parallelism=256, max_parallelism_computed=True)
    ) == [
        "The state for task count can not be restored. The maximum parallelism (128) of the restored state is lower than the "
        "configured parallelism (129). Please reduce the parallelism of the task to be lower or equal to the maximum "
        "parallelism."
    ]


def test_open_windows_are_restored_only_after_a_drain():
    """They hold records of the earlier run, which would count as doubled in this one."""
    assert problems(KEPT) == []
    assert problems(without("window"), drained=False) == [NOT_AVAILABLE.format("window")]
    (text,) = problems(KEPT, drained=False)
    assert text.startswith("window: its open windows hold records")


HASH, FORWARD = JobEdge("source", "count"), JobEdge("count", "sink", "forward")


def in_flight(edge: JobEdge, wanted: JobGraph, version: str = "2.x") -> list[str]:
    kept = replace(KEPT, edges=(HASH, FORWARD))
    return in_flight_problems({edge: 9}, kept=kept, wanted=wanted, flink_version=version)


def test_data_in_flight_is_restored_at_another_parallelism_since_1_13():
    """Flink 1.12 distributes the buffers but has no virtual channels that would put the records together again."""
    wanted = replace(changed("count", parallelism=3), edges=(HASH, FORWARD))
    assert in_flight(HASH, wanted, "1.13") == []
    assert in_flight(HASH, replace(KEPT, edges=(HASH, FORWARD)), "1.12") == []
    (text,) = in_flight(HASH, wanted, "1.12")
    assert text.startswith(
        "source → count: the checkpoint has 9 bytes of data in flight. Flink 1.12 restores it"
    )


def test_data_in_flight_of_a_pointwise_connection_is_not_rescaled():
    """With Flink's text."""
    wanted = replace(changed("count", parallelism=3), edges=(HASH, FORWARD))
    (text,) = in_flight(FORWARD, wanted)
    assert "Cannot rescale the given pointwise partitioner." in text


@pytest.mark.parametrize(
    "edges",
    [
        (replace(HASH, partitioning="rebalance"), FORWARD),
        (FORWARD,),
        (JobEdge("source", "map"), HASH, FORWARD),
        (JobEdge("map", "count"), HASH, FORWARD),
    ],
    ids=["another partitioning", "no connection", "another output before it", "another input before it"],
)
def test_data_in_flight_needs_the_connections_that_it_was_in(edges: tuple[JobEdge, ...]):
    """A checkpoint knows gates and partitions by their numbers."""
    (text,) = in_flight(HASH, replace(KEPT, edges=edges))
    assert text.endswith("Both vertices need the connections that they had")
