"""Wrong values, and calls in the wrong order, are refused with words; a file that fails is the producer's failure."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from exchange_model import (
    Consumer,
    barrier,
    data_frame,
    deliver,
    nothing,
    partition_id,
    producer_pool,
    receiver_id,
)

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, UserError
from testbed_runtime.core.exchange import blocking
from testbed_runtime.core.exchange.backoff import Backoff, RemoteBackoff
from testbed_runtime.core.exchange.barriers import ArrivedBarriers
from testbed_runtime.core.exchange.blocking import ResultFile
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.credit import SequenceViewReader
from testbed_runtime.core.exchange.debloat import BufferSizeEMA
from testbed_runtime.core.exchange.events import (
    AlignmentType,
    EndOfPartition,
    EndOfSuperstep,
    data_type_of,
    encode_event,
)
from testbed_runtime.core.exchange.frames import (
    BufferResponse,
    DataType,
    ErrorResponse,
    PartitionRequest,
    ResumeConsumption,
)
from testbed_runtime.core.exchange.gate import InputGate
from testbed_runtime.core.exchange.localchannel import LocalInputChannel
from testbed_runtime.core.exchange.memory import Buffer
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.server import PartitionRequestServer
from testbed_runtime.core.faults.lease import Lease
from testbed_runtime.core.faults.links import flows_of
from testbed_runtime.core.ids import RESULT_PARTITION_ID_BYTES, ResultPartitionID
from testbed_runtime.core.job.limits import partition_limit
from testbed_runtime.core.options import Options


def local_channel() -> LocalInputChannel:
    """A channel to a partition that has not been requested."""
    return Consumer(channels=0).gate.add_local(
        partition_id(), 0, manager=ResultPartitionManager(), backoff=Backoff(100, 1000)
    )


def set_up_twice() -> None:
    consumer = Consumer()
    manager = consumer.channel().buffers
    assert manager is not None
    manager.assign_exclusive([])
    manager.assign_exclusive([])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: LocalBufferPool(NetworkBufferPool(4, 8), 0, 1), FlinkError, r"\(0\) should be larger than 0"),
        (lambda: LocalBufferPool(NetworkBufferPool(4, 8), 2, 1), FlinkError, r"\(1\) should not be smaller"),
        (lambda: BufferSizeEMA(8, 1, 1).calculate(1, 0), FlinkError, "Number of buffers should be positive"),
        (lambda: Lease(now=0.0, deadline=1.0, lease_s=0.0), ValueError, "more than 0, got 0.0"),
        (lambda: flows_of(["tm-0"], "up"), UserError, "'up' is not a direction"),
        (lambda: ResultPartitionID.from_bytes(b"x"), ValueError, f"needs {RESULT_PARTITION_ID_BYTES} bytes, got 1"),
        (set_up_twice, FlinkError, "exclusive buffers have already been set"),
        (lambda: local_channel().acknowledge_all_records_processed(), LocalProtocolError, "before its partition"),
        (lambda: local_channel().send_task_event(EndOfSuperstep()), FlinkError, "before requesting the subpartition"),
        (lambda: SequenceViewReader(receiver_id(0), 0, 2).stats(), LocalProtocolError, "before its partition"),
    ],
    ids=["no buffers", "fewer than required", "no buffer in use", "no lease", "direction", "id", "set up twice",
         "acknowledged early", "event without a view", "reader without a view"],
)  # fmt: skip
def test_a_wrong_use_is_refused_with_words(call: Callable[[], object], error: type[Exception], text: str):
    """The message says what is wrong."""
    with pytest.raises(error, match=text):
        call()


def test_a_gate_has_requested_its_partitions_when_every_channel_has():
    """In any order. Without channels there is nothing to wait for."""
    consumer = Consumer(channels=3)
    assert Consumer(channels=0).gate.requested
    asked = []
    for channel in reversed(consumer.gate.channels):
        asked.append(consumer.gate.requested)
        channel.requests += 1
    assert [*asked, consumer.gate.requested] == [False, False, False, True]


def test_a_failed_local_channel_raises_its_error_instead_of_sending_an_event():
    """It is the error that the task fails with."""
    channel = local_channel()
    channel.on_error(FlinkError("IOException", "gone"))
    with pytest.raises(FlinkError, match="gone"):
        channel.send_task_event(EndOfSuperstep())


def test_a_local_channel_that_was_released_requests_nothing():
    """It has nothing to read before its request, and nothing after its release. A retry that was due does not come."""
    manager = ResultPartitionManager()
    channel = Consumer(channels=0).gate.add_local(partition_id(), 0, manager=manager, backoff=Backoff(1, 4))
    assert (channel.take(), channel.requests, channel.queued, channel.stats().backlog) == (None, 0, 0, 0)
    for now, requests, deadline in ((0.0, 1, 1.0), (0.5, 1, 1.0), (1.0, 2, 3.0)):
        (channel.on_time if channel.requests else channel.request)(now)
        assert (channel.requests, channel.next_deadline) == (requests, deadline)
    channel.release()
    channel.request(9.0)
    channel.on_time(9.0)
    assert (channel.take(), channel.requests, channel.next_deadline) == (None, 2, None)


def test_a_gate_that_was_closed_asks_for_no_partition():
    """The answer to an earlier request comes too late. Without a way to ask, the channel fails in Flink's words."""
    closed = Consumer()
    channel = closed.channel()
    closed.gate.close()
    closed.gate.on_partition_not_found(channel)
    assert (closed.not_found, channel.error) == ([], None)
    network = NetworkBufferPool(16, 32)
    gate = InputGate(network, network.create_buffer_pool(8, 8), nothing)
    manager = ResultPartitionManager()
    gate.add_local(partition_id(), 0, manager=manager, backoff=Backoff(1, 4))
    alone = gate.add_remote(partition_id(), 0, receiver=receiver_id(0), backoff=RemoteBackoff(1, 4))
    gate.on_partition_not_found(alone)
    assert str(alone.error) == f"PartitionNotFoundException: Partition {partition_id()} not found."


