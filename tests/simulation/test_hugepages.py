"""Huge pages for the memory of a large simulation."""

from __future__ import annotations

import pytest

from testbed_runtime.simulation import hugepages
from testbed_runtime.simulation.hugepages import GROWTH_KB, HUGE_BYTES, HugePages, heaps

MAPS = """\
00400000-00401000 r-xp 00000000 08:01 9 /usr/bin/python3.11
00c00000-01100000 rw-p 00000000 00:00 0 [heap]
7f0000100000-7f0000900000 rw-p 00000000 00:00 0
7f0000900000-7f0000a00000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 r--p 00000000 00:00 0
7f0002000000-7f0002400000 rw-p 00000000 08:01 7 /usr/lib/libarrow.so
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0 [stack]
"""


def test_only_writable_memory_of_no_file_is_moved_and_only_whole_pages():
    """The heap and a mapping that is large enough are; a small one, a file, the stack and what cannot be written are not."""
    assert heaps(MAPS) == [(0x00C00000, 0x01000000), (0x7F0000200000, 0x7F0000800000)]
    assert all(address % HUGE_BYTES == 0 for area in heaps(MAPS) for address in area)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[list[tuple[int, int]]]:
    """The areas of each move, in a process with these maps."""
    found: list[list[tuple[int, int]]] = []
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    monkeypatch.setattr(hugepages, "_MAPS", maps)
    monkeypatch.setattr(hugepages, "_collapse", found.append)
    monkeypatch.setattr(hugepages.sys, "platform", "linux")
    return found


def test_memory_is_moved_each_time_the_process_has_grown_enough(monkeypatch: pytest.MonkeyPatch, moved):
    """A process that does not grow reads no maps."""
    peak = [1000]
    monkeypatch.setattr(hugepages, "_peak_kb", lambda: peak[0])
    pages = HugePages()
    for grown, times in ((0, 0), (GROWTH_KB - 1, 0), (GROWTH_KB, 1), (GROWTH_KB + 1, 1), (2 * GROWTH_KB, 2)):
        peak[0] = 1000 + grown
        pages.tend()
        assert len(moved) == times
    assert moved[0] == heaps(MAPS)


def test_the_samples_of_a_large_job_are_not_moved(monkeypatch: pytest.MonkeyPatch, moved):
    """A process that has eight times that size already has to grow by half of it: a second deployment does, samples do not."""
    peak = [8 * GROWTH_KB]
    monkeypatch.setattr(hugepages, "_peak_kb", lambda: peak[0])
    pages = HugePages()
    for grown, times in ((GROWTH_KB, 0), (3 * GROWTH_KB, 0), (4 * GROWTH_KB, 1)):
        peak[0] = 8 * GROWTH_KB + grown
        pages.tend()
        assert len(moved) == times
