"""Every fault kind, declared once (see `vocabulary` for the terms). Pure data.

A new kind is a declaration here and its effect in the backend that carries it; a new parameter is a line here and the place that acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed_runtime.core.errors import UserError, nearest
from testbed_runtime.core.faults.frame_classes import FRAME_CLASSES
from testbed_runtime.core.faults.model import Fault
from testbed_runtime.core.faults.vocabulary import (
    PACKET_BACKENDS,
    POD_BACKEND,
    Constraint,
    Family,
    Hides,
    Kind,
    Parameter,
    Type,
    choice,
    duration,
    integer,
    percent,
)

MAX_BURST = 1_000
"""Packets lost in a row, on average."""
MAX_ATTEMPTS = 1_000
"""Partition requests answered with `not found`."""
ROUND_TRIP = "round-trip"
"""The mode of a latency that is divided between both directions."""
MAX_BYTES_PER_SECOND = 2**40
"""A ceiling above this limits nothing."""

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("network", "network fault", "Acts on bytes between processes.", links=True),
        Family(
            "frames",
            "frame fault",
            "Acts on frames of Flink's exchange, by class.",
            links=True,
            exchange=True,
            moves_tasks=False,
        ),
        Family(
            "registration",
            "registration fault",
            "Acts on partitions that a producer registers.",
            exchange=True,
            moves_tasks=False,
        ),
        Family(
            "heartbeats", "heartbeat fault", "Acts on heartbeats between the JobManager and TaskManagers."
        ),
        Family("rpc", "RPC fault", "Acts on messages of the control plane."),
        Family("process", "process fault", "Acts on TaskManager processes.", target="taskManagers"),
        Family("pod", "pod fault", "Acts on pods, so only in a cluster.", target="any"),
        Family("jobmanager", "JobManager fault", "Acts on the JobManager process.", jobmanager_only=True),
        Family(
            "store", "store fault", "Acts on the checkpoint store, as the targets see it.", moves_tasks=False
        ),
    )
}

_PROBE = "A separate connection through the same path to an echo at the supervisor: round trips before, during and after."
_SILENCE = "A ping on a separate connection stays unanswered for a second (or half the fault), and the connection is not closed."
_PROXY_RESIDUE = (
    "The rule is still in the proxy, or a new connection's round trip is more than 2 ms longer than before."
)
_TAPS = "Taps on both sides (before the interceptor, after receipt), matched by channel and number."
_RULE_RESIDUE = "The rule is still in a process, or frames are still held there."
_NO_PROCESS_LEFT = "None is possible: the killed process no longer exists."
_NOT_WITHOUT_PACKETS = (
    "use network.latency or network.bandwidth for the effect that loss has on a TCP connection, or frames.drop to lose frames "
    "of the protocol"
)
_FRAME_CLASS = choice("frame_class", "The class of the frames.", {name: name for name in FRAME_CLASSES})


def _pod(name: str, doc: str, asked: str, limits: str) -> Kind:
    return Kind(
        name=name,
        doc=doc,
        backends=(POD_BACKEND,),
        asked=asked,
        measured="The API server no longer has the pod, or has another one with its name.",
        residue="None is possible: the pod no longer exists.",
        limits=f"{limits} It works only in a cluster.",
        in_process=True,
        instead="use process.kill, or run it with --on kubernetes",
        hides=Hides.PROCESS,
    )


def _pause(name: str, asked: str, limits: str) -> Kind:
    return Kind(
        name=name,
        doc="SIGSTOP until the fault ends.",
        backends=("supervisor",),
        asked=asked,
        measured="The kernel reports the process as stopped (`T` in /proc).",
        residue="The process is still stopped.",
        limits=limits,
        in_process=True,
        hides=Hides.PROCESS,
    )


def _packets(
    name: str, doc: str, *more: Parameter, asked: str, measured: str, residue: str, limits: str
) -> Kind:
    """A fault of single packets: a share of them, drawn by the seed."""
    return Kind(
        name=name,
        doc=doc,
        backends=("netem", "nfqueue"),
        asked=asked,
        measured=measured,
        residue=residue,
        limits=limits,
        parameters=(percent("Share of the packets, in percent."), *more),
        instead=_NOT_WITHOUT_PACKETS,
    )


def _channel(
    name: str,
    doc: str,
    *parameters: Parameter,
    asked: str | tuple[str, ...],
    measured: str,
    limits: str,
    residue: str = "The rule is still in a process.",
    one_of: tuple[str, ...] = (),
) -> Kind:
    """A fault that an interceptor inside each process carries out."""
    return Kind(
        name=name,
        doc=doc,
        backends=("channel",),
        asked=asked,
        measured=measured,
        residue=residue,
        limits=limits,
        parameters=parameters,
        one_of=one_of,
        in_process=True,
    )


_NETWORK = (
    Kind(
        name="network.latency",
        doc="Bytes arrive later.",
        backends=("netem", "nfqueue", "proxy"),
        parameters=(
            duration("delay", "The added delay.", internal="latency_s"),
            choice(
                "mode",
                "`one-way`: added to each direction that the fault names; `round-trip`: half to each direction.",
                {"one-way": "in each direction", ROUND_TRIP: "on each round trip"},
            ),
            duration("jitter", "The delay varies uniformly by up to ± this much, which is at most the delay. The order of bytes is kept.", default="0 ms"),
            integer(
                "correlation",
                "How far, in percent, a packet's jitter follows the jitter of the packet before. Above 0 needs a packet backend.",
                0,
                100,
                default=0,
                backends=PACKET_BACKENDS,
            ),
        ),
        constraints=(
            Constraint(
                "jitter",
                lambda f: f.params.get("jitter_s", 0) <= f.params.get("latency_s", 0),
                "is more than the delay, so bytes would arrive before they were sent",
                "make it at most the delay",
                at_most="delay",
            ),
            Constraint(
                "correlation",
                lambda f: not f.params.get("correlation") or bool(f.params.get("jitter_s")),
                "applies to the jitter, and there is none",
                "add a jitter, for example '5 ms'",
            ),
            Constraint(
                "direction",
                lambda f: f.params.get("mode") != ROUND_TRIP or f.direction == "both",
                "a round trip covers both directions",
                "write both, or mode: one-way",
            ),
        ),
        asked="{delay}[ ± {jitter}] more {mode} of {targets}{direction}{for}",
        measured=f"{_PROBE} The best of five must exceed the best one before by at least 80 % of the requested delay (minus the jitter).",
        residue=_PROXY_RESIDUE.replace("2 ms", "2 ms (or half the requested delay)"),
        limits="The proxy delays bytes, not packets: TCP on either side sees the same round trip as before, so its window and its timers do not "
        "change. New connections are accepted at once; only the data sent on them is late.",
    ),
    _packets(
        "network.loss",
        "Packets are lost.",
        integer("burst", "Mean number of packets lost in a row; 1: each packet independently.", 1, MAX_BURST, default=1),
        asked="{percent} % of the packets of {targets} lost[, {burst} in a row on average]{direction}{for}",
        measured="2,300 single-packet datagrams through the same rule, counted at both ends: the requested share lies in Wilson's 99.99 % interval "
        "of the measured one.",
        residue="Datagrams are still lost, or one of Headgate's rules is in the kernel.",
        limits="It needs packets: root on one machine (each process then has its own network namespace), or the agent container in pods. "
        "The simulator has no packets and refuses it before anything starts.",
    ),
    _packets(
        "network.duplicate",
        "Packets arrive twice.",
        asked="{percent} % of the packets of {targets} arrive twice{direction}{for}",
        measured="A probe of datagrams on the packets' path.",
        residue="Packets still arrive twice.",
        limits="TCP drops the second copy: the job sees it only as traffic. It needs a packet backend, like packet loss.",
    ),
    _packets(
        "network.reorder",
        "Packets are overtaken by later ones.",
        duration("delay", "How long such a packet is held.", default="10 ms"),
        asked="{percent} % of the packets of {targets} are overtaken{direction}{for}",
        measured="A probe of numbered datagrams on the packets' path.",
        residue="Packets are still overtaken.",
        limits="TCP restores the order of bytes: the job sees later bytes and repeated segments, never another order. It needs a packet backend.",
    ),
    _packets(
        "network.corrupt",
        "One bit of a packet flips, so the receiver's checksum rejects it.",
        asked="one bit flips in {percent} % of the packets of {targets}{direction}{for}",
        measured="A probe of datagrams on the packets' path: damaged ones do not arrive.",
        residue="Packets are still damaged.",
        limits="The receiver's checksum drops the packet, so the effect is packet loss. It needs a packet backend.",
    ),
    Kind(
        "network.partition",
        "Nothing passes; connections stay open.",
        ("nftables", "proxy"),
        "nothing passes between {targets} and its peers{direction}{for}",
        _SILENCE,
        _PROXY_RESIDUE,
        "It does not refuse connections: the kernel completes the TCP handshake with the proxy, and the caller believes that it is "
        "connected until one of its own timeouts expires. Data sent during the partition arrives when TCP sends it again: at most as long "
        "after the end as the partition lasted.",
        hides=Hides.LINK,
        silent=True,
        loses=True,
    ),
    Kind(
        "network.reset",
        "Open connections are reset, and new ones too while the fault lasts.",
        ("proxy",),
        "connections of {targets} are reset{for}",
        "The probe's connection is reset within a second.",
        _PROXY_RESIDUE,
        "It drops data in flight in both directions and does not wait for the peer. It is not a one-time event: while it lasts, every new "
        "connection is reset as well.",
        hides=Hides.LINK,
    ),
    Kind(
        "network.stall",
        "Bytes are accepted and held; they arrive, in order, when the fault ends.",
        ("proxy",),
        "bytes of {targets} are held{direction}{for}",
        _SILENCE,
        f"{_PROXY_RESIDUE} Bytes are still held.",
        "It is not a partition: bytes are accepted (up to 16 MiB per direction and connection), so the sender believes that they were sent.",
        hides=Hides.LINK,
        silent=True,
    ),
    Kind(
        "network.half-open",
        "The target's ends of its connections vanish; the peers are not notified until the fault ends.",
        ("nftables", "proxy"),
        "the ends of {targets} vanish, its peers are not notified{for}",
        f"{_SILENCE} It is sent from the end that stays.",
        _PROXY_RESIDUE,
        "The target's process stays: only its ends of its connections vanish. Its new connections are refused, those to it get no "
        "answer. When the fault ends, the other ends are reset, as by a firewall that lost its connection table.",
        hides=Hides.LINK,
        silent=True,
    ),
    Kind(
        name="network.bandwidth",
        doc="Throughput is limited.",
        backends=("netem", "proxy"),
        parameters=(
            integer(
                "bytes_per_second",
                "The ceiling for each direction of each connection.",
                1,
                MAX_BYTES_PER_SECOND,
                internal="bytes_per_s",
            ),
        ),
        asked="at most {bytes_per_second}/s for {targets}{direction}{for}",
        measured="A transfer over a separate connection, about 0.3 s long, is not faster than 1.25 × the ceiling.",
        residue=_PROXY_RESIDUE,
        limits="The ceiling is per direction and connection; connections do not share it. It acts in slices of 5 ms, not in packets.",
    ),
)  # fmt: skip

_FRAMES = (
    _channel(
        "frames.delay",
        "Frames of a class are held back.",
        _FRAME_CLASS,
        duration("delay", "How long each is held; later frames of its channel wait too."),
        asked="{frame_class} frames of {targets} {delay} later{direction}{for}",
        measured=f"{_TAPS} The median delay is at least 80 % of the requested one.",
        residue=_RULE_RESIDUE,
        limits="It delays its own channel only (later frames wait behind a delayed one), not the connection. Channels inside one process "
        "have no frames.",
    ),
    _channel(
        "frames.drop",
        "Frames of a class are dropped.",
        _FRAME_CLASS,
        percent("Share of the frames, in percent, drawn from the seed.", default=100),
        asked="{percent} % of the {frame_class} frames of {targets} dropped{direction}{for}",
        measured=f"{_TAPS} At least half of the requested share is missing.",
        residue=_RULE_RESIDUE,
        limits="It is not packet loss: TCP never loses a frame, so this breaks the protocol on purpose. Flink cannot recover a lost buffer; "
        "expect a job that fails or stops making progress.",
    ),
    _channel(
        "frames.withhold-credit",
        "AddCredit frames are kept until the fault ends, then sent.",
        asked="credit of {targets} is withheld{direction}{for}",
        measured=f"{_TAPS} Credit that was sent has not arrived.",
        residue=_RULE_RESIDUE,
        limits="It does not hold the initial credit, which travels in the partition request. Credits of a channel that closes meanwhile are "
        "discarded.",
    ),
)  # fmt: skip

_CALLS = (
    _channel(
        "registration.delay",
        "A producer's partitions are registered late.",
        duration("delay", "How much later they are registered. Either this or `attempts`.", default=None),
        integer("attempts", "Register them after this many requests were answered with `not found`.", 1, MAX_ATTEMPTS, default=None),
        Parameter("vertex", Type.VERTEX, "Only the partitions of this vertex.", default=None),
        one_of=("delay", "attempts"),
        asked=(
            "the first {attempts} requests for partitions[ of {vertex}] on {targets} find nothing",
            "partitions[ of {vertex}] on {targets} are registered {delay} late",
        ),
        measured="The TaskManagers' own count: a registration waited for at least 80 % of the requested time.",
        limits="It delays only partitions that are registered while it lasts: with `at: deploy` those of the first deployment. It does not "
        "slow the task itself.",
    ),
    _channel(
        "heartbeats.mute",
        "Heartbeats in one direction are dropped.",
        choice(
            "direction",
            "`request`: the JobManager's heartbeats do not reach the target; `response`: the target's answers do not reach the JobManager.",
            {"request": "request", "response": "response"},
        ),
        asked="heartbeat {direction}s of {targets} are dropped{for}",
        measured="The count of dropped heartbeats at the process that should have received them.",
        limits="It affects no other message, so the TaskManager stays reachable: detection is by `heartbeat.timeout`, never by the RPC "
        "failure threshold.",
    ),
    _channel(
        "rpc.delay",
        "Messages wait in the callee's mailbox.",
        Parameter("method", Type.MESSAGE, "Name of the message, such as `SubmitTask`. The error for an unknown name suggests the nearest one."),
        duration("delay", "How long each occupies the callee's mailbox: later messages wait too."),
        asked="each {method} on {targets} {delay} later{for}",
        measured="The callee's own count: a message waited for at least 80 % of the requested time.",
        limits="It delays no bytes: the message has arrived and occupies the mailbox, as in an overloaded process. An ask that times out does "
        "not cancel it.",
    ),
    _channel(
        "store.slow",
        "Every read and write of the checkpoint store takes longer.",
        duration("delay", "The added delay, for each object."),
        asked="each object of the checkpoint store {delay} later for {targets}{for}",
        measured="The targets' own count: an access waited for at least 80 % of the requested time.",
        limits="Listing and deleting are not slowed. Every process has its own view of the store: processes that are not targets are not "
        "affected.",
    ),
    _channel(
        "store.failing",
        "The checkpoint store refuses writes.",
        asked="the checkpoint store refuses writes of {targets}{for}",
        measured="The targets' own count of refused writes.",
        limits="Reads succeed. What is already stored is not damaged.",
    ),
)  # fmt: skip

_PROCESSES = (
    Kind(
        name="process.kill",
        doc="SIGKILL; the TaskManager is replaced only by `replaceLost`.",
        backends=("supervisor",),
        asked="kill of {targets}",
        measured="The process, with all of its threads, ended within 1 s.",
        residue=_NO_PROCESS_LEFT,
        limits="It kills the process, not the machine or the pod: the kernel closes its connections when its last thread has "
        "ended, usually at once, so peers with open ones notice immediately.",
        hides=Hides.PROCESS,
    ),
    _pause(
        "process.pause",
        "{duration} pause of {targets}",
        "Its connections stay open and the kernel still acknowledges and buffers for it. Its supervisor and the probes keep running.",
    ),
    _pod(
        "pod.delete",
        "The pod is deleted without grace; a TaskManager is replaced only by `replaceLost`.",
        "the pod of {targets} is deleted",
        "There is no grace period, so nothing in the pod can shut down cleanly.",
    ),
    _pod(
        "pod.evict",
        "The pod is evicted, as when its node is drained: disruption budgets and its grace period apply.",
        "the pod of {targets} is evicted",
        "A disruption budget may refuse it; then it did not take effect.",
    ),
    Kind(
        name="jobmanager.kill",
        doc="SIGKILL; the JobManager is restarted when the fault ends.",
        backends=("supervisor",),
        asked="kill of the JobManager, restarted after {duration}",
        measured="The process, with all of its threads, ended within 1 s.",
        residue=f"{_NO_PROCESS_LEFT} A new one starts at the same address.",
        limits="There is no standby: the next incarnation recovers the job and the latest checkpoint from the store.",
        hides=Hides.PROCESS,
    ),
    _pause(
        "jobmanager.pause",
        "{duration} pause of the JobManager",
        "The runner's requests stay unanswered meanwhile, so live progress stops too.",
    ),
)  # fmt: skip

_DECLARED = (*_NETWORK, *_FRAMES, *_CALLS, *_PROCESSES)


def kinds_of(family: str) -> tuple[Kind, ...]:
    return tuple(kind for kind in _DECLARED if kind.family == family)


KINDS: Mapping[str, Kind] = {kind.name: kind for family in FAMILIES for kind in kinds_of(family)}


def kind_of(fault: Fault) -> Kind:
    """Return the kind of a fault. Raises UserError with the nearest known kind."""
    kind = KINDS.get(fault.kind)
    if kind is None:
        hint = nearest(fault.kind, KINDS, "`headgate faults` lists the kinds")
        raise UserError(f"faults[{fault.name}].kind", f"{fault.kind!r} is not a fault kind", hint)
    return kind


def per_direction(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fault's parameters for one direction: a round trip's latency and jitter are halved."""
    if params.get("mode") != ROUND_TRIP:
        return dict(params)
    halved = {k: v / 2 if k in ("latency_s", "jitter_s") else v for k, v in params.items()}
    return {**halved, "mode": "one-way"}
