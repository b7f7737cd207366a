"""The holder of the packet backend's rules: one engine holds the packet rules of a network namespace, their deadlines, the echo and the prober.

On start it removes what a killed engine may have left. A rule ends at its deadline here even when the agent is gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.faults.packets import rules as kernel
from testbed_runtime.faults.packets.commands import PacketSupport, nft, run, run_checked, support
from testbed_runtime.faults.packets.nfqueue import PacketQueue, describe
from testbed_runtime.faults.packets.placing import ECHO_PORT, INPUT, PacketRule, check_overlap
from testbed_runtime.faults.packets.probe import Echo, Prober
from testbed_runtime.timeouts import Timer

MAX_RULES = 64


class PacketEngine:
    """The rules of one network namespace. Call `start` inside it; `close` ends every rule."""

    def __init__(self, *, own_address: str = "", device: str = "eth0") -> None:
        self.prober = Prober()
        self.support = PacketSupport({}, {})
        self._own = own_address
        self._echo = Echo()
        self._device = device
        self._holders: dict[str, PacketQueue | PacketFilter | Emulator] = {}
        """The holder of the rules of each backend that this kernel supports."""
        self._rules: dict[str, list[PacketRule]] = {}
        self._timers = defaultdict[str, Timer](Timer)
        """The deadline of each fault."""
        self._ending: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def start(self, host: str) -> None:
        """Remove the rules of an earlier engine and start the echo. Raises HeadgateError when its port is in use."""
        self.support = await support()
        holders: dict[str, PacketQueue | PacketFilter | Emulator] = {
            "nfqueue": PacketQueue(self.support.available.get("nfqueue", ""), self._own),
            "nftables": PacketFilter(),
            "netem": Emulator(self._device),
        }
        self._holders = {name: holder for name, holder in holders.items() if name in self.support.available}
        for holder in self._holders.values():
            await holder.close()
        await self._echo.start(host, ECHO_PORT)

    async def close(self) -> None:
        """Idempotent."""
        for rule_id in list(self._rules):
            await self.remove(rule_id)
        await asyncio.gather(*self._ending, return_exceptions=True)
        self._echo.close()

    async def add(self, rules: Sequence[PacketRule]) -> float:
        """Add all rules of one fault (one id) on a backend that this kernel supports, replacing earlier ones. Return when they are active
        (loop time).

        Raises UserError (overlap, too many), or HeadgateError when the kernel refused them; no rule is left then."""
        async with self._lock:
            first = rules[0]
            others = [r for rule_id, group in self._rules.items() if rule_id != first.rule_id for r in group]
            if len(self._rules) >= MAX_RULES:
                raise UserError(
                    "rules", f"{MAX_RULES} packet faults are already active", "let some end first"
                )
            for rule in rules:
                check_overlap(rule, others)
            self._rules[first.rule_id] = list(rules)
            try:
                await self._holders[first.backend].add(rules)
            except BaseException:
                self._rules.pop(first.rule_id, None)
                await self._holders[first.backend].remove(first.rule_id)
                raise
            loop = asyncio.get_running_loop()
            self._timers[first.rule_id].set(loop.time() + first.for_s, self._on_deadline, first.rule_id)
            return loop.time()

    async def remove(self, rule_id: str) -> None:
        """Harmless when it does not exist."""
        async with self._lock:
            self._timers.pop(rule_id, Timer()).cancel()
            rules = self._rules.pop(rule_id, None)
            if rules:
                await self._holders[rules[0].backend].remove(rule_id)

    def counters(self, rule_id: str) -> Mapping[str, Any]:
        """Return the counters of the job's own packets under a rule of the queue."""
        queue = self._queue
        return describe(queue.counters.get(rule_id, Counter()) if queue is not None else Counter())

    async def residue(self) -> dict[str, Any]:
        """Return the active rules and the leftovers in the kernel. `{}` means that there are none."""
        found: dict[str, Any] = {}
        if self._rules:
            found["rules"] = sorted(self._rules)
        queue = self._queue
        if queue is not None and queue.held and not self._rules:
            found["held_packets"] = queue.held
        if left := [line for holder in self._holders.values() for line in await holder.leftovers()]:
            found["kernel"] = left
        return found

    # ---- inside

    @property
    def _queue(self) -> PacketQueue | None:
        queue = self._holders.get("nfqueue")
        return queue if isinstance(queue, PacketQueue) else None

    def _on_deadline(self, rule_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.remove(rule_id), name=f"packet-deadline-{rule_id}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class PacketFilter:
    """Partition and half-open by nftables: a table for each fault, whose sets the kernel empties at the deadline."""

    def __init__(self) -> None:
        self._active: set[str] = set()

    async def add(self, rules: Sequence[PacketRule]) -> None:
        """Add all rules of one fault in one step. Raises HeadgateError."""
        await nft(kernel.drop_nft(rules))
        self._active.add(kernel.table_name(rules[0].rule_id))

    async def remove(self, rule_id: str) -> None:
        """Harmless when it does not exist."""
        await nft(kernel.remove_drop_nft(rule_id))
        self._active.discard(kernel.table_name(rule_id))

    async def leftovers(self) -> list[str]:
        """Return Headgate's tables that belong to no active fault."""
        listed = await run(("nft", "list", "tables"))
        return [
            t for t in kernel.own_tables(listed.output) if t not in self._active and t != kernel.QUEUE_TABLE
        ]

    async def close(self) -> None:
        """Remove all of Headgate's tables, also those of a killed engine."""
        listed = await run(("nft", "list", "tables"))
        for table in kernel.own_tables(listed.output):
            await run(("nft", "delete", "table", "inet", table))
        self._active.clear()


class Emulator:
    """netem on packets that arrive through one device. It is one qdisc, so the device carries one fault at a time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._active: PacketRule | None = None

    async def add(self, rules: Sequence[PacketRule]) -> None:
        """Add the only rule of one fault. Raises HeadgateError if another fault is active, a rule is not for arriving packets, or tc refuses it."""
        rule = rules[0]
        if len(rules) > 1:
            raise HeadgateError(f"{rule.fault}: netem supports only one rule per device")
        if self._active is not None and self._active.rule_id != rule.rule_id:
            raise HeadgateError(
                f"{rule.fault} and {self._active.fault} overlap on one network device, and netem carries one at a time: "
                "let one end before the other begins"
            )
        if rule.hook != INPUT:
            raise HeadgateError(
                f"{rule.fault}: netem holds packets on arrival; ask the agents of the receivers"
            )
        await self._remove()
        try:
            for command in kernel.netem_on(rule, self._device):
                await run_checked(command)
        except HeadgateError:
            await self._remove()
            raise
        self._active = rule

    async def remove(self, rule_id: str) -> None:
        if self._active is not None and self._active.rule_id == rule_id:
            await self._remove()
            self._active = None

    async def leftovers(self) -> list[str]:
        """Return Headgate's device if no active fault uses it."""
        if self._active is not None:
            return []
        return [kernel.NETEM_DEVICE] if await self._exists() else []

    async def close(self) -> None:
        """Remove only the filters that lead into Headgate's device."""
        if self._active is not None or await self._exists():
            await self._remove()
        self._active = None

    async def _exists(self) -> bool:
        return (await run(("ip", "link", "show", "dev", kernel.NETEM_DEVICE))).code == 0

    async def _remove(self) -> None:
        if await self._exists():
            for command in kernel.remove_netem(self._device):
                await run(command)
