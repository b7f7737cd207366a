"""A buffer pool against a model of Flink's LocalBufferPool and NetworkBufferPool, on random operations."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.memory import MemorySegment
from testbed_runtime.core.values import MAX_INT

SUBPARTITIONS = 3


class GlobalModel:
    """The free segments of a NetworkBufferPool."""

    def __init__(self, total: int) -> None:
        self.free = total
        self._waiting: list[Callable[[], None]] = []

    def request(self) -> bool:
        found = self.free > 0
        self.free -= found
        return found

    def recycle(self) -> None:
        self.free += 1
        if self.free == 1:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def when_available(self, callback: Callable[[], None]) -> None:
        if self.free:
            callback()
        else:
            self._waiting.append(callback)


class LocalModel:
    """LocalBufferPool of Flink 2.0, as numbers: it fetches one segment ahead, and more than its size only as overdraft."""

    def __init__(
        self, network: GlobalModel, size: int, largest: int, per_channel: int, overdraft: int
    ) -> None:
        self._network, self._largest, self._per_channel, self._overdraft = (
            network,
            largest,
            per_channel,
            overdraft,
        )
        self.size = size
        self.requested = self.available = self.saturated = 0
        self.is_available = False
        self._by_channel = [0] * SUBPARTITIONS
        self._waits = False
        self._check()

    def _check(self) -> None:
        """checkAndUpdateAvailability."""
        if not self.available and self.requested < self.size:
            if self._network.request():
                self.requested += 1
                self.available += 1
            elif not self._waits:
                self._update()
                self._waits = True
                self._network.when_available(self._on_network)
                return
        self._update()

    def _update(self) -> None:
        self.is_available = self.available > 0 and not self.saturated

    def _on_network(self) -> None:
        self._waits = False
        if not self.is_available:
            self._check()

    def request(self, channel: int) -> bool:
        if self.available:
            self.available -= 1
        elif self.requested < self.size or self.requested - self.size >= self._overdraft:
            return False
        elif self._network.request():
            self.requested += 1
        else:
            return False
        if channel >= 0:
            self._by_channel[channel] += 1
            self.saturated += self._by_channel[channel] == self._per_channel
        self._check()
        return True

    def run(self, most: int, channel: int) -> int:
        """Return how many requests of a channel take a segment that the pool has, before a channel is at its limit."""
        room = self._per_channel - self._by_channel[channel] if channel >= 0 else most
        return 0 if self.saturated else min(most, self.available, room)

    def recycle(self, channel: int) -> None:
        if channel >= 0:
            self.saturated -= self._by_channel[channel] == self._per_channel
            self._by_channel[channel] -= 1
        if self.requested > self.size:
            self.requested -= 1
            self._network.recycle()
            return
        self.available += 1
        self.is_available = self.is_available or not self.saturated

    def resize(self, count: int) -> None:
        self.size = min(count, self._largest)
        while self.requested > self.size and self.available:
            self.available -= 1
            self.requested -= 1
            self._network.recycle()
        self._check()


class Both:
    """A pool and its model, and what is taken of them. `other` is what others take of the network pool."""

    def __init__(self, total: int, required: int, limits: tuple[int, int, int]) -> None:
        extra, per_channel, overdraft = limits
        largest = min(required + extra, MAX_INT)
        self.network = NetworkBufferPool(total, 64, memory=False)
        self.pool = LocalBufferPool(
            self.network,
            required,
            largest,
            subpartitions=SUBPARTITIONS,
            max_buffers_per_channel=per_channel,
            max_overdraft=overdraft,
        )
        self.pool.refresh()
        self.others = GlobalModel(total)
        self.model = LocalModel(self.others, required, largest, per_channel, overdraft)
        self.taken: list[tuple[int, MemorySegment]] = []
        self.other: list[MemorySegment] = []

    def step(self, what: str, number: int) -> None:
        if what == "request":
            channel = number % (SUBPARTITIONS + 1) - 1
            segment = self.pool.request_segment(channel)
            assert (segment is not None) is self.model.request(channel)
            if segment is not None:
                self.taken.append((channel, segment))
        elif what == "run":
            channel = number % (SUBPARTITIONS + 1) - 1
            run = self.pool.request_run(number, channel)
            count = self.model.run(number, channel)
            assert [self.model.request(channel) for _ in range(count)] == [True] * len(run)
            self.taken += [(channel, segment) for segment in run]
        elif what == "recycle" and self.taken:
            channel, segment = self.taken.pop(number % len(self.taken))
            if channel < 0:
                self.pool.recycle(segment)
            else:
                self.pool.recycle_of(channel, segment)
            self.model.recycle(channel)
        elif what == "resize":
            self.pool.set_num_buffers(self.pool.required + number)
            self.model.resize(self.pool.required + number)
        elif what == "take":
            found = self.network.request()
            assert (found is not None) is self.others.request()
            self.other += [] if found is None else [found]
        elif what == "give" and self.other:
            self.network.recycle(self.other.pop())
            self.others.recycle()

    def compare(self) -> None:
        pool, model = self.pool, self.model
        assert (pool.requested, pool.available_segments, pool.is_available, pool.size, self.network.free) == (
            model.requested,
            model.available,
            model.is_available,
            model.size,
            self.others.free,
        )


LIMITS = st.tuples(st.sampled_from([0, 2, MAX_INT]), st.sampled_from([1, 2, 3, MAX_INT]), st.integers(0, 3))
STEPS = st.tuples(
    st.sampled_from(["request", "request", "run", "recycle", "recycle", "resize", "take", "give"]),
    st.integers(0, 6),
)


@given(st.integers(3, 12), st.integers(1, 3), LIMITS, st.lists(STEPS, min_size=20, max_size=80))
def test_a_pool_has_what_flinks_pool_has(
    total: int, required: int, limits: tuple[int, int, int], steps: list[tuple[str, int]]
) -> None:
    """The same segments, the same availability and the same refusals after each operation."""
    both = Both(total, required, limits)
    both.compare()
    for what, number in steps:
        both.step(what, number)
        both.compare()
