"""`headgate memory`: what each part of a TaskManager's memory gets, and how many network buffers that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed_runtime.api.catalogue import SLOTS_KEY
from testbed_runtime.cli.options import (
    MEMORY,
    AsJson,
    FlinkConfFile,
    GivenVersion,
    Settings,
    flink_conf,
    flink_options,
    show,
)
from testbed_runtime.core.errors import OptionRefused, UserError
from testbed_runtime.core.faults.vocabulary import camel
from testbed_runtime.core.values import MB
from testbed_runtime.core.versions import LATEST

if TYPE_CHECKING:
    from testbed_runtime.core.options import Options
    from testbed_runtime.core.processmemory import ProcessMemory

DIGITS = 3
PARTS = (
    ("process", "process", 0),
    ("flink", "Flink memory", 1),
    ("framework_heap", "framework heap", 2),
    ("task_heap", "task heap", 2),
    ("managed", "managed memory", 2),
    ("framework_off_heap", "framework off-heap", 2),
    ("task_off_heap", "task off-heap", 2),
    ("network", "network memory", 2),
    ("metaspace", "JVM metaspace", 1),
    ("overhead", "JVM overhead", 1),
    ("unassigned", "in no part", 1),
)
"""Attribute, label and depth of each line."""
LABEL_WIDTH, NUMBER_WIDTH = 28, 14


def memory(  # noqa: PLR0917 - options of the command line
    process_size: Annotated[
        str, typer.Option(help="taskmanager.memory.process.size, such as 4096m. Without a size: 1728m.")
    ] = "",
    flink_size: Annotated[str, typer.Option(help="taskmanager.memory.flink.size, such as 3072m.")] = "",
    flink_ratio: Annotated[
        float | None, typer.Option(help="A platform's rule: this share of the process is Flink's memory.")
    ] = None,
    metaspace_ratio: Annotated[
        float | None,
        typer.Option(help="A platform's rule: this share of the rest of the process is metaspace."),
    ] = None,
    task_off_heap_fraction: Annotated[
        float | None,
        typer.Option(help="A platform's rule: this share of Flink's memory is task off-heap memory."),
    ] = None,
    xmn_ratio: Annotated[
        float | None, typer.Option(help="Share of the heap for -Xmn, which Flink does not set.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Slots, which share managed memory (state.backend.type rocksdb). By default those of --flink-conf, or 1.",
            show_default=False,
        ),
    ] = None,
    flink_version: GivenVersion = None,
    conf: FlinkConfFile = None,
    settings: Settings = [],  # noqa: B006 - typer copies it
    as_json: AsJson = False,
) -> None:
    """Compute a TaskManager's memory by Flink's rules: its components, JVM flags and number of network buffers.

    With --flink-ratio, the memory is divided by a platform's rules instead, and the command reports what does not add up.
    With --flink-conf, the sizes are those of your configuration; the other options override it."""
    from testbed_runtime.core.processmemory import FLINK, PROCESS

    ratios = {
        "--flink-ratio": flink_ratio,
        "--metaspace-ratio": metaspace_ratio,
        "--task-off-heap-fraction": task_off_heap_fraction,
        "--xmn-ratio": xmn_ratio,
    }
    _check_arguments(ratios, settings)
    sizes = {PROCESS: "--process-size", FLINK: "--flink-size"}
    version, base = flink_version or LATEST, dict[str, str]()
    if conf is not None:
        given, version, found_in = flink_conf(conf, flink_version, needed=MEMORY)
        slots, base = slots or given.slots, dict(found_in.usable)
    options = flink_options(
        [*_sizes(process_size, flink_size), *settings], version, named=sizes
    ).with_defaults(base)
    if flink_ratio is not None and options.is_set(FLINK):
        raise UserError("--flink-size", "is what --flink-ratio calculates", "leave one of them out")
    found = _parts(options, flink_ratio, metaspace_ratio, task_off_heap_fraction)
    rules = "flink" if flink_ratio is None else "platform"
    described = describe(options, found, rules=rules, young=xmn_ratio) | _state_backend(
        options, found, slots or 1
    )
    show(described, lines(described), as_json=as_json)


def _parts(
    options: Options, flink: float | None, metaspace: float | None, task_off_heap: float | None
) -> ProcessMemory:
    """Divide the memory by Flink's rules, or by the ratios of a platform. Raises UserError if the sizes contradict each other."""
    from testbed_runtime.core.processmemory import MemoryRefused, platform_memory, process_memory

    try:
        if flink is None:
            return process_memory(options)
        return platform_memory(
            options, flink_ratio=flink, metaspace_ratio=metaspace, task_off_heap_fraction=task_off_heap
        )
    except MemoryRefused as error:
        raise UserError(error.key, error.message, error.hint) from None


