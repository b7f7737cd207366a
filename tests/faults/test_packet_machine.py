"""The pure parts of packet faults: effects on packets, judgement of probes, and kernel rules."""

from __future__ import annotations

import itertools
import struct

import pytest

from testbed_runtime.core.errors import HeadgateError, UserError
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.faults.backend import FaultRequest
from testbed_runtime.faults.packets import measure, netlink, rules
from testbed_runtime.faults.packets.machine import (
    MAX_QUEUE_S,
    Fate,
    Impairer,
    Impairment,
    ends_of,
    impairment_of,
    together,
    with_flipped_bit,
)
from testbed_runtime.faults.packets.measure import PathReading
from testbed_runtime.faults.packets.placing import (
    INPUT,
    OUTPUT,
    PacketRule,
    Surroundings,
    check_overlap,
    peers_of,
    probe_paths,
    rules_of,
)

PEERS = Surroundings("tm-0", ("jobmanager", "tm-0", "tm-1", "tm-2"), {"data": (6121,), "rpc": (6122, 6123)})


def fates(impairment, count=20_000, seed=7, every=0.0001):
    machine = Impairer(impairment, seed)
    return [machine.packet(n * every, 1000) for n in range(count)]


def rule(kind="network.latency", backend="nfqueue", **fields):
    given = {"rule_id": kind, "fault": kind, "for_s": 5.0, "ports": (6121,), "probe_ports": (6134,)}
    return PacketRule(kind=kind, backend=backend, **{**given, **fields})


def test_same_seed_same_fates():
    """A seed is a history; another seed is another."""
    asked = Impairment(latency_s=0.01, jitter_s=0.005, loss=0.1, reorder=0.1, reorder_s=0.01)
    assert fates(asked, 500) == fates(asked, 500)
    assert fates(asked, 500) != fates(asked, 500, seed=8)


@pytest.mark.parametrize("burst", [1.0, 4.0])
def test_the_share_lost_is_the_share_asked(burst):
    """Random or in bursts, the long run loses what was asked, inside the 99.99 % interval."""
    lost = sum(f.lost for f in fates(Impairment(loss=0.05, burst=burst)))
    count = measure.effective_count(20_000, 0.05, burst)
    low, high = measure.wilson(round(lost * count / 20_000), count)
    assert low <= 0.05 <= high


def test_bursts_are_as_long_as_asked():
    """The mean run of lost packets is the asked one."""
    text = "".join("x" if f.lost else "." for f in fates(Impairment(loss=0.1, burst=5.0)))
    runs = [len(run) for run in text.split(".") if run]
    assert 4.3 < sum(runs) / len(runs) < 5.7


def test_everything_is_lost_at_a_hundred_percent():
    """No packet passes, in bursts or not."""
    assert all(f.lost for f in fates(Impairment(loss=1.0, burst=3.0), 100))


def test_jitter_reorders_nothing():
    """Packets come out in the order in which they came in."""
    times = [f.at for f in fates(Impairment(latency_s=0.02, jitter_s=0.02), 2_000)]
    assert times == sorted(times)


def test_reorder_holds_a_share_that_others_overtake():
    """Those behind a held packet do not wait for it."""
    found = fates(Impairment(reorder=0.1, reorder_s=0.01), 2_000)
    held = [f for f in found if f.overtaken]
    assert 130 < len(held) < 270
    assert any(later.at < f.at for f, later in itertools.pairwise(found) if f.overtaken)


def test_correlated_jitter_changes_slowly():
    """Neighbours differ less than without correlation."""

    def mean_step(correlation):
        asked = Impairment(latency_s=0.1, jitter_s=0.1, correlation=correlation)
        times = [f.at - n for n, f in enumerate(fates(asked, 2_000, every=1.0))]
        return sum(abs(a - b) for a, b in itertools.pairwise(times)) / len(times)

    assert mean_step(0.9) < mean_step(0.0) / 3


def test_a_ceiling_spaces_packets_and_loses_what_would_wait_too_long():
    """1,000 bytes at 100 kB/s take 10 ms; a queue longer than 200 ms overflows."""
    found = fates(Impairment(bytes_per_s=100_000), 100, every=0.0)
    passed = [f for f in found if not f.lost]
    assert passed[1].at - passed[0].at == pytest.approx(0.01)
    assert 0 < len(passed) <= MAX_QUEUE_S / 0.01 + 1


