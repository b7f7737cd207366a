"""A source task that reads words from a socket."""

from __future__ import annotations

from typing import Any

from testbed_runtime.core.job.jobgraph import JobVertex, SourceConfig
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.transport.simulatedconnection import WINDOW_BYTES
from testbed_runtime.workload.records import text_of
from testbed_runtime.workload.sources import LINES_BYTES_MAX
from tests.taskmanager.deployed import Deployed, deployed
from tests.transport.inprocess_network import InProcessNetwork

SOCKET = JobVertex("source", 1, 128, source=SourceConfig(kind="socket", socket="host:99"))


class Sender:
    """The program that sends the words: one end of the source's connection."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.sent, self.closed = 0, False

    def on_connected(self, connection: Any) -> None:
        self.connection = connection

    def on_data(self, data: memoryview) -> None:
        raise AssertionError("a source sends nothing")

    def on_writable(self) -> None:
        return

    def on_closed(self, error: Exception | None) -> None:
        self.closed = True

    def send(self, words: bytes) -> None:
        self.connection.send([words], self._on_sent(len(words)))

    def _on_sent(self, size: int) -> Any:
        def sent() -> None:
            self.sent += size

        return sent


def reading(drive: Any) -> None:
    """Drive a source that is connected to a sender, in virtual time."""

    async def main() -> None:
        network, sender = InProcessNetwork("host"), Sender()
        await network.listen(lambda: sender, ("host", 99))
        async with deployed(SOCKET, network=network) as task:
            await task.settle()
            await drive(task, sender)

    run_virtual(main())


def words_of(task: Deployed) -> list[str]:
    return [text_of(record) for found in task.records for record in found]


def test_a_socket_source_emits_a_word_when_it_has_come():
    """The rest of a word waits for its end, which may be the end of the connection. The task ends then."""

    async def drive(task: Deployed, sender: Sender) -> None:
        for part, words in (
            (b"to be or no", ["to", "be", "or"]),
            (b"t to be", ["to", "be", "or", "not", "to"]),
        ):
            sender.send(part)
            await task.settle()
            assert words_of(task) == words
        await task.at(500)
        sender.connection.close()
        await task.settle()
        assert words_of(task)[-1] == "be"
        assert (task.ended_at, task.states[-1], task.noted("source.end")) == (500, "FINISHED", [{"next": 6}])

    reading(drive)


def test_words_have_no_lag():
    """They are due when they are read."""

    async def drive(task: Deployed, sender: Sender) -> None:
        sender.send(b"to be or ")
        await task.at(500)
        assert task.task.meter.lag_at(int((task.clock.now() + 100) * 1e9)) == 0

    reading(drive)


def test_a_socket_source_that_is_full_stops_reading_and_reads_again_when_there_is_room():
    """Its limit, and what the connection takes besides, is all that its sender can send. No word is lost."""
    word, count = b"w" * 99 + b" ", 30_000

    async def drive(task: Deployed, sender: Sender) -> None:
        task.reads = False
        for _ in range(count // 100):
            sender.send(word * 100)
        await task.at(1000)
        waiting = sender.sent - len(word) * task.task.meter.records_out
        assert LINES_BYTES_MAX < waiting < 1.02 * LINES_BYTES_MAX + 2 * WINDOW_BYTES
        assert sender.sent < len(word) * count
        task.go_on()
        sender.connection.close()
        await task.at(2000)
        assert len(words_of(task)) == count
        assert task.states[-1] == "FINISHED"

    reading(drive)


def test_J_150_a_socket_source_overdraws_no_pool():
    """SourceStreamTaskTest.testDisableOverdraftBuffer: it is a SourceFunction. Other sources may."""

    async def drive(task: Deployed, sender: Sender) -> None:
        assert [partition.pool.max_overdraft for partition in task.task.partitions] == [0]
        task.reads = False
        sender.send((b"w" * 99 + b" ") * 20_000)
        await task.at(1000)
        (pool,) = (partition.pool for partition in task.task.partitions)
        assert (pool.available_segments, pool.overdraft) == (0, 0)

    reading(drive)

    async def generated() -> int:
        async with deployed(JobVertex("source", 1, 128, source=SourceConfig(records_per_second=1.0))) as task:
            return task.task.partitions[0].pool.max_overdraft

    assert run_virtual(generated()) == 20


def test_the_connection_of_a_socket_source_ends_with_its_task():
    """A sender need not wait for a source that is gone."""

    async def drive(task: Deployed, sender: Sender) -> None:
        assert not sender.closed
        task.task.cancel()
        await task.settle()
        assert sender.closed

    reading(drive)
