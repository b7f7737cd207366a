"""The sampler of a TaskManager: which tasks, channels, buffers and sockets it records, and when."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from testbed_runtime.core.exchange.credit import ChannelStats
from testbed_runtime.core.job.executiongraph import ExecutionState
from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT
from testbed_runtime.history.schema import by_column
from testbed_runtime.history.waits import WaitLog
from testbed_runtime.ports.network import SocketState
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.credit_waits import CreditWaits
from testbed_runtime.taskmanager.sampler import TaskSampler
from testbed_runtime.taskmanager.services import Pace
from tests.core.exchange_model import Consumer

T0_S = 1000.0
"""The time at which a virtual loop begins."""
STARVED = ChannelStats(0, 5, 5, 4, 4, 0, 0)


class Row:
    """A part of a task that may be a key."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class TaskManager:
    """A TaskManager with tasks, connections and pools that are set by hand. `rows` has what it records, with times in ms."""

    def __init__(self, pace: Pace | None = None, *, cores: Any = None) -> None:
        self.rows: list[tuple[int, str, dict[str, Any]]] = []
        self.tasks: list[Any] = []
        self.used = 0
        self.warnings: list[str] = []
        self.sockets: list[tuple[str, str, int, SocketState]] = []
        self.connections: list[Any] = []
        pool = SimpleNamespace(
            drain_warnings=self._warnings, generation=0, total=100, required=30, pools=[1, 2, 3]
        )
        self.environment: Any = SimpleNamespace(
            segments=lambda: {"total": 100, "used": self.used},
            pool=pool,
            sockets=lambda: self.sockets,
            server=SimpleNamespace(connections=self.connections),
            resource_id="tm-0-1",
        )
        self.sampler = TaskSampler(
            lambda: self.tasks,
            self.environment,
            self,
            pace or Pace(),
            CreditWaits(WaitLog(self, "tm-0-1", asyncio.get_running_loop().time), Options({})),
            options=Options(
                {"web.backpressure.refresh-interval": "1 h", "web.backpressure.num-samples": "9999"}
            ),
            cores=cores,
        )

    def _warnings(self) -> list[str]:
        found, self.warnings = self.warnings, []
        return found

    def append(self, table: str, **row: Any) -> None:
        self.rows.append((round((asyncio.get_running_loop().time() - T0_S) * 1000), table, row))

    def put(self, table: str, values: tuple[Any, ...]) -> None:
        self.append(table, **by_column(table, values))

    async def flush(self) -> bool:
        return True

    def task(
        self, name: str = "map", subtask: int = 0, *, gates: Any = (), sources: Any = (), targets: Any = ()
    ) -> Any:
        """Add a running task. `gates` with the vertices that they read; `targets`: vertex and partitioning of each result."""
        meter = SimpleNamespace(
            sample=lambda: self.append("tasks", task=f"{name}-{subtask}"), task=name, attempt=1, mode=0
        )
        outputs = [SimpleNamespace(target_vertex=vertex, partitioning=how) for vertex, how in targets]
        made = Row(
            name=f"{name}-{subtask}",
            state=ExecutionState.RUNNING,
            meter=meter,
            input=SimpleNamespace(gates=list(gates)),
            partitions=[
                SimpleNamespace(
                    name=f"{name}-{subtask}/{n}", is_released=False, pool=Pool(used=n), subpartitions=[]
                )
                for n in range(len(outputs))
            ],
            descriptor=SimpleNamespace(
                subtask=subtask,
                attempt_number=2,
                gates=[SimpleNamespace(source_vertex=vertex) for vertex in sources],
                partitions=outputs,
            ),
        )
        self.tasks.append(made)
        return made

    def reader(self, connection: Any, partition: str, index: int, stats: ChannelStats) -> Any:
        """Add a reader of a subpartition to a connection."""
        view = SimpleNamespace(is_released=False, subpartition=SimpleNamespace(name=partition, index=index))
        made = SimpleNamespace(view=view, now=stats, stats=lambda: made.now)
        connection.readers.append(made)
        connection.generation += 1
        return made

    def connection(self) -> Any:
        made = Row(readers=[], generation=0)
        self.connections.append(made)
        return made

    def take(self, table: str, kind: str = "") -> list[Any]:
        """Time and row of this table (and kind) so far; of an event its data, of a channel its key and credit."""
        found = [(at, row) for at, name, row in self.rows if name == table and kind in ("", row.get("kind"))]
        if table == "channels":
            names = ("side", "task", "attempt", "peer", "local", "credit")
            return [(at, *(row[name] for name in names)) for at, row in found]
        return [(at, json.loads(row["data"]) if kind else row) for at, row in found]