def test_an_event_for_a_producer_that_has_ended_fails_its_reader():
    """No task takes it. A task that runs but does not subscribe ignores it."""
    manager = ResultPartitionManager()
    result = ResultPartition(partition_id(), 1, producer_pool(NetworkBufferPool(16, 32), 1, 8))
    manager.register(result)
    gate = Consumer(channels=0).gate
    channel = gate.add_local(partition_id(), 0, manager=manager, backoff=Backoff(100, 1000))
    channel.request(0.0)
    channel.send_task_event(EndOfSuperstep())
    result.close()
    with pytest.raises(FlinkError, match="The producer could not be found") as caught:
        channel.send_task_event(EndOfSuperstep())
    assert caught.value.class_name == "IOException"


# ---- files of blocking results


class Broken(io.BytesIO):
    """A file in which one call fails, once: Python closes it again when it is collected."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self._call = call

    def _fail(self, call: str) -> None:
        if call == self._call:
            self._call = ""
            raise OSError("No space left on device")

    def write(self, data: object) -> int:
        self._fail("write")
        return super().write(data)  # type: ignore[arg-type]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._fail("seek")
        return super().seek(offset, whence)

    def flush(self) -> None:
        self._fail("flush")

    def close(self) -> None:
        self._fail("close")


@pytest.mark.parametrize(
    ("call", "text"),
    [("write", "cannot be written"), ("flush", "cannot be written"), ("seek", "cannot be read")],
)
def test_a_file_that_fails_is_an_error_of_the_result(call: str, text: str):
    """With the file's words. An error at its close changes nothing any more."""

    def use(file: ResultFile) -> None:
        file.append(b"abc")
        file.flush()
        file.read(0, 3)

    with pytest.raises(FlinkError, match=f"The result {text}: No space left on device") as caught:
        use(ResultFile(Broken(call), "The result"))
    assert caught.value.class_name == "IOException"
    ResultFile(Broken("close")).close()


