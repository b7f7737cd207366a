"""The buffer pools of gates and partitions: their sizes, their shares of scarce memory, and how much of them
was in use. Also the network pool of each TaskManager, with the buffers that were missing at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from testbed_runtime.checking.common import Window, data, events
from testbed_runtime.history.columns import vertex_of
from testbed_runtime.history.schema import Trial


class PoolUsage(Struct, frozen=True):
    """The largest share in use per exchange (`count ← parse`): Flink's inPoolUsage or outPoolUsage."""

    value: float | None
    text: str


def largest_gates(trial: Trial, end: int) -> dict[str, tuple[int, int, int]]:
    """Return the largest gate of each exchange: its remote channels, the exclusive buffers of each channel,
    and its floating buffers. Samples after `end`, when the job ended, do not count: the remaining tasks get
    the buffers of ended ones."""
    found: dict[str, tuple[int, int, int]] = {}
    for pool in _pools(trial, Window(0, end)):
        if pool["side"] == "in":
            mine = pool["channels"], pool["exclusive"], pool["size"]
            name = _exchange(pool)
            found[name] = max(found.get(name, (0, 0, 0)), mine, key=lambda g: g[0] * g[1] + g[2])
    return found


def deviation(trial: Trial) -> float | None:
    """Return the largest difference between a pool's size and its share. Buffers beyond the required ones are
    shared in proportion to how far each pool may grow, so equal pools differ by at most 1. None without a
    sample of all pools."""
    worst: float | None = None
    for event in events(trial, "network.pools"):
        more = data(event)
        free, pools = int(more["free"]), more["pools"]
        if more["others"]:
            continue
        room = [free if p["most"] < 0 else min(free, p["most"] - p["required"]) for p in pools]
        given = min(free, sum(room))
        for pool, mine in zip(pools, room, strict=True):
            share = given * mine / sum(room) if sum(room) else 0.0
            worst = max(worst or 0.0, abs(pool["size"] - pool["required"] - share))
    return worst


def usage(trial: Trial, side: str, window: Window | None) -> PoolUsage:
    """Return the largest usage of a pool in a window. An overdraft makes it larger than 1."""
    found: dict[str, float] = {}
    for pool in _pools(trial, window) if window is not None else ():
        held = pool.get("channels", 0) * pool.get("exclusive", 0)
        if pool["side"] == side and "used" in pool and pool["size"] + held:
            share = (pool["used"] + pool.get("used_exclusive", 0)) / (pool["size"] + held)
            found[_exchange(pool)] = max(found.get(_exchange(pool), 0.0), share)
    text = "; ".join(f"{name} {share:.0%}" for name, share in found.items())
    return PoolUsage(max(found.values(), default=None), text)


def _pools(trial: Trial, window: Window) -> Iterable[Mapping[str, Any]]:
    """Yield the pools in a window, beginning with those that each TaskManager recorded last before it."""
    last: dict[str, dict[str, Any]] = {}
    found = []
    for event in events(trial, "network.pools"):
        if event["t_ns"] <= window.start:
            last[event["subject"]] = event
        elif event["t_ns"] in window:
            found.append(event)
    for event in (*last.values(), *found):
        yield from data(event)["pools"]


def _exchange(pool: Mapping[str, Any]) -> str:
    return f"{vertex_of(pool['task'])} {'←' if pool['side'] == 'in' else '→'} {pool['peer']}"


@dataclass(slots=True)
class NetworkPool:
    """The network pool of one TaskManager. `used` holds (time, share in use); each share lasts until the next one."""

    taskmanager: str
    used: list[tuple[int, float]] = field(default_factory=list)
    leaked: int | None = None
    """None if the TaskManager did not count, because it was killed or still had tasks."""

    def largest_share(self, window: Window) -> float | None:
        """Return the largest share in use in a window. None without a sample."""
        before = [share for t_ns, share in self.used if t_ns < window.start][-1:]
        return max([*before, *(share for t_ns, share in self.used if t_ns in window)], default=None)

    def add(self, t_ns: int, more: Mapping[str, Any]) -> None:
        """Add the data of a `network.buffers` event."""
        if "leaked" in more:
            self.leaked = int(more["leaked"])
        elif more.get("total"):
            self.used.append((t_ns, int(more["used"]) / int(more["total"])))


def network_pools(trial: Trial) -> list[NetworkPool]:
    """Return the pools of all TaskManagers, by name."""
    found: dict[str, NetworkPool] = {}
    for event in events(trial, "network.buffers"):
        pool = found.setdefault(event["subject"], NetworkPool(event["subject"]))
        pool.add(event["t_ns"], data(event))
    return [found[name] for name in sorted(found)]
