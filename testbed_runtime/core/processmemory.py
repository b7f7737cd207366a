"""Flink's memory model of a TaskManager: what each part of the process gets (TaskExecutorProcessUtils, FLIP-49).

Sizes are bytes, rounded as Flink rounds them: a fraction is a 32-bit float, and a share is cut to whole bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from testbed_runtime.core.errors import OptionRefused
from testbed_runtime.core.options import BY_KEY, Options
from testbed_runtime.core.values import MAX_INT, MAX_LONG, java_double

PREFIX = "taskmanager.memory."
PROCESS, FLINK = PREFIX + "process.size", PREFIX + "flink.size"
TASK_HEAP, TASK_OFF_HEAP = PREFIX + "task.heap.size", PREFIX + "task.off-heap.size"
MANAGED, MANAGED_FRACTION = PREFIX + "managed.size", PREFIX + "managed.fraction"
METASPACE, OVERHEAD, NETWORK = PREFIX + "jvm-metaspace.size", PREFIX + "jvm-overhead", PREFIX + "network"
FRAMEWORK_HEAP, FRAMEWORK_OFF_HEAP = PREFIX + "framework.heap.size", PREFIX + "framework.off-heap.size"
SEGMENT = PREFIX + "segment-size"
OPTIONS: tuple[str, ...] = (
    PROCESS, FLINK, TASK_HEAP, TASK_OFF_HEAP, MANAGED, MANAGED_FRACTION, METASPACE, FRAMEWORK_HEAP,
    FRAMEWORK_OFF_HEAP, *(f"{part}.{bound}" for part in (NETWORK, OVERHEAD) for bound in ("fraction", "min", "max")),
)  # fmt: skip
"""Every option that the model reads."""
_REFUSED = "TaskManager memory configuration failed: "
LEAST_SEGMENT = 4096
"""MemoryManager.MIN_PAGE_SIZE. The tests use smaller ones."""
LARGEST_MB = 2**20
_UNITS = ((1024**4, "tb"), (1024**3, "gb"), (1024**2, "mb"), (1024, "kb"))


class MemoryRefused(OptionRefused):
    """Flink does not start a TaskManager with these sizes. The message is Flink's; `hint` names the options to change."""

    def __init__(self, message: str, key: str, hint: str) -> None:
        super().__init__("IllegalConfigurationException", _REFUSED + message, key, hint)


class MemoryOverflow(MemoryRefused):
    """A sum or a share of the sizes is more than Java's long: MemorySize.add and multiply."""

    def __init__(self, key: str) -> None:
        OptionRefused.__init__(self, "ArithmeticException", "long overflow", key, "lower it")


