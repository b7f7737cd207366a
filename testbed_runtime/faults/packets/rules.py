"""The kernel rules that carry a fault, as text and argument lists. Pure.

Every table and chain has a Headgate name, and only those are ever removed. Rules that lead into a queue have `bypass`: packets pass when
no process reads the queue, so a dead engine leaves no effect. Rules that drop use sets whose elements the kernel expires at the deadline.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
from collections.abc import Sequence

from testbed_runtime.core.errors import HeadgateError
from testbed_runtime.core.grouping import grouped
from testbed_runtime.faults.packets.placing import INPUT, OUTPUT, PacketRule

QUEUE_NUMBER = 18_503
"""The NFQUEUE number in this network namespace; any number that other software is unlikely to use."""
TABLE_PREFIX = "headgate_"
QUEUE_TABLE = f"{TABLE_PREFIX}queue"
CHAINS = {INPUT: "HEADGATE-IN", OUTPUT: "HEADGATE-OUT"}
HOOK_CHAINS = {INPUT: "INPUT", OUTPUT: "OUTPUT"}
IPTABLES_TABLE = "mangle"
"""Runs before every filter, so that an early `accept` of another program hides no packets."""
IPTABLES = ("iptables-legacy", "iptables-nft")
"""In order of preference. The first tool needs NET_RAW, which an agent in a pod lacks. The second one leaves an empty table behind."""
LOCK_WAIT_S = 5
NFT_PRIORITY = -160
"""Before mangle (-150), so before every filter."""
ENDS = ("sport", "dport")
PROTOCOL_NUMBERS = {"tcp": 6, "udp": 17}
NETEM_DEVICE = "headgate0"
NETEM_LIMIT = 100_000
"""Packets that netem may hold: more than a second of a busy link; its default of 1,000 loses packets under latency alone."""


def table_name(rule_id: str) -> str:
    """Return the name of the table of a rule that drops packets; any id is allowed."""
    return TABLE_PREFIX + hashlib.sha256(rule_id.encode()).hexdigest()[:12]


# ---- into the queue


def queue_nft(rules: Sequence[PacketRule]) -> str:
    """Return input for `nft -f -` that replaces Headgate's table atomically; without rules it removes the table."""
    lines = [f"table inet {QUEUE_TABLE}", f"delete table inet {QUEUE_TABLE}"]
    if rules:
        lines.append(f"table inet {QUEUE_TABLE} {{")
        for hook in (INPUT, OUTPUT):
            matches = [match for rule in rules if rule.hook == hook for match in nft_matches(rule)]
            lines += _chain(hook, [f"{match} queue num {QUEUE_NUMBER} bypass" for match in matches])
        lines.append("}")
    return "\n".join([*lines, ""])


def _chain(hook: str, rules: Sequence[str]) -> list[str]:
    """Return a chain of nftables that its hook passes every packet through."""
    start = f"type filter hook {hook} priority {NFT_PRIORITY}; policy accept;"
    return [f"  chain {hook} {{", *(f"    {line}" for line in (start, *rules)), "  }"]


def nft_matches(rule: PacketRule) -> list[str]:
    """Return the matches of a rule: each peer family, protocol and end."""
    return [
        f"{peers}{protocol} {end} {{ {', '.join(map(str, ports))} }}"
        for peers in _nft_peers(rule)
        for protocol, ports in _protocols(rule)
        for end in ENDS
    ]


def _nft_peers(rule: PacketRule) -> list[str]:
    """Return the match of the other ends for each address family; one empty match for every process."""
    way = "saddr" if rule.hook == INPUT else "daddr"
    families = grouped(("ip" if ipaddress.ip_address(p).version == 4 else "ip6", p) for p in rule.peers)
    return [f"{family} {way} {{ {', '.join(found)} }} " for family, found in families.items()] or [""]


def _protocols(rule: PacketRule) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, ports) for name, ports in (("tcp", rule.ports), ("udp", rule.probe_ports)) if ports]


