"""Buffers that return to their pools together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from exchange_model import SEGMENT_BYTES, nothing
from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.errors import LocalProtocolError
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.credit import BufferManager
from testbed_runtime.core.exchange.frames import DataType
from testbed_runtime.core.exchange.memory import Buffer, MemorySegment, recycle_all


def drawn(pool: LocalBufferPool, kind: str) -> Buffer | None:
    """Return a buffer of a subpartition, of the pool itself, or an event."""
    if kind == "event":
        return Buffer.unpooled(b"event", DataType.EVENT_BUFFER)
    builder = pool.request_builder(int(kind) if kind.isdigit() else -1)
    if builder is None:
        return None
    builder.append(memoryview(b"data"))
    builder.finish()
    return builder.build_last()


@pytest.mark.parametrize("fate", ["stays", "shrinks", "ends"])
@given(
    kinds=st.lists(st.sampled_from(["0", "1", "pool", "event", "cut", "kept"]), max_size=10),
    wanted=st.lists(st.integers(0, 4), max_size=2),
)
def test_buffers_that_are_recycled_together_return_as_one_by_one(
    fate: str, kinds: list[str], wanted: list[int]
) -> None:
    """To both subpartitions, and to the pool's listeners and waiters, or past a pool that has ended, while other references are kept."""
    seen = []
    for together in (True, False):
        network, woken = NetworkBufferPool(12, SEGMENT_BYTES), []
        pool = network.create_buffer_pool(4, 10, subpartitions=2, max_buffers_per_channel=2)
        managers = [BufferManager(network, pool, 0, nothing) for _ in wanted]
        found = [(kind, buffer) for kind in kinds if (buffer := drawn(pool, kind)) is not None]
        kept = [buffer.cut(0, 1) for kind, buffer in found if kind == "cut"]
        kept += [buffer.retain() for kind, buffer in found if kind == "kept"]
        while (rest := pool.request()) is not None:
            kept.append(rest)
        for manager, backlog in zip(managers, wanted, strict=True):
            manager.on_sender_backlog(backlog)
        pool.when_available(lambda woken=woken: woken.append(1))
        if fate == "shrinks":
            pool.set_num_buffers(4)
        elif fate == "ends":
            pool.destroy()
        buffers = [buffer for _, buffer in found]
        if together:
            recycle_all(buffers)
        else:
            for buffer in buffers:
                buffer.recycle()
        states = [(m.available, m.unannounced, m.waiting, m.required) for m in managers]
        seen.append((pool.used, pool.requested, pool.is_available, woken, network.free, states))
    assert seen[0] == seen[1]


def test_a_buffer_that_is_twice_in_a_run_is_recycled_twice() -> None:
    """Which is our bug, as without a run."""
    buffer = NetworkBufferPool(4, SEGMENT_BYTES).create_buffer_pool(1, 2).request()
    assert buffer is not None
    with pytest.raises(LocalProtocolError, match="twice"):
        recycle_all([buffer, buffer])


@pytest.mark.parametrize(
    "answers", [[], [True], [False], [True, False], [False, True], [True, True], [False, False]]
)
@pytest.mark.parametrize("together", [True, False])
def test_listeners_are_offered_what_returns_together_as_what_returns_one_by_one(
    answers: list[bool], together: bool
) -> None:
    """A listener gets one segment and may refuse it. Whatever no listener keeps is available."""
    network = NetworkBufferPool(4, 8, memory=False)
    pool = network.create_buffer_pool(4, 4)
    segments = [segment for _ in range(4) if (segment := pool.request_segment()) is not None]
    offered: list[bool] = []

    def listener(answer: bool) -> Callable[[MemorySegment], bool]:
        def on_segment(_: MemorySegment) -> bool:
            offered.append(answer)
            return answer

        return on_segment

    assert (len(segments), pool.available_segments) == (4, 0)
    assert all(pool.add_listener(listener(answer)) for answer in answers)
    if together:
        pool.recycle_all(segments)
    else:
        for segment in segments:
            pool.recycle(segment)
    assert offered == answers
    assert pool.available_segments == 4 - sum(answers)
    assert (pool.requested, network.free) == (4, 0)


def test_a_run_of_segments_is_limited_by_its_subpartition_only() -> None:
    """At most two for each subpartition. Segments for no subpartition have no such limit, and none are handed out while a
    subpartition is at its limit."""
    pool = NetworkBufferPool(4, 8, memory=False).create_buffer_pool(
        4, 4, subpartitions=2, max_buffers_per_channel=2
    )

    def refill() -> None:
        pool.recycle_all([segment for _ in range(4) if (segment := pool.request_segment()) is not None])
        assert pool.available_segments == 4

    refill()
    run = pool.request_run(3)
    assert (len(run), pool.available_segments) == (3, 1)
    pool.recycle_all(run)
    held = pool.request_run(3, 1)
    assert (len(held), pool.available_segments) == (2, 2)
    assert (pool.request_run(1), pool.request_run(1, 0)) == ([], [])
    pool.recycle_of(1, held.pop())
    assert [len(pool.request_run(9, number)) for number in (1, 0)] == [1, 0]
