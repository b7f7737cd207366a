"""Flink's memory model of a TaskManager, compared with what Flink's own classes calculated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from testbed_runtime.core.exchange.sizing import network_buffer_count
from testbed_runtime.core.options import Options
from testbed_runtime.core.processmemory import (
    OPTIONS,
    PREFIX,
    MemoryRefused,
    memory_doubts,
    platform_memory,
    process_memory,
    readable,
    refused_by_flink,
)

# TaskExecutorProcessUtils of Flink 2.3.0 and 1.20.3, which agree; tests/interop/test_numbers.py asks them again
FILE = Path(__file__).parent.parent / "data" / "flink-memory.jsonl"
VECTORS = [json.loads(line) for line in FILE.read_text().splitlines()]
MB = 1024**2
GUIDE = {
    "network.fraction": "0.3",
    "network.max": "5120m",
    "managed.fraction": "0.25",
    "process.size": "16384m",
}


def configured(values: dict[str, str], **version: str) -> Options:
    return Options({PREFIX + key: value for key, value in values.items()}, **version)


def as_flink_names_it(options: Options) -> dict[str, object]:
    """The result in the form of the vectors: sizes, or the texts of the refusal."""
    try:
        memory = process_memory(options)
    except MemoryRefused as error:
        return {"refused": error.message}
    sizes = {name: getattr(memory, name) for name in [f.name for f in fields(memory)][:-1]}
    totals = {name: getattr(memory, name) for name in ("process", "flink", "heap", "direct")}
    return {
        "".join([first, *map(str.capitalize, rest)]): size
        for name, size in (sizes | totals).items()
        for first, *rest in [name.split("_")]
    }


def as_flink_said_it(found: dict[str, object]) -> dict[str, object]:
    """Flink's text is that of the outermost exception and of the configuration errors below it."""
    if "errors" not in found:
        return found
    outer, *causes = (text.partition(": ") for text in found["errors"])
    texts = [text for name, _, text in causes if name == "IllegalConfigurationException"]
    first = outer[2].removesuffix(texts[0])
    return {"refused": first + " ".join(texts)}


@pytest.mark.parametrize("version", ["2.x", "1.20"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: ",".join(v["configuration"]))
def test_the_parts_and_the_refusals_are_flinks(vector, version):
    """Every byte of every part, and every text of a refusal."""
    options = configured(vector["configuration"], flink_version=version)
    assert as_flink_names_it(options) == as_flink_said_it(vector["flink"])


@pytest.mark.parametrize(
    ("fraction", "shown"), [("0.0001", "9.999999747378752E-5"), ("12345678", "1.2345678E7")]
)
def test_a_refused_fraction_is_shown_as_java_shows_a_double(fraction, shown):
    """With an exponent below 0.001, and from 10⁷ on."""
    options = configured({"network.fraction": fraction, "network.max": "1m"})
    assert f"({shown}) and its min" in str(as_flink_names_it(options)["refused"])


HALF = "4611686018427387904b"


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"process.size": "3g", "flink.size": "1g", "framework.heap.size": "9223372036854775807b"}, "long overflow"),
        ({"flink.size": "9223372036854775807b"}, "long overflow"),
        ({"process.size": "3g", "task.heap.size": HALF, "managed.size": HALF}, "long overflow"),
        ({"process.size": "3g", "jvm-metaspace.size": "9223372036854775807b"}, "long overflow"),
        ({"task.heap.size": HALF, "managed.size": "0b", "network.fraction": "0.9"}, "long overflow"),
        (
            {"process.size": "200m", "task.heap.size": "128m", "managed.size": "1g", "jvm-overhead.fraction": "1.5"},
            "The configured Total Process Memory size (200.000mb (209715200 bytes)) is less than",
        ),
        (
            {"flink.size": "3g", "task.heap.size": "256m", "network.fraction": "-0.1"},
            "If Total Flink, Task Heap and (or) Managed Memory sizes are explicitly configured then the Network Memory size is",
        ),
        ({"task.heap.size": HALF, "managed.size": HALF, "network.min": "2g", "network.max": "1g"}, "long overflow"),
    ],
    ids=str,
)  # fmt: skip
def test_the_first_error_is_flinks(values, error):
    """TaskExecutorProcessUtils of 2.3.0 gave these answers. Sums are Java longs; each range is read where it is used."""
    with pytest.raises(MemoryRefused) as refused:
        process_memory(configured(values))
    refusal = ("IllegalConfigurationException", f"TaskManager memory configuration failed: {error}")
    expected = ("ArithmeticException", error) if error == "long overflow" else refusal
    assert (refused.value.class_name, refused.value.message[: len(expected[1])]) == expected


