"""Buffer sizes, the network pool, local pools."""

from __future__ import annotations

import pytest
from exchange_model import SEGMENT_BYTES, nothing

from testbed_runtime.core.errors import FlinkError, LocalProtocolError, RemoteProtocolError
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, BufferBuilder, MemorySegment
from testbed_runtime.core.exchange.sizing import (
    BUFFERS_TIMEOUT,
    GateBuffersSpec,
    gate_buffers_spec,
    max_required_buffers_per_gate,
    network_buffer_count,
    result_partition_buffers,
)
from testbed_runtime.core.options import Options
from testbed_runtime.core.values import MAX_INT


def take(pool: LocalBufferPool, count: int, subpartition: int = -1) -> list[BufferBuilder]:
    builders = [pool.request_builder(subpartition) for _ in range(count)]
    return [b for b in builders if b is not None]


class Kept(list[MemorySegment]):
    """A home that keeps what returns."""

    recycle = list.append
    recycle_all = list.extend


# ---- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "exclusive", "max_required", "expected"),
    [
        pytest.param(499, 2, MAX_INT, GateBuffersSpec(1, 8, 2, 1006), id="C-01"),
        pytest.param(500, 2, MAX_INT, GateBuffersSpec(1, 8, 2, 1008), id="C-02"),
        pytest.param(1001, 0, MAX_INT, GateBuffersSpec(1, 8, 0, 8), id="C-06"),
        pytest.param(499, 2, 1000, GateBuffersSpec(1, 8, 2, 1006), id="batch-fits"),
        pytest.param(500, 2, 1000, GateBuffersSpec(500, 508, 1, 1008), id="batch-one-exclusive"),
        pytest.param(999, 2, 1000, GateBuffersSpec(1, 1007, 1, 2006), id="C-03"),
        pytest.param(1000, 2, 1000, GateBuffersSpec(1000, 2008, 0, 2008), id="C-04"),
        pytest.param(499, 2, 998, GateBuffersSpec(499, 507, 1, 1006), id="one-too-few-for-two-exclusive"),
        pytest.param(1, 2, 1, GateBuffersSpec(1, 10, 0, 10), id="least-maximum-one-channel"),
        pytest.param(500, 2, 1, GateBuffersSpec(1, 1008, 0, 1008), id="least-maximum"),
    ],
)
def test_C_01_to_C_04_C_06_a_gate_gets_its_buffers(
    channels: int, exclusive: int, max_required: int, expected: GateBuffersSpec
) -> None:
    """(floating at least, floating at most, exclusive a channel, all)."""
    assert gate_buffers_spec(channels, exclusive, 8, max_required=max_required) == expected


def test_C_05_C_07_required_buffers_are_unbounded_for_streams_and_1000_for_batch() -> None:
    """Unless configured."""
    assert max_required_buffers_per_gate() == MAX_INT
    assert max_required_buffers_per_gate(pipelined=False) == 1000
    assert max_required_buffers_per_gate(configured=7) == 7


def test_a_partition_needs_one_buffer_more_than_subpartitions() -> None:
    """Bounded ones have a largest size."""
    assert result_partition_buffers(Options({}), 4) == (5, 16)
    assert result_partition_buffers(Options({}), 4, bounded=False) == (5, MAX_INT)


def test_the_default_taskmanager_has_4096_buffers() -> None:
    """128 MiB of 32 KiB each; the least and the largest network memory bound it."""
    assert network_buffer_count(Options({})) == 4096
    assert network_buffer_count(Options({"taskmanager.memory.flink.size": "640 mb"})) == 2048
    assert network_buffer_count(Options({"taskmanager.memory.network.max": "65 mb"})) == 2080


# ---- buffers -------------------------------------------------------------------------------------------------


def test_a_buffer_goes_home_with_its_last_reference_and_only_once() -> None:
    """Reading or recycling it afterwards is our bug, and said so."""
    home = Kept()
    segment = MemorySegment(8)
    buffer = Buffer(segment.view, DataType.DATA_BUFFER, segment, home)
    part = buffer.cut(2, 4)
    buffer.recycle()
    assert home == []
    part.recycle()
    assert home == [segment]
    with pytest.raises(LocalProtocolError, match="after it was recycled"):
        buffer.view()
    with pytest.raises(LocalProtocolError, match="twice"):
        buffer.recycle()


