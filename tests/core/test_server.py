"""The producer's end of a connection."""

from __future__ import annotations

import pytest
from exchange_model import barrier, partition_id, producer_pool, receiver_id
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError, RemoteProtocolError
from testbed_runtime.core.exchange import server
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.credit import SequenceViewReader
from testbed_runtime.core.exchange.events import AlignmentType, EndOfPartition, OtherEvent, encode_event
from testbed_runtime.core.exchange.frames import (
    LAST_SEQUENCE_NUMBER,
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    ClientFrame,
    CloseRequest,
    DataType,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
    ServerFrame,
    TaskEventRequest,
)
from testbed_runtime.core.exchange.partition import ResultPartition
from testbed_runtime.core.exchange.partitions import ResultPartitionManager
from testbed_runtime.core.exchange.server import PartitionRequestServer

RECEIVER = receiver_id(0)


class Producer:
    """A server with one partition; what it sends is taken out frame by frame."""

    def __init__(
        self,
        *,
        subpartitions: int = 1,
        segment: int = 32,
        waits: bool = True,
        register: bool = True,
        exclusive: int = 2,
    ) -> None:
        self.network = NetworkBufferPool(64, segment)
        self.manager = ResultPartitionManager(waits=waits)
        self.woken = 0
        self.server = PartitionRequestServer(self.manager, self._wake)
        self.partition = ResultPartition(
            partition_id(), subpartitions, producer_pool(self.network, subpartitions, 32), exclusive=exclusive
        )
        if register:
            self.manager.register(self.partition)

    def _wake(self) -> None:
        self.woken += 1

    def receive(self, *frames: ClientFrame, now: float = 0.0) -> None:
        for frame in frames:
            self.server.on_frame(frame, now)

    def request(self, credit: int, number: int = 0, *, now: float = 0.0) -> None:
        self.receive(PartitionRequest(partition_id(), number, number, receiver_id(number), credit), now=now)

    def send(self, limit: int = 1000) -> list[ServerFrame]:
        frames: list[ServerFrame] = []
        while len(frames) < limit and (out := self.server.next_frame()) is not None:
            frame, buffer = out
            if buffer is not None:
                buffer.recycle()
            frames.append(frame)
        return frames

    def send_singly(self) -> list[ServerFrame]:
        """Send everything, frame by frame."""
        frames: list[ServerFrame] = []
        while (taken := self.server.next_frame()) is not None:
            frame, buffer = taken
            frames.append(replace(frame, data=bytes(frame.data)) if buffer is not None else frame)
            if buffer is not None:
                buffer.recycle()
        return frames

    def send_together(self, most: int, most_bytes: int) -> list[ServerFrame]:
        """Send everything, several frames at a time."""
        frames: list[ServerFrame] = []
        while True:
            found = self.server.next_run(most, most_bytes)
            if found is None:
                if (taken := self.server.next_frame()) is None:
                    return frames
                frame, buffer = taken
                frames.append(replace(frame, data=bytes(frame.data)) if buffer is not None else frame)
                if buffer is not None:
                    buffer.recycle()
                continue
            receiver, subpartition, run = found
            assert len(run.buffers) <= most
            for buffer, backlog, sequence in run:
                data = bytes(buffer.view())
                frames.append(
                    BufferResponse(receiver, subpartition, sequence, backlog, buffer.data_type, data)
                )
                buffer.recycle()

    @property
    def reader(self) -> SequenceViewReader:
        return self.server.readers[0]


def types(frames: list[ServerFrame]) -> list[DataType | str]:
    return [f.data_type if isinstance(f, BufferResponse) else type(f).__name__ for f in frames]