def test_the_vectors_cover_every_way_to_size_a_process():
    """31 configurations: 13 that start, 18 that do not, and every option of the model but two defaults."""
    started = [v for v in VECTORS if "errors" not in v["flink"]]
    assert (len(VECTORS), len(started)) == (31, 13)
    never = set(OPTIONS) - {PREFIX + key for v in VECTORS for key in v["configuration"]}
    assert never == {PREFIX + key for key in ("framework.heap.size", "framework.off-heap.size")}


def test_the_default_process_has_4096_buffers():
    """1728 − 192 (overhead, its least) − 256 (metaspace) = 1280 MB; × 0.1 = 128 MB = 4096 × 32 KB."""
    memory = process_memory(Options({}))
    assert (memory.process, memory.flink, memory.network // MB) == (1728 * MB, 1280 * MB, 128)
    assert network_buffer_count(Options({})) == 128 * 1024 // 32


@pytest.mark.parametrize(
    ("version", "network"), [("1.12", 1024), ("1.16", 1024), ("1.17", 6425), ("2.x", 6425)]
)
def test_network_memory_was_limited_to_1_gb_until_1_16(version, network):
    """64 GB: 65536 − 1024 (overhead, its most) − 256 = 64256 MB; × 0.1 = 6425.6 MB."""
    memory = process_memory(configured({"process.size": "64g"}, flink_version=version))
    assert memory.network // MB == network


def test_the_guides_example_is_exact_and_its_gap_is_known():
    """In MB: 16384 × 0.9 = 14745.6; (16384 − 14745.6) × 0.25 = 409.6; min(1638.4, 1024) = 1024; min(14745.6 × 0.3, 5120)
    = 4423.68; × 0.25 = 3686.4; × 0.01 = 147.456; the task heap is 14745.6 − 2 × 128 − 4423.68 − 3686.4 − 147.456 = 6232.064;
    and 16384 − 14745.6 − 409.6 − 1024 = 204.8 are in no part."""
    memory = platform_memory(
        configured(GUIDE), flink_ratio=0.9, metaspace_ratio=0.25, task_off_heap_fraction=0.01
    )
    found = {name: round(getattr(memory, name) / MB, 3) for name in (*memory.__slots__, "flink", "process")}
    assert found == {
        "process": 16384.0,
        "flink": 14745.6,
        "metaspace": 409.6,
        "overhead": 1024.0,
        "network": 4423.68,
        "managed": 3686.4,
        "task_off_heap": 147.456,
        "framework_heap": 128.0,
        "framework_off_heap": 128.0,
        "task_heap": 6232.064,
        "unassigned": 204.8,
    }
    assert "Derived JVM Overhead size (1.200gb (1288490190 bytes))" in refused_by_flink(
        configured(GUIDE), memory
    )


def test_without_ratios_the_platforms_rules_leave_flinks_options_in_place():
    """Metaspace and task off-heap memory keep their sizes, and 1000 × 0.5 + 256 + 192 = 948 leaves 52 MB."""
    options = configured({"process.size": "1000m", "managed.size": "0"})
    memory = platform_memory(options, flink_ratio=0.5)
    assert (memory.metaspace, memory.task_off_heap, memory.unassigned) == (256 * MB, 0, 52 * MB)


def test_a_platform_whose_parts_exceed_the_process_is_refused():
    """1000 × 0.9 + 256 + 192 > 1000."""
    with pytest.raises(MemoryRefused, match="exceed the process"):
        platform_memory(configured({"process.size": "1000m"}), flink_ratio=0.9)


def test_the_flags_are_sums_of_parts():
    """-Xmx is both heaps, the direct memory is both off-heap parts and the network, -Xmn is a share of -Xmx."""
    memory = process_memory(configured({"process.size": "4g", "task.off-heap.size": "64m"}))
    assert memory.jvm_flags(young=0.25) == (
        f"-Xmx{memory.framework_heap + memory.task_heap}",
        f"-Xms{memory.framework_heap + memory.task_heap}",
        f"-Xmn{(memory.framework_heap + memory.task_heap) // 4}",
        f"-XX:MaxDirectMemorySize={memory.framework_off_heap + 64 * MB + memory.network}",
        f"-XX:MaxMetaspaceSize={256 * MB}",
    )


@pytest.mark.parametrize("key", ["flink.size", "process.size"])
def test_the_hint_of_a_refusal_is_the_smallest_size_that_suffices(key):
    """One MB less is refused."""
    with pytest.raises(MemoryRefused) as refused:
        process_memory(configured({key: "64m"}))
    enough = int(refused.value.hint.removeprefix("raise it to ").split(" mb", maxsplit=1)[0])
    assert process_memory(configured({key: f"{enough}m"})).task_heap >= 0
    with pytest.raises(MemoryRefused):
        process_memory(configured({key: f"{enough - 1}m"}))


def test_equal_bounds_make_the_fraction_meaningless():
    """8 GB at the least and at most: no fraction changes that."""
    equal = configured({"network.min": "8g", "network.max": "8g", "process.size": "16g"})
    assert [key for key, _ in memory_doubts(equal)] == [PREFIX + "network.fraction"]
    assert list(memory_doubts(Options({}))) == []
    sizes = {
        process_memory(equal.with_values({PREFIX + "network.fraction": f})).network for f in ("0.1", "0.3")
    }
    assert sizes == {8 * 1024 * MB}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.001kb (1025 bytes)"),
        (215547904, "205.563mb (215547904 bytes)"),
        (1024**3, "1024.000mb (1073741824 bytes)"),
        (2**63 - 1, "8388608.000tb (9223372036854775807 bytes)"),
    ],
)
def test_sizes_are_written_as_flink_writes_them(size, text):
    """The largest unit that is less than the size."""
    assert readable(size) == text


