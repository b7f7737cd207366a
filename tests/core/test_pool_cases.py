"""Cases of RemoteInputChannelTest, BufferPoolFactoryTest and LocalBufferPoolTest: floating buffers, and segments shared among pools."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest
from exchange_model import CountingPool, nothing
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.credit import BufferManager
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, MemorySegment
from testbed_runtime.core.values import MAX_INT

SEGMENTS, SEGMENT_BYTES = 1024, 128


class Channel:
    """A channel with 2 exclusive and 14 floating buffers, of which one each is in use."""

    def __init__(self) -> None:
        network = NetworkBufferPool(16, 32)
        self.pool = network.create_buffer_pool(14, 14)
        self.counting = CountingPool(self.pool)
        self.manager = BufferManager(network, self.counting, 2, nothing)  # type: ignore[arg-type]
        self.manager.assign_exclusive(self.manager.request_exclusive().poll() or [])
        self.exclusive = self.manager.request_buffer()
        self.floating = self.counting.request_segment()

    def recycle_exclusive(self) -> None:
        assert self.exclusive is not None
        self.exclusive.recycle()

    def recycle_floating(self) -> None:
        assert self.floating is not None
        self.pool.recycle(self.floating)

    def state(self) -> tuple[int, int, int, int]:
        """Required, available, free in the pool; requests to the pool. The channel never waits."""
        manager, counting = self.manager, self.counting
        assert not manager.waiting
        assert counting.registrations == 0
        return manager.required, manager.available, self.pool.available_segments, counting.requests


def test_A_08_to_A_10_a_channel_with_enough_buffers_gives_surplus_back() -> None:
    """Available equals required: both what comes back to the pool and what comes back to the channel make one more free."""
    channel = Channel()
    channel.manager.on_sender_backlog(12)
    assert channel.state() == (14, 14, 0, 14)
    channel.recycle_floating()
    assert channel.state() == (14, 14, 1, 14)
    channel.recycle_exclusive()
    assert channel.state() == (14, 14, 2, 14)


def test_A_11_to_A_13_a_smaller_backlog_gives_back_only_what_is_recycled() -> None:
    """Available exceeds required: the floating buffers stay until an exclusive one returns."""
    channel = Channel()
    channel.manager.on_sender_backlog(12)
    channel.manager.on_sender_backlog(10)
    assert channel.state() == (12, 14, 0, 14)
    channel.recycle_exclusive()
    assert channel.state() == (12, 14, 1, 14)
    channel.recycle_floating()
    assert channel.state() == (12, 14, 2, 14)


def test_D_07_a_pool_that_was_promised_more_than_is_free_gets_what_the_other_returns() -> None:
    """The first pool has 513 of 1,024 segments in use when the second one, which requires 513, is created."""
    network, held = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES), list[Buffer]()

    def take(pool: LocalBufferPool, count: int) -> None:
        for _ in range(count):
            buffer = pool.request()
            assert buffer is not None
            held.append(buffer)

    first = network.create_buffer_pool(511, SEGMENTS)
    take(first, 513)
    assert (first.used, first.size) == (513, SEGMENTS)
    second = network.create_buffer_pool(513, SEGMENTS)
    assert (first.size, second.size) == (511, 513)
    assert first.request() is None
    take(second, 511)
    assert second.used == 511
    assert second.request() is None
    held[0].recycle()
    assert network.free == 0
    assert [pool.used + pool.available_segments for pool in (first, second)] == [512, 512]


def test_D_08_exclusive_segments_shrink_the_pools_and_grow_them_when_they_return() -> None:
    """10 segments, two pools of 1 to 10, and three times two exclusive ones."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    pools = [network.create_buffer_pool(1, 10)]
    sizes = [[pool.size for pool in pools]]
    requested = [network.request_unpooled(2).poll() or []]
    sizes.append([pool.size for pool in pools])
    pools.append(network.create_buffer_pool(1, 10))
    sizes.append([pool.size for pool in pools])
    for _ in range(2):
        requested.append(network.request_unpooled(2).poll() or [])
        sizes.append([pool.size for pool in pools])
    assert sizes == [[10], [8], [4, 4], [3, 3], [2, 2]]
    free = [network.free]
    for segments in requested:
        network.recycle_unpooled(segments)
        free.append(network.free)
        sizes.append([pool.size for pool in pools])
    assert sizes[5:] == [[3, 3], [4, 4], [5, 5]]
    pools[0].destroy()
    assert (free, network.free, pools[1].size) == ([2, 4, 6, 8], 9, 10)


