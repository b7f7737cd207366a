"""Buffer debloating of a task: when it recalculates, from which options, and what counts as time."""

from __future__ import annotations

from typing import Any

import pytest

from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig
from testbed_runtime.core.options import Options
from testbed_runtime.taskmanager.debloating import TaskDebloating, starting_size
from tests.taskmanager.deployed import Deployed, data, driven

ON = {
    "taskmanager.network.memory.buffer-debloat.enabled": "true",
    "taskmanager.network.memory.buffer-debloat.period": "200 ms",
    "taskmanager.network.memory.buffer-debloat.target": "1 s",
    "taskmanager.network.memory.buffer-debloat.samples": "1",
    "taskmanager.network.memory.buffer-debloat.threshold-percentages": "0",
    "taskmanager.memory.segment-size": "32 kb",
    "taskmanager.memory.min-segment-size": "256 b",
    "taskmanager.memory.starting-segment-size": "1 kb",
}


class Gate:
    """A gate with four buffers in use, and the sizes that it announced."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.buffers_in_use = 4
        self.finished = False
        self.announced: list[int] = []

    def announce_buffer_size(self, size: int) -> None:
        self.announced.append(size)


def debloating(gates: list[Gate], **changes: str) -> TaskDebloating:
    given: Any = gates
    return TaskDebloating(given, Options({**ON, **changes}))


@pytest.mark.parametrize(
    ("changes", "version", "size"),
    [
        ({}, "2.x", 1024),
        ({"taskmanager.memory.segment-size": "512 b"}, "2.x", 512),
        ({}, "1.20", 32 << 10),
        ({"taskmanager.network.memory.buffer-debloat.enabled": "false"}, "2.x", None),
    ],
    ids=["starting size", "no more than a segment", "before Flink 2.0", "off"],
)
def test_buffers_begin_with_the_starting_size(changes: dict[str, str], version: str, size: int | None):
    """They have it until the first announcement."""
    assert starting_size(Options({**ON, **changes}, flink_version=version)) == size


def test_a_task_recalculates_each_period_after_its_first_input():
    """A missed period is skipped."""
    gate = Gate()
    made = debloating([gate])
    assert (made.active, made.deadline) == (True, None)
    made.on_time(99.0)
    made.resume(10.0)
    assert made.deadline == pytest.approx(10.2)
    made.resume(10.1)
    assert made.deadline == pytest.approx(10.2)
    gate.received_bytes = 1000
    made.on_time(10.1999)
    assert gate.announced == []
    made.on_time(10.2)
    assert len(gate.announced) == 1
    assert made.deadline == pytest.approx(10.4)
    made.on_time(11.1)
    assert made.deadline == pytest.approx(11.3)


def test_the_size_is_that_of_the_data_that_is_consumed_within_the_target():
    """Bytes since the last recalculation over the time with input; the target's bytes are shared by the buffers in use."""
    gate = Gate()
    made = debloating([gate])
    made.resume(10.0)
    for at, received, announced in ((10.5, 4000, [2000]), (11.0, 6000, [2000, 1000])):
        gate.received_bytes = received
        made.on_time(at)
        assert gate.announced == announced


def test_time_without_input_does_not_count():
    """Otherwise an idle task would ask for small buffers."""
    gate = Gate()
    made = debloating([gate])
    made.resume(10.0)
    made.pause(10.5)
    made.resume(20.0)
    gate.received_bytes = 8000
    made.on_time(20.5)
    assert gate.announced == [2000]


def test_a_finished_gate_announces_nothing_and_the_others_go_on():
    """Its producers have ended."""
    gates = [Gate(), Gate()]
    gates[0].finished = True
    made = debloating(gates)
    made.resume(10.0)
    for gate in gates:
        gate.received_bytes = 8000
    made.on_time(11.0)
    assert [gate.announced for gate in gates] == [[], [2000]]


def test_a_task_without_debloating_has_no_deadline():
    """Nor after input."""
    made = debloating([Gate()], **{"taskmanager.network.memory.buffer-debloat.enabled": "false"})
    made.resume(10.0)
    made.pause(11.0)
    made.on_time(12.0)
    assert (made.active, made.deadline) == (False, None)


@pytest.mark.parametrize(
    ("changes", "bytes_", "announced"),
    [
        ({"taskmanager.network.memory.buffer-debloat.target": "500 ms"}, 8000, [1000]),
        ({"taskmanager.network.memory.buffer-debloat.samples": "3"}, 8000, [1512]),
        ({"taskmanager.network.memory.buffer-debloat.threshold-percentages": "96"}, 8000, []),
        ({"taskmanager.memory.min-segment-size": "900 b"}, 100, [900]),
        ({"taskmanager.memory.segment-size": "1536 b"}, 80_000, [1536]),
    ],
    ids=["target", "samples", "threshold", "least", "largest"],
)
def test_each_option_of_debloating_counts(changes: dict[str, str], bytes_: int, announced: list[int]):
    """As Flink's BufferDebloatConfiguration reads them."""
    gate = Gate()
    made = debloating([gate], **changes)
    made.resume(10.0)
    gate.received_bytes = bytes_
    made.on_time(11.0)
    assert gate.announced == announced


def test_a_task_announces_a_smaller_buffer_while_it_waits_for_input():
    """Its timer ends the wait: the producer hears of the new size without another record."""

    async def drive(task: Deployed) -> None:
        (subpartition,) = task.producers[0].subpartitions
        assert subpartition.buffer_size == 1024
        task.send(0, data(0, 5))
        await task.at(150)
        assert subpartition.buffer_size == 1024
        await task.at(250)
        assert subpartition.buffer_size != 1024
        assert task.task.meter.buffers_in == 1

    vertex = JobVertex("work", 1, 128, operator=OperatorConfig(service_time_s=0.02))
    driven(vertex, drive, **ON)
