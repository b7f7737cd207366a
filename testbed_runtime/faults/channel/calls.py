"""RPC, registration and store faults inside a process: what is delayed and what is dropped. Nothing runs while no rule is active."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.core.faults.links import ANYBODY, any_matches, logical_name
from testbed_runtime.core.job.messages import TASKEXECUTOR, Heartbeat
from testbed_runtime.faults.backend import Rule
from testbed_runtime.ports.storage import BlobStore
from testbed_runtime.timeouts import timeout

CALL_KINDS = ("heartbeats.mute", "rpc.delay")
REGISTRATION_KINDS = ("registration.delay",)
STORE_KINDS = ("store.slow", "store.failing")

_REQUEST_ENDPOINTS = (TASKEXECUTOR,)
"""Heartbeats received here are requests; at `jobmaster` and `resourcemanager` they are answers."""


class StoreFailure(OSError):
    """Raised by a failing checkpoint store."""


@dataclass(slots=True)
class CallCounters:
    """Counters of one rule's effects."""

    swallowed: int = 0
    delayed: int = 0
    failed: int = 0
    holding: int = 0
    """Calls that are held now."""
    given_up: int = 0
    """Calls that were held until the waiting task was cancelled. This is the largest effect that a delay can have."""
    cut_short: int = 0
    """Calls that continued because the fault ended, before they were as late as requested."""
    delay_s: float = 0.0
    """Sum of the actual delays."""
    longest_s: float = 0.0
    """The longest of these delays. A call that is held now counts with the time it has been held so far."""


@dataclass(slots=True)
class _Active:
    rule: Rule
    counters: CallCounters = field(default_factory=CallCounters)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begins: list[float] = field(default_factory=list)
    """When each call that is held now began to wait, the oldest first."""

    async def hold(self, seconds: float) -> None:
        """Wait, at most until the fault ends, and count the delay."""
        with self.held():
            try:
                async with timeout(seconds):
                    await self.ended.wait()
                    self.counters.cut_short += 1
            except TimeoutError:
                pass

    def counted(self) -> CallCounters:
        """Return the counters as they are now."""
        if self.begins:
            so_far = asyncio.get_running_loop().time() - self.begins[0]
            self.counters.longest_s = max(self.counters.longest_s, so_far)
        return self.counters

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count a held call and for how long it is held."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.counters.delayed += 1
        self.counters.holding += 1
        self.begins.append(begin)
        try:
            yield
        except asyncio.CancelledError:
            self.counters.given_up += 1
            raise
        finally:
            self.counters.holding -= 1
            self.begins.remove(begin)
            passed = loop.time() - begin
            self.counters.delay_s += passed
            self.counters.longest_s = max(self.counters.longest_s, passed)


class Rules:
    """The active rules of some kinds."""

    def __init__(self) -> None:
        self.rules: dict[str, _Active] = {}

    @property
    def active(self) -> bool:
        return bool(self.rules)

    def add(self, rule: Rule) -> None:
        self.rules[rule.rule_id] = _Active(rule)

    def remove(self, rule_id: str) -> CallCounters | None:
        """Remove a rule and return its counters. Calls that wait because of it continue at once."""
        active = self.rules.pop(rule_id, None)
        if active is None:
            return None
        active.ended.set()
        return active.counted()

    def counters(self, rule_id: str) -> CallCounters | None:
        active = self.rules.get(rule_id)
        return active.counted() if active else None


class CallFaults(Rules):
    """A ports.interception.CallInterceptor: drops heartbeats, and delays messages in the callee's mailbox."""

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        del link
        return not self._mute(endpoint, message)

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        if self._mute(endpoint, message):
            return False
        method = type(message).__name__
        for active in list(self.rules.values()):
            if active.rule.kind == "rpc.delay" and active.rule.params.get("method") == method:
                await active.hold(active.rule.number("delay_s"))
        return True

    def _mute(self, endpoint: str, message: Any) -> bool:
        if not self.rules or not isinstance(message, Heartbeat):
            return False
        direction = "request" if endpoint in _REQUEST_ENDPOINTS else "response"
        for active in self.rules.values():
            if active.rule.kind == "heartbeats.mute" and _concerns(active.rule, direction, message):
                active.counters.swallowed += 1
                return True
        return False


def _concerns(rule: Rule, direction: str, message: Heartbeat) -> bool:
    """Return whether a rule concerns a message. Answers are dropped where they arrive, so the rule's flows name the senders."""
    if rule.params.get("direction") != direction:
        return False
    return direction == "request" or any_matches(rule.flows, logical_name(message.origin), ANYBODY)


class RegistrationFaults(Rules):
    """A ports.interception.PartitionRegistrationHook: delays by time, or by a number of requests answered with `not found`."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, int] = {}
        self._asked = asyncio.Event()

    async def before_registration(self, vertex: str, partition: str) -> None:
        for active in list(self.rules.values()):
            if active.rule.params.get("vertex") not in (None, "", vertex):
                continue
            if active.rule.number("attempts") > 0:
                await self._wait_for_requests(active, partition)
            else:
                await active.hold(active.rule.number("delay_s"))
        if not self.rules:
            self._requests.clear()

    def request_seen(self, partition: str) -> None:
        if self.rules:
            self._requests[partition] = self._requests.get(partition, 0) + 1
            self._asked.set()

    async def _wait_for_requests(self, active: _Active, partition: str) -> None:
        with active.held():
            attempts = active.rule.number("attempts")
            while not active.ended.is_set() and self._requests.get(partition, 0) < attempts:
                self._asked.clear()
                await self._asked.wait()
            active.counters.cut_short += self._requests.get(partition, 0) < attempts

    def remove(self, rule_id: str) -> CallCounters | None:
        counters = super().remove(rule_id)
        self._asked.set()
        return counters


class FaultyStore:
    """A BlobStore that wraps another one. While a rule is active it is slow for each object, or refuses writes."""

    def __init__(self, inner: BlobStore, faults: Rules) -> None:
        self._inner = inner
        self._faults = faults

    async def put(self, key: str, data: bytes) -> None:
        await self._apply(key, writes=True)
        await self._inner.put(key, data)

    async def get(self, key: str) -> bytes:
        await self._apply(key, writes=False)
        return await self._inner.get(key)

    async def list(self, prefix: str) -> list[str]:
        return await self._inner.list(prefix)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def _apply(self, key: str, *, writes: bool) -> None:
        for active in list(self._faults.rules.values()):
            if active.rule.kind == "store.slow":
                await active.hold(active.rule.number("delay_s"))
            elif writes:
                active.counters.failed += 1
                raise StoreFailure(f"the checkpoint store refused to write {key}")