class Pool(SimpleNamespace):
    """A local pool."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"required": 2, "maximum": 8, "size": 4, "destroyed": False, "used": 0, **fields})


class Gate(SimpleNamespace):
    """A gate with channels to these subtasks. `requests`: how many each has sent."""

    def __init__(self, *producers: int, requests: int = 1) -> None:
        channels = [
            Row(
                partition=SimpleNamespace(producer=SimpleNamespace(subtask=n)),
                is_released=False,
                requests=requests,
                stats=lambda n=n: ChannelStats(10 + n, 0, 0, 0, 0, 0, 0),
            )
            for n in producers
        ]
        super().__init__(channels=channels, pool=Pool(), remote_channels=0, exclusive=2)


def during(seconds: float, prepare: Any, *steps: tuple[float, Any], **options: Any) -> TaskManager:
    """A TaskManager after this time. `prepare` and the steps, each after some seconds, are functions of it."""

    async def main() -> TaskManager:
        made = TaskManager(**options)
        prepare(made)
        made.sampler.start()
        for at, step in steps:
            asyncio.get_running_loop().call_later(at, step, made)
        await asyncio.sleep(seconds)
        made.sampler.close()
        await asyncio.sleep(10.0)
        return made

    return run_virtual(main())


# ---- tasks


def test_running_tasks_are_sampled_in_an_interval_until_none_is_left():
    """A task that has not started yet keeps the sampler awake; one that has ended does not. `start` may be called again."""

    def prepare(made: TaskManager) -> None:
        made.task()
        made.task("sink").state = ExecutionState.INITIALIZING
        made.sampler.start()

    def end(made: TaskManager) -> None:
        for task in made.tasks:
            task.state = ExecutionState.FINISHED

    made = during(0.75, prepare, (0.25, end))
    assert [(at, row["task"]) for at, row in made.take("tasks")] == [(100, "map-0"), (200, "map-0")]

    def run(made: TaskManager) -> None:
        made.tasks[1].state = ExecutionState.RUNNING

    made = during(0.35, prepare, (0.25, run))
    assert [(at, row["task"]) for at, row in made.take("tasks")][2:] == [(300, "map-0"), (300, "sink-0")]
    slow = during(1.1, prepare, pace=Pace(sample_s=0.5))
    assert [at for at, _ in slow.take("tasks")] == [500, 1000]


def test_the_processor_time_of_a_taskmanager_is_recorded_if_work_costs_any():
    """With the buffers that it has sent."""
    cores = SimpleNamespace(spent_s=1.5, buffers=7)
    made = during(0.15, TaskManager.task, cores=cores)
    assert made.take("events", "cpu.spent") == [(100, {"seconds": 1.5, "buffers": 7})]
    assert during(0.15, TaskManager.task).take("events", "cpu.spent") == []


# ---- buffers and sockets


def test_network_buffers_are_recorded_once_a_second_if_they_changed():
    """The newest of several warnings is a note."""

    def use(made: TaskManager) -> None:
        made.used = 5
        made.warnings = ["old", "new"]

    made = during(4.05, TaskManager.task, (1.5, use))
    assert made.take("events", "network.buffers") == [
        (1000, {"total": 100, "used": 0}), (2000, {"total": 100, "used": 5}),
    ]  # fmt: skip
    (note,) = [(at, row) for at, row in made.take("events") if row["kind"] == "note"]
    assert (note[0], note[1]["text"], note[1]["subject"]) == (2000, "new", "tm-0-1")


def test_a_slow_sampler_records_buffers_with_each_sample():
    """An interval of more than a second."""
    made = during(4.5, TaskManager.task, pace=Pace(sample_s=2.0))
    assert [at for at, _ in made.take("events", "network.buffers")] == [2000]
    half = during(2.1, TaskManager.task, pace=Pace(sample_s=0.5))
    assert [at for at, _ in half.take("events", "network.buffers")] == [1000]


def with_pools(made: TaskManager) -> None:
    consumer = Consumer(channels=2)
    consumer.connect()
    consumer.pool.request_segment()
    made.task(gates=[consumer.gate, Gate(0)], sources=["a", "b"], targets=[("c", "hash"), ("d", "hash")])
    made.tasks[0].partitions[1].is_released = True


def test_pools_are_recorded_with_their_sizes_and_the_buffers_in_use():
    """A gate's exclusive buffers that a channel holds for its credit are not in use; a released result has no pool."""
    made = during(1.05, with_pools)
    ((at, found),) = made.take("events", "network.pools")
    pools = {pool["peer"]: pool for pool in found.pop("pools")}
    assert (at, found) == (1000, {"free": 70, "others": 0})
    assert pools["a"] == {
        "side": "in", "task": "map-0", "peer": "a", "required": 8, "most": 8, "size": 8, "channels": 2,
        "exclusive": 2, "used": 1, "used_exclusive": 0,
    }  # fmt: skip
    assert list(pools) == ["a", "b", "c"]
    assert {name: pools["c"][name] for name in ("side", "required", "most", "size", "used")} == {
        "side": "out", "required": 2, "most": 8, "size": 4, "used": 0,
    }  # fmt: skip