def test_a_payload_larger_than_the_segment_is_refused() -> None:
    """The peer's segments are larger than ours."""
    segment = MemorySegment(8)
    buffer = Buffer(segment.view, DataType.DATA_BUFFER, segment, Kept())
    assert len(buffer.fill_view(8)) == 8
    with pytest.raises(RemoteProtocolError, match="9 bytes does not fit into a segment of 8"):
        buffer.fill_view(9)


def test_a_builder_is_read_while_it_is_filled() -> None:
    """Each build returns the new data; the segment is recycled after the last reader."""
    home = Kept()
    builder = BufferBuilder(MemorySegment(8), home)
    assert builder.append(memoryview(b"abc")) == 3
    first = builder.build()
    assert builder.append(memoryview(b"xdefghijk"), 1) == 5
    second = builder.build()
    builder.release()
    assert [bytes(b.view()) for b in (first, second)] == [b"abc", b"defgh"]
    first.recycle()
    assert home == []
    second.recycle()
    assert len(home) == 1


@pytest.mark.parametrize("read_before", [False, True])
def test_the_last_part_of_a_finished_builder_takes_the_segment_along(read_before: bool) -> None:
    """`build_last` combines `build` and `release`: the segment is recycled once, after the last reader."""
    home = Kept()
    builder = BufferBuilder(MemorySegment(8), home)
    builder.append(memoryview(b"abc"))
    earlier = [builder.build()] if read_before else []
    builder.append(memoryview(b"de"))
    builder.finish()
    last = builder.build_last()
    assert bytes(last.view()) == (b"de" if read_before else b"abcde")
    for buffer in (*earlier, last):
        assert home == []
        buffer.recycle()
    assert len(home) == 1


