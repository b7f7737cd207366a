"""The consumer's end of a connection."""

from __future__ import annotations

import pytest
from exchange_model import PEER, RESOURCE, Consumer, data_frame, deliver, partition_id, receiver_id

from testbed_runtime.core.errors import FlinkError, HeadgateError, LocalProtocolError
from testbed_runtime.core.exchange.client import PartitionRequestClient
from testbed_runtime.core.exchange.events import EndOfSuperstep, encode_event
from testbed_runtime.core.exchange.frames import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
)
from testbed_runtime.core.exchange.memory import Buffer

ZERO, ONE = receiver_id(0), receiver_id(1)


def two_channels() -> Consumer:
    """Set up like Flink's test: 10 segments, 6 of them floating."""
    return Consumer(segments=10, floating=(6, 6), channels=2)


def test_a_connection_is_woken_by_the_first_message_after_it_has_sent_all() -> None:
    """Requests, credit and other messages. Those that follow are sent with it."""
    woken: list[int] = []
    client = PartitionRequestClient(PEER, lambda: woken.append(1), resource_id=RESOURCE)
    channels = Consumer(channels=2).gate.channels
    counts = []
    for act in (
        lambda: [client.add(channel) for channel in channels],
        lambda: client.announce_credit(channels[0]),
        lambda: [client.announce_credit(channel) for channel in channels],
        lambda: [client.send(CloseRequest()) for _ in range(2)],
    ):
        act()
        counts.append((len(woken), client.has_more()))
        while client.next_frame() is not None:
            pass
        assert not client.has_more()
    assert counts == [(number, True) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("names_peer", "peer", "local_peer"),
    [(True, f"{PEER} [ {RESOURCE} ] ", f"{PEER} [{RESOURCE}]"), (False, PEER, PEER)],
)
def test_until_1_14_an_error_names_only_the_address_of_the_peer(
    names_peer: bool, peer: str, local_peer: str
) -> None:
    """CreditBasedPartitionRequestClientHandler.channelInactive and exceptionCaught. The failover knows the TaskManager in both cases."""
    for cause, text in (
        (None, f"Connection unexpectedly closed by remote task manager '{peer}'. "),
        (ConnectionResetError("Connection reset by peer"), f"Lost connection to task manager '{peer}'. "),
        (OSError("some error"), f"some error (connection to '{local_peer}')"),
    ):
        client = PartitionRequestClient(PEER, lambda: None, resource_id=RESOURCE, names_peer=names_peer)
        client.on_closed(cause)
        assert client.error is not None
        assert client.error.message.startswith(text)
        assert client.error.lost_taskmanager == RESOURCE


def test_G_01_and_G_02_credit_is_announced_for_the_backlog() -> None:
    """Two requests with credit 2; AddCredit is written when the connection is asked for it."""
    consumer = two_channels()
    assert consumer.connect() == [
        PartitionRequest(partition_id(), 0, 0, ZERO, 2),
        PartitionRequest(partition_id(), 1, 1, ONE, 2),
    ]
    for number in (0, 1):
        deliver(consumer.client, data_frame(number, 0, 1))
    assert [consumer.channel(n).buffers.unannounced for n in (0, 1)] == [2, 2]
    assert consumer.sent() == [AddCredit(2, ZERO), AddCredit(2, ONE)]
    # G-02: nothing is pulled while the connection is not writable
    deliver(consumer.client, data_frame(0, 1, 1))
    assert [consumer.channel(n).buffers.unannounced for n in (0, 1)] == [1, 0]
    assert consumer.sent() == [AddCredit(1, ZERO)]
    assert [consumer.channel(n).buffers.unannounced for n in (0, 1)] == [0, 0]


def test_G_03_the_last_channel_closes_a_connection_that_is_not_kept() -> None:
    """Its credit is announced no more."""
    consumer = Consumer(reuse=False)
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 1))
    consumer.channel().release()
    assert consumer.sent() == [CloseRequest()]
    assert consumer.client.closing