@given(
    process=st.integers(600, 100_000),
    network=st.floats(0, 0.5),
    managed=st.floats(0, 0.4),
    least=st.integers(0, 500),
    more=st.integers(0, 5000),
)
def test_a_process_that_starts_is_shared_out_without_remainder(process, network, managed, least, more):
    """The parts add up to the process, and network memory is within its bounds."""
    options = configured(
        {
            "process.size": f"{process}m",
            "network.fraction": f"{network:f}",
            "network.min": f"{least}m",
            "network.max": f"{least + more}m",
            "managed.fraction": f"{managed:f}",
        }
    )
    try:
        memory = process_memory(options)
    except MemoryRefused:
        return
    assert memory.process == process * MB
    assert least * MB <= memory.network <= (least + more) * MB
    assert min(getattr(memory, field.name) for field in fields(memory)) >= 0


@pytest.mark.parametrize("size", ["4 kb", "32 kb", "1 gb"])
def test_a_segment_is_a_power_of_two(size):
    """ConfigurationParserUtils.getPageSize."""
    assert list(memory_doubts(configured({"segment-size": size}))) == []


@pytest.mark.parametrize("size", ["2 kb", "4095", "5000", "33 kb", "2 gb"])
def test_a_segment_that_flink_refuses_is_doubted(size):
    """Too small, not a power of two, or more than an int holds."""
    assert [key for key, _ in memory_doubts(configured({"segment-size": size}))] == [PREFIX + "segment-size"]