# ---- the network pool ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        pytest.param([(1, 1), (1, 2)], [[1], [1, 2]], id="D-01"),
        pytest.param([(24, 24), (1, MAX_INT)], [[24], [24, 1000]], id="D-02"),
        pytest.param([(1, MAX_INT), (1, MAX_INT)], [[1024], [512, 512]], id="D-03"),
        pytest.param([(512, MAX_INT), (512, MAX_INT)], [[1024], [512, 512]], id="D-04"),
        pytest.param([(1, 10), (1, 10)], [[10], [10, 10]], id="D-05"),
    ],
)
def test_D_01_to_D_05_segments_are_shared_among_pools(
    pools: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    """Sizes after each pool that is created."""
    network = NetworkBufferPool(1024, 128)
    made: list[LocalBufferPool] = []
    for bounds, sizes in zip(pools, expected, strict=True):
        made.append(network.create_buffer_pool(*bounds))
        assert [p.size for p in made] == sizes


def test_D_06_three_pools_share_three_segments() -> None:
    """3, then less than all for each of two, then one each."""
    network = NetworkBufferPool(3, 128)
    first = network.create_buffer_pool(1, 10)
    assert first.size == 3
    second = network.create_buffer_pool(1, 10)
    assert first.size + second.size == 3
    assert 3 not in (first.size, second.size)
    third = network.create_buffer_pool(1, 10)
    assert [p.size for p in (first, second, third)] == [1, 1, 1]
    assert network.free == 0


def test_D_11_more_exclusive_segments_than_there_are_is_an_error_and_a_recycled_one_wakes() -> None:
    """The callback runs once a segment has returned."""
    network = NetworkBufferPool(5, 128)
    segments = network.request_unpooled(5).poll()
    assert segments is not None
    with pytest.raises(
        FlinkError, match=r"^IOException: Insufficient number of network buffers: required 1, but only 0"
    ):
        network.request_unpooled(1)
    woken: list[int] = []
    network.when_available(lambda: woken.append(1))
    assert not network.is_available
    assert woken == []
    network.recycle_unpooled(segments)
    assert woken == [1]
    network.when_available(lambda: woken.append(2))
    assert woken == [1, 2]


def test_D_12_and_D_13_memory_usage_is_warned_about_once_a_change() -> None:
    """Above 100 percent, and when it is back."""
    network = NetworkBufferPool(50, 128)
    first = network.create_buffer_pool(10, 20)
    network.create_buffer_pool(5, MAX_INT)
    assert network.drain_warnings() == []
    network.create_buffer_pool(10, 30)
    (warning,) = network.drain_warnings()
    assert warning == (
        "Memory usage [120%] is too high to satisfy all of the requests. This can severely impact network "
        "throughput. Please consider increasing available network memory, or decreasing configured size of "
        "network buffer pools. (totalMemory=6.250kb (6400 bytes), requestedMemory=7.500kb (7680 bytes), "
        "missingMemory=1.250kb (1280 bytes))"
    )
    fourth = network.create_buffer_pool(10, 20)
    (warning,) = network.drain_warnings()
    assert "[160%]" in warning
    assert "missingMemory=3.750kb (3840 bytes)" in warning
    network.recycle_unpooled(network.request_unpooled(1).poll() or [])
    assert network.drain_warnings() == []
    fourth.destroy()
    network.drain_warnings()
    first.destroy()
    assert network.drain_warnings() == ["Memory usage [80%] went back to normal"]
    assert network.drain_warnings() == []


def test_D_14_a_request_for_exclusive_segments_times_out() -> None:
    """The promise is taken back, and what was collected too."""
    network = NetworkBufferPool(2, 128)
    pool = network.create_buffer_pool(1, 2)
    held = take(pool, 2)
    request = network.request_unpooled(1, now=5.0, timeout_s=0.05)
    assert request.poll(5.0) is None
    assert request.next_deadline == 5.05
    with pytest.raises(FlinkError, match=r"Timeout triggered when requesting exclusive buffers.*50ms"):
        request.poll(5.05)
    for builder in held:
        builder.release()
    pool.destroy()
    assert (network.outstanding, network.required) == (0, 0)


def test_the_error_for_too_few_buffers_is_flinks() -> None:
    """Word for word."""
    network = NetworkBufferPool(3, 32768)
    with pytest.raises(FlinkError) as caught:
        network.create_buffer_pool(4, 4)
    assert caught.value.message == (
        "Insufficient number of network buffers: required 4, but only 3 available. The total number of network "
        "buffers is currently set to 3 of 32768 bytes each. You can increase this number by setting the "
        "configuration keys 'taskmanager.memory.network.fraction', 'taskmanager.memory.network.min', and "
        "'taskmanager.memory.network.max'."
    )


# ---- local pools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("large", "small", "limit", "requested", "overdraft", "ordinary", "available"),
    [
        pytest.param(7, 5, 2, 5, 0, 5, 0, id="E-01"),
        pytest.param(6, 4, 2, 2, 0, 3, 1, id="E-02"),
        pytest.param(7, 5, 2, 7, 2, 5, 0, id="E-03"),
        pytest.param(9, 5, 3, 9, 4, 5, 0, id="E-04"),
        pytest.param(7, 5, 4, 7, 2, 5, 0, id="E-05"),
        pytest.param(7, 5, 6, 9, 4, 5, 0, id="E-06"),
    ],
)
def test_E_01_to_E_06_a_pool_that_shrinks_turns_segments_into_overdraft(
    large: int, small: int, limit: int, requested: int, overdraft: int, ordinary: int, available: int
) -> None:
    """Free segments are returned at once; those in use count as overdraft."""
    network = NetworkBufferPool(1024, 128)
    pool = network.create_buffer_pool(4, 10, max_overdraft=limit)
    pool.set_num_buffers(large)
    assert len(take(pool, requested)) == requested
    pool.set_num_buffers(small)
    assert (pool.overdraft, pool.requested - pool.overdraft, pool.available_segments) == (
        overdraft,
        ordinary,
        available,
    )


def test_a_pool_that_grows_turns_overdraft_into_ordinary_segments_first() -> None:
    """And then keeps one free."""
    network = NetworkBufferPool(1024, 128)
    pool = network.create_buffer_pool(4, 10, max_overdraft=2)
    pool.set_num_buffers(5)
    assert len(take(pool, 8)) == 7
    pool.set_num_buffers(6)
    assert (pool.overdraft, pool.is_available) == (1, False)
    pool.set_num_buffers(8)
    assert (pool.overdraft, pool.available_segments, pool.is_available) == (0, 1, True)


