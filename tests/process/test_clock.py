"""Seeded streams and ids; the loop's clock."""

import asyncio
import time

from testbed_runtime.process.clock import (
    CLOCK_VARIABLE,
    OFFSET_GRAIN_NS,
    SHARED,
    LoopClock,
    SeededIds,
    SeededRandom,
    SystemIds,
    loop_factory,
    system_boot_id,
    wall_offset_ns,
)


def test_a_draw_of_one_purpose_never_shifts_another():
    """Streams are independent and reproducible."""
    one, other = SeededRandom(7), SeededRandom(7)
    one.stream("network").random()
    assert one.stream("workload").random() == other.stream("workload").random()
    assert SeededRandom(8).stream("workload").random() != SeededRandom(7).stream("workload").random()


def test_ids_have_sixteen_bytes_and_seeded_ones_repeat():
    """Ids of the system differ from each other."""
    assert SeededIds(1).bytes16() == SeededIds(1).bytes16()
    assert len(SystemIds().bytes16()) == 16
    assert SystemIds().bytes16() != SystemIds().bytes16()


async def test_the_clock_is_the_loops():
    """And names the boot."""
    clock = LoopClock("sim")
    assert clock.boot_id == "sim"
    assert clock.now() <= asyncio.get_running_loop().time()
    assert len(system_boot_id()) >= 8


def test_a_shared_clock_is_the_wall_s_and_every_process_of_a_boot_agrees_on_it(monkeypatch):
    """Two loops made apart say the same to a millisecond; without the setting it is asyncio's own clock."""
    monkeypatch.setenv(CLOCK_VARIABLE, SHARED)
    loops = [loop_factory()() for _ in range(2)]
    try:
        first, second, wall, third = loops[0].time(), loops[1].time(), time.time(), loops[0].time()
        assert first - 0.001 <= second <= wall + 0.001 <= third + 0.002
        assert abs(wall_offset_ns() - wall_offset_ns()) <= OFFSET_GRAIN_NS
        loops[0].run_until_complete(asyncio.sleep(0.01))
    finally:
        for loop in loops:
            loop.close()
    monkeypatch.delenv(CLOCK_VARIABLE)
    plain = loop_factory()()
    assert time.monotonic() <= plain.time() <= time.monotonic()
    plain.close()
