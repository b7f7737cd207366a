"""Prometheus' text format, without a client library. Pure, except for what the process itself uses."""

from __future__ import annotations

import bisect
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

STATM = Path("/proc/self/statm")
"""The file whose second field is the resident memory, in pages."""
FILES = Path("/proc/self/fd")
Samples = Mapping[str, float]
"""The values of a metric by their labels, as in `{kind="Testbed"}`."""


@dataclass(slots=True)
class Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value_s: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value_s)] += 1
        self.sum_s += value_s

    def lines(self, name: str, text: str) -> list[str]:
        return [f"# HELP {name} {text}", f"# TYPE {name} histogram", *self.samples(name)]

    def samples(self, name: str, labels: str = "") -> Iterable[str]:
        """Yield the samples; `labels` as in `kind="Testbed"`."""
        separator, own = ("," if labels else ""), (f"{{{labels}}}" if labels else "")
        so_far = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{{labels}{separator}le="{bound}"}} {so_far}'
        yield f"{name}_sum{own} {self.sum_s:.6f}"
        yield f"{name}_count{own} {so_far}"


def gauge(name: str, text: str, value: Samples | float) -> list[str]:
    """Return the lines of a gauge, a value that may fall: one line, or one for each set of labels."""
    return _family(name, "gauge", text, value)


def counter(name: str, text: str, value: Samples | float) -> list[str]:
    """Return the lines of a counter, which only grows: one line, or one for each set of labels."""
    return _family(name, "counter", text, value)


def _family(name: str, type_: str, text: str, value: Samples | float) -> list[str]:
    samples = value if isinstance(value, Mapping) else {"": value}
    lines = (f"{name}{labels} {number}" for labels, number in samples.items())
    return [f"# HELP {name} {text}", f"# TYPE {name} {type_}", *lines]


def by_label(label: str, counts: Mapping[str, int]) -> Samples:
    return {f'{{{label}="{value}"}}': count for value, count in sorted(counts.items())}


def process_lines() -> list[str]:
    """Return the processor time, memory and open files of this process, under the names that Prometheus' client libraries use."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    files = len(list(FILES.iterdir())) if FILES.exists() else 0
    pages = int(STATM.read_text().split()[1]) if STATM.exists() else 0  # Linux only
    return [
        *counter("process_cpu_seconds_total", "User and system time.", used.ru_utime + used.ru_stime),
        *gauge("process_open_fds", "Open files.", files),
        *gauge("process_resident_memory_bytes", "Resident memory.", pages * resource.getpagesize()),
    ]
