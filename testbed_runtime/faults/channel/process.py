"""The `channel` backend inside a process of ours: one `ChannelFaults` a process, wired where its docstring says.

Every rule has an absolute deadline of its own here, so that a fault ends even when whoever asked for it and the supervisor are gone.
Nothing runs while no rule is active.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from testbed_runtime.core.errors import UserError
from testbed_runtime.faults.channel.calls import (
    CALL_KINDS,
    REGISTRATION_KINDS,
    STORE_KINDS,
    CallCounters,
    CallFaults,
    FaultyStore,
    RegistrationFaults,
    Rules,
)
from testbed_runtime.faults.channel.frames import FRAME_KINDS, FrameCounters, FrameFaults
from testbed_runtime.faults.channel.tap import EffectTap
from testbed_runtime.faults.rules import MEASURE, ChannelRule
from testbed_runtime.ports.interception import FrameTap
from testbed_runtime.ports.storage import BlobStore

MAX_RULES = 64
"""In one process at the same time; a scenario has a handful."""
MAX_REMEMBERED = 64
"""Final counters of ended rules, for the measurement after the fault."""


class ChannelFaults:
    """Wiring, in a process entry or in the simulation:

    * pump: `interceptor=faults.frames`, `tap=faults.tap(history_tap)`
    * Rpc: `interceptor=faults.calls`
    * TaskManager: `registration_hook=faults.registration` (faults.hooks.PartitionRegistrationHook)
    * BlobStore: `blobs = faults.store(blobs)`
    * control: `rpc.add_routes(faults.backends.channel_routes.routes(faults))`
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self.frames = FrameFaults()
        self.calls = CallFaults()
        self.registration = RegistrationFaults()
        self.effects = EffectTap()
        self._stores = Rules()
        self._watches = Rules()
        self._rules: dict[str, ChannelRule] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ended: dict[str, FrameCounters | CallCounters] = {}

    def tap(self, inner: FrameTap | None = None) -> FrameTap:
        """The tap to give to the pump; `inner` sees every frame too."""
        self.effects = EffectTap(inner)
        return self.effects

    def store(self, inner: BlobStore) -> BlobStore:
        return FaultyStore(inner, self._stores)

    def apply(self, rule: ChannelRule) -> None:
        """Start a rule, until its deadline; the same id again replaces it. Raises UserError for what this backend cannot do."""
        if len(self._rules) >= MAX_RULES and rule.rule_id not in self._rules:
            raise UserError("fault", f"{self.process} holds {MAX_RULES} faults already", "heal some first")
        self.remove(rule.rule_id)
        loop = asyncio.get_running_loop()
        if rule.deadline <= loop.time():
            return
        self._part(rule.kind).add(rule)
        self._rules[rule.rule_id] = rule
        self._timers[rule.rule_id] = loop.call_at(rule.deadline, self.remove, rule.rule_id)
        if rule.kind == MEASURE:
            self.effects.start()

    def remove(self, rule_id: str) -> None:
        """Heal: what is held goes on at once. Harmless when there is no such rule."""
        rule = self._rules.pop(rule_id, None)
        if rule is None:
            return
        self._timers.pop(rule_id).cancel()
        counters = self._part(rule.kind).remove(rule_id)
        if counters is not None:
            self._ended[rule_id] = counters
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        if rule.kind == MEASURE:
            self.effects.stop()

    def remove_all(self) -> None:
        for rule_id in list(self._rules):
            self.remove(rule_id)

    def counters(self, rule_id: str) -> dict[str, Any] | None:
        """Of an active or recently ended rule."""
        rule = self._rules.get(rule_id)
        counters = self._part(rule.kind).counters(rule_id) if rule is not None else self._ended.get(rule_id)
        return asdict(counters) if counters is not None else None

    def state(self) -> dict[str, Any]:
        """`{"process", "active": {rule id: {"kind", "counters"}}, "held": frames}`; for the control endpoint and the residue."""
        active = {
            rule_id: {"kind": rule.kind, "counters": self.counters(rule_id)}
            for rule_id, rule in self._rules.items()
            if rule.kind != MEASURE
        }
        return {"process": self.process, "active": active, "held": self.frames.held()}

    def _part(self, kind: str) -> FrameFaults | Rules:
        if kind in FRAME_KINDS:
            return self.frames
        if kind in CALL_KINDS:
            return self.calls
        if kind in REGISTRATION_KINDS:
            return self.registration
        if kind in STORE_KINDS:
            return self._stores
        if kind == MEASURE:
            return self._watches
        raise UserError("kind", f"{kind} is not a fault of the channel backend", "see `headgate faults`")
