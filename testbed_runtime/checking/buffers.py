"""The network buffers of each TaskManager: how many were in use, and how many did not return at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.checking.common import Window, data, events
from testbed_runtime.history.schema import Trial


@dataclass(slots=True)
class Pool:
    """The network pool of one TaskManager. `used` holds (time, share in use); each share lasts until the next one."""

    taskmanager: str
    used: list[tuple[int, float]] = field(default_factory=list)
    leaked: int | None = None
    """None if the TaskManager did not count: it was killed, or still had tasks."""

    def largest_share(self, window: Window) -> float | None:
        """Return the largest share in a window, None without a sample."""
        before = [share for t_ns, share in self.used if t_ns < window.start][-1:]
        return max([*before, *(share for t_ns, share in self.used if t_ns in window)], default=None)

    def add(self, t_ns: int, more: Mapping[str, Any]) -> None:
        """Take the data of an event."""
        if "leaked" in more:
            self.leaked = int(more["leaked"])
        elif more.get("total"):
            self.used.append((t_ns, int(more["used"]) / int(more["total"])))


def pools_of(trial: Trial) -> list[Pool]:
    """Return the pools of all TaskManagers, by name."""
    found: dict[str, Pool] = {}
    for event in events(trial, "network.buffers"):
        pool = found.setdefault(event["subject"], Pool(event["subject"]))
        pool.add(event["t_ns"], data(event))
    return [found[name] for name in sorted(found)]