def test_E_11_to_E_13_a_subpartition_at_its_limit_makes_the_pool_unavailable() -> None:
    """It is still served; the pool is available again when all are below the limit."""
    network = NetworkBufferPool(1024, 128)
    pool = network.create_buffer_pool(1, 10, subpartitions=3, max_buffers_per_channel=2)
    availability = []
    builders = []
    for subpartition in (0, 1, 0):
        builders += take(pool, 1, subpartition)
        availability.append(pool.is_available)
    assert availability == [True, True, False]
    builders += take(pool, 1, 0) + take(pool, 2, 2)
    assert len(builders) == 6
    assert not pool.is_available
    first0, first1, second0, third0, first2, second2 = builders
    woken: list[int] = []
    pool.when_available(lambda: woken.append(1))
    availability = []
    for builder in (first1, first2, second0, third0):
        builder.release()
        availability.append(pool.is_available)
    assert availability == [False, False, False, True]
    assert woken == [1]
    for builder in (first0, second2):
        builder.release()
    pool.destroy()
    assert network.outstanding == 0


def test_E_14_to_E_16_a_pool_serves_as_many_as_its_size() -> None:
    """One is kept free while it may; the size is capped at the maximum."""
    network = NetworkBufferPool(1024, 128)
    pool = network.create_buffer_pool(1, 2)
    pool.set_num_buffers(1)
    assert pool.available_segments == 1
    (builder,) = take(pool, 1)
    assert pool.available_segments == 0
    assert pool.request_builder() is None
    builder.release()
    assert pool.available_segments == 1

    pool.set_num_buffers(2)
    assert pool.available_segments == 1
    first = pool.request_builder()
    assert pool.available_segments == 1
    second = pool.request_builder()
    assert pool.available_segments == 0
    assert pool.request_builder() is None
    assert first is not None
    assert second is not None
    first.release()
    second.release()
    assert pool.available_segments == 2

    pool.set_num_buffers(3)
    assert (pool.size, pool.available_segments) == (2, 2)


def test_E_17_and_E_18_a_pool_keeps_one_spare_and_gives_back_what_is_too_much() -> None:
    """i + 1 segments are requested while i are taken; after shrinking each recycled one returns to the network pool."""
    network = NetworkBufferPool(1024, 128)
    pool = network.create_buffer_pool(1, 10)
    builders = []
    for number in range(10):
        builders += take(pool, 1)
        assert pool.requested == min(number + 2, 10)
    assert pool.request_builder() is None
    pool.set_num_buffers(5)
    totals = [pool.requested]
    for builder in builders:
        builder.release()
        totals.append(pool.requested)
    assert totals == [10, 9, 8, 7, 6, 5, 5, 5, 5, 5, 5]


def test_E_19_availability_follows_the_free_segments() -> None:
    """Drained, then one comes back."""
    pool = NetworkBufferPool(1024, 128).create_buffer_pool(1, 10)
    assert pool.is_available
    (builder,) = take(pool, 1)
    pool.set_num_buffers(5)
    assert pool.is_available
    take(pool, 4)
    assert not pool.is_available
    woken: list[int] = []
    pool.when_available(lambda: woken.append(1))
    builder.release()
    assert pool.is_available
    assert woken == [1]


def test_E_20_and_E_21_segments_are_reserved_up_to_the_required_ones() -> None:
    """Not while they are taken elsewhere, not beyond the promise, not after the end."""
    network = NetworkBufferPool(2, 128)
    first = network.create_buffer_pool(1, 2)
    builders = take(first, 2)
    second = network.create_buffer_pool(1, 10)
    assert second.reserve_segments(1) is False
    with pytest.raises(
        FlinkError,
        match="IllegalArgumentException: Can not reserve more segments than number of required segments",
    ):
        first.reserve_segments(2)
    for builder in builders:
        builder.release()
    first.destroy()
    second.destroy()
    third = network.create_buffer_pool(2, 10)
    assert third.available_segments == 1
    assert third.reserve_segments(2) is True
    assert third.available_segments == 2
    third.destroy()
    with pytest.raises(FlinkError, match="CancelTaskException: Buffer pool has already been destroyed"):
        third.reserve_segments(1)
    with pytest.raises(FlinkError, match="CancelTaskException"):
        third.request()
    assert network.outstanding == 0


