"""A source task that reads words from a socket."""

from __future__ import annotations

from typing import Any

from testbed_runtime.core.job.jobgraph import SourceConfig
from testbed_runtime.simulation.loop import run_virtual
from testbed_runtime.taskmanager.source import _WordReader
from testbed_runtime.workload.sources import LINES_BYTES_MAX
from tests.taskmanager.scripted_source import (
    Source,
    during,
    named,
    process_all,
)


class Socket:
    """A connection that its reader may pause."""

    def __init__(self, reader: Any) -> None:
        self.reading, self.aborted = True, False
        self.reader = reader
        reader.on_connected(self)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


def test_a_socket_source_reads_words_until_it_is_full_and_again_when_there_is_room():
    """A closed connection is not resumed: it is the end of the data."""
    words = SourceConfig(kind="socket", socket="host:99")

    async def main() -> None:
        source = Source(words)
        generated: Any = source.task.source
        for closed in (False, True):
            socket = Socket(_WordReader(generated, source.run))
            socket.reader.on_data(memoryview(b"to be \n"))
            assert (socket.reading, source.run.wakeup._set) == (True, True)
            socket.reader.on_data(memoryview((b"w" * 1000 + b" ") * (LINES_BYTES_MAX // 1000 + 1)))
            assert not socket.reading
            if closed:
                socket.reader.on_closed(None)
            while generated.take(0, 2048) is not None:
                pass
            assert socket.reading is not closed
            socket.reader.close()
            assert socket.aborted is not closed
        assert generated.exhausted

    run_virtual(main())


def test_a_socket_source_is_connected_while_it_runs():
    """The connection ends with the task. Words have no due time, so there is no lag."""
    made: list[Any] = []

    def source() -> Source:
        found = Source(SourceConfig(kind="socket", socket="host:99"))

        async def connect(address: Any, reader: Any, *, timeout_s: float) -> None:
            found.did("connect", address, timeout_s)
            made.append(Socket(reader))
            reader.on_data(memoryview(b"to be or "))

        async def emit(records: Any) -> None:
            found.did("emit", len(records))
            assert found.run.meter.lag_at(10**18) == 0

        found.run.services.network.connect, found.output.emit = connect, emit
        return found

    done = during(source, 1.0, (0.5, lambda s: made[0].reader.on_closed(None)), (0.6, process_all))
    assert done[0] == ("connect", ("host", 99), 10.0, 0.0)
    assert sum(one[1] for one in named(done, "emit")) == 3
    assert named(done, "end", "over") == [("end", True, 500.0), ("over", 600.0)]
    during(source, 1.0)
    assert [socket.aborted for socket in made] == [False, True]