def test_a_task_that_is_being_deployed_has_the_pools_that_were_made():
    """It makes its results one after the other, and then its gates."""

    def prepare(made: TaskManager) -> None:
        made.task(
            gates=[Gate(0)], sources=["a", "b"], targets=[("c", "hash"), ("d", "hash")]
        ).partitions.pop()

    ((_, found),) = during(1.05, prepare).take("events", "network.pools")
    assert [pool["peer"] for pool in found["pools"]] == ["a", "c"]


def test_a_destroyed_pool_is_not_listed_and_one_without_a_limit_has_none():
    """It counts among the others no longer."""

    def prepare(made: TaskManager) -> None:
        made.task(targets=[("c", "hash"), ("d", "hash")])
        first, second = made.tasks[0].partitions
        first.pool.destroyed, second.pool.maximum = True, MAX_INT

    ((_, found),) = during(1.05, prepare).take("events", "network.pools")
    assert [(pool["peer"], pool["most"]) for pool in found["pools"]] == [("d", -1)]
    assert found["others"] == 2


def test_the_pools_of_a_large_job_are_recorded_without_usage_when_their_sizes_may_have_changed():
    """Otherwise nothing is looked up."""

    def change(made: TaskManager) -> None:
        made.tasks[0].partitions[0].pool.size = 5

    def resize(made: TaskManager) -> None:
        made.environment.pool.generation += 1

    made = during(5.05, with_pools, (1.5, change), (3.5, resize), pace=Pace(channel_stride=2))
    found = made.take("events", "network.pools")
    assert [at for at, _ in found] == [1000, 4000]
    assert all("used" not in pool for _, event in found for pool in event["pools"])
    small = during(5.05, with_pools, (1.5, change), (3.5, resize))
    assert [at for at, _ in small.take("events", "network.pools")] == [1000, 2000]


def test_a_socket_is_recorded_when_its_state_changes():
    """A side and a port identify it; one that was closed and opened again is new."""

    def state(queue: int) -> SocketState:
        return SocketState((6121, 50000), True, 0, 100, True, queue, 100, 0, 0.0)

    def sockets(*found: tuple[str, int, int]) -> Any:
        def put(made: TaskManager) -> None:
            made.sockets = [(side, "tm-1-1", port, state(queue)) for side, port, queue in found]

        return put

    def prepare(made: TaskManager) -> None:
        made.task()
        sockets(("consumer", 1, 0), ("producer", 1, 0))(made)

    made = during(
        0.55,
        prepare,
        (0.15, sockets(("consumer", 1, 9), ("producer", 1, 0))),
        (0.25, sockets(("producer", 1, 0))),
        (0.35, sockets(("consumer", 1, 9), ("producer", 1, 0))),
    )
    found = made.take("events", "socket.state")
    assert [(at, one["side"], one["send_queue"]) for at, one in found] == [
        (100, "consumer", 0), (100, "producer", 0), (200, "consumer", 9), (400, "consumer", 9),
    ]  # fmt: skip
    assert {key: found[0][1][key] for key in ("peer", "connection", "ports")} == {
        "peer": "tm-1-1", "connection": 1, "ports": [6121, 50000],
    }  # fmt: skip


# ---- channels


def test_a_consumers_channels_are_recorded_when_they_change():
    """Local ones without a request too. Released ones, and those of tasks that do not run, are left out."""

    def prepare(made: TaskManager) -> None:
        made.task("sink", gates=[Gate(0, 1)], sources=["map"])
        made.task("late", gates=[Gate(0)], sources=["map"]).state = ExecutionState.INITIALIZING

    def change(made: TaskManager) -> None:
        first, second = made.tasks[0].input.gates[0].channels
        first.stats = lambda: STARVED
        second.is_released = True

    made = during(0.45, prepare, (0.25, change))
    assert made.take("channels") == [
        (100, "consumer", "sink-0", 2, "map-0", True, 10), (100, "consumer", "sink-0", 2, "map-1", True, 11),
        (300, "consumer", "sink-0", 2, "map-0", True, 0),
    ]  # fmt: skip


def test_a_remote_channel_is_recorded_from_its_first_request_on():
    """Before it there is nothing to see."""
    consumers: list[Any] = []

    def prepare(made: TaskManager) -> None:
        consumers.append(Consumer(channels=1))
        made.task("sink", gates=[consumers[0].gate], sources=["map"])

    made = during(0.35, prepare, (0.15, lambda _: consumers[0].connect()))
    assert [(row[0], *row[4:6]) for row in made.take("channels")] == [(200, "map-0", False)]