def test_F_01_to_F_03_a_reader_is_queued_by_credit_and_sends_as_much_as_it_has() -> None:
    """Data notifications do nothing without credit; three credits are three buffers."""
    producer = Producer()
    producer.request(2)
    producer.reader.add_credit(-2)
    for _ in range(5):
        producer.partition.emit(0, b"x" * 64)
    assert (producer.server.has_more(), producer.reader.credit) == (False, 0)  # F-01
    assert producer.partition.queued == 10
    for expected in (1, 2, 3):
        producer.receive(AddCredit(1, RECEIVER))
        assert (producer.server.has_more(), producer.reader.credit) == (True, expected)  # F-02
    assert types(producer.send()) == [DataType.DATA_BUFFER] * 3  # F-03
    assert producer.reader.credit == 0
    assert producer.server.next_frame() is None


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(
            ["emit 8", "emit 32", "emit 100", "credit", "flush", "barrier", "priority", "resume"]
        ),
        max_size=25,
    ),
    most=st.integers(1, 6),
    most_bytes=st.integers(1, 200),
    subpartitions=st.integers(1, 2),
    first=st.sampled_from([0, LAST_SEQUENCE_NUMBER - 2]),
)
def test_frames_taken_together_are_those_taken_one_by_one(
    steps: list[str], most: int, most_bytes: int, subpartitions: int, first: int
) -> None:
    """Same order, same sequence numbers, same backlog, same use of credit, whatever is queued."""
    single, several = Producer(subpartitions=subpartitions), Producer(subpartitions=subpartitions)
    sent: list[list[ServerFrame]] = [[], []]
    for producer in (single, several):
        for number in range(subpartitions):
            producer.partition.subpartitions[number]._sequence = first
            producer.request(2, number)
    for step in steps:
        for producer, frames in zip((single, several), sent, strict=True):
            act(producer, step, subpartitions)
            frames.extend(
                producer.send_singly() if producer is single else producer.send_together(most, most_bytes)
            )
    assert sent[0] == sent[1]
    assert [r.stats() for r in single.server.readers] == [r.stats() for r in several.server.readers]


def act(producer: Producer, step: str, subpartitions: int) -> None:
    """One step of a random script."""
    name, _, size = step.partition(" ")
    alignment = AlignmentType.UNALIGNED if name == "priority" else AlignmentType.ALIGNED
    if name in ("barrier", "priority"):
        producer.partition.broadcast_event(barrier(1, alignment))
    elif name == "flush":
        producer.partition.flush_all()
    for number in range(subpartitions):
        if name == "emit":
            producer.partition.emit(number, b"x" * int(size))
        elif name == "credit":
            producer.receive(AddCredit(3, receiver_id(number)))
        elif name == "resume" and producer.partition.subpartitions[number].is_blocked:
            producer.receive(ResumeConsumption(receiver_id(number)))


def test_F_04_and_F_05_a_barrier_holds_back_what_is_behind_it_until_resumption() -> None:
    """Only the barrier is sent, then the data."""
    producer = Producer()
    producer.request(2)
    producer.partition.broadcast_event(barrier(1))
    producer.partition.emit(0, b"x")
    producer.partition.flush_all()
    assert types(producer.send()) == [DataType.ALIGNED_CHECKPOINT_BARRIER]  # F-04
    assert (producer.server.has_more(), producer.partition.queued) == (False, 1)
    producer.receive(ResumeConsumption(RECEIVER))
    producer.partition.flush_all()
    assert types(producer.send()) == [DataType.DATA_BUFFER]  # F-05
    assert not producer.server.has_more()


def test_F_06_without_exclusive_buffers_the_backlog_is_announced() -> None:
    """The consumer cannot know otherwise."""
    producer = Producer(exclusive=0)
    producer.request(0)
    producer.partition.emit(0, b"x" * 64)
    producer.partition.broadcast_event(barrier(1))
    assert producer.send() == [BacklogAnnouncement(1, RECEIVER)]
    producer.receive(AddCredit(2, RECEIVER))
    assert types(producer.send()) == [
        DataType.DATA_BUFFER,
        DataType.DATA_BUFFER,
        DataType.ALIGNED_CHECKPOINT_BARRIER,
    ]


def test_F_07_a_request_that_waited_too_long_is_answered_with_not_found() -> None:
    """To that receiver only; the connection goes on."""
    producer = Producer(register=False)
    producer.request(10, now=1.0)
    assert (producer.send(), producer.server.waiting) == ([], 1)
    deadline = producer.manager.next_deadline
    assert deadline == 20.0
    producer.manager.on_time(10.0)
    assert producer.send() == []
    producer.manager.on_time(deadline)
    assert producer.send() == [
        ErrorResponse("PartitionNotFoundException", f"Partition {partition_id()} not found.", RECEIVER)
    ]
    assert (producer.server.waiting, producer.manager.next_deadline) == (0, None)