def queue_iptables(rules: Sequence[PacketRule], own_address: str = "") -> str:
    """Return input for `iptables-…-restore --noflush` that replaces Headgate's two chains atomically.

    Raises HeadgateError for an address that is not IPv4, the only family of these tables."""
    lines = [f"*{IPTABLES_TABLE}", *(f":{chain} - [0:0]" for chain in CHAINS.values())]
    for rule in rules:
        for match in iptables_matches(rule):
            start = f"-A {CHAINS[rule.hook]} {match}"
            if rule.impairment.duplicate and own_address and rule.hook == INPUT:
                # the copy arrives through lo, where no rule of Headgate matches
                lines.append(
                    f"{start} -m statistic --mode random --probability {rule.impairment.duplicate:.8f} -j TEE --gateway {own_address}"
                )
            lines.append(f"{start} -j NFQUEUE --queue-num {QUEUE_NUMBER} --queue-bypass")
    return "\n".join([*lines, "COMMIT", ""])


def iptables_matches(rule: PacketRule) -> list[str]:
    for peer in rule.peers:
        if ipaddress.ip_address(peer).version != 4:
            raise HeadgateError(
                f"{rule.fault}: {peer} is not an IPv4 address, and this kernel has no nftables queue for IPv6"
            )
    way, device = ("-s", "! -i lo") if rule.hook == INPUT else ("-d", "! -o lo")
    matches: list[str] = []
    for peer in rule.peers or ("",):
        peers_match = f"{device} {way} {peer}" if peer else device
        matches += [
            f"{peers_match} -p {protocol} -m multiport --ports {','.join(map(str, ports))}"
            for protocol, ports in _protocols(rule)
        ]
    return matches


def iptables_hooks(tool: str, verb: str) -> list[list[str]]:
    """Return a command for each hook that checks (`-C`), inserts (`-I`) or deletes (`-D`) the jump to Headgate's chain."""
    return [
        [tool, "-w", str(LOCK_WAIT_S), "-t", IPTABLES_TABLE, verb, HOOK_CHAINS[hook], "-j", CHAINS[hook]]
        for hook in (INPUT, OUTPUT)
    ]


def remove_iptables(tool: str) -> list[list[str]]:
    """Return the commands that remove jumps, rules and chains. Each may fail when its object does not exist."""
    base = [tool, "-w", str(LOCK_WAIT_S), "-t", IPTABLES_TABLE]
    return [
        *iptables_hooks(tool, "-D"),
        *([*base, "-F", chain] for chain in CHAINS.values()),
        *([*base, "-X", chain] for chain in CHAINS.values()),
    ]


# ---- dropping


def drop_nft(rules: Sequence[PacketRule]) -> str:
    """Return input for `nft -f -`: a table for the rules of one fault, which lose their effect at the deadline by themselves.

    A partition drops packets in the requested directions. For half-open connections, the target's own ends are reset, and no packet of
    these resets reaches the peers."""
    first = rules[0]
    name = table_name(first.rule_id)
    lines = [f"table inet {name}", f"delete table inet {name}", f"table inet {name} {{"]
    for number, rule in enumerate(rules):
        after = f"{max(1, round(rule.for_s * 1000))}ms"
        for kind, ports in _protocols(rule):
            elements = ", ".join(f"{port} timeout {after}" for port in ports)
            lines.append(
                f"  set {kind}{number} {{ type inet_service; flags timeout; elements = {{ {elements} }}; }}"
            )
    for hook, device in ((INPUT, "iifname"), (OUTPUT, "oifname")):
        drops = [line for n, rule in enumerate(rules) if rule.hook == hook for line in _drops(n, rule)]
        lines += _chain(hook, [f"{device} lo accept", *drops])
    return "\n".join([*lines, "}", ""])


