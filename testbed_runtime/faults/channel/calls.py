"""Rpc, registration and store faults of this process: what waits, what is swallowed. Nothing here runs while no rule is active."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed_runtime.core.job.messages import Heartbeat
from testbed_runtime.faults.links import ANYBODY, any_matches, logical_name
from testbed_runtime.faults.rules import ChannelRule
from testbed_runtime.ports.storage import BlobStore

CALL_KINDS = ("heartbeats.mute", "rpc.delay")
REGISTRATION_KINDS = ("registration.delay",)
STORE_KINDS = ("store.slow", "store.failing")

_REQUEST_ENDPOINTS = ("taskexecutor",)
"""A heartbeat that arrives there is a request; at `jobmaster` and `resourcemanager` it is an answer."""


class StoreFailure(OSError):
    """What a failing checkpoint store raises."""


@dataclass(slots=True)
class CallCounters:
    """Of one rule."""

    matched: int = 0
    swallowed: int = 0
    delayed: int = 0
    failed: int = 0
    holding: int = 0
    """Held back at this moment."""
    given_up: int = 0
    """Held back until whoever waited was cancelled: as effective as a delay can be."""
    delay_s: float = 0.0
    """Sum of the delays that really passed."""


@dataclass(slots=True)
class _Active:
    rule: ChannelRule
    counters: CallCounters = field(default_factory=CallCounters)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, seconds: float) -> None:
        """Wait, at the longest until the fault ends; measure what it came to."""
        with self.held():
            try:
                async with asyncio.timeout(seconds):
                    await self.ended.wait()
            except TimeoutError:
                pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count what is held back while it is, and for how long it was."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        self.counters.delayed += 1
        self.counters.holding += 1
        try:
            yield
        except asyncio.CancelledError:
            self.counters.given_up += 1
            raise
        finally:
            self.counters.holding -= 1
            self.counters.delay_s += loop.time() - begin


class Rules:
    """The active rules of some kinds."""

    def __init__(self) -> None:
        self.rules: dict[str, _Active] = {}

    @property
    def active(self) -> bool:
        return bool(self.rules)

    def add(self, rule: ChannelRule) -> None:
        self.rules[rule.rule_id] = _Active(rule)

    def remove(self, rule_id: str) -> CallCounters | None:
        """Whoever waits because of the rule goes on at once."""
        active = self.rules.pop(rule_id, None)
        if active is None:
            return None
        active.ended.set()
        return active.counters

    def counters(self, rule_id: str) -> CallCounters | None:
        active = self.rules.get(rule_id)
        return active.counters if active else None


class CallFaults(Rules):
    """A ports.interception.CallInterceptor: mutes heartbeats, delays the callee of a method in its mailbox."""

    async def before_ask(self, link: str, endpoint: str, message: Any) -> bool:
        del link
        return not self._mute(endpoint, message)

    async def before_handle(self, endpoint: str, message: Any) -> bool:
        if self._mute(endpoint, message):
            return False
        method = type(message).__name__
        for active in list(self.rules.values()):
            if active.rule.kind == "rpc.delay" and active.rule.method == method:
                active.counters.matched += 1
                await active.hold(active.rule.delay_s)
        return True

    def _mute(self, endpoint: str, message: Any) -> bool:
        if not self.rules or not isinstance(message, Heartbeat):
            return False
        direction = "request" if endpoint in _REQUEST_ENDPOINTS else "response"
        for active in self.rules.values():
            if active.rule.kind == "heartbeats.mute" and _speaks_of(active.rule, direction, message):
                active.counters.matched += 1
                active.counters.swallowed += 1
                return True
        return False


def _speaks_of(rule: ChannelRule, direction: str, message: Heartbeat) -> bool:
    """Answers are swallowed where they arrive, so their rule names whose (its flows)."""
    if rule.direction != direction:
        return False
    return direction == "request" or any_matches(rule.flows, logical_name(message.origin), ANYBODY)


class RegistrationFaults(Rules):
    """A faults.hooks.PartitionRegistrationHook: late by time, or by a number of requests that found nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, int] = {}
        self._asked = asyncio.Event()

    async def before_registration(self, vertex: str, partition: str) -> None:
        for active in list(self.rules.values()):
            if active.rule.vertex not in ("", vertex):
                continue
            active.counters.matched += 1
            if active.rule.attempts > 0:
                await self._until_requested(active, partition)
            else:
                await active.hold(active.rule.delay_s)
        if not self.rules:
            self._requests.clear()

    def request_seen(self, partition: str) -> None:
        if self.rules:
            self._requests[partition] = self._requests.get(partition, 0) + 1
            self._asked.set()

    async def _until_requested(self, active: _Active, partition: str) -> None:
        with active.held():
            while not active.ended.is_set() and self._requests.get(partition, 0) < active.rule.attempts:
                self._asked.clear()
                await self._asked.wait()

    def remove(self, rule_id: str) -> CallCounters | None:
        counters = super().remove(rule_id)
        self._asked.set()
        return counters


class FaultyStore:
    """A BlobStore around another one: slow for each object, or refusing writes, while a rule says so."""

    def __init__(self, inner: BlobStore, faults: Rules) -> None:
        self._inner = inner
        self._faults = faults

    async def put(self, key: str, data: bytes) -> None:
        await self._suffer(key, writes=True)
        await self._inner.put(key, data)

    async def get(self, key: str) -> bytes:
        await self._suffer(key, writes=False)
        return await self._inner.get(key)

    async def list(self, prefix: str) -> list[str]:
        return await self._inner.list(prefix)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def _suffer(self, key: str, *, writes: bool) -> None:
        for active in list(self._faults.rules.values()):
            if active.rule.kind == "store.slow":
                active.counters.matched += 1
                await active.hold(active.rule.delay_s)
            elif writes:
                active.counters.matched += 1
                active.counters.failed += 1
                raise StoreFailure(f"the checkpoint store refused to write {key}")
