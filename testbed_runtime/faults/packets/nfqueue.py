"""Packets through userspace: the kernel queues packets that match a rule, and this module decides when each passes.

With `bypass` in the rules and FAIL_OPEN at the queue, packets pass when this process is gone or too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.faults.packets import netlink
from testbed_runtime.faults.packets import rules as kernel
from testbed_runtime.faults.packets.commands import nft, run, run_checked
from testbed_runtime.faults.packets.machine import Ends, Fate, Impairer, ends_of, together, with_flipped_bit
from testbed_runtime.faults.packets.placing import INPUT, PacketRule
from testbed_runtime.timeouts import Timer, timeout

QUEUE_PACKETS = 20_000
"""Maximum packets that wait in the kernel: 200 ms at 100,000 packets a second."""
RECEIVE_BYTES = 32 * 1024 * 1024
"""Receive buffer of the netlink socket, for packets that arrive while this process is busy."""
MESSAGE_BYTES = 0x12000
"""One message: a packet of 64 KiB and its attributes."""
BATCH = 64
"""Maximum packets that are read before timers run."""
ANSWER_LIMIT_S = 2.0
MAX_LATE_S = 0.25
"""Maximum lag between a packet's arrival and its reading. Up to it, delays are counted from the arrival. A larger lag means that the
clock was set."""


class PacketQueue:
    """One NFQUEUE of this network namespace, and the rules that lead into it. `how` is `nft`, `iptables-legacy` or `iptables-nft`."""

    def __init__(self, how: str, own_address: str = "") -> None:
        self._how = how
        self._own = own_address
        self._socket: socket.socket | None = None
        self._stamping: socket.socket | None = None
        self._newest_arrival = 0.0
        self._sequence = itertools.count(1)
        self._wanted: dict[str, Sequence[PacketRule]] = {}
        """The rules of each fault."""
        self._rules: tuple[tuple[PacketRule, Impairer], ...] = ()
        self._held: list[tuple[float, int, int, bytes | None]] = []
        self._timer = Timer()
        self.counters: dict[str, Counter[str]] = {}
        """Rule id → packets, lost, corrupted, overtaken, held_us."""

    async def add(self, rules: Sequence[PacketRule]) -> None:
        """Add all rules of one fault. Raises HeadgateError; no rule is active then, until the fault is removed."""
        self._wanted[rules[0].rule_id] = rules
        await self._apply()

    async def remove(self, rule_id: str) -> None:
        self._wanted.pop(rule_id, None)
        await self._apply()

    async def _apply(self) -> None:
        wanted = [rule for rules in self._wanted.values() for rule in rules]
        known = {_key(rule): (rule, machine) for rule, machine in self._rules}
        self._rules = tuple(
            known.get(_key(rule)) or (rule, Impairer(rule.impairment, _key(rule))) for rule in wanted
        )
        try:
            if wanted:
                await self._open()
                await self._configure()
                await self._rules_on(wanted)
            else:
                await self.close()
        except BaseException:
            self._rules = ()
            await self.close()
            raise

    async def close(self) -> None:
        """Remove the rules, pass held packets and unbind the queue. Idempotent."""
        self._rules = ()
        await self._rules_off()
        self._timer.cancel()
        while self._held:
            _, _, packet, payload = heapq.heappop(self._held)
            self._say(packet, accept=True, payload=payload)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._stamping is not None:
            self._stamping.close()
            self._stamping = None

    async def leftovers(self) -> list[str]:
        """Return Headgate's kernel rules that belong to no active fault."""
        if self._rules:
            return []
        if self._how == "nft":
            result = await run(("nft", "list", "tables"))
            return [name for name in kernel.own_tables(result.output) if name == kernel.QUEUE_TABLE]
        result = await run((self._how, "-w", str(kernel.LOCK_WAIT_S), "-t", kernel.IPTABLES_TABLE, "-S"))
        return [line for line in result.output.splitlines() if "HEADGATE-" in line]

    @property
    def held(self) -> int:
        """Return how many packets wait here."""
        return len(self._held)

    # ---- rules

    async def _rules_on(self, wanted: Sequence[PacketRule]) -> None:
        if self._how == "nft":
            await nft(kernel.queue_nft(wanted))
            return
        text = kernel.queue_iptables(wanted, self._own)
        await run_checked((f"{self._how}-restore", "-w", str(kernel.LOCK_WAIT_S), "--noflush"), text)
        for look, insert in zip(
            kernel.iptables_hooks(self._how, "-C"), kernel.iptables_hooks(self._how, "-I"), strict=True
        ):
            if (await run(look)).code:
                await run_checked(insert)

    async def _rules_off(self) -> None:
        if self._how == "nft":
            await run(("nft", "-f", "-"), kernel.queue_nft(()))
            return
        for command in kernel.remove_iptables(self._how):
            await run(command)

    # ---- the queue

    async def _open(self) -> None:
        if self._socket is not None:
            return
        opened = socket.socket(netlink.FAMILY, socket.SOCK_RAW | socket.SOCK_NONBLOCK, netlink.PROTOCOL)
        try:
            opened.bind((0, 0))
            opened.setsockopt(netlink.SOL_NETLINK, netlink.NO_ENOBUFS, 1)
            with contextlib.suppress(OSError):  # without it the system's limit applies
                opened.setsockopt(socket.SOL_SOCKET, netlink.SO_RCVBUFFORCE, RECEIVE_BYTES)
            self._socket = opened
            await self._ask(
                netlink.bind(kernel.QUEUE_NUMBER, next(self._sequence)),
                "the queue is taken by another process",
            )
        except BaseException:
            self._socket = None
            opened.close()
            raise
        asyncio.get_running_loop().add_reader(opened.fileno(), self._on_readable)
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._stamping.setsockopt(socket.SOL_SOCKET, netlink.SO_TIMESTAMP, 1)

    async def _configure(self) -> None:
        whole = any(rule.impairment.corrupt for rule, _ in self._rules)
        single = whole or any(
            r.impairment.loss or r.impairment.reorder or r.impairment.duplicate for r, _ in self._rules
        )
        message = netlink.configure(
            kernel.QUEUE_NUMBER,
            next(self._sequence),
            copy=netlink.COPY_ALL if whole else netlink.COPY_HEADERS,
            max_packets=QUEUE_PACKETS,
            gso=not single,
        )
        if self._socket is not None:
            self._socket.send(message)

    async def _ask(self, message: bytes, refused: str) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, message)
        try:
            async with timeout(ANSWER_LIMIT_S):
                answer = await loop.sock_recv(self._socket, MESSAGE_BYTES)
        except TimeoutError:
            raise HeadgateError("the kernel's packet queue did not answer") from None
        for found in netlink.parse(answer):
            if isinstance(found, netlink.Acknowledged) and found.error:
                raise HeadgateError(f"{refused}: {os.strerror(found.error)}")

    def _on_readable(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        for _ in range(BATCH):
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except OSError:  # no more packets, or a full buffer: FAIL_OPEN let those packets pass
                break
            for found in netlink.parse(data):
                if isinstance(found, netlink.QueuedPacket):
                    self._on_packet(found, loop.time())
        self._arm()

    def _on_packet(self, packet: netlink.QueuedPacket, now: float) -> None:
        fate = self._fate(packet, self._arrival(packet, now))
        payload = with_flipped_bit(packet.payload) if fate.corrupted else None
        if fate.lost:
            self._say(packet.id, accept=False)
        elif fate.at <= now:
            self._say(packet.id, accept=True, payload=payload)
        else:
            heapq.heappush(self._held, (fate.at, packet.id, packet.id, payload))

    def _arrival(self, packet: netlink.QueuedPacket, now: float) -> float:
        """Return when the packet arrived, by the kernel's receive timestamp, so that delays of this process are not added. Never decreases."""
        late = time.clock_gettime(time.CLOCK_REALTIME) - packet.arrived_s
        arrived = now - late if packet.arrived_s and 0.0 < late <= MAX_LATE_S else now
        self._newest_arrival = max(self._newest_arrival, arrived)
        return self._newest_arrival

    def _fate(self, packet: netlink.QueuedPacket, now: float) -> Fate:
        ends = ends_of(packet.payload)
        if ends is None:
            return Fate(now)
        fates: list[Fate] = []
        met: set[str] = set()
        for rule, machine in self._rules:
            if rule.rule_id in met or not matches(rule, ends, packet.hook):
                continue
            met.add(rule.rule_id)
            fate = machine.packet(now, packet.length)
            fates.append(fate)
            count = self.counters.setdefault(rule.rule_id, Counter())
            count["packets"] += 1
            count["lost"] += fate.lost
            count["corrupted"] += fate.corrupted
            count["overtaken"] += fate.overtaken
            count["held_us"] += 0 if fate.lost else round((fate.at - now) * 1e6)
        return together(fates, now)

    def _arm(self) -> None:
        self._timer.set(self._held[0][0] if self._held else None, self._on_time)

    def _on_time(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._held and self._held[0][0] <= now:
            _, _, packet, payload = heapq.heappop(self._held)
            self._say(packet, accept=True, payload=payload)
        self._arm()

    def _say(self, packet: int, *, accept: bool, payload: bytes | None = None) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the packet is gone with its connection
                self._socket.send(
                    netlink.verdict(kernel.QUEUE_NUMBER, packet, accept=accept, payload=payload)
                )


def _key(rule: PacketRule) -> str:
    """Return the key of a rule's machine, which is also its seed. The machine keeps its state while other rules are added and removed."""
    return f"{rule.seed}/{rule.rule_id}/{rule.hook}/{rule.ports}"


def matches(rule: PacketRule, ends: Ends, hook: int) -> bool:
    """Return whether a rule matches this packet. Several rules share the queue."""
    incoming = hook == netlink.HOOK_INPUT
    if incoming != (rule.hook == INPUT):
        return False
    peer = ends.source if incoming else ends.destination
    return (not rule.peers or peer in rule.peers) and ends.has_port((*rule.ports, *rule.probe_ports))


def describe(counters: Counter[str]) -> dict[str, Any]:
    """Return the counters of the job's own packets, for the history."""
    passed = counters["packets"] - counters["lost"]
    mean = counters["held_us"] / passed / 1e6 if passed else 0.0
    return {
        "packets": counters["packets"],
        "lost": counters["lost"],
        "corrupted": counters["corrupted"],
        "overtaken": counters["overtaken"],
        "mean_held_s": round(mean, 6),
    }
