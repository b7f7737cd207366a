"""Measure the effect of a network fault with probes of its paths. The same for the real proxy and the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol, TypeVar

from testbed_runtime.core.faults.kinds import kind_of
from testbed_runtime.core.faults.links import any_matches
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import SEEN_SHARE, Measurement, Rule
from testbed_runtime.timeouts import cancel_all

MAX_PROBED_PATHS = 4
"""Paths probed for one fault: enough to see it from two sides on both planes."""
PINGS = 5
QUIET_S = 1.0
"""If there is no answer for this long (or for half the fault), nothing passes."""
AFTER_LIMIT_S = 2.0
CLEAN_S = 0.002
"""Round trips may be this much longer than before and still count as clean."""
AFTER_SERIES = 10
AFTER_PAUSE_S = 0.2
"""Series of round trips after the end, until one is as before, and the pause between two. Residue of a fault lasts
longer than these 2 s, a delay by a busy machine does not."""
BULK_S = 0.3
"""About how long a throughput probe lasts under the ceiling."""
CEILING_MARGIN = 1.25

T = TypeVar("T")
PathT = TypeVar("PathT", bound="Path")


class Probe(Protocol):
    """A connection of its own on a path. `error`: empty while it is open, else `reset`, `closed` or `refused`."""

    error: str

    @property
    def connected(self) -> bool:
        """Whether the connection has been made and has not ended."""

    async def round_trip(self, *, timeout_s: float) -> float | None:
        """Return the seconds of a ping; None without an answer in time, or when the connection ended."""

    async def bulk(self, size: int, *, timeout_s: float) -> float | None:
        """Return the seconds until `size` bytes came back; None when not in time."""

    async def closed(self, *, timeout_s: float) -> bool:
        """Wait until the connection has ended."""


@dataclass(slots=True)
class Path:
    source: str
    destination: str
    plane: str
    before: list[float] = field(default_factory=list)
    """Round trips before the fault, in seconds."""
    shared: bool = False
    """Whether another fault was active on the path before this one."""

    @property
    def name(self) -> str:
        return f"{self.source}->{self.destination}/{self.plane}"

    def is_hit(self, rules: Iterable[Rule]) -> bool:
        """Return whether one of the rules concerns the path in any direction."""
        ways = ((self.source, self.destination), (self.destination, self.source))
        return any(
            self.plane in rule.planes and any_matches(rule.flows, *way) for rule in rules for way in ways
        )


class ActiveRules:
    """The rules of the faults that are active on links, and whether one of them has a path for itself."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._changed = asyncio.Event()

    def add(self, rule_id: str, rule: Rule) -> None:
        self._rules[rule_id] = rule

    def remove(self, rule_id: str) -> None:
        self._rules.pop(rule_id, None)
        self._changed.set()
        self._changed = asyncio.Event()

    def hit(self, path: Path, *, but: str = "") -> bool:
        """Whether a rule other than `but` concerns the path."""
        return path.is_hit(rule for name, rule in self._rules.items() if name != but)

    async def alone(self, path: Path, rule_id: str) -> None:
        """Wait until no other rule than this one concerns the path."""
        while self.hit(path, but=rule_id):
            await self._changed.wait()

    def values(self) -> Collection[Rule]:
        return self._rules.values()

    def names(self) -> list[str]:
        return sorted(self._rules)


def free_first(paths: Sequence[PathT], active: ActiveRules) -> list[PathT]:
    """Return the paths without an active fault. If there are none, return all of them as shared paths."""
    free = [path for path in paths if not active.hit(path)]
    for path in paths:
        path.shared = not free
    return free or list(paths)


async def observe_path(
    rule: Rule,
    fault: Fault,
    path: Path,
    probe: Probe,
    stop: asyncio.Event,
    *,
    alone: Callable[[], Coroutine[Any, Any, Probe]] | None = None,
) -> Measurement:
    """Measure the fault's effect on one path, until it is certain or `stop` is set. `alone` waits until no other fault is active on
    the path, and returns a probe that was opened then."""
    if not path.before and path.shared and alone is not None and kind_of(fault).silent:
        return await _silence_alone(fault, stop, alone())
    if not path.before:
        text = f"{path.name} did not answer before the fault, so its effect cannot be measured"
        return Measurement(False, {}, text)
    if kind_of(fault).silent:
        return await _silence(fault, probe, stop)
    match fault.kind:
        case "network.latency":
            return await _latency(rule, path, probe, stop)
        case "network.bandwidth":
            return await _bandwidth(rule, probe, stop)
        case _:
            return await _reset(probe, stop)


def expected_delay(rule: Rule, path: Path, *, jitter: bool = False) -> float:
    """Return how much longer a round trip takes. With `jitter`, return the minimum."""
    ways = ((path.source, path.destination), (path.destination, path.source))
    hit = sum(any_matches(rule.flows, *way) for way in ways)
    return hit * (rule.number("latency_s") - (rule.number("jitter_s") if jitter else 0.0))