def test_a_pool_cannot_shrink_below_what_it_requires() -> None:
    """The network pool would break its promise."""
    pool = NetworkBufferPool(8, 128).create_buffer_pool(4, 8)
    with pytest.raises(
        FlinkError, match=r"IllegalArgumentException: .* needs at least 4 buffers, but tried to set to 3"
    ):
        pool.set_num_buffers(3)
    with pytest.raises(
        FlinkError, match=r"Required number of memory segments \(0\) should be larger than 0\."
    ):
        NetworkBufferPool(8, 128).create_buffer_pool(0, 8)


def test_listeners_are_served_first_come_first_and_one_segment_each() -> None:
    """A listener that refuses passes the segment on; segments are offered before they become free."""
    network = NetworkBufferPool(2, SEGMENT_BYTES)
    pool = network.create_buffer_pool(2, 2)
    held = [pool.request(), pool.request()]
    offered: list[str] = []
    assert pool.add_listener(lambda _: offered.append("refuses") or False)  # type: ignore[func-returns-value]
    assert pool.add_listener(lambda _: offered.append("takes") or True)  # type: ignore[func-returns-value]
    assert held[0] is not None
    held[0].recycle()
    assert offered == ["refuses", "takes"]
    assert pool.available_segments == 0
    assert held[1] is not None
    held[1].recycle()
    assert pool.available_segments == 1
    assert pool.add_listener(lambda _: True) is False


def test_listeners_are_not_served_from_a_pool_that_grew() -> None:
    """They get recycled segments only; the new one is free for the next request."""
    network = NetworkBufferPool(2, SEGMENT_BYTES)
    pool = network.create_buffer_pool(1, 2)
    pool.set_num_buffers(1)
    held = pool.request()
    offered: list[str] = []
    assert held is not None
    assert pool.add_listener(lambda _: offered.append("offered") or True)  # type: ignore[func-returns-value]
    pool.set_num_buffers(2)
    assert (offered, pool.available_segments) == ([], 1)
    held.recycle()
    assert offered == ["offered"]


def test_a_pool_that_waits_for_the_network_pool_is_woken_when_a_segment_comes_home() -> None:
    """Two tasks of a TaskManager share its segments."""
    network = NetworkBufferPool(3, SEGMENT_BYTES)
    first = network.create_buffer_pool(1, 3)
    held = take(first, 3)
    second = network.create_buffer_pool(1, 3)
    assert not second.is_available
    woken: list[int] = []
    second.when_available(lambda: woken.append(1))
    held[0].release()
    assert woken == [1]
    assert (second.used, first.used, first.size) == (0, 2, 1)


def test_a_pool_that_a_waiter_destroys_wakes_each_waiter_once() -> None:
    """Destroying it wakes the others, and it is available then."""
    pool = NetworkBufferPool(2, SEGMENT_BYTES).create_buffer_pool(2, 2)
    held = take(pool, 2)
    woken: list[str] = []
    pool.when_available(lambda: (woken.append("first"), pool.destroy()))  # type: ignore[arg-type, return-value]
    pool.when_available(lambda: woken.append("second"))
    held[0].release()
    assert woken == ["first", "second"]


def test_destroying_a_pool_wakes_who_waits_for_it() -> None:
    """It finds out when it asks."""
    network = NetworkBufferPool(1, SEGMENT_BYTES)
    pool = network.create_buffer_pool(1, 1)
    held = take(pool, 1)
    woken: list[int] = []
    pool.when_available(lambda: woken.append(1))
    pool.destroy()
    pool.destroy()
    assert woken == [1]
    held[0].release()
    assert network.outstanding == 0
    pool.when_available(nothing)


