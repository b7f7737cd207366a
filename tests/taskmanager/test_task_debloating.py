"""Buffer debloating of a task: when it recalculates, from which options, and what counts as time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from testbed_runtime.core.job.jobgraph import JobVertex, OperatorConfig
from testbed_runtime.core.job.messages import TaskDeploymentDescriptor
from testbed_runtime.core.options import Options
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.debloating import TaskDebloating, starting_size
from tests.taskmanager.deployed import Deployed, data, driven
from tests.transport.inprocess_network import InProcessNetwork

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
        self.requested = True
        self.announced: list[int] = []

    def announce_buffer_size(self, size: int) -> None:
        self.announced.append(size)


def debloating(gates: list[Gate], version: str = "2.x", **changes: str) -> TaskDebloating:
    """Its task has run since 10 s, with input."""
    given: Any = gates
    made = TaskDebloating(given, Options({**ON, **changes}, flink_version=version))
    made.start(10.0)
    made.resume(10.0)
    return made


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


def test_a_task_recalculates_each_period_from_its_start():
    """A missed period is skipped."""
    gate = Gate()
    made = debloating([gate])
    assert (made.active, made.deadline) == (True, pytest.approx(10.2))
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


def test_a_period_of_0_is_a_millisecond():
    """Flink's timers wait at least so long. Without that, the clock of a simulation would never advance."""
    made = debloating([Gate()], **{"taskmanager.network.memory.buffer-debloat.period": "0 ms"})
    assert made.deadline == pytest.approx(10.001)
    made.on_time(10.001)
    assert made.deadline == pytest.approx(10.002)


def test_buffers_shrink_while_a_task_waits_for_its_first_input():
    """A throughput that was never measured is 0, as in Flink."""
    gate = Gate()
    made = TaskDebloating(cast("Any", [gate]), Options(ON))
    made.start(10.0)
    made.pause(10.0)
    made.on_time(10.2)
    assert gate.announced == [256]


@pytest.mark.parametrize("version", ["2.x", "1.20", "1.14"])
def test_a_task_with_input_from_its_start_measures_its_first_period(version: str):
    """Flink's clock starts with the first buffer. Otherwise the throughput would be 0, and the buffers as small as possible."""
    gate = Gate()
    made = TaskDebloating(cast("Any", [gate]), Options(ON, flink_version=version))
    made.start(10.0)
    gate.received_bytes = 8000
    made.on_time(11.0)
    assert gate.announced == [2000]


@pytest.mark.parametrize("samples", ["0", "-1"])
def test_1_14_accepts_less_than_one_sample(samples: str):
    """The first throughput counts as it is."""
    gate = Gate()
    made = debloating([gate], "1.14", **{"taskmanager.network.memory.buffer-debloat.samples": samples})
    gate.received_bytes = 8000
    made.on_time(11.0)
    assert gate.announced == [2000]


def test_no_size_is_announced_before_every_channel_has_sent_its_request():
    """The sizes of the other gates are announced with the next period after it."""
    gates = [Gate(), Gate()]
    gates[1].requested = False
    made = debloating(gates)
    for gate in gates:
        gate.received_bytes = 8000
    made.on_time(10.5)
    assert [gate.announced for gate in gates] == [[], []]
    gates[1].requested = True
    made.on_time(11.0)
    assert [gate.announced for gate in gates] == [[2000], [2000]]


def test_the_size_is_that_of_the_data_that_is_consumed_within_the_target():
    """Bytes since the last recalculation over the time with input; the target's bytes are shared by the buffers in use."""
    gate = Gate()
    made = debloating([gate])
    for at, received, announced in ((10.5, 4000, [2000]), (11.0, 6000, [2000, 1000])):
        gate.received_bytes = received
        made.on_time(at)
        assert gate.announced == announced


def test_time_without_input_does_not_count():
    """Otherwise an idle task would ask for small buffers."""
    gate = Gate()
    made = debloating([gate])
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
    for gate in gates:
        gate.received_bytes = 8000
    made.on_time(11.0)
    assert [gate.announced for gate in gates] == [[], [2000]]


@pytest.mark.parametrize(("version", "announced"), [("1.15", [[1500], [500]]), ("1.14", [[1000], [1000]])])
def test_in_1_14_all_gates_of_a_task_have_one_size(version: str, announced: list[list[int]]):
    """8000 bytes a second for eight buffers. Later, each gate has the size that its own throughput needs."""
    gates = [Gate(), Gate()]
    made = debloating(gates, version)
    gates[0].received_bytes, gates[1].received_bytes = 6000, 2000
    made.on_time(11.0)
    assert [gate.announced for gate in gates] == announced


def test_in_1_14_the_samples_average_the_throughput():
    """Three samples: half of each change counts. The size follows at once, from a full segment."""
    gate = Gate()
    made = debloating([gate], "1.14", **{"taskmanager.network.memory.buffer-debloat.samples": "3"})
    for at, received in ((11.0, 8000), (12.0, 12_000)):
        gate.received_bytes = received
        made.on_time(at)
    assert gate.announced == [2000, 1500]


def test_a_task_without_debloating_has_no_deadline():
    """Neither at its start nor after input."""
    made = debloating([Gate()], **{"taskmanager.network.memory.buffer-debloat.enabled": "false"})
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
    gate.received_bytes = bytes_
    made.on_time(11.0)
    assert gate.announced == announced


class SlowNetwork(InProcessNetwork):
    """The connection to port 4 needs a second. It leads to the only TaskManager that listens."""

    port = 0

    async def connect(self, address: Any, handler: Any, *, timeout_s: float) -> Any:
        host, port = address
        if port == 4:
            await asyncio.sleep(1.0)
            port = self.port
        return await super().connect((host, port), handler, timeout_s=timeout_s)


class TwoTaskManagers(Deployed):
    """The second producer is on another TaskManager, at port 4."""

    async def _descriptor(self, address: tuple[str, int]) -> TaskDeploymentDescriptor:
        self.network.port = address[1]
        found = await super()._descriptor(address)
        (gate,) = found.gates
        near, far = gate.channels
        far = replace(far, producer="tm-2-1", data_address=(address[0], 4))
        return replace(found, gates=(replace(gate, channels=(near, far)),))


def test_a_slow_connection_does_not_fail_a_task_whose_buffers_are_debloated():
    """The first channel has input for five periods before the second one has sent its request."""

    vertex = JobVertex("work", 1, 128, operator=OperatorConfig())

    async def drive() -> list[int]:
        task = TwoTaskManagers(vertex, network=SlowNetwork(), **ON)
        await task.start()
        sizes = []
        for ms in (900, 1300):
            await task.at(ms)
            assert task.states[-1] == "RUNNING"
            sizes.append(task.producers[0].subpartitions[0].buffer_size)
        await task.close()
        return sizes

    assert run_virtual(drive()) == [1024, 256]


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