def test_a_file_is_read_where_it_was_written_and_its_end_is_noticed():
    """A result that was cut has fewer bytes than its index says."""
    file = ResultFile(io.BytesIO())
    assert [file.append(data) for data in (b"abc", b"de")] == [0, 3]
    assert (file.size, file.read(3, 2)) == (5, b"de")
    with pytest.raises(FlinkError, match="ends after 5 bytes"):
        file.read(3, 3)


def test_a_file_may_be_filled_to_its_limit(monkeypatch: pytest.MonkeyPatch):
    """One byte more is refused, and nothing of it is written."""
    monkeypatch.setattr(blocking, "MAX_RESULT_BYTES", 4)
    file = ResultFile(io.BytesIO())
    file.append(b"abcd")
    with pytest.raises(FlinkError, match="at most 4 bytes"):
        file.append(b"e")
    assert file.size == 4


def test_a_blocking_result_is_not_blocked_by_a_checkpoint():
    """It is read when its producer has ended."""
    pool = producer_pool(NetworkBufferPool(16, 32), 1, 2)
    result = ResultPartition(partition_id(), 1, pool, file=io.BytesIO())
    result.notify_end_of_data()
    result.finish()
    view = result.subpartitions[0].create_view(nothing)
    with pytest.raises(FlinkError, match="Method should never be called"):
        view.resume_consumption()


# ---- the server


def request(first: int, last: int) -> PartitionRequest:
    return PartitionRequest(partition_id(), first, last, receiver_id(0), 2)


def test_a_request_for_several_subpartitions_is_answered_with_an_error():
    """A channel reads one."""
    server = PartitionRequestServer(ResultPartitionManager(), nothing)
    server.on_frame(request(0, 1), 0.0)
    found = server.next_frame()
    assert found is not None
    assert isinstance(found[0], ErrorResponse)
    assert "one subpartition per channel, not 0 to 1" in found[0].message


def test_a_waiting_request_is_withdrawn_when_its_connection_closes():
    """A producer that registers later has no reader to serve."""
    manager = ResultPartitionManager(waits=True)
    server = PartitionRequestServer(manager, nothing)
    server.on_frame(request(0, 0), 0.0)
    server.on_closed()
    pool = producer_pool(NetworkBufferPool(16, 32), 1, 8)
    manager.register(ResultPartition(partition_id(), 1, pool))
    assert (server.readers, server.next_frame()) == ((), None)
    server.on_frame(ResumeConsumption(receiver_id(0)), 0.0)


# ---- barriers on their way


def arrived(*barriers: tuple[int, int]) -> ArrivedBarriers:
    found = ArrivedBarriers()
    for checkpoint, sequence in barriers:
        event = barrier(checkpoint, AlignmentType.UNALIGNED)
        found.arrive(Buffer.unpooled(encode_event(event), data_type_of(event)), sequence)
    return found


def queue(*sequences: int) -> list[tuple[Buffer, int]]:
    return [(Buffer.unpooled(b"%d" % sequence, DataType.DATA_BUFFER), sequence) for sequence in sequences]


def test_the_data_before_each_of_several_barriers_belongs_to_its_checkpoint():
    """A checkpoint whose barrier has not arrived gets all of it; one that only a newer one is known of has none."""
    found = arrived((1, 2), (3, 4))
    data = queue(1, 3, 5)
    assert found.in_flight(data, 1) == (b"1",)
    assert found.in_flight(data, 3) == (b"1", b"3")
    assert found.in_flight(data, 4) == (b"1", b"3", b"5")
    for checkpoint in (0, 2):
        with pytest.raises(FlinkError, match=f"checkpoint {checkpoint} is not known .* checkpoint 3"):
            found.in_flight(data, checkpoint)