def test_overlapping_faults_are_composed():
    """Delays add up; one that loses is enough; damage stays."""
    both = together([Fate(10.02), Fate(10.03, corrupted=True)], 10.0)
    assert both.at == pytest.approx(10.05)
    assert both.corrupted
    assert not both.lost
    assert together([Fate(10.0, lost=True), Fate(10.5)], 10.0).lost


def test_a_partition_beside_a_latency_is_refused_with_both_names():
    """Nothing passes that could be delayed."""
    old = rule("network.partition", "nftables", fault="cut")
    with pytest.raises(UserError, match=r"slow \(network.latency\) and cut \(network.partition\) overlap"):
        check_overlap(rule(fault="slow"), [old])
    check_overlap(rule(fault="slow", ports=(6123,), probe_ports=(6135,)), [old])
    check_overlap(rule(fault="slow", hook=OUTPUT), [old])


def test_two_faults_of_netem_are_refused():
    """It is one qdisc."""
    with pytest.raises(UserError, match="netem carries one"):
        check_overlap(rule(backend="netem", fault="b"), [rule(backend="netem", fault="a")])


def test_a_round_trip_is_laid_half_on_each_way():
    """One way has it whole."""
    params = {"latency_s": 0.2, "mode": "round-trip", "jitter_s": 0.02}
    fault = Fault("f", "network.latency", 0, 5, params=params)
    assert impairment_of(fault) == Impairment(latency_s=0.1, jitter_s=0.01)


def test_each_engine_holds_what_concerns_it():
    """To the target on arrival, from it on leaving, a link only from its other end."""
    to = Fault("f", "network.loss", 0, 5, direction="to", params={"percent": 5})
    assert peers_of(to, ["tm-0"], "tm-0") == {INPUT: ()}
    assert peers_of(to, ["tm-0->tm-2"], "tm-0") == {INPUT: ("tm-2",)}
    both = Fault("f", "network.half-open", 0, 5, direction="to")
    assert peers_of(both, ["tm-0"], "tm-0") == {INPUT: (), OUTPUT: ()}
    with pytest.raises(HeadgateError, match="ask the agent of its target"):
        peers_of(to, ["tm-1"], "tm-0")


def test_a_plane_is_its_ports_and_its_probes():
    """No other port is ever touched: not the supervisor's, the agent's, the recorder's."""
    fault = Fault("f", "network.loss", 0, 5, plane="rpc", direction="to", params={"percent": 5})
    request = FaultRequest("r", fault, ("tm-0",), deadline=5)
    made = rules_of(request, {INPUT: ("10.0.0.3",)}, PEERS, backend="nfqueue", for_s=5)
    assert [(r.hook, r.ports, r.probe_ports) for r in made] == [(INPUT, (6122, 6123), (6135,))]
    assert probe_paths(fault, {INPUT: ("tm-2",)}, PEERS, ("tm-0",))[0].name == "tm-0->tm-2/rpc"


def test_queue_rules_of_iptables_always_bypass():
    """A dead agent leaks nothing; only our chains are written."""
    text = rules.queue_iptables([rule(peers=("10.0.0.3",))])
    assert text.splitlines() == [
        "*mangle",
        ":HEADGATE-IN - [0:0]",
        ":HEADGATE-OUT - [0:0]",
        "-A HEADGATE-IN ! -i lo -s 10.0.0.3 -p tcp -m multiport --ports 6121 -j NFQUEUE --queue-num 18503 --queue-bypass",
        "-A HEADGATE-IN ! -i lo -s 10.0.0.3 -p udp -m multiport --ports 6134 -j NFQUEUE --queue-num 18503 --queue-bypass",
        "COMMIT",
    ]
    with pytest.raises(HeadgateError, match="not an IPv4 address"):
        rules.queue_iptables([rule(peers=("fd00::1",))])


def test_queue_rules_of_nft_always_bypass():
    """The same with nftables, IPv6 too; without rules the table is gone."""
    text = rules.queue_nft([rule(peers=("10.0.0.3", "fd00::1"))])
    assert "ip saddr { 10.0.0.3 } tcp dport { 6121 } queue num 18503 bypass" in text
    assert "ip6 saddr { fd00::1 } udp sport { 6134 } queue num 18503 bypass" in text
    assert rules.queue_nft([]) == "table inet headgate_queue\ndelete table inet headgate_queue\n"