def test_with_reuse_the_last_channel_only_cancels_its_request() -> None:
    """The connection is used again."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 1))
    consumer.channel().release()
    assert consumer.sent() == [CancelPartitionRequest(ZERO)]
    assert not consumer.client.closing


def test_G_04_a_data_buffer_without_credit_fails_the_channel() -> None:
    """The sender broke the contract."""
    consumer = Consumer(exclusive=0)
    consumer.connect()
    assert not deliver(consumer.client, data_frame(0, 0, 0))
    with pytest.raises(
        FlinkError, match=r"IllegalStateException: The read buffer is null in credit-based input channel\."
    ):
        consumer.gate.poll()


def test_G_05_what_comes_for_a_released_channel_is_thrown_away_and_cancelled() -> None:
    """Data, backlog, and a buffer that was allocated before the release."""
    consumer = Consumer()
    consumer.connect()
    held = consumer.client.allocate(ZERO, 1, DataType.DATA_BUFFER)
    assert isinstance(held, Buffer)
    consumer.channel().release()
    consumer.sent()
    assert not deliver(consumer.client, data_frame(0, 0, 0))
    consumer.client.on_frame(data_frame(0, 0, 0), held)
    consumer.client.on_frame(BacklogAnnouncement(3, ZERO))
    assert consumer.sent() == [CancelPartitionRequest(ZERO)] * 3
    with pytest.raises(LocalProtocolError):
        held.view()  # it was recycled


def test_G_06_a_partition_that_is_not_found_is_no_failure_yet() -> None:
    """The owner is asked; other channels see nothing."""
    consumer = two_channels()
    consumer.connect()
    consumer.client.on_frame(ErrorResponse("PartitionNotFoundException", "Partition p not found.", ONE))
    assert consumer.not_found == [consumer.channel(1)]
    assert consumer.gate.poll() is None
    consumer.client.on_frame(ErrorResponse("PartitionNotFoundException", "gone", receiver_id(9)))
    assert len(consumer.not_found) == 1


def test_G_07_one_failed_channel_does_not_fail_the_others() -> None:
    """Its data is lost, theirs is not."""
    consumer = two_channels()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 5, 0))
    deliver(consumer.client, data_frame(1, 0, 0))
    assert consumer.client.error is None
    with pytest.raises(FlinkError, match="re-ordering"):
        consumer.gate.poll()
    item = consumer.gate.poll()
    assert item is not None
    assert item[0] == 1


def test_G_08_a_buffer_size_is_announced_with_its_receiver() -> None:
    """333 bytes."""
    consumer = Consumer()
    consumer.connect()
    consumer.gate.announce_buffer_size(333)
    assert consumer.sent() == [NewBufferSize(333, ZERO)]


CLOSED = (
    f"RemoteTransportException: Connection unexpectedly closed by remote task manager '{PEER} [ {RESOURCE} ] '. "
    "This might indicate that the remote task manager was lost."
)


@pytest.mark.parametrize(
    ("error", "expected", "lost"),
    [
        (None, CLOSED, RESOURCE),
        (BrokenPipeError(32, "Broken pipe"), CLOSED, RESOURCE),
        (
            OSError(104, "Connection reset by peer"),
            f"RemoteTransportException: Lost connection to task manager '{PEER} [ {RESOURCE} ] '. "
            "This indicates that the remote task manager was lost.",
            RESOURCE,
        ),
        (
            HeadgateError("bad bytes"),
            f"LocalTransportException: bad bytes (connection to '{PEER} [{RESOURCE}]')",
            RESOURCE,
        ),
        (FlinkError("RemoteTransportException", "as it is"), "RemoteTransportException: as it is", ""),
    ],
)
def test_a_lost_connection_fails_every_channel_in_flinks_words(
    error: Exception | None, expected: str, lost: str
) -> None:
    """Only the first failure counts; nothing is sent any more, and a new channel fails at once."""
    consumer = two_channels()
    consumer.client.add(consumer.channel(0))
    consumer.client.on_closed(error)
    consumer.client.on_closed(None)
    consumer.client.add(consumer.channel(1))
    for _ in range(2):
        with pytest.raises(FlinkError) as caught:
            consumer.gate.poll()
        assert str(caught.value) == expected
        assert caught.value.lost_taskmanager == lost
    assert consumer.sent() == []
    consumer.gate.close()
    assert consumer.network.outstanding == 0


@pytest.mark.parametrize("error", [OSError(104, "Connection reset by peer"), ConnectionResetError()])
def test_G_12_a_connection_that_the_peer_resets_fails_its_channels_with_that_as_the_cause(
    error: OSError,
) -> None:
    """The message itself names the TaskManager instead."""
    consumer = two_channels()
    consumer.client.add(consumer.channel(0))
    consumer.client.on_closed(error)
    failure = consumer.channel(0).error
    assert failure is not None
    assert "reset" not in failure.message
    assert "IOException: Connection reset by peer" in str(failure.__cause__ or "")


def test_an_error_response_names_its_channel_or_is_fatal_for_all() -> None:
    """The producer's own words are the cause."""
    consumer = two_channels()
    consumer.connect()
    consumer.client.on_frame(ErrorResponse("IOException", "disk", ONE))
    with pytest.raises(FlinkError) as caught:
        consumer.gate.poll()
    assert caught.value.message == f"Error at remote task manager '{PEER} [ {RESOURCE} ] '."
    assert str(caught.value.__cause__) == "IOException: disk"
    consumer.client.on_frame(ErrorResponse("IllegalStateException", "No reader"))
    with pytest.raises(FlinkError, match="Fatal error at remote task manager"):
        consumer.gate.poll()


