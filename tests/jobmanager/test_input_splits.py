"""The JobMaster assigns the splits of a bounded source to the subtasks that ask for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.executiongraph import ExecutionGraph
from testbed_runtime.core.job.jobgraph import JobEdge, JobGraph, JobVertex, SinkConfig, SourceConfig
from testbed_runtime.core.job.messages import InputSplit, RequestNextInputSplit
from testbed_runtime.core.job.splits import NO_SPLIT
from testbed_runtime.jobmanager.reports import InputSplits

GRAPH = JobGraph(
    "job",
    (JobVertex("source", 2, 128, source=SourceConfig(limit=12, splits=3)), JobVertex("sink", 1, 128, sink=SinkConfig())),
    (JobEdge("source", "sink", "rebalance"),),
)  # fmt: skip


def test_each_split_is_assigned_once_and_recorded():
    """The last one first, with an equal share of the records. Who asks for the same number again gets the same split."""
    graph, recorded = ExecutionGraph(GRAPH, "job", epoch=1), list[Any]()

    def event(kind: str, subject: str, *, attempt: int, data: Any) -> None:
        recorded.append((kind, subject, attempt, data))

    services: Any = SimpleNamespace(event=event)
    ask = InputSplits(services, graph).handlers()[RequestNextInputSplit]

    async def asked(attempt: str, index: int) -> Any:
        return await ask(RequestNextInputSplit(attempt, index))

    def attempt(subtask: int, vertex: str = "source") -> str:
        return str(graph.execution((vertex, subtask)).attempt)

    questions = [(0, 0), (1, 0), (0, 1), (0, 1), (1, 1)]
    found = [asyncio.run(asked(attempt(subtask), index)) for subtask, index in questions]
    assert found == [InputSplit(n, 4) for n in (2, 1, 0, 0)] + [InputSplit(NO_SPLIT)]
    assert recorded[:2] == [
        ("input-split", "source-0", 0, {"split": 2, "records": 4}),
        ("input-split", "source-1", 0, {"split": 1, "records": 4}),
    ]
    assert len(recorded) == 4, "an answer without a split is no event"
    for unknown in (attempt(0, "sink"), "gone"):
        with pytest.raises(FlinkError, match=f"Can not find Execution for attempt {unknown}"):
            asyncio.run(asked(unknown, 0))