@pytest.mark.parametrize("in_batch", [False, True])
def test_D_08_a_pool_that_waits_gets_a_returned_exclusive_segment_before_another_pool_grows(
    in_batch: bool,
) -> None:
    """NetworkBufferPool.recycleUnpooledMemorySegments offers the segment before it shares out what the reservation held."""
    network = NetworkBufferPool(4, SEGMENT_BYTES)
    overdrawn = network.create_buffer_pool(1, 1, subpartitions=1, max_overdraft=1)
    growing = network.create_buffer_pool(1, 2)
    held = network.request_unpooled(1).poll()
    taken = [overdrawn.request_segment(), overdrawn.request_segment(), growing.request_segment()]
    waiting = network.create_buffer_pool(1, 1)
    assert held is not None
    assert None not in taken
    assert (network.free, growing.size, waiting.available_segments) == (0, 1, 0)
    with network.batch() if in_batch else nullcontext():
        network.recycle_unpooled(held)
    assert (network.free, growing.size) == (0, 2)
    assert (growing.available_segments, waiting.available_segments) == (0, 1)


def test_D_09_segments_are_shared_in_proportion_to_how_far_each_pool_may_grow() -> None:
    """Two pools of 1 to 10, and one or two without a limit."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    pools = [network.create_buffer_pool(1, 10) for _ in range(2)]
    assert [pool.size for pool in pools] == [10, 10]
    for unbounded in (1, 2):
        pools.append(network.create_buffer_pool(1, MAX_INT))
        left = SEGMENTS - len(pools)
        for pool in pools:
            least = left * min(left, pool.maximum - 1) // (unbounded * left + 18) + 1
            assert pool.size in (least, least + 1)


def test_D_10_a_single_pool_gets_all_and_none_may_require_more() -> None:
    """One that requires too much, alone or together with another, is refused."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    with pytest.raises(FlinkError, match="Insufficient number of network buffers"):
        network.create_buffer_pool(SEGMENTS + 1, MAX_INT)
    assert network.create_buffer_pool(513, MAX_INT).size == SEGMENTS
    with pytest.raises(FlinkError, match="Insufficient number of network buffers"):
        network.create_buffer_pool(513, SEGMENTS)


def a_pool(size: int, *, required: int = 1, most: int = MAX_INT, **limits: int) -> LocalBufferPool:
    """A pool of this size, which no other pool changes."""
    pool = LocalBufferPool(NetworkBufferPool(SEGMENTS, SEGMENT_BYTES), required, most, **limits)
    pool.refresh()
    pool.set_num_buffers(size)
    return pool


@pytest.mark.parametrize(
    ("most", "small", "large", "overdraft", "available"),
    [
        pytest.param(100, 5, 6, 1, 0, id="E-07"),
        pytest.param(100, 5, 7, 0, 0, id="E-08"),
        pytest.param(100, 5, 8, 0, 1, id="E-09"),
        pytest.param(10, 8, 10, 0, 0, id="E-10"),
    ],
)
def test_E_07_to_E_10_a_pool_that_grows_covers_its_overdraft_first(
    most: int, small: int, large: int, overdraft: int, available: int
) -> None:
    """All segments and two overdraft ones are in use."""
    pool = a_pool(small, required=small, most=most, max_overdraft=2)
    taken = [pool.request_segment() for _ in range(small + 2)]
    assert None not in taken
    assert pool.request_segment() is None
    assert (pool.overdraft, pool.is_available) == (2, False)
    pool.set_num_buffers(large)
    assert (pool.overdraft, pool.available_segments) == (overdraft, available)
    assert pool.is_available is (available > 0)


