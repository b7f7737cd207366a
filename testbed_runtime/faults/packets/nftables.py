"""Partition and half-open by the kernel's own filter: a table for each fault, whose sets the kernel empties at the deadline."""

from __future__ import annotations

from collections.abc import Sequence

from testbed_runtime.faults.packets import rules as kernel
from testbed_runtime.faults.packets.commands import nft, run
from testbed_runtime.faults.packets.model import PacketRule


class PacketFilter:
    """The tables of one network namespace."""

    def __init__(self) -> None:
        self._active: set[str] = set()

    async def add(self, rules: Sequence[PacketRule]) -> None:
        """All rules of one fault, in one step. Raises HeadgateError."""
        await nft(kernel.drop_nft(rules))
        self._active.add(kernel.table_name(rules[0].rule_id))

    async def remove(self, rule_id: str) -> None:
        """Harmless when it is not there."""
        await nft(kernel.drop_nft_away(rule_id))
        self._active.discard(kernel.table_name(rule_id))

    async def leftovers(self) -> list[str]:
        """Tables of ours that no active fault explains."""
        said = await run(("nft", "list", "tables"))
        return [
            t for t in kernel.our_tables(said.output) if t not in self._active and t != kernel.QUEUE_TABLE
        ]

    async def close(self) -> None:
        """Every table of ours goes, those of an engine that was killed too."""
        said = await run(("nft", "list", "tables"))
        for table in kernel.our_tables(said.output):
            await run(("nft", "delete", "table", "inet", table))
        self._active.clear()