def test_F_07_a_request_that_times_out_ends_the_credit_of_its_receiver() -> None:
    """PartitionRequestQueue.userEventTriggered forgets the receiver's reader, which goes on with the credit that it has."""
    producer = Producer()
    producer.request(2)
    producer.receive(PartitionRequest(partition_id(1), 0, 0, RECEIVER, 2))
    assert (producer.server.waiting, producer.server.reader_count) == (1, 1)
    producer.manager.on_time(20.0)
    assert types(producer.send()) == ["ErrorResponse"]
    producer.receive(AddCredit(1, RECEIVER))
    refused = producer.send()
    assert isinstance(refused[0], ErrorResponse)
    assert refused[0].message.startswith("No reader for receiverId")
    producer.partition.emit(0, b"x" * 32 * 4)
    assert types(producer.send()) == [DataType.DATA_BUFFER] * 2
    producer.server.on_closed()
    assert not producer.partition.is_released
    producer.partition.close()
    assert producer.partition.is_released


def test_F_08_a_new_buffer_size_never_cuts_the_first_record_of_a_buffer() -> None:
    """128 bytes go out whole, then 65."""
    producer = Producer(segment=1024)
    producer.request(10)
    producer.receive(NewBufferSize(65, RECEIVER), NewBufferSize(65, receiver_id(9)))
    for size in (128, 10, 60):
        assert producer.partition.emit(0, b"x" * size, record_bytes=size) == size
    sizes = [len(f.data) for f in producer.send() if isinstance(f, BufferResponse)]
    assert sizes == [128, 65]


def test_F_09_F_10_resumption_keeps_credit_with_exclusive_buffers_and_drops_it_without() -> None:
    """2 then 4 with initial credit 2; 2 then 0 with initial credit 0."""
    for initial, expected in ((2, [2, 4]), (0, [2, 0])):
        producer = Producer(exclusive=initial)
        producer.request(initial)
        seen = []
        for added in (0, 2) if initial else (2,):
            producer.partition.broadcast_event(barrier(1))
            producer.send()
            if added:
                producer.reader.add_credit(added)
            if not initial:
                seen.append(producer.reader.credit)
            producer.receive(ResumeConsumption(RECEIVER))
            seen.append(producer.reader.credit)
        assert seen == expected


def test_a_consumer_that_resumes_without_being_blocked_gets_an_error_and_stops_nothing() -> None:
    """Without exclusive buffers the resumption takes the credit back that the queued reader relied on: the producer answers
    with Flink's error, which does not escape, and gives every segment back."""
    producer = Producer(exclusive=0)
    producer.request(0)
    producer.partition.emit(0, bytes(100))
    producer.partition.flush_all()
    producer.send()
    producer.receive(AddCredit(2, RECEIVER), ResumeConsumption(RECEIVER))
    frames = producer.send()
    assert isinstance(frames[-1], ErrorResponse)
    assert (frames[-1].class_name, frames[-1].message) == ("IOException", "no credit available")
    assert frames[-1].receiver is None
    assert producer.server.closing
    producer.server.on_closed()
    producer.partition.release()
    assert producer.network.outstanding == 0


def test_F_11_only_a_reader_without_exclusive_buffers_and_credit_announces_its_backlog() -> None:
    """Never with an initial credit."""
    reader = SequenceViewReader(RECEIVER, 0, 2)
    reader.add_credit(-2)
    assert not reader.needs_backlog_announcement
    reader = SequenceViewReader(RECEIVER, 0, 0)
    needs = [reader.needs_backlog_announcement]
    for credit in (2, -2):
        reader.add_credit(credit)
        needs.append(reader.needs_backlog_announcement)
    assert needs == [True, False, True]
    with pytest.raises(FlinkError, match="IllegalArgumentException: Must be non-negative"):
        SequenceViewReader(RECEIVER, 0, -1)


def test_credit_wraps_like_a_java_int() -> None:
    """CreditBasedSequenceNumberingViewReader.addCredit adds two ints."""
    reader = SequenceViewReader(RECEIVER, 0, 2)
    reader.add_credit(2**31 - 1)
    assert reader.credit == -(2**31) + 1