def test_barriers_before_what_the_gate_takes_are_forgotten_except_the_newest():
    """An older barrier that comes late does not count."""
    found = arrived((1, 2), (3, 4), (2, 5))
    found.take(2)
    assert found.in_flight(queue(1, 3), 1) == (b"1",)
    found.take(9)
    with pytest.raises(FlinkError, match="not known"):
        found.in_flight(queue(1), 1)
    assert found.in_flight(queue(1, 5), 3) == (b"1",)


def test_data_before_a_barrier_is_found_although_sequence_numbers_wrap():
    """They have 32 bits, with a sign."""
    found = arrived((1, -(2**31) + 1))
    assert found.in_flight(queue(2**31 - 1, -(2**31), -(2**31) + 2), 1) == (
        b"2147483647", b"-2147483648",
    )  # fmt: skip


# ---- limits of a partition request


@pytest.mark.parametrize(
    ("timeout", "version", "option", "seconds"),
    [
        ("10 s", "2.x", "request-backoff.max", 20.0),
        ("20 s", "2.x", "partition-request-timeout", 20.0),
        ("0 s", "2.x", "partition-request-timeout", None),
        ("20 s", "1.18", "request-backoff.max", None),
    ],
    ids=["shorter than the limit", "as long as the limit", "none", "before Flink 1.19"],
)
def test_the_limit_of_a_remote_request_is_the_option_that_ends_it(
    timeout: str, version: str, option: str, seconds: float | None
):
    """A request that waits at its producer as long as all retries may is ended by its own timeout."""
    prefix = "taskmanager.network."
    options = {f"{prefix}partition-request-timeout": timeout, f"{prefix}request-backoff.max": "10 s"}
    found = partition_limit(Options(options, flink_version=version), local=False)
    assert found.option == prefix + option
    if version == "2.x":
        assert found.seconds == seconds
    assert partition_limit(Options(options, flink_version=version), local=True).option.endswith("backoff.max")


@pytest.mark.parametrize(("timeout_s", "budget"), [(0.0, 0.0), (0.5, 2.0), (0.7, 2.1), (5.0, 5.0)], ids=str)
def test_the_budget_of_a_request_that_waits_is_a_whole_number_of_its_timeouts(
    timeout_s: float, budget: float
):
    """At least one; up to the limit of twice the largest backoff."""
    assert RemoteBackoff(0.1, 1.0, listener_timeout=timeout_s, waits_at_producer=True).budget() == budget


def test_a_segment_that_is_freed_before_its_channel_is_set_up_goes_back():
    """The channel was released meanwhile."""
    consumer = Consumer(set_up=False)
    manager = consumer.channel().buffers
    assert manager is not None
    free = consumer.network.free
    taken = manager.request_exclusive()
    segments = taken.poll(0.0)
    assert segments is not None
    manager.release()
    manager.assign_exclusive(segments)
    assert consumer.network.free == free


def test_the_reader_of_a_channel_that_was_released_with_data_is_cancelled():
    """As in Flink, where the gate polls it."""
    consumer = Consumer(channels=2)
    consumer.connect()
    for number in (0, 1):
        deliver(consumer.client, data_frame(number, 0, 0))
    consumer.channel(0).release()
    with pytest.raises(FlinkError, match="Queried for a buffer after channel has been released"):
        consumer.gate.poll()


def test_a_channel_that_has_ended_is_not_read_again():
    """A peer that sends data after its END_OF_PARTITION, and a channel that reports it, change nothing."""
    consumer = Consumer(channels=2)
    consumer.connect()
    end = EndOfPartition()
    deliver(consumer.client, BufferResponse(receiver_id(0), 0, 0, 0, data_type_of(end), encode_event(end)))
    deliver(consumer.client, data_frame(0, 1, 0))
    assert consumer.gate.poll() == (0, end)
    assert consumer.gate.poll() is None
    consumer.gate.on_channel_ready(0, priority=False)
    assert consumer.gate.poll() is None