def test_partial_buffers_arrive_one_by_one() -> None:
    """Consecutive sequence numbers, one credit, one segment."""
    consumer = Consumer()
    consumer.connect()
    frame = BufferResponse(ZERO, 0, 0, 0, DataType.DATA_BUFFER, b"abcde", partials=(2, 3))
    deliver(consumer.client, frame)
    views, home = [], []
    for _ in range(2):
        item = consumer.gate.poll()
        assert item is not None
        assert isinstance(item[1], Buffer)
        views.append(bytes(item[1].view()))
        home.append(consumer.channel().stats().exclusive)
        item[1].recycle()
    home.append(consumer.channel().stats().exclusive)
    assert (views, home) == ([b"ab", b"cde"], [1, 1, 2])
    deliver(consumer.client, data_frame(0, 2, 0))
    assert consumer.gate.poll() is not None


def test_in_legacy_mode_reading_stops_until_the_channel_has_a_buffer() -> None:
    """No error, no AddCredit: the connection waits."""
    consumer = Consumer(segments=4, floating=(1, 1), exclusive=1, credit_based=False)
    consumer.connect()
    client = consumer.client
    sequence = 0
    while isinstance(buffer := client.allocate(ZERO, 1, DataType.DATA_BUFFER), Buffer):
        client.on_frame(data_frame(0, sequence, 0), buffer)
        sequence += 1
    assert (buffer, sequence, consumer.resumed) == (None, 2, 0)
    item = consumer.gate.poll()
    assert item is not None
    assert isinstance(item[1], Buffer)
    item[1].recycle()
    assert consumer.resumed == 1
    assert isinstance(client.allocate(ZERO, 1, DataType.DATA_BUFFER), Buffer)
    assert consumer.sent() == []


