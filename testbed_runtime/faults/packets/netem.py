"""The kernel's network emulator, on packets that arrive through one device."""

from __future__ import annotations

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.packets import rules as kernel
from testbed_runtime.faults.packets.commands import must, run
from testbed_runtime.faults.packets.model import INPUT, PacketRule


class Emulator:
    """One device carries one fault at a time: netem is one qdisc, and a second fault would replace the first."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._active: PacketRule | None = None

    async def add(self, rule: PacketRule) -> None:
        """Raises HeadgateError: another fault is there (both names), it is not on arrival, or tc refused."""
        if self._active is not None and self._active.rule_id != rule.rule_id:
            raise HeadgateError(
                f"{rule.fault} and {self._active.fault} overlap on one network device, and netem carries one at a time: "
                "let one end before the other begins"
            )
        if rule.hook != INPUT:
            raise HeadgateError(
                f"{rule.fault}: netem holds packets on arrival; ask the agents of the receivers"
            )
        await self._away()
        try:
            for command in kernel.netem_on(rule, self._device):
                await must(command)
        except HeadgateError:
            await self._away()
            raise
        self._active = rule

    async def remove(self, rule_id: str) -> None:
        if self._active is not None and self._active.rule_id == rule_id:
            await self._away()
            self._active = None

    async def leftovers(self) -> list[str]:
        """Our device, when no active fault explains it."""
        if self._active is not None:
            return []
        return [kernel.NETEM_DEVICE] if await self._there() else []

    async def close(self) -> None:
        """Only what led into a device of ours is ever removed."""
        if self._active is not None or await self._there():
            await self._away()
        self._active = None

    async def _there(self) -> bool:
        return (await run(("ip", "link", "show", "dev", kernel.NETEM_DEVICE))).code == 0

    async def _away(self) -> None:
        if await self._there():
            for command in kernel.netem_away(self._device):
                await run(command)