def test_a_cut_ends_by_the_kernels_own_clock():
    """Ports are set elements with a timeout, so the kernel ends the drop at the deadline."""
    text = rules.drop_nft([rule("network.partition", "nftables", for_s=2.5, peers=("10.0.0.3",))])
    assert "elements = { 6121 timeout 2500ms }" in text
    assert "ip saddr { 10.0.0.3 } tcp dport @tcp0 counter drop" in text
    half = rules.drop_nft([rule("network.half-open", "nftables", hook=OUTPUT)])
    assert "tcp dport @tcp0 counter reject with tcp reset" in half


def test_only_headgates_tables_are_found():
    """Others keep theirs."""
    listing = "table inet headgate_0123\ntable ip kube-proxy\ntable inet filter\n"
    assert rules.own_tables(listing) == ["headgate_0123"]


def test_an_impairment_becomes_netem_options():
    """Percent, microseconds, and a limit that loses nothing under latency alone."""
    asked = Impairment(latency_s=0.02, jitter_s=0.005, correlation=0.25)
    assert rules.netem_options(rule(impairment=asked))[2:] == ["delay", "20000us", "5000us", "25%"]
    burst = rules.netem_options(rule(impairment=Impairment(loss=0.05, burst=4.0)))
    assert burst[2:] == ["loss", "gemodel", "1.31579%", "25%"]
    commands = rules.netem_on(rule(peers=("10.0.0.3",)), "eth0")
    assert commands[0] == ["ip", "link", "add", "headgate0", "type", "ifb"]
    assert all("10.0.0.3/32" in command for command in commands[4:])


def test_wilson_knows_its_textbook_values():
    """95 %: 10 of 100."""
    low, high = measure.wilson(10, 100, z=1.96)
    assert (round(low, 4), round(high, 4)) == (0.0552, 0.1744)
    assert measure.wilson(0, 0) == (0.0, 1.0)


def test_latency_is_judged_one_way_against_the_baseline():
    """The offset of the clocks is in both series and so in neither result."""
    before = PathReading(sent=100, echoed=100, answered=100, backward_s=(3.0001,) * 100)
    now = PathReading(sent=200, echoed=200, answered=200, backward_s=(3.0203,) * 200)
    assert measure.judge_latency(before, now, (False, True), 0.02).ok
    assert not measure.judge_latency(before, now, (False, True), 0.025).ok
    assert not measure.judge_latency(before, PathReading(sent=200), (False, True), 0.02).ok


def test_what_a_busier_machine_costs_is_no_latency():
    """Probes beside the rule were as much later as those through it: the difference is the fault's. Slower without it is nothing."""
    before = PathReading(
        sent=100, echoed=100, answered=100, backward_s=(3.0001,) * 100, beside_backward_s=(3.0001,) * 100
    )
    busy = PathReading(
        sent=200, echoed=200, answered=200, backward_s=(3.0261,) * 200, beside_backward_s=(3.0061,) * 200
    )
    judged = measure.judge_latency(before, busy, (False, True), 0.02)
    assert judged.ok
    assert judged.values["backward_added_s"] == pytest.approx(0.02)
    idle = PathReading(
        sent=200, echoed=200, answered=200, backward_s=(3.0201,) * 200, beside_backward_s=(3.0201,) * 200
    )
    assert not measure.judge_latency(before, idle, (False, True), 0.02).ok


def test_a_long_latency_may_be_a_twentieth_off():
    """300 ms that took 301.2 ms are what was asked, as they are of a busy machine; 320 ms are not."""
    before = PathReading(sent=100, echoed=100, answered=100, backward_s=(3.0,) * 100)
    for took_s, right in ((0.3012, True), (0.2988, True), (0.32, False), (0.28, False)):
        now = PathReading(sent=200, echoed=200, answered=200, backward_s=(3.0 + took_s,) * 200)
        assert measure.judge_latency(before, now, (False, True), 0.3).ok is right


