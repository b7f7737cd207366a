"""Cases of PipelinedSubpartitionTest: its end and its size, and barriers that may time out while they are queued."""

from __future__ import annotations

import pytest
from exchange_model import barrier, nothing, partition_id, producer_pool
from test_subpartition import DATA, NONE, Bench

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.events import decode_event
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.subpartition import Polled

TIMEOUTABLE = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
PRIORITY = DataType.PRIORITIZED_EVENT_BUFFER


class Output:
    """A result whose waiter counts how often it is woken."""

    def __init__(self, subpartitions: int = 1, *, read: bool = True) -> None:
        pool = producer_pool(NetworkBufferPool(32, 64), subpartitions, 16)
        self.result = ResultPartition(partition_id(), subpartitions, pool)
        self.woken = 0
        self.result.on_barriers_sent = self._wake
        self.views = [
            self.result.create_view(index, nothing) for index in range(subpartitions if read else 0)
        ]

    def _wake(self) -> None:
        self.woken += 1

    def send(self, checkpoint: int, *, buffers: int = 0) -> None:
        """Write full buffers to each subpartition, and then a barrier that may time out."""
        for index in range(len(self.views)):
            assert self.result.emit(index, bytes(64 * buffers)) == 64 * buffers
        assert self.result.broadcast_barrier(barrier(checkpoint, alignment_timeout_ms=1000)) == {}

    def read(self, subpartition: int = 0) -> list[tuple[DataType, int]]:
        """Read everything; resume after each barrier that blocks."""
        found = []
        while (polled := self.views[subpartition].poll()) is not None:
            found.append(_kind(polled))
            if polled.buffer.data_type.is_blocking_upstream:
                self.views[subpartition].resume_consumption()
            polled.buffer.recycle()
        return found


def _kind(polled: Polled) -> tuple[DataType, int]:
    """The type, and the checkpoint of a barrier."""
    buffer = polled.buffer
    return buffer.data_type, 0 if buffer.is_buffer else getattr(
        decode_event(buffer.view()), "checkpoint_id", 0
    )


def test_F_98_a_subpartition_has_one_reader() -> None:
    """A second one is refused."""
    bench = Bench()
    with pytest.raises(FlinkError, match="can only be consumed once") as refused:
        bench.subpartition.create_view(nothing)
    assert refused.value.class_name == "IllegalStateException"


@pytest.mark.parametrize("with_view", [True, False])
def test_F_99_a_release_returns_what_is_queued_and_ends_the_view(with_view: bool) -> None:
    """Two buffers were never read. The view says so when its subpartition does."""
    output = Output(read=with_view)
    subpartition, view = output.result.subpartitions[0], output.views[0] if with_view else None
    output.result.emit(0, bytes(128))
    assert (len(subpartition), output.result.pool.used) == (2, 2)
    assert view is None or not view.is_released
    subpartition.release()
    subpartition.release()
    assert (len(subpartition), output.result.pool.used, subpartition.is_released) == (0, 0, True)
    assert view is None or view.is_released


def test_F_111_the_number_of_queued_buffers_falls_when_one_is_read() -> None:
    """One, two, one."""
    bench, seen = Bench(), []
    for _ in range(2):
        bench.data()
        seen.append(len(bench.subpartition))
    assert bench.poll() == (DATA, 0, NONE, 0)
    assert [*seen, len(bench.subpartition)] == [1, 2, 1]


def test_F_112_a_buffer_size_is_any_until_a_reader_asks_for_one() -> None:
    """42 bytes, and never less than none."""
    bench = Bench()
    assert bench.subpartition.buffer_size == 2**31 - 1
    bench.view.notify_new_buffer_size(42)
    assert bench.subpartition.buffer_size == 42
    with pytest.raises(FlinkError, match="can not be less than zero"):
        bench.view.notify_new_buffer_size(-1)
    assert bench.subpartition.buffer_size == 42


def test_F_113_nothing_is_added_after_the_end() -> None:
    """A buffer that comes too late is released."""
    output = Output()
    output.result.finish()
    used = output.result.pool.used
    builder = output.result.pool.request_builder()
    assert builder is not None
    assert output.result.subpartitions[0].add(builder) is False
    assert output.result.pool.used == used