def test_in_legacy_mode_a_released_channel_lets_the_connection_go_on() -> None:
    """Else every other channel of the connection would wait for it."""
    consumer = Consumer(segments=4, floating=(1, 1), exclusive=1, credit_based=False)
    consumer.connect()
    while isinstance(buffer := consumer.client.allocate(ZERO, 1, DataType.DATA_BUFFER), Buffer):
        buffer.data_type = DataType.DATA_BUFFER
    consumer.gate.close()
    assert consumer.resumed == 1


def test_messages_of_a_released_channel_are_not_sent() -> None:
    """CreditBasedPartitionRequestClientHandler.writeAndFlushNextMessageIfPossible drops them; task events were written already."""
    consumer = Consumer(channels=2, floating=(4, 4))
    consumer.connect()
    for number in (0, 1):
        channel = consumer.channel(number)
        channel.resume_consumption()
        channel.acknowledge_all_records_processed()
        channel.announce_buffer_size(64)
    consumer.channel(0).release()
    expected = [ResumeConsumption(ONE), AckAllUserRecordsProcessed(ONE), NewBufferSize(64, ONE)]
    assert consumer.sent() == [*expected, CancelPartitionRequest(ZERO)]


def test_G_13_an_announced_backlog_takes_floating_buffers() -> None:
    """testReceiveBacklogAnnouncement: 10 segments, 8 floating; a backlog of 5, then of 12."""
    consumer = Consumer(segments=10, floating=(8, 8))
    consumer.connect()
    manager = consumer.channel().buffers
    assert manager is not None
    assert (manager.available, manager.available_floating) == (2, 0)
    for backlog, available, required, floating in ((5, 7, 7, 5), (12, 10, 14, 8)):
        consumer.client.on_frame(BacklogAnnouncement(backlog, ZERO))
        assert (manager.available, manager.required, manager.available_floating) == (
            available,
            required,
            floating,
        )


def test_G_14_an_empty_buffer_is_no_error() -> None:
    """testReceiveEmptyBuffer: it brings its backlog, and needs no credit."""
    consumer = Consumer()
    consumer.connect()
    deliver(consumer.client, data_frame(0, 0, 2, b""))
    assert (consumer.gate.poll(), consumer.channel().error) == (None, None)
    assert consumer.channel().buffers.unannounced == 3
    while consumer.channel().request_buffer() is not None:
        pass
    deliver(consumer.client, data_frame(0, 1, 0, b""))
    assert (consumer.gate.poll(), consumer.channel().error) == (None, None)


def test_G_15_a_request_is_sent_again_with_the_same_credit() -> None:
    """testRetriggerPartitionRequest and testDoublePartitionRequest: one request at first, and one for each retrigger."""
    consumer = Consumer(backoff=(1, 2, 1, True))
    request = PartitionRequest(partition_id(), 0, 0, ZERO, 2)
    assert consumer.connect() == [request]
    assert consumer.sent() == []
    consumer.channel().retrigger(0.0)
    assert consumer.sent() == [request]


def test_G_16_messages_about_a_channel_follow_its_request() -> None:
    """testResumeConsumption and testAcknowledgeAllRecordsProcessed: each is sent once."""
    consumer = Consumer()
    consumer.connect()
    consumer.channel().resume_consumption()
    assert consumer.sent() == [ResumeConsumption(ZERO)]
    consumer.channel().acknowledge_all_records_processed()
    assert consumer.sent() == [AckAllUserRecordsProcessed(ZERO)]


def test_an_event_that_arrives_at_an_empty_channel_makes_it_ready() -> None:
    """Behind data, the channel is ready already. A second event wakes nothing, and both are read in their order."""
    consumer = Consumer()
    consumer.connect()
    woken = []
    for sequence in range(2):
        deliver(
            consumer.client,
            BufferResponse(ZERO, 0, sequence, 0, DataType.EVENT_BUFFER, encode_event(EndOfSuperstep())),
        )
        woken.append(consumer.woken)
    assert woken == [1, 1]
    assert [consumer.gate.poll() is not None for _ in range(3)] == [True, True, False]