def test_a_repeated_request_replaces_its_reader() -> None:
    """PartitionRequestQueue.notifyReaderCreated: credit is the new reader's, and the old one sends as much as it has. The same
    subpartition cannot be read twice, which is a fatal error."""
    producer = Producer(subpartitions=2)
    producer.request(2)
    producer.receive(PartitionRequest(partition_id(), 1, 1, RECEIVER, 5))
    assert [(r.subpartition, r.credit) for r in producer.server.readers] == [(1, 5)]
    producer.partition.emit(0, b"x" * 32 * 4)
    assert types(producer.send()) == [DataType.DATA_BUFFER] * 2
    producer.receive(AddCredit(1, RECEIVER))
    assert producer.send() == []
    assert producer.reader.credit == 6
    producer.reader.credit = 5
    producer.receive(PartitionRequest(partition_id(), 1, 1, RECEIVER, 7))
    refused = producer.send()
    assert isinstance(refused[0], ErrorResponse)
    assert (refused[0].class_name, refused[0].receiver) == ("IllegalStateException", None)
    assert refused[0].message.startswith(
        "Subpartition 1 of is being (or already has been) consumed, but pipelined"
    )
    assert [(r.subpartition, r.credit) for r in producer.server.readers] == [(1, 5)]


def test_a_request_that_waits_already_is_refused_and_the_new_one_waits() -> None:
    """PartitionRequestListenerManager.registerListener."""
    producer = Producer(register=False)
    producer.request(2)
    producer.request(3)
    refused = producer.send()
    assert isinstance(refused[0], ErrorResponse)
    text = f"Partition request listener with receiver {RECEIVER.hex()} has been registered."
    assert (refused[0].class_name, refused[0].message) == ("IllegalStateException", text)
    producer.manager.register(producer.partition)
    assert producer.reader.credit == 3


def test_readers_take_turns() -> None:
    """One frame each; a channel with much to say does not keep the others waiting."""
    producer = Producer(subpartitions=2)
    for number in (0, 1):
        producer.request(4, number)
        producer.partition.emit(number, b"x" * 32 * 4)
    receivers = [f.receiver for f in producer.send() if isinstance(f, BufferResponse)]
    assert receivers[:6] == [receiver_id(0), receiver_id(1)] * 3


def test_without_credit_a_data_buffer_is_never_taken() -> None:
    """A reader that sends all the same is our bug."""
    producer = Producer()
    producer.request(0)
    producer.partition.emit(0, b"x" * 96)
    with pytest.raises(FlinkError, match="no credit available"):
        producer.reader.poll()


def test_a_late_partition_is_served_without_an_error() -> None:
    """The waiting request is answered when the task registers."""
    producer = Producer(register=False)
    producer.request(2)
    producer.manager.register(producer.partition)
    producer.partition.emit(0, b"x" * 64)
    assert types(producer.send()) == [DataType.DATA_BUFFER]
    assert producer.server.waiting == 0


def test_before_1_19_an_unknown_partition_is_refused_at_once() -> None:
    """The consumer waits, not the producer."""
    producer = Producer(register=False, waits=False)
    producer.request(2)
    (error,) = producer.send()
    assert isinstance(error, ErrorResponse)
    assert (error.class_name, error.receiver) == ("PartitionNotFoundException", RECEIVER)


@pytest.mark.parametrize(
    "frame", [AddCredit(1, RECEIVER), ResumeConsumption(RECEIVER), AckAllUserRecordsProcessed(RECEIVER)]
)
def test_a_message_for_an_unknown_reader_is_fatal_but_keeps_the_connection(frame: ClientFrame) -> None:
    """The response is the same as Flink's."""
    producer = Producer()
    producer.receive(frame)
    text = f"No reader for receiverId = {RECEIVER.hex()} exists."
    assert producer.send() == [ErrorResponse("IllegalStateException", text)]
    assert not producer.server.closing