async def _latency(rule: Rule, path: Path, probe: Probe, stop: asyncio.Event) -> Measurement:
    """Judge by round trips during and before the fault.

    The values are medians; the verdict compares the best of each, which has the least noise from other load."""
    expected = expected_delay(rule, path)
    loop = asyncio.get_running_loop()
    found: list[float] = []
    while len(found) < PINGS:
        seconds = await _unless(stop, probe.round_trip(timeout_s=expected * 4 + QUIET_S))
        if seconds is None or loop.time() >= rule.deadline:  # released early: shorter than the delay
            break
        found.append(seconds)
    values = {
        "asked_round_trip_s": round(expected, 6),
        "added_round_trip_s": round(median(found) - median(path.before) if found else 0.0, 6),
        "before_s": round(median(path.before), 6),
        "probes": len(found),
    }
    surely = min(found) - min(path.before) if found else 0.0
    least = expected_delay(rule, path, jitter=True)
    ok = bool(found) and expected > 0 and surely >= SEEN_SHARE * least
    return Measurement(ok, values, "" if ok else "round trips did not become as much longer as requested")


async def _bandwidth(rule: Rule, probe: Probe, stop: asyncio.Event) -> Measurement:
    ceiling = rule.number("bytes_per_s")
    size = max(2_048, int(ceiling * BULK_S))
    seconds = await _unless(stop, probe.bulk(size, timeout_s=BULK_S * 20))
    if not seconds:
        return Measurement(False, {"asked_bytes_per_s": ceiling}, "no throughput was measured")
    values = {"asked_bytes_per_s": ceiling, "measured_bytes_per_s": round(size / seconds, 1)}
    ok = size / seconds <= ceiling * CEILING_MARGIN
    return Measurement(ok, values, "" if ok else "the ceiling had no effect")


async def _silence(fault: Fault, probe: Probe, stop: asyncio.Event) -> Measurement:
    """Check that a ping stays unanswered and the connection is not closed. A ping on a probe without a connection tries to make one."""
    quiet = min(QUIET_S, fault.duration_s / 2)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    seconds = await _unless(stop, probe.round_trip(timeout_s=quiet))
    silent_for = loop.time() - begin
    values = {
        "silent_for_s": round(silent_for, 6),
        "answered_after_s": seconds,
        "connection": probe.error or ("open" if probe.connected else "not made"),
    }
    if seconds is not None:
        return Measurement(False, values, "a probe was answered")
    if probe.error:
        return Measurement(False, values, f"the probe's connection was {probe.error}")
    ok = silent_for >= quiet * SEEN_SHARE
    return Measurement(ok, values, "" if ok else "the fault ended before it could be measured")


async def _silence_alone(fault: Fault, stop: asyncio.Event, alone: Coroutine[Any, Any, Probe]) -> Measurement:
    """Check a path that another fault had blocked before: it is still blocked after the other fault has ended.

    An earlier probe cannot be used: the other fault may have reset its connection or prevented it."""
    began = asyncio.get_running_loop().time()
    probe = await _unless(stop, alone)
    if probe is None:
        text = "another fault, which let nothing pass, was active on the path all the time"
        return Measurement(False, {"shared_s": round(asyncio.get_running_loop().time() - began, 6)}, text)
    return await _silence(fault, probe, stop)


async def _reset(probe: Probe, stop: asyncio.Event) -> Measurement:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await _unless(stop, probe.closed(timeout_s=QUIET_S))
    ok = probe.error == "reset"
    values = {"connection": probe.error or "open", "after_s": round(loop.time() - begin, 6)}
    return Measurement(ok, values, "" if ok else "the probe's connection was not reset")


async def _unless(stop: asyncio.Event, measuring: Coroutine[Any, Any, T]) -> T | None:
    """Return the measurement's result, or None when `stop` is set first."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(measuring, name="probe")
    stopper = loop.create_task(stop.wait(), name="probe-stop")
    try:
        await asyncio.wait((task, stopper), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(task, stopper)
    return None if task.cancelled() else task.result()


def judge_after(path: Path, after: Sequence[float], limit_s: float) -> tuple[bool, Mapping[str, Any]]:
    """Return whether the best round trip after the fault is at most `limit_s` longer than before, and the values.

    The best of some round trips has the least noise from other load."""
    if not after:
        return False, {"round_trip_s": None}
    added = min(after) - min(path.before, default=min(after))
    return added <= limit_s, {"round_trip_s": round(min(after), 6), "added_s": round(added, 6)}


def sent_again(late_s: float) -> Mapping[str, float]:
    """Return the value of a check with the time from the end of a fault until TCP retransmits the last bytes that the fault had lost."""
    return {"sent_again_s": round(late_s, 6)} if late_s else {}


async def settled_after(
    path: Path, measure: Callable[[], Awaitable[Sequence[float]]], limit_s: float
) -> tuple[bool, Mapping[str, Any]]:
    """Measure round trips and judge them (`judge_after`). Repeat this after a pause while they are not as before the fault."""
    for _ in range(AFTER_SERIES - 1):
        found = judge_after(path, await measure(), limit_s)
        if found[0]:
            return found
        await asyncio.sleep(AFTER_PAUSE_S)
    return judge_after(path, await measure(), limit_s)
