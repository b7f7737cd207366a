"""The concurrent cases of RemoteInputChannelTest. Headgate has no threads, so every order of their steps is possible one by one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from testbed_runtime.core.exchange.buffers import Buffer
from testbed_runtime.core.exchange.frames import DataType
from tests.core.exchange_model import Consumer

Step = Callable[[], object]
seeds = pytest.mark.parametrize("seed", range(20))


def connected(segments: int, floating: int, exclusive: int = 2) -> Consumer:
    consumer = Consumer(segments=segments, floating=(floating, floating), exclusive=exclusive)
    consumer.connect()
    return consumer


def interleave(seed: int, *sequences: list[Step]) -> None:
    """Make the steps of all sequences in some order that keeps that of each."""
    draw, left = Random(seed), [list(reversed(steps)) for steps in sequences]
    while left := [steps for steps in left if steps]:
        draw.choice(left).pop()()


def backlogs(consumer: Consumer, most: int) -> list[Step]:
    def step(backlog: int) -> Step:
        return lambda: consumer.channel().on_sender_backlog(backlog)

    return [step(backlog) for backlog in range(1, most + 1)]


def recycling(consumer: Consumer, seed: int) -> list[Step]:
    """Take all exclusive buffers of the channel and all of the pool. Return the steps that give them back."""
    channel, pool = consumer.channel(), consumer.pool
    taken = [channel.request_buffer() for _ in range(consumer.exclusive)]
    taken += [pool.request() for _ in range(pool.maximum)]
    buffers = [buffer for buffer in taken if buffer is not None]
    assert len(buffers) == consumer.exclusive + pool.maximum
    Random(seed).shuffle(buffers)
    return [buffer.recycle for buffer in buffers]


def available(consumer: Consumer) -> int:
    buffers = consumer.channel().buffers
    assert buffers is not None
    return buffers.available


@seeds
def test_A_71_a_channel_that_is_released_between_two_backlogs_keeps_no_buffer(seed: int) -> None:
    """testConcurrentOnSenderBacklogAndRelease: 130 buffers, 128 of them floating."""
    consumer = connected(130, 128)
    interleave(seed, backlogs(consumer, 128), [consumer.channel().release])
    assert available(consumer) == 0
    assert consumer.pool.available_segments + consumer.network.free == 130


@seeds
def test_A_79_a_buffer_that_is_offered_to_a_released_channel_stays_in_its_pool(seed: int) -> None:
    """testConcurrentNotifyBufferAvailableAndRelease: the channel waits for 128 floating buffers, which return one by one."""
    consumer = connected(130, 128)
    taken = [consumer.pool.request() for _ in range(128)]
    consumer.channel().on_sender_backlog(128)
    returns = [buffer.recycle for buffer in taken if buffer is not None]
    interleave(seed, list(returns), [consumer.channel().release])
    assert available(consumer) == 0
    assert consumer.pool.available_segments + consumer.network.free == 130


@seeds
def test_A_72_a_channel_has_all_that_its_backlog_needs_when_everything_has_returned(seed: int) -> None:
    """testConcurrentOnSenderBacklogAndRecycle: 120 exclusive and 128 floating buffers return while the backlog grows to 128."""
    consumer = connected(248, 128, 120)
    interleave(seed, recycling(consumer, seed), backlogs(consumer, 128))
    buffers = consumer.channel().buffers
    assert buffers is not None
    assert (buffers.available, buffers.required) == (248, 248)
    assert consumer.pool.available_segments == 0


@seeds
def test_A_73_the_buffers_of_a_channel_that_is_released_return_to_their_own_pools(seed: int) -> None:
    """testConcurrentRecycleAndRelease: 128 to the pool of the gate, 120 to the TaskManager."""
    consumer = connected(248, 128, 120)
    interleave(seed, recycling(consumer, seed), [consumer.channel().release])
    assert available(consumer) == 0
    assert (consumer.pool.available_segments, consumer.network.free) == (128, 120)


@seeds
def test_A_74_the_exclusive_buffers_of_a_channel_stay_its_own(seed: int) -> None:
    """testConcurrentRecycleAndRelease2: a user of the pool of two takes one buffer at a time, and the channel all that it has."""
    consumer, draw = connected(4, 2), Random(seed)
    channel, manager = consumer.channel(), consumer.channel().buffers
    held: Buffer | None = None
    for _ in range(200):
        if held is None and draw.random() < 0.5:
            held = consumer.pool.request()
        taken: list[Buffer] = []
        while len(taken) < 4 and (buffer := channel.request_buffer()) is not None:
            taken.append(buffer)
        exclusive = [buffer for buffer in taken if buffer._home is manager]
        for buffer in taken:
            if buffer not in exclusive:
                buffer.recycle()
        assert len(exclusive) == 2
        channel.on_sender_backlog(0)
        if held is not None and draw.random() < 0.5:
            held.recycle()
            held = None
        for buffer in exclusive:
            buffer.recycle()
    channel.release()
    if held is not None:
        held.recycle()
    assert consumer.pool.available_segments + consumer.network.free == 4


@seeds
@pytest.mark.parametrize("reads", [False, True], ids=["arrives", "arrives and is read"])
def test_A_75_what_arrives_for_a_channel_that_is_released_is_recycled(seed: int, reads: bool) -> None:
    """testConcurrentOnBufferAndRelease, testConcurrentGetNextBufferAndRelease: of 128 buffers, those that were not read return."""
    consumer = connected(130, 128)
    channel = consumer.channel()
    buffers = [consumer.pool.request() for _ in range(128)]
    held: list[Buffer] = []

    def arrive(number: int) -> Step:
        buffer = buffers[number]
        assert buffer is not None
        buffer.fill_view(1)[:] = b"x"
        buffer.data_type = DataType.DATA_BUFFER
        return lambda: channel.on_buffer(buffer, number, -1)

    def read() -> None:
        if not channel.is_released and (taken := channel.take()) is not None:
            held.append(taken.buffer)

    reading = [read] * 128 if reads else []
    interleave(seed, [arrive(number) for number in range(128)], [channel.release], reading)
    assert consumer.network.free + consumer.pool.available_segments == 130 - len(held)
    for buffer in held:
        buffer.recycle()
    assert consumer.network.free + consumer.pool.available_segments == 130