def test_a_second_consumer_and_a_range_are_refused() -> None:
    """A pipelined subpartition is read once."""
    producer = Producer(subpartitions=2)
    producer.request(2)
    producer.receive(PartitionRequest(partition_id(), 0, 0, receiver_id(7), 2))
    producer.receive(PartitionRequest(partition_id(), 0, 1, receiver_id(8), 2))
    producer.receive(PartitionRequest(partition_id(), 5, 5, receiver_id(9), 2))
    producer.request(2)
    errors = [f for f in producer.send() if isinstance(f, ErrorResponse)]
    assert [e.class_name for e in errors] == [
        "IllegalStateException",
        "UnsupportedOperationException",
        "IndexOutOfBoundsException",
        "IllegalStateException",
    ]


def test_task_events_find_no_receiver_and_segment_ids_no_reader() -> None:
    """The task has ended, no such partition exists, and the hybrid shuffle is not built."""
    producer = Producer()
    event = encode_event(OtherEvent("a.B", b""))
    producer.partition.on_task_event = lambda _: None
    producer.partition.close()
    producer.receive(SegmentId(0, 1, RECEIVER), TaskEventRequest(event, partition_id(), RECEIVER))
    producer.receive(TaskEventRequest(event, partition_id(1), RECEIVER))
    refused = ErrorResponse("IllegalArgumentException", "Task event receiver not found.", RECEIVER)
    assert producer.send() == [refused, refused]


def test_a_task_event_reaches_the_task_that_subscribed() -> None:
    """Flink's TaskEventDispatcher."""
    producer = Producer()
    events: list[object] = []
    producer.partition.on_task_event = events.append
    producer.receive(TaskEventRequest(encode_event(OtherEvent("a.B", b"x")), partition_id(), RECEIVER))
    assert (events, producer.send()) == ([OtherEvent("a.B", b"x")], [])


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (b"", "java.io.IOException: Incomplete event"),
        (b"\0\0\0\x4d", "java.io.IOException: Corrupt byte stream for event"),
        (encode_event(EndOfPartition()), "java.lang.ClassCastException: class EndOfPartition cannot be"),
    ],
)
def test_an_event_that_is_no_task_event_ends_the_connection_of_its_reader(event: bytes, text: str) -> None:
    """Flink reads the event with its frame, also that of a partition that it does not know."""
    producer = Producer(register=False)
    producer.receive(TaskEventRequest(event, partition_id(), RECEIVER))
    [error] = producer.send()
    assert isinstance(error, ErrorResponse)
    assert (error.class_name, error.receiver, producer.server.closing) == ("DecoderException", None, True)
    assert error.message.startswith(text)


def test_a_request_with_negative_credit_is_an_error_that_keeps_the_connection() -> None:
    """Whether the partition exists or not (CreditBasedSequenceNumberingViewReader)."""
    for register in (True, False):
        producer = Producer(register=register)
        producer.request(-1)
        assert producer.send() == [ErrorResponse("IllegalArgumentException", "Must be non-negative.")]
        assert (producer.server.closing, producer.server.readers, producer.server.waiting) == (False, (), 0)


def test_a_failed_producer_is_silent_unless_its_reader_was_about_to_send() -> None:
    """Then that receiver alone learns the cause, in a ProducerFailedException with a SerializedThrowable."""
    for queued in (False, True):
        producer = Producer()
        producer.request(2)
        if queued:
            producer.partition.emit(0, b"x" * 64)
        producer.manager.release(partition_id(), FlinkError("RuntimeException", "boom"))
        text = "java.lang.RuntimeException: java.lang.RuntimeException: boom"
        expected = [ErrorResponse("ProducerFailedException", text, RECEIVER)] if queued else []
        assert producer.send() == expected
        producer.receive(AddCredit(1, RECEIVER))
        assert producer.send() == []
        assert producer.network.outstanding == 0


def test_a_cancelled_request_frees_the_reader_and_goes_on_waiting() -> None:
    """An unknown one is ignored. A partition that comes in time is served, as in Flink's queue, which knows readers only."""
    producer = Producer()
    producer.request(2)
    producer.partition.emit(0, b"x" * 64)
    assert producer.server.has_more()
    producer.receive(CancelPartitionRequest(RECEIVER), CancelPartitionRequest(RECEIVER))
    assert (producer.server.has_more(), producer.server.readers) == (False, ())
    assert not producer.partition.is_released
    waiting = Producer(register=False)
    waiting.request(2)
    waiting.receive(CancelPartitionRequest(RECEIVER))
    assert waiting.manager.waiting == 1
    waiting.partition.emit(0, b"x" * 32)
    waiting.manager.register(waiting.partition)
    assert waiting.reader.receiver == RECEIVER
    waiting.server.on_closed()
    assert waiting.server.waiting == 0