class ProcessMemory(Struct, frozen=True):
    """The parts of a TaskManager's process. `process` may be larger than their sum by the `unassigned` bytes."""

    framework_heap: int
    framework_off_heap: int
    task_heap: int
    task_off_heap: int
    network: int
    managed: int
    metaspace: int
    overhead: int
    unassigned: int = 0

    @property
    def flink(self) -> int:
        return self.heap + self.direct + self.managed

    @property
    def process(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    @property
    def heap(self) -> int:
        """The JVM's heap: `-Xmx` and `-Xms`."""
        return self.framework_heap + self.task_heap

    @property
    def direct(self) -> int:
        """The JVM's direct memory: `-XX:MaxDirectMemorySize`."""
        return self.framework_off_heap + self.task_off_heap + self.network

    def jvm_flags(self, *, young: float | None = None) -> tuple[str, ...]:
        """Return the flags that Flink starts the JVM with. `young` is the share of the heap for `-Xmn`, which Flink leaves
        to the JVM."""
        flags = [f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        if young is not None:
            flags.append(f"-Xmn{int(self.heap * young)}")
        return (*flags, f"-XX:MaxDirectMemorySize={self.direct}", f"-XX:MaxMetaspaceSize={self.metaspace}")


class Range(Struct, frozen=True):
    """A part that is a share of something, between a least and a largest size. `label` names it in Flink's texts."""

    prefix: str
    label: str
    fraction: float
    least: int
    largest: int

    @classmethod
    def read(cls, options: Options, prefix: str, label: str, *, bounded: bool = True) -> Range:
        """Raises MemoryRefused if the bounds or the fraction are impossible."""
        key = f"{prefix}.fraction"
        fraction = float(np.float32(options.number(key)))
        least = options.memory(f"{prefix}.min") if bounded else 0
        largest = options.memory(f"{prefix}.max") if bounded else MAX_LONG
        if least > largest or not 0 <= fraction < 1:
            wrong, hint = (
                (f"{prefix}.max", f"write at least {least}b, or lower {prefix}.min")
                if least > largest
                else (key, "write at least 0 and less than 1, such as 0.1 for 10 %")
            )
            raise MemoryRefused(
                f"Inconsistently configured {_flinks_option(key)} ({java_double(fraction)}) and its min ({readable(least)}), "
                f"max ({readable(largest)}) value",
                wrong,
                hint,
            )
        return cls(prefix, label, fraction, least, largest)

    def of(self, base: int) -> int:
        """Return the share of a whole."""
        return self.within(_times(base, self.fraction))

    def beside(self, rest: int) -> int:
        """Return the share of a whole whose other parts add up to `rest`."""
        return self.within(_times(rest, self.fraction / (1 - self.fraction)))

    def within(self, size: int) -> int:
        return max(self.least, min(size, self.largest))

    def check(self, size: int) -> None:
        """Raise MemoryRefused if a size that was left over is outside the bounds."""
        if self.least <= size <= self.largest:
            return
        bound, verb = ("min", "lower") if size < self.least else ("max", "raise")
        raise MemoryRefused(
            f"Derived {self.label} size ({readable(size)}) is not in configured {self.label} range "
            f"[{readable(self.least)}, {readable(self.largest)}].",
            f"{self.prefix}.{bound}",
            f"{verb} {self.prefix}.{bound} to {size}b, or change the sizes that it is left over from",
        )


def process_memory(options: Options) -> ProcessMemory:
    """Return the parts that Flink derives from a configuration. Without any total size it is that of Flink's shipped
    configuration. Raises MemoryRefused where Flink refuses to start."""
    try:
        return _derived(options)
    except MemoryRefused as error:
        if error.key in (PROCESS, FLINK):
            enough = _enough(options, error.key)
            error.hint = f"raise it to {enough} mb, or {error.hint}" if enough else error.hint
        raise


def _enough(options: Options, key: str) -> int:
    """Return the smallest size in MB with which Flink starts, or 0 if none was found."""

    def starts(size: int) -> bool:
        try:
            _derived(options.with_values({key: f"{size} mb"}))
        except MemoryRefused:
            return False
        return True

    low, high = 0, 1
    # fixed sizes leave only the range of the overhead: about 1 GB
    while not starts(high):
        low, high = high, high + 1 + high // 64
        if high > LARGEST_MB:
            return 0
    return bisect_left(range(high), True, lo=low, key=starts)


@contextmanager
def _overflow_refused(options: Options) -> Iterator[None]:
    """Raise MemoryOverflow, with the largest size that is set, for an OverflowError."""
    try:
        yield
    except OverflowError:
        sizes = {k: options.memory(k) for k in OPTIONS if BY_KEY[k].type == "memory" and options.is_set(k)}
        raise MemoryOverflow(max(sizes, key=sizes.__getitem__, default=PROCESS)) from None


def _derived(options: Options) -> ProcessMemory:
    with _overflow_refused(options):
        return _unbounded(options)


def _unbounded(options: Options) -> ProcessMemory:
    """Return the parts. Raises OverflowError if one of Flink's additions would overflow."""
    if options.is_set(TASK_HEAP) and options.is_set(MANAGED):
        parts = _from_parts(options)
    elif options.is_set(FLINK):
        parts = _from_flink(options, options.memory(FLINK))
    else:
        return _from_process(options, options.memory(PROCESS))
    metaspace, overhead = _around(options, _sum(parts.values()))
    return ProcessMemory(**parts, metaspace=metaspace, overhead=overhead)


def _from_process(options: Options, process: int) -> ProcessMemory:
    metaspace, overhead = options.memory(METASPACE), _overhead(options).of(process)
    if _sum((metaspace, overhead)) > process:
        raise MemoryRefused(
            f"Sum of configured JVM Metaspace ({readable(metaspace)}) and JVM Overhead ({readable(overhead)}) exceed "
            f"configured Total Process Memory ({readable(process)}).",
            PROCESS,
            "lower one of these two",
        )
    parts = _from_flink(options, process - metaspace - overhead)
    return ProcessMemory(**parts, metaspace=metaspace, overhead=overhead)


def _overhead(options: Options) -> Range:
    return Range.read(options, OVERHEAD, "JVM Overhead")


def _around(options: Options, flink: int) -> tuple[int, int]:
    """Return metaspace and overhead around a Flink size."""
    metaspace = options.memory(METASPACE)
    inner = _sum((flink, metaspace))
    if not options.is_set(PROCESS):
        overhead = _overhead(options).beside(inner)
        _sum((inner, overhead))
        return metaspace, overhead
    process = options.memory(PROCESS)
    if inner > process:
        raise MemoryRefused(
            f"The configured Total Process Memory size ({readable(process)}) is less than the sum of the derived Total Flink "
            f"Memory size ({readable(flink)}) and the configured or default JVM Metaspace size  ({readable(metaspace)}).",
            PROCESS,
            "leave it out",
        )
    _overhead(options).check(process - inner)
    return metaspace, process - inner


def _from_parts(options: Options) -> dict[str, int]:
    """Return the parts of Flink's memory if task heap and managed memory are given."""
    parts = _fixed(options) | {"task_heap": options.memory(TASK_HEAP), "managed": options.memory(MANAGED)}
    if options.is_set(FLINK):
        return _with_the_rest_as_network(options, parts, options.memory(FLINK))
    others = _sum(parts.values())
    return parts | {"network": network_range(options).beside(others)}


def _from_flink(options: Options, flink: int) -> dict[str, int]:
    """Return the parts of a given size of Flink's memory."""
    given = options.is_set(MANAGED)
    share = Range.read(options, PREFIX + "managed", "Managed Memory", bounded=False) if not given else None
    parts = _fixed(options) | {"managed": share.of(flink) if share else options.memory(MANAGED)}
    if options.is_set(TASK_HEAP):
        return _with_the_rest_as_network(options, parts | {"task_heap": options.memory(TASK_HEAP)}, flink)
    parts["network"] = network_range(options).of(flink)
    _check_fits(parts, flink, key=FLINK if options.is_set(FLINK) else PROCESS)
    return parts | {"task_heap": flink - sum(parts.values())}


def _fixed(options: Options) -> dict[str, int]:
    return {
        "framework_heap": options.memory(FRAMEWORK_HEAP),
        "framework_off_heap": options.memory(FRAMEWORK_OFF_HEAP),
        "task_off_heap": options.memory(TASK_OFF_HEAP),
    }


def network_range(options: Options) -> Range:
    """Return the bounds of network memory. Raises MemoryRefused."""
    return Range.read(options, NETWORK, "Network Memory")


def _with_the_rest_as_network(options: Options, parts: dict[str, int], flink: int) -> dict[str, int]:
    _check_fits(parts, flink, key=FLINK if options.is_set(FLINK) else PROCESS)
    rest = flink - sum(parts.values())
    try:
        network_range(options).check(rest)
    except MemoryRefused as cause:
        raise MemoryRefused(
            "If Total Flink, Task Heap and (or) Managed Memory sizes are explicitly configured then the Network Memory size is "
            "the rest of the Total Flink memory after subtracting all other configured types of memory, but the derived Network "
            f"Memory is inconsistent with its configuration. {cause.message.removeprefix(_REFUSED)}",
            cause.key,
            cause.hint,
        ) from cause
    return parts | {"network": rest}


_LABELS = (
    ("framework_heap", "Framework Heap Memory"),
    ("framework_off_heap", "Framework Off-Heap Memory"),
    ("task_heap", "Task Heap Memory"),
    ("task_off_heap", "Task Off-Heap Memory"),
    ("managed", "Managed Memory"),
    ("network", "Network Memory"),
)


def _check_fits(parts: dict[str, int], flink: int, *, key: str) -> None:
    """Raise MemoryRefused if the parts of Flink's memory are larger than the whole."""
    if _sum(parts.values()) <= flink:
        return
    named = [f"{label} ({readable(parts[name])})" for name, label in _LABELS if name in parts]
    listed = f"{', '.join(named[:-1])} and {named[-1]}"
    raise MemoryRefused(
        f"Sum of configured {listed} exceed configured Total Flink Memory ({readable(flink)}).",
        key,
        "lower one of the parts",
    )


def platform_memory(
    options: Options,
    *,
    flink_ratio: float,
    metaspace_ratio: float | None = None,
    task_off_heap_fraction: float | None = None,
) -> ProcessMemory:
    """Return the parts by the rules of a platform that cuts the process itself: `flink_ratio` of it is Flink's memory, and
    `metaspace_ratio` of the rest is metaspace. The sizes of Flink's own options fill what is not given. What no part takes is
    `unassigned`. Raises MemoryRefused if the parts do not fit."""
    process = options.memory(PROCESS)
    flink = _times(process, flink_ratio)
    off_heap = None if task_off_heap_fraction is None else _times(flink, task_off_heap_fraction)
    metaspace = (
        options.memory(METASPACE) if metaspace_ratio is None else _times(process - flink, metaspace_ratio)
    )
    overhead = _overhead(options).of(process)
    unassigned = process - flink - metaspace - overhead
    if unassigned < 0:
        raise MemoryRefused(
            f"Flink memory ({readable(flink)}), JVM Metaspace ({readable(metaspace)}) and JVM Overhead "
            f"({readable(overhead)}) exceed the process ({readable(process)}).",
            PROCESS,
            "lower the ratio of Flink's memory, or raise the process size",
        )
    sized = {FLINK: f"{flink}b"} | ({} if off_heap is None else {TASK_OFF_HEAP: f"{off_heap}b"})
    with _overflow_refused(options):
        parts = _from_flink(options.with_values(sized), flink)
    return ProcessMemory(**parts, metaspace=metaspace, overhead=overhead, unassigned=unassigned)


def refused_by_flink(options: Options, memory: ProcessMemory) -> str:
    """Return why Flink does not start with the sizes of a process, or an empty string."""
    sized = {
        PROCESS: f"{memory.process}b",
        FLINK: f"{memory.flink}b",
        METASPACE: f"{memory.metaspace}b",
        TASK_OFF_HEAP: f"{memory.task_off_heap}b",
    }
    try:
        process_memory(options.with_values(sized))
    except MemoryRefused as error:
        return error.message
    return ""


def memory_doubts(options: Options) -> Iterator[tuple[str, str]]:
    """Yield key and message of each value that is accepted but probably a mistake."""
    for prefix in (NETWORK, OVERHEAD):
        low, high = f"{prefix}.min", f"{prefix}.max"
        if options.memory(low) == options.memory(high):
            yield f"{prefix}.fraction", "min and max are equal, so the fraction means nothing"
    if problem := segment_problem(options):
        yield SEGMENT, problem


def segment_problem(options: Options) -> str:
    """Return why Flink does not start with the size of a segment, or an empty string."""
    segment = options.memory(SEGMENT)
    if LEAST_SEGMENT <= segment <= MAX_INT and not segment & (segment - 1):
        return ""
    return f"Flink does not start with {segment} bytes (write a power of 2 from 4 kb to 1 gb)"


def readable(size: int) -> str:
    """Format a size like Flink's MemorySize.toHumanReadableString."""
    for factor, unit in _UNITS:
        if size > factor:
            rounded = (Decimal(size) / factor).quantize(Decimal("0.001"), ROUND_HALF_UP)
            return f"{rounded}{unit} ({size} bytes)"
    return f"{size} bytes"


def _times(base: int, factor: float) -> int:
    """Multiply as Flink does: with the shortest decimal of the factor, cut to whole bytes. Raises OverflowError."""
    return _sum((int(base * Fraction(repr(factor))),))


def _sum(sizes: Iterable[int]) -> int:
    """Add as Flink does. Raises OverflowError above Java's long."""
    total = sum(sizes)
    if total > MAX_LONG:
        raise OverflowError
    return total


def _flinks_option(key: str) -> str:
    """Name an option as Flink's ConfigOption does in an error text."""
    option = BY_KEY[key]
    older = ", ".join(f"{{key={alias}, isDeprecated=true}}" for alias in option.aliases)
    return f"Key: '{key}' , default: {option.default} (fallback keys: [{older}])"
