"""`pipeline.object-reuse` reaches the functions of a job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed_runtime.core.ids import JOB
from testbed_runtime.core.job.jobgraph import (
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorConfig,
    SinkConfig,
    SourceConfig,
)
from testbed_runtime.simulation.loop import run_virtual
from tests.simulation.smallworld import small_world

pytestmark = pytest.mark.virtual
FUNCTION = """
from pathlib import Path
last = None
def f(record):
    global last
    with Path({path!r}).open("a") as file:
        file.write("1" if record is last else "0")
    last = record
    return record
"""


@pytest.mark.parametrize("reuse", ["false", "true"])
def test_records_of_one_slice_are_one_object_if_the_job_asks_for_it(tmp_path: Path, reuse: str):
    """The function writes a 1 for each record that is the object of the call before."""
    seen = tmp_path / "seen"
    (tmp_path / "user.py").write_text(FUNCTION.format(path=str(seen)))
    operator = OperatorConfig("python", function=f"{tmp_path}/user.py:f")
    vertices = (
        JobVertex("source", 1, 128, "a", source=SourceConfig(records_per_second=100, record_bytes=100)),
        JobVertex("work", 1, 128, "b", operator=operator),
        JobVertex("sink", 1, 128, "b", sink=SinkConfig()),
    )
    edges = (JobEdge("source", "work", "hash"), JobEdge("work", "sink", "forward"))

    async def run() -> None:
        configuration = {"pipeline.object-reuse": reuse, "execution.buffer-timeout.interval": "200 ms"}
        async with small_world(configuration=configuration, taskmanagers=2, slots=1) as world:
            await world.submit(JobGraph(JOB, vertices, edges))
            await asyncio.sleep(2)
            await world.drain()

    run_virtual(run())
    assert len(seen.read_text()) > 150
    assert ("1" in seen.read_text()) == (reuse == "true")
