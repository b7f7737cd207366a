"""The edges of a channel: buffers that are repeated or empty, and segments that are reserved for it."""

from __future__ import annotations

import pytest
from exchange_model import Consumer, data_frame, deliver, nothing, receiver_id

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import NetworkBufferPool
from testbed_runtime.core.exchange.credit import BufferManager
from testbed_runtime.core.exchange.frames import BacklogAnnouncement


@pytest.mark.parametrize("data", [b"", b"x"])
def test_a_repeated_buffer_fails_the_channel_even_if_it_is_empty(data: bytes) -> None:
    """Its number was expected before. Nothing is announced for it."""
    consumer = Consumer()
    consumer.connect()
    for _ in range(2):
        deliver(consumer.client, data_frame(0, 0, 0, data))
    with pytest.raises(FlinkError, match=r"expected buffer with sequence number 1, but received 0\."):
        consumer.gate.poll()


def test_exclusive_segments_are_taken_from_the_pools_that_can_give_them() -> None:
    """A pool above what it requires shrinks at the reservation, not only when the next pool is created."""
    network = NetworkBufferPool(8, 32)
    pool = network.create_buffer_pool(2, 8)
    assert pool.size == 8
    request = network.request_unpooled(3)
    assert (pool.size, network.required) == (5, 5)
    segments = request.poll()
    assert segments is not None
    network.recycle_unpooled(segments)
    assert (pool.size, network.required) == (8, 2)


def test_a_channel_without_credit_waits_for_a_floating_buffer() -> None:
    """Legacy mode: it takes one of the pool, or is called once when one comes back. The buffer goes back to the pool."""
    network = NetworkBufferPool(2, 32)
    pool = network.create_buffer_pool(1, 1)
    first, second = (BufferManager(network, pool, 0, nothing) for _ in range(2))
    woken: list[str] = []
    buffer = first.request_or_wait(lambda: woken.append("first"))
    assert buffer is not None
    assert second.request_or_wait(lambda: woken.append("second")) is None
    assert woken == []
    buffer.recycle()
    assert woken == ["second"]
    given = second.request_or_wait(lambda: woken.append("again"))
    assert given is not None
    given.recycle()
    assert (woken, pool.available_segments) == (["second"], 1)


@pytest.mark.parametrize("frame", [BacklogAnnouncement(3, receiver_id(0)), None])
def test_A_19_the_backlog_of_a_failed_channel_raises_its_error_if_it_brings_new_credit(
    frame: BacklogAnnouncement | None,
) -> None:
    """RemoteInputChannel.notifyCreditAvailable raises it; the connection ignores it (CreditBasedPartitionRequestClientHandler)."""
    consumer = Consumer()
    consumer.connect()
    consumer.channel().on_error(FlinkError("IOException", "lost"))
    if frame is not None:
        consumer.client.on_frame(frame)
    else:
        with pytest.raises(FlinkError) as caught:
            consumer.channel().on_sender_backlog(3)
        assert caught.value is consumer.channel().error
    assert consumer.channel().buffers.unannounced == 3
    consumer.channel().on_sender_backlog(4)
    assert consumer.sent() == []


def test_a_backlog_that_overflows_an_int_asks_for_nothing() -> None:
    """BufferManager adds Java ints: 2^31 - 1 and two exclusive buffers are less than none."""
    consumer = Consumer()
    consumer.connect()
    channel = consumer.channel()
    channel.on_sender_backlog(2**31 - 1)
    assert channel.buffers is not None
    assert (channel.buffers.required, channel.buffers.unannounced) == (-(2**31) + 1, 0)
    assert channel.buffers_in_use == 2**31 - 1  # and two less than that are more than ever
