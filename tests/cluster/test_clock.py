"""Seeded streams and ids; the loop's clock."""

import asyncio

from testbed_runtime.cluster.clock import LoopClock, SeededIds, SeededRandom, SystemIds, system_boot_id


def test_a_draw_of_one_purpose_never_shifts_another():
    """Streams are independent and reproducible."""
    one, other = SeededRandom(7), SeededRandom(7)
    one.stream("network").random()
    assert one.stream("workload").random() == other.stream("workload").random()
    assert SeededRandom(8).stream("workload").random() != SeededRandom(7).stream("workload").random()


def test_ids_have_sixteen_bytes_and_seeded_ones_repeat():
    """From the system they differ."""
    assert SeededIds(1).bytes16() == SeededIds(1).bytes16()
    assert len(SystemIds().bytes16()) == 16
    assert SystemIds().bytes16() != SystemIds().bytes16()


async def test_the_clock_is_the_loops():
    """And names the boot."""
    clock = LoopClock("sim")
    assert clock.boot_id == "sim"
    assert clock.now() <= asyncio.get_running_loop().time()
    assert len(system_boot_id()) >= 8