def test_a_waiting_request_for_a_subpartition_that_is_read_already_is_refused_when_it_comes() -> None:
    """Two receivers wait for the same one. The first is served, the second gets the error, and neither waits any more."""
    producer = Producer(register=False)
    producer.request(2)
    producer.receive(PartitionRequest(partition_id(), 0, 0, receiver_id(7), 2))
    assert producer.server.waiting == 2
    producer.manager.register(producer.partition)
    [error] = producer.send()
    assert isinstance(error, ErrorResponse)
    assert (error.class_name, producer.server.waiting) == ("IllegalStateException", 0)
    assert [reader.receiver for reader in producer.server.readers] == [RECEIVER]


def test_each_change_of_the_readers_is_counted() -> None:
    """A request and its cancellation. What neither adds nor removes a reader does not count."""
    producer = Producer()
    counts = [producer.server.generation]
    for act in (
        lambda: producer.request(2),
        lambda: producer.receive(AddCredit(1, RECEIVER)),
        lambda: producer.receive(CancelPartitionRequest(receiver_id(7))),
        lambda: producer.receive(CancelPartitionRequest(RECEIVER)),
        producer.server.on_closed,
    ):
        act()
        counts.append(producer.server.generation)
    assert (counts, producer.server.reader_count) == ([0, 1, 1, 1, 2, 2], 0)


def test_a_consumer_that_reads_no_answers_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers are queued. The third closes the connection, and the queued ones can still be sent."""
    monkeypatch.setattr(server, "MAX_CONTROL_FRAMES", 2)
    producer = Producer(register=False, waits=False)
    assert [(producer.request(2), producer.server.closing)[1] for _ in range(3)] == [False, False, True]
    assert (len(producer.send()), producer.woken) == (2, 3)


def test_a_connection_has_a_limit_of_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the limit may wait."""
    monkeypatch.setattr(server, "MAX_WAITING_REQUESTS", 2)
    producer = Producer(subpartitions=3, register=False)
    for number in range(3):
        producer.request(2, number)
    refused = ErrorResponse(
        "IllegalStateException", f"No further request for receiverId = {receiver_id(2).hex()} is possible."
    )
    assert (producer.send(), producer.server.waiting) == ([refused], 2)


def test_a_close_request_ends_the_connection() -> None:
    """Its readers are released; the partition stays with its task."""
    producer = Producer()
    producer.request(2)
    producer.receive(CloseRequest())
    assert producer.server.closing
    producer.receive(AddCredit(1, RECEIVER), CancelPartitionRequest(RECEIVER), CloseRequest())
    producer.receive(PartitionRequest(partition_id(), 0, 0, receiver_id(7), 2))
    assert producer.send() == []  # what comes after it is not answered
    assert producer.server.readers == ()
    assert not producer.partition.is_released


def test_bytes_that_make_no_sense_are_answered_fatally_and_close() -> None:
    """Everything after it is ignored."""
    producer = Producer()
    producer.request(2)
    producer.server.fail(RemoteProtocolError("wrong", "java.lang.IllegalStateException"))
    producer.server.fail(FlinkError("IOException", "again"))
    producer.receive(AddCredit(1, RECEIVER))
    assert producer.send() == [ErrorResponse("DecoderException", "java.lang.IllegalStateException: wrong")]
    assert producer.server.closing


def test_the_producers_side_is_counted() -> None:
    """Announced includes the initial credit."""
    producer = Producer()
    producer.request(2)
    producer.receive(AddCredit(3, RECEIVER))
    producer.partition.emit(0, b"x" * 96)
    producer.send(1)
    stats = producer.reader.stats()
    assert (stats.credit, stats.announced, stats.used, stats.backlog, stats.queued) == (4, 5, 1, 1, 2)
