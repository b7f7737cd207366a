"""NetworkBufferPool and LocalBufferPool: random requests, returns, listeners and sizes, beside Flink's."""

from __future__ import annotations

import random

import pytest

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.exchange.buffers import LocalBufferPool, NetworkBufferPool
from testbed_runtime.core.exchange.memory import BufferBuilder, MemorySegment
from testbed_runtime.core.values import MAX_INT
from tests.interop.sequences import COUNTS, compare, draw

pytestmark = pytest.mark.processes
POOLS = "abcd"


def a_sequence(chance: random.Random) -> list[str]:
    """Up to four pools. At most one of them may grow, because Flink gives surplus segments out in the order of a hash set."""
    lines, channels, grows = [f"new {chance.randint(1, 16)}"], dict[str, int](), False
    for _ in range(chance.randint(5, 60)):
        if not channels or (chance.random() < 0.06 and len(channels) < len(POOLS)):
            name, required = POOLS[len(channels)], chance.randint(1, 5)
            most = required
            if not grows and chance.random() < 0.7:
                grows, most = True, chance.choice([MAX_INT, required + 1, required + 3])
            channels[name] = chance.choice([0, 0, 2, 3])
            per_channel, overdraft = chance.choice([1, 2, 3, MAX_INT]), chance.choice([0, 0, 1, 3])
            lines.append(f"pool {name} {required} {most} {channels[name]} {per_channel} {overdraft}")
            if chance.random() < 0.3:  # later, Flink's pool may forget that a subpartition has its maximum
                lines.append(f"reserve {name} {chance.randint(0, required + 1)}")
            continue
        lines.append(_command(chance, *chance.choice(list(channels.items()))))
    return lines


def _command(chance: random.Random, pool: str, channels: int) -> str:
    kinds = [
        "request",
        "recycle",
        "recycle-accepted",
        "listen",
        "resize",
        "overdraft",
        "destroy",
        "take-unpooled",
        "return",
    ]
    kind = chance.choices(kinds, [45, 27, 5, 5, 5, 2, 2, 6, 5])[0]
    match kind:
        case "request":
            channel = chance.randrange(channels) if channels and chance.random() < 0.85 else -1
            return f"request {pool} {channel}"
        case "listen" if not channels:
            return f"listen {pool} {chance.randint(0, 1)}"
        case "recycle" | "listen":
            return f"recycle {pool} {chance.randint(0, 9)}"
        case "resize":
            return f"resize {pool} {chance.randint(1, 8)}"
        case "overdraft":
            return f"overdraft {pool} {chance.choice([0, 1, 2, 5])}"
        case "take-unpooled":
            return f"take-unpooled {chance.randint(0, 4)}"
        case "return":
            return "return-unpooled"
        case _:
            return f"{kind} {pool}"


class _Pool:
    def __init__(self, buffers: LocalBufferPool) -> None:
        self.buffers = buffers
        self.requested: list[BufferBuilder] = []
        self.accepted: list[MemorySegment] = []


class Pools:
    """The network buffer pool and its local pools."""

    def __init__(self) -> None:
        self._network = NetworkBufferPool(1, 32)
        self._pools: dict[str, _Pool] = {}
        self._unpooled: list[list[MemorySegment]] = []
        self._offered: list[str] = []

    def step(self, words: list[str]) -> str:
        self._offered.clear()
        result = self._act(words)
        return ",".join(self._offered) + " " + result

    def _act(self, words: list[str]) -> str:
        kind, numbers = words[0], [int(word) for word in words[1:] if word not in POOLS]
        network = self._network
        match kind:
            case "new":
                self._network = NetworkBufferPool(numbers[0], 32)
                return ""
            case "pool":
                required, most, channels, per_channel, overdraft = numbers
                made = network.create_buffer_pool(
                    required,
                    most,
                    subpartitions=channels,
                    max_buffers_per_channel=per_channel,
                    max_overdraft=overdraft,
                )
                self._pools[words[1]] = _Pool(made)
                return ""
            case "take-unpooled":
                if network.free < numbers[0]:
                    return "too few"
                self._unpooled.append(network.request_unpooled(numbers[0]).poll() or [])
                return ""
            case "return-unpooled":
                if self._unpooled:
                    network.recycle_unpooled(self._unpooled.pop(0))
                return ""
        if words[1] not in self._pools:
            raise FlinkError("NullPointerException", "this pool was refused")
        return self._act_on(words[1], self._pools[words[1]], kind, numbers)

    def _act_on(self, name: str, pool: _Pool, kind: str, numbers: list[int]) -> str:
        match kind:
            case "request":
                builder = pool.buffers.request_builder(numbers[0])
                if builder is None:
                    return "none"
                pool.requested.append(builder)
            case "recycle" if pool.requested:
                pool.requested.pop(numbers[0] % len(pool.requested)).release()
            case "recycle-accepted" if pool.accepted:
                pool.buffers.recycle(pool.accepted.pop(0))
            case "listen":
                return str(pool.buffers.add_listener(self._listener(name, pool, numbers[0]))).lower()
            case "resize":
                pool.buffers.set_num_buffers(numbers[0])
            case "reserve":
                return str(pool.buffers.reserve_segments(numbers[0])).lower()
            case "overdraft":
                pool.buffers.max_overdraft = numbers[0]
            case "destroy":
                pool.buffers.destroy()
        return ""

    def _listener(self, name: str, pool: _Pool, wanted: int):
        def offered(segment: MemorySegment) -> bool:
            nonlocal wanted
            self._offered.append(f"offer {name}")
            if wanted <= 0:
                return False
            wanted -= 1
            pool.accepted.append(segment)
            return True

        return offered

    def state(self) -> str:
        text = f" free {self._network.free}"
        for name, pool in sorted(self._pools.items()):
            b = pool.buffers
            text += f" | {name} {b.size} {b.requested} {b.available_segments} {str(b.is_available).lower()} {b.used}"
        return text


@pytest.mark.parametrize("count", COUNTS)
def test_random_sequences_on_buffer_pools_are_flinks(flink, count):
    """Sizes, requested, free and used segments, availability, offers and refusals after every command of each sequence."""
    compare(flink, "pools", Pools, draw(1, count, a_sequence))