def _check_arguments(ratios: Mapping[str, float | None], settings: Sequence[str]) -> None:
    """Raise UserError for a ratio that is not between 0 and 1 or whose base is missing, and for a `-D` key that has its own option."""
    for name, ratio in ratios.items():
        if ratio is not None and not 0 <= ratio <= 1:
            raise UserError(name, f"{ratio:g} is not a share", "write 0 to 1, such as 0.9")
    others = (ratios["--metaspace-ratio"], ratios["--task-off-heap-fraction"])
    if ratios["--flink-ratio"] is None and others != (None, None):
        raise UserError(
            "--flink-ratio", "is missing", "the other ratios refer to it, write --flink-ratio 0.9"
        )
    if any(setting.partition("=")[0] == SLOTS_KEY for setting in settings):
        raise UserError(f"-D {SLOTS_KEY}", "is an option of this command", "write --slots")


def _sizes(process_size: str, flink_size: str) -> list[str]:
    sizes = {"process": process_size, "flink": flink_size}
    return [f"taskmanager.memory.{name}.size={size}" for name, size in sizes.items() if size]


def describe(options: Options, memory: ProcessMemory, *, rules: str, young: float | None) -> dict[str, Any]:
    """Return everything that the command prints. Pure."""
    from testbed_runtime.core.processmemory import SEGMENT, memory_doubts

    segment = options.memory(SEGMENT)
    sizes = {camel(name): getattr(memory, name) for name, _, _ in PARTS}
    return {
        "flinkVersion": options.flink_version,
        "rules": rules,
        "mb": {name: megabytes(size) for name, size in sizes.items()},
        "bytes": sizes,
        "networkBuffers": memory.network // segment,
        "segmentBytes": segment,
        "jvmFlags": list(memory.jvm_flags(young=young)),
        "warnings": [
            *(f"{key}: {doubt}" for key, doubt in memory_doubts(options)),
            *(_mismatch(options, memory) if rules == "platform" else ()),
        ],
    }


def _state_backend(options: Options, memory: ProcessMemory, slots: int) -> dict[str, Any]:
    """Return what the state backend does with the managed memory of a slot; nothing for state on the heap. Raises UserError if
    Flink refuses its shares."""
    from testbed_runtime.core.job.statememory import FIXED_PER_SLOT, StateBackendConfig

    try:
        config = StateBackendConfig.of(options, slots, memory.managed)
    except OptionRefused as error:
        raise UserError(error.key, error.message, error.hint) from None
    if not config.on_disk:
        return {}
    sizes = {"slot": config.slot_memory, "writeBuffers": config.write_buffer, "cache": config.cache}
    found: dict[str, Any] = {"slots": slots, "bytes": sizes}
    if config.shared:
        found["memory"] = "fixed" if options.is_set(FIXED_PER_SLOT) else "managed"
    return {"stateBackend": found}


def _mismatch(options: Options, memory: ProcessMemory) -> Iterator[str]:
    """Yield the contradictions between the sizes of a platform."""
    from testbed_runtime.core.processmemory import OVERHEAD, refused_by_flink

    if memory.unassigned:
        yield (
            f"{megabytes(memory.unassigned):g} MB of the process are in no part: {megabytes(memory.process):g} − "
            f"{megabytes(memory.flink):g} (Flink) − {megabytes(memory.metaspace):g} (metaspace) − "
            f"{megabytes(memory.overhead):g} (overhead)"
        )
    refusal = refused_by_flink(options, memory)
    if refusal:
        rest = memory.process - memory.flink - memory.metaspace
        yield (
            f"Flink itself does not start with these sizes: it takes all that is left, {megabytes(rest):g} MB, as overhead, "
            f"and {OVERHEAD}.max is {megabytes(options.memory(f'{OVERHEAD}.max')):g} MB. {refusal}"
        )


def lines(described: dict[str, Any]) -> Iterator[str]:
    """Yield the description as text. Pure."""
    yield f"{'Flink ' + described['flinkVersion']:<{LABEL_WIDTH}}{'MB':>{NUMBER_WIDTH}}{'bytes':>{NUMBER_WIDTH}}"
    for name, label, depth in PARTS:
        size = described["bytes"][camel(name)]
        if size or name != "unassigned":
            shown = f"{'  ' * depth}{label}"
            yield f"{shown:<{LABEL_WIDTH}}{size / MB:>{NUMBER_WIDTH}.{DIGITS}f}{size:>{NUMBER_WIDTH}}"
    yield f"\nnetwork buffers: {described['networkBuffers']} of {described['segmentBytes']} bytes"
    yield f"JVM flags: {' '.join(described['jvmFlags'])}"
    if "stateBackend" in described:
        sizes = {name: megabytes(size) for name, size in described["stateBackend"]["bytes"].items()}
        memory = described["stateBackend"].get("memory")
        place = "managed memory" if memory == "managed" else "in addition to all parts above"
        of = f"in each slot: {sizes['slot']:g} MB {place}"
        shared = f"{of}: a block cache of {sizes['cache']:g} MB, which includes the memtables"
        alone = f"in each task: a block cache of {sizes['cache']:g} MB, and memtables"
        yield f"RocksDB {shared if memory else alone}; they are flushed at {sizes['writeBuffers']:g} MB"
    for warning in described["warnings"]:
        yield f"warning: {warning}"


def megabytes(size: int) -> float:
    """Return a size in MB of 1024 × 1024 bytes, rounded to thousandths."""
    return round(size / MB, DIGITS)