def test_the_median_alone_says_whether_a_latency_is_right():
    """A tenth of the probes that were in time do not make up for the rest."""
    before = PathReading(sent=100, echoed=100, answered=100, backward_s=(3.0,) * 100)
    late = PathReading(sent=200, echoed=200, answered=200, backward_s=(3.02,) * 60 + (3.0215,) * 140)
    assert not measure.judge_latency(before, late, (False, True), 0.02).ok


def test_probes_that_may_still_come_are_not_lost():
    """Without an answer to the last probe the loss is unknown; without any answer everything is lost."""
    late = PathReading(sent=2300, echoed=2300, answered=2185, fenced=False)
    judged = measure.judge_loss(late, (False, True), 0.05)
    assert not judged.ok
    assert "on their way" in judged.text
    nothing = PathReading(sent=1000, fenced=False)
    assert measure.judge_loss(nothing, (False, True), 1.0).ok


def test_loss_is_judged_on_the_way_that_is_hit():
    """Loss on the way there, by another part of the fault, does not count on the way back."""
    now = PathReading(sent=2300, echoed=2000, answered=1900)
    assert measure.judge_loss(now, (False, True), 0.05).ok
    assert not measure.judge_loss(now, (False, True), 0.10).ok
    assert not measure.judge_loss(PathReading(sent=2300, echoed=2300, answered=2300), (False, True), 0.05).ok


def test_what_is_left_is_seen():
    """Longer than before, or lost: residue; else clean."""
    before = PathReading(sent=100, echoed=100, answered=100, backward_s=(1.0,) * 100)
    after = PathReading(sent=50, echoed=50, answered=50, backward_s=(1.02,) * 50)
    asked = Impairment(latency_s=0.02)
    assert measure.residue_of(before, after, (False, True), asked)
    assert not measure.residue_of(before, before, (False, True), asked)
    assert measure.residue_of(before, PathReading(sent=50), (False, True), asked)


def test_netlink_messages_read_back():
    """A queued packet as the kernel sends it; a verdict and an error are of the right shape."""
    header = struct.pack("=HH", 11, 1) + struct.pack(">IHB", 77, 0x0800, netlink.HOOK_INPUT) + b"\0"
    payload = struct.pack("=HH", 8, 10) + b"abcd"
    whole = struct.pack("=HH", 8, 13) + struct.pack(">I", 1500)
    stamp = struct.pack("=HH", 20, 4) + struct.pack(">QQ", 1_700_000_000, 250_000)
    body = struct.pack(">BBH", 2, 0, 5) + header + stamp + payload + whole
    data = struct.pack("=IHHII", 16 + len(body), 3 << 8, 0, 0, 0) + body
    assert list(netlink.parse(data)) == [netlink.QueuedPacket(77, 1, 1500, b"abcd", 1_700_000_000.25)]
    error = struct.pack("=IHHII", 20, 2, 0, 9, 0) + struct.pack("=i", -16)
    assert list(netlink.parse(error)) == [netlink.Acknowledged(16)]
    assert list(netlink.parse(data[:-1])) == []
    result = netlink.verdict(5, 77, accept=False)
    assert struct.unpack_from(">II", result, 24) == (netlink.DROP, 77)
    assert len(result) % 4 == 0


def test_ends_of_a_packet_are_read_from_its_headers():
    """IPv4 with options, IPv6, a fragment, garbage."""
    v4 = bytes([0x46]) + bytes(8) + bytes([6]) + bytes(2) + bytes([10, 0, 0, 1, 10, 0, 0, 2]) + bytes(4)
    ends = ends_of(v4 + struct.pack(">HH", 6121, 40000))
    assert ends is not None
    assert (ends.source, ends.destination, ends.source_port, ends.destination_port) == (
        "10.0.0.1",
        "10.0.0.2",
        6121,
        40000,
    )
    assert ends.has_port((6121,))
    assert not ends.has_port((6122,))
    v6 = bytes([0x60]) + bytes(5) + bytes([17, 1]) + bytes(15) + b"\x01" + bytes(15) + b"\x02"
    assert ends_of(v6 + struct.pack(">HH", 6134, 6133)).destination_port == 6133
    fragment = bytearray(v4)
    fragment[7] = 1
    assert ends_of(bytes(fragment)) is None
    assert ends_of(b"") is None
    assert with_flipped_bit(b"ab") == b"ac"
