"""The sizes of the state backend, from the managed memory of a TaskManager."""

import pytest

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.job.statememory import UNMANAGED_CACHE, UNMANAGED_WRITE_BUFFER, StateBackendConfig
from testbed_runtime.core.options import Options

MB = 1024**2


def config(slots: int = 2, **values: str) -> StateBackendConfig:
    keys = {"type": "state.backend.type", "ratio": "state.backend.rocksdb.memory.write-buffer-ratio"}
    written = {keys.get(key, key): value for key, value in values.items()}
    managed = {"taskmanager.memory.managed.size": "240 mb"}
    return StateBackendConfig.of(Options({"state.backend.type": "rocksdb"} | managed | written), slots)


def test_the_slots_share_managed_memory_equally() -> None:
    """240 MB in two slots, ratio 0.5: write buffers of 2/3 · 60 MB, of which 7/8 are used, and a cache of 5/6 · 120 MB."""
    found = config()
    assert found.slot_memory == 120 * MB
    assert found.write_buffer == 40 * MB * 7 // 8
    assert found.cache == 100 * MB


def test_the_ratio_moves_memory_from_the_cache_to_the_write_buffers() -> None:
    """The write buffers are charged to the cache, so it loses only what a buffer may exceed its limit by."""
    assert (
        config(ratio="0.1").write_buffer < config(ratio="0.5").write_buffer < config(ratio="0.9").write_buffer
    )
    assert config(ratio="0.1").cache > config(ratio="0.5").cache > config(ratio="0.9").cache


def test_the_sizes_are_those_of_javas_doubles() -> None:
    """RocksDBMemoryControllerUtils: 0.7 of these bytes is a byte less than the exact share. The ratio may end with f or d."""
    ratio = {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.write-buffer-ratio": "0.7f"}
    found = StateBackendConfig.of(Options(ratio), 1, managed_memory=2736783360)
    assert (found.write_buffer, found.cache) == (1277165567 * 7 // 8, 2098200575)


def test_without_managed_memory_each_store_has_the_sizes_of_rocksdb() -> None:
    """`state.backend.rocksdb.memory.managed: false`."""
    found = config(**{"state.backend.rocksdb.memory.managed": "false"})
    assert (found.write_buffer, found.cache, found.shared) == (UNMANAGED_WRITE_BUFFER, UNMANAGED_CACHE, False)


@pytest.mark.parametrize("managed", ["true", "false"])
def test_a_fixed_memory_per_slot_replaces_managed_memory(managed: str) -> None:
    """`fixed-per-slot` counts whatever `managed` says (RocksDBSharedResourcesFactory.from), and other backends ignore it."""
    prefix = "state.backend.rocksdb.memory."
    values = {f"{prefix}fixed-per-slot": "60 mb", f"{prefix}managed": managed}
    found = config(**values)
    assert (found.slot_memory, found.cache, found.shared) == (60 * MB, 50 * MB, True)
    assert found.write_buffer == 20 * MB * 7 // 8
    assert config(type="hashmap", **values).slot_memory == 0


def test_state_in_memory_takes_no_managed_memory() -> None:
    """The default is hashmap, as in Flink; the old names of the options act too."""
    assert config(type="hashmap").slot_memory == 0
    assert not StateBackendConfig.of(Options({}), 1).on_disk
    old = Options({"state.backend": "rocksdb", "state.backend.incremental": "true"})
    assert StateBackendConfig.of(old, 1).on_disk
    assert StateBackendConfig.of(old, 1).incremental


@pytest.mark.parametrize(
    ("ratio", "high", "kind", "refused"),
    [
        ("0.93", "0.1", "rocksdb", False),
        ("0.94", "0.1", "rocksdb", True),
        ("0.94", "0.05", "rocksdb", False),
        ("0.6", "0.6", "rocksdb", True),
        ("0.6", "0.4", "rocksdb", False),
        ("1.0", "0.0", "rocksdb", True),
        ("0.99", "0.0", "rocksdb", False),
        ("0.94", "0.1", "hashmap", False),
    ],
)
@pytest.mark.parametrize("managed", ["true", "false"])
def test_J_176_write_buffers_and_high_priority_blocks_must_leave_a_part_of_the_cache(
    ratio: str, high: str, kind: str, managed: str, refused: bool
) -> None:
    """testConfigureIllegalMemoryControlParameters and its neighbours: 2 · ratio / (3 − ratio) + the other share is less than 1, whatever memory is used."""
    prefix = "state.backend.rocksdb.memory."
    values = {f"{prefix}high-prio-pool-ratio": high, f"{prefix}managed": managed}
    if not refused:
        assert config(type=kind, ratio=ratio, **values).on_disk is (kind == "rocksdb")
        return
    with pytest.raises(OptionRefused, match="Invalid configuration: writeBufferRatio") as error:
        config(type=kind, ratio=ratio, **values)
    assert str(error.value).endswith(f"writeBufferRatio {float(ratio)} with highPriPoolRatio {float(high)}")
    assert error.value.key == f"{prefix}write-buffer-ratio"


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("name", ["write-buffer-ratio", "high-prio-pool-ratio"])
def test_a_share_outside_0_to_1_has_no_sizes(name: str, kind: str) -> None:
    """The size would be negative, or more than all memory."""
    for share in ("-0.5", "1.5"):
        with pytest.raises(OptionRefused, match="must be between 0 and 1") as error:
            config(type=kind, **{f"state.backend.rocksdb.memory.{name}": share})
        assert error.value.key == f"state.backend.rocksdb.memory.{name}"


@pytest.mark.parametrize(
    ("version", "threads", "expected"),
    [
        ("2.x", "", 4),
        ("1.12", "", 1),
        ("2.x", "0", 1),
        ("2.x", "-1", 4),
        ("1.12", "-1", 1),
        ("1.19", "-2", 1),
        ("2.x", "7", 7),
    ],
)
def test_no_thread_transfers_one_file_at_a_time_and_minus_one_is_the_default(
    version: str, threads: str, expected: int
) -> None:
    """RocksDBStateDataTransferHelper.forThreadNum, and getNumberOfTransferThreads of the backend."""
    key = "state.backend.rocksdb.checkpoint.transfer.thread.num"
    options = Options({key: threads} if threads else {}, flink_version=version)
    assert StateBackendConfig.of(options, 1).transfer_threads == expected