def test_reserved_segments_do_not_count_as_requested() -> None:
    """LocalBufferPool.reserveSegments adds them to the free ones only, so the pool may hold that many more."""
    network = NetworkBufferPool(8, 32)
    pool = network.create_buffer_pool(3, 3)
    assert pool.reserve_segments(3)
    assert (pool.requested, pool.available_segments, pool.used) == (1, 3, 0)
    assert len(take(pool, 5)) == 5
    assert pool.request() is None
    assert (pool.requested, pool.used, network.outstanding) == (3, 3, 5)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_buffers_per_channel": 0},
            "Maximum number of buffers for each channel (0) should be larger than 0.",
        ),
        (
            {"max_overdraft": -1},
            "Maximum number of overdraft buffers for each gate (-1) should not be less than 0.",
        ),
    ],
)
def test_a_pool_refuses_limits_without_sense(limits: dict[str, int], message: str) -> None:
    """The checkArgument calls of LocalBufferPool."""
    network = NetworkBufferPool(8, 32)
    with pytest.raises(FlinkError) as refused:
        network.create_buffer_pool(1, 2, subpartitions=1, **limits)
    assert (refused.value.class_name, refused.value.message) == ("IllegalArgumentException", message)


@pytest.mark.parametrize(
    ("channels", "floating", "most", "error"),
    [
        (0, 8, 100, ("IllegalArgumentException", "Must be positive.")),
        (3, 0, 100, ("IllegalStateException", "Wrong number of floating buffers.")),
        (3, 8, 0, ("IllegalArgumentException", "Require at least 1 buffer per gate.")),
    ],
)
def test_a_gate_that_cannot_work_is_refused(
    channels: int, floating: int, most: int, error: tuple[str, str]
) -> None:
    """InputGateSpecUtils.createGateBuffersSpec."""
    with pytest.raises(FlinkError) as refused:
        gate_buffers_spec(channels, 2, floating, max_required=most)
    assert (refused.value.class_name, refused.value.message) == error


@pytest.mark.parametrize(
    ("version", "key"),
    [
        ("1.19", "taskmanager.network.memory.exclusive-buffers-request-timeout-ms"),
        ("1.20", "taskmanager.network.memory.buffers-request-timeout"),
    ],
)
def test_a_timeout_names_the_option_of_its_version(version: str, key: str) -> None:
    """NetworkBufferPool.internalRequestMemorySegments."""
    pool = NetworkBufferPool(8, 32, timeout_key=Options({}, flink_version=version).name_of(BUFFERS_TIMEOUT))
    assert pool.timeout_error(0.05).message.endswith(f"which is 50ms by setting the key '{key}'.")


def test_D_11_no_exclusive_segments_change_nothing_and_a_negative_number_is_refused() -> None:
    """requestUnpooledMemorySegments(0) returns before it redistributes: a pool keeps the size that somebody gave it."""
    network = NetworkBufferPool(8, 32)
    pool = network.create_buffer_pool(1, 8)
    pool.set_num_buffers(3)
    assert network.request_unpooled(0).poll() == []
    assert (pool.size, network.required) == (3, 1)
    with pytest.raises(FlinkError, match="Number of buffers to request must be non-negative"):
        network.request_unpooled(-1)
    assert (pool.size, network.required) == (3, 1)


def test_D_11_exclusive_segments_that_come_back_resize_the_pools_whatever_their_size_was() -> None:
    """Also a pool that had its maximum before somebody made it smaller."""
    network = NetworkBufferPool(8, 32)
    segments = network.request_unpooled(2).poll()
    assert segments is not None
    pool = network.create_buffer_pool(1, 4)
    assert pool.size == 4
    pool.set_num_buffers(2)
    network.recycle_unpooled(segments)
    assert pool.size == 4


def test_E_19_a_destroyed_pool_counts_as_available() -> None:
    """lazyDestroy completes the future: what waits asks, and is cancelled. Recycling does not change that."""
    network = NetworkBufferPool(4, 32)
    pool = network.create_buffer_pool(1, 1)
    builder = pool.request_builder()
    assert builder is not None
    assert not pool.is_available
    pool.destroy()
    assert pool.is_available
    builder.release()
    assert (pool.is_available, pool.available_segments, network.free) == (True, 0, 4)
    with pytest.raises(FlinkError, match="Buffer pool has already been destroyed"):
        pool.request_builder()