def test_F_114_a_reader_of_a_failed_producer_is_cancelled() -> None:
    """Flink's exception is a CancelTaskException, whatever the producer failed with."""
    output = Output()
    output.result.release(FlinkError("RuntimeException", "Expected test exception"))
    cause = output.views[0].failure_cause
    assert cause is not None
    assert cause.class_name == "ProducerFailedException"


@pytest.mark.parametrize("buffers", [0, 1, 2])
def test_F_115_a_barrier_that_is_read_in_time_has_no_channel_state(buffers: int) -> None:
    """Its waiter is woken when it leaves, and not before."""
    output = Output()
    output.send(5, buffers=buffers)
    assert output.result.holds_barrier(5)
    for _ in range(buffers):
        polled = output.views[0].poll()
        assert polled is not None
        assert (polled.buffer.data_type, output.woken) == (DATA, 0)
    assert output.read() == [(TIMEOUTABLE, 5)]
    assert (output.woken, output.result.holds_barrier(5)) == (1, False)
    assert output.result.time_out_barriers(5) == {}


@pytest.mark.parametrize("buffers", [0, 1])
def test_F_116_a_barrier_that_times_out_overtakes_and_the_data_before_it_is_its_channel_state(
    buffers: int,
) -> None:
    """It is read first, as a priority event."""
    output = Output()
    output.send(7, buffers=buffers)
    assert output.result.time_out_barriers(7) == ({0: (bytes(64),) * buffers} if buffers else {})
    assert len(output.result.subpartitions[0]) == buffers + 1
    assert output.read() == [(PRIORITY, 7), *[(DATA, 0)] * buffers]


def test_F_117_a_second_barrier_that_may_time_out_ends_the_channel_state_of_the_first() -> None:
    """Flink does not support concurrent unaligned checkpoints. The second one is not affected."""
    output = Output(2)
    output.send(10, buffers=1)
    assert output.read(1) == [(DATA, 0), (TIMEOUTABLE, 10)]
    output.send(11, buffers=1)
    assert (output.woken, output.result.holds_barrier(10), output.result.holds_barrier(11)) == (
        1,
        False,
        True,
    )
    with pytest.raises(
        FlinkError, match=r"checkpointId=10, but it received a new .* checkpointId=11"
    ) as failed:
        output.result.time_out_barriers(10)
    assert failed.value.class_name == "IllegalStateException"
    output.result.forget_barriers(10)
    assert output.result.time_out_barriers(10) == {}
    assert output.read(0) == [(DATA, 0), (TIMEOUTABLE, 10), (DATA, 0), (TIMEOUTABLE, 11)]
    assert (output.woken, output.result.holds_barrier(11)) == (1, True)
    assert output.result.time_out_barriers(11) == {1: (bytes(64),)}


def test_a_first_barrier_that_leaves_late_does_not_count_as_the_second() -> None:
    """The second one is still queued behind data, and may overtake it."""
    output = Output()
    output.send(10)
    output.send(11, buffers=1)
    polled = output.views[0].poll()
    assert polled is not None
    assert _kind(polled) == (TIMEOUTABLE, 10)
    assert output.result.holds_barrier(11)
    assert output.result.time_out_barriers(11) == {0: (bytes(64),)}


def test_a_barrier_that_was_aborted_does_not_fail_the_next_one() -> None:
    """It stays in the queue as it is, and no task waits for it."""
    output = Output()
    output.send(10, buffers=1)
    output.result.forget_barriers(10)
    output.send(11, buffers=1)
    assert output.woken == 0
    assert output.result.time_out_barriers(10) == {}
    assert output.result.time_out_barriers(11) == {0: (bytes(64),) * 2}
    assert output.read() == [(PRIORITY, 11), (DATA, 0), (TIMEOUTABLE, 10), (DATA, 0)]


def test_channel_state_that_no_task_asks_for_is_not_kept_for_ever() -> None:
    """Each of many checkpoints is aborted before its task waits for its barriers; the latest ones are still known."""
    output = Output()
    for checkpoint in range(1, 40):
        output.send(checkpoint)
    with pytest.raises(FlinkError, match="checkpointId=38"):
        output.result.time_out_barriers(38)
    assert output.result.time_out_barriers(1) == {}


def test_the_channel_state_of_a_released_result_is_lost() -> None:
    """Its waiter is woken and learns why."""
    output = Output()
    output.send(10, buffers=1)
    output.result.release()
    assert output.woken == 1
    with pytest.raises(FlinkError, match="The PipelinedSubpartition is released"):
        output.result.time_out_barriers(10)