@pytest.mark.parametrize("overdraft", [0, 1, 2])
@pytest.mark.parametrize("channels", [(2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize(("size", "most"), [(4, 3), (8, 5), (12, 10)])
def test_E_22_overdraft_begins_when_the_pool_is_used_up_and_ends_first(
    size: int, most: int, channels: tuple[int, int], overdraft: int
) -> None:
    """`most` buffers for each of the channels, of which some write."""
    count, writing = channels
    pool = a_pool(size, subpartitions=count, max_buffers_per_channel=most, max_overdraft=overdraft)
    builders: list[BufferBuilder] = []
    for number in range(size + overdraft):
        builder = pool.request_builder(number % writing)
        assert builder is not None
        builders.append(builder)
        free = number + 1 < size and number < writing * (most - 1)
        assert (pool.overdraft, pool.used) == (max(0, number + 1 - size), number + 1)
        assert pool.is_available is free
    assert [pool.request_builder(channel) for channel in range(count)] == [None] * count
    for builder in builders[size:]:
        builder.release()
    assert (pool.overdraft, pool.used, pool.is_available) == (0, size, False)
    for channel in range(writing):
        for builder in builders[channel:size:writing]:
            builder.release()
        assert pool.is_available
    assert pool.used == 0


def test_E_23_a_smaller_pool_gives_back_free_segments_at_once() -> None:
    """All 1,024 came back before the size was halved."""
    pool = a_pool(SEGMENTS)
    taken = [pool.request_segment() for _ in range(SEGMENTS)]
    for segment in taken:
        assert segment is not None
        pool.recycle(segment)
    assert pool.available_segments == SEGMENTS
    pool.set_num_buffers(SEGMENTS // 2)
    assert pool.available_segments == SEGMENTS // 2


def test_E_24_a_destroyed_pool_takes_no_segments() -> None:
    """Its size may still be set."""
    pool = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES).create_buffer_pool(1, 3)
    pool.set_num_buffers(2)
    pool.destroy()
    pool.set_num_buffers(3)
    assert (pool.size, pool.available_segments) == (3, 0)


def test_E_25_a_listener_that_gives_its_segment_back_serves_the_next_one() -> None:
    """Afterwards a segment is free, and no listener can be added."""
    pool, served = a_pool(1), list[int]()
    segment = pool.request_segment()
    assert segment is not None
    assert pool.request_segment() is None

    def listener(number: int) -> bool:
        def offered(offer: MemorySegment) -> bool:
            served.append(number)
            pool.recycle(offer)
            return True

        return pool.add_listener(offered)

    assert listener(1)
    assert listener(2)
    pool.recycle(segment)
    assert served == [1, 2]
    assert not listener(3)


@pytest.mark.parametrize("overdraft", [0, 5])
def test_E_26_who_waits_at_a_pool_gets_what_another_pool_returns(overdraft: int) -> None:
    """1,023 of 1,024 segments are in use when a pool is created that requires 512."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    first = network.create_buffer_pool(512, 2048, max_overdraft=overdraft)
    taken = [first.request_segment() for _ in range(1023)]
    second = network.create_buffer_pool(512, 512, max_overdraft=overdraft)
    got: list[MemorySegment] = []

    def take() -> None:
        while len(got) < 512 and (segment := second.request_segment()) is not None:
            got.append(segment)
        if len(got) < 512:
            second.when_available(take)

    take()
    for segment in taken:
        assert segment is not None
        first.recycle(segment)
    first.destroy()
    assert len(got) == 512
    for segment in got:
        second.recycle(segment)
    second.destroy()
    assert network.outstanding == 0


def test_D_15_two_pools_share_what_one_had_and_give_it_back() -> None:
    """testCreateDestroy, and testUniformDistributionBounded1 with a maximum of all segments."""
    for most in (MAX_INT, SEGMENTS):
        network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
        first = network.create_buffer_pool(1, most)
        assert first.size == SEGMENTS
        second = network.create_buffer_pool(1, most)
        assert (first.size, second.size) == (SEGMENTS // 2, SEGMENTS // 2)
        first.destroy()
        assert second.size == SEGMENTS


@given(st.lists(st.tuples(st.integers(1, 7), st.none() | st.integers(0, 9)), min_size=1, max_size=32))
def test_D_16_all_segments_are_distributed_as_far_as_the_pools_take_them(
    pools: list[tuple[int, int | None]],
) -> None:
    """testAllDistributed: after each new pool, whatever their order and bounds."""
    network, made, wanted = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES), list[LocalBufferPool](), 0
    for required, more in pools:
        maximum = MAX_INT if more is None else max(1, more + required)
        made.append(network.create_buffer_pool(required, maximum))
        wanted = min(SEGMENTS, wanted + maximum)
        assert sum(pool.size for pool in made) == wanted
    for pool in made:
        pool.destroy()
    assert (network.free, network.required, network.pools) == (SEGMENTS, 0, [])


def test_D_17_the_network_pool_is_available_while_a_segment_is_free() -> None:
    """testIsAvailableOrNotAfterRequestAndRecycleSingleSegment and …MultiSegments."""
    network, woken = NetworkBufferPool(2, SEGMENT_BYTES), list[int]()
    taken = [network.request()]
    assert network.is_available
    taken.append(network.request())
    assert not network.is_available
    network.when_available(lambda: woken.append(network.free))
    for segment, free in zip(taken, (1, 2), strict=True):
        assert segment is not None
        network.recycle(segment)
        assert (network.is_available, network.free, woken) == (True, free, [1])
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    exclusive = []
    for available in (True, False):
        exclusive.append(network.request_unpooled(5).poll() or [])
        assert network.is_available is available
    network.recycle_unpooled(exclusive.pop())
    assert (network.is_available, network.free) == (True, 5)


def test_D_18_exclusive_segments_that_a_pool_has_taken_are_waited_for() -> None:
    """testRequestMemorySegmentsWithBuffersTaken: the pool shrinks, and gives back what is recycled."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    pool = network.create_buffer_pool(5, 10)
    buffers = [pool.request() for _ in range(10)]
    request = network.request_unpooled(5, timeout_s=30.0)
    assert (pool.size, request.poll(1.0)) == (5, None)
    for buffer in buffers:
        assert buffer is not None
        buffer.recycle()
    assert len(request.poll(1.1) or ()) == 5
    with pytest.raises(FlinkError, match="Insufficient number of network buffers"):
        network.request_unpooled(1)


def test_D_19_a_cancelled_request_leaves_nothing_reserved() -> None:
    """testRequestMemorySegmentsInterruptable2: a pool may require all segments after it."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    segment = network.request()
    request = network.request_unpooled(10)
    with pytest.raises(FlinkError, match="Timeout"):
        request.poll()
    assert segment is not None
    network.recycle(segment)
    assert network.create_buffer_pool(10, 10).size == 10


def test_D_20_destroyed_pools_give_back_all_segments() -> None:
    """testDestroyAll: three pools take all ten, are destroyed, and refuse requests; then a new one may take all."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    pools = [network.create_buffer_pool(*bounds) for bounds in ((2, 2), (1, 1), (5, MAX_INT))]
    taken = [buffer for pool in pools for _ in range(10) if (buffer := pool.request()) is not None]
    assert (len(taken), network.free) == (10, 0)
    for pool in pools:
        pool.destroy()
    assert (network.pools, network.free) == ([], 0)
    for buffer in taken:
        buffer.recycle()
    assert network.free == 10
    for pool in pools:
        with pytest.raises(FlinkError, match="CancelTaskException"):
            pool.request()
    assert network.create_buffer_pool(10, MAX_INT).size == 10


@given(st.randoms(use_true_random=False))
def test_E_32_many_users_share_a_pool_in_any_order(random: Random) -> None:
    """testConcurrentRequestRecycle: 16 of them request and return, and one that gets no segment tries again."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    pool = network.create_buffer_pool(1, 16)
    left: list[tuple[int, Buffer | None]] = [(8, None)] * 16
    while left:
        requests, held = left.pop(random.randrange(len(left)))
        if held is not None:
            held.recycle()
            held = None
        elif (held := pool.request()) is not None:
            requests -= 1
        if requests or held is not None:
            left.append((requests, held))
        assert pool.used == sum(buffer is not None for _, buffer in left) <= pool.size
    assert (pool.used, pool.is_available) == (0, True)


def test_E_27_a_pool_cannot_be_smaller_than_its_required_segments() -> None:
    """testSetLessThanRequiredNumBuffers."""
    pool = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES).create_buffer_pool(1, MAX_INT)
    pool.set_num_buffers(1)
    with pytest.raises(FlinkError, match="IllegalArgumentException"):
        pool.set_num_buffers(0)


def test_E_28_what_returns_after_the_end_of_a_pool_goes_to_the_network_pool() -> None:
    """testRecycleAfterDestroy, and testRequestAfterDestroy of LocalBufferPoolDestroyTest."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    pool = network.create_buffer_pool(1, MAX_INT)
    taken = [pool.request() for _ in range(SEGMENTS)]
    pool.destroy()
    assert pool.requested == SEGMENTS
    for buffer in taken:
        assert buffer is not None
        buffer.recycle()
    assert (pool.requested, network.free) == (0, SEGMENTS)
    with pytest.raises(FlinkError, match=r"CancelTaskException: Buffer pool has already been destroyed\."):
        pool.request()


def test_E_29_a_pool_that_grows_while_its_segment_returns_stays_available() -> None:
    """testConsistentAvailability: the segments in it and what it says agree at each step."""
    network = NetworkBufferPool(SEGMENTS, SEGMENT_BYTES)
    pool = LocalBufferPool(network, 1, MAX_INT)
    network.pools.append(pool)
    buffer = pool.request()
    if buffer is None:
        pool.refresh()
        buffer = pool.request()
    assert buffer is not None
    assert not pool.is_available
    pool.set_num_buffers(2)
    assert pool.is_available
    buffer.recycle()
    assert (pool.is_available, pool.available_segments) == (True, 2)
    pool.destroy()
    assert network.free == SEGMENTS


def test_D_21_used_and_free_segments_are_those_of_requests() -> None:
    """testMemoryUsageInTheContextOfMemoryPoolCreation and …MemorySegmentAllocation: all ten are free, then all but one."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    assert (network.total, network.free, network.outstanding) == (10, 10, 0)
    assert network.request() is not None
    assert (network.total, network.free, network.outstanding) == (10, 9, 1)


@pytest.mark.parametrize(("count", "error"), [(5, ""), (11, "IOException"), (-1, "IllegalArgumentException")])
def test_D_22_exclusive_segments_are_given_if_there_can_be_enough(count: int, error: str) -> None:
    """testRequestMemorySegmentsLessThanTotalBuffers, …MoreThanTotalBuffers and …WithInvalidArgument: all ten are free afterwards."""
    network = NetworkBufferPool(10, SEGMENT_BYTES)
    if error:
        with pytest.raises(FlinkError) as refused:
            network.request_unpooled(count)
        assert refused.value.class_name == error
    else:
        segments = network.request_unpooled(count).poll() or []
        assert len(segments) == count
        network.recycle_unpooled(segments)
    assert (network.free, network.required) == (10, 0)


def test_D_23_a_network_pool_without_segments_warns_of_nothing() -> None:
    """testEmptyPoolSegmentsUsage: its usage is 0 %."""
    network = NetworkBufferPool(0, SEGMENT_BYTES)
    assert network.drain_warnings() == []
    assert network.request_unpooled(0).poll() == []
    assert network.drain_warnings() == []


def test_D_24_two_pools_get_all_segments_when_those_of_others_return() -> None:
    """testBlockingRequestFromMultiLocalBufferPool: of 20 segments, 9 are taken directly and 8 exclusively. Both pools then ask for ten."""
    network = NetworkBufferPool(20, SEGMENT_BYTES)
    pools = [network.create_buffer_pool(5, 10) for _ in range(2)]
    assert [pool.is_available for pool in pools] == [True, True]
    direct = [network.request() for _ in range(9)]
    exclusive = network.request_unpooled(network.free - 1).poll() or []
    assert network.is_available
    assert [pool.is_available for pool in pools] == [True, True]
    taken: list[list[Buffer]] = [[], []]

    def take(number: int) -> None:
        """Take buffers until there are ten, as a thread that waits for each."""
        while len(taken[number]) < 10 and (buffer := pools[number].request()) is not None:
            taken[number].append(buffer)
        if len(taken[number]) < 10:
            pools[number].when_available(lambda: take(number))

    for number in range(2):
        take(number)
    assert sum(map(len, taken)) + len(direct) + len(exclusive) == 20
    assert not network.is_available
    assert [pool.is_available for pool in pools] == [False, False]
    for segment in direct:
        assert segment is not None
        network.recycle(segment)
    network.recycle_unpooled(exclusive)
    assert [len(buffers) for buffers in taken] == [10, 10]
    assert [pool.used for pool in pools] == [10, 10]
    assert not network.is_available


def test_E_30_a_pool_that_waits_for_its_segments_can_be_destroyed() -> None:
    """testReserveSegmentsAndCancel: another one has taken all four. Nothing is left in use when that returns them."""
    network = NetworkBufferPool(4, SEGMENT_BYTES)
    first = network.create_buffer_pool(2, 4)
    buffers = [first.request() for _ in range(4)]
    second = network.create_buffer_pool(2, 4)
    assert not second.reserve_segments(2)
    first.destroy()
    second.destroy()
    for buffer in buffers:
        assert buffer is not None
        buffer.recycle()
    assert (network.outstanding, network.required, network.pools) == (0, 0, [])


def test_E_31_who_waits_at_a_pool_learns_that_it_is_destroyed() -> None:
    """LocalBufferPoolDestroyTest.testDestroyWhileBlockingRequest: the request fails. testCancelPendingRequestsAfterDestroy: a listener is
    not offered what returns later."""
    network = NetworkBufferPool(10, 128)
    pool, offered, woken = network.create_buffer_pool(1, 1), list[object](), list[bool]()
    available = pool.request()
    assert available is not None
    assert pool.request() is None
    assert pool.add_listener(lambda segment: offered.append(segment) or True)
    pool.when_available(lambda: woken.append(pool.destroyed))
    assert woken == []
    pool.destroy()
    assert woken == [True]
    with pytest.raises(FlinkError) as refused:
        pool.request()
    assert refused.value.class_name == "CancelTaskException"
    available.recycle()
    assert (offered, network.outstanding) == ([], 0)


def test_E_11_before_1_16_a_subpartition_at_its_limit_gets_no_segment() -> None:
    """FLINK-27522. The others are served, and so is this one when a segment of it has returned."""
    pool = NetworkBufferPool(1024, 128).create_buffer_pool(1, 10, subpartitions=2, max_buffers_per_channel=2)
    pool.limits_requests = True
    first, second = pool.request_builder(0), pool.request_builder(0)
    assert first is not None
    assert second is not None
    assert pool.request_builder(0) is None
    assert None not in (pool.request_builder(1), pool.request_builder(1))
    first.release()
    assert pool.request_builder(0) is not None
    assert pool.request_builder(0) is None
    assert not pool.is_available
