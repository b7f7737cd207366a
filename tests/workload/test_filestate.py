"""Keyed state in sorted files: it holds what state in memory holds, within its memory, and checkpoints share its files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from testbed_runtime.core.errors import FlinkError
from testbed_runtime.core.job.keygroups import group_range
from testbed_runtime.store.statefiles import FolderStateFiles, MemoryStateFiles
from testbed_runtime.workload.filestate import FileState, runs_to_merge
from testbed_runtime.workload.keyedstate import KeyedState, SubtaskContext, TimeToLive
from testbed_runtime.workload.slotmemory import ROW_BYTES, SlotMemory
from testbed_runtime.workload.snapshots import SubtaskSnapshot, decode_snapshot, encode_snapshot
from testbed_runtime.workload.sortedfile import BLOCK_ROWS, REMOVED, Rows, encode_files

ROWS_IN_BUFFER = 100


class NotUploaded:
    """Files that are not uploaded, so that none is pinned."""

    def pin(self, checkpoint: int, names: tuple[str, ...]) -> None:
        del checkpoint, names


class Files(NotUploaded, MemoryStateFiles): ...


class Disk(NotUploaded, FolderStateFiles): ...


def context(subtask: int = 0, parallelism: int = 1) -> SubtaskContext:
    return SubtaskContext(1, "count", subtask, parallelism, 128, 0, ("source", "count", "sink"))


def memory(cache_rows: int = 1000) -> SlotMemory:
    return SlotMemory(ROWS_IN_BUFFER * ROW_BYTES, cache_rows * ROW_BYTES)


def file_state(files: Files | None = None, ttl: TimeToLive | None = None, **settings: int) -> FileState:
    where = context(**settings)
    return FileState(
        where, files or Files(), memory(), name=f"count-{where.subtask}", ttl=ttl or TimeToLive()
    )


def taken(state: KeyedState, checkpoint: int = 1, **settings: int) -> SubtaskSnapshot:
    """A snapshot, through bytes and back."""
    where = context(**settings)
    base = SubtaskSnapshot(checkpoint, "count", where.subtask, where.parallelism, 128)
    return decode_snapshot(encode_snapshot(state.snapshot(base)))


def fill(state: KeyedState, windows: range, keys: int) -> None:
    for window in windows:
        state.add(window, list(range(keys)), [window + 1] * keys, {0: b"zero"})


def same(one: KeyedState, other: KeyedState, windows: range, keys: int) -> None:
    assert one.totals() == other.totals()
    for window in windows:
        for key in range(keys):
            assert one.count(window, key) == other.count(window, key), (window, key)


@pytest.mark.parametrize("seed", range(8))
def test_files_hold_what_memory_holds(seed: int) -> None:
    """Random additions, windows that end, checkpoints and restores: both backends give the same counts and rows."""
    random = Random(seed)
    heap, files = KeyedState(context()), Files()
    state = file_state(files)
    for step in range(120):
        window, keys = random.randrange(4), random.sample(range(400), random.randrange(1, 60))
        counts, texts = [random.randrange(1, 9) for _ in keys], {key: b"t%d" % key for key in keys[:3]}
        heap.add(window, keys, counts, texts)
        state.add(window, keys, counts, texts)
        if random.random() < 0.15:
            ended = [random.randrange(4)]
            assert heap.take(ended) == state.take(ended)
        if random.random() < 0.2:
            snapshot = taken(state, step)
            state = file_state(files)
            state.restore([snapshot])
    same(heap, state, range(4), 400)
    assert heap.take([0, 1, 2, 3]) == state.take([0, 1, 2, 3])
    assert state.totals() == {}


def test_a_checkpoint_refers_to_the_files_of_the_one_before() -> None:
    """Only what has changed since then is in new files."""
    state = file_state()
    state.add(0, list(range(5000)), [1] * 5000, {})
    first = taken(state, 1)
    state.add(0, [7, 8], [1, 1], {})
    second = taken(state, 2)
    assert set(first.files) < set(second.files)
    new = sum(file.size for file in set(second.files) - set(first.files))
    assert 100 * new < sum(file.size for file in second.files)
    assert taken(state, 3).runs == second.runs


def test_runs_are_merged_when_several_are_of_similar_size() -> None:
    """A small run beside a large one stays; four of one size become one."""
    assert runs_to_merge([]) == 0
    assert runs_to_merge([10, 10, 10]) == 0
    assert runs_to_merge([100, 10, 10, 10]) == 0
    assert runs_to_merge([100, 10, 10, 10, 10]) == 4
    assert runs_to_merge([40, 10, 10, 10, 10]) == 5
    files, sizes = Files(), []
    state = file_state(files)
    for step in range(64):
        state.add(0, list(range(step * 100, step * 100 + 99)), [1] * 99, {})
        sizes.append(len(taken(state, step).runs))
    assert max(sizes) <= 12
    assert sum(state.totals().values()) == 64 * 99
    assert len(files.names) == sizes[-1]


def test_removed_rows_vanish_with_the_last_merge() -> None:
    """A window that has fired leaves rows that hide the older ones, until all runs are merged."""
    files = Files()
    state = file_state(files)
    state.add(0, list(range(50)), [1] * 50, {})
    taken(state, 1)
    assert len(state.take([0])) == 50
    assert taken(state, 2).runs != ()
    assert state.totals() == {}
    for step in range(3, 8):
        state.add(step, list(range(200)), [1] * 200, {})
        snapshot = taken(state, step)
    assert not any(
        row[0] == REMOVED
        for run in state._runs
        for found in run.blocks((-1, -1), (99, 999))
        for _, row in state._read(*found).pairs()
    )
    assert len(snapshot.files) == len(files.names)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (4, 2)])
def test_files_are_redistributed_by_key_group(before: int, after: int) -> None:
    """Every key is found at one subtask, with its count."""
    disk, keys = Files(), range(600)
    snapshots = []
    for subtask in range(before):
        heap = KeyedState(context(subtask, before))
        heap.add(0, list(keys), [key + 1 for key in keys], {})
        mine = group_range(subtask, before, 128)
        groups = [
            g for g in heap.snapshot(SubtaskSnapshot(1, "count", 0, 1, 128)).key_groups if g.key_group in mine
        ]
        state = file_state(Files(), subtask=subtask, parallelism=before)
        state.restore([SubtaskSnapshot(1, "count", subtask, before, 128, key_groups=tuple(groups))])
        snapshot = taken(state, 2, subtask=subtask, parallelism=before)
        for file in snapshot.files:
            disk.write(f"{subtask}-{file.name}", state._files.read(file.name))
        runs = tuple(tuple(replace(f, name=f"{subtask}-{f.name}") for f in run) for run in snapshot.runs)
        snapshots.append(replace(snapshot, runs=runs))
    found: dict[int, list[int]] = {key: [] for key in keys}
    for subtask in range(after):
        own = Files()
        for name in disk.names:
            own.write(name, disk.read(name))
        state = file_state(own, subtask=subtask, parallelism=after)
        state.restore(snapshots)
        for key in keys:
            found[key] += [count for count in [state.count(0, key)] if count]
    assert found == {key: [key + 1] for key in keys}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_an_expired_entry_is_not_returned_and_leaves_the_snapshots(backend: str) -> None:
    """A time to live of 10: entries written at 0 are gone at 10, and a count begins anew."""
    now = [0]
    ttl, files = TimeToLive(10, lambda: now[0]), Files()
    state = file_state(files, ttl) if backend == "rocksdb" else KeyedState(context(), ttl)
    state.add(0, [1, 2], [5, 5], {})
    assert taken(state, 1) != taken(KeyedState(context()), 1)
    now[0] = 6
    state.add(0, [2], [1], {})
    now[0] = 10
    assert (state.count(0, 1), state.count(0, 2)) == (0, 6)
    state.add(0, [1], [1], {})
    assert state.count(0, 1) == 1
    now[0] = 30
    assert state.totals() == {}
    left = taken(state, 2)
    assert (left.key_groups, left.runs, files.names) == ((), (), [])


def test_the_cache_stays_within_the_memory_of_the_slot() -> None:
    """Two stores of one slot read all of their 8000 rows with a cache for 1000."""
    shared = memory()
    states = [FileState(context(), Files(), shared, name=name) for name in ("a", "b")]
    for state in states:
        state.add(0, list(range(4000)), [1] * 4000, {})
        taken(state, 1)
    for key in range(4000):
        assert states[key % 2].count(0, key) == 1
        assert shared.used <= 1000 * ROW_BYTES
    assert shared.misses >= 2 * 4000 // BLOCK_ROWS
    misses = shared.misses
    assert states[1].count(0, 3999) == 1
    assert shared.misses == misses, "the last block is cached"
    assert shared.stores == 2
    for state in states:
        state.close()
    assert (shared.used, shared.stores) == (0, 0)


def test_a_full_write_buffer_becomes_a_file() -> None:
    """Its share is the slot's divided by the stores of the slot."""
    shared, files = memory(), Files()
    state = FileState(context(), files, shared, name="a")
    state.add(0, list(range(ROWS_IN_BUFFER)), [1] * ROWS_IN_BUFFER, {})
    assert files.names == []
    state.add(0, [ROWS_IN_BUFFER], [1], {})
    assert len(files.names) == 1
    shared.open("b")
    state.add(0, list(range(ROWS_IN_BUFFER // 2 + 1)), [1] * (ROWS_IN_BUFFER // 2 + 1), {})
    assert len(files.names) == 2


def test_the_state_files_of_a_taskmanager_have_a_limit(tmp_path: Path) -> None:
    """The limit covers all files together. What is deleted or written again makes room."""
    disk = FolderStateFiles(tmp_path, max_bytes=100)
    disk.write("a", bytes(60))
    with pytest.raises(OSError, match="at most 100 bytes"):
        disk.write("b", bytes(41))
    disk.write("a", bytes(50))
    disk.write("b", bytes(50))
    disk.delete("a")
    disk.write("c", bytes(50))


@pytest.mark.parametrize("at", [0, 20, -20, -1])
def test_a_damaged_file_is_reported(at: int, tmp_path: object) -> None:
    """Header, block, index and checksum, on a real disk."""
    disk = Disk(str(tmp_path))
    state = FileState(context(), disk, memory(), name="a")
    fill(state, range(1), 300)
    snapshot = taken(state, 1)
    data = bytearray(disk.read(snapshot.files[0].name))
    data[at] ^= 0xFF
    disk.write(snapshot.files[0].name, bytes(data))

    def read_all() -> None:
        again = FileState(context(), disk, memory(), name="b")
        again.restore([snapshot])
        again.totals()

    with pytest.raises(FlinkError, match="Could not read a file of keyed state"):
        read_all()


def test_large_state_is_cut_into_several_files() -> None:
    """So that each is an object that a checkpoint store accepts."""
    rows = Rows.of([((0, key), (1, 0, b"x" * 2000)) for key in range(20_000)])
    sizes = [len(data) for data in encode_files(rows)]
    assert len(sizes) == 3
    assert max(sizes) < 17 * 1024**2


def test_memory_does_not_restore_files() -> None:
    """Flink's backends have different formats too."""
    state = file_state()
    fill(state, range(1), 3)
    with pytest.raises(FlinkError, match=r"taken with state\.backend\.type rocksdb"):
        KeyedState(context()).restore([taken(state, 1)])