def _drops(number: int, rule: PacketRule) -> list[str]:
    reset = rule.kind == "network.half-open" and rule.hook == OUTPUT
    return [
        f"{peers}{kind} {end} @{kind}{number} counter {'reject with tcp reset' if reset and kind == 'tcp' else 'drop'}"
        for peers in _nft_peers(rule)
        for kind, _ in _protocols(rule)
        for end in ENDS
    ]


def remove_drop_nft(rule_id: str) -> str:
    """Return input that removes the table of a fault; harmless when it does not exist."""
    name = table_name(rule_id)
    return f"table inet {name}\ndelete table inet {name}\n"


def own_tables(listing: str) -> list[str]:
    """Return the names of Headgate's tables in the output of `nft list tables`."""
    found = [line.split() for line in listing.splitlines() if line.startswith("table inet ")]
    return [words[2] for words in found if len(words) == 3 and words[2].startswith(TABLE_PREFIX)]


# ---- netem


def netem_options(rule: PacketRule) -> list[str]:
    """Return the options of `tc … netem` for an impairment."""
    asked = rule.impairment
    words = ["limit", str(NETEM_LIMIT)]
    if asked.latency_s or asked.jitter_s or asked.reorder:
        words += ["delay", _micros(asked.latency_s or asked.reorder_s)]
        if asked.jitter_s:
            words += [_micros(asked.jitter_s), *([_percent(asked.correlation)] if asked.correlation else [])]
    if asked.loss and asked.burst > 1.0:
        enter = asked.loss / (asked.burst * (1.0 - asked.loss)) if asked.loss < 1.0 else 1.0
        words += ["loss", "gemodel", _percent(min(1.0, enter)), _percent(1.0 / asked.burst)]
    elif asked.loss:
        words += ["loss", "random", _percent(asked.loss)]
    if asked.duplicate:
        words += ["duplicate", _percent(asked.duplicate)]
    if asked.corrupt:
        words += ["corrupt", _percent(asked.corrupt)]
    if asked.reorder:  # netem's reorder is the share of packets that are sent at once, past the delayed ones
        words += ["reorder", _percent(1.0 - asked.reorder)]
    if asked.bytes_per_s:
        words += ["rate", f"{max(8, round(asked.bytes_per_s * 8))}bit"]
    return words


def netem_on(rule: PacketRule, device: str) -> list[list[str]]:
    """Return commands that lead matching arriving packets through a Headgate ifb device with a netem qdisc. Other packets are not touched.

    No foreign qdisc is replaced: `add` fails when there is one, and the fault fails with it."""
    commands = [
        ["ip", "link", "add", NETEM_DEVICE, "type", "ifb"],
        ["ip", "link", "set", NETEM_DEVICE, "up"],
        ["tc", "qdisc", "add", "dev", NETEM_DEVICE, "root", "netem", *netem_options(rule)],
        ["tc", "qdisc", "add", "dev", device, "handle", "ffff:", "ingress"],
    ]
    base = ["tc", "filter", "add", "dev", device, "parent", "ffff:", "protocol", "ip", "u32"]
    action = ["action", "mirred", "egress", "redirect", "dev", NETEM_DEVICE]
    for protocol, ports in _protocols(rule):
        for port, end, peer in itertools.product(ports, ENDS, rule.peers or ("",)):
            number = PROTOCOL_NUMBERS[protocol]
            match = f"match ip protocol {number} 0xff match ip {end} {port} 0xffff"
            from_peer = f" match ip src {peer}/32" if peer else ""
            commands.append([*base, *f"{match}{from_peer}".split(), *action])
    return commands


def remove_netem(device: str) -> list[list[str]]:
    """Return commands that remove the ingress qdisc with the filters, then the device. Each may fail when its object does not exist."""
    return [["tc", "qdisc", "del", "dev", device, "ingress"], ["ip", "link", "del", NETEM_DEVICE]]


def _micros(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


def _percent(share: float) -> str:
    return f"{share * 100:.6g}%"