def producing(*stats: ChannelStats, stride: int = 1, how: str = "hash") -> Any:
    def prepare(made: TaskManager) -> None:
        made.task("map", 1, targets=[("sink", how)])
        connection = made.connection()
        for index, one in enumerate(stats):
            made.reader(connection, "map-1/0", index, one)

    return prepare


def plenty(credit: int) -> ChannelStats:
    return ChannelStats(credit, 0, 0, 0, 0, 0, 0)


def test_a_producers_channels_are_recorded_when_they_change():
    """Those of results of this TaskManager that are not released."""

    def change(made: TaskManager) -> None:
        readers = made.connections[0].readers
        readers[0].now = plenty(4)
        readers[1].view.is_released = True
        readers[2].view = None
        made.reader(made.connections[0], "gone/0", 0, plenty(9))

    made = during(0.45, producing(*map(plenty, (1, 2, 3))), (0.25, change))
    assert made.take("channels") == [
        *((100, "producer", "map-1", 2, f"sink-{n}", False, n + 1) for n in range(3)),
        (300, "producer", "map-1", 2, "sink-0", False, 4),
    ]  # fmt: skip


def test_the_consumer_of_a_forward_result_is_the_subtask_with_the_same_number():
    """It has one subpartition only."""
    made = during(0.15, producing(plenty(1), how="forward"))
    assert [row[4] for row in made.take("channels")] == ["sink-1"]


def test_a_new_reader_of_a_channel_goes_on_with_its_sample():
    """After a reconnection; a channel that was not sampled for a tick is recorded again."""

    def replace(made: TaskManager) -> None:
        made.connections.clear()
        made.reader(made.connection(), "map-1/0", 0, plenty(1))

    made = during(0.45, producing(plenty(1)), (0.25, replace))
    assert [row[0] for row in made.take("channels")] == [100]

    def leave(made: TaskManager) -> None:
        made.connections[0].readers[0].view.is_released = True

    def come_back(made: TaskManager) -> None:
        made.connections[0].readers[0].view.is_released = False

    made = during(0.65, producing(plenty(1)), (0.25, leave), (0.35, come_back))
    assert [row[0] for row in made.take("channels")] == [100, 400]


def test_a_large_job_has_samples_of_some_channels_on_both_ends():
    """Those whose subtasks add up to a multiple of the stride: both ends choose the same."""

    def prepare(made: TaskManager) -> None:
        producing(*(plenty(n + 1) for n in range(6)))(made)
        made.task("sink", 1, gates=[Gate(0, 1, 2, 3, 4, 5)], sources=["map"])

    made = during(0.15, prepare, pace=Pace(channel_stride=3))
    assert [row[1:5] for row in made.take("channels")] == [
        *(("consumer", "sink-1", 2, f"map-{n}") for n in (2, 5)),
        *(("producer", "map-1", 2, f"sink-{n}") for n in (2, 5)),
    ]


@pytest.mark.parametrize(("every", "times"), [(1, [100, 200]), (4, [300, 700]), (20, [900, 2900])], ids=str)
def test_channels_may_be_sampled_less_often_than_tasks(every: int, times: list[int]):
    """The first time after nine samples at the latest."""

    def prepare(made: TaskManager) -> None:
        made.task("sink", gates=[Gate(0)], sources=["map"])
        counter = iter(range(1000))
        made.tasks[0].input.gates[0].channels[0].stats = lambda: plenty(next(counter))

    made = during(times[-1] / 1000 + 0.05, prepare, pace=Pace(channel_every=every))
    assert [row[0] for row in made.take("channels")] == times


def test_a_channel_that_finds_no_credit_waits_until_it_has_some_or_is_gone():
    """A wait for each; a TaskManager that closes ends those that are open."""

    def prepare(made: TaskManager) -> None:
        producing(STARVED, STARVED, STARVED, plenty(1))(made)

    def change(made: TaskManager) -> None:
        readers = made.connections[0].readers
        readers[0].now = plenty(1)
        readers[1].view.is_released = True

    made = during(0.65, prepare, (0.35, change))
    waits = [(row["what"], row["start_ns"], row["t_ns"]) for _, row in made.take("waits")]
    begin, end, last = (int((T0_S + s) * 1e9) for s in (0.1, 0.3, 0.6))
    found = [(what, round(a / 1e6), round(b / 1e6)) for what, a, b in waits]
    begin, end, last = (round(ns / 1e6) for ns in (begin, end, last))
    assert found == [("sink-0", begin, end), ("sink-1", begin, end), ("sink-2", begin, last)]
